//! Power cuts and kills in long lives of volumes that share layers: clones are linked, both sides
//! are written, snapshots are made and deleted, layers are merged, volumes are reverted and
//! deleted. Whatever is there afterwards has the content that it must have, and outlives the
//! others.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]
#![allow(clippy::print_stdout, reason = "what it found is for people to read")]

#[path = "support/blocks.rs"]
mod blocks;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blocks::{BLOCK, Oracle, event_loop, kek, protection, to_open, with_disk};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_keys::Kek;
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, SnapshotId, VolumeSize};
use strongroom_worker::layers::MergeStages;
use strongroom_worker::{Copying, Step, Stride};

const BLOCKS: u64 = 24;
const LOG_BYTES: u64 = 1 << 20;
const STRIDE: Stride = Stride { depth: 2, piece_bytes: 2 * BLOCK_BYTES, step_bytes: 4 * BLOCK_BYTES };
/// The most volumes at a time, snapshots of each, and layers on each other.
const MEMBERS_MAX: usize = 4;
const SNAPSHOTS_MAX: usize = 3;
const CHAIN_MAX: usize = 7;
/// Changes in a life.
const STEPS: usize = 40;

const LIVES: u64 = if cfg!(feature = "full") { 100 } else { 12 };
/// Moments of each life at which the power is cut.
const CUTS: usize = if cfg!(feature = "full") { 300 } else { 40 };

fn path(name: &str) -> PathBuf {
    Path::new("/ds").join(name)
}

/// A snapshot, with the content that it has.
#[derive(Clone)]
struct Kept {
    id: SnapshotId,
    content: Oracle,
}

/// What is known of a volume at a moment.
#[derive(Clone)]
struct Member {
    /// Which of the keys it is under.
    kek: usize,
    /// It has one of these contents: more than one while it is reverted.
    contents: Vec<Oracle>,
    snapshots: Vec<Kept>,
    /// A snapshot that is being made or deleted.
    perhaps: Option<Kept>,
    presence: Presence,
}

/// Whether a volume is there.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Presence {
    There,
    /// It is being made: there whole, or not at all.
    Made,
    /// It is being deleted: there whole, not at all, or what is left of it.
    Deleted,
}

type Family = BTreeMap<String, Member>;

struct Life<'a> {
    fs: SimFs,
    /// Keys for every volume; none if they are not encrypted.
    keks: &'a [Kek],
    random: StdRng,
    family: Family,
    /// The family at each recorded moment at which it has changed.
    history: Vec<(usize, Family)>,
    next_fill: u8,
    /// How many snapshots have got a name.
    names: u32,
    /// How many changes of each sort were made.
    made: BTreeMap<&'static str, usize>,
}

impl<'a> Life<'a> {
    fn new(seed: u64, keks: &'a [Kek]) -> Self {
        let mut life = Life {
            fs: SimFs::new(seed),
            keks,
            random: StdRng::seed_from_u64(seed),
            family: Family::new(),
            history: Vec::new(),
            next_fill: 0,
            names: 0,
            made: BTreeMap::new(),
        };
        let options = CreateOptions {
            size: VolumeSize::new(BLOCKS * BLOCK_BYTES).unwrap(),
            provisioning: Provisioning::Thin,
            protection: protection(keks.first()),
            log_bytes: Some(LOG_BYTES),
            integrity: (!keks.is_empty() && seed.is_multiple_of(2)).then_some(Integrity::NEW),
        };
        create_on(&life.fs, &path("v0"), &options).unwrap();
        let contents = vec![Oracle::new(BLOCKS)];
        let first =
            Member { kek: 0, contents, snapshots: Vec::new(), perhaps: None, presence: Presence::There };
        life.family.insert("v0".to_owned(), first);
        life.fs.record();
        life.note();
        life
    }

    /// Notes what is known from now on.
    fn note(&mut self) {
        self.history.push((self.fs.moments(), self.family.clone()));
    }

    fn counted(&mut self, what: &'static str) {
        *self.made.entry(what).or_default() += 1;
    }

