//! Jobs that need a VM's keys while it is off, such as making and filling its volumes.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    Access, CreateOptions, Descriptor, Integrity, OpenOptions, Protection, Provisioning,
    create as make_volume, delete, open, rename,
};
use strongroom_host::attestation::Attested;
use strongroom_host::orders::{Brought, JobRequest, Report, Task, Way};
use strongroom_host::protocol::{
    CloneSource, Disk, DiskChange, DiskKey, DiskKind, DiskName, Firmware, Grant, HandoverId, ImageFormat,
    OwnVolume, Problem, Progress, ProgressUnit, SnapshotChange, VmSpec, VolumeFacts,
};
use strongroom_host::run_directory::HostRunDirectory;
use strongroom_host::served::fillable;
use strongroom_host::vm_directory::{StagedVm, VmRecord, has_handover, write_handover};
use strongroom_host::vm_lock::VmLock;
use strongroom_host::volume_facts::{facts, facts_in};
use strongroom_host::wire::Wire;
use strongroom_hypervisor::firmware::Ovmf;
use strongroom_images::{Format, FormatChoice, ImageError, ImageSource, RemoteImage, Stop};
use strongroom_keys::{Kek, KeyError, ProviderKey};
use strongroom_types::{Bandwidth, VolumeSize};
use strongroom_worker::assemble_destaged;

use crate::attestation::{is_tag, tag};
use crate::check::DiskCheck;
use crate::client_image::ClientImage;
use crate::clusters::Clusters;
use crate::dump::GivenDump;
use crate::export::ExportedDisk;
use crate::guest_client::{GuestClient, TELLS_EVERY};
use crate::hand::{Converter, NameGiver};
use crate::keys::VmKeys;
use crate::origin::{Origin, OriginVolume};
use crate::own_volume::create_with;
use crate::rekey::{Manner, rekey};
use crate::snapshots::{self, Serving};
use crate::transfer::only_socket;
use crate::{another_host, console_log, disks, dump, export, own_volume, vtpm, walls};

/// How long the last I/O of a volume's previous holder may take.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// What an image is called, whose name is not known here.
pub(super) const IMAGE: &str = "the image";
/// The suffix of the name of a volume that is being filled.
const IMPORTING: &str = ".importing";

/// How long a job of a killed hostd may take to notice.
const PREDECESSOR_ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The context of a job.
struct Job<'a> {
    home: &'a Path,
    grants: Vec<Grant>,
    /// The datastores on clusters that it uses.
    clusters: Clusters,
    /// The files that came with its order.
    files: Vec<OwnedFd>,
    /// The connection for progress reports.
    wire: &'a Wire,
    /// Gives exclusive access to the VM's directory.
    lock: VmLock,
}

