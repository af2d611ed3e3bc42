//! Power cuts and failing calls while a linked clone is made: it is there whole or not at all, its
//! origin is as before, and the next attempt succeeds.

use std::path::Path;
use std::time::Duration;

use strongroom_datastore::file::storage::Storage;
use strongroom_datastore::file::*;
use strongroom_keys::{Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_sim::{Faults, SimFs};
use strongroom_types::{SnapshotId, VolumeSize};

use super::history::path;
use super::mutations::{Mutation, Rule};

/// Cuts at each moment, with different outcomes.
const CUTS: u64 = 20;
/// Clones in which calls fail.
const FAULTY: u64 = 300;

struct Site {
    fs: SimFs,
    snapshot: SnapshotId,
    origin_kek: Kek,
    clone_kek: Kek,
}

fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

fn to_open(kek: &Kek, access: Access) -> OpenOptions<'_> {
    let protection = Protection::Encrypted(kek);
    OpenOptions { protection, access, lock_wait: Duration::ZERO, least_generation: 0 }
}

impl Site {
    /// A volume of three layers, the lower two of which a snapshot has.
    fn new(seed: u64) -> Self {
        let (fs, origin_kek) = (SimFs::new(seed), kek(1));
        let protection = Protection::Encrypted(&origin_kek);
        let options = CreateOptions {
            size: VolumeSize::new(256 << 10).unwrap(),
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: Some(LOG_BYTES_MIN),
            integrity: Some(Integrity::NEW),
        };
        create_on(&fs, &path("origin"), &options).unwrap();
        let add = AddLayerOptions {
            protection,
            log_bytes: Some(LOG_BYTES_MIN),
            lock_wait: Duration::ZERO,
            least_generation: 0,
        };
        add_layer_on(&fs, &path("origin"), &add).unwrap();
        let snapshot = NewSnapshot { id: SnapshotId::random(), name: "kept".parse().unwrap() };
        create_snapshot_on(&fs, &path("origin"), &snapshot, &add).unwrap();
        Self { fs, snapshot: snapshot.id, origin_kek, clone_kek: kek(2) }
    }

    fn link(&self, storage: &dyn Storage) -> Result<Descriptor, DatastoreError> {
        let options = to_open(&self.origin_kek, Access::ReadOnly);
        let origin = CloneOrigin { path: &path("origin"), volume: None, snapshot: self.snapshot, options };
        let protection = Protection::Encrypted(&self.clone_kek);
        link_snapshot_on(storage, &origin, &path("clone"), protection, Some(LOG_BYTES_MIN))
    }

    /// Whether the volumes of this file system, where a clone was being made, are as they should
    /// be; and if so, whether the clone is there.
    fn examine(&self, fs: &SimFs) -> Result<bool, String> {
        let told = |error: DatastoreError| error.to_string();
        let opens = |path: &Path, kek: &Kek| {
            let opened = open_on(fs, path, &to_open(kek, Access::ReadWrite)).map_err(told)?;
            let errors = check_on(fs, path, Some(kek)).map_err(told)?;
            match errors.into_iter().find(|finding| finding.severity == Severity::Error) {
                Some(error) => Err(error.message),
                None => Ok((1 + opened.lower.len(), opened.deks.len())),
            }
        };
        let whole = |found: (usize, usize)| if found == (3, 3) { Ok(()) } else { Err(format!("{found:?}")) };
        whole(opens(&path("origin"), &self.origin_kek)?)?;
        let is_there = fs.exists(&path("clone"));
        if !is_there {
            for name in
                Storage::open_directory(fs, Path::new("/ds")).and_then(|ds| ds.names()).unwrap_or_default()
            {
                if name.starts_with('.') {
                    delete_on(fs, &path(&name), Duration::ZERO).map_err(told)?;
                }
            }
            let origin = describe_on(fs, &path("origin")).map_err(told)?;
            if !origin.shared_layers.is_empty() {
                return Err("what is left of it pins the layers of its origin".to_owned());
            }
            self.link(fs).map_err(told)?;
        }
        whole(opens(&path("clone"), &self.clone_kek)?)?;
        // What they share outlives either, and nothing is merged into it before.
        let to_write = to_open(&self.origin_kek, Access::ReadWrite);
        delete_snapshot_on(fs, &path("origin"), self.snapshot, &to_write).map_err(told)?;
        if open_merge_on(fs, &path("origin"), &to_write).map_err(told)?.is_some() {
            return Err("a layer of the clone is merged into".to_owned());
        }
        delete_on(fs, &path("origin"), Duration::ZERO).map_err(told)?;
        whole(opens(&path("clone"), &self.clone_kek)?)?;
        Ok(is_there)
    }

    /// Cuts the power, or kills everybody, at every moment of a clone.
    fn cut(&self, storage: &dyn Storage) -> Result<(usize, usize), String> {
        self.fs.record();
        self.link(storage).unwrap();
        let mut found = [0; 2];
        for moment in 0..self.fs.moments() {
            for seed in 0..CUTS {
                let images = [self.fs.cut_at(moment, seed), self.fs.killed_at(moment, seed)];
                for (image, what) in images.iter().zip(["cut", "killed"]) {
                    let is_there = self
                        .examine(image)
                        .map_err(|wrong| format!("{what} at moment {moment}, seed {seed}: {wrong}"))?;
                    found[usize::from(is_there)] += 1;
                }
            }
        }
        for seed in 0..CUTS {
            if !self.examine(&self.fs.cut(seed))? {
                return Err("what was reported done is gone".to_owned());
            }
        }
        Ok((found[0], found[1]))
    }
}

#[test]
fn a_linked_clone_is_there_whole_or_not_at_all() {
    let site = Site::new(1);
    let (absent, there) = site.cut(&site.fs.clone()).unwrap();
    println!("{} moments: {absent} without the clone, {there} with it", site.fs.moments());
    assert!(absent > 0 && there > 0);
}

#[test]
fn a_clone_that_has_its_name_before_its_links_are_durable_is_caught() {
    let site = Site::new(1);
    let wrong = site.cut(&*Mutation::new(Rule::LinksNotSynced).storage(site.fs.clone())).unwrap_err();
    println!("{wrong}");
    assert!(wrong.contains("is missing") || wrong.contains("no descriptor"), "{wrong}");
}

#[test]
fn a_linked_clone_that_fails_leaves_its_origin_as_it_was() {
    let sorts = [
        Faults { write_error_one_in: 10, ..Faults::default() },
        Faults { sync_error_one_in: 6, ..Faults::default() },
        Faults { name_error_one_in: 12, ..Faults::default() },
        Faults { read_error_one_in: 8, ..Faults::default() },
    ];
    for faults in sorts {
        let mut failed = 0;
        for seed in 0..FAULTY / sorts.len() as u64 {
            let site = Site::new(seed);
            site.fs.set_faults(faults);
            let linked = site.link(&site.fs);
            site.fs.set_faults(Faults::default());
            let cut = site.fs.cut(seed);
            let [now, after_a_cut] = [&site.fs, &cut].map(|fs| site.examine(fs).unwrap());
            assert!(linked.is_err() || now && after_a_cut, "seed {seed}");
            failed += u32::from(linked.is_err());
        }
        println!("{faults:?}: {failed} failed");
        assert!(failed > 0);
    }
}
