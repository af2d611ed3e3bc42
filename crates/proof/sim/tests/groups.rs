//! A snapshot of several volumes exists in all of them or in none: under power cuts and kills at
//! every moment, and whichever volume is looked at or opened first.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::OFlags;
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::SimFs;
use strongroom_types::{SnapshotId, VolumeSize};

/// Outcomes of each power cut.
const CUTS: u64 = 3;

/// The order of the maker's steps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    Right,
    /// The first volume's descriptor says that the snapshot exists before the last part is there.
    DecidedEarly,
    /// The record goes before the last volume has read it.
    EndedEarly,
}

/// Three volumes, each under a key of its own.
struct Site {
    fs: SimFs,
    keks: Vec<Kek>,
    snapshot: NewSnapshot,
}

fn path(at: usize) -> PathBuf {
    PathBuf::from(format!("/ds/vm{at}"))
}

impl Site {
    fn new(seed: u64) -> Self {
        let fs = SimFs::new(seed);
        let key =
            |fill: u8| KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap());
        let keks: Vec<Kek> = (1..=3).map(|fill| key(fill).unwrap()).collect();
        for (at, kek) in keks.iter().enumerate() {
            let options = CreateOptions {
                size: VolumeSize::new(64 << 10).unwrap(),
                provisioning: Provisioning::Thin,
                protection: Protection::Encrypted(kek),
                log_bytes: Some(LOG_BYTES_MIN),
                integrity: None,
            };
            create_on(&fs, &path(at), &options).unwrap();
        }
        Self { fs, keks, snapshot: NewSnapshot { id: SnapshotId::random(), name: "friday".parse().unwrap() } }
    }

    fn head(&self, fs: &SimFs, at: usize) -> VolumeHead {
        let protection = Protection::Encrypted(&self.keks[at]);
        let (access, lock_wait) = (Access::ReadWrite, Duration::ZERO);
        VolumeHead::open_on(
            fs,
            &path(at),
            &OpenOptions { protection, access, lock_wait, least_generation: 0 },
        )
        .unwrap()
    }

    /// Makes the snapshot of all three, as the processes that expose them do.
    fn make(&self, order: Order) {
        let decision = Decision::draw().unwrap();
        let mut heads: Vec<VolumeHead> = (0..3).map(|at| self.head(&self.fs, at)).collect();
        let protection = |at: usize| Protection::Encrypted(&self.keks[at]);
        let prepare = |heads: &mut Vec<VolumeHead>, at: usize| {
            let place = match at {
                0 => GroupPlace::First(vec![path(1), path(2)]),
                _ => GroupPlace::After(path(0)),
            };
            let terms = GroupTerms { place, decision_sha256: decision.digest() };
            heads[at].prepare_part(&self.snapshot, terms, protection(at), Some(LOG_BYTES_MIN)).unwrap();
        };
        let settle =
            |heads: &mut Vec<VolumeHead>, at: usize| heads[at].settle_layer(None, protection(at)).unwrap();
        let decide = |heads: &mut Vec<VolumeHead>, at: usize| {
            heads[at].decide_part(self.snapshot.id, decision, protection(at)).unwrap();
        };
        let end = |heads: &mut Vec<VolumeHead>| heads[0].end_group(self.snapshot.id, protection(0)).unwrap();
        for at in 0..2 {
            prepare(&mut heads, at);
            settle(&mut heads, at);
        }
        if order == Order::DecidedEarly {
            decide(&mut heads, 0);
        }
        prepare(&mut heads, 2);
        settle(&mut heads, 2);
        if order != Order::DecidedEarly {
            decide(&mut heads, 0);
        }
        decide(&mut heads, 1);
        if order == Order::EndedEarly {
            end(&mut heads);
        }
        decide(&mut heads, 2);
        if order != Order::EndedEarly {
            end(&mut heads);
        }
    }

    /// Which volumes list the snapshot, as `volume snapshot list` does.
    fn listing(&self, fs: &SimFs) -> Vec<bool> {
        let lists = |at: usize| {
            let descriptor = describe_on(fs, &path(at)).unwrap().descriptor;
            let verdict = group_verdict_on(fs, &path(at)).unwrap();
            descriptor.snapshot(self.snapshot.id).is_some()
                || matches!(verdict, Some((GroupMark::Part(_), Verdict::Made(_))))
        };
        (0..3).map(lists).collect()
    }

    /// Writes into the first volume's descriptor, without its key, that the snapshot was made.
    /// Returns what was there.
    fn forge(&self, decision: &Decision) -> Vec<u8> {
        let file = Storage::open_directory(&self.fs, &path(0)).unwrap().open("descriptor", OFlags::RDONLY);
        let file = file.unwrap();
        let mut content = vec![0; usize::try_from(file.length().unwrap()).unwrap()];
        file.read_at(0, &mut content).unwrap();
        let (header, rest) = content.split_at(16);
        let (body, tag) = rest.split_at(rest.len() - 32);
        let body = std::str::from_utf8(body).unwrap();
        let made = MadeGroup {
            snapshot: self.snapshot.id,
            name: self.snapshot.name.clone(),
            decision: *decision,
            others: vec![path(1)],
        };
        let made = serde_json::to_string(&GroupMark::Made(made)).unwrap();
        let body = format!("{}\"group\":{made}}}", body.split_once("\"group\":").unwrap().0);
        let length = u32::try_from(body.len()).unwrap().to_le_bytes();
        self.put(&[&header[..12], &length, body.as_bytes(), tag].concat());
        content
    }

    fn put(&self, content: &[u8]) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC;
        let file = Storage::open_directory(&self.fs, &path(0)).unwrap().open("descriptor", flags).unwrap();
        file.write_at(0, content).unwrap();
        file.sync().unwrap();
    }

    /// Whether all volumes list the snapshot; `None` if they differ, now, after each was used, or
    /// after another power cut during that.
    fn examine(&self, fs: &SimFs, seed: u64) -> Option<bool> {
        let found = self.listing(fs);
        let all = found[0];
        let is_so = |found: &[bool]| found.iter().all(|lists| *lists == all);
        if !is_so(&found) {
            return None;
        }
        for at in (0..6).map(|turn| (turn + seed as usize) % 3) {
            let mut head = self.head(fs, at);
            // A decision about a part that is not durable is refused.
            head.resolve_group_on(fs, Protection::Encrypted(&self.keks[at])).ok()?;
            drop(head);
            if !is_so(&self.listing(fs)) || !is_so(&self.listing(&fs.cut(seed))) {
                return None;
            }
        }
        let marks = (0..3).filter(|at| describe_on(fs, &path(*at)).unwrap().descriptor.group.is_some());
        assert_eq!(marks.count(), 0, "a mark stays");
        Some(all)
    }
}

