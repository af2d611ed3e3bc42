//! Recipients of alarms, and the messages to them.
//!
//! An alarm's event has the alarm. Messages are made from events, so one is lost only with its
//! event, and nothing else is stored of it. What a recipient has taken is recorded after it has
//! taken it: after a crash in between it gets the same again.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread::Scope;

use parking_lot::Mutex;
use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::event::Event;
use strongroom_api::limits::{NOTICES_MAX, RECIPIENTS_MAX};
use strongroom_api::recipient::{
    AlarmChange, CreateRecipient, Failing, Means, Message, NewRecipient, Notice, Recipient,
};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use uuid::Uuid;

use super::Control;
use super::accounts::within;
use super::alarms::Wanted;
use super::wishes::Caller;
use crate::courier::{Courier, Undelivered};
use crate::inventory::{Failure, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{DeliveryRecord, RecipientRecord};

/// The pause after the first message that does not arrive, in milliseconds. Each further one
/// doubles it.
const RETRY_FIRST_MS: u64 = 5_000;
/// The longest pause, in milliseconds.
const RETRY_MAX_MS: u64 = 10 * 60_000;
/// The least time between two messages to a person, in milliseconds, so that a failure of many VMs
/// is one mail and not hundreds.
const MAILS_APART_MS: u64 = 60_000;
/// How long messages do not arrive before that is an alarm, in milliseconds.
const FAILING_ALARM_MS: u64 = 60_000;
/// How many events that are not for a recipient pass before that is recorded.
const PASSED_MAX: u64 = 1_000;

/// The kinds of events about alarms.
pub(super) const RAISED: &str = "alarm.raised";
pub(super) const CLEARED: &str = "alarm.cleared";

/// The state of deliveries outside the inventory.
#[derive(Default)]
pub(super) struct Deliveries(Mutex<HashMap<Uuid, Delivery>>);

#[derive(Clone, Debug, Default)]
struct Delivery {
    /// The last event that was looked at.
    looked: u64,
    failing: Option<Failing>,
    attempts: u32,
    not_before_unix_ms: u64,
    /// Whether a message is being sent.
    is_under_way: bool,
}

/// A message that is due.
struct Due {
    recipient: Row<RecipientRecord>,
    message: Message,
    through: u64,
}

impl Control {
    /// Sends messages with this courier from now on.
    pub fn send_with(&self, courier: Arc<dyn Courier>) {
        self.courier.get_or_init(|| courier);
    }

    fn courier(&self) -> Result<&dyn Courier, Problem> {
        let none = || problems::conflict("this control plane sends no messages");
        self.courier.get().map(|courier| &**courier).ok_or_else(none)
    }

    /// Makes a recipient, which gets the alarms that are raised or cleared from now on.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_recipient(&self, caller: &Caller, wish: &CreateRecipient) -> Result<NewRecipient, Problem> {
        let courier = self.courier()?;
        courier.check(&wish.to).map_err(|Undelivered(reason)| {
            problems::invalid(reason).next("see to that, or name another destination")
        })?;
        let message =
            format!("recipient {} was made: alarms go to {} from now on", wish.name, wish.to.shown());
        let id = Uuid::new_v4();
        let recipient = self.change(caller, message, |index, _| {
            if by_name_or_id(&index.recipients, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Recipient, wish.name.as_str()));
            }
            within(index.recipients.len(), RECIPIENTS_MAX, "recipients")?;
            let record = RecipientRecord {
                id,
                name: wish.name.clone(),
                to: wish.to.clone(),
                severity: wish.severity.unwrap_or(Severity::Warning),
                after: last_event(index),
            };
            Ok((self.recipient_view(index, &record), self.draft().create_named(&record)))
        })?;
        let secret = match recipient.means {
            Means::Webhook => Some(courier.secret(id).into()),
            Means::Mail => None,
        };
        Ok(NewRecipient { recipient, secret })
    }

    /// The recipients.
    pub fn list_recipients(&self) -> Vec<Recipient> {
        let index = self.inventory.read();
        index.recipients.iter().map(|record| self.recipient_view(&index, record)).collect()
    }

    /// A recipient.
    pub fn show_recipient(&self, named: &str) -> Result<Recipient, Problem> {
        let index = self.inventory.read();
        find_recipient(&index, named).map(|record| self.recipient_view(&index, record))
    }

    /// Deletes a recipient.
    pub fn delete_recipient(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("recipient {named} was deleted"), |index, _| {
            let record = find_recipient(index, named)?;
            let message = format!("recipient {} was deleted", record.name);
            let draft = self.draft().remove_named(record);
            let draft = draft.discard::<DeliveryRecord>(&record.id.to_string());
            Ok(((), draft.event("recipient.deleted", &record.object(), message, None)))
        })
    }

    /// Sends a message without alarms to a recipient, and returns when it has arrived.
    pub fn test_recipient(&self, caller: &Caller, named: &str) -> Result<Recipient, Problem> {
        let courier = self.courier()?;
        let record = find_recipient(&self.inventory.read(), named).cloned()?;
        // On record before something leaves the site.
        let message = format!("a test message was sent to recipient {}", record.name);
        self.change(caller, message, |_, _| Ok(((), self.draft())))?;
        let test = Message { notices: Vec::new(), missed: false };
        courier.deliver(record.id, &record.to, &test).map_err(|Undelivered(reason)| {
            let message = format!("recipient {} did not take the message: {reason}", record.name);
            Problem::new(ErrorCode::RecipientUnreachable, message)
                .next("see to what the message says, and ask again")
        })?;
        Ok(self.recipient_view(&self.inventory.read(), &record))
    }

    fn recipient_view(&self, index: &Index, record: &RecipientRecord) -> Recipient {
        let delivery = self.delivery(record.id);
        let delivered = index.deliveries.get(&record.id.to_string());
        let after = cursor(index, record, &delivery);
        Recipient {
            id: record.id,
            name: record.name.clone(),
            means: record.to.means(),
            address: record.to.shown().to_owned(),
            severity: record.severity,
            delivered_unix_ms: delivered.and_then(|delivered| delivered.at_unix_ms),
            waiting: notices(index, record, after).count() as u64,
            failing: delivery.failing,
        }
    }

    fn delivery(&self, recipient: Uuid) -> Delivery {
        self.deliveries.0.lock().get(&recipient).cloned().unwrap_or_default()
    }

    /// Begins to send the messages that are due, each recipient's on a thread of its own, so that
    /// one that is slow holds up no other.
    pub fn deliver<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>) {
        let Some(courier) = self.courier.get() else { return };
        match self.due_messages() {
            Ok(due) => {
                for due in due {
                    scope.spawn(move || self.send(&**courier, &due));
                }
            }
            Err(failure) => {
                tracing::error!(%failure, "what recipients have taken cannot be written down");
            }
        }
    }

    fn due_messages(&self) -> Result<Vec<Due>, Failure> {
        let now = self.now_unix_ms();
        let mut due = Vec::new();
        let mut passed = Vec::new();
        {
            let index = self.inventory.read();
            let last = last_event(&index);
            let mut deliveries = self.deliveries.0.lock();
            deliveries.retain(|id, _| index.recipients.contains(&id.to_string()));
            for recipient in index.recipients.iter() {
                let delivery = deliveries.entry(recipient.id).or_default();
                let after = cursor(&index, recipient, delivery);
                if after == last || delivery.is_under_way || delivery.not_before_unix_ms > now {
                    continue;
                }
                let found: Vec<Notice> = notices(&index, recipient, after).take(NOTICES_MAX).collect();
                let missed = misses(&index, after);
                let is_all = found.len() < NOTICES_MAX;
                let through = found.last().filter(|_| !is_all).map_or(last, |notice| notice.event);
                if !found.is_empty() {
                    let message = Message { notices: found, missed };
                    due.push(Due { recipient: recipient.clone(), message, through });
                    delivery.is_under_way = true;
                    continue;
                }
                delivery.looked = through;
                if through.saturating_sub(recorded(&index, recipient)) > PASSED_MAX {
                    let before = index.deliveries.get(&recipient.id.to_string());
                    let at_unix_ms = before.and_then(|before| before.at_unix_ms);
                    let record = DeliveryRecord { recipient: recipient.id, through, at_unix_ms };
                    passed.push((recipient.clone(), record));
                }
            }
        }
        for (recipient, record) in passed {
            self.record_delivery(&recipient, &record)?;
        }
        Ok(due)
    }

    fn send(&self, courier: &dyn Courier, due: &Due) {
        let Due { recipient, message, through } = due;
        let sent = courier.deliver(recipient.id, &recipient.to, message);
        let now = self.now_unix_ms();
        let mut next = Delivery::default();
        match sent {
            Ok(()) => {
                let at_unix_ms = Some(now);
                let record = DeliveryRecord { recipient: recipient.id, through: *through, at_unix_ms };
                if let Err(failure) = self.record_delivery(recipient, &record) {
                    // It gets the same message again.
                    tracing::error!(%failure, recipient = %recipient.name, "what it has taken cannot be written down");
                }
                next.not_before_unix_ms = match recipient.to.means() {
                    Means::Mail => now.saturating_add(MAILS_APART_MS),
                    Means::Webhook => 0,
                };
            }
            Err(Undelivered(reason)) => {
                tracing::warn!(recipient = %recipient.name, %reason, "a message about alarms does not arrive");
                let before = self.delivery(recipient.id);
                let pause = RETRY_FIRST_MS.checked_shl(before.attempts).unwrap_or(RETRY_MAX_MS);
                let since_unix_ms = before.failing.map_or(now, |failing| failing.since_unix_ms);
                next = Delivery {
                    looked: before.looked,
                    failing: Some(Failing { since_unix_ms, reason }),
                    attempts: before.attempts.saturating_add(1).min(16),
                    not_before_unix_ms: now.saturating_add(pause.min(RETRY_MAX_MS)),
                    is_under_way: false,
                };
            }
        }
        self.deliveries.0.lock().insert(recipient.id, next);
    }

    /// Records what a recipient has taken, unless it was deleted meanwhile.
    fn record_delivery(
        &self,
        recipient: &Row<RecipientRecord>,
        record: &DeliveryRecord,
    ) -> Result<(), Failure> {
        match self.inventory.commit(self.draft().put(record).present(recipient)) {
            Ok(()) | Err(Failure::Raced) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// Raises an alarm for each recipient that has taken no message for a while.
    pub(super) fn review_recipients(&self, index: &Index, wanted: &mut Wanted, now_unix_ms: u64) {
        for recipient in index.recipients.iter() {
            let Some(failing) = self.delivery(recipient.id).failing else { continue };
            if failing.since_unix_ms.saturating_add(FAILING_ALARM_MS) > now_unix_ms {
                continue;
            }
            let name = recipient.name.to_string();
            wanted.raise(
                AlarmKind::RecipientUnreachable,
                Severity::Warning,
                recipient.object(),
                format!("recipient {name} takes no messages about alarms: {}", failing.reason),
                format!("`strongroom recipient test {name}`; what waits is sent again by itself"),
            );
        }
    }
}

/// The last event that a recipient was sent, or that was not for it, as the inventory has it.
fn recorded(index: &Index, recipient: &RecipientRecord) -> u64 {
    let delivered = index.deliveries.get(&recipient.id.to_string());
    delivered.map_or(recipient.after, |delivered| delivered.through)
}

fn cursor(index: &Index, recipient: &RecipientRecord, delivery: &Delivery) -> u64 {
    recorded(index, recipient).max(delivery.looked)
}

fn last_event(index: &Index) -> u64 {
    index.events().last().map_or(0, |event| event.id)
}

/// Whether events after this one may have been removed.
fn misses(index: &Index, after: u64) -> bool {
    after > 0 && index.events().iter().next().is_some_and(|oldest| oldest.id > after)
}

/// The changes of alarms after an event that a recipient is sent.
fn notices<'index>(
    index: &'index Index,
    recipient: &RecipientRecord,
    after: u64,
) -> impl Iterator<Item = Notice> + use<'index> {
    let severity = recipient.severity;
    let later = index.events().after(&crate::records::event_id(after));
    later.filter_map(move |event| notice(event, severity))
}

fn notice(event: &Event, severity: Severity) -> Option<Notice> {
    let change = match event.kind.as_str() {
        RAISED => AlarmChange::Raised,
        CLEARED => AlarmChange::Cleared,
        _ => return None,
    };
    let alarm = event.alarm.clone().filter(|alarm| alarm.severity >= severity)?;
    Some(Notice { event: event.id, at_unix_ms: event.at_unix_ms, change, alarm })
}

fn find_recipient<'index>(
    index: &'index Index,
    named: &str,
) -> Result<&'index Row<RecipientRecord>, Problem> {
    by_name_or_id(&index.recipients, named).ok_or_else(|| problems::not_found(ObjectKind::Recipient, named))
}
