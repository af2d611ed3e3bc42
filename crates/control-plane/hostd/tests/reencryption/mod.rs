//! All data of a VM is rewritten under new data keys: whoever is killed, nothing that the old keys
//! open is left, and the VM is what it was.

pub mod moved_disks;
pub mod moved_running;
pub mod running;
pub mod sealed;
pub mod sealed_running;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use strongroom_datastore::file::{Descriptor, describe};
use strongroom_host::protocol::{
    Disk, DiskKey, ImageFormat, NewVmSnapshot, OperationId, OperationKind, OperationOutcome, OperationState,
    SnapshotChange, StartOptions, TicketRequest, VmSpec,
};
use strongroom_keys::{KekSource, ProviderKey};
use strongroom_types::{SnapshotId, VolumeSize};

use super::{FORCED, processes_below};
use crate::support::{Host, KeySite, boot_sector, kill, until};

const FINDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../scripts/find-marker.py");

/// A text in every block of the disks, in the guest's memory, and on its console.
const MARKER: &str = "strongroom-marker-of-old-keys";
/// The beginning of a console log or a dump, whose records are sealed once more.
const STREAM: &str = "STRSTRM1";
/// The size of the first disk.
const DISK_BYTES: u64 = 64 << 20;
const BLOCK: usize = 4096;

/// A VM with an image, a snapshot, cloud-init's data, a console log and a dump.
pub struct Subject {
    host: Host,
    site: KeySite,
    spec: VmSpec,
    image: Vec<u8>,
    /// Copies of its descriptors.
    old: PathBuf,
    /// The number of its last start.
    generation: u64,
}

fn contains(bytes: &[u8]) -> bool {
    bytes.windows(MARKER.len()).any(|window| window == MARKER.as_bytes())
}

/// An image whose guest says `ready`, with the marker in each block.
fn image(boot_sector: Vec<u8>) -> Vec<u8> {
    let mut image = boot_sector;
    let text = image[..510].iter().rposition(|byte| *byte != 0).unwrap() + 2;
    image[text..text + MARKER.len()].copy_from_slice(MARKER.as_bytes());
    let line = format!("{MARKER}\n");
    let block: Vec<u8> = line.bytes().cycle().take(BLOCK).collect();
    while image.len() < DISK_BYTES as usize {
        image.extend(&block);
    }
    image
}

impl Subject {
    fn new() -> Self {
        Self::booting(boot_sector())
    }

    fn booting(boot_sector: Vec<u8>) -> Self {
        Self::under(|site, _| DiskKey::provider(site.key.clone(), None), boot_sector)
    }

    /// A VM whose disks have these keys.
    fn under(key: impl Fn(&KeySite, usize) -> DiskKey, boot_sector: Vec<u8>) -> Self {
        Self::with_disks(|site, at, disk| disk.key = key(site, at), boot_sector)
    }

    /// A VM with two disks like this.
    fn with_disks(make: impl Fn(&KeySite, usize, &mut Disk), boot_sector: Vec<u8>) -> Self {
        let host = Host::start();
        let site = KeySite::start(&host);
        let mut spec = host.spec("web1", 2);
        for (at, disk) in spec.disks.iter_mut().enumerate() {
            make(&site, at, disk);
        }
        spec.disks[0].size_bytes = VolumeSize::new(DISK_BYTES).unwrap();
        spec.seed = true;
        let made = host.done(&spec, 0, host.create(&spec));
        let (image, old) = (image(boot_sector), host.path("old"));
        std::fs::create_dir(&old).unwrap();
        let mut subject = Self { host, site, spec, image, old, generation: 0 };
        subject.keep(made);
        for (volume, bytes) in [("disk0", DISK_BYTES as usize), ("disk1", 1 << 20), ("seed", BLOCK)] {
            let filled = subject.host.import_into(&subject.spec, volume, &subject.image[..bytes]);
            subject.keep(filled);
        }
        subject.start();
        let dump = OperationKind::Dump { label: None };
        subject.host.done(&subject.spec, subject.generation, dump);
        subject.stop();
        let snapshot = NewVmSnapshot::of_disks(SnapshotId::random(), "first".parse().unwrap());
        let change = SnapshotChange::Create { snapshot };
        let change = OperationKind::ChangeSnapshots { spec: Box::new(subject.spec.clone()), change };
        let made = subject.host.done(&subject.spec, 0, change);
        subject.keep(made);
        subject
    }

    /// Keeps the outcome of an operation, as the control plane does.
    fn keep(&mut self, told: Option<OperationOutcome>) {
        let Some(OperationOutcome::Volumes(volumes)) = told else { panic!("{told:?}") };
        self.spec = self.spec.clone().with_facts(&volumes);
    }

