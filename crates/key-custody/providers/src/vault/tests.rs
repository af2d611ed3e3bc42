//! Tests against a stand-in: an HTTPS server in this process that answers as Vault's documentation
//! says ("Transit secrets engine (API)", "AppRole auth method (API)", "Error response format"),
//! with real AES-256-GCM behind it. No real Vault or OpenBao is used: neither is packaged where
//! these tests run.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use base64ct::{Base64, Encoding};
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use strongroom_keys::{KeyRequestId, ProviderKey};
use strongroom_test_peers::Pki;

use super::VaultProvider;
use crate::config::{ProviderConfig, SourceConfig, VaultConfig, VaultLogin};
use crate::error::ProviderError;
use crate::provider::{KeyProvider, KeyState, NewKey, Revocation, ServerState};

const TOKEN: &str = "s.token-from-file";
const SECRET_ID: &str = "secret-id-of-the-role";

/// The state of the stand-in.
struct Vault {
    /// One key for each version, the first being version 1.
    versions: Vec<[u8; 32]>,
    min_decryption_version: usize,
    sealed: bool,
    logins: usize,
    /// The token of the last login by AppRole, if it was not revoked.
    role_token: Option<String>,
}

impl Vault {
    fn answer(&mut self, method: &str, path: &str, token: &str, body: &Value) -> (u16, Value) {
        let errors = |status, text: &str| (status, json!({ "errors": [text] }));
        if self.sealed {
            return errors(503, "Vault is sealed");
        }
        if path == "/v1/auth/approle/login" {
            if body["role_id"] != "role" || body["secret_id"] != SECRET_ID {
                return errors(400, "invalid role or secret ID");
            }
            self.logins += 1;
            let token = format!("s.login-{}", self.logins);
            self.role_token = Some(token.clone());
            return (
                200,
                json!({ "auth": { "client_token": token, "lease_duration": 3600, "renewable": true } }),
            );
        }
        if token != TOKEN && Some(token) != self.role_token.as_deref() {
            return errors(403, "permission denied");
        }
        match (method, path) {
            ("POST", "/v1/transit/datakey/plaintext/strongroom") => {
                assert_eq!(body["bits"], 256);
                let key: [u8; 32] = std::array::from_fn(|index| index as u8 ^ self.versions[0][0]);
                let plaintext = Base64::encode_string(&key);
                (200, json!({ "data": { "plaintext": plaintext, "ciphertext": self.seal(&key) } }))
            }
            ("POST", "/v1/transit/datakey/wrapped/strongroom") => {
                assert_eq!(body["bits"], 256);
                let mut key = [0; 32];
                aws_lc_rs::rand::fill(&mut key).unwrap();
                (200, json!({ "data": { "ciphertext": self.seal(&key) } }))
            }
            ("POST", "/v1/transit/decrypt/strongroom") => match self.open(&body["ciphertext"]) {
                Ok(key) => (200, json!({ "data": { "plaintext": Base64::encode_string(&key) } })),
                Err(text) => errors(400, text),
            },
            ("POST", "/v1/transit/rewrap/strongroom") => match self.open(&body["ciphertext"]) {
                Ok(key) => (200, json!({ "data": { "ciphertext": self.seal(&key) } })),
                Err(text) => errors(400, text),
            },
            ("GET", "/v1/transit/keys/strongroom") => {
                let least = self.min_decryption_version;
                (
                    200,
                    json!({ "data": { "name": "strongroom", "latest_version": self.versions.len(),
                    "min_decryption_version": least, "type": "aes256-gcm96" } }),
                )
            }
            _ => (404, json!({ "errors": [] })),
        }
    }

    fn cipher(&self, version: usize) -> LessSafeKey {
        LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.versions[version - 1]).unwrap())
    }

    fn seal(&self, key: &[u8]) -> String {
        let mut nonce = [0; 12];
        aws_lc_rs::rand::fill(&mut nonce).unwrap();
        let mut sealed = key.to_vec();
        self.cipher(self.versions.len())
            .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut sealed)
            .unwrap();
        format!("vault:v{}:{}", self.versions.len(), Base64::encode_string(&[&nonce[..], &sealed].concat()))
    }

    fn open(&self, ciphertext: &Value) -> Result<Vec<u8>, &'static str> {
        let (version, base64) = ciphertext
            .as_str()
            .unwrap()
            .strip_prefix("vault:v")
            .ok_or("invalid ciphertext: no prefix")?
            .split_once(':')
            .unwrap();
        let version: usize = version.parse().unwrap();
        if version < self.min_decryption_version {
            return Err("ciphertext or signature version is disallowed by policy (too old)");
        }
        let mut bytes = Base64::decode_vec(base64).unwrap();
        let sealed = bytes.split_off(12);
        let mut sealed = sealed;
        let nonce = Nonce::try_assume_unique_for_key(&bytes).unwrap();
        let opened = self.cipher(version).open_in_place(nonce, Aad::empty(), &mut sealed);
        opened.map(|key| key.to_vec()).map_err(|_| "cipher: message authentication failed")
    }
}

