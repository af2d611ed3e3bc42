//! `strongroom vm console`, and the client of the guest socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::SendFlags;
use strongroom_api::vm::{Ticket, TicketUse};
use strongroom_files::FileError;
use strongroom_host::protocol::{FORMAT, GuestHello, GuestWelcome, ProblemBody};
use strongroom_processes::Signals;

use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::terminal::RawTerminal;

/// Control-], as in telnet.
const ESCAPE: u8 = 0x1d;

/// The timeout of a host's first response.
const WELCOME_WITHIN: Duration = Duration::from_secs(30);

/// The longest welcome, in bytes.
const WELCOME_BYTES_MAX: u64 = 64 * 1024;

/// The arguments of `console`.
#[derive(Debug, Args)]
#[command(
    after_help = "Control-] ends the connection; the VM keeps running. The latest output is shown first. \
Without a terminal, stdin is sent to the guest and its output is written to stdout, until stdin ends.

With --history, prints the stored output (the last 4 MiB, including earlier starts), even if the VM is \
off.

Examples:
  strongroom vm console web1
  strongroom vm console web1 --history | less -R
  strongroom vm console web1 --read-only"
)]
pub struct ConsoleArguments {
    /// Name or id of the VM
    vm: String,

    /// Only show output; another client can write
    #[arg(long)]
    read_only: bool,

    /// Print the stored output of the guest, and exit
    #[arg(long, conflicts_with = "read_only")]
    history: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// A connection to the host of a VM, for guest data.
pub struct GuestSocket {
    stream: UnixStream,
    path: PathBuf,
}

impl GuestSocket {
    /// Connects to the socket of the ticket.
    pub fn connect(ticket: &Ticket) -> Result<Self, CliError> {
        if let Some(address) = ticket.address.as_deref().filter(|address| !is_of_this_machine(address)) {
            return Err(CliError::Usage(format!(
                "the VM is on host {} ({address}), and its guest is reached there; run this command on that machine, with \
                 --api, --api-ca and --api-token-file for this control plane",
                ticket.host
            )));
        }
        let path = PathBuf::from(&ticket.socket);
        let failed = |error| CliError::File(FileError { action: "connect to", path: path.clone(), error });
        let stream = UnixStream::connect(&path).map_err(failed)?;
        stream.set_read_timeout(Some(WELCOME_WITHIN)).map_err(failed)?;
        Ok(Self { stream, path })
    }

    /// Sends the ticket with an open file.
    pub fn send_file(self, ticket: &Ticket, file: &impl AsFd) -> Result<(), CliError> {
        self.enter_with_file(ticket, file).map(drop)
    }

    /// As [`send_file`](Self::send_file); returns the stream of reports about the file.
    pub fn enter_with_file(
        self,
        ticket: &Ticket,
        file: &impl AsFd,
    ) -> Result<(UnixStream, GuestWelcome), CliError> {
        let hello = hello(ticket)?;
        let (first, rest) = hello.split_at(1);
        let sent = strongroom_wire::send(&self.stream, first, &[file.as_fd()], SendFlags::empty());
        sent.map_err(|errno| self.failed(errno.into()))?;
        (&self.stream).write_all(rest).map_err(|error| self.failed(error))?;
        self.welcomed()
    }

    /// Sends the ticket; then the stream is the guest's.
    pub fn enter(self, ticket: &Ticket) -> Result<(UnixStream, GuestWelcome), CliError> {
        (&self.stream).write_all(&hello(ticket)?).map_err(|error| self.failed(error))?;
        self.welcomed()
    }

    fn welcomed(self) -> Result<(UnixStream, GuestWelcome), CliError> {
        let welcome = self.welcome()?;
        self.stream.set_read_timeout(None).map_err(|error| self.failed(error))?;
        Ok((self.stream, welcome))
    }

