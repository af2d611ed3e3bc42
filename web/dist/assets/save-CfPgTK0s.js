function o(c,n){const t=URL.createObjectURL(new Blob([`${n}
`],{type:"text/plain"})),e=document.createElement("a");e.href=t,e.download=c,e.click(),URL.revokeObjectURL(t)}export{o as s};
