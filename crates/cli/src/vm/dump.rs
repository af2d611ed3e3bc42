//! `strongroom vm dump`: makes sealed dumps of a guest's memory, and opens them.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::vm::{Dump, DumpVm, Ticket, TicketUse};
use strongroom_api::{ListQuery, Page};
use strongroom_files::FileError;
use strongroom_host::protocol::{GuestEnd, GuestWelcome};
use strongroom_processes::Signals;
use strongroom_streams::{Unpacked, Unpacker};
use strongroom_types::display_bytes;
use zeroize::Zeroizing;

use super::guest_socket::{Guest, GuestSocket};
use super::remove::is_meant;
use crate::api::{Api, ApiArguments, Begun, WaitArguments, follow, segment};
use crate::error::CliError;
use crate::new_file::NewFile;
use crate::output::{Output, Table, utc};
use crate::progress::Meter;

/// The longest chunk that a host sends, in bytes: a record of a stream.
const CHUNK_BYTES_MAX: usize = 1 << 20;
/// The longest last line, in bytes.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Zeroes that are written at once where they cannot be left out.
const ZEROES_BYTES: usize = 64 << 10;
/// More dumps than a VM can have.
const LIST_MAX: u32 = 1000;

/// The commands for dumps.
#[derive(Debug, Subcommand)]
pub enum DumpCommand {
    /// Dump a guest's memory into a sealed volume
    Create(CreateArguments),
    /// List a VM's dumps
    List(ListArguments),
    /// Write a dump to an unencrypted file
    Open(OpenArguments),
    /// Delete a dump
    Delete(DeleteArguments),
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The dump is a core file (ELF: physical memory and the processors' registers) for gdb \
and crash. It is sealed in a volume of the VM, under the VM's key. The guest is paused meanwhile, and \
continues afterwards, even if the dump fails or is cancelled, which leaves no dump. The datastore must \
have space for the whole memory; pages of zeroes take none in the end.

Examples:
  strongroom vm dump create web1
  strongroom vm dump create web1 --label 'hangs in NFS'"
)]
pub struct CreateArguments {
    /// Name or id of the VM
    vm: String,

    /// Label of the dump, not encrypted, at most 64 bytes
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Lists only complete dumps.

Example:
  strongroom vm dump list web1")]
pub struct ListArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `open`.
#[derive(Debug, Args)]
#[command(after_help = "The file contains the guest's whole memory in plain text, including its keys and \
passwords, outside the protection of Strongroom. Only its owner can read it. An event records who opened \
which dump. Each record is verified before it is written; if one was damaged or replaced, the error \
names it, and no file remains. With `--to -` the records before it have already been written: check the \
exit status.

This also works while the VM is off.

Examples:
  strongroom vm dump open web1 1 --to web1.core
  strongroom vm dump open web1 1 --to - | zstd > web1.core.zst")]
pub struct OpenArguments {
    /// Name or id of the VM
    vm: String,

    /// Number of the dump
    number: u32,

    /// File to write, which must not exist; `-` is stdout
    #[arg(long, value_name = "FILE")]
    to: PathBuf,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `delete`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm dump delete web1 1")]
pub struct DeleteArguments {
    /// Name or id of the VM
    vm: String,

    /// Number of the dump
    number: u32,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Listing(Page<Dump>);

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.items.is_empty() {
            return f.write_str("there are no dumps");
        }
        let row = |dump: &Dump| {
            [
                dump.number.to_string(),
                utc(dump.at_unix_seconds),
                display_bytes(dump.bytes),
                display_bytes(dump.sealed_bytes),
                dump.label.clone().unwrap_or_default(),
            ]
        };
        let head = ["DUMP", "MADE", "SIZE", "SEALED", "LABEL"];
        write!(f, "{}", Table { head, rows: self.0.items.iter().map(row).collect() })
    }
}

#[derive(Serialize)]
struct Created {
    vm: String,
    #[serde(flatten)]
    dump: Dump,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, dump: Dump { number, bytes, sealed_bytes, .. } } = self;
        let (bytes, sealed) = (display_bytes(*bytes), display_bytes(*sealed_bytes));
        write!(f, "dump {number} of {vm}: {bytes}, sealed in {sealed}")
    }
}

#[derive(Serialize)]
struct Opened {
    vm: String,
    dump: u32,
    file: PathBuf,
    size_bytes: u64,
    encrypted: bool,
}

impl fmt::Display for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, dump, file, size_bytes, .. } = self;
        let size = display_bytes(*size_bytes);
        write!(f, "opened dump {dump} of {vm} as {}: {size}, not encrypted", file.display())
    }
}

impl DumpCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(ListArguments { vm, api }) => output.answer(&Listing(list(&api.connect()?, vm)?)),
            Self::Open(arguments) => arguments.run(output),
            Self::Delete(arguments) => arguments.run(output),
        }
    }
}

fn list(api: &Api, vm: &str) -> Result<Page<Dump>, CliError> {
    let query = ListQuery { limit: Some(LIST_MAX), ..ListQuery::default() };
    api.query(&format!("/v1/vms/{}/dumps", segment(vm)), &query)
}

impl CreateArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let wish = DumpVm { label: self.label.clone() };
        let task = api.post(&format!("/v1/vms/{}/dumps", segment(&self.vm)), &wish)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        follow(&api, output, "dumping", task)?;
        // Numbers only grow, so the last dump is the new one.
        match list(&api, &self.vm)?.items.pop() {
            Some(dump) => output.answer(&Created { vm: self.vm.clone(), dump }),
            None => Err(CliError::Usage(format!("the dump of {} is gone already", self.vm))),
        }
    }
}

