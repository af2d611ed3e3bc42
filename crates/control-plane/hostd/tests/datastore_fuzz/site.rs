//! The target of the attacks: VMs and volumes of every kind, made by the product, in their present
//! and an earlier state; and files outside the datastore.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use strongroom_datastore::file::{
    Access, AddLayerOptions, CreateOptions, Integrity, OpenOptions, Protection, Provisioning, add_layer,
    create, describe, identify, open,
};
use strongroom_host::protocol::{DiskKey, VmGeneration, VmSpec, VolumeFacts};
use strongroom_host::vm_directory::{StagedVm, VmRecord};
use strongroom_keys::{Kek, ProviderKey};
use strongroom_memory::secret::SecretBytes;
use strongroom_streams::{Log, Shape, StreamKind, StreamWriter};
use strongroom_types::{VolumeId, VolumeSize};
use strongroom_vm_supervisor::attestation::tag;
use strongroom_vm_supervisor::own_volume::OpenOwnVolume;
use strongroom_worker::{DiskAccess, assemble, assemble_destaged};

/// The beginning of every line that a guest writes.
pub const GENUINE: &[u8] = b"gen:";
/// The text that the attacker writes wherever possible.
pub const CHOSEN: &[u8; 16] = b"attacker's words";
pub const BLOCK: usize = 4096;
const DISK_BLOCKS: usize = 24;
const OWN_BYTES: u64 = 1 << 20;
const CONSOLE_BLOCKS: usize = 6;
const DUMP_BLOCKS: usize = 40;

/// A volume as it was made.
#[derive(Debug)]
pub struct Made {
    pub path: PathBuf,
    pub volume: VolumeId,
    pub generation: u64,
    pub kind: Kind,
    /// All of its contents, the latest last.
    pub contents: Vec<Vec<u8>>,
    /// For a stream: all data that was put into it.
    pub said: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Disk,
    /// Each block has a tag.
    Tagged,
    Console,
    Dump,
    /// Explicitly not encrypted.
    Clear,
}

pub struct Site {
    scratch: tempfile::TempDir,
    pub kek: Kek,
    /// The key of other VMs.
    pub other_kek: Kek,
    pub vms: Vec<VmSpec>,
    pub volumes: Vec<Made>,
}

pub fn provider_key(name: &str) -> ProviderKey {
    ProviderKey { provider: "corp".parse().unwrap(), key: name.parse().unwrap(), wrapped: None }
}

fn kek(fill: u8, name: &str) -> Kek {
    Kek::from_provider(SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap(), provider_key(name))
        .unwrap()
}

/// The text that a guest writes into a volume at one time; no other volume or version has it.
fn text(volume: &Path, version: u8, blocks: usize) -> Vec<u8> {
    let name = volume.file_name().unwrap().to_string_lossy().into_owned();
    let vm = volume.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned();
    let mut bytes = Vec::with_capacity(blocks * BLOCK);
    for piece in 0..blocks * BLOCK / 32 {
        let line = format!("gen:{vm:.3}/{name:.6}/{version}/{piece:05}");
        bytes.extend(line.as_bytes().iter().copied().chain(std::iter::repeat(b'.')).take(32));
    }
    bytes
}

/// Returns the volume whose line begins with these 16 bytes, if any.
pub fn owner_of(piece: &[u8]) -> Option<&[u8]> {
    // Nearly all pieces fail this, and this program's code is not optimised.
    if !piece.starts_with(GENUINE) || !piece.iter().take(16).all(u8::is_ascii_graphic) {
        return None;
    }
    let end = piece.iter().enumerate().filter(|(_, byte)| **byte == b'/').nth(1)?.0;
    Some(&piece[..end])
}

pub fn access(path: &Path, protection: Protection<'_>, least_generation: u64) -> DiskAccess {
    let options =
        OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation };
    DiskAccess::open(&*assemble_destaged(open(path, &options).unwrap()).unwrap()).unwrap()
}