struct StandIn {
    vault: Arc<Mutex<Vault>>,
    pki: Pki,
    address: String,
    accepting: Option<JoinHandle<()>>,
    files: tempfile::TempDir,
}

impl StandIn {
    fn start() -> Self {
        let pki = Pki::new();
        let identity = pki.server();
        let certificate = CertificateDer::from_pem_file(&identity.certificate).unwrap();
        let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .unwrap();
        let vault = Arc::new(Mutex::new(Vault {
            versions: vec![[0x11; 32]],
            min_decryption_version: 1,
            sealed: false,
            logins: 0,
            role_token: None,
        }));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (serving, config) = (Arc::clone(&vault), Arc::new(config));
        let accepting = std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
                // One request for each connection; a connection without a request ends the server.
                if serve(StreamOwned::new(connection, stream), &serving).is_none() {
                    break;
                }
            }
        });
        let files = tempfile::tempdir().unwrap();
        std::fs::write(files.path().join("token"), format!("{TOKEN}\n")).unwrap();
        std::fs::write(files.path().join("secret-id"), SECRET_ID).unwrap();
        Self { vault, pki, address, accepting: Some(accepting), files }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    fn config(&self, login: VaultLogin) -> VaultConfig {
        let config = VaultConfig {
            url: format!("https://{}", self.address),
            ca: self.pki.authority(),
            mount: "transit".to_owned(),
            key: "strongroom".to_owned(),
            namespace: None,
            login,
            request_timeout_ms: 8_000,
        };
        ProviderConfig::new(SourceConfig::Vault(config.clone())).check().unwrap();
        config
    }

    fn by_token(&self) -> VaultProvider {
        VaultProvider::new(&self.config(VaultLogin::Token { file: self.file("token") })).unwrap()
    }

    fn by_role(&self, secret_id: &str) -> VaultProvider {
        let login = VaultLogin::AppRole {
            mount: "approle".to_owned(),
            role_id: "role".to_owned(),
            secret_id_file: self.file(secret_id),
        };
        VaultProvider::new(&self.config(login)).unwrap()
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        let _ = TcpStream::connect(&self.address);
        let _ = self.accepting.take().map(JoinHandle::join);
    }
}

/// Answers one request. Returns `None` if there was none.
fn serve(mut stream: StreamOwned<ServerConnection, TcpStream>, vault: &Mutex<Vault>) -> Option<()> {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    let (head, body) = loop {
        match stream.read(&mut buffer) {
            Ok(count @ 1..) => text.extend_from_slice(&buffer[..count]),
            _ => return None,
        }
        let Some(end) = text.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(text[..end].to_vec()).unwrap();
        let length = header(&head, "content-length").parse().unwrap_or(0);
        if text.len() >= end + 4 + length {
            break (head, text[end + 4..].to_vec());
        }
    };
    let mut words = head.split(' ');
    let (method, path) = (words.next().unwrap(), words.next().unwrap());
    assert_eq!(header(&head, "x-vault-request"), "true");
    let body = serde_json::from_slice(&body).unwrap_or(Value::Null);
    let (status, answer) = vault.lock().answer(method, path, header(&head, "x-vault-token"), &body);
    let answer = answer.to_string();
    let length = answer.len();
    write!(stream, "HTTP/1.1 {status} -\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{answer}")
        .ok()?;
    stream.flush().ok()?;
    stream.conn.send_close_notify();
    let _ = stream.flush();
    Some(())
}

fn header<'a>(head: &'a str, name: &str) -> &'a str {
    let named = |line: &'a str| line.split_once(": ").filter(|(key, _)| key.eq_ignore_ascii_case(name));
    head.lines().find_map(named).map_or("", |(_, value)| value)
}

fn key_of(new: &NewKey) -> ProviderKey {
    ProviderKey { provider: "vault".parse().unwrap(), key: new.key.clone(), wrapped: new.wrapped.clone() }
}