    /// Reads a line byte by byte, because the bytes after it are the guest's.
    fn welcome(&self) -> Result<GuestWelcome, CliError> {
        let mut line = Vec::new();
        let mut one = BufReader::with_capacity(1, (&self.stream).take(WELCOME_BYTES_MAX));
        one.read_until(b'\n', &mut line).map_err(|error| self.failed(error))?;
        if let Ok(welcome) = serde_json::from_slice(&line) {
            return Ok(welcome);
        }
        match serde_json::from_slice::<ProblemBody>(&line) {
            Ok(ProblemBody { error }) => {
                Err(CliError::Api { code: error.code.clone(), message: error.to_string() })
            }
            Err(_) => Err(self.failed(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn failed(&self, error: io::Error) -> CliError {
        CliError::File(FileError { action: "speak to", path: self.path.clone(), error })
    }
}

/// Whether an address is one of this machine: only then can a socket have it.
fn is_of_this_machine(address: &str) -> bool {
    let address = address.parse::<SocketAddr>().map(|address| SocketAddr::new(address.ip(), 0));
    address.is_ok_and(|address| UdpSocket::bind(address).is_ok())
}

fn hello(ticket: &Ticket) -> Result<Vec<u8>, CliError> {
    let ticket = ticket.ticket.parse().map_err(|reason: &str| CliError::Usage(reason.to_owned()))?;
    let mut line = serde_json::to_vec(&GuestHello { format: FORMAT, ticket })
        .map_err(|error| CliError::Output(error.into()))?;
    line.push(b'\n');
    Ok(line)
}

impl ConsoleArguments {
    /// Runs the command: passes on input, and shows the guest's output, until either ends.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        if self.history {
            return self.print_history(&api);
        }
        let wanted = TicketUse::Console { read_only: self.read_only };
        let ticket: Ticket = api.post_for(&format!("/v1/vms/{}/tickets", segment(&self.vm)), &wanted)?;
        let (stream, welcome) = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let writes = matches!(welcome, GuestWelcome::Console { writer: true });
        if !writes && !self.read_only {
            output.remark("Another one writes to this console; you can only look.");
        }
        let terminal = RawTerminal::of_stdin();
        if terminal.is_some() {
            output.remark(&format!("Console of {}. Control-] ends it.", self.vm));
        }
        let ended = pass_on(&stream, &signals, writes, terminal.is_some());
        drop(terminal);
        output.remark("");
        ended.map_err(|error| {
            CliError::File(FileError {
                action: "speak to the console of",
                path: PathBuf::from(&self.vm),
                error,
            })
        })
    }
}

impl ConsoleArguments {
    fn print_history(&self, api: &Api) -> Result<(), CliError> {
        let path = format!("/v1/vms/{}/tickets", segment(&self.vm));
        let ticket: Ticket = api.post_for(&path, &TicketUse::ConsoleLog {})?;
        let (mut stream, _) = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let mut stdout = io::stdout();
        io::copy(&mut stream, &mut stdout).and_then(|_| stdout.flush()).map_err(|error| {
            CliError::File(FileError {
                action: "read the console's log of",
                path: PathBuf::from(&self.vm),
                error,
            })
        })
    }
}

fn pass_on(stream: &UnixStream, signals: &Signals, writes: bool, escapes: bool) -> io::Result<()> {
    let (stdin, mut stdout) = (io::stdin(), io::stdout());
    let mut typing = true;
    let mut buffer = vec![0; 16 << 10];
    loop {
        let mut watched = vec![PollFd::new(signals, PollFlags::IN), PollFd::new(stream, PollFlags::IN)];
        if typing {
            watched.push(PollFd::new(&stdin, PollFlags::IN));
        }
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        }
        let ready: Vec<bool> = watched.iter().map(|one| !one.revents().is_empty()).collect();
        if signals.came() {
            return Ok(());
        }
        if ready[1] {
            match (&mut &*stream).read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => {
                    stdout.write_all(&buffer[..count])?;
                    stdout.flush()?;
                }
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if ready.get(2) == Some(&true) {
            let count = rustix::io::read(&stdin, &mut buffer)?;
            let typed = &buffer[..count];
            if escapes && typed.contains(&ESCAPE) {
                return Ok(());
            }
            match count {
                // The guest may have more output for the reader.
                0 if escapes => return Ok(()),
                0 => {
                    typing = false;
                    stream.shutdown(std::net::Shutdown::Write)?;
                }
                _ if writes => (&mut &*stream).write_all(typed)?,
                _ => {}
            }
        }
    }
}
