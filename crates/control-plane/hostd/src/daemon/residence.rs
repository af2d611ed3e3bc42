//! The VMs that have left this host for another one, or come from one (`residence/VM.json`).
//!
//! A VM that is on storage of several hosts may be started by one of them at a time. The host that
//! gave it up refuses whatever order comes late, also after a restart, and whatever the datastore
//! says: nothing of this is read from there. While a VM moves between hosts without being off, it
//! is *leaving* one and *coming* to the other: neither lets it go on by itself.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use strongroom_host::migration::{NotRecorded, Place, Stay};
use strongroom_host::protocol::{Problem, VmGeneration};
use strongroom_types::VmId;

/// The format of the files.
const FORMAT: u32 = 1;
/// The longest file, in bytes.
const BYTES_MAX: u64 = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Residence {
    format: u32,
    vm: VmId,
    /// The generation of the order.
    generation: VmGeneration,
    place: Place,
}

impl Residence {
    fn stay(&self) -> Stay {
        Stay { generation: self.generation, place: self.place }
    }
}

/// The VMs that have moved. A VM that never did has no entry.
#[derive(Debug)]
pub struct Residences {
    directory: PathBuf,
    known: Mutex<BTreeMap<VmId, Residence>>,
}

impl Residences {
    /// Reads what is recorded in hostd's home.
    ///
    /// # Errors
    /// If a file cannot be read or parsed: its VM might be started a second time.
    pub fn of_home(home: &Path) -> io::Result<Self> {
        let directory = home.join("residence");
        let mut known = BTreeMap::new();
        for file in strongroom_files::list(&directory, ".json")? {
            let text = strongroom_files::read(&file, BYTES_MAX)?;
            let found =
                parsed(&text).map_err(|reason| io::Error::other(format!("{}: {reason}", file.display())))?;
            known.insert(found.vm, found);
        }
        Ok(Self { directory, known: Mutex::new(known) })
    }

    /// Whether another host runs a VM: it has left this one, or is not here yet.
    pub fn is_elsewhere(&self, vm: VmId) -> bool {
        let is_elsewhere = |known: &Residence| matches!(known.place, Place::Left | Place::Coming);
        self.known.lock().get(&vm).is_some_and(is_elsewhere)
    }

    /// Whether a VM's guest has stopped here to go on elsewhere.
    pub fn is_leaving(&self, vm: VmId) -> bool {
        self.known.lock().get(&vm).is_some_and(|known| known.place == Place::Leaving)
    }

    /// Whether nothing of a VM may go on here by itself, because it goes on elsewhere, or may.
    pub fn is_on_its_way(&self, vm: VmId) -> bool {
        self.known.lock().get(&vm).is_some_and(|known| known.place.is_between())
    }

    /// Refuses an operation on a VM that has left, or is on its way between hosts.
    ///
    /// # Errors
    /// `left_host`, `moving`.
    pub fn must_be_here(&self, vm: VmId) -> Result<(), Problem> {
        match self.known.lock().get(&vm) {
            Some(Residence { place: Place::Left, generation, .. }) => {
                let message = format!("VM {vm} has left this host, after its start {generation}");
                Err(Problem::new("left_host", message)
                    .with_next_step("ask the host that it has moved to, or have it move back"))
            }
            Some(Residence { place: Place::Leaving | Place::Coming, generation, .. }) => {
                Err(on_its_way(vm, *generation))
            }
            Some(Residence { place: Place::Here, .. }) | None => Ok(()),
        }
    }

    /// Refuses an order for what this host has of another host's VM, if the VM is here since that
    /// generation, or is on its way while it runs. Of a VM without an entry the order's word
    /// counts.
    ///
    /// # Errors
    /// `is_here`, `moving`.
    pub fn must_be_elsewhere(&self, vm: VmId, generation: VmGeneration) -> Result<(), Problem> {
        match self.known.lock().get(&vm) {
            Some(Residence { place: Place::Here, generation: since, .. }) if *since >= generation => {
                Err(Problem::new("is_here", format!("VM {vm} is here, since its start {since}")))
            }
            Some(Residence { place: Place::Leaving | Place::Coming, generation, .. }) => {
                Err(on_its_way(vm, *generation))
            }
            Some(Residence { place: Place::Here | Place::Left, .. }) | None => Ok(()),
        }
    }

    /// Whether a VM has moved to this host or from it.
    pub fn has_entry(&self, vm: VmId) -> bool {
        self.known.lock().contains_key(&vm)
    }

    /// Records that a VM whose guest has stopped is leaving, durably. May be repeated.
    ///
    /// # Errors
    /// As [`leave`](Self::leave), and `moving` if another attempt is not over.
    pub fn begin_leaving(&self, vm: VmId, attempt: VmGeneration) -> Result<(), Problem> {
        self.record(Residence { format: FORMAT, vm, generation: attempt, place: Place::Leaving })
    }