/// Does a job, after waiting for exclusive access to the VM's directory.
pub fn run(
    home: &Path,
    run: &Path,
    grants: Vec<Grant>,
    clusters: Clusters,
    task: Task,
    files: Vec<OwnedFd>,
    wire: &Wire,
) -> Result<Vec<VolumeFacts>, Problem> {
    let (Task::Create { spec, .. }
    | Task::Configure(spec)
    | Task::Import { spec, .. }
    | Task::Rekey(spec)
    | Task::Reencrypt(spec)
    | Task::ChangeDisk { spec, .. }
    | Task::ChangeSnapshots { spec, .. }
    | Task::ConsoleLog(spec)
    | Task::GiveVolumes(spec)
    | Task::FetchVolumes { spec, .. }
    | Task::ExpectVolumes { spec, .. }
    | Task::Check { spec, .. }
    | Task::Export { spec, .. }
    | Task::Dump { spec, .. }) = &task
    else {
        return Err(Problem::new("internal", "that is no job"));
    };
    let run = HostRunDirectory::at(run).map_err(Problem::system)?;
    let lock = VmLock::take(&run, spec.id, PREDECESSOR_ENDS_WITHIN).map_err(Problem::system)?;
    // The other jobs first start their hand for the privileged steps.
    if needs_no_hand(&task) {
        confine(home, task.directories())?;
    }
    let job = Job { home, grants, clusters, files, wire, lock };
    match &task {
        Task::Create { spec, from } => job.create(spec, from.as_deref()),
        Task::Configure(spec) => job.configure(spec),
        Task::Import { spec, disk, format, brought: Brought::File } => {
            job.import(spec, disk, |job, wanted| job.image(*format, wanted))
        }
        Task::Import { spec, disk, format, brought: Brought::Client } => {
            job.import(spec, disk, |job, wanted| job.image_of_client(*format, wanted))
        }
        Task::Rekey(spec) => job.move_to_other_key(spec),
        Task::Reencrypt(spec) => job.reencrypt(spec),
        Task::ChangeDisk { spec, change } => job.change_disk(spec, change),
        Task::ChangeSnapshots { spec, change } => job.change_snapshots(spec, change),
        Task::ConsoleLog(spec) => job.give_console_log(spec),
        Task::Check { spec, disk, reads_blocks } => job.check_disk(spec, disk, *reads_blocks),
        Task::Export { spec, disk, format } => job.export_disk(spec, disk, *format),
        Task::Dump { spec, number } => job.give_dump(spec, *number),
        Task::GiveVolumes(spec) => job.give_volumes(spec),
        Task::FetchVolumes { spec, handover, bytes_per_second } => {
            job.fetch_volumes(spec, *handover, *bytes_per_second)
        }
        Task::ExpectVolumes { spec, handover } => job.expect_volumes(spec, *handover),
        Task::Run(_) | Task::StartProcesses(_) | Task::Hand(_) | Task::Judge(_) => {
            Err(Problem::new("internal", "that is no job"))
        }
    }
}

/// Confines this process to these directories and files. It has no key yet.
fn confine(home: &Path, directories: Vec<PathBuf>) -> Result<(), Problem> {
    walls::confine(home, directories).map_err(|error| Problem::new("confine", error.to_string()))
}

/// Whether a job only uses files in the VM's directory. Others create that directory, in a
/// datastore that may belong to another user, or need qemu-img.
fn needs_no_hand(task: &Task) -> bool {
    match task {
        Task::Configure(_)
        | Task::Rekey(_)
        | Task::Reencrypt(_)
        | Task::ChangeDisk { .. }
        | Task::ChangeSnapshots { .. }
        | Task::Check { .. }
        | Task::ConsoleLog(_)
        | Task::GiveVolumes(_)
        | Task::Judge(_)
        | Task::Dump { .. } => true,
        Task::Run(_)
        | Task::StartProcesses(_)
        | Task::Hand(_)
        | Task::Create { .. }
        | Task::FetchVolumes { .. }
        | Task::ExpectVolumes { .. }
        | Task::Import { .. }
        | Task::Export { .. } => false,
    }
}

