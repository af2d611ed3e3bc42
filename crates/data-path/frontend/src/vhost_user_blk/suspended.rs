//! The state that a server hands to its successor in a planned upgrade: every session between two
//! messages, with its queues drained and its files. The front end and the guest only see a pause.
//!
//! The state is a plain tree for serde; files are named by their index. A successor reads its own
//! version and the one before, so that an upgrade by one release works; it refuses anything newer,
//! so that a downgrade fails before anything was touched.

use std::io;
use std::os::fd::OwnedFd;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::in_flight::InFlightDescription;
use super::message::{LogDescription, RegionDescription, RingAddresses};

/// The version of the state that this program writes. Version 1 is the first.
const VERSION: u32 = 1;

/// The oldest version that it reads.
const VERSION_OLDEST: u32 = 1;

/// The most files of a state: the kernel passes 253 at once (`SCM_MAX_FD`), of which the caller
/// needs a few.
pub const SUSPENDED_FILES_MAX: usize = 240;

/// A state that cannot be written or read.
#[derive(Debug, Error)]
pub enum SuspendedError {
    /// It comes from a program that is too old or too new.
    #[error("the state to go on from has version {0}; versions {VERSION_OLDEST} to {VERSION} are read")]
    Version(u32),
    /// It has more files than fit.
    #[error("the sessions hold more than {SUSPENDED_FILES_MAX} files")]
    TooManyFiles,
    /// A file is missing, or named twice.
    #[error("the state to go on from names file {0}, which did not come with it")]
    NoFile(usize),
    /// It has more sessions, rings or other parts than this program supports.
    #[error("the state to go on from does not fit: {0}")]
    DoesNotFit(&'static str),
    /// A file cannot be duplicated.
    #[error("a file cannot be handed over: {0}")]
    Duplicate(#[from] io::Error),
}

/// The sessions of a server that was suspended.
#[derive(Debug)]
pub struct Suspended {
    /// Their state.
    pub state: SuspendedState,
    /// Their files, by index.
    pub files: Vec<OwnedFd>,
}

impl Suspended {
    /// A copy with its own duplicates of the files.
    pub fn try_clone(&self) -> io::Result<Self> {
        let files = self.files.iter().map(OwnedFd::try_clone).collect::<io::Result<_>>()?;
        Ok(Self { state: self.state.clone(), files })
    }
}

/// All sessions of a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedState {
    version: u32,
    /// The last run of the device ([`super::activity`]).
    pub(super) last_run: u64,
    pub(super) sessions: Vec<SessionState>,
}

impl SuspendedState {
    pub(super) fn new(last_run: u64, sessions: Vec<SessionState>) -> Self {
        Self { version: VERSION, last_run, sessions }
    }

    /// Refuses the state of a program that is too old or too new.
    pub(super) fn check(&self, sessions_max: usize) -> Result<(), SuspendedError> {
        if !(VERSION_OLDEST..=VERSION).contains(&self.version) {
            return Err(SuspendedError::Version(self.version));
        }
        let fits = self.sessions.len() <= sessions_max
            && self.sessions.iter().filter(|session| session.is_active).count() <= 1;
        if fits { Ok(()) } else { Err(SuspendedError::DoesNotFit("sessions")) }
    }
}

/// One session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionState {
    pub socket: usize,
    pub features: u64,
    pub protocol_features: u64,
    pub status: u8,
    pub writeback: bool,
    pub run: Option<u64>,
    pub is_active: bool,
    pub regions: Vec<(RegionDescription, usize)>,
    pub rings: Vec<SuspendedRing>,
    pub backend_channel: Option<usize>,
    pub in_flight: Option<(InFlightDescription, usize)>,
    pub log: Option<(LogDescription, usize)>,
}

impl SessionState {
    /// Shifts the indices of all files, to their places among those of other sessions.
    pub fn shift_files(&mut self, by: usize) {
        let Self { socket, regions, rings, backend_channel, in_flight, log, .. } = self;
        let single = [Some(socket), backend_channel.as_mut()];
        let tables = in_flight.iter_mut().map(|area| &mut area.1).chain(log.iter_mut().map(|log| &mut log.1));
        let rings = rings.iter_mut().flat_map(|ring| [&mut ring.kick, &mut ring.call, &mut ring.error]);
        let all = single.into_iter().flatten().chain(tables);
        let all = all.chain(regions.iter_mut().map(|region| &mut region.1)).chain(rings.flatten());
        all.for_each(|index| *index += by);
    }
}

