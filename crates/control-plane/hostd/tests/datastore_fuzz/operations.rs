//! The operations of the product on an attacked datastore, and the promises that they must keep.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use memchr::memmem;
use rand::Rng;
use rand::rngs::StdRng;
use strongroom_datastore::file::{
    Access, AddLayerOptions, OpenOptions, Protection, RewrapOptions, add_layer, check, delete, describe,
    describe_log, key_needs, list, open, rewrap,
};
use strongroom_host::protocol::VmSpec;
use strongroom_host::vm_directory::{StagedVm, VmRecord, delete_vm};
use strongroom_streams::{Log, LogPiece, Medium, StreamKind, StreamReader};
use strongroom_types::VolumeSize;
use strongroom_vm_supervisor::attestation::is_tag;
use strongroom_worker::{DiskAccess, assemble, assemble_destaged};

use super::Said;
use super::attacks::Attack;
use super::site::{BLOCK, CHOSEN, GENUINE, Kind, Made, Site, fingerprint, owner_of, walk};

/// A guest's text of this round: no one else writes it, and it must be nowhere in the clear.
const SECRET: &[u8; 16] = b"a guest's secret";

/// How much of a file is looked at.
const LOOKED_AT: u64 = 4 << 20;

pub struct Round<'a> {
    site: &'a Site,
    said: &'a Said,
    attacks: &'a [Attack],
    outside: BTreeMap<PathBuf, Vec<u8>>,
    /// The beginning of a file that is looked at.
    bytes: RefCell<Vec<u8>>,
    pub outcomes: Vec<String>,
}

/// Whether there is something that guests have written, at a multiple of 16 bytes. Found by a
/// library, because this program's code is not optimised, and each operation looks at every file.
fn is_clear(bytes: &[u8]) -> bool {
    let places = |needle| memmem::find_iter(bytes, needle).filter(|at| at % 16 == 0);
    places(&SECRET[..]).next().is_some()
        || places(GENUINE).any(|at| bytes.get(at..at + 16).is_some_and(|piece| owner_of(piece).is_some()))
}

/// A volume's content, as a stream's medium.
struct Lies(DiskAccess);

impl Medium for Lies {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, into).map_err(io::Error::other)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, from).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(io::Error::other)
    }
}

impl<'a> Round<'a> {
    pub fn new(site: &'a Site, said: &'a Said, attacks: &'a [Attack]) -> Self {
        let bytes = RefCell::new(vec![0; LOOKED_AT as usize]);
        Self { site, said, attacks, outside: fingerprint(&site.outside()), bytes, outcomes: Vec::new() }
    }

    fn say(&self, what: String) {
        self.said.lock().push(what);
    }

    fn came(&mut self, what: &str) {
        self.outcomes.push(what.to_owned());
    }

    /// Runs all operations of a round. An error names the broken promise.
    pub fn work(&mut self, random: &mut StdRng) -> Result<(), String> {
        self.look();
        for number in self.chosen(random) {
            let made = &self.site.volumes[number];
            self.say(format!("volume {}", made.path.display()));
            self.use_volume(made, random)?;
            self.watch()?;
        }
        for vm in 0..self.site.vms.len() {
            self.judge(&self.site.vms[vm])?;
        }
        if random.random_ratio(1, 3) {
            let spec = &self.site.vms[random.random_range(0..self.site.vms.len())];
            self.say(format!("VM {} is made and deleted", spec.name));
            // A repeated creation finds the VM, or its name taken.
            let made = StagedVm::begin(spec).map(drop);
            self.came(if made.is_ok() { "a VM is there" } else { "a VM is refused" });
            let record = VmRecord::read(&spec.directory());
            let written = record.ok().flatten().map(|record| record.write(&spec.directory()));
            self.came(if matches!(written, Some(Ok(()))) {
                "vm.json is written"
            } else {
                "vm.json is refused"
            });
            let deleted = delete_vm(&spec.datastore, &spec.directory(), spec.id);
            self.came(if deleted.is_ok() { "a VM is deleted" } else { "a deletion is refused" });
        }
        self.watch()
    }

    /// The attacked volumes, and one more.
    fn chosen(&self, random: &mut StdRng) -> Vec<usize> {
        let touched = |made: &Made| {
            let mut paths = self.attacks.iter().flat_map(Attack::touches);
            paths.any(|path| path.starts_with(&made.path))
        };
        let all = 0..self.site.volumes.len();
        let mut chosen: Vec<usize> =
            all.clone().filter(|number| touched(&self.site.volumes[*number])).take(3).collect();
        let one = random.random_range(all);
        if !chosen.contains(&one) {
            chosen.push(one);
        }
        chosen
    }

    /// Operations without keys.
    fn look(&mut self) {
        let datastore = self.site.datastore();
        self.say("the datastore is listed".to_owned());
        let listed = list(&datastore);
        self.came(if listed.is_ok() { "the datastore is listed" } else { "the list is refused" });
        let _ = key_needs(&datastore);
    }

