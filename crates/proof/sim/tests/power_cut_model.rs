//! Compares the model's cuts with a slow and obvious oracle: the writes that each sector may show.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_io::{FileOperation, IoError};
use strongroom_sim::{Faults, OpenHow, SimFile, SimFs};
use strongroom_types::Extent;
use support::Queue;

const SECTORS: usize = 24;
const CREATE: OpenHow = OpenHow { write: true, create: true, exclusive: true, truncate: false };
const WRITE: OpenHow = OpenHow { write: true, create: false, exclusive: false, truncate: false };

/// A durable file of zeroes.
fn file_of(fs: &SimFs, sectors: usize) -> Arc<SimFile> {
    let root = fs.open_directory(Path::new("/")).unwrap();
    let file = root.open("file", CREATE).unwrap();
    file.set_length(sectors as u64 * 512).unwrap();
    file.sync().unwrap();
    root.sync().unwrap();
    Arc::new(file)
}

fn content_of(fs: &SimFs, name: &str) -> Option<Vec<u8>> {
    let root = fs.open_directory(Path::new("/")).unwrap();
    let file = root.open(name, OpenHow::default()).ok()?;
    let mut content = vec![0xEE; file.length().unwrap() as usize];
    assert_eq!(file.read_at(0, &mut content).unwrap(), content.len());
    Some(content)
}

/// One write, or zeroing, of some sectors.
struct Write {
    extent: std::ops::Range<usize>,
    fill: u8,
    submitted: u64,
    ended: Option<u64>,
    failed: bool,
    durable: bool,
}

/// All possible writes of each sector, by number; 0 is the initial zeroes.
struct Oracle {
    now: u64,
    writes: Vec<Write>,
    allowed: Vec<BTreeSet<usize>>,
}

impl Oracle {
    fn new() -> Self {
        let first =
            Write { extent: 0..SECTORS, fill: 0, submitted: 0, ended: Some(0), failed: false, durable: true };
        Self { now: 0, writes: vec![first], allowed: vec![BTreeSet::from([0]); SECTORS] }
    }

    fn begin(&mut self, extent: std::ops::Range<usize>, fill: u8, durable: bool) -> usize {
        self.now += 1;
        let id = self.writes.len();
        for sector in extent.clone() {
            self.allowed[sector].insert(id);
        }
        let submitted = self.now;
        self.writes.push(Write { extent, fill, submitted, ended: None, failed: false, durable });
        id
    }

    fn end(&mut self, id: usize, failed: bool) {
        self.now += 1;
        (self.writes[id].ended, self.writes[id].failed) = (Some(self.now), failed);
        if self.writes[id].durable && !failed {
            self.make_durable(id);
        }
    }

    /// A flush that was submitted at `horizon` has succeeded.
    fn flushed(&mut self, horizon: u64) {
        for id in 0..self.writes.len() {
            let write = &self.writes[id];
            if !write.failed && write.ended.is_some_and(|ended| ended <= horizon) {
                self.make_durable(id);
            }
        }
    }

    /// Writes completed before this write was submitted can no longer be seen in its extent.
    fn make_durable(&mut self, id: usize) {
        let (extent, submitted) = (self.writes[id].extent.clone(), self.writes[id].submitted);
        let writes = &self.writes;
        for allowed in &mut self.allowed[extent] {
            allowed
                .retain(|other| *other == id || writes[*other].ended.is_none_or(|ended| ended > submitted));
        }
    }

    fn check(&self, content: &[u8]) -> Result<(), String> {
        assert_eq!(content.len(), SECTORS * 512);
        for (sector, found) in content.chunks(512).enumerate() {
            let fill = found[0];
            let fills: BTreeSet<u8> =
                self.allowed[sector].iter().map(|write| self.writes[*write].fill).collect();
            if found.iter().any(|byte| *byte != fill) || !fills.contains(&fill) {
                return Err(format!("sector {sector} is {fill:#x}, allowed are {fills:x?}"));
            }
        }
        Ok(())
    }
}

