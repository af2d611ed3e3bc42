//! Builds the programs that the tests run before the first test needs them, so that a plain
//! `cargo test` never tests a stale program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The `strongroom` program: `$STRONGROOM_BIN`, or otherwise built here, in the profile of the
/// tests.
pub(crate) fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| match std::env::var_os("STRONGROOM_BIN") {
        Some(path) => PathBuf::from(path),
        None => build_program(),
    })
}

/// The directory with the test guest, built by `scripts/build-guest` unless it is up to date.
pub(crate) fn guest_directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        let directory = std::env::var_os("STRONGROOM_GUEST_DIR")
            .map_or_else(|| target_directory().join("guest"), PathBuf::from);
        must(Command::new(script("build-guest")).env("STRONGROOM_GUEST_DIR", &directory));
        directory
    })
}

/// A script of the project.
pub(crate) fn script(name: &str) -> PathBuf {
    repository().join("scripts").join(name)
}

fn build_program() -> PathBuf {
    let profile_directory = profile_directory();
    let profile = if profile_directory.ends_with("release") { "release" } else { "test" };
    // The whole workspace is named, so that cargo uses the same features as for the tests.
    must(
        Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--workspace", "--bin", "strongroom", "--profile", profile])
            .arg("--target-dir")
            .arg(target_directory())
            .current_dir(repository()),
    );
    profile_directory.join("strongroom")
}

/// `target/debug` or `target/release`: a test program is in its `deps`.
fn profile_directory() -> PathBuf {
    let test_program = std::env::current_exe().expect("a running program has a path");
    test_program.ancestors().nth(2).expect("cargo runs test programs from target/PROFILE/deps").to_owned()
}

fn target_directory() -> PathBuf {
    profile_directory().parent().expect("a profile directory lies in a target directory").to_owned()
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("this crate is two levels below the repository")
}

fn must(command: &mut Command) {
    let status = command.status().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    assert!(status.success(), "{command:?} failed: {status}");
}