    fn use_volume(&mut self, made: &Made, random: &mut StdRng) -> Result<(), String> {
        let path = &made.path;
        let protection = match made.kind {
            Kind::Clear => Protection::Unencrypted,
            _ => Protection::Encrypted(&self.site.kek),
        };
        let _ = (describe(path), describe_log(path));
        let checked = check(path, (made.kind != Kind::Clear).then_some(&self.site.kek));
        self.came(if checked.is_ok() { "a volume is checked" } else { "a check is refused" });
        self.say("it is opened to read".to_owned());
        match self.open(made, protection, Access::ReadOnly) {
            Ok(disk) => self.read(made, disk)?,
            Err(code) => self.came(&format!("refused: {code}")),
        }
        if made.kind == Kind::Clear {
            return Ok(());
        }
        if matches!(made.kind, Kind::Console | Kind::Dump) {
            self.say("its stream is read".to_owned());
            return self.read_stream(made, protection);
        }
        self.say("it is written".to_owned());
        if let Ok(disk) = self.open(made, protection, Access::ReadWrite) {
            self.write(disk, random)?;
        }
        self.change(made, protection, random);
        Ok(())
    }

    /// Opens a volume as hostd does: only the volume that the control plane knows, and no older
    /// descriptor.
    fn open(&self, made: &Made, protection: Protection<'_>, access: Access) -> Result<DiskAccess, String> {
        let (lock_wait, least_generation) = (Duration::ZERO, made.generation);
        let options = OpenOptions { protection, access, lock_wait, least_generation };
        let volume = open(&made.path, &options).map_err(|error| error.code().to_owned())?;
        let expected = volume.descriptor().expect_volume(&made.path, Some(made.volume));
        expected.map_err(|error| error.code().to_owned())?;
        let disk = match access {
            Access::ReadOnly => assemble(volume),
            Access::ReadWrite => assemble_destaged(volume),
        };
        DiskAccess::open(&*disk.map_err(|_| "stack".to_owned())?).map_err(|_| "access".to_owned())
    }

    /// Checks that a disk has no text of the attacker's choice and none of another volume; with
    /// tags, only content that it once had.
    fn read(&mut self, made: &Made, mut disk: DiskAccess) -> Result<(), String> {
        let size_bytes = disk.size_bytes();
        if !made.contents.iter().any(|content| content.len() as u64 == size_bytes) {
            return Err(format!("{} has {size_bytes} bytes", made.path.display()));
        }
        if made.kind == Kind::Clear {
            return Ok(());
        }
        let texts = made.contents.iter().chain([&made.said]);
        let own = texts.filter_map(|text| owner_of(text.get(..32)?)).next();
        let (mut whole, mut refused) = (true, 0);
        for block in 0..(size_bytes / BLOCK as u64) as usize {
            let mut shown = vec![0; BLOCK];
            if disk.read_at((block * BLOCK) as u64, &mut shown).is_err() {
                refused += 1;
                continue;
            }
            let at = block * BLOCK..(block + 1) * BLOCK;
            let was = |content: &Vec<u8>| content.get(at.clone()).is_some_and(|was| was == shown);
            let last = made.contents.last().is_some_and(was);
            whole &= last;
            let name = made.path.display();
            if let Some(piece) = shown.chunks(16).find(|piece| piece == CHOSEN) {
                return Err(format!("{name} shows {:?} in block {block}", String::from_utf8_lossy(piece)));
            }
            let mut lines = shown.chunks(32).filter_map(owner_of);
            if let Some(owner) = lines.find(|owner| Some(*owner) != own) {
                return Err(format!("{name} shows what is {}'s", String::from_utf8_lossy(owner)));
            }
            if made.kind == Kind::Tagged && !made.contents.iter().any(was) {
                return Err(format!("{name} has tags, and block {block} shows what it never held"));
            }
        }
        self.came(match (whole, refused) {
            (true, 0) => "a disk is read as it was",
            (_, 0) => "a disk is read as noise, or as it was before",
            _ => "some of a disk is not read",
        });
        Ok(())
    }

    fn write(&mut self, mut disk: DiskAccess, random: &mut StdRng) -> Result<(), String> {
        let blocks = disk.size_bytes() / BLOCK as u64;
        let block = random.random_range(0..blocks);
        let secret: Vec<u8> = SECRET.iter().copied().cycle().take(BLOCK).collect();
        let written = disk.write_at(block * BLOCK as u64, &secret).and_then(|()| disk.flush());
        self.came(if written.is_ok() { "a disk is written" } else { "a write is refused" });
        let mut shown = vec![0; BLOCK];
        if written.is_ok() && disk.read_at(block * BLOCK as u64, &mut shown).is_ok() && shown != secret {
            return Err(format!("block {block} was written, and shows something else"));
        }
        Ok(())
    }