/// How many power cuts and kills left all with the snapshot, all without, and some of either.
fn survey(order: Order) -> [usize; 3] {
    let site = Site::new(1);
    site.fs.record();
    site.make(order);
    let mut found = [0; 3];
    for moment in 0..site.fs.moments() {
        for seed in 0..CUTS {
            for fs in [site.fs.cut_at(moment, seed), site.fs.killed_at(moment, seed)] {
                found[match site.examine(&fs, seed) {
                    Some(true) => 0,
                    Some(false) => 1,
                    None => 2,
                }] += 1;
            }
        }
    }
    for seed in 0..CUTS {
        assert_eq!(site.examine(&site.fs.cut(seed), seed), Some(true), "what was reported done is durable");
    }
    println!("{order:?}: {} moments; with it, without it, mixed: {found:?}", site.fs.moments());
    found
}

#[test]
fn a_snapshot_of_several_volumes_is_of_all_or_of_none_whatever_is_cut_or_killed() {
    let [with, without, mixed] = survey(Order::Right);
    assert!(with > 0 && without > 0);
    assert_eq!(mixed, 0);
}

#[test]
fn a_record_before_the_last_part_is_durable_is_caught() {
    assert!(survey(Order::DecidedEarly)[2] > 0);
}

#[test]
fn a_record_that_goes_before_all_have_read_it_is_caught() {
    assert!(survey(Order::EndedEarly)[2] > 0);
}

#[test]
fn a_forged_record_makes_no_snapshot() {
    let site = Site::new(2);
    let (decision, other) = (Decision::draw().unwrap(), Decision::draw().unwrap());
    let terms = |place| GroupTerms { place, decision_sha256: decision.digest() };
    let mut heads: Vec<VolumeHead> = (0..2).map(|at| site.head(&site.fs, at)).collect();
    let places = [GroupPlace::First(vec![path(1)]), GroupPlace::After(path(0))];
    for (at, place) in places.into_iter().enumerate() {
        let protection = Protection::Encrypted(&site.keks[at]);
        heads[at].prepare_part(&site.snapshot, terms(place), protection, Some(LOG_BYTES_MIN)).unwrap();
        heads[at].settle_layer(None, protection).unwrap();
    }
    for (head, kek) in heads.iter_mut().zip(&site.keks) {
        let refused = head.decide_part(site.snapshot.id, other, Protection::Encrypted(kek)).unwrap_err();
        assert!(matches!(refused, DatastoreError::NoSnapshot { .. }), "{refused}");
    }
    assert_eq!(site.listing(&site.fs)[..2], [false, false]);
    let true_one = site.forge(&other);
    assert_eq!(site.listing(&site.fs)[1..2], [false]);
    heads[1].resolve_group_on(&site.fs, Protection::Encrypted(&site.keks[1])).unwrap();
    assert!(heads[1].descriptor().part().is_some(), "neither made nor void");
    site.put(&true_one);
    // A volume with a part takes no other one, and no other snapshot of that name.
    let again = NewSnapshot { id: SnapshotId::random(), name: "saturday".parse().unwrap() };
    let place = terms(GroupPlace::After(path(0)));
    let refused =
        heads[1].prepare_part(&again, place, Protection::Encrypted(&site.keks[1]), None).unwrap_err();
    assert!(matches!(refused, DatastoreError::OtherGroup { .. }), "{refused}");
    let taken = NewSnapshot { id: SnapshotId::random(), name: site.snapshot.name.clone() };
    let refused = taken.check(&path(1), heads[1].descriptor()).unwrap_err();
    assert!(matches!(refused, DatastoreError::SnapshotExists { .. }), "{refused}");
}

#[test]
fn a_first_volume_is_kept_until_all_have_read_its_record() {
    let site = Site::new(3);
    site.fs.record();
    site.make(Order::Right);
    // Decided, and the others do not know it yet.
    let moment = (0..site.fs.moments())
        .find(|moment| site.listing(&site.fs.killed_at(*moment, 1)) == [true; 3])
        .unwrap();
    let fs = site.fs.killed_at(moment, 1);
    let refused = delete_on(&fs, &path(0), Duration::ZERO).unwrap_err();
    assert!(matches!(refused, DatastoreError::UnreadGroup { .. }), "{refused}");
    for at in [1, 2] {
        site.head(&fs, at).resolve_group_on(&fs, Protection::Encrypted(&site.keks[at])).unwrap();
    }
    delete_on(&fs, &path(0), Duration::ZERO).unwrap();
    assert!(describe_on(&fs, &path(2)).unwrap().descriptor.snapshot(site.snapshot.id).is_some());
}
