//! The end that has the volumes.

use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use strongroom_datastore::file::{
    DatastoreError, DepartingVolume, ReadLayer, SentVolume, TakePiece, begin_departure,
};
use strongroom_host::protocol::{GuestWelcome, Problem, VmSpec};
use strongroom_host::vm_directory::{VmDirectoryError, read_configuration};
use strongroom_streams::{Asked, GivenVolume, VolumeGiver, VolumesError};
use strongroom_types::LayerId;

use super::{CONFIGURATION, MovingVolume, check_moves};
use crate::guest_client::GuestClient;
use crate::keys::VmKeys;

/// Why giving ends early.
pub(super) enum Trouble {
    /// The other host is gone, or asks what nobody asks.
    Way(VolumesError),
    /// It is told.
    Own(Problem),
}

impl From<VolumesError> for Trouble {
    fn from(error: VolumesError) -> Self {
        Self::Way(error)
    }
}

impl From<DatastoreError> for Trouble {
    fn from(error: DatastoreError) -> Self {
        Self::Own(error.into())
    }
}

impl From<Problem> for Trouble {
    fn from(problem: Problem) -> Self {
        Self::Own(problem)
    }
}

impl From<VmDirectoryError> for Trouble {
    fn from(error: VmDirectoryError) -> Self {
        Self::Own(error.into())
    }
}

/// Answers the questions of the host that the VM moves to, until that has everything. What cannot
/// be given is told to it.
///
/// # Errors
/// If the connection cannot be prepared, or the VM does not move like this: nothing was sent.
pub fn give(spec: &VmSpec, keys: &VmKeys, client: UnixStream) -> Result<(), Problem> {
    check_moves(spec)?;
    answer(spec, client, |giver| (Giving { spec, keys }).answer_all(giver))
}

/// The connection to the other host.
pub(super) type Giver = VolumeGiver<UnixStream, UnixStream>;

/// Welcomes the other host, and has its questions answered. It is told why they are not.
///
/// # Errors
/// If the connection cannot be prepared.
pub(super) fn answer(
    spec: &VmSpec,
    client: UnixStream,
    answers: impl FnOnce(&mut Giver) -> Result<(), Trouble>,
) -> Result<(), Problem> {
    let client = GuestClient::new(client)?;
    let from = client.content().map_err(Problem::system)?;
    from.set_read_timeout(None).map_err(Problem::system)?;
    let to = from.try_clone().map_err(Problem::system)?;
    if client.say(&GuestWelcome::Volumes).is_err() {
        return Ok(());
    }
    let mut giver = VolumeGiver::new(from, to);
    let told = match answers(&mut giver) {
        Ok(()) => giver.end(),
        Err(Trouble::Own(problem)) => giver.refuse(&problem.to_string()),
        Err(Trouble::Way(error)) => Err(error),
    };
    if let Err(error) = told {
        tracing::warn!("the volumes of VM {} have not all passed: {error}", spec.name);
    }
    Ok(())
}

/// Answers questions about what no process uses.
pub(super) struct Giving<'a> {
    pub spec: &'a VmSpec,
    pub keys: &'a VmKeys,
}

impl Giving<'_> {
    fn answer_all(&self, giver: &mut Giver) -> Result<(), Trouble> {
        let mut asked = giver.next_asked()?;
        loop {
            asked = match asked {
                Asked::End => return Ok(()),
                Asked::File(name) => self.answer_with_file(giver, &name)?,
                Asked::Volume(name) => self.answer_about(giver, &name)?,
                Asked::Layer { .. } => return Err(VolumesError::Malformed("a layer of no volume").into()),
                Asked::Rest => return Err(VolumesError::Malformed("there is no rest").into()),
            };
        }
    }

    /// Answers a question for a file. Returns the next question.
    pub(super) fn answer_with_file(&self, giver: &mut Giver, name: &str) -> Result<Asked, Trouble> {
        match read_configuration(&self.spec.directory())? {
            Some(text) if name == CONFIGURATION => giver.file(&text)?,
            _ => giver.nothing()?,
        }
        Ok(giver.next_asked()?)
    }

    /// Answers the questions about a volume. Returns the first one that is about something else.
    pub(super) fn answer_about(&self, giver: &mut Giver, name: &str) -> Result<Asked, Trouble> {
        let moving = MovingVolume::named(self.spec, name);
        let Some((moving, path)) = moving.and_then(|moving| Some((moving, self.path_of(name)?))) else {
            giver.nothing()?;
            return Ok(giver.next_asked()?);
        };
        let kek = moving.hold_key(self.keys, &path)?;
        let departing = begin_departure(&path, &moving.options(kek.as_deref()))?;
        giver.volume(&given(departing.sent()))?;
        loop {
            match giver.next_asked()? {
                Asked::Layer { layer, left_there } => {
                    give_layer(giver, left_there, &mut |take| read_closed(&departing, layer, take))?;
                }
                other => return Ok(other),
            }
        }
    }

    /// The path of a volume that is there.
    pub(super) fn path_of(&self, name: &str) -> Option<PathBuf> {
        let path = self.spec.volume_path(&name.parse().ok()?);
        (!strongroom_datastore::file::storage::is_gone(&path)).then_some(path)
    }
}

/// What is sent about a volume before its layers.
pub(super) fn given(sent: &SentVolume) -> GivenVolume {
    let layers = sent.allocated_bytes.iter().map(|(layer, bytes)| (*layer, *bytes)).collect();
    GivenVolume { descriptor: sent.descriptor.clone(), layers }
}

/// Reads a layer of a volume that nobody uses.
pub(super) fn read_closed(
    departing: &DepartingVolume<'_>,
    layer: LayerId,
    take: &mut TakePiece<'_>,
) -> Result<ReadLayer, DatastoreError> {
    Ok(departing.read(layer, take)?.map_or(ReadLayer::Ended, ReadLayer::Whole))
}

/// Reads a layer for what takes its pieces.
pub(super) type ReadsLayer<'a> = dyn FnMut(&mut TakePiece<'_>) -> Result<ReadLayer, DatastoreError> + 'a;

/// Answers a question for a layer.
pub(super) fn give_layer(
    giver: &mut Giver,
    left_there: Option<[u8; 32]>,
    read: &mut ReadsLayer<'_>,
) -> Result<(), Trouble> {
    // Reading it here takes less long than its way.
    if let Some(left_there) = left_there {
        match read(&mut |_| Ok(ControlFlow::Continue(())))? {
            ReadLayer::Whole(here) if *here.bytes() == left_there => return Ok(giver.layer(&left_there)?),
            ReadLayer::Whole(_) | ReadLayer::Changes | ReadLayer::Ended => {}
        }
    }
    pass_layer(giver, read)
}

/// Passes the content of a layer on, and its digest.
pub(super) fn pass_layer(giver: &mut Giver, read: &mut ReadsLayer<'_>) -> Result<(), Trouble> {
    let mut broken = None;
    let read = read(&mut |piece| match giver.data(piece.part.number(), piece.offset, piece.content) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) => {
            broken = Some(error);
            Ok(ControlFlow::Break(()))
        }
    })?;
    match (read, broken) {
        (_, Some(error)) => Err(error.into()),
        (ReadLayer::Whole(digest), None) => Ok(giver.layer(digest.bytes())?),
        (ReadLayer::Changes, None) => Ok(giver.nothing()?),
        (ReadLayer::Ended, None) => Err(VolumesError::Malformed("it has ended").into()),
    }
}
