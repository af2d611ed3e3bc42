//! `strongroom vm console`.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use strongroom_api::vm::{Ticket, TicketUse};
use strongroom_files::FileError;
use strongroom_host::protocol::GuestWelcome;
use strongroom_processes::Signals;

use super::guest_socket::{Guest, GuestSocket};
use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::terminal::RawTerminal;

/// Control-], as in telnet.
const ESCAPE: u8 = 0x1d;

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
  strongroom vm console web1 --read-only
  strongroom vm console web1 --take-over"
)]
pub struct ConsoleArguments {
    /// Name or id of the VM
    vm: String,

    /// Only show output; another client can write
    #[arg(long)]
    read_only: bool,

    /// Write in the place of the client that does, which is told who took over, and can only look
    #[arg(long, conflicts_with = "read_only")]
    take_over: bool,

    /// Print the stored output of the guest, and exit
    #[arg(long, conflicts_with_all = ["read_only", "take_over"])]
    history: bool,

    #[command(flatten)]
    api: ApiArguments,
}

impl ConsoleArguments {
    /// Runs the command: passes on input, and shows the guest's output, until either ends.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        if self.history {
            return self.print_history(&api);
        }
        let wanted = TicketUse::Console { read_only: self.read_only, take_over: self.take_over };
        let ticket: Ticket = api.post_for(&format!("/v1/vms/{}/tickets", segment(&self.vm)), &wanted)?;
        let Guest { stream, welcome, .. } = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let writes = matches!(welcome, GuestWelcome::Console { writer: true, .. });
        if !writes && !self.read_only {
            output.remark("Another one writes to this console; you can only look. --take-over takes it.");
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
        let mut guest = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let mut stdout = io::stdout();
        let copied = io::copy(&mut guest.stream, &mut stdout).and_then(|_| stdout.flush());
        // Only the end of the connection says that the log was whole.
        copied.and_then(|()| guest.ended()).map_err(|error| {
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
