//! `strongroom vm export`: writes a disk of a VM that is off to an unencrypted image.
//!
//! The host of this machine writes the image into a file that is opened here. A host on another one
//! sends the disk's content, and the image is written here.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::vm::{ImageFormat, Ticket, TicketUse};
use strongroom_files::FileError;
use strongroom_host::protocol::{ExportNews, GuestEnd, GuestWelcome};
use strongroom_images::qemu_img::{self, Written};
use strongroom_processes::Signals;
use strongroom_streams::{Frame, FrameError, FrameReader, Pace};
use strongroom_types::display_bytes;

use super::guest_lines::{Ended, GuestLines};
use super::guest_socket::{Guest, GuestSocket};
use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::new_file::{NewFile, unnamed_beside};
use crate::output::Output;
use crate::progress::Meter;
use crate::volume::image_format::{NewFormatArgument, stop_of};

/// The least speed of a host that sends a disk. A disk that is read for long without data in it is
/// silent meanwhile, so only silence counts.
const PACE: Pace = Pace { least_bytes: 1, window: Duration::from_secs(600) };

/// The arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = "The image contains the guest's data in plain text, outside the protection of \
Strongroom. Only its owner can read it. The VM must be off or suspended. Its host fetches the key under \
a grant: an event records who exported which disk, and the key server's audit log records the release of \
the key. A failed or interrupted export leaves nothing behind. If the VM is on another machine, a format \
other than raw needs room for a raw copy in the same directory meanwhile.

Examples:
  strongroom vm export web1 web1.qcow2 --format qcow2
  strongroom vm export web1 data.raw --format raw --disk disk1")]
pub struct ExportArguments {
    /// Name or id of the VM
    vm: String,

    /// Image file to write; must not exist
    destination: PathBuf,

    /// Format of the image
    #[arg(long, value_enum)]
    format: NewFormatArgument,

    /// Name of the disk
    #[arg(long, value_name = "DISK", default_value = "disk0")]
    disk: Name,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Exported {
    vm: String,
    disk: Name,
    destination: PathBuf,
    format: ImageFormat,
    size_bytes: u64,
    encrypted: bool,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, disk, destination, size_bytes, .. } = self;
        let (to, size) = (destination.display(), display_bytes(*size_bytes));
        write!(f, "exported {disk} of {vm} as {to}: {size}, not encrypted")
    }
}

impl ExportArguments {
    /// Runs the command: the VM's host writes the image, into a file that is opened here.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        // Create the file first: a file that cannot be created must not cause an event.
        let image = NewFile::create(&self.destination)?;
        let format = match self.format {
            NewFormatArgument::Raw => ImageFormat::Raw,
            NewFormatArgument::Qcow2 => ImageFormat::Qcow2,
            NewFormatArgument::Vmdk => ImageFormat::Vmdk,
            NewFormatArgument::Vhdx => ImageFormat::Vhdx,
        };
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let path = format!("/v1/vms/{}/tickets", segment(&self.vm));
        let wanted = TicketUse::Export { disk: self.disk.clone(), format };
        let ticket: Ticket = api.post_for(&path, &wanted)?;
        let socket = GuestSocket::connect(&ticket)?;
        output.remark(&format!(
            "note: {} will hold the guest's data in plain text",
            self.destination.display()
        ));
        let size_bytes = match socket.is_away() {
            false => {
                let guest = socket.enter_with_file(&ticket, image.file())?;
                let size_bytes = self.export().size_of(&guest)?;
                self.follow(output, guest.stream, signals, size_bytes)?;
                size_bytes
            }
            true => self.receive(output, socket.enter(&ticket)?, &signals, image.file())?,
        };
        image.finish()?;
        output.answer(&Exported {
            vm: self.vm.clone(),
            disk: self.disk.clone(),
            destination: self.destination.clone(),
            format,
            size_bytes,
            encrypted: false,
        })
    }

    fn export(&self) -> Export<'_> {
        Export { vm: &self.vm, disk: &self.disk, destination: &self.destination }
    }

    /// Writes the image from the content that a host sends. Returns the disk's size.
    fn receive(
        &self,
        output: &Output,
        guest: Guest,
        signals: &Signals,
        image: &File,
    ) -> Result<u64, CliError> {
        match self.format {
            NewFormatArgument::Raw => self.export().receive(output, guest, signals, image),
            NewFormatArgument::Qcow2 | NewFormatArgument::Vmdk | NewFormatArgument::Vhdx => {
                let raw = unnamed_beside(&self.destination)?;
                let size_bytes = self.export().receive(output, guest, signals, &raw)?;
                let mut meter = Meter::start(output, "converting", size_bytes);
                let written = Written::Format(self.format.into());
                let mut report = |bytes| meter.at(bytes);
                qemu_img::convert(&raw, written, &self.destination, stop_of(signals), &mut report)?;
                Ok(size_bytes)
            }
        }
    }

    /// Waits until all of it is written. A host whose client is gone stops.
    fn follow(
        &self,
        output: &Output,
        stream: UnixStream,
        signals: Signals,
        size_bytes: u64,
    ) -> Result<(), CliError> {
        let mut meter = Meter::start(output, "exporting", size_bytes);
        let mut lines = GuestLines::new(stream, signals);
        loop {
            match lines.next() {
                Ok(ExportNews::Copied { bytes }) => meter.at(bytes),
                Ok(ExportNews::End(GuestEnd::Done)) => return Ok(()),
                Ok(ExportNews::End(GuestEnd::Error(problem))) => {
                    let (code, to) = (problem.code.clone(), self.destination.display());
                    return Err(CliError::Api { code, message: format!("cannot export to {to}: {problem}") });
                }
                Err(Ended::Interrupted) => return Err(CliError::Interrupted),
                Err(Ended::BrokeOff(error)) => return Err(self.export().broke_off(&error)),
            }
        }
    }
}

