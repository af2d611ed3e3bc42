//! Tests each acknowledgement by itself: the power is cut right after it, and all unflushed
//! requests are lost. Everything that the product has acknowledged as durable must still be there.
//!
//! A random cut hardly ever falls between an acknowledgement and the next flush. Here every cut
//! does, so a missing guarantee (a write without `RWF_DSYNC`, an unsynced directory) is found at
//! once.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;
use strongroom_datastore::file::*;
use strongroom_io::{Channel, Io, Plain, Request, Thread};
use strongroom_memory::GuestSlice;
use strongroom_ring::Ring;
use strongroom_types::{BLOCK_BYTES, Extent, VolumeSize};

use super::cut::{Fate, Replay};
use super::file_system::FileSystem;
use super::knowledge::{Bench, Sort};
use super::life::{DATASTORE, OpenStack};
use super::recorder::Recorder;
use super::survey::read_all;

const LOCK_WAIT: Duration = Duration::from_secs(60);
const BLOCKS: u64 = 32;

/// The required state after an acknowledgement.
struct Promise {
    /// The acknowledged action.
    what: &'static str,
    /// The device's moment.
    moment: usize,
    /// The volume's name; `None` if it must be absent.
    name: Option<&'static str>,
    size_bytes: u64,
    /// The fill bytes of the first blocks.
    fills: [u8; 2],
}

/// A volume in use, without a guest's randomness.
pub struct Used<'a> {
    bench: &'a Bench,
    sort: Sort,
    ring: Ring,
    channel: Box<dyn Channel<Plain>>,
    open: OpenStack,
}

impl<'a> Used<'a> {
    pub fn open(bench: &'a Bench, sort: Sort, path: &Path) -> Self {
        let mut open = OpenStack::open(bench, sort, path).unwrap();
        open.destage();
        let ring = Ring::new(8).unwrap();
        let thread = Thread { pool: bench.pool.clone(), reactor: Rc::new(ring.clone()) };
        let channel = open.stack.disk().open(&thread, 4).unwrap();
        Self { bench, sort, ring, channel, open }
    }

    fn run(&mut self, request: Request<Plain>) {
        self.channel.submit(Io { tag: 1, request });
        let mut done = Vec::new();
        while done.is_empty() {
            self.channel.kick();
            self.ring.wait(Some(Duration::from_millis(100))).unwrap();
            self.channel.poll(&mut done);
        }
        done.remove(0).result.unwrap();
    }

    pub fn flush(&mut self) {
        self.run(Request::Flush);
    }

