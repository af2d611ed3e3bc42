import{r as t}from"./index-BV0q9gp_.js";function e(o){t.useEffect(()=>{document.title=`${o} · Strongroom`},[o])}export{e as u};
