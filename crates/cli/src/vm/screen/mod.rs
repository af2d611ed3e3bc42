//! `strongroom vm screen`: a VM's screen for VNC viewers of this machine, and pictures of it.
//!
//! QEMU's VNC server does not authenticate clients, so only its supervisor can access its socket.
//! Here each viewer gets its own connection, with its own ticket; [`door`] decides who is admitted.

mod door;
mod png;
mod rfb;

use std::fmt;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::Shutdown;
use serde::Serialize;
use strongroom_api::vm::{PowerState, Ticket, TicketUse, VmView};
use strongroom_files::FileError;
use strongroom_host::protocol::ProblemBody;
use strongroom_processes::Signals;

use self::door::{Door, Viewer};
use super::guest_socket::{Guest, GuestSocket};
use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::new_file::NewFile;
use crate::output::Output;

/// The most viewers at once: the limit of QEMU's server.
const VIEWERS_MAX: usize = 32;
/// The timeout of the VNC server's greeting, and of each part of a picture.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);
/// The longest error in place of the server's greeting, in bytes.
const PROBLEM_BYTES_MAX: u64 = 64 * 1024;

/// The arguments of `screen`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --listen, viewers connect to a unix socket that only this account can reach \
(TigerVNC: vncviewer SOCKET; virt-viewer: remote-viewer vnc+unix://SOCKET). With --listen, they connect \
to a port on this machine's loopback; only viewers of this account, of root and of the account given \
with --viewer are admitted, according to the kernel. From another machine, forward the port: ssh -L \
5901:127.0.0.1:5901 HOST. Each viewer uses a ticket, and an event records who requested it.

Control-C ends it; the VM keeps running.

Examples:
  strongroom vm screen web1
  strongroom vm screen web1 --listen 127.0.0.1:5901
  sudo strongroom vm screen web1 --listen 127.0.0.1:5901 --viewer alice
  strongroom vm screen web1 --read-only
  strongroom vm screen web1 --screenshot web1.png"
)]
pub struct ScreenArguments {
    /// Name or id of the VM
    vm: String,

    /// Loopback address to listen on for viewers instead of a unix socket; port 0 selects a free
    /// one
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = door::parse_loopback)]
    listen: Option<SocketAddr>,

    /// Name or number of another account whose viewers are admitted
    #[arg(long, value_name = "USER", requires = "listen", value_parser = door::parse_account)]
    viewer: Option<u32>,

    /// Path of the unix socket [default: in a new directory]
    #[arg(long, value_name = "PATH", conflicts_with = "listen")]
    socket: Option<PathBuf>,

    /// Only look: what viewers type, point at and paste is not passed on by the VM's host
    #[arg(long)]
    read_only: bool,

    /// Write a screenshot to this new file, in PNG format, and exit. It is unencrypted guest data
    #[arg(long, value_name = "FILE", conflicts_with_all = ["listen", "socket"])]
    screenshot: Option<PathBuf>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The answer with the viewers' socket.
#[derive(Serialize)]
struct Open<'screen> {
    vm: &'screen str,
    #[serde(skip_serializing_if = "Option::is_none")]
    socket: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    listen: Option<SocketAddr>,
    #[serde(skip)]
    admitted: String,
}

impl fmt::Display for Open<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.socket, self.listen) {
            (Some(socket), _) => {
                writeln!(f, "The screen of {} is at {socket}\n  vncviewer {socket}", self.vm)?
            }
            (None, Some(address)) => writeln!(
                f,
                "The screen of {} is at vnc://{address}\n  vncviewer {}::{}",
                self.vm,
                address.ip(),
                address.port()
            )?,
            (None, None) => {}
        }
        write!(f, "Viewers of {} are let in. Control-C ends it.", self.admitted)
    }
}

/// The answer for a screenshot.
#[derive(Serialize)]
struct Taken<'screen> {
    vm: &'screen str,
    file: String,
    width: u16,
    height: u16,
}

impl fmt::Display for Taken<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, file, width, height } = self;
        write!(f, "the screen of {vm}, {width} x {height}, is in {file}")
    }
}