/// Random operations, several in flight, and cuts after each step. Returns how many of the cuts
/// were wrong.
fn random_history(seed: u64, faults: Faults, honest: bool) -> usize {
    let mut random = StdRng::seed_from_u64(seed);
    let fs = SimFs::new(seed);
    let file = file_of(&fs, SECTORS);
    fs.set_faults(faults);
    let mut queue = Queue::new(fs.reactor(seed).unwrap(), file);
    let mut oracle = Oracle::new();
    let mut writes = BTreeMap::new();
    let mut flushes = BTreeMap::new();
    let mut wrong = 0;
    let mut flush_failed = false;
    for step in 0..120_u64 {
        let first = random.random_range(0..SECTORS);
        let count = random.random_range(1..=(SECTORS - first).min(9));
        let fill = step as u8 + 1;
        match random.random_range(0..8) {
            0..4 => {
                let durable = random.random_ratio(1, 4) && !flush_failed;
                let operation = queue.write(first as u64 * 512, count * 512, fill, durable);
                writes.insert(step, oracle.begin(first..first + count, fill, durable));
                queue.send(step, operation);
            }
            4 => {
                let block = first / 8;
                let extent = Extent::between(block as u64 * 4096, (block as u64 + 1) * 4096);
                writes.insert(step, oracle.begin(block * 8..block * 8 + 8, 0, false));
                let punch = random.random();
                queue.send(
                    step,
                    if punch { FileOperation::Punch { extent } } else { FileOperation::Zero { extent } },
                );
            }
            5 if !flush_failed => {
                flushes.insert(step, oracle.now);
                queue.send(step, FileOperation::SyncData);
            }
            _ => {}
        }
        for done in queue.poll() {
            let failed = done.result.is_err();
            if let Some(horizon) = flushes.remove(&done.tag) {
                flush_failed |= failed;
                if !flush_failed {
                    oracle.flushed(horizon);
                }
            } else if let Some(write) = writes.remove(&done.tag) {
                oracle.end(write, failed);
            }
        }
        if !honest {
            oracle.flushed(oracle.now);
        }
        for cut in 0..8 {
            let content = content_of(&fs.cut(seed * 1000 + step * 8 + cut), "file").unwrap();
            match oracle.check(&content) {
                Ok(()) => {}
                Err(what) if honest => panic!("seed {seed}, step {step}, cut {cut}: {what}"),
                Err(_) => wrong += 1,
            }
        }
    }
    wrong
}

#[test]
fn a_cut_shows_what_was_flushed_or_something_newer() {
    for seed in 0..20 {
        random_history(seed, Faults::default(), true);
    }
}

#[test]
fn so_it_does_when_things_fail() {
    let faults =
        Faults { read_error_one_in: 9, write_error_one_in: 9, sync_error_one_in: 4, ..Faults::default() };
    for seed in 0..20 {
        random_history(seed, faults, true);
    }
}

#[test]
fn the_oracle_can_fail() {
    assert!((0..10).all(|seed| random_history(seed, Faults::default(), false) > 0));
}

/// The frequency of each outcome among many cuts.
fn outcomes<T: Ord>(fs: &SimFs, look: impl Fn(&SimFs) -> T) -> BTreeMap<T, usize> {
    let mut seen = BTreeMap::new();
    for seed in 0..2000 {
        *seen.entry(look(&fs.cut(seed))).or_default() += 1;
    }
    seen
}

#[test]
fn every_subset_of_sectors_is_seen() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 16);
    file.write_at(0, &[1; 2048]).unwrap();
    let seen = outcomes(&fs, |fs| {
        content_of(fs, "file").unwrap().chunks(512).map(|sector| sector[0]).take(4).collect::<Vec<_>>()
    });
    assert_eq!(seen.len(), 16, "{seen:?}");
}

#[test]
fn a_sector_written_twice_shows_any_version_since_the_durable_one() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 1);
    for fill in 1..=3 {
        file.write_at(0, &[fill; 512]).unwrap();
    }
    let first = |fs: &SimFs| content_of(fs, "file").unwrap()[0];
    assert_eq!(outcomes(&fs, first).into_keys().collect::<Vec<_>>(), [0, 1, 2, 3]);
    file.sync().unwrap();
    assert_eq!(outcomes(&fs, first).into_keys().collect::<Vec<_>>(), [3]);
}