    /// Records that a VM is being loaded here, durably. May be repeated.
    ///
    /// # Errors
    /// As [`begin_leaving`](Self::begin_leaving).
    pub fn begin_coming(&self, vm: VmId, attempt: VmGeneration) -> Result<(), Problem> {
        self.record(Residence { format: FORMAT, vm, generation: attempt, place: Place::Coming })
    }

    /// Whether a VM is being loaded here in this attempt.
    pub fn is_coming(&self, vm: VmId, attempt: VmGeneration) -> bool {
        self.is_recorded(Residence { format: FORMAT, vm, generation: attempt, place: Place::Coming })
    }

    /// Records that a VM has left, durably. May be repeated.
    ///
    /// # Errors
    /// `other_generation` if it has moved since; if it cannot be recorded.
    pub fn leave(&self, vm: VmId, generation: VmGeneration) -> Result<(), Problem> {
        self.record(Residence { format: FORMAT, vm, generation, place: Place::Left })
    }

    /// Records that a VM is here, durably. May be repeated.
    ///
    /// # Errors
    /// As [`leave`](Self::leave).
    pub fn arrive(&self, vm: VmId, generation: VmGeneration) -> Result<(), Problem> {
        self.record(Residence { format: FORMAT, vm, generation, place: Place::Here })
    }

    /// Whether this departure is recorded.
    pub fn has_left_at(&self, vm: VmId, generation: VmGeneration) -> bool {
        self.is_recorded(Residence { format: FORMAT, vm, generation, place: Place::Left })
    }

    /// Whether this arrival is recorded.
    pub fn has_arrived_at(&self, vm: VmId, generation: VmGeneration) -> bool {
        self.is_recorded(Residence { format: FORMAT, vm, generation, place: Place::Here })
    }

    fn is_recorded(&self, residence: Residence) -> bool {
        self.known.lock().get(&residence.vm) == Some(&residence)
    }

    /// Forgets a VM that is deleted.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn forget(&self, vm: VmId) -> io::Result<()> {
        let mut known = self.known.lock();
        if known.contains_key(&vm) {
            strongroom_files::remove(&self.file(vm))?;
            known.remove(&vm);
        }
        Ok(())
    }

    fn record(&self, now: Residence) -> Result<(), Problem> {
        let mut known = self.known.lock();
        let before = known.get(&now.vm);
        if before == Some(&now) {
            return Ok(());
        }
        // An order that was delayed must not undo a later one.
        now.stay().follows(before.map(Residence::stay)).map_err(|refused| {
            let code = match refused {
                NotRecorded::Late { .. } => "other_generation",
                NotRecorded::Unsettled { .. } => "moving",
            };
            Problem::new(code, refused.to_string())
        })?;
        self.store(&now).map_err(|error| {
            Problem::system(format!(
                "cannot record where VM {} is in {}: {error}",
                now.vm,
                self.directory.display()
            ))
        })?;
        known.insert(now.vm, now);
        Ok(())
    }

    fn store(&self, now: &Residence) -> io::Result<()> {
        if !self.directory.is_dir() {
            std::fs::create_dir_all(&self.directory)?;
            strongroom_files::sync_directory(strongroom_files::directory_of(&self.directory))?;
        }
        let text = serde_json::to_vec(now).map_err(io::Error::other)?;
        strongroom_files::replace(&self.file(now.vm), &text)
    }

    fn file(&self, vm: VmId) -> PathBuf {
        self.directory.join(format!("{vm}.json"))
    }
}

fn on_its_way(vm: VmId, attempt: VmGeneration) -> Problem {
    let message = format!("VM {vm} is moving to another host while it runs (attempt {attempt})");
    Problem::new("moving", message).with_next_step("wait for the move, or cancel its task")
}

