import { useStore } from "../lib/store";
import { Menu } from "../ui/Menu";
import { chooseTheme, theme, type Theme } from "../ui/theme";
import type { IconName } from "../ui/Icon";

const THEMES: readonly (readonly [Theme, string, IconName])[] = [
  ["system", "As the system", "system"],
  ["light", "Light", "sun"],
  ["dark", "Dark", "moon"],
];

export function ThemeSwitch() {
  const chosen = useStore(theme);
  const icon = THEMES.find(([name]) => name === chosen)?.[2] ?? "system";
  return (
    <Menu
      label="Theme"
      icon={icon}
      look="quiet"
      choices={THEMES.map(([name, label, drawing]) => ({
        id: name,
        label,
        icon: drawing,
        ...(name === chosen ? { hint: "chosen" } : {}),
        choose: () => chooseTheme(name),
      }))}
    />
  );
}
