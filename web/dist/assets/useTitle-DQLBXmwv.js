import{r as t}from"./index-e_Yoqdpm.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
