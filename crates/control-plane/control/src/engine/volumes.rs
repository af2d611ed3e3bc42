//! Volumes: their list, and readings of them by their hosts.
//!
//! What volumes take is read in the background, the oldest first, so that a list asks no host.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use strongroom_api::guard::Part;
use strongroom_api::limits::{CHUNK_DEFAULT_BYTES, VOLUME_CHANGES_MAX};
use strongroom_api::volume::{
    ByteExtent, ContentSpace, MapForm, ReadVolumes, ReadingAnswer, ReadingKind, Volume, VolumeLimits,
    VolumeListQuery, VolumeMap, VolumeReading, VolumeReadings, VolumeSpace, VolumeView,
};
use strongroom_api::{ErrorCode, ObjectKind, Page, Privilege, Problem};
use strongroom_datastore::file::{self, CHUNKS_MAX, EXTENTS_MAX, MapKind, MapRequest, View};
use strongroom_host::protocol::{
    self, ChunksReport, ExtentReport, MapReport, READINGS_MAX, Reading, ReadingRequest, ReadingsRequest,
    SpaceReport, VolumeQuestion,
};
use strongroom_types::{ChunkSize, MAX_VOLUME_BYTES, SnapshotId, VolumeId};
use uuid::Uuid;

use super::access::{Rights, forbidden, needed};
use super::due::DueQueue;
use super::snapshots::{snapshots_of, views as snapshot_views};
use super::templates::seen_clones;
use super::views::limit;
use super::volume_changes::{Found, find};
use super::{Control, HostSeat, cursor};
use crate::inventory::{ChangedObjects, Facet, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{DiskRecord, Place, VmRecord};

/// The age at which the space of a volume is read again, in milliseconds.
const SPACE_AGE_MAX_MS: u64 = 60_000;
/// The name of the list in cursors.
const LIST: &str = "volumes";

/// The last readings of volumes' space. They are lost with the process, and read again.
#[derive(Default)]
pub(super) struct Spaces(Mutex<Sampled>);

#[derive(Default)]
struct Sampled {
    known: BTreeMap<VolumeId, VolumeSpace>,
    /// When each volume is read again, in milliseconds since 1970.
    due: DueQueue<u64, VolumeId>,
}

impl Sampled {
    /// Has new volumes read, and forgets those that are gone.
    fn follow(&mut self, index: &Index, changed: ChangedObjects<VolumeId>, now_unix_ms: u64) {
        let changed: Vec<VolumeId> = match changed {
            ChangedObjects::Some(changed) => changed.into_iter().collect(),
            ChangedObjects::All => {
                self.known.retain(|volume, _| index.volume(*volume).is_some());
                index.volumes.iter().map(|record| record.volume).collect()
            }
        };
        for volume in changed {
            match index.volume(volume) {
                Some(_) => self.due.hasten(volume, now_unix_ms),
                None => drop(self.known.remove(&volume)),
            }
        }
    }
}

impl Control {
    /// A page of volumes, from what is known.
    ///
    /// # Errors
    /// [`Problem`] for an unknown name or an invalid cursor.
    pub fn list_volumes_for(
        &self,
        rights: &Rights,
        query: &VolumeListQuery,
    ) -> Result<Page<Volume>, Problem> {
        let limit = limit(query.limit)?;
        let after = cursor::read(LIST, query.cursor.as_deref())?;
        let after =
            after.as_deref().map(|after| after.split_once('/').ok_or_else(cursor::bad)).transpose()?;
        let index = self.inventory.read();
        let vm = query.vm.as_deref().map(|named| {
            index
                .find_vm(named)
                .filter(|vm| rights.sees_vm(vm))
                .map(|vm| vm.id)
                .ok_or_else(|| problems::not_found(ObjectKind::Vm, named))
        });
        let datastore = query.datastore.as_deref().map(|named| {
            let found = by_name_or_id(&index.datastores, named);
            let found = found.filter(|row| rights.sees_place(Place::Datastore(row.id)));
            found.map(|row| row.id).ok_or_else(|| problems::not_found(ObjectKind::Datastore, named))
        });
        let (vm, datastore) = (vm.transpose()?, datastore.transpose()?);
        let passes = |row: &&Row<VmRecord>| {
            rights.sees_vm(row)
                && vm.is_none_or(|vm| row.id == vm)
                && datastore.is_none_or(|datastore| row.datastores().contains(&datastore))
        };
        // Where the caller sees all volumes, they are counted, and only the page is read.
        let counted = match (vm, datastore) {
            _ if !rights.sees_site() => None,
            (None, None) => Some(index.sums(&Facet::Any).volumes),
            (None, Some(datastore)) => Some(index.sums(&Facet::Datastore(datastore)).volumes),
            (Some(_), _) => None,
        };
        let from = after.filter(|_| counted.is_some()).map_or("", |(vm, _)| vm);
        let walk: Box<dyn Iterator<Item = &Row<VmRecord>>> = match vm {
            Some(vm) => Box::new(index.vm(vm).into_iter()),
            None => Box::new(index.vms_by_name(from)),
        };
        let (mut total, mut more, mut page) = (0, false, Vec::new());
        for vm in walk.filter(passes) {
            if more && counted.is_some() {
                break;
            }
            let is_there =
                |disk: &DiskRecord| datastore.is_none_or(|datastore| vm.datastore_of(disk) == datastore);
            let mut disks: Vec<_> = volumes_of(vm).filter(|(disk, _)| is_there(disk)).collect();
            disks.sort_unstable_by(|(one, _), (other, _)| one.name.as_str().cmp(other.name.as_str()));
            total += disks.len() as u64;
            for (disk, volume) in disks {
                match (vm.name.as_str(), disk.name.as_str()) {
                    place if after.is_some_and(|after| place <= after) => {}
                    _ if page.len() == limit => more = true,
                    _ => page.push((vm, disk, volume)),
                }
            }
        }
        let next = page.last().filter(|_| more);
        let next = next.map(|(vm, disk, _)| cursor::after(LIST, &format!("{}/{}", vm.name, disk.name)));
        let sampled = self.spaces.0.lock();
        let total = counted.map_or(total, |counted| counted as u64);
        let items = page.into_iter().map(|(vm, disk, volume)| {
            let space = sampled.known.get(&volume).cloned();
            view(&index, vm, disk, volume, space)
        });
        Ok(Page { items: items.collect(), total, next })
    }

    /// A volume with its snapshots.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist.
    pub fn show_volume_for(&self, rights: &Rights, named: &str) -> Result<VolumeView, Problem> {
        let index = self.inventory.read();
        let Found { owner, disk } = find(&index, named)?;
        let volume = disk.volume.ok_or_else(|| problems::not_found(ObjectKind::Volume, named))?;
        let space = self.spaces.0.lock().known.get(&volume).cloned();
        Ok(VolumeView {
            volume: view(&index, owner, disk, volume, space),
            snapshots: snapshot_views(&index, owner),
            linked_clones: seen_clones(&index, rights, owner),
            task: owner.task,
        })
    }

    /// The limits of readings and changes.
    pub fn volume_limits(&self) -> VolumeLimits {
        VolumeLimits {
            changes_max: VOLUME_CHANGES_MAX as u32,
            readings_max: READINGS_MAX as u32,
            chunk_bytes_min: ChunkSize::LEAST.bytes(),
            chunk_bytes_max: ChunkSize::MOST.bytes(),
            chunk_bytes_default: CHUNK_DEFAULT_BYTES,
            chunks_max: CHUNKS_MAX,
            extents_max: EXTENTS_MAX as u64,
        }
    }

    /// Has hosts read volumes. Each reading has its own answer.
    ///
    /// # Errors
    /// [`Problem`] for a batch that is empty or too long, and for a part that no volume has.
    pub fn read_volumes_for(&self, rights: &Rights, wanted: &ReadVolumes) -> Result<VolumeReadings, Problem> {
        let count = wanted.readings.len();
        if count == 0 || count > READINGS_MAX {
            let message = format!("readings: a request has 1 to {READINGS_MAX} readings, not {count}");
            return Err(problems::invalid(message).next("GET /v1/volumes/limits says what is possible"));
        }
        wanted.readings.iter().try_for_each(check_part)?;
        let mut answers: Vec<Option<ReadingAnswer>> = Vec::new();
        // By host: the places in the answer, and what is asked there.
        let mut asked: BTreeMap<Uuid, (Vec<usize>, Vec<ReadingRequest>)> = BTreeMap::new();
        for (place, reading) in wanted.readings.iter().enumerate() {
            answers.push(match self.asked_of_host(rights, reading) {
                Ok((host, request)) => {
                    let (places, requests) = asked.entry(host).or_default();
                    places.push(place);
                    requests.push(request);
                    None
                }
                Err(problem) => Some(ReadingAnswer::Error(problem)),
            });
        }
        for (host, (places, requests)) in asked {
            let read = self.seat(host).map(|seat| self.have_read(seat, requests));
            let mut read = read.into_iter().flatten();
            for place in places {
                answers[place] = read.next();
            }
        }
        let missing = || {
            let message = "the host has not answered this reading";
            ReadingAnswer::Error(Problem::new(ErrorCode::HostFailed, message).next("ask again"))
        };
        let readings = answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect();
        Ok(VolumeReadings { readings })
    }

    /// The host that is asked for a reading, and the request to it.
    fn asked_of_host(
        &self,
        rights: &Rights,
        reading: &VolumeReading,
    ) -> Result<(Uuid, ReadingRequest), Problem> {
        let index = self.inventory.read();
        let id = reading.volume;
        let unknown = || problems::not_found(ObjectKind::Volume, &id.to_string());
        let vm = index.volume(id).and_then(|owner| index.vm(owner.vm)).ok_or_else(unknown)?;
        let held = rights.at(&index, Place::Vm(vm.id));
        if !held.has(Privilege::View) {
            return Err(unknown());
        }
        let lacks: Vec<_> = needed(&index, Place::Vm(vm.id), Part::Map.needs())
            .into_iter()
            .filter(|one| !held.has(*one))
            .collect();
        if !lacks.is_empty() {
            return Err(forbidden(&index, Place::Vm(vm.id), &lacks));
        }
        let (disk, _) = volumes_of(vm).find(|(_, volume)| *volume == id).ok_or_else(unknown)?;
        if self.seat(vm.host).is_none() {
            return Err(problems::host_unknown(vm.name.as_str()));
        }
        let snapshot = |named: &str| -> Result<SnapshotId, Problem> {
            let all = snapshots_of(&index, vm);
            super::snapshots::snapshot_in(&all, vm, named).map(|snapshot| snapshot.id)
        };
        let question = question(reading, snapshot)?;
        Ok((vm.host, ReadingRequest { vm: vm.id, disk: disk.name.clone(), question }))
    }

    /// The answers of a host, one for each request.
    fn have_read(&self, seat: &HostSeat, readings: Vec<ReadingRequest>) -> Vec<ReadingAnswer> {
        let count = readings.len();
        let now_unix_ms = self.now_unix_ms();
        match seat.host.read_volumes(&ReadingsRequest { readings }) {
            Ok(told) => {
                let answer = |reading| answer(seat, reading, now_unix_ms);
                told.readings.into_iter().take(count).map(answer).collect()
            }
            Err(error) => {
                let problem = problems::host(seat.name.as_str(), &error);
                vec![ReadingAnswer::Error(problem); count]
            }
        }
    }

    /// Reads the space of the volumes whose last reading is the oldest, as many as fit into one
    /// request to each host.
    pub fn read_spaces(&self) {
        let now = self.now_unix_ms();
        let changed = self.inventory.take_changed_volumes();
        let mut wanted: BTreeMap<Uuid, (Vec<VolumeId>, Vec<ReadingRequest>)> = BTreeMap::new();
        {
            let index = self.inventory.read();
            let mut sampled = self.spaces.0.lock();
            sampled.follow(&index, changed, now);
            let mut waiting = Vec::new();
            while let Some(volume) = sampled.due.take(now) {
                let Some((host, request)) = space_of(&index, volume) else {
                    // It is gone, or none of a VM's disks any more.
                    sampled.known.remove(&volume);
                    continue;
                };
                let (volumes, requests) = wanted.entry(host).or_default();
                match requests.len() < READINGS_MAX && self.seat(host).is_some_and(HostSeat::is_up) {
                    true => {
                        volumes.push(volume);
                        requests.push(request);
                    }
                    false => waiting.push(volume),
                }
            }
            waiting.into_iter().for_each(|volume| sampled.due.put(volume, now));
        }
        for (host, (volumes, requests)) in wanted {
            let Some(seat) = self.seat(host).filter(|_| !requests.is_empty()) else { continue };
            let mut read = self.have_read(seat, requests).into_iter();
            let mut sampled = self.spaces.0.lock();
            for volume in volumes {
                sampled.due.put(volume, now + SPACE_AGE_MAX_MS);
                match read.next() {
                    Some(ReadingAnswer::Space(space)) => drop(sampled.known.insert(volume, space)),
                    // The last reading stays, with its age.
                    other => tracing::debug!(%volume, ?other, "what a volume takes is not known"),
                }
            }
        }
    }
}

/// The host that is asked what a volume takes, and the request to it; `None` if it is not a disk of
/// a VM.
fn space_of(index: &Index, volume: VolumeId) -> Option<(Uuid, ReadingRequest)> {
    let vm = index.vm(index.volume(volume)?.vm)?;
    let (disk, _) = volumes_of(vm).find(|(_, id)| *id == volume)?;
    let question = VolumeQuestion::Space { volume: Some(volume) };
    Some((vm.host, ReadingRequest { vm: vm.id, disk: disk.name.clone(), question }))
}

/// The disks of a VM that have a volume.
fn volumes_of(vm: &VmRecord) -> impl Iterator<Item = (&DiskRecord, VolumeId)> {
    vm.hardware.disks.iter().filter_map(|disk| Some((disk, disk.volume?)))
}

fn view(index: &Index, vm: &VmRecord, disk: &DiskRecord, id: VolumeId, space: Option<VolumeSpace>) -> Volume {
    let has_vm = !vm.holds_volume;
    Volume {
        id,
        name: if vm.holds_volume { Some(vm.name.clone()) } else { disk.volume_name.clone() },
        vm: has_vm.then_some(vm.id),
        vm_name: has_vm.then(|| vm.name.clone()),
        disk: has_vm.then(|| disk.name.to_string()),
        datastore: index.datastore_name_of(vm, disk),
        size_bytes: disk.size.bytes(),
        thick: disk.thick,
        encrypted: disk.sealing.is_sealed(),
        space,
    }
}

/// Checks the part of a volume that a reading is of, as far as the API's document bounds it.
fn check_part(reading: &VolumeReading) -> Result<(), Problem> {
    let (start, most) = (reading.start_bytes, MAX_VOLUME_BYTES);
    if start > most {
        let message = format!("start_bytes: no volume has a byte {start}");
        return Err(problems::invalid(message).next(format!("name one up to {most}")));
    }
    match reading.length_bytes {
        Some(length) if length == 0 || length > most => {
            let message = format!("length_bytes: {length} is no length of a map");
            Err(problems::invalid(message).next(format!("name one of 1 to {most}, or none")))
        }
        Some(_) | None => Ok(()),
    }
}

/// What a host is asked for a reading.
fn question(
    reading: &VolumeReading,
    snapshot: impl Fn(&str) -> Result<SnapshotId, Problem>,
) -> Result<VolumeQuestion, Problem> {
    let VolumeReading { volume, kind, start_bytes, length_bytes, form, next, .. } = *reading;
    let (of, since) = (reading.snapshot.as_deref(), reading.since.as_deref());
    let kind = match (kind, since) {
        (ReadingKind::Space, None) if of.is_none() => {
            return Ok(VolumeQuestion::Space { volume: Some(volume) });
        }
        (ReadingKind::Space, _) => {
            return Err(problems::invalid("a reading of `space` is of all contents: name no snapshot"));
        }
        (ReadingKind::Allocated, None) => MapKind::Allocated,
        (ReadingKind::Unshared, None) => MapKind::Unshared,
        (ReadingKind::Changed, Some(since)) => MapKind::ChangedSince(snapshot(since)?),
        (ReadingKind::Changed, None) => {
            return Err(problems::invalid("a reading of `changed` needs `since`, a snapshot"));
        }
        (ReadingKind::Allocated | ReadingKind::Unshared, Some(_)) => {
            return Err(problems::invalid("`since` belongs to a reading of `changed` only"));
        }
    };
    let default = ChunkSize::new(CHUNK_DEFAULT_BYTES).unwrap_or(ChunkSize::LEAST);
    Ok(VolumeQuestion::Map(MapRequest {
        volume: Some(volume),
        view: of.map(snapshot).transpose()?.map_or(View::Present, View::Snapshot),
        kind,
        chunk: reading.chunk_bytes.unwrap_or(default),
        start_bytes,
        length_bytes,
        form: match form {
            MapForm::Extents => file::MapForm::Extents,
            MapForm::Bitmap => file::MapForm::Bitmap,
        },
        seeks_next: next,
    }))
}

/// A host's answer to one reading.
fn answer(seat: &HostSeat, reading: Reading, read_unix_ms: u64) -> ReadingAnswer {
    match reading {
        Reading::Space(space) => ReadingAnswer::Space(space_view(&space, read_unix_ms)),
        Reading::Map(map) => ReadingAnswer::Map(map_view(map)),
        Reading::Identity(volume) => {
            let message = format!("host {} was not asked which volume this is: {volume}", seat.name);
            ReadingAnswer::Error(Problem::new(ErrorCode::Internal, message))
        }
        Reading::Problem(problem) => {
            ReadingAnswer::Error(problems::host_refused(seat.name.as_str(), &problem))
        }
    }
}

fn space_view(space: &SpaceReport, read_unix_ms: u64) -> VolumeSpace {
    let content = |view: &protocol::ViewSpaceReport| ContentSpace {
        snapshot: view.snapshot,
        logical_bytes: view.logical.bytes(),
        committed_bytes: view.committed_bytes,
        unshared_bytes: view.unshared_bytes,
    };
    VolumeSpace {
        logical_bytes: space.logical.bytes(),
        committed_bytes: space.committed_bytes,
        shared_bytes: space.shared_bytes,
        unshared_bytes: space.committed_bytes.saturating_sub(space.shared_bytes),
        common_bytes: space.common_bytes,
        other_bytes: space.other_bytes,
        contents: space.views.iter().map(content).collect(),
        read_unix_ms,
    }
}

fn map_view(map: MapReport) -> VolumeMap {
    let extent = |extent: &ExtentReport| ByteExtent {
        start_bytes: extent.start_bytes,
        length_bytes: extent.length_bytes,
    };
    let (extents, bitmap) = match map.chunks {
        ChunksReport::Extents(extents) => (Some(extents.iter().map(extent).collect()), None),
        ChunksReport::Bitmap(bitmap) => (None, Some(bitmap)),
    };
    VolumeMap {
        generation: map.generation,
        size_bytes: map.size.bytes(),
        chunk_bytes: map.chunk.bytes(),
        start_bytes: map.covers.start_bytes,
        length_bytes: map.covers.length_bytes,
        extents,
        bitmap,
        next_bytes: map.next_bytes,
    }
}
