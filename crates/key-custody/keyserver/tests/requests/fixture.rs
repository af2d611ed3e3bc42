//! A key server in memory, its clients, and a control plane that grants.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use parking_lot::Mutex;
use strongroom_keyserver::Caller;
use strongroom_keyserver::LedgeredGrants;
use strongroom_keyserver::Settings;
use strongroom_keyserver::access::{
    CertificateSerial, CertificateSha256, ClientId, Identity, PublicKeySha256, Role,
};
use strongroom_keyserver::broker::{Broker, BrokerTimes, Upstream};
use strongroom_keyserver::grant::{
    Grant, GrantPeriod, GrantSigner, GrantTime, GrantedOperation, GrantedOperations, Signer, SignerRefusal,
    Signers, VmGeneration, VmId,
};
use strongroom_keyserver::objects::clock::{Clock, UnixSeconds};
use strongroom_keyserver::objects::dependents::Dependents;
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_keyserver::{Event, Observer, RecordError, Recording};
use strongroom_keyserver::{Foundations, KeyServer};
use strongroom_kmip::message::*;
use strongroom_kmip::protocol::*;
use strongroom_kmip::ttlv::Limits;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::Engine;
use time::OffsetDateTime;

pub const NOW: i64 = 1_795_348_800;

/// Times that never run out during a test.
const AS_LONG_AS_IT_TAKES: BrokerTimes =
    BrokerTimes { answers_within: Duration::from_secs(3600), state_kept: Duration::from_secs(3600) };

#[derive(Default)]
pub struct Recorder {
    pub events: Mutex<Vec<Event>>,
    pub is_broken: AtomicBool,
}

impl Observer for Recorder {
    fn record<'a>(&'a self, events: &'a [Event]) -> Recording<'a> {
        Box::pin(async move {
            if self.is_broken.load(Ordering::SeqCst) {
                return Err(RecordError("the disk is full".to_owned()));
            }
            self.events.lock().extend_from_slice(events);
            Ok(())
        })
    }
}

/// The dependents of every key: names, whether they are unknown, and the linked clones of a VM.
#[derive(Default)]
pub struct Volumes(pub Mutex<Vec<String>>, pub AtomicBool, pub Mutex<Option<(VmId, Vec<String>)>>);

impl Dependents for Volumes {
    fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
        if self.1.load(Ordering::SeqCst) {
            return Err("/mnt/ds is not mounted".into());
        }
        Ok(self.0.lock().clone())
    }

    fn clones_of(&self, vm: VmId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
        let clones = self.2.lock().clone();
        Ok(clones.filter(|(of, _)| *of == vm).map(|(_, names)| names).unwrap_or_default())
    }
}

pub struct TestClock(pub AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.0.load(Ordering::SeqCst))
    }
}

/// The control plane's id.
const CONTROL: ClientId = ClientId::from_bytes([2; 16]);

/// The one control plane whose grants are accepted.
#[derive(Clone)]
pub struct Control {
    pub signer: Arc<GrantSigner>,
    certificate: CertificateSha256,
    public_key: Vec<u8>,
}

impl Control {
    pub fn new() -> Self {
        let pkcs8 =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
        let key = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref()).unwrap();
        let certificate = CertificateSha256::of(key.public_key().as_ref());
        let secret = SecretBytes::from_slice_and_wipe(&mut pkcs8.as_ref().to_vec()).unwrap();
        let signer = Arc::new(GrantSigner::new(&secret, certificate).unwrap());
        Self { signer, certificate, public_key: key.public_key().as_ref().to_vec() }
    }

    /// A grant for a host to get one object, valid for a minute.
    pub fn grant(&self, host: &Identity, object: &str, generation: u64) -> Vec<u8> {
        let time = GrantPeriod { not_before: GrantTime(NOW as u64), expires: GrantTime(NOW as u64 + 60) };
        let operations = GrantedOperations::of(GrantedOperation::Get, &[GrantedOperation::ReadMetadata]);
        let vm = VmId::from_bytes([7; 16]);
        let objects = vec![object.to_owned()];
        let grant =
            Grant::new(vm, VmGeneration(generation), host.public_key, operations, objects, time).unwrap();
        grant.sign(&self.signer).unwrap()
    }
}

