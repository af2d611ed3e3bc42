//! Measures appends: `append_rate DIRECTORY [WAITERS [SECONDS]]`, by default 32 waiters and 5
//! seconds.
//!
//! Each waiter appends a record of some 450 bytes, waits until it is durable, and appends the next.
//! Prints the appends per second, their latency, and how many shared a sync. The directory is
//! created, and left for `verify`.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a measurement says what it measured, or fails")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair};
use strongroom_audit::storage::OsDirectory;
use strongroom_audit::{Actor, AuditLog, HeadKey, Options, Outcome, Record};

fn record(waiter: u64, n: u64) -> Record {
    let actor = Actor {
        fingerprint: Some("5b".repeat(32)),
        role: "host".into(),
        name: "CN=hypervisor-7.example".into(),
        address: Some("192.0.2.7:49152".into()),
    };
    Record::new(actor, "Get", Outcome::Done)
        .object("0c8f6f5e-6a53-4a8e-9f0e-2f7a7f1f0001")
        .request(format!("{waiter}/{n}"))
        .field("vm", "vm-1234")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let path = PathBuf::from(arguments.next().expect("append_rate DIRECTORY [WAITERS [SECONDS]]"));
    let waiters: u64 = arguments.next().map_or(32, |text| text.parse().unwrap());
    let seconds: u64 = arguments.next().map_or(5, |text| text.parse().unwrap());
    std::fs::create_dir_all(&path).unwrap();
    let document =
        EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new()).unwrap();
    let key = HeadKey::from_pkcs8(document.as_ref()).unwrap();
    let directory = Arc::new(OsDirectory::lock(&path).unwrap());
    let log = AuditLog::open(directory, Box::new(key), Options::default()).unwrap();
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut took: Vec<Duration> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..waiters)
            .map(|waiter| {
                let log = &log;
                scope.spawn(move || {
                    let mut took = Vec::new();
                    while Instant::now() < end {
                        let began = Instant::now();
                        log.append(&record(waiter, took.len() as u64)).wait().unwrap();
                        took.push(began.elapsed());
                    }
                    took
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize];
    let counters = log.counters();
    println!(
        "{waiters} waiters, {seconds} s: {} records/s, p50 {:?}, p99 {:?}, p99.9 {:?}, max {:?}; {:.1} records and {:?} a group, {} bytes a line",
        took.len() as u64 / seconds,
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        counters.records as f64 / counters.groups as f64,
        counters.sync_time / u32::try_from(counters.groups).unwrap(),
        counters.bytes / counters.records,
    );
}