/// The export of one disk.
#[derive(Clone, Copy)]
pub struct Export<'a> {
    /// The VM.
    pub vm: &'a str,
    /// The disk.
    pub disk: &'a Name,
    /// What is written in the end, for errors.
    pub destination: &'a Path,
}

impl Export<'_> {
    /// Writes the raw content of the disk into a new, empty file. Returns the disk's size.
    pub fn raw_into(
        self,
        api: &Api,
        output: &Output,
        signals: &Signals,
        file: &File,
    ) -> Result<u64, CliError> {
        let wanted = TicketUse::Export { disk: self.disk.clone(), format: ImageFormat::Raw };
        let ticket: Ticket = api.post_for(&format!("/v1/vms/{}/tickets", segment(self.vm)), &wanted)?;
        let guest = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        self.receive(output, guest, signals, file)
    }

    /// Writes the raw content that a host sends. Returns the disk's size.
    fn receive(self, output: &Output, guest: Guest, signals: &Signals, into: &File) -> Result<u64, CliError> {
        let size_bytes = self.size_of(&guest)?;
        let prepared = guest.stream.set_read_timeout(Some(PACE.window));
        prepared.map_err(|error| self.broke_off(&error))?;
        self.receive_raw(output, guest.stream, signals, into, size_bytes)?;
        Ok(size_bytes)
    }

    fn size_of(&self, guest: &Guest) -> Result<u64, CliError> {
        match guest.welcome {
            GuestWelcome::Export { size_bytes } => Ok(size_bytes),
            _ => Err(self.broke_off(&io::ErrorKind::InvalidData.into())),
        }
    }

    fn receive_raw(
        &self,
        output: &Output,
        from: UnixStream,
        signals: &Signals,
        into: &File,
        size_bytes: u64,
    ) -> Result<(), CliError> {
        let broke_off = |error: FrameError| self.broke_off(&io::Error::other(error));
        into.set_len(size_bytes).map_err(|error| self.failed(error))?;
        let mut frames = FrameReader::begin(from, size_bytes, PACE).map_err(broke_off)?;
        let mut meter = Meter::start(output, "exporting", size_bytes);
        loop {
            if signals.came() {
                return Err(CliError::Interrupted);
            }
            match frames.next_frame().map_err(broke_off)? {
                Frame::Data { extent, data } => {
                    into.write_all_at(data, extent.offset()).map_err(|error| self.failed(error))?;
                    meter.at(extent.end());
                }
                Frame::Failed(reason) => {
                    let message = format!("cannot export to {}: {reason}", self.destination.display());
                    return Err(CliError::Api { code: "export".to_owned(), message });
                }
                Frame::End => return Ok(()),
            }
        }
    }

    fn failed(&self, error: io::Error) -> CliError {
        CliError::File(FileError { action: "write", path: self.destination.to_owned(), error })
    }

    fn broke_off(&self, error: &io::Error) -> CliError {
        let message = format!(
            "the export of {} of VM {} broke off, and its image is removed ({error}); export it again",
            self.disk, self.vm
        );
        CliError::Api { code: "broke_off".to_owned(), message }
    }
}
