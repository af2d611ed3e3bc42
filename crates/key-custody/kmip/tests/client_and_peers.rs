//! Our client against other servers: PyKMIP 0.11.0 and one from kmip-go 0.8.1.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::Path;
use std::time::Duration;

use aws_lc_rs::key_wrap::{AES_256, AesKek, KeyWrap};
use strongroom_kmip::client::{Client, ClientError, ClientOptions, NewKey, Phase, TlsFiles};
use strongroom_kmip::protocol::{
    AttributeName, AttributeValue, CryptographicAlgorithm, CryptographicUsageMask, EncodingOption, Operation,
    ProtocolVersion, QueryFunction, ResultReason, RevocationReasonCode, State,
};
use strongroom_kmip::ttlv::Value;
use strongroom_memory::secret::SecretBytes;
use strongroom_test_peers::{CertificateFiles, Pki, Proxy, Server, ServerKind};

const BOTH: [ServerKind; 2] = [ServerKind::PyKmip, ServerKind::KmipGo];

fn options(pki: &Pki, identity: &CertificateFiles, address: &str) -> ClientOptions {
    let tls = TlsFiles {
        authority: pki.authority(),
        certificate: identity.certificate.clone(),
        key: identity.key.clone(),
    };
    let mut options = ClientOptions::new(address.parse().unwrap(), tls);
    // A busy machine is no failure of the server; tests that need a short time set it.
    options.request_timeout = Duration::from_secs(60);
    options.connect_timeout = Duration::from_secs(60);
    options
}

fn start(kind: ServerKind, options: &[&str]) -> (Pki, Server, tempfile::TempDir) {
    let (pki, store) = (Pki::new(), tempfile::tempdir().unwrap());
    let server = Server::start(kind, &pki, store.path(), options);
    (pki, server, store)
}

fn reason(error: ClientError) -> ResultReason {
    error.refusal().unwrap_or_else(|| panic!("no refusal: {error}")).reason
}

/// A key from its creation to its destruction, with every operation of the client.
fn life_cycle(client: &Client, kind: ServerKind) {
    let version = client.version().unwrap();
    let offered = client.query(&[QueryFunction::Operations]).unwrap().operations;
    assert!(offered.contains(&Operation::Get), "{kind:?} {version}: {offered:?}");
    if version > ProtocolVersion::V1_0 {
        assert!(client.discover_versions().unwrap().contains(&version));
    }

    let name = format!("strongroom-{kind:?}-{version}");
    let new = NewKey { unique_name: Some(name.clone()), ..NewKey::aes_256() };
    let id = client.create(&new).unwrap();
    assert_eq!(client.locate_by_name(&name).unwrap().as_ref(), Some(&id));
    assert_eq!(client.state(&id).unwrap(), State::PreActive);
    client.activate(&id).unwrap();
    assert_eq!(client.state(&id).unwrap(), State::Active);

    let got = client.get(&id).unwrap();
    assert_eq!((got.secret.len(), got.algorithm), (32, Some(CryptographicAlgorithm::Aes)));
    assert_eq!(client.get(&id).unwrap().secret, got.secret);

    let names = client.get_attribute_list(&id).unwrap();
    assert!(names.contains(&AttributeName::State), "{kind:?} {version}: {names:?}");
    let length = client.get_attributes(&id, &[AttributeName::CryptographicLength]).unwrap();
    assert_eq!(length, [AttributeValue::CryptographicLength(256)]);

    let own = AttributeValue::Other {
        name: "x-Product".to_owned(),
        value: Value::TextString("strongroom".to_owned()),
    };
    let added = client.add_attribute(&id, own.clone());
    if offered.contains(&Operation::AddAttribute) {
        added.unwrap();
        assert_eq!(client.get_attributes(&id, &[own.name()]).unwrap(), [own]);
    } else {
        // PyKMIP cannot even read it.
        let reason = reason(added.unwrap_err());
        assert!(matches!(reason, ResultReason::OperationNotSupported | ResultReason::InvalidMessage));
    }

    wrapped_get(client, kind, &id, &got.secret);

    assert!(client.destroy(&id).unwrap_err().refusal().is_some(), "an active key was destroyed");
    client.revoke(&id, RevocationReasonCode::Superseded, "a newer key").unwrap();
    assert_eq!(client.state(&id).unwrap(), State::Deactivated);
    client.destroy(&id).unwrap();
    assert!(client.get(&id).unwrap_err().refusal().is_some(), "a destroyed key was given");
}

