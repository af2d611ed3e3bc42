import{r as t}from"./index-CH9REoww.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