#[test]
fn a_kek_is_made_opened_and_wrapped_anew() {
    let stand_in = StandIn::start();
    let provider = stand_in.by_token();
    provider.check().unwrap();
    let new = provider.create(KeyRequestId::random()).unwrap();
    let key = key_of(&new);
    assert!(key.wrapped.as_ref().unwrap().as_bytes().starts_with(b"vault:v1:"));
    assert_eq!(provider.fetch(&key).unwrap(), new.secret);
    assert_eq!(provider.facts(&key).unwrap().state, KeyState::Active);

    // A key that its maker has not seen.
    let unseen = provider.create_unseen(KeyRequestId::random()).unwrap();
    let unseen = ProviderKey { key: unseen.key, wrapped: unseen.wrapped, ..key.clone() };
    assert_ne!(provider.fetch(&unseen).unwrap(), new.secret);

    stand_in.vault.lock().versions.push([0x22; 32]);
    let rewrapped = ProviderKey { wrapped: Some(provider.rewrap(&key).unwrap()), ..key.clone() };
    assert!(rewrapped.wrapped.as_ref().unwrap().as_bytes().starts_with(b"vault:v2:"));
    assert_eq!(provider.fetch(&rewrapped).unwrap(), new.secret);

    // Transit's form of revocation: versions below the least are no longer decrypted.
    stand_in.vault.lock().min_decryption_version = 2;
    assert_eq!(provider.facts(&key).unwrap().state, KeyState::Destroyed);
    assert_eq!(provider.facts(&rewrapped).unwrap().state, KeyState::Active);
    let refused = provider.fetch(&key).unwrap_err();
    assert!(matches!(&refused, ProviderError::Refused { reason } if reason.contains("too old")), "{refused}");
    let health = provider.health();
    assert_eq!((health[0].state, health[0].failures), (ServerState::Up, 0));
    assert!(health[0].requests >= 8 && health[0].latency_mean_us <= health[0].latency_max_us);
}

#[test]
fn a_role_logs_in_and_again_when_its_token_is_gone() {
    let stand_in = StandIn::start();
    let provider = stand_in.by_role("secret-id");
    let new = provider.create(KeyRequestId::random()).unwrap();
    provider.fetch(&key_of(&new)).unwrap();
    assert_eq!(stand_in.vault.lock().logins, 1);
    stand_in.vault.lock().role_token = None;
    assert_eq!(provider.fetch(&key_of(&new)).unwrap(), new.secret);
    assert_eq!(stand_in.vault.lock().logins, 2);

    std::fs::write(stand_in.file("wrong"), "x").unwrap();
    let refused = stand_in.by_role("wrong").check().unwrap_err();
    assert!(
        matches!(&refused, ProviderError::Refused { reason } if reason.contains("invalid role")),
        "{refused}"
    );
    assert!(matches!(stand_in.by_role("missing").check(), Err(ProviderError::Misconfigured { .. })));
}

#[test]
fn what_ends_by_itself_is_told_from_what_does_not() {
    let stand_in = StandIn::start();
    let provider = stand_in.by_token();
    let new = provider.create(KeyRequestId::random()).unwrap();
    stand_in.vault.lock().sealed = true;
    let sealed = provider.fetch(&key_of(&new)).unwrap_err();
    assert!(sealed.ends_by_itself() && sealed.to_string().contains("Vault is sealed"), "{sealed}");
    assert_eq!(provider.health()[0].state, ServerState::Down);
    stand_in.vault.lock().sealed = false;
    // A replaced token is reread.
    std::fs::write(stand_in.file("token"), "s.another").unwrap();
    let refused = provider.fetch(&key_of(&new)).unwrap_err();
    assert!(
        matches!(&refused, ProviderError::Refused { reason } if reason.contains("check the token")),
        "{refused}"
    );
    std::fs::write(stand_in.file("token"), TOKEN).unwrap();
    assert_eq!(provider.fetch(&key_of(&new)).unwrap(), new.secret);

    let mut missing = stand_in.config(VaultLogin::Token { file: stand_in.file("token") });
    missing.key = "another".to_owned();
    assert!(matches!(VaultProvider::new(&missing).unwrap().check(), Err(ProviderError::NoSuchKey)));
    let mut stranger = stand_in.config(VaultLogin::Token { file: stand_in.file("token") });
    let other = Pki::new();
    stranger.ca = other.authority();
    assert!(VaultProvider::new(&stranger).unwrap().check().unwrap_err().ends_by_itself());
    assert!(matches!(provider.list(), Err(ProviderError::Unsupported(_))));
    assert!(matches!(
        provider.revoke(&key_of(&new), Revocation::Compromised),
        Err(ProviderError::Unsupported(_))
    ));
    let bare = ProviderKey { wrapped: None, ..key_of(&new) };
    assert!(matches!(provider.fetch(&bare), Err(ProviderError::Misconfigured { .. })));
}
