//! Volumes in another process's files: their life, their locks, and the server's end.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Storage, StoredFile};
use strongroom_datastore::file::*;
use strongroom_io::{DataFile, EventLoop, FileDone, FileIo, FileOperation, FileQueue, FileToken};
use strongroom_memory::BufferPool;
use strongroom_remote::{OnEnd, RemoteFile, RemoteStorage, adopt, adopt_with};
use strongroom_ring::Ring;
use strongroom_types::{Extent, SnapshotId, VolumeSize};
use tempfile::TempDir;

use crate::support::{MIB, client, dial, kek, ring, server, to_open};

#[test]
fn a_volume_lives_and_is_gone() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (storage, kek) = (client(&server()), kek());
    let (path, clone) = (&datastore.path().join("vm1"), &datastore.path().join("clone"));
    let protection = Protection::Encrypted(&kek);
    let (size, provisioning) = (VolumeSize::new(64 * MIB).unwrap(), Provisioning::Thin);
    let integrity = Some(Integrity::PolyvalAesAbsence);
    let options = CreateOptions { size, provisioning, protection, log_bytes: None, integrity };
    let created = create_on(&storage, path, &options).unwrap();
    assert!(matches!(create_on(&storage, path, &options), Err(DatastoreError::Exists { .. })));

    let to_open = to_open(protection, Access::ReadWrite);
    let (lock_wait, least_generation) = (to_open.lock_wait, to_open.least_generation);
    let add = AddLayerOptions { protection, log_bytes: None, lock_wait, least_generation };
    let (id, name) = (SnapshotId::random(), "before".parse().unwrap());
    create_snapshot_on(&storage, path, &NewSnapshot { id, name }, &add).unwrap();
    let origin = CloneOrigin { path, volume: Some(created.volume), snapshot: id, options: to_open };
    link_snapshot_on(&storage, &origin, clone, protection, None).unwrap();
    for path in [path, clone] {
        let findings = check_on(&storage, path, Some(&kek)).unwrap();
        assert!(findings.is_empty(), "{findings:?}");
    }
    assert_eq!(list_on(&storage, datastore.path()).unwrap().len(), 2);
    delete_on(&storage, path, lock_wait).unwrap();
    let opened = open_on(&storage, clone, &to_open).unwrap();
    let at_once = OpenOptions { lock_wait: Duration::ZERO, ..to_open };
    assert!(matches!(open_on(&storage, clone, &at_once), Err(DatastoreError::InUse { .. })));
    drop(opened);
    delete_on(&storage, clone, lock_wait).unwrap();
    assert!(list_on(&storage, datastore.path()).unwrap().is_empty());
}

