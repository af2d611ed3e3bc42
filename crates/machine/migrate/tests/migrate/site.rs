//! A site with a control plane and two hosts, under real certificates, and relays of the two.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use strongroom_keyserver::access::{CertificateSha256, ClientId, Role};
use strongroom_keyserver::authority::enrol::protocol::RevocationsResponse;
use strongroom_keyserver::authority::peer::Revocations;
use strongroom_keyserver::authority::signing_request::signing_request;
use strongroom_keyserver::authority::{Authority, PrivateKey, Settings};
use strongroom_keyserver::grant::{
    GrantPeriod, GrantSigner, GrantTime, MigratingVm, MigrationGrant, Secrecy, VmGeneration, VmId,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_migrate::{Attempt, MigrateError, Migration, Options, Site, UsedGrants};
use strongroom_store::Engine;
use tempfile::TempDir;
use time::{Duration, OffsetDateTime};

pub const RUNNING: VmGeneration = VmGeneration(7);
pub const PREPARED: VmGeneration = VmGeneration(8);

pub fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

/// A client of the authority.
pub struct Member {
    pub certificate: CertificateDer<'static>,
    pub client: ClientId,
    pkcs8: SecretBytes,
}

impl Member {
    pub fn signer(&self) -> GrantSigner {
        GrantSigner::new(&self.pkcs8, CertificateSha256::of(&self.certificate)).unwrap()
    }
}

/// A site.
pub struct Members {
    pub authority: Arc<Authority>,
    pub control: Member,
    pub source: Member,
    pub target: Member,
    pub revocations: Arc<Revocations>,
    directory: TempDir,
}

impl Members {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Engine::create(&directory.path().join("store.redb")).unwrap());
        let root = SecretBytes::random(32).unwrap();
        let settings = Settings::new(vec!["localhost".to_owned()]);
        let authority = Authority::open(store, &root, settings, now()).unwrap();
        let [control, source, target] =
            [Role::Control, Role::Host, Role::Host].map(|role| member(&authority, role));
        for of in ["used-source", "used-target"] {
            std::fs::create_dir(directory.path().join(of)).unwrap();
        }
        Self { authority, control, source, target, revocations: Arc::default(), directory }
    }

    pub fn another(&self, role: Role) -> Member {
        member(&self.authority, role)
    }

    /// Both hosts hear that this client is revoked.
    pub fn hear_of_revocation(&self, of: &Member) {
        let revoked =
            RevocationsResponse { clients: [of.client].into_iter().collect(), ..Default::default() };
        assert!(self.revocations.hear(revoked));
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn used(&self, of: &str) -> UsedGrants {
        UsedGrants::in_directory(&self.path(&format!("used-{of}")))
    }

    /// What this member knows, when it is a host.
    pub fn site_of(&self, member: &Member) -> Site {
        Site {
            authorities: self.authority.roots(now()),
            certificate: member.certificate.clone(),
            key: member.pkcs8.duplicate().unwrap(),
            revocations: Arc::clone(&self.revocations),
            control: self.control.client,
        }
    }

    pub fn migrating(&self, vm: VmId) -> MigratingVm {
        let (source, target) = (self.source.client, self.target.client);
        let secrecy = Secrecy::Encrypted;
        MigratingVm { vm, running: RUNNING, prepared: PREPARED, source, target, secrecy }
    }

    /// A grant that is good for five minutes.
    pub fn grant(&self, vm: VmId) -> Vec<u8> {
        self.grant_for(self.migrating(vm), &self.control, 0, 300)
    }

    /// A grant as [`grant`](Self::grant), for memory that passes like this.
    pub fn grant_with(&self, vm: VmId, secrecy: Secrecy) -> Vec<u8> {
        self.grant_for(MigratingVm { secrecy, ..self.migrating(vm) }, &self.control, 0, 300)
    }

    pub fn grant_for(&self, migrating: MigratingVm, signer: &Member, from: i64, until: i64) -> Vec<u8> {
        let at = |seconds| GrantTime::of(now() + Duration::seconds(seconds));
        let period = GrantPeriod { not_before: at(from), expires: at(until) };
        MigrationGrant::new(migrating, period).unwrap().sign(&signer.signer()).unwrap().to_vec()
    }

    pub fn attempt(&self, vm: VmId, generation: VmGeneration, grant: &[u8]) -> Attempt {
        let (grant, signer) = (grant.to_vec(), self.control.certificate.clone());
        Attempt { vm, generation, grant, signer, is_encrypted: false }
    }
}

