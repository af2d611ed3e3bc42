import { bytes } from "../lib/units";
import { Field, SelectField } from "../ui/Field";
import { chosen, leastDiskBytes, type ChosenImage, type ImageFormat } from "./format";

const FORMATS: readonly ImageFormat[] = ["qcow2", "raw", "vmdk", "vhdx"];

interface Props {
  label: string;
  image: ChosenImage | undefined;
  isOptional?: boolean;
  hint?: string;
  onChange: (image: ChosenImage | undefined) => void;
}

/** A file with the image of a disk, and its format. */
export function ImageField({ label, image, isOptional = false, hint, onChange }: Props) {
  const least = leastDiskBytes(image);
  const fault =
    image !== undefined && image.format === undefined
      ? "Its name and its content do not tell its format for certain: say which one it has."
      : undefined;
  return (
    <>
      <Field
        label={label}
        isOptional={isOptional}
        hint={
          image === undefined
            ? (hint ?? "qcow2, raw, vmdk or vhdx.")
            : `${bytes(image.file.size)}${least === undefined ? "" : `, for a disk of ${bytes(least)}`}.`
        }
      >
        {(ids) => (
          <input
            {...ids}
            className="input"
            type="file"
            onChange={({ target }) => {
              const file = target.files?.[0];
              if (file === undefined) onChange(undefined);
              else void chosen(file).then(onChange);
            }}
          />
        )}
      </Field>
      {image === undefined ? null : (
        <SelectField
          label="Its format"
          fault={fault}
          value={image.format ?? ""}
          onChange={(format) =>
            onChange({ ...image, format: FORMATS.find((each) => each === format) })
          }
          options={[
            ...(image.format === undefined ? [{ value: "", label: "Choose one" }] : []),
            ...FORMATS.map((format) => ({ value: format, label: format })),
          ]}
        />
      )}
    </>
  );
}
