import { Store } from "../lib/store";
import { Upload, type Wanted } from "./upload";

/** The uploads of this page, the latest first. */
export const uploads = new Store<readonly Upload[]>([]);

const KEPT = 20;

/** A browser asks before it leaves a page that sends an image. */
function hold(event: BeforeUnloadEvent): void {
  event.preventDefault();
}

function changed(): void {
  const isBusy = uploads.state().some((upload) => !upload.isOver);
  if (isBusy) window.addEventListener("beforeunload", hold);
  else window.removeEventListener("beforeunload", hold);
}

/** Sends an image, whatever screen is shown meanwhile. */
export function beginUpload(wanted: Wanted): Upload {
  const upload = new Upload(wanted);
  uploads.become([upload, ...uploads.state()].slice(0, KEPT));
  changed();
  void upload.run().finally(changed);
  return upload;
}

/** The upload of this page that a task has its image from, or awaits it of. */
export function uploadOf(
  all: readonly Upload[],
  task: string,
  disk: string | undefined,
): Upload | undefined {
  const own = all.filter((upload) => upload.task === task);
  if (disk === undefined) return own.find((upload) => !upload.isOver) ?? own[0];
  return own.find((upload) => upload.wanted.disk === disk && !upload.isOver);
}
