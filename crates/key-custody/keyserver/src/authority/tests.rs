//! Accepted and refused clients, in handshakes of TLS 1.2 and 1.3.

mod lifetimes;
mod peers;
mod pins;

use std::sync::mpsc::{Receiver, Sender, channel};

use proptest::prelude::*;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConnection};
use strongroom_store::Engine;

use super::limits::CLIENT_VALIDITY;
use super::*;
use crate::access::{ClientName, PublicKeySha256, Role};

/// An authority over a store of its own.
pub(super) struct Place {
    pub(super) store: Arc<Engine>,
    root: SecretBytes,
    _directory: tempfile::TempDir,
}

impl Place {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Engine::create(&directory.path().join("store.redb")).unwrap());
        Self { store, root: SecretBytes::random(32).unwrap(), _directory: directory }
    }

    pub(super) fn settings() -> Settings {
        Settings::new(vec!["kms.example.org".to_owned(), "localhost".to_owned(), "127.0.0.1".to_owned()])
    }

    pub(super) fn open_at(&self, now: OffsetDateTime) -> Arc<Authority> {
        Authority::open(self.store.clone(), &self.root, Self::settings(), now).unwrap()
    }

    pub(super) fn open(&self) -> Arc<Authority> {
        self.open_at(noon())
    }
}

/// The handshakes below use the machine's clock, so the tests' times are relative to it.
pub(super) fn noon() -> OffsetDateTime {
    OffsetDateTime::now_utc().replace_nanosecond(0).unwrap()
}

pub(super) fn name(text: &str) -> ClientName {
    text.parse().unwrap()
}

/// A client's side: its key and its certificate.
pub(super) struct Peer {
    pub(super) pkcs8: SecretBytes,
    pub(super) request: String,
}

impl Peer {
    pub(super) fn new() -> Self {
        let (key, pkcs8) = PrivateKey::generate().unwrap();
        Self { pkcs8, request: signing_request::signing_request(&key).unwrap() }
    }

    pub(super) fn tls_key(&self) -> rustls::pki_types::PrivateKeyDer<'static> {
        rustls::pki_types::PrivatePkcs8KeyDer::from(self.pkcs8.expose().to_vec()).into()
    }
}

fn issue(authority: &Authority, role: Role, peer: &Peer, now: OffsetDateTime) -> ClientCertificate {
    authority.issue(role, &name("host-1"), peer.request.as_bytes(), None, now).unwrap()
}