/// The key wrapped under another key that the test registers, and unwrapped here.
fn wrapped_get(client: &Client, kind: ServerKind, id: &str, plain: &SecretBytes) {
    let kek = SecretBytes::random(32).unwrap();
    let mask = CryptographicUsageMask::WRAP_KEY | CryptographicUsageMask::UNWRAP_KEY;
    let wrapping = client.register_key(CryptographicAlgorithm::Aes, &kek, mask, Vec::new()).unwrap();
    assert_eq!(client.get(&wrapping).unwrap().secret, kek);
    client.activate(&wrapping).unwrap();
    let wrapped = client.get_wrapped(id, &wrapping);
    if kind == ServerKind::PyKmip && client.version().unwrap() == ProtocolVersion::V1_0 {
        // PyKMIP wraps only without encoding, which KMIP 1.0 cannot request.
        assert_eq!(reason(wrapped.unwrap_err()), ResultReason::EncodingOptionError);
        return;
    }
    let wrapped = wrapped.unwrap();
    let mut unwrapped = [0; 64];
    let opened = AesKek::new(&AES_256, kek.expose()).unwrap().unwrap(&wrapped.bytes, &mut unwrapped).unwrap();
    let key = match wrapped.encoding {
        EncodingOption::NoEncoding => &*opened,
        // Key Value and Key Material have a header of eight bytes each.
        _ => &opened[16..48],
    };
    assert!(key == plain.expose(), "the wrapped key is another");
    client.revoke(&wrapping, RevocationReasonCode::CessationOfOperation, "").unwrap();
    client.destroy(&wrapping).unwrap();
}

#[test]
fn a_keys_life_in_every_version_that_the_servers_speak() {
    for kind in BOTH {
        let (pki, server, _store) = start(kind, &[]);
        let identity = pki.client("alice");
        for version in ProtocolVersion::SPOKEN {
            let versions = vec![version];
            let client =
                Client::new(ClientOptions { versions, ..options(&pki, &identity, &server.address()) })
                    .unwrap();
            assert_eq!(client.version().unwrap(), version);
            life_cycle(&client, kind);
        }
        let client = Client::new(options(&pki, &identity, &server.address())).unwrap();
        assert_eq!(client.version().unwrap(), ProtocolVersion::V1_4);
    }
}

#[test]
fn versions_are_agreed_on_with_servers_that_know_few_or_no_such_question() {
    for (server_options, agreed) in [
        (vec!["--versions", "1.0", "--without", "DiscoverVersions"], ProtocolVersion::V1_0),
        (vec!["--without", "DiscoverVersions"], ProtocolVersion::V1_0),
        (vec!["--versions", "1.1,1.2"], ProtocolVersion::V1_2),
        (vec!["--versions", "1.3"], ProtocolVersion::V1_3),
        (vec!["--versions", "1.4"], ProtocolVersion::V1_4),
    ] {
        let (pki, server, _store) = start(ServerKind::KmipGo, &server_options);
        let client = Client::new(options(&pki, &pki.client("alice"), &server.address())).unwrap();
        assert_eq!(client.version().unwrap(), agreed, "{server_options:?}");
        life_cycle(&client, ServerKind::KmipGo);
    }
    let (pki, server, _store) = start(ServerKind::KmipGo, &["--versions", "1.4"]);
    let versions = vec![ProtocolVersion::V1_0, ProtocolVersion::V1_1];
    let only_old = ClientOptions { versions, ..options(&pki, &pki.client("alice"), &server.address()) };
    let error = Client::new(only_old).unwrap().version().unwrap_err();
    assert!(matches!(error, ClientError::NoCommonVersion { .. }), "{error}");
    assert!(error.to_string().ends_with("it speaks KMIP 1.4, and this client 1.0, 1.1"), "{error}");
}

