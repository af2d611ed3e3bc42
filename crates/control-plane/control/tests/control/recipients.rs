//! Recipients of alarms: each change arrives, in order, whatever happens to the control plane or to
//! other recipients.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;
use strongroom_api::access::AccessLogQuery;
use strongroom_api::alarm::AlarmKind;
use strongroom_api::limits::NOTICES_MAX;
use strongroom_api::recipient::{AlarmChange, CreateRecipient, Message, Recipient};
use strongroom_api::{ErrorCode, ObjectKind, ObjectRef};
use strongroom_control::engine::Control;
use strongroom_control::inventory::EVENTS_KEPT;

use crate::support::courier::Postbox;
use crate::support::{Site, caller, settle_down, with_vms};

const HOUR: Duration = Duration::from_secs(3600);

fn wish(name: &str, severity: &str) -> CreateRecipient {
    let to = json!({ "type": "webhook", "url": format!("https://{name}.example.com/path?token=secret") });
    serde_json::from_value(json!({ "name": name, "to": to, "severity": severity })).unwrap()
}

fn mail(name: &str) -> CreateRecipient {
    let to = json!({ "type": "mail", "address": format!("{name}@example.com") });
    serde_json::from_value(json!({ "name": name, "to": to })).unwrap()
}

fn make(control: &Control, wish: &CreateRecipient) -> Recipient {
    control.create_recipient(&caller(0), wish).unwrap().recipient
}

/// A site with a recipient of all alarms and one of critical ones.
fn with_recipients() -> (Site, Control, Arc<Postbox>, [Recipient; 2]) {
    let (site, control) = with_vms(&["web1"]);
    let postbox = Postbox::of(&site.fuse);
    control.send_with(Arc::clone(&postbox) as _);
    let recipients = [make(&control, &wish("all", "warning")), make(&control, &wish("worst", "critical"))];
    (site, control, postbox, recipients)
}

/// Sends what is due, and waits until it has arrived or failed.
fn deliver(control: &Control) {
    std::thread::scope(|scope| control.deliver(scope));
}

/// Raises an alarm that is critical and a warning, or clears both.
fn trouble(site: &Site, control: &Control, there_is: bool) {
    site.keys.lock().unavailable = there_is;
    site.keys.lock().last_backup_unix_seconds = there_is.then_some(1);
    control.ask_providers();
    control.review().unwrap();
}

fn kinds(messages: &[Message]) -> Vec<(AlarmChange, AlarmKind)> {
    let notices = messages.iter().flat_map(|message| &message.notices);
    notices.map(|notice| (notice.change, notice.alarm.kind)).collect()
}

/// The changes of alarms in the inventory, by their numbers.
fn changes(control: &Control) -> Vec<u64> {
    let index = control.inventory.read();
    index.events().iter().filter(|event| event.alarm.is_some()).map(|event| event.id).collect()
}

#[test]
fn alarms_are_sent_by_severity_once_and_when_they_are_over() {
    let (site, control, postbox, [all, worst]) = with_recipients();
    deliver(&control);
    assert!(postbox.taken.lock().is_empty(), "nothing is wrong yet");
    trouble(&site, &control, true);
    assert_eq!(control.show_recipient("all").unwrap().waiting, 2);
    deliver(&control);
    deliver(&control);
    trouble(&site, &control, false);
    deliver(&control);
    let (raised, cleared) = (AlarmChange::Raised, AlarmChange::Cleared);
    let (down, unbacked) = (AlarmKind::KeyProviderDown, AlarmKind::KeyServerUnbacked);
    assert_eq!(
        kinds(&postbox.messages_to(all.id)),
        [(raised, down), (raised, unbacked), (cleared, down), (cleared, unbacked)]
    );
    assert_eq!(kinds(&postbox.messages_to(worst.id)), [(raised, down), (cleared, down)]);
    assert_eq!(postbox.messages_to(all.id).len(), 2, "one message for each time");
    let shown = control.show_recipient("all").unwrap();
    assert_eq!((shown.waiting, shown.failing), (0, None));
    assert!(shown.delivered_unix_ms.is_some());
    // A recipient that is made later gets what happens from then on.
    let late = make(&control, &wish("late", "warning"));
    deliver(&control);
    assert!(postbox.messages_to(late.id).is_empty());
}