    pub fn write(&mut self, block: u64, fill: u8, durable: bool) {
        let mut from = self.bench.memory.take(BLOCK_BYTES as usize).unwrap();
        from.bytes_mut().fill(fill);
        let extent = Extent::between(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        self.run(Request::Write { extent, from: GuestSlice::from_buffer(from), durable });
    }

    fn zero(&mut self, block: u64) {
        let extent = Extent::between(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        self.run(Request::WriteZeroes { extent, may_unmap: true, durable: true });
    }

    fn grow(&mut self, blocks: u64) {
        let size = VolumeSize::new(blocks * BLOCK_BYTES).unwrap();
        self.open.head.grow(size, self.sort.protection(&self.bench.kek)).unwrap();
        self.open.stack.grow(size).unwrap();
    }

    /// Closes it in order, and empties its log or not.
    pub fn close(self, end: End) {
        let Self { channel, ring, open, .. } = self;
        drop(channel);
        drop(ring);
        open.close(end);
    }
}

/// Performs each durably acknowledged action once, and returns the promises with their moments.
fn live(bench: &Bench, sort: Sort, recorder: &Recorder) -> Vec<Promise> {
    let path = |name: &str| recorder.path().join(DATASTORE).join(name);
    let mut promises = Vec::new();
    let mut fills = [0, 0];
    let mut size_bytes = BLOCKS * BLOCK_BYTES;
    let mut promise = |what, name, size_bytes, fills| {
        promises.push(Promise { what, moment: recorder.moment(), name, size_bytes, fills });
    };
    create(&path("vm1"), &bench.create_options(sort, size_bytes)).unwrap();
    promise("it was created", Some("vm1"), size_bytes, fills);
    let mut used = Used::open(bench, sort, &path("vm1"));
    used.write(0, 1, true);
    fills[0] = 1;
    promise("a first write with FUA", Some("vm1"), size_bytes, fills);
    used.write(1, 2, false);
    used.flush();
    fills[1] = 2;
    promise("a flush", Some("vm1"), size_bytes, fills);
    used.close(End::Empty);
    promise("it was closed", Some("vm1"), size_bytes, fills);
    let mut used = Used::open(bench, sort, &path("vm1"));
    used.write(0, 3, true);
    fills[0] = 3;
    promise("a write in place with FUA", Some("vm1"), size_bytes, fills);
    used.zero(1);
    fills[1] = 0;
    promise("a zeroing with FUA", Some("vm1"), size_bytes, fills);
    size_bytes *= 2;
    used.grow(2 * BLOCKS);
    promise("it was made larger", Some("vm1"), size_bytes, fills);
    used.close(End::Empty);
    // The renaming process is killed before it syncs the directory, so its successor has to.
    std::fs::rename(path("vm1"), path("vm3")).unwrap();
    let mut used = Used::open(bench, sort, &path("vm3"));
    used.write(0, 4, true);
    fills[0] = 4;
    promise("a write with FUA under a name that need not be durable", Some("vm3"), size_bytes, fills);
    used.close(End::Empty);
    rename(&path("vm3"), &path("vm2")).unwrap();
    promise("it was renamed", Some("vm2"), size_bytes, fills);
    delete(&path("vm2"), LOCK_WAIT).unwrap();
    promise("it was deleted", None, size_bytes, fills);
    promises
}

/// Checks all promises. An error names the broken one.
pub fn are_kept(file_system: &FileSystem, sort: Sort) -> Result<usize, String> {
    let bench = Bench::new();
    let place = tempfile::tempdir().unwrap();
    let fresh = file_system.make(place.path());
    let recorder = Recorder::start(file_system, &fresh)?;
    let promises = live(&bench, sort, &recorder);
    let entries = recorder.finish();
    let mut replay = Replay::new(&fresh, &entries, file_system.stays_whole);
    let (device, at) = (place.path().join("device"), place.path().join("mounted"));
    std::fs::create_dir(&at).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    for promise in &promises {
        let image = replay.cut(promise.moment, Fate::None, &mut random);
        image.write_to(&device).unwrap();
        let mounted = file_system.mount(&device, &at)?;
        let kept = is_kept(&bench, sort, &mounted.path().join(DATASTORE), promise);
        kept.map_err(|wrong| format!("{} {sort:?}, {}: {wrong}", file_system.name, promise.what))?;
    }
    Ok(promises.len())
}

fn is_kept(bench: &Bench, sort: Sort, datastore: &Path, promise: &Promise) -> Result<(), String> {
    let listed = list(datastore).map_err(|error| error.to_string())?;
    let volumes = listed.iter().filter(|entry| matches!(entry, ListedVolume::Volume(_)));
    let names: Vec<_> = volumes.filter_map(|entry| entry.path().file_name()?.to_str()).collect();
    let expected: Vec<&str> = promise.name.into_iter().collect();
    if names != expected {
        return Err(format!("{names:?} is there, instead of {expected:?}"));
    }
    let Some(name) = promise.name else { return Ok(()) };
    let open = OpenStack::open(bench, sort, &datastore.join(name))?;
    let content = read_all(bench, &*open.stack.disk()).map_err(|error| error.to_string())?;
    if content.len() as u64 != promise.size_bytes {
        return Err(format!("it has {} bytes instead of {}", content.len(), promise.size_bytes));
    }
    let blocks = content.chunks(BLOCK_BYTES as usize).zip(promise.fills).enumerate();
    for (block, (shown, fill)) in blocks {
        if let Some(byte) = shown.iter().find(|byte| **byte != fill) {
            return Err(format!("block {block} shows {byte:#04x} instead of {fill:#04x}"));
        }
    }
    Ok(())
}
