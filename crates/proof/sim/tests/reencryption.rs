//! A volume with its snapshots is re-encrypted, under power cuts and kills at any moment: its
//! content is what it was, the job can be finished or cancelled, and afterwards no file has
//! anything that a DEK from before opens.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

#[path = "support/life.rs"]
mod life;

use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::fs::OFlags;
use strongroom_crypto::xts::{UnitSize, Xts, XtsSession};
use strongroom_datastore::file::NewTags;
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_keys::Kek;
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, SnapshotId};
use strongroom_worker::layers::{MergeStages, plain_blocks_over};
use strongroom_worker::{Copying, DiskAccess, Step, Stride};

use life::*;

const STRIDE: Stride = Stride { depth: 2, piece_bytes: 2 * BLOCK_BYTES, step_bytes: 4 * BLOCK_BYTES };

const LIVES: u64 = if cfg!(feature = "full") { 120 } else { 8 };
/// Moments of each life at which the power is cut.
const CUTS: usize = if cfg!(feature = "full") { 200 } else { 50 };

/// What a volume is under before and after.
#[derive(Clone, Copy)]
struct Change<'a> {
    from: Option<&'a Kek>,
    to: Option<&'a Kek>,
}

impl Change<'_> {
    fn options(&self) -> ReencryptOptions<'_> {
        ReencryptOptions {
            from: protection(self.from),
            to: protection(self.to),
            tags: NewTags::By(Integrity::NEW),
            lock_wait: Duration::ZERO,
            least_generation: 0,
        }
    }

    /// What a volume in use is under meanwhile.
    fn meanwhile(&self) -> Protection<'_> {
        self.options().meanwhile()
    }

    /// Whether layers of both sorts are there meanwhile.
    fn is_mixed(&self) -> bool {
        self.from.is_some() != self.to.is_some()
    }

    /// What an image of the volume is under.
    fn found_on(&self, fs: &SimFs) -> Protection<'_> {
        let descriptor = describe_on(fs, path()).unwrap().descriptor;
        match (&descriptor.encryption, descriptor.reencrypting) {
            (None, _) => Protection::Unencrypted,
            (Some(_), None) if self.is_mixed() => protection(self.from.or(self.to)),
            (Some(_), _) => self.meanwhile(),
        }
    }
}

/// Moves the blocks of a layer into the new one.
fn copy(
    fs: &SimFs,
    size_bytes: u64,
    layers: RewriteLayers,
    keys: RewriteKeys,
    random: &mut StdRng,
) -> Result<(), String> {
    let stages = MergeStages::rewriting(layers, keys).map_err(|error| error.to_string())?;
    let mut copying = Copying::open(&stages, 0..size_bytes, event_loop(fs, random), STRIDE).unwrap();
    while copying.step().map_err(|error| error.to_string())? != Step::Ended {}
    copying.finish().map_err(|error| error.to_string())
}

/// As [`run`], in the steps of a volume in use: one process owns the descriptor and has both keys,
/// another one rewrites layers below a new top. Returns the owner's side, before the end.
fn run_in_use(fs: &SimFs, change: Change<'_>, random: &mut StdRng, layers: Option<usize>) -> VolumeHead {
    let both = change.meanwhile();
    let own = || VolumeHead::open_on(fs, path(), &to_open_under(both, Access::ReadWrite)).unwrap();
    if change.is_mixed() {
        if describe_on(fs, path()).unwrap().descriptor.reencrypting.is_none() {
            let to_open = to_open_under(change.found_on(fs), Access::ReadWrite);
            let mut head = VolumeHead::open_on(fs, path(), &to_open).unwrap();
            head.prepare_layer_of(both, change.options().tags, Some(LOG_BYTES)).unwrap();
        }
        // The process that does the I/O takes over, completes the layer below, and ends in order.
        let volume = open_on(fs, path(), &to_open_under(both, Access::ReadWrite)).unwrap();
        empty_log(fs, &volume, random);
    } else {
        own().mark_reencryption(both, NewTags::By(Integrity::NEW)).unwrap();
    }
    if !own().is_top_reencrypted() {
        let (log_bytes, lock_wait) = (Some(LOG_BYTES), Duration::ZERO);
        let options = AddLayerOptions { protection: both, log_bytes, lock_wait, least_generation: 0 };
        add_layer_on(fs, path(), &options).unwrap();
    }
    // An opening makes names durable, so the volume stays open to the end, as it does in use.
    let mut head = own();
    for _ in 0..layers.unwrap_or(usize::MAX) {
        let Some(opened) = open_rewrite_beside_on(fs, path(), &change.options()).unwrap() else { break };
        let OpenRewrite { size_bytes, layers, keys, mut rewritten } = opened;
        copy(fs, size_bytes, layers, keys, random).unwrap();
        rewritten.keep();
        let old = head.descriptor().layer(rewritten.old()).unwrap().clone();
        head.replace_rewritten(old.id, rewritten.record(), both).unwrap();
        head.remove_replaced(&old);
    }
    head
}