#[test]
fn what_does_not_arrive_is_sent_again_and_is_an_alarm_for_the_others() {
    let (site, control, postbox, [all, worst]) = with_recipients();
    *postbox.closed.lock() = Some(worst.id);
    trouble(&site, &control, true);
    deliver(&control);
    assert_eq!(postbox.messages_to(all.id).len(), 1, "one that fails holds up no other");
    let failing = control.show_recipient("worst").unwrap().failing.unwrap();
    assert_eq!(failing.reason, "the connection was cut");
    // Not at once again.
    *postbox.closed.lock() = None;
    deliver(&control);
    assert!(postbox.messages_to(worst.id).is_empty());
    *postbox.closed.lock() = Some(worst.id);
    site.pass(HOUR);
    deliver(&control);
    trouble(&site, &control, true);
    let alarms: Vec<AlarmKind> = control.inventory.read().alarms.iter().map(|alarm| alarm.kind).collect();
    assert!(alarms.contains(&AlarmKind::RecipientUnreachable), "{alarms:?}");
    *postbox.closed.lock() = None;
    site.pass(HOUR);
    deliver(&control);
    assert_eq!(kinds(&postbox.messages_to(worst.id)), [(AlarmChange::Raised, AlarmKind::KeyProviderDown)]);
    trouble(&site, &control, true);
    deliver(&control);
    let last = postbox.messages_to(all.id).pop().unwrap().notices.pop().unwrap();
    assert_eq!((last.change, last.alarm.kind), (AlarmChange::Cleared, AlarmKind::RecipientUnreachable));
}

#[test]
fn one_that_is_slow_holds_up_no_other() {
    let (site, control, postbox, [all, worst]) = with_recipients();
    let (end, until) = std::sync::mpsc::channel();
    *postbox.slow.lock() = Some((all.id, until));
    std::thread::scope(|scope| {
        for (there_is, messages) in [(true, 1), (false, 2)] {
            trouble(&site, &control, there_is);
            let within = Instant::now() + Duration::from_secs(60);
            while postbox.messages_to(worst.id).len() < messages {
                assert!(Instant::now() < within, "message {messages} waits for the slow one");
                // Each time, as the control plane does: a recipient whose last message has arrived
                // may still count as one that is being written to.
                control.deliver(scope);
                std::thread::yield_now();
            }
        }
        assert!(postbox.messages_to(all.id).is_empty(), "it was sent a second message beside the first");
        drop(end);
    });
    deliver(&control);
    assert_eq!(postbox.events_of(all.id), changes(&control));
    assert_eq!(postbox.messages_to(all.id).len(), 2);
}

#[test]
fn a_person_gets_one_mail_a_minute() {
    let (site, control, postbox, _) = with_recipients();
    let person = make(&control, &mail("ops"));
    trouble(&site, &control, true);
    deliver(&control);
    for round in 0..20 {
        trouble(&site, &control, round % 2 == 1);
        site.pass(Duration::from_secs(2));
        deliver(&control);
    }
    assert_eq!(postbox.messages_to(person.id).len(), 1);
    site.pass(Duration::from_secs(60));
    deliver(&control);
    assert_eq!(postbox.messages_to(person.id).len(), 2);
    assert_eq!(postbox.events_of(person.id), changes(&control));
}

#[test]
fn many_changes_come_in_several_messages() {
    let (site, control, postbox, [all, _]) = with_recipients();
    for round in 0..NOTICES_MAX {
        trouble(&site, &control, round % 2 == 0);
    }
    (0..3).for_each(|_| deliver(&control));
    let counts: Vec<usize> =
        postbox.messages_to(all.id).iter().map(|message| message.notices.len()).collect();
    assert_eq!(counts, [NOTICES_MAX, NOTICES_MAX]);
    assert_eq!(postbox.events_of(all.id), changes(&control));
}

