//! The end that gets the volumes.

use std::io::Read;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{
    ArrivingVolume, CopiedVolume, DatastoreError, InUse, LayerDigest, LayerPart, LayerPiece, LayerRecord,
    LayerSource, LeftThere, RelocateOptions, RelocateProgress, SentVolume, TakePiece, begin_arrival,
    describe, withdraw,
};
use strongroom_host::protocol::{
    DiskKind, GuestWelcome, OwnVolume, Problem, ProblemBody, Progress, ProgressUnit, VmSpec,
};
use strongroom_host::vm_directory::VmRecord;
use strongroom_streams::{GivenVolume, LayerTaken, RestPart, VolumeTaker, VolumesError};
use strongroom_worker::{Pace, Throttle};

use super::{CONFIGURATION, MovingVolume, check_moves};
use crate::keys::VmKeys;
use crate::rekey::reencryption::Watch;

/// How long the other host may take until it says that it gives the volumes.
const WELCOME_WITHIN: Duration = Duration::from_secs(120);
/// The longest line in which it does, in bytes.
const LINE_BYTES_MAX: usize = 64 << 10;

pub(super) type Taker = VolumeTaker<UnixStream, UnixStream>;

/// The way from the other host.
pub(super) struct Way {
    pub taker: Taker,
    pub limit: Limit,
}

/// How fast layers that are asked for come.
pub(super) struct Limit {
    throttle: Throttle,
    pace: Pace,
}

impl Limit {
    /// No limit is `None`.
    pub fn new(bytes_per_second: Option<u64>) -> Self {
        Self { throttle: Throttle { bytes_per_second, ..Throttle::default() }, pace: Pace::default() }
    }

    /// Waits until more may come, after so many bytes.
    fn came(&mut self, bytes: usize) {
        self.pace.end(bytes as u64, None);
        thread::sleep(self.pace.pause(self.throttle, false, Instant::now()));
        self.pace.begin(None);
    }
}

/// Fetches the volumes of a VM into the directory `staged`. What an earlier attempt has left there
/// is used where it is the same. An error of `tell` ends it. Returns the VM's record, with its
/// configuration here, which nobody has attested yet.
///
/// # Errors
/// If a volume is not the one that the order names, its key is unavailable, it does not arrive
/// whole, or there is no room; if the VM does not move like this.
pub fn fetch(
    keys: &VmKeys,
    spec: &VmSpec,
    staged: &Path,
    from: UnixStream,
    bytes_per_second: Option<u64>,
    mut tell: impl FnMut(Progress) -> Result<(), Problem>,
) -> Result<VmRecord, Problem> {
    check_moves(spec)?;
    let mut way = begin(from, bytes_per_second)?;
    let record = record(&mut way.taker, spec)?;
    let names = names(spec, &record);
    fetch_all(keys, spec, staged, &names, &mut way, &mut tell)?;
    way.taker.end().map_err(way_problem)?;
    Ok(record)
}

/// Waits until the other host gives the volumes.
pub(super) fn begin(from: UnixStream, bytes_per_second: Option<u64>) -> Result<Way, Problem> {
    from.set_nonblocking(false).map_err(Problem::system)?;
    from.set_read_timeout(Some(WELCOME_WITHIN)).map_err(Problem::system)?;
    welcomed(&from)?;
    // A layer may have long stretches that are read there, and nothing passes.
    from.set_read_timeout(None).map_err(Problem::system)?;
    let taker = VolumeTaker::new(from.try_clone().map_err(Problem::system)?, from);
    Ok(Way { taker, limit: Limit::new(bytes_per_second) })
}

/// The name of a volume, and whether the VM needs it.
type Named = (String, bool);

