//! Adding a layer to a volume is atomic, under power cuts at every moment, failing calls and lack
//! of room.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

use std::path::Path;
use std::time::Duration;

use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::VolumeSize;

/// Power cuts at each moment, with different outcomes.
const CUTS: u64 = 20;
/// Additions in which calls fail.
const FAULTY_ADDITIONS: u64 = 400;

fn path() -> &'static Path {
    Path::new("/ds/vm1")
}

fn kek() -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [1; 32]).unwrap()).unwrap()
}

/// A volume of two layers.
fn volume(seed: u64, kek: &Kek, provisioning: Provisioning) -> SimFs {
    let fs = SimFs::new(seed);
    let options = CreateOptions {
        size: VolumeSize::new(256 << 10).unwrap(),
        provisioning,
        protection: Protection::Encrypted(kek),
        log_bytes: Some(LOG_BYTES_MIN),
        integrity: Some(Integrity::NEW),
    };
    create_on(&fs, path(), &options).unwrap();
    add(&fs, kek).unwrap();
    fs
}

fn add(fs: &SimFs, kek: &Kek) -> Result<Descriptor, DatastoreError> {
    let options = AddLayerOptions {
        protection: Protection::Encrypted(kek),
        log_bytes: Some(LOG_BYTES_MIN),
        lock_wait: Duration::ZERO,
        least_generation: 0,
    };
    add_layer_on(fs, path(), &options)
}

fn names(fs: &SimFs) -> Vec<String> {
    Storage::open_directory(fs, path()).unwrap().names().unwrap()
}

/// The number of files beyond those of `layers` layers.
fn leftovers(fs: &SimFs, layers: usize, provisioning: Provisioning) -> usize {
    let log = usize::from(provisioning == Provisioning::Thin);
    names(fs).iter().filter(|name| !name.starts_with("descriptor")).count() - (3 * layers - 1 + log)
}

/// Checks that the volume opens with two or three layers, reports nothing worse than leftovers,
/// accepts another layer and can be deleted. Returns its number of layers.
fn outlives(fs: &SimFs, kek: &Kek, provisioning: Provisioning) -> usize {
    let protection = Protection::Encrypted(kek);
    let options =
        OpenOptions { protection, access: Access::ReadOnly, lock_wait: Duration::ZERO, least_generation: 2 };
    let opened = open_on(fs, path(), &options).unwrap();
    let layers = 1 + opened.lower.len();
    assert_eq!(opened.deks.len(), layers);
    drop(opened);
    for finding in check_on(fs, path(), Some(kek)).unwrap() {
        assert_eq!(finding.severity, Severity::Notice, "{}", finding.message);
    }
    add(fs, kek).unwrap();
    assert_eq!(leftovers(fs, layers + 1, provisioning), 0, "{:?}", names(fs));
    delete_on(fs, path(), Duration::ZERO).unwrap();
    layers
}

#[test]
fn power_cuts_leave_the_old_volume_or_the_new_one() {
    let kek = kek();
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let fs = volume(1, &kek, provisioning);
        fs.record();
        add(&fs, &kek).unwrap();
        let mut found = [0; 2];
        for moment in 0..fs.moments() {
            for seed in 0..CUTS {
                found[outlives(&fs.cut_at(moment, seed), &kek, provisioning) - 2] += 1;
            }
        }
        let [old, new] = found;
        println!(
            "{provisioning:?}: {} moments; {old} cuts left the old volume, {new} the new one",
            fs.moments()
        );
        assert!(old > 0 && new > 0);
        for seed in 0..CUTS {
            assert_eq!(outlives(&fs.cut(seed), &kek, provisioning), 3, "what was reported done is durable");
        }
    }
}

#[test]
fn an_addition_that_fails_leaves_the_old_volume_or_the_new_one() {
    let kek = kek();
    let sorts = [
        Faults { write_error_one_in: 10, ..Faults::default() },
        Faults { sync_error_one_in: 6, ..Faults::default() },
        Faults { name_error_one_in: 12, ..Faults::default() },
        Faults { read_error_one_in: 8, ..Faults::default() },
    ];
    for faults in sorts {
        let (mut failed, mut in_place) = (0, 0);
        for seed in 0..FAULTY_ADDITIONS / sorts.len() as u64 {
            let fs = volume(seed, &kek, Provisioning::Thin);
            fs.set_faults(faults);
            let added = add(&fs, &kek);
            fs.set_faults(Faults::default());
            let cut = fs.cut(seed);
            let is_named = describe_on(&fs, path()).unwrap().descriptor.layers.len() == 3;
            let (now, after_a_cut) =
                (outlives(&fs, &kek, Provisioning::Thin), outlives(&cut, &kek, Provisioning::Thin));
            match added {
                Ok(_) => assert_eq!((now, after_a_cut), (3, 3), "seed {seed}"),
                Err(_) if is_named => in_place += 1,
                Err(_) => assert_eq!((now, after_a_cut), (2, 2), "seed {seed}"),
            }
            failed += u32::from(added.is_err());
        }
        println!("{faults:?}: {failed} failed, {in_place} of them with the new descriptor in place");
        assert!(failed > 0);
    }
}

#[test]
fn what_finds_no_room_leaves_nothing() {
    let kek = kek();
    for provisioning in [Provisioning::Thin, Provisioning::Thick] {
        let fs = volume(1, &kek, provisioning);
        let before = names(&fs);
        let (mut refusals, mut capacity_bytes) = (0, 0_u64);
        loop {
            fs.set_capacity(Some(capacity_bytes));
            match add(&fs, &kek) {
                Ok(_) => break,
                Err(DatastoreError::Full { .. }) => refusals += 1,
                Err(other) => panic!("{other}"),
            }
            assert_eq!(names(&fs), before);
            capacity_bytes += 4096;
        }
        println!("{provisioning:?}: {refusals} refusals, up to {capacity_bytes} bytes");
        assert!(refusals > 10);
        assert_eq!(leftovers(&fs, 3, provisioning), 0);
    }
}
