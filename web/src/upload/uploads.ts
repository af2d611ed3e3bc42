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
  const others = uploads
    .state()
    .filter(
      ({ isOver, wanted: { vm, disk } }) => !isOver || vm !== wanted.vm || disk !== wanted.disk,
    );
  uploads.become([upload, ...others].slice(0, KEPT));
  changed();
  void upload.run().finally(changed);
  return upload;
}
