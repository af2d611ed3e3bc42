//! The configuration of a VM, authenticated under its own keys.
//!
//! Anyone who can write to the datastore can write to `vm.json`. The fields that decide how the VM
//! starts (disks and their volumes, which key encrypts each, networks, kernel, firmware, policy)
//! are therefore in there a second time, as the text of the configuration that the VM's supervisor
//! last used, with a tag under each of the VM's keys. Without all of these keys, no one can make an
//! attestation, not even with the keys of other VMs. Fields that change without the keys (starts,
//! dumps, labels, a suspended memory) are not covered. A VM without encrypted disks has no
//! attestation: only the inventory vouches for it.
//!
//! The attestation is judged when a VM is registered. For every other VM, the control plane's
//! inventory has the configuration.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use strongroom_types::{DESCRIPTOR_TAG_BYTES, ProviderKey, VmId, hex};

use crate::protocol::{DiskKey, VmGeneration, VmSpec};

/// Authenticates a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attestation {
    /// The VM's last start when the attestation was made.
    generation: VmGeneration,
    /// The [`VmSpec`] as JSON, without the paths of its datastores.
    configuration: String,
    /// A tag under each key that the configuration names.
    tags: Vec<KeyedTag>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyedTag {
    key: ProviderKey,
    #[serde(with = "hex::array")]
    tag: [u8; DESCRIPTOR_TAG_BYTES],
}

/// The input of a tag. The holder of the key makes and verifies the tag.
#[derive(Debug)]
pub struct Attested<'a> {
    vm: VmId,
    message: &'a [u8],
}

impl Attested<'_> {
    /// The attested VM.
    pub fn vm(&self) -> VmId {
        self.vm
    }

    /// The message under the tag. The tag's key is derived from one of the VM's keys by the holder
    /// of that key.
    pub fn message(&self) -> &[u8] {
        self.message
    }
}

