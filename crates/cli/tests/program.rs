//! The program as the shell sees it: what it answers before it does anything, and how it ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::process::{Command, Output};

fn strongroom(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strongroom")).args(arguments).env_clear().output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn it_says_which_version_it_is() {
    let said = strongroom(&["--version"]);
    assert!(said.status.success());
    let expected = concat!("strongroom ", env!("CARGO_PKG_VERSION"), " ");
    assert!(text(&said.stdout).starts_with(expected), "{said:?}");
}

#[test]
fn what_nobody_has_set_up_is_named_with_the_next_step() {
    let home = tempfile::tempdir().unwrap();
    let said = strongroom(&["--json", "vm", "list", "--home", home.path().to_str().unwrap()]);
    assert!(!said.status.success() && said.stdout.is_empty(), "{said:?}");
    let error: serde_json::Value = serde_json::from_slice(&said.stderr).unwrap();
    let error = error.to_string();
    assert!(error.contains("strongroom serve"), "{error}");
}

#[test]
fn a_command_that_there_is_not_ends_with_2() {
    let said = strongroom(&["frobnicate"]);
    assert_eq!((said.status.code(), text(&said.stdout)), (Some(2), ""));
    assert!(text(&said.stderr).contains("frobnicate"), "{said:?}");
}
