//! Without power cuts and faults the model behaves like the kernel's file systems: the same
//! operations give the same results.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::{FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, fallocate, open, renameat_with, seek};
use rustix::io::Errno;
use strongroom_io::{FileDone, FileOperation, IoError};
use strongroom_ring::{Ring, RingFile};
use strongroom_sim::{OpenHow, SimFs};
use strongroom_types::Extent;
use support::Queue;

const BLOCKS: u64 = 16;
const CREATE: OpenHow = OpenHow { write: true, create: true, exclusive: true, truncate: false };

/// A file of the kernel beside one of the model, each with a queue.
struct Pair {
    kernel: File,
    model: Arc<strongroom_sim::SimFile>,
    kernel_queue: Queue,
    model_queue: Queue,
    _place: tempfile::TempDir,
}

impl Pair {
    fn new(place: &str, seed: u64) -> Self {
        let place = tempfile::tempdir_in(place).unwrap();
        let path = place.path().join("file");
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let kernel = File::from(
            open(&path, flags | OFlags::DIRECT, mode).or_else(|_| open(&path, flags, mode)).unwrap(),
        );
        kernel.set_len(BLOCKS * 4096).unwrap();
        let fs = SimFs::new(seed);
        let model = fs.open_directory(Path::new("/")).unwrap().open("file", CREATE).unwrap();
        model.set_length(BLOCKS * 4096).unwrap();
        let model = Arc::new(model);
        let ring_file = Arc::new(RingFile::new(kernel.try_clone().unwrap()));
        Self {
            kernel,
            kernel_queue: Queue::new(Ring::new(8).unwrap(), ring_file),
            model_queue: Queue::new(fs.reactor(seed).unwrap(), Arc::clone(&model) as _),
            model,
            _place: place,
        }
    }

    fn both(&mut self, make: impl Fn(&Queue) -> FileOperation) {
        let (kernel, model) = (make(&self.kernel_queue), make(&self.model_queue));
        let what = format!("{kernel:?}");
        let (kernel, model) = (self.kernel_queue.run(kernel), self.model_queue.run(model));
        assert_eq!(kernel.result, model.result, "{what}");
        if kernel.result.is_ok() {
            let bytes = |done: &FileDone| done.buffer.as_ref().map(|buffer| buffer.bytes().to_vec());
            assert!(bytes(&kernel) == bytes(&model), "{what}");
        }
    }

    /// Length and map of data and holes.
    fn compare_maps(&self) {
        let length = self.kernel.metadata().unwrap().len();
        assert_eq!(length, self.model.length().unwrap());
        for at in (0..=length + 4096).step_by(4096) {
            assert_eq!(seek(&self.kernel, SeekFrom::Data(at)), self.model.next_data(at), "data from {at}");
            assert_eq!(seek(&self.kernel, SeekFrom::Hole(at)), self.model.next_hole(at), "hole from {at}");
        }
    }
}

/// `maps`: whether unwritten space stays a hole when it is read, which is not so in tmpfs.
fn random_operations(place: &str, seed: u64, maps: bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut pair = Pair::new(place, seed);
    for step in 0..150 {
        let length = pair.model.length().unwrap();
        let first = random.random_range(0..=length / 4096 + 1);
        let count = random.random_range(1..=5);
        let extent = Extent::between(first * 4096, (first + count) * 4096);
        let within = extent.intersection(Extent::between(0, length));
        let durable = random.random();
        match random.random_range(0..10) {
            0..3 => pair.both(|queue| queue.write(first * 4096, count as usize * 4096, step, durable)),
            3..5 => pair.both(|queue| queue.read(first * 4096, count as usize * 4096)),
            5 => pair.both(|_| FileOperation::Punch { extent }),
            // Beyond the end the file systems differ, and no datastore relies on that.
            6 => pair.both(|_| FileOperation::Zero { extent: within }),
            7 => pair.both(|_| FileOperation::SyncData),
            8 => {
                let length = random.random_range(1..=2 * BLOCKS) * 4096;
                pair.kernel.set_len(length).unwrap();
                pair.model.set_length(length).unwrap();
            }
            _ => {
                let kernel =
                    fallocate(&pair.kernel, FallocateFlags::empty(), extent.offset(), extent.length());
                assert_eq!(kernel, pair.model.allocate(extent));
            }
        }
        if maps {
            pair.compare_maps();
        }
    }
}

#[test]
fn operations_on_a_disk() {
    (0..8).for_each(|seed| random_operations(env!("CARGO_TARGET_TMPDIR"), seed, true));
}

#[test]
fn operations_in_memory() {
    (0..8).for_each(|seed| random_operations("/dev/shm", seed, false));
}

#[test]
fn a_transfer_that_ends_beyond_the_file_is_short() {
    let mut pair = Pair::new(env!("CARGO_TARGET_TMPDIR"), 1);
    for first in [BLOCKS - 1, BLOCKS, BLOCKS + 5] {
        pair.both(|queue| queue.read(first * 4096, 8192));
    }
    pair.both(|queue| queue.write(u64::MAX / 4096 * 4096 - 4096, 4096, 1, false));
    let refused = pair
        .model_queue
        .run(FileOperation::Read { offset: 1, into: pair.model_queue.pool.take(512).unwrap() });
    assert_eq!(refused.result, Err(IoError::from(Errno::INVAL)), "as O_DIRECT");
}

