//! What a client that has lost its volume can still do: nothing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::Storage;
use strongroom_rbd::RbdStorage;

use crate::support::{Pools, datastore};

const LAYER: &str = "layer-00000000-0000-4000-8000-000000000001";
/// `FENCING_ROUNDS` of `make test-ceph` says another number.
const ROUNDS: u64 = 20;

/// Ends the writing thread, even if the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client writes without end, another fences it and writes the same block: what the second wrote
/// stays.
#[test]
#[ignore = "long: make test-ceph"]
fn no_late_write_of_a_fenced_client_lands() {
    let options = datastore(Pools::Replicated);
    let rounds = std::env::var("FENCING_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    for round in 0..rounds.unwrap_or(ROUNDS) {
        let (old, new) = (RbdStorage::connect(&options).unwrap(), RbdStorage::connect(&options).unwrap());
        let open = |storage: &RbdStorage, flags| {
            storage.open_directory(Path::new("")).unwrap().open(LAYER, flags).unwrap()
        };
        let file = open(&old, OFlags::RDWR | OFlags::CREATE);
        file.set_length(1 << 20).unwrap();
        file.try_lock(FlockOperation::NonBlockingLockExclusive).unwrap();
        let ends = AtomicBool::new(false);
        thread::scope(|scope| {
            let writing = scope.spawn(|| {
                let mut refused = None;
                while !ends.load(Ordering::Relaxed) {
                    if let Err(errno) = file.write_at(0, &[1; 4096]) {
                        refused.get_or_insert(errno);
                    }
                }
                refused
            });
            let ending = Ending(&ends);
            let taken = open(&new, OFlags::RDWR);
            let held = taken.try_lock(FlockOperation::NonBlockingLockExclusive);
            assert_eq!(held, Err(Errno::WOULDBLOCK), "the holder lives");
            new.take_over(&old.own_address().unwrap()).unwrap();
            taken.try_lock(FlockOperation::NonBlockingLockExclusive).unwrap();
            taken.write_at(0, &[2; 4096]).unwrap();
            thread::sleep(std::time::Duration::from_millis(50));
            let mut read = [0; 4096];
            taken.read_at(0, &mut read).unwrap();
            drop(ending);
            assert_eq!(read, [2; 4096], "round {round}");
            assert!(writing.join().unwrap().is_some(), "round {round}: it was not refused");
        });
    }
}
