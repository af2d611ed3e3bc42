//! Audit records of the server's events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_audit::{Actor, AuditError, AuditLog, Outcome, Record};
use strongroom_kmip::protocol::Operation;
use strongroom_kmip::server::{Observer as KmipObserver, Refusal as KmipRefusal};

use super::repeated::{Line, Repeated};
use crate::access::CertificateSha256;
use crate::actor::{actor_of, server, within_limits};
use crate::authority::enrol::server::{EnrolmentEvent, EnrolmentRecord, NotRecorded};
use crate::authority::{self, Refusal, Revoked};
use crate::objects::destruction::Waiting;
use crate::objects::id::ObjectId;
use crate::observer::{Event, EventOutcome, Observer, RecordError, Recording, ShownGrant};

/// Writes the reports of the server's rooms to the audit log.
#[derive(Clone)]
pub(super) struct AuditRecord {
    log: Arc<AuditLog>,
    strangers: Arc<Mutex<Strangers>>,
    repeated: Arc<Mutex<Repeated>>,
}

/// Most refusals of strangers that are recorded individually in a second. An attacker who can reach
/// the port could otherwise fill the disk with refusals, and without disk space no key is released.
/// Clients' requests are always recorded.
const STRANGERS_PER_SECOND: u32 = 50;

/// Refusals of unknown clients in the present second.
struct Strangers {
    since: Instant,
    recorded: u32,
    withheld: u64,
}

impl Strangers {
    /// Counts a refusal. Returns whether to record it individually, and how many earlier unrecorded
    /// ones to report now.
    fn one_more(&mut self, now: Instant) -> (bool, u64) {
        let mut untold = 0;
        if now.duration_since(self.since) >= Duration::from_secs(1) {
            untold = std::mem::take(&mut self.withheld);
            (self.since, self.recorded) = (now, 0);
        }
        let is_recorded = self.recorded < STRANGERS_PER_SECOND;
        if is_recorded {
            self.recorded += 1
        } else {
            self.withheld += 1
        }
        (is_recorded, untold)
    }
}

impl AuditRecord {
    pub fn new(log: Arc<AuditLog>) -> Self {
        let strangers = Strangers { since: Instant::now(), recorded: 0, withheld: 0 };
        Self { log, strangers: Arc::new(Mutex::new(strangers)), repeated: Arc::default() }
    }

    /// Records an action of the server itself.
    pub async fn event(&self, action: &str, reason: &str) {
        let record = Record::new(server(), action, Outcome::Done).reason(reason);
        if let Err(error) = self.log.append(&record).await {
            tracing::error!(%error, action, "could not be put on record");
        }
    }

    /// Durably records the outcome of a due destruction.
    pub async fn destruction(
        &self,
        id: ObjectId,
        waiting: &Waiting,
        outcome: Outcome,
        reason: &str,
    ) -> Result<(), AuditError> {
        let mut record = Record::new(server(), Operation::Destroy.to_string(), outcome)
            .object(id.to_string())
            .reason(within_limits(reason))
            .field("requested_by", waiting.requested_by.to_string());
        if let Some(second) = &waiting.confirmed_by {
            record = record.field("confirmed_by", second.to_string());
        }
        let recorded = self.log.append(&record).await.map(drop);
        recorded.inspect_err(|error| tracing::error!(%error, key = %id, "could not be put on record"))
    }

    /// Records an event without waiting, because it releases nothing.
    fn append(&self, record: &Record) {
        drop(self.log.append(record));
    }

    /// Records a refusal from before client or request were known.
    fn append_refused(&self, record: &Record) {
        let (is_recorded, untold) = self.strangers.lock().one_more(Instant::now());
        if untold > 0 {
            let reason =
                format!("{untold} more were refused within a second, and are not on record one by one");
            self.append(&Record::new(stranger(None, None), "connections", Outcome::Denied).reason(reason));
        }
        if is_recorded {
            self.append(record);
        }
    }
}

/// The actor of a client whose certificate was not accepted.
fn stranger(fingerprint: Option<String>, address: Option<String>) -> Actor {
    Actor { fingerprint, role: "none".into(), name: "stranger".into(), address }
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
    match &event.grant {
        Some(ShownGrant::Accepted { id, vm, generation, signer, is_used }) => {
            if !is_used {
                record = record.field("grant_used", "no");
            }
            record = record
                .field("grant", id.to_string())
                .field("vm", vm.to_string())
                .field("vm_generation", generation.to_string())
                .field("granted_by", signer.to_string());
        }
        Some(ShownGrant::Refused { claimed: Some(id) }) => {
            record = record.field("claimed_grant", id.to_string());
        }
        Some(ShownGrant::Refused { claimed: None }) | None => {}
    }
    if let Some(key) = &event.upstream {
        record = record
            .field("upstream_provider", key.provider.to_string())
            .field("upstream_key", within_limits(key.key.as_str()));
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
        // In order; all wait for the same sync.
        let lines = {
            let mut repeated = self.repeated.lock();
            let one = |event| match repeated.line(event) {
                Line::None => None,
                Line::One { unrecorded: 0 } => Some(line(event)),
                Line::One { unrecorded } => Some(line(event).field("asked_before", unrecorded.to_string())),
            };
            events.iter().filter_map(one).collect::<Vec<_>>()
        };
        let appended: Vec<_> = lines.iter().map(|line| self.log.append(line)).collect();
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
        self.append(&record);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_strangers_is_counted_and_not_written_down_one_by_one() {
        let begun = Instant::now();
        let mut strangers = Strangers { since: begun, recorded: 0, withheld: 0 };
        let recorded = (0..1000).filter(|_| strangers.one_more(begun).0).count();
        assert_eq!(recorded, STRANGERS_PER_SECOND as usize);
        let later = begun + Duration::from_secs(1);
        assert_eq!(strangers.one_more(later), (true, 1000 - u64::from(STRANGERS_PER_SECOND)));
        assert_eq!(strangers.one_more(later), (true, 0));
    }
}
