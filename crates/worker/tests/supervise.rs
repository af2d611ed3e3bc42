//! A supervisor and workers that do what they should not: refuse, die or fall silent at the worst moment of an upgrade.
//!
//! The test runs itself as the worker: it speaks as one, and serves nobody.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::io::{self, PipeWriter};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::process::{Pid, Signal, kill_process};
use strongroom_datastore::file::*;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_keys::{
    Kek, KekSource, KeyError, KeyRequestId, Keyring, LeaseState, LeaseStatus, Leases, OnRevocation,
    ProviderKey, ProviderName, RevokedHow,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_types::VolumeSize;
use strongroom_worker::birth::{BirthSocket, Frontend, Keys, Order, Report};
use strongroom_worker::condition::{Condition, Parked, State};
use strongroom_worker::control::{Answer, Client, NewKek, Request, Status};
use strongroom_worker::supervise::{
    Birthright, Exposure, Program, Quarters, SuperviseError, Supervisor, VolumeKek,
};

const DEADLINE: Duration = Duration::from_secs(60);
/// What is closed here is free a moment later: a worker that another test starts has it until it is another program.
const LOCK_WAIT: Duration = DEADLINE;
/// The file, beside the program, that says what the newest program does when it is to serve.
const BEHAVIOUR: &str = "behaviour";
/// Of the volume: all of them go to each worker.
const LAYERS: usize = 3;

/// The process that plays the worker. Run by hand, or by the harness, it has no supervisor and does nothing.
#[test]
fn a_worker() {
    let Ok(mut socket) = BirthSocket::adopt(io::stdin()) else { return };
    let program = std::env::current_exe().unwrap();
    // A program that another one was put in the place of does as it did.
    let behaviour = match program.to_str().unwrap().ends_with(" (deleted)") {
        true => "serves".to_owned(),
        false => fs::read_to_string(program.with_file_name(BEHAVIOUR)).unwrap(),
    };
    let mut held = None;
    while let Ok((order, files)) = socket.receive() {
        let report = match order {
            Order::Start(_) => Report::Ready { program: behaviour.clone() },
            Order::Keys(Keys::Epochs(epochs)) => {
                assert!(epochs.iter().all(|_| socket.receive_secret().unwrap().len() == 64));
                Report::Keyed
            }
            Order::Serve { .. } if behaviour == "refuses" => {
                Report::Failed { reason: "not these".to_owned() }
            }
            Order::Serve { .. } if behaviour == "dies" => std::process::exit(9),
            Order::Serve { layer, lower, .. } => {
                let mut files = files.into_iter();
                let layer = OpenLayer::from_files(layer, &lower, &mut files).unwrap();
                assert_eq!((layer.lower.len() + 1, files.len()), (LAYERS, 0));
                held = Some(layer);
                if behaviour == "waits" {
                    // It may be heard before the answer, and after it.
                    socket.send(&Report::Condition(waiting(1)), &[]).unwrap();
                    socket.send(&Report::Serving, &[]).unwrap();
                    socket.send(&Report::Condition(waiting(2)), &[]).unwrap();
                    continue;
                }
                Report::Serving
            }
            Order::Suspend if behaviour == "keeps" => Report::Failed { reason: "a flush failed".to_owned() },
            Order::Suspend => {
                let held: OpenLayer = held.take().unwrap();
                let (layer, lower) = (held.facts, held.lower_facts());
                let sessions = Some(serde_json::json!({ "version": 1 }));
                socket.send(&Report::Suspended { layer, lower, sessions }, &held.files()).unwrap();
                continue;
            }
            Order::Grow { .. } => {
                socket.send(&Report::Condition(Condition::default()), &[]).unwrap();
                Report::Grown
            }
            Order::End => return socket.send(&Report::Ended { failure: None }, &[]).unwrap(),
            Order::Keys(Keys::Unencrypted) => unreachable!("the volume is encrypted"),
        };
        socket.send(&report, &[]).unwrap();
    }
}

/// How a volume fares of which so many requests wait for room.
fn waiting(requests: u64) -> Condition {
    let parked = Parked { since_unix_seconds: 1, requests, bytes: 4096 * requests };
    Condition { state: State::Parked, parked: Some(parked), ..Condition::default() }
}

/// A supervised volume, until it is ended.
struct Supervised {
    directory: tempfile::TempDir,
    stop: PipeWriter,
    thread: JoinHandle<Result<(), SuperviseError>>,
}

impl Supervised {
    fn start() -> Self {
        Self::start_under(key_file_kek(7), Arc::default(), Arc::new(OneKey(8)))
    }

    /// A volume under a key of the provider, and those who hold and fetch it.
    fn start_provided(keyring: impl Keyring + 'static) -> (Self, Arc<ScriptedLeases>) {
        let leases = Arc::<ScriptedLeases>::default();
        let kek = OneKey(7).fetch(&provider_key("4711")).unwrap();
        (Self::start_under(kek, Arc::clone(&leases), Arc::new(keyring)), leases)
    }

    fn start_under(kek: Kek, leases: Arc<ScriptedLeases>, keyring: Arc<dyn Keyring>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        install(directory.path(), "serves");
        let supervisor = supervisor(directory.path(), kek, leases, keyring).unwrap();
        let (stopped, stop) = io::pipe().unwrap();
        Self { directory, stop, thread: std::thread::spawn(move || supervisor.run(&stopped)) }
    }

    fn volume(&self) -> PathBuf {
        self.directory.path().join("vm1")
    }

    fn ask(&self, request: Request) -> Answer {
        Client::connect(&self.volume()).unwrap().unwrap().ask(request, DEADLINE).unwrap()
    }

    fn status(&self) -> Status {
        match self.ask(Request::Status) {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a worker.
    fn worker(&self) -> u32 {
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(pid) = self.status().worker_pid {
                return pid;
            }
            assert!(Instant::now() < until, "no worker within {DEADLINE:?}");
        }
    }

    fn refused(&self, request: Request) -> String {
        match self.ask(request) {
            Answer::Refused { message, .. } => message,
            other => panic!("{other:?}"),
        }
    }

    fn end(self) {
        drop(self.stop);
        self.thread.join().unwrap().unwrap();
        // The lock is free, and the sockets are gone.
        let volume = self.directory.path().join("vm1");
        assert!(!volume.join(CONTROL_SOCKET).exists() && !self.directory.path().join("vm1.sock").exists());
        delete(&volume, LOCK_WAIT).unwrap();
    }
}

/// Puts a program of this behaviour in the place of what is there, as a package does. Another process copies it: a
/// worker that another test starts meanwhile would hold it open for writing, and it could not be run.
fn install(directory: &Path, behaviour: &str) {
    fs::write(directory.join(BEHAVIOUR), behaviour).unwrap();
    let copy = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(directory.join("new")).status();
    assert!(copy.unwrap().success());
    fs::rename(directory.join("new"), directory.join("program")).unwrap();
}

fn supervisor(
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
            integrity: true,
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
        },
        program: Program::at(&directory.join("program"), arguments).unwrap(),
        quarters: Quarters::OfItsOwn,
    };
    Supervisor::start(exposure, layer, deks)
}

