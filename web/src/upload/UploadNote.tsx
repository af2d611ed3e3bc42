import { useState } from "react";
import type { Task } from "../api/types";
import { useStore } from "../lib/store";
import { bytes } from "../lib/units";
import { Button } from "../ui/Button";
import { When } from "../ui/When";
import { ImageDialog } from "./ImageDialog";
import type { Upload } from "./upload";
import { uploadOf, uploads } from "./uploads";

/** What a task has of its image, and the way to bring that when no page sends it. */
export function UploadNote({ task }: { task: Task }) {
  const [isAsked, ask] = useState(false);
  const all = useStore(uploads);
  const own = uploadOf(all, task.id, task.awaits_image ?? undefined);
  if (task.state !== "running") return null;
  if (own !== undefined) return <Sent upload={own} />;
  const disk = task.awaits_image;
  if (typeof disk !== "string") return null;
  return (
    <div className="buttons">
      <Button isDisabled={task.cancelling} onPress={() => ask(true)}>
        {`Choose the image for ${disk}\u2026`}
      </Button>
      {isAsked ? (
        <ImageDialog vm={task.object.name} disk={disk} task={task.id} onClose={() => ask(false)} />
      ) : null}
    </div>
  );
}

function Sent({ upload }: { upload: Upload }) {
  const state = useStore(upload.state);
  const { name, image } = upload.wanted;
  switch (state.is) {
    case "waiting":
      return <p className="small">{`${name} is about to be sent. Keep this page open.`}</p>;
    case "sending":
      return (
        <p className="small">
          {`This page sends ${name}: ${bytes(state.bytes)} of ${bytes(image.size)}. Keep it open.`}
        </p>
      );
    case "lost":
      return (
        <p className="small">
          {`${name}: ${state.problem.message}. It is tried again `}
          <When ms={state.untilMs} />.
        </p>
      );
    case "sent":
      return <p className="small">{`${name} has been sent. This page may be closed.`}</p>;
    case "failed":
      return <p className="small">{`${name}: ${state.problem.message}`}</p>;
    case "ended":
      return null;
  }
}
