//! `strongroom vm import` and `strongroom vm export-ova`: VMs as archives of other hypervisors. The
//! archive is read and written here, and the disks go to and from the VM's host as any image.

use std::fmt;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::vm::{
    AddDisk, Board, CreateVm, Disk, DiskFrontend, DiskKind, EncryptionWish, Firmware, MemorySize, VmView,
};
use strongroom_files::FileError;
use strongroom_images::qemu_img::{self, Written};
use strongroom_images::{Format, FormatChoice};
use strongroom_ova::archive::{self, Member, members};
use strongroom_ova::writing::{Described, END_BYTES, WrittenDisk, description, header, manifest};
use strongroom_ova::{OvaError, envelope, manifest as checksums};
use strongroom_processes::Signals;
use strongroom_types::display_bytes;

use super::disk::{Checksum, Upload, bring, disk_name};
use super::export::Export;
use super::options::{NetworkArguments, PlaceArguments, cpus};
use crate::api::{Api, ApiArguments, follow_with_images, segment};
use crate::error::CliError;
use crate::new_file::{NewFile, unnamed_beside};
use crate::output::Output;
use crate::progress::Meter;
use crate::volume::image_format::stop_of;

/// The arguments of `import`.
#[derive(Debug, Args)]
#[command(after_help = "An OVA is a tar archive of a description (OVF), a manifest and disks. Its \
manifest is verified before anything of it is used. Processors, memory, firmware (BIOS or UEFI), disks \
and their order are taken over; what is not is said. Disks become virtio disks, which some guests have \
no drivers for: see docs/IMPORT.md. While it runs, each disk has a copy without a name in the directory \
of the archive.

Examples:
  strongroom vm import appliance.ova
  strongroom vm import appliance.ova --name web1 --net bridge=br0")]
pub struct ImportOvaArguments {
    /// The archive
    archive: PathBuf,

    /// Name of the VM [default: that of the description]
    #[arg(long)]
    name: Option<Name>,

    #[command(flatten)]
    place: PlaceArguments,

    #[command(flatten)]
    network: NetworkArguments,

    /// Key provider [default: the policy's, or the only one]
    #[arg(long, value_name = "NAME", conflicts_with = "unencrypted")]
    key_provider: Option<Name>,

    /// Do not encrypt the VM: anyone who can read the datastore can read it
    #[arg(long)]
    unencrypted: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `export-ova`.
#[derive(Debug, Args)]
#[command(after_help = "The archive contains the guest's data in plain text, outside the protection of \
Strongroom. Only its owner can read it. The VM must be off or suspended. Each disk is exported as 'vm \
export' does: an event and the key server's audit log name it. Other hypervisors get the processors, the \
memory, the firmware, the disks and the count of network cards; UEFI's variables, the TPM, the seed and \
snapshots stay behind. While it runs, the directory needs room for a raw copy of the largest disk.

Example:
  strongroom vm export-ova web1 web1.ova")]
pub struct ExportOvaArguments {
    /// Name or id of the VM
    vm: String,

    /// Archive to write; must not exist
    destination: PathBuf,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Imported {
    #[serde(flatten)]
    vm: VmView,
    archive: PathBuf,
    /// What was not taken over.
    notes: Vec<String>,
}

impl fmt::Display for Imported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let summary = &self.vm.summary;
        let (name, disks) = (&summary.name, display_bytes(summary.disk_bytes));
        write!(f, "created {name} in {} from {}: {disks}", summary.datastore, self.archive.display())?;
        if !summary.encrypted {
            f.write_str(", NOT encrypted")?;
        }
        self.notes.iter().try_for_each(|note| write!(f, "\n  note: {note}"))
    }
}

#[derive(Serialize)]
struct Exported {
    vm: String,
    destination: PathBuf,
    disks: usize,
    size_bytes: u64,
    encrypted: bool,
}

