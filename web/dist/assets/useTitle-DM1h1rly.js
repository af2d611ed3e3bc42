import{r as t}from"./index-BM7BMyF7.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
