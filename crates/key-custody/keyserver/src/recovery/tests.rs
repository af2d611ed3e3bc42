use std::fs;
use std::path::{Path, PathBuf};

use strongroom_audit::{Options, Retention};
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_store::{Is, Transaction};
use tempfile::TempDir;
use time::OffsetDateTime;

use super::*;
use crate::access::{CertificateSerial, CertificateSha256, ClientId, Identity, PublicKeySha256, Role};
use crate::authority::{PrivateKey, Settings as AuthoritySettings, signing_request};
use crate::backup::tests::{people, two_of_three};
use crate::backup::{self, BackupError, BackupStatus, Content, RestoreSession, Restored};
use crate::caller::Caller;
use crate::grant::VerifiedGrant;
use crate::management::{Brokering, Management};
use crate::objects::clock::{SystemClock, UnixSeconds};
use crate::objects::dependents::{Dependents, Inquiry, NoDependents};
use crate::objects::destruction::{self, DELAY_MIN_SECONDS, Destructions, Waiting};
use crate::objects::id::ObjectId;
use crate::observer::{Event, Observer, Recording};
use crate::process::open_state;
use crate::root::{self, Access, RootKey, Way};
use crate::server::{Foundations, GrantFailure, Grants, KeyServer, Redeeming};
use crate::settings::Settings;
use crate::state::State;

mod kill;

/// Records nothing.
struct Silent;

impl Observer for Silent {
    fn record<'a>(&'a self, _: &'a [Event]) -> Recording<'a> {
        Box::pin(async { Ok(()) })
    }
}

impl Grants for Silent {
    fn verify(&self, _: &[u8], _: &Identity) -> Result<VerifiedGrant, GrantFailure> {
        Err(GrantFailure::Unavailable("no grants here".into()))
    }

    fn redeem<'a>(&'a self, _: &'a VerifiedGrant) -> Redeeming<'a> {
        Box::pin(async { Err(GrantFailure::Unavailable("no grants here".into())) })
    }
}

/// A state directory with a root of its own.
pub(crate) struct Machine {
    pub directory: PathBuf,
    _place: Option<TempDir>,
}

impl Machine {
    pub fn new() -> Self {
        let place = TempDir::new().unwrap();
        root::create(place.path(), &Way::PlainFile, &Access::default()).unwrap();
        Self { directory: place.path().to_owned(), _place: Some(place) }
    }

    pub fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), _place: None }
    }

    fn root(&self) -> RootKey {
        root::open(&self.directory, &Access::default()).unwrap()
    }

    pub fn start(&self) -> Server {
        let settings = AuthoritySettings::new(vec!["localhost".to_owned()]);
        let state = open_state(&self.directory, &self.root(), settings, Options::default()).unwrap();
        let foundations = Foundations {
            store: state.store.clone(),
            clock: std::sync::Arc::new(SystemClock),
            grants: std::sync::Arc::new(Silent),
            observer: std::sync::Arc::new(Silent),
            dependents: std::sync::Arc::new(NoDependents),
        };
        let keys = KeyServer::new(foundations, &state.objects_key, Settings::default()).unwrap();
        Server { state, keys }
    }

    pub fn target(&self) -> ServerTarget {
        ServerTarget::open(&self.directory, &self.root()).unwrap()
    }

    /// The number of audit records of a restore.
    fn restores_on_record(&self) -> usize {
        let files = fs::read_dir(self.directory.join("audit")).unwrap();
        let text: Vec<u8> = files.flat_map(|file| fs::read(file.unwrap().path()).unwrap()).collect();
        String::from_utf8_lossy(&text).matches("\"action\":\"restore\"").count()
    }
}

/// A server without its ports.
pub(crate) struct Server {
    pub state: State,
    keys: KeyServer,
}

impl Server {
    /// The management of this server, without a broker.
    pub fn management(&self) -> Management {
        self.management_over(std::sync::Arc::new(NoDependents))
    }

    /// The same, with these dependents of its keys.
    pub fn management_over(&self, dependents: std::sync::Arc<dyn Dependents>) -> Management {
        let objects = self.keys.objects();
        let inquiry = std::sync::Arc::new(Inquiry::new(dependents));
        let destructions = Destructions::new(self.state.store.clone(), objects.clone(), inquiry);
        let brokering = Brokering { objects, broker: None };
        let (source, destructions) = (Box::new(self.source()), std::sync::Arc::new(destructions));
        Management::new(&self.state, source, None, Retention::default(), brokering, destructions)
    }

