//! The chain of the access log: what it detects, and that nothing breaks it that happens by itself.

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use std::time::Duration;

use crate::support::{Site, settle_down, with_vms};
use strongroom_api::ErrorCode;
use strongroom_api::access::{AccessLogHead, AccessLogQuery, CreateFolder, SetAccessLogRetention};
use strongroom_api::alarm::{AlarmKind, Severity};
use strongroom_api::vm::{StartVm, StopVm, TicketUse};
use strongroom_control::engine::{Caller, Control};
use strongroom_store::{KeyRange, Store, Transaction};
use strongroom_types::hex;

fn by(name: &str) -> Caller {
    Caller::machine(name)
}

fn make_folder(control: &Control, by: &Caller, number: usize) {
    let wish = CreateFolder { name: format!("folder{number}").parse().unwrap() };
    control.create_folder(by, &wish).unwrap();
}

/// A site with entries 1 to `count`.
fn with_entries(count: usize) -> (Site, Control) {
    let site = Site::new();
    let control = site.control().unwrap();
    (0..count).for_each(|number| make_folder(&control, &by("ada"), number));
    (site, control)
}

/// The stored entries, by key.
fn stored(store: &dyn Store) -> Vec<(Vec<u8>, Vec<u8>)> {
    let all = store.snapshot().unwrap().all(&KeyRange::prefix(*b"access/")).unwrap();
    all.into_iter().map(|entry| (entry.key, entry.value)).collect()
}

fn key(number: u64) -> String {
    format!("access/{number:020}")
}

fn value(store: &dyn Store, key: &str) -> Value {
    serde_json::from_slice(&store.get(key.as_bytes()).unwrap().unwrap().value).unwrap()
}

/// Writes past the control plane, as one does who has the inventory's file.
fn write(store: &dyn Store, key: &str, value: &Value) {
    store.commit(Transaction::new().put(key, value.to_string())).unwrap().committed().unwrap();
}

fn remove(store: &dyn Store, key: &str) {
    store.commit(Transaction::new().delete(key)).unwrap().committed().unwrap();
}

fn sha256(bytes: &[u8]) -> String {
    hex::encode(digest(&SHA256, bytes).as_ref())
}

/// The breaks that a verification by a new control plane finds.
fn breaks(site: &Site, kept: &[AccessLogHead]) -> Vec<String> {
    let report = site.control().unwrap().look_at_access_log(kept).unwrap();
    assert_eq!(report.whole, report.breaks.is_empty());
    report.breaks.into_iter().map(|found| format!("{}: {}", found.id, found.reason)).collect()
}

fn head(control: &Control) -> AccessLogHead {
    control.inventory.access_log().unwrap().head()
}

#[test]
fn each_entry_has_the_hash_of_the_one_before_it_and_the_head_that_of_the_last() {
    let (site, control) = with_entries(5);
    let all = stored(&*site.store);
    let mut previous = "0".repeat(64);
    for (number, (at, value)) in (1..).zip(&all) {
        assert_eq!(at, key(number).as_bytes());
        let begin = format!("{{\"id\":{number},\"previous\":\"{previous}\",\"at_unix_ms\":");
        assert!(value.starts_with(begin.as_bytes()), "{}", value.escape_ascii());
        previous = sha256(value);
    }
    assert_eq!(all.len(), 5);
    assert_eq!(head(&control), AccessLogHead { id: 5, hash: previous });
    let bytes: usize = all.iter().map(|(key, value)| key.len() + value.len()).sum();
    let record = value(&*site.store, "access-head");
    assert_eq!((&record["bytes"], &record["entries"]), (&json!(bytes), &json!(5)));
    assert_eq!(breaks(&site, &[head(&control)]), [""; 0]);
    // A new control plane continues the same chain.
    make_folder(&site.control().unwrap(), &by("bob"), 9);
    assert_eq!(breaks(&site, &[head(&control)]), [""; 0]);
    assert_eq!(head(&control).id, 6);
}