#[test]
fn a_volume_moves_to_the_program_that_is_installed_now() {
    let supervised = Supervised::start();
    let before = supervised.worker();
    assert_eq!(supervised.status().program.as_deref(), Some("serves"));
    install(supervised.directory.path(), "serves better");
    let Answer::Upgraded { old_worker_pid, worker_pid, program, .. } = supervised.ask(Request::Upgrade)
    else {
        panic!("it was not upgraded");
    };
    assert_eq!((old_worker_pid, program.as_str()), (before, "serves better"));
    assert_eq!(supervised.worker(), worker_pid);
    assert_eq!(supervised.status().restarts, 0);
    supervised.end();
}

#[test]
fn a_worker_that_keeps_its_sessions_goes_on() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "keeps");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let keeper = supervised.worker();
    let refused = supervised.refused(Request::Upgrade);
    assert_eq!(refused, "the old worker does not hand over: a flush failed");
    assert_eq!(supervised.worker(), keeper);
    supervised.end();
}

#[test]
fn sessions_that_a_new_worker_refuses_are_taken_back_by_the_old_program() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "refuses");
    let refused = supervised.refused(Request::Upgrade);
    assert_eq!(refused, "the new worker refused the sessions, and the old program goes on: not these");
    let status = supervised.status();
    assert!(status.worker_pid.is_some() && status.program.as_deref() == Some("serves"), "{status:?}");
    assert_eq!(status.restarts, 0, "the sessions went on");
    supervised.end();
}

