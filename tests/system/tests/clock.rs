//! Time-driven actions of `serve`. Its clock is advanced (libfaketime); its timers are not.

#![cfg(feature = "full")]

use std::fs;
use std::time::Duration;

use strongroom_system_tests::key_server::free_addresses;
use strongroom_system_tests::{CommandLine, Scratch};

/// The library of Debian's package, for programs with threads.
const LIBRARY: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
/// The first check is a minute after the start.
const SOON: Duration = Duration::from_secs(240);

/// Certificates are valid for 90 days, and renewed 30 days before their expiry: here after 65 days,
/// while everything runs.
#[test]
fn certificates_are_renewed_before_they_end_while_everything_runs() {
    let scratch = Scratch::new();
    let set_clock = |to: &str| {
        fs::write(scratch.path("clock.new"), to).unwrap();
        fs::rename(scratch.path("clock.new"), scratch.path("clock")).unwrap();
    };
    set_clock("+0");
    let environment = format!(
        "export STRONGROOM_HOME=\"$PWD/home\" FAKETIME_TIMESTAMP_FILE=\"$PWD/clock\" FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_NO_CACHE=1 \
         LD_PRELOAD={LIBRARY};"
    );
    let ((kmip, enrolment), (api, _)) = (free_addresses(), free_addresses());
    let strongroom = CommandLine::new(&scratch);
    let mut serve = strongroom.start_shell(
        "serve",
        &format!(
            "{environment} exec \"$STRONGROOM\" --log info serve --listen {api} --listen-kmip {kmip} --listen-enrolment {enrolment} \
             --name host1 --run \"$PWD/run\" --crypto-safe advised 2>&1"
        ),
    );
    serve.wait_for_line("where its API is", SOON, |line| line.starts_with("https://"));
    let certificates = || {
        ["control/identity", "control/auditor", "hostd/identity"]
            .map(|directory| fs::read(scratch.path(&format!("home/{directory}/cert.pem"))).unwrap())
    };
    let before = certificates();
    set_clock("+65d");
    serve.wait_for_line("the last renewal", SOON, |line| {
        line.contains("the certificate of host1 (role host) was renewed")
    });
    for (before, after) in before.iter().zip(certificates()) {
        assert_ne!(*before, after);
    }
    let events = strongroom.run_shell(&format!("{environment} exec \"$STRONGROOM\" event list")).success();
    assert_eq!(events.matches("certificate.renewed").count(), 3, "{events}");
    assert!(serve.terminate(SOON).success());
}
