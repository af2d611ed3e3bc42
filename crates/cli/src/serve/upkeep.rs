//! Periodic work of the control plane's process: it renews certificates before they expire, and
//! rotates keys that are due.
//!
//! All of it can be killed at any moment and is repeated: a renewal leaves a certificate and its
//! key, and a rotation continues with its new key.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use strongroom_api::{ObjectKind, ObjectRef};
use strongroom_control::engine::Control;
use strongroom_files::FileError;
use strongroom_types::counted;

use super::identity::Identity;
use crate::error::CliError;
use crate::keyserver::ServerSettings;

/// The interval of checks of certificates. They are renewed 30 days before they expire, so a day
/// without a key server does no harm.
const CERTIFICATES_EVERY: Duration = Duration::from_secs(3600);
/// The interval of checks for due keys. Cryptoperiods are counted in days.
const KEYS_EVERY: Duration = Duration::from_secs(86_400);
/// The interval after a failure.
const AGAIN_AFTER: Duration = Duration::from_secs(300);
/// The delay of the first check: VMs come first.
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// The thread for periodic work.
pub struct Upkeep {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The inputs of the periodic work.
pub struct UpkeepOf {
    /// Gets events about the work.
    pub control: Arc<Control>,
    /// The machine's home.
    pub home: PathBuf,
    /// The identities whose certificates are renewed.
    pub identities: Vec<Identity>,
}

impl Upkeep {
    /// Starts the thread.
    pub fn start(of: UpkeepOf) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new().name("upkeep".to_owned()).spawn(move || of.run(&ended))?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        drop(self.end.take());
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the upkeep has panicked");
        }
    }
}

impl UpkeepOf {
    fn run(&self, ended: &Receiver<()>) {
        let first = Instant::now() + FIRST_AFTER;
        let (mut certificates_at, mut keys_at) = (first, first);
        loop {
            let next = certificates_at.min(keys_at).saturating_duration_since(Instant::now());
            if ended.recv_timeout(next) != Err(RecvTimeoutError::Timeout) {
                return;
            }
            let now = Instant::now();
            if now >= certificates_at {
                certificates_at = now + if self.renew() { CERTIFICATES_EVERY } else { AGAIN_AFTER };
            }
            if now >= keys_at {
                keys_at = now + if self.rotate(ended) { KEYS_EVERY } else { AGAIN_AFTER };
            }
        }
    }

    /// Renews certificates that expire soon. Returns whether nothing is left to do.
    fn renew(&self) -> bool {
        let directory = self.home.join("keyserver");
        let server = match ServerSettings::read(&directory) {
            Ok(server) => server,
            Err(error) => {
                tracing::warn!("certificates cannot be renewed: {error}");
                return false;
            }
        };
        let mut all = true;
        for identity in &self.identities {
            match identity.ensure(&server, &directory) {
                Ok(true) => {
                    self.note("certificate.renewed", format!("the certificate of {identity} was renewed"))
                }
                Ok(false) => {}
                Err(error) => {
                    all = false;
                    tracing::warn!("the certificate of {identity} cannot be renewed: {error}");
                }
            }
        }
        all
    }

    /// Rotates the keys that are due: those of VMs by tasks; those of other volumes by a process
    /// that runs `strongroom key rotate --all-due`. Returns whether nothing is left to do.
    fn rotate(&self, ended: &Receiver<()>) -> bool {
        let vms = self.control.rotate_due_keys();
        if vms > 0 {
            self.note(
                "key.rotating",
                format!("the keys of {} are due, and are being rotated", counted(vms, "VM")),
            );
        }
        match self.rotated(ended) {
            Ok(Some(rotated)) => {
                for one in &rotated.rotated {
                    let volumes = counted(one.moved.len(), "volume");
                    let (done, kind) = if one.finished {
                        ("was rotated", "key.rotated")
                    } else {
                        ("is being rotated", "key.rotating")
                    };
                    self.note(kind, format!("key {} of {} {done}: {volumes} moved", one.key, one.provider));
                }
                rotated.finished
            }
            Ok(None) => true,
            Err(error) => {
                tracing::warn!("keys that are due cannot be rotated: {error}");
                false
            }
        }
    }

    fn rotated(&self, ended: &Receiver<()>) -> Result<Option<Rotated>, CliError> {
        let program = std::env::current_exe().unwrap_or_else(|_| "/proc/self/exe".into());
        let failed = |error| CliError::File(FileError { action: "run", path: program.clone(), error });
        let mut child = Command::new(&program)
            .args(["--json", "key", "rotate", "--all-due", "--home"])
            .arg(&self.home)
            .arg("--ends-with")
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let stdout = child.stdout.take();
        let (say, said) = channel();
        let reader = std::thread::spawn(move || {
            let answer: Option<Value> = stdout.and_then(|stdout| serde_json::from_reader(stdout).ok());
            let _ = say.send(answer);
        });
        let answer = loop {
            match said.recv_timeout(Duration::from_secs(1)) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            // It continues at our next start.
            if ended.try_recv() != Err(std::sync::mpsc::TryRecvError::Empty) {
                let _ = child.kill();
                let _ = child.wait();
                let _ = reader.join();
                return Ok(None);
            }
        };
        let status = child.wait().map_err(failed)?;
        let _ = reader.join();
        let rotated = answer.and_then(|answer| serde_json::from_value(answer).ok());
        rotated.map(Some).ok_or_else(|| {
            CliError::Usage(format!("`key rotate --all-due` ended ({status}); what it said is above"))
        })
    }

    fn note(&self, kind: &str, message: String) {
        tracing::info!("{message}");
        let object = ObjectRef { kind: ObjectKind::Control, id: None, name: "upkeep".to_owned() };
        if let Err(failure) = self.control.tell(kind, &object, &message) {
            tracing::warn!(%failure, "an event cannot be written down");
        }
    }
}

/// The answer of `key rotate`, as far as it is used.
#[derive(Deserialize)]
struct Rotated {
    rotated: Vec<RotatedKey>,
    finished: bool,
}

#[derive(Deserialize)]
struct RotatedKey {
    provider: String,
    key: String,
    moved: Vec<Value>,
    finished: bool,
}