#[test]
fn buffered_bytes_are_the_same() {
    let mut random = StdRng::seed_from_u64(3);
    let kernel = tempfile::tempfile().unwrap();
    let fs = SimFs::new(3);
    let model = fs.open_directory(Path::new("/")).unwrap().open("file", CREATE).unwrap();
    for step in 0..300_u32 {
        let (offset, length) = (random.random_range(0..20_000_u64), random.random_range(0..6000));
        let bytes = vec![step as u8; length];
        if random.random_ratio(1, 5) {
            kernel.set_len(offset).unwrap();
            model.set_length(offset).unwrap();
        } else {
            kernel.write_all_at(&bytes, offset).unwrap();
            model.write_at(offset, &bytes).unwrap();
        }
        let length = kernel.metadata().unwrap().len();
        assert_eq!(length, model.length().unwrap());
        let (mut theirs, mut ours) = (vec![0; length as usize], vec![1; length as usize]);
        kernel.read_exact_at(&mut theirs, 0).unwrap();
        model.read_at(0, &mut ours).unwrap();
        assert!(theirs == ours, "step {step}");
    }
}

/// An error of the kernel in the model's terms.
fn errno<T>(result: std::io::Result<T>) -> Result<(), Errno> {
    result.map(drop).map_err(|error| Errno::from_io_error(&error).unwrap())
}

#[test]
fn names_are_the_same() {
    const NAMES: [&str; 5] = ["a", "b", "dir", "dir/a", "dir/b"];
    let split = |name: &'static str| match name.strip_prefix("dir/") {
        Some(name) => ("/dir", name),
        None => ("/", name),
    };
    for seed in 0..20 {
        let mut random = StdRng::seed_from_u64(seed);
        let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let fs = SimFs::new(seed);
        for step in 0..200 {
            let [one, two] = [0, 1].map(|_| NAMES[random.random_range(0..NAMES.len())]);
            let (theirs, ours) = (place.path().join(one), Path::new("/").join(one));
            let ((directory, name), (other_directory, other)) = (split(one), split(two));
            let (kernel, model) = match random.random_range(0..6) {
                0 => (errno(std::fs::create_dir(&theirs)), fs.make_directory(&ours)),
                1 => (errno(std::fs::remove_dir(&theirs)), fs.remove_directory(&ours)),
                2 => {
                    let kernel = errno(File::options().write(true).create_new(true).open(&theirs));
                    let opened = fs.open_directory(Path::new(directory));
                    (kernel, opened.and_then(|directory| directory.open(name, CREATE).map(drop)))
                }
                3 => {
                    let opened = fs.open_directory(Path::new(directory));
                    let model = opened.and_then(|directory| directory.unlink(name));
                    (errno(std::fs::remove_file(&theirs)), model)
                }
                4 if one != two && !(one == "dir" && two.starts_with("dir/")) => {
                    let to = place.path().join(two);
                    let flags = RenameFlags::NOREPLACE;
                    let kernel = renameat_with(rustix::fs::CWD, &theirs, rustix::fs::CWD, &to, flags);
                    (kernel, fs.rename_no_replace(&ours, &Path::new("/").join(two)))
                }
                // Replacing renames stay within one directory.
                5 if directory == other_directory && one != "dir" && two != "dir" => {
                    let kernel = errno(std::fs::rename(&theirs, place.path().join(two)));
                    let opened = fs.open_directory(Path::new(directory));
                    (kernel, opened.and_then(|directory| directory.rename(name, other)))
                }
                _ => (Ok(()), Ok(())),
            };
            assert_eq!(kernel, model, "seed {seed}, step {step}: {one} {two}");
            for directory in ["", "dir"] {
                let listed = std::fs::read_dir(place.path().join(directory)).map(|entries| {
                    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
                    let mut names: Vec<String> = names.collect();
                    names.sort();
                    names
                });
                let opened = fs.open_directory(&Path::new("/").join(directory));
                assert_eq!(listed.ok(), opened.ok().map(|directory| directory.names().unwrap()));
            }
        }
    }
}

#[test]
fn locks_are_the_same() {
    use rustix::fs::{FlockOperation, flock};
    let named = tempfile::NamedTempFile::new().unwrap();
    let fs = SimFs::new(1);
    let root = fs.open_directory(Path::new("/")).unwrap();
    root.open("file", CREATE).unwrap();
    let mut random = StdRng::seed_from_u64(1);
    let mut handles: Vec<_> = (0..3)
        .map(|_| (File::open(named.path()).unwrap(), root.open("file", OpenHow::default()).unwrap()))
        .collect();
    for step in 0..300 {
        let taken = random.random_range(0..handles.len());
        if random.random_ratio(1, 3) {
            handles[taken] =
                (File::open(named.path()).unwrap(), root.open("file", OpenHow::default()).unwrap());
            continue;
        }
        let exclusive = random.random();
        let operation = match exclusive {
            true => FlockOperation::NonBlockingLockExclusive,
            false => FlockOperation::NonBlockingLockShared,
        };
        assert_eq!(flock(&handles[taken].0, operation), handles[taken].1.try_lock(exclusive), "step {step}");
    }
}
