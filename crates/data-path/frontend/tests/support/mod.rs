//! Shared parts of the NBD server's tests: servers, and real clients as processes.

// Each test file uses only a part of it, and it is all test code.
#![allow(dead_code, clippy::unwrap_used)]

pub mod certificates;
pub mod client;
pub mod log;
pub mod memory_disk;

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::time::Instant;

use strongroom_crypto::xts::{UnitSize, Xts};
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_filters::crypt::{CryptDisk, EpochKeys};
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::nbd::{Export, LANE_DEPTH, NbdConfig, NbdServer};
use strongroom_io::{Disk, Plain, RangeLocks};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Lanes;
use strongroom_types::{KeyEpoch, VolumeSize};
use tempfile::TempDir;

use memory_disk::{DEADLINE, MemoryDisk, Served};

/// A server on a unix socket in its own directory.
pub struct Local {
    pub server: NbdServer,
    pub directory: TempDir,
    pub socket: PathBuf,
}

pub fn export() -> Export {
    Export { name: "disk".to_owned(), description: "a disk in memory".to_owned() }
}

impl Local {
    pub fn start(disk: &Arc<MemoryDisk>) -> Self {
        Self::start_with(disk, |_| {})
    }

    pub fn start_with(disk: &Arc<MemoryDisk>, change: impl FnOnce(&mut NbdConfig)) -> Self {
        Self::serve(Arc::new(Served(Arc::clone(disk))), change)
    }

    pub fn serve(disk: Arc<dyn Disk<Plain>>, change: impl FnOnce(&mut NbdConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let mut config = NbdConfig::new(export());
        change(&mut config);
        let listener = Listener::bind(&Address::Unix(socket.clone())).unwrap();
        let lanes = lanes(&config);
        let server = NbdServer::start(config, listener, disk, lanes).unwrap();
        Self { server, directory, socket }
    }
}

/// As many lanes as a server needs.
pub fn lanes(config: &NbdConfig) -> Lanes {
    Lanes::start("nbd", config.lanes(), LANE_DEPTH).unwrap()
}

/// The stages of an encrypted volume, over a datastore in memory.
pub fn encrypted_disk(size_bytes: u64) -> Arc<dyn Disk<Plain>> {
    let size = VolumeSize::new(size_bytes).unwrap();
    let store = strongroom_datastore::memory::MemoryDisk::new(size, KeyEpoch::FIRST);
    let key = Xts::new(&SecretBytes::random(64).unwrap(), UnitSize::Bytes4096).unwrap();
    let keys = EpochKeys::new(KeyEpoch::FIRST, Arc::new(key)).unwrap();
    let plain = Arc::new(CryptDisk::new(Arc::new(store), Arc::new(keys)));
    Arc::new(BlocksizeDisk::new(plain, size_bytes, 1, RangeLocks::new()).unwrap())
}

/// A process that is ended with its test.
pub struct Process(Child);

impl Process {
    pub fn spawn(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = command.get_program().to_owned();
        match command.spawn() {
            Ok(child) => Self(child),
            Err(error) => panic!("cannot start {program:?} ({error}); scripts/install-packages installs it"),
        }
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits for the end, and fails the test if that does not come in time.
    pub fn finish(mut self) -> Output {
        let streams = (self.0.stdout.take().unwrap(), self.0.stderr.take().unwrap());
        let read = |mut stream: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut bytes = Vec::new();
                stream.read_to_end(&mut bytes).unwrap();
                bytes
            })
        };
        let (stdout, stderr) = (read(Box::new(streams.0)), read(Box::new(streams.1)));
        let pid = rustix::process::Pid::from_child(&self.0);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let until = Instant::now() + 2 * DEADLINE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = rustix::event::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: 0 };
            let mut end = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            match rustix::event::poll(&mut end, Some(&timeout)) {
                Ok(0) => {
                    self.kill();
                    panic!("a client did not end in time");
                }
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("{error}"),
            }
        }
        Output {
            status: self.0.wait().unwrap(),
            stdout: stdout.join().unwrap(),
            stderr: stderr.join().unwrap(),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs a client to its end, whether it succeeds or fails.
pub fn run(program: &str, arguments: &[&str]) -> Output {
    Process::spawn(Command::new(program).args(arguments)).finish()
}

/// Runs a client that must succeed. Returns its output.
pub fn run_well(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}

/// Bytes that look random and are the same for the same seed.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    use rand::{RngCore, SeedableRng};
    let mut bytes = vec![0; length];
    rand::rngs::StdRng::seed_from_u64(seed).fill_bytes(&mut bytes);
    bytes
}
