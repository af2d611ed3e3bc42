//! One volume, driven by the program's command line, and the process that exposes it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::error::SoakError;
use super::kind::Kind;
use super::small_disk::SmallDisk;
use super::tools::{COMMAND_TIMEOUT, LOOK_PERIOD, birth_of, end_of, run, signal_worker, workers_of};
use crate::programs::make_secret;

/// The initial size of a volume.
pub const BYTES_FIRST: u64 = 64 << 20;
/// The size of one growth.
const GROWTH_BYTES: u64 = 8 << 20;
/// Its maximum size, because all of it is read at the end.
const BYTES_MAX: u64 = 256 << 20;
/// How long to wait for an earlier worker that still holds the volume.
const LOCK_WAIT: &str = "60s";

/// A volume and the process that exposes it.
pub struct Volume {
    kind: Kind,
    program: PathBuf,
    directory: PathBuf,
    path: PathBuf,
    bytes: u64,
    keys: u32,
    server: Option<Child>,
    /// The process that exposes it; zero while there is none.
    supervisor: Arc<AtomicU32>,
    starts: u32,
    first_files: usize,
    /// The prefix of commands that enter the volume's mount namespace, and its path there, if it
    /// has its own namespace: commands that record the volume's path cannot use paths through
    /// /proc.
    inside: Option<(Vec<String>, PathBuf)>,
}

impl Volume {
    /// Makes a volume in `datastore`; its keys, logs and socket are in `directory`.
    pub fn create(kind: Kind, program: &Path, directory: &Path, datastore: &Path) -> Result<Self, SoakError> {
        let mut volume = Self {
            kind,
            program: program.to_owned(),
            directory: directory.to_owned(),
            path: datastore.join(kind.name()),
            bytes: BYTES_FIRST,
            keys: 0,
            server: None,
            supervisor: Arc::default(),
            starts: 0,
            first_files: 0,
            inside: None,
        };
        volume.make_key()?;
        let mut command = volume.command("create");
        command.args(["--size", &BYTES_FIRST.to_string()]).arg("--key-file").arg(volume.key_file());
        run(command.args(kind.create_arguments()))?;
        volume.first_files = volume.files()?.len();
        Ok(volume)
    }

