import { useEffect, useState } from "react";
import { useStore } from "../lib/store";
import { CheckField } from "../ui/Field";
import { Dialog } from "../ui/Dialog";
import { expired, signedIn } from "./expiry";
import { SignInForm } from "./SignInForm";
import { hearTabs, tellTabs } from "./tabs";

/** Asks to sign in again above the page, which keeps what is in its forms. */
export function ExpiredDialog({ name }: { name: string }) {
  const waiting = useStore(expired);
  const [repeats, setRepeats] = useState(true);

  useEffect(() => {
    const goOn = (next: string) => {
      // Somebody else sees other things: nothing of this page is kept.
      if (next === name) signedIn(repeats);
      else location.reload();
    };
    return hearTabs((news) => {
      if (news.kind === "signed_in") goOn(news.name);
      else location.assign("/");
    });
  }, [name, repeats]);

  if (waiting.length === 0) return null;
  const changes = waiting.map(({ what }) => what).filter((what) => what !== undefined);
  return (
    <Dialog title="Your session has ended" mustAnswer onClose={() => undefined}>
      <p>Sign in again to go on. What you have entered is kept.</p>
      {changes.length === 0 ? null : (
        <CheckField
          label={`Then repeat: ${changes.join(", ")}`}
          hint="It was not carried out: the server refused it."
          isChecked={repeats}
          onChange={setRepeats}
        />
      )}
      <SignInForm
        keepsPage
        onSignedIn={({ name: next }) => {
          tellTabs({ kind: "signed_in", name: next });
          if (next === name) signedIn(repeats);
          else location.reload();
        }}
      />
    </Dialog>
  );
}
