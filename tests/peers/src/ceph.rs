//! A Ceph cluster of this machine.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tempfile::TempDir;

/// A cluster that runs: a monitor, a manager and devices in sparse files. It ends on drop, or when
/// the test's process does.
pub struct CephCluster {
    /// The configuration of `client.admin`.
    pub conf: PathBuf,
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    _directory: TempDir,
}

impl CephCluster {
    /// Starts a cluster of `osds` devices, with the pools of `scripts/ceph-cluster`.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start(osds: usize) -> Self {
        Self::start_with(&mut ceph_cluster(), &["--osds".to_owned(), osds.to_string()])
    }

    /// As [`start`](Self::start), with the daemons at an address of a network namespace, and no
    /// message in the clear.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_in(namespace: &str, address: &str, osds: usize) -> Self {
        // Programs are downloaded where there is a network.
        let found = Command::new(scripts().join("ceph-programs")).stdout(Stdio::null()).status();
        assert!(found.expect("scripts/ceph-programs starts").success(), "Ceph's programs are not there");
        let mut command = Command::new("ip");
        command.args(["netns", "exec", namespace]).arg(scripts().join("ceph-cluster"));
        let options = ["--address", address, "--secure", "--osds", &osds.to_string()];
        Self::start_with(&mut command, &options.map(str::to_owned))
    }

    /// As [`start`](Self::start), with one daemon on each of these block devices.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn start_on(devices: &[PathBuf]) -> Self {
        let paths = devices.iter().map(|device| device.display().to_string());
        let counted = ["--osds".to_owned(), devices.len().to_string(), "--devices".to_owned()];
        Self::start_with(&mut ceph_cluster(), &counted.into_iter().chain(paths).collect::<Vec<_>>())
    }

    fn start_with(command: &mut Command, osds: &[String]) -> Self {
        let directory = tempfile::Builder::new().prefix("strongroom-ceph-").tempdir().expect("a directory");
        let mut child = command
            .arg(directory.path())
            .args(["--port", &free_port().to_string()])
            .args(osds)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("scripts/ceph-cluster starts");
        let stdin = child.stdin.take();
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        let conf = PathBuf::from(read_line(&mut stdout));
        Self { conf, child, stdin, stdout, _directory: directory }
    }

    /// Kills one of the daemons, such as `osd.0` or `mon`.
    pub fn kill(&mut self, daemon: &str) {
        self.command("kill", daemon);
    }

    /// Starts a daemon that was killed.
    pub fn start_again(&mut self, daemon: &str) {
        self.command("start", daemon);
    }

    /// Has a daemon stand still, with all its connections open.
    pub fn pause(&mut self, daemon: &str) {
        self.command("pause", daemon);
    }

    /// Lets a daemon go on that stands still.
    pub fn resume(&mut self, daemon: &str) {
        self.command("resume", daemon);
    }

    /// Returns once all devices are up, and all their copies of everything are the same.
    pub fn wait_until_clean(&mut self) {
        self.command("settle", "all");
    }

    /// Sends a command, a JSON object, and returns the answer. Besides those of the monitor there
    /// are `fill image` and `verify image` (`pool`, `data_pool`, `name`, `size`, `text`): all of an
    /// image is written through librbd, or read and compared. `make namespace` (`pool`, `name`)
    /// does what `rbd namespace create` does.
    pub fn tell(&mut self, command: &str) -> String {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        writeln!(stdin, "tell {command}").expect("the cluster takes commands");
        read_line(&mut self.stdout)
    }

    /// Makes a user as a host needs it, such as `client.host1`, with its key in the keyring of
    /// `conf`.
    pub fn add_user(&mut self, user: &str) {
        self.command("user", user);
    }

    /// As [`add_user`](Self::add_user), for a user who has no right to other namespaces.
    pub fn add_user_of(&mut self, user: &str, namespace: &str) {
        self.command("user", &format!("{user} {namespace}"));
    }

    fn command(&mut self, verb: &str, daemon: &str) {
        let stdin = self.stdin.as_mut().expect("it is open until the end");
        writeln!(stdin, "{verb} {daemon}").expect("the cluster takes commands");
        assert_eq!(read_line(&mut self.stdout), "done");
    }
}

impl Drop for CephCluster {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

fn read_line(from: &mut impl BufRead) -> String {
    let mut line = String::new();
    let read = from.read_line(&mut line).expect("it says something");
    assert!(read > 0, "the cluster has ended; its message is above");
    line.trim_end().to_owned()
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts")
}

fn ceph_cluster() -> Command {
    Command::new(scripts().join("ceph-cluster"))
}

/// A port that nobody listens on now.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("it is bound").port()
}

/// Runs a program that takes this machine for another one: the boot id that it sees, and whatever
/// it starts, is what this file has. Needs root.
pub fn on_another_boot(boot: &Path, program: &Path) -> Command {
    let script = r#"mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).args([boot, program]);
    command
}
