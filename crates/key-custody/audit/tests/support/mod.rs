//! Logs to test with.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; not every test needs all of it"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{Actor, AuditLog, HeadKey, Options, Outcome, Record};

/// A key's document, from which any number of equal keys can be made.
pub fn document() -> Vec<u8> {
    let document =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
    document.as_ref().to_vec()
}

pub fn key(document: &[u8]) -> HeadKey {
    HeadKey::from_pkcs8(document).unwrap()
}

/// Small files and frequent heads, so that a short log has some of both.
pub const SMALL: Options = Options {
    file_bytes: 8 * 1024,
    file_age: None,
    head_records: 10,
    head_interval: Duration::from_secs(3600),
};

pub fn open(path: &Path, document: &[u8], options: Options) -> AuditLog {
    let directory = Arc::new(OsDirectory::lock(path).unwrap());
    AuditLog::open(directory, Box::new(key(document)), options).unwrap()
}

pub fn record(n: u64) -> Record {
    let actor = Actor {
        fingerprint: Some("5b".repeat(32)),
        role: "host".into(),
        name: "CN=hypervisor-7.example".into(),
        address: Some("[2001:db8::7]:49152".into()),
    };
    Record::new(actor, "Get", [Outcome::Done, Outcome::Denied, Outcome::Failed][(n % 3) as usize])
        .object("0c8f6f5e-6a53-4a8e-9f0e-2f7a7f1f0001")
        .request(format!("7d3a/{n}"))
        .reason("the grant is of another host, whose name is \"Ümläut\"\n")
        .field("vm", "vm-1234")
}