#[test]
fn a_punch_of_one_block_is_whole_and_of_several_need_not_be() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 16);
    file.write_at(0, &[7; 8192]).unwrap();
    file.sync().unwrap();
    let mut queue = Queue::new(fs.reactor(1).unwrap(), file);
    for (blocks, least) in [(1, 2), (2, 3)] {
        let mut most = 0;
        for _ in 0..20 {
            queue.run(FileOperation::Punch { extent: Extent::between(0, blocks * 4096) }).result.unwrap();
            let seen = outcomes(&fs, |fs| {
                let content = content_of(fs, "file").unwrap();
                content.chunks(4096).map(|block| block.iter().map(|byte| *byte as u64).sum::<u64>()).collect()
            });
            assert!(seen.keys().flat_map(|blocks: &Vec<u64>| blocks).all(|sum| [0, 7 * 4096].contains(sum)));
            most = most.max(seen.len());
            let operation = queue.write(0, 8192, 7, true);
            queue.run(operation).result.unwrap();
        }
        assert!(most >= least, "{blocks} blocks: {most}");
    }
}

#[test]
fn names_persist_alone_or_not_until_their_directory_is_synced() {
    let fs = SimFs::new(1);
    let root = fs.open_directory(Path::new("/")).unwrap();
    let old = root.open("a", CREATE).unwrap();
    old.write_at(0, &[1; 512]).unwrap();
    old.sync().unwrap();
    root.sync().unwrap();
    root.open("a.new", CREATE).unwrap().write_at(0, &[2; 512]).unwrap();
    root.rename("a.new", "a").unwrap();
    root.open("b", CREATE).unwrap();
    let look = |fs: &SimFs| (content_of(fs, "a").unwrap().first().copied(), content_of(fs, "b").is_some());
    let seen = outcomes(&fs, look);
    // The new content was never synced: its length, or its sector, may be missing.
    for (a, b) in [(Some(1), false), (Some(1), true), (Some(2), false), (Some(0), true), (None, true)] {
        assert!(seen.contains_key(&(a, b)), "{a:?} {b}: {seen:?}");
    }
    root.sync().unwrap();
    let seen = outcomes(&fs, look);
    assert!(seen.keys().all(|(a, b)| *a != Some(1) && *b), "{seen:?}");
    let directory = root.names().unwrap();
    assert_eq!(directory, ["a", "b"]);
}

#[test]
fn a_durable_write_takes_only_itself_along() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 16);
    let mut queue = Queue::new(fs.reactor(1).unwrap(), file);
    for (offset, durable) in [(0, false), (4096, true)] {
        let operation = queue.write(offset, 512, 5, durable);
        queue.run(operation).result.unwrap();
    }
    let seen = outcomes(&fs, |fs| {
        let content = content_of(fs, "file").unwrap();
        (content[0], content[4096])
    });
    assert_eq!(seen.into_keys().collect::<Vec<_>>(), [(0, 5), (5, 5)]);
}

#[test]
fn after_a_failed_sync_no_later_one_helps() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 8);
    file.write_at(0, &[1; 512]).unwrap();
    fs.set_faults(Faults { sync_error_one_in: 1, ..Faults::default() });
    assert_eq!(file.sync(), Err(rustix::io::Errno::IO));
    fs.set_faults(Faults::default());
    file.sync().unwrap();
    let first = |fs: &SimFs| content_of(fs, "file").unwrap()[0];
    assert_eq!(outcomes(&fs, first).len(), 2);
    file.write_at(0, &[2; 512]).unwrap();
    file.sync().unwrap();
    assert_eq!(outcomes(&fs, first).into_keys().collect::<Vec<_>>(), [2], "written anew, it is durable");
}

#[test]
fn a_full_file_system_says_so_and_has_room_again() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 64);
    fs.set_capacity(Some(2 * 4096));
    let mut queue = Queue::new(fs.reactor(1).unwrap(), file);
    let operation = queue.write(4096, 4 * 4096, 1, true);
    assert_eq!(queue.run(operation).result, Err(IoError::NoSpace));
    let operation = queue.write(0, 4096, 1, false);
    assert_eq!(queue.run(operation).result, Err(IoError::NoSpace));
    let operation = queue.write(4096, 2 * 4096, 2, false);
    queue.run(operation).result.unwrap();
    queue.run(FileOperation::Punch { extent: Extent::between(4096, 8192) }).result.unwrap();
    let operation = queue.write(0, 4096, 1, false);
    queue.run(operation).result.unwrap();
}