/// What a kernel's file promises: a lock belongs to the open file, whichever process has it.
#[test]
fn a_lock_ends_with_the_last_socket_of_the_file() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let server = server();
    let (one, other) = (client(&server), client(&server));
    let open = |storage: &RemoteStorage, flags| {
        storage.open_directory(directory.path()).unwrap().open("file", flags).unwrap()
    };
    let held = open(&one, OFlags::RDWR | OFlags::CREATE);
    held.try_lock(FlockOperation::NonBlockingLockExclusive).unwrap();
    let wanted = open(&other, OFlags::RDWR);
    assert_eq!(wanted.try_lock(FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    let shared = adopt(held.share().unwrap());
    drop(held);
    assert_eq!(wanted.try_lock(FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    shared.write_at(0, &[7; 100_000]).unwrap();
    let mut read = vec![0; 200_000];
    assert_eq!(wanted.read_at(0, &mut read), Ok(100_000));
    assert!(read[..100_000].iter().all(|byte| *byte == 7));
    // A file on a lane is open until the lane has let go of it.
    let event_loop = ring().unwrap();
    let mut queue = shared.queue(&event_loop.reactor()).unwrap();
    queue.register(Arc::clone(&shared) as _).unwrap();
    drop(shared);
    assert_eq!(wanted.try_lock(FlockOperation::NonBlockingLockExclusive), Err(Errno::WOULDBLOCK));
    drop(queue);
    let deadline = Instant::now() + Duration::from_secs(10);
    while wanted.try_lock(FlockOperation::NonBlockingLockExclusive).is_err() {
        assert!(Instant::now() < deadline, "the lock is never free");
        std::thread::yield_now();
    }
}

#[test]
fn a_file_that_was_opened_to_be_read_is_only_read() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::write(directory.path().join("file"), [7; 8192]).unwrap();
    let storage = client(&server());
    let opened = storage.open_directory(directory.path()).unwrap();
    let file = adopt(opened.open("file", OFlags::RDONLY).unwrap().share().unwrap());
    for refused in [file.write_at(0, &[1]), file.set_length(0), file.allocate(0, 1 << 20)] {
        assert_eq!(refused, Err(Errno::BADF));
    }
    let event_loop = ring().unwrap();
    let mut queue = file.queue(&event_loop.reactor()).unwrap();
    let token = queue.register(Arc::clone(&file) as _).unwrap();
    let pool = BufferPool::brief();
    let extent = Extent::new(0, 4096).unwrap();
    let operations = [
        FileOperation::Write { offset: 0, from: pool.take(4096).unwrap(), durable: false },
        FileOperation::Punch { extent },
        FileOperation::Zero { extent },
        FileOperation::Allocate { extent },
    ];
    for operation in operations {
        let done = run(&mut *queue, &event_loop, FileIo { tag: 9, file: token, operation });
        assert_eq!((done.tag, done.result), (9, Err(Errno::BADF.into())));
    }
    let operation = FileOperation::Read { offset: 4096, into: pool.take(4096).unwrap() };
    let done = run(&mut *queue, &event_loop, FileIo { tag: 9, file: token, operation });
    assert_eq!(done.result, Ok(()));
    assert_eq!(done.buffer.unwrap().bytes(), [7; 4096]);
    assert_eq!(std::fs::read(directory.path().join("file")).unwrap(), [7; 8192]);
}

/// Runs one operation to its end.
fn run(queue: &mut dyn FileQueue, event_loop: &impl EventLoop, io: FileIo) -> FileDone {
    queue.submit(io);
    queue.kick();
    let mut done = Vec::new();
    loop {
        queue.poll(&mut done);
        if let Some(done) = done.pop() {
            return done;
        }
        event_loop.sleep(Duration::from_secs(60)).unwrap();
    }
}

#[test]
fn a_name_does_not_lead_out_of_its_directory() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    std::fs::create_dir(directory.path().join("inner")).unwrap();
    std::fs::write(directory.path().join("secret"), b"x").unwrap();
    let storage = client(&server());
    let inner = storage.open_directory(&directory.path().join("inner")).unwrap();
    for name in ["../secret", "..", ".", "", "/etc/passwd", "a/b", "a\0b"] {
        assert!(inner.open(name, OFlags::RDONLY).is_err(), "{name:?}");
        assert_eq!(inner.remove(name), Err(Errno::INVAL), "{name:?}");
        assert_eq!(inner.rename(name, "here"), Err(Errno::INVAL), "{name:?}");
        assert_eq!(inner.rename("here", name), Err(Errno::INVAL), "{name:?}");
    }
    assert!(inner.open("secret", OFlags::RDONLY | OFlags::PATH).is_err());
}

#[test]
fn all_names_are_listed_however_many_there_are() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut made: Vec<String> = (0..2000).map(|number| format!("{number:0100}")).collect();
    made.sort();
    for name in &made {
        std::fs::write(directory.path().join(name), []).unwrap();
    }
    let storage = client(&server());
    assert_eq!(storage.open_directory(directory.path()).unwrap().names().unwrap(), made);
}

