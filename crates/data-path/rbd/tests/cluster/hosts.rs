//! A host that is lost, and what it can still do: nothing. Each host has a user and a boot of its
//! own.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;
use strongroom_datastore::file::storage::{Storage, replace_file};
use strongroom_rbd::{CephError, ClusterConf, ClusterOptions, RbdOptions, RbdStorage};
use strongroom_test_peers::{CephCluster, on_another_boot};

const LAYER: &str = "layer-00000000-0000-4000-8000-000000000001";
const BLOCK: usize = 4096;
const EXCLUSIVE: FlockOperation = FlockOperation::NonBlockingLockExclusive;
/// What a host of the test is started with: its configuration file and its user.
const CONF: &str = "STRONGROOM_TEST_CONF";
const USER: &str = "STRONGROOM_TEST_USER";
/// For how long a host that nobody refuses writes.
const REFUSED_WITHIN: Duration = Duration::from_secs(30);
/// How often a host is lost.
const ROUNDS: u8 = 5;

fn options(conf: &Path, user: &str) -> RbdOptions {
    RbdOptions {
        cluster: ClusterOptions { conf: ClusterConf::File(conf.to_owned()), user: user.to_owned() },
        pool: "rep2".to_owned(),
        data_pool: None,
        namespace: String::new(),
    }
}

/// The host that the tests lose: a process that sees another boot than this one. It writes to a
/// layer that it has locked, and to a small file, until both are refused.
#[test]
#[ignore = "a part of the other tests here"]
fn a_host_writes() {
    let Some(conf) = std::env::var_os(CONF) else { return };
    let storage = RbdStorage::connect(&options(Path::new(&conf), &std::env::var(USER).unwrap())).unwrap();
    let directory = storage.open_directory(Path::new("vm1")).unwrap();
    let file = directory.open(LAYER, OFlags::RDWR).unwrap();
    file.try_lock(EXCLUSIVE).unwrap();
    println!("it writes");
    std::io::stdout().flush().unwrap();
    let until = Instant::now() + REFUSED_WITHIN;
    while file.write_at(0, &[0xff; BLOCK]).is_ok() && Instant::now() < until {
        if replace_file(&*directory, "vm.json", b"theirs").is_err() {
            break;
        }
    }
    // Both are refused for good, not only the one that was tried at the wrong time.
    assert!(file.write_at(0, &[0xff; BLOCK]).is_err());
    assert!(replace_file(&*directory, "vm.json", b"theirs").is_err());
    println!("it is refused");
}

/// A process that writes as a host of its own, until it is refused or killed.
struct Host(Child);

impl Host {
    /// Starts it, and waits until it has its lock.
    fn start(conf: &Path, user: &str, boot: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let child = on_another_boot(boot, &program)
            .args(["--exact", "hosts::a_host_writes", "--ignored", "--nocapture"])
            .env(CONF, conf)
            .env(USER, user)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut host = Self(child);
        assert!(host.says("it writes"), "it has not begun");
        host
    }

    /// Whether it says this before it ends.
    fn says(&mut self, line: &str) -> bool {
        let mut stdout = BufReader::with_capacity(1, self.0.stdout.as_mut().unwrap());
        let mut said = String::new();
        while stdout.read_line(&mut said).unwrap() > 0 {
            if said.contains(line) {
                return true;
            }
            said.clear();
        }
        false
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn boot_of(scratch: &Path, name: &str) -> PathBuf {
    let path = scratch.join(name);
    std::fs::write(&path, format!("{name}\n")).unwrap();
    path
}

fn prepare(storage: &RbdStorage) {
    storage.make_directory(Path::new("vm1")).unwrap();
    let directory = storage.open_directory(Path::new("vm1")).unwrap();
    let file = directory.open(LAYER, OFlags::RDWR | OFlags::CREATE).unwrap();
    file.set_length(1 << 20).unwrap();
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_lost_host_writes_no_more_and_another_one_goes_on() {
    let (mut cluster, scratch) = (CephCluster::start(2), tempfile::tempdir().unwrap());
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let ours = options(&cluster.conf, "client.host1");
    let (first, second) = (RbdStorage::connect(&ours).unwrap(), RbdStorage::connect(&ours).unwrap());
    assert_eq!(first.fence_host("client.host1"), Err(Errno::INVAL), "itself");
    prepare(&first);
    for round in 0..ROUNDS {
        let boot = boot_of(scratch.path(), &format!("boot{round}"));
        let mut host = Host::start(&cluster.conf, "client.host2", &boot);
        let directory = second.open_directory(Path::new("vm1")).unwrap();
        let file = directory.open(LAYER, OFlags::RDWR).unwrap();
        assert_eq!(file.try_lock(EXCLUSIVE), Err(Errno::WOULDBLOCK), "the holder lives");
        assert_eq!(first.fence_host("client.host2"), Ok(1));
        assert_eq!(first.fence_host("client.host2"), Ok(0), "it is done already");
        // Also an instance whose locks nobody takes is refused.
        let is_refused_first = round % 2 == 0;
        assert!(!is_refused_first || host.says("it is refused"), "round {round}");
        // Another process of this host finds what the first one has done.
        file.try_lock(EXCLUSIVE).unwrap();
        file.write_at(0, &[round; BLOCK]).unwrap();
        replace_file(&*directory, "vm.json", &[round]).unwrap();
        assert!(is_refused_first || host.says("it is refused"), "round {round}");
        let mut read = [0; BLOCK];
        file.read_at(0, &mut read).unwrap();
        assert_eq!(read, [round; BLOCK], "round {round}: a late write has landed");
        let mut read = [0xff; 8];
        let count = directory.open("vm.json", OFlags::RDONLY).unwrap().read_at(0, &mut read).unwrap();
        assert_eq!(read[..count], [round], "round {round}");
        // It stays out until it is admitted.
        assert!(second.is_host_fenced("client.host2").unwrap());
        let theirs = options(&cluster.conf, "client.host2");
        let refused = RbdStorage::connect(&theirs).map(drop).unwrap_err();
        assert!(matches!(&refused, CephError::Fenced { user } if user == "client.host2"), "{refused}");
        first.admit_host("client.host2").unwrap();
        RbdStorage::connect(&theirs).unwrap();
    }
}

/// The locks of a machine that has crashed are free once it runs again, and not for others before.
#[test]
#[ignore = "long: make test-ceph"]
fn a_machine_that_runs_again_takes_what_it_had() {
    let (mut cluster, scratch) = (CephCluster::start(2), tempfile::tempdir().unwrap());
    for user in ["client.host1", "client.host2"] {
        cluster.add_user(user);
    }
    let other = RbdStorage::connect(&options(&cluster.conf, "client.host1")).unwrap();
    prepare(&other);
    let crashed = Host::start(&cluster.conf, "client.host2", &boot_of(scratch.path(), "earlier"));
    drop(crashed);
    let take = |storage: &RbdStorage| {
        let directory = storage.open_directory(Path::new("vm1")).unwrap();
        directory.open(LAYER, OFlags::RDWR).unwrap().try_lock(EXCLUSIVE)
    };
    assert_eq!(take(&other), Err(Errno::WOULDBLOCK), "nobody has said that the host is lost");
    let again = RbdStorage::connect(&options(&cluster.conf, "client.host2")).unwrap();
    take(&again).unwrap();
    take(&other).unwrap();
}