/// Fetches volumes that no process uses.
pub(super) fn fetch_all(
    keys: &VmKeys,
    spec: &VmSpec,
    staged: &Path,
    names: &[Named],
    way: &mut Way,
    tell: &mut dyn FnMut(Progress) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let mut all_bytes = 0_u64;
    for (name, is_needed) in names {
        match way.taker.volume(name).map_err(way_problem)? {
            Some(given) => all_bytes = all_bytes.saturating_add(allocated(&given)),
            None if *is_needed => {
                let message = format!("the other host has no volume {name} of VM {}", spec.name);
                return Err(Problem::new("missing_volume", message));
            }
            None => {}
        }
    }
    let mut done_bytes = 0;
    for (name, _) in names {
        let Some(moving) = MovingVolume::named(spec, name) else { continue };
        let Some(given) = way.taker.volume(name).map_err(way_problem)? else { continue };
        let volume_bytes = allocated(&given);
        let mut told = |bytes: u64| {
            tell(Progress::new(done_bytes + bytes.min(volume_bytes), all_bytes, ProgressUnit::Bytes))
        };
        told(0)?;
        fetch_volume(keys, &moving, &staged.join(name), given, way, &mut told)?;
        done_bytes += volume_bytes;
    }
    Ok(())
}

/// Reads the first line: a welcome, or why there is none.
fn welcomed(mut from: &UnixStream) -> Result<(), Problem> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Line {
        Welcome(GuestWelcome),
        Problem(ProblemBody),
    }
    let mut line = Vec::new();
    loop {
        let mut byte = [0];
        from.read_exact(&mut byte).map_err(|error| way_problem(error.into()))?;
        match byte {
            [b'\n'] => break,
            [byte] => line.push(byte),
        }
        if line.len() > LINE_BYTES_MAX {
            return Err(way_problem(VolumesError::Malformed("its first line is too long")));
        }
    }
    match serde_json::from_slice(&line) {
        Ok(Line::Welcome(GuestWelcome::Volumes)) => Ok(()),
        // It was not presented in time, and the next one may be.
        Ok(Line::Problem(ProblemBody { error })) if error.code == "bad_ticket" => {
            Err(Problem { code: "broke_off".to_owned(), ..error })
        }
        Ok(Line::Problem(ProblemBody { error })) => Err(error),
        Ok(Line::Welcome(_)) | Err(_) => Err(way_problem(VolumesError::Malformed("it gives something else"))),
    }
}

/// The VM's record, with the configuration of the order.
pub(super) fn record(taker: &mut Taker, spec: &VmSpec) -> Result<VmRecord, Problem> {
    let text = taker.file(CONFIGURATION).map_err(way_problem)?;
    let text =
        text.ok_or_else(|| Problem::new("no_such_vm", format!("the other host has no VM {}", spec.name)))?;
    let mut record = VmRecord::parse(&spec.directory(), &text)?;
    if record.spec.id != spec.id {
        let message = format!("the other host has VM {} there, not VM {}", record.spec.id, spec.id);
        return Err(Problem::new("other_vm", message));
    }
    if record.deleting || record.suspended.is_some() {
        let message = format!("VM {} is suspended on the other host, or is being deleted there", spec.name);
        return Err(Problem::new("bad_state", message));
    }
    record.snapshots.check_whole(&spec.name)?;
    record.spec = spec.clone();
    Ok(record)
}

/// The names of the volumes, and whether the VM needs them.
fn names(spec: &VmSpec, record: &VmRecord) -> Vec<Named> {
    let disks = spec.disks.iter().filter(|disk| disk.kind == DiskKind::Data);
    let disks = disks.map(|disk| (disk.name.to_string(), true));
    let is_known = |own: OwnVolume| spec.known_volume(own).is_some();
    // A VM that an earlier version made lacks the volumes that are new in this one.
    let lasting = spec.lasting_volumes().map(|own| (own.name(), is_known(own)));
    // There is one once the VM was started.
    let console = std::iter::once((OwnVolume::Console.name(), is_known(OwnVolume::Console)));
    disks.chain(lasting).chain(console).chain(names_of_record(record)).collect()
}

/// The volumes that a VM has beside those of its configuration: its dumps, and the memories of its
/// snapshots. Nobody changes them.
pub(super) fn names_of_record(record: &VmRecord) -> Vec<Named> {
    let dumps = record.dumps.iter().map(|dump| (OwnVolume::Dump(dump.number).name(), true));
    let with_memory = record.snapshots.list.iter().filter(|snapshot| snapshot.memory.is_some());
    let memories = with_memory.map(|snapshot| (OwnVolume::SnapshotMemory(snapshot.id).name(), true));
    dumps.chain(memories).collect()
}

