//! `strongroom vm disk import`: fills disks with images. The control plane never sees them. The
//! host of this machine gets an open file; it opens no path from outside. A host on another one
//! asks for what it wants of the image, and no copy of it in the clear is on a disk there.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::task::Task;
use strongroom_api::vm::{ImageFormat, ImportDisk, Ticket, TicketUse};
use strongroom_files::FileError;
use strongroom_images::{Format, FormatChoice, ImageBytes, ImageSource};
use strongroom_processes::Signals;
use strongroom_streams::{ImageGiver, ImageStreamError};
use strongroom_types::VolumeSize;

use super::super::guest_socket::GuestSocket;
use super::checksum::{Checksum, ImagePlace, parse_sha256, parse_sha512};
use super::fetch::Wanted;
use crate::api::{Api, ApiArguments, follow_with_images, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;
use crate::volume::image_format::FormatArgument;

/// How often a connection looks for a signal.
const LOOKS_EVERY: Duration = Duration::from_millis(500);

/// The arguments of `import`.
#[derive(Debug, Args)]
#[command(after_help = "The previous content of the disk is lost.

Examples:
  strongroom vm disk import web1 disk0 debian.qcow2
  strongroom vm disk import web1 disk1 data.img --format raw
  strongroom vm disk import web1 disk0 https://example.org/debian.qcow2 --sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08")]
pub struct ImportArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk; disk0 is the first
    disk: String,

    /// Image file, block device, or https:// URL with --sha256 or --sha512
    image: ImagePlace,

    #[command(flatten)]
    format: ImageArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The options for an image.
#[derive(Clone, Debug, Args)]
pub struct ImageArguments {
    /// Format of the image
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto")]
    format: FormatArgument,

    /// SHA-256 of the image, as its publisher states it; required for a URL, unless there is
    /// --sha512
    #[arg(long, value_name = "HEX", value_parser = parse_sha256, conflicts_with = "sha512")]
    sha256: Option<Checksum>,

    /// SHA-512 of the image
    #[arg(long, value_name = "HEX", value_parser = parse_sha512)]
    sha512: Option<Checksum>,

    /// Certificate of the authority of the image's server, PEM [default: those that this machine
    /// trusts]
    #[arg(long, value_name = "FILE")]
    image_ca: Option<PathBuf>,
}

impl ImageArguments {
    fn checksum(&self) -> Option<&Checksum> {
        self.sha256.as_ref().or(self.sha512.as_ref())
    }
}

/// An open image.
pub struct Upload {
    /// Its name, for people.
    name: String,
    file: File,
    source: ImageSource,
}

impl Upload {
    /// A file with a disk's bytes.
    pub fn raw(file: File) -> Result<Self, CliError> {
        Self::examined(file, Path::new("the image"), FormatChoice::Said(Format::Raw))
    }

    /// Examines an open image; `name` is for people, and to guess its format.
    pub fn examined(file: File, name: &Path, format: FormatChoice) -> Result<Self, CliError> {
        let examined = file.try_clone().map_err(|error| failed("open", name, error))?;
        let source = ImageSource::examine(examined, name, format)?;
        Ok(Self { name: name.display().to_string(), file, source })
    }

    /// Opens and examines the image here, where its name is known, so that a bad one is refused
    /// before any change. One on a server is fetched.
    pub fn open(
        output: &Output,
        api: &ApiArguments,
        place: &ImagePlace,
        how: &ImageArguments,
    ) -> Result<Self, CliError> {
        let path = match place {
            ImagePlace::File(path) => path,
            ImagePlace::Url(url) => {
                let checksum = how.checksum().ok_or_else(|| {
                    CliError::Usage(format!(
                        "say what {url} has to be, with --sha256 HEX or --sha512 HEX of its publisher: nobody else vouches \
                         for what a server sends"
                    ))
                })?;
                let ca = how.image_ca.as_deref();
                let file = Wanted { url, checksum, ca }.fetch(output, &api.home()?)?;
                return Self::examined(file, Path::new(&url.to_string()), how.format.into());
            }
        };
        let failed = |error| failed("open", path, error);
        let kind = path.metadata().map_err(failed)?.file_type();
        // Opening another kind of file could block.
        if !kind.is_file() && !kind.is_block_device() {
            return Err(CliError::Usage(format!("{} is neither a file nor a block device", path.display())));
        }
        let file = File::open(path).map_err(failed)?;
        if let Some(expected) = how.checksum()
            && expected.of_file(&file).map_err(failed)? != *expected
        {
            let (image, expected) = (path.display().to_string(), expected.to_string());
            return Err(CliError::ImageChecksum { image, expected });
        }
        Self::examined(file, path, how.format.into())
    }

    fn format(&self) -> ImageFormat {
        match self.source.format() {
            Format::Raw => ImageFormat::Raw,
            Format::Qcow2 => ImageFormat::Qcow2,
            Format::Vmdk => ImageFormat::Vmdk,
            Format::Vhdx => ImageFormat::Vhdx,
        }
    }

    /// Fails if the disk is smaller.
    pub fn fits(&self, disk: &str, disk_size: VolumeSize) -> Result<(), CliError> {
        let size = self.source.size();
        if size <= disk_size {
            return Ok(());
        }
        let (name, least_mib) = (&self.name, size.bytes().div_ceil(1 << 20));
        Err(CliError::Usage(format!(
            "{name} holds a disk of {size}, and {disk} is to have {disk_size}; give it {least_mib}M or more"
        )))
    }
}

/// Has a disk filled with an image, and waits until it is.
pub fn import(api: &Api, output: &Output, vm: &str, disk: &Name, image: &Upload) -> Result<Task, CliError> {
    let signals = Signals::catch().map_err(CliError::Signals)?;
    let mut again = |disk: &Name| bring(api, output, &signals, vm, disk, image);
    let task = again(disk)?;
    follow_with_images(api, output, "importing", task, Some(&signals), &mut again)
}

/// Brings an image for the task that writes it to the disk. A host on this machine gets the file;
/// one on another machine is answered until it has what it wants, or the connection is lost. The
/// task waits then, and has the image brought again. A signal ends the answers.
pub fn bring(
    api: &Api,
    output: &Output,
    signals: &Signals,
    vm: &str,
    disk: &Name,
    image: &Upload,
) -> Result<Task, CliError> {
    let path = format!("/v1/vms/{}", segment(vm));
    let wanted = TicketUse::Upload { disk: disk.clone() };
    let ticket: Ticket = api.post_for(&format!("{path}/tickets"), &wanted)?;
    let socket = GuestSocket::connect(&ticket)?;
    let is_away = socket.is_away();
    let guest =
        if is_away { socket.enter(&ticket)? } else { socket.enter_with_file(&ticket, &image.file)? };
    let offered = is_away.then(|| image.offer(signals, guest.stream)).transpose()?;
    let wish = ImportDisk { ticket: ticket.ticket, format: image.format() };
    let task = api.post(&format!("{path}/disks/{}/import", segment(disk.as_str())), &wish)?;
    if let Some(offered) = offered {
        image.answer(output, offered)?;
    }
    Ok(task)
}

impl Upload {
    fn offer<'a>(
        &self,
        signals: &'a Signals,
        host: UnixStream,
    ) -> Result<ImageGiver<Interruptible<'a>>, CliError> {
        let failed = |error: io::Error| self.failed(error);
        let size_bytes = self.file.size_bytes().map_err(failed)?;
        let host = Interruptible::new(host, signals).map_err(failed)?;
        ImageGiver::begin(host, size_bytes).map_err(|error| self.failed(io::Error::other(error.to_string())))
    }

    /// Answers the host. If it takes no more, the task says why.
    fn answer(&self, output: &Output, host: ImageGiver<Interruptible<'_>>) -> Result<(), CliError> {
        let size_bytes = self.file.size_bytes().map_err(|error| self.failed(error))?;
        let mut meter = Meter::start(output, "sending", size_bytes);
        let (mut most, mut unreadable) = (0, None);
        let answered = host.answer(|offset, into| {
            most = most.max(offset + into.len() as u64);
            meter.at(most);
            let read = self.file.read_exact_at(into, offset);
            read.inspect_err(|error| unreadable = Some(io::Error::new(error.kind(), error.to_string())))
        });
        drop(meter);
        match (unreadable, answered) {
            (Some(error), _) => Err(self.failed(error)),
            (None, Err(ImageStreamError::Refused(reason))) => {
                Err(CliError::Usage(format!("{} is not taken: {reason}", self.name)))
            }
            (None, _) => Ok(()),
        }
    }

    fn failed(&self, error: io::Error) -> CliError {
        failed("send", Path::new(&self.name), error)
    }
}