/// Runs the job, or what is left of it. Stops after so many layers.
fn run(fs: &SimFs, change: Change<'_>, random: &mut StdRng, layers: Option<usize>) -> Result<(), String> {
    let told = |error: DatastoreError| error.to_string();
    let options = change.options();
    let mut job = begin_reencryption_on(fs, path(), &options).map_err(told)?;
    let mut done = 0;
    while layers.is_none_or(|layers| done < layers) {
        let Some(OpenRewrite { size_bytes, layers, keys, rewritten }) = job.open_next().map_err(told)? else {
            break;
        };
        copy(fs, size_bytes, layers, keys, random)?;
        job.replace(rewritten).map_err(told)?;
        done += 1;
    }
    match layers {
        None => job.finish().map(drop).map_err(told),
        Some(_) => Ok(()),
    }
}

/// The DEKs of all layers.
fn deks(fs: &SimFs, life: &Life<'_>) -> Deks {
    let mut all = open_on(fs, path(), &to_open(life.kek, Access::ReadOnly)).unwrap().deks;
    for (id, _) in &life.kept {
        all.extend(open_snapshot_on(fs, path(), *id, &to_open(life.kek, Access::ReadOnly)).unwrap().deks);
    }
    all
}

/// No block of any file of the volume is content under one of these keys. Every file counts, also
/// one that nothing names.
fn opens_under_none_of(fs: &SimFs, deks: &Deks) -> Result<(), String> {
    let session = |dek| Xts::new(dek, UnitSize::Bytes4096).unwrap().session().unwrap();
    let mut ciphers: Vec<XtsSession> = deks.iter().map(|(_, dek)| session(dek)).collect();
    let directory = Storage::open_directory(fs, path()).unwrap();
    for name in directory.names().unwrap() {
        let file = directory.open(&name, OFlags::RDONLY).unwrap();
        let mut content = vec![0; file.length().unwrap() as usize];
        file.read_at(0, &mut content).unwrap();
        for (number, block) in (0_u64..).zip(content.chunks_exact(BLOCK)) {
            if block.iter().all(|byte| *byte == 0) {
                continue;
            }
            for cipher in &mut ciphers {
                let mut plain = vec![0; BLOCK];
                cipher.decrypt(number, block, &mut plain).unwrap();
                if plain.iter().all(|byte| *byte == plain[0]) {
                    return Err(format!("block {number} of {name} is there under an old key"));
                }
            }
        }
    }
    Ok(())
}

/// What an interrupted job has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Left {
    NotBegun,
    UnderWay,
    Done,
}

/// Examines an image, ends the job in one way or another, and examines the result.
fn outlives(
    fs: &SimFs,
    life: &Life<'_>,
    change: Change<'_>,
    old_deks: &Deks,
    seed: u64,
) -> Result<Left, String> {
    let told = |error: DatastoreError| error.to_string();
    let mut random = StdRng::seed_from_u64(seed);
    let contents = life.contents();
    let descriptor = describe_on(fs, path()).map_err(told)?.descriptor;
    let keys: Vec<_> = descriptor.layers.iter().map(|layer| layer.epochs.len()).collect();
    let left = match descriptor.reencrypting {
        Some(_) => Left::UnderWay,
        None if descriptor.generation == life.generation() => Left::NotBegun,
        None => Left::Done,
    };
    // What one KEK opens can be used.
    let is_same = change.from.map(Kek::id) == change.to.map(Kek::id);
    match left {
        Left::NotBegun => expect(fs, change.from, &contents, &mut random)?,
        Left::UnderWay if is_same => expect(fs, change.from, &contents, &mut random)?,
        Left::UnderWay => {}
        Left::Done => expect(fs, change.to, &contents, &mut random)?,
    }
    let is_half_clear = keys.contains(&0) && keys.iter().any(|count| *count > 0);
    let can_cancel = change.from.is_some() || keys.iter().all(|count| *count == 0);
    let cancels = left == Left::UnderWay && seed.is_multiple_of(4) && !is_half_clear && can_cancel;
    let clear_already = change.from.is_some() && change.to.is_none() && keys.iter().all(|count| *count == 0);
    if cancels && !clear_already {
        cancel_reencryption_on(fs, path(), &change.options()).map_err(told)?;
        let fs = fs.cut(seed);
        expect(&fs, change.from, &contents, &mut random).map_err(|error| format!("cancelled: {error}"))?;
        return Ok(left);
    }
    match left {
        // Its end may be visible and not durable: the next one to use the volume sees to that.
        Left::Done => drop(open_on(fs, path(), &to_open(change.to, Access::ReadWrite)).map_err(told)?),
        Left::NotBegun | Left::UnderWay => {
            run(fs, change, &mut random, None).map_err(|error| format!("the second run: {error}"))?;
        }
    }
    // What it has reported is durable: also that nothing of before is left.
    let fs = fs.cut(seed);
    opens_under_none_of(&fs, old_deks)?;
    expect(&fs, change.to, &contents, &mut random).map_err(|error| format!("at the end: {error}"))?;
    let descriptor = describe_on(&fs, path()).map_err(told)?.descriptor;
    if descriptor.reencrypting.is_some() {
        return Err("it is still marked".to_owned());
    }
    if open_on(&fs, path(), &to_open(change.from, Access::ReadOnly)).is_ok() != is_same {
        return Err("the old key still opens it".to_owned());
    }
    for finding in check_on(&fs, path(), change.to).map_err(told)? {
        if finding.severity == Severity::Error || finding.message.contains("interrupted") {
            return Err(finding.message);
        }
    }
    Ok(left)
}

