import type { Privilege, Schemas } from "../api/types";
import { commandTime } from "../lib/times";
import { action, type Action } from "./action";
import { commandSize } from "../lib/units";

type Scope = Schemas["Scope"];
type Quota = Schemas["Quota"];

/** Fields of bodies that are never shown. */
const SECRETS = ["password", "current", "client_secret"];

/** Where a role counts, as options of the command line. */
export function scopeWords(scope: Scope): readonly string[] {
  switch (scope.type) {
    case "site":
      return [];
    case "folder":
      return ["--folder", scope.folder];
    case "vm":
      return ["--vm", scope.vm];
    case "datastore":
      return ["--datastore", scope.datastore];
    case "network":
      return ["--network", scope.network];
  }
}

export function createUser(name: string, password: string): Action {
  return action(
    `Create user ${name}`,
    "user_create",
    { body: { name, password } },
    ["user", "create", name],
    SECRETS,
  );
}

export function deleteUser(user: string): Action {
  return action(`Delete user ${user}`, "user_delete", { path: { user } }, [
    ...["user", "delete", user, "--yes"],
  ]);
}

const currentOf = (current: string | undefined) => (current === undefined ? {} : { current });

export function changePassword(
  user: string,
  password: string,
  current: string | undefined,
): Action {
  return action(
    `Change the password of ${user}`,
    "user_password",
    { path: { user }, body: { password, ...currentOf(current) } },
    ["user", "password", user],
    SECRETS,
  );
}

export function renewSecondFactor(user: string, current: string | undefined): Action {
  return action(
    `Give ${user} another second factor`,
    "user_second_factor",
    { path: { user }, body: currentOf(current) },
    ["user", "totp", user],
    SECRETS,
  );
}

export function createRole(name: string, privileges: readonly Privilege[]): Action {
  return action(
    `Create role ${name}`,
    "role_create",
    { body: { name, privileges: [...privileges] } },
    ["role", "create", name, ...privileges.flatMap((privilege) => ["--privilege", privilege])],
  );
}

export function deleteRole(role: string): Action {
  return action(`Delete role ${role}`, "role_delete", { path: { role } }, [
    ...["role", "delete", role],
  ]);
}

/** A user of the site, or a group of an identity provider. */
export type Grantee =
  { kind: "user"; user: string } | { kind: "group"; provider: string; group: string };

export function granteeName(grantee: Grantee): string {
  return grantee.kind === "user" ? grantee.user : `${grantee.provider}:${grantee.group}`;
}

export function grantRole(grantee: Grantee, role: string, scope: Scope): Action {
  const name = granteeName(grantee);
  return action(
    `Give ${name} the role ${role}`,
    "grant_create",
    {
      body: {
        role,
        scope,
        ...(grantee.kind === "user"
          ? { user: grantee.user }
          : { group: { provider: grantee.provider, group: grantee.group } }),
      },
    },
    ["role", "grant", name, role, ...scopeWords(scope)],
  );
}

/** Who has a role, as the command line names it. */
export function holderOf({ user, group }: Schemas["Grant"]): string {
  return user ?? (group === undefined || group === null ? "" : `${group.provider}:${group.group}`);
}

export function revokeGrant(grant: Schemas["Grant"]): Action {
  const name = holderOf(grant);
  return action(
    `Take the role ${grant.role} from ${name}`,
    "grant_delete",
    { path: { grant: grant.id } },
    ["role", "revoke", name, grant.role, ...scopeWords(grant.scope)],
  );
}

export interface NewToken {
  name: string;
  role: string;
  scope: Scope;
  nowS: number;
  validS: number;
  certificate: string | undefined;
}

export function createToken({ name, role, scope, nowS, validS, certificate }: NewToken): Action {
  return action(
    `Create token ${name}`,
    "token_create",
    {
      body: {
        name,
        role,
        scope,
        expires_unix_seconds: nowS + validS,
        ...(certificate === undefined ? {} : { certificate }),
      },
    },
    [
      ...["access", "token", "create", name, "--role", role, "--valid", commandTime(validS)],
      ...(certificate === undefined ? [] : ["--certificate", `${name}.crt`]),
      ...scopeWords(scope),
    ],
  );
}

export function rotateToken(token: string): Action {
  return action(`Rotate token ${token}`, "token_rotate", { path: { token }, body: {} }, [
    ...["access", "token", "rotate", token],
  ]);
}

export function revokeToken(token: string): Action {
  return action(`Revoke token ${token}`, "token_revoke", { path: { token } }, [
    ...["access", "token", "revoke", token],
  ]);
}