    fn kek(&self, name: &str) -> Option<&'a Kek> {
        self.keks.get(self.family[name].kek)
    }

    fn any(&mut self) -> String {
        let at = self.random.random_range(0..self.family.len());
        self.family.keys().nth(at).unwrap().clone()
    }

    fn any_snapshot(&mut self, name: &str) -> Option<Kept> {
        let count = self.family[name].snapshots.len();
        let at = self.random.random_range(0..count.max(1));
        self.family[name].snapshots.get(at).cloned()
    }

    fn to_add(&self, name: &str) -> AddLayerOptions<'a> {
        let (log_bytes, lock_wait, least_generation) = (Some(LOG_BYTES), Duration::ZERO, 0);
        AddLayerOptions { protection: protection(self.kek(name)), log_bytes, lock_wait, least_generation }
    }

    /// Whether another layer on the present content says no more than these do.
    fn is_deep(&self, name: &str) -> bool {
        describe_on(&self.fs, &path(name)).unwrap().descriptor.chain().count() >= CHAIN_MAX
    }

    fn step(&mut self) {
        let name = self.any();
        match self.random.random_range(0..16) {
            0..4 => self.write(&name),
            4..6 => self.snapshot(&name),
            6..8 => self.delete_snapshot(&name),
            8..11 => self.merge(&name),
            11 => self.revert(&name),
            12..15 => self.link(&name),
            _ => self.delete(&name),
        }
    }

    fn write(&mut self, name: &str) {
        let (fs, kek, mut random) = (self.fs.clone(), self.kek(name), self.random.clone());
        let written = with_disk(&fs, &path(name), kek, &mut random, |disk, random| {
            for _ in 0..random.random_range(1..5) {
                let first = random.random_range(0..BLOCKS);
                let end = (first + random.random_range(1..4)).min(BLOCKS);
                let is_zeroes = random.random_range(0..3) == 0;
                self.next_fill = self.next_fill % 250 + 1;
                let fill = if is_zeroes { 0 } else { self.next_fill };
                let oracle = &mut self.family.get_mut(name).unwrap().contents[0];
                (first..end).for_each(|block| oracle.write(block, fill));
                self.note();
                let bytes = vec![fill; (end - first) as usize * BLOCK];
                match is_zeroes {
                    true => disk.write_zeroes_at(first * BLOCK_BYTES, bytes.len() as u64),
                    false => disk.write_at(first * BLOCK_BYTES, &bytes),
                }
                .unwrap();
            }
            disk.flush().unwrap();
            self.family.get_mut(name).unwrap().contents[0].flushed();
            self.note();
            Ok(())
        });
        self.random = random;
        written.unwrap();
        self.counted("written");
    }

    /// Changes what is known of a member before and after something is done.
    fn change<T>(
        &mut self,
        name: &str,
        may: impl FnOnce(&mut Member),
        act: impl FnOnce(&Self) -> Result<T, DatastoreError>,
        is: impl FnOnce(&mut Member),
    ) -> T {
        may(self.family.get_mut(name).unwrap());
        self.note();
        let done = act(self).unwrap();
        is(self.family.get_mut(name).unwrap());
        self.note();
        done
    }

    fn snapshot(&mut self, name: &str) {
        if self.family[name].snapshots.len() >= SNAPSHOTS_MAX || self.is_deep(name) {
            return;
        }
        let kept = Kept { id: SnapshotId::random(), content: self.family[name].contents[0].clone() };
        self.names += 1;
        let new = NewSnapshot { id: kept.id, name: format!("s{}", self.names).parse().unwrap() };
        self.change(
            name,
            |member| member.perhaps = Some(kept.clone()),
            |life| create_snapshot_on(&life.fs, &path(name), &new, &life.to_add(name)),
            |member| member.snapshots.extend(member.perhaps.take()),
        );
        self.counted("snapshots");
    }

    fn delete_snapshot(&mut self, name: &str) {
        let Some(kept) = self.any_snapshot(name) else { return };
        self.change(
            name,
            |member| {
                member.snapshots.retain(|other| other.id != kept.id);
                member.perhaps = Some(kept.clone());
            },
            |life| delete_snapshot_on(&life.fs, &path(name), kept.id, &to_open(life.kek(name))),
            |member| member.perhaps = None,
        );
        self.counted("snapshots deleted");
    }

    fn merge(&mut self, name: &str) {
        let kek = self.kek(name);
        if merge_next(&self.fs, &path(name), kek, &mut self.random).unwrap() {
            self.counted("merges");
        }
    }

    fn revert(&mut self, name: &str) {
        let Some(kept) = self.any_snapshot(name) else { return };
        self.change(
            name,
            |member| member.contents.push(kept.content.clone()),
            |life| revert_on(&life.fs, &path(name), kept.id, None, &life.to_add(name)),
            |member| drop(member.contents.remove(0)),
        );
        self.counted("reverts");
    }

    fn link(&mut self, of: &str) {
        let Some(kept) = self.any_snapshot(of) else { return };
        if self.family.len() >= MEMBERS_MAX {
            return;
        }
        let name = (0..).map(|at| format!("v{at}")).find(|name| !self.family.contains_key(name)).unwrap();
        let kek = self.random.random_range(0..self.keks.len().max(1));
        let contents = vec![kept.content.clone()];
        let clone = Member { kek, contents, snapshots: Vec::new(), perhaps: None, presence: Presence::Made };
        self.family.insert(name.clone(), clone);
        self.note();
        let options = OpenOptions { access: Access::ReadOnly, ..to_open(self.kek(of)) };
        let origin = CloneOrigin { path: &path(of), volume: None, snapshot: kept.id, options };
        let under = protection(self.keks.get(kek));
        match link_snapshot_on(&self.fs, &origin, &path(&name), under, Some(LOG_BYTES)) {
            Ok(_) => {
                self.family.get_mut(&name).unwrap().presence = Presence::There;
                self.counted("clones");
            }
            // A merge into its layers was marked, and nobody links to them until it is done.
            Err(refused) => {
                let merging = describe_on(&self.fs, &path(of)).unwrap().descriptor.merging;
                assert!(merging.is_some() && !self.fs.exists(&path(&name)), "{refused}");
                self.family.remove(&name);
                self.counted("clones refused");
            }
        }
        self.note();
    }

    fn delete(&mut self, name: &str) {
        if self.family.len() == 1 {
            return;
        }
        self.change(
            name,
            |member| member.presence = Presence::Deleted,
            |life| delete_on(&life.fs, &path(name), Duration::ZERO),
            |_| {},
        );
        self.family.remove(name);
        self.note();
        self.counted("volumes deleted");
    }

    /// What is known at a moment.
    fn at(&self, moment: usize) -> Family {
        self.history.iter().rev().find(|(at, _)| *at <= moment).unwrap_or(&self.history[0]).1.clone()
    }
}