/// Four sorts of jobs, in turn.
fn change_of<'a>(seed: u64, old: &'a Kek, new: &'a Kek) -> Change<'a> {
    match seed % 4 {
        0 => Change { from: Some(old), to: Some(new) },
        1 => Change { from: Some(old), to: Some(old) },
        2 => Change { from: None, to: Some(new) },
        _ => Change { from: Some(old), to: None },
    }
}

/// Records a job, and returns the image from before beside the recording.
fn recorded<'a>(seed: u64, change: Change<'a>) -> (Life<'a>, SimFs) {
    let life = Life::new(seed, change.from);
    let fs = life.fs.cut(seed);
    fs.record();
    run(&fs, change, &mut StdRng::seed_from_u64(seed), None).unwrap();
    (life, fs)
}

#[test]
fn power_cuts_and_kills_during_a_reencryption_lose_nothing_and_leave_nothing() {
    let (old, new) = (kek(1), kek(2));
    let mut found = [0; 3];
    for seed in 0..LIVES {
        let change = change_of(seed, &old, &new);
        let (life, fs) = recorded(seed, change);
        let old_deks = deks(&life.fs, &life);
        let mut random = StdRng::seed_from_u64(seed);
        for cut in 0..CUTS as u64 {
            let moment = random.random_range(0..fs.moments());
            let seed_of_cut = seed * 1000 + cut;
            let image = match cut % 3 {
                0 => fs.killed_at(moment, seed_of_cut),
                _ => fs.cut_at(moment, seed_of_cut),
            };
            match outlives(&image, &life, change, &old_deks, seed_of_cut) {
                Ok(left) => found[left as usize] += 1,
                Err(error) => panic!("life {seed}, moment {moment}, cut {cut}: {error}"),
            }
        }
        // What was reported done is durable.
        let image = fs.cut(seed);
        let left = outlives(&image, &life, change, &old_deks, seed).unwrap();
        assert_eq!(left, Left::Done, "life {seed}");
    }
    let [not_begun, under_way, done] = found;
    println!("{not_begun} images before the job, {under_way} within it, {done} after it");
    assert!(not_begun > 0 && under_way > 0 && done > 0);
}

#[test]
fn neither_key_opens_what_is_sealed_under_the_other_alone() {
    let (old, new) = (kek(1), kek(2));
    let change = Change { from: Some(&old), to: Some(&new) };
    let life = Life::new(2, Some(&old));
    let mut random = StdRng::seed_from_u64(2);
    run(&life.fs, change, &mut random, Some(1)).unwrap();
    let descriptor = describe_on(&life.fs, path()).unwrap().descriptor;
    let under: Vec<_> = descriptor
        .layers
        .iter()
        .flat_map(|layer| &layer.epochs)
        .map(|record| record.envelopes.iter().map(|envelope| envelope.kek()).collect::<Vec<_>>())
        .collect();
    let (last, others) = under.split_last().unwrap();
    assert_eq!(*last, [new.id()]);
    assert!(others.iter().all(|keks| *keks == [old.id()]), "{under:?}");
    for kek in [&old, &new] {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let refused = open_on(&life.fs, path(), &to_open(Some(kek), access)).unwrap_err();
            assert!(matches!(refused, DatastoreError::Reencrypting { .. }), "{refused}");
        }
        let rewrap = RewrapOptions { from: kek, to: &new, lock_wait: Duration::ZERO, least_generation: 0 };
        rewrap_on(&life.fs, path(), &rewrap).unwrap_err();
        let findings = check_on(&life.fs, path(), Some(kek)).unwrap();
        assert!(findings.iter().all(|finding| finding.severity == Severity::Notice), "{findings:?}");
    }
    // A third key is not taken for the new one.
    let third = self::kek(3);
    let other = Change { from: Some(&old), to: Some(&third) };
    let refused = run(&life.fs, other, &mut random, None).unwrap_err();
    assert!(refused.contains("is between two keys"), "{refused}");
    run(&life.fs, change, &mut random, None).unwrap();
    expect(&life.fs, Some(&new), &life.contents(), &mut random).unwrap();
}

#[test]
fn what_finds_no_room_has_changed_nothing() {
    let (old, new) = (kek(1), kek(2));
    let change = Change { from: Some(&old), to: Some(&new) };
    let life = Life::new(0, Some(&old));
    let generation = life.generation();
    life.fs.set_capacity(Some(0));
    let refused = begin_reencryption_on(&life.fs, path(), &change.options()).map(drop).unwrap_err();
    assert!(matches!(refused, DatastoreError::Full { .. }), "{refused}");
    assert_eq!(life.generation(), generation);
    life.fs.set_capacity(None);
    let mut random = StdRng::seed_from_u64(0);
    expect(&life.fs, Some(&old), &life.contents(), &mut random).unwrap();
    run(&life.fs, change, &mut random, None).unwrap();
    expect(&life.fs, Some(&new), &life.contents(), &mut random).unwrap();
}

