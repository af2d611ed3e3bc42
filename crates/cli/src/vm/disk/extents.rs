//! `strongroom vm disk extents`.

use clap::Args;
use strongroom_api::vm::VmView;
use strongroom_api::volume::{
    MapForm, ReadVolumes, ReadingAnswer, ReadingKind, VolumeMap, VolumeReading, VolumeReadings,
};
use strongroom_api::{ErrorCode, Problem};

use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::volume::extents::{Extents, FoundExtent, MapArguments};

/// The arguments of `extents`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without options: the chunks of the disk that have content; all others read as zeroes. The VM may \
run. The answer comes from the datastore's files and is not authenticated: it is as good as the datastore.

Examples:
  strongroom vm disk extents web1 disk0
  strongroom vm disk extents web1 disk0 --since before-upgrade --json"
)]
pub struct ExtentsArguments {
    /// Name or id of the VM
    vm: String,

    /// Name of the disk
    disk: String,

    #[command(flatten)]
    map: MapArguments,

    #[command(flatten)]
    api: ApiArguments,
}

impl ExtentsArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        let volume = vm.disks.iter().find(|disk| disk.name == self.disk).and_then(|disk| disk.volume);
        let volume = volume.ok_or_else(|| {
            CliError::Usage(format!(
                "VM {vm} has no disk {} with a volume; `strongroom vm disk list {vm}` shows what there is",
                self.disk,
                vm = self.vm
            ))
        })?;
        let map = &self.map;
        let until = map.length.map_or(u64::MAX, |length| map.start.saturating_add(length));
        let mut reading = VolumeReading {
            volume,
            kind: match (&map.since, map.unshared) {
                (Some(_), _) => ReadingKind::Changed,
                (None, true) => ReadingKind::Unshared,
                (None, false) => ReadingKind::Allocated,
            },
            snapshot: map.snapshot.as_ref().map(ToString::to_string),
            since: map.since.as_ref().map(ToString::to_string),
            chunk_bytes: Some(map.chunk),
            start_bytes: map.start,
            length_bytes: map.length,
            form: MapForm::Extents,
            next: false,
        };
        let mut all = Extents::new(map);
        let mut generation = None;
        loop {
            let found = read(&api, &reading)?;
            if *generation.get_or_insert(found.generation) != found.generation {
                let message = "the layers of the disk changed while they were read; try again in a moment";
                return Err(CliError::Usage(message.to_owned()));
            }
            all.size_bytes = found.size_bytes;
            let end = found.start_bytes.saturating_add(found.length_bytes);
            let extents = found.extents.unwrap_or_default();
            let extents = extents.into_iter().map(|extent| FoundExtent {
                start_bytes: extent.start_bytes,
                length_bytes: extent.length_bytes,
            });
            let goes_on = all.add(extents, end);
            // A map that covers nothing would not end.
            if !goes_on || end >= until.min(found.size_bytes) || end <= reading.start_bytes {
                break;
            }
            reading.start_bytes = end;
            reading.length_bytes = map.length.map(|_| until - end);
        }
        output.answer(&all)
    }
}

fn read(api: &Api, reading: &VolumeReading) -> Result<VolumeMap, CliError> {
    let batch = ReadVolumes { readings: vec![reading.clone()] };
    let answer: VolumeReadings = api.post_for("/v1/volumes/readings", &batch)?;
    match answer.readings.into_iter().next() {
        Some(ReadingAnswer::Map(map)) => Ok(map),
        Some(ReadingAnswer::Error(problem)) => Err(CliError::problem(&problem)),
        Some(ReadingAnswer::Space(_)) | None => {
            let message = "the control plane answers something else than a map";
            Err(CliError::problem(&Problem::new(ErrorCode::Internal, message)))
        }
    }
}