#[test]
fn an_entry_that_was_changed_removed_or_added_is_named() {
    let (site, control) = with_entries(5);
    let kept = head(&control);
    let (store, third) = (&*site.store, value(&*site.store, &key(3)));
    let as_it_was = store.get(key(3).as_bytes()).unwrap().unwrap().value;
    let put_back = || {
        let put = Transaction::new().put(key(3), as_it_was.clone());
        store.commit(put).unwrap().committed().unwrap();
    };
    let mut changed = third.clone();
    changed["by"] = json!("bob");
    write(store, &key(3), &changed);
    let found = breaks(&site, &[]);
    assert_eq!(
        found,
        ["4: entry 4 does not continue entry 3 as it is: one of them was changed"],
        "the first one behind it"
    );
    // Reading says so, and an alarm.
    let control = site.control().unwrap();
    let page = control.access_log(&by("audrey"), &AccessLogQuery::default()).unwrap();
    assert_eq!((page.items.len(), page.breaks.len(), page.breaks[0].id), (6, 1, 4));
    control.review().unwrap();
    let raised = |control: &Control| {
        control.inventory.read().alarms.iter().any(|alarm| alarm.kind == AlarmKind::AccessLogBroken)
    };
    assert!(raised(&control));
    // The log goes on behind it.
    make_folder(&control, &by("ada"), 9);
    assert_eq!(breaks(&site, &[]).len(), 1);
    put_back();
    assert_eq!(breaks(&site, &[kept]), [""; 0]);
    control.look_at_access_log(&[]).unwrap();
    control.review().unwrap();
    assert!(!raised(&control));

    remove(store, &key(3));
    assert_eq!(breaks(&site, &[]), ["3: entries 3 to 3 are missing"]);
    put_back();

    let mut added = third;
    added["id"] = json!(8);
    added.as_object_mut().unwrap().remove("previous");
    write(store, &key(8), &added);
    let found = breaks(&site, &[]);
    assert_eq!(
        found,
        [
            "8: entry 8 is not in the chain: an earlier release, or somebody else, wrote it",
            "8: the head does not know the entries after 7"
        ]
    );
    // The next entry does not overwrite it.
    make_folder(&site.control().unwrap(), &by("ada"), 10);
    assert_eq!(value(store, &key(9))["previous"], sha256(&stored(store)[7].1));
    assert_eq!(breaks(&site, &[]).len(), 1);
}

#[test]
fn an_end_that_was_cut_is_found_by_the_head_and_with_it_only_by_one_that_was_kept() {
    let (site, control) = with_entries(3);
    let store = &*site.store;
    let before = store.get(b"access-head").unwrap().unwrap().value;
    make_folder(&control, &by("mallory"), 7);
    make_folder(&control, &by("mallory"), 8);
    let kept = head(&control);
    remove(store, &key(4));
    remove(store, &key(5));
    assert_eq!(breaks(&site, &[]), ["4: entries 4 to 5 are missing at the end"]);
    // With the head of before, the log is one that was never longer.
    store.commit(Transaction::new().put("access-head", before)).unwrap().committed().unwrap();
    assert_eq!(breaks(&site, &[]), [""; 0], "nothing in the store says so");
    assert_eq!(
        breaks(&site, std::slice::from_ref(&kept)),
        ["5: the log has no entry 5, of which a head was kept: it was cut"]
    );
    // Other entries in their place.
    let control = site.control().unwrap();
    (10..14).for_each(|number| make_folder(&control, &by("ada"), number));
    assert_eq!(breaks(&site, &[]), [""; 0]);
    assert_eq!(breaks(&site, &[kept]), ["5: entry 5 is not the one of the head that was kept"]);
}

#[test]
fn a_log_that_was_rewritten_is_found_by_a_head_that_was_kept() {
    let (site, control) = with_entries(4);
    let (store, kept) = (&*site.store, head(&control));
    let mut previous = sha256(store.get(key(1).as_bytes()).unwrap().unwrap().value.as_slice());
    for number in 2..=4 {
        // Members in their order: the whole value is replaced as a text.
        let text = String::from_utf8(store.get(key(number).as_bytes()).unwrap().unwrap().value).unwrap();
        let old = serde_json::from_str::<Value>(&text).unwrap()["previous"].as_str().unwrap().to_owned();
        let text = text.replace(&old, &previous).replace("\"by\":\"ada\"", "\"by\":\"bob\"");
        previous = sha256(text.as_bytes());
        store.commit(Transaction::new().put(key(number), text)).unwrap().committed().unwrap();
    }
    let mut record = value(store, "access-head");
    record["hash"] = json!(previous);
    write(store, "access-head", &record);
    assert_eq!(breaks(&site, &[]), [""; 0], "the chain alone does not say so");
    assert_eq!(breaks(&site, &[kept]), ["4: entry 4 is not the one of the head that was kept"]);
}