#[test]
fn a_half_encrypted_volume_goes_on_or_back() {
    let (old, new) = (kek(1), kek(2));
    for seed in 0..6 {
        let life = Life::new(seed, None);
        let mut random = StdRng::seed_from_u64(seed);
        let forth = Change { from: None, to: Some(&old) };
        run(&life.fs, forth, &mut random, Some(0)).unwrap();
        // The layer that takes writes is clear still, so nobody writes.
        let refused = open_on(&life.fs, path(), &to_open_under(forth.meanwhile(), Access::ReadWrite));
        let refused = refused.map(drop).unwrap_err();
        assert!(matches!(refused, DatastoreError::Reencrypting { .. }), "{refused}");
        run(&life.fs, forth, &mut random, Some(1)).unwrap();
        for kek in [Some(&old), None] {
            let refused = open_on(&life.fs, path(), &to_open(kek, Access::ReadOnly)).unwrap_err();
            let is_refused =
                matches!(refused, DatastoreError::Reencrypting { .. } | DatastoreError::Encrypted { .. });
            assert!(is_refused, "{refused}");
        }
        let refused = cancel_reencryption_on(&life.fs, path(), &forth.options()).unwrap_err();
        assert!(matches!(refused, DatastoreError::HalfClear { .. }), "{refused}");
        let other = Change { from: None, to: Some(&new) };
        assert!(run(&life.fs, other, &mut random, None).is_err());
        let last = match seed % 2 {
            0 => forth,
            _ => Change { from: Some(&old), to: None },
        };
        run(&life.fs, last, &mut random, None).unwrap();
        expect(&life.fs, last.to, &life.contents(), &mut random).unwrap();
    }
}

/// What another process has rewritten is taken only if it is what the job makes of the layer.
#[test]
fn a_layer_that_is_not_what_the_job_makes_is_refused() {
    let (old, new) = (kek(1), kek(2));
    let same = Change { from: Some(&old), to: Some(&old) };
    let life = Life::new(2, Some(&old));
    let mut random = StdRng::seed_from_u64(2);
    run(&life.fs, same, &mut random, Some(1)).unwrap();
    let options = same.options();
    let mut job = begin_reencryption_on(&life.fs, path(), &options).unwrap();
    let OpenRewrite { size_bytes, layers, keys, mut rewritten } = job.open_next().unwrap().unwrap();
    copy(&life.fs, size_bytes, layers, keys, &mut random).unwrap();
    drop(job);
    rewritten.keep();
    let (of, right) = (rewritten.old(), rewritten.record().clone());
    // It has the directory open, which is locked.
    drop(rewritten);

    let protection = Protection::Encrypted(&old);
    let mut head = VolumeHead::open_on(&life.fs, path(), &to_open(Some(&old), Access::ReadWrite)).unwrap();
    let descriptor = head.descriptor().clone();
    let (top, other) = (descriptor.top, descriptor.layers[0].clone());
    let wrong = [
        (top, right.clone()),
        (strongroom_types::LayerId::random(), right.clone()),
        (of, LayerRecord { parent: None, size_bytes: other.size_bytes, ..right.clone() }),
        (of, LayerRecord { id: other.id, ..right.clone() }),
        (of, LayerRecord { epochs: other.epochs.clone(), ..right.clone() }),
        (of, LayerRecord { epochs: Vec::new(), ..right.clone() }),
        (of, LayerRecord { integrity: None, ..right.clone() }),
        (of, LayerRecord { closing: true, ..right.clone() }),
        (of, LayerRecord { volume: Some(strongroom_types::VolumeId::random()), ..right.clone() }),
    ];
    for (of, record) in wrong {
        let refused = head.replace_rewritten(of, &record, protection).unwrap_err();
        assert!(matches!(refused, DatastoreError::NotRewritable { .. }), "{refused}");
    }
    // A DEK that the volume's KEK does not open, or that is another layer's.
    for envelopes in [other.epochs[0].envelopes.clone(), Vec::new()] {
        let mut epochs = right.epochs.clone();
        epochs[0].envelopes = envelopes;
        head.replace_rewritten(of, &LayerRecord { epochs, ..right.clone() }, protection).unwrap_err();
    }
    head.replace_rewritten(of, &right, Protection::Encrypted(&new)).unwrap_err();
    assert_eq!(*head.descriptor(), descriptor);
    head.finish_reencryption(protection).unwrap_err();
    head.replace_rewritten(of, &right, protection).unwrap();
    drop(head);
    expect(&life.fs, Some(&old), &life.contents(), &mut random).unwrap();
}

/// The DEKs of a volume between two keys, each with the KEKs that it is under.
fn keks_of_deks(fs: &SimFs) -> Vec<Vec<strongroom_types::KekId>> {
    let descriptor = describe_on(fs, path()).unwrap().descriptor;
    let records = descriptor.layers.iter().flat_map(|layer| &layer.epochs);
    records.map(|record| record.envelopes.iter().map(|envelope| envelope.kek()).collect()).collect()
}