fn allocated(given: &GivenVolume) -> u64 {
    given.layers.iter().fold(0, |all, (_, bytes)| all.saturating_add(*bytes))
}

fn fetch_volume(
    keys: &VmKeys,
    moving: &MovingVolume<'_>,
    place: &Path,
    given: GivenVolume,
    way: &mut Way,
    tell: &mut dyn FnMut(u64) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let kek = moving.hold_key(keys, place)?;
    let options = moving.options(kek.as_deref());
    let mut arriving = begin_volume(moving, place, given, InUse::No, &options)?;
    let stop = AtomicBool::new(false);
    let mut watch = Watch::new(&stop);
    let mut report = |progress: RelocateProgress| {
        watch.look(|| tell(progress.done_bytes).err());
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut source = Elsewhere::asked(way, place);
    let copied = arriving.copy(&mut source, &mut report);
    match source.came(copied, watch.halted)? {
        Some(_) => Ok(arriving.take_place().map(drop)?),
        None => Err(way_problem(VolumesError::Malformed("a layer that nobody uses changes"))),
    }
}

/// Begins to receive a volume, or goes on with what an earlier attempt has left.
pub(super) fn begin_volume<'k>(
    moving: &MovingVolume<'_>,
    place: &Path,
    given: GivenVolume,
    in_use: InUse,
    options: &RelocateOptions<'k>,
) -> Result<ArrivingVolume<'k>, Problem> {
    if !is_gone(place) {
        // An earlier attempt came as far. Its volume is authenticated, and compared once more.
        let any = RelocateOptions { least_generation: 0, ..*options };
        withdraw(place, describe(place)?.descriptor.volume, &any)?;
    }
    Ok(begin_arrival(place, sent(given), in_use, moving.volume, options)?)
}

/// A volume as the other host has it.
pub(super) fn sent(given: GivenVolume) -> SentVolume {
    SentVolume { descriptor: given.descriptor, allocated_bytes: given.layers.into_iter().collect() }
}

/// The layers on the other host.
pub(super) struct Elsewhere<'a> {
    way: &'a mut Way,
    place: &'a Path,
    /// Whether the layers are asked for, or follow unasked.
    follows: bool,
    /// Why reading has failed, other than by what was read.
    trouble: Option<VolumesError>,
    /// A layer still changes there, which has ended the copy.
    changes: bool,
}

impl<'a> Elsewhere<'a> {
    /// Layers that are asked for.
    pub fn asked(way: &'a mut Way, place: &'a Path) -> Self {
        Self { way, place, follows: false, trouble: None, changes: false }
    }

    /// What a copy of these layers has come to, which was ended if it was `halted`; `None` if a
    /// layer still changes there.
    pub fn came(
        self,
        copied: Result<Option<CopiedVolume>, DatastoreError>,
        halted: Option<Problem>,
    ) -> Result<Option<CopiedVolume>, Problem> {
        match (copied, self.trouble, halted) {
            (Ok(Some(copied)), _, _) => Ok(Some(copied)),
            (Ok(None), None, None) if self.changes => Ok(None),
            (_, _, Some(problem)) => Err(problem),
            (_, Some(error), None) => Err(way_problem(error)),
            (Ok(None), None, None) => Err(Problem::new("internal", "nobody has ended it")),
            (Err(error), None, None) => Err(error.into()),
        }
    }

    /// Layers of the rest, which follow unasked, and without a limit: a guest waits for them.
    pub fn following(way: &'a mut Way, place: &'a Path) -> Self {
        Self { follows: true, ..Self::asked(way, place) }
    }
}

/// An error of the way, or of what takes the pieces.
enum Failed {
    Way(VolumesError),
    Volume(DatastoreError),
}

impl From<VolumesError> for Failed {
    fn from(error: VolumesError) -> Self {
        Self::Way(error)
    }
}

