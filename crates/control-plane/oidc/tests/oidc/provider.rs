//! An identity provider that says what a test wants.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use aws_lc_rs::encoding::AsDer;
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeySize;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256,
    RSA_PSS_SHA256, RsaKeyPair,
};
use base64ct::{Base64UrlUnpadded, Encoding};
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};
use strongroom_control::records::IdentityProviderRecord;
use uuid::Uuid;

pub const CLIENT: &str = "strong room";

/// A key that signs tokens.
pub enum Signer {
    Rsa(RsaKeyPair),
    P256(EcdsaKeyPair),
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    pub fn rsa() -> Self {
        Self::Rsa(RsaKeyPair::generate(KeySize::Rsa2048).unwrap())
    }

    pub fn p256() -> Self {
        Self::P256(EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).unwrap())
    }

    pub fn ed25519() -> Self {
        Self::Ed25519(Ed25519KeyPair::generate().unwrap())
    }

    /// Its public part.
    pub fn jwk(&self, kid: &str) -> Value {
        match self {
            Self::Rsa(pair) => {
                let public = pair.public_key();
                let part = |bytes: &[u8]| base64(bytes);
                json!({ "kty": "RSA", "kid": kid, "use": "sig",
                    "n": part(public.modulus().big_endian_without_leading_zero()),
                    "e": part(public.exponent().big_endian_without_leading_zero()) })
            }
            Self::P256(pair) => {
                let point = pair.public_key().as_ref();
                json!({ "kty": "EC", "crv": "P-256", "kid": kid, "x": base64(&point[1..33]),
                    "y": base64(&point[33..]) })
            }
            Self::Ed25519(pair) => {
                json!({ "kty": "OKP", "crv": "Ed25519", "kid": kid, "x": base64(pair.public_key().as_ref()) })
            }
        }
    }

    /// The public key as DER, which an attacker takes for a secret.
    pub fn public_der(&self) -> Vec<u8> {
        match self {
            Self::Rsa(pair) => AsDer::as_der(pair.public_key()).unwrap().as_ref().to_vec(),
            Self::P256(_) | Self::Ed25519(_) => panic!("only RSA here"),
        }
    }

    fn sign(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Rsa(pair) => {
                let padding: &dyn aws_lc_rs::signature::RsaEncoding =
                    if algorithm == "PS256" { &RSA_PSS_SHA256 } else { &RSA_PKCS1_SHA256 };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(padding, &random, message, &mut signature).unwrap();
                signature
            }
            Self::P256(pair) => pair.sign(&random, message).unwrap().as_ref().to_vec(),
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }

    /// A token that it has signed.
    pub fn token(&self, header: &Value, claims: &Value) -> String {
        let message = message(header, claims);
        let signature = self.sign(header["alg"].as_str().unwrap(), message.as_bytes());
        format!("{message}.{}", base64(&signature))
    }
}

pub fn base64(bytes: &[u8]) -> String {
    Base64UrlUnpadded::encode_string(bytes)
}

/// What of a token is signed.
pub fn message(header: &Value, claims: &Value) -> String {
    format!("{}.{}", base64(header.to_string().as_bytes()), base64(claims.to_string().as_bytes()))
}

pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

