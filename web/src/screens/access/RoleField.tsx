import { useAsk } from "../../api/ask";
import { SelectField } from "../../ui/Field";

/** A choice of a role, with how much it permits. */
export function RoleField({
  value,
  onChange,
}: {
  value: string;
  onChange: (role: string) => void;
}) {
  const { data } = useAsk("role_list", { query: { limit: 1000 } });
  return (
    <SelectField
      label="Role"
      value={value}
      onChange={onChange}
      options={[
        { value: "", label: "Choose a role" },
        ...(data?.items ?? []).map(({ name, privileges }) => ({
          value: name,
          label: `${name} (${privileges.length} privileges)`,
        })),
      ]}
    />
  );
}
