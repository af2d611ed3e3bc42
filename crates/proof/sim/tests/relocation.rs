//! A volume with its snapshots moves to another datastore, under power cuts and kills at any
//! moment. Wherever its caller's record says that it is, it is there, whole; what is left can be
//! finished, and then nothing is left.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

#[path = "support/campaign.rs"]
mod campaign;
#[path = "support/life.rs"]
mod life;
#[allow(dead_code, reason = "few of the rules concern a move")]
#[path = "power_cuts/mutations.rs"]
mod mutations;

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::OFlags;
use strongroom_datastore::file::storage::{Storage, read_file, replace_file};
use strongroom_datastore::file::*;
use strongroom_keys::Kek;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::VolumeId;

use life::*;
use mutations::{Mutation, Rule};

const LIVES: u64 = if cfg!(feature = "full") { 120 } else { 10 };
/// Moments of each life at which the power is cut.
const CUTS: usize = if cfg!(feature = "full") { 200 } else { 60 };

const RECORD: &str = "record";

fn to() -> &'static Path {
    Path::new("/other/vm1")
}

fn options(kek: Option<&Kek>) -> RelocateOptions<'_> {
    RelocateOptions { protection: protection(kek), lock_wait: Duration::ZERO, least_generation: 0 }
}

fn told(error: DatastoreError) -> String {
    error.to_string()
}

/// What the caller has recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recorded {
    AtItsFormerPlace,
    Moved,
    /// The move has ended.
    Done,
}

impl Recorded {
    fn write(self, fs: &SimFs) {
        let text: &[u8] = match self {
            Self::AtItsFormerPlace => b"former",
            Self::Moved => b"moved",
            Self::Done => b"done",
        };
        let records = Storage::open_directory(fs, Path::new("/")).unwrap();
        replace_file(&*records, RECORD, text).unwrap();
    }

    fn read(fs: &SimFs) -> Self {
        let records = Storage::open_directory(fs, Path::new("/")).unwrap();
        match read_file(&*records, RECORD, 16).unwrap().as_deref() {
            Some(b"moved") => Self::Moved,
            Some(b"done") => Self::Done,
            _ => Self::AtItsFormerPlace,
        }
    }
}

/// Moves the volume, as a caller with a record does it, or goes on with that. `storage` is the file
/// system, or one that breaks a rule.
fn run(fs: &SimFs, storage: &dyn Storage, kek: Option<&Kek>, volume: VolumeId) -> Result<(), String> {
    let options = options(kek);
    if Recorded::read(fs) == Recorded::AtItsFormerPlace {
        withdraw_on(storage, to(), volume, &options).map_err(told)?;
        let mut moving = begin_relocation_on(storage, path(), to(), &options).map_err(told)?;
        let copied = moving.copy(&mut |_| ControlFlow::Continue(())).map_err(told)?.unwrap();
        assert!(copied.read_bytes >= copied.written_bytes);
        moving.take_place().map_err(told)?;
        Recorded::Moved.write(fs);
        moving.remove_former().map_err(told)?;
    } else {
        remove_former_on(storage, path(), to(), &options).map_err(told)?;
    }
    Recorded::Done.write(fs);
    Ok(())
}

/// What is found after a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Found {
    NotBegun,
    /// Something has arrived.
    Copied,
    /// It has its name there, and the caller has not recorded that.
    Named,
    Moved,
    Done,
}

fn names_in(fs: &SimFs, path: &str) -> Vec<String> {
    Storage::open_directory(fs, Path::new(path)).map_or_else(|_| Vec::new(), |found| found.names().unwrap())
}

fn found(fs: &SimFs) -> Found {
    let names = names_in(fs, "/other");
    match Recorded::read(fs) {
        Recorded::Done => Found::Done,
        Recorded::Moved => Found::Moved,
        _ if names.iter().any(|name| name == "vm1") => Found::Named,
        _ if !names.is_empty() => Found::Copied,
        _ => Found::NotBegun,
    }
}

