//! The end that has the volumes.

use std::io::{Read, Write};
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use strongroom_datastore::file::{DatastoreError, DepartingVolume, begin_departure};
use strongroom_host::protocol::{GuestWelcome, Problem, VmSpec};
use strongroom_host::vm_directory::{VmDirectoryError, read_configuration};
use strongroom_streams::{Asked, GivenVolume, VolumeGiver, VolumesError};
use strongroom_types::LayerId;

use super::{CONFIGURATION, MovingVolume, check_moves};
use crate::guest_client::GuestClient;
use crate::keys::VmKeys;

/// Why giving ends early.
enum Trouble {
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
    let client = GuestClient::new(client)?;
    let from = client.content().map_err(Problem::system)?;
    from.set_read_timeout(None).map_err(Problem::system)?;
    let to = from.try_clone().map_err(Problem::system)?;
    if client.say(&GuestWelcome::Volumes).is_err() {
        return Ok(());
    }
    let mut giver = VolumeGiver::new(from, to);
    let told = match (Giving { spec, keys }).answer_all(&mut giver) {
        Ok(()) => giver.end(),
        Err(Trouble::Own(problem)) => giver.refuse(&problem.to_string()),
        Err(Trouble::Way(error)) => Err(error),
    };
    if let Err(error) = told {
        tracing::warn!("the volumes of VM {} have not all passed: {error}", spec.name);
    }
    Ok(())
}

struct Giving<'a> {
    spec: &'a VmSpec,
    keys: &'a VmKeys,
}

impl Giving<'_> {
    fn answer_all<R: Read, W: Write>(&self, giver: &mut VolumeGiver<R, W>) -> Result<(), Trouble> {
        let mut asked = giver.next_asked()?;
        loop {
            asked = match asked {
                Asked::End => return Ok(()),
                Asked::File(name) => {
                    match read_configuration(&self.spec.directory())? {
                        Some(text) if name == CONFIGURATION => giver.file(&text)?,
                        _ => giver.nothing()?,
                    }
                    giver.next_asked()?
                }
                Asked::Volume(name) => self.answer_about(giver, &name)?,
                Asked::Layer { .. } => return Err(VolumesError::Malformed("a layer of no volume").into()),
            };
        }
    }

    /// Answers the questions about a volume. Returns the first one that is about something else.
    fn answer_about<R: Read, W: Write>(
        &self,
        giver: &mut VolumeGiver<R, W>,
        name: &str,
    ) -> Result<Asked, Trouble> {
        let moving = MovingVolume::named(self.spec, name);
        let Some((moving, path)) = moving.and_then(|moving| Some((moving, self.path_of(name)?))) else {
            giver.nothing()?;
            return Ok(giver.next_asked()?);
        };
        let kek = moving.hold_key(self.keys, &path)?;
        let departing = begin_departure(&path, &moving.options(kek.as_deref()))?;
        let sent = departing.sent();
        let layers = sent.allocated_bytes.iter().map(|(layer, bytes)| (*layer, *bytes)).collect();
        giver.volume(&GivenVolume { descriptor: sent.descriptor.clone(), layers })?;
        loop {
            match giver.next_asked()? {
                Asked::Layer { layer, left_there } => give_layer(giver, &departing, layer, left_there)?,
                other => return Ok(other),
            }
        }
    }

    /// The path of a volume that is there.
    fn path_of(&self, name: &str) -> Option<PathBuf> {
        let path = self.spec.volume_path(&name.parse().ok()?);
        (!strongroom_datastore::file::storage::is_gone(&path)).then_some(path)
    }
}

fn give_layer<R: Read, W: Write>(
    giver: &mut VolumeGiver<R, W>,
    departing: &DepartingVolume<'_>,
    layer: LayerId,
    left_there: Option<[u8; 32]>,
) -> Result<(), Trouble> {
    // Reading it here takes less long than its way.
    if let Some(left_there) = left_there {
        let here = departing.read(layer, &mut |_| Ok(ControlFlow::Continue(())))?;
        if let Some(here) = here.filter(|here| *here.bytes() == left_there) {
            return Ok(giver.layer(here.bytes())?);
        }
    }
    let mut broken = None;
    let read = departing.read(layer, &mut |piece| match giver.data(
        piece.part.number(),
        piece.offset,
        piece.content,
    ) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) => {
            broken = Some(error);
            Ok(ControlFlow::Break(()))
        }
    })?;
    match (read, broken) {
        (Some(digest), _) => Ok(giver.layer(digest.bytes())?),
        (None, Some(error)) => Err(error.into()),
        (None, None) => Err(VolumesError::Malformed("it has ended").into()),
    }
}
