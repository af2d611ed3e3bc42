/** A message of the API; what it sets between backticks is shown as code. */
export function Prose({ text }: { text: string }) {
  return text
    .split("`")
    .map((part, index) => (index % 2 === 1 ? <code key={index}>{part}</code> : part));
}
