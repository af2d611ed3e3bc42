//! The keys of VMs for the control plane: it makes the key server create them, and signs grants for
//! hosts to fetch them. It never has a key itself.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use rustls::pki_types::CertificateDer;
use strongroom_api::access::AccessLogHead;
use strongroom_api::key::{KeyProvider, KeyStanding, KeyState};
use strongroom_control::keys::{GrantFor, KeyProblem, LiveMoveOf, MovedVm, VmKeys};
use strongroom_host::protocol::{Grant as HostGrant, MigrationPermit, VmGeneration as HostGeneration};
use strongroom_keys::{KeyRequestId, ProviderKey, ProviderName};
use strongroom_keyserver::access::{CertificateSha256, ClientId, PublicKeySha256};
use strongroom_keyserver::authority::enrol::Client;
use strongroom_keyserver::evidence::{DataKeys, Move};
use strongroom_keyserver::grant::{
    Grant, GrantError, GrantPeriod, GrantSigner, GrantTime, GrantedOperation, GrantedOperations, MigratingVm,
    MigrationGrant, VmGeneration, VmId,
};
use strongroom_keyserver::management::questions::{
    Ask, BindKey, BrokerCreate, FenceVm, Hosts, RecordAccessHead, RecordMove, RecordUse, Status, VoidPrepared,
};
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_providers::{self as providers, EMBEDDED, ProviderError, ProviderKeyring, Registry};
use strongroom_types::hex;
use zeroize::Zeroizing;

use super::identity::Identity;
use crate::error::CliError;
use crate::keyserver::{Administrator, ClientFiles};

/// The validity of a grant, in seconds: it is used as soon as the host opens the VM's volumes.
const GRANT_SECONDS: u64 = 300;
/// How long the public key of a host is cached. A renewed certificate has another key, and the old
/// one remains valid for weeks.
const HOST_KEY_FOR: Duration = Duration::from_secs(60);
/// How long the state of the providers is cached, because each is asked over the network.
const PROVIDERS_FOR: Duration = Duration::from_secs(10);

/// The keys of VMs, in this machine's key server.
pub struct KeyServerKeys {
    /// The home of the machine, with its key server and providers.
    home: PathBuf,
    /// The control plane's own identity.
    identity: Identity,
    /// Its identity as an auditor, for requests that only readers of the log may make.
    auditor: Identity,
    keyring: ProviderKeyring,
    hosts: Mutex<HashMap<String, KnownHost>>,
    providers: Mutex<Option<(Vec<KeyProvider>, Instant)>>,
    /// The client of the key server.
    key_server: Client,
}

/// A host as the key server knew it then.
#[derive(Clone, Copy)]
struct KnownHost {
    client: ClientId,
    /// The public key with which it authenticates.
    public_key: PublicKeySha256,
    asked: Instant,
}

impl KeyServerKeys {
    /// The keys for the control plane whose home is `control_home`, at this key server.
    pub fn new(home: &Path, control_home: &Path, key_server: Client) -> Result<Self, CliError> {
        Ok(Self {
            home: home.to_owned(),
            identity: Identity::control(control_home)?,
            auditor: Identity::auditor(control_home)?,
            keyring: ProviderKeyring::of_home(control_home),
            hosts: Mutex::default(),
            providers: Mutex::default(),
            key_server,
        })
    }

    /// Sends a request to the key server, as the control plane.
    fn ask<Q: Ask>(&self, question: Q) -> Result<Q::Answer, KeyProblem> {
        Administrator::new(self.key_server.clone(), &self.identity.files())
            .and_then(|client| client.ask(question))
            .map_err(|error| KeyProblem::Unavailable(error.to_string()))
    }