impl Job<'_> {
    /// Makes a VM's directory with its volumes; does nothing if it exists. They begin with the
    /// content of another VM, or empty.
    fn create(self, spec: &VmSpec, from: Option<&CloneSource>) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, clusters, wire, lock, .. } = self;
        let Some(staged) = StagedVm::begin(spec)? else {
            return facts(spec);
        };
        let name_giver = NameGiver::start(home, &clusters, spec, &lock)?;
        let read = from.map(|from| from.spec.directories());
        confine(home, std::iter::once(staged.path().to_owned()).chain(read.into_iter().flatten()).collect())?;
        let mut makers = Makers::new(home, grants, spec)?;
        let origin = from.map(|from| Origin::open_with_grants(home, from)).transpose()?;
        let mut spec = spec.clone();
        let total = spec.disks.len();
        for (done, disk) in spec.disks.iter_mut().filter(|disk| disk.kind == DiskKind::Data).enumerate() {
            tell(wire, done, total)?;
            let path = staged.path().join(disk.name.as_str());
            if let Some(origin) = origin.as_ref().filter(|origin| origin.is_linked()) {
                makers.link(origin, &path, disk)?;
                continue;
            }
            let content = origin.as_ref().map(|origin| origin.volume(&disk.name)).transpose()?;
            if let Some(content) = &content {
                disk.size_bytes = content.size()?;
            }
            makers.make(&path, disk)?;
            if let Some(content) = content {
                makers.copy(&content, &path, &disk.key, wire)?;
            }
        }
        let variables = staged.path().join(OwnVolume::Nvram.name());
        match &origin {
            Some(origin) if origin.is_linked() => {
                makers.link_variables(origin, &variables, &spec)?;
                makers.make_own(staged.path(), &spec)?;
            }
            origin => {
                makers.make_own(staged.path(), &spec)?;
                let content = origin.as_ref().map(Origin::variables).transpose()?.flatten();
                if let Some(content) = content {
                    makers.copy(&content, &variables, &spec.own_key().clone(), wire)?;
                }
            }
        }
        let made = facts_in(staged.path(), &spec)?;
        let mut record = VmRecord::new(spec.clone(), None);
        makers.attest(&mut record, spec.with_facts(&made))?;
        record.write(staged.path())?;
        name_giver.give()?;
        Ok(made)
    }

    /// Replaces the configuration in a VM's directory, and makes its missing volumes.
    fn configure(self, spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, wire, .. } = self;
        let directory = spec.directory();
        VmRecord::read_of(&directory, spec.id)?;
        let mut makers = Makers::new(home, grants, spec)?;
        let (spec_now, mut spec) = (spec, spec.clone());
        let total = spec.disks.len();
        for (done, disk) in spec.disks.iter_mut().filter(|disk| disk.kind == DiskKind::Data).enumerate() {
            tell(wire, done, total)?;
            let path = spec_now.volume_path(&disk.name);
            if is_gone(&path) {
                makers.make(&path, disk)?;
            }
        }
        makers.make_own(&directory, &spec)?;
        let made = facts(&spec)?;
        VmRecord::change(&spec, |record| makers.attest(record, spec.clone().with_facts(&made)))?;
        Ok(made)
    }

    /// The image that came as a file.
    fn image(&mut self, format: ImageFormat, wanted: &Disk) -> Result<Content, Problem> {
        let image = self.files.pop().ok_or_else(|| Problem::new("no_file", "no image came"))?;
        let image = File::from(image);
        let handed = image.try_clone().map_err(Problem::system)?;
        let image = ImageSource::examine(image, Path::new(IMAGE), choice(format)).map_err(image_problem)?;
        let format = fitting(&image, wanted)?;
        let converter =
            Converter::for_image(self.home, Some(&handed), format, wanted.size_bytes, Way::Import)?;
        Ok(Content { image, converter, client: None })
    }

    /// The image that a client has.
    fn image_of_client(&mut self, format: ImageFormat, wanted: &Disk) -> Result<Content, Problem> {
        let client = only_socket(std::mem::take(&mut self.files))?;
        let client = Arc::new(ClientImage::begin(client, self.wire)?);
        let image = Arc::clone(&client) as Arc<dyn RemoteImage>;
        let examined = ImageSource::examine_remote(image, Path::new(IMAGE), choice(format));
        let judged = examined.map_err(image_problem).and_then(|image| Ok((fitting(&image, wanted)?, image)));
        let (format, image) = match (judged, client.lost()) {
            (Err(_), Some(lost)) => return Err(lost),
            (judged, _) => judged?,
        };
        let converter = Converter::for_image(self.home, None, format, wanted.size_bytes, Way::Import)?;
        Ok(Content { image, converter, client: Some(client) })
    }

    /// Fills a disk with an image. The new volume is filled under a temporary name, so that the old
    /// content stays until the image is complete.
    fn import(
        mut self,
        spec: &VmSpec,
        disk: &DiskName,
        content: impl FnOnce(&mut Self, &Disk) -> Result<Content, Problem>,
    ) -> Result<Vec<VolumeFacts>, Problem> {
        let no_disk =
            || Problem::new("no_such_disk", format!("VM {} has no disk {disk} that keeps data", spec.name));
        let mut wanted = fillable(spec, disk).ok_or_else(no_disk)?;
        let content = content(&mut self, &wanted)?;
        let Self { home, grants, wire, .. } = self;
        confine(home, spec.directories())?;
        VmRecord::read_of(&spec.directory(), spec.id)?.snapshots.check_unneeded(disk)?;
        let place = spec.volume_path(disk);
        let staged = staged_path(&place);
        if !is_gone(&staged) {
            delete(&staged, LOCK_WAIT)?;
        }
        let mut makers = Makers::new(home, grants, spec)?;
        makers.make(&staged, &mut wanted)?;
        let filled = makers.fill(&staged, &wanted, content, wire);
        if let Err(problem) = filled {
            let _ = delete(&staged, LOCK_WAIT);
            return Err(problem);
        }
        // From here on only the image counts. If this is interrupted, a repeated request finds no
        // disk, or the new one.
        if !is_gone(&place) {
            delete(&place, LOCK_WAIT)?;
        }
        rename(&staged, &place)?;
        // The old volume's id is forgotten, since the new one has another.
        let mut filled = spec.clone();
        filled.own_volumes.retain(|own| own.name != *disk);
        filled.disks.iter_mut().filter(|known| known.name == *disk).for_each(|known| *known = wanted.clone());
        let facts = facts(&filled)?.into_iter().filter(|facts| facts.disk == *disk).collect::<Vec<_>>();
        VmRecord::change(spec, |record| makers.attest(record, spec.clone().with_facts(&facts)))?;
        Ok(facts)
    }

    /// Moves all volumes of a VM that is off to another key.
    fn move_to_other_key(self, spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, wire, .. } = self;
        let keys = granted(home, grants, spec)?;
        facts(&rekey(spec, &keys, Manner::Rewrap { log: None }, |progress| report(wire, progress))?)
    }

    /// The same, with all data rewritten under new data keys. Ends early if hostd asks for it.
    fn reencrypt(self, spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, wire, .. } = self;
        let keys = granted(home, grants, spec)?;
        let cancelled = Cell::new(false);
        let is_cancelled = || {
            if let Ok((JobRequest::WindUp {}, _)) = wire.receive_within(Duration::ZERO) {
                cancelled.set(true);
            }
            cancelled.get()
        };
        let manner = Manner::Reencrypt { is_cancelled: &is_cancelled, log: None };
        facts(&rekey(spec, &keys, manner, |progress| report(wire, progress))?)
    }

    /// Changes a disk of a VM that is off.
    fn change_disk(self, spec: &VmSpec, change: &DiskChange) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, wire, .. } = self;
        disks::change(granted(home, grants, spec)?, spec, change, |progress| report(wire, progress))
    }

    /// Makes, reverts to or deletes a snapshot of a VM that is off.
    fn change_snapshots(self, spec: &VmSpec, change: &SnapshotChange) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, wire, .. } = self;
        let keys = granted(home, grants, spec)?;
        let tell = |progress| report(wire, progress);
        facts(&snapshots::change(&keys, spec, change, Serving::No, tell)?)
    }

    /// Sends the recorded console output to a client.
    fn give_console_log(self, spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, files, .. } = self;
        let client = only_socket(files)?;
        let keys = granted(home, grants, spec)?;
        let kek = own_volume::hold_key(&keys, spec, OwnVolume::Console).map_err(|error| error.problem())?;
        let said = console_log::read(spec, kek.as_deref())?;
        console_log::give(client.into(), Ok(said));
        Ok(Vec::new())
    }

    /// Sends a dump to a client. Once the dump is open, only its volume is locked, and not the VM.
    fn give_dump(self, spec: &VmSpec, number: u32) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, files, lock, .. } = self;
        let client = only_socket(files)?;
        let keys = VmKeys::new(home, &spec.name).map_err(Problem::system)?;
        keys.add_grants(grants);
        let kek =
            own_volume::hold_key(&keys, spec, OwnVolume::Dump(number)).map_err(|error| error.problem())?;
        let opened = GivenDump::open(spec, number, kek.as_deref())?;
        drop(lock);
        dump::give(client.into(), Ok(opened));
        Ok(Vec::new())
    }

    /// Gives the VM's volumes to the host that it moves to. The VM stays locked meanwhile.
    fn give_volumes(self, spec: &VmSpec) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, files, lock: _lock, .. } = self;
        let client = only_socket(files)?;
        another_host::give(spec, &*granted(home, grants, spec)?, client.into())?;
        Ok(Vec::new())
    }

    /// Makes a VM's directory of the volumes that another host has; does nothing if this attempt
    /// has made it already.
    fn fetch_volumes(
        self,
        spec: &VmSpec,
        handover: HandoverId,
        bytes_per_second: Option<Bandwidth>,
    ) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, clusters, files, wire, lock } = self;
        let from = only_socket(files)?;
        let Some(staged) = StagedVm::go_on(spec)? else {
            must_be_of(spec, handover)?;
            return facts(spec);
        };
        let name_giver = NameGiver::start(home, &clusters, spec, &lock)?;
        confine(home, vec![staged.path().to_owned()])?;
        let keys = granted(home, grants, spec)?;
        let tell = |progress| report(wire, progress);
        let most = bytes_per_second.map(Bandwidth::get);
        let mut record = another_host::fetch(&keys, spec, staged.path(), from.into(), most, tell)?;
        let made = facts_in(staged.path(), spec)?;
        Makers::with(keys).attest(&mut record, spec.clone().with_facts(&made))?;
        record.write(staged.path())?;
        write_handover(staged.path(), handover)?;
        name_giver.give()?;
        Ok(made)
    }

    /// Makes the directory for a VM's volumes; does nothing if this attempt has made it already.
    fn expect_volumes(self, spec: &VmSpec, handover: HandoverId) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, clusters, lock, .. } = self;
        let Some(staged) = StagedVm::begin(spec)? else {
            must_be_of(spec, handover)?;
            return Ok(Vec::new());
        };
        let name_giver = NameGiver::start(home, &clusters, spec, &lock)?;
        confine(home, vec![staged.path().to_owned()])?;
        VmRecord::new(spec.clone(), None).write(staged.path())?;
        write_handover(staged.path(), handover)?;
        name_giver.give()?;
        Ok(Vec::new())
    }

    /// Copies a disk for a client. As with a dump, only its volume is locked meanwhile.
    fn export_disk(
        self,
        spec: &VmSpec,
        disk: &DiskName,
        format: ImageFormat,
    ) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, files, lock, .. } = self;
        let mut files = files.into_iter();
        let client = files.next().ok_or_else(|| Problem::new("no_file", "no socket came"))?;
        if format == ImageFormat::Auto {
            return Err(Problem::new("bad_request", "an image is written in a format that is said"));
        }
        let Some(file) = files.next().map(File::from) else {
            confine(home, spec.directories())?;
            let opened = ExportedDisk::open(spec, disk, &*granted(home, grants, spec)?)?;
            drop(lock);
            export::send(&GuestClient::new(client.into())?, &opened);
            return Ok(Vec::new());
        };
        let size_bytes = export::data_disk(spec, disk)?.size_bytes;
        let converter = Converter::for_image(home, Some(&file), format, size_bytes, Way::Export)?;
        // A raw image is written with direct I/O, for which the file is opened once more.
        let image = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        confine(home, spec.directories().into_iter().chain([image]).collect())?;
        let opened = ExportedDisk::open(spec, disk, &*granted(home, grants, spec)?)?;
        drop(lock);
        export::give(&GuestClient::new(client.into())?, &file, &opened, converter);
        Ok(Vec::new())
    }

    /// Checks a disk for a client. As with a copy, only its volume is locked meanwhile.
    fn check_disk(
        self,
        spec: &VmSpec,
        disk: &DiskName,
        reads_blocks: bool,
    ) -> Result<Vec<VolumeFacts>, Problem> {
        let Self { home, grants, files, lock, .. } = self;
        let client = only_socket(files)?;
        let keys = granted(home, grants, spec)?;
        let check = DiskCheck::new(spec, disk, reads_blocks, &keys)?;
        let client = GuestClient::new(client.into())?;
        drop(lock);
        check.give(&client);
        Ok(Vec::new())
    }
}

