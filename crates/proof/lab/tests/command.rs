//! Tests `strongroom-lab vhost-user-verify` through its command line.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::process::{Command, Output};
use std::sync::Arc;

use support::{Lie, Local, LyingDisk, Served};

fn verify(local: &Local, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strongroom-lab"));
    command.arg("vhost-user-verify").arg("--socket").arg(&local.socket).args(arguments);
    command.output().unwrap()
}

fn start(lie: Lie) -> Local {
    Local::start(Arc::new(Served(LyingDisk::new(lie))))
}

#[test]
fn it_counts_what_it_has_verified() {
    let local = start(Lie::None);
    let output = verify(&local, &["--queues", "2", "--depth", "16", "--operations", "500", "--seed", "7"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}");
    let number = |name: &str| -> u64 {
        let word = text.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        word.unwrap().parse().unwrap()
    };
    assert!(number("operations") >= 500 && number("out_of_order") > 0, "{text}");
    assert_eq!(number("wrong_sectors"), 0);
    local.server.stop().unwrap();
}

#[test]
fn it_fails_by_naming_what_is_wrong() {
    let local = start(Lie::LostWrite);
    // One request at a time: otherwise a later write may overwrite the sector before it is reread.
    let output = verify(&local, &["--queues", "1", "--depth", "1", "--operations", "5000"]);
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("a lost write: it holds"), "{text}");
    local.server.stop().unwrap();
}

#[test]
fn it_says_what_it_cannot_do() {
    let local = start(Lie::None);
    let output = verify(&local, &["--queues", "16"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "strongroom-lab: the server has 4 queues, not 16\n");
    let output = verify(&local, &["--queue-size", "100"]);
    assert_eq!(output.status.code(), Some(2));
    local.server.stop().unwrap();
}
