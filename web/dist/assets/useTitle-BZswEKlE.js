import{r as t}from"./index-C-3ZBxM1.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
