//! Power cuts and kills while two layers of a volume in use are merged: what was flushed is there,
//! no read fails, and the merge can be finished afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

#[path = "support/blocks.rs"]
mod blocks;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use blocks::{BLOCK, Oracle, event_loop, kek, protection, to_open, with_disk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::*;
use strongroom_io::EventLoop;
use strongroom_keys::Kek;
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, SnapshotId, VolumeSize};
use strongroom_worker::layers::{PlainBlocks, plain_blocks_over};
use strongroom_worker::{Copying, DiskAccess, Step, Stride};

const BLOCKS: u64 = 48;
/// Large enough not to fill, because nothing empties it while clients write.
const LOG_BYTES: u64 = 1 << 20;
const STRIDE: Stride = Stride { depth: 2, piece_bytes: 2 * BLOCK_BYTES, step_bytes: 4 * BLOCK_BYTES };

const LIVES: u64 = if cfg!(feature = "full") { 200 } else { 6 };
/// Moments of each life at which the power is cut.
const CUTS: usize = if cfg!(feature = "full") { 300 } else { 60 };

fn path() -> &'static Path {
    Path::new("/ds/vm1")
}

struct Life<'a> {
    fs: SimFs,
    kek: Option<&'a Kek>,
    random: StdRng,
    oracle: Oracle,
    /// The oracle at each recorded moment at which it has changed.
    history: Vec<(usize, Oracle)>,
    next_fill: u8,
}

impl Life<'_> {
    fn options(&self) -> OpenOptions<'_> {
        to_open(self.kek)
    }

    fn event_loop(&mut self) -> Rc<dyn EventLoop> {
        event_loop(&self.fs, &mut self.random)
    }

    /// Notes that the blocks may hold something else from now on.
    fn note(&mut self) {
        self.history.push((self.fs.moments(), self.oracle.clone()));
    }

    fn write(&mut self, disk: &mut DiskAccess) {
        let first = self.random.random_range(0..BLOCKS);
        let end = (first + self.random.random_range(1..5)).min(BLOCKS);
        let is_zeroes = self.random.random_range(0..3) == 0;
        self.next_fill = self.next_fill % 250 + 1;
        let fill = if is_zeroes { 0 } else { self.next_fill };
        (first..end).for_each(|block| self.oracle.write(block, fill));
        self.note();
        let bytes = vec![fill; (end - first) as usize * BLOCK];
        match is_zeroes {
            true => disk.write_zeroes_at(first * BLOCK_BYTES, bytes.len() as u64).unwrap(),
            false => disk.write_at(first * BLOCK_BYTES, &bytes).unwrap(),
        }
    }

    fn flush(&mut self, disk: &mut DiskAccess) {
        disk.flush().unwrap();
        self.oracle.flushed();
        self.note();
    }

    /// Opens the volume, writes to its disk, and closes it.
    fn fill(&mut self) {
        let (fs, kek, mut random) = (self.fs.clone(), self.kek, self.random.clone());
        let filled = with_disk(&fs, path(), kek, &mut random, |disk, _| {
            (0..10).for_each(|_| self.write(disk));
            self.flush(disk);
            Ok(())
        });
        filled.unwrap();
    }

    fn snapshot(&mut self, name: &str) -> SnapshotId {
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: name.parse().unwrap() };
        let options = AddLayerOptions {
            protection: protection(self.kek),
            log_bytes: Some(LOG_BYTES),
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        create_snapshot_on(&self.fs, path(), &snapshot, &options).unwrap();
        snapshot.id
    }

    /// Three layers with content, of which the upper of the two lower ones is to be merged.
    fn new(seed: u64, kek: Option<&Kek>, has_lower: bool) -> Life<'_> {
        let mut life = Life {
            fs: SimFs::new(seed),
            kek,
            random: StdRng::seed_from_u64(seed),
            oracle: Oracle::new(BLOCKS),
            history: Vec::new(),
            next_fill: 0,
        };
        let options = CreateOptions {
            size: VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap(),
            provisioning: Provisioning::Thin,
            protection: protection(kek),
            log_bytes: Some(LOG_BYTES),
            integrity: kek.is_some().then_some(Integrity::NEW),
        };
        create_on(&life.fs, path(), &options).unwrap();
        life.fill();
        if has_lower {
            life.snapshot("lower");
            life.fill();
        }
        let deleted = life.snapshot("deleted");
        life.fill();
        life.snapshot("kept");
        life.fill();
        delete_snapshot_on(&life.fs, path(), deleted, &life.options()).unwrap();
        life.history.clear();
        life
    }

    /// Merges while a client writes. Everything is recorded.
    fn merge(&mut self) {
        self.fs.record();
        self.note();
        let mut volume = open_on(&self.fs, path(), &self.options()).unwrap();
        let blocks = std::sync::Arc::clone(&volume.disk);
        let PlainBlocks { disk, merge, .. } = plain_blocks_over(blocks, &mut volume).unwrap();
        let stages = merge.expect("two layers are marked");
        // The merge and its clients are on threads of their own.
        let (of_merge, of_client) = (self.event_loop(), self.event_loop());
        let mut client = DiskAccess::on(of_client, &*disk).unwrap();
        let mut copying = Copying::open(&stages, 0..stages.size_bytes(), of_merge, STRIDE).unwrap();
        while copying.step().unwrap() != Step::Ended {
            match self.random.random_range(0..3) {
                0 => self.flush(&mut client),
                _ => self.write(&mut client),
            }
        }
        copying.finish().unwrap();
        self.write(&mut client);
        self.flush(&mut client);
        drop((client, disk, stages));
        volume.head.finish_merge(protection(self.kek)).unwrap();
        assert!(volume.head.descriptor().merging.is_none());
    }

    /// What the blocks may hold at a moment.
    fn at(&self, moment: usize) -> Oracle {
        let mut possible = self.history[0].1.clone();
        for (_, oracle) in self.history.iter().filter(|(at, _)| *at <= moment) {
            possible = oracle.clone();
        }
        possible
    }
}

