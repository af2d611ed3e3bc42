//! Tests acknowledgements on a file system without a free block, where ext4 (Linux 6.18) zeroes
//! unwritten extents that it cannot split, and a sync of data does not make that durable.
//!
//! The power is cut right after each acknowledgement, and all unflushed requests are lost.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rustix::fs::{FallocateFlags, fallocate, major, minor, stat};
use rustix::io::Errno;
use strongroom_datastore::file::*;
use strongroom_types::BLOCK_BYTES;

use super::cut::{Fate, Replay};
use super::file_system::SMALL_EXT4;
use super::image::Image;
use super::knowledge::{Bench, Sort};
use super::life::{DATASTORE, OpenStack};
use super::promises::Used;
use super::recorder::Recorder;
use super::survey::read_all;
use super::write_log::Entry;

const BLOCKS: u64 = 128;
/// Written blocks lie apart, so that each needs extents of its own.
const APART: u64 = 6;
const WRITES: u64 = 16;

/// Leaves no block free: not even those that ext4 keeps for its own trees.
fn fill(path: &Path) {
    let device = stat(path).unwrap().st_dev;
    let device = format!("/sys/dev/block/{}:{}", major(device), minor(device));
    let name = std::fs::canonicalize(device).unwrap();
    let reserve = Path::new("/sys/fs/ext4").join(name.file_name().unwrap()).join("reserved_clusters");
    std::fs::write(reserve, "0").unwrap();
    let file = File::create_new(path.join("everything else")).unwrap();
    let (mut at, mut bytes) = (0, 1 << 24);
    while bytes >= BLOCK_BYTES {
        match fallocate(&file, FallocateFlags::empty(), at, bytes) {
            Ok(()) => at += bytes,
            Err(Errno::NOSPC) => bytes /= 2,
            Err(errno) => panic!("{errno}"),
        }
    }
    file.sync_all().unwrap();
}

/// What was recorded of a device.
struct Device<'a> {
    fresh: &'a Image,
    entries: &'a [Entry],
}

impl Device<'_> {
    /// Looks at the mounted file system as it is after a cut at each moment.
    fn after_each_cut(&self, moments: &[usize], look: impl Fn(usize, &Path) -> Result<(), String>) {
        let place = tempfile::tempdir().unwrap();
        let (device, at) = (place.path().join("device"), place.path().join("mounted"));
        std::fs::create_dir(&at).unwrap();
        let mut replay = Replay::new(self.fresh, self.entries, SMALL_EXT4.stays_whole);
        for (number, moment) in moments.iter().enumerate() {
            let image = replay.cut(*moment, Fate::None, &mut StdRng::seed_from_u64(1));
            image.write_to(&device).unwrap();
            let mounted = SMALL_EXT4.mount(&device, &at).unwrap();
            let looked = look(number, mounted.path());
            drop(mounted);
            looked.unwrap_or_else(|wrong| panic!("after acknowledgement {number}: {wrong}"));
        }
    }
}

/// Writes blocks of a volume one by one, each durably, and returns the number of cuts that were
/// looked at.
pub fn acknowledgements_are_kept(sort: Sort) -> usize {
    let bench = Bench::new();
    let place = tempfile::tempdir().unwrap();
    let fresh = SMALL_EXT4.make(place.path());
    let recorder = Recorder::start(&SMALL_EXT4, &fresh).unwrap();
    let path = recorder.path().join(DATASTORE).join("vm1");
    create(&path, &bench.create_options(sort, BLOCKS * BLOCK_BYTES)).unwrap();
    fill(recorder.path());
    let mut used = Used::open(&bench, sort, &path);
    let mut moments = Vec::new();
    for number in 0..WRITES {
        // One as a durable write, the next one by a flush.
        let durable = number % 2 == 0;
        used.write(number * APART, number as u8 + 1, durable);
        if !durable {
            used.flush();
        }
        moments.push(recorder.moment());
    }
    used.close(End::Now);
    let entries = recorder.finish();
    Device { fresh: &fresh, entries: &entries }.after_each_cut(&moments, |last, mounted| {
        let open = OpenStack::open(&bench, sort, &mounted.join(DATASTORE).join("vm1"))?;
        let content = read_all(&bench, &*open.stack.disk()).map_err(|error| error.to_string())?;
        let wrong = (0..=last as u64).find(|number| {
            let at = (number * APART * BLOCK_BYTES) as usize;
            content[at..at + BLOCK_BYTES as usize].iter().any(|byte| *byte != *number as u8 + 1)
        });
        wrong.map_or(Ok(()), |number| Err(format!("write {number} is lost")))
    });
    moments.len()
}

/// What the kernel does. If a later one keeps what it promises, this says so, and `settled` can go.
#[test]
#[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
fn a_sync_of_data_on_a_full_ext4_loses_what_a_whole_sync_keeps() {
    assert_eq!([true, false].map(loses), [true, false]);
}

/// Whether blocks that were written and synced are lost.
fn loses(data_only: bool) -> bool {
    const FILE_BLOCKS: u64 = 1024;
    let place = tempfile::tempdir().unwrap();
    let fresh = SMALL_EXT4.make(place.path());
    let recorder = Recorder::start(&SMALL_EXT4, &fresh).unwrap();
    let file = File::create_new(recorder.path().join("file")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, FILE_BLOCKS * BLOCK_BYTES).unwrap();
    file.sync_all().unwrap();
    fill(recorder.path());
    let mut moments = Vec::new();
    for number in 0..WRITES {
        file.write_all_at(&[number as u8 + 1; BLOCK_BYTES as usize], number * APART * BLOCK_BYTES).unwrap();
        if data_only { file.sync_data() } else { file.sync_all() }.unwrap();
        moments.push(recorder.moment());
    }
    drop(file);
    let entries = recorder.finish();
    let lost = std::cell::Cell::new(false);
    Device { fresh: &fresh, entries: &entries }.after_each_cut(&moments, |last, mounted| {
        let content = std::fs::read(mounted.join("file")).map_err(|error| error.to_string())?;
        let missing =
            (0..=last).any(|number| content[number * (APART * BLOCK_BYTES) as usize] != number as u8 + 1);
        lost.set(lost.get() || missing);
        Ok(())
    });
    lost.get()
}