#[test]
fn power_cuts_while_a_volume_in_use_moves_to_another_key_lose_nothing_and_leave_nothing() {
    let (old, new) = (kek(1), kek(2));
    let change = Change { from: Some(&old), to: Some(&new) };
    let both = change.meanwhile();
    let mut found = [0; 3];
    for seed in 0..LIVES {
        let life = Life::new(seed, change.from);
        let fs = life.fs.cut(seed);
        fs.record();
        let mut random = StdRng::seed_from_u64(seed);
        run_in_use(&fs, change, &mut random, None).finish_reencryption(both).unwrap();
        let old_deks = deks(&life.fs, &life);
        let renamings = fs.moments_of_renamings();
        for cut in 0..CUTS as u64 {
            let moment = match cut % 2 {
                0 => renamings[random.random_range(0..renamings.len())],
                _ => random.random_range(0..fs.moments()),
            };
            let seed_of_cut = seed * 1000 + cut;
            let image = match cut % 3 {
                0 => fs.killed_at(moment, seed_of_cut),
                _ => fs.cut_at(moment, seed_of_cut),
            };
            let says = |error: String| format!("life {seed}, moment {moment}, cut {cut}: {error}");
            // Its next owner has both keys, and opens it whatever was being done.
            expect_under(&image, both, &life.contents(), &mut random).map_err(says).unwrap();
            let is_begun = describe_on(&image, path()).unwrap().descriptor.reencrypting.is_some();
            if is_begun && seed_of_cut.is_multiple_of(2) {
                let mut head = run_in_use(&image, change, &mut random, Some(0));
                match seed_of_cut % 4 {
                    0 => head.cancel_reencryption(both).unwrap(),
                    _ => {
                        drop(head);
                        run_in_use(&image, change, &mut random, None).finish_reencryption(both).unwrap();
                    }
                }
                let image = image.cut(seed_of_cut);
                let to = if seed_of_cut.is_multiple_of(4) { change.from } else { change.to };
                expect(&image, to, &life.contents(), &mut random).map_err(says).unwrap();
                if to.map(Kek::id) == Some(new.id()) {
                    opens_under_none_of(&image, &old_deks).map_err(says).unwrap();
                }
                found[1] += 1;
            } else {
                let left = outlives(&image, &life, change, &old_deks, seed_of_cut).map_err(says).unwrap();
                found[left as usize] += 1;
            }
        }
        let left = outlives(&fs.cut(seed), &life, change, &old_deks, seed).unwrap();
        assert_eq!(left, Left::Done, "life {seed}");
    }
    let [not_begun, under_way, done] = found;
    println!("{not_begun} images before the job, {under_way} within it, {done} after it");
    assert!(not_begun > 0 && under_way > 0 && done > 0);
}

#[test]
fn a_volume_in_use_has_each_data_key_under_one_key_and_needs_both() {
    let (old, new, third) = (kek(1), kek(2), kek(3));
    let change = Change { from: Some(&old), to: Some(&new) };
    let both = change.meanwhile();
    let life = Life::new(2, Some(&old));
    let mut random = StdRng::seed_from_u64(2);
    drop(run_in_use(&life.fs, change, &mut random, Some(1)));
    // A snapshot that is made meanwhile has a new top.
    let snapshot = NewSnapshot { id: SnapshotId::random(), name: "meanwhile".parse().unwrap() };
    let (log_bytes, lock_wait) = (Some(LOG_BYTES), Duration::ZERO);
    let options = AddLayerOptions { protection: both, log_bytes, lock_wait, least_generation: 0 };
    create_snapshot_on(&life.fs, path(), &snapshot, &options).unwrap();
    let under = keks_of_deks(&life.fs);
    assert!(under.iter().all(|keks| *keks == [old.id()] || *keks == [new.id()]), "{under:?}");
    assert_eq!(under.iter().filter(|keks| **keks == [new.id()]).count(), 3, "{under:?}");
    expect_under(&life.fs, both, &life.contents(), &mut random).unwrap();
    for protection in [Protection::Encrypted(&old), Protection::Encrypted(&new)] {
        let refused = open_on(&life.fs, path(), &to_open_under(protection, Access::ReadWrite)).unwrap_err();
        assert!(matches!(refused, DatastoreError::Reencrypting { .. }), "{refused}");
    }
    for (from, to) in [(&old, &third), (&third, &new)] {
        let other = to_open_under(Protection::Between { from, to }, Access::ReadWrite);
        let refused = open_on(&life.fs, path(), &other).unwrap_err();
        assert!(matches!(refused, DatastoreError::BetweenKeys { .. }), "{refused}");
    }
    // An attacker who has the old key makes no descriptor that its next owner takes.
    let forged = life.fs.cut(2);
    let directory = Storage::open_directory(&forged, path()).unwrap();
    let file = directory.open("descriptor", OFlags::RDWR).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    file.write_at(0, &bytes).unwrap();
    let refused = open_on(&forged, path(), &to_open_under(both, Access::ReadWrite)).unwrap_err();
    assert!(matches!(refused, DatastoreError::NotAuthentic { .. }), "{refused}");

    // A rewritten layer whose key is under the old KEK, too, or alone, is not taken.
    let options = change.options();
    let mut job = begin_reencryption_on(&life.fs, path(), &options).unwrap();
    let OpenRewrite { size_bytes, layers, keys, mut rewritten } = job.open_next().unwrap().unwrap();
    copy(&life.fs, size_bytes, layers, keys, &mut random).unwrap();
    rewritten.keep();
    let (of, right) = (rewritten.old(), rewritten.record().clone());
    let of_old = job.descriptor().layer(of).unwrap().epochs[0].envelopes.clone();
    drop((job, rewritten));
    let mut head = VolumeHead::open_on(&life.fs, path(), &to_open_under(both, Access::ReadWrite)).unwrap();
    for envelopes in [[right.epochs[0].envelopes.clone(), of_old.clone()].concat(), of_old] {
        let mut wrong = right.clone();
        wrong.epochs[0].envelopes = envelopes;
        let refused = head.replace_rewritten(of, &wrong, both).unwrap_err();
        assert!(matches!(refused, DatastoreError::NotRewritable { .. }), "{refused}");
    }
    // Its owner needs both keys.
    head.replace_rewritten(of, &right, Protection::Encrypted(&new)).unwrap_err();
    head.replace_rewritten(of, &right, both).unwrap();
    drop(head);
    run_in_use(&life.fs, change, &mut random, None).finish_reencryption(both).unwrap();
    expect(&life.fs, Some(&new), &life.contents(), &mut random).unwrap();
    let under = keks_of_deks(&life.fs);
    assert!(under.iter().all(|keks| *keks == [new.id()]), "{under:?}");
}