/// Examines an image, ends the move, and examines the result.
fn outlives(fs: &SimFs, life: &Life<'_>, volume: VolumeId, seed: u64) -> Result<Found, String> {
    let mut random = StdRng::seed_from_u64(seed);
    let (contents, protection) = (life.contents(), protection(life.kek));
    let left = found(fs);
    let place = if left >= Found::Moved { to() } else { path() };
    expect_at(fs, place, protection, &contents, &mut random).map_err(|error| format!("{left:?}: {error}"))?;
    if left == Found::Named {
        // Without the record, nobody goes on with that.
        let refused = begin_relocation_on(fs, path(), to(), &options(life.kek)).map(drop).unwrap_err();
        if !matches!(refused, DatastoreError::TwoPlaces { .. }) {
            return Err(refused.to_string());
        }
    }
    run(fs, fs, life.kek, volume).map_err(|error| format!("{left:?}, the second run: {error}"))?;
    // What it has reported is durable.
    let fs = fs.cut(seed);
    expect_at(&fs, to(), protection, &contents, &mut random)
        .map_err(|error| format!("at the end: {error}"))?;
    let (former, there) = (names_in(&fs, "/ds"), names_in(&fs, "/other"));
    if !former.is_empty() || there != ["vm1"] {
        return Err(format!("at the end there are {former:?} and {there:?}"));
    }
    for finding in check_on(&fs, to(), life.kek).map_err(told)? {
        if finding.severity == Severity::Error || finding.message.contains("interrupted") {
            return Err(finding.message);
        }
    }
    let descriptor = describe_on(&fs, to()).map_err(told)?.descriptor;
    match descriptor.volume == volume && descriptor.generation > life.generation() {
        true => Ok(left),
        false => Err(format!("it has become generation {} of {}", descriptor.generation, descriptor.volume)),
    }
}

/// A life, and the image from before its move, which is recorded.
fn recorded<'a>(seed: u64, kek: Option<&'a Kek>, rule: Option<Rule>) -> (Life<'a>, VolumeId, SimFs) {
    let life = Life::new(seed, kek);
    let volume = describe_on(&life.fs, path()).unwrap().descriptor.volume;
    let fs = life.fs.cut(seed);
    Recorded::AtItsFormerPlace.write(&fs);
    fs.record();
    match rule {
        None => run(&fs, &fs, kek, volume).unwrap(),
        Some(rule) => {
            let storage = Mutation::new(rule).storage(fs.clone());
            // A broken rule may end it: then what was done until then is examined.
            let _ = run(&fs, &*storage, kek, volume);
        }
    }
    (life, volume, fs)
}

/// Cuts the power, or kills, at random moments of a move.
fn cuts(seed: u64, kek: Option<&Kek>, rule: Option<Rule>, all: &mut [usize; 5]) -> Result<usize, String> {
    let (life, volume, fs) = recorded(seed, kek, rule);
    let mut random = StdRng::seed_from_u64(seed);
    let renamings = fs.moments_of_renamings();
    for cut in 0..CUTS as u64 {
        let moment = match cut % 3 {
            0 => renamings[random.random_range(0..renamings.len())],
            _ => random.random_range(0..fs.moments()),
        };
        let seed_of_cut = seed * 1000 + cut;
        let image = match cut % 4 {
            0 => fs.killed_at(moment, seed_of_cut),
            _ => fs.cut_at(moment, seed_of_cut),
        };
        let left = outlives(&image, &life, volume, seed_of_cut);
        all[left.map_err(|error| format!("moment {moment}, cut {cut}: {error}"))? as usize] += 1;
    }
    if rule.is_none() {
        assert_eq!(outlives(&fs.cut(seed), &life, volume, seed), Ok(Found::Done));
    }
    Ok(CUTS)
}

#[test]
fn power_cuts_and_kills_during_a_move_leave_the_volume_where_the_record_says() {
    let kek = kek(1);
    let mut all = [0; 5];
    for seed in 0..LIVES {
        let kek = (seed % 3 != 2).then_some(&kek);
        if let Err(error) = cuts(seed, kek, None, &mut all) {
            panic!("life {seed}, {error}");
        }
    }
    println!("not begun, copied, named, moved, done: {all:?}");
    assert!(all.iter().all(|count| *count > 0), "{all:?}");
}