fn member(authority: &Authority, role: Role) -> Member {
    let (key, pkcs8) = PrivateKey::generate().unwrap();
    let request = signing_request(&key).unwrap();
    let name = "member".parse().unwrap();
    let issued = authority.issue(role, &name, request.as_bytes(), None, now()).unwrap();
    Member { certificate: issued.record.certificate().clone(), client: issued.record.client, pkcs8 }
}

pub fn options() -> Options {
    let own = rustix::process::getuid().as_raw();
    Options { channels_max: 5, bytes_per_second: None, qemu_user: Some(own) }
}

/// Everything that the two relays of one attempt are started with.
pub struct Pair<'s> {
    pub members: &'s Members,
    pub vm: VmId,
    pub grant: Vec<u8>,
    pub options: Options,
    listener: TcpListener,
    directory: TempDir,
}

impl<'s> Pair<'s> {
    pub fn new(members: &'s Members) -> Self {
        Self::of(members, VmId::random())
    }

    /// The pair of an attempt in which the memory passes like this.
    pub fn with(members: &'s Members, secrecy: Secrecy) -> Self {
        let pair = Self::new(members);
        Self { grant: members.grant_with(pair.vm, secrecy), ..pair }
    }

    /// The pair of an attempt for this VM. An earlier attempt's listener is of that alone.
    pub fn of(members: &'s Members, vm: VmId) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (grant, directory) = (members.grant(vm), tempfile::tempdir().unwrap());
        Self { members, vm, grant, options: options(), listener, directory }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Where QEMU connects to at the source.
    pub fn source_socket(&self) -> PathBuf {
        self.directory.path().join("source.sock")
    }

    /// Where QEMU listens at the target.
    pub fn target_socket(&self) -> PathBuf {
        self.directory.path().join("target.sock")
    }

    pub fn send_as(&self, member: &Member, grant: &[u8], to: SocketAddr) -> Result<Migration, MigrateError> {
        let socket = self.source_socket();
        let _ = std::fs::remove_file(&socket);
        Migration::send(
            self.members.attempt(self.vm, RUNNING, grant),
            self.members.site_of(member),
            &self.members.used("source"),
            to,
            UnixListener::bind(socket).unwrap(),
            self.options,
        )
    }

    pub fn receive_as(&self, member: &Member, grant: &[u8]) -> Result<Migration, MigrateError> {
        Migration::receive(
            self.members.attempt(self.vm, PREPARED, grant),
            self.members.site_of(member),
            &self.members.used("target"),
            self.listener.try_clone().unwrap(),
            &self.target_socket(),
            self.options,
        )
    }

    /// Both relays, the source's of which connects to `to`.
    pub fn start_over(&self, to: SocketAddr) -> Ends {
        let target = self.receive_as(&self.members.target, &self.grant).unwrap();
        let source = self.send_as(&self.members.source, &self.grant, to).unwrap();
        Ends { source, target }
    }

    pub fn start(&self) -> Ends {
        self.start_over(self.address())
    }

    /// QEMU's listening socket at the target.
    pub fn listen(&self) -> UnixListener {
        listen(&self.target_socket())
    }

    /// A channel of QEMU's at the source.
    pub fn open(&self) -> UnixStream {
        UnixStream::connect(self.source_socket()).unwrap()
    }
}

pub fn listen(path: &Path) -> UnixListener {
    UnixListener::bind(path).unwrap()
}

/// The relays of both hosts.
pub struct Ends {
    pub source: Migration,
    pub target: Migration,
}