/// Merges the next two layers of a volume; `false` if there are none.
fn merge_next(fs: &SimFs, path: &Path, kek: Option<&Kek>, random: &mut StdRng) -> Result<bool, String> {
    let told = |error: DatastoreError| error.to_string();
    let Some(OpenMerge { size_bytes, layers, keys, finish }) =
        open_merge_on(fs, path, &to_open(kek)).map_err(told)?
    else {
        return Ok(false);
    };
    let stages = MergeStages::merging(layers, keys).map_err(|error| error.to_string())?;
    let mut copying = Copying::open(&stages, 0..size_bytes, event_loop(fs, random), STRIDE)
        .map_err(|error| error.to_string())?;
    while copying.step().map_err(|error| error.to_string())? != Step::Ended {}
    copying.finish().map_err(|error| error.to_string())?;
    drop(stages);
    finish.finish(&to_open(kek)).map_err(told)?;
    Ok(true)
}

/// A file system after a power cut, with what is known of it.
struct Image<'a> {
    fs: SimFs,
    keks: &'a [Kek],
    random: StdRng,
}

impl Image<'_> {
    /// Compares the content of a volume, and closes it.
    fn has(&mut self, name: &str, kek: Option<&Kek>, contents: &[Oracle]) -> Result<(), String> {
        let compared = with_disk(&self.fs, &path(name), kek, &mut self.random, |disk, _| {
            let mut bytes = vec![0; (BLOCKS * BLOCK_BYTES) as usize];
            disk.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
            let mut wrong = contents.iter().map(|content| content.check(&bytes));
            let first = wrong.next().unwrap();
            if first.is_ok() || wrong.any(|other| other.is_ok()) { Ok(()) } else { first }
        });
        compared.map_err(|wrong| format!("{name}: {wrong}"))
    }

    /// Compares all volumes with what is known, and ends their lives one after the other: what is
    /// left of the others changes none, and the last one shares nothing.
    fn outlives(mut self, mut family: Family) -> Result<(), String> {
        let told = |error: DatastoreError| error.to_string();
        let names = Storage::open_directory(&self.fs, Path::new("/ds")).and_then(|ds| ds.names()).unwrap();
        for name in names.iter().filter(|name| name.starts_with('.')) {
            delete_on(&self.fs, &path(name), Duration::ZERO).map_err(told)?;
        }
        if let Some(name) = names.iter().find(|name| !name.starts_with('.') && !family.contains_key(*name)) {
            return Err(format!("{name} is there again"));
        }
        for (name, _) in family.iter().filter(|(_, member)| member.presence == Presence::Deleted) {
            if self.fs.exists(&path(name)) && describe_on(&self.fs, &path(name)).is_err() {
                delete_on(&self.fs, &path(name), Duration::ZERO).map_err(told)?;
            }
        }
        let absent = |name: &String| !self.fs.exists(&path(name));
        let is_lost =
            |(name, member): &(&String, &Member)| absent(name) && member.presence == Presence::There;
        if let Some((name, _)) = family.iter().find(is_lost) {
            return Err(format!("{name} is not there"));
        }
        family.retain(|name, _| !absent(name));
        for (name, member) in &family {
            let kek = self.keks.get(member.kek);
            self.has(name, kek, &member.contents)?;
            let found = describe_on(&self.fs, &path(name)).map_err(told)?.descriptor.snapshots;
            let known = |id| member.snapshots.iter().chain(&member.perhaps).find(|kept| kept.id == id);
            if let Some(kept) =
                member.snapshots.iter().find(|kept| !found.iter().any(|one| one.id == kept.id))
            {
                return Err(format!("{name} lacks snapshot {}", kept.id));
            }
            for snapshot in found {
                let kept = known(snapshot.id).ok_or(format!("{name} has snapshot {} again", snapshot.id))?;
                let (log_bytes, lock_wait, least_generation) = (Some(LOG_BYTES), Duration::ZERO, 0);
                let options =
                    AddLayerOptions { protection: protection(kek), log_bytes, lock_wait, least_generation };
                revert_on(&self.fs, &path(name), kept.id, None, &options).map_err(told)?;
                self.has(name, kek, std::slice::from_ref(&kept.content))
                    .map_err(|wrong| format!("snapshot {}: {wrong}", kept.id))?;
            }
            for finding in check_on(&self.fs, &path(name), kek).map_err(told)? {
                if finding.severity == Severity::Error {
                    return Err(format!("{name}: {}", finding.message));
                }
            }
        }
        self.end(&family)
    }

    fn end(mut self, family: &Family) -> Result<(), String> {
        let told = |error: DatastoreError| error.to_string();
        // The present contents, after the reverts.
        let mut contents = BTreeMap::new();
        for (name, member) in family {
            let kek = self.keks.get(member.kek);
            let mut bytes = vec![0; (BLOCKS * BLOCK_BYTES) as usize];
            with_disk(&self.fs, &path(name), kek, &mut self.random, |disk, _| {
                disk.read_at(0, &mut bytes).map_err(|error| error.to_string())
            })?;
            contents.insert(name, bytes);
            for snapshot in describe_on(&self.fs, &path(name)).map_err(told)?.descriptor.snapshots {
                delete_snapshot_on(&self.fs, &path(name), snapshot.id, &to_open(kek)).map_err(told)?;
            }
        }
        let mut left: Vec<_> = family.iter().collect();
        while let Some((gone, _)) = left.first().copied() {
            for (name, member) in &left {
                let kek = self.keks.get(member.kek);
                while merge_next(&self.fs, &path(name), kek, &mut self.random)? {}
                with_disk(&self.fs, &path(name), kek, &mut self.random, |disk, _| {
                    let mut bytes = vec![0; (BLOCKS * BLOCK_BYTES) as usize];
                    disk.read_at(0, &mut bytes).map_err(|error| error.to_string())?;
                    if bytes == contents[name] { Ok(()) } else { Err("another content".to_owned()) }
                })
                .map_err(|wrong| format!("{name}, of {} that are left: {wrong}", left.len()))?;
            }
            if left.len() == 1 {
                let layers = describe_on(&self.fs, &path(gone)).map_err(told)?.descriptor.layers.len();
                if layers > 1 {
                    return Err(format!("{gone} has {layers} layers, which nobody else has"));
                }
            }
            delete_on(&self.fs, &path(gone), Duration::ZERO).map_err(told)?;
            left.remove(0);
        }
        Ok(())
    }
}