/// One ring.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SuspendedRing {
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    pub next_available: u16,
    pub enabled: bool,
    pub kick: Option<usize>,
    pub call: Option<usize>,
    pub error: Option<usize>,
}

/// Files that are collected for the hand-over.
#[derive(Default)]
pub struct Outgoing(Vec<OwnedFd>);

impl Outgoing {
    /// Adds a duplicate. Returns its index.
    pub fn add(&mut self, file: &OwnedFd) -> Result<usize, SuspendedError> {
        if self.0.len() == SUSPENDED_FILES_MAX {
            return Err(SuspendedError::TooManyFiles);
        }
        self.0.push(file.try_clone()?);
        Ok(self.0.len() - 1)
    }

    /// Adds a file that may be missing.
    pub fn add_some(&mut self, file: Option<&OwnedFd>) -> Result<Option<usize>, SuspendedError> {
        file.map(|file| self.add(file)).transpose()
    }

    /// Adds an optional file with its description.
    pub fn add_described<T>(
        &mut self,
        described: Option<(T, &OwnedFd)>,
    ) -> Result<Option<(T, usize)>, SuspendedError> {
        described.map(|(description, file)| Ok((description, self.add(file)?))).transpose()
    }

    /// All of them.
    pub fn into_files(self) -> Vec<OwnedFd> {
        self.0
    }
}

/// Files that were handed over; each can be taken once.
pub struct Incoming(Vec<Option<OwnedFd>>);

impl Incoming {
    /// All of them.
    pub fn new(files: Vec<OwnedFd>) -> Self {
        Self(files.into_iter().map(Some).collect())
    }

    /// Takes the file with this index.
    pub fn take(&mut self, index: usize) -> Result<OwnedFd, SuspendedError> {
        self.0.get_mut(index).and_then(Option::take).ok_or(SuspendedError::NoFile(index))
    }

    /// Takes a file that may be missing.
    pub fn take_some(&mut self, index: Option<usize>) -> Result<Option<OwnedFd>, SuspendedError> {
        index.map(|index| self.take(index)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a program of this version wrote it. It must stay readable for as long as
    /// [`VERSION_OLDEST`] is 1.
    const VERSION_1: &str = r#"{"version":1,"last_run":3,"sessions":[{"socket":0,"features":5368709120,
        "protocol_features":111147,"status":15,"writeback":false,"run":3,"is_active":true,
        "regions":[[{"guest":0,"bytes":4096,"user":140733193388032,"file_offset":0},1]],
        "rings":[{"size":128,"addresses":{"descriptors":140733193388032,"used":140733193390080,
        "available":140733193392128},"next_available":7,"enabled":true,"kick":2,"call":3,"error":null}],
        "backend_channel":4,"in_flight":[{"bytes":2176,"offset":0,"queues":1,"queue_size":128},5],
        "log":[{"bytes":512,"offset":0},6]}]}"#;

    #[test]
    fn a_state_of_version_1_is_read() {
        let state: SuspendedState = serde_json::from_str(VERSION_1).unwrap();
        state.check(1).unwrap();
        let session = &state.sessions[0];
        assert_eq!((state.last_run, session.rings[0].next_available, session.writeback), (3, 7, false));
        assert_eq!(session.in_flight.unwrap().1, 5);
        let again = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<SuspendedState>(&again).unwrap(), state);
    }

    #[test]
    fn newer_states_and_ones_that_do_not_fit_are_refused() {
        let state = |text: &str| serde_json::from_str::<SuspendedState>(text).unwrap();
        let newer = state(&VERSION_1.replace("\"version\":1", "\"version\":2"));
        assert!(matches!(newer.check(1), Err(SuspendedError::Version(2))));
        assert!(matches!(state(VERSION_1).check(0), Err(SuspendedError::DoesNotFit(_))));
        let mut both = state(VERSION_1);
        both.sessions.push(both.sessions[0].clone());
        assert!(matches!(both.check(2), Err(SuspendedError::DoesNotFit(_))));
    }

    #[test]
    fn each_file_is_taken_once() {
        let mut outgoing = Outgoing::default();
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        assert_eq!((outgoing.add(&file).unwrap(), outgoing.add_some(None).unwrap()), (0, None));
        let mut incoming = Incoming::new(outgoing.into_files());
        assert!(incoming.take(0).is_ok());
        assert!(matches!(incoming.take(0), Err(SuspendedError::NoFile(0))));
        assert!(matches!(incoming.take_some(Some(1)), Err(SuspendedError::NoFile(1))));
    }
}