impl fmt::Display for Exported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, destination, disks, size_bytes, .. } = self;
        let (to, size) = (destination.display(), display_bytes(*size_bytes));
        write!(f, "exported {vm} with {disks} disks as {to}: {size}, not encrypted")
    }
}

impl ImportOvaArguments {
    /// Runs the command. Nothing is changed unless all of the archive is understood.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let read = Archive::read(output, &self.archive)?;
        let name = self.name_of(&read.vm)?;
        let images = read.images(output)?;
        for (at, (image, disk)) in images.iter().zip(&read.vm.disks).enumerate() {
            if let Some(image) = image {
                image.fits(&format!("disk{at}"), disk.size)?;
            }
        }
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let api = self.api.connect()?;
        let task = api.post("/v1/vms", &self.wish(&name, &read.vm)?)?;
        let mut send = |disk: &Name| {
            let at = images.iter().enumerate().find(|(at, _)| disk.as_str() == format!("disk{at}"));
            let image = at.and_then(|(_, image)| image.as_ref());
            let image =
                image.ok_or_else(|| CliError::Usage(format!("the archive has no image for {disk}")))?;
            bring(&api, output, &signals, name.as_str(), disk, image)
        };
        follow_with_images(&api, output, "importing", task, Some(&signals), &mut send)?;
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(name.as_str())))?;
        output.answer(&Imported { vm, archive: self.archive.clone(), notes: read.vm.notes })
    }

    fn name_of(&self, vm: &envelope::Envelope) -> Result<Name, CliError> {
        if let Some(name) = &self.name {
            return Ok(name.clone());
        }
        let described = vm.name.as_deref().unwrap_or_default();
        Name::new(described).map_err(|error| {
            let described = described.escape_debug();
            CliError::Usage(format!("the archive calls its VM '{described}': {error}; say --name NAME"))
        })
    }

    fn wish(&self, name: &Name, vm: &envelope::Envelope) -> Result<CreateVm, CliError> {
        let memory = MemorySize::try_from(vm.memory_bytes);
        let disks = vm.disks.iter().map(|disk| AddDisk {
            size_bytes: disk.size,
            kind: DiskKind::Data,
            frontend: DiskFrontend::default(),
            fill: disk.file.is_some(),
            integrity: false,
        });
        let nics = self.network.nics()?;
        Ok(CreateVm {
            name: name.clone(),
            notes: Default::default(),
            tags: Default::default(),
            datastore: self.place.datastore.clone(),
            host: self.place.host.clone(),
            folder: self.place.folder.clone(),
            placement_group: None,
            policy: self.place.policy.clone(),
            board: Board::default(),
            firmware: if vm.is_uefi { Firmware::Uefi } else { Firmware::Bios },
            cpus: cpus(vm.cpus)?,
            growth: Default::default(),
            memory_bytes: memory.map_err(|error| CliError::Usage(format!("the VM's memory: {error}")))?,
            disks: disks.collect(),
            // Without cards in the archive, the VM gets none unless they are asked for.
            nics: if nics.is_none() && vm.nics == 0 { Some(Vec::new()) } else { nics },
            tpm: false,
            seed: false,
            fill_seed: false,
            boot: Default::default(),
            cdrom: Default::default(),
            encryption: EncryptionWish {
                encrypted: !self.unencrypted,
                provider: self.key_provider.clone(),
                key: None,
            },
            restart: Default::default(),
        })
    }
}

/// An archive whose manifest and description are read.
struct Archive<'a> {
    path: &'a Path,
    file: File,
    members: Vec<Member>,
    vm: envelope::Envelope,
}