#[test]
fn power_cuts_in_the_lives_of_clones_and_their_origins_lose_nothing() {
    let keks = [kek(1), kek(2), kek(3)];
    let mut made: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut cuts, mut shared) = (0, 0);
    for seed in 0..LIVES {
        let mut life = Life::new(seed, if seed % 4 == 3 { &[] } else { &keks });
        (0..STEPS).for_each(|_| life.step());
        for cut in 0..CUTS as u64 {
            let moment = life.random.random_range(0..life.fs.moments());
            let seed_of_cut = seed * 1000 + cut;
            let fs = match cut % 3 {
                0 => life.fs.killed_at(moment, seed_of_cut),
                _ => life.fs.cut_at(moment, seed_of_cut),
            };
            let family = life.at(moment);
            let has_shared = |name: &String| {
                describe_on(&fs, &path(name)).is_ok_and(|found| !found.shared_layers.is_empty())
            };
            shared += usize::from(family.keys().any(has_shared));
            let image = Image { fs, keks: life.keks, random: StdRng::seed_from_u64(seed_of_cut) };
            let outlives = image.outlives(family);
            outlives.unwrap_or_else(|wrong| panic!("life {seed}, moment {moment}, cut {cut}: {wrong}"));
            cuts += 1;
        }
        life.made.iter().for_each(|(what, count)| *made.entry(what).or_default() += count);
    }
    println!("{cuts} cuts, {shared} of volumes that share layers; {made:?}");
    for what in
        ["written", "snapshots", "snapshots deleted", "merges", "reverts", "clones", "volumes deleted"]
    {
        assert!(made.get(what).is_some_and(|count| *count > 0), "{what}: {made:?}");
    }
    assert!(shared * 4 > cuts, "{shared} of {cuts}");
}
