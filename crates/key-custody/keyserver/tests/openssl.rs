//! The authority and OpenSSL interoperate: requests of `openssl req`, certificates checked by
//! `openssl verify`, connections of `openssl s_client`.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::io::Write;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::ServerConnection;
use rustls::pki_types::CertificateDer;
use strongroom_keyserver::access::{ClientName, Role};
use strongroom_keyserver::authority::{
    Authority, AuthorityError, ClientCertificate, KeyTypes, Settings, SigningRequestError, limits,
};
use strongroom_memory::secret::SecretBytes;
use strongroom_store::Engine;
use time::OffsetDateTime;

struct Place {
    directory: tempfile::TempDir,
    authority: Arc<Authority>,
}

impl Place {
    fn new() -> Self {
        Self::with(KeyTypes::All)
    }

    fn with(key_types: KeyTypes) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Engine::create(&directory.path().join("store.redb")).unwrap());
        let settings = Settings { key_types, ..Settings::new(vec!["localhost".into(), "127.0.0.1".into()]) };
        let authority = Authority::open(store, &SecretBytes::random(32).unwrap(), settings, now()).unwrap();
        Self { directory, authority }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Runs `openssl` in the place; returns its output or its error message.
    fn openssl(&self, arguments: &str) -> Result<String, String> {
        let mut command = Command::new("openssl");
        command.current_dir(self.path()).args(arguments.split_whitespace()).stdin(Stdio::null());
        let output = command.output().expect("openssl is installed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = text(&output.stdout) + &text(&output.stderr);
        if output.status.success() { Ok(said) } else { Err(said) }
    }

    /// A key and a request for it, with a subject and an extension that the authority must ignore.
    fn request(&self, key: &str, digest: &str) -> Vec<u8> {
        self.openssl(&format!("genpkey {key} -out key.pem")).unwrap();
        let wishes =
            "-subj /CN=root -addext basicConstraints=critical,CA:TRUE -addext subjectAltName=DNS:evil";
        self.openssl(&format!("req -new -key key.pem {digest} {wishes} -out request.pem")).unwrap();
        std::fs::read(self.path().join("request.pem")).unwrap()
    }

    fn issue(&self, request: &[u8]) -> Result<ClientCertificate, AuthorityError> {
        let name: ClientName = "vcenter-7.example.org".parse().unwrap();
        self.authority.issue(Role::Client, &name, request, None, now())
    }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::now_utc()
}

fn pem(certificate: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec()))
}

const P256: &str = "-algorithm EC -pkeyopt ec_paramgen_curve:P-256";
const P384: &str = "-algorithm EC -pkeyopt ec_paramgen_curve:P-384";

fn rsa(bits: u32) -> String {
    format!("-algorithm RSA -pkeyopt rsa_keygen_bits:{bits}")
}

#[test]
fn requests_of_openssl_are_answered_with_certificates_that_it_verifies() {
    let place = Place::new();
    let rsa = rsa(2048);
    let kinds = [
        (P256, "-sha256"),
        (P256, "-sha512"),
        (P384, "-sha256"),
        (P384, "-sha384"),
        (&rsa, "-sha256"),
        (&rsa, "-sha384"),
        ("-algorithm ED25519", ""),
    ];
    for (key, digest) in kinds {
        let digest = if digest.is_empty() { "-sha256" } else { digest };
        let request = place.request(key, digest);
        let issued = place.issue(&request).unwrap();
        place.write("roots.pem", &issued.roots_pem());
        place.write("client.pem", &issued.record.pem());
        let verify = |purpose| {
            place.openssl(&format!("verify -x509_strict -CAfile roots.pem -purpose {purpose} client.pem"))
        };
        assert!(verify("sslclient").unwrap().contains("OK"), "{key}");
        assert!(verify("sslserver").is_err(), "{key}");
        let shown = place.openssl("x509 -in client.pem -noout -text").unwrap();
        let uri = format!("URI:strongroom:client:{}:role:client", issued.record.client);
        for line in ["CA:FALSE", "TLS Web Client Authentication", "CN = vcenter-7.example.org", &uri] {
            assert!(shown.contains(line), "{line}: {shown}");
        }
        assert!(!shown.contains("evil") && !shown.contains("CN = root"), "{shown}");

        // The certificate is for OpenSSL's own key.
        let public = place.openssl("pkey -in key.pem -pubout").unwrap();
        assert_eq!(place.openssl("x509 -in client.pem -noout -pubkey").unwrap(), public);
        let fingerprint = place.openssl("x509 -in client.pem -noout -fingerprint -sha256").unwrap();
        let (_, digits) = fingerprint.trim().split_once('=').unwrap();
        assert_eq!(digits.parse(), Ok(issued.record.sha256()));
        let identity = place.authority.identify(issued.record.certificate(), now()).unwrap();
        assert_eq!(identity.client, issued.record.client);
    }
}