impl<'a> Archive<'a> {
    fn read(output: &Output, path: &'a Path) -> Result<Self, CliError> {
        let failed = |error| CliError::File(FileError { action: "open", path: path.to_owned(), error });
        // Opening another kind of file could block.
        if !path.metadata().map_err(failed)?.is_file() {
            return Err(CliError::Usage(format!("{} is no file", path.display())));
        }
        let file = File::open(path).map_err(failed)?;
        let refused = |error| CliError::Ova { path: path.to_owned(), error };
        let members = members(&file).map_err(refused)?;
        let mut notes = Vec::new();
        match only(&members, ".mf").map_err(refused)? {
            None => {
                notes.push("it has no manifest, so nothing says that it is whole and unchanged".to_owned())
            }
            Some(manifest) => {
                output.remark(&format!("verifying {}", path.display()));
                let text = text_of(&file, manifest, checksums::BYTES_MAX).map_err(refused)?;
                let verified = checksums::verify(&file, &members, &text).map_err(refused)?;
                let is_left = |member: &&Member| {
                    !verified.files.contains(&member.name)
                        && !member.name.ends_with(".mf")
                        && !member.name.ends_with(".cert")
                };
                if members.iter().any(|member| is_left(&member)) {
                    notes
                        .push("its manifest does not vouch for all files with SHA-256 or SHA-512".to_owned());
                }
            }
        }
        if only(&members, ".cert").map_err(refused)?.is_some() {
            notes.push("its signature is not verified".to_owned());
        }
        let none = || OvaError::Archive("it has no description (.ovf)".to_owned());
        let described = only(&members, ".ovf").and_then(|found| found.ok_or_else(none)).map_err(refused)?;
        let text = text_of(&file, described, envelope::BYTES_MAX).map_err(refused)?;
        let mut vm = envelope::read(&text).map_err(refused)?;
        notes.append(&mut vm.notes);
        vm.notes = notes;
        Ok(Self { path, file, members, vm })
    }

    /// The images of its disks, each examined in a copy of its own.
    fn images(&self, output: &Output) -> Result<Vec<Option<Upload>>, CliError> {
        let image =
            |disk: &envelope::Disk| disk.file.as_deref().map(|file| self.image(output, file)).transpose();
        self.vm.disks.iter().map(image).collect()
    }

    fn image(&self, output: &Output, name: &str) -> Result<Upload, CliError> {
        let refused = |error| CliError::Ova { path: self.path.to_owned(), error };
        let missing = || {
            let name = name.escape_debug();
            refused(OvaError::Archive(format!("its description names {name}, which it does not have")))
        };
        let member = self.members.iter().find(|member| member.name == name).ok_or_else(missing)?;
        let mut copy = unnamed_beside(self.path)?;
        output.remark(&format!("reading {name}"));
        let copied = io::copy(&mut member.content(&self.file), &mut copy).and_then(|_| copy.rewind());
        copied.map_err(|error| refused(error.into()))?;
        // Only to be read from now on.
        let opened = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let copy = opened.map_err(|error| refused(error.into()))?;
        Upload::examined(copy, Path::new(name), FormatChoice::Said(Format::Vmdk))
    }
}

/// The only file with this ending, if there is one.
fn only<'a>(members: &'a [Member], ending: &str) -> Result<Option<&'a Member>, OvaError> {
    let mut found = members.iter().filter(|member| member.name.to_ascii_lowercase().ends_with(ending));
    let first = found.next();
    match found.next() {
        Some(_) => Err(OvaError::Archive(format!("it has several files {ending}"))),
        None => Ok(first),
    }
}

fn text_of(archive: &File, member: &Member, bytes_max: u64) -> Result<String, OvaError> {
    let content = member.read(archive, bytes_max)?;
    String::from_utf8(content).map_err(|_| OvaError::Archive(format!("{} is not UTF-8 text", member.name)))
}

