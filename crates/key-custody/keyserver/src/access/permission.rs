//! The table of permissions: one row for each class of operation, one column for each role.

use serde::{Deserialize, Serialize};

use super::role::Role;

/// A class of operations. Every operation of the server, KMIP's and its own, belongs to one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperationClass {
    /// The server's capabilities: Discover Versions, Query.
    Discover,
    /// Make a key in the server without revealing it: Create, Re-key.
    CreateKey,
    /// Bring a key that the client knows: Register.
    RegisterKey,
    /// Fetch a key, plain or wrapped: Get.
    ReadKey,
    /// Use a key in the server, if that is enabled: Encrypt, Decrypt, MAC, MAC Verify.
    UseKey,
    /// Random bytes, if that is enabled: RNG Retrieve, RNG Seed.
    Random,
    /// Read a key's metadata, never its value: Locate, Get Attributes, Get Attribute List, Check.
    ReadMetadata,
    /// Add, Modify and Delete Attribute; Activate.
    ChangeMetadata,
    /// End a key's use for protection: Revoke, as deactivated or compromised.
    RevokeKey,
    /// Request a key's destruction: Destroy, and its withdrawal during the delay.
    DestroyKey,
    /// A second person's confirmation of a destruction.
    ConfirmDestroy,
    /// Renew one's own certificate.
    RenewCertificate,
    /// Tokens, revocation and pinning of certificates, roll-over of the authority.
    ManageClients,
    /// Prepare grants: the list of hosts, and the generations of VMs.
    IssueGrants,
    /// Adopt an external provider's key, or have one made there, without seeing it.
    BrokerKey,
    /// Make a backup or begin a restore; neither reveals a key.
    ManageBackup,
    /// Give one's share for a restore.
    GiveShare,
    /// Read the audit log and its signed heads.
    ReadAudit,
    /// Put on record what became of volumes and their data keys.
    RecordMove,
}

/// Which objects a permission covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// None: every request is refused.
    Nothing,
    /// The objects and operations that the request's grant names.
    Granted,
    /// The client's own objects or, for operations without an object, its own affairs.
    Own,
    /// Everything.
    All,
}

use OperationClass as Class;
use Scope::{All, Granted, Nothing as None, Own};

/// Columns in the order of [`Role::ALL`].
#[rustfmt::skip]
const TABLE: [(OperationClass, [Scope; 6]); 19] = [
    //                        admin    control  host     client   custodian auditor
    (Class::Discover,         [All,    All,     All,     All,     All,      All ]),
    (Class::CreateKey,        [None,   Own,     None,    Own,     None,     None]),
    (Class::RegisterKey,      [None,   None,    None,    Own,     None,     None]),
    (Class::ReadKey,          [None,   None,    Granted, Own,     None,     None]),
    (Class::UseKey,           [None,   None,    Granted, Own,     None,     None]),
    (Class::Random,           [None,   None,    Own,     Own,     None,     None]),
    (Class::ReadMetadata,     [All,    All,     Granted, Own,     None,     All ]),
    (Class::ChangeMetadata,   [None,   Own,     None,    Own,     None,     None]),
    (Class::RevokeKey,        [All,    Own,     None,    Own,     None,     None]),
    (Class::DestroyKey,       [All,    Own,     None,    Own,     None,     None]),
    (Class::ConfirmDestroy,   [All,    None,    None,    None,    None,     None]),
    (Class::RenewCertificate, [Own,    Own,     Own,     Own,     Own,      Own ]),
    (Class::ManageClients,    [All,    None,    None,    None,    None,     None]),
    (Class::IssueGrants,      [None,   All,     None,    None,    None,     None]),
    (Class::BrokerKey,        [None,   All,     None,    None,    None,     None]),
    (Class::ManageBackup,     [All,    None,    None,    None,    None,     None]),
    (Class::GiveShare,        [None,   None,    None,    None,    Own,      None]),
    (Class::ReadAudit,        [All,    None,    None,    None,    None,     All ]),
    (Class::RecordMove,       [All,    All,     None,    None,    None,     None]),
];

impl OperationClass {
    /// All of them, in the order of the table.
    pub const ALL: [OperationClass; 19] = {
        let mut all = [OperationClass::Discover; 19];
        let mut row = 0;
        while row < all.len() {
            all[row] = TABLE[row].0;
            row += 1;
        }
        all
    };
}

/// The objects on which `role` may perform operations of `class`.
pub const fn scope(role: Role, class: OperationClass) -> Scope {
    TABLE[class as usize].1[role as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules, stated again independently of the table.
    fn expected(role: Role, class: OperationClass) -> Scope {
        use Role::*;
        match (class, role) {
            (Class::Discover, _) => Scope::All,
            (Class::RenewCertificate, _) => Scope::Own,
            // A host has only what it was granted, and owns nothing; random bytes are not an
            // object.
            (Class::ReadKey | Class::UseKey | Class::ReadMetadata, Host) => Scope::Granted,
            (Class::Random, Host) => Scope::Own,
            (_, Host) => Scope::Nothing,
            // A client performs all KMIP operations on its own objects, and nothing else.
            (
                Class::ConfirmDestroy
                | Class::ManageClients
                | Class::IssueGrants
                | Class::BrokerKey
                | Class::ManageBackup
                | Class::GiveShare
                | Class::ReadAudit
                | Class::RecordMove,
                Client,
            ) => Scope::Nothing,
            (_, Client) => Scope::Own,
            // No other role ever sees, brings or uses a key.
            (Class::ReadKey | Class::RegisterKey | Class::UseKey | Class::Random, _) => Scope::Nothing,
            (Class::ReadMetadata, Admin | Control | Auditor) => Scope::All,
            (Class::CreateKey | Class::ChangeMetadata | Class::RevokeKey | Class::DestroyKey, Control) => {
                Scope::Own
            }
            (Class::IssueGrants | Class::BrokerKey | Class::RecordMove, Control) => Scope::All,
            (_, Control) => Scope::Nothing,
            (Class::GiveShare, Custodian) => Scope::Own,
            (_, Custodian) => Scope::Nothing,
            (Class::ReadAudit, Auditor) => Scope::All,
            (_, Auditor) => Scope::Nothing,
            (
                Class::CreateKey
                | Class::ChangeMetadata
                | Class::GiveShare
                | Class::IssueGrants
                | Class::BrokerKey,
                Admin,
            ) => Scope::Nothing,
            (_, Admin) => Scope::All,
        }
    }

    #[test]
    fn every_cell_of_the_table_is_as_the_house_says() {
        for class in OperationClass::ALL {
            for role in Role::ALL {
                assert_eq!(scope(role, class), expected(role, class), "{role} {class:?}");
            }
        }
    }

    #[test]
    fn rows_and_columns_stand_where_they_are_looked_up() {
        for (row, (class, _)) in TABLE.iter().enumerate() {
            assert_eq!(*class as usize, row, "{class:?}");
        }
        for (column, role) in Role::ALL.into_iter().enumerate() {
            assert_eq!(role as usize, column, "{role}");
        }
    }
}
