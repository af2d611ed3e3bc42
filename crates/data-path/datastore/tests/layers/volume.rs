//! A volume of layers, and checks of its state.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::IoError;
use strongroom_keys::{DescriptorKey, Kek, KekSource};
use strongroom_memory::secret::SecretBytes;
use strongroom_ring::Ring;
use strongroom_types::{KeyEpoch, LayerId, VolumeSize};

use crate::support::Destaging;

pub const MIB: u64 = 1 << 20;
/// A dropped ring releases its files a moment later.
pub const LOCK_WAIT: Duration = Duration::from_secs(60);

/// A volume in a datastore of its own.
pub struct Volume {
    _datastore: tempfile::TempDir,
    pub path: PathBuf,
    kek: Option<Kek>,
}

impl Volume {
    pub fn new(kek: Option<Kek>, bytes: u64, provisioning: Provisioning) -> Self {
        let datastore = tempfile::tempdir().unwrap();
        let volume = Self { path: datastore.path().join("vm1"), _datastore: datastore, kek };
        let options = CreateOptions {
            size: size(bytes),
            provisioning,
            protection: volume.protection(),
            log_bytes: Some(LOG_BYTES_MIN),
            integrity: volume.kek.is_some().then_some(Integrity::HmacSha256Absence),
        };
        create(&volume.path, &options).unwrap();
        volume
    }

    /// An encrypted, thin volume with tags.
    pub fn encrypted(bytes: u64) -> Self {
        Self::new(Some(kek(1)), bytes, Provisioning::Thin)
    }

    /// A clear, thin volume.
    pub fn clear(bytes: u64) -> Self {
        Self::new(None, bytes, Provisioning::Thin)
    }

    pub fn protection(&self) -> Protection<'_> {
        self.kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted)
    }

    pub fn options(&self) -> AddLayerOptions<'_> {
        AddLayerOptions {
            protection: self.protection(),
            log_bytes: Some(LOG_BYTES_MIN),
            lock_wait: LOCK_WAIT,
            least_generation: 0,
        }
    }

    pub fn add_layer(&self) -> Result<Descriptor, DatastoreError> {
        add_layer(&self.path, &self.options())
    }

    /// Adds `count` layers.
    pub fn and_layers(self, count: usize) -> Self {
        (0..count).for_each(|_| drop(self.add_layer().unwrap()));
        self
    }

    pub fn to_open(&self, access: Access) -> OpenOptions<'_> {
        let protection = self.protection();
        OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 }
    }

    pub fn open(&self) -> Result<OpenVolume, DatastoreError> {
        open(&self.path, &self.to_open(Access::ReadWrite))
    }

    pub fn descriptor(&self) -> Descriptor {
        describe(&self.path).unwrap().descriptor
    }

    /// Changes the descriptor of a clear volume with `change`.
    pub fn edit(&self, change: impl FnOnce(&mut Descriptor)) {
        let mut descriptor = self.descriptor();
        change(&mut descriptor);
        let body = serde_json::to_vec(&descriptor).unwrap();
        let length = (body.len() as u32).to_le_bytes();
        let signed = [b"STRGROOM".as_slice(), &FORMAT_VERSION.to_le_bytes(), &length, &body].concat();
        let checksum = DescriptorKey::checksum(&signed);
        fs::write(self.path.join("descriptor"), [signed.as_slice(), checksum.as_slice()].concat()).unwrap();
    }

    pub fn file(&self, prefix: &str, layer: LayerId) -> PathBuf {
        self.path.join(format!("{prefix}-{layer}"))
    }

    /// The name and content of every file that belongs to the volume. Reserve files have no
    /// content.
    pub fn state(&self) -> BTreeMap<String, Vec<u8>> {
        let entries = fs::read_dir(&self.path).unwrap().map(|entry| entry.unwrap().path());
        let named = entries.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path));
        let parts = named.filter(|(name, _)| !name.starts_with("descriptor.spare-"));
        parts.map(|(name, path)| (name, fs::read(path).unwrap())).collect()
    }

    pub fn names(&self) -> Vec<String> {
        self.state().into_keys().collect()
    }

    pub fn findings(&self) -> Vec<Finding> {
        check(&self.path, self.kek.as_ref()).unwrap()
    }

    /// Opening and checking refuse for the same reason.
    pub fn refused(&self) -> DatastoreError {
        let error = self.open().unwrap_err();
        let found = self.findings();
        let errors: Vec<_> = found.iter().filter(|finding| finding.severity == Severity::Error).collect();
        assert!(errors.iter().any(|finding| finding.message == error.to_string()), "{error}: {found:?}");
        error
    }
}

/// Closes an open volume, with an empty log.
pub fn close_in_order(opened: OpenVolume) {
    drop(Destaging::of(&opened.disk, ring));
}

pub fn ring() -> Result<Ring, IoError> {
    Ring::new(64).map_err(|_| IoError::Closed)
}

pub fn kek(fill: u8) -> Kek {
    KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
}

pub fn size(bytes: u64) -> VolumeSize {
    VolumeSize::new(bytes).unwrap()
}

pub fn epochs(numbers: impl IntoIterator<Item = u32>) -> Vec<KeyEpoch> {
    numbers.into_iter().map(|number| KeyEpoch::new(number).unwrap()).collect()
}

/// The file names in the directory of a volume of these layers, the top first.
pub fn expected_names(chain: &[LayerId], has_log: bool, has_tags: bool) -> Vec<String> {
    let mut names = vec!["descriptor".to_owned()];
    names.extend(has_log.then(|| format!("log-{}", chain[0])));
    for (index, layer) in chain.iter().enumerate() {
        names.push(format!("layer-{layer}"));
        names.extend(has_tags.then(|| format!("tags2-{layer}")));
        names.extend((index + 1 < chain.len()).then(|| format!("discards-{layer}")));
    }
    names.sort();
    names
}

pub fn chain(descriptor: &Descriptor) -> Vec<LayerId> {
    descriptor.chain().map(|layer| layer.id).collect()
}
