//! A machine with a key server, a service for devices, and a person.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take.
pub const DEADLINE: Duration = Duration::from_secs(90);

/// Ends everything that it started on drop, its devices as well.
pub struct Machine {
    directory: TempDir,
    kmip: String,
    enrolment: String,
    keyserver: Option<Child>,
    service: Option<Child>,
}

/// A machine, or `None` where there can be no devices.
pub fn machine() -> Option<Machine> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
        println!("skipped: devices need root, /dev/fuse and /dev/loop-control");
        return None;
    }
    let directory = tempfile::Builder::new().prefix("devices-").tempdir().unwrap();
    for name in ["home", "run", "ds"] {
        std::fs::create_dir(directory.path().join(name)).unwrap();
    }
    let free = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [kmip, enrolment] = free.each_ref().map(|listener| listener.local_addr().unwrap().to_string());
    drop(free);
    let mut machine = Machine { directory, kmip, enrolment, keyserver: None, service: None };
    machine.start_keyserver();
    Some(machine)
}

/// A name that no other test's device has: names under /dev are the machine's.
pub fn name(of: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{of}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Waits until `is_so`.
#[track_caller]
pub fn wait_until(awaited: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !is_so() {
        assert!(Instant::now() < until, "not within {DEADLINE:?}: {awaited}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Machine {
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let program = std::env::var_os("STRONGROOM_BIN").expect("STRONGROOM_BIN names the program");
        let mut command = Command::new(program);
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        command.env("STRONGROOM_HOME", self.path("home")).env("STRONGROOM_RUN", self.path("run"));
        command
    }

    #[track_caller]
    pub fn runs(&self, words: &[&str]) -> String {
        let ran = self.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{words:?}: {said}{}", String::from_utf8_lossy(&ran.stdout));
        String::from_utf8(ran.stdout).unwrap()
    }

    #[track_caller]
    pub fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.runs(&[&["--json"], words].concat())).unwrap()
    }

    #[track_caller]
    pub fn is_refused(&self, words: &[&str], with: &str) {
        let ran = self.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && said.contains(with), "{words:?}: {said}");
    }

    pub fn start(&self, words: &[&str]) -> Child {
        self.command(words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    pub fn start_keyserver(&mut self) {
        let words = ["keyserver", "run", "--listen", &self.kmip, "--listen-enrolment", &self.enrolment]
            .map(str::to_owned);
        let words = words.each_ref().map(String::as_str);
        let log = File::create(self.path("keyserver.log")).unwrap();
        let mut server = self.command(&words).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let lines = BufReader::new(server.stdout.take().unwrap()).lines().map_while(Result::ok);
        let serves = lines.take_while(|line| !line.contains("serves keys until")).count();
        assert!(server.try_wait().unwrap().is_none(), "the key server ended after {serves} lines");
        self.keyserver = Some(server);
    }

    pub fn kill_keyserver(&mut self) {
        end(&mut self.keyserver, Signal::KILL);
    }

    pub fn start_service(&mut self) {
        let log = File::options().create(true).append(true).open(self.path("service.log")).unwrap();
        let mut serve = self.command(&["device", "serve"]);
        self.service = Some(serve.stdout(Stdio::null()).stderr(log).spawn().unwrap());
        let lock = self.path("run/devices/.service.lock");
        wait_until("the service has its lock", || {
            let id = self.service.as_ref().map(Child::id).unwrap().to_string();
            std::fs::read_to_string(&lock).is_ok_and(|pid| pid == id)
        });
    }

    pub fn kill_service(&mut self) {
        end(&mut self.service, Signal::KILL);
    }

    pub fn stop_service(&mut self) {
        end(&mut self.service, Signal::TERM);
    }

    /// Creates a device of this size, under the embedded key server's key.
    #[track_caller]
    pub fn create(&self, name: &str, size: &str, more: &[&str]) {
        let words = ["device", "create", name, "--on", "ds", "--size", size, "--key-provider", "embedded"];
        self.runs(&[&words[..], more].concat());
    }

    /// The device as it is listed.
    #[track_caller]
    pub fn listed(&self, name: &str) -> Value {
        self.json(&["device", "list", name])[0].clone()
    }

    pub fn state(&self, name: &str) -> String {
        self.listed(name)["status"]["state"].as_str().unwrap_or("detached").to_owned()
    }

    #[track_caller]
    pub fn awaits(&self, name: &str, state: &str) {
        wait_until(&format!("{name} is {state}"), || self.state(name) == state);
    }

    pub fn device_process(&self, name: &str) -> Pid {
        let pid = self.listed(name)["status"]["pid"].as_i64().expect("it has a process");
        Pid::from_raw(pid.try_into().unwrap()).unwrap()
    }

    pub fn supervisor(&self, name: &str) -> Option<Pid> {
        child_of(self.device_process(name))
    }

    pub fn worker(&self, name: &str) -> Option<Pid> {
        self.supervisor(name).and_then(child_of).and_then(child_of)
    }

    /// Kills one of a device's processes, and waits for the next one.
    #[track_caller]
    pub fn kills(&self, find: impl Fn() -> Option<Pid>) {
        wait_until("there is one to kill", || find().is_some());
        let killed = find().unwrap();
        kill_process(killed, Signal::KILL).unwrap();
        wait_until("it has a successor", || find().is_some_and(|found| found != killed));
    }

    pub fn requests(&self, name: &str, operation: &str) -> u64 {
        let info = self.json(&["volume", "info", &format!("ds/{name}")]);
        info["statistics"]["operations"][operation]["requests"].as_u64().unwrap_or_default()
    }
}

fn child_of(pid: Pid) -> Option<Pid> {
    let pid = pid.as_raw_nonzero();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
    children.split_whitespace().next()?.parse().ok().and_then(Pid::from_raw)
}

fn end(child: &mut Option<Child>, signal: Signal) {
    if let Some(mut child) = child.take() {
        let _ = kill_process(Pid::from_child(&child), signal);
        let _ = child.wait();
    }
}

/// Where a device is.
pub fn link(name: &str) -> PathBuf {
    Path::new("/dev/strongroom").join(name)
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for log in ["service.log", "keyserver.log"] {
                println!("{log}: {}", std::fs::read_to_string(self.path(log)).unwrap_or_default());
            }
        }
        // A service ends the device processes that a killed one has left.
        if self.service.is_none() && self.path("run/devices").exists() {
            self.start_service();
        }
        end(&mut self.service, Signal::TERM);
        end(&mut self.keyserver, Signal::TERM);
    }
}