/// Opens an image, compares what it holds, merges what is left to be merged, and compares again.
/// Returns whether there was something left.
fn outlives(fs: SimFs, kek: Option<&Kek>, seed: u64, oracle: &Oracle) -> Result<bool, String> {
    let random = StdRng::seed_from_u64(seed);
    let mut life = Life { fs, kek, random, oracle: oracle.clone(), history: Vec::new(), next_fill: 0 };
    let mut content = vec![0; (BLOCKS * BLOCK_BYTES) as usize];
    let mut volume = open_on(&life.fs, path(), &life.options()).map_err(|error| error.to_string())?;
    let blocks = std::sync::Arc::clone(&volume.disk);
    let stages = plain_blocks_over(blocks, &mut volume).map_err(|error| error.to_string())?;
    let mut client = DiskAccess::on(life.event_loop(), &*stages.disk).unwrap();
    client.read_at(0, &mut content).map_err(|error| format!("before: {error}"))?;
    oracle.check(&content)?;
    let is_unfinished = stages.merge.is_some();
    if let Some(merge) = &stages.merge {
        let event_loop = life.event_loop();
        let mut copying = Copying::open(merge, 0..merge.size_bytes(), event_loop, STRIDE).unwrap();
        while copying.step().map_err(|error| format!("the second merge: {error}"))? != Step::Ended {}
        copying.finish().map_err(|error| format!("the end of the second merge: {error}"))?;
    }
    drop((client, stages));
    volume.head.finish_merge(protection(kek)).map_err(|error| error.to_string())?;
    drop(volume);
    // What the second one has reported is durable too.
    let mut again = vec![0; content.len()];
    let fs = life.fs.cut(seed);
    life.fs = fs;
    let mut volume = open_on(&life.fs, path(), &life.options()).map_err(|error| error.to_string())?;
    assert!(volume.descriptor().merging.is_none());
    let blocks = std::sync::Arc::clone(&volume.disk);
    let stages = plain_blocks_over(blocks, &mut volume).map_err(|error| error.to_string())?;
    let mut client = DiskAccess::on(life.event_loop(), &*stages.disk).unwrap();
    client.read_at(0, &mut again).map_err(|error| format!("after: {error}"))?;
    oracle.check(&again)?;
    drop((client, stages, volume));
    for finding in check_on(&life.fs, path(), kek).map_err(|error| error.to_string())? {
        if finding.severity == Severity::Error {
            return Err(finding.message);
        }
    }
    Ok(is_unfinished)
}

#[test]
fn power_cuts_during_a_merge_beside_a_client_lose_nothing() {
    let key = kek(1);
    let (mut unfinished, mut finished, mut killed) = (0, 0, 0);
    for seed in 0..LIVES {
        let kek = (seed % 3 != 0).then_some(&key);
        let mut life = Life::new(seed, kek, seed % 2 == 0);
        life.merge();
        for cut in 0..CUTS as u64 {
            let moment = life.random.random_range(0..life.fs.moments());
            let seed_of_cut = seed * 1000 + cut;
            let fs = match cut % 3 {
                0 => {
                    killed += 1;
                    life.fs.killed_at(moment, seed_of_cut)
                }
                _ => life.fs.cut_at(moment, seed_of_cut),
            };
            match outlives(fs, kek, seed_of_cut, &life.at(moment)) {
                Ok(true) => unfinished += 1,
                Ok(false) => finished += 1,
                Err(error) => panic!("life {seed}, moment {moment}, cut {cut}: {error}"),
            }
        }
    }
    println!("{unfinished} images with a merge to finish, {finished} without; {killed} by a kill");
    assert!(unfinished > 0 && finished > 0 && killed > 0);
}