    /// A host as the key server knows it.
    fn host(&self, host: &str) -> Result<KnownHost, KeyProblem> {
        let mut hosts = self.hosts.lock();
        if let Some(known) = hosts.get(host)
            && known.asked.elapsed() < HOST_KEY_FOR
        {
            return Ok(*known);
        }
        let found = self.ask(Hosts { host: host.to_owned() })?;
        match found.as_slice() {
            [one] => {
                let known =
                    KnownHost { client: one.client, public_key: one.public_key, asked: Instant::now() };
                hosts.insert(host.to_owned(), known);
                Ok(known)
            }
            [] => Err(KeyProblem::Unavailable(format!(
                "the key server has no host '{host}' with a certificate that is good now; see `strongroom keyserver client list`"
            ))),
            _ => Err(KeyProblem::Refused(format!(
                "several hosts are called '{host}' at the key server; revoke those that are none any more: `strongroom \
                 keyserver client list`"
            ))),
        }
    }

    fn sign(
        &self,
        vm: VmId,
        generation: HostGeneration,
        standing: GrantFor,
        host: PublicKeySha256,
        keys: &[ProviderKey],
    ) -> Result<HostGrant, CliError> {
        let (signer, _) = self.signer()?;
        let period = period();
        let operations = GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata]);
        let objects = keys.iter().map(|key| key.key.to_string()).collect();
        let generation = VmGeneration(generation.0);
        let bytes = Grant::new(vm, generation, host, operations, objects, period)
            .map(|grant| match standing {
                GrantFor::Current => grant,
                GrantFor::Prepared => grant.for_prepared(),
            })
            .and_then(|grant| grant.sign(&signer))
            .map_err(|error| self.unusable(&error))?;
        Ok(HostGrant {
            bytes: Zeroizing::new(bytes),
            keys: keys.iter().map(|key| key.key.clone()).collect(),
            expires_unix_seconds: period.expires.0,
        })
    }

    /// What signs grants: the key of the control plane's certificate.
    fn signer(&self) -> Result<(GrantSigner, CertificateDer<'static>), CliError> {
        let files = self.identity.files();
        let certificate = files.read_certificate()?;
        let signer = GrantSigner::new(&files.read_key()?, CertificateSha256::of(&certificate));
        Ok((signer.map_err(|error| self.unusable(&error))?, certificate))
    }

    fn unusable(&self, error: &GrantError) -> CliError {
        CliError::Usage(format!("{}: {error}", self.identity.files().key.display()))
    }

    fn sign_move(&self, migrating: MigratingVm) -> Result<MigrationPermit, CliError> {
        let (signer, certificate) = self.signer()?;
        let grant = MigrationGrant::new(migrating, period()).and_then(|grant| grant.sign(&signer));
        let grant = grant.map_err(|error| self.unusable(&error))?;
        Ok(MigrationPermit { grant: grant.to_vec(), signer: certificate.to_vec() })
    }

    fn standing(&self, key: &ProviderKey) -> KeyStanding {
        let mut standing = KeyStanding {
            provider: key.provider.to_string(),
            key: key.key.to_string(),
            state: KeyState::Unavailable,
            reason: None,
            expires_unix_seconds: None,
        };
        let config = self.keyring.config(&key.provider);
        match self.keyring.provider(&key.provider).and_then(|provider| provider.facts(key)) {
            Ok(facts) => {
                standing.state = match facts.state {
                    providers::KeyState::PreActive => KeyState::Pending,
                    providers::KeyState::Active => KeyState::Active,
                    providers::KeyState::Deactivated => KeyState::Deactivated,
                    providers::KeyState::Compromised => KeyState::Compromised,
                    providers::KeyState::Destroyed => KeyState::Destroyed,
                };
                let cryptoperiod = config.ok().and_then(|config| config.cryptoperiod());
                let expires = facts.expires(cryptoperiod);
                let since = expires.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
                standing.expires_unix_seconds = since.map(|since| since.as_secs());
            }
            Err(error) => standing.reason = Some(error.to_string()),
        }
        standing
    }

    fn look_at_providers(&self) -> Vec<KeyProvider> {
        let certificate = |files: &ClientFiles| {
            files.not_after().ok().and_then(|end| u64::try_from(end.unix_timestamp()).ok())
        };
        let status = Administrator::new(self.key_server.clone(), &self.auditor.files())
            .and_then(|auditor| auditor.ask(Status {}));
        let backed_up = status
            .as_ref()
            .ok()
            .map(|status| status.backup.last().map_or(0, |last| last.created_unix_seconds));
        let mut all = vec![KeyProvider {
            name: EMBEDDED.to_owned(),
            kind: EMBEDDED.to_owned(),
            healthy: status.is_ok(),
            reason: status.err().map(|error| error.to_string()),
            certificate_expires_unix_seconds: certificate(&self.identity.files()),
            last_backup_unix_seconds: backed_up,
        }];
        // Then those for which the key server is the broker. `key-provider list` reports unreadable
        // ones.
        for registered in Registry::of_home(&self.home).list().unwrap_or_default() {
            if registered.name.as_str() == EMBEDDED {
                continue;
            }
            let Ok(config) = &registered.config else { continue };
            let checked = providers::check(config);
            let reason = match &checked {
                Ok(servers) if servers.iter().any(|server| server.is_well()) => None,
                Ok(_) => Some("none of its servers answers; see `strongroom key-provider test`".to_owned()),
                Err(error) => Some(error.to_string()),
            };
            all.push(KeyProvider {
                name: registered.name.to_string(),
                kind: config.source.kind().to_owned(),
                healthy: reason.is_none(),
                reason,
                certificate_expires_unix_seconds: None,
                last_backup_unix_seconds: None,
            });
        }
        all
    }
}