fn parsed(text: &[u8]) -> Result<Residence, String> {
    let found: Residence = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    match found.format {
        FORMAT => Ok(found),
        other => Err(format!("it is of format {other}, this program reads {FORMAT}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(refused: Result<(), Problem>) -> String {
        refused.unwrap_err().code
    }

    #[test]
    fn a_vm_that_has_left_is_refused_also_by_the_next_hostd() {
        let home = tempfile::tempdir().unwrap();
        let (vm, other) = (VmId::random(), VmId::random());
        let residences = Residences::of_home(home.path()).unwrap();
        residences.must_be_here(vm).unwrap();
        residences.leave(vm, VmGeneration(3)).unwrap();
        residences.leave(vm, VmGeneration(3)).unwrap();
        assert_eq!(code(residences.must_be_here(vm)), "left_host");
        let next = Residences::of_home(home.path()).unwrap();
        assert_eq!(code(next.must_be_here(vm)), "left_host");
        next.must_be_here(other).unwrap();
        next.arrive(vm, VmGeneration(5)).unwrap();
        next.must_be_here(vm).unwrap();
        // What was ordered before that comes late.
        assert_eq!(code(next.leave(vm, VmGeneration(3))), "other_generation");
        assert_eq!(code(next.leave(vm, VmGeneration(5))), "other_generation");
        let last = Residences::of_home(home.path()).unwrap();
        assert!(last.has_arrived_at(vm, VmGeneration(5)) && !last.is_elsewhere(vm));
        last.forget(vm).unwrap();
        assert!(!Residences::of_home(home.path()).unwrap().has_arrived_at(vm, VmGeneration(5)));
    }

    #[test]
    fn a_vm_on_its_way_does_nothing_by_itself_also_under_the_next_hostd() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let vm = VmId::random();
        let (source, target) =
            (Residences::of_home(one.path()).unwrap(), Residences::of_home(other.path()).unwrap());
        target.begin_coming(vm, VmGeneration(2)).unwrap();
        source.begin_leaving(vm, VmGeneration(2)).unwrap();
        let source = Residences::of_home(one.path()).unwrap();
        let target = Residences::of_home(other.path()).unwrap();
        for host in [&source, &target] {
            assert!(host.is_on_its_way(vm));
            assert_eq!(code(host.must_be_here(vm)), "moving");
            assert_eq!(code(host.begin_leaving(vm, VmGeneration(3))), "moving");
        }
        assert!(!source.is_elsewhere(vm) && target.is_elsewhere(vm));
        assert!(target.is_coming(vm, VmGeneration(2)) && !target.is_coming(vm, VmGeneration(3)));
        // It is given up: what the attempt orders afterwards comes too late.
        target.leave(vm, VmGeneration(2)).unwrap();
        source.arrive(vm, VmGeneration(2)).unwrap();
        assert_eq!(code(target.begin_coming(vm, VmGeneration(2))), "other_generation");
        assert_eq!(code(target.arrive(vm, VmGeneration(2))), "other_generation");
        assert_eq!(code(source.leave(vm, VmGeneration(2))), "other_generation");
        source.must_be_here(vm).unwrap();
        // The next attempt succeeds.
        target.begin_coming(vm, VmGeneration(4)).unwrap();
        source.begin_leaving(vm, VmGeneration(4)).unwrap();
        target.arrive(vm, VmGeneration(4)).unwrap();
        source.leave(vm, VmGeneration(4)).unwrap();
        target.must_be_here(vm).unwrap();
        assert_eq!(code(source.must_be_here(vm)), "left_host");
    }

    #[test]
    fn a_late_order_for_a_copy_spares_a_vm_that_has_come_back() {
        let home = tempfile::tempdir().unwrap();
        let residences = Residences::of_home(home.path()).unwrap();
        let vm = VmId::random();
        let is_elsewhere = |generation| residences.must_be_elsewhere(vm, VmGeneration(generation));
        is_elsewhere(1).unwrap();
        residences.leave(vm, VmGeneration(3)).unwrap();
        is_elsewhere(4).unwrap();
        residences.arrive(vm, VmGeneration(6)).unwrap();
        for late in [4, 6] {
            assert_eq!(code(is_elsewhere(late)), "is_here");
        }
        // It has arrived, and nobody else has heard of that.
        is_elsewhere(7).unwrap();
        residences.leave(vm, VmGeneration(7)).unwrap();
        assert_eq!(code(residences.arrive(vm, VmGeneration(6))), "other_generation");
        residences.begin_coming(vm, VmGeneration(9)).unwrap();
        assert_eq!(code(is_elsewhere(10)), "moving");
    }

    #[test]
    fn what_cannot_be_recorded_or_read_is_told() {
        let home = tempfile::tempdir().unwrap();
        let residences = Residences::of_home(home.path()).unwrap();
        let vm = VmId::random();
        std::fs::write(home.path().join("residence"), "a file").unwrap();
        assert_eq!(code(residences.leave(vm, VmGeneration(1))), "system");
        residences.must_be_here(vm).unwrap();
        std::fs::remove_file(home.path().join("residence")).unwrap();
        residences.leave(vm, VmGeneration(1)).unwrap();
        let file = home.path().join(format!("residence/{vm}.json"));
        for text in ["", "{}", r#"{"format":2}"#] {
            std::fs::write(&file, text).unwrap();
            assert!(Residences::of_home(home.path()).is_err(), "{text}");
        }
    }
}
