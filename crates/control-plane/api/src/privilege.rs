//! Privileges, and the roles that every site has.

use std::collections::BTreeSet;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The right to one kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Privilege {
    /// See objects, their states, tasks and events.
    View,
    /// Start, stop, pause, suspend and reset VMs.
    Power,
    /// Open consoles and screens.
    Console,
    /// Read dumps, and copies of disks in plain text.
    Export,
    /// Read maps of volumes, and have volumes checked: neither shows content; for the site, have
    /// sealed backups of the inventory made.
    Backup,
    /// Make VMs and volumes.
    Create,
    /// Change VMs and volumes; for the site, set hosts in maintenance.
    Configure,
    /// Move VMs and volumes to other hosts; for the site, with `configure` and `power`, evacuate
    /// hosts.
    Migrate,
    /// Decide what a guest runs: its kernel, boot order, CD-ROM, network cards, screen, what its
    /// disks are filled with, a revert, a request to its agent.
    GuestControl,
    /// Make and delete snapshots.
    Snapshot,
    /// Delete VMs, volumes and dumps.
    Delete,
    /// Reach the content of encrypted VMs, with the privilege for the way there.
    Access,
    /// Add disks to encrypted VMs.
    AddDisk,
    /// Clone encrypted VMs and volumes.
    Clone,
    /// Decrypt disks, and make clones in plain text of what is encrypted.
    Decrypt,
    /// Encrypt disks, and make encrypted clones of what is in plain text.
    Encrypt,
    /// Make encrypted VMs and volumes.
    EncryptNew,
    /// Move encrypted VMs to other keys, and set how long their data keys are used.
    Recrypt,
    /// Choose an existing key for a new VM.
    ManageKeys,
    /// Make and delete policies.
    ManagePolicies,
    /// Register the VMs of a datastore.
    RegisterVm,
    /// Let machines join as hosts, which get the keys of the VMs on them, and remove them.
    RegisterHost,
    /// Add, remove and scan datastores.
    Datastores,
    /// Make and delete networks, and say on which bridges hosts have them.
    Networks,
    /// Connect network cards: to a network; for the site, to bridges and tap devices of hosts, too.
    Connect,
    /// Make users, roles, folders and grants, and move VMs between folders.
    Roles,
    /// Read the access log, and who may do what.
    Audit,
    /// Decide who outside is sent the site's alarms.
    Recipients,
}

impl Privilege {
    /// Every privilege.
    pub const ALL: [Self; 28] = [
        Self::View,
        Self::Power,
        Self::Console,
        Self::Export,
        Self::Backup,
        Self::Create,
        Self::Configure,
        Self::Migrate,
        Self::GuestControl,
        Self::Snapshot,
        Self::Delete,
        Self::Access,
        Self::AddDisk,
        Self::Clone,
        Self::Decrypt,
        Self::Encrypt,
        Self::EncryptNew,
        Self::Recrypt,
        Self::ManageKeys,
        Self::ManagePolicies,
        Self::RegisterVm,
        Self::RegisterHost,
        Self::Datastores,
        Self::Networks,
        Self::Connect,
        Self::Roles,
        Self::Audit,
        Self::Recipients,
    ];

    /// Its name in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::View => "view",
            Self::Power => "power",
            Self::Console => "console",
            Self::Export => "export",
            Self::Backup => "backup",
            Self::Create => "create",
            Self::Configure => "configure",
            Self::Migrate => "migrate",
            Self::GuestControl => "guest_control",
            Self::Snapshot => "snapshot",
            Self::Delete => "delete",
            Self::Access => "access",
            Self::AddDisk => "add_disk",
            Self::Clone => "clone",
            Self::Decrypt => "decrypt",
            Self::Encrypt => "encrypt",
            Self::EncryptNew => "encrypt_new",
            Self::Recrypt => "recrypt",
            Self::ManageKeys => "manage_keys",
            Self::ManagePolicies => "manage_policies",
            Self::RegisterVm => "register_vm",
            Self::RegisterHost => "register_host",
            Self::Datastores => "datastores",
            Self::Networks => "networks",
            Self::Connect => "connect",
            Self::Roles => "roles",
            Self::Audit => "audit",
            Self::Recipients => "recipients",
        }
    }

    /// What it permits, as a part of a sentence.
    pub const fn permits(self) -> &'static str {
        match self {
            Self::View => "see objects, their states, tasks and events",
            Self::Power => "start, stop, pause, suspend and reset VMs",
            Self::Console => "open consoles and screens",
            Self::Export => "read dumps, and copies of disks in plain text",
            Self::Backup => "read maps of volumes, and have volumes checked: neither shows content",
            Self::Create => "make VMs and volumes",
            Self::Configure => "change VMs and volumes; for the site, set hosts in maintenance",
            Self::Migrate => {
                "move VMs and volumes to other hosts; for the site, with configure and power, evacuate hosts"
            }
            Self::GuestControl => {
                "decide what a guest runs: kernel, boot order, CD-ROM, network cards, screen, content of disks"
            }
            Self::Snapshot => "make and delete snapshots",
            Self::Delete => "delete VMs, volumes and dumps",
            Self::Access => "reach the content of encrypted VMs, with the privilege for the way there",
            Self::AddDisk => "add disks to encrypted VMs",
            Self::Clone => "clone encrypted VMs and volumes",
            Self::Decrypt => "make clones in plain text of what is encrypted",
            Self::Encrypt => "make encrypted clones of what is in plain text",
            Self::EncryptNew => "make encrypted VMs and volumes",
            Self::Recrypt => "move encrypted VMs to other keys, and set how long their data keys are used",
            Self::ManageKeys => "choose an existing key for a new VM",
            Self::ManagePolicies => "make and delete policies",
            Self::RegisterVm => "register the VMs of a datastore",
            Self::RegisterHost => {
                "let machines join as hosts, which get the keys of the VMs on them, and remove them"
            }
            Self::Datastores => "add, remove and scan datastores",
            Self::Networks => "make and delete networks, and say on which bridges hosts have them",
            Self::Connect => {
                "connect network cards to networks; for the site, to bridges and tap devices of hosts, too"
            }
            Self::Roles => "make users, roles, folders and grants, and move VMs between folders",
            Self::Audit => "read the access log, and who may do what",
            Self::Recipients => "decide who outside is sent the site's alarms",
        }
    }

    /// Whether it reaches keys or the content of what is encrypted, so that an administrator
    /// without cryptography does not have it.
    pub const fn is_cryptographic(self) -> bool {
        match self {
            Self::Access
            | Self::AddDisk
            | Self::Clone
            | Self::Decrypt
            | Self::Encrypt
            | Self::EncryptNew
            | Self::Recrypt
            | Self::ManageKeys
            | Self::ManagePolicies
            | Self::RegisterVm
            | Self::RegisterHost => true,
            Self::View
            | Self::Power
            | Self::Console
            | Self::Export
            | Self::Backup
            | Self::Create
            | Self::Configure
            | Self::Migrate
            | Self::GuestControl
            | Self::Snapshot
            | Self::Delete
            | Self::Datastores
            | Self::Networks
            | Self::Connect
            | Self::Roles
            | Self::Audit
            | Self::Recipients => false,
        }
    }
}

