import { useState } from "react";
import { ActionDialog } from "../actions/ActionDialog";
import { bytes } from "../lib/units";
import { Note } from "../ui/Notes";
import { importImage } from "./actions";
import { leastDiskBytes, type ChosenImage } from "./format";
import { ImageField } from "./ImageField";

interface Props {
  vm: string;
  disk: string;
  /** The bytes of the disk, if the image is not there in part already. */
  size?: number;
  /** The task that awaits the image. */
  task?: string;
  onClose: () => void;
}

/** An image for a disk, which this page sends while it is open. */
export function ImageDialog({ vm, disk, size, task, onClose }: Props) {
  const [image, choose] = useState<ChosenImage>();
  const least = leastDiskBytes(image);
  const isTooLarge = size !== undefined && least !== undefined && least > size;
  const isReady = image?.format !== undefined && !isTooLarge;
  return (
    <ActionDialog
      title={task === undefined ? `Fill ${disk} of ${vm}` : `The image for ${disk} of ${vm}`}
      submit={task === undefined ? "Fill" : "Send"}
      actions={isReady ? [importImage(vm, disk, image, task)] : []}
      onClose={onClose}
      {...(task === undefined
        ? { confirm: disk, loses: `What ${disk} holds now, once the image is there whole.` }
        : {})}
    >
      <ImageField label="Image" image={image} onChange={choose} />
      {isTooLarge ? (
        <Note tone="bad">
          {`Its disk has ${bytes(least)}, and ${disk} has ${bytes(size)}: grow ${disk} first.`}
        </Note>
      ) : null}
      <p className="field-hint">
        It is sent from this page, which has to stay open, and is sealed where it arrives. What is
        lost on the way is asked for again.
      </p>
    </ActionDialog>
  );
}
