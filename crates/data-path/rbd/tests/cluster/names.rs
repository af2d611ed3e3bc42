//! Names and small files.

use std::path::Path;
use std::thread;

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::Storage;
use strongroom_rbd::RbdStorage;

use crate::support::{Pools, connect, datastore};

const NEW: OFlags = OFlags::RDWR.union(OFlags::CREATE).union(OFlags::EXCL);

#[test]
#[ignore = "long: make test-ceph"]
fn one_of_many_makes_a_name() {
    let options = datastore(Pools::Replicated);
    RbdStorage::connect(&options).unwrap();
    let made: Vec<_> = thread::scope(|scope| {
        let making = || {
            let storage = RbdStorage::connect(&options).unwrap();
            storage.make_directory(Path::new("vm1")).is_ok()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(making)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(made.iter().filter(|made| **made).count(), 1, "{made:?}");
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_name_leads_to_what_was_renamed_over_it() {
    let storage = connect(Pools::Replicated);
    let directory = storage.open_directory(Path::new("/")).unwrap();
    for (name, content) in [("descriptor", "old"), ("descriptor.new", "new one")] {
        directory.open(name, NEW).unwrap().write_at(0, content.as_bytes()).unwrap();
    }
    assert_eq!(directory.open("descriptor", NEW).unwrap_err(), Errno::EXIST);
    directory.rename("descriptor.new", "descriptor").unwrap();
    assert_eq!(directory.names().unwrap(), ["descriptor"]);
    let mut read = [0; 16];
    let file = directory.open("descriptor", OFlags::RDONLY).unwrap();
    let count = file.read_at(0, &mut read).unwrap();
    assert_eq!(&read[..count], b"new one");
    assert_eq!(file.write_at(0, b"x").unwrap_err(), Errno::BADF);
    directory.remove("descriptor").unwrap();
    assert_eq!(directory.open("descriptor", OFlags::RDONLY).map(drop).unwrap_err(), Errno::NOENT);
}

#[test]
#[ignore = "long: make test-ceph"]
fn directories_move_and_end() {
    let storage = connect(Pools::Replicated);
    for path in ["vm1", "vm1/disk0", "vm2"] {
        storage.make_directory(Path::new(path)).unwrap();
    }
    assert_eq!(storage.remove_directory(Path::new("vm1")), Err(Errno::NOTEMPTY));
    assert_eq!(storage.rename(Path::new("vm1"), Path::new("vm2")), Err(Errno::EXIST));
    storage.rename(Path::new("vm1/disk0"), Path::new("vm2/disk0")).unwrap();
    assert!(storage.is_directory(Path::new("/vm2/disk0")) && !storage.exists(Path::new("vm1/disk0")));
    storage.remove_directory(Path::new("vm1")).unwrap();
    assert_eq!(storage.open_directory(Path::new("../other")).map(drop).unwrap_err(), Errno::INVAL);
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_file_of_blocks_stays_until_its_last_name_and_its_last_use() {
    let storage = connect(Pools::Replicated);
    let name = "layer-00000000-0000-4000-8000-000000000001";
    for path in ["a", "b"] {
        storage.make_directory(Path::new(path)).unwrap();
    }
    let open = |path: &str| storage.open_directory(Path::new(path)).unwrap();
    let (a, b) = (open("a"), open("b"));
    let file = a.open(name, NEW).unwrap();
    file.set_length(8 << 20).unwrap();
    assert_eq!((file.next_data(0), file.next_hole(0)), (Err(Errno::NXIO), Ok(0)));
    file.write_at(4 << 20, &[7; 4096]).unwrap();
    assert_eq!((file.next_data(0), file.next_hole(4 << 20)), (Ok(4 << 20), Ok(8 << 20)));
    b.link(&*a, name, &*file).unwrap();
    assert_eq!(file.link_count(), Ok(2));
    a.remove(name).unwrap();
    drop(file);
    let again = b.open(name, OFlags::RDONLY).unwrap();
    again.try_lock(FlockOperation::NonBlockingLockShared).unwrap();
    b.remove(name).unwrap();
    assert_eq!(b.names().unwrap(), [""; 0]);
    let mut read = [0; 4096];
    assert_eq!(again.read_at(4 << 20, &mut read), Ok(4096));
    assert_eq!(read, [7; 4096]);
}
