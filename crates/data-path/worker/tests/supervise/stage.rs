//! A supervised volume.

use std::fs;
use std::io::{self, PipeWriter};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use strongroom_datastore::file::*;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_keys::{Kek, Keyring};
use strongroom_types::VolumeSize;
use strongroom_worker::birth::Frontend;
use strongroom_worker::condition::{Condition, Parked, State};
use strongroom_worker::control::{Answer, Client, Request, Status};
use strongroom_worker::supervise::{
    Birthright, Exposure, Program, Quarters, SuperviseError, Supervisor, VolumeKek, WorkerStarter, Workers,
};

use crate::providers::{OneKey, ScriptedLeases, key_file_kek, provider_key};

pub const DEADLINE: Duration = Duration::from_secs(60);
/// A file that is closed here may be released later: a worker that another test forks holds it
/// until it executes its program.
pub const LOCK_WAIT: Duration = DEADLINE;
/// The file beside the program that sets the newest program's behaviour when it has to serve.
pub const BEHAVIOUR: &str = "behaviour";
/// The layers of the volume, all of which go to each worker.
pub const LAYERS: usize = 3;

/// The condition of a volume with this many requests that wait for room.
pub fn waiting(requests: u64) -> Condition {
    let parked = Parked { since_unix_seconds: 1, requests, bytes: 4096 * requests };
    Condition { state: State::Parked, parked: Some(parked), ..Condition::default() }
}

/// A supervised volume, until it is ended.
pub struct Supervised {
    pub directory: tempfile::TempDir,
    stop: PipeWriter,
    pub thread: JoinHandle<Result<(), SuperviseError>>,
}

impl Supervised {
    pub fn start() -> Self {
        Self::start_under(key_file_kek(7), Arc::default(), Arc::new(OneKey(8)))
    }

    /// Starts with a volume under a provider's key, and with its leases and keyring.
    pub fn start_provided(keyring: impl Keyring + 'static) -> (Self, Arc<ScriptedLeases>) {
        let leases = Arc::<ScriptedLeases>::default();
        let kek = OneKey(7).fetch(&provider_key("4711")).unwrap();
        (Self::start_under(kek, Arc::clone(&leases), Arc::new(keyring)), leases)
    }

    pub fn start_under(kek: Kek, leases: Arc<ScriptedLeases>, keyring: Arc<dyn Keyring>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), "serves");
        let supervisor = supervisor(directory.path(), kek, leases, keyring).unwrap();
        let (stopped, stop) = io::pipe().unwrap();
        Self { directory, stop, thread: std::thread::spawn(move || supervisor.run(&stopped)) }
    }

    pub fn volume(&self) -> PathBuf {
        self.directory.path().join("vm1")
    }

    pub fn ask(&self, request: Request) -> Answer {
        Client::connect(&self.volume()).unwrap().unwrap().ask(request, DEADLINE).unwrap()
    }

    pub fn status(&self) -> Status {
        match self.ask(Request::Status) {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a worker.
    pub fn worker(&self) -> u32 {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(pid) = self.status().worker_pid {
                return pid;
            }
            assert!(Instant::now() < until, "no worker within {DEADLINE:?}");
        }
    }

    pub fn refused(&self, request: Request) -> String {
        match self.ask(request) {
            Answer::Refused { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    pub fn end(self) {
        drop(self.stop);
        self.thread.join().unwrap().unwrap();
        // The lock is free, and the sockets are gone.
        let volume = self.directory.path().join("vm1");
        assert!(!volume.join(CONTROL_SOCKET).exists() && !self.directory.path().join("vm1.sock").exists());
        delete(&volume, LOCK_WAIT).unwrap();
    }
}

/// Replaces the installed program by one of this behaviour, as a package does. Another process
/// copies it: otherwise a worker that another test forks meanwhile would hold it open for writing,
/// and it could not be executed.
pub fn install(directory: &Path, behaviour: &str) {
    fs::write(directory.join(BEHAVIOUR), behaviour).unwrap();
    let copy = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(directory.join("new")).status();
    assert!(copy.unwrap().success());
    fs::rename(directory.join("new"), directory.join("program")).unwrap();
}

pub fn supervisor(
    directory: &Path,
    kek: Kek,
    leases: Arc<ScriptedLeases>,
    keyring: Arc<dyn Keyring>,
) -> Result<Supervisor, SuperviseError> {
    let path = directory.join("vm1");
    let protection = Protection::Encrypted(&kek);
    let size = VolumeSize::new(1 << 20).unwrap();
    create(
        &path,
        &CreateOptions {
            size,
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: None,
            integrity: Some(Integrity::NEW),
        },
    )
    .unwrap();
    for _ in 1..LAYERS {
        let options =
            AddLayerOptions { protection, log_bytes: None, lock_wait: LOCK_WAIT, least_generation: 0 };
        add_layer(&path, &options).unwrap();
    }
    let access = Access::ReadWrite;
    let options = OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 };
    let (head, layer, deks) = open_apart(&path, &options).unwrap();
    let arguments = ["--exact", "a_worker", "--nocapture"].map(Into::into).to_vec();
    let exposure = Exposure {
        head,
        kek: VolumeKek::new(Some(kek), leases).unwrap(),
        keyring,
        listener: Listener::bind(&Address::Unix(directory.join("vm1.sock"))).unwrap(),
        birthright: Birthright {
            frontend: Frontend::VhostUser { serial: "vm1".to_owned(), queues_max: 1 },
            tls_key: None,
            name: "vm1".to_owned(),
            placement: None,
            limits: Vec::new(),
        },
        workers: Workers::of(Arc::new(WorkerStarter::new(
            Program::at(&directory.join("program"), arguments).unwrap(),
            Quarters::OfItsOwn,
        ))),
    };
    Supervisor::start(exposure, layer, deks)
}

#[track_caller]
pub fn wait_until(awaited: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{awaited}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

pub fn kill(worker: u32) {
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
}
