import { useEffect } from "react";

/** Names the page in the browser's tabs and history. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} \u00b7 Strongroom`;
  }, [title]);
}