    /// Starts it. Its guest says the marker.
    fn start(&mut self) {
        self.generation += 1;
        let spec = Box::new(self.spec.clone());
        let start = OperationKind::Start { spec, how: StartOptions::default() };
        assert_eq!(self.host.done(&self.spec, self.generation, start), None);
        let mut console = self.host.console(&self.spec);
        console.await_line("ready");
        console.say(MARKER);
        console.await_text(MARKER);
    }

    fn stop(&self) {
        self.host.done(&self.spec, self.generation, FORCED);
    }

    /// The places of its volumes.
    fn volumes(&self) -> Vec<PathBuf> {
        let entries =
            |directory: PathBuf| std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let entries = self.spec.directories().into_iter().flat_map(entries);
        entries.filter(|path| path.join("descriptor").exists()).collect()
    }

    fn descriptors(&self) -> Vec<Descriptor> {
        self.volumes().iter().map(|path| describe(path).unwrap().descriptor).collect()
    }

    /// Copies the descriptors that open under this key.
    fn copy_descriptors(&self, key: &ProviderKey) {
        let source = KekSource::Provider(key.clone());
        for path in self.volumes() {
            let name = path.file_name().unwrap();
            if describe(&path).unwrap().descriptor.encryption.unwrap().kek.source == source {
                std::fs::copy(path.join("descriptor"), self.old.join(name)).unwrap();
            }
        }
    }

    /// Looks for the marker under the data keys of the copied descriptors, which this key opens, in
    /// all files of the VM.
    fn find(&self, key: &ProviderKey) -> Vec<(String, Output)> {
        let key_file = self.host.path("old.key");
        std::fs::write(&key_file, self.site.fetch(key).expose()).unwrap();
        let copies = std::fs::read_dir(&self.old).unwrap().map(|entry| entry.unwrap());
        let find = |copy: &Path| {
            let is_stream = copy.ends_with("console") || copy.ends_with("dump-1");
            Command::new(FINDER)
                .arg(copy)
                .args(["--marker", if is_stream { STREAM } else { MARKER }])
                .arg("--key-file")
                .arg(&key_file)
                .arg(self.spec.directory())
                .output()
                .unwrap()
        };
        copies.map(|copy| (copy.file_name().into_string().unwrap(), find(&copy.path()))).collect()
    }

    fn assert_found(&self, key: &ProviderKey, volumes: &[&str]) {
        let found = self.find(key);
        for volume in volumes {
            let (_, output) = found.iter().find(|(name, _)| name == volume).unwrap();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(told.contains("show the marker"), "{volume}: {told}");
        }
    }

    fn assert_not_found(&self, key: &ProviderKey) {
        for (volume, output) in self.find(key) {
            assert!(output.status.success(), "{volume}: {output:?}");
        }
    }

    /// The request to renew its data keys, under this key.
    fn rekey(&self, to: &ProviderKey) -> OperationKind {
        let mut moved = self.spec.clone();
        moved.move_to(to);
        OperationKind::Rekey { spec: Box::new(moved), data: true }
    }

    /// Begins to renew its data keys. Returns the operation and the process that does it, once its
    /// first disk is half done.
    fn begin(&self, to: &ProviderKey) -> (OperationId, u32) {
        let operation = self.begin_only(to);
        let job = *processes_below(self.host.hostd_pid()).first().unwrap();
        (operation, job)
    }

    /// As [`begin`](Self::begin), whoever does it.
    fn begin_only(&self, to: &ProviderKey) -> OperationId {
        self.half_done(self.rekey(to))
    }

    /// Begins an operation that rewrites the volumes. Returns it once the first disk is half done.
    fn half_done(&self, kind: OperationKind) -> OperationId {
        let request = self.host.request(self.generation, kind);
        self.host.operate(&self.spec, &request).unwrap();
        let disk = self.spec.volume_path(&self.spec.disks[0].name);
        until("its first disk is half done", || {
            let descriptor = describe(&disk).ok()?.descriptor;
            let done = descriptor.layers.iter().filter(|layer| descriptor.is_reencrypted(layer)).count();
            (descriptor.reencrypting.is_some() && done > 0).then_some(())
        });
        request.operation
    }

    /// As [`begin`](Self::begin), and the process is killed.
    fn kill_half_done(&self, to: &ProviderKey) {
        let (operation, job) = self.begin(to);
        kill(job);
        self.host.await_operation(operation);
        assert!(self.is_half_done());
    }

    /// Cancels an operation, whose process stands still until it has been told.
    fn cancel(&self, operation: OperationId, job: u32) -> OperationState {
        let job = Pid::from_raw(job.cast_signed()).unwrap();
        kill_process(job, Signal::STOP).unwrap();
        self.host.cancel(operation);
        // hostd tells it within a fifth of a second, which nobody else can see.
        std::thread::sleep(Duration::from_secs(1));
        kill_process(job, Signal::CONT).unwrap();
        self.host.await_operation(operation).state
    }

