//! `strongroom vm export`: writes a disk of a VM that is off to an unencrypted image.

use std::fmt;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::vm::{ImageFormat, Ticket, TicketUse};
use strongroom_host::protocol::{ExportNews, GuestEnd, GuestWelcome};
use strongroom_processes::Signals;
use strongroom_types::display_bytes;

use super::console::GuestSocket;
use super::guest_lines::{Ended, GuestLines};
use crate::api::{ApiArguments, segment};
use crate::error::CliError;
use crate::new_file::NewFile;
use crate::output::Output;
use crate::progress::Meter;
use crate::volume::image_format::NewFormatArgument;

/// The arguments of `export`.
#[derive(Debug, Args)]
#[command(after_help = "The image contains the guest's data in plain text, outside the protection of \
Strongroom. Only its owner can read it. The VM must be off or suspended. Its host fetches the key under \
a grant: an event records who exported which disk, and the key server's audit log records the release of \
the key. A failed or interrupted export leaves nothing behind.

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
        let wanted = TicketUse::Export { disk: self.disk.clone(), format };
        let ticket: Ticket = api.post_for(&format!("/v1/vms/{}/tickets", segment(&self.vm)), &wanted)?;
        output.remark(&format!(
            "note: {} will hold the guest's data in plain text",
            self.destination.display()
        ));
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let (stream, welcome) = GuestSocket::connect(&ticket)?.enter_with_file(&ticket, image.file())?;
        let GuestWelcome::Export { size_bytes } = welcome else {
            return Err(self.broke_off(&io::ErrorKind::InvalidData.into()));
        };
        self.follow(output, stream, signals, size_bytes)?;
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
                Err(Ended::BrokeOff(error)) => return Err(self.broke_off(&error)),
            }
        }
    }

    fn broke_off(&self, error: &io::Error) -> CliError {
        let message = format!(
            "the export of {} of VM {} broke off, and its image is removed ({error}); export it again",
            self.disk, self.vm
        );
        CliError::Api { code: "broke_off".to_owned(), message }
    }
}