/// One handshake in memory. Returns the server's result, and the server's certificate chain as the
/// client saw it.
fn handshake(
    authority: &Arc<Authority>,
    version: &'static rustls::SupportedProtocolVersion,
    roots: &[CertificateDer<'static>],
    shown: Option<(Vec<CertificateDer<'static>>, &Peer)>,
) -> Result<usize, rustls::Error> {
    let mut store = RootCertStore::empty();
    roots.iter().for_each(|root| store.add(root.clone()).unwrap());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(store);
    let config = match shown {
        Some((chain, peer)) => config.with_client_auth_cert(chain, peer.tls_key()).unwrap(),
        None => config.with_no_client_auth(),
    };
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut server = ServerConnection::new(authority.server_config().unwrap()).unwrap();
    while client.is_handshaking() || server.is_handshaking() {
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        server.read_tls(&mut bytes.as_slice()).unwrap();
        server.process_new_packets()?;
        bytes.clear();
        server.write_tls(&mut bytes).unwrap();
        client.read_tls(&mut bytes.as_slice()).unwrap();
        client.process_new_packets()?;
    }
    Ok(client.peer_certificates().unwrap().len())
}

const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

fn refusal_of(
    authority: &Arc<Authority>,
    shown: Option<(Vec<CertificateDer<'static>>, &Peer)>,
) -> Option<Refusal> {
    let [old, new] = VERSIONS.map(|version| {
        let roots = authority.roots(noon());
        handshake(authority, version, &roots, shown.clone())
            .err()
            .and_then(|error| Refusal::of_handshake(&error))
    });
    assert_eq!(old, new, "TLS 1.2 and 1.3");
    new
}

#[derive(Default)]
struct Told {
    revoked: Mutex<Option<Sender<Revoked>>>,
    refused: Mutex<Vec<(CertificateSha256, Refusal)>>,
}

impl Told {
    fn by(authority: &Authority) -> (Arc<Self>, Receiver<Revoked>) {
        let (sender, receiver) = channel();
        let told = Arc::new(Self { revoked: Mutex::new(Some(sender)), ..Self::default() });
        authority.observe(told.clone());
        (told, receiver)
    }
}

impl Observer for Told {
    fn revoked(&self, revoked: &Revoked) {
        self.revoked.lock().as_ref().unwrap().send(revoked.clone()).unwrap();
    }

    fn refused(&self, certificate: &CertificateSha256, refusal: Refusal) {
        self.refused.lock().push((*certificate, refusal));
    }
}

/// Longer than any step of a passing test.
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(60);

#[test]
fn a_client_is_let_in_by_the_certificate_it_was_issued() {
    let authority = Place::new().open();
    for role in Role::ALL {
        let peer = Peer::new();
        let issued = issue(&authority, role, &peer, noon());
        for version in VERSIONS {
            let shown = Some((vec![issued.record.certificate().clone()], &peer));
            assert_eq!(handshake(&authority, version, &issued.roots, shown), Ok(2));
        }
        let identity = authority.identify(issued.record.certificate(), noon()).unwrap();
        assert_eq!((identity.role, identity.client), (role, issued.record.client));
        assert_eq!(identity.name, name("host-1"));
        assert_eq!(identity.public_key, issued.record.public_key);
        assert_eq!(identity.serial, issued.record.serial);
        assert_eq!(identity.certificate, issued.record.sha256());
    }
}

#[test]
fn a_certificate_ends_with_its_last_second_also_on_an_open_connection() {
    let authority = Place::new().open();
    let start = noon();
    let issued = issue(&authority, Role::Host, &Peer::new(), start);
    let certificate = issued.record.certificate();
    for known in [false, true] {
        let at = |offset| authority.identify(certificate, start + offset).map(|identity| identity.role);
        if known {
            assert_eq!(at(Duration::ZERO), Ok(Role::Host));
        }
        assert_eq!(at(CLIENT_VALIDITY + Duration::SECOND), Err(Refusal::Expired));
        assert_eq!(at(-limits::BACKDATED - Duration::SECOND), Err(Refusal::NotYetValid));
        assert_eq!(at(CLIENT_VALIDITY), Ok(Role::Host));
        assert_eq!(at(-limits::BACKDATED), Ok(Role::Host));
    }
}

#[test]
fn each_who_is_not_let_in_is_told_why() {
    let authority = Place::new().open();
    let (told, _revoked) = Told::by(&authority);
    assert_eq!(refusal_of(&authority, None), Some(Refusal::NoCertificate));

    let (peer, long_ago) = (Peer::new(), noon() - CLIENT_VALIDITY - Duration::DAY);
    let expired = issue(&authority, Role::Host, &peer, long_ago).record;
    let shown = Some((vec![expired.certificate().clone()], &peer));
    assert_eq!(refusal_of(&authority, shown), Some(Refusal::Expired));

    let early = issue(&authority, Role::Host, &peer, noon() + Duration::DAY).record;
    let shown = Some((vec![early.certificate().clone()], &peer));
    assert_eq!(refusal_of(&authority, shown), Some(Refusal::NotYetValid));

    let foreign = issue(&Place::new().open(), Role::Admin, &peer, noon()).record;
    let shown = Some((vec![foreign.certificate().clone()], &peer));
    assert_eq!(refusal_of(&authority, shown), Some(Refusal::UnknownAuthority));

    let refusals: Vec<_> = told.refused.lock().drain(..).collect();
    for (record, refusal) in
        [(expired, Refusal::Expired), (early, Refusal::NotYetValid), (foreign, Refusal::UnknownAuthority)]
    {
        assert!(refusals.contains(&(record.sha256(), refusal)), "{refusal}");
    }

    let own = authority.server_certificate();
    assert_eq!(authority.identify(&own, noon()).unwrap_err(), Refusal::NotForClients);
    assert_eq!(
        authority.identify(&authority.roots(noon())[0], noon()).unwrap_err(),
        Refusal::UnknownAuthority
    );
    assert_eq!(
        authority.identify(&CertificateDer::from(vec![0x30, 0]), noon()).unwrap_err(),
        Refusal::Malformed
    );
}

#[test]
fn whoever_has_the_certificate_and_not_the_key_is_not_let_in() {
    let authority = Place::new().open();
    let issued = issue(&authority, Role::Host, &Peer::new(), noon());
    let thief = Peer::new();
    for version in VERSIONS {
        let provider = rustls::crypto::aws_lc_rs::default_provider();
        let key = provider.key_provider.load_private_key(thief.tls_key()).unwrap();
        let stolen = rustls::sign::CertifiedKey::new(vec![issued.record.certificate().clone()], key);
        let mut roots = RootCertStore::empty();
        roots.add(issued.roots[0].clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(provider))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(stolen)));
        let name = ServerName::try_from("localhost").unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut server = ServerConnection::new(authority.server_config().unwrap()).unwrap();
        let refused = loop {
            let mut bytes = Vec::new();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            if let Err(error) = server.process_new_packets() {
                break error;
            }
            assert!(server.is_handshaking(), "let in");
            bytes.clear();
            server.write_tls(&mut bytes).unwrap();
            client.read_tls(&mut bytes.as_slice()).unwrap();
            client.process_new_packets().unwrap();
        };
        assert_eq!(refused, rustls::Error::InvalidCertificate(rustls::CertificateError::BadSignature));
    }
}

#[test]
fn a_revoked_certificate_is_refused_at_once_and_told() {
    let authority = Place::new().open();
    let (_told, revoked) = Told::by(&authority);
    let peer = Peer::new();
    let record = issue(&authority, Role::Host, &peer, noon()).record;
    let other = issue(&authority, Role::Host, &Peer::new(), noon()).record;
    let now = noon();
    authority.identify(record.certificate(), now).unwrap();

    authority.revoke_certificate(&record.sha256(), "stolen", now).unwrap();
    assert_eq!(authority.identify(record.certificate(), now).unwrap_err(), Refusal::Revoked);
    let shown = Some((vec![record.certificate().clone()], &peer));
    assert_eq!(refusal_of(&authority, shown), Some(Refusal::Revoked));
    authority.identify(other.certificate(), now).unwrap();
    let told = revoked.recv_timeout(DEADLINE).unwrap();
    assert_eq!((told.client, told.certificate), (record.client, Some(record.sha256())));
    assert_eq!((told.from, told.reason.as_str()), (now, "stolen"));

    // A repetition changes nothing and notifies nobody.
    authority.revoke_certificate(&record.sha256(), "again", now).unwrap();
    assert!(revoked.try_recv().is_err());
    let unknown = CertificateSha256::of(b"nobody's");
    assert!(matches!(authority.revoke_certificate(&unknown, "", now), Err(AuthorityError::Unknown { .. })));
    assert!(matches!(authority.revoke_certificate(&unknown, "a\nb", now), Err(AuthorityError::Limit { .. })));
}

#[test]
fn a_revoked_client_is_out_with_every_certificate_and_gets_no_other() {
    let authority = Place::new().open();
    let (_told, revoked) = Told::by(&authority);
    let first = issue(&authority, Role::Host, &Peer::new(), noon()).record;
    let identity = authority.identify(first.certificate(), noon()).unwrap();
    let second = authority.renew(&identity, Peer::new().request.as_bytes(), noon()).unwrap().record;
    assert_eq!(revoked.recv_timeout(DEADLINE).unwrap().reason, "renewed");

    authority.revoke_client(first.client, "gone", noon()).unwrap();
    for record in [&first, &second] {
        assert_eq!(authority.identify(record.certificate(), noon()).unwrap_err(), Refusal::Revoked);
    }
    assert_eq!(revoked.recv_timeout(DEADLINE).unwrap().certificate, None);
    let renewed = authority.renew(&identity, Peer::new().request.as_bytes(), noon());
    assert!(matches!(renewed, Err(AuthorityError::Refused(Refusal::Revoked))), "{renewed:?}");
    let listed = authority.certificates_of(first.client, noon()).unwrap();
    assert!(listed.len() == 2 && listed.iter().all(|(_, revoked)| *revoked));
    assert!(authority.clients().unwrap()[0].2);
}

#[test]
fn a_revocation_by_another_process_takes_effect_here() {
    let place = Place::new();
    let (one, other) = (place.open(), place.open());
    let (_told, revoked) = Told::by(&other);
    let record = issue(&one, Role::Client, &Peer::new(), noon()).record;
    other.identify(record.certificate(), noon()).unwrap();
    one.revoke_certificate(&record.sha256(), "stolen", noon()).unwrap();
    revoked.recv_timeout(DEADLINE).unwrap();
    assert_eq!(other.identify(record.certificate(), noon()).unwrap_err(), Refusal::Revoked);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_changed_certificate_is_never_let_in(position in any::<prop::sample::Index>(), bit in 0_u8..8) {
        static ONCE: std::sync::OnceLock<(Arc<Authority>, Place, CertificateDer<'static>)> = std::sync::OnceLock::new();
        let (authority, _, certificate) = ONCE.get_or_init(|| {
            let place = Place::new();
            let authority = place.open();
            let certificate = issue(&authority, Role::Host, &Peer::new(), noon()).record.certificate().clone();
            (authority, place, certificate)
        });
        let mut changed = certificate.to_vec();
        changed[position.index(certificate.len())] ^= 1 << bit;
        prop_assert!(authority.identify(&changed.into(), noon()).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_of_requests_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let read = |bytes: &[u8]| signing_request::RequestedKey::read(bytes, KeyTypes::All);
        prop_assert!(read(&bytes).is_err());
        let mut request = pem_der(&Peer::new().request).to_vec();
        let whole = PublicKeySha256::of(&bytes);
        for (at, byte) in whole.as_bytes().iter().take(4).enumerate() {
            let place = usize::from(*byte) * 7 % request.len();
            request[place] ^= 1 << at;
        }
        let _ = read(&request);
    }
}

fn pem_der(pem: &str) -> rustls::pki_types::CertificateSigningRequestDer<'static> {
    rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap()
}
