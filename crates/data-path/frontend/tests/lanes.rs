//! Everything that a server needs exists before its first client: it makes no thread and no ring
//! later, and does no work while there are no requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::nbd::{LANE_DEPTH, NbdConfig, NbdServer, StartError};
use strongroom_io::{IdleReactor, RequestKind};
use strongroom_ring::{Job, Lanes, Ring};
use support::client::*;
use support::memory_disk::{DEADLINE, MemoryDisk, Served};
use support::{Local, export};

/// The tests count resources of their process, so they run one after another.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock()
}

/// The ids of this process's threads whose names begin with `name`.
fn threads(name: &str) -> Vec<u32> {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let all = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let mut all: Vec<u32> = all
        .filter(|task| {
            // A thread that has ended meanwhile no longer has a name.
            let comm = fs::read_to_string(format!("/proc/self/task/{task}/comm"));
            comm.is_ok_and(|comm| comm.starts_with(name))
        })
        .collect();
    all.sort_unstable();
    all
}

/// The same, once there are `count`: a joined thread is listed until the kernel has removed it.
fn await_threads(name: &str, count: usize) -> Vec<u32> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let threads = threads(name);
        if threads.len() == count {
            return threads;
        }
        assert!(Instant::now() < deadline, "{} threads instead of {count}", threads.len());
        std::thread::yield_now();
    }
}

/// The descriptors of this process's rings.
fn rings() -> Vec<String> {
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let mut rings: Vec<String> = descriptors
        .map(|descriptor| descriptor.unwrap())
        .filter(|descriptor| {
            fs::read_link(descriptor.path()).is_ok_and(|target| target.ends_with("anon_inode:[io_uring]"))
        })
        .map(|descriptor| descriptor.file_name().into_string().unwrap())
        .collect();
    rings.sort();
    rings
}

/// How often a thread went to sleep, or `None` if it does not sleep now.
fn sleeps(thread: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim();
    field("State:").starts_with('S').then(|| field("voluntary_ctxt_switches:").parse().unwrap())
}

/// Waits until all of them sleep. Returns how often each went to sleep.
fn asleep(threads: &[u32]) -> Vec<u64> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(all) = threads.iter().map(|thread| sleeps(*thread)).collect() {
            return all;
        }
        assert!(Instant::now() < deadline, "a thread does not fall asleep");
        std::thread::yield_now();
    }
}

fn work(client: &mut Client<UnixStream>) {
    client.write(FUA, 1, 0, &[7; 4096]);
    assert_eq!(client.error_of(1), 0);
    client.request(READ, 0, 2, 0, 4096);
    assert_eq!(client.reply().data, [7; 4096]);
}

#[test]
fn connections_take_neither_threads_nor_rings() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    // Room for clients that connect while the last ones' places are still being freed.
    let local = Local::start_with(&disk, |config| config.connections_max = 8);
    let before = (await_threads("nbd", 9), rings());
    assert_eq!(before.1.len(), 9);
    for _ in 0..10 {
        let mut clients: Vec<_> = (0..4).map(|_| Client::enter(&local.socket)).collect();
        clients.iter_mut().for_each(work);
        assert_eq!((threads("nbd"), rings()), before);
        for client in &mut clients {
            client.request(DISCONNECT, 0, 0, 0, 0);
            assert!(client.await_close());
        }
    }
    assert_eq!((threads("nbd"), rings()), before);
    local.server.stop().unwrap();
}

#[test]
fn an_idle_server_does_nothing() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    let local = Local::start_with(&disk, |config| config.connections_max = 2);
    let mut client = Client::enter(&local.socket);
    work(&mut client);
    // One accepts, one serves, and one is idle.
    let lanes = await_threads("nbd", 3);
    let pause = |pause| IdleReactor::new().unwrap().sleep(pause).unwrap();
    // The work after the last answer is over once no thread has woken for a moment.
    let mut before = Vec::new();
    while before != asleep(&lanes) {
        before = asleep(&lanes);
        pause(Duration::from_millis(20));
    }
    pause(Duration::from_millis(500));
    assert_eq!(asleep(&lanes), before, "a thread woke although there was nothing to do");
    work(&mut client);
    local.server.stop().unwrap();
}

#[test]
fn lanes_serve_one_server_after_another() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    let directory = tempfile::tempdir().unwrap();
    let address = Address::Unix(directory.path().join("nbd.sock"));
    let mut config = NbdConfig::new(export());
    config.connections_max = 1;
    let lanes = Lanes::start("nbd", 2, LANE_DEPTH).unwrap();
    for round in 0..20 {
        let listener = Listener::bind(&address).unwrap();
        let disk = Arc::new(Served(Arc::clone(&disk)));
        let server = NbdServer::start(config.clone(), listener, disk, lanes.clone()).unwrap();
        let Address::Unix(socket) = &address else { unreachable!() };
        let mut client = Client::enter(socket);
        work(&mut client);
        if round % 2 == 0 {
            drop(client);
        }
        server.stop().unwrap();
    }
    assert_eq!(disk.log().last().unwrap().0, RequestKind::Flush);
}

#[test]
fn a_client_that_finds_all_lanes_busy_waits_for_one() {
    let _alone = alone();
    let disk = MemoryDisk::new(1 << 20);
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let mut config = NbdConfig::new(export());
    config.connections_max = 2;
    let lanes = Lanes::start("nbd", 3, LANE_DEPTH).unwrap();
    let listener = Listener::bind(&Address::Unix(socket.clone())).unwrap();
    let served = Arc::new(Served(Arc::clone(&disk)));
    let server = NbdServer::start(config, listener, served, lanes.clone()).unwrap();
    let mut first = Client::enter(&socket);
    work(&mut first);
    let (finish, finished) = channel::<()>();
    let other: Job<bool> = lanes.run(move |_: &Ring| finished.recv().is_ok()).unwrap();
    let waiting = UnixStream::connect(&socket).unwrap();
    waiting.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut waiting = Client { stream: waiting };
    work(&mut first);
    waiting.stream.set_nonblocking(true).unwrap();
    let early = std::io::Read::read(&mut waiting.stream, &mut [0; 1]);
    assert_eq!(early.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    waiting.stream.set_nonblocking(false).unwrap();
    // The connection that had it releases its lane, and the client is greeted.
    drop(finish);
    assert!(!other.join().unwrap());
    waiting.greet();
    // And a server that is stopped while a client waits does stop.
    drop(first);
    server.stop().unwrap();
    assert!(waiting.await_close());
}

#[test]
fn too_few_lanes_are_refused() {
    let _alone = alone();
    let directory = tempfile::tempdir().unwrap();
    let listener = Listener::bind(&Address::Unix(directory.path().join("nbd.sock"))).unwrap();
    let disk = Arc::new(Served(MemoryDisk::new(1 << 20)));
    let lanes = Lanes::start("nbd", 2, LANE_DEPTH).unwrap();
    let few = NbdServer::start(NbdConfig::new(export()), listener, disk, lanes).unwrap_err();
    assert!(matches!(few, StartError::Lanes { needed: 17, idle: 2 }), "{few:?}");
}
