//! The content of the volume `vtpm`: the key of a TPM's state, and the history of states.
//! `ON_DISK.md` describes it byte by byte.
//!
//! swtpm encrypts its state, but would also open an old one. So each state gets a generation here,
//! and a recorded state is recognised if an attacker puts it back. Two slots are written in turn,
//! so that a power cut leaves one intact.
//!
//! A guest's memory brings a state of the TPM along, which swtpm writes into its file under a new
//! IV: a new generation. So the record also names the one memory that may do so, from the moment at
//! which it was saved or put back until the guest goes on.
//!
//! A guest that comes from another host while it runs has its TPM in a swtpm with a key of its own:
//! nobody could open this volume when that was started. Key and state have to change together, and
//! the state is a file. So the record names its *successor*, before the file is replaced, and
//! whichever file is there then says which key counts.

use strongroom_crypto::mac::sha256;
use strongroom_memory::secret::{SecretBytes, SecretError};
use strongroom_types::{STORED_COUNT_MAX, VolumeId, VolumeSize};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::own_volume::{OpenOwnVolume, OwnVolumeError};

/// The length of the key with which swtpm encrypts its state (AES-256), in bytes.
pub const KEY_BYTES: usize = 32;
/// The first bytes of a slot.
const MAGIC: &[u8; 8] = b"SRVTPM\r\n";
/// The version of the format.
const VERSION: u32 = 1;
/// Set while a swtpm runs. If it is set at a start, the host lost power, and there may be an
/// unrecorded state.
const IN_USE: u32 = 1;
/// Set if the slot says with which memory the TPM goes on. Earlier releases did not record it.
const KNOWS_MEMORY: u32 = 2;
/// Set if the slot names a successor.
const HAS_SUCCESSOR: u32 = 4;
/// The distance of the slots: a block, so that writing one leaves the other alone.
const SLOT_BYTES: usize = 4096;
/// The bytes of a slot that are used.
const SLOT_USED: usize = 128;
/// The bytes that its checksum covers.
const SLOT_CHECKED: usize = 96;
/// The bytes of a slot with the id of the memory's volume, zeros for none; a checksum of all bytes
/// before it follows.
const SLOT_MEMORY: std::ops::Range<usize> = 128..144;
/// The bytes of a slot with the successor's key and the digest of its state; a checksum of all
/// bytes before it follows.
const SLOT_SUCCESSOR: std::ops::Range<usize> = 176..240;
/// The offset of the former states.
const FORMER_AT: u64 = 2 * SLOT_BYTES as u64;
/// The number of states that are remembered: several years, at about twenty for each boot of a
/// guest.
const FORMER_MAX: u64 = 32768;
/// The length of an entry: a generation, and the first 24 bytes of the state's digest.
const FORMER_BYTES: usize = 32;

/// The size of the volume.
pub const VOLUME_BYTES: u64 = FORMER_AT + FORMER_MAX * FORMER_BYTES as u64;

/// SHA-256 of a state file.
pub type StateDigest = [u8; 32];

/// Why the record cannot be used.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The volume cannot be read or written.
    #[error(transparent)]
    Volume(#[from] OwnVolumeError),
    /// There is no secure memory for the key.
    #[error("no memory for the TPM's key: {0}")]
    Secret(#[from] SecretError),
    /// It was written by a later version.
    #[error(
        "what is recorded of the TPM is of version {0}, which this program does not know; use a newer one"
    )]
    Version(u32),
    /// No slot is intact.
    #[error(
        "what is recorded of the TPM is damaged ({0}); restore volume vtpm and directory vtpm.state of the VM from the same backup"
    )]
    Damaged(&'static str),
}