#[test]
fn a_device_that_vanishes_comes_back_as_after_a_power_cut() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 8);
    file.write_at(0, &[1; 512]).unwrap();
    file.sync().unwrap();
    let mut queue = Queue::new(fs.reactor(1).unwrap(), Arc::clone(&file) as _);
    let operation = queue.write(0, 512, 2, false);
    queue.run(operation).result.unwrap();
    fs.vanish();
    let eio = Err(IoError::from(rustix::io::Errno::IO));
    assert_eq!(queue.run(FileOperation::SyncData).result, eio);
    fs.come_back(3);
    assert_eq!(queue.run(FileOperation::SyncData).result, eio, "what was open stays dead");
    let root = fs.open_directory(Path::new("/")).unwrap();
    let mut first = [0];
    root.open("file", WRITE).unwrap().read_at(0, &mut first).unwrap();
    assert!([1, 2].contains(&first[0]));
    assert_eq!(fs.cut(1).open_directory(Path::new("/")).unwrap().names().unwrap(), ["file"]);
}

#[test]
fn a_hung_device_ends_nothing_until_it_goes_on() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 8);
    let mut queue = Queue::new(fs.reactor(1).unwrap(), file);
    fs.set_hung(true);
    let operation = queue.write(0, 512, 2, false);
    queue.send(7, operation);
    assert!((0..100).all(|_| queue.poll().is_empty()));
    let seen = outcomes(&fs, |fs| content_of(fs, "file").unwrap()[0]);
    assert_eq!(seen.len(), 2, "it may have reached the device");
    fs.set_hung(false);
    let done = std::iter::repeat_with(|| queue.poll()).find(|done| !done.is_empty()).unwrap();
    assert_eq!(done[0].tag, 7);
}

#[test]
fn where_overlapping_syncs_are_skipped_the_later_one_does_nothing() {
    for (skips, expected) in [(false, vec![6]), (true, vec![5, 6])] {
        let fs = SimFs::new(1);
        let file = file_of(&fs, 16);
        file.write_at(0, &[5; 512]).unwrap();
        file.sync().unwrap();
        let mut first = Queue::new(fs.reactor(1).unwrap(), file.clone());
        let mut second = Queue::new(fs.reactor(2).unwrap(), file.clone());
        fs.set_skips_overlapping_syncs(skips);
        first.send(1, FileOperation::SyncData);
        let write = second.write(0, 512, 6, true);
        second.run(write).result.unwrap();
        second.run(FileOperation::SyncData).result.unwrap();
        file.sync().unwrap();
        let seen = || outcomes(&fs, |fs| content_of(fs, "file").unwrap()[0]).into_keys().collect::<Vec<_>>();
        assert_eq!(seen(), expected);
        // Everything is durable after a sync of the file system, and after another sync once the
        // first has ended.
        let root = fs.open_directory(Path::new("/")).unwrap();
        root.sync_file_system().unwrap();
        assert_eq!(seen(), [6]);
        while first.poll().is_empty() {}
        let write = second.write(0, 512, 7, true);
        second.run(write).result.unwrap();
        assert_eq!(seen(), [7]);
    }
}

#[test]
fn silent_faults_are_silent() {
    let fs = SimFs::new(1);
    let file = file_of(&fs, 64);
    let all = |fs: &SimFs| content_of(fs, "file").unwrap();
    let mut queue = Queue::new(fs.reactor(1).unwrap(), file);
    fs.set_faults(Faults { corrupt_one_in: 1, ..Faults::default() });
    let operation = queue.write(0, 4096, 0xFF, true);
    queue.run(operation).result.unwrap();
    let zeroes: u32 = all(&fs.cut(1))[..4096].iter().map(|byte| byte.count_zeros()).sum();
    assert_eq!(zeroes, 1);
    fs.set_faults(Faults { misdirect_one_in: 1, ..Faults::default() });
    let operation = queue.write(8192, 512, 0xAA, true);
    queue.run(operation).result.unwrap();
    let found = all(&fs.cut(1));
    assert!(found[8192..8704].iter().all(|byte| *byte == 0));
    assert_eq!(found.iter().filter(|byte| **byte == 0xAA).count(), 512);
}

#[test]
fn the_same_seed_is_the_same_history() {
    let run = || {
        let fs = SimFs::new(4);
        let file = file_of(&fs, SECTORS);
        let mut queue = Queue::new(fs.reactor(5).unwrap(), file);
        fs.record();
        let mut ends = Vec::new();
        for step in 0..50 {
            let operation = queue.write(step % 20 * 512, 1024, step as u8, false);
            queue.send(step, operation);
            ends.extend(queue.poll().into_iter().map(|done| done.tag));
        }
        let images: Vec<_> =
            (0..fs.moments()).map(|at| content_of(&fs.cut_at(at, at as u64), "file")).collect();
        (ends, images)
    };
    assert!(run() == run());
}
