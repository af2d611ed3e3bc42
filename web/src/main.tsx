import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { App } from "./app/App";
import { takeReturned } from "./session/returned";
import "./styles";
import { beginPreferences } from "./ui/preferences";
import { beginTheme } from "./ui/theme";

const returned = takeReturned();
beginTheme();
beginPreferences();
const place = document.getElementById("page");
if (place === null) throw new Error("index.html has no place for the page");
createRoot(place).render(
  <StrictMode>
    <App returned={returned} />
  </StrictMode>,
);