impl Site {
    pub fn make() -> Self {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let scratch = tempfile::Builder::new().prefix("sr-attacks-").tempdir_in(place).unwrap();
        let (kek, other_kek) = (kek(7, "key-1"), kek(8, "key-2"));
        let mut site = Self { scratch, kek, other_kek, vms: Vec::new(), volumes: Vec::new() };
        std::fs::create_dir(site.datastore()).unwrap();
        identify(&site.datastore()).unwrap();
        std::fs::create_dir(site.outside()).unwrap();
        site.make_vm("one", &["disk0", "disk1", "disk2", "disk3"]);
        site.make_vm("two", &["disk0", "disk1"]);
        site.make_clear_volume();
        site.make_outside();
        site.make_first_content();
        copy(&site.datastore(), &site.path("older"));
        site.make_second_content();
        for made in &mut site.volumes {
            made.generation = describe(&made.path).unwrap().descriptor.generation;
        }
        site.attest();
        copy(&site.datastore(), &site.path("made"));
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub fn datastore(&self) -> PathBuf {
        self.path("ds")
    }

    /// A directory that must never change.
    pub fn outside(&self) -> PathBuf {
        self.path("outside")
    }

    /// The same file before the last start.
    pub fn older(&self, path: &Path) -> PathBuf {
        self.path("older").join(path.strip_prefix(self.datastore()).unwrap())
    }

    /// Restores everything as it was made.
    pub fn lay_out(&self) {
        std::fs::remove_dir_all(self.datastore()).unwrap();
        copy(&self.path("made"), &self.datastore());
    }

    fn make_vm(&mut self, name: &str, disks: &[&str]) {
        let disks: Vec<_> = disks
            .iter()
            .map(|name| {
                format!(r#"{{"name":"{name}","size_bytes":{},"key":"unencrypted"}}"#, DISK_BLOCKS * BLOCK)
            })
            .collect();
        let text = format!(
            r#"{{"id":"{}","name":"{name}","datastore":{:?},"memory_bytes":268435456,"firmware":"uefi","tpm":true,
                "seed":true,"disks":[{}]}}"#,
            strongroom_types::VmId::random(),
            self.datastore(),
            disks.join(",")
        );
        let mut spec: VmSpec = serde_json::from_str(&text).unwrap();
        for disk in &mut spec.disks {
            disk.key = DiskKey::provider(provider_key("key-1"), Some(self.kek.id()));
        }
        let staged = StagedVm::begin(&spec).unwrap().unwrap();
        let create = |name: &str, provisioning, integrity, bytes| {
            let (protection, size) = (Protection::Encrypted(&self.kek), VolumeSize::new(bytes).unwrap());
            let options = CreateOptions { size, provisioning, protection, log_bytes: Some(0), integrity };
            create(&staged.path().join(name), &options).unwrap();
        };
        for (number, disk) in spec.disks.iter().enumerate() {
            let provisioning = if number == 1 { Provisioning::Thick } else { Provisioning::Thin };
            let integrity = (number == 2).then_some(Integrity::NEW);
            create(disk.name.as_str(), provisioning, integrity, (DISK_BLOCKS * BLOCK) as u64);
        }
        for own in ["nvram", "vtpm", "seed", "console", "dump-1"] {
            create(own, Provisioning::Thin, None, OWN_BYTES);
        }
        VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
        staged.take_name().unwrap();
        let mut facts = Vec::new();
        let names = spec.disks.iter().map(|disk| disk.name.to_string());
        for name in names.chain(["nvram", "vtpm", "seed", "console", "dump-1"].map(str::to_owned)) {
            let path = spec.directory().join(&name);
            let volume = describe(&path).unwrap().descriptor.volume;
            let kind = match name.as_str() {
                "disk2" => Kind::Tagged,
                "console" => Kind::Console,
                "dump-1" => Kind::Dump,
                _ => Kind::Disk,
            };
            let contents =
                vec![vec![
                    0;
                    if name.starts_with("disk") { DISK_BLOCKS * BLOCK } else { OWN_BYTES as usize }
                ]];
            self.volumes.push(Made { path, volume, generation: 1, kind, contents, said: Vec::new() });
            facts.push(VolumeFacts {
                disk: name.parse().unwrap(),
                volume,
                kek: Some(self.kek.id()),
                generation: 1,
                size_bytes: None,
            });
        }
        self.vms.push(spec.with_facts(&facts));
    }

