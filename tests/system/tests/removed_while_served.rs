//! A user removes a volume's files while it is served. Its clients cannot notice, so its owner is
//! warned.

use std::fs;
use std::process::Command;

use crate::disk_support::{DEADLINE, await_log};
use strongroom_system_tests::{Protection, Scratch, Volume, run};

#[test]
fn the_owner_of_a_volume_whose_directory_was_removed_is_told() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "16M", Protection::Encrypted);
    let exposure = volume.expose();
    let qemu_io = |command: &str| {
        let mut program = Command::new("qemu-io");
        program.args(["--format=raw", "--cache=none", "-c", command]).arg(exposure.uri());
        let finished = run(&scratch, &program, DEADLINE);
        finished.stdout + &finished.stderr
    };
    assert!(qemu_io("write -P 7 0 1M").contains("wrote"));

    fs::remove_dir_all(volume.path()).unwrap_or_else(|error| panic!("{error}"));
    await_log(exposure.process(), "the volume's files were REMOVED while it is served");
    // The log's statement about clients is true: the data can be copied away.
    let read = qemu_io("read -P 7 0 1M");
    assert!(read.contains("read 1048576/1048576") && !read.contains("verification failed"), "{read}");
    // Its end is a failure.
    let log = exposure.process().stderr_log().to_owned();
    assert!(!exposure.close().success());
    let said = fs::read_to_string(log).unwrap_or_else(|error| panic!("{error}"));
    assert!(said.contains("its files had been removed while it was served"), "{said}");
}
