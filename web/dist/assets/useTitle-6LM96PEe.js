import{r as t}from"./index-D8kO7Xiv.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
