//! A certificate of the API from an authority: what is refused, and who is shown which.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, CertifiedIssuer, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use strongroom_control::certificate::{self, CertificateError};
use time::OffsetDateTime;

use crate::support::server::Server;

const NAME: &str = "strongroom.example.com";
/// How long a certificate that is installed may not be served yet.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// An authority that is in no one's list.
fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut parameters = CertificateParams::default();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    CertifiedIssuer::self_signed(parameters, KeyPair::generate().unwrap()).unwrap()
}

/// Issues what a request asks for, with changes.
fn issue(
    request: &str,
    by: &CertifiedIssuer<'static, KeyPair>,
    change: impl FnOnce(&mut CertificateParams),
) -> String {
    let mut request = CertificateSigningRequestParams::from_pem(request).unwrap();
    change(&mut request.params);
    request.signed_by(by).unwrap().pem()
}

fn refusal(home: &Path, chain: &str) -> String {
    match certificate::install(home, chain.as_bytes()) {
        Err(error @ CertificateError::Refused(_)) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_certificate_that_does_not_fit_is_refused() {
    let home = tempfile::tempdir().unwrap();
    let (home, names) = (home.path(), [NAME.to_owned()]);
    assert!(matches!(certificate::install(home, b""), Err(CertificateError::NoRequest)));
    for wrong in ["", "localhost", "127.0.0.1", "::1", "a b.example", ".example.com"] {
        assert!(certificate::request(home, &[wrong.to_owned()]).is_err(), "{wrong}");
    }
    let former = certificate::request(home, &names).unwrap();
    let request = certificate::request(home, &names).unwrap();
    assert!(!request.contains("PRIVATE"));
    let (ca, other) = (authority(), authority());
    let right = issue(&request, &ca, |_| ());
    let chain =
        |certificate: &str, by: &CertifiedIssuer<'static, KeyPair>| format!("{certificate}{}", by.pem());
    let ago = |days| OffsetDateTime::now_utc() - time::Duration::days(days);
    let over =
        issue(&request, &ca, |parameters| (parameters.not_before, parameters.not_after) = (ago(9), ago(1)));
    let early = issue(&request, &ca, |parameters| parameters.not_before = ago(-1));
    let nameless = issue(&request, &ca, |parameters| parameters.subject_alt_names.clear());
    for (what, wrong) in [
        ("nothing", String::new()),
        ("no authorities", right.clone()),
        ("another authority", chain(&right, &other)),
        ("the key of a former request", chain(&issue(&former, &ca, |_| ()), &ca)),
        ("over", chain(&over, &ca)),
        ("not yet", chain(&early, &ca)),
        ("for no name", chain(&nameless, &ca)),
        ("the authority first", format!("{}{right}", ca.pem())),
        ("too many", format!("{right}{}", ca.pem().repeat(8))),
    ] {
        let told = refusal(home, &wrong);
        assert!(!told.contains("PRIVATE"), "{what}: {told}");
        assert!(certificate::installed(home).unwrap().is_none(), "{what}");
    }
    // A key that somebody else's file brings along is not taken.
    let foreign = KeyPair::generate().unwrap().serialize_pem();
    let installed =
        certificate::install(home, format!("{foreign}{}", chain(&right, &ca)).as_bytes()).unwrap();
    assert_eq!(installed.names, [NAME]);
    let content = std::fs::read_to_string(certificate::installed_file(home)).unwrap();
    assert_eq!(content.matches("PRIVATE KEY-----").count(), 2, "one block");
    assert!(!content.contains(foreign.lines().nth(1).unwrap()));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(certificate::installed_file(home)).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert!(matches!(certificate::install(home, right.as_bytes()), Err(CertificateError::NoRequest)));
}

/// The certificate that the server shows to who trusts this and asks for a name.
fn shown(server: &Server, trusted: &[u8], name: &'static str) -> Option<Vec<u8>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(server.address()).unwrap();
    let name = ServerName::try_from(name).unwrap();
    let mut tls = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
    tls.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = [0; 15];
    tls.read_exact(&mut answer).ok()?;
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    Some(tls.conn.peer_certificates().unwrap()[0].to_vec())
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SERVED_WITHIN, "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn an_installed_certificate_is_served_at_once_to_who_asks_for_its_names() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let own = std::fs::read(home.path().join("api.crt")).unwrap();
    let mut before = server.client();
    assert_eq!(before.get("/v1/me").status, 200);
    let own_der = shown(&server, &own, "localhost").unwrap();
    let ca = authority();
    let ca_pem = ca.pem().into_bytes();
    assert!(shown(&server, &ca_pem, NAME).is_none());
    let mut last = Vec::new();
    // Installed, and renewed a day before its end: the alarm is raised.
    for days in [90, 1] {
        let request = certificate::request(home.path(), &[NAME.to_owned(), format!("*.{NAME}")]).unwrap();
        let chain = issue(&request, &ca, |parameters| {
            parameters.not_after = OffsetDateTime::now_utc() + time::Duration::days(days);
        });
        certificate::install(home.path(), format!("{chain}{}", ca.pem()).as_bytes()).unwrap();
        wait_for("it is not served", || shown(&server, &ca_pem, NAME).is_some_and(|now| now != last));
        last = shown(&server, &ca_pem, NAME).unwrap();
        assert_eq!(shown(&server, &ca_pem, "any.strongroom.example.com").unwrap(), last);
        assert!(shown(&server, &ca_pem, "a.b.strongroom.example.com").is_none());
        // Who has pinned the API's own sees that, by name and by address.
        assert_eq!(shown(&server, &own, "localhost").unwrap(), own_der);
        assert_eq!(shown(&server, &own, "127.0.0.1").unwrap(), own_der);
        assert!(shown(&server, &ca_pem, "localhost").is_none());
        server.look();
        let alarms = before.get("/v1/alarms").json();
        let ends = alarms["items"].as_array().unwrap().iter();
        let ends = ends.filter(|alarm| alarm["kind"] == "certificate_expiry").count();
        assert_eq!(ends, usize::from(days == 1), "{alarms}");
    }
    // A file that is damaged leaves what is served as it is.
    let file = certificate::installed_file(home.path());
    std::fs::write(&file, "damaged").unwrap();
    assert!(certificate::installed(home.path()).is_err());
    server.stop();
    let server = Server::start(home.path());
    assert!(shown(&server, &ca_pem, NAME).is_none());
    assert_eq!(shown(&server, &own, "localhost").unwrap(), own_der);
    assert!(certificate::remove(home.path()).unwrap());
    assert!(!certificate::remove(home.path()).unwrap());
}
