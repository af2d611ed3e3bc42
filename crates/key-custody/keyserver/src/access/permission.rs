//! The table of permissions: one row for each class of operation, one column for each role.

use super::role::Role;

/// What one asks for. Every operation of the server, KMIP's and its own, belongs to one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OperationClass {
    /// What the server is: Discover Versions, Query.
    Discover,
    /// A new key that the server makes and does not show: Create, Re-key.
    CreateKey,
    /// A key that the asker brings and therefore knows: Register.
    RegisterKey,
    /// A key comes out, plain or wrapped: Get.
    ReadKey,
    /// A key is used in the server, if that is switched on: Encrypt, Decrypt, MAC, MAC Verify.
    UseKey,
    /// Random bytes, if that is switched on: RNG Retrieve, RNG Seed.
    Random,
    /// What is known of a key, never its value: Locate, Get Attributes, Get Attribute List, Check.
    ReadMetadata,
    /// Add, Modify and Delete Attribute; Activate.
    ChangeMetadata,
    /// A key may no longer protect: Revoke, whether it is deactivated or compromised.
    RevokeKey,
    /// A key is asked to be shredded: Destroy, and taking that back while the delay lasts.
    DestroyKey,
    /// The second person's word for a destruction.
    ConfirmDestroy,
    /// A new certificate in place of one's own.
    RenewCertificate,
    /// Tokens, revocation and pinning of certificates, roll-over of the authority.
    ManageClients,
    /// What it takes to grant: who the hosts are, and how far a VM has gone on.
    IssueGrants,
    /// A key of an external provider is taken in, or made there, without being seen.
    BrokerKey,
    /// A backup is made or a restore is begun; neither shows a key.
    ManageBackup,
    /// One's share for a restore.
    GiveShare,
    /// The audit log and its signed heads.
    ReadAudit,
}

/// Which objects a permission covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scope {
    /// None: refused whatever is asked for.
    Nothing,
    /// What a grant that came with the request names, for the operations that it names.
    Granted,
    /// What the asker owns; where there is no object, whatever concerns the asker alone.
    Own,
    /// Everything.
    All,
}

use OperationClass as Class;
use Scope::{All, Granted, Nothing as None, Own};

/// Columns in the order of [`Role::ALL`].
#[rustfmt::skip]
const TABLE: [(OperationClass, [Scope; 6]); 18] = [
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
];

impl OperationClass {
    /// All of them, in the order of the table.
    pub const ALL: [OperationClass; 18] = {
        let mut all = [OperationClass::Discover; 18];
        let mut row = 0;
        while row < all.len() {
            all[row] = TABLE[row].0;
            row += 1;
        }
        all
    };
}

/// To which objects `role` may do what belongs to `class`.
pub const fn scope(role: Role, class: OperationClass) -> Scope {
    TABLE[class as usize].1[role as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of the house, each said once more in words that do not come from the table.
    fn expected(role: Role, class: OperationClass) -> Scope {
        use Role::*;
        match (class, role) {
            (Class::Discover, _) => Scope::All,
            (Class::RenewCertificate, _) => Scope::Own,
            // A host has what it was granted and nothing of its own; random bytes are nobody's
            // object.
            (Class::ReadKey | Class::UseKey | Class::ReadMetadata, Host) => Scope::Granted,
            (Class::Random, Host) => Scope::Own,
            (_, Host) => Scope::Nothing,
            // A client does everything that KMIP has, to its own objects, and nothing else.
            (
                Class::ConfirmDestroy
                | Class::ManageClients
                | Class::IssueGrants
                | Class::BrokerKey
                | Class::ManageBackup
                | Class::GiveShare
                | Class::ReadAudit,
                Client,
            ) => Scope::Nothing,
            (_, Client) => Scope::Own,
            // Nobody else ever sees, brings or uses a key.
            (Class::ReadKey | Class::RegisterKey | Class::UseKey | Class::Random, _) => Scope::Nothing,
            (Class::ReadMetadata, Admin | Control | Auditor) => Scope::All,
            (Class::CreateKey | Class::ChangeMetadata | Class::RevokeKey | Class::DestroyKey, Control) => {
                Scope::Own
            }
            (Class::IssueGrants | Class::BrokerKey, Control) => Scope::All,
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