/// Every block of every file of the volume that is plain: clients write blocks of one byte.
fn plain_blocks(fs: &SimFs) -> Vec<String> {
    let directory = Storage::open_directory(fs, path()).unwrap();
    let mut found = Vec::new();
    for name in directory.names().unwrap() {
        let file = directory.open(&name, OFlags::RDONLY).unwrap();
        let mut content = vec![0; file.length().unwrap() as usize];
        file.read_at(0, &mut content).unwrap();
        let is_plain = |block: &[u8]| block[0] != 0 && block.iter().all(|byte| *byte == block[0]);
        let plain = content.chunks_exact(BLOCK).filter(|block| is_plain(block));
        found.extend(plain.map(|block| format!("a block of {} in {name}", block[0])));
    }
    found
}

/// A job is killed when its end is visible and not durable yet. A repeated request finds that it is
/// done, and reports so.
#[test]
fn an_end_that_a_repeated_request_finds_is_durable() {
    let kek = kek(1);
    for change in [Change { from: None, to: Some(&kek) }, Change { from: Some(&kek), to: None }] {
        let life = Life::new(1, change.from);
        let fs = life.fs.cut(1);
        fs.record();
        let mut random = StdRng::seed_from_u64(1);
        run_in_use(&fs, change, &mut random, None).finish_reencryption(change.meanwhile()).unwrap();
        let is_done = |fs: &SimFs| {
            let found = describe_on(fs, path()).unwrap().descriptor;
            found.reencrypting.is_none() && found.encryption.is_some() == change.to.is_some()
        };
        let outlives_cuts = |fs: &SimFs| (0..20).all(|cut| is_done(&fs.cut(cut)));
        let killed = (0..fs.moments()).flat_map(|moment| (0..4).map(move |seed| (moment, seed)));
        let killed = killed.map(|(moment, seed)| fs.killed_at(moment, seed));
        let image = killed.filter(is_done).find(|fs| !outlives_cuts(fs)).expect("an end that is not durable");
        authenticated_on(&image, path(), protection(change.to), 0).unwrap();
        assert!(outlives_cuts(&image), "{:?}", change.to.is_some());
    }
}

#[test]
fn power_cuts_while_a_volume_in_use_gets_or_loses_its_encryption_lose_nothing_and_leave_nothing() {
    let kek = kek(1);
    let mut found = [0; 3];
    for seed in 0..LIVES {
        let change = match seed % 2 {
            0 => Change { from: None, to: Some(&kek) },
            _ => Change { from: Some(&kek), to: None },
        };
        let life = Life::new(seed, change.from);
        let fs = life.fs.cut(seed);
        fs.record();
        let mut random = StdRng::seed_from_u64(seed);
        let meanwhile = change.meanwhile();
        run_in_use(&fs, change, &mut random, None).finish_reencryption(meanwhile).unwrap();
        for cut in 0..CUTS as u64 {
            let (moment, seed_of_cut) = (random.random_range(0..fs.moments()), seed * 1000 + cut);
            let image = match cut % 3 {
                0 => fs.killed_at(moment, seed_of_cut),
                _ => fs.cut_at(moment, seed_of_cut),
            };
            let says = |error: String| format!("life {seed}, moment {moment}, cut {cut}: {error}");
            let descriptor = describe_on(&image, path()).unwrap().descriptor;
            let top = descriptor.layer(descriptor.top).unwrap();
            assert!(
                descriptor.reencrypting.is_none() || top.is_clear() == change.to.is_none(),
                "life {seed}, moment {moment}: what is written is not of the new sort"
            );
            // Its next owner, of whom a person asks the same, opens it whatever was being done.
            let under = change.found_on(&image);
            let contents: Contents = match descriptor.reencrypting {
                // Snapshots are read under one protection alone.
                Some(_) => life.contents()[..1].to_vec(),
                None => life.contents(),
            };
            expect_under(&image, under, &contents, &mut random).map_err(says).unwrap();
            let left = match (descriptor.reencrypting, &descriptor.encryption) {
                (Some(_), _) => Left::UnderWay,
                (None, encryption) if encryption.is_some() == change.from.is_some() => Left::NotBegun,
                (None, _) => Left::Done,
            };
            found[left as usize] += 1;
            // It goes on while it is used, or when it is not.
            match (left, seed_of_cut % 2) {
                // Its end may be visible and not durable: a repeated request sees to that.
                (Left::Done, _) => {
                    authenticated_on(&image, path(), protection(change.to), 0).map(drop).unwrap();
                }
                (Left::NotBegun | Left::UnderWay, 0) => {
                    run_in_use(&image, change, &mut random, None).finish_reencryption(meanwhile).unwrap();
                }
                (Left::NotBegun | Left::UnderWay, _) => {
                    if left == Left::UnderWay {
                        // As the last process that used it leaves it.
                        let to_open = to_open_under(meanwhile, Access::ReadWrite);
                        let volume = open_on(&image, path(), &to_open).unwrap();
                        empty_log(&image, &volume, &mut random);
                    }
                    run(&image, change, &mut random, None).map_err(says).unwrap();
                }
            }
            let image = image.cut(seed_of_cut);
            expect(&image, change.to, &life.contents(), &mut random).map_err(says).unwrap();
            if change.to.is_some() {
                assert_eq!(plain_blocks(&image), Vec::<String>::new(), "life {seed}, moment {moment}");
            }
        }
    }
    let [not_begun, under_way, done] = found;
    println!("{not_begun} images before the job, {under_way} within it, {done} after it");
    assert!(not_begun > 0 && under_way > 0 && done > 0);
}

