//! The requests of libkmip, byte by byte over OpenSSL, and its acceptance of answers. Percona's
//! keyring is its best known user.
//!
//! libkmip is written in C and is in no package registry, so this follows its public source
//! (OpenKMIP's and Percona's, `libkmip/src/kmip.c`, `kmip_bio.c`, `kmip_locate.c`, and `kmippp`
//! above them): the order of fields, the version of each operation, and an equally strict reader.
//! The program's own encoder is not used.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use strongroom_system_tests::{KeyServerUser, Scratch};

const DEADLINE: Duration = Duration::from_secs(60);

/// The longest answer that libkmip accepts, which each request states.
const ANSWER_MAX_BYTES: i32 = 8192;

/// The number of identifiers that Percona's keyring requests at a time.
const PAGE: i32 = 16;

const INTEGER: u8 = 2;
const ENUMERATION: u8 = 5;
const TEXT: u8 = 7;
const BYTES: u8 = 8;
const DATE: u8 = 9;
const STRUCTURE: u8 = 1;

const OPERATION_CREATE: u32 = 1;
const OPERATION_REGISTER: u32 = 3;
const OPERATION_LOCATE: u32 = 8;
const OPERATION_GET: u32 = 10;
const OPERATION_GET_ATTRIBUTES: u32 = 11;
const OPERATION_ACTIVATE: u32 = 18;
const OPERATION_REVOKE: u32 = 19;
const OPERATION_DESTROY: u32 = 20;

const SYMMETRIC_KEY: u32 = 2;
const UNIQUE_IDENTIFIER: u32 = 0x94;
const REQUEST_PAYLOAD: u32 = 0x79;

fn field(tag: u32, kind: u8, value: &[u8]) -> Vec<u8> {
    let mut bytes =
        [&(0x42_0000 | tag).to_be_bytes()[1..], &[kind], &(value.len() as u32).to_be_bytes()].concat();
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    bytes
}

fn integer(tag: u32, value: i32) -> Vec<u8> {
    field(tag, INTEGER, &value.to_be_bytes())
}

fn enumeration(tag: u32, value: u32) -> Vec<u8> {
    field(tag, ENUMERATION, &value.to_be_bytes())
}

fn text(tag: u32, value: &str) -> Vec<u8> {
    field(tag, TEXT, value.as_bytes())
}

fn structure(tag: u32, fields: &[Vec<u8>]) -> Vec<u8> {
    field(tag, STRUCTURE, &fields.concat())
}

fn attribute(name: &str, value: Vec<u8>) -> Vec<u8> {
    structure(0x08, &[text(0x0a, name), value])
}

/// Its kmip_encode_request_message, for one item.
fn request(minor: i32, operation: u32, payload: &[Vec<u8>]) -> Vec<u8> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let header = [
        structure(0x69, &[integer(0x6a, 1), integer(0x6b, minor)]),
        integer(0x50, ANSWER_MAX_BYTES),
        field(0x92, DATE, &now.to_be_bytes()),
        integer(0x0d, 1),
    ];
    let item = structure(0x0f, &[enumeration(0x5c, operation), structure(REQUEST_PAYLOAD, payload)]);
    structure(0x78, &[structure(0x77, &header), item])
}

/// The attributes that kmippp gives every key: AES-256 for encryption, with a name and a group.
fn template(name: &str) -> Vec<u8> {
    structure(
        0x91,
        &[
            attribute("Cryptographic Algorithm", enumeration(0x0b, 3)),
            attribute("Cryptographic Length", integer(0x0b, 256)),
            attribute("Cryptographic Usage Mask", integer(0x0b, 4 | 8)),
            attribute("Name", structure(0x0b, &[text(0x55, name), enumeration(0x54, 1)])),
            attribute("Object Group", text(0x0b, "percona")),
        ],
    )
}

/// Decodes fields in order, as its decoder does: a field in another place is an error.
struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    fn is_next(&self, tag: u32) -> bool {
        self.0.get(..3).is_some_and(|next| next == &(0x42_0000 | tag).to_be_bytes()[1..])
    }

    fn take(&mut self, tag: u32, kind: u8) -> &'a [u8] {
        assert!(self.is_next(tag) && self.0[3] == kind, "no {tag:x} of type {kind} at {:x?}", self.0);
        let length = u32::from_be_bytes(self.0[4..8].try_into().unwrap()) as usize;
        let value = &self.0[8..8 + length];
        self.0 = &self.0[8 + length.next_multiple_of(8)..];
        value
    }

    fn inside(&mut self, tag: u32) -> Self {
        Self(self.take(tag, STRUCTURE))
    }

    fn number(&mut self, tag: u32, kind: u8) -> u32 {
        u32::from_be_bytes(self.take(tag, kind).try_into().unwrap())
    }

    fn text(&mut self, tag: u32) -> String {
        String::from_utf8(self.take(tag, TEXT).to_vec()).unwrap()
    }

    fn ends(&self) {
        assert!(self.0.is_empty(), "it does not read {:x?}", self.0);
    }
}