#[test]
fn entries_of_a_release_without_a_chain_are_its_beginning() {
    let site = Site::new();
    let store = &*site.store;
    for number in [3, 4, 6] {
        let former =
            json!({ "id": number, "at_unix_ms": 1, "kind": "changed", "by": "ada", "message": "old" });
        write(store, &key(number), &former);
    }
    assert_eq!(breaks(&site, &[]), [""; 0]);
    let control = site.control().unwrap();
    make_folder(&control, &by("ada"), 1);
    assert_eq!(value(store, &key(7))["previous"], sha256(&stored(store)[2].1));
    let report = control.look_at_access_log(&[]).unwrap();
    assert_eq!((report.whole, report.first_id, report.entries, report.unchained), (true, 3, 4, 3));
    // That release again, which knows no head: its entries are told from those of the chain.
    let former = json!({ "id": 8, "at_unix_ms": 1, "kind": "changed", "by": "ada", "message": "old" });
    write(store, &key(8), &former);
    make_folder(&site.control().unwrap(), &by("ada"), 2);
    assert_eq!(
        breaks(&site, &[]),
        ["8: entry 8 is not in the chain: an earlier release, or somebody else, wrote it"]
    );
}

#[test]
fn callers_at_the_same_time_make_one_chain() {
    let site = Site::new();
    let control = Arc::new(site.control().unwrap());
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let control = Arc::clone(&control);
            std::thread::spawn(move || {
                for number in 0..25 {
                    // Half of them want the same names, and most of these lose.
                    let name = format!("folder{}-{number}", if caller < 4 { 0 } else { caller });
                    let wish = CreateFolder { name: name.parse().unwrap() };
                    let made = control.create_folder(&Caller::machine("ada"), &wish);
                    assert!(made.is_ok() || caller < 4, "{made:?}");
                }
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    let report = control.look_at_access_log(&[]).unwrap();
    assert!(report.whole, "{report:?}");
    assert_eq!((report.entries, report.head.id), (5 * 25, 5 * 25), "one for each that was made");
}

#[test]
fn pages_of_a_long_log_are_those_of_a_simple_search() {
    let site = Site::new();
    let control = site.control().unwrap();
    for number in 0..2500 {
        make_folder(&control, &by(if number % 7 == 0 { "bob" } else { "ada" }), number);
        site.pass(std::time::Duration::from_secs(1));
    }
    let all: Vec<(u64, u64, String)> = stored(&*site.store)
        .into_iter()
        .map(|(_, value)| {
            let entry: Value = serde_json::from_slice(&value).unwrap();
            (
                entry["id"].as_u64().unwrap(),
                entry["at_unix_ms"].as_u64().unwrap(),
                entry["by"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    let begun = all[0].1 / 1000;
    for (after, since, named, limit) in [
        (None, None, None, 10),
        (None, None, None, 1000),
        (None, Some(begun + 2000), None, 1000),
        (None, Some(begun + 100), None, 1000),
        (None, None, Some("bob"), 1000),
        (None, Some(begun + 1200), Some("bob"), 50),
        (Some(0), None, None, 100),
        (Some(2450), None, None, 100),
        (Some(1023), None, Some("bob"), 100),
        (Some(9999), None, None, 100),
    ] {
        let query = AccessLogQuery {
            after,
            limit: Some(limit),
            since_unix_seconds: since,
            by: named.map(|name| name.parse().unwrap()),
        };
        let page = control.inventory.access_log().unwrap();
        let page = page
            .page(&strongroom_control::inventory::Wanted {
                after,
                since_unix_ms: since.map(|since| since * 1000),
                by: named,
                limit: limit as usize,
            })
            .unwrap();
        let meant: Vec<u64> = all
            .iter()
            .filter(|(id, at, by)| {
                after.is_none_or(|after| *id > after)
                    && since.is_none_or(|since| *at >= since * 1000)
                    && named.is_none_or(|named| by == named)
            })
            .map(|(id, _, _)| *id)
            .collect();
        let most = meant.len().min(limit as usize);
        let expected = if after.is_some() { &meant[..most] } else { &meant[meant.len() - most..] };
        let ids: Vec<u64> = page.items.iter().map(|entry| entry.id).collect();
        assert_eq!((ids.as_slice(), page.total), (expected, meant.len() as u64), "{query:?}");
        let more = after.is_some() && meant.len() > most;
        assert_eq!(page.next, more.then(|| expected.last().unwrap().to_string()), "{query:?}");
        assert_eq!(page.breaks, []);
    }
}

#[test]
fn the_head_goes_to_the_audit_log_when_it_has_changed() {
    let (site, control) = with_entries(2);
    control.anchor_access_log().unwrap();
    control.anchor_access_log().unwrap();
    site.control().unwrap().anchor_access_log().unwrap();
    let heads = site.keys.lock().heads.clone();
    assert_eq!(heads, [head(&control)], "once, and not again after a restart");
    assert_eq!(control.look_at_access_log(&[]).unwrap().anchored, Some(head(&control)));
    make_folder(&control, &by("ada"), 5);
    control.anchor_access_log().unwrap();
    let heads = site.keys.lock().heads.clone();
    assert_eq!(heads.len(), 2);
    assert_eq!(breaks(&site, &heads), [""; 0]);
}

fn day() -> Duration {
    Duration::from_secs(86_400)
}

fn from_api(operation: &'static str) -> Caller {
    Caller { operation: Some(operation), ..by("ada") }
}

#[test]
fn entries_go_after_their_time_with_an_entry_that_links_the_rest() {
    let (site, control) = with_entries(250);
    let kept = head(&control);
    site.pass(day() * 360);
    (300..310).for_each(|number| make_folder(&control, &by("ada"), number));
    let prune = || control.inventory.prune(control.now_unix_ms()).unwrap();
    prune();
    assert_eq!(stored(&*site.store).len(), 260, "none is older than twelve months");
    site.pass(day() * 6 + day() / 2);
    prune();
    assert_eq!(stored(&*site.store).len(), 260, "a day more, so that many go at once");
    site.pass(day());
    prune();
    // 100, 100 and 50 in a transaction each.
    let all = stored(&*site.store);
    assert_eq!(all.len(), 13);
    assert_eq!(all[0].0, key(251).as_bytes());
    let removal: Value = serde_json::from_slice(&all[12].1).unwrap();
    assert_eq!((&removal["kind"], &removal["by"]), (&json!("removed"), &json!("strongroom")));
    let message = removal["message"].as_str().unwrap();
    assert!(message.starts_with("entries 201 to 250 were removed"), "{message}");
    assert!(message.ends_with(&kept.hash), "the hash of the last one: {message}");
    let report = control.look_at_access_log(std::slice::from_ref(&kept)).unwrap();
    assert!(report.whole, "{report:?}");
    assert_eq!((report.first_id, report.entries, report.kept_heads_before), (251, 13, 1));
    let bytes: usize = all.iter().map(|(key, value)| key.len() + value.len()).sum();
    assert_eq!(control.access_retention().unwrap().bytes, bytes as u64);
    // The rest verifies from its first entry on.
    remove(&*site.store, &key(251));
    assert_eq!(breaks(&site, &[]), ["251: entries 251 to 251 are missing"]);
    prune();
    assert_eq!(stored(&*site.store).len(), 12, "and an idle site writes nothing");
}

#[test]
fn a_full_log_refuses_changes_and_not_what_stops_takes_away_or_makes_room() {
    let (site, control) = with_vms(&["web1"]);
    let set = |wish: SetAccessLogRetention| {
        control.set_access_retention(&from_api("access_log_retention_set"), &wish)
    };
    let room = |bytes: u64| SetAccessLogRetention { room_bytes: Some(bytes), ..Default::default() };
    let keep = |days: u64| SetAccessLogRetention { keep_s: Some(days * 86_400), ..Default::default() };
    for (wrong, code) in [
        (room((1 << 20) - 1), ErrorCode::Invalid),
        (room((64 << 30) + 1), ErrorCode::Invalid),
        (keep(29), ErrorCode::Invalid),
        (keep(3661), ErrorCode::Invalid),
    ] {
        assert_eq!(set(wrong).unwrap_err().code, code);
    }
    assert_eq!(set(room(1 << 20)).unwrap().room_bytes, 1 << 20);
    let alarm = || {
        control.review().unwrap();
        let index = control.inventory.read();
        let found = index.alarms.iter().find(|alarm| alarm.kind == AlarmKind::AccessLogFull);
        found.map(|alarm| alarm.severity)
    };
    assert_eq!(alarm(), None);
    let mut warned = None;
    let mut number = 0;
    let refused = loop {
        let wish = CreateFolder { name: format!("folder{number}").parse().unwrap() };
        match control.create_folder(&from_api("folder_create"), &wish) {
            Ok(_) => number += 1,
            Err(problem) => break problem,
        }
        let bytes = control.access_retention().unwrap().bytes;
        if warned.is_none() && number % 50 == 0 && alarm().is_some() {
            warned = Some(bytes * 100 / (1 << 20));
        }
        assert!(bytes <= (1 << 20) / 16 * 15, "{bytes}");
    };
    assert_eq!(refused.code, ErrorCode::AccessLogFull, "{refused}");
    assert!(refused.message.contains("the access log is full"), "{refused}");
    assert!(refused.next_step.unwrap().contains("strongroom access retention --room"));
    assert!((75..80).contains(&warned.unwrap()), "{warned:?}");
    assert_eq!(alarm(), Some(Severity::Critical));
    // Nothing was changed, and neither is it by a task.
    assert_eq!(control.inventory.read().folders.len(), number);
    let start = control.start_vm(&from_api("vm_start"), "web1", &StartVm::default());
    assert_eq!(start.unwrap_err().code, ErrorCode::AccessLogFull);
    let console = TicketUse::Console { read_only: false, take_over: false };
    let ticket = control.ticket(&from_api("vm_ticket"), "web1", &console);
    assert_eq!(ticket.unwrap_err().code, ErrorCode::AccessLogFull);
    // What stops a VM is done, and what looks into the log.
    let stop = StopVm { force: true, timeout_s: None };
    control.stop_vm(&from_api("vm_stop"), "web1", &stop).unwrap();
    assert!(settle_down(&site, &control));
    control.access_log(&from_api("access_log"), &AccessLogQuery::default()).unwrap();
    // Until the reserve is used up.
    let mut readings = 0;
    while control.access_log_head(&from_api("access_log_head")).is_ok() {
        readings += 1;
    }
    assert!(readings > 50, "{readings}");
    assert!(control.access_retention().unwrap().bytes <= 1 << 20);
    assert!(control.access_log(&from_api("access_log"), &AccessLogQuery::default()).is_err());
    // The setting is changed in any case.
    let smaller = set(room((1 << 20) + 1).clone());
    assert!(smaller.is_ok(), "{smaller:?}");
    assert_eq!(set(room(1 << 20)).unwrap_err().code, ErrorCode::Conflict, "it has more already");
    set(room(2 << 20)).unwrap();
    make_folder(&control, &from_api("folder_create"), 100_000);
    assert_eq!(alarm(), None);
    assert!(control.look_at_access_log(&[]).unwrap().whole);
}

#[test]
fn a_log_that_is_almost_full_keeps_nothing_longer_than_it_has_to() {
    let (site, control) = with_entries(10);
    let wish = SetAccessLogRetention { room_bytes: Some(1 << 20), keep_s: Some(30 * 86_400) };
    control.set_access_retention(&from_api("access_log_retention_set"), &wish).unwrap();
    site.pass(day() * 30);
    let mut number = 100;
    let fill = |number: &mut usize| {
        let wish = CreateFolder { name: format!("folder{number}").parse().unwrap() };
        *number += 1;
        control.create_folder(&from_api("folder_create"), &wish)
    };
    while fill(&mut number).is_ok() {}
    site.pass(Duration::from_secs(60));
    control.inventory.prune(control.now_unix_ms()).unwrap();
    fill(&mut number).unwrap();
    let report = control.look_at_access_log(&[]).unwrap();
    assert!(report.whole && report.first_id == 12, "{report:?}");
}
