//! Whether anything needs a key: for the commands, and for the key server.

use std::error::Error;
use std::path::PathBuf;

use strongroom_keys::ProviderKey;
use strongroom_keyserver::objects::dependents::Dependents;
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_types::{VmId, counted};
use thiserror::Error;

use super::KnownDatastores;
use super::scan::{Scan, UnknownNeeds};

/// How many volumes or datastores a refusal names.
const NAMED_MAX: usize = 20;

/// Why a key may not be destroyed.
#[derive(Debug, Error)]
pub enum KeyNeeded {
    /// Volumes need it.
    #[error(
        "the key is still needed by {}: {}; move them to another key with `strongroom key rotate` (a VM with `strongroom vm key rotate`), or delete them",
        counted(.volumes.len(), "volume"), first(.volumes.iter().map(|volume| volume.display()))
    )]
    Volumes {
        /// Which.
        volumes: Vec<PathBuf>,
    },
    /// Nobody can say.
    #[error(
        "it cannot be said whether a volume needs the key: {}; make it readable and try again, or, if it is gone for good, say so \
         with --forget-datastore DIR",
        first(.0.iter())
    )]
    Unknown(Vec<UnknownNeeds>),
}

/// Refuses unless no volume needs a key which `is_meant`, for sure.
///
/// # Errors
/// [`KeyNeeded`].
pub fn check_unneeded(scan: &Scan, is_meant: impl Fn(&ProviderKey) -> bool) -> Result<(), KeyNeeded> {
    let volumes: Vec<_> = scan.needing(is_meant).into_iter().map(|volume| volume.path.clone()).collect();
    match (volumes.is_empty(), scan.unknown()) {
        (false, _) => Err(KeyNeeded::Volumes { volumes }),
        (true, []) => Ok(()),
        (true, unknown) => Err(KeyNeeded::Unknown(unknown.to_vec())),
    }
}

impl Dependents for KnownDatastores {
    /// By the key's id alone, whatever the provider is called by which a volume gets it: ids are
    /// random, and nobody else's.
    fn of(&self, key: ObjectId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        let scan = self.scan(&[])?;
        match check_unneeded(&scan, |other| other.key.as_str().parse() == Ok(key)) {
            Ok(()) => Ok(Vec::new()),
            Err(KeyNeeded::Volumes { volumes }) => {
                Ok(volumes.iter().map(|volume| volume.display().to_string()).collect())
            }
            Err(unknown @ KeyNeeded::Unknown(_)) => Err(unknown.into()),
        }
    }

    fn clones_of(&self, vm: VmId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        let scan = self.scan(&[])?;
        Ok(scan.clones_of(vm).into_iter().map(|clone| clone.display().to_string()).collect())
    }
}

fn first<T: std::fmt::Display>(all: impl ExactSizeIterator<Item = T>) -> String {
    let more = all.len().saturating_sub(NAMED_MAX);
    let named = all.take(NAMED_MAX).map(|one| one.to_string()).collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named}, and {more} more") }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use strongroom_datastore::file::{CreateOptions, Protection, Provisioning, create};
    use strongroom_host::vm_directory::VmRecord;
    use strongroom_keys::Kek;
    use strongroom_memory::secret::SecretBytes;

    use super::*;

    fn make(path: &Path, id: ObjectId) {
        let key = ProviderKey {
            provider: "embedded".parse().unwrap(),
            key: id.to_string().parse().unwrap(),
            wrapped: None,
        };
        let kek = Kek::from_provider(SecretBytes::from_slice_and_wipe(&mut [1; 32]).unwrap(), key).unwrap();
        let options = CreateOptions {
            size: "1M".parse().unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Encrypted(&kek),
            log_bytes: None,
            integrity: None,
        };
        create(path, &options).unwrap();
    }

    #[test]
    fn the_server_is_told_what_needs_a_key_and_when_nobody_knows() {
        let scratch = tempfile::tempdir().unwrap();
        let known = KnownDatastores::of_home(&scratch.path().join("home"));
        let (used, unused, volume) = (ObjectId::random(), ObjectId::random(), scratch.path().join("ds/vm1"));
        known.note_of_volume(&volume).unwrap();
        make(&volume, used);
        assert_eq!(known.of(used).unwrap(), [volume.display().to_string()]);
        assert!(known.of(unused).unwrap().is_empty());

        let aside = scratch.path().join("aside");
        fs::rename(scratch.path().join("ds"), &aside).unwrap();
        let error = known.of(unused).unwrap_err().to_string();
        assert!(error.contains("/ds: cannot open") && error.contains("--forget-datastore"), "{error}");
        // A directory where the disk is not mounted.
        fs::create_dir(scratch.path().join("ds")).unwrap();
        let error = known.of(used).unwrap_err().to_string();
        assert!(error.contains("is it not mounted?"), "{error}");
        known.forget(&scratch.path().join("ds")).unwrap();
        assert!(known.of(used).unwrap().is_empty());

        known.note(&aside).unwrap();
        fs::write(aside.join("vm1/descriptor"), "damaged").unwrap();
        let error = known.of(unused).unwrap_err().to_string();
        assert!(error.contains("the descriptor of") && error.contains("is damaged"), "{error}");
    }

    #[test]
    fn the_clones_of_a_vm_are_found_by_what_their_configurations_say() {
        let scratch = tempfile::tempdir().unwrap();
        let known = KnownDatastores::of_home(&scratch.path().join("home"));
        let (ds, vm) = (scratch.path().join("ds"), VmId::random());
        known.note(&ds).unwrap();
        let configuration = |name: &str, lineage: &str| {
            let id = VmId::random();
            let datastore = ds.display();
            fs::create_dir(ds.join(name)).unwrap();
            make(&ds.join(name).join("disk0"), ObjectId::random());
            let spec = format!(
                r#"{{"id":"{id}","name":"{name}","datastore":"{datastore}","memory_bytes":67108864,
                    "disks":[{{"name":"disk0","size_bytes":1048576,"key":"unencrypted"}}]{lineage}}}"#
            );
            let record = VmRecord::new(serde_json::from_str(&spec).unwrap(), None);
            fs::write(ds.join(name).join("vm.json"), serde_json::to_vec(&record).unwrap()).unwrap();
        };
        configuration("web1", "");
        configuration("web2", &format!(r#","lineage":{{"shares_with":["{vm}"]}}"#));
        let full = format!(r#","lineage":{{"origin":{{"vm":"{vm}","name":"web1"}}}}"#);
        configuration("full", &full);
        let clones = || known.clones_of(vm).unwrap();
        let path = |name: &str| ds.join(name).display().to_string();
        assert_eq!(clones(), [path("web2")]);
        assert!(known.clones_of(VmId::random()).unwrap().is_empty());
        // It may be one.
        fs::write(ds.join("web1/vm.json"), "damaged").unwrap();
        assert_eq!(clones(), [path("web1"), path("web2")]);
    }
}
