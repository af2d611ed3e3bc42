import{r as t}from"./index-BXJoQ9O9.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
