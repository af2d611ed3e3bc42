//! Certificates of the machine's own clients after a restore: theirs were issued by the replaced
//! authority, or were lost with the machine. The person who restores holds the root key and the
//! shares, which is authority enough; it is recorded all the same.

use strongroom_audit::{AuditLog, Outcome, Record};
use time::OffsetDateTime;

use super::restored::RestoredError;
use crate::access::{ClientId, ClientName, Role};
use crate::actor::server;
use crate::authority::{Authority, AuthorityError, ClientCertificate};
use crate::state::State;

/// Why no certificate was issued.
#[derive(Debug, thiserror::Error)]
pub enum RecertifyError {
    /// The authority refused.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// It cannot be recorded.
    #[error(transparent)]
    Record(#[from] RestoredError),
}

/// Issues a certificate to the client of this role and name, for its present key; it keeps its
/// objects. If there is no such client, or several, makes a new client.
///
/// # Errors
/// [`RecertifyError`]; then there is no certificate.
pub fn recertify(
    state: &State,
    role: Role,
    name: &ClientName,
    signing_request: &str,
) -> Result<ClientCertificate, RecertifyError> {
    let now = OffsetDateTime::now_utc();
    let clients = state.authority.clients()?;
    let mut same = clients
        .iter()
        .filter(|(_, client, is_revoked)| client.role == role && client.name == *name && !is_revoked);
    let issued = match (same.next(), same.next()) {
        (Some((client, record, _)), None) => {
            state.authority.reissue(*client, record, signing_request.as_bytes(), now)?
        }
        _ => state.authority.issue(role, name, signing_request.as_bytes(), None, now)?,
    };
    on_record(&state.audit, "certificate after restore", &issued)?;
    Ok(issued)
}

/// Issues another certificate to a client on this server's own machine, whose certificate has
/// expired or soon will; it keeps its objects. Refuses a client that is unknown in this role, or
/// revoked.
///
/// # Errors
/// [`RecertifyError`]; then there is no certificate.
pub fn renew_own(
    authority: &Authority,
    audit: &AuditLog,
    client: ClientId,
    role: Role,
    signing_request: &str,
    now: OffsetDateTime,
) -> Result<Option<ClientCertificate>, RecertifyError> {
    let clients = authority.clients()?;
    let known =
        clients.iter().find(|(id, known, is_revoked)| *id == client && known.role == role && !is_revoked);
    let Some((_, known, _)) = known else { return Ok(None) };
    let issued = authority.reissue(client, known, signing_request.as_bytes(), now)?;
    on_record(audit, "certificate renewed at home", &issued)?;
    Ok(Some(issued))
}

fn on_record(audit: &AuditLog, action: &str, issued: &ClientCertificate) -> Result<(), RestoredError> {
    let record = Record::new(server(), action, Outcome::Done)
        .object(issued.record.client.to_string())
        .field("certificate", issued.record.sha256().to_string())
        .field("name", issued.record.name.as_str())
        .field("role", issued.record.role.name());
    audit.append(&record).wait()?;
    Ok(())
}