#[test]
fn a_new_worker_that_dies_with_the_sessions_is_like_any_dead_worker() {
    let supervised = Supervised::start();
    install(supervised.directory.path(), "dies");
    let refused = supervised.refused(Request::Upgrade);
    assert!(
        refused.starts_with("the new worker failed, and the old program is started again: "),
        "{refused}"
    );
    assert!(refused.ends_with("ended with status 9"), "{refused}");
    supervised.worker();
    assert_eq!(supervised.status().restarts, 1);
    supervised.end();
}

#[test]
fn what_a_worker_says_unasked_is_told_to_whoever_asks() {
    let supervised = Supervised::start();
    assert_eq!(supervised.status().condition, Condition::default());
    install(supervised.directory.path(), "waits");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let until = Instant::now() + DEADLINE;
    while supervised.status().condition != waiting(2) {
        assert!(Instant::now() < until, "{:?}", supervised.status());
    }
    // An answer behind it is found.
    let size_bytes = VolumeSize::new(2 << 20).unwrap();
    let grown = supervised.ask(Request::Resize { size_bytes, least_generation: 1 });
    assert!(matches!(grown, Answer::Resized { .. }), "{grown:?}");
    assert_eq!(supervised.status().condition, Condition::default());
    supervised.end();
}

#[test]
fn the_first_worker_must_serve() {
    let directory = tempfile::tempdir().unwrap();
    install(directory.path(), "refuses");
    let refused = supervisor(directory.path(), key_file_kek(7), Arc::default(), Arc::new(OneKey(8)));
    let refused = refused.unwrap_err();
    assert_eq!(refused.to_string(), "the volume cannot be served: not these");
    delete(&directory.path().join("vm1"), LOCK_WAIT).unwrap();
}

/// A descriptor that somebody put in the place of the volume's is not served: the supervisor says so and ends.
#[test]
fn a_volume_that_was_replaced_is_not_served_any_more() {
    let supervised = Supervised::start();
    let volume = supervised.volume();
    let first = fs::read(volume.join("descriptor")).unwrap();
    let size_bytes = VolumeSize::new(2 << 20).unwrap();
    let grown = supervised.ask(Request::Resize { size_bytes, least_generation: 1 });
    assert!(matches!(grown, Answer::Resized { generation: 4, .. }), "{grown:?}");
    fs::write(volume.join("descriptor"), first).unwrap();
    let worker = rustix::process::Pid::from_raw(supervised.worker().cast_signed()).unwrap();
    rustix::process::kill_process(worker, rustix::process::Signal::KILL).unwrap();
    let lost = supervised.thread.join().unwrap().unwrap_err();
    assert!(
        matches!(lost, SuperviseError::Lost(DatastoreError::RolledBack { found: 3, least: 4, .. })),
        "{lost}"
    );
}

/// Keeps one key.
#[derive(Debug)]
struct OneKey(u8);

impl Keyring for OneKey {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        Kek::from_provider(SecretBytes::from_slice_and_wipe(&mut [self.0; 32])?, key.clone())
    }

    fn create(&self, provider: &ProviderName, _: KeyRequestId) -> Result<Kek, KeyError> {
        Err(KeyError::NotMade { provider: provider.clone(), reason: "it keeps one".to_owned() })
    }
}

fn provider_key(id: &str) -> ProviderKey {
    ProviderKey { provider: "corp".parse().unwrap(), key: id.parse().unwrap(), wrapped: None }
}

