//! Volumes, made and exposed by the program under test.

use std::fs::{self, OpenOptions, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::build;
use crate::process::{Finished, Process, run};
use crate::scratch::Scratch;

/// Timeout of a command without bulk I/O. Argon2id over a gigabyte takes seconds on a loaded
/// machine.
const COMMAND_DEADLINE: Duration = Duration::from_secs(60);
/// Timeout from the start of the server to the line that says that it is ready, including recovery
/// after a crash.
const EXPOSE_DEADLINE: Duration = Duration::from_secs(60);
/// The worker of a killed server first closes the volume, and then releases it.
const LOCK_WAIT: &str = "30s";
/// Timeout from SIGTERM to the end of the server, with all I/O in flight completed and flushed.
const CLOSE_DEADLINE: Duration = Duration::from_secs(60);

/// Whether a volume's content is visible in its datastore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protection {
    /// Encrypted under a key from a key file.
    Encrypted,
    /// Made with the explicit flag for no encryption.
    Unencrypted,
}

/// A volume in a datastore of its own.
pub struct Volume<'test> {
    scratch: &'test Scratch,
    name: String,
    protection: Protection,
}

impl<'test> Volume<'test> {
    /// Creates a volume, e.g. of `"1G"`, with `strongroom volume create`.
    #[track_caller]
    pub fn create(scratch: &'test Scratch, name: &str, size: &str, protection: Protection) -> Self {
        Self::create_with(scratch, name, size, protection, &[])
    }

    /// As [`create`](Self::create), with more arguments, e.g. `"--integrity"`.
    #[track_caller]
    pub fn create_with(
        scratch: &'test Scratch,
        name: &str,
        size: &str,
        protection: Protection,
        arguments: &[&str],
    ) -> Self {
        let volume = Self { scratch, name: name.to_owned(), protection };
        scratch.make_directory(&format!("{name}.ds"));
        if protection == Protection::Encrypted {
            write_key_file(&volume.key_file());
        }
        volume.command("create", &[&["--size", size], arguments].concat()).success();
        volume
    }

    /// The datastore: a directory with only this volume.
    pub fn datastore(&self) -> PathBuf {
        self.scratch.path(&format!("{}.ds", self.name))
    }

    /// The volume's path, as it is passed to the program.
    pub fn path(&self) -> PathBuf {
        self.datastore().join(&self.name)
    }

    /// The directory of the test.
    pub fn scratch(&self) -> &'test Scratch {
        self.scratch
    }

    /// The key file; an unencrypted volume has none.
    pub fn key_file(&self) -> PathBuf {
        self.scratch.path(&format!("{}.key", self.name))
    }

    /// Runs `strongroom volume VERB PATH ARGUMENTS` with this volume's key, to its end.
    #[track_caller]
    pub fn command(&self, verb: &str, arguments: &[&str]) -> Finished {
        run(self.scratch, self.invocation(verb).args(arguments), COMMAND_DEADLINE)
    }

    /// Runs `strongroom --json volume upgrade PATH`, which takes no key, to its end.
    #[track_caller]
    pub fn upgrade(&self) -> Finished {
        let mut command = Command::new(build::program());
        command.args(["--json", "volume", "upgrade"]).arg(self.path());
        run(self.scratch, &command, COMMAND_DEADLINE)
    }

    /// Exposes the volume over NBD on a unix socket, and waits until the program says that it is
    /// ready.
    #[track_caller]
    pub fn expose(&self) -> Exposure {
        let socket = self.scratch.path(&format!("{}.sock", self.name));
        let mut command = self.invocation("expose");
        command.args(["--lock-wait", LOCK_WAIT, "--nbd"]).arg(format!("unix:{}", socket.display()));
        let mut server = Process::start(self.scratch, &format!("expose-{}", self.name), &command);
        let uri = server.wait_for_line("its NBD URI", EXPOSE_DEADLINE, |line| line.contains("nbd+unix:"));
        Exposure { server, socket, uri }
    }

    /// Exposes the volume over vhost-user, and waits until the program says that it is ready.
    #[track_caller]
    pub fn expose_vhost_user(&self) -> Exposure {
        self.expose_vhost_user_with(&[])
    }

    /// The same, with further arguments.
    #[track_caller]
    pub fn expose_vhost_user_with(&self, arguments: &[&str]) -> Exposure {
        let socket = self.scratch.path(&format!("{}.vhost", self.name));
        let mut command = self.invocation("expose");
        command.args(["--lock-wait", LOCK_WAIT, "--vhost-user"]).arg(format!("unix:{}", socket.display()));
        command.args(arguments);
        let mut server = Process::start(self.scratch, &format!("expose-{}", self.name), &command);
        let place = socket.display().to_string();
        let uri = server.wait_for_line("its socket", EXPOSE_DEADLINE, |line| line == place);
        Exposure { server, socket, uri }
    }

    fn invocation(&self, verb: &str) -> Command {
        let mut command = Command::new(build::program());
        command.args(["volume", verb]).arg(self.path());
        match self.protection {
            Protection::Encrypted => command.arg("--key-file").arg(self.key_file()),
            Protection::Unencrypted => command.arg("--unencrypted"),
        };
        command
    }
}

/// An exposed volume, for as long as this value lives.
pub struct Exposure {
    server: Process,
    socket: PathBuf,
    uri: String,
}

impl Exposure {
    /// The unix socket that the server listens on.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The NBD URI that the server printed; for vhost-user, the socket's path.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The server.
    pub fn process(&self) -> &Process {
        &self.server
    }

    /// Ends the server as a user would (SIGTERM), and waits until it has closed the volume.
    #[track_caller]
    pub fn close(self) -> ExitStatus {
        self.server.terminate(CLOSE_DEADLINE)
    }

    /// Kills the server (SIGKILL): I/O in flight is neither completed nor answered.
    #[track_caller]
    pub fn kill(self) {
        self.server.kill();
    }
}

/// A key of the test's own, in a file that only its owner can read.
fn write_key_file(path: &Path) {
    let key: [u8; 32] = std::array::from_fn(|index| index as u8 ^ 0x5a);
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .unwrap_or_else(|error| panic!("cannot create {}: {error}", path.display()));
    file.write_all(&key).expect("the key file can be written");
    // The umask applies to the mode above, and the permissions must be exact.
    fs::set_permissions(path, Permissions::from_mode(0o600)).expect("the key file is ours");
}