impl ScreenArguments {
    /// Runs the command: admits viewers until a signal arrives, or takes a screenshot.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        self.check(&vm)?;
        match &self.screenshot {
            Some(file) => self.take_picture(&api, file, output),
            None => self.serve(api, output),
        }
    }

    /// The checks before any connection.
    fn check(&self, vm: &VmView) -> Result<(), CliError> {
        let name = &vm.summary.name;
        if !vm.board.vnc {
            return Err(CliError::NoScreen(format!("VM {name} was made without a screen")));
        }
        match vm.summary.power {
            PowerState::Running | PowerState::Paused | PowerState::Stopping | PowerState::Unknown => Ok(()),
            PowerState::Stopped
            | PowerState::Starting
            | PowerState::Suspended
            | PowerState::Crashed
            | PowerState::KeyUnavailable => Err(CliError::NoScreen(format!(
                "VM {name} is {}, and only one that runs has a screen; `strongroom vm start {name}`",
                vm.summary.power.as_str().replace('_', "-")
            ))),
        }
    }

    fn take_picture(&self, api: &Api, file: &std::path::Path, output: &Output) -> Result<(), CliError> {
        // Create the file before guest data is requested.
        let new = NewFile::create(file)?;
        let picture = Screen::open(api, &self.vm, false)?.picture().map_err(|error| self.failed(error))?;
        let written = png::write(&mut new.file(), &picture);
        written
            .map_err(|error| CliError::File(FileError { action: "write", path: file.to_owned(), error }))?;
        new.finish()?;
        let (width, height) = (picture.width, picture.height);
        output.answer(&Taken { vm: &self.vm, file: file.display().to_string(), width, height })
    }

    fn serve(&self, api: Api, output: &Output) -> Result<(), CliError> {
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let door = Door::open(self.listen, self.socket.as_deref(), self.viewer)?;
        let open = Open {
            vm: &self.vm,
            socket: door.socket().map(|path| path.display().to_string()),
            listen: door.address(),
            admitted: door.admitted(),
        };
        output.answer(&open)?;
        let (api, viewers) = (Arc::new(api), Arc::new(AtomicUsize::new(0)));
        loop {
            let mut watched = [PollFd::new(&signals, PollFlags::IN), PollFd::new(&door, PollFlags::IN)];
            match poll(&mut watched, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(self.failed(errno.into())),
            }
            if signals.came() {
                return Ok(());
            }
            let viewer = match door.next() {
                Ok(Some(viewer)) => viewer,
                Ok(None) => continue,
                Err(refused) => {
                    output.remark(&refused.to_string());
                    continue;
                }
            };
            if viewers.fetch_add(1, Ordering::Relaxed) >= VIEWERS_MAX {
                viewers.fetch_sub(1, Ordering::Relaxed);
                output.remark(&format!("a viewer was hung up on: {VIEWERS_MAX} are connected"));
                continue;
            }
            let (api, place, vm, output) = (Arc::clone(&api), Arc::clone(&viewers), self.vm.clone(), *output);
            let read_only = self.read_only;
            let shown = thread::Builder::new().name("viewer".to_owned()).spawn(move || {
                let shown = Screen::open(&api, &vm, read_only).map(|screen| screen.show(&viewer));
                if let Err(error) = shown {
                    output.remark(&format!("a viewer was hung up on: {error}"));
                }
                place.fetch_sub(1, Ordering::Relaxed);
            });
            shown.map_err(|error| self.failed(error))?;
        }
    }

    fn failed(&self, error: io::Error) -> CliError {
        CliError::File(FileError { action: "show the screen of", path: PathBuf::from(&self.vm), error })
    }
}

/// A connection to a VM's VNC server.
struct Screen {
    stream: UnixStream,
    /// The server's greeting.
    greeting: rfb::Greeting,
}

impl Screen {
    /// Requests and sends a ticket. An error may arrive only in place of the server's greeting.
    fn open(api: &Api, vm: &str, read_only: bool) -> Result<Self, CliError> {
        let wanted = TicketUse::Vnc { read_only };
        let ticket: Ticket = api.post_for(&format!("/v1/vms/{}/tickets", segment(vm)), &wanted)?;
        let Guest { mut stream, .. } = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let failed = |error| {
            CliError::File(FileError { action: "speak to the screen of", path: PathBuf::from(vm), error })
        };
        stream.set_read_timeout(Some(ANSWERS_WITHIN)).map_err(failed)?;
        let mut greeting = rfb::Greeting::default();
        stream.read_exact(&mut greeting).map_err(failed)?;
        if greeting.starts_with(b"{") {
            let mut line = greeting.to_vec();
            (&stream).take(PROBLEM_BYTES_MAX).read_to_end(&mut line).map_err(failed)?;
            return Err(match serde_json::from_slice::<ProblemBody>(&line) {
                Ok(ProblemBody { error }) => {
                    CliError::Api { code: error.code.clone(), message: error.to_string() }
                }
                Err(error) => failed(error.into()),
            });
        }
        Ok(Self { stream, greeting })
    }

    fn picture(self) -> io::Result<rfb::Picture> {
        rfb::picture(&self.stream, self.greeting)
    }

    /// Relays between viewer and server until either hangs up.
    fn show(&self, viewer: &Viewer) {
        match viewer {
            Viewer::Unix(viewer) => self.pass_on(viewer),
            Viewer::Tcp(viewer) => self.pass_on(viewer),
        }
    }

    fn pass_on<Stream>(&self, viewer: &Stream)
    where
        Stream: AsFd + Sync,
        for<'stream> &'stream Stream: Read + Write,
    {
        let mut first = viewer;
        let begun = self.stream.set_read_timeout(None).and_then(|()| first.write_all(&self.greeting));
        if begun.is_ok() {
            thread::scope(|scope| {
                scope.spawn(|| copy(viewer, &self.stream));
                copy(&self.stream, viewer);
            });
        }
    }
}

fn copy(mut from: impl Read + AsFd, mut to: impl Write + AsFd) {
    // However it ends, shut down both: the copy in the other direction then ends too.
    let _ = io::copy(&mut from, &mut to);
    let _ = rustix::net::shutdown(&from, Shutdown::Both);
    let _ = rustix::net::shutdown(&to, Shutdown::Both);
}