#[test]
fn connections_are_kept_and_broken_ones_cost_no_request() {
    for kind in BOTH {
        let (pki, mut server, _store) = start(kind, &[]);
        let proxy = Proxy::before(&server.address());
        let client = Client::new(options(&pki, &pki.client("alice"), &proxy.address())).unwrap();
        let id = client.create(&NewKey::aes_256()).unwrap();
        for _ in 0..5 {
            client.get(&id).unwrap();
        }
        assert_eq!(proxy.connections(), 1, "{kind:?}");
        proxy.break_connections();
        client.get(&id).unwrap();
        assert_eq!(proxy.connections(), 2, "{kind:?}");
        // A request that changes something also succeeds: the dead connection is detected before it
        // is used.
        proxy.break_connections();
        client.activate(&id).unwrap();
        let before = client.get(&id).unwrap().secret;
        server.restart();
        assert_eq!(client.get(&id).unwrap().secret, before, "{kind:?}");
    }
}

#[test]
fn threads_share_connections() {
    let (pki, server, _store) = start(ServerKind::KmipGo, &[]);
    let proxy = Proxy::before(&server.address());
    let few = ClientOptions { connections_max: 3, ..options(&pki, &pki.client("alice"), &proxy.address()) };
    let client = Client::new(few).unwrap();
    let id = client.create(&NewKey::aes_256()).unwrap();
    let key = client.get(&id).unwrap().secret;
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(client.get(&id).unwrap().secret, key)));
        }
    });
    assert!(proxy.connections() <= 3, "{} connections", proxy.connections());
}

/// The server makes the key, and its answer is lost: the same call finds it.
#[test]
fn a_create_whose_answer_is_lost_makes_one_key() {
    for kind in BOTH {
        let (pki, server, _store) = start(kind, &[]);
        let proxy = Proxy::before(&server.address());
        // The test waits for it once in vain; Locate must be answered within it.
        let request_timeout = Duration::from_secs(10);
        let options =
            ClientOptions { request_timeout, ..options(&pki, &pki.client("alice"), &proxy.address()) };
        let client = Client::new(options).unwrap();
        wait_for(|| client.version().ok());
        let key = NewKey { unique_name: Some("wanted-once".to_owned()), ..NewKey::aes_256() };
        // The answer to Locate gets through; the answer to Create is lost.
        proxy.lose_answers_after(1);
        let id = client.create(&key).unwrap();
        assert_eq!(proxy.connections(), 2, "{kind:?}: nothing was lost");
        assert_eq!(client.create(&key).unwrap(), id);
        let all = client.locate(vec![AttributeValue::CryptographicLength(256)], 100).unwrap();
        assert_eq!(all, [id], "{kind:?}");
    }
}

/// Tries until the attempt returns a value, for at most a minute.
fn wait_for<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = std::time::Instant::now();
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not come");
        std::thread::yield_now();
    }
}

#[test]
fn a_silent_server_costs_the_request_its_time_and_no_more() {
    let (pki, server, _store) = start(ServerKind::KmipGo, &[]);
    let identity = pki.client("alice");
    let short = Duration::from_secs(2);
    let hasty = ClientOptions { request_timeout: short, ..options(&pki, &identity, &server.address()) };
    let client = Client::new(hasty).unwrap();
    wait_for(|| client.version().ok());
    server.silence();
    let error = client.query(&[QueryFunction::Operations]).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { phase: Phase::Answer, .. }), "{error}");
    // The silent connection was not kept: the next one is new, and its handshake fails.
    let error = client.query(&[QueryFunction::Operations]).unwrap_err();
    assert!(matches!(error, ClientError::TimedOut { phase: Phase::Connect, .. }), "{error}");
    server.wake();
    wait_for(|| client.query(&[QueryFunction::Operations]).ok());
}

