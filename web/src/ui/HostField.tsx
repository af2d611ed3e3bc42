import { useAsk } from "../api/ask";
import { SelectField } from "./Field";

interface Props {
  value: string;
  onChange: (host: string) => void;
  /** Hosts that are not offered. */
  without?: readonly string[];
}

/** A choice of a host of the site. */
export function HostField({ value, onChange, without = [] }: Props) {
  const { data } = useAsk("host_list", { query: { limit: 1000 } });
  const names = (data?.items ?? [])
    .map(({ name }) => name)
    .filter((name) => !without.includes(name));
  return (
    <SelectField
      label="Host"
      value={value}
      onChange={onChange}
      options={[
        { value: "", label: names.length === 0 ? "No other host" : "Choose a host" },
        ...names.map((name) => ({ value: name, label: name })),
      ]}
    />
  );
}