    fn make_clear_volume(&mut self) {
        let path = self.datastore().join("clear");
        let options = CreateOptions {
            size: VolumeSize::new((DISK_BLOCKS * BLOCK) as u64).unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Unencrypted,
            log_bytes: Some(0),
            integrity: None,
        };
        create(&path, &options).unwrap();
        let content: Vec<u8> = CHOSEN.iter().copied().cycle().take(DISK_BLOCKS * BLOCK).collect();
        let mut disk = access(&path, Protection::Unencrypted, 0);
        disk.write_at(0, &content).unwrap();
        disk.flush().unwrap();
        let volume = describe(&path).unwrap().descriptor.volume;
        self.volumes.push(Made {
            path,
            volume,
            generation: 1,
            kind: Kind::Clear,
            contents: vec![content],
            said: Vec::new(),
        });
    }

    /// The targets of links: files, and a volume that the VM's key opens.
    fn make_outside(&self) {
        std::fs::write(self.outside().join("canary"), [0xCA; 3 * BLOCK]).unwrap();
        let options = CreateOptions {
            size: VolumeSize::new((DISK_BLOCKS * BLOCK) as u64).unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Encrypted(&self.kek),
            log_bytes: Some(0),
            integrity: None,
        };
        create(&self.outside().join("volume"), &options).unwrap();
        copy(&self.datastore().join("two"), &self.outside().join("vm"));
    }

    fn protection(&self, kind: Kind) -> Protection<'_> {
        if kind == Kind::Clear { Protection::Unencrypted } else { Protection::Encrypted(&self.kek) }
    }

    fn make_first_content(&mut self) {
        let mut contents = Vec::new();
        for made in &self.volumes {
            let content = match made.kind {
                Kind::Disk | Kind::Tagged => {
                    let mut content = made.contents[0].clone();
                    let text = text(&made.path, 1, DISK_BLOCKS / 2);
                    content[..text.len()].copy_from_slice(&text);
                    let mut disk = access(&made.path, self.protection(made.kind), 0);
                    disk.write_at(0, &text).unwrap();
                    disk.flush().unwrap();
                    Some(content)
                }
                Kind::Console => {
                    let medium = OpenOwnVolume::open(&made.path, Some(&self.kek)).unwrap();
                    let shape = Shape { slot_bytes: 4096, ring_slots: 16 };
                    let mut log = Log::begin(medium, StreamKind::Console, made.volume, shape).unwrap();
                    log.say(&text(&made.path, 1, CONSOLE_BLOCKS)).unwrap();
                    log.persist().unwrap();
                    log.into_medium().close().unwrap();
                    None
                }
                Kind::Dump => {
                    let medium = OpenOwnVolume::open(&made.path, Some(&self.kek)).unwrap();
                    let mut stream =
                        StreamWriter::begin(medium, StreamKind::Dump, made.volume, 65536, b"{}").unwrap();
                    stream.write(&text(&made.path, 1, DUMP_BLOCKS)).unwrap();
                    stream.finish().unwrap().1.close().unwrap();
                    None
                }
                Kind::Clear => None,
            };
            contents.push(content);
        }
        for (made, content) in self.volumes.iter_mut().zip(contents) {
            made.contents.extend(content);
            made.said = match made.kind {
                Kind::Console => text(&made.path, 1, CONSOLE_BLOCKS),
                Kind::Dump => text(&made.path, 1, DUMP_BLOCKS),
                Kind::Disk | Kind::Tagged | Kind::Clear => Vec::new(),
            };
        }
    }

    /// The later state: guests have written, one disk has grown, one has layers, and one has a log
    /// in use.
    fn make_second_content(&mut self) {
        let mut contents = Vec::new();
        for made in &self.volumes {
            let name = made.path.file_name().unwrap().to_str().unwrap();
            if !matches!(made.kind, Kind::Disk | Kind::Tagged) {
                contents.push(None);
                continue;
            }
            let protection = || self.protection(made.kind);
            let mut content = made.contents.last().unwrap().clone();
            if name == "disk3" {
                let options = AddLayerOptions {
                    protection: protection(),
                    log_bytes: Some(0),
                    lock_wait: Duration::ZERO,
                    least_generation: 0,
                };
                add_layer(&made.path, &options).unwrap();
                let mut disk = access(&made.path, protection(), 0);
                let covered = text(&made.path, 2, 3);
                disk.write_at(BLOCK as u64, &covered).unwrap();
                content[BLOCK..][..covered.len()].copy_from_slice(&covered);
                drop(disk);
                add_layer(&made.path, &options).unwrap();
            }
            let options = OpenOptions {
                protection: protection(),
                access: Access::ReadWrite,
                lock_wait: Duration::ZERO,
                least_generation: 0,
            };
            let mut volume = open(&made.path, &options).unwrap();
            if name == "disk0" {
                let size = VolumeSize::new(((DISK_BLOCKS + 1) * BLOCK) as u64).unwrap();
                volume.grow(size, protection()).unwrap();
                content.resize((DISK_BLOCKS + 1) * BLOCK, 0);
            }
            // The log of the first disk is never emptied.
            let disk =
                if name == "disk0" { assemble(volume).unwrap() } else { assemble_destaged(volume).unwrap() };
            let mut disk = DiskAccess::open(&*disk).unwrap();
            for (at, blocks) in [(4, 3), (DISK_BLOCKS / 2 + 2, 4)] {
                let text = text(&made.path, 3, blocks);
                disk.write_at((at * BLOCK) as u64, &text).unwrap();
                content[at * BLOCK..][..text.len()].copy_from_slice(&text);
            }
            disk.flush().unwrap();
            contents.push(Some(content));
        }
        for (made, content) in self.volumes.iter_mut().zip(contents) {
            made.contents.extend(content);
        }
    }

    fn attest(&mut self) {
        for spec in &mut self.vms {
            let of_vm = self.volumes.iter().filter(|made| made.path.starts_with(spec.directory()));
            let facts: Vec<_> = of_vm
                .map(|made| VolumeFacts {
                    disk: made.path.file_name().unwrap().to_str().unwrap().parse().unwrap(),
                    volume: made.volume,
                    kek: Some(self.kek.id()),
                    generation: made.generation,
                    size_bytes: None,
                })
                .collect();
            *spec = spec.clone().with_facts(&facts);
            for disk in &mut spec.disks {
                let made = self.volumes.iter().find(|made| {
                    made.path == spec.datastore.join(spec.name.as_str()).join(disk.name.as_str())
                });
                disk.size_bytes =
                    VolumeSize::new(made.unwrap().contents.last().unwrap().len() as u64).unwrap();
            }
            let mut record = VmRecord::new(spec.clone(), None);
            record.generation = VmGeneration(3);
            record.become_attested(spec, |_, attested| tag(attested, &self.kek)).unwrap();
            record.write(&spec.directory()).unwrap();
        }
    }

    /// All directories and files of the datastore, sorted.
    pub fn entries(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        walk(&self.datastore(), &mut |path| found.push(path.to_owned()));
        found.sort();
        found
    }
}