/// Returns the objections to a configuration with encrypted disks as the one that the VM's
/// supervisor last attested. Changes nothing; the VM may run meanwhile.
pub fn judge(home: &Path, grants: Vec<Grant>, spec: &VmSpec) -> Result<Vec<String>, Problem> {
    let record = VmRecord::read_of(&spec.directory(), spec.id)?;
    let Some(attestation) = record.attestation else {
        return Ok(vec![
            "its configuration bears no attestation: a former release wrote it, or somebody took it away"
                .to_owned(),
        ]);
    };
    let keys = granted(home, grants, spec)?;
    Ok(attestation.doubts(spec, record.generation, |key, what, tag| {
        let kek = keys.hold(key).map_err(|error| error.to_string())?;
        is_tag(what, &kek, tag).map_err(|error| error.to_string())
    }))
}

/// Refuses a directory that another attempt has made.
fn must_be_of(spec: &VmSpec, handover: HandoverId) -> Result<(), Problem> {
    match has_handover(&spec.directory(), handover)? {
        true => Ok(()),
        false => {
            let message = format!("{} is of another attempt", spec.directory().display());
            Err(Problem::new("other_attempt", message))
        }
    }
}

/// The VM's keys, with these grants.
pub fn granted(home: &Path, grants: Vec<Grant>, spec: &VmSpec) -> Result<Arc<VmKeys>, Problem> {
    let keys = VmKeys::new(home, &spec.name).map_err(Problem::system)?;
    keys.add_grants(grants);
    Ok(Arc::new(keys))
}

