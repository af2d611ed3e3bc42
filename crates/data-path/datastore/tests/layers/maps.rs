//! Maps of content: their limits, and files that somebody has forged. That they agree with what was
//! written is shown where volumes are written, snapshotted and merged
//! (`worker/src/merge.rs::a_tree_of_layers_is_what_a_plain_copy_says`).

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};

use rustix::fs::{CWD, FileType, Mode, mknodat};
use strongroom_datastore::file::*;
use strongroom_types::{ChunkSize, Extent, SnapshotId, VolumeId};

use crate::volume::{MIB, Volume};

const GIB: u64 = 1 << 30;
const BLOCK: u64 = 4096;

fn request(chunk: u64, form: MapForm) -> MapRequest {
    MapRequest {
        volume: None,
        view: View::Present,
        kind: MapKind::Allocated,
        chunk: ChunkSize::new(chunk).unwrap(),
        start_bytes: 0,
        length_bytes: None,
        form,
        seeks_next: false,
    }
}

/// Puts a block at each of these places of the top, as if its writer had.
fn write(volume: &Volume, places: impl IntoIterator<Item = u64>) {
    let layer = File::options().write(true).open(volume.file("layer", volume.descriptor().top)).unwrap();
    places.into_iter().for_each(|at| layer.write_all_at(&[7; BLOCK as usize], at).unwrap());
}

/// All extents, and the count of answers.
fn all(volume: &Volume, mut request: MapRequest) -> (Vec<Extent>, usize) {
    let (mut extents, mut answers) = (Vec::new(), 0);
    loop {
        let map = read_map(&volume.path, &request).unwrap();
        answers += 1;
        assert_eq!(map.covers.offset(), request.start_bytes);
        assert!(map.runs.len() <= EXTENTS_MAX || request.form == MapForm::Bitmap);
        extents.extend(map.runs);
        if map.covers.end() == map.size.bytes() {
            return (extents, answers);
        }
        assert!(map.covers.end() > request.start_bytes, "it goes on");
        request.start_bytes = map.covers.end();
    }
}

#[test]
fn an_answer_ends_at_its_limit_and_is_asked_for_further() {
    let volume = Volume::clear(GIB);
    let chunk = 64 << 10;
    let places: Vec<u64> = (0..GIB).step_by(2 * chunk as usize).collect();
    write(&volume, places.iter().copied());
    let (extents, answers) = all(&volume, request(chunk, MapForm::Extents));
    assert_eq!(extents, places.iter().map(|at| Extent::new(*at, chunk).unwrap()).collect::<Vec<_>>());
    assert_eq!(answers, places.len().div_ceil(EXTENTS_MAX));
    let map = read_map(&volume.path, &request(chunk, MapForm::Bitmap)).unwrap();
    assert_eq!(map.bitmap(), vec![0b0101_0101; (GIB / chunk / 8) as usize]);
    let map = read_map(&volume.path, &request(4 * chunk, MapForm::Extents)).unwrap();
    assert_eq!(map.runs, [Extent::between(0, GIB)]);
    let long = Volume::clear(CHUNKS_MAX * BLOCK + BLOCK);
    let map = read_map(&long.path, &request(BLOCK, MapForm::Bitmap)).unwrap();
    assert_eq!(
        (map.covers, map.bitmap().len()),
        (Extent::between(0, CHUNKS_MAX * BLOCK), CHUNKS_MAX as usize / 8)
    );
}

/// The file of a layer in so many pieces takes many answers, each of limited work.
#[test]
fn a_layer_in_pieces_is_mapped_in_limited_steps() {
    let volume = Volume::clear(GIB);
    let places: Vec<u64> = (0..GIB).step_by(2 * BLOCK as usize).collect();
    write(&volume, places.iter().copied());
    let (_, answers) = all(&volume, request(MIB, MapForm::Extents));
    assert!(answers > 2, "{answers}");
    // A chunk of more pieces than that is looked through all the same.
    let (extents, _) = all(&volume, request(GIB, MapForm::Extents));
    assert_eq!(extents, [Extent::between(0, GIB)]);
}

