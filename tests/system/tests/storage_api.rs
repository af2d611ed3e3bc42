//! The contract of the storage API, held on every datastore: the same operations have the same
//! effects wherever volumes lie.
//!
//! `STRONGROOM_TEST_DATASTORES` names directories of other file systems, separated by colons;
//! `scripts/test-file-systems` gives it ext4, XFS, btrfs and tmpfs.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use strongroom_system_tests::{Scratch, Serving};

const MIB: u64 = 1 << 20;
const SIZE_BYTES: u64 = 24 * MIB;
const GROWN_BYTES: u64 = 40 * MIB;
/// Where the image has content, in whole chunks of a map.
const CONTENT: [(u64, u64); 3] = [(0, 65536), (5 * MIB, 3 * 65536), (SIZE_BYTES - 65536, 65536)];

/// How a volume is stored, as an option of `vm create`; without other datastores only the first.
const SEALINGS: [&str; 3] = ["--integrity", "", "--unencrypted"];

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_datastore_keeps_the_contract_of_the_storage_api() {
    let scratch = Scratch::new();
    let mut serving = Serving::start(&scratch);
    make_image(&scratch.path("image.raw"));
    let named = std::env::var("STRONGROOM_TEST_DATASTORES").unwrap_or_default();
    let elsewhere = named.split(':').filter(|place| !place.is_empty()).map(|place| {
        let place = Path::new(place).join(format!("storage-api-{}", std::process::id()));
        fs::create_dir(&place).unwrap();
        place
    });
    let places: Vec<PathBuf> = std::iter::once(scratch.make_directory("here")).chain(elsewhere).collect();
    for (number, place) in places.iter().enumerate() {
        serving.runs(&format!("datastore add store{number} {}", place.display()));
        for sealing in SEALINGS.into_iter().take(if named.is_empty() { 1 } else { SEALINGS.len() }) {
            Contract { serving: &mut serving, scratch: &scratch, store: number, place, sealing }.holds();
        }
        serving.runs(&format!("datastore remove store{number}"));
        if number > 0 {
            fs::remove_dir_all(place).unwrap();
        }
    }
}

fn make_image(path: &Path) {
    let image = File::create_new(path).unwrap();
    image.set_len(SIZE_BYTES).unwrap();
    for (start, length) in CONTENT {
        let noise: Vec<u8> =
            (start..start + length).map(|at| ((at * 2_654_435_761) >> 13) as u8 | 1).collect();
        image.write_all_at(&noise, start).unwrap();
    }
}

struct Contract<'a, 'test> {
    serving: &'a mut Serving<'test>,
    scratch: &'a Scratch,
    store: usize,
    place: &'a Path,
    sealing: &'static str,
}

impl Contract<'_, '_> {
    fn holds(&mut self) {
        let store = format!("--datastore store{}", self.store);
        let sealing = self.sealing;
        self.runs(&format!(
            "vm create origin --memory 256M --net none --disk 24M --image image.raw {store} {sealing}"
        ));
        assert_eq!(self.map("origin/disk0", "allocated", &[]), content());

        // A copy of its own, of a VM's disk.
        self.runs(&format!("disk clone origin/disk0 data {store}"));
        self.has_the_image("data", SIZE_BYTES);
        assert_eq!(self.map("data", "allocated", &[]), content());
        assert_eq!(self.map("data", "unshared", &[]), content());

        // A snapshot shares everything with the present content.
        self.runs("disk snapshot create data monday");
        let since = [("since", "monday")];
        assert_eq!(self.map("data", "unshared", &[]), json!([]));
        assert_eq!(self.map("data", "changed", &since), json!([]));
        assert_eq!(self.map("data", "allocated", &[("snapshot", "monday")]), content());

        // A linked clone, with a snapshot and growth of its own.
        self.runs("disk clone data twin --linked --snapshot monday");
        self.runs("disk resize twin --size 40M");
        self.has_the_image("twin", GROWN_BYTES);
        assert_eq!(self.map("twin", "unshared", &[]), json!([]));
        let refused = self.serving.is_refused("disk delete data --yes");
        assert!(refused.contains("twin"), "{refused}");
        self.spaces_add_up();

        // Back to an earlier size and content, and forward again.
        self.runs("disk resize data --size 40M");
        self.runs("disk snapshot revert data monday --keep-as tuesday");
        assert_eq!(self.shown("data")["size_bytes"], SIZE_BYTES);
        self.runs("disk snapshot revert data tuesday --discard --yes");
        assert_eq!(self.shown("data")["size_bytes"], GROWN_BYTES);
        self.runs("disk snapshot revert data monday --discard --yes");
        for snapshot in ["monday", "tuesday"] {
            self.runs(&format!("disk snapshot delete data {snapshot} --yes"));
        }
        assert_eq!(self.shown("data")["snapshots"], json!([]));
        // The origin of a clone is not given away. A copy of it is.
        self.runs("disk clone data copy");
        self.has_the_image("copy", SIZE_BYTES);
        self.runs("disk delete copy --yes");
        self.has_the_image("twin", GROWN_BYTES);
        self.spaces_add_up();

        // All of it is on the datastore, and in the inventory.
        let before = self.listed();
        assert_eq!(before, BTreeSet::from(["data", "origin/disk0", "twin"].map(str::to_owned)));
        self.serving.end();
        self.serving.start_again();
        assert_eq!(self.listed(), before);
        self.runs("disk delete data --yes --leave-to-clones");
        self.has_the_image("twin", GROWN_BYTES);
        self.runs("disk delete twin --yes");
        self.runs("vm delete origin --yes");
        assert_eq!(self.listed(), BTreeSet::new());
    }

