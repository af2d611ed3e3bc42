import { useQuery } from "@tanstack/react-query";
import { call } from "../../api/call";
import { asProblem, type Problem } from "../../api/problem";
import type { Schemas } from "../../api/types";

type Volume = Schemas["Volume"];

const PAGE = 1_000;
/** What disks take is read in the background, and no event says so. */
const EVERY_MS = 15_000;

/** All disks of the site, of VMs and of none, in the order of their VMs. */
export function useDisks() {
  return useQuery<readonly Volume[], Problem>({
    queryKey: ["volume_list_all"],
    queryFn: ({ signal }) =>
      readAll(signal).catch((error: unknown) => {
        throw asProblem(error);
      }),
    refetchInterval: EVERY_MS,
  });
}

async function readAll(signal: AbortSignal): Promise<readonly Volume[]> {
  const found: Volume[] = [];
  let cursor: string | undefined;
  do {
    const query = { limit: PAGE, ...(cursor === undefined ? {} : { cursor }) };
    const page = await call("volume_list", { query }, { signal });
    found.push(...page.items);
    cursor = page.next ?? undefined;
  } while (cursor !== undefined);
  return found;
}