impl Attestation {
    /// Attests a configuration; `tag` makes a tag under each of its keys. Returns `None` for a VM
    /// without keys.
    ///
    /// # Errors
    /// The errors of `tag`.
    pub fn make<E>(
        spec: &VmSpec,
        generation: VmGeneration,
        mut tag: impl FnMut(&ProviderKey, &Attested<'_>) -> Result<[u8; DESCRIPTOR_TAG_BYTES], E>,
    ) -> Result<Option<Self>, E> {
        let keys = keys(spec);
        if keys.is_empty() {
            return Ok(None);
        }
        let configuration = text(spec);
        let message = message(generation, &configuration);
        let attested = Attested { vm: spec.id, message: &message };
        let tags = keys.into_iter().map(|key| Ok(KeyedTag { tag: tag(key, &attested)?, key: key.clone() }));
        let tags = tags.collect::<Result<_, E>>()?;
        Ok(Some(Self { generation, configuration, tags }))
    }

    /// Returns the objections to `spec` as the attested configuration; an empty list means that it
    /// is attested. `found` is the start number in the rest of the record. `verify` checks a tag
    /// under one of the VM's keys, or returns why it cannot.
    pub fn doubts(
        &self,
        spec: &VmSpec,
        found: VmGeneration,
        mut verify: impl FnMut(&ProviderKey, &Attested<'_>, &[u8; DESCRIPTOR_TAG_BYTES]) -> Result<bool, String>,
    ) -> Vec<String> {
        let Ok(attested) = serde_json::from_str::<VmSpec>(&self.configuration) else {
            return vec!["its attested configuration cannot be read".to_owned()];
        };
        // `verify` has only the VM's own keys: the owner of another VM could tag anything under
        // their own.
        let message = message(self.generation, &self.configuration);
        let what = Attested { vm: spec.id, message: &message };
        for key in keys(&attested) {
            let Some(keyed) = self.tags.iter().find(|keyed| keyed.key == *key) else {
                return vec![format!("its attestation is not under {key}")];
            };
            match verify(key, &what, &keyed.tag) {
                Ok(true) => {}
                Ok(false) => return vec![format!("its attestation is not authentic under {key}")],
                Err(reason) => return vec![format!("its attestation cannot be verified: {reason}")],
            }
        }
        if keys(&attested).is_empty() {
            return vec!["its attested configuration names no key".to_owned()];
        }
        let mut doubts = differences(&attested, spec);
        if found < self.generation {
            doubts.push(format!(
                "it says that it was started {found} times, and was {} times",
                self.generation
            ));
        }
        doubts
    }
}

/// Returns the keys that its disks are under or are moving to, each once.
pub fn keys(spec: &VmSpec) -> Vec<&ProviderKey> {
    let mut keys: Vec<&ProviderKey> = Vec::new();
    for disk in &spec.disks {
        let (key, next) = match &disk.key {
            DiskKey::Provider { key, next, .. } => (key, next.as_ref()),
            DiskKey::HalfClear { key, .. } => (key, None),
            DiskKey::Unencrypted => continue,
        };
        for key in std::iter::once(key).chain(next) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
    }
    keys
}

fn text(spec: &VmSpec) -> String {
    serde_json::to_string(&spec.clone().without_paths()).unwrap_or_default()
}

fn message(generation: VmGeneration, configuration: &str) -> Vec<u8> {
    [&generation.0.to_be_bytes(), configuration.as_bytes()].concat()
}

/// Returns the names of the fields that differ.
fn differences(attested: &VmSpec, found: &VmSpec) -> Vec<String> {
    let parts = |spec: &VmSpec| match serde_json::to_value(spec.clone().without_paths()) {
        Ok(serde_json::Value::Object(parts)) => parts,
        _ => serde_json::Map::new(),
    };
    let (attested, found) = (parts(attested), parts(found));
    let names: BTreeSet<&String> = attested.keys().chain(found.keys()).collect();
    let differ = names.into_iter().filter(|name| attested.get(*name) != found.get(*name));
    differ.map(|name| format!("its {} is not what was attested", name.replace('_', " "))).collect()
}

#[cfg(test)]
mod tests {
    use strongroom_keys::{ConfigurationKey, Kek, KekSource, KeyError};
    use strongroom_memory::secret::SecretBytes;

    use super::*;

    fn kek(fill: u8) -> Kek {
        KekSource::KeyFile {}.kek(&SecretBytes::from_slice_and_wipe(&mut [fill; 32]).unwrap()).unwrap()
    }

    /// The KEK for a provider's key in these tests: every byte is the key's id.
    fn of(key: &ProviderKey) -> Kek {
        kek(key.key.to_string().parse().unwrap())
    }

    /// Makes a tag as a VM's supervisor does.
    fn tag(what: &Attested<'_>, kek: &Kek) -> [u8; DESCRIPTOR_TAG_BYTES] {
        ConfigurationKey::derive(kek, what.vm()).unwrap().tag(what.message()).unwrap()
    }

    /// Verifies a tag as a VM's supervisor does.
    fn is_tag(what: &Attested<'_>, kek: &Kek, tag: &[u8; DESCRIPTOR_TAG_BYTES]) -> bool {
        ConfigurationKey::derive(kek, what.vm()).unwrap().verify(what.message(), tag)
    }

    fn spec(keys: &[&str]) -> VmSpec {
        let disk = |(number, key): (usize, &&str)| {
            let sealing = match *key {
                "" => r#""unencrypted""#.to_owned(),
                key => format!(r#"{{"provider":{{"key":{{"provider":"corp","key":"{key}"}}}}}}"#),
            };
            format!(r#"{{"name":"disk{number}","size_bytes":1048576,"key":{sealing}}}"#)
        };
        let disks: Vec<_> = keys.iter().enumerate().map(disk).collect();
        let text = format!(
            r#"{{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"web1","datastore":"/srv/ds",
                "memory_bytes":268435456,"disks":[{}]}}"#,
            disks.join(",")
        );
        serde_json::from_str(&text).unwrap()
    }

    fn attest(spec: &VmSpec, generation: u64) -> Attestation {
        let made = Attestation::make(spec, VmGeneration(generation), |key, what| {
            Ok::<_, KeyError>(tag(what, &of(key)))
        });
        made.unwrap().unwrap()
    }

    /// Judges as a supervisor that can fetch only these keys.
    fn judged(attestation: &Attestation, spec: &VmSpec, found: u64, held: &[&str]) -> Vec<String> {
        attestation.doubts(spec, VmGeneration(found), |key, what, tag| {
            match held.contains(&key.key.to_string().as_str()) {
                true => Ok(is_tag(what, &of(key), tag)),
                false => Err(format!("no leave to use {key}")),
            }
        })
    }

    #[test]
    fn what_was_attested_is_known_again_wherever_it_lies_and_however_often_it_was_started() {
        let spec = spec(&["1", "", "2"]);
        let attestation = attest(&spec, 7);
        let text = serde_json::to_string(&attestation).unwrap();
        let attestation: Attestation = serde_json::from_str(&text).unwrap();
        let moved = VmSpec { datastore: "/mnt/other".into(), ..spec.clone() };
        assert_eq!(judged(&attestation, &moved, 7, &["1", "2"]), [""; 0]);
        assert_eq!(judged(&attestation, &moved, 9, &["1", "2"]), [""; 0]);
        assert!(judged(&attestation, &spec, 6, &["1", "2"])[0].contains("started"));
        assert!(judged(&attestation, &spec, 7, &["1"])[0].contains("cannot be verified"));
        let clear = self::spec(&[""]);
        let none = Attestation::make(&clear, VmGeneration(1), |_, _| Err(()));
        assert_eq!(none, Ok(None), "nobody can vouch for it");
    }

    #[test]
    fn whoever_has_other_keys_attests_nothing() {
        let genuine = spec(&["1"]);
        // The attacker attests a configuration with the victim's disk behind their own.
        let mut forged = spec(&["9", "1"]);
        let under_his = |key: &ProviderKey, what: &Attested<'_>| {
            Ok::<_, KeyError>(if key.key.to_string() == "9" {
                tag(what, &of(key))
            } else {
                tag(what, &kek(9))
            })
        };
        let attestation = Attestation::make(&forged, VmGeneration(1), under_his).unwrap().unwrap();
        assert!(judged(&attestation, &forged, 1, &["1", "9"])[0].contains("not authentic"));
        let mut left_out = attestation.clone();
        left_out.tags.truncate(1);
        assert!(judged(&left_out, &forged, 1, &["1", "9"])[0].contains("not under"));
        // The attacker attests a configuration whose disks move to their own key.
        forged = genuine.clone();
        if let DiskKey::Provider { next, key, .. } = &mut forged.disks[0].key {
            *next = Some(ProviderKey { key: "9".parse().unwrap(), ..key.clone() });
        }
        let attestation = Attestation::make(&forged, VmGeneration(1), under_his).unwrap().unwrap();
        assert!(judged(&attestation, &forged, 1, &["1", "9"])[0].contains("not authentic"));
        // Anyone can make an attestation that covers only clear disks.
        let clear = spec(&[""]);
        let empty =
            Attestation { generation: VmGeneration(1), configuration: text(&clear), tags: Vec::new() };
        assert!(judged(&empty, &clear, 1, &["1"])[0].contains("names no key"));
        // Another VM's attestation is not accepted for this one.
        let other = VmSpec { id: VmId::random(), ..genuine.clone() };
        assert!(judged(&attest(&other, 1), &genuine, 1, &["1"])[0].contains("not authentic"));
    }

    #[test]
    fn every_edit_of_a_configuration_or_of_its_attestation_is_noticed() {
        let spec = spec(&["1", ""]);
        let attestation = attest(&spec, 3);
        let exchanged = vec![spec.disks[1].clone(), spec.disks[0].clone()];
        let mut clear = spec.disks.clone();
        clear[0].key = DiskKey::Unencrypted;
        let edits = [
            ("disks", VmSpec { disks: exchanged, ..spec.clone() }),
            ("disks", VmSpec { disks: clear, ..spec.clone() }),
            ("memory bytes", VmSpec { memory_bytes: (1 << 30).try_into().unwrap(), ..spec.clone() }),
            ("cdrom", VmSpec { cdrom: Some("/boot.iso".into()), ..spec.clone() }),
            ("tpm", VmSpec { tpm: true, ..spec.clone() }),
        ];
        for (named, edited) in edits {
            let doubts = judged(&attestation, &edited, 3, &["1"]);
            assert_eq!(doubts, [format!("its {named} is not what was attested")]);
            // The same edit in the attested text.
            let forged = Attestation { configuration: text(&edited), ..attestation.clone() };
            assert!(!judged(&forged, &edited, 3, &["1"]).is_empty(), "{named}");
        }
        let older = Attestation { generation: VmGeneration(2), ..attestation.clone() };
        assert!(judged(&older, &spec, 3, &["1"])[0].contains("not authentic"));
        let mut torn = attestation;
        torn.tags[0].tag[31] ^= 1;
        assert!(judged(&torn, &spec, 3, &["1"])[0].contains("not authentic"));
    }
}