/// Why a TPM is not started with the present state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// An old state was put back.
    #[error(
        "it is generation {found} of the TPM's state, and the last one is {last}: an older state was put back"
    )]
    PutBack {
        /// The generation of the present state.
        found: u64,
        /// The generation of the last recorded state.
        last: u64,
    },
    /// The state is missing.
    #[error("the TPM's state is missing; its last generation is {last}")]
    Missing {
        /// The generation of the last recorded state.
        last: u64,
    },
    /// The TPM ended in order, and its present state is another one.
    #[error(
        "it is not generation {last} of the TPM's state, with which the TPM ended: another one was put in its place"
    )]
    Other {
        /// The generation of the last recorded state.
        last: u64,
    },
}

/// Why a guest does not go on with a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("it would put an old state of the TPM back: the TPM's record names {named}, and not this memory")]
pub struct OtherMemory {
    named: NamedMemory,
}

/// What the record says about the memory with which the TPM goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NamedMemory {
    /// Nothing: it is of an earlier release.
    Unsaid,
    /// None: the TPM begins with its file.
    None,
    /// The memory in this volume.
    In(VolumeId),
}

impl std::fmt::Display for NamedMemory {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unsaid | Self::None => to.write_str("none"),
            Self::In(volume) => write!(to, "that in volume {volume}"),
        }
    }
}

/// The status of a state that is accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No state yet, as recorded.
    New,
    /// The last recorded state.
    Recorded,
    /// An unrecorded state, written just before a crash; valid if swtpm's key opens it.
    Unrecorded,
}

/// The record of a TPM.
#[derive(Debug)]
pub struct TpmRecord {
    key: SecretBytes,
    in_use: bool,
    sequence: u64,
    generation: u64,
    digest: StateDigest,
    memory: NamedMemory,
    /// What takes the place of key and last state once its file is there.
    successor: Option<Successor>,
    former: Vec<[u8; FORMER_BYTES]>,
}

/// The TPM of a guest that comes from another host.
#[derive(Debug)]
struct Successor {
    key: SecretBytes,
    digest: StateDigest,
}

/// Returns the first content of a volume, with a new key.
///
/// # Errors
/// If there is no secure memory for the key, or the system provides no random numbers.
pub fn new_content() -> Result<Zeroizing<Vec<u8>>, SecretError> {
    let key = SecretBytes::random(KEY_BYTES)?;
    let former = vec![[0; FORMER_BYTES]; FORMER_MAX as usize];
    let (digest, memory, successor) = ([0; 32], NamedMemory::None, None);
    let new = TpmRecord { key, in_use: false, sequence: 1, generation: 0, digest, memory, successor, former };
    Ok(new.slot())
}

/// The size of the volume.
///
/// # Errors
/// Never, since it is a constant in range.
pub fn volume_size() -> Result<VolumeSize, strongroom_types::SizeError> {
    VolumeSize::new(VOLUME_BYTES)
}

impl TpmRecord {
    /// Reads the record.
    ///
    /// # Errors
    /// Also if it is damaged, or was written by a later version.
    pub fn read(volume: &mut OpenOwnVolume) -> Result<Self, RecordError> {
        if volume.size_bytes() < VOLUME_BYTES {
            return Err(RecordError::Damaged("the volume is too small"));
        }
        let mut slots = Zeroizing::new(vec![0; 2 * SLOT_BYTES]);
        volume.read_at(0, &mut slots)?;
        let whole = slots.chunks_exact(SLOT_BYTES).filter(|slot| is_whole(slot));
        let last =
            whole.max_by_key(|slot| number(slot, 16)).ok_or(RecordError::Damaged("no slot is whole"))?;
        let version = u32::try_from(number(last, 8) & u64::from(u32::MAX)).unwrap_or_default();
        if version != VERSION {
            return Err(RecordError::Version(version));
        }
        let flags = number(last, 8) >> 32;
        let mut key = SecretBytes::zeroed(KEY_BYTES)?;
        key.expose_mut().copy_from_slice(&last[32..64]);
        let mut digest = [0; 32];
        digest.copy_from_slice(&last[64..96]);
        let mut bytes = vec![0; FORMER_MAX as usize * FORMER_BYTES];
        volume.read_at(FORMER_AT, &mut bytes)?;
        let former = bytes.as_chunks::<FORMER_BYTES>().0.to_vec();
        let (sequence, generation) = (number(last, 16), number(last, 24));
        if sequence.max(generation) > STORED_COUNT_MAX {
            return Err(RecordError::Damaged("it counts more states than a TPM ever has"));
        }
        let (in_use, memory) = (flags & u64::from(IN_USE) != 0, memory_of(last));
        let successor = successor_of(last)?;
        let record = Self { key, in_use, sequence, generation, digest, memory, successor, former };
        match record.remembered().all(|generation| number(record.entry(generation), 0) == generation) {
            true => Ok(record),
            false => Err(RecordError::Damaged("a former state is not what it should be")),
        }
    }