    #[track_caller]
    fn runs(&self, arguments: &str) -> String {
        self.serving.runs(arguments)
    }

    #[track_caller]
    fn shown(&self, volume: &str) -> Value {
        self.serving.json(&format!("disk show {volume}"))
    }

    /// The names of all volumes in the datastore.
    fn listed(&self) -> BTreeSet<String> {
        let list = self.serving.json("disk list");
        let name = |volume: &Value| {
            let own = volume["name"].as_str().map(str::to_owned);
            let text = |field: &str| volume[field].as_str().unwrap_or_else(|| panic!("{volume}"));
            own.unwrap_or_else(|| format!("{}/{}", text("vm_name"), text("disk")))
        };
        list["items"].as_array().unwrap().iter().map(name).collect()
    }

    /// A VM reads the whole volume, which is the image and zeroes behind it.
    #[track_caller]
    fn has_the_image(&self, volume: &str, size_bytes: u64) {
        self.runs(&format!("disk bind {volume} origin"));
        self.runs("vm export origin exported.raw --format raw --disk disk1");
        self.runs("disk unbind origin/disk1");
        let exported = self.scratch.path("exported.raw");
        assert_eq!(fs::metadata(&exported).unwrap().len(), size_bytes, "{volume}");
        self.serving
            .strongroom
            .peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "image.raw", "exported.raw"]);
        fs::remove_file(exported).unwrap();
    }

    /// The extents of a map, in chunks of 64 KiB.
    #[track_caller]
    fn map(&self, volume: &str, kind: &str, options: &[(&str, &str)]) -> Value {
        let mut wish = json!({"volume": self.shown(volume)["id"], "kind": kind});
        for (name, value) in options {
            wish[*name] = json!(value);
        }
        let answer = self.reading(wish);
        let extents = answer["map"]["extents"].as_array().unwrap_or_else(|| panic!("{answer}")).iter();
        extents.map(|extent| json!([extent["start_bytes"], extent["length_bytes"]])).collect()
    }

    fn reading(&self, wish: Value) -> Value {
        let answers = self.serving.posts("/v1/volumes/readings", &json!({"readings": [wish]}));
        answers["readings"][0].clone()
    }

    /// The committed space of all volumes is what their files take.
    #[track_caller]
    fn spaces_add_up(&self) {
        let mut own = 0;
        let mut shared = BTreeSet::new();
        for volume in self.listed() {
            let space = self.reading(json!({"volume": self.shown(&volume)["id"], "kind": "space"}));
            let space = &space["space"];
            let bytes = |name: &str| space[name].as_u64().unwrap_or_else(|| panic!("{space}"));
            assert_eq!(bytes("committed_bytes"), bytes("shared_bytes") + bytes("unshared_bytes"), "{space}");
            let contents = space["contents"].as_array().unwrap().iter();
            let alone: u64 = contents.map(|content| content["unshared_bytes"].as_u64().unwrap()).sum();
            assert_eq!(
                bytes("unshared_bytes"),
                alone + bytes("common_bytes") + bytes("other_bytes"),
                "{space}"
            );
            own += bytes("unshared_bytes");
            shared.insert(bytes("shared_bytes"));
        }
        // The clone and its origin share the same files, and the VM's disk shares none.
        let shared: u64 = shared.into_iter().sum();
        assert_eq!(own + shared, self.taken_bytes());
    }

    /// What `du` says of all volumes' directories: files that several of them have count once.
    fn taken_bytes(&self) -> u64 {
        let inside = |path: &Path| fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
        let of_vms = inside(self.place).filter(|path| path.is_dir());
        let volumes = of_vms.flat_map(|vm| inside(&vm).filter(|path| path.is_dir()).collect::<Vec<_>>());
        let volumes: Vec<_> = volumes.map(|path| path.into_os_string().into_string().unwrap()).collect();
        let words = ["--summarize", "--total", "--block-size=1"].into_iter();
        let words: Vec<_> = words.chain(volumes.iter().map(String::as_str)).collect();
        let said = self.serving.strongroom.peer("du", &words);
        let total = said.lines().last().and_then(|line| line.strip_suffix("\ttotal"));
        total.and_then(|bytes| bytes.parse().ok()).unwrap_or_else(|| panic!("{said}"))
    }
}

fn content() -> Value {
    CONTENT.iter().map(|(start, length)| json!([start, length])).collect()
}