impl ExportOvaArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        // Create the file first: a file that cannot be created must not cause an event.
        let archive = NewFile::create(&self.destination)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let api = self.api.connect()?;
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        output.remark(&format!(
            "note: {} will hold the guest's data in plain text",
            self.destination.display()
        ));
        let name = vm.summary.name.as_str();
        let mut disks = Vec::new();
        for disk in vm.disks.iter().filter(|disk| disk.kind == DiskKind::Data) {
            disks.push(self.disk(&api, output, &signals, name, disk)?);
        }
        let described = Described {
            name,
            cpus: vm.summary.cpus,
            memory_bytes: vm.summary.memory_bytes,
            is_uefi: vm.firmware == Firmware::Uefi,
            nics: vm.nics.len(),
            disks: disks.iter().map(|(written, _)| written.clone()).collect(),
        };
        let refused = |error| CliError::Ova { path: self.destination.clone(), error };
        let text = description(&described);
        let (ovf, mf) = (format!("{name}.ovf"), format!("{name}.mf"));
        let mut into = archive.file();
        let texts = [(&ovf, &text), (&mf, &manifest(&ovf, &text, &described.disks))];
        for (name, text) in texts {
            append(&mut into, name, text.len() as u64, &mut text.as_bytes()).map_err(refused)?;
        }
        for (written, image) in &disks {
            append(&mut into, &written.file, written.file_bytes, &mut image.file()).map_err(refused)?;
        }
        into.write_all(&[0; END_BYTES]).map_err(|error| refused(error.into()))?;
        let size_bytes = into.metadata().map_err(|error| refused(error.into()))?.len();
        archive.finish()?;
        output.answer(&Exported {
            vm: self.vm.clone(),
            destination: self.destination.clone(),
            disks: disks.len(),
            size_bytes,
            encrypted: false,
        })
    }

    /// Exports a disk as an image of its own, which is removed when it is dropped.
    fn disk(
        &self,
        api: &Api,
        output: &Output,
        signals: &Signals,
        vm: &str,
        disk: &Disk,
    ) -> Result<(WrittenDisk, NewImage), CliError> {
        let failed =
            |error| CliError::File(FileError { action: "write", path: self.destination.clone(), error });
        let raw = unnamed_beside(&self.destination)?;
        let name = disk_name(&disk.name)?;
        let export = Export { vm, disk: &name, destination: &self.destination };
        let size_bytes = export.raw_into(api, output, signals, &raw)?;
        let mut image = NewImage::create(&self.destination, &disk.name)?;
        let mut meter = Meter::start(output, "converting", size_bytes);
        let mut report = |bytes| meter.at(bytes);
        qemu_img::convert(&raw, Written::StreamOptimizedVmdk, &image.path, stop_of(signals), &mut report)?;
        image.reopen().map_err(failed)?;
        let file_bytes = image.file.metadata().map_err(failed)?.len();
        let sha256 = Checksum::sha256_of(&image.file).map_err(failed)?;
        let file = format!("{vm}-{}.vmdk", disk.name);
        Ok((WrittenDisk { file, file_bytes, sha256, size_bytes }, image))
    }
}

/// An image that becomes a part of the archive.
struct NewImage {
    path: PathBuf,
    file: File,
}

impl NewImage {
    fn create(archive: &Path, disk: &str) -> Result<Self, CliError> {
        let mut path = archive.as_os_str().to_owned();
        path.push(format!(".{disk}.vmdk"));
        let path = PathBuf::from(path);
        let made = NewFile::create(&path)?;
        let failed = |error| CliError::File(FileError { action: "create", path: path.clone(), error });
        let file = made.file().try_clone().map_err(failed)?;
        made.finish()?;
        Ok(Self { path, file })
    }

    /// Reads what another process has written, from its start.
    fn reopen(&mut self) -> io::Result<()> {
        self.file = File::open(&self.path)?;
        Ok(())
    }

    fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for NewImage {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Appends a file to an archive.
fn append(into: &mut &File, name: &str, length: u64, from: &mut impl io::Read) -> Result<(), OvaError> {
    into.write_all(&header(name, length)?)?;
    let copied = io::copy(from, into)?;
    if copied != length {
        return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
    }
    let padding = length.next_multiple_of(archive::BLOCK_BYTES) - length;
    Ok(into.write_all(&vec![0; padding as usize])?)
}
