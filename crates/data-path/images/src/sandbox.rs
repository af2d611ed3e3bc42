//! An environment in which a program can do no harm: an empty bubblewrap sandbox.
//!
//! The program gets new namespaces of every kind (so no network and no other process), no
//! capability, an empty environment, read access to `/usr`, and the inputs: a file on its stdin, or
//! single paths. It is limited to the system calls that copying an image needs
//! ([`strongroom_confine::qemu_img_filter`]). Its memory and processor time are limited, it leaves
//! no core file, and it is killed when this process dies.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::{ImageError, Stop};

/// Bubblewrap, the only program that runs outside the sandbox.
const BWRAP: &str = "/usr/bin/bwrap";
/// Sets the limits inside. Every Debian system has it.
const PRLIMIT: &str = "/usr/bin/prlimit";

/// Address space: several times the largest tables of any format, and harmless to a host.
const ADDRESS_SPACE_BYTES: u64 = 4 << 30;
/// Descriptors: an image, a socket, and what the event loop needs.
const DESCRIPTORS_MAX: u32 = 64;
/// How much of the program's stderr is kept.
const STDERR_BYTES_MAX: usize = 4096;
/// Bytes that are read from a pipe at once.
const READ_BYTES: usize = 16 << 10;

/// The configuration of a sandbox.
pub struct Sandbox {
    arguments: Vec<OsString>,
    input: Option<File>,
    cpu_seconds: u64,
    may_write_files: bool,
    /// The user that it runs as, if not our own.
    user: Option<(u32, u32)>,
}

impl Sandbox {
    /// A sandbox that contains only `/usr`.
    pub fn new(cpu_seconds: u64) -> Self {
        let mut sandbox =
            Self { arguments: Vec::new(), input: None, cpu_seconds, may_write_files: false, user: None };
        sandbox.add([
            "--unshare-all",
            "--die-with-parent",
            "--new-session",
            "--clearenv",
            "--cap-drop",
            "ALL",
        ]);
        sandbox.add(["--setenv", "LC_ALL", "C", "--chdir", "/", "--proc", "/proc", "--dev", "/dev"]);
        sandbox.add(["--ro-bind", "/usr", "/usr"]);
        // These are links into /usr or, on systems without merged /usr, directories with the loader
        // and its libraries.
        for directory in ["/lib", "/lib64"] {
            match std::fs::read_link(directory) {
                Ok(target) => {
                    sandbox.add(["--symlink".as_ref(), target.as_os_str(), OsStr::new(directory)]);
                }
                Err(_) => {
                    sandbox.add(["--ro-bind-try", directory, directory]);
                }
            }
        }
        sandbox
    }

    /// Passes a file as the program's stdin, which it may reopen as `/proc/self/fd/0`: there is no
    /// path to it.
    ///
    /// If we are root, the sandbox runs as the file's owner: without capabilities it could not read
    /// another user's file.
    pub fn with_input(mut self, file: &File) -> Result<Self, ImageError> {
        let failed = |error| ImageError::Sandbox { action: "hand an image to qemu-img", error };
        let owner = file.metadata().map_err(failed)?;
        if rustix::process::geteuid().is_root() && owner.uid() != 0 {
            self.user = Some((owner.uid(), owner.gid()));
        }
        self.input = Some(file.try_clone().map_err(failed)?);
        Ok(self)
    }

    /// Passes a file to be written.
    pub fn with_output(mut self, outside: &Path, inside: &Path) -> Self {
        self.may_write_files = true;
        self.add(["--bind".as_ref(), outside.as_os_str(), inside.as_os_str()]);
        self
    }

    /// Makes the input file writable, as `inside`.
    pub fn with_input_as_output(mut self, input: &str, inside: &Path) -> Self {
        self.may_write_files = true;
        self.add(["--symlink".as_ref(), OsStr::new(input), inside.as_os_str()]);
        self
    }

    /// Passes a directory, read-only; its sockets can be connected to.
    pub fn with_directory(mut self, outside: &Path, inside: &Path) -> Self {
        self.add(["--ro-bind".as_ref(), outside.as_os_str(), inside.as_os_str()]);
        self
    }

    /// The user and group that it runs as, if not our own.
    pub fn user(&self) -> Option<(u32, u32)> {
        self.user
    }

    fn add<T: AsRef<OsStr>>(&mut self, arguments: impl IntoIterator<Item = T>) {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
    }

    /// Runs a program in it to its end, or until `stop`. Its stdout is passed to `heard` as it
    /// arrives.
    pub fn run(
        mut self,
        program: &[&OsStr],
        stop: Option<Stop<'_>>,
        heard: &mut dyn FnMut(&[u8]),
    ) -> Result<Finished, ImageError> {
        let limits = format!(
            "--as={ADDRESS_SPACE_BYTES} --cpu={} --nofile={DESCRIPTORS_MAX} --core=0 {}",
            self.cpu_seconds,
            if self.may_write_files { "" } else { "--fsize=0" }
        );
        let filter =
            filter().map_err(|error| ImageError::Sandbox { action: "filter system calls", error })?;
        self.add(["--seccomp", &filter.as_raw_fd().to_string(), "--", PRLIMIT]);
        self.add(limits.split_whitespace());
        self.add(["--"]);
        self.add(program);
        let mut command = Command::new(BWRAP);
        command.args(&self.arguments).env_clear().stdout(Stdio::piped()).stderr(Stdio::piped());
        command.stdin(self.input.map_or_else(Stdio::null, Stdio::from));
        // Control-C at the terminal must reach only us; we pass it on.
        command.process_group(0);
        if let Some((user, group)) = self.user {
            command.gid(group).uid(user);
        }
        tracing::debug!(?program, "in the sandbox");
        let child = command.spawn().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => ImageError::Missing { program: "bwrap", package: "bubblewrap" },
            _ => ImageError::Sandbox { action: "start bwrap", error },
        })?;
        drop(filter);
        Running { child }.finish(stop, heard)
    }
}