/// Visits everything below a directory without following links.
pub fn walk(directory: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        visit(&entry.path());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), visit);
        }
    }
}

/// Copies a directory with the files and directories in it. Blocks of zeroes become holes.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        let (kind, target) = (entry.file_type().unwrap(), to.join(entry.file_name()));
        if kind.is_dir() {
            copy(&entry.path(), &target);
        } else if kind.is_file() {
            copy_file(&entry.path(), &target);
        }
    }
}

pub fn copy_file(from: &Path, to: &Path) {
    let mut bytes = Vec::new();
    File::open(from).unwrap().read_to_end(&mut bytes).unwrap();
    let file = File::options().write(true).create(true).truncate(true).open(to).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (at, block) in bytes.chunks(BLOCK).enumerate() {
        if !is_zero(block) {
            file.write_all_at(block, (at * BLOCK) as u64).unwrap();
        }
    }
}

/// Whether a block has nothing but zeroes: one call, because this program's code is not optimised.
fn is_zero(block: &[u8]) -> bool {
    const ZEROES: [u8; BLOCK] = [0; BLOCK];
    block.len() <= BLOCK && *block == ZEROES[..block.len()]
}

/// Returns facts about every entry, for comparison.
pub fn fingerprint(place: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    walk(place, &mut |path| {
        let content = if path.is_file() { std::fs::read(path).unwrap() } else { Vec::new() };
        found.insert(path.to_owned(), content);
    });
    found
}
