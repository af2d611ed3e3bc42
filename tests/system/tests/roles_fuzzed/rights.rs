//! What a caller may do, by the document for people (`docs/ROLES.md`) and by what is written here:
//! nothing of the server's own tables is used.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};

use super::generator::{Generated, Slip};
use super::site::{DATASTORE, NETWORK, State, VMS};

/// Where a caller's role counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Site,
    /// The folder of the site.
    Folder,
    /// The VM `inside1`.
    Vm,
    Datastore,
    Network,
}

impl Scope {
    fn has_vm(self, vm: &str) -> bool {
        match self {
            Self::Site => true,
            Self::Folder => VMS.iter().any(|(name, _, in_folder)| *name == vm && *in_folder),
            Self::Vm => vm == "inside1",
            Self::Datastore | Self::Network => false,
        }
    }
}

/// Who sends requests.
pub struct Caller {
    /// The name of its token.
    pub name: String,
    pub role: String,
    pub privileges: BTreeSet<String>,
    pub scope: Scope,
    pub token: String,
}

impl Caller {
    fn has(&self, privilege: &str) -> bool {
        self.privileges.contains(privilege)
    }
}

/// What an operation takes.
enum Takes {
    /// No token, any token, or what the fields say.
    Else,
    Privileges {
        always: Vec<String>,
        if_encrypted: Vec<String>,
    },
}

/// The matrix of `docs/ROLES.md`.
pub struct Matrix(BTreeMap<String, Takes>);

impl Matrix {
    pub fn read() -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ROLES.md");
        let text = std::fs::read_to_string(path).unwrap();
        let table = text.split("| operation |").nth(1).unwrap().split("| fields |").next().unwrap();
        let quoted = |cell: &str| cell.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
        let rows = table.lines().filter(|line| line.starts_with("| `")).map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let takes = match quoted(cells[2]) {
                none if none.is_empty() => Takes::Else,
                always => Takes::Privileges { always, if_encrypted: quoted(cells[3]) },
            };
            (quoted(cells[1]).remove(0), takes)
        });
        let rows: BTreeMap<String, Takes> = rows.collect();
        assert!(rows.len() > 100, "{} operations in the matrix", rows.len());
        Self(rows)
    }

    /// Why a request must be refused, if it must.
    pub fn refuses(&self, caller: &Caller, request: &Generated) -> Option<String> {
        let Some(takes) = self.0.get(&request.operation) else {
            panic!("{} is not in the matrix", request.operation);
        };
        let vm = request.named.get("vm").map(String::as_str);
        let known = vm.and_then(|vm| VMS.iter().find(|(name, ..)| *name == vm));
        if let Takes::Privileges { always, if_encrypted } = takes {
            // A caller that may decrypt may have.
            let is_encrypted = known.is_some_and(|(_, encrypted, _)| *encrypted) && !caller.has("decrypt");
            let more: &[String] = if is_encrypted { if_encrypted } else { &[] };
            if let Some(lacks) = always.iter().chain(more).find(|needed| !caller.has(needed)) {
                return Some(format!("it takes {lacks}"));
            }
            let is_in_scope = match (caller.scope, vm) {
                (Scope::Site, _) => true,
                (scope, Some(vm)) => known.is_none() || scope.has_vm(vm),
                (Scope::Datastore, None) => {
                    request.named.get("datastore").is_some_and(|datastore| datastore == DATASTORE)
                }
                (Scope::Network, None) => {
                    request.named.get("network").is_some_and(|network| network == NETWORK)
                }
                (Scope::Folder | Scope::Vm, None) => {
                    ["volume", "folder"].iter().any(|parameter| request.named.contains_key(*parameter))
                }
            };
            if !is_in_scope {
                return Some(format!("it is outside of {:?}", caller.scope));
            }
        }
        // What was cut or inserted afterwards may have changed the meaning.
        if request.slip == Slip::Body {
            return None;
        }
        let lacks = |needed: &&str| !caller.has(needed);
        fields(request).into_iter().find(lacks).map(|lacks| format!("a field takes {lacks}"))
    }
}

/// The privileges that the fields of a request take.
fn fields(request: &Generated) -> Vec<&'static str> {
    let field = |pointer: &str| request.body.pointer(pointer).unwrap_or(&Value::Null);
    let is_given = |pointer: &str| !field(pointer).is_null();
    let mut needed = Vec::new();
    let mut takes = |privilege, so: bool| {
        if so {
            needed.push(privilege);
        }
    };
    match request.operation.as_str() {
        "vm_create" => {
            takes("create", true);
            takes("encrypt_new", *field("/encryption/encrypted") != Value::Bool(false));
            takes("manage_keys", is_given("/encryption/key"));
            takes("guest_control", field("/boot/type") == "kernel" || field("/cdrom/type") == "image");
            takes("guest_control", *field("/fill_seed") == Value::Bool(true) || is_given("/nics/0"));
            takes("configure", is_given("/placement_group"));
        }
        "vm_set" => {
            let control = ["/boot", "/cdrom", "/nics", "/vnc"];
            takes("guest_control", control.into_iter().any(is_given));
        }
        "vm_clone" => {
            takes("export", *field("/encrypted") == Value::Bool(false));
            takes("encrypt", *field("/encrypted") == Value::Bool(true));
        }
        "vm_snapshot_create" => takes("guest_control", is_given("/quiesce_within_s")),
        "vm_add_disk" => takes("guest_control", *field("/fill") == Value::Bool(true)),
        "vm_add_nic" => takes("guest_control", true),
        "vm_move" => takes("roles", true),
        "vm_register" | "datastore_rebuild" => {
            takes("access", *field("/accept_configuration") == Value::Bool(true));
        }
        "vm_ticket" => match field("/operation").as_str() {
            Some("console" | "console_log" | "vnc") => takes("console", true),
            Some("dump" | "export") => takes("export", true),
            Some("check") => takes("backup", true),
            Some("upload") => takes("guest_control", true),
            _ => {}
        },
        _ => {}
    }
    needed
}