    fn ask(&self, client: &Identity, payload: RequestPayload) -> ResponseItem {
        let header = RequestHeader::new(ProtocolVersion::V1_4);
        let request = RequestMessage { header, items: vec![RequestItem::from(payload)] };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.keys.handle(Caller::new(client.clone(), None), &request)).items.remove(0)
    }

    pub fn create(&self, client: &Identity, name: &str) -> ObjectId {
        let usage = CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT;
        let attributes = [
            AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
            AttributeValue::CryptographicLength(256),
            AttributeValue::CryptographicUsageMask(usage),
            AttributeValue::Name(Name { value: name.to_owned(), kind: NameType::UninterpretedTextString }),
            AttributeValue::ActivationDate(UnixSeconds(1).into()),
        ];
        let attributes = attributes.into_iter().map(Attribute::from).collect();
        let created = self.ask(
            client,
            RequestPayload::Create(CreateRequest {
                object_type: ObjectType::SymmetricKey,
                template_attribute: TemplateAttribute { templates: Vec::new(), attributes },
            }),
        );
        match created.payload {
            Some(ResponsePayload::Create(created)) => created.unique_identifier.parse().unwrap(),
            other => panic!("{other:?} {:?}", created.result_message),
        }
    }

    pub fn destroy(&self, client: &Identity, id: ObjectId) {
        let mut work = self.keys.objects.begin().unwrap();
        let mut object = work.load(id).unwrap();
        assert_eq!(object.owner, client.client);
        object.life.deactivate(work.now()).unwrap();
        object.destroy(work.now()).unwrap();
        work.replace(object).unwrap();
        self.commit(work.into_transaction().unwrap());
    }

    fn deactivate(&self, id: ObjectId) {
        let mut work = self.keys.objects.begin().unwrap();
        let mut object = work.load(id).unwrap();
        object.life.deactivate(work.now()).unwrap();
        work.replace(object).unwrap();
        self.commit(work.into_transaction().unwrap());
    }

    fn commit(&self, transaction: Transaction) {
        self.state.store.commit(transaction).unwrap().committed().unwrap();
    }

    /// The key, if it is alive.
    pub fn key(&self, id: ObjectId) -> Option<Vec<u8>> {
        let object = self.keys.objects.begin().unwrap().load(id).ok()?;
        object.plain_key().map(|key| key.expose().to_vec())
    }

    fn named(&self, owner: &Identity, name: &str) -> Option<ObjectId> {
        self.keys.objects.begin().unwrap().named(owner.client, name).unwrap()
    }

    fn is_deactivated(&self, id: ObjectId) -> bool {
        let work = self.keys.objects.begin().unwrap();
        !work.load(id).unwrap().life.may_protect(work.now())
    }

    fn put(&self, key: &[u8], value: &[u8]) {
        self.commit(Transaction::new().put(key, value));
    }

    fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.state.store.get(key).unwrap().map(|entry| entry.value)
    }

    /// Enrols a client; its certificate.
    fn enrol(&self, name: &str) -> crate::authority::ClientCertificate {
        let (key, _) = PrivateKey::generate().unwrap();
        let request = signing_request::signing_request(&key).unwrap();
        let name = name.parse().unwrap();
        let now = OffsetDateTime::now_utc();
        self.state.authority.issue(Role::Client, &name, request.as_bytes(), None, now).unwrap()
    }

    fn lets_in(&self, certificate: &crate::authority::ClientCertificate) -> bool {
        let now = OffsetDateTime::now_utc();
        self.state.authority.identify(certificate.record.certificate(), now).is_ok()
    }

    pub fn source(&self) -> ServerSource {
        ServerSource::new(&self.state).unwrap()
    }

    pub fn back_up(&self, path: &Path) {
        backup::back_up(&self.source(), &two_of_three(), path, &self.state.directory).unwrap();
    }

    fn status(&self) -> BackupStatus {
        let generation = self.state.store.snapshot().unwrap().revision().0;
        backup::status(&self.state.directory, generation).unwrap()
    }
}

pub(crate) fn identity(role: Role) -> Identity {
    Identity { client: ClientId::random(), role, ..owner() }
}

pub(crate) fn administrator(name: &str) -> Identity {
    Identity { name: name.parse().unwrap(), ..identity(Role::Admin) }
}

pub(crate) fn owner() -> Identity {
    Identity {
        client: ClientId::from_bytes([9; 16]),
        role: Role::Client,
        name: "owner".parse().unwrap(),
        public_key: PublicKeySha256::of(b"owner"),
        certificate: CertificateSha256::of(b"owner"),
        serial: CertificateSerial::from_bytes(&[1]),
        not_after: OffsetDateTime::now_utc() + time::Duration::days(1),
    }
}

fn opened(path: &Path) -> RestoreSession {
    let mut session = RestoreSession::open(path, Content::KeyServer).unwrap();
    for person in &people()[..2] {
        session.add_share(&person.open_share(&session.header().clone())).unwrap();
    }
    session
}

pub(super) fn restore(machine: &Machine, path: &Path, replace: bool) -> Result<Restored, BackupError> {
    opened(path).restore(&mut machine.target(), replace)
}

