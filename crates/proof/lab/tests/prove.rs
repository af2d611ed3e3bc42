//! The instrument finds known quantities: a short form of `strongroom-lab prove`.
//!
//! The injected quantities are large compared with the noise of a busy machine, and other load does
//! not slow a server that mostly sleeps.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking")]

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use strongroom_lab::prove::claims::{Claim, claims, report_settings};
use strongroom_lab::prove::study::{Proof, ProofConfig, study};
use strongroom_lab::study::{Machine, Pace, Report, Store};

fn config(proof: Proof, rounds: u32, duration_ms: u64) -> ProofConfig {
    ProofConfig {
        pace: Pace { rounds, warm_up: Duration::ZERO, duration: Duration::from_millis(duration_ms) },
        delay: Duration::from_millis(200),
        rate_bits: 100_000_000,
        slower: 1.0,
        noise: 0.02,
        proofs: vec![proof],
        lab: env!("CARGO_BIN_EXE_strongroom-lab").into(),
        programs: None,
    }
}

fn prove(config: &ProofConfig) -> Vec<Claim> {
    let directory = tempfile::tempdir().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut study = study(directory.path(), config, &stop).unwrap();
    let mut store = Store::open(directory.path(), &study.plan(), &Machine::default()).unwrap();
    study.run(&mut store, &|_| {}, &stop).unwrap();
    let report = Report::of(&store, &report_settings());
    println!("{report}");
    let claims = claims(&store, &report, config);
    claims.iter().for_each(|claim| println!("{claim}"));
    claims
}

#[test]
fn an_injected_delay_is_found_and_two_servers_that_have_it_are_not_told_apart() {
    let claims = prove(&config(Proof::Delay, 6, 450));
    let [delay, slower, equal] = claims.as_slice() else { panic!("{claims:?}") };
    assert!(delay.holds && slower.holds, "{claims:?}");
    // On a busy machine six rounds may leave it undecided, but must not produce a difference.
    assert!(equal.holds || equal.found.starts_with("undecided"), "{claims:?}");
}

#[test]
fn an_injected_rate_is_found() {
    let claims = prove(&config(Proof::Rate, 2, 1500));
    assert_eq!(claims.len(), 2);
    assert!(claims.iter().all(|claim| claim.holds), "{claims:?}");
}

/// Compared by processor time, with twice the work: a small difference needs an otherwise idle
/// machine.
#[test]
fn slower_work_is_told_apart() {
    let claims = prove(&config(Proof::Work, 10, 100));
    assert_eq!(claims.len(), 3);
    assert!(claims[0].claim == "work that takes 100 % longer is told apart" && claims[0].holds, "{claims:?}");
}

#[test]
fn the_command_says_what_it_needs() {
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strongroom-lab"));
    command
        .arg("prove")
        .arg(directory.path())
        .args(["--proofs", "rate", "--rounds", "2"])
        .env("PATH", "/nowhere");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("nbdkit, a known rate, 64 KiB random read, depth 4: cannot run nbdkit: "),
        "{text}"
    );
}
