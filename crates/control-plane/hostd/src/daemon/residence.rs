//! The VMs that have left this host for another one, or come from one (`residence/VM.json`).
//!
//! A VM that is on storage of several hosts may be started by one of them at a time. The host that
//! gave it up refuses whatever order comes late, also after a restart, and whatever the datastore
//! says: nothing of this is read from there.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use strongroom_host::protocol::{Problem, VmGeneration};
use strongroom_types::VmId;

/// The format of the files.
const FORMAT: u32 = 1;
/// The longest file, in bytes.
const BYTES_MAX: u64 = 4096;

/// Where a VM is, as far as this host knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Place {
    /// It has left.
    Left,
    /// It was given up by another host, and is here.
    Here,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Residence {
    format: u32,
    vm: VmId,
    /// The generation of the order.
    generation: VmGeneration,
    place: Place,
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

    /// Whether a VM has left.
    pub fn has_left(&self, vm: VmId) -> bool {
        self.known.lock().get(&vm).is_some_and(|known| known.place == Place::Left)
    }

    /// Refuses an operation on a VM that has left.
    ///
    /// # Errors
    /// `left_host`.
    pub fn must_be_here(&self, vm: VmId) -> Result<(), Problem> {
        match self.known.lock().get(&vm) {
            Some(Residence { place: Place::Left, generation, .. }) => {
                let message = format!("VM {vm} has left this host, after its start {generation}");
                Err(Problem::new("left_host", message)
                    .with_next_step("ask the host that it has moved to, or have it move back"))
            }
            Some(Residence { place: Place::Here, .. }) | None => Ok(()),
        }
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
        if let Some(before) = before.filter(|before| before.generation >= now.generation) {
            let message = format!(
                "the move was ordered after start {}, and this host knows start {}",
                now.generation, before.generation
            );
            return Err(Problem::new("other_generation", message));
        }
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
        assert!(last.has_arrived_at(vm, VmGeneration(5)) && !last.has_left(vm));
        last.forget(vm).unwrap();
        assert!(!Residences::of_home(home.path()).unwrap().has_arrived_at(vm, VmGeneration(5)));
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
