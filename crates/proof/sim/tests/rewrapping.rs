//! A volume moves from one KEK to another, under power cuts at every moment, failing calls and lack
//! of room. In every case one of the caller's keys opens it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

use std::path::Path;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::VolumeSize;

/// Power cuts at each moment, with different outcomes.
const CUTS: u64 = 40;
/// Re-wraps in which calls fail.
const FAULTY_REWRAPS: u64 = 400;

fn path() -> &'static Path {
    Path::new("/ds/vm1")
}

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn options(kek: &Kek) -> OpenOptions<'_> {
    let protection = Protection::Encrypted(kek);
    OpenOptions { protection, access: Access::ReadWrite, lock_wait: Duration::ZERO, least_generation: 2 }
}

/// A volume of two layers.
fn volume(seed: u64, kek: &Kek) -> SimFs {
    let fs = SimFs::new(seed);
    let protection = Protection::Encrypted(kek);
    let made = CreateOptions {
        size: VolumeSize::new(256 << 10).unwrap(),
        provisioning: Provisioning::Thin,
        protection,
        log_bytes: Some(LOG_BYTES_MIN),
        integrity: Some(Integrity::NEW),
    };
    create_on(&fs, path(), &made).unwrap();
    let layer = AddLayerOptions {
        protection,
        log_bytes: Some(LOG_BYTES_MIN),
        lock_wait: Duration::ZERO,
        least_generation: 0,
    };
    add_layer_on(&fs, path(), &layer).unwrap();
    fs
}

fn rewrap_volume(fs: &SimFs, from: &Kek, to: &Kek) -> Result<Descriptor, DatastoreError> {
    let options = RewrapOptions { from, to, lock_wait: Duration::ZERO, least_generation: 2 };
    rewrap_on(fs, path(), &options)
}

/// The keys that open a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Under {
    Old,
    Both,
    New,
}

/// The volume's DEKs, if all of it opens with this key.
fn opens(fs: &SimFs, kek: &Kek) -> Option<Deks> {
    let opened = open_on(fs, path(), &options(kek)).ok()?;
    let findings = check_on(fs, path(), Some(kek)).unwrap();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Notice), "{findings:?}");
    assert_eq!(opened.deks.len(), 2);
    Some(opened.deks)
}

/// Returns the keys that open it now, and checks that repeating the job ends under the new one.
fn outlives(fs: &SimFs, old: &Kek, new: &Kek) -> Under {
    let (with_old, with_new) = (opens(fs, old), opens(fs, new));
    let under = match (&with_old, &with_new) {
        (Some(one), Some(other)) => {
            assert_eq!(one, other);
            Under::Both
        }
        (Some(_), None) => Under::Old,
        (None, Some(_)) => Under::New,
        (None, None) => panic!("the volume is stranded"),
    };
    let before = describe_on(fs, path()).unwrap().descriptor.generation;
    let done = rewrap_volume(fs, old, new).unwrap();
    assert_eq!(done.generation, before + [2, 1, 0][under as usize]);
    assert!(opens(fs, old).is_none());
    assert_eq!(opens(fs, new), with_new.or(with_old));
    under
}

#[test]
fn power_cuts_leave_a_volume_that_a_key_opens() {
    let (old, new) = (kek(1), kek(2));
    let fs = volume(1, &old);
    fs.record();
    let mut head = VolumeHead::open_on(&fs, path(), &options(&old)).unwrap();
    head.begin_rewrap(&old, &new).unwrap();
    let begun = fs.moments() - 1;
    head.verify_rewrap(&old, &new).unwrap();
    let verified = fs.moments() - 1;
    head.finish_rewrap(&new).unwrap();
    drop(head);
    let finished = fs.moments() - 1;

    let mut found = [0; 3];
    for moment in 0..=finished {
        for seed in 0..CUTS {
            let under = outlives(&fs.cut_at(moment, seed), &old, &new);
            found[under as usize] += 1;
            let allowed = match moment {
                _ if moment < begun => Under::Old..=Under::Both,
                _ if moment <= verified => Under::Both..=Under::Both,
                _ if moment < finished => Under::Both..=Under::New,
                _ => Under::New..=Under::New,
            };
            assert!(allowed.contains(&under), "moment {moment}, seed {seed}: {under:?}, not {allowed:?}");
        }
    }
    let [old, both, new] = found;
    println!("{} moments; {old} cuts left the old key, {both} both, {new} the new one", finished + 1);
    assert!(old > 0 && both > 0 && new > 0);
}

/// A series of cuts, each of which interrupts the recovery from the one before.
#[test]
fn power_cuts_one_after_the_other_are_outlived() {
    let mut cuts = 0;
    for seed in 0..30 {
        let mut fs = volume(seed, &kek(1));
        for generation in 1..6_u8 {
            let (from, to) = (kek(generation), kek(generation + 1));
            for again in 0..4 {
                fs.record();
                rewrap_volume(&fs, &from, &to).unwrap();
                let moment = (seed as usize * 7 + again * 5 + usize::from(generation)) % fs.moments();
                fs = fs.cut_at(moment, seed + again as u64);
                cuts += 1;
                assert!(opens(&fs, &from).is_some() || opens(&fs, &to).is_some());
            }
            rewrap_volume(&fs, &from, &to).unwrap();
            assert!(opens(&fs, &from).is_none() && opens(&fs, &to).is_some());
        }
    }
    println!("{cuts} cuts");
}

#[test]
fn a_rewrap_that_fails_leaves_a_volume_that_a_key_opens() {
    let (old, new) = (kek(1), kek(2));
    let sorts = [
        Faults { write_error_one_in: 4, ..Faults::default() },
        Faults { sync_error_one_in: 4, ..Faults::default() },
        Faults { name_error_one_in: 6, ..Faults::default() },
        Faults { read_error_one_in: 4, ..Faults::default() },
    ];
    for faults in sorts {
        let (mut failed, mut left) = (0, [0; 3]);
        for seed in 0..FAULTY_REWRAPS / sorts.len() as u64 {
            let fs = volume(seed, &old);
            fs.set_faults(faults);
            let done = rewrap_volume(&fs, &old, &new);
            fs.set_faults(Faults::default());
            let cut = fs.cut(seed);
            let (now, after_a_cut) = (outlives(&fs, &old, &new), outlives(&cut, &old, &new));
            if done.is_ok() {
                assert_eq!((now, after_a_cut), (Under::New, Under::New), "seed {seed}");
            } else {
                left[now as usize] += 1;
                failed += 1;
            }
        }
        println!("{faults:?}: {failed} failed; old, both, new: {left:?}");
        assert!(failed > 0);
    }
}

#[test]
fn a_rewrap_finds_room_where_there_is_none() {
    let (old, new) = (kek(1), kek(2));
    let fs = volume(1, &old);
    fs.set_capacity(Some(0));
    rewrap_volume(&fs, &old, &new).unwrap();
    assert_eq!(outlives(&fs, &old, &new), Under::New);
}