impl FromStr for Privilege {
    type Err = UnknownPrivilege;

    fn from_str(text: &str) -> Result<Self, UnknownPrivilege> {
        let known = Self::ALL.into_iter().find(|privilege| privilege.as_str() == text);
        known.ok_or_else(|| UnknownPrivilege { named: text.to_owned() })
    }
}

/// A text that names no privilege.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no privilege '{named}'; name some of {}", PrivilegeSet::all())]
pub struct UnknownPrivilege {
    named: String,
}

/// A set of privileges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[schema(value_type = Vec<Privilege>)]
pub struct PrivilegeSet(BTreeSet<Privilege>);

impl PrivilegeSet {
    /// Every privilege.
    pub fn all() -> Self {
        Privilege::ALL.into_iter().collect()
    }

    /// Whether it has this privilege.
    pub fn has(&self, privilege: Privilege) -> bool {
        self.0.contains(&privilege)
    }

    /// The first privilege that it has and `other` lacks.
    pub fn beyond(&self, other: &Self) -> Option<Privilege> {
        self.0.difference(&other.0).next().copied()
    }

    /// Adds the privileges of `other`.
    pub fn add(&mut self, other: &Self) {
        self.0.extend(&other.0);
    }

    /// The privileges that both have.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        self.0.intersection(&other.0).copied().collect()
    }

    /// Its privileges.
    pub fn iter(&self) -> impl Iterator<Item = Privilege> {
        self.0.iter().copied()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Privilege> for PrivilegeSet {
    fn from_iter<All: IntoIterator<Item = Privilege>>(all: All) -> Self {
        Self(all.into_iter().collect())
    }
}

/// The roles that every site has. They cannot be changed or deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BuiltInRole {
    /// Every privilege.
    Administrator,
    /// Every privilege that is not cryptographic: runs the site, and reaches no content of
    /// encrypted VMs.
    NoCryptographyAdministrator,
    /// Runs VMs.
    Operator,
    /// Sees everything, and who may do what; changes nothing.
    Auditor,
}

impl BuiltInRole {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::Administrator, Self::NoCryptographyAdministrator, Self::Operator, Self::Auditor];

    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Administrator => "administrator",
            Self::NoCryptographyAdministrator => "no-cryptography-administrator",
            Self::Operator => "operator",
            Self::Auditor => "auditor",
        }
    }

    /// The role with this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Its privileges.
    pub fn privileges(self) -> PrivilegeSet {
        let of = |all: &[Privilege]| all.iter().copied().collect();
        match self {
            Self::Administrator => PrivilegeSet::all(),
            Self::NoCryptographyAdministrator => {
                Privilege::ALL.into_iter().filter(|privilege| !privilege.is_cryptographic()).collect()
            }
            Self::Operator => of(&[
                Privilege::View,
                Privilege::Power,
                Privilege::Console,
                Privilege::Snapshot,
                Privilege::Backup,
            ]),
            Self::Auditor => of(&[Privilege::View, Privilege::Audit]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_privilege_is_listed_and_named_as_in_the_json() {
        assert_eq!(PrivilegeSet::all().iter().count(), Privilege::ALL.len());
        for privilege in Privilege::ALL {
            assert_eq!(serde_json::to_value(privilege).unwrap(), privilege.as_str());
            assert_eq!(privilege.as_str().parse(), Ok(privilege));
        }
    }
}