/// A connection whose reads a signal ends.
struct Interruptible<'a> {
    host: UnixStream,
    signals: &'a Signals,
}

impl<'a> Interruptible<'a> {
    fn new(host: UnixStream, signals: &'a Signals) -> io::Result<Self> {
        host.set_read_timeout(Some(LOOKS_EVERY))?;
        Ok(Self { host, signals })
    }
}

impl Read for Interruptible<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.host.read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !self.signals.came() => {}
                // Others would read once more after `Interrupted`.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
                read => return read,
            }
        }
    }
}

impl Write for Interruptible<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.host.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.host.flush()
    }
}

fn failed(action: &'static str, path: &Path, error: io::Error) -> CliError {
    CliError::File(FileError { action, path: path.to_owned(), error })
}

/// Parses the name of a disk.
pub fn disk_name(text: &str) -> Result<Name, CliError> {
    Name::new(text).map_err(|error| CliError::Usage(error.to_string()))
}

#[derive(Serialize)]
struct Imported {
    vm: String,
    disk: String,
    image: String,
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} holds {}", self.disk, self.vm, self.image)
    }
}

impl ImportArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let Self { vm, disk, image, format, api } = self;
        let upload = Upload::open(output, api, image, format)?;
        import(&api.connect()?, output, vm, &disk_name(disk)?, &upload)?;
        output.answer(&Imported { vm: vm.clone(), disk: disk.clone(), image: upload.name })
    }
}