fn key_file_kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn rewrap_request(to: &Kek, least_generation: u64) -> Request {
    Request::Rewrap { to: NewKek { id: to.id(), source: to.source().clone() }, least_generation }
}

#[test]
fn a_volume_moves_to_other_keys_while_it_is_served() {
    let supervised = Supervised::start();
    let worker = supervised.worker();
    let (old, file) = (key_file_kek(7), key_file_kek(9));
    let provided = OneKey(8).fetch(&provider_key("4711")).unwrap();

    let Answer::Rewrapped { old_kek, kek, generation } = supervised.ask(rewrap_request(&provided, 3)) else {
        panic!("it was not re-wrapped");
    };
    assert_eq!((old_kek, kek, generation), (old.id(), provided.id(), LAYERS as u64 + 2));

    // The next worker gets its keys from the new one.
    kill_process(Pid::from_raw(worker as i32).unwrap(), Signal::KILL).unwrap();
    let until = Instant::now() + DEADLINE;
    while supervised.worker() == worker {
        assert!(Instant::now() < until, "no other worker within {DEADLINE:?}");
    }

    // A key that no provider keeps comes in a pipe.
    let without = supervised.refused(rewrap_request(&file, 0));
    assert!(without.contains("no pipe came with the request"), "{without}");
    let pipe = key_file_kek(10).to_pipe().unwrap();
    let client = Client::connect(&supervised.volume()).unwrap().unwrap();
    let other = client.ask_with(rewrap_request(&file, 0), Some(pipe.as_fd()), DEADLINE).unwrap();
    assert!(matches!(&other, Answer::Refused { code, .. } if code == "wrong_key"), "{other:?}");
    let pipe = file.to_pipe().unwrap();
    let client = Client::connect(&supervised.volume()).unwrap().unwrap();
    let moved = client.ask_with(rewrap_request(&file, generation), Some(pipe.as_fd()), DEADLINE).unwrap();
    assert!(matches!(moved, Answer::Rewrapped { kek, .. } if kek == file.id()), "{moved:?}");

    let older = supervised.refused(rewrap_request(&provided, 99));
    assert!(older.contains("99"), "{older}");
    // It grows under its new key, and a newer program gets its keys too.
    let larger = Request::Resize { size_bytes: VolumeSize::new(2 << 20).unwrap(), least_generation: 0 };
    assert!(matches!(supervised.ask(larger), Answer::Resized { .. }));
    install(supervised.directory.path(), "serves better");
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    let descriptor = describe(&supervised.volume()).unwrap().descriptor;
    assert!(descriptor.is_under(file.id()) && !descriptor.is_under(old.id()));
    assert!(check(&supervised.volume(), Some(&file)).unwrap().is_empty());
    supervised.end();
}

/// Holds keys as long as the test lets it.
#[derive(Debug)]
struct ScriptedLeases {
    state: Mutex<Scripted>,
    changed: OwnedFd,
}

#[derive(Debug, Default)]
struct Scripted {
    held: Vec<Arc<Kek>>,
    /// Keys that were asked for while they could not be had.
    asked_for: Vec<ProviderKey>,
    stands: Option<LeaseState>,
    on_revocation: OnRevocation,
}

impl Default for ScriptedLeases {
    fn default() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Self { state: Mutex::default(), changed: eventfd(0, flags).unwrap() }
    }
}

impl ScriptedLeases {
    /// Every key stands like this from now on.
    fn now(&self, state: LeaseState) {
        let mut scripted = self.state.lock().unwrap();
        scripted.stands = Some(state);
        if !matches!(state, LeaseState::Held | LeaseState::Outage) {
            scripted.held.clear();
        }
        drop(scripted);
        rustix::io::write(&self.changed, &1_u64.to_ne_bytes()).unwrap();
    }

    /// The key is had again.
    fn back(&self, kek: Kek) {
        self.hold(kek).unwrap();
        self.now(LeaseState::Held);
    }

    fn is_asked_for(&self, key: &ProviderKey) -> bool {
        self.state.lock().unwrap().asked_for.contains(key)
    }
}

