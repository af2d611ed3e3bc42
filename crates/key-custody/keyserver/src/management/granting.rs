//! A control plane's requests in preparation of grants: look up a host's public key, raise a VM's
//! generation, bind a key to a VM.

use time::OffsetDateTime;

use super::protocol::{FenceAnswer, HostAnswer};
use super::questions::BindKey;
use super::{Management, failed, refused, refused_by_server};
use crate::access::{Identity, Role};
use crate::authority::enrol::server::Unanswered;
use crate::grant::{RedeemError, VmGeneration, VmId, ledger};
use crate::objects::keeping::KeepingError;

impl Management {
    /// The hosts with this name or id, each with the key of its newest certificate. Omits revoked
    /// hosts, and hosts without a valid certificate.
    pub(super) fn hosts(&self, host: &str, now: OffsetDateTime) -> Result<Vec<HostAnswer>, Unanswered> {
        let mut hosts = Vec::new();
        for (client, record, is_revoked) in self.authority.clients().map_err(failed)? {
            let is_called_so = record.name.as_str() == host || client.to_string() == host;
            if record.role != Role::Host || is_revoked || !is_called_so {
                continue;
            }
            let certificates = self.authority.certificates_of(client, now).map_err(failed)?;
            let newest = certificates
                .into_iter()
                .filter(|(certificate, is_revoked)| !is_revoked && now <= certificate.not_after)
                .map(|(certificate, _)| certificate)
                .max_by_key(|certificate| (certificate.not_before, certificate.not_after));
            hosts.extend(newest.map(|certificate| HostAnswer {
                client,
                name: record.name,
                public_key: certificate.public_key,
                not_after_unix_seconds: certificate.not_after.unix_timestamp(),
            }));
        }
        Ok(hosts)
    }

    /// Raises a VM's generation without redeeming a grant.
    pub(super) fn fence(&self, vm: VmId, generation: VmGeneration) -> Result<FenceAnswer, Unanswered> {
        let generation = ledger::raise_generation(self.store.as_ref(), vm, generation)
            .map_err(|error| refused_by_server("grants", &error))?;
        Ok(FenceAnswer { vm, generation })
    }

    /// Makes a prepared generation of a VM void.
    pub(super) fn void_prepared(&self, vm: VmId, generation: VmGeneration) -> Result<(), Unanswered> {
        let highest = ledger::void_prepared(self.store.as_ref(), vm, generation)
            .map_err(|error| refused_by_server("grants", &error))?;
        match highest {
            Some(highest) if highest >= generation => Err(refused(
                "committed",
                format!(
                    "generation {generation} of VM {vm} is not only prepared: it is in generation {highest}"
                ),
            )),
            Some(_) | None => Ok(()),
        }
    }

    /// Binds one of the caller's keys to a VM.
    pub(super) fn bind_key(&self, asker: &Identity, wanted: &BindKey) -> Result<(), Unanswered> {
        let &BindKey { key, vm, from } = wanted;
        let unusable = |error: &KeepingError| refused_by_server("objects", error);
        let work = self.brokering.objects.begin().map_err(|error| unusable(&error))?;
        match work.load(key) {
            Ok(object) if object.owner == asker.client => {}
            Ok(_) | Err(KeepingError::NotFound { .. }) => {
                return Err(refused("unknown", format!("{} owns no key {key}", asker.client)));
            }
            Err(error) => return Err(unusable(&error)),
        }
        ledger::bind(self.store.as_ref(), &key.to_string(), vm, from).map_err(|error| match error {
            RedeemError::Refused(refusal) => refused(refusal.code(), format!("key {key}: {refusal}")),
            error => refused_by_server("grants", &error),
        })
    }
}
