/** Whether a screen has been gone to whose title has not been there yet. */
let isWanted = false;

function focusTitle(): void {
  // That of the former screen stays, unseen, until the next one is loaded.
  const titles = [...document.querySelectorAll<HTMLElement>("[data-screen-title]")];
  const title = titles.find((each) => each.checkVisibility());
  if (title === undefined) return;
  isWanted = false;
  title.focus();
}

/** Moves the focus to the title of the screen, as a browser does with a new page. */
export function wantTitleFocus(): void {
  isWanted = true;
  // A dialog that closes with this gives the focus back in the next frame.
  requestAnimationFrame(() => requestAnimationFrame(focusTitle));
}

/** A title has come, maybe later than the wish for it: its screen may have had to be loaded. */
export function titleIsThere(): void {
  if (isWanted) focusTitle();
}