/// The fields of a VM that callers might change, with the privileges of which one is needed.
pub const VM_FIELDS: [(&str, &[&str]); 23] = [
    ("id", &["delete"]),
    ("name", &["configure"]),
    ("notes", &["configure"]),
    ("tags", &["configure"]),
    ("topology", &["configure"]),
    ("memory_bytes", &["configure"]),
    ("restart", &["configure"]),
    ("limits", &["configure", "manage_policies"]),
    ("template", &["configure"]),
    ("boot", &["guest_control"]),
    ("cdrom", &["guest_control"]),
    ("nics", &["guest_control"]),
    ("vnc", &["guest_control"]),
    ("disks", &["configure", "snapshot", "manage_policies"]),
    ("encrypted", &["encrypt", "decrypt"]),
    ("key", &["recrypt", "encrypt", "decrypt"]),
    ("cryptoperiod", &["recrypt"]),
    ("desired", &["power", "snapshot"]),
    ("snapshots", &["snapshot", "configure", "manage_policies"]),
    ("host", &["migrate"]),
    ("folder", &["roles"]),
    ("policy", &["manage_policies"]),
    ("directory", &["delete"]),
];

/// The kinds of objects of the site, with the privileges of which one is needed to change them.
const SITE: [(&str, &[&str]); 14] = [
    ("users", &["roles"]),
    ("groups", &["roles"]),
    ("providers", &["roles"]),
    ("tokens", &["roles"]),
    ("roles", &["roles"]),
    ("emergencies", &["roles", "audit"]),
    ("folders", &["roles"]),
    ("policies", &["manage_policies"]),
    ("recipients", &["recipients"]),
    ("networks", &["networks"]),
    ("datastores", &["datastores"]),
    ("hosts", &["configure", "register_host"]),
    ("placement groups", &["configure"]),
    ("retention", &["audit"]),
];

/// What has changed between two states though the caller may not change it.
pub fn gained(caller: &Caller, before: &State, after: &State) -> Vec<String> {
    let mut gained = Vec::new();
    let may = |one_of: &[&str]| one_of.iter().any(|privilege| caller.has(privilege));
    for (kind, one_of) in SITE {
        let was = others(caller, kind, &before.site[kind], &before.site[kind]);
        let is = others(caller, kind, &after.site[kind], &before.site[kind]);
        let is_for_site = caller.scope == Scope::Site || ["datastores", "networks"].contains(&kind);
        if was != is && !(may(one_of) && is_for_site) {
            gained.push(format!("{kind}: {was} became {is}"));
        }
    }
    for (vm, fields) in &before.vms {
        for (field, one_of) in VM_FIELDS {
            let (was, is) = (&fields[field], &after.vms[vm][field]);
            // One that is gone has no fields.
            let is_gone = after.vms[vm]["id"].is_null();
            let needed = if is_gone { &["delete", "configure"] } else { one_of };
            if was != is && !(may(needed) && caller.scope.has_vm(vm)) {
                gained.push(format!("{field} of {vm}: {was} became {is}"));
            }
        }
    }
    let roles: BTreeMap<&str, BTreeSet<String>> = array(&after.site["roles"])
        .map(|role| {
            let privileges = array(&role["privileges"]).map(|one| one.as_str().unwrap().to_owned());
            (role["name"].as_str().unwrap(), privileges.collect())
        })
        .collect();
    let grants = |state: &State| -> Vec<Value> {
        let users = array(&state.site["users"]).flat_map(|user| array(&user["grants"]));
        users.chain(array(&state.site["groups"])).chain(array(&state.site["tokens"])).cloned().collect()
    };
    // A scope is shown by name, which an object loses when it is deleted.
    let of = |grant: &Value| json!([grant["id"], grant["role"], grant["scope"]["type"]]);
    let earlier: Vec<Value> = grants(before).iter().map(of).collect();
    for new in grants(after).iter().filter(|grant| !earlier.contains(&of(grant))) {
        // A role that was deleted since gives nothing.
        let given = new["role"].as_str().and_then(|role| roles.get(role)).cloned().unwrap_or_default();
        if !given.is_subset(&caller.privileges) {
            gained.push(format!("it gave more than it has: {new}"));
        }
        if caller.scope != Scope::Site && new["scope"]["type"] == "site" {
            gained.push(format!("it gave what counts everywhere: {new}"));
        }
    }
    gained
}

/// What is not the caller's own. Its own are its token, the tokens that are new since `before`, and
/// for one with `roles` in a part of the site the grants there: what it gave is judged by itself.
fn others(caller: &Caller, kind: &str, all: &Value, before: &Value) -> Value {
    let gives = caller.has("roles");
    match (kind, all) {
        ("tokens", Value::Array(tokens)) => {
            let was_there = |token: &&Value| array(before).any(|known| known["name"] == token["name"]);
            let is_own = |token: &Value| token["name"] == *caller.name;
            // A scope is shown by name, which an object may lose.
            let shown = |token: &Value| json!([token["id"], token["role"], token["scope"]["type"]]);
            tokens.iter().filter(was_there).filter(|token| !is_own(token)).map(shown).collect()
        }
        ("users", Value::Array(users)) => {
            let grants = |user: &Value| array(&user["grants"]).map(|grant| grant["id"].clone()).collect();
            let shown = |user: &Value| json!([user["id"], if gives { Value::Null } else { grants(user) }]);
            users.iter().map(shown).collect()
        }
        ("groups", _) if gives => Value::Null,
        (_, all) => all.clone(),
    }
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}
