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
use crate::volume::extents::{Extents, MapArguments, Part};

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
        let whole = VolumeReading {
            volume,
            kind: match (&map.since, map.unshared) {
                (Some(_), _) => ReadingKind::Changed,
                (None, true) => ReadingKind::Unshared,
                (None, false) => ReadingKind::Allocated,
            },
            snapshot: map.snapshot.as_ref().map(ToString::to_string),
            since: map.since.as_ref().map(ToString::to_string),
            chunk_bytes: Some(map.chunk),
            start_bytes: 0,
            length_bytes: None,
            form: MapForm::Extents,
            next: false,
        };
        let read = |start_bytes, length_bytes| {
            let found = read(&api, VolumeReading { start_bytes, length_bytes, ..whole.clone() })?;
            Ok(Part {
                generation: found.generation,
                size_bytes: found.size_bytes,
                end: found.start_bytes.saturating_add(found.length_bytes),
                extents: found.extents.unwrap_or_default(),
            })
        };
        let changed = || {
            let message = "the layers of the disk changed while they were read; try again in a moment";
            CliError::Usage(message.to_owned())
        };
        output.answer(&Extents::read(map, read, changed)?)
    }
}

fn read(api: &Api, reading: VolumeReading) -> Result<VolumeMap, CliError> {
    let batch = ReadVolumes { readings: vec![reading] };
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
