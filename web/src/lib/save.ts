/** Gives the browser a file to save. */
export function saveAs(file: string, text: string): void {
  const address = URL.createObjectURL(new Blob([`${text}\n`], { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = file;
  link.click();
  URL.revokeObjectURL(address);
}
