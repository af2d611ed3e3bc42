//! The end that gets the volumes of a VM that runs on the other host: a thread of its next
//! supervisor, while QEMU waits for the memory.
//!
//! ```text
//! in rounds   all layers that do not change any more (`nearly_there`) -> again, when clients have written much
//! at the end  the volumes are closed there, and the last tops follow -> the volumes have their names -> vm.json
//! ```

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use strongroom_datastore::file::{ArrivingVolume, Descriptor, InUse, RelocateProgress};
use strongroom_host::protocol::{
    Disk, DiskName, MigrationSettings, OwnVolume, Problem, Progress, ProgressUnit, VmSpec, VolumeFacts,
};
use strongroom_host::served::served;
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::volume_facts::facts;
use strongroom_keys::Kek;
use strongroom_streams::{GivenVolume, Rest, RestPart, VolumesError};
use strongroom_worker::Rounds;

use super::fetch::{
    Elsewhere, Limit, Way, begin, begin_volume, fetch_all, names_of_record, record, sent, way_problem,
};
use super::{MovingVolume, check_moves};
use crate::disks::attest;
use crate::keys::VmKeys;
use crate::rekey::reencryption::Watch;

/// What hears of volumes that arrive.
pub trait FetchesBeside {
    /// Tells how far it is.
    ///
    /// # Errors
    /// If it is to end.
    fn tell(&self, progress: Progress) -> Result<(), Problem>;
    /// All is here but what clients write last. Has the descriptors of the volumes that are served.
    fn nearly_there(&self, served: BTreeMap<DiskName, Descriptor>);
}

/// Fetches the volumes of a VM into its directory, which is there, and its lists of snapshots and
/// dumps. Returns what the volumes are when the other host has closed them. Once the memory passes,
/// too, the two share the limit; what follows at the end, while the guest stands still, has none.
///
/// # Errors
/// As [`fetch`](super::fetch). What has arrived stays for the next attempt.
pub fn fetch_beside(
    keys: &VmKeys,
    spec: &VmSpec,
    from: UnixStream,
    settings: MigrationSettings,
    main: &dyn FetchesBeside,
) -> Result<Vec<VolumeFacts>, Problem> {
    check_moves(spec)?;
    let mut way = begin(from, Some(settings.bytes_per_second))?;
    let record = record(&mut way.taker, spec)?;
    fetch_all(keys, spec, &spec.directory(), &names_of_record(&record), &mut way, &mut |progress| {
        main.tell(progress)
    })?;
    let wanted = served(spec).into_iter().map(|disk| Wanted::new(keys, spec, disk));
    let wanted = wanted.collect::<Result<Vec<_>, _>>()?;
    let mut volumes = Volumes { keys, spec, main, way, passed_bytes: Cell::new(0), arriving: Vec::new() };
    let mut rounds = Rounds::before(u64::MAX);
    while rounds.go_on(volumes.round(&wanted)?) {}
    volumes.way.limit = Limit::new(Some(settings.beside_volumes().bytes_per_second));
    main.nearly_there(volumes.descriptors());
    loop {
        volumes.forget_others()?;
        match volumes.way.taker.rest().map_err(way_problem)? {
            Rest::Grown => drop(volumes.round(&wanted)?),
            Rest::Closed => break,
        }
    }
    volumes.take_rest()?;
    let facts = facts(spec)?;
    let with_facts = spec.clone().with_facts(&facts);
    VmRecord::change(spec, |mine| {
        *mine = record.clone();
        attest(keys, mine, &with_facts)
    })?;
    Ok(facts)
}

/// A volume that a worker will serve.
struct Wanted {
    disk: Disk,
    place: PathBuf,
    kek: Option<Arc<Kek>>,
}

impl Wanted {
    fn new(keys: &VmKeys, spec: &VmSpec, disk: Disk) -> Result<Self, Problem> {
        let place = spec.volume_path(&disk.name);
        let kek = MovingVolume::served(&disk).hold_key(keys, &place)?;
        Ok(Self { disk, place, kek })
    }
}

struct Volumes<'a> {
    keys: &'a VmKeys,
    spec: &'a VmSpec,
    main: &'a dyn FetchesBeside,
    way: Way,
    /// What has passed of all volumes.
    passed_bytes: Cell<u64>,
    arriving: Vec<(&'a Wanted, ArrivingVolume<'a>)>,
}