    /// The same volume, from within a small file system.
    #[must_use]
    pub fn within(mut self, disk: &SmallDisk) -> Self {
        self.inside = Some((disk.enter(), disk.inside(&self.path)));
        self
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Its size in bytes, as its guest sees it.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The socket for clients.
    pub fn socket(&self) -> PathBuf {
        self.directory.join(format!("{}.sock", self.kind.name()))
    }

    /// The current process that exposes it; zero while there is none.
    pub fn supervisor(&self) -> Arc<AtomicU32> {
        Arc::clone(&self.supervisor)
    }

    /// Exposes it, and waits until clients can connect.
    pub fn expose(&mut self) -> Result<(), SoakError> {
        self.starts += 1;
        let (out, log) = (self.file("out"), self.log());
        let make = |path: &PathBuf| File::create(path).map_err(|error| SoakError::file("make", path, error));
        // None of its processes may outlive the soak, even if that is killed.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]).arg(&self.program).args(["volume", "expose"]);
        command.arg(&self.path).args(["--lock-wait", LOCK_WAIT, "--key-file"]).arg(self.key_file());
        command.arg("--vhost-user").arg(format!("unix:{}", self.socket().display()));
        command.env("STRONGROOM_HOME", self.directory.join("home")).env_remove("STRONGROOM_LOG");
        let stdout = make(&out)?;
        let log_file = File::options().create(true).append(true).open(&log);
        let stderr = log_file.map_err(|error| SoakError::file("make", &log, error))?;
        let spawned = command.stdin(Stdio::null()).stdout(stdout).stderr(stderr).spawn();
        let server = spawned.map_err(|error| SoakError::Program { program: "setpriv".to_owned(), error })?;
        self.supervisor.store(server.id(), Ordering::SeqCst);
        self.server = Some(server);
        let socket = self.socket().display().to_string();
        self.wait("that it is exposed", |volume| {
            let said = fs::read_to_string(volume.file("out")).unwrap_or_default();
            Ok(said.lines().next() == Some(&socket) && said.contains('\n'))
        })
    }

    /// Ends its exposure like a user would, and waits for the end.
    pub fn close(&mut self) -> Result<(), SoakError> {
        let Some(server) = &self.server else { return Ok(()) };
        if let Some(pid) = Pid::from_raw(server.id().cast_signed()) {
            // It has not been reaped, so its id is still its own.
            kill_process(pid, Signal::TERM)
                .map_err(|errno| SoakError::file("end the server of", &self.path, errno.into()))?;
        }
        let until = Instant::now() + COMMAND_TIMEOUT;
        loop {
            match self.ended()? {
                Some(status) if status.success() => break,
                Some(status) => return Err(self.has_ended(status)),
                None if Instant::now() > until => return Err(self.late("the end of its exposure")),
                None => thread::sleep(LOOK_PERIOD),
            }
        }
        self.server = None;
        self.supervisor.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Checks all of it with the program.
    pub fn check(&self) -> Result<(), SoakError> {
        run(self.command("check").args(["--lock-wait", LOCK_WAIT, "--key-file"]).arg(self.key_file()))
            .map(drop)
    }

    /// Grows it; returns whether there was room.
    pub fn grow(&mut self) -> Result<bool, SoakError> {
        let bytes = self.bytes + GROWTH_BYTES;
        if bytes > BYTES_MAX {
            return Ok(false);
        }
        run(self.command("resize").args(["--size", &bytes.to_string()]))?;
        self.bytes = bytes;
        Ok(true)
    }

    /// Replaces its key, and deletes the old one.
    pub fn rekey(&mut self) -> Result<(), SoakError> {
        let old = self.key_file();
        self.make_key()?;
        let mut command = self.command("rekey");
        if let Some((enter, path)) = &self.inside {
            command = Command::new(&enter[0]);
            command.args(&enter[1..]).arg(&self.program).args(["volume", "rekey"]).arg(path);
            command.env("STRONGROOM_HOME", self.directory.join("home"));
        }
        run(command.arg("--kek").arg("--to-key-file").arg(self.key_file()))?;
        fs::remove_file(&old).map_err(|error| SoakError::file("delete", old, error))
    }

    /// Replaces its worker in order.
    pub fn upgrade(&self) -> Result<(), SoakError> {
        run(&mut self.command("upgrade")).map(drop)
    }

    /// The state in the output of `volume info`: `running`, `parked`.
    pub fn state(&self) -> Result<String, SoakError> {
        let mut command = self.command("info");
        let answer = run(command.arg("--json"))?;
        let info: Option<Value> = serde_json::from_str(&answer).ok();
        let state = info.as_ref().and_then(|info| info["exposure"]["condition"]["state"].as_str());
        match state {
            Some(state) => Ok(state.to_owned()),
            // Between two workers there may be no answer.
            None if info.is_some() => Ok(String::new()),
            None => Err(SoakError::Answer { command: "volume info".to_owned(), answer }),
        }
    }

    /// Waits until it has exactly one worker other than `other`, and returns that.
    pub fn worker(&mut self, other: Option<u32>) -> Result<u32, SoakError> {
        let mut found = 0;
        self.wait("a worker of it", |volume| {
            let mut workers = workers_of(volume.supervisor_id());
            workers.retain(|worker| birth_of(*worker).is_some());
            found = workers.first().copied().unwrap_or_default();
            Ok(workers.len() == 1 && Some(found) != other)
        })?;
        Ok(found)
    }

    /// The process that exposes it.
    pub fn supervisor_id(&self) -> u32 {
        self.supervisor.load(Ordering::SeqCst)
    }

    /// Waits for a condition, while the volume is exposed.
    pub fn wait(
        &mut self,
        what: &str,
        mut is_so: impl FnMut(&Self) -> Result<bool, SoakError>,
    ) -> Result<(), SoakError> {
        let until = Instant::now() + COMMAND_TIMEOUT;
        while !is_so(self)? {
            if let Some(status) = self.ended()? {
                return Err(self.has_ended(status));
            }
            if Instant::now() > until {
                return Err(self.late(what));
            }
            thread::sleep(LOOK_PERIOD);
        }
        Ok(())
    }

    /// Deletes it; returns leftovers in its place, and unexpected files found in it before.
    pub fn delete(&self) -> Result<Vec<String>, SoakError> {
        let files = self.files()?;
        let mut left = if files.len() == self.first_files { Vec::new() } else { files };
        run(self.command("delete").arg("--yes"))?;
        left.extend(self.path.exists().then(|| self.path.display().to_string()));
        let socket = self.socket();
        left.extend(socket.exists().then(|| socket.display().to_string()));
        Ok(left)
    }

    fn files(&self) -> Result<Vec<String>, SoakError> {
        let failed = |error| SoakError::file("list", &self.path, error);
        let entries = fs::read_dir(&self.path).map_err(failed)?;
        let mut names = entries
            .map(|entry| Ok(entry.map_err(failed)?.path().display().to_string()))
            .collect::<Result<Vec<_>, SoakError>>()?;
        names.sort();
        Ok(names)
    }

    fn ended(&mut self) -> Result<Option<ExitStatus>, SoakError> {
        let Some(server) = &mut self.server else { return Ok(None) };
        server.try_wait().map_err(|error| SoakError::file("wait for the server of", &self.path, error))
    }

    fn has_ended(&self, status: ExitStatus) -> SoakError {
        SoakError::Ended { volume: self.kind.name().to_owned(), status, said: end_of(&self.log()) }
    }

    fn late(&self, what: &str) -> SoakError {
        let (volume, what) = (self.kind.name().to_owned(), what.to_owned());
        SoakError::Late { volume, what, within: COMMAND_TIMEOUT }
    }

    fn command(&self, verb: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["volume", verb]).arg(&self.path);
        command.env("STRONGROOM_HOME", self.directory.join("home")).env_remove("STRONGROOM_LOG");
        command
    }

    fn make_key(&mut self) -> Result<(), SoakError> {
        self.keys += 1;
        let path = self.key_file();
        let failed = |error| SoakError::file("make", &path, std::io::Error::other(error));
        make_secret(&path).map_err(|error| failed(error.to_string()))
    }

    fn key_file(&self) -> PathBuf {
        self.file(&format!("key{}", self.keys))
    }

    fn log(&self) -> PathBuf {
        self.file("log")
    }

    fn file(&self, end: &str) -> PathBuf {
        self.directory.join(format!("{}.{end}", self.kind.name()))
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let Some(server) = &mut self.server else { return };
        for worker in workers_of(server.id()) {
            // A stopped worker could not end.
            let _ = signal_worker(server.id(), worker, Signal::CONT);
        }
        if let Some(pid) =
            Pid::from_raw(server.id().cast_signed()).filter(|_| matches!(server.try_wait(), Ok(None)))
        {
            let _ = kill_process(pid, Signal::TERM);
            let until = Instant::now() + Duration::from_secs(30);
            while matches!(server.try_wait(), Ok(None)) && Instant::now() < until {
                thread::sleep(LOOK_PERIOD);
            }
        }
        let _ = server.kill();
        let _ = server.wait();
    }
}
