//! What a host admits before it takes part in a migration: a grant of its control plane for this
//! VM, this generation and this pair of hosts, which is valid now and was not used before. It says
//! whether the memory passes encrypted; of an encrypted VM, it does.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use strongroom_files::FileError;
use strongroom_keyserver::access::ClientId;
use strongroom_keyserver::authority::claimed_identity;
use strongroom_keyserver::authority::peer::{OwnSide, Revocations};
use strongroom_keyserver::grant::{MigrationGrant, Secrecy, VmGeneration, VmId};
use strongroom_memory::secret::SecretBytes;
use time::{Duration, OffsetDateTime};

use crate::error::MigrateError;

/// What a host knows of its site.
#[derive(Debug)]
pub struct Site {
    /// The authorities that the other host's certificate, and the signer's, may come from.
    pub authorities: Vec<CertificateDer<'static>>,
    /// This host's certificate.
    pub certificate: CertificateDer<'static>,
    /// Its private key, PKCS#8.
    pub key: SecretBytes,
    /// What is known to be revoked.
    pub revocations: Arc<Revocations>,
    /// The control plane that this host belongs to.
    pub control: ClientId,
}

impl Site {
    pub(crate) fn side(&self) -> OwnSide<'_> {
        OwnSide {
            authorities: &self.authorities,
            certificate: self.certificate.clone(),
            key: &self.key,
            revocations: Arc::clone(&self.revocations),
        }
    }
}

/// One attempt to migrate a VM, as the host of one end knows it.
#[derive(Debug)]
pub struct Attempt {
    /// The VM.
    pub vm: VmId,
    /// Its generation on this host: the one that runs, or the one that is prepared.
    pub generation: VmGeneration,
    /// The grant, as the control plane sent it to this host.
    pub grant: Vec<u8>,
    /// The certificate whose key signed it.
    pub signer: CertificateDer<'static>,
    /// Whether the VM has keys on this host. A grant for plain text is refused then.
    pub is_encrypted: bool,
}

/// The two ends of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The host where the VM runs.
    Source,
    /// The host where it is to go on.
    Target,
}

/// An attempt that this host takes part in.
#[derive(Debug)]
pub(crate) struct Admitted {
    pub(crate) site: Site,
    pub(crate) grant: MigrationGrant,
    /// Its bytes, which the other host must have, too.
    pub(crate) bytes: Vec<u8>,
}

impl Admitted {
    /// Whether the memory passes encrypted, as the grant says, and nothing else does.
    pub(crate) fn secrecy(&self) -> Secrecy {
        self.grant.migrating().secrecy
    }
}

impl Attempt {
    /// Admits the attempt as one that this host plays this part in, and uses up its grant.
    pub(crate) fn admit(
        self,
        site: Site,
        part: Part,
        used: &UsedGrants,
        now: OffsetDateTime,
    ) -> Result<Admitted, MigrateError> {
        let vm = self.vm;
        let unusable = |error: rustls::Error| MigrateError::OwnCertificate(error.to_string());
        let signers = site.side().signer_shown(self.signer, site.control).map_err(unusable)?;
        let grant = MigrationGrant::verify(&self.grant, &signers, now)
            .map_err(|refusal| MigrateError::Grant { vm, refusal })?;
        let migrating = grant.migrating();
        if migrating.vm != vm {
            return Err(MigrateError::OtherVm { vm, granted: migrating.vm });
        }
        let (part, granted, generation) = match part {
            Part::Source => ("source", migrating.source, migrating.running),
            Part::Target => ("target", migrating.target, migrating.prepared),
        };
        if generation != self.generation {
            let (granted, present) = (generation, self.generation);
            return Err(MigrateError::OtherGeneration { vm, granted, present });
        }
        if self.is_encrypted && migrating.secrecy != Secrecy::Encrypted {
            return Err(MigrateError::InPlainText { vm });
        }
        let own = claimed_identity(&site.certificate)
            .ok_or_else(|| MigrateError::OwnCertificate("it names no client".to_owned()))?;
        if own.client != granted {
            return Err(MigrateError::OtherHost { vm, part, granted, here: own.client });
        }
        used.claim(&grant, now)?;
        Ok(Admitted { site, grant, bytes: self.grant })
    }
}