export function endSession({ id, user }: Schemas["Session"]): Action {
  return action(`End a session of ${user}`, "session_end", { path: { session: id } }, [
    ...["access", "session", "end", id],
  ]);
}

export function createFolder(name: string): Action {
  return action(`Create folder ${name}`, "folder_create", { body: { name } }, [
    ...["folder", "create", name],
  ]);
}

export function deleteFolder(folder: string): Action {
  return action(`Delete folder ${folder}`, "folder_delete", { path: { folder } }, [
    ...["folder", "delete", folder],
  ]);
}

export function setQuota(folder: string, quota: Quota): Action {
  const { vms, cpus, memory_bytes: memory, disk_bytes: disks } = quota;
  const words = [
    ...(typeof vms === "number" ? ["--vms", String(vms)] : []),
    ...(typeof cpus === "number" ? ["--cpus", String(cpus)] : []),
    ...(typeof memory === "number" ? ["--memory", commandSize(memory)] : []),
    ...(typeof disks === "number" ? ["--disks", commandSize(disks)] : []),
  ];
  return action(`Set the quota of ${folder}`, "folder_set", { path: { folder }, body: { quota } }, [
    "folder",
    "quota",
    folder,
    ...(words.length === 0 ? ["--none"] : words),
  ]);
}

export interface NewProvider {
  name: string;
  issuer: string;
  clientId: string;
  secret: string | undefined;
  scopes: readonly string[];
  userClaim: string | undefined;
  groupsClaim: string | undefined;
  pages: readonly string[];
  sessionS: number;
  authorities: string | undefined;
}

export function createProvider(of: NewProvider): Action {
  const { name, issuer, clientId, secret, scopes, userClaim, groupsClaim } = of;
  const { pages, sessionS, authorities } = of;
  return action(
    `Add identity provider ${name}`,
    "identity_provider_create",
    {
      body: {
        name,
        issuer,
        client_id: clientId,
        scopes: [...scopes],
        pages: [...pages],
        session_s: sessionS,
        ...(secret === undefined ? {} : { client_secret: secret }),
        ...(userClaim === undefined ? {} : { user_claim: userClaim }),
        ...(groupsClaim === undefined ? {} : { groups_claim: groupsClaim }),
        ...(authorities === undefined ? {} : { authorities }),
      },
    },
    [
      ...["access", "provider", "add", name, "--issuer", issuer, "--client-id", clientId],
      ...(secret === undefined ? [] : ["--client-secret-file", `${name}.secret`]),
      ...scopes.flatMap((scope) => ["--scope", scope]),
      ...(userClaim === undefined ? [] : ["--user-claim", userClaim]),
      ...(groupsClaim === undefined ? [] : ["--groups-claim", groupsClaim]),
      ...pages.flatMap((page) => ["--page", page]),
      ...["--session", commandTime(sessionS)],
      ...(authorities === undefined ? [] : ["--authorities", `${name}.pem`]),
    ],
    SECRETS,
  );
}

export function setProviderSecret(provider: string, secret: string): Action {
  return action(
    `Change the secret at ${provider}`,
    "identity_provider_set",
    { path: { provider }, body: { client_secret: secret } },
    ["access", "provider", "secret", provider, "--client-secret-file", `${provider}.secret`],
    SECRETS,
  );
}

export function deleteProvider(provider: string): Action {
  return action(
    `Remove identity provider ${provider}`,
    "identity_provider_delete",
    { path: { provider } },
    ["access", "provider", "remove", provider],
  );
}

const emergencyWords = (verb: string, name: string) => ["access", "emergency", verb, name];

export function createEmergency(name: string): Action {
  return action(
    `Create emergency credential ${name}`,
    "emergency_create",
    { body: { name } },
    emergencyWords("create", name),
  );
}

export function rotateEmergency(name: string): Action {
  return action(
    `Rotate emergency credential ${name}`,
    "emergency_rotate",
    { path: { credential: name }, body: {} },
    emergencyWords("rotate", name),
  );
}

export function acknowledgeEmergency(name: string): Action {
  return action(
    `Acknowledge the use of ${name}`,
    "emergency_acknowledge",
    { path: { credential: name }, body: {} },
    emergencyWords("acknowledge", name),
  );
}

export function revokeEmergency(name: string): Action {
  return action(
    `Revoke emergency credential ${name}`,
    "emergency_revoke",
    { path: { credential: name } },
    emergencyWords("revoke", name),
  );
}