impl Signers for Control {
    fn signer(&self, certificate: &CertificateSha256, _: OffsetDateTime) -> Result<Signer, SignerRefusal> {
        if *certificate != self.certificate {
            return Err(SignerRefusal::Unknown);
        }
        Ok(Signer { client: CONTROL, public_key: self.public_key.clone() })
    }
}

pub struct Fixture {
    runtime: tokio::runtime::Runtime,
    pub clock: Arc<TestClock>,
    pub store: Arc<Engine>,
    pub recorder: Arc<Recorder>,
    pub control: Control,
    pub volumes: Arc<Volumes>,
    pub server: Arc<KeyServer>,
}

impl Fixture {
    pub fn new() -> Self {
        Self::under(&root(1))
    }

    /// An empty server under that root.
    pub fn under(root: &SecretBytes) -> Self {
        let store = Arc::new(Engine::with_backend(redb::backends::InMemoryBackend::new(), "test").unwrap());
        Self::over(store, root)
    }

    /// A server on a `store` that another server has used.
    pub fn over(store: Arc<Engine>, root: &SecretBytes) -> Self {
        Self::assembled(store, root, None)
    }

    /// An empty server with an external provider.
    pub fn before(upstream: Arc<dyn Upstream>) -> Self {
        Self::before_with_times(upstream, AS_LONG_AS_IT_TAKES)
    }

    /// The same, with these times of its broker.
    pub fn before_with_times(upstream: Arc<dyn Upstream>, times: BrokerTimes) -> Self {
        let store = Arc::new(Engine::with_backend(redb::backends::InMemoryBackend::new(), "test").unwrap());
        let broker = Broker::with_times(upstream, times);
        Self::assembled(store, &root(1), Some(Arc::new(broker)))
    }

    fn assembled(store: Arc<Engine>, root: &SecretBytes, broker: Option<Arc<Broker>>) -> Self {
        let clock = Arc::new(TestClock(AtomicI64::new(NOW)));
        let recorder = Arc::new(Recorder::default());
        let volumes = Arc::new(Volumes::default());
        let control = Control::new();
        let grants = LedgeredGrants::new(store.clone(), control.clone(), clock.clone());
        let foundations = Foundations {
            store: store.clone(),
            clock: clock.clone(),
            grants: Arc::new(grants),
            observer: recorder.clone(),
            dependents: volumes.clone(),
        };
        let server = KeyServer::new(foundations, root, Settings::default()).unwrap();
        let server = Arc::new(server.with_broker(broker));
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
        Self { runtime, clock, store, recorder, control, volumes, server }
    }

    /// Sends a message as bytes, and decodes the answer like a client.
    pub fn send(&self, client: &Identity, request: &RequestMessage) -> ResponseMessage {
        self.send_bytes(client, &request.encode())
    }

    /// The same with bytes that our own encoder would not make.
    pub fn send_bytes(&self, client: &Identity, request: &[u8]) -> ResponseMessage {
        let caller = Caller::new(client.clone(), None);
        let answer = self.runtime.block_on(self.server.answer(caller, request, &Limits::default()));
        ResponseMessage::decode(&answer, &Limits::default()).unwrap()
    }

    /// Sends one request item.
    pub fn ask(&self, client: &Identity, payload: RequestPayload) -> ResponseItem {
        self.send(client, &message(vec![payload])).items.remove(0)
    }

    /// Sends one request item with a grant.
    pub fn ask_granted(&self, host: &Identity, grant: Vec<u8>, payload: RequestPayload) -> ResponseItem {
        self.send(host, &granted(grant, vec![payload])).items.remove(0)
    }

    /// Makes a key, and returns its identifier.
    pub fn create(&self, client: &Identity, attributes: Vec<AttributeValue>) -> String {
        match self.ask(client, create(attributes)).payload {
            Some(ResponsePayload::Create(created)) => created.unique_identifier,
            other => panic!("{other:?}"),
        }
    }

    pub fn spawn<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> tokio::task::JoinHandle<T> {
        self.runtime.spawn(task)
    }

    pub fn wait<T>(&self, task: impl Future<Output = T>) -> T {
        self.runtime.block_on(task)
    }

