//! A disk that can hang, fail and vanish: a loop device over a file that qemu-storage-daemon
//! exports through FUSE. (Test machines may lack device-mapper; mounting needs root in any case.)

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use rustix::process::Signal;
use serde_json::{Value, json};
use strongroom_system_tests::{Process, Scratch};

use super::{DEADLINE, Mounts};

/// The disk, a file system on it, and the daemon between.
pub struct DyingDisk<'test> {
    scratch: &'test Scratch,
    mounts: &'test Mounts<'test>,
    name: String,
    daemon: Option<Process>,
    device: String,
}

impl<'test> DyingDisk<'test> {
    /// A disk of this many MiB with a file system, mounted at [`Self::place`].
    #[track_caller]
    pub fn new(
        scratch: &'test Scratch,
        mounts: &'test Mounts<'test>,
        name: &str,
        mib: u32,
        kind: &str,
    ) -> Self {
        scratch.make_directory(name);
        let mut disk = Self { scratch, mounts, name: name.to_owned(), daemon: None, device: String::new() };
        disk.shell(&format!("truncate --size {mib}M '{}'", disk.image().display()));
        disk.appear();
        let make = if kind == "ext4" { "mkfs.ext4 -q" } else { "mkfs.xfs -q" };
        disk.shell(&format!("{make} {0}; mount -t {kind} {0} '{1}'", disk.device, disk.place().display()));
        disk
    }

    /// Its mount point, in the mount namespace.
    pub fn place(&self) -> PathBuf {
        self.scratch.path(&self.name)
    }

    /// Makes every request hang while `meanwhile` runs.
    pub fn hang<T>(&self, meanwhile: impl FnOnce() -> T) -> T {
        self.daemon().signal(Signal::STOP);
        let done = meanwhile();
        self.daemon().signal(Signal::CONT);
        done
    }

    /// Makes requests of these kinds (`read`, `write`, `flush`) fail with EIO from now on.
    #[track_caller]
    pub fn fail(&self, kinds: &[&str]) {
        let faults: Vec<Value> = kinds
            .iter()
            .map(|kind| json!({ "event": "none", "iotype": kind, "errno": 5, "immediately": true, "once": false }))
            .collect();
        let faulty =
            json!({ "driver": "blkdebug", "node-name": "faulty", "image": "image", "inject-error": faults });
        let reopened = json!({ "options": [{ "driver": "raw", "node-name": "disk", "file": "faulty" }] });
        self.tell(&[("blockdev-add", faulty), ("blockdev-reopen", reopened)]);
    }

    /// Ends the failures. Earlier errors stay with the programs that received them.
    #[track_caller]
    pub fn heal(&self) {
        let reopened = json!({ "options": [{ "driver": "raw", "node-name": "disk", "file": "image" }] });
        self.tell(&[("blockdev-reopen", reopened), ("blockdev-del", json!({ "node-name": "faulty" }))]);
    }

    /// Removes the disk with all data that it has not written: every request fails from now on.
    #[track_caller]
    pub fn vanish(&mut self) {
        self.daemon.take().expect("a disk vanishes once").kill();
    }

    /// Unmounts it, as an operator does with a broken disk.
    #[track_caller]
    pub fn unmount(&mut self) {
        let (device, place) = (&self.device, self.place());
        // A process that used it may take a moment to be gone.
        self.shell(&format!(
            "n=0; until umount '{0}'; do n=$((n+1)); [ $n -lt 200 ]; sleep 0.1; done; losetup --detach {device}",
            place.display()
        ));
        self.device.clear();
    }

    /// Brings the disk back, repaired and mounted.
    #[track_caller]
    pub fn come_back(&mut self, kind: &str) {
        if let Some(daemon) = self.daemon.take() {
            daemon.kill();
        }
        self.appear();
        let (device, place) = (&self.device, self.place());
        // e2fsck exits with 1 after a repair.
        let repair = match kind {
            "ext4" => format!("e2fsck -p {device} || [ $? -le 1 ]"),
            // XFS replays its log when it is mounted.
            _ => "true".to_owned(),
        };
        self.shell(&format!("{repair}; mount -t {kind} {device} '{}'", place.display()));
    }

    /// Starts the daemon, and puts a loop device over what it exports.
    #[track_caller]
    fn appear(&mut self) {
        let export = self.scratch.path(&format!("{}.export", self.name));
        self.shell(&format!("umount --lazy '{0}' 2>/dev/null || true; touch '{0}'", export.display()));
        let mut command = self.mounts.command();
        let path = |path: &Path| path.display().to_string();
        command.args(["setpriv", "--pdeathsig", "KILL", "--", "qemu-storage-daemon", "--chardev"]);
        command.arg(format!("socket,id=monitor,path={},server=on,wait=off", path(&self.monitor())));
        command.args(["--monitor", "chardev=monitor", "--blockdev"]);
        command.arg(format!("driver=file,node-name=image,filename={},discard=unmap", path(&self.image())));
        command.args(["--blockdev", "driver=raw,node-name=disk,file=image", "--export"]);
        command.arg(format!("type=fuse,id=export,node-name=disk,mountpoint={},writable=on", path(&export)));
        self.daemon = Some(Process::start(self.scratch, &format!("daemon-{}", self.name), &command));
        // It answers when the export exists.
        self.tell(&[("query-block-exports", json!({}))]);
        self.device = self.shell(&format!("losetup --find --show '{}'", export.display())).trim().to_owned();
    }

    /// Sends commands to the daemon.
    #[track_caller]
    fn tell(&self, commands: &[(&str, Value)]) {
        let until = Instant::now() + DEADLINE;
        let stream = loop {
            match UnixStream::connect(self.monitor()) {
                Ok(stream) => break stream,
                Err(error) => assert!(Instant::now() < until, "the daemon does not listen: {error}"),
            }
            std::thread::yield_now();
        };
        stream.set_read_timeout(Some(DEADLINE)).expect("a socket has a timeout");
        let (mut answers, mut orders) = (BufReader::new(&stream), &stream);
        let mut answer = || {
            let mut line = String::new();
            answers.read_line(&mut line).unwrap_or_else(|error| panic!("the daemon: {error}"));
            serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{error} in {line:?}"))
        };
        answer();
        for (command, arguments) in [("qmp_capabilities", json!({}))].iter().chain(commands) {
            writeln!(orders, "{}", json!({ "execute": command, "arguments": arguments }))
                .expect("the daemon hears");
            let answered = answer();
            assert!(answered.get("return").is_some(), "{command}: {answered}");
        }
    }

    #[track_caller]
    fn shell(&self, script: &str) -> String {
        self.mounts.run(script).success()
    }

    fn daemon(&self) -> &Process {
        self.daemon.as_ref().expect("the disk has not vanished")
    }

    fn image(&self) -> PathBuf {
        self.scratch.path(&format!("{}.img", self.name))
    }

    fn monitor(&self) -> PathBuf {
        self.scratch.path(&format!("{}.monitor", self.name))
    }
}

impl Drop for DyingDisk<'_> {
    fn drop(&mut self) {
        if self.device.is_empty() {
            return;
        }
        if let Some(daemon) = &self.daemon {
            daemon.signal(Signal::CONT);
        }
        // Whatever the result of the test, no loop device stays behind: it is detached when it is
        // no longer used.
        let mut command = Command::new("losetup");
        let _ = command.args(["--detach", &self.device]).status();
    }
}