impl KeyServerKeys {
    /// Creates a key that is not bound to a VM yet. A repeated call with the same request returns
    /// the same key.
    fn create_unbound(
        &self,
        provider: &ProviderName,
        request: KeyRequestId,
    ) -> Result<ProviderKey, KeyProblem> {
        if provider.as_str() == EMBEDDED {
            let made = self.keyring.provider(provider).and_then(|provider| provider.create_unseen(request));
            let made = made.map_err(problem)?;
            return Ok(ProviderKey { provider: provider.clone(), key: made.key, wrapped: made.wrapped });
        }
        // Hosts get another provider's keys from the key server, which releases them under grants.
        let brokered = self.ask(BrokerCreate { provider: provider.clone(), request })?;
        let unusable = |error: String| KeyProblem::Refused(error);
        Ok(ProviderKey {
            provider: EMBEDDED.parse().map_err(|error| unusable(format!("{error}")))?,
            key: brokered.id.parse().map_err(|error| unusable(format!("{error}")))?,
            wrapped: None,
        })
    }

    /// The providers, in order, including those that were added just now.
    fn provider_names(&self) -> impl Iterator<Item = String> {
        let registered = Registry::of_home(&self.home).list().unwrap_or_default();
        let readable = registered.into_iter().filter(|known| known.config.is_ok());
        let external = readable.map(|known| known.name.to_string()).filter(|name| name != EMBEDDED);
        std::iter::once(EMBEDDED.to_owned()).chain(external)
    }
}

impl VmKeys for KeyServerKeys {
    fn create_key(
        &self,
        provider: &ProviderName,
        request: KeyRequestId,
        vm: VmId,
    ) -> Result<ProviderKey, KeyProblem> {
        let key = self.create_unbound(provider, request)?;
        self.ask(BindKey { key: object(&key)?, vm, from: None })?;
        Ok(key)
    }

    fn hand_over(&self, key: &ProviderKey, from: VmId, to: VmId) -> Result<(), KeyProblem> {
        self.ask(BindKey { key: object(key)?, vm: to, from: Some(from) })
    }