fn waiting(confirmed: bool) -> Vec<u8> {
    let person = |name: &str| serde_json::json!({"client": ClientId::random(), "name": name});
    let mut waiting = serde_json::json!({
        "requested_by": person("ann"), "requested_at": 1, "due": 1 + DELAY_MIN_SECONDS, "reason": "left",
    });
    if confirmed {
        waiting["confirmed_by"] = person("bob");
    }
    serde_json::to_vec(&waiting).unwrap()
}

fn destruction_key(id: ObjectId) -> Vec<u8> {
    [destruction::PREFIX, id.as_bytes()].concat()
}

/// A VM's entry in the ledger of grants.
fn vm_key(vm: u8) -> Vec<u8> {
    [crate::grant::ledger::VM, &[vm; 16]].concat()
}

/// The entry that binds a key to a VM.
fn key_key(number: u8) -> Vec<u8> {
    [crate::grant::ledger::KEY, ObjectId::from_bytes([number; 16]).to_string().as_bytes()].concat()
}

/// Asserts that no secret is in a file under `directory`, neither raw nor in hexadecimal.
fn assert_sealed(directory: &Path, secrets: &[Vec<u8>]) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            assert_sealed(&path, secrets);
            continue;
        }
        let content = fs::read(&path).unwrap();
        for secret in secrets {
            let hex = strongroom_types::hex::encode(secret);
            for form in [secret.as_slice(), hex.as_bytes(), hex.to_uppercase().as_bytes()] {
                let is_there = content.windows(form.len()).any(|window| window == form);
                assert!(!is_there, "a key in {}", path.display());
            }
        }
    }
}

#[test]
fn a_server_lives_on_under_another_root_with_its_keys_its_clients_and_its_dead() {
    let (old, new, safe) = (Machine::new(), Machine::new(), TempDir::new().unwrap());
    let path = safe.path().join("backup");
    let server = old.start();
    assert_eq!(server.status(), BackupStatus::Unbacked);
    let (one, dead) = (server.create(&owner(), "one"), server.create(&owner(), "dead"));
    let (key, client) = (server.key(one).unwrap(), server.enrol("vcenter"));
    let shredded = server.key(dead).unwrap();
    server.destroy(&owner(), dead);
    let revoked = server.enrol("thief");
    let now = OffsetDateTime::now_utc();
    server.state.authority.revoke_client(revoked.record.client, "stolen", now).unwrap();
    server.put(&vm_key(1), &7_u64.to_be_bytes());
    server.put(&key_key(1), &[1; 16]);
    server.put(&destruction_key(one), &waiting(true));
    server.back_up(&path);
    assert!(matches!(server.status(), BackupStatus::Backed { changes_since: 0, .. }));
    server.create(&owner(), "later");
    assert!(matches!(server.status(), BackupStatus::Backed { changes_since: 1, .. }));
    let (authority, enrolled) = (server.state.authority.fingerprint(), server.enrol("late"));
    drop(server);

    drop(new.start());
    let restored = restore(&new, &path, false).unwrap();
    assert_eq!((restored.backup.counts.objects, restored.backup.counts.tombstones), (1, 1));
    let server = new.start();
    assert!(matches!(server.status(), BackupStatus::Backed { changes_since: 0, .. }));
    assert_eq!(server.state.authority.fingerprint(), authority);
    assert_eq!((server.key(one), server.key(dead)), (Some(key.clone()), None));
    assert_eq!((server.named(&owner(), "one"), server.named(&owner(), "dead")), (Some(one), None));
    assert!(server.lets_in(&client) && !server.lets_in(&revoked));
    // The client is unknown here, and can be revoked all the same.
    assert!(server.lets_in(&enrolled));
    server.state.authority.revoke_any_client(enrolled.record.client, "not any more", now).unwrap();
    assert!(!server.lets_in(&enrolled));
    assert_eq!(server.get(&vm_key(1)).unwrap(), 7_u64.to_be_bytes());
    assert_eq!(server.get(&key_key(1)).unwrap(), [1; 16]);
    // It may have been cancelled since: a second person must confirm it again.
    let waits: Waiting = serde_json::from_slice(&server.get(&destruction_key(one)).unwrap()).unwrap();
    assert_eq!(waits.confirmed_by, None);
    assert!(server.get(b"grant/restored").is_some());
    drop(server);
    drop(new.start());
    assert_eq!(new.restores_on_record(), 1);
    for directory in [&old.directory, &new.directory, &safe.path().to_owned()] {
        assert_sealed(directory, &[key.clone(), shredded.clone()]);
    }
}