/// How long after its end a used grant is remembered. A clock that was put back by less does not
/// make it good again.
const REMEMBERED_AFTER_END: Duration = Duration::days(7);
/// Room for the seconds in the record of a grant.
const RECORD_BYTES_MAX: u64 = 20;
const ENDING: &str = ".used";

/// The grants that were used on this host, a file each. It outlives relays, so that a grant is good
/// for one of them.
#[derive(Clone, Debug)]
pub struct UsedGrants {
    directory: PathBuf,
}

impl UsedGrants {
    /// Those recorded in this directory, which exists and is this host's alone.
    pub fn in_directory(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Records the use of a grant, durably.
    fn claim(&self, grant: &MigrationGrant, now: OffsetDateTime) -> Result<(), MigrateError> {
        self.forget_old(now)?;
        let expires = grant.period().expires.0;
        let path = self.directory.join(format!("{}{ENDING}", grant.id()));
        match strongroom_files::create(&path, expires.to_string().as_bytes()) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Err(MigrateError::Used { vm: grant.migrating().vm, grant: grant.id() })
            }
            Err(error) => Err(FileError { action: "create", path, error }.into()),
        }
    }

    fn forget_old(&self, now: OffsetDateTime) -> Result<(), FileError> {
        let at = |action, path: &Path| {
            let path = path.to_owned();
            move |error| FileError { action, path, error }
        };
        let before = (now - REMEMBERED_AFTER_END).unix_timestamp();
        let listed = strongroom_files::list(&self.directory, ENDING);
        for path in listed.map_err(at("list", &self.directory))? {
            let record = strongroom_files::read(&path, RECORD_BYTES_MAX).map_err(at("read", &path))?;
            let expires = std::str::from_utf8(&record).ok().and_then(|text| text.parse::<i64>().ok());
            // A record that cannot be read stays: it may be of a grant that is still good.
            if expires.is_some_and(|expires| expires < before) {
                strongroom_files::remove(&path).map_err(at("remove", &path))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use strongroom_keyserver::grant::{GrantPeriod, GrantTime, MigratingVm};

    use super::*;

    const NOON: i64 = 1_795_348_800;

    fn at(seconds: i64) -> OffsetDateTime {
        OffsetDateTime::from_unix_timestamp(seconds).unwrap()
    }

    fn grant() -> MigrationGrant {
        let migrating = MigratingVm {
            vm: VmId::random(),
            running: VmGeneration(1),
            prepared: VmGeneration(2),
            source: ClientId::from_bytes([1; 16]),
            target: ClientId::from_bytes([2; 16]),
            secrecy: Secrecy::Encrypted,
        };
        let seconds = |offset| GrantTime::of(at(NOON + offset));
        MigrationGrant::new(migrating, GrantPeriod { not_before: seconds(0), expires: seconds(300) }).unwrap()
    }

    #[test]
    fn a_grant_is_used_once_and_remembered_longer_than_it_is_good() {
        let directory = tempfile::tempdir().unwrap();
        let used = UsedGrants::in_directory(directory.path());
        let (one, other) = (grant(), grant());
        used.claim(&one, at(NOON)).unwrap();
        used.claim(&other, at(NOON)).unwrap();
        for now in [NOON, NOON + 300 + 7 * 86_400, NOON - 86_400] {
            let again = UsedGrants::in_directory(directory.path()).claim(&one, at(now)).unwrap_err();
            assert!(matches!(again, MigrateError::Used { grant, .. } if grant == one.id()), "{again}");
        }
        used.claim(&grant(), at(NOON + 301 + 7 * 86_400)).unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "the old ones are forgotten");
    }

    #[test]
    fn a_use_that_cannot_be_recorded_is_none() {
        let directory = tempfile::tempdir().unwrap();
        let used = UsedGrants::in_directory(&directory.path().join("none"));
        let error = used.claim(&grant(), at(NOON)).unwrap_err();
        assert!(matches!(error, MigrateError::Ledger(_)), "{error}");
    }
}