/// What the provider says.
#[derive(Clone, Default)]
pub struct Says {
    /// In the place of parts of its discovery document.
    pub discovery: Value,
    pub keys: Vec<Value>,
    pub id_token: String,
    pub user_info: Value,
    /// Heads of answers in the place of the right ones, by path.
    pub instead: Vec<(&'static str, String)>,
    /// A path at which it never ends to answer.
    pub endless: Option<&'static str>,
}

/// A request that it got.
#[derive(Clone)]
pub struct Got {
    pub path: String,
    pub head: String,
    pub body: String,
}

pub struct Provider {
    pub issuer: String,
    pub pem: String,
    pub says: Arc<Mutex<Says>>,
    pub got: Arc<Mutex<Vec<Got>>>,
    /// How many bytes of an endless answer were taken.
    pub sent_bytes: Arc<Mutex<u64>>,
}

impl Provider {
    pub fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap().self_signed(&key).unwrap();
        let chain = vec![CertificateDer::from(certificate.der().to_vec())];
        let private = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config =
            ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_no_client_auth()
                .with_single_cert(chain, private)
                .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let issuer = format!("https://127.0.0.1:{}", listener.local_addr().unwrap().port());
        let provider = Self {
            issuer,
            pem: certificate.pem(),
            says: Arc::default(),
            got: Arc::default(),
            sent_bytes: Arc::default(),
        };
        let (says, got, sent) =
            (Arc::clone(&provider.says), Arc::clone(&provider.got), Arc::clone(&provider.sent_bytes));
        let (issuer, config) = (provider.issuer.clone(), Arc::new(config));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                serve(stream, &config, &issuer, &says, &got, &sent);
            }
        });
        provider
    }

    pub fn record(&self) -> IdentityProviderRecord {
        IdentityProviderRecord {
            id: Uuid::new_v4(),
            name: "corp".parse().unwrap(),
            issuer: self.issuer.parse().unwrap(),
            client_id: CLIENT.parse().unwrap(),
            has_secret: false,
            scopes: vec!["groups".parse().unwrap()],
            user_claim: "preferred_username".parse().unwrap(),
            groups_claim: "groups".parse().unwrap(),
            authorities: Some(self.pem.clone().try_into().unwrap()),
            pages: Vec::new(),
            session_s: 3600,
            created_unix_seconds: 1,
        }
    }

    /// The claims of a right token.
    pub fn claims(&self, nonce: &str) -> Value {
        json!({ "iss": self.issuer, "aud": CLIENT, "sub": "4711", "exp": now() + 300, "iat": now(),
            "nonce": nonce, "preferred_username": "alice", "groups": ["ops", "/Team A"] })
    }

    pub fn requests_to(&self, path: &str) -> usize {
        self.got.lock().iter().filter(|got| got.path == path).count()
    }
}

fn serve(
    stream: TcpStream,
    config: &Arc<ServerConfig>,
    issuer: &str,
    says: &Mutex<Says>,
    got: &Mutex<Vec<Got>>,
    sent: &Mutex<u64>,
) -> Option<()> {
    let mut tls = StreamOwned::new(ServerConnection::new(Arc::clone(config)).unwrap(), stream);
    let mut all = Vec::new();
    let mut byte = [0];
    while !all.ends_with(b"\r\n\r\n") {
        tls.read_exact(&mut byte).ok()?;
        all.push(byte[0]);
    }
    let head = String::from_utf8(all).unwrap();
    let length =
        head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    tls.read_exact(&mut body).ok()?;
    let path = head.split(' ').nth(1).unwrap().to_owned();
    let body = String::from_utf8(body).unwrap();
    got.lock().push(Got { path: path.clone(), head, body });
    let says = says.lock().clone();
    if says.endless.is_some_and(|endless| endless == path) {
        tls.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n").ok()?;
        let part = vec![b' '; 64 * 1024];
        for _ in 0..1600 {
            tls.write_all(&part).ok()?;
            *sent.lock() += part.len() as u64;
        }
        return Some(());
    }
    if let Some((_, instead)) = says.instead.iter().find(|(at, _)| *at == path) {
        tls.write_all(instead.as_bytes()).ok()?;
    } else {
        let answer = match path.as_str() {
            "/.well-known/openid-configuration" => {
                let mut document = json!({ "issuer": issuer,
                    "authorization_endpoint": format!("{issuer}/auth?tenant=7"),
                    "token_endpoint": format!("{issuer}/token"), "jwks_uri": format!("{issuer}/jwks"),
                    "userinfo_endpoint": format!("{issuer}/me") });
                for (name, value) in says.discovery.as_object().into_iter().flatten() {
                    document[name] = value.clone();
                }
                document
            }
            "/jwks" => json!({ "keys": says.keys }),
            "/token" => {
                json!({ "id_token": says.id_token, "access_token": "at", "token_type": "Bearer" })
            }
            "/me" => says.user_info,
            _ => json!({}),
        };
        let answer = answer.to_string();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", answer.len());
        tls.write_all(format!("{head}{answer}").as_bytes()).ok()?;
    }
    tls.conn.send_close_notify();
    tls.flush().ok()
}
