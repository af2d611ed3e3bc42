//! The project's test guest on a machine of this crate, driven over its serial console.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use strongroom_hypervisor::RunDirectory;
use strongroom_hypervisor::machine::{Boot, MachineSpec};

/// An emulated guest takes some seconds to boot, and several run at once.
const BOOTS_WITHIN: Duration = Duration::from_secs(120);
/// Timeout of a command in the guest.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// The arguments of scripts/run-guest, for a machine with one serial line.
const KERNEL_ARGUMENTS: &str = "console=ttyS0 quiet panic=-1 mitigations=off nokaslr cryptomgr.notests audit=0 lsm= \
    tsc=reliable no_timer_check session=protocol";

/// Built by scripts/build-guest, unless it is up to date.
pub fn guest_files() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(3).unwrap();
        let program = std::env::current_exe().unwrap();
        let directory = std::env::var_os("STRONGROOM_GUEST_DIR")
            .map_or_else(|| program.ancestors().nth(3).unwrap().join("guest"), PathBuf::from);
        let mut build = Command::new(repository.join("scripts/build-guest"));
        let built = build.env("STRONGROOM_GUEST_DIR", &directory).status().unwrap();
        assert!(built.success(), "scripts/build-guest: {built}");
        directory
    })
}

/// Adds the test guest to a machine.
pub fn with_guest(spec: MachineSpec) -> MachineSpec {
    let boot = Boot::DirectKernel {
        kernel: guest_files().join("vmlinux"),
        initrd: Some(guest_files().join("initramfs.cpio")),
        arguments: KERNEL_ARGUMENTS.to_owned(),
    };
    MachineSpec { boot, memory: "256M".parse().unwrap(), ..spec }
}

/// A serial console.
pub struct Console {
    socket: UnixStream,
    heard: String,
    commands: u32,
}

impl Console {
    pub fn connect(run: &RunDirectory) -> Self {
        let socket = UnixStream::connect(run.console()).unwrap();
        Self { socket, heard: String::new(), commands: 0 }
    }

    /// Waits for a text. Returns the output up to the end of the text.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str, within: Duration) -> String {
        let until = Instant::now() + within;
        loop {
            if let Some(position) = self.heard.find(text) {
                let rest = self.heard.split_off(position + text.len());
                return std::mem::replace(&mut self.heard, rest);
            }
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "the console has not said {text:?}, but: {}", self.heard);
            self.socket.set_read_timeout(Some(left)).unwrap();
            let mut bytes = [0; 4096];
            match self.socket.read(&mut bytes) {
                Ok(0) => panic!("the console is closed; it said: {}", self.heard),
                Ok(count) => self.heard.push_str(&String::from_utf8_lossy(&bytes[..count])),
                Err(error) => panic!("the console has not said {text:?}, but: {} ({error})", self.heard),
            }
        }
    }

    #[track_caller]
    pub fn wait_until_ready(&mut self) {
        self.wait_for("STRONGROOM-GUEST READY", BOOTS_WITHIN);
        self.wait_for("\n", ANSWERS_WITHIN);
    }

    pub fn send(&mut self, command: &str) -> String {
        self.commands += 1;
        let tag = format!("tag{}", self.commands);
        writeln!(self.socket, "{tag} {command}").unwrap();
        tag
    }

    /// Runs a command in the guest. Returns its output and status.
    #[track_caller]
    pub fn run(&mut self, command: &str) -> (String, i32) {
        let tag = self.send(command);
        let output = self.wait_for(&format!("\n{tag} "), ANSWERS_WITHIN);
        let status = self.wait_for("\n", ANSWERS_WITHIN);
        let output = output.strip_suffix(&format!("\n{tag} ")).unwrap_or(&output).trim();
        (output.to_owned(), status.trim().parse().unwrap())
    }

    /// Runs a command that must succeed.
    #[track_caller]
    pub fn must(&mut self, command: &str) -> String {
        let (output, status) = self.run(command);
        assert_eq!(status, 0, "{command}: {output}");
        output
    }
}
