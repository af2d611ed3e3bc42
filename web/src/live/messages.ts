/** A message of a stream of server-sent events (WHATWG HTML, 9.2). */
export interface Message {
  event: string;
  id: string | undefined;
  data: string;
}

/** Reads messages from the parts in which a stream arrives. */
export class Messages {
  #rest = "";

  /** The messages that are complete with this part. */
  read(part: string): Message[] {
    const blocks = (this.#rest + part).split("\n\n");
    this.#rest = blocks.pop() ?? "";
    return blocks.map(messageOf).filter((message) => message !== undefined);
  }
}

function messageOf(block: string): Message | undefined {
  const message: Message = { event: "message", id: undefined, data: "" };
  const data: string[] = [];
  for (const line of block.split("\n")) {
    const [, field, value] = /^([^:]+): ?(.*)$/.exec(line) ?? [];
    if (field === "event" && value !== undefined) message.event = value;
    if (field === "id") message.id = value;
    if (field === "data" && value !== undefined) data.push(value);
  }
  return data.length === 0 ? undefined : { ...message, data: data.join("\n") };
}
