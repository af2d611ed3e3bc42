//! The storage process: the same suite through it, and kills beneath an oracle.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Storage, StoredFile};
use strongroom_io::{EventLoop, FileDone, FileIo, FileOperation};
use strongroom_rbd::process::{HostOrder, ProcessError, StorageProcess, StorageProgram};
use strongroom_rbd::{ClusterConf, ClusterOptions, RbdOptions};
use strongroom_remote::RemoteStorage;
use strongroom_test_peers::CephCluster;
use strongroom_types::{CephClient, CephMount, CephName, CephPools};

use crate::conformance::passes;
use crate::support::{FileLane, Pools, datastore};

const LAYER: &str = "layer-00000000-0000-4000-8000-000000000001";
const BLOCKS: u64 = 64;
const ROUNDS: u64 = 6;

/// A datastore of the tests' cluster, as a host uses it.
fn mount(options: &RbdOptions) -> CephMount {
    let ClusterConf::File(conf) = &options.cluster.conf else { panic!("{options:?}") };
    let name = |text: &str| text.parse::<CephName>().unwrap();
    CephMount {
        pools: CephPools {
            pool: name(&options.pool),
            data_pool: options.data_pool.as_deref().map(name),
            namespace: name(&options.namespace),
        },
        client: CephClient {
            user: options.cluster.user.parse().unwrap(),
            conf: conf.clone(),
            keyring: conf.with_file_name("keyring"),
        },
    }
}

fn command() -> Command {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join("storage_process");
    let mut command = Command::new(program);
    command.env_clear();
    command
}

/// A storage through processes, each started when the one before has ended.
#[derive(Clone)]
struct Through {
    storage: RemoteStorage,
    now: Arc<Mutex<Option<StorageProcess>>>,
}

impl Through {
    fn new(options: RbdOptions) -> Self {
        let now = Arc::new(Mutex::new(None));
        let started = Arc::clone(&now);
        let storage = RemoteStorage::new(move || {
            let (process, socket) = StorageProcess::start(&mut command(), &mount(&options), None).unwrap();
            *started.lock() = Some(process);
            Ok(socket)
        });
        Self { storage, now }
    }

    fn kill(&self) {
        self.now.lock().as_mut().unwrap().kill();
    }
}

