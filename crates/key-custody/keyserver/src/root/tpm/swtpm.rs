//! A software TPM for one test, and an interposer on its bus.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::TpmDevice;

const START_DEADLINE: Duration = Duration::from_secs(60);

/// An swtpm with its own state; ended on drop.
pub struct Swtpm {
    directory: TempDir,
    process: Child,
    states: u32,
}

impl Swtpm {
    pub fn start() -> Self {
        let directory = TempDir::new().unwrap();
        let process = spawn(directory.path(), 0);
        Self { directory, process, states: 0 }
    }

    pub fn device(&self) -> TpmDevice {
        TpmDevice::Socket { path: self.socket() }
    }

    /// Runs one of the standard tools on it.
    pub fn tool(&self, arguments: &[&str]) {
        let output = Command::new(arguments[0])
            .args(&arguments[1..])
            .env("TPM2TOOLS_TCTI", format!("swtpm:path={}", self.socket().display()))
            .output()
            .expect("tpm2-tools are installed by scripts/install-packages test");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    /// Like a reboot: PCRs are reset, seeds stay.
    pub fn restart(&mut self) {
        self.end();
        self.process = spawn(self.directory.path(), self.states);
    }

    /// Like another machine's TPM.
    pub fn replace_by_another(&mut self) {
        self.end();
        self.states += 1;
        self.process = spawn(self.directory.path(), self.states);
    }

    fn end(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// TPM2_PCR_Extend with the empty password.
    pub fn extend_pcr(&self, pcr: u32) {
        let mut body = pcr.to_be_bytes().to_vec();
        body.extend(empty_password());
        body.extend(1_u32.to_be_bytes());
        body.extend(0x000b_u16.to_be_bytes());
        body.extend([0x5a; 32]);
        self.command(0x182, &body);
    }

    /// TPM2_HierarchyChangeAuth of the owner.
    pub fn set_owner_password(&self, password: &[u8]) {
        let mut body = 0x4000_0001_u32.to_be_bytes().to_vec();
        body.extend(empty_password());
        body.extend((password.len() as u16).to_be_bytes());
        body.extend(password);
        self.command(0x129, &body);
    }

    fn command(&self, code: u32, body: &[u8]) {
        let mut command = 0x8002_u16.to_be_bytes().to_vec();
        command.extend((10 + body.len() as u32).to_be_bytes());
        command.extend(code.to_be_bytes());
        command.extend(body);
        let mut stream = UnixStream::connect(self.socket()).unwrap();
        stream.write_all(&command).unwrap();
        let response = read_message(&mut stream).unwrap();
        assert_eq!(response[6..10], [0; 4], "TPM command {code:#x} failed");
    }
}

impl Drop for Swtpm {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(directory: &Path, state: u32) -> Child {
    let state_directory = directory.join(format!("state-{state}"));
    fs::create_dir_all(&state_directory).unwrap();
    let socket = directory.join("socket");
    for left in [socket.clone(), directory.join("socket.ctrl")] {
        let _ = fs::remove_file(left);
    }
    let mut process = Command::new("swtpm")
        .args(["socket", "--tpm2", "--flags", "not-need-init,startup-clear"])
        .arg("--tpmstate")
        .arg(format!("dir={}", state_directory.display()))
        .arg("--server")
        .arg(format!("type=unixio,path={}", socket.display()))
        // Beside the command socket, where the standard tools expect it.
        .arg("--ctrl")
        .arg(format!("type=unixio,path={}.ctrl", socket.display()))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("swtpm is installed by scripts/install-packages test");
    let deadline = Instant::now() + START_DEADLINE;
    while UnixStream::connect(&socket).is_err() {
        assert!(process.try_wait().unwrap().is_none(), "swtpm ended");
        assert!(Instant::now() < deadline, "swtpm does not listen");
        thread::yield_now();
    }
    process
}

/// The authorisation area of the empty password.
fn empty_password() -> Vec<u8> {
    let mut area = 9_u32.to_be_bytes().to_vec();
    area.extend(0x4000_0009_u32.to_be_bytes());
    area.extend([0; 5]);
    area
}

fn read_message(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let mut message = vec![0; 10];
    stream.read_exact(&mut message).ok()?;
    let length = u32::from_be_bytes(message[2..6].try_into().unwrap()) as usize;
    message.resize(length, 0);
    stream.read_exact(&mut message[10..]).ok()?;
    Some(message)
}

/// Sits on the bus: records all traffic, and changes one response if requested.
pub struct Recorder {
    directory: TempDir,
    thread: JoinHandle<Vec<u8>>,
    stop: mpsc::Sender<()>,
}

impl Recorder {
    pub fn start(tpm: &Swtpm) -> Self {
        Self::new(tpm, None)
    }

    /// Flips the last bit of response `number` of each connection, counted from zero.
    pub fn tampering(tpm: &Swtpm, number: usize) -> Self {
        Self::new(tpm, Some(number))
    }

    fn new(tpm: &Swtpm, tampered: Option<usize>) -> Self {
        let directory = TempDir::new().unwrap();
        let listener = UnixListener::bind(directory.path().join("socket")).unwrap();
        let (stop, stopped) = mpsc::channel();
        let socket = tpm.socket();
        let thread = thread::spawn(move || {
            let mut recorded = Vec::new();
            loop {
                let (mut client, _) = listener.accept().unwrap();
                if stopped.try_recv().is_ok() {
                    return recorded;
                }
                let mut tpm = UnixStream::connect(&socket).unwrap();
                let mut number = 0;
                while let Some(command) = read_message(&mut client) {
                    tpm.write_all(&command).unwrap();
                    let mut response = read_message(&mut tpm).unwrap();
                    recorded.extend_from_slice(&command);
                    recorded.extend_from_slice(&response);
                    if tampered == Some(number) {
                        *response.last_mut().unwrap() ^= 1;
                    }
                    number += 1;
                    if client.write_all(&response).is_err() {
                        break;
                    }
                }
            }
        });
        Self { directory, thread, stop }
    }

    pub fn device(&self) -> TpmDevice {
        TpmDevice::Socket { path: self.directory.path().join("socket") }
    }

    /// Stops, and returns the recorded traffic.
    pub fn stop(self) -> Vec<u8> {
        self.stop.send(()).unwrap();
        UnixStream::connect(self.directory.path().join("socket")).unwrap();
        self.thread.join().unwrap()
    }
}