    /// Operations that change a volume.
    fn change(&mut self, made: &Made, protection: Protection<'_>, random: &mut StdRng) {
        let (path, lock_wait, least_generation) = (&made.path, Duration::ZERO, made.generation);
        let what = random.random_range(0..8);
        self.say(format!("it is changed: {what}"));
        let changed = match what {
            0 => {
                let access = Access::ReadWrite;
                let opened = open(path, &OpenOptions { protection, access, lock_wait, least_generation });
                opened.and_then(|mut volume| {
                    let size = VolumeSize::new(volume.descriptor().size_bytes.bytes() + BLOCK as u64);
                    volume.grow(size.unwrap(), protection)
                })
            }
            1 => {
                let options = AddLayerOptions { protection, log_bytes: Some(0), lock_wait, least_generation };
                add_layer(path, &options).map(drop)
            }
            2 => {
                let (from, to) = (&self.site.kek, &self.site.other_kek);
                rewrap(path, &RewrapOptions { from, to, lock_wait, least_generation }).map(drop)
            }
            3 => delete(path, lock_wait),
            _ => return,
        };
        self.came(if changed.is_ok() { "a volume is changed" } else { "a change is refused" });
    }

    /// Checks that a stream's records are authentic, or reported as damaged.
    fn read_stream(&mut self, made: &Made, protection: Protection<'_>) -> Result<(), String> {
        let Ok(disk) = self.open(made, protection, Access::ReadWrite) else { return Ok(()) };
        let mut heard: Vec<Vec<u8>> = Vec::new();
        let came = match made.kind {
            Kind::Console => Log::open(Lies(disk), StreamKind::Console, made.volume).and_then(|mut log| {
                log.read(|piece| match piece {
                    LogPiece::Said(said) => heard.push(said.to_vec()),
                    LogPiece::Damaged { .. } => {}
                })
            }),
            _ => {
                let mut content = Vec::new();
                let read = StreamReader::open(Lies(disk), StreamKind::Dump, made.volume)
                    .and_then(|mut stream| stream.copy_to(&mut content, |_| Ok(())));
                heard.push(content);
                read.map(drop)
            }
        };
        self.came(if came.is_ok() { "a stream is read" } else { "a stream is refused" });
        let was_said =
            |piece: &Vec<u8>| piece.is_empty() || made.said.windows(piece.len()).any(|said| said == piece);
        match heard.iter().all(was_said) {
            true => Ok(()),
            false => Err(format!("{} gives out what was never said", made.path.display())),
        }
    }

    /// Checks that a configuration that is not attested raises an objection.
    fn judge(&mut self, spec: &VmSpec) -> Result<(), String> {
        let Ok(Some(record)) = VmRecord::read(&spec.directory()) else {
            self.came("a configuration is refused");
            return Ok(());
        };
        let found = VmSpec { datastore: spec.datastore.clone(), ..record.spec.clone() };
        let Some(attestation) = record.attestation else {
            self.came("a configuration bears no attestation");
            return Ok(());
        };
        let doubts = attestation.doubts(&found, record.generation, |key, what, tag| {
            let keks = [("key-1", &self.site.kek), ("key-2", &self.site.other_kek)];
            let kek = keks.into_iter().find(|(name, _)| key.key.to_string() == *name);
            let (_, kek) = kek.ok_or_else(|| "there is no such key".to_owned())?;
            is_tag(what, kek, tag).map_err(|error| error.to_string())
        });
        if !doubts.is_empty() {
            self.came("a configuration is doubted");
            return Ok(());
        }
        self.came("a configuration is vouched for");
        // Left: the path of a VM's directory is not attested, so one VM can be in another's place,
        // as itself.
        match self.site.vms.contains(&found) {
            true => Ok(()),
            false => Err(format!("VM {} is vouched for, and is not what was attested: {found:?}", spec.name)),
        }
    }

    /// Checks that no guest data is in the clear, and nothing outside is changed.
    fn watch(&self) -> Result<(), String> {
        // Left: an attacker who can hard-link a file of the same file system into the datastore can
        // have it overwritten with ciphertext.
        if fingerprint(&self.site.outside()) != self.outside {
            return Err("something outside of the datastore was changed".to_owned());
        }
        let mut clear = None;
        let mut bytes = self.bytes.borrow_mut();
        walk(&self.site.datastore(), &mut |path| {
            // Attacks extend some files to the maximum; their content is at the beginning.
            let Ok(metadata) = path.symlink_metadata() else { return };
            if !metadata.is_file() || clear.is_some() {
                return;
            }
            let file = std::fs::File::open(path).unwrap();
            let bytes = &mut bytes[..metadata.len().min(LOOKED_AT) as usize];
            let count = std::os::unix::fs::FileExt::read_at(&file, bytes, 0).unwrap_or(0);
            if is_clear(&bytes[..count]) {
                clear = Some(path.to_owned());
            }
        });
        clear.map_or(Ok(()), |path| Err(format!("{} has what a guest wrote in the clear", path.display())))
    }
}