    pub fn events(&self) -> Vec<Event> {
        std::mem::take(&mut self.recorder.events.lock())
    }
}

pub fn root(number: u8) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut [number; 32]).unwrap()
}

pub fn identity(name: &str, role: Role) -> Identity {
    Identity {
        // There is one control plane.
        client: if role == Role::Control { CONTROL } else { ClientId::random() },
        role,
        name: name.parse().unwrap(),
        public_key: PublicKeySha256::of(name.as_bytes()),
        certificate: CertificateSha256::of(name.as_bytes()),
        serial: CertificateSerial::from_bytes(&[1]),
        not_after: OffsetDateTime::from_unix_timestamp(NOW + 86_400).unwrap(),
    }
}

pub fn client(name: &str) -> Identity {
    identity(name, Role::Client)
}

pub fn message(payloads: Vec<RequestPayload>) -> RequestMessage {
    RequestMessage {
        header: RequestHeader::new(ProtocolVersion::V1_4),
        items: payloads.into_iter().map(RequestItem::from).collect(),
    }
}

/// The same under a grant.
pub fn granted(grant: Vec<u8>, payloads: Vec<RequestPayload>) -> RequestMessage {
    let mut request = message(payloads);
    request.header.authentication =
        Some(Authentication { credentials: vec![Credential::StrongroomGrant(grant.into())] });
    request
}

/// A request for an AES-256 key with those attributes beside algorithm, length and usage.
pub fn create(attributes: Vec<AttributeValue>) -> RequestPayload {
    let usage = CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT;
    let attributes = [
        AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
        AttributeValue::CryptographicLength(256),
        AttributeValue::CryptographicUsageMask(usage),
    ]
    .into_iter()
    .chain(attributes);
    RequestPayload::Create(CreateRequest {
        object_type: ObjectType::SymmetricKey,
        template_attribute: TemplateAttribute {
            templates: Vec::new(),
            attributes: attributes.map(Attribute::from).collect(),
        },
    })
}

pub fn name(text: &str) -> AttributeValue {
    AttributeValue::Name(Name { value: text.to_owned(), kind: NameType::UninterpretedTextString })
}

pub fn get(id: &str) -> RequestPayload {
    RequestPayload::Get(GetRequest { unique_identifier: Some(id.to_owned()), ..GetRequest::default() })
}

pub fn just(id: &str) -> UniqueIdentifierRequest {
    UniqueIdentifierRequest { unique_identifier: Some(id.to_owned()) }
}

pub fn revoke(id: &str, code: RevocationReasonCode) -> RequestPayload {
    RequestPayload::Revoke(RevokeRequest {
        unique_identifier: Some(id.to_owned()),
        revocation_reason: RevocationReason { code, message: None },
        compromise_occurrence_date: None,
    })
}

pub fn locate(attributes: Vec<AttributeValue>) -> RequestPayload {
    let attributes = attributes.into_iter().map(Attribute::from).collect();
    RequestPayload::Locate(LocateRequest { attributes, ..LocateRequest::default() })
}

/// The bytes of the key in an answer to Get.
pub fn key_in(item: &ResponseItem) -> Vec<u8> {
    match &item.payload {
        Some(ResponsePayload::Get(GetResponse { object: ManagedObject::SymmetricKey(block), .. })) => {
            block.plain_bytes().unwrap().expose().to_vec()
        }
        other => panic!("{other:?} {:?}", item.result_message),
    }
}

pub fn located(item: &ResponseItem) -> Vec<String> {
    match &item.payload {
        Some(ResponsePayload::Locate(found)) => found.unique_identifiers.clone(),
        other => panic!("{other:?} {:?}", item.result_message),
    }
}

#[track_caller]
pub fn assert_done(item: &ResponseItem) {
    assert_eq!(item.result_status, ResultStatus::Success, "{:?}", item.result_message);
}

#[track_caller]
pub fn assert_refused(item: &ResponseItem, reason: ResultReason) {
    assert_eq!(item.result_status, ResultStatus::OperationFailed);
    assert_eq!(item.result_reason, Some(reason), "{:?}", item.result_message);
    assert_eq!(item.payload, None);
}