impl Leases for ScriptedLeases {
    fn hold(&self, kek: Kek) -> Result<(), KeyError> {
        let mut scripted = self.state.lock().unwrap();
        scripted.stands = Some(LeaseState::Held);
        scripted.held.push(Arc::new(kek));
        Ok(())
    }

    fn hold_when_back(&self, key: &ProviderKey) {
        self.state.lock().unwrap().asked_for.push(key.clone());
    }

    fn kek(&self, key: &ProviderKey) -> Option<Arc<Kek>> {
        let scripted = self.state.lock().unwrap();
        let source = KekSource::Provider(key.clone());
        scripted.held.iter().find(|kek| *kek.source() == source).cloned()
    }

    fn forget(&self, key: &ProviderKey) {
        let source = KekSource::Provider(key.clone());
        self.state.lock().unwrap().held.retain(|kek| *kek.source() != source);
    }

    fn status(&self, _: &ProviderKey) -> Option<LeaseStatus> {
        let state = self.state.lock().unwrap().stands?;
        let reason = (state != LeaseState::Held).then(|| "kms1 rests".to_owned());
        Some(LeaseStatus { state, since_unix_seconds: 7, reason, expired: false })
    }

    fn on_revocation(&self, _: &ProviderKey) -> OnRevocation {
        self.state.lock().unwrap().on_revocation
    }

    fn changed(&self) -> Option<BorrowedFd<'_>> {
        Some(self.changed.as_fd())
    }

    fn take_changes(&self) -> bool {
        rustix::io::read(&self.changed, &mut [0; 8]).is_ok()
    }
}

/// A key server that says nothing until it is told to, and tells when it is asked.
#[derive(Debug)]
struct Silent {
    asked: Sender<()>,
    silence: Mutex<Receiver<()>>,
}

impl Silent {
    /// It, what is heard when it is asked, and what makes it speak.
    fn new() -> (Self, Receiver<()>, Sender<()>) {
        let (asked, heard) = channel();
        let (speak, silence) = channel();
        (Self { asked, silence: Mutex::new(silence) }, heard, speak)
    }
}

impl Keyring for Silent {
    fn fetch(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        let _ = self.asked.send(());
        let _ = self.silence.lock().unwrap().recv_timeout(DEADLINE);
        OneKey(8).fetch(key)
    }

    /// A key that is moved away from.
    fn fetch_to_leave(&self, key: &ProviderKey) -> Result<Kek, KeyError> {
        OneKey(7).fetch(key)
    }

    fn create(&self, provider: &ProviderName, request: KeyRequestId) -> Result<Kek, KeyError> {
        OneKey(8).create(provider, request)
    }
}

#[track_caller]
fn wait_until(awaited: &str, is_so: impl Fn() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "{awaited}: not within {DEADLINE:?}");
        std::thread::yield_now();
    }
}

