//! Readings of VMs' volumes: from their files, without a key and without their supervisors.
//!
//! The files may be forged. What a reading costs is bounded by the datastore (`file::maps`), and a
//! batch by its time: entries that it does not reach are refused, and can be asked for again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strongroom_datastore::file::{describe, read_map, space};
use strongroom_host::protocol::{
    MapReport, Problem, READINGS_MAX, Reading, ReadingRequest, Readings, ReadingsRequest, SpaceReport,
    VolumeQuestion,
};
use tokio::sync::Semaphore;

use super::Hostd;
use super::operations::blocking;
use super::vms::no_such_vm;

/// The batches that are read at once. Others wait, so that guests keep the datastore.
const AT_ONCE: usize = 2;
/// The time after which no further reading of a batch begins. Clients wait 30 s.
const BATCH_WITHIN: Duration = Duration::from_secs(10);

/// The places for batches.
#[derive(Debug)]
pub struct Readers(Arc<Semaphore>);

impl Default for Readers {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(AT_ONCE)))
    }
}

/// Reads a batch.
///
/// # Errors
/// If it is too long. A reading that fails has a problem of its own.
pub async fn read(hostd: &Arc<Hostd>, request: ReadingsRequest) -> Result<Readings, Problem> {
    let count = request.readings.len();
    if count > READINGS_MAX {
        let message = format!("a request has at most {READINGS_MAX} readings, not {count}");
        return Err(Problem::new("bad_request", message));
    }
    let place = Arc::clone(&hostd.readers.0).acquire_owned().await;
    let place = place.map_err(|_| Problem::new("internal", "no more readings are made"))?;
    let found: Vec<_> =
        request.readings.iter().map(|asked| (place_of(hostd, asked), asked.question)).collect();
    let readings = blocking(move || {
        let until = Instant::now() + BATCH_WITHIN;
        let read = |(place, question): (Result<PathBuf, Problem>, VolumeQuestion)| {
            if Instant::now() > until {
                let late = Problem::new("too_late", "the readings before it took too long");
                return Err(late.with_next_step("ask for it again, with fewer others"));
            }
            read_one(place?, question)
        };
        let readings = found.into_iter().map(|asked| read(asked).unwrap_or_else(Reading::Problem)).collect();
        drop(place);
        readings
    });
    Ok(Readings { readings: readings.await? })
}

/// The directory of a volume. The VM's is the one that this host knows, never a name of a request.
fn place_of(hostd: &Hostd, asked: &ReadingRequest) -> Result<PathBuf, Problem> {
    let vm = hostd.vms.get(asked.vm).ok_or_else(|| no_such_vm(asked.vm))?;
    let Some(spec) = vm.spec.filter(|spec| spec.directory() == vm.directory) else {
        return Ok(vm.directory.join(asked.disk.as_str()));
    };
    // No path in a VM's directory counts: a datastore is one of this host.
    let config = hostd.config();
    let place = spec.disk(&asked.disk).and_then(|disk| disk.place.as_ref());
    match place.filter(|place| config.path_of(place.datastore).as_ref() != Some(&place.path)) {
        None => Ok(spec.volume_path(&asked.disk)),
        Some(place) => {
            let message = format!("{} is in a datastore that this host does not have", asked.disk);
            Err(Problem::new("no_such_datastore", message)
                .with_next_step(format!("have it use datastore {}", place.datastore)))
        }
    }
}

fn read_one(place: PathBuf, question: VolumeQuestion) -> Result<Reading, Problem> {
    Ok(match question {
        VolumeQuestion::Space { volume } => Reading::Space(SpaceReport::of(&space(&place, volume)?)),
        VolumeQuestion::Map(request) => {
            Reading::Map(MapReport::of(&read_map(&place, &request)?, request.form))
        }
        VolumeQuestion::Identity => Reading::Identity(describe(&place)?.descriptor.volume),
    })
}
