//! Repeated questions that change nothing.
//!
//! The holder of a key regularly asks whether it is still valid; a control plane asks for the keys
//! of all its VMs. One line for each would bury the relevant records under a million lines a month.
//! So such a question is recorded the first time, and again once something else was done with the
//! key; that line states how often it was asked meanwhile. Operations that release a secret, change
//! something or are refused get a line each time.

use std::collections::HashMap;

use strongroom_kmip::protocol::Operation;

use crate::access::CertificateSha256;
use crate::objects::id::ObjectId;
use crate::observer::{Event, EventOutcome};

/// Most questions that are remembered. Beyond that all are forgotten, and recorded once more.
const QUESTIONS_MAX: usize = 65_536;

/// The recorded questions since the last other operation on their key.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    asked: HashMap<ObjectId, HashMap<CertificateSha256, Asked>>,
    questions: usize,
}

#[derive(Debug)]
struct Asked {
    /// Repetitions since that record.
    unrecorded: u64,
    /// Whether the next repetition must be recorded.
    is_stale: bool,
}

/// The recording of an event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// It is already on record.
    None,
    /// It gets a line, which states the unrecorded repetitions.
    One {
        /// How often.
        unrecorded: u64,
    },
}

impl Repeated {
    /// Decides the recording of a new event.
    pub fn line(&mut self, event: &Event) -> Line {
        let Some(object) = question(event) else {
            for object in &event.objects {
                for asked in self.asked.get_mut(object).into_iter().flat_map(HashMap::values_mut) {
                    asked.is_stale = true;
                }
            }
            return Line::One { unrecorded: 0 };
        };
        let certificate = event.who.identity.certificate;
        if let Some(asked) = self.asked.get_mut(&object).and_then(|askers| askers.get_mut(&certificate)) {
            if !asked.is_stale {
                asked.unrecorded += 1;
                return Line::None;
            }
            asked.is_stale = false;
            return Line::One { unrecorded: std::mem::take(&mut asked.unrecorded) };
        }
        if self.questions >= QUESTIONS_MAX {
            *self = Self::default();
        }
        self.questions += 1;
        self.asked.entry(object).or_default().insert(certificate, Asked { unrecorded: 0, is_stale: false });
        Line::One { unrecorded: 0 }
    }
}

/// The key that an event only asks about.
fn question(event: &Event) -> Option<ObjectId> {
    let asks = matches!(event.operation, Some(Operation::GetAttributes | Operation::GetAttributeList));
    let plainly = event.outcome == EventOutcome::Done && event.grant.is_none();
    match event.objects.as_slice() {
        [object] if asks && plainly => Some(*object),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use strongroom_kmip::protocol::ResultReason;
    use time::OffsetDateTime;

    use super::*;
    use crate::access::{CertificateSerial, ClientId, Identity, PublicKeySha256, Role};
    use crate::objects::clock::UnixSeconds;
    use crate::observer::Who;

    fn event(client: u8, operation: Operation, object: ObjectId) -> Event {
        let identity = Identity {
            client: ClientId::random(),
            name: "host1".parse().unwrap(),
            role: Role::Host,
            public_key: PublicKeySha256::of(&[client]),
            certificate: CertificateSha256::of(&[client]),
            serial: CertificateSerial::from_bytes(&[client]),
            not_after: OffsetDateTime::UNIX_EPOCH,
        };
        Event {
            at: UnixSeconds(0),
            who: Who { identity: identity.into(), address: None },
            operation: Some(operation),
            objects: vec![object],
            outcome: EventOutcome::Done,
            grant: None,
            upstream: None,
        }
    }

    #[test]
    fn a_question_is_on_record_once_until_something_is_done_with_its_key() {
        let (key, other) = (ObjectId::random(), ObjectId::random());
        let (asks, first) =
            (|client| event(client, Operation::GetAttributes, key), Line::One { unrecorded: 0 });
        let mut repeated = Repeated::default();
        assert_eq!(repeated.line(&asks(1)), first);
        for _ in 0..17_280 {
            assert_eq!(repeated.line(&asks(1)), Line::None);
        }
        assert_eq!(repeated.line(&asks(2)), first, "of another client");
        assert_eq!(repeated.line(&event(1, Operation::GetAttributes, other)), first, "about another key");
        // Operations on it, and refusals, are recorded each time.
        for _ in 0..2 {
            assert_eq!(repeated.line(&event(3, Operation::Get, key)), first);
        }
        assert_eq!(repeated.line(&asks(1)), Line::One { unrecorded: 17_280 });
        assert_eq!(repeated.line(&asks(1)), Line::None);
        assert_eq!(repeated.line(&asks(2)), first);
        assert_eq!(repeated.line(&event(1, Operation::GetAttributes, other)), Line::None);
        let reason = ResultReason::PermissionDenied;
        let denied = EventOutcome::Refused { reason, message: "not yours".to_owned() };
        for _ in 0..2 {
            let refused = Event { outcome: denied.clone(), ..asks(1) };
            assert_eq!(repeated.line(&refused), first);
        }
    }

    #[test]
    fn so_many_questions_are_remembered_and_no_more() {
        let mut repeated = Repeated::default();
        for _ in 0..=QUESTIONS_MAX {
            repeated.line(&event(1, Operation::GetAttributes, ObjectId::random()));
        }
        assert_eq!((repeated.questions, repeated.asked.len()), (1, 1));
    }
}
