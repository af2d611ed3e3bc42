//! The description of a volume for people and programs.

use std::path::PathBuf;

use serde::Serialize;
use strongroom_datastore::file::{DescribedVolume, Descriptor, Integrity, Provisioning, Reencrypting};
use strongroom_keys::KekSource;
use strongroom_worker::control::{Status, status_of};

/// A volume as in `--json`; sizes are in bytes.
#[derive(Debug, Serialize)]
pub struct VolumeFacts {
    /// Its directory.
    pub path: PathBuf,
    /// Its permanent id.
    pub volume_id: String,
    /// The size that the guest sees.
    pub size_bytes: u64,
    /// The space that its files take.
    pub allocated_bytes: u64,
    /// The part of it in files that other volumes have too.
    pub shared_bytes: u64,
    /// Whether layers wait to be merged until no other volume has them.
    pub waits_for_others: bool,
    /// `thin` or `thick`.
    pub provisioning: &'static str,
    /// `None` for an unencrypted volume.
    pub encryption: Option<EncryptionFacts>,
    /// How its blocks are tagged; `None` if they are not.
    pub integrity: Option<Integrity>,
    /// The re-encryption that is under way; `None` if there is none.
    pub reencrypting: Option<ReencryptionFacts>,
    /// The count of its descriptors so far.
    pub generation: u64,
    /// When it was made.
    pub created_unix_seconds: u64,
    /// The count of its layers.
    pub layers: usize,
    /// The process that exposes it; `None` if there is none, with --read-only, or if it is unknown.
    pub exposure: Option<Status>,
}

/// How far a re-encryption is.
#[derive(Debug, Serialize)]
pub struct ReencryptionFacts {
    /// `encrypted`: its layers get other data keys; `clear`: they lose their encryption.
    pub to: &'static str,
    /// Layers that are still to be rewritten.
    pub left_layers: usize,
    /// All of its layers.
    pub layers: usize,
}

/// How a volume is encrypted.
#[derive(Debug, Serialize)]
pub struct EncryptionFacts {
    /// The cipher of the layer that takes writes.
    pub cipher: String,
    /// The source of its key: `passphrase`, `key_file` or `key_provider`.
    pub key_source: String,
    /// The provider of the key.
    pub key_provider: Option<String>,
    /// The provider's id of the key.
    pub provider_key_id: Option<String>,
    /// The id of the key-encryption key.
    pub kek_id: String,
    /// The new key-encryption key of a re-wrap in progress, which opens the volume too; `None`
    /// otherwise.
    pub next_kek_id: Option<String>,
    /// The epoch of the data-encryption key that seals writes.
    pub key_epoch: Option<u32>,
}

impl From<&DescribedVolume> for VolumeFacts {
    fn from(volume: &DescribedVolume) -> Self {
        let descriptor = &volume.descriptor;
        Self {
            path: volume.path.clone(),
            volume_id: descriptor.volume.to_string(),
            size_bytes: descriptor.size_bytes.bytes(),
            allocated_bytes: volume.space.committed_bytes,
            shared_bytes: volume.space.shared_bytes,
            waits_for_others: descriptor.waits_for_others(&volume.shared_layers),
            provisioning: provisioning_name(descriptor.provisioning),
            encryption: encryption_facts(descriptor),
            integrity: descriptor.layer(descriptor.top).and_then(|layer| layer.integrity),
            reencrypting: reencryption_facts(descriptor),
            generation: descriptor.generation,
            created_unix_seconds: descriptor.created_unix_seconds,
            layers: descriptor.layers.len(),
            exposure: status_of(&volume.path),
        }
    }
}

fn reencryption_facts(descriptor: &Descriptor) -> Option<ReencryptionFacts> {
    let to = match descriptor.reencrypting? {
        Reencrypting::Encrypted { .. } => "encrypted",
        Reencrypting::Clear {} => "clear",
    };
    let left_layers = descriptor.layers.iter().filter(|layer| !descriptor.is_reencrypted(layer)).count();
    Some(ReencryptionFacts { to, left_layers, layers: descriptor.layers.len() })
}

fn encryption_facts(descriptor: &Descriptor) -> Option<EncryptionFacts> {
    let encryption = descriptor.encryption.as_ref()?;
    let kek = &encryption.kek;
    let writes = descriptor.layer(descriptor.top).and_then(|layer| layer.epochs.last());
    let provided = match &kek.source {
        KekSource::Provider(key) => Some((key.provider.to_string(), key.key.to_string())),
        KekSource::Passphrase(_) | KekSource::KeyFile {} => None,
    };
    let (key_provider, provider_key_id) = provided.unzip();
    Some(EncryptionFacts {
        cipher: writes.map(|record| record.cipher.to_string()).unwrap_or_default(),
        key_source: kek.source.name().replace(' ', "_"),
        key_provider,
        provider_key_id,
        kek_id: kek.id.to_string(),
        next_kek_id: encryption.next_kek.as_ref().map(|next| next.id.to_string()),
        key_epoch: writes.map(|record| record.epoch.number()),
    })
}

/// `thin` or `thick`.
pub fn provisioning_name(provisioning: Provisioning) -> &'static str {
    match provisioning {
        Provisioning::Thin => "thin",
        Provisioning::Thick => "thick",
    }
}