impl DeleteArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let Self { vm, number, .. } = self;
        if !self.yes {
            is_meant(&format!("Delete dump {number} of VM {vm}?"))?;
        }
        let task = api.delete(&format!("/v1/vms/{}/dumps/{number}", segment(vm)))?;
        let said = format!("deleted dump {number} of {vm}");
        self.wait.finish(&api, output, "deleting", task, said)
    }
}

impl OpenArguments {
    fn run(&self, output: &Output) -> Result<(), CliError> {
        if self.to == Path::new("-") {
            return self.run_to_stdout(output);
        }
        // Create the file first: a file that cannot be created must not cause an event.
        let file = NewFile::create(&self.to)?;
        output.remark(&format!("note: {} will hold the guest's memory in plain text", self.to.display()));
        let sink = InFile { file: file.file(), end: 0 };
        let (size_bytes, sink) = self.unpack(output, sink)?;
        let failed = |error| CliError::File(FileError { action: "write", path: self.to.clone(), error });
        // Content that ends in zeroes keeps its length.
        sink.file.set_len(sink.end).map_err(failed)?;
        file.finish()?;
        let (vm, dump, file) = (self.vm.clone(), self.number, self.to.clone());
        output.answer(&Opened { vm, dump, file, size_bytes, encrypted: false })
    }

    fn run_to_stdout(&self, output: &Output) -> Result<(), CliError> {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            return Err(CliError::Usage(
                "a guest's memory is nothing for a terminal; send it to a program or say --to FILE"
                    .to_owned(),
            ));
        }
        let (_, mut sink) = self.unpack(output, InPipe { pipe: stdout.lock() })?;
        sink.pipe.flush().map_err(CliError::Output)
    }

    fn unpack<Sink: Unpacked>(&self, output: &Output, sink: Sink) -> Result<(u64, Sink), CliError> {
        let api = self.api.connect()?;
        let path = format!("/v1/vms/{}/tickets", segment(&self.vm));
        let ticket: Ticket = api.post_for(&path, &TicketUse::Dump { number: self.number })?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let Guest { stream, welcome, .. } = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let GuestWelcome::Dump(dump) = welcome else {
            return Err(self.broke_off(io::ErrorKind::InvalidData.into()));
        };
        let mut meter = Meter::start(output, "opening", dump.sealed_bytes);
        let mut unpacker = Unpacker::new(sink);
        let mut from = BufReader::new(stream);
        let (mut chunk, mut taken_bytes) = (Zeroizing::new(vec![0; CHUNK_BYTES_MAX]), 0);
        while let Some(length) = chunk_of(&mut from, &mut chunk).map_err(|error| self.broke_off(error))? {
            let written = unpacker.write_all(&chunk[..length]);
            written.map_err(|error| {
                CliError::File(FileError { action: "write", path: self.to.clone(), error })
            })?;
            taken_bytes += length as u64;
            meter.at(taken_bytes);
            if signals.came() {
                return Err(CliError::Interrupted);
            }
        }
        drop(meter);
        match end_of(&mut from).map_err(|error| self.broke_off(error))? {
            GuestEnd::Done => unpacker.finish().map_err(|error| self.broke_off(error)),
            GuestEnd::Error(problem) => {
                Err(CliError::Api { code: problem.code.clone(), message: problem.to_string() })
            }
        }
    }

    fn broke_off(&self, error: io::Error) -> CliError {
        let message = format!(
            "dump {} of VM {} broke off, and nothing says that it is whole ({error}); open it again",
            self.number, self.vm
        );
        CliError::Api { code: "broke_off".to_owned(), message }
    }
}

/// The next chunk's length; `None` after the last one.
fn chunk_of(from: &mut impl Read, chunk: &mut [u8]) -> io::Result<Option<usize>> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length == 0 {
        return Ok(None);
    }
    let chunk = chunk.get_mut(..length).ok_or(io::ErrorKind::InvalidData)?;
    from.read_exact(chunk)?;
    Ok(Some(length))
}

fn end_of(from: &mut BufReader<UnixStream>) -> io::Result<GuestEnd> {
    let mut line = Vec::new();
    from.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    Ok(serde_json::from_slice(&line)?)
}

/// A file in which zeroes are holes.
struct InFile<'a> {
    file: &'a File,
    end: u64,
}

impl Unpacked for InFile<'_> {
    fn data(&mut self, data: &[u8]) -> io::Result<()> {
        self.file.write_all(data)?;
        self.end += data.len() as u64;
        Ok(())
    }

    fn zeroes(&mut self, count: u64) -> io::Result<()> {
        self.end += count;
        self.file.seek(SeekFrom::Start(self.end)).map(drop)
    }
}

struct InPipe<Pipe> {
    pipe: Pipe,
}

impl<Pipe: Write> Unpacked for InPipe<Pipe> {
    fn data(&mut self, data: &[u8]) -> io::Result<()> {
        self.pipe.write_all(data)
    }

    fn zeroes(&mut self, count: u64) -> io::Result<()> {
        let zeroes = [0; ZEROES_BYTES];
        let mut left = count;
        while left > 0 {
            let piece = left.min(ZEROES_BYTES as u64);
            self.pipe.write_all(&zeroes[..piece as usize])?;
            left -= piece;
        }
        Ok(())
    }
}