/// A server that is replaced: directories go on, with their locks; open files do not, and say so.
#[test]
fn a_new_server_takes_the_place_of_one_that_has_ended() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dialled = Arc::new(AtomicU32::new(0));
    let sockets = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let storage = {
        let (dialled, sockets) = (Arc::clone(&dialled), Arc::clone(&sockets));
        RemoteStorage::new(move || {
            dialled.fetch_add(1, Ordering::Relaxed);
            let socket = dial(&server());
            sockets.lock().push(socket.try_clone().unwrap());
            Ok(socket)
        })
    };
    let opened = storage.open_directory(directory.path()).unwrap();
    opened.try_lock(FlockOperation::NonBlockingLockExclusive).unwrap();
    let hang_up = |number: usize| {
        rustix::net::shutdown(sockets.lock()[number].as_fd(), rustix::net::Shutdown::Both).unwrap();
    };
    hang_up(0);
    assert!(storage.exists(directory.path()));
    assert_eq!(dialled.load(Ordering::Relaxed), 2);
    hang_up(1);
    let new = directory.path().join("new");
    assert_eq!(storage.make_directory(&new), Err(Errno::CONNRESET), "it may have been made or not");
    storage.make_directory(&new).unwrap();
    assert_eq!(storage.make_directory(&new), Err(Errno::EXIST));
}

#[test]
fn a_kernels_file_is_adopted_as_one() {
    let file = tempfile::tempfile().unwrap();
    let adopted = adopt_with(file.into(), OnEnd::Exit);
    assert!(DataFile::as_fd(&*adopted).is_some() && adopted.lifeline().is_none());
}

/// A new file of another process, with a thread's queue to it.
struct Opened {
    event_loop: Ring,
    queue: Box<dyn FileQueue>,
    token: FileToken,
    _directory: TempDir,
}

impl Opened {
    fn new() -> Self {
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let opened = client(&server()).open_directory(directory.path()).unwrap();
        let file: Arc<dyn StoredFile> = opened.open("file", OFlags::RDWR | OFlags::CREATE).unwrap().into();
        let event_loop = ring().unwrap();
        let mut queue = file.queue(&event_loop.reactor()).unwrap();
        let token = queue.register(file as _).unwrap();
        Self { event_loop, queue, token, _directory: directory }
    }
}

/// One copy for each transfer on the client's side, and no other.
#[test]
fn what_is_transferred_is_copied_once() {
    let Opened { event_loop, mut queue, token, .. } = Opened::new();
    let pool = BufferPool::new(4 << 20).unwrap();
    for length in [512, 4096, 1 << 20] {
        let before = RemoteFile::copied_bytes();
        let mut from = pool.take(length).unwrap();
        from.bytes_mut().fill(length as u8 ^ 7);
        let operation = FileOperation::Write { offset: 0, from, durable: true };
        run(&mut *queue, &event_loop, FileIo { tag: 1, file: token, operation }).result.unwrap();
        assert_eq!(RemoteFile::copied_bytes() - before, length as u64);
        let mut into = pool.take(length).unwrap();
        into.bytes_mut().fill(0);
        let operation = FileOperation::Read { offset: 0, into };
        let done = run(&mut *queue, &event_loop, FileIo { tag: 2, file: token, operation });
        assert!(done.buffer.unwrap().bytes().iter().all(|byte| *byte == length as u8 ^ 7));
        assert_eq!(RemoteFile::copied_bytes() - before, 2 * length as u64);
    }
}

/// More than the ring, and more than the pool has room for.
#[test]
fn any_number_of_operations_is_taken_and_all_end() {
    let Opened { event_loop, mut queue, token, .. } = Opened::new();
    let pool = BufferPool::new(64 << 20).unwrap();
    let count = 1000;
    for tag in 0..count {
        let from = pool.take(if tag % 50 == 0 { 1 << 20 } else { 4096 }).unwrap();
        queue.submit(FileIo {
            tag,
            file: token,
            operation: FileOperation::Write { offset: tag << 20, from, durable: false },
        });
    }
    queue.kick();
    let (mut done, mut ended) = (Vec::new(), vec![0; count as usize]);
    while ended.iter().sum::<u64>() < count {
        queue.poll(&mut done);
        for FileDone { tag, result, buffer } in done.drain(..) {
            assert!(result.is_ok() && buffer.is_some(), "{result:?}");
            ended[tag as usize] += 1;
        }
        event_loop.sleep(Duration::from_secs(1)).unwrap();
    }
    assert!(ended.iter().all(|times| *times == 1));
    assert_eq!(pool.used_bytes(), 0);
}
