//! Identities of clients, and their permissions.
//!
//! The authority derives an [`Identity`] from a peer's verified certificate; no other part of the
//! key server parses certificates. [`permission`] is the one table of which role may do which class
//! of operation, and to which objects. The code that carries out an operation consults the table
//! first, and then enforces the scope it names: that the client owns the object, or that a grant
//! covers it.
//!
//! What may not enter: certificates, grants, objects.

mod digest;
mod identity;
mod known_client;
mod permission;
mod role;

pub use digest::{CertificateSha256, DigestTextError, PublicKeySha256};
pub use identity::{CLIENT_NAME_MAX_BYTES, CertificateSerial, ClientName, ClientNameError, Identity};
pub use known_client::KnownClient;
pub use permission::{OperationClass, Scope, scope};
pub use role::{Role, RoleError};
pub use strongroom_types::ClientId;