impl LayerSource for Elsewhere<'_> {
    fn read(
        &mut self,
        layer: &LayerRecord,
        left_there: Option<&mut LeftThere<'_>>,
        take: &mut TakePiece<'_>,
    ) -> Result<Option<LayerDigest>, DatastoreError> {
        let left_there = left_there.filter(|_| !self.follows);
        let left_there = match left_there.map(|left_there| left_there()).transpose()? {
            Some(None) => return Ok(None),
            Some(Some(digest)) => Some(*digest.bytes()),
            None => None,
        };
        let not_received =
            |reason: String| DatastoreError::NotReceived { path: self.place.to_owned(), reason };
        let (taker, limit) = (&mut self.way.taker, &mut self.way.limit);
        let mut piece = |part: u8, offset: u64, content: &[u8]| {
            if !self.follows {
                limit.came(content.len());
            }
            let part =
                LayerPart::of_number(part).ok_or(VolumesError::Malformed("no layer has such a part"))?;
            take(&LayerPiece { part, offset, content }).map_err(Failed::Volume)
        };
        let taken = match self.follows {
            false => taker.layer(layer.id, left_there.as_ref(), &mut piece),
            true => match taker.rest_part() {
                Ok(RestPart::Layer(follows)) if follows == layer.id => taker.content(&mut piece),
                Ok(_) => Err(VolumesError::Malformed("another layer follows").into()),
                Err(error) => Err(error.into()),
            },
        };
        match taken {
            Ok(LayerTaken::Whole(digest)) => Ok(Some(LayerDigest::from_bytes(digest))),
            Ok(LayerTaken::Changes) => {
                self.changes = true;
                Ok(None)
            }
            Ok(LayerTaken::Ended) => Ok(None),
            Err(Failed::Volume(error)) => Err(error),
            Err(Failed::Way(error)) => {
                let failed = not_received(error.to_string());
                self.trouble = Some(error);
                Err(failed)
            }
        }
    }
}

/// A way that is broken can be tried again, and what the other host refuses it says itself.
pub(super) fn way_problem(error: VolumesError) -> Problem {
    let code = match &error {
        VolumesError::BrokeOff(_) => "broke_off",
        VolumesError::Malformed(_) | VolumesError::Refused(_) => "not_given",
    };
    Problem::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use strongroom_streams::{Asked, VolumeGiver};

    use super::*;

    const LAYER: &str = r#"{"id":"7f2c1d4e-0a57-4f0e-9a5b-3c9d2b1e0f66","parent":null,"epochs":[]}"#;
    static PIECE: [u8; 64 << 10] = [7; 64 << 10];
    const PIECES: u64 = 4;

    /// Reads a layer of four pieces from a host that has it, and returns how long that took.
    fn read(bytes_per_second: u64, follows: bool) -> Duration {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (done, is_done) = channel();
        let layer: LayerRecord = serde_json::from_str(LAYER).unwrap();
        let id = layer.id;
        thread::spawn(move || {
            let mut giver = VolumeGiver::new(theirs.try_clone().unwrap(), theirs);
            match follows {
                true => giver.rest_of_layer(id).unwrap(),
                false => {
                    assert_eq!(giver.next_asked().unwrap(), Asked::Layer { layer: id, left_there: None })
                }
            }
            (0..PIECES).for_each(|at| giver.data(0, at * PIECE.len() as u64, &PIECE).unwrap());
            giver.layer(&[0; 32]).unwrap();
        });
        thread::spawn(move || {
            let taker = VolumeTaker::new(ours.try_clone().unwrap(), ours);
            let mut way = Way { taker, limit: Limit::new(Some(bytes_per_second)) };
            let mut source = match follows {
                true => Elsewhere::following(&mut way, Path::new("/there")),
                false => Elsewhere::asked(&mut way, Path::new("/there")),
            };
            let (began, mut taken) = (Instant::now(), 0);
            let mut take = |piece: &LayerPiece<'_>| {
                taken += piece.content.len() as u64;
                Ok(ControlFlow::Continue(()))
            };
            source.read(&layer, None, &mut take).unwrap().unwrap();
            assert_eq!(taken, PIECES * PIECE.len() as u64);
            done.send(began.elapsed()).unwrap();
        });
        is_done.recv_timeout(Duration::from_secs(300)).expect("the layer does not come")
    }

    /// It takes as long as the limit says, on however fast a machine. What a guest waits for is not
    /// held back: at a byte a second it would take three days.
    #[test]
    fn layers_that_are_asked_for_keep_to_the_limit_and_what_follows_does_not() {
        assert!(read(1 << 20, false) >= Duration::from_millis(240));
        read(1, true);
    }
}
