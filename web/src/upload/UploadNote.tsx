import { useState } from "react";
import type { Task } from "../api/types";
import { useStore } from "../lib/store";
import { bytes } from "../lib/units";
import { Button } from "../ui/Button";
import { When } from "../ui/When";
import { ImageDialog } from "./ImageDialog";
import type { Upload } from "./upload";
import { uploads } from "./uploads";

/** What a task has of its image, and the way to bring that when no page sends it. */
export function UploadNote({ task }: { task: Task }) {
  const [asked, ask] = useState<string>();
  const own = useStore(uploads).filter((upload) => upload.task === task.id);
  if (task.state !== "running") return null;
  return (
    <>
      {own.map((upload) => (
        <Sent key={upload.wanted.disk} upload={upload} />
      ))}
      <Bring task={task} own={own} onAsk={ask} />
      {asked === undefined ? null : (
        <ImageDialog
          vm={task.object.name}
          disk={asked}
          task={task.id}
          onClose={() => ask(undefined)}
        />
      )}
    </>
  );
}

interface BringProps {
  task: Task;
  own: readonly Upload[];
  onAsk: (disk: string) => void;
}

function Bring({ task: { awaits_image: disk, cancelling }, own, onAsk }: BringProps) {
  if (typeof disk !== "string") return null;
  if (own.some((upload) => !upload.isOver && upload.wanted.disk === disk)) return null;
  return (
    <div className="buttons">
      <Button isDisabled={cancelling} onPress={() => onAsk(disk)}>
        {`Choose the image for ${disk}\u2026`}
      </Button>
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
