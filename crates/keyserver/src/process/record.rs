//! What goes on record, as lines of the audit log.

use std::sync::Arc;

use strongroom_audit::limits::TEXT_MAX_BYTES;
use strongroom_audit::{Actor, AuditLog, Outcome, Record};
use strongroom_kmip::server::{Observer as KmipObserver, Refusal as KmipRefusal};

use crate::access::{CertificateSha256, Identity};
use crate::authority::enrol::server::{EnrolmentEvent, EnrolmentRecord, NotRecorded};
use crate::authority::{self, Refusal, Revoked};
use crate::observer::{Event, EventOutcome, Observer, RecordError, Recording};

/// Writes to the audit log whatever the rooms of the server report.
#[derive(Clone)]
pub(super) struct AuditRecord {
    log: Arc<AuditLog>,
}

impl AuditRecord {
    pub fn new(log: Arc<AuditLog>) -> Self {
        Self { log }
    }

    /// Puts on record what the server did by itself.
    pub async fn event(&self, action: &str, reason: &str) {
        let record = Record::new(server(), action, Outcome::Done).reason(reason);
        if let Err(error) = self.log.append(&record).await {
            tracing::error!(%error, action, "could not be put on record");
        }
    }

    /// Puts on record what was refused before anything was done for it: nobody waits for that, because nothing is released.
    fn append_refused(&self, record: &Record) {
        drop(self.log.append(record));
    }
}

fn server() -> Actor {
    Actor { role: "server".into(), name: "key server".into(), ..Actor::default() }
}

/// Somebody whose certificate says nothing that is believed.
fn stranger(fingerprint: Option<String>, address: Option<String>) -> Actor {
    Actor { fingerprint, role: "none".into(), name: "stranger".into(), address }
}

/// A client whose certificate was believed.
pub(crate) fn actor_of(identity: &Identity, address: Option<String>) -> Actor {
    Actor {
        fingerprint: Some(identity.certificate.to_string()),
        role: identity.role.name().into(),
        name: identity.name.as_str().into(),
        address,
    }
}

/// A text that a client may have written, no longer than the log takes, and marked where it was cut.
fn within_limits(text: &str) -> String {
    const MARK: &str = "…";
    if text.len() <= TEXT_MAX_BYTES {
        return text.to_owned();
    }
    format!("{}{MARK}", &text[..text.floor_char_boundary(TEXT_MAX_BYTES - MARK.len())])
}

fn line(event: &Event) -> Record {
    let action =
        event.operation.map_or_else(|| "unreadable request".into(), |operation| operation.to_string());
    let outcome = match &event.outcome {
        EventOutcome::Released { .. } | EventOutcome::Done => Outcome::Done,
        EventOutcome::Refused { .. } => Outcome::Denied,
        EventOutcome::Undone => Outcome::Failed,
    };
    let address = event.who.address.map(|address| address.to_string());
    let mut record = Record::new(actor_of(&event.who.identity, address), action, outcome);
    for object in &event.objects {
        record = record.object(object.to_string());
    }
    record = record.field("client", event.who.identity.client.to_string());
    if let Some(grant) = &event.grant {
        record = record.field("grant", grant);
    }
    match &event.outcome {
        EventOutcome::Released { wrapped } => {
            record.field("released", if *wrapped { "wrapped" } else { "plain" })
        }
        EventOutcome::Done => record,
        EventOutcome::Refused { reason, message } => {
            record.reason(within_limits(message)).field("result", reason.to_string())
        }
        EventOutcome::Undone => record.reason("undone with its batch"),
    }
}

impl Observer for AuditRecord {
    fn record<'a>(&'a self, events: &'a [Event]) -> Recording<'a> {
        // In their order; all wait for the same sync.
        let appended: Vec<_> = events.iter().map(|event| self.log.append(&line(event))).collect();
        Box::pin(async move {
            for pending in appended {
                pending.await.map_err(|error| RecordError(error.to_string()))?;
            }
            Ok(())
        })
    }
}

impl authority::Observer for AuditRecord {
    fn revoked(&self, revoked: &Revoked) {
        let mut record = Record::new(server(), "revocation in force", Outcome::Done)
            .object(revoked.client.to_string())
            .reason(within_limits(&revoked.reason));
        if let Some(certificate) = revoked.certificate {
            record = record.field("certificate", certificate.to_string());
        }
        self.append_refused(&record);
    }

    fn refused(&self, certificate: &CertificateSha256, refusal: Refusal) {
        let actor = stranger(Some(certificate.to_string()), None);
        let record = Record::new(actor, "handshake", Outcome::Denied).reason(refusal.to_string());
        self.append_refused(&record.field("result", refusal.code()));
    }
}

impl KmipObserver for AuditRecord {
    fn refused(&self, refusal: &KmipRefusal<'_>) {
        let fingerprint = refusal.peer.map(|peer| peer.fingerprint.to_string());
        let actor = stranger(fingerprint, Some(refusal.address.to_string()));
        let reason = within_limits(&refusal.reason.to_string());
        self.append_refused(&Record::new(actor, "connection", Outcome::Denied).reason(reason));
    }
}

impl EnrolmentRecord for AuditRecord {
    fn record(&self, event: &EnrolmentEvent) -> Result<(), NotRecorded> {
        let actor = Actor {
            name: event.by.map_or_else(|| "stranger".into(), |client| client.to_string()),
            ..stranger(None, Some(event.peer.to_string()))
        };
        let action = format!("enrolment {}", event.request);
        let record = match &event.outcome {
            Ok((client, certificate)) => Record::new(actor, action, Outcome::Done)
                .object(client.to_string())
                .field("certificate", certificate.to_string()),
            Err(code) => Record::new(actor, action, Outcome::Denied).reason(*code),
        };
        self.log.append(&record).wait().map(drop).map_err(|error| NotRecorded(error.to_string()))
    }
}
