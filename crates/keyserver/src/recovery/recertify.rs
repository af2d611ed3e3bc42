//! Certificates of the machine's own clients after a restore: theirs were issued by the authority that is no more, or were lost with the
//! machine. Whoever restores holds the root key and the shares, so their word is enough; it is on record all the same.

use strongroom_audit::{Outcome, Record};
use time::OffsetDateTime;

use super::restored::RestoredError;
use crate::access::{ClientName, Role};
use crate::authority::{AuthorityError, ClientCertificate};
use crate::process::record::server;
use crate::process::state::State;

/// Why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum RecertifyError {
    /// The authority refuses.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// It cannot be put on record.
    #[error(transparent)]
    Record(#[from] RestoredError),
}

/// Issues a certificate to the client of this role and name, for a key that it has now; it goes on having what it owns. Where there is none,
/// or several, it is a new client.
///
/// # Errors
/// [`RecertifyError`]; then there is no certificate.
pub fn recertify(
    state: &State,
    (role, name): (Role, &ClientName),
    signing_request: &str,
) -> Result<ClientCertificate, RecertifyError> {
    let now = OffsetDateTime::now_utc();
    let clients = state.authority.clients()?;
    let mut same = clients
        .iter()
        .filter(|(_, client, is_revoked)| client.role == role && client.name == *name && !is_revoked);
    let issued = match (same.next(), same.next()) {
        (Some((client, record, _)), None) => {
            state.authority.reissue((*client, record), signing_request.as_bytes(), now)?
        }
        _ => state.authority.issue((role, name), signing_request.as_bytes(), None, now)?,
    };
    let record = Record::new(server(), "certificate after restore", Outcome::Done)
        .object(issued.record.client.to_string())
        .field("certificate", issued.record.sha256().to_string())
        .field("name", name.as_str())
        .field("role", role.name());
    state.audit.append(&record).wait().map_err(RestoredError::from)?;
    Ok(issued)
}
