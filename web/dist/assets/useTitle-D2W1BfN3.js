import{r as t}from"./index-BKL0TveO.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