#[test]
fn a_kill_at_any_moment_loses_no_change() {
    for moment in 0.. {
        let (site, control, postbox, [all, worst]) = with_recipients();
        trouble(&site, &control, true);
        let all_changes = changes(&control);
        site.fuse.set(moment);
        deliver(&control);
        let was_killed = site.fuse.is_burnt();
        drop(control);
        site.fuse.set(i64::MAX);
        let control = site.control().unwrap();
        control.send_with(Arc::clone(&postbox) as _);
        site.pass(HOUR);
        deliver(&control);
        assert_eq!(postbox.events_of(all.id), all_changes, "killed at moment {moment}");
        assert_eq!(postbox.events_of(worst.id).len(), 1, "killed at moment {moment}");
        if !was_killed {
            assert!(moment > 4, "no moment was tried");
            return;
        }
    }
}

/// Something else happens, so often that all earlier events are removed.
fn events_pass(control: &Control, is_delivering: bool) {
    let object = ObjectRef { kind: ObjectKind::Control, id: None, name: "test".to_owned() };
    for number in 0..=EVENTS_KEPT {
        control.tell("test.passed", &object, "something happened").unwrap();
        if is_delivering && number.is_multiple_of(500) {
            deliver(control);
        }
    }
    control.inventory.prune(control.now_unix_ms()).unwrap();
}

#[test]
fn a_recipient_is_told_that_it_missed_changes() {
    let (site, control, postbox, [all, _]) = with_recipients();
    trouble(&site, &control, true);
    deliver(&control);
    events_pass(&control, true);
    // The next control plane goes on from what was recorded.
    drop(control);
    let control = site.control().unwrap();
    control.send_with(Arc::clone(&postbox) as _);
    trouble(&site, &control, false);
    deliver(&control);
    assert!(!postbox.messages_to(all.id).pop().unwrap().missed, "others' events are not missing");
    trouble(&site, &control, true);
    events_pass(&control, false);
    trouble(&site, &control, false);
    deliver(&control);
    assert!(postbox.messages_to(all.id).pop().unwrap().missed);
}

#[test]
fn secrets_of_webhooks_are_not_shown() {
    let (_site, control, _postbox, [all, _]) = with_recipients();
    assert_eq!(all.address, "https://all.example.com");
    let shown = serde_json::to_string(&control.list_recipients()).unwrap();
    assert!(!shown.contains("secret") && !shown.contains("path"), "{shown}");
    let made = control.create_recipient(&caller(1), &wish("more", "warning")).unwrap();
    assert!(made.secret.unwrap().expose().starts_with("whsec_"));
    let query = AccessLogQuery::default();
    let log = serde_json::to_string(&control.access_log(&caller(2), &query).unwrap()).unwrap();
    assert!(log.contains("https://more.example.com") && !log.contains("secret"), "{log}");
}

#[test]
fn wrong_recipients_are_refused_and_deleted_ones_get_nothing() {
    let (site, control, postbox, [all, _]) = with_recipients();
    let refused = |wish| control.create_recipient(&caller(1), &wish).unwrap_err().code;
    assert_eq!(refused(wish("all", "warning")), ErrorCode::NameTaken);
    let mut nowhere = wish("x", "warning");
    nowhere.to = serde_json::from_value(json!({ "type": "webhook", "url": "https://nowhere/" })).unwrap();
    assert_eq!(refused(nowhere), ErrorCode::Invalid);
    assert_eq!(control.test_recipient(&caller(2), "none").unwrap_err().code, ErrorCode::NotFound);
    control.test_recipient(&caller(3), "all").unwrap();
    assert!(postbox.messages_to(all.id).pop().unwrap().notices.is_empty());
    *postbox.closed.lock() = Some(all.id);
    let problem = control.test_recipient(&caller(4), "all").unwrap_err();
    assert_eq!(problem.code, ErrorCode::RecipientUnreachable);
    *postbox.closed.lock() = None;
    control.delete_recipient(&caller(5), "all").unwrap();
    trouble(&site, &control, true);
    deliver(&control);
    assert_eq!(postbox.messages_to(all.id).len(), 1, "the test message alone");
    assert!(control.inventory.read().deliveries.get(&all.id.to_string()).is_none());
    assert!(settle_down(&site, &control));
}
