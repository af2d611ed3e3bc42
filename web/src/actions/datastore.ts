import type { Schemas } from "../api/types";
import { action, type Action } from "./action";

type Named = Pick<Schemas["Datastore"], "name">;
const of = ({ name }: Named) => ({ path: { datastore: name } });

/** How a host reaches a Ceph cluster; what is left out is as the cluster's own programs have it. */
export interface CephWay {
  user: string;
  conf: string | undefined;
  keyring: string | undefined;
}

function wayBody({ user, conf, keyring }: CephWay) {
  return {
    user,
    ...(conf === undefined ? {} : { conf }),
    ...(keyring === undefined ? {} : { keyring }),
  };
}

function wayWords({ user, conf, keyring }: CephWay): readonly string[] {
  return [
    ...["--user", user],
    ...(conf === undefined ? [] : ["--conf", conf]),
    ...(keyring === undefined ? [] : ["--keyring", keyring]),
  ];
}

const hostWords = (host: string | undefined) => (host === undefined ? [] : ["--host", host]);

export function addDirectory(name: string, path: string, host: string | undefined): Action {
  return action(
    `Add datastore ${name}`,
    "datastore_add",
    { body: { name, path, ...(host === undefined ? {} : { host }) } },
    ["datastore", "add", name, path, ...hostWords(host)],
  );
}

export interface Pools {
  pool: string;
  dataPool: string | undefined;
  namespace: string | undefined;
}

export function addPools(
  name: string,
  { pool, dataPool, namespace }: Pools,
  way: CephWay,
  host: string | undefined,
): Action {
  return action(
    `Add datastore ${name}`,
    "datastore_add",
    {
      body: {
        name,
        ...(host === undefined ? {} : { host }),
        ceph: {
          pool,
          client: wayBody(way),
          ...(dataPool === undefined ? {} : { data_pool: dataPool }),
          ...(namespace === undefined ? {} : { namespace }),
        },
      },
    },
    [
      ...["datastore", "add", name, "--rbd", pool],
      ...(dataPool === undefined ? [] : ["--data-pool", dataPool]),
      ...(namespace === undefined ? [] : ["--namespace", namespace]),
      ...wayWords(way),
      ...hostWords(host),
    ],
  );
}

export function addDatastoreHost(
  datastore: Named,
  host: string,
  { path, way }: { path: string | undefined; way: CephWay | undefined },
): Action {
  return action(
    `Have ${host} use ${datastore.name}`,
    "datastore_add_host",
    {
      ...of(datastore),
      body: {
        host,
        ...(path === undefined ? {} : { path }),
        ...(way === undefined ? {} : { ceph: wayBody(way) }),
      },
    },
    [
      ...["datastore", "add-host", datastore.name, "--host", host],
      ...(path === undefined ? [] : ["--path", path]),
      ...(way === undefined ? [] : wayWords(way)),
    ],
  );
}

export function removeDatastoreHost({ name }: Named, host: string): Action {
  return action(
    `End the use of ${name} by ${host}`,
    "datastore_remove_host",
    { path: { datastore: name, host } },
    ["datastore", "remove-host", name, "--host", host],
  );
}

export function removeDatastore(datastore: Named): Action {
  return action(`Remove datastore ${datastore.name}`, "datastore_remove", of(datastore), [
    ...["datastore", "remove", datastore.name],
  ]);
}

export function rebuild(datastore: Named, acceptConfiguration: boolean): Action {
  return action(
    `Register the VMs of ${datastore.name}`,
    "datastore_rebuild",
    {
      ...of(datastore),
      body: acceptConfiguration ? { accept_configuration: true } : {},
    },
    ["datastore", "rebuild", datastore.name, acceptConfiguration && "--accept-configuration"],
  );
}