/// The filter of system calls, as a file that a child inherits. It has no secrets from other
/// children.
fn filter() -> io::Result<File> {
    let bytes = strongroom_confine::qemu_img_filter().map_err(io::Error::other)?;
    let mut file = File::from(memfd_create("filter", MemfdFlags::empty())?);
    file.write_all(&bytes)?;
    file.rewind()?;
    Ok(file)
}

/// A program that has ended.
pub struct Finished {
    /// How it ended.
    pub status: ExitStatus,
    /// The beginning of its stderr.
    pub stderr: String,
}

/// A program in its sandbox; killed on drop.
struct Running {
    child: Child,
}

impl Running {
    fn finish(
        mut self,
        stop: Option<Stop<'_>>,
        heard: &mut dyn FnMut(&[u8]),
    ) -> Result<Finished, ImageError> {
        let failed = |error: io::Error| ImageError::Sandbox { action: "wait for qemu-img", error };
        let (mut stdout, mut stderr) = (self.child.stdout.take(), self.child.stderr.take());
        let mut complaint = Vec::new();
        let mut bytes = vec![0; READ_BYTES];
        while stdout.is_some() || stderr.is_some() {
            let readable = wait_for(stdout.as_ref(), stderr.as_ref(), stop).map_err(failed)?;
            if stop.is_some_and(|stop| stop.came()) {
                return Err(ImageError::Interrupted);
            }
            if readable[0] {
                read_some(&mut stdout, &mut bytes, heard).map_err(failed)?;
            }
            if readable[1] {
                let mut keep = |read: &[u8]| {
                    let room = STDERR_BYTES_MAX - complaint.len();
                    complaint.extend_from_slice(&read[..read.len().min(room)]);
                };
                read_some(&mut stderr, &mut bytes, &mut keep).map_err(failed)?;
            }
        }
        let status = self.child.wait().map_err(failed)?;
        Ok(Finished { status, stderr: String::from_utf8_lossy(&complaint).into_owned() })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // When bubblewrap dies, everything in it dies too. Both calls fail only if it has already
        // ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until one of the pipes, which may be closed already, has data, or until it is asked to
/// stop.
fn wait_for(
    stdout: Option<&impl AsFd>,
    stderr: Option<&impl AsFd>,
    stop: Option<Stop<'_>>,
) -> io::Result<[bool; 2]> {
    let mut watched = Vec::with_capacity(3);
    watched.extend(stdout.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    watched.extend(stderr.map(|pipe| PollFd::new(pipe, PollFlags::IN)));
    watched.extend(stop.as_ref().map(|stop| PollFd::new(&stop.wake, PollFlags::IN)));
    match poll(&mut watched, None) {
        Ok(_) => {}
        Err(Errno::INTR) => return Ok([false; 2]),
        Err(errno) => return Err(errno.into()),
    }
    let mut ready = watched.iter().map(|pipe| !pipe.revents().is_empty());
    let mut next = |open: bool| open && ready.next().unwrap_or(false);
    Ok([next(stdout.is_some()), next(stderr.is_some())])
}

/// Reads the available bytes, and closes a pipe at its end.
fn read_some<P: Read>(
    pipe: &mut Option<P>,
    bytes: &mut [u8],
    heard: &mut dyn FnMut(&[u8]),
) -> io::Result<()> {
    let Some(open) = pipe else { return Ok(()) };
    match open.read(bytes) {
        Ok(0) => *pipe = None,
        Ok(count) => heard(&bytes[..count]),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Acts as a qemu-img that an image has taken over: makes each call, and reports whether the
    /// kernel allows it.
    const DEEDS: &str = r#"
use Errno;
sub try { my ($name, $number, @call) = @_; $! = 0; syscall($number, @call); print $name, $! == Errno::ENOSYS ? ": refused\n" : ": done\n" }
my $room = "\0" x 4096;
try('trace a process', 101, 16, 1, 0, 0);
try('read a process', 310, 1, $room, 0, $room, 0, 0);
try('make a socket of the network', 41, 2, 1, 0);
try('make a socket of the kernel', 41, 16, 3, 0);
try('make a packet socket', 41, 17, 3, 0);
try('make a virtual socket', 41, 40, 1, 0);
try('mount', 165, $room, $room, $room, 0, 0);
try('make a namespace', 272, 0x10000000);
try('use the kernel\'s keys', 250, 0, -3, 0, 0, 0);
try('load a program into the kernel', 321, 0, $room, 64);
try('make a ring', 425, 1, $room);
try('handle page faults', 323, 0);
try('measure the processor', 298, $room, 0, -1, -1, 0);
try('fork', 57);
try('make memory executable', 10, 0, 0, 4);
try('work', 39);
"#;

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn a_qemu_img_that_obeys_an_attacker_does_not_reach_the_kernels_large_doors() {
        let mut heard = Vec::new();
        let program = ["/usr/bin/perl", "-e", DEEDS].map(OsStr::new);
        let mut hear = |bytes: &[u8]| heard.extend_from_slice(bytes);
        let finished = Sandbox::new(60).run(&program, None, &mut hear).unwrap();
        assert!(finished.status.success(), "{}", finished.stderr);
        let heard = String::from_utf8(heard).unwrap();
        let done: Vec<_> = heard.lines().filter(|line| !line.ends_with(": refused")).collect();
        assert_eq!((done, heard.lines().count()), (vec!["work: done"], DEEDS.matches("try('").count()));
    }
}