    /// Completes a request to renew its data keys.
    fn finish(&mut self, to: &ProviderKey) {
        let done = self.host.done(&self.spec, self.generation, self.rekey(to));
        for disk in &mut self.spec.disks {
            disk.key = DiskKey::provider(to.clone(), None);
        }
        self.keep(done);
        for descriptor in self.descriptors() {
            let encryption = descriptor.encryption.as_ref().unwrap();
            assert_eq!((&descriptor.reencrypting, &encryption.next_kek), (&None, &None));
            assert_eq!(encryption.kek.source, KekSource::Provider(to.clone()));
        }
    }

    /// Whether a volume is between two keys.
    fn is_half_done(&self) -> bool {
        self.descriptors().iter().any(|descriptor| descriptor.reencrypting.is_some())
    }

    /// It is what it was.
    fn assert_whole(&mut self) {
        let (told, mut exported) = self.host.export_as(&self.spec, "disk0", ImageFormat::Raw);
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut exported).unwrap();
        std::io::Read::read_to_end(&mut exported, &mut bytes).unwrap();
        assert!(bytes == self.image, "the first disk has changed: {told}");
        assert!(self.host.console_log(&self.spec).contains(MARKER));
        let spec = Box::new(self.spec.clone());
        let dump = TicketRequest::Dump { spec, number: 1, grants: Vec::new() };
        assert!(contains(&self.host.bytes_for(&self.spec, dump)));
        self.start();
        self.stop();
    }
}

pub fn killed() {
    let mut subject = Subject::new();
    let (first, second) = (subject.site.key.clone(), subject.site.another_key());
    subject.copy_descriptors(&first);
    subject.assert_found(&first, &["disk0", "disk1", "seed", "console", "dump-1"]);

    // The process that does it is killed: the disk opens under neither key alone, and the VM starts
    // with both.
    let (operation, job) = subject.begin(&second);
    kill(job);
    let died = subject.host.await_operation(operation);
    assert_eq!(died.error.as_ref().unwrap().code, "job_died", "{died:?}");
    assert!(subject.is_half_done());
    let export = subject.host.export(&subject.spec, "disk0");
    assert!(export.contains("vm key rotate --data"), "{export}");
    let spec = subject.spec.clone();
    subject.spec.move_to(&second);
    subject.start();
    subject.stop();
    subject.spec = spec;

    // hostd is killed, and its job notices and ends. The next hostd is asked again.
    let request = subject.host.request(0, subject.rekey(&second));
    subject.host.operate(&subject.spec, &request).unwrap();
    subject.host.kill_hostd();
    subject.host.start_hostd();
    subject.finish(&second);

    subject.assert_not_found(&first);
    subject.assert_whole();
    subject.host.assert_nobody_left();
}

pub fn cancelled() {
    let mut subject = Subject::new();
    let (first, second) = (subject.site.key.clone(), subject.site.another_key());
    let (operation, job) = subject.begin(&second);
    let ended = subject.cancel(operation, job);
    assert_eq!(ended, OperationState::Cancelled);
    assert!(!subject.is_half_done());

    // Both keys are known, and the VM starts.
    let spec = subject.spec.clone();
    subject.spec.move_to(&second);
    subject.assert_whole();
    subject.copy_descriptors(&first);
    subject.spec = spec;
    subject.finish(&second);
    subject.assert_not_found(&first);
    subject.assert_whole();

    // Also one that goes on after a kill is cancelled, at whatever volume it is.
    let third = subject.site.another_key();
    subject.kill_half_done(&third);
    let request = subject.host.request(0, subject.rekey(&third));
    subject.host.operate(&subject.spec, &request).unwrap();
    let job = until("there is a job", || processes_below(subject.host.hostd_pid()).first().copied());
    subject.cancel(request.operation, job);
    assert!(!subject.is_half_done());
    subject.finish(&third);

    // A move without new data keys ends what another one left half done.
    let fourth = subject.site.another_key();
    subject.kill_half_done(&fourth);
    let mut moved = subject.spec.clone();
    moved.move_to(&fourth);
    let rewrap = OperationKind::Rekey { spec: Box::new(moved), data: false };
    let done = subject.host.done(&subject.spec, 0, rewrap);
    for disk in &mut subject.spec.disks {
        disk.key = DiskKey::provider(fourth.clone(), None);
    }
    subject.keep(done);
    assert!(!subject.is_half_done());
    subject.assert_whole();
    subject.host.assert_nobody_left();
}