#[test]
#[ignore = "long: make test-ceph"]
fn it_is_a_disk_through_a_process() {
    passes(Through::new(datastore(Pools::Replicated)).storage);
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_process_that_cannot_use_the_cluster_says_why() {
    let mount = mount(&datastore(Pools::Replicated));
    let refused = |mount: &CephMount| {
        let started = StorageProcess::start(&mut command(), mount, None);
        let Err(ProcessError::Refused(reason)) = started.map(|_| ()) else { panic!("it was started") };
        reason
    };
    let mut pool = mount.clone();
    pool.pools.pool = "none".parse().unwrap();
    assert!(refused(&pool).contains("open the pool none"));
    let mut user = mount.clone();
    user.client.user = "client.nobody".parse().unwrap();
    assert!(refused(&user).contains("has no key of client.nobody"));
    // The key of another user.
    let directory = tempfile::tempdir().unwrap();
    let keyring = std::fs::read_to_string(&mount.client.keyring).unwrap();
    user.client.keyring = directory.path().join("keyring");
    std::fs::write(&user.client.keyring, keyring.replace("[client.admin]", "[client.nobody]")).unwrap();
    std::fs::set_permissions(&user.client.keyring, Permissions::from_mode(0o600)).unwrap();
    assert!(refused(&user).contains("connect to the cluster of"));
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_process_shuts_another_host_out_and_admits_it() {
    let mut cluster = CephCluster::start(2);
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let as_user = |user: &str| {
        let cluster = ClusterOptions { conf: ClusterConf::File(cluster.conf.clone()), user: user.to_owned() };
        let (pool, namespace) = ("rep2".to_owned(), "strongroom".to_owned());
        mount(&RbdOptions { cluster, pool, data_pool: None, namespace })
    };
    let (first, second) = (as_user("client.host1"), as_user("client.host2"));
    let program = StorageProgram { path: command().get_program().into(), arguments: Vec::new() };
    let order = |order: HostOrder| program.carry_out(&first, order);
    let (_lives, socket) = StorageProcess::start(&mut command(), &second, None).unwrap();
    let socket = Mutex::new(Some(socket));
    let storage = RemoteStorage::new(move || socket.lock().take().ok_or(Errno::NOTCONN));
    storage.make_directory(Path::new("vm1")).unwrap();
    let user = second.client.user.clone();
    order(HostOrder::Fence(user.clone())).unwrap();
    order(HostOrder::Fence(user.clone())).unwrap();
    assert!(storage.make_directory(Path::new("vm2")).is_err(), "it still writes");
    let Err(ProcessError::Fenced(reason)) = StorageProcess::start(&mut command(), &second, None) else {
        panic!("it is connected again")
    };
    assert!(reason.contains("client.host2") && reason.contains("strongroom host admit"), "{reason}");
    let Err(ProcessError::Refused(reason)) = order(HostOrder::Fence(first.client.user.clone())) else {
        panic!("it has shut itself out")
    };
    assert!(reason.contains("client.host1 cannot be fenced"), "{reason}");
    order(HostOrder::Admit(user)).unwrap();
    StorageProcess::start(&mut command(), &second, None).unwrap();
}

/// The key is in no argument, environment or file of the process, and nobody can look into it.
#[test]
#[ignore = "long: make test-ceph"]
fn a_storage_process_is_confined() {
    let options = datastore(Pools::Replicated);
    let mount = mount(&options);
    let (process, socket) = StorageProcess::start(&mut command(), &mount, None).unwrap();
    let proc = PathBuf::from(format!("/proc/{}", process.id()));
    let read = |name: &str| std::fs::read(proc.join(name)).unwrap();
    let keyring = std::fs::read_to_string(&mount.client.keyring).unwrap();
    let section = keyring.split("[client.admin]").nth(1).unwrap();
    let text = section.lines().find_map(|line| line.trim().strip_prefix("key = ")).unwrap();
    for name in ["cmdline", "environ"] {
        assert!(!String::from_utf8_lossy(&read(name)).contains(text), "{name}");
    }
    let status = String::from_utf8(read("status")).unwrap();
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim_start_matches(':').trim().to_owned()
    };
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    for set in ["CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"] {
        assert_eq!(field(set), "0000000000000000", "{set}");
    }
    let limits = String::from_utf8(read("limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    // It has nothing open for writing but sockets, events, and what it was started with.
    for entry in std::fs::read_dir(proc.join("fd")).unwrap().flatten() {
        let target = std::fs::read_link(entry.path()).unwrap_or_default();
        let target = target.to_string_lossy().into_owned();
        // The lease of its user is only held.
        let is_known = ["socket:", "anon_inode:", "pipe:", "/dev/", "/memfd:", "/run/strongroom/users/"]
            .iter()
            .any(|kind| target.starts_with(kind));
        let number: u32 = entry.file_name().to_string_lossy().parse().unwrap();
        assert!(is_known || number <= 2, "{number}: {target}");
    }
    // It ends when nobody uses it.
    drop(socket);
    let deadline = Instant::now() + Duration::from_secs(30);
    while std::fs::read_to_string(proc.join("stat")).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(Instant::now() < deadline, "it goes on");
        std::thread::yield_now();
    }
}

/// Writes to a file.
struct Writer(FileLane);

impl Writer {
    fn new(through: &Through) -> Self {
        let directory = through.storage.open_directory(Path::new("")).unwrap();
        let file: Arc<dyn StoredFile> = directory.open(LAYER, OFlags::RDWR | OFlags::CREATE).unwrap().into();
        let deadline = Instant::now() + Duration::from_secs(60);
        while let Err(errno) = file.try_lock(FlockOperation::NonBlockingLockExclusive) {
            assert_eq!(errno, Errno::WOULDBLOCK);
            assert!(Instant::now() < deadline, "the dead holder's lock is never free");
        }
        file.set_length(BLOCKS * 4096).unwrap();
        Self(FileLane::to(file, 4 << 20))
    }

    fn write(&mut self, block: u64, stamp: u64) {
        let mut from = self.0.pool.take(4096).unwrap();
        from.bytes_mut().chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&stamp.to_le_bytes()));
        let operation = FileOperation::Write { offset: block * 4096, from, durable: true };
        self.0.queue.submit(FileIo { tag: block, file: self.0.token, operation });
    }

    /// The stamp of each block; each is whole.
    fn read(&self) -> Vec<u64> {
        let mut content = vec![0; (BLOCKS * 4096) as usize];
        assert_eq!(self.0.file.read_at(0, &mut content), Ok(content.len()));
        let block = |block: &[u8]| {
            let mut words = block.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
            let first = words.next().unwrap();
            assert!(words.all(|word| word == first), "a torn block");
            first
        };
        content.chunks_exact(4096).map(block).collect()
    }
}

/// Each block has the last acknowledged stamp or a later one that was sent; and what was under way
/// at a killed process never lands once its successor has the lock.
#[test]
#[ignore = "long: make test-ceph"]
fn no_acknowledged_write_is_lost_when_the_process_is_killed() {
    let through = Through::new(datastore(Pools::Replicated));
    let (mut acknowledged, mut sent) = (vec![0_u64; BLOCKS as usize], vec![0_u64; BLOCKS as usize]);
    let mut stamp = 0;
    for round in 0..ROUNDS {
        let mut writer = Writer::new(&through);
        let found = writer.read();
        for block in 0..BLOCKS as usize {
            let allowed = acknowledged[block]..=sent[block];
            assert!(allowed.contains(&found[block]), "round {round}, block {block}: {found:?}");
        }
        (acknowledged, sent) = (found.clone(), found);
        let mut done: Vec<FileDone> = Vec::new();
        let mut ended = 0;
        for block in 0..BLOCKS {
            stamp += 1;
            sent[block as usize] = stamp;
            writer.write(block, stamp);
        }
        writer.0.queue.kick();
        while ended < 200 + 100 * round {
            writer.0.queue.poll(&mut done);
            for FileDone { tag, result, .. } in done.drain(..) {
                result.unwrap();
                acknowledged[tag as usize] = sent[tag as usize];
                stamp += 1;
                sent[tag as usize] = stamp;
                writer.write(tag, stamp);
                ended += 1;
            }
            writer.0.queue.kick();
            writer.0.event_loop.sleep(Duration::from_secs(10)).unwrap();
        }
        through.kill();
        // All that was under way ends with an error, or was acknowledged before.
        let mut left = BLOCKS;
        while left > 0 {
            writer.0.queue.poll(&mut done);
            for FileDone { tag, result, .. } in done.drain(..) {
                if result.is_ok() {
                    acknowledged[tag as usize] = sent[tag as usize];
                }
                left -= 1;
            }
            writer.0.event_loop.sleep(Duration::from_secs(10)).unwrap();
        }
    }
    let last = Writer::new(&through);
    let found = last.read();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(last.read(), found, "a late write has landed");
}