/// Replaces the descriptor by other bytes, as an attacker with the datastore can.
fn put_back(fs: &SimFs, bytes: &[u8]) {
    let directory = Storage::open_directory(fs, path()).unwrap();
    let file = directory.open("descriptor", OFlags::RDWR).unwrap();
    file.set_length(bytes.len() as u64).unwrap();
    file.write_at(0, bytes).unwrap();
}

fn descriptor_bytes(fs: &SimFs) -> Vec<u8> {
    let directory = Storage::open_directory(fs, path()).unwrap();
    let file = directory.open("descriptor", OFlags::RDONLY).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

/// The descriptor that says of its first sealed layer that it is clear, as an attacker writes it.
fn with_a_clear_layer(descriptor: &[u8]) -> Vec<u8> {
    let length = u32::from_le_bytes(descriptor[12..16].try_into().unwrap()) as usize;
    let body = std::str::from_utf8(&descriptor[16..16 + length]).unwrap();
    let start = body.find(r#""epochs":[{"#).unwrap() + r#""epochs":["#.len();
    let end = start + body[start..].find("}]}]").unwrap() + "}]}".len();
    let body = [&body[..start], &body[end..]].concat();
    // A layer without a key has no tags.
    let (before, after) = body.split_at(start);
    let after = after.replacen(r#""integrity":"polyval-aes-256-absence""#, r#""integrity":null"#, 1);
    let after = after.replacen(r#""integrity":"hmac-sha256-128-absence""#, r#""integrity":null"#, 1);
    let body = [before, after.as_str()].concat();
    let length = (body.len() as u32).to_le_bytes();
    [&descriptor[..12], &length, body.as_bytes(), &descriptor[descriptor.len() - 32..]].concat()
}

#[test]
fn a_volume_has_clear_layers_beside_sealed_ones_only_as_a_person_says() {
    let (own, other) = (kek(1), kek(2));
    for to in [Some(&own), None] {
        let change = Change { from: if to.is_some() { None } else { Some(&own) }, to };
        let life = Life::new(2, change.from);
        let mut random = StdRng::seed_from_u64(2);
        let before = descriptor_bytes(&life.fs);
        drop(run_in_use(&life.fs, change, &mut random, Some(0)));
        let begun = descriptor_bytes(&life.fs);
        drop(run_in_use(&life.fs, change, &mut random, Some(1)));
        expect_under(&life.fs, change.meanwhile(), &life.contents()[..1].to_vec(), &mut random).unwrap();
        // Neither who expects all of it sealed, or clear, nor who has the other job in mind.
        let (wrong_job, of_other) = match to {
            Some(_) => (Protection::Decrypting(&own), Protection::Encrypting(&other)),
            None => (Protection::Encrypting(&own), Protection::Decrypting(&other)),
        };
        let refused = [Protection::Encrypted(&own), Protection::Unencrypted, wrong_job, of_other];
        for protection in refused {
            for access in [Access::ReadOnly, Access::ReadWrite] {
                assert!(open_on(&life.fs, path(), &to_open_under(protection, access)).is_err());
            }
        }
        // What is written is of the new sort from the first block on.
        let mut volume =
            open_on(&life.fs, path(), &to_open_under(change.meanwhile(), Access::ReadWrite)).unwrap();
        let plain_before = plain_blocks(&life.fs).len();
        let blocks = Arc::clone(&volume.disk);
        let stages = plain_blocks_over(blocks, &mut volume).unwrap();
        let mut client = DiskAccess::on(event_loop(&life.fs, &mut random), &*stages.disk).unwrap();
        client.write_at(3 * BLOCK_BYTES, &[251; BLOCK]).unwrap();
        client.flush().unwrap();
        let is_plain = plain_blocks(&life.fs).len() > plain_before;
        assert_eq!(is_plain, to.is_none());
        let mut found = [0; BLOCK];
        client.read_at(3 * BLOCK_BYTES, &mut found).unwrap();
        assert_eq!(found, [251; BLOCK]);
        drop((client, stages));
        empty_log(&life.fs, &volume, &mut random);
        let generation = volume.descriptor().generation;
        drop(volume);

        // Its owner takes no descriptor of before, and none that was changed.
        let last = descriptor_bytes(&life.fs);
        let owner = OpenOptions {
            least_generation: generation,
            ..to_open_under(change.meanwhile(), Access::ReadWrite)
        };
        for old in [&before, &begun] {
            put_back(&life.fs, old);
            let refused = open_on(&life.fs, path(), &owner).unwrap_err();
            let is_refused = matches!(
                refused,
                DatastoreError::RolledBack { .. }
                    | DatastoreError::NotEncrypted { .. }
                    // Its top was replaced since.
                    | DatastoreError::MissingLayer { .. }
            );
            assert!(is_refused, "{refused}");
        }
        let forged = with_a_clear_layer(&last);
        put_back(&life.fs, &forged);
        let refused = open_on(&life.fs, path(), &owner).unwrap_err();
        assert!(matches!(refused, DatastoreError::NotAuthentic { .. }), "{refused}");
        put_back(&life.fs, &last);
        let volume = open_on(&life.fs, path(), &owner).unwrap();
        empty_log(&life.fs, &volume, &mut random);
        drop(volume);

        // A layer of the wrong sort is not taken.
        let mut job = begin_reencryption_on(&life.fs, path(), &change.options()).unwrap();
        let OpenRewrite { size_bytes, layers, keys, mut rewritten } = job.open_next().unwrap().unwrap();
        copy(&life.fs, size_bytes, layers, keys, &mut random).unwrap();
        rewritten.keep();
        let (of, right) = (rewritten.old(), rewritten.record().clone());
        let sealed = job.descriptor().layers.iter().find(|layer| !layer.is_clear()).unwrap().epochs.clone();
        drop((job, rewritten));
        let to_open = to_open_under(change.meanwhile(), Access::ReadWrite);
        let mut head = VolumeHead::open_on(&life.fs, path(), &to_open).unwrap();
        let wrong = LayerRecord { epochs: if to.is_some() { Vec::new() } else { sealed }, ..right.clone() };
        let refused = head.replace_rewritten(of, &wrong, change.meanwhile()).unwrap_err();
        assert!(matches!(refused, DatastoreError::NotRewritable { .. }), "{refused}");
        let refused = head.cancel_reencryption(change.meanwhile()).unwrap_err();
        assert!(matches!(refused, DatastoreError::HalfClear { .. }), "{refused}");
        head.replace_rewritten(of, &right, change.meanwhile()).unwrap();
    }
}

#[test]
fn a_mark_that_is_withdrawn_leaves_the_volume_as_it_was() {
    let own = kek(1);
    for change in [Change { from: None, to: Some(&own) }, Change { from: Some(&own), to: None }] {
        let life = Life::new(0, change.from);
        let mut random = StdRng::seed_from_u64(0);
        let mut head =
            VolumeHead::open_on(&life.fs, path(), &to_open(change.from, Access::ReadWrite)).unwrap();
        let before = head.descriptor().clone();
        let meanwhile = change.meanwhile();
        head.prepare_layer_of(meanwhile, NewTags::Kept, Some(LOG_BYTES)).unwrap();
        assert!(!head.withdraw_mark(&before, meanwhile).unwrap());
        head.withdraw_layer(meanwhile).unwrap();
        assert!(head.withdraw_mark(&before, meanwhile).unwrap());
        let after = Descriptor { generation: before.generation, ..head.descriptor().clone() };
        assert_eq!(after, before);
        drop(head);
        expect(&life.fs, change.from, &life.contents(), &mut random).unwrap();
    }
}

#[test]
fn no_sealed_layer_is_merged_into_a_clear_one() {
    let own = kek(1);
    for change in [Change { from: None, to: Some(&own) }, Change { from: Some(&own), to: None }] {
        let life = Life::new(1, change.from);
        let mut random = StdRng::seed_from_u64(1);
        // Only the new top is of the other sort.
        let mut head = run_in_use(&life.fs, change, &mut random, Some(0));
        let meanwhile = change.meanwhile();
        // No snapshot needs the layer below the top.
        assert_eq!(head.mark_merge(meanwhile).unwrap(), None);
        assert!(!head.descriptor().has_layers_to_merge());
        drop(head);
        let mut head = run_in_use(&life.fs, change, &mut random, None);
        head.finish_reencryption(meanwhile).unwrap();
        head.delete_snapshot(life.kept[0].0, protection(change.to)).unwrap();
        assert!(head.descriptor().merging.is_some() || head.descriptor().has_layers_to_merge());
        drop(head);
        let contents = vec![life.contents()[0].clone()];
        expect(&life.fs, change.to, &contents, &mut random).unwrap();
    }
}
