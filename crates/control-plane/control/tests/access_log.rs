//! The chain of the access log: what it detects, and that nothing breaks it that happens by itself.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::{Value, json};
use strongroom_api::access::{AccessLogHead, AccessLogQuery, CreateFolder};
use strongroom_api::alarm::AlarmKind;
use strongroom_control::engine::{Caller, Control};
use strongroom_store::{KeyRange, Store, Transaction};
use strongroom_types::hex;
use support::Site;

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
