/** What tabs tell each other of the session that they share. */
export type SessionNews = { kind: "signed_in"; name: string } | { kind: "signed_out" };

const NAME = "strongroom-session";
const channel = new BroadcastChannel(NAME);

export function tellTabs(news: SessionNews): void {
  channel.postMessage(news);
}

export function hearTabs(hear: (news: SessionNews) => void): () => void {
  const listener = ({ data }: MessageEvent<SessionNews>) => hear(data);
  channel.addEventListener("message", listener);
  return () => channel.removeEventListener("message", listener);
}