fn is_caught(rule: Rule) {
    let kek = kek(1);
    campaign::is_caught(rule, |seed| cuts(seed, Some(&kek), Some(rule), &mut [0; 5]));
}

#[test]
fn a_volume_that_has_its_name_before_its_blocks_are_durable_is_caught() {
    is_caught(Rule::LayerNotSynced);
}

#[test]
fn a_volume_that_has_its_name_before_its_files_names_are_durable_is_caught() {
    is_caught(Rule::LinksNotSynced);
}

#[test]
fn a_volume_that_has_its_name_before_its_descriptor_is_durable_is_caught() {
    is_caught(Rule::DescriptorNotSynced);
}

#[test]
fn a_former_volume_that_is_removed_before_the_new_name_is_durable_is_caught() {
    is_caught(Rule::PlaceNotSynced);
}

#[test]
fn a_move_that_is_ended_early_goes_on_with_what_was_copied() {
    let kek = kek(1);
    let life = Life::new(2, Some(&kek));
    let options = options(Some(&kek));
    let mut written = Vec::new();
    for pieces in 0..200 {
        let mut moving = begin_relocation_on(&life.fs, path(), to(), &options).unwrap();
        let mut seen = 0;
        let copied = moving.copy(&mut |progress| {
            seen += 1;
            assert!(progress.left_layers > 0);
            if seen > pieces { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        if let Some(copied) = copied.unwrap() {
            written.push(copied.written_bytes);
            if written.len() == 2 {
                moving.take_place().unwrap();
                moving.remove_former().unwrap();
                break;
            }
        }
    }
    // The second copy finds everything.
    assert_eq!(written[1], 0, "{written:?}");
    let mut random = StdRng::seed_from_u64(2);
    expect_at(&life.fs, to(), protection(Some(&kek)), &life.contents(), &mut random).unwrap();
}

/// What an attempt has left is somebody's for as long as nobody looks: it is compared.
#[test]
fn what_was_left_and_is_not_the_volumes_is_not_taken_for_it() {
    let kek = kek(1);
    let life = Life::new(2, Some(&kek));
    let options = options(Some(&kek));
    let mut moving = begin_relocation_on(&life.fs, path(), to(), &options).unwrap();
    moving.copy(&mut |_| ControlFlow::Continue(())).unwrap().unwrap();
    drop(moving);
    let staging = Path::new("/other").join(&names_in(&life.fs, "/other")[0]);
    let directory = Storage::open_directory(&life.fs, &staging).unwrap();
    let layers: Vec<_> =
        directory.names().unwrap().into_iter().filter(|name| name.starts_with("layer-")).collect();
    // Noise in a place where the volume has a block, and in one where it may have none.
    for (name, block) in layers.iter().zip([0, BLOCKS - 1, BLOCKS / 2]) {
        let file = directory.open(name, OFlags::RDWR).unwrap();
        file.write_at(block * BLOCK as u64, &[0x5A; BLOCK]).unwrap();
    }
    let mut moving = begin_relocation_on(&life.fs, path(), to(), &options).unwrap();
    let copied = moving.copy(&mut |_| ControlFlow::Continue(())).unwrap().unwrap();
    assert!(copied.written_bytes > 0);
    moving.take_place().unwrap();
    moving.remove_former().unwrap();
    let mut random = StdRng::seed_from_u64(2);
    expect_at(&life.fs, to(), protection(Some(&kek)), &life.contents(), &mut random).unwrap();
}

#[test]
fn a_move_that_fails_leaves_the_volume_where_it_was() {
    let kek = kek(1);
    let sorts = [
        Faults { write_error_one_in: 6, ..Faults::default() },
        Faults { sync_error_one_in: 6, ..Faults::default() },
        Faults { name_error_one_in: 12, ..Faults::default() },
        Faults { read_error_one_in: 8, ..Faults::default() },
    ];
    for faults in sorts {
        let mut failed = 0;
        for seed in 0..20 {
            let life = Life::new(seed, Some(&kek));
            let volume = describe_on(&life.fs, path()).unwrap().descriptor.volume;
            let fs = life.fs.cut(seed);
            Recorded::AtItsFormerPlace.write(&fs);
            fs.set_faults(faults);
            let options = options(Some(&kek));
            let moved = begin_relocation_on(&fs, path(), to(), &options).and_then(|mut moving| {
                moving.copy(&mut |_| ControlFlow::Continue(()))?;
                moving.take_place()
            });
            fs.set_faults(Faults::default());
            if moved.is_err() {
                failed += 1;
            } else {
                Recorded::Moved.write(&fs);
            }
            outlives(&fs.cut(seed), &life, volume, seed)
                .map_err(|error| format!("seed {seed}: {error}"))
                .unwrap();
        }
        println!("{faults:?}: {failed} failed");
        assert!(failed > 0);
    }
}

#[test]
fn what_the_destination_does_not_keep_as_it_was_written_is_noticed() {
    let kek = kek(1);
    let sorts = [
        Faults { corrupt_one_in: 6, ..Faults::default() },
        Faults { misdirect_one_in: 6, ..Faults::default() },
    ];
    for faults in sorts {
        let mut noticed = 0;
        for seed in 0..20 {
            let life = Life::new(seed, Some(&kek));
            let volume = describe_on(&life.fs, path()).unwrap().descriptor.volume;
            let fs = life.fs.cut(seed);
            Recorded::AtItsFormerPlace.write(&fs);
            let options = options(Some(&kek));
            let mut moving = begin_relocation_on(&fs, path(), to(), &options).unwrap();
            fs.set_faults(faults);
            let copied = moving.copy(&mut |_| ControlFlow::Continue(()));
            fs.set_faults(Faults::default());
            match copied {
                Ok(_) => {
                    moving.take_place().unwrap();
                    Recorded::Moved.write(&fs);
                }
                Err(DatastoreError::NotRelocated { .. }) => noticed += 1,
                Err(other) => panic!("{faults:?}, seed {seed}: {other}"),
            }
            drop(moving);
            outlives(&fs.cut(seed), &life, volume, seed)
                .map_err(|error| format!("{faults:?}, seed {seed}: {error}"))
                .unwrap();
        }
        println!("{faults:?}: {noticed} noticed");
        assert!(noticed > 0);
    }
}

#[test]
fn a_volume_that_finds_no_room_is_where_it_was_and_leaves_nothing() {
    let kek = kek(1);
    let life = Life::new(0, Some(&kek));
    let options = options(Some(&kek));
    life.fs.set_capacity(Some(0));
    let refused = begin_relocation_on(&life.fs, path(), to(), &options).map(drop).unwrap_err();
    assert!(matches!(&refused, DatastoreError::Full { path, .. } if path == to()), "{refused}");
    life.fs.set_capacity(None);
    let mut moving = begin_relocation_on(&life.fs, path(), to(), &options).unwrap();
    // Somebody else takes the room meanwhile.
    life.fs.set_capacity(Some(0));
    let refused = moving.copy(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(matches!(&refused, DatastoreError::Full { path, .. } if path == to()), "{refused}");
    drop(moving);
    life.fs.set_capacity(None);
    assert!(names_in(&life.fs, "/other").is_empty());
    let mut random = StdRng::seed_from_u64(0);
    expect(&life.fs, Some(&kek), &life.contents(), &mut random).unwrap();
}

/// What was copied beside its users and is gone again is not taken for being there.
#[test]
fn a_volume_in_use_that_finds_no_room_is_copied_anew() {
    let kek = kek(1);
    let mut life = Life::new(1, Some(&kek));
    let fs = life.fs.clone();
    let go_on = &mut |_| ControlFlow::Continue(());
    let mut beside = begin_relocation_beside_on(&fs, path(), to(), &options(Some(&kek))).unwrap();
    let first = beside.copy(go_on).unwrap().unwrap().layers;
    life.use_it();
    life.snapshot("meanwhile");
    fs.set_capacity(Some(0));
    let refused = beside.copy(go_on).unwrap_err();
    assert!(matches!(refused, DatastoreError::Full { .. }), "{refused}");
    fs.set_capacity(None);
    assert_eq!(beside.copy(go_on).unwrap().unwrap().layers, first + 1);
    // The same for the last part of it.
    life.use_it();
    let mut moving = beside.closed().unwrap();
    fs.set_capacity(Some(0));
    let refused = moving.copy(go_on).unwrap_err();
    assert!(matches!(refused, DatastoreError::Full { .. }), "{refused}");
    assert!(matches!(moving.take_place().unwrap_err(), DatastoreError::NotCopied { .. }));
    fs.set_capacity(None);
    assert_eq!(moving.copy(go_on).unwrap().unwrap().layers, first + 2);
    moving.take_place().unwrap();
    moving.remove_former().unwrap();
    let mut random = StdRng::seed_from_u64(1);
    expect_at(&fs, to(), protection(Some(&kek)), &life.contents(), &mut random).unwrap();
}

/// The layers below the top of a volume in use are copied twice, and the rest when it is closed.
/// Returns how many layers were copied by each.
fn run_beside(life: &mut Life<'_>, kek: Option<&Kek>) -> [usize; 3] {
    let fs = life.fs.clone();
    let go_on = &mut |_| ControlFlow::Continue(());
    let mut beside = begin_relocation_beside_on(&fs, path(), to(), &options(kek)).unwrap();
    let first = beside.copy(go_on).unwrap().unwrap().layers;
    // A snapshot puts a new top on, and what was the top is complete.
    life.use_it();
    life.snapshot("meanwhile");
    life.use_it();
    let second = beside.copy(go_on).unwrap().unwrap().layers;
    assert_eq!(beside.left().unwrap().layers, 1, "the top");
    life.use_it();
    let mut moving = beside.closed().unwrap();
    let third = moving.copy(go_on).unwrap().unwrap().layers;
    moving.take_place().unwrap();
    moving.remove_former().unwrap();
    [first, second, third]
}

#[test]
fn a_volume_in_use_is_copied_layer_by_layer_and_is_durable_when_the_move_has_ended() {
    let kek = kek(1);
    for seed in 0..LIVES {
        let kek = (seed % 3 != 2).then_some(&kek);
        let mut life = Life::new(seed, kek);
        let Descriptor { volume, layers, .. } = describe_on(&life.fs, path()).unwrap().descriptor;
        assert_eq!(run_beside(&mut life, kek), [layers.len() - 1, 1, 1]);
        let fs = life.fs.cut(seed);
        let mut random = StdRng::seed_from_u64(seed);
        expect_at(&fs, to(), protection(kek), &life.contents(), &mut random).unwrap();
        assert_eq!(names_in(&fs, "/other"), ["vm1"]);
        assert!(names_in(&fs, "/ds").is_empty());
        assert_eq!(describe_on(&fs, to()).unwrap().descriptor.volume, volume);
    }
}

/// What is copied beside its users is locked against a merge, and what changed all the same, when
/// it was unlocked, is copied anew.
#[test]
fn a_layer_that_was_copied_takes_no_merge_until_it_is_unlocked() {
    let kek = kek(1);
    let life = Life::new(1, Some(&kek));
    let go_on = &mut |_| ControlFlow::Continue(());
    let mut beside = begin_relocation_beside_on(&life.fs, path(), to(), &options(Some(&kek))).unwrap();
    beside.copy(go_on).unwrap().unwrap();
    let snapshot = life.kept[0].0;
    let open = to_open(Some(&kek), Access::ReadWrite);
    delete_snapshot_on(&life.fs, path(), snapshot, &open).unwrap();
    let refused = open_merge_on(&life.fs, path(), &open).map(drop).unwrap_err();
    assert!(matches!(refused, DatastoreError::InUse { .. }), "{refused}");
    // A marked merge keeps it where it is.
    beside.unlock();
    let refused = beside.closed().map(drop).unwrap_err();
    assert!(matches!(refused, DatastoreError::UnfinishedMerge { .. }), "{refused}");
    open_merge_on(&life.fs, path(), &open).map(drop).unwrap();
}