#[test]
fn requests_that_are_not_taken_are_refused_with_the_reason() {
    let place = Place::new();
    let reason = |place: &Place, request: &[u8]| match place.issue(request) {
        Err(AuthorityError::SigningRequest(reason)) => reason,
        other => panic!("{other:?}"),
    };
    let small = place.request(&rsa(1024), "-sha256");
    assert_eq!(reason(&place, &small), SigningRequestError::Possession);
    let p521 = place.request("-algorithm EC -pkeyopt ec_paramgen_curve:P-521", "-sha256");
    assert_eq!(reason(&place, &p521), SigningRequestError::KeyType);
    let sha1 = place.request(P256, "-sha1");
    assert_eq!(reason(&place, &sha1), SigningRequestError::SignatureAlgorithm);
    let strict = Place::with(KeyTypes::WithoutEd25519);
    let ed25519 = strict.request("-algorithm ED25519", "-sha256");
    assert_eq!(reason(&strict, &ed25519), SigningRequestError::Ed25519Off);

    // Every changed byte is detected, except one that is outside the signed part and read
    // leniently: the tag of the signature algorithm's OID, which does not change the key.
    place.request(P256, "-sha256");
    place.openssl("req -in request.pem -outform DER -out request.der").unwrap();
    let request = std::fs::read(place.path().join("request.der")).unwrap();
    let key = place.issue(&request).unwrap().record.public_key;
    let mut lenient = 0;
    for at in 0..request.len() {
        let mut changed = request.clone();
        changed[at] ^= 1;
        if let Ok(issued) = place.issue(&changed) {
            assert_eq!(issued.record.public_key, key, "byte {at}");
            lenient += 1;
        }
        assert!(place.issue(&request[..at]).is_err(), "{at} bytes");
    }
    assert!(lenient <= 1, "{lenient}");
    assert_eq!(reason(&place, &[request, vec![0]].concat()), SigningRequestError::Malformed);
    let too_long = vec![b'x'; limits::SIGNING_REQUEST_MAX_BYTES + 1];
    assert_eq!(reason(&place, &too_long), SigningRequestError::TooLong);
}

#[test]
fn openssl_verifies_the_server_before_during_and_after_a_roll_over() {
    let place = Place::new();
    let server = |root: &str, chain: &str| {
        place.write("server.pem", &pem(&place.authority.server_certificate()));
        let names = "-verify_hostname localhost -purpose sslserver -x509_strict";
        place.openssl(&format!("verify {names} -CAfile {root} {chain} server.pem"))
    };
    place.write("old.pem", &pem(&place.authority.roots(now())[0]));
    assert!(server("old.pem", "").unwrap().contains("OK"));

    place.authority.roll_over(limits::CA_OVERLAP, now()).unwrap();
    place.write("new.pem", &pem(&place.authority.roots(now())[0]));
    assert!(server("new.pem", "").unwrap().contains("OK"));
    assert!(server("old.pem", "").is_err());
    let (chain, _) = connected(&place, "-tls1_3", "-CAfile old.pem -showcerts");
    place.write("chain.pem", &chain);
    assert!(server("old.pem", "-untrusted chain.pem").unwrap().contains("OK"));
}

/// The output of `s_client` for a connection to a server with the authority's configuration, and
/// the server's result.
fn connected(place: &Place, version: &str, arguments: &str) -> (String, Result<(), rustls::Error>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let config = place.authority.server_config().unwrap();
    let server = std::thread::spawn(move || {
        let (mut tcp, _) = listener.accept().unwrap();
        let mut tls = ServerConnection::new(config).unwrap();
        while tls.is_handshaking() {
            if let Err(error) = tls.complete_io(&mut tcp) {
                let _ = tls.write_tls(&mut tcp);
                return Err(error.downcast::<rustls::Error>().unwrap());
            }
        }
        tls.writer().write_all(b"let in\n").unwrap();
        tls.send_close_notify();
        while tls.wants_write() {
            tls.write_tls(&mut tcp).unwrap();
        }
        Ok(())
    });
    let said = place.openssl(&format!(
        "s_client -connect {address} {version} -verify_return_error -verify_hostname localhost -ign_eof {arguments}"
    ));
    (said.unwrap_or_else(|said| said), server.join().unwrap())
}

#[test]
fn openssl_connects_with_its_own_keys_by_either_version() {
    let place = Place::new();
    place.write("roots.pem", &pem(&place.authority.roots(now())[0]));
    for key in [P256, P384, &rsa(2048)] {
        let issued = place.issue(&place.request(key, "-sha256")).unwrap();
        place.write("client.pem", &issued.record.pem());
        for version in ["-tls1_2", "-tls1_3"] {
            let (said, server) =
                connected(&place, version, "-CAfile roots.pem -cert client.pem -key key.pem");
            assert_eq!(server, Ok(()), "{said}");
            assert!(said.contains("Verify return code: 0 (ok)") && said.contains("let in"), "{said}");
        }
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let (said, server) = connected(&place, version, "-CAfile roots.pem");
        assert_eq!(server, Err(rustls::Error::NoCertificatesPresented), "{said}");
    }
}