impl<'a> Volumes<'a> {
    /// Fetches what does not change any more of all volumes. Returns the bytes that were written.
    fn round(&mut self, wanted: &'a [Wanted]) -> Result<u64, Problem> {
        let mut written_bytes = 0_u64;
        for wanted in wanted {
            let Wanted { disk, place, kek } = wanted;
            let given = self.way.taker.volume(disk.name.as_str()).map_err(way_problem)?;
            let given = given.ok_or_else(|| {
                let message = format!("the other host has no volume {} of VM {}", disk.name, self.spec.name);
                Problem::new("missing_volume", message)
            })?;
            let is_it = |(known, _): &(&Wanted, _)| std::ptr::eq(*known, wanted);
            let at = match self.arriving.iter().position(is_it) {
                Some(at) => {
                    self.arriving[at].1.renew(sent(given), InUse::Yes)?;
                    at
                }
                None => {
                    let moving = MovingVolume::served(disk);
                    let options = moving.options(kek.as_deref());
                    let arriving = begin_volume(&moving, place, given, InUse::Yes, &options)?;
                    self.arriving.push((wanted, arriving));
                    self.arriving.len() - 1
                }
            };
            let left_bytes = self.arriving.iter().map(|(_, arriving)| arriving.left().bytes).sum();
            let passage = Passage { main: self.main, passed_bytes: &self.passed_bytes, left_bytes };
            let source = Elsewhere::asked(&mut self.way, place);
            written_bytes += passage.copy(&mut self.arriving[at].1, source)?;
        }
        Ok(written_bytes)
    }

    fn descriptors(&self) -> BTreeMap<DiskName, Descriptor> {
        let each = self.arriving.iter();
        each.map(|(wanted, arriving)| (wanted.disk.name.clone(), arriving.descriptor().clone())).collect()
    }

    fn forget_others(&mut self) -> Result<(), Problem> {
        self.arriving.iter_mut().try_for_each(|(_, arriving)| Ok(arriving.forget_others()?))
    }

    /// Takes what follows after the volumes were closed. Each has its name then.
    fn take_rest(&mut self) -> Result<(), Problem> {
        loop {
            match self.way.taker.rest_part().map_err(way_problem)? {
                RestPart::Volume(name, given) => self.take_rest_of(&name, given)?,
                RestPart::Layer(_) => return Err(malformed("a layer of no volume follows")),
                RestPart::End if self.arriving.is_empty() => return Ok(()),
                RestPart::End => return Err(malformed("not all volumes have followed")),
            }
        }
    }

    fn take_rest_of(&mut self, name: &str, given: GivenVolume) -> Result<(), Problem> {
        let is_it = |(wanted, _): &(&Wanted, _)| wanted.disk.name.as_str() == name;
        if let Some(at) = self.arriving.iter().position(is_it) {
            let (wanted, mut arriving) = self.arriving.swap_remove(at);
            arriving.renew(sent(given), InUse::No)?;
            return self.take_rest_into(arriving, wanted.place.clone());
        }
        // The console's log is written while the guest runs, and has no rounds.
        let moving = MovingVolume::named(self.spec, name).filter(|_| name == OwnVolume::Console.name());
        let moving = moving.ok_or_else(|| malformed("a volume follows that was not asked for"))?;
        let place = self.spec.directory().join(name);
        let kek = moving.hold_key(self.keys, &place)?;
        let options = moving.options(kek.as_deref());
        let mut arriving = begin_volume(&moving, &place, given, InUse::No, &options)?;
        arriving.forget_others()?;
        self.take_rest_into(arriving, place)
    }

    fn take_rest_into(&mut self, mut arriving: ArrivingVolume<'_>, place: PathBuf) -> Result<(), Problem> {
        let left_bytes = arriving.left().bytes;
        let passage = Passage { main: self.main, passed_bytes: &self.passed_bytes, left_bytes };
        passage.copy(&mut arriving, Elsewhere::following(&mut self.way, &place))?;
        Ok(arriving.take_place().map(drop)?)
    }
}

/// The way of layers of a volume.
struct Passage<'a> {
    main: &'a dyn FetchesBeside,
    passed_bytes: &'a Cell<u64>,
    /// What is left of all volumes.
    left_bytes: u64,
}

impl Passage<'_> {
    /// Returns the bytes that were written.
    fn copy(&self, arriving: &mut ArrivingVolume<'_>, mut source: Elsewhere<'_>) -> Result<u64, Problem> {
        let stop = AtomicBool::new(false);
        let mut watch = Watch::new(&stop);
        let before = self.passed_bytes.get();
        let mut report = |progress: RelocateProgress| {
            let done = before + progress.done_bytes;
            self.passed_bytes.set(done);
            let total = before + self.left_bytes.max(progress.done_bytes);
            watch.look(|| self.main.tell(Progress::new(done, total, ProgressUnit::Bytes)).err());
            if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let copied = arriving.copy(&mut source, &mut report);
        // The next round has a layer that still changes.
        Ok(source.came(copied, watch.halted)?.map_or(0, |copied| copied.written_bytes))
    }
}

fn malformed(what: &'static str) -> Problem {
    way_problem(VolumesError::Malformed(what))
}