    /// The key that encrypts the state.
    pub fn key(&self) -> &SecretBytes {
        &self.key
    }

    /// The number of states so far.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Checks whether a TPM may be started with this state, or without one.
    ///
    /// # Errors
    /// The reason that it may not.
    pub fn judge(&self, state: Option<&StateDigest>) -> Result<Verdict, Refusal> {
        let last = self.generation;
        match state {
            None if last == 0 => Ok(Verdict::New),
            None => Err(Refusal::Missing { last }),
            Some(state) if last > 0 && *state == self.digest => Ok(Verdict::Recorded),
            Some(state) => match self.generation_of(state) {
                Some(found) => Err(Refusal::PutBack { found, last }),
                None if self.in_use => Ok(Verdict::Unrecorded),
                None => Err(Refusal::Other { last }),
            },
        }
    }

    /// Checks that a guest may go on with the memory in this volume.
    ///
    /// # Errors
    /// If the record names another one, or none.
    pub fn judge_memory(&self, memory: VolumeId) -> Result<(), OtherMemory> {
        match self.memory {
            NamedMemory::Unsaid => Ok(()),
            NamedMemory::In(named) if named == memory => Ok(()),
            named => Err(OtherMemory { named }),
        }
    }

    /// Names the memory with which the TPM goes on, durably; `None`: with no memory.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn go_on_with(
        &mut self,
        volume: &mut OpenOwnVolume,
        memory: Option<VolumeId>,
    ) -> Result<(), RecordError> {
        let memory = memory.map_or(NamedMemory::None, NamedMemory::In);
        if self.memory != memory {
            self.memory = memory;
            self.write(volume)?;
        }
        Ok(())
    }

    /// Names, durably, the key and the state that count once that state's file is there. The TPM
    /// goes on with no memory then.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn name_successor(
        &mut self,
        volume: &mut OpenOwnVolume,
        key: &SecretBytes,
        state: &StateDigest,
    ) -> Result<(), RecordError> {
        self.memory = NamedMemory::None;
        self.successor = Some(Successor { key: key.duplicate()?, digest: *state });
        self.write(volume)
    }

    /// Records, durably, whether the successor counts, if one is named: the state that is there
    /// says so. Returns whether it does.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn settle_successor(
        &mut self,
        volume: &mut OpenOwnVolume,
        state: Option<&StateDigest>,
    ) -> Result<bool, RecordError> {
        let Some(successor) = self.successor.take() else { return Ok(false) };
        if state != Some(&successor.digest) {
            return self.write(volume).map(|()| false);
        }
        self.key = successor.key;
        match self.record(volume, &successor.digest)? {
            true => Ok(true),
            false => self.write(volume).map(|()| true),
        }
    }

    /// Records that a swtpm runs from now on, or that it has ended in order.
    ///
    /// # Errors
    /// If that cannot be made durable.
    pub fn set_in_use(&mut self, volume: &mut OpenOwnVolume, in_use: bool) -> Result<(), RecordError> {
        if self.in_use != in_use {
            self.in_use = in_use;
            self.write(volume)?;
        }
        Ok(())
    }

    /// Records a state as the last one, durably. Returns `false` for a state that is already
    /// recorded, former or last.
    ///
    /// # Errors
    /// If it cannot be made durable.
    pub fn record(&mut self, volume: &mut OpenOwnVolume, state: &StateDigest) -> Result<bool, RecordError> {
        if self.generation_of(state).is_some() {
            return Ok(false);
        }
        let next = self.generation + 1;
        let mut entry = [0; FORMER_BYTES];
        entry[..8].copy_from_slice(&next.to_le_bytes());
        entry[8..].copy_from_slice(&state[..FORMER_BYTES - 8]);
        let place = next % FORMER_MAX;
        // Written before the slot that counts it. The former slot no longer counts the entry that
        // is overwritten.
        volume.write_at(FORMER_AT + place * FORMER_BYTES as u64, &entry)?;
        volume.flush()?;
        self.former[place as usize] = entry;
        (self.generation, self.digest) = (next, *state);
        self.write(volume)?;
        Ok(true)
    }

    fn write(&mut self, volume: &mut OpenOwnVolume) -> Result<(), RecordError> {
        self.sequence += 1;
        let place = (self.sequence % 2) * SLOT_BYTES as u64;
        volume.write_at(place, &self.slot())?;
        Ok(volume.flush()?)
    }

    fn slot(&self) -> Zeroizing<Vec<u8>> {
        let mut slot = Zeroizing::new(vec![0; SLOT_BYTES]);
        slot[..8].copy_from_slice(MAGIC);
        slot[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let in_use = if self.in_use { IN_USE } else { 0 };
        let knows_memory = if self.memory == NamedMemory::Unsaid { 0 } else { KNOWS_MEMORY };
        let has_successor = if self.successor.is_some() { HAS_SUCCESSOR } else { 0 };
        slot[12..16].copy_from_slice(&(in_use | knows_memory | has_successor).to_le_bytes());
        slot[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        slot[24..32].copy_from_slice(&self.generation.to_le_bytes());
        slot[32..64].copy_from_slice(self.key.expose());
        slot[64..96].copy_from_slice(&self.digest);
        let checksum = sha256(&slot[..SLOT_CHECKED]);
        slot[SLOT_CHECKED..SLOT_USED].copy_from_slice(&checksum);
        if let NamedMemory::In(memory) = self.memory {
            slot[SLOT_MEMORY].copy_from_slice(memory.as_bytes());
        }
        if self.memory != NamedMemory::Unsaid {
            let checksum = sha256(&slot[..SLOT_MEMORY.end]);
            slot[SLOT_MEMORY.end..][..checksum.len()].copy_from_slice(&checksum);
        }
        if let Some(successor) = &self.successor {
            let (key, digest) = slot[SLOT_SUCCESSOR].split_at_mut(KEY_BYTES);
            key.copy_from_slice(successor.key.expose());
            digest.copy_from_slice(&successor.digest);
            let checksum = sha256(&slot[..SLOT_SUCCESSOR.end]);
            slot[SLOT_SUCCESSOR.end..][..checksum.len()].copy_from_slice(&checksum);
        }
        slot
    }

    /// The generations that are recognised: one fewer than the entries, since the next state
    /// overwrites the oldest.
    fn remembered(&self) -> std::ops::RangeInclusive<u64> {
        let oldest = (self.generation + 2).saturating_sub(FORMER_MAX).max(1);
        oldest..=self.generation
    }

    fn entry(&self, generation: u64) -> &[u8; FORMER_BYTES] {
        &self.former[(generation % FORMER_MAX) as usize]
    }

    fn generation_of(&self, state: &StateDigest) -> Option<u64> {
        let start = &state[..FORMER_BYTES - 8];
        self.remembered().find(|generation: &u64| &self.entry(*generation)[8..] == start)
    }
}

fn is_whole(slot: &[u8]) -> bool {
    let is_whole = slot.starts_with(MAGIC) && sha256(&slot[..SLOT_CHECKED]) == slot[SLOT_CHECKED..SLOT_USED];
    // A later version may use the rest in another way.
    let is_of_this_version = number(slot, 8) & u64::from(u32::MAX) == u64::from(VERSION);
    let covers = |end: usize| sha256(&slot[..end]) == slot[end..][..32];
    let has = |flag| is_of_this_version && has_flag(slot, flag);
    is_whole
        && (!has(KNOWS_MEMORY) || covers(SLOT_MEMORY.end))
        && (!has(HAS_SUCCESSOR) || covers(SLOT_SUCCESSOR.end))
}

fn has_flag(slot: &[u8], flag: u32) -> bool {
    (number(slot, 8) >> 32) & u64::from(flag) != 0
}

/// What a whole slot says about a memory.
fn memory_of(slot: &[u8]) -> NamedMemory {
    let mut id = [0; 16];
    id.copy_from_slice(&slot[SLOT_MEMORY]);
    match has_flag(slot, KNOWS_MEMORY) {
        false => NamedMemory::Unsaid,
        true if id == [0; 16] => NamedMemory::None,
        true => NamedMemory::In(VolumeId::from_bytes(id)),
    }
}

/// The successor that a whole slot names.
fn successor_of(slot: &[u8]) -> Result<Option<Successor>, SecretError> {
    if !has_flag(slot, HAS_SUCCESSOR) {
        return Ok(None);
    }
    let (named, state) = slot[SLOT_SUCCESSOR].split_at(KEY_BYTES);
    let mut key = SecretBytes::zeroed(KEY_BYTES)?;
    key.expose_mut().copy_from_slice(named);
    let mut digest = [0; 32];
    digest.copy_from_slice(state);
    Ok(Some(Successor { key, digest }))
}

/// Reads the 64-bit number at an offset.
fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::own_volume::create_with;

    fn make(directory: &Path) -> PathBuf {
        let path = directory.join("vtpm");
        create_with(&path, volume_size().unwrap(), None, &new_content().unwrap()).unwrap();
        path
    }

    fn open(path: &Path) -> (OpenOwnVolume, TpmRecord) {
        let mut volume = OpenOwnVolume::open(path, None).unwrap();
        let record = TpmRecord::read(&mut volume).unwrap();
        (volume, record)
    }

    fn state(number: u64) -> StateDigest {
        sha256(&number.to_le_bytes())
    }

    #[test]
    fn a_state_that_was_put_back_is_known_again() {
        let scratch = tempfile::tempdir().unwrap();
        let path = make(scratch.path());
        let (mut volume, mut record) = open(&path);
        assert_eq!(record.judge(None), Ok(Verdict::New));
        assert_eq!(record.judge(Some(&state(1))), Err(Refusal::Other { last: 0 }));
        record.set_in_use(&mut volume, true).unwrap();
        assert_eq!(record.judge(Some(&state(1))), Ok(Verdict::Unrecorded));
        for number in 1..=3 {
            assert!(record.record(&mut volume, &state(number)).unwrap());
        }
        assert!(!record.record(&mut volume, &state(3)).unwrap(), "it is recorded");
        assert!(!record.record(&mut volume, &state(1)).unwrap(), "put back while it runs");
        let key = record.key().duplicate().unwrap();
        volume.close().unwrap();

        // First after a crash, then after an orderly end.
        let (mut volume, mut record) = open(&path);
        assert_eq!((record.key(), record.generation()), (&key, 3));
        let judge = |record: &TpmRecord, number| record.judge(Some(&state(number)));
        assert_eq!(judge(&record, 3), Ok(Verdict::Recorded));
        assert_eq!(judge(&record, 2), Err(Refusal::PutBack { found: 2, last: 3 }));
        assert_eq!(judge(&record, 4), Ok(Verdict::Unrecorded));
        assert_eq!(record.judge(None), Err(Refusal::Missing { last: 3 }));
        record.set_in_use(&mut volume, false).unwrap();
        volume.close().unwrap();
        let (_, record) = open(&path);
        assert_eq!(judge(&record, 3), Ok(Verdict::Recorded));
        assert_eq!(judge(&record, 1), Err(Refusal::PutBack { found: 1, last: 3 }));
        assert_eq!(judge(&record, 4), Err(Refusal::Other { last: 3 }));
    }

    #[test]
    fn a_tpm_goes_on_with_the_memory_that_its_record_names_and_with_it_once() {
        let scratch = tempfile::tempdir().unwrap();
        let path = make(scratch.path());
        let (first, second) = (VolumeId::random(), VolumeId::random());
        let none = Err(OtherMemory { named: NamedMemory::None });
        let (mut volume, mut record) = open(&path);
        assert_eq!(record.judge_memory(first), none, "a new TPM has none");
        record.go_on_with(&mut volume, Some(first)).unwrap();
        volume.close().unwrap();
        let (mut volume, mut record) = open(&path);
        assert_eq!(record.judge_memory(first), Ok(()));
        assert_eq!(record.judge_memory(second), Err(OtherMemory { named: NamedMemory::In(first) }));
        // New states, and the end of swtpm, leave it.
        record.record(&mut volume, &state(1)).unwrap();
        record.set_in_use(&mut volume, true).unwrap();
        assert_eq!(TpmRecord::read(&mut volume).unwrap().judge_memory(first), Ok(()));
        // The guest goes on, and its memory is put back.
        record.go_on_with(&mut volume, None).unwrap();
        let (volume, record) = (volume.close(), open(&path).1);
        volume.unwrap();
        assert_eq!(record.judge_memory(first), none);
        assert_eq!(record.judge(Some(&state(1))), Ok(Verdict::Recorded));
    }

    #[test]
    fn a_slot_of_an_earlier_release_says_nothing_about_a_memory_and_a_torn_one_is_not_read() {
        let scratch = tempfile::tempdir().unwrap();
        let path = make(scratch.path());
        let (mut volume, mut record) = open(&path);
        record.memory = NamedMemory::Unsaid;
        record.write(&mut volume).unwrap();
        let mut record = TpmRecord::read(&mut volume).unwrap();
        assert_eq!((record.memory, record.judge_memory(VolumeId::random())), (NamedMemory::Unsaid, Ok(())));
        record.go_on_with(&mut volume, Some(VolumeId::random())).unwrap();
        let last = (record.sequence % 2) * SLOT_BYTES as u64;
        volume.write_at(last + SLOT_MEMORY.start as u64, &[0; 16]).unwrap();
        assert_eq!(TpmRecord::read(&mut volume).unwrap().memory, NamedMemory::Unsaid, "the other slot");
    }

    #[test]
    fn the_file_says_which_of_two_keys_counts() {
        let scratch = tempfile::tempdir().unwrap();
        let path = make(scratch.path());
        let came = SecretBytes::random(KEY_BYTES).unwrap();
        let (mut volume, mut record) = open(&path);
        let first = record.key().duplicate().unwrap();
        record.set_in_use(&mut volume, true).unwrap();
        record.go_on_with(&mut volume, Some(VolumeId::random())).unwrap();
        record.record(&mut volume, &state(1)).unwrap();
        record.name_successor(&mut volume, &came, &state(2)).unwrap();
        volume.close().unwrap();

        // The file was not replaced.
        let (mut volume, mut record) = open(&path);
        assert_eq!(record.memory, NamedMemory::None);
        assert_eq!(record.judge(Some(&state(1))), Ok(Verdict::Recorded));
        assert!(!record.settle_successor(&mut volume, Some(&state(1))).unwrap());
        assert!(!record.settle_successor(&mut volume, Some(&state(2))).unwrap());
        volume.close().unwrap();
        let (mut volume, mut record) = open(&path);
        assert_eq!((record.key(), record.generation()), (&first, 1));
        assert!(record.successor.is_none());

        // It was, and then somebody was killed. A torn slot names none.
        record.name_successor(&mut volume, &came, &state(2)).unwrap();
        let last = (record.sequence % 2) * SLOT_BYTES as u64;
        let mut named = vec![0; SLOT_BYTES];
        volume.read_at(last, &mut named).unwrap();
        volume.write_at(last + SLOT_SUCCESSOR.start as u64, &[0; 32]).unwrap();
        assert!(TpmRecord::read(&mut volume).unwrap().successor.is_none(), "the other slot");
        volume.write_at(last, &named).unwrap();
        volume.close().unwrap();
        let (mut volume, mut record) = open(&path);
        assert!(record.settle_successor(&mut volume, Some(&state(2))).unwrap());
        volume.close().unwrap();
        let (mut volume, mut record) = open(&path);
        assert_eq!((record.key(), record.generation()), (&came, 2));
        assert_eq!(record.judge(Some(&state(2))), Ok(Verdict::Recorded));
        assert_eq!(record.judge(Some(&state(1))), Err(Refusal::PutBack { found: 1, last: 2 }));
        assert!(!record.settle_successor(&mut volume, Some(&state(1))).unwrap());
        assert_eq!(record.generation(), 2);
    }

    #[test]
    fn one_torn_slot_is_survived_and_two_are_told() {
        let scratch = tempfile::tempdir().unwrap();
        let path = make(scratch.path());
        let (mut volume, mut record) = open(&path);
        record.record(&mut volume, &state(1)).unwrap();
        record.record(&mut volume, &state(2)).unwrap();
        // A power cut in the middle of the last slot.
        let last = (record.sequence % 2) * SLOT_BYTES as u64;
        volume.write_at(last + 64, &[0; 8]).unwrap();
        let torn = TpmRecord::read(&mut volume).unwrap();
        assert_eq!((torn.generation(), torn.judge(Some(&state(1)))), (1, Ok(Verdict::Recorded)));
        volume.write_at(SLOT_BYTES as u64 - last + 64, &[0; 8]).unwrap();
        assert!(matches!(TpmRecord::read(&mut volume), Err(RecordError::Damaged(_))));
    }

    #[test]
    fn a_record_of_a_later_program_and_damaged_former_states_are_told() {
        let scratch = tempfile::tempdir().unwrap();
        let path = make(scratch.path());
        let (mut volume, mut record) = open(&path);
        record.record(&mut volume, &state(1)).unwrap();
        volume.write_at(FORMER_AT + FORMER_BYTES as u64, &[9]).unwrap();
        assert!(matches!(TpmRecord::read(&mut volume), Err(RecordError::Damaged(_))));
        volume.write_at(FORMER_AT + FORMER_BYTES as u64, &[1]).unwrap();
        TpmRecord::read(&mut volume).unwrap();
        record.sequence += 1;
        let mut later = record.slot();
        later[8] = 2;
        let checksum = sha256(&later[..SLOT_CHECKED]);
        later[SLOT_CHECKED..SLOT_USED].copy_from_slice(&checksum);
        volume.write_at((record.sequence % 2) * SLOT_BYTES as u64, &later).unwrap();
        assert!(matches!(TpmRecord::read(&mut volume), Err(RecordError::Version(2))));
    }

    #[test]
    fn only_so_many_states_are_remembered() {
        let key = SecretBytes::random(KEY_BYTES).unwrap();
        let former = vec![[0; FORMER_BYTES]; FORMER_MAX as usize];
        let (digest, memory, successor) = ([0; 32], NamedMemory::None, None);
        let mut record =
            TpmRecord { key, in_use: true, sequence: 1, generation: 0, digest, memory, successor, former };
        assert_eq!(record.remembered().count(), 0);
        record.generation = FORMER_MAX - 1;
        assert_eq!(record.remembered(), 1..=FORMER_MAX - 1);
        record.generation = 3 * FORMER_MAX;
        assert_eq!(record.remembered().count() as u64, FORMER_MAX - 1);
    }
}