    fn grant(
        &self,
        vm: VmId,
        generation: HostGeneration,
        standing: GrantFor,
        host: &str,
        keys: &[ProviderKey],
    ) -> Result<Vec<HostGrant>, KeyProblem> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let host = self.host(host)?.public_key;
        let grant = self.sign(vm, generation, standing, host, keys);
        Ok(vec![grant.map_err(|error| KeyProblem::Unavailable(error.to_string()))?])
    }

    fn permit_move(&self, of: &LiveMoveOf<'_>) -> Result<MigrationPermit, KeyProblem> {
        let (source, target) = (self.host(of.source)?.client, self.host(of.target)?.client);
        let (running, prepared) = (VmGeneration(of.running.0), VmGeneration(of.prepared.0));
        let LiveMoveOf { vm, secrecy, .. } = *of;
        let signed = self.sign_move(MigratingVm { vm, running, prepared, source, target, secrecy });
        signed.map_err(|error| KeyProblem::Unavailable(error.to_string()))
    }

    fn fence(&self, vm: VmId, generation: HostGeneration) -> Result<(), KeyProblem> {
        self.ask(FenceVm { vm, generation: VmGeneration(generation.0) }).map(drop)
    }

    fn void_prepared(&self, vm: VmId, generation: HostGeneration) -> Result<(), KeyProblem> {
        self.ask(VoidPrepared { vm, generation: VmGeneration(generation.0) })
    }

    fn retire(&self, key: &ProviderKey) -> Result<(), KeyProblem> {
        let provider = self.keyring.provider(&key.provider).map_err(problem)?;
        // A key that was already revoked, for example as compromised, is out of use.
        let standing = provider.facts(key).map_err(problem)?;
        if !matches!(standing.state, providers::KeyState::PreActive | providers::KeyState::Active) {
            return Ok(());
        }
        provider.revoke(key, providers::Revocation::Superseded).map_err(problem)
    }

    fn record_move(&self, moved: &MovedVm) -> Result<(), KeyProblem> {
        let MovedVm { vm, volumes, from, to, renewed, is_shared } = moved;
        let moved = Move {
            vm: *vm,
            volumes: volumes.clone(),
            from: from.iter().map(object).collect::<Result<_, _>>()?,
            to: to.as_ref().map(object).transpose()?,
            data_keys: if *renewed { DataKeys::Renewed } else { DataKeys::Kept },
            is_shared: *is_shared,
            rewritten: None,
        };
        self.ask(RecordMove { moved })
    }

    fn record_use(&self, vm: VmId, what: &str, by: &str) -> Result<(), KeyProblem> {
        self.ask(RecordUse { vm, what: what.to_owned(), by: by.to_owned() })
    }

    fn record_access_head(&self, head: &AccessLogHead) -> Result<(), KeyProblem> {
        let hash = hex::decode_array(&head.hash)
            .ok_or_else(|| KeyProblem::Refused(format!("the head of entry {} has no SHA-256", head.id)))?;
        self.ask(RecordAccessHead { id: head.id, hash })
    }

    fn states(&self, keys: &[ProviderKey]) -> Vec<KeyStanding> {
        keys.iter().map(|key| self.standing(key)).collect()
    }

    fn providers(&self) -> Vec<KeyProvider> {
        let mut remembered = self.providers.lock();
        if let Some((all, asked)) = &*remembered
            && asked.elapsed() < PROVIDERS_FOR
            && all.iter().map(|provider| provider.name.clone()).eq(self.provider_names())
        {
            return all.clone();
        }
        let all = self.look_at_providers();
        *remembered = Some((all.clone(), Instant::now()));
        all
    }
}

/// The validity of a grant from now on.
fn period() -> GrantPeriod {
    let not_before = GrantTime::of(SystemTime::now().into());
    GrantPeriod { not_before, expires: GrantTime(not_before.0.saturating_add(GRANT_SECONDS)) }
}

/// The key's object in the embedded key server, which has or brokers every key of a VM.
fn object(key: &ProviderKey) -> Result<ObjectId, KeyProblem> {
    key.key.to_string().parse().map_err(|error| KeyProblem::Refused(format!("{error}")))
}

fn problem(error: ProviderError) -> KeyProblem {
    let text = error.to_string();
    if error.may_come_back() { KeyProblem::Unavailable(text) } else { KeyProblem::Refused(text) }
}
