//! A QEMU with a counting guest, or with room for one that comes, in a network namespace.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::guest::{CountingGuest, GuestMemory};
use crate::link::Apart;
use crate::programs::{ProgramError, option_value};
use crate::service::Service;
use crate::study::SubjectError;

/// The least size of a floppy disk that firmware boots from.
const FLOPPY_BYTES: usize = 1440 << 10;
/// Timeout of an answer of QEMU's monitor, and of its guest's first count.
const WITHIN: Duration = Duration::from_secs(120);

/// A QEMU.
pub struct Qemu {
    /// Its process.
    pub service: Service,
    memory_bytes: u64,
    monitor: BufReader<UnixStream>,
}

/// What is started with a QEMU.
pub struct Machine<'a> {
    /// The guest.
    pub guest: CountingGuest,
    /// The disk that it boots from.
    pub disk: &'a Path,
    /// For the monitor's socket and the log; a short path.
    pub directory: &'a Path,
    /// More arguments.
    pub more: Vec<String>,
}

/// Writes the disk of a guest.
///
/// # Errors
/// The system's.
pub fn write_disk(guest: CountingGuest, path: &Path) -> Result<(), ProgramError> {
    let mut content = guest.boot_sector().to_vec();
    content.resize(FLOPPY_BYTES, 0);
    let failed = |error| ProgramError::File { action: "write", path: path.to_owned(), error };
    fs::write(path, content).map_err(failed)
}

impl Qemu {
    /// Starts one at an end of a link.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start(
        name: &str,
        (apart, end): (&Apart, usize),
        machine: &Machine<'_>,
        stop: &AtomicBool,
    ) -> Result<Self, SubjectError> {
        let place = |what: &str| machine.directory.join(format!("{name}.{what}"));
        let socket: PathBuf = place("qmp");
        let _ = fs::remove_file(&socket);
        let mut command = apart.command(end, "qemu-system-x86_64");
        command.args(["-nodefaults", "-display", "none", "-machine", "pc", "-accel", "tcg"]);
        command.args(["-m", &format!("{}M", machine.guest.memory_mib())]);
        let disk = option_value(machine.disk);
        command.args(["-drive", &format!("if=floppy,format=raw,readonly=on,file={disk}")]);
        command.args(["-qmp", &format!("unix:{},server=on,wait=off", option_value(&socket))]);
        command.args(&machine.more);
        let mut service = Service::start(name, command, &socket, &place("log"))?;
        let monitor = service.connect(stop, |socket| match UnixStream::connect(socket) {
            Ok(monitor) => Ok(Some(monitor)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        })?;
        monitor.set_read_timeout(Some(WITHIN))?;
        let memory_bytes = u64::from(machine.guest.memory_mib()) << 20;
        let mut qemu = Self { service, memory_bytes, monitor: BufReader::new(monitor) };
        // Its greeting.
        qemu.monitor.read_line(&mut String::new())?;
        qemu.execute("qmp_capabilities", &json!({}))?;
        Ok(qemu)
    }

    /// Executes a command of its monitor.
    ///
    /// # Errors
    /// If it refuses, or is gone.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, SubjectError> {
        writeln!(self.monitor.get_mut(), "{}", json!({ "execute": command, "arguments": arguments }))?;
        loop {
            let mut line = String::new();
            if self.monitor.read_line(&mut line)? == 0 {
                return Err(format!("{} is gone: {}", self.service.name(), self.service.said()).into());
            }
            let mut answer: Value = serde_json::from_str(&line)?;
            if let Some(done) = answer.get_mut("return") {
                return Ok(done.take());
            }
            if let Some(error) = answer.get("error") {
                return Err(format!("{}: {command}: {error}", self.service.name()).into());
            }
        }
    }

    /// The memory of its guest, as soon as it has some.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn memory(&self) -> Result<GuestMemory, SubjectError> {
        let id = self.service.process_ids().next().ok_or("it has no process")?;
        Ok(GuestMemory::of(id, self.memory_bytes)?)
    }

    /// Waits until its guest counts.
    ///
    /// # Errors
    /// If it does not.
    pub fn await_guest(&self) -> Result<(), SubjectError> {
        let (memory, until) = (self.memory()?, Instant::now() + WITHIN);
        while memory.counts()?.ticks == 0 {
            if Instant::now() > until {
                return Err(format!("the guest of {} does not count", self.service.name()).into());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}
