import { addresses } from "../app/addresses";
import { ButtonLink } from "../ui/Button";
import { Empty } from "../ui/Notes";
import { ScreenHead } from "../ui/Panel";

export function Nowhere() {
  return (
    <>
      <ScreenHead title="No such page" />
      <Empty
        icon="search"
        title="There is nothing at this address"
        action={<ButtonLink to={addresses.overview}>To the overview</ButtonLink>}
      >
        It may have been renamed or deleted, or your roles do not show it.
      </Empty>
    </>
  );
}