fn kill(worker: u32) {
    kill_process(Pid::from_raw(worker.cast_signed()).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn an_outage_is_shown_and_disturbs_nothing() {
    let (supervised, leases) = Supervised::start_provided(OneKey(7));
    let worker = supervised.worker();
    assert_eq!(supervised.status().key.unwrap().lease.state, LeaseState::Held);
    leases.now(LeaseState::Outage);
    let key = supervised.status().key.unwrap();
    assert_eq!((key.provider.as_str(), key.key.as_str()), ("corp", "4711"));
    assert_eq!((key.lease.state, key.lease.reason.as_deref()), (LeaseState::Outage, Some("kms1 rests")));
    // The key is held on: a worker that dies is replaced, and the volume grows.
    kill(worker);
    wait_until("another worker serves", || supervised.status().worker_pid.is_some_and(|pid| pid != worker));
    let larger = Request::Resize { size_bytes: VolumeSize::new(2 << 20).unwrap(), least_generation: 0 };
    assert!(matches!(supervised.ask(larger), Answer::Resized { .. }));
    supervised.end();
}

#[test]
fn without_its_key_a_volume_is_served_on_and_a_dead_worker_replaced_when_it_is_back() {
    let (supervised, leases) = Supervised::start_provided(OneKey(7));
    let worker = supervised.worker();
    leases.now(LeaseState::Waiting);
    // What needs the key says so; the worker does not.
    let larger = Request::Resize { size_bytes: VolumeSize::new(2 << 20).unwrap(), least_generation: 0 };
    let refused = supervised.refused(larger.clone());
    assert!(refused.contains("key-unavailable: key provider corp, key 4711: kms1 rests"), "{refused}");
    let refused = supervised.refused(Request::Upgrade);
    assert!(refused.contains("key-unavailable"), "{refused}");
    assert_eq!(supervised.worker(), worker);

    kill(worker);
    let unavailable = || supervised.status().condition.state == State::KeyUnavailable;
    wait_until("it says that the key is missing", unavailable);
    assert!(leases.is_asked_for(&provider_key("4711")) && supervised.status().worker_pid.is_none());
    // A change that does not bring it is none.
    leases.now(LeaseState::Waiting);
    assert!(unavailable());
    // Nor is another key under its name.
    leases.back(OneKey(9).fetch(&provider_key("4711")).unwrap());
    wait_until("the wrong key is let go of", || leases.kek(&provider_key("4711")).is_none());
    assert!(unavailable());

    leases.back(OneKey(7).fetch(&provider_key("4711")).unwrap());
    let other = supervised.worker();
    assert_ne!(other, worker);
    assert_eq!(supervised.status().condition, Condition::default());
    assert!(matches!(supervised.ask(larger), Answer::Resized { .. }));
    supervised.end();
}

#[test]
fn a_revoked_key_is_moved_away_from_while_the_volume_is_served() {
    let (silent, asked, speak) = Silent::new();
    let (supervised, leases) = Supervised::start_provided(silent);
    let worker = supervised.worker();
    leases.now(LeaseState::Revoked { how: RevokedHow::Compromised });
    assert_eq!(
        supervised.status().key.unwrap().lease.state,
        LeaseState::Revoked { how: RevokedHow::Compromised }
    );
    assert_eq!(supervised.worker(), worker);
    kill(worker);
    wait_until("it says that the key is missing", || {
        supervised.status().condition.state == State::KeyUnavailable
    });

    // The key server is silent, and everything else is answered meanwhile.
    let to = OneKey(8).fetch(&provider_key("4712")).unwrap();
    let client = Client::connect(&supervised.volume()).unwrap().unwrap();
    let request = rewrap_request(&to, 0);
    let moving = std::thread::spawn(move || client.ask(request, DEADLINE).unwrap());
    asked.recv_timeout(DEADLINE).expect("the move has begun");
    let refused = supervised.refused(rewrap_request(&key_file_kek(9), 0));
    assert!(refused.contains("being moved"), "{refused}");
    assert!(!moving.is_finished() && supervised.status().worker_pid.is_none());
    speak.send(()).unwrap();
    let moved = moving.join().unwrap();
    assert!(matches!(moved, Answer::Rewrapped { kek, .. } if kek == to.id()), "{moved:?}");
    // A worker is started under the new key; the old one is nobody's any more.
    assert_ne!(supervised.worker(), worker);
    assert_eq!(supervised.status().key.unwrap().key.as_str(), "4712");
    assert!(leases.kek(&provider_key("4711")).is_none() && leases.kek(&provider_key("4712")).is_some());
    supervised.end();
}

#[test]
fn where_it_is_set_up_so_a_revocation_ends_the_exposure_in_order() {
    let (supervised, leases) = Supervised::start_provided(OneKey(7));
    supervised.worker();
    leases.state.lock().unwrap().on_revocation = OnRevocation::Stop;
    leases.now(LeaseState::Revoked { how: RevokedHow::Destroyed });
    let volume = supervised.volume();
    let ended = supervised.thread.join().unwrap().unwrap_err();
    assert!(matches!(ended, SuperviseError::Revoked { how: RevokedHow::Destroyed }), "{ended}");
    delete(&volume, LOCK_WAIT).unwrap();
}