/// The temporary path of a volume while it is filled.
pub fn staged_path(place: &Path) -> PathBuf {
    let mut name = place.to_owned().into_os_string();
    name.push(IMPORTING);
    name.into()
}

/// Makes volumes, and fetches each key once.
pub struct Makers {
    keys: Arc<VmKeys>,
    fetched: Vec<(ProviderKey, Kek)>,
}

impl Makers {
    fn new(home: &Path, grants: Vec<Grant>, spec: &VmSpec) -> Result<Self, Problem> {
        Ok(Self::with(granted(home, grants, spec)?))
    }

    /// Starts without fetched keys.
    pub fn with(keys: Arc<VmKeys>) -> Self {
        Self { keys, fetched: Vec::new() }
    }

    fn kek(&mut self, key: &ProviderKey) -> Result<&Kek, KeyError> {
        let found = match self.fetched.iter().position(|(fetched, _)| fetched == key) {
            Some(found) => found,
            None => {
                self.fetched.push((key.clone(), self.keys.fetch_to_seal(key)?));
                self.fetched.len() - 1
            }
        };
        Ok(&self.fetched[found].1)
    }

    /// Replaces the configuration in a record, and attests it under its keys.
    ///
    /// # Errors
    /// If a key is unavailable.
    pub fn attest(&mut self, record: &mut VmRecord, spec: VmSpec) -> Result<(), Problem> {
        let attest = |key: &ProviderKey, what: &Attested<'_>| {
            // A fetched key is not fetched again: that would take another grant.
            match self.fetched.iter().find(|(fetched, _)| fetched == key) {
                Some((_, kek)) => tag(what, kek),
                None => self.keys.attest(key, what),
            }
        };
        record.become_attested(&spec, attest).map_err(key_problem)
    }

    /// Makes the volume, and records its id and its key's id in `disk`.
    ///
    /// # Errors
    /// Also if the key is unavailable.
    pub fn make(&mut self, path: &Path, disk: &mut Disk) -> Result<(), Problem> {
        let (size, integrity) = (disk.size_bytes, disk.integrity.then_some(Integrity::NEW));
        let provisioning = if disk.thick { Provisioning::Thick } else { Provisioning::Thin };
        let protection = self.protection(disk)?;
        let options = CreateOptions { size, provisioning, protection, log_bytes: None, integrity };
        let made = make_volume(path, &options)?;
        self.made(disk, &made)
    }

    /// Makes the volume of a linked clone, and records its size, its id and its key's id in `disk`.
    ///
    /// # Errors
    /// Also if a key is unavailable.
    fn link(&mut self, origin: &Origin<'_>, path: &Path, disk: &mut Disk) -> Result<(), Problem> {
        let made = origin.link_disk(&disk.name, path, self.kek_of(&disk.key)?)?;
        disk.size_bytes = made.size_bytes;
        self.made(disk, &made)
    }

    /// Makes the volume of UEFI's variables of a linked clone, if its origin has one.
    fn link_variables(&mut self, origin: &Origin<'_>, path: &Path, spec: &VmSpec) -> Result<(), Problem> {
        let Ok(name) = OwnVolume::Nvram.name().parse() else { return Ok(()) };
        origin.link(&name, path, self.kek_of(spec.own_key())?).map(drop)
    }

    /// Records a new volume's id and its key's id.
    fn made(&mut self, disk: &mut Disk, made: &Descriptor) -> Result<(), Problem> {
        (disk.volume, disk.least_generation) = (Some(made.volume), made.generation);
        if let DiskKey::Provider { key, kek, next: None } = &mut disk.key {
            *kek = Some(self.kek(&key.clone()).map_err(key_problem)?.id());
        }
        Ok(())
    }

    fn protection(&mut self, disk: &Disk) -> Result<Protection<'_>, Problem> {
        Ok(self.kek_of(&disk.key)?.map_or(Protection::Unencrypted, Protection::Encrypted))
    }

    /// Returns the KEK for a new volume.
    fn kek_of(&mut self, wanted: &DiskKey) -> Result<Option<&Kek>, Problem> {
        let Some(key) = wanted.for_new() else { return Ok(None) };
        let kek = self.kek(key).map_err(key_problem)?;
        if let DiskKey::Provider { kek: Some(expected), next: None, .. } = wanted {
            kek.expect_id(*expected).map_err(key_problem)?;
        }
        Ok(Some(kek))
    }

    /// Makes the VM's missing own volumes in `directory`.
    fn make_own(&mut self, directory: &Path, spec: &VmSpec) -> Result<(), Problem> {
        let place = |which: OwnVolume| directory.join(which.name());
        let nvram = place(OwnVolume::Nvram);
        if spec.firmware == Firmware::Uefi && is_gone(&nvram) {
            let content = uefi_variables()?;
            let size = VolumeSize::new(content.len() as u64).map_err(|error| no_firmware(&error))?;
            create_with(&nvram, size, self.kek_of(spec.own_key())?, &content)
                .map_err(|error| error.problem())?;
        }
        let seed = place(OwnVolume::Seed);
        if spec.seed
            && is_gone(&seed)
            && let Ok(name) = OwnVolume::Seed.name().parse()
            && let Some(disk) = fillable(spec, &name)
        {
            // The seed is empty until it is filled.
            let kek = self.kek_of(spec.own_key())?;
            create_with(&seed, disk.size_bytes, kek, &[]).map_err(|error| error.problem())?;
        }
        let vtpm = place(OwnVolume::Vtpm);
        if spec.tpm && is_gone(&vtpm) {
            let failed = |error: &dyn std::fmt::Display| Problem::new("tpm", error.to_string());
            let content = vtpm::new_content().map_err(|error| failed(&error))?;
            let size = vtpm::volume_size().map_err(|error| failed(&error))?;
            create_with(&vtpm, size, self.kek_of(spec.own_key())?, &content)
                .map_err(|error| error.problem())?;
        }
        Ok(())
    }

    /// Copies a volume of another VM into the new one at `path`.
    fn copy(
        &mut self,
        content: &OriginVolume,
        path: &Path,
        key: &DiskKey,
        wire: &Wire,
    ) -> Result<(), Problem> {
        let kek = self.kek_of(key)?;
        let total = content.size()?.bytes();
        let (stop, mut told) = (AtomicBool::new(false), None::<Instant>);
        content.copy_into(path, kek, &stop, &mut |done| {
            if told.is_none_or(|told| told.elapsed() >= TELLS_EVERY) {
                told = Some(Instant::now());
                if report(wire, Progress::new(done, total, ProgressUnit::Bytes)).is_err() {
                    stop.store(true, Ordering::Relaxed);
                }
            }
        })
    }

    fn fill(&mut self, path: &Path, wanted: &Disk, content: Content, wire: &Wire) -> Result<(), Problem> {
        let protection = self.protection(wanted)?;
        let options =
            OpenOptions { protection, access: Access::ReadWrite, lock_wait: LOCK_WAIT, least_generation: 0 };
        let volume = open(path, &options)?;
        let disk = assemble_destaged(volume).map_err(|error| Problem::new("import", error.to_string()))?;
        let (flag, wake) =
            (AtomicBool::new(false), eventfd(0, EventfdFlags::CLOEXEC).map_err(Problem::system)?);
        let (total, mut told) = (content.image.size().bytes(), None::<Instant>);
        let is_file = content.client.is_none();
        let mut report = |done| {
            if told.is_some_and(|told| told.elapsed() < TELLS_EVERY) {
                return;
            }
            told = Some(Instant::now());
            let progress = Progress::new(done, total, ProgressUnit::Bytes);
            // A client's image hears of the end itself.
            let is_to_end = || is_file && wire.receive_within::<JobRequest>(Duration::ZERO).is_ok();
            if wire.send(&Report::Progress(progress), &[]).is_err() || is_to_end() {
                // The requester is gone, or has cancelled it.
                flag.store(true, Ordering::Relaxed);
                let _ = rustix::io::write(&wake, &1_u64.to_ne_bytes());
            }
        };
        let stop = Stop { flag: &flag, wake: wake.as_fd() };
        let Content { image, converter, client } = content;
        let copied = match converter {
            Some(converter) => {
                let image = client.clone().map(|client| client as _);
                converter.copy(image, disk, stop, &mut report)
            }
            None => image.copy_into(disk, stop, &mut report).map_err(image_problem),
        };
        let Some(client) = client else { return copied };
        client.end();
        copied.map_err(|problem| client.lost().unwrap_or(problem))
    }
}

