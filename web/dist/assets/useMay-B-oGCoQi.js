import{k as t}from"./index-CH9REoww.js";function n(){const u=t();return(a,r,e)=>{const s=u(a,e)??r.refusal;return s===void 0?r:{...r,refusal:s}}}export{n as u};