#[test]
fn the_next_chunk_is_found_and_none_behind_the_last() {
    let volume = Volume::clear(500 * GIB);
    write(&volume, [0, 300 * GIB + BLOCK]);
    let part = |start_bytes, length| MapRequest {
        start_bytes,
        length_bytes: Some(length),
        seeks_next: true,
        ..request(MIB, MapForm::Bitmap)
    };
    let next = |request| read_map(&volume.path, &request).unwrap().next_bytes;
    assert_eq!(next(part(0, MIB)), Some(300 * GIB));
    assert_eq!(next(part(300 * GIB, GIB)), None);
    assert_eq!(next(part(500 * GIB, GIB)), None);
    let without = MapRequest { seeks_next: false, ..part(0, MIB) };
    assert_eq!(next(without), None);
}

#[test]
fn what_is_no_range_is_refused() {
    let volume = Volume::clear(MIB);
    let usual = request(64 << 10, MapForm::Bitmap);
    for (start_bytes, length_bytes) in [
        (1, None),
        (4096, None),
        (2 * MIB, None),
        (0, Some(0)),
        (64 << 10, Some(u64::MAX)),
        (!0xFFFF, Some(1)),
    ] {
        let refused = read_map(&volume.path, &MapRequest { start_bytes, length_bytes, ..usual });
        assert!(matches!(refused, Err(DatastoreError::BadRange { .. })), "{start_bytes}: {refused:?}");
    }
    let more = MapRequest { length_bytes: Some(u64::MAX), ..usual };
    assert_eq!(read_map(&volume.path, &more).unwrap().covers, Extent::between(0, MIB));
    let refused = |request: MapRequest| read_map(&volume.path, &request).unwrap_err().code();
    let unknown = SnapshotId::random();
    assert_eq!(refused(MapRequest { view: View::Snapshot(unknown), ..usual }), "no_snapshot");
    assert_eq!(refused(MapRequest { kind: MapKind::ChangedSince(unknown), ..usual }), "no_snapshot");
    assert_eq!(refused(MapRequest { volume: Some(VolumeId::random()), ..usual }), "other_volume");
    assert_eq!(space(&volume.path, Some(VolumeId::random())).unwrap_err().code(), "other_volume");
}

/// An attacker who writes to the datastore causes an error or an answer; nothing waits or ends the
/// program.
#[test]
fn forged_files_end_in_an_answer_or_an_error() {
    let volume = Volume::clear(64 * MIB).and_layers(2);
    let usual = request(BLOCK, MapForm::Extents);
    let layer = volume.descriptor().top;
    let discards = volume.file("discards", layer);
    let length = fs::metadata(&discards).unwrap().len();
    fs::write(&discards, vec![0xA5; length as usize]).unwrap();
    assert_eq!(all(&volume, usual).0, []);
    fs::write(&discards, vec![0xA5; length as usize - 1]).unwrap();
    assert_eq!(read_map(&volume.path, &usual).unwrap_err().code(), "truncated_discards");
    fs::write(&discards, vec![0; length as usize]).unwrap();

    let log = volume.file("log", layer);
    let saved = fs::read(&log).unwrap();
    let mut forged = saved.clone();
    forged[..8192].fill(0x5A);
    fs::write(&log, &forged).unwrap();
    assert_eq!(read_map(&volume.path, &usual).unwrap_err().code(), "log");
    fs::write(&log, &saved).unwrap();

    for prefix in ["layer", "log", "discards"] {
        let file = volume.file(prefix, layer);
        let aside = volume.path.join("aside");
        fs::rename(&file, &aside).unwrap();
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        read_map(&volume.path, &usual).unwrap_err();
        fs::remove_file(&file).unwrap();
        symlink(&aside, &file).unwrap();
        read_map(&volume.path, &usual).unwrap_err();
        fs::remove_file(&file).unwrap();
        read_map(&volume.path, &usual).unwrap_err();
        fs::rename(&aside, &file).unwrap();
    }
    assert_eq!(all(&volume, usual).0, []);
}