/// What a disk is filled with.
struct Content {
    image: ImageSource,
    /// The process that converts it, unless it is raw.
    converter: Option<Converter>,
    /// The client that has it, unless it is a file.
    client: Option<Arc<ClientImage>>,
}

/// The format of an image whose disk is not larger than the one that it is for.
fn fitting(image: &ImageSource, disk: &Disk) -> Result<ImageFormat, Problem> {
    if image.size() <= disk.size_bytes {
        return Ok(image_format(image.format()));
    }
    let message =
        format!("the image's disk has {}, and disk {} has {}", image.size(), disk.name, disk.size_bytes);
    Err(Problem::new("image_too_large", message).with_next_step("make the disk larger"))
}

/// The initial UEFI variables of a new VM, from the firmware's template.
fn uefi_variables() -> Result<Vec<u8>, Problem> {
    let ovmf = Ovmf::find().map_err(|error| no_firmware(&error))?;
    std::fs::read(&ovmf.variables)
        .map_err(|error| no_firmware(&format!("cannot read {}: {error}", ovmf.variables.display())))
}

fn no_firmware(error: &dyn std::fmt::Display) -> Problem {
    Problem::new("no_firmware", error.to_string())
}

/// The requested format, for a judge that trusts the findings of a sandboxed qemu-img alone.
fn choice(format: ImageFormat) -> FormatChoice {
    said_format(format).map_or(FormatChoice::Auto, FormatChoice::Said)
}

