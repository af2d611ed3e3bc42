//! Maps of a thin volume of 500 GB: prints the time of a call. There are no bounds.
//! `make measure-volumes`; `docs/PERFORMANCE.md` has the figures.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use strongroom_datastore::file::*;
use strongroom_types::{ChunkSize, SnapshotId, VolumeSize};

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 500_000_000_000;
const CALLS: usize = 100;
/// What is written densely: `MAP_TIMES_DENSE_MIB` MiB, so that a test run is short.
const DENSE_MIB: u64 = 64;

fn add_layer_options() -> AddLayerOptions<'static> {
    AddLayerOptions {
        protection: Protection::Unencrypted,
        log_bytes: None,
        lock_wait: Duration::ZERO,
        least_generation: 0,
    }
}

/// Makes a volume with data at these places, as its writer leaves it.
fn made(datastore: &Path, name: &str, write: impl Fn(&File)) -> (PathBuf, SnapshotId) {
    let path = datastore.join(name);
    let options = CreateOptions {
        size: VolumeSize::new(SIZE_BYTES / 512 * 512).unwrap(),
        provisioning: Provisioning::Thin,
        protection: Protection::Unencrypted,
        log_bytes: None,
        integrity: None,
    };
    create(&path, &options).unwrap();
    let fill = || {
        let top = describe(&path).unwrap().descriptor.top;
        let layer = File::options().write(true).open(path.join(format!("layer-{top}"))).unwrap();
        write(&layer);
        layer.sync_all().unwrap();
    };
    fill();
    let snapshot = NewSnapshot { id: SnapshotId::random(), name: "monday".parse().unwrap() };
    create_snapshot(&path, &snapshot, &add_layer_options()).unwrap();
    fill();
    (path, snapshot.id)
}

/// Writes to a layer.
type Write<'a> = Box<dyn Fn(&File) + 'a>;

/// The processor time of this thread so far.
fn processor_ms() -> f64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    statistics.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e6
}

/// The time of a call, in words.
fn times(path: &Path, request: MapRequest) -> String {
    let (mut answers, worked) = (0, processor_ms());
    let mut times: Vec<f64> = (0..CALLS)
        .map(|_| {
            let started = Instant::now();
            let map = read_map(path, &request).unwrap();
            let passed = started.elapsed().as_secs_f64() * 1e3;
            answers += usize::from(map.covers.end() == map.size.bytes());
            assert!(!map.bitmap().is_empty());
            passed
        })
        .collect();
    let worked = (processor_ms() - worked) / CALLS as f64;
    times.sort_by(f64::total_cmp);
    let whole = if answers == CALLS { "all of it" } else { "a part" };
    format!(
        "median {:.2} ms, 99th of 100 {:.2} ms, {worked:.2} ms of the processor, {whole}",
        times[CALLS / 2],
        times[CALLS - 2]
    )
}

#[test]
fn a_map_of_500_gb() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dense_mib = std::env::var("MAP_TIMES_DENSE_MIB").ok().and_then(|mib| mib.parse().ok());
    let dense_mib: u64 = dense_mib.unwrap_or(DENSE_MIB);
    let block = [7; 4096];
    let write_block = |layer: &File, at: u64| layer.write_all_at(&block, at).unwrap();
    let shapes: [(&str, Write<'_>); 3] = [
        ("sparse", Box::new(|layer| (0..10).for_each(|at| write_block(layer, at * 49_999_998_976)))),
        (
            "dense at the start",
            Box::new(|layer| {
                let piece = vec![7; MIB as usize];
                (0..dense_mib).for_each(|at| layer.write_all_at(&piece, at * MIB).unwrap());
            }),
        ),
        (
            "a block every 512 MiB",
            Box::new(|layer| (0..SIZE_BYTES / (512 * MIB)).for_each(|at| write_block(layer, at * 512 * MIB))),
        ),
    ];
    for (name, write) in shapes {
        let (path, snapshot) = made(datastore.path(), name, write);
        let request = MapRequest {
            volume: None,
            view: View::Present,
            kind: MapKind::Allocated,
            chunk: ChunkSize::new(2 * MIB).unwrap(),
            start_bytes: 0,
            length_bytes: None,
            form: MapForm::Bitmap,
            seeks_next: false,
        };
        let part = MapRequest { length_bytes: Some(2 * MIB), ..request };
        let of_snapshot = MapRequest { view: View::Snapshot(snapshot), ..request };
        let changed = MapRequest { kind: MapKind::ChangedSince(snapshot), ..request };
        for (what, request) in [
            ("present content over a snapshot", request),
            ("snapshot", of_snapshot),
            ("first chunk", part),
            ("first chunk, with the next", MapRequest { seeks_next: true, ..part }),
            ("unshared", MapRequest { kind: MapKind::Unshared, ..request }),
            ("changed since the snapshot", changed),
            (
                "extents of 4 KiB chunks",
                MapRequest { chunk: ChunkSize::LEAST, form: MapForm::Extents, ..request },
            ),
        ] {
            println!("{name}, {what}: {}", times(&path, request));
        }
        delete(&path, Duration::ZERO).unwrap();
    }
}