#[test]
fn restored_over_itself_a_server_forgets_nothing_that_ended_since() {
    let (machine, safe) = (Machine::new(), TempDir::new().unwrap());
    let path = safe.path().join("backup");
    let server = machine.start();
    let ids = ["kept", "lost", "shredded", "revoked", "cancelled"].map(|name| server.create(&owner(), name));
    let [kept, lost, shredded, revoked, cancelled] = ids;
    let keys = ids.map(|id| server.key(id).unwrap());
    let (thief, friend) = (server.enrol("thief"), server.enrol("friend"));
    server.put(&vm_key(1), &7_u64.to_be_bytes());
    server.put(&vm_key(2), &7_u64.to_be_bytes());
    server.put(&destruction_key(cancelled), &waiting(true));
    server.put(&destruction_key(kept), &waiting(false));
    server.back_up(&path);

    // Changes since the backup.
    server.destroy(&owner(), shredded);
    server.deactivate(revoked);
    let now = OffsetDateTime::now_utc();
    server.state.authority.revoke_client(thief.record.client, "stolen", now).unwrap();
    let enrolled = server.enrol("new");
    server.put(&vm_key(1), &9_u64.to_be_bytes());
    server.put(&vm_key(3), &1_u64.to_be_bytes());
    server.put(&key_key(3), &[3; 16]);
    server.commit(Transaction::new().delete(destruction_key(cancelled)));
    server.put(&destruction_key(kept), &waiting(true));
    let newer = server.create(&owner(), "newer");
    // The object that the restore must bring back.
    let key =
        crate::objects::keeping::OBJECT_PREFIX.iter().chain(lost.as_bytes()).copied().collect::<Vec<_>>();
    server.commit(Transaction::new().when(key.clone(), Is::Present).delete(key));
    drop(server);

    let refused = restore(&machine, &path, false).unwrap_err();
    assert!(matches!(refused, BackupError::NotEmpty { .. }), "{refused}");
    let restored = restore(&machine, &path, true).unwrap();
    assert_eq!(restored.buried, 1);
    let server = machine.start();
    for (id, key) in ids.into_iter().zip(keys) {
        assert_eq!(server.key(id), (id != shredded).then_some(key));
    }
    assert_eq!(server.key(newer), None);
    assert!(server.is_deactivated(revoked) && !server.is_deactivated(kept));
    assert!(server.lets_in(&friend) && server.lets_in(&enrolled) && !server.lets_in(&thief));
    let clients = server.state.authority.clients().unwrap();
    assert!(clients.iter().any(|(id, _, _)| *id == enrolled.record.client));
    assert_eq!(server.get(&key_key(3)).unwrap(), [3; 16]);
    let generations = [1, 2, 3].map(|vm| server.get(&vm_key(vm)).unwrap());
    assert_eq!(generations, [9_u64, 7, 1].map(|generation| generation.to_be_bytes().to_vec()));
    assert_eq!(server.get(&destruction_key(cancelled)), None);
    let waits: Waiting = serde_json::from_slice(&server.get(&destruction_key(kept)).unwrap()).unwrap();
    assert!(waits.confirmed_by.is_some());
    assert_eq!(machine.restores_on_record(), 1);
}

#[test]
fn another_servers_clients_have_no_part_in_what_is_restored_over_it() {
    let (old, new, safe) = (Machine::new(), Machine::new(), TempDir::new().unwrap());
    let path = safe.path().join("backup");
    let server = old.start();
    let (id, client) = (server.create(&owner(), "one"), server.enrol("client"));
    server.back_up(&path);
    drop(server);
    let server = new.start();
    let (theirs, stranger) = (server.create(&owner(), "theirs"), server.enrol("stranger"));
    drop(server);
    restore(&new, &path, true).unwrap();
    let server = new.start();
    assert!(server.lets_in(&client) && !server.lets_in(&stranger));
    assert!(server.key(id).is_some() && server.key(theirs).is_none());
    let clients = server.state.authority.clients().unwrap();
    assert!(!clients.iter().any(|(id, _, _)| *id == stranger.record.client));
}

#[test]
fn a_server_that_serves_is_not_restored() {
    let (machine, safe) = (Machine::new(), TempDir::new().unwrap());
    let path = safe.path().join("backup");
    let server = machine.start();
    server.back_up(&path);
    let refused = ServerTarget::open(&machine.directory, &machine.root()).map(drop).unwrap_err();
    assert!(refused.to_string().contains("is in use"), "{refused}");
}

#[test]
fn what_nobody_has_decided_about_is_not_left_out_of_a_backup_in_silence() {
    for key in ["something/new", "authority/new"] {
        let (machine, safe) = (Machine::new(), TempDir::new().unwrap());
        let server = machine.start();
        server.put(key.as_bytes(), b"of a later version");
        let refused =
            backup::write(&server.source(), &two_of_three(), &safe.path().join("backup")).unwrap_err();
        assert!(matches!(&refused, BackupError::Source(_)) && refused.to_string().contains(key), "{refused}");
    }
}