/// A connection through OpenSSL.
struct Connection {
    client: Child,
    to_server: ChildStdin,
    answers: Receiver<Vec<u8>>,
}

impl Connection {
    fn open(address: &str, files: &Path) -> Self {
        let file = |name: &str| files.join(name);
        let mut client = Command::new("openssl")
            .args([
                "s_client",
                "-quiet",
                "-verify_return_error",
                "-connect",
                address,
                "-servername",
                "localhost",
            ])
            .arg("-CAfile")
            .arg(file("ca.pem"))
            .arg("-cert")
            .arg(file("cert.pem"))
            .arg("-key")
            .arg(file("key.pem"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (to_server, mut from_server) = (client.stdin.take().unwrap(), client.stdout.take().unwrap());
        let (tell, answers) = channel();
        std::thread::spawn(move || {
            let mut header = [0; 8];
            while from_server.read_exact(&mut header).is_ok() {
                let mut body = vec![0; u32::from_be_bytes(header[4..].try_into().unwrap()) as usize];
                if from_server.read_exact(&mut body).is_err()
                    || tell.send([&header[..], &body].concat()).is_err()
                {
                    return;
                }
            }
        });
        Self { client, to_server, answers }
    }

    /// Sends one operation. Returns the payload of its answer as kmip_decode_response_message reads
    /// it; `None` for a refusal.
    fn ask(&mut self, minor: i32, operation: u32, payload: &[Vec<u8>]) -> Option<Vec<u8>> {
        self.to_server.write_all(&request(minor, operation, payload)).unwrap();
        self.to_server.flush().unwrap();
        let answer = self.answers.recv_timeout(DEADLINE).unwrap();
        assert!(answer.len() as i32 <= ANSWER_MAX_BYTES, "{} bytes", answer.len());
        let mut message = Decoder(&answer).inside(0x7b);
        let mut header = message.inside(0x7a);
        let mut version = header.inside(0x69);
        assert_eq!((version.number(0x6a, INTEGER), version.number(0x6b, INTEGER)), (1, minor as u32));
        version.ends();
        header.take(0x92, DATE);
        if minor >= 4 && header.is_next(0x0106) {
            header.text(0x0106);
        }
        assert_eq!(header.number(0x0d, INTEGER), 1);
        header.ends();
        let mut item = message.inside(0x0f);
        message.ends();
        assert_eq!(item.number(0x5c, ENUMERATION), operation);
        if item.number(0x7f, ENUMERATION) != 0 {
            return None;
        }
        let payload = item.take(0x7c, STRUCTURE).to_vec();
        item.ends();
        Some(payload)
    }

    /// Returns the identifier, which most operations answer with and nothing else.
    fn ask_for_identifier(&mut self, minor: i32, operation: u32, payload: &[Vec<u8>]) -> String {
        let answer = self.ask(minor, operation, payload).unwrap();
        let mut answer = Decoder(&answer);
        let id = answer.text(UNIQUE_IDENTIFIER);
        answer.ends();
        id
    }

    fn create(&mut self, name: &str) -> String {
        let answer =
            self.ask(0, OPERATION_CREATE, &[enumeration(0x57, SYMMETRIC_KEY), template(name)]).unwrap();
        let mut answer = Decoder(&answer);
        assert_eq!(answer.number(0x57, ENUMERATION), SYMMETRIC_KEY);
        let id = answer.text(UNIQUE_IDENTIFIER);
        answer.ends();
        id
    }

    /// With a header of 1.4, as kmip_bio_register_symmetric_key does.
    fn register(&mut self, name: &str, key: &[u8]) -> String {
        let value = structure(0x45, &[field(0x43, BYTES, key)]);
        let (algorithm, length) = (enumeration(0x28, 3), integer(0x2a, key.len() as i32 * 8));
        let block = structure(0x40, &[enumeration(0x42, 1), value, algorithm, length]);
        let payload = [enumeration(0x57, SYMMETRIC_KEY), template(name), structure(0x8f, &[block])];
        self.ask_for_identifier(4, OPERATION_REGISTER, &payload)
    }

    fn get(&mut self, id: &str) -> Option<Vec<u8>> {
        let answer = self.ask(0, OPERATION_GET, &[text(UNIQUE_IDENTIFIER, id)])?;
        let mut answer = Decoder(&answer);
        assert_eq!(answer.number(0x57, ENUMERATION), SYMMETRIC_KEY);
        assert_eq!(answer.text(UNIQUE_IDENTIFIER), id);
        let mut block = answer.inside(0x8f).inside(0x40);
        answer.ends();
        assert_eq!(block.number(0x42, ENUMERATION), 1, "raw");
        let mut value = block.inside(0x45);
        let key = value.take(0x43, BYTES).to_vec();
        value.ends();
        assert_eq!((block.number(0x28, ENUMERATION), block.number(0x2a, INTEGER)), (3, key.len() as u32 * 8));
        block.ends();
        Some(key)
    }

    /// Its op_all: pages with Offset Items and a header of 1.0, until a page is empty, since 1.0
    /// has no count.
    fn all(&mut self, more: &[Vec<u8>]) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            let mut payload = vec![integer(0x4f, PAGE)];
            if !found.is_empty() {
                payload.push(integer(0xd4, found.len() as i32));
            }
            payload.push(attribute("Object Type", enumeration(0x0b, SYMMETRIC_KEY)));
            payload.extend_from_slice(more);
            let answer = self.ask(0, OPERATION_LOCATE, &payload).expect("a page is no failure");
            let mut answer = Decoder(&answer);
            let before = found.len();
            while answer.is_next(UNIQUE_IDENTIFIER) {
                found.push(answer.text(UNIQUE_IDENTIFIER));
            }
            answer.ends();
            if found.len() == before {
                return found;
            }
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

#[test]
fn a_keyring_keeps_its_keys_as_libkmip_asks() {
    let scratch = Scratch::new();
    let user = KeyServerUser::new(&scratch);
    let server = user.serve("keyserver");
    let files = user.client_file("ca.pem");
    let mut keyring = Connection::open(&user.kmip, files.parent().unwrap());

    let key = [0x5a; 32];
    let registered = keyring.register("INNODBKey-0", &key);
    keyring.ask_for_identifier(0, OPERATION_ACTIVATE, &[text(UNIQUE_IDENTIFIER, &registered)]);
    assert_eq!(keyring.get(&registered).unwrap(), key);
    // The name, by which a keyring finds its keys, with a header of 1.4.
    let question = [text(UNIQUE_IDENTIFIER, &registered), text(0x0a, "Name")];
    let answer = keyring.ask(4, OPERATION_GET_ATTRIBUTES, &question).unwrap();
    let mut answer = Decoder(&answer);
    assert_eq!(answer.text(UNIQUE_IDENTIFIER), registered);
    let mut name = answer.inside(0x08);
    assert_eq!(name.text(0x0a), "Name");
    if name.is_next(0x09) {
        name.number(0x09, INTEGER);
    }
    let mut name = name.inside(0x0b);
    assert_eq!((name.text(0x55), name.number(0x54, ENUMERATION)), ("INNODBKey-0".to_owned(), 1));
    answer.ends();

    // More keys than two pages; another start of the database finds all of them.
    let mut made: Vec<_> = (1..40).map(|number| keyring.create(&format!("INNODBKey-{number}"))).collect();
    assert_eq!(keyring.get(&made[0]).unwrap().len(), 32);
    made.push(registered.clone());
    made.sort();
    drop(keyring);
    let mut keyring = Connection::open(&user.kmip, files.parent().unwrap());
    let sorted = |mut ids: Vec<String>| {
        ids.sort();
        ids
    };
    assert_eq!(sorted(keyring.all(&[])), made);
    let group = attribute("Object Group", text(0x0b, "percona"));
    assert_eq!(sorted(keyring.all(&[group])), made);
    let name = attribute("Name", structure(0x0b, &[text(0x55, "INNODBKey-0"), enumeration(0x54, 1)]));
    assert_eq!(keyring.all(&[name]), std::slice::from_ref(&registered));

    // The end of a key: revoked because it is no longer needed, then destroyed. A refusal is an
    // answer, too.
    let reason = structure(0x81, &[enumeration(0x82, 6), text(0x80, "rotated")]);
    keyring.ask_for_identifier(0, OPERATION_REVOKE, &[text(UNIQUE_IDENTIFIER, &registered), reason]);
    keyring.ask_for_identifier(0, OPERATION_DESTROY, &[text(UNIQUE_IDENTIFIER, &registered)]);
    assert_eq!(keyring.get(&registered), None);
    assert_eq!(keyring.all(&[]).len(), made.len() - 1);
    assert!(server.terminate(DEADLINE).success());
}
