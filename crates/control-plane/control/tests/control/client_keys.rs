//! Keys in the place of tokens: a client proves in TLS to have one.

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use strongroom_control::client_key::ClientKey;
use time::{Duration, OffsetDateTime};

use crate::support::client::Client;
use crate::support::server::Server;

/// What the client has for a connection that ends without an answer.
const NO_ANSWER: u16 = 0;

/// A certificate of a key that signs itself, valid for this long from two days ago.
fn certificate(key: &KeyPair, valid: Duration) -> CertificateDer<'static> {
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.not_before = OffsetDateTime::now_utc() - Duration::days(2);
    parameters.not_after = parameters.not_before + valid;
    parameters.self_signed(key).unwrap().der().clone()
}

fn pem_of(certificate: &CertificateDer<'_>) -> String {
    pem::encode(&pem::Pem::new("CERTIFICATE", certificate.to_vec()))
}

fn wish(name: &str, certificate: &str) -> Value {
    let expires = OffsetDateTime::now_utc().unix_timestamp() + 3600;
    json!({ "name": name, "role": "auditor", "scope": { "type": "site" }, "expires_unix_seconds": expires,
        "certificate": certificate })
}

#[test]
fn a_key_is_a_token_until_it_is_revoked() {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(home.path());
    let mut admin = server.client();
    let (key, year) = (KeyPair::generate().unwrap(), Duration::days(365));
    let shown = certificate(&key, year);
    let with = |shown: &CertificateDer<'static>, key: &KeyPair| {
        Client::with_key(server.address(), home.path(), shown, key)
    };
    // Nobody is asked for a key as long as none is known.
    assert_eq!(with(&shown, &key).get("/v1/me").status, 401);
    for (what, wrong) in [
        ("nothing", "nothing".to_owned()),
        ("two", pem_of(&shown).repeat(2)),
        ("over", pem_of(&certificate(&key, Duration::days(1)))),
        ("a key", key.serialize_pem()),
    ] {
        let refused = admin.post("/v1/tokens", &wish("collector", &wrong));
        assert_eq!(refused.code(), "invalid", "{what}: {}", refused.body);
    }
    let made = admin.post("/v1/tokens", &wish("collector", &pem_of(&shown)));
    assert_eq!(made.status, 201, "{}", made.body);
    let made = made.json();
    assert!(made.get("token").is_none(), "{made}");
    let hash = ClientKey::of_shown(&shown).unwrap().sha256().to_owned();
    assert_eq!(made["info"]["key_sha256"], hash.as_str());
    let again = admin.post("/v1/tokens", &wish("another", &pem_of(&certificate(&key, year))));
    assert_eq!(again.code(), "conflict", "{}", again.body);

    // Its owner, with this certificate or another one of the same key.
    let mut owner = with(&shown, &key);
    assert_eq!(owner.get("/v1/me").json()["name"], "collector");
    assert_eq!(with(&certificate(&key, year), &key).get("/v1/me").status, 200);
    assert_eq!(owner.post("/v1/tokens", &wish("more", &pem_of(&shown))).status, 403, "an auditor makes none");
    // A token that is sent counts, and not the key.
    owner.token = "strongroom-token-none".to_owned();
    assert_eq!(owner.get("/v1/me").status, 401);
    owner.token = admin.token.clone();
    assert_ne!(owner.get("/v1/me").json()["name"], "collector");
    owner.token = String::new();
    assert_eq!(admin.post("/v1/tokens/collector/rotate", &json!({})).code(), "invalid");

    // Somebody who has the certificate and not the key, who knows hashes, or has another key.
    let other = KeyPair::generate().unwrap();
    assert_eq!(with(&shown, &other).get("/v1/me").status, NO_ANSWER, "the handshake fails");
    let over = certificate(&key, Duration::days(1));
    assert_eq!(with(&over, &key).get("/v1/me").status, NO_ANSWER, "a certificate that is over");
    assert_eq!(with(&certificate(&other, year), &other).get("/v1/me").status, 401);
    let mut knowing = server.client();
    for token in
        [hash.clone(), ClientKey::of_shown(&shown).unwrap().credential().to_owned(), format!("\\0{hash}")]
    {
        knowing.token = token;
        assert_eq!(knowing.get("/v1/me").status, 401);
    }

    // It ends on a connection that is open, too.
    assert_eq!(owner.get("/v1/me").status, 200);
    assert_eq!(admin.ask("DELETE", "/v1/tokens/collector", &[], None).status, 200);
    assert_eq!(owner.get("/v1/me").status, 401);
}
