//! Who asks, and what such a one may ask.
//!
//! An [`Identity`] is what the authority makes of a peer's certificate once it is verified: nothing
//! else in the key server looks into certificates, and nothing here does. [`permission`] is the one
//! table that says which role may do which class of operation, and to which objects. Whoever
//! carries out an operation asks the table first and then sees to the scope it names: that the
//! object is the asker's own, or that a grant covers it.
//!
//! What may not enter: certificates, grants, objects.

mod digest;
mod identity;
mod permission;
mod role;

pub use digest::{CertificateSha256, DigestTextError, PublicKeySha256};
pub use identity::{CLIENT_NAME_MAX_BYTES, CertificateSerial, ClientName, ClientNameError, Identity};
pub use permission::{OperationClass, Scope, scope};
pub use role::{Role, RoleError};
pub use strongroom_types::ClientId;