#[test]
fn every_failure_names_the_server_and_what_to_do() {
    let (pki, mut server, _store) = start(ServerKind::KmipGo, &[]);
    let address = server.address();
    let stranger = Pki::new();
    let fails = |options: ClientOptions| Client::new(options).unwrap().version().unwrap_err().to_string();

    let told = fails(options(&pki, &stranger.client("alice"), &address));
    assert!(told.contains(&address) && told.contains("does not take this client's certificate"), "{told}");
    let told = fails(options(&pki, &pki.expired_client("late"), &address));
    assert!(told.contains(&address) && told.contains("certificate"), "{told}");
    let mut of_another = options(&pki, &pki.client("alice"), &address);
    of_another.tls.authority = stranger.authority();
    let told = fails(of_another.clone());
    assert!(told.contains("the certificate of the authority that signed the server's"), "{told}");
    let misnamed = ClientOptions {
        server_name: Some("kms1.corp.example".to_owned()),
        ..options(&pki, &pki.client("alice"), &address)
    };
    let told = fails(misnamed);
    assert!(told.contains("the name that the server's certificate has"), "{told}");

    let client = Client::new(options(&pki, &pki.client("alice"), &address)).unwrap();
    let refused = client.get("no-such-key").unwrap_err();
    assert!(
        refused.to_string().starts_with(&format!("{address}: Get was refused: ItemNotFound")),
        "{refused}"
    );
    assert_eq!(reason(refused), ResultReason::ItemNotFound);

    server.kill();
    let told = fails(options(&pki, &pki.client("alice"), &address));
    assert!(told.contains("is the server running"), "{told}");

    let missing = ClientOptions {
        tls: TlsFiles { key: "/no/such/key".into(), ..of_another.tls.clone() },
        ..of_another.clone()
    };
    let told = Client::new(missing).unwrap_err().to_string();
    assert!(told.contains("/no/such/key"), "{told}");
    let swapped = TlsFiles { key: of_another.tls.authority.clone(), ..of_another.tls.clone() };
    let told = Client::new(ClientOptions { tls: swapped, ..of_another }).unwrap_err().to_string();
    assert!(told.contains("no private key"), "{told}");
}

#[test]
fn a_renewed_certificate_is_used_from_the_next_call_on() {
    let (pki, server, _store) = start(ServerKind::KmipGo, &[]);
    let proxy = Proxy::before(&server.address());
    let client = Client::new(options(&pki, &pki.client("alice"), &proxy.address())).unwrap();
    let id = client.create(&NewKey::aes_256()).unwrap();
    assert_eq!(proxy.connections(), 1);
    pki.client("alice");
    client.get(&id).unwrap();
    client.get(&id).unwrap();
    assert_eq!(proxy.connections(), 2);
    // An expired certificate replaces the good one: connections with the old one are no longer
    // used.
    pki.expired_client("alice");
    let error = client.get(&id).unwrap_err();
    assert!(matches!(error, ClientError::Tls { .. } | ClientError::Lost { .. }), "{error}");
}

/// A port that speaks something else.
#[test]
fn what_is_no_kmip_is_refused() {
    let pki = Pki::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let talker = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut stream, _) = listener.accept().unwrap();
        let mut buffer = [0; 4096];
        let _ = stream.read(&mut buffer);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    });
    let client = Client::new(options(&pki, &pki.client("alice"), &address)).unwrap();
    let error = client.version().unwrap_err();
    assert!(error.to_string().contains("is this a TLS port?"), "{error}");
    talker.join().unwrap();
}

#[test]
fn debug_and_errors_show_no_key() {
    let (pki, server, _store) = start(ServerKind::KmipGo, &[]);
    let client = Client::new(options(&pki, &pki.client("alice"), &server.address())).unwrap();
    let marker = b"MARKER-MARKER-MARKER-MARKER-KEY!";
    let secret = SecretBytes::from_slice_and_wipe(&mut marker.to_vec()).unwrap();
    let mask = CryptographicUsageMask::ENCRYPT;
    let id = client.register_key(CryptographicAlgorithm::Aes, &secret, mask, Vec::new()).unwrap();
    let shown = format!("{client:?} {:?}", client.get(&id).unwrap());
    assert!(!shown.contains("MARKER") && !shown.contains("4d41524b"), "{shown}");
    assert!(Path::new(&pki.authority()).exists());
}
