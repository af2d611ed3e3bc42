//! A client of the API: HTTP/1.1 over TLS, with a pinned certificate.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rcgen::KeyPair;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;

/// Longer than any step here takes.
const PATIENCE: Duration = Duration::from_secs(30);

pub type Tls = StreamOwned<ClientConnection, TcpStream>;

pub struct Client {
    address: SocketAddr,
    config: Arc<ClientConfig>,
    pub token: String,
    connection: Option<Tls>,
}

/// A stream that is open.
pub struct Stream {
    tls: Tls,
    /// Whether the server has ended it.
    pub has_ended: bool,
}

impl Iterator for Stream {
    type Item = String;

    /// What comes next; nothing at its end, or if nothing comes for long.
    fn next(&mut self) -> Option<String> {
        let mut chunk = [0; 4096];
        match self.tls.read(&mut chunk) {
            Ok(read @ 1..) => {
                let text = String::from_utf8_lossy(&chunk[..read]).into_owned();
                // The last chunk of the answer.
                self.has_ended |= text.ends_with("\r\n0\r\n\r\n") || text == "0\r\n\r\n";
                (!self.has_ended).then_some(text)
            }
            Ok(0) => {
                self.has_ended = true;
                None
            }
            Err(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// The status line and the header lines.
    pub head: String,
    pub body: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The values of a header, one for each line.
    pub fn headers(&self, name: &str) -> Vec<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(of, _)| of.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).collect()
    }

    /// The value of a header that is there once.
    pub fn header(&self, name: &str) -> &str {
        let values = self.headers(name);
        assert_eq!(values.len(), 1, "{name}: {}", self.head);
        values[0]
    }

    /// What is wrong, whichever request it was.
    pub fn problem(&self) -> Value {
        let mut error = self.json()["error"].take();
        assert!(error.as_object_mut().unwrap().remove("request").is_some(), "{}", self.body);
        error
    }

    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap().to_owned()
    }
}

impl Client {
    /// A client that trusts the certificate in the state directory.
    pub fn new(address: SocketAddr, directory: &Path) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(directory.join("api.crt")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = Arc::new(config.with_root_certificates(roots).with_no_client_auth());
        let token = std::fs::read_to_string(directory.join("token")).unwrap().trim().to_owned();
        Self { address, config, token, connection: None }
    }

    /// As [`Self::new`], without a token but with a key, which it shows in TLS.
    pub fn with_key(
        address: SocketAddr,
        directory: &Path,
        certificate: &CertificateDer<'static>,
        key: &KeyPair,
    ) -> Self {
        let client = Self::new(address, directory);
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(directory.join("api.crt")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let config = config.with_root_certificates(roots);
        // Also one that is not the certificate's.
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        let shown = CertifiedKey::new(vec![certificate.clone()], key);
        let config = config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        Self { config: Arc::new(config), token: String::new(), ..client }
    }

    /// A connection on which nothing was said.
    pub fn connect(&self) -> Tls {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        StreamOwned::new(ClientConnection::new(Arc::clone(&self.config), name).unwrap(), stream)
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, &[], None)
    }

    pub fn post(&mut self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &[], Some(&body.to_string()))
    }

    /// Sends a request with its token.
    pub fn ask(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: Option<&str>) -> Answer {
        let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
        if !self.token.is_empty() {
            head += &format!("authorization: Bearer {}\r\n", self.token);
        }
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = body {
            if !headers.iter().any(|(name, _)| *name == "content-type") {
                head += "content-type: application/json\r\n";
            }
            head += &format!("content-length: {}\r\n", body.len());
        }
        head += "\r\n";
        self.raw(&[head.as_bytes(), body.unwrap_or_default().as_bytes()].concat())
    }

    /// Sends these bytes. Returns status 0 if the connection was closed without an answer.
    pub fn raw(&mut self, request: &[u8]) -> Answer {
        let mut tls = self.connection.take().unwrap_or_else(|| self.connect());
        let written = tls.write_all(request).and_then(|()| tls.flush());
        let mut bytes = Vec::new();
        let mut chunk = [0; 16384];
        let head_end = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            match tls.read(&mut chunk) {
                Ok(read @ 1..) => bytes.extend(&chunk[..read]),
                Ok(0) | Err(_) => {
                    return Answer { status: 0, head: String::new(), body: format!("{written:?}") };
                }
            }
        };
        let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
        let status = head[9..12].parse().unwrap();
        let mut answer = Answer { status, head, body: String::new() };
        let length = answer.headers("content-length").first().map_or(0, |length| length.parse().unwrap());
        // The answer to `HEAD` says how long that to `GET` would be.
        let length: usize = if request.starts_with(b"HEAD ") { 0 } else { length };
        while bytes.len() < head_end + length {
            match tls.read(&mut chunk) {
                Ok(read @ 1..) => bytes.extend(&chunk[..read]),
                _ => break,
            }
        }
        if answer.headers("connection") != ["close"] && written.is_ok() {
            self.connection = Some(tls);
        }
        answer.body = String::from_utf8_lossy(&bytes[head_end..]).into_owned();
        answer
    }

    /// Waits for the end of the accepted task.
    pub fn done(&mut self, answer: &Answer) -> Value {
        assert_eq!(answer.status, 202, "{}", answer.body);
        let id = answer.json()["id"].as_str().unwrap().to_owned();
        let task = self.get(&format!("/v1/tasks/{id}?wait_s=20")).json();
        assert_eq!(task["state"], "done", "{task}");
        task
    }

    /// Opens a stream with these headers, without the client's token.
    pub fn open(&self, path: &str, headers: &str) -> Stream {
        let mut tls = self.connect();
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        tls.write_all(request.as_bytes()).unwrap();
        Stream { tls, has_ended: false }
    }

    /// Reads a stream until `enough` returns true for its text.
    pub fn stream(&self, path: &str, headers: &str, enough: impl Fn(&str) -> bool) -> String {
        let mut tls = self.connect();
        let request = format!(
            "GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n{headers}\r\n",
            self.token
        );
        tls.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        let mut chunk = [0; 4096];
        while !enough(&text) {
            let read = tls.read(&mut chunk).unwrap();
            assert_ne!(read, 0, "the stream ended: {text}");
            text += std::str::from_utf8(&chunk[..read]).unwrap();
        }
        text
    }
}
