import type { Privilege } from "../../api/types";
import { useStore } from "../../lib/store";
import { moment } from "../../lib/units";
import { useTitle } from "../../shell/useTitle";
import { RadioField, SelectField } from "../../ui/Field";
import { Facts, Panel, ScreenHead } from "../../ui/Panel";
import { chooseDensity, chooseZone, density, OWN_ZONE, zone } from "../../ui/preferences";
import { chooseTheme, theme, type Theme } from "../../ui/theme";
import { useNow } from "../../ui/When";
import { useMe } from "../../session/useMe";
import { scopeInWords } from "../access/privileges";

const THEMES: readonly { value: Theme; label: string }[] = [
  { value: "system", label: "As the system" },
  { value: "light", label: "Light" },
  { value: "dark", label: "Dark" },
];

const UTC = "UTC";

function zonesOf(own: string) {
  const others = Intl.supportedValuesOf("timeZone").filter((name) => name !== UTC);
  return [
    { value: OWN_ZONE, label: `The browser\u2019s: ${own}` },
    { value: UTC, label: UTC },
    ...others.map((name) => ({ value: name, label: name })),
  ];
}

export default function Settings() {
  useTitle("Settings");
  const me = useMe();
  const places = me.places ?? [];
  const chosenTheme = useStore(theme);
  const chosenDensity = useStore(density);
  const chosenZone = useStore(zone);
  const nowMs = useNow();
  const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return (
    <>
      <ScreenHead title="Settings" />
      <div className="halves">
        <Panel title="This browser">
          <div className="form">
            <RadioField
              label="Theme"
              value={chosenTheme}
              options={THEMES}
              onChange={(value) =>
                chooseTheme(THEMES.find((each) => each.value === value)?.value ?? "system")
              }
            />
            <RadioField
              label="Rows"
              value={chosenDensity}
              onChange={(value) => chooseDensity(value === "compact" ? "compact" : "comfortable")}
              options={[
                { value: "comfortable", label: "Comfortable" },
                { value: "compact", label: "Compact", hint: "More of a long list is seen." },
              ]}
            />
            <SelectField
              label="Times are shown in"
              hint={`Now: ${moment(nowMs)}. Windows of schedules are always in UTC.`}
              value={chosenZone}
              options={zonesOf(own)}
              onChange={chooseZone}
            />
            <p className="soft">
              These are kept in this browser. Nothing else is: no token, no name, no list.
            </p>
          </div>
        </Panel>
        <Panel title="You">
          <Facts
            facts={[
              { label: "Name", value: me.name },
              {
                label: "Roles",
                value:
                  me.grants.length === 0
                    ? me.site.length > 0 || places.length > 0
                      ? "those of a token"
                      : "none"
                    : me.grants
                        .map(({ role, scope }) => `${role} for ${scopeInWords(scope)}`)
                        .join("; "),
              },
              {
                label: "Everywhere",
                value:
                  me.site.length === 0 ? (
                    "nothing for the whole site"
                  ) : (
                    <Privileges all={me.site} />
                  ),
              },
              ...places.map(({ scope, privileges }) => ({
                label: `At ${scopeInWords(scope)}`,
                value: <Privileges all={privileges} />,
              })),
            ]}
          />
        </Panel>
      </div>
    </>
  );
}

function Privileges({ all }: { all: readonly Privilege[] }) {
  return (
    <span className="tags">
      {all.map((privilege) => (
        <span key={privilege} className="tag">
          {privilege}
        </span>
      ))}
    </span>
  );
}