/// The requested format; `None` if it must be detected.
pub(super) fn said_format(format: ImageFormat) -> Option<Format> {
    match format {
        ImageFormat::Auto => None,
        ImageFormat::Raw => Some(Format::Raw),
        ImageFormat::Qcow2 => Some(Format::Qcow2),
        ImageFormat::Vmdk => Some(Format::Vmdk),
        ImageFormat::Vhdx => Some(Format::Vhdx),
    }
}

/// Converts a detected or requested format.
fn image_format(format: Format) -> ImageFormat {
    match format {
        Format::Raw => ImageFormat::Raw,
        Format::Qcow2 => ImageFormat::Qcow2,
        Format::Vmdk => ImageFormat::Vmdk,
        Format::Vhdx => ImageFormat::Vhdx,
    }
}

/// Reports how many volumes are done.
fn tell(wire: &Wire, done: usize, total: usize) -> Result<(), Problem> {
    report(wire, Progress::new(done as u64, total as u64, ProgressUnit::Volumes))
}

/// Reports progress. If hostd is gone, the job ends, and the next hostd requests it again.
fn report(wire: &Wire, progress: Progress) -> Result<(), Problem> {
    let told = wire.send(&Report::Progress(progress), &[]);
    told.map_err(|error| Problem::new("hostd_gone", format!("hostd is gone: {error}")))
}

/// The problem for an error of an image or its copy.
pub fn image_problem(error: ImageError) -> Problem {
    Problem::new(error.code(), error.to_string())
}

/// The problem for a key that is unavailable, or is not the expected one.
pub fn key_problem(error: KeyError) -> Problem {
    Problem::new(error.code(), error.to_string())
}
