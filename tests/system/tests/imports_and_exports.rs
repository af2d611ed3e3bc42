//! A user imports disks from elsewhere and exports them again: raw, QEMU's, VMware's and Hyper-V's.
//! `qemu-img` compares them; it reads the volume over our NBD server.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::time::Duration;

use rustix::process::Signal;
use strongroom_system_tests::{CommandLine, Scratch, Snapshot, datastore};

const KEY: [u8; 32] = [0x17; 32];
const KEY_ARGUMENTS: [&str; 2] = ["--key-file", "vm1.key"];
/// Not a multiple of 4096, of 64 KiB, or of 1 MiB: the last unit of every format is incomplete.
const DISK_BYTES: u64 = (150 << 20) + 512;
const DATA_BYTES: u64 = 9 << 20;
/// Occurs nowhere but in the guest's data.
pub const MARKER: &[u8] = b"strongroom-import-marker-9e21";

const DEADLINE: Duration = Duration::from_secs(120);

/// A disk with data at both ends and in the middle, and large holes.
pub fn make_disk(strongroom: &CommandLine<'_>) {
    let disk = File::create(strongroom.path("disk.raw")).unwrap();
    disk.set_len(DISK_BYTES).unwrap();
    disk.write_all_at(MARKER, 0).unwrap();
    let noise: Vec<u8> =
        (0..DATA_BYTES as u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    disk.write_all_at(&noise, (40 << 20) + 700).unwrap();
    disk.write_all_at(MARKER, DISK_BYTES - MARKER.len() as u64).unwrap();
}

#[test]
fn every_format_comes_and_goes_unchanged() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    make_disk(&strongroom);
    for format in ["raw", "qcow2", "vmdk", "vhdx"] {
        let (image, volume, copy) =
            (format!("disk.{format}"), format!("ds/{format}"), format!("copy.{format}"));
        if format != "raw" {
            strongroom.peer("qemu-img", &["convert", "-f", "raw", "-O", format, "disk.raw", &image]);
        }
        let imported =
            strongroom.json(&[&["volume", "import", &image, &volume], &KEY_ARGUMENTS[..]].concat());
        assert_eq!(imported["format"], format);
        assert_eq!(imported["size_bytes"], DISK_BYTES, "{format}");
        let log = &strongroom.json(&["volume", "info", &volume])["log"];
        assert_eq!(log["used_bytes"], 0, "{format}: an imported volume is complete without its log");
        let allocated = imported["allocated_bytes"].as_u64().unwrap() - log["size_bytes"].as_u64().unwrap();
        assert!((DATA_BYTES..DATA_BYTES + (1 << 20)).contains(&allocated), "{format}: {allocated} bytes");

        let (server, uri) = strongroom.expose(&volume, &[&["--read-only"], &KEY_ARGUMENTS[..]].concat());
        strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", &uri]);
        assert!(server.terminate(DEADLINE).success());

        let export = ["volume", "export", &volume, &copy, "--format", format];
        let exported = strongroom.run(&[&export[..], &KEY_ARGUMENTS].concat());
        assert!(exported.stderr.contains(&format!("note: {copy} will hold the guest's data in plain text")));
        exported.success();
        strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", format, "disk.raw", &copy]);
        let mode = strongroom.path(&copy).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "an export is the guest's plain data");
    }
    assert_eq!(datastore::occurrences(&strongroom.path("ds"), MARKER), 0);
    // The same search finds the marker where it must be.
    assert!(datastore::occurrences(&strongroom.path("."), MARKER) >= 4);
}

#[test]
fn progress_is_told_in_lines_where_nobody_looks_and_not_at_all_in_json() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    make_disk(&strongroom);
    let import = |name| ["volume", "import", "disk.raw", name, "--unencrypted"];
    let told = strongroom.run(&import("ds/vm1"));
    assert!(told.stderr.ends_with("importing: 100 %\n"), "{}", told.stderr);
    let silent = strongroom.run(&[&["--json"], &import("ds/vm2")[..]].concat());
    assert_eq!(silent.stderr, "");
    silent.success();
}

#[test]
fn an_interrupted_import_leaves_nothing() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    // Dense, so that most of the work is still ahead after the first tenth.
    let disk = File::create(strongroom.path("disk.raw")).unwrap();
    let piece = vec![0xC3; 16 << 20];
    for index in 0..48 {
        disk.write_all_at(&piece, index << 24).unwrap();
    }
    strongroom.peer("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    strongroom.json(&["volume", "create", "ds/other", "--size", "4M", "--unencrypted"]);
    let before = Snapshot::of(&strongroom.path("ds"));
    for image in ["disk.raw", "disk.qcow2"] {
        for signal in [Signal::INT, Signal::TERM] {
            let mut import =
                strongroom.start("import", &["volume", "import", image, "ds/vm1", "--unencrypted"]);
            import.wait_for_line("its first tenth", DEADLINE, |line| line == "importing: 10 %");
            import.signal(signal);
            import.wait_for_line("why it ended", DEADLINE, |line| line == "error: interrupted");
            assert_eq!(import.wait(DEADLINE).code(), Some(1));
            before.assert_untouched(&strongroom.path("ds"));
        }
    }
}

#[test]
fn a_killed_import_leaves_nothing_under_the_volumes_name() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let disk = File::create(strongroom.path("disk.raw")).unwrap();
    let piece = vec![0xC3; 16 << 20];
    for index in 0..48 {
        disk.write_all_at(&piece, index << 24).unwrap();
    }
    let mut import = strongroom.start("import", &["volume", "import", "disk.raw", "ds/vm1", "--unencrypted"]);
    import.wait_for_line("its first tenth", DEADLINE, |line| line == "importing: 10 %");
    import.kill();
    assert!(!strongroom.path("ds/vm1").exists());
    strongroom.json(&["volume", "delete", "ds/vm1.importing", "--yes"]);
    strongroom.json(&["volume", "import", "disk.raw", "ds/vm1", "--unencrypted"]);
}

#[test]
fn nothing_is_overwritten() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    make_disk(&strongroom);
    strongroom.json(&["volume", "create", "ds/vm1", "--size", "4M", "--unencrypted"]);
    std::fs::write(strongroom.path("precious"), "data").unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));
    strongroom.is_refused(
        &["volume", "import", "disk.raw", "ds/vm1", "--unencrypted"],
        1,
        "ds/vm1 exists already; choose another name, or delete it first",
    );
    for format in ["raw", "qcow2"] {
        strongroom.is_refused(
            &["volume", "export", "ds/vm1", "precious", "--format", format, "--unencrypted"],
            1,
            "precious exists already; choose another name, or remove it first",
        );
    }
    before.assert_untouched(&strongroom.path("ds"));
    assert_eq!(std::fs::read(strongroom.path("precious")).unwrap(), b"data");
}

/// Root's sandbox has no capabilities, and could not open another user's private image by its path.
#[test]
fn root_imports_another_users_private_image() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    make_disk(&strongroom);
    strongroom.peer("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    std::fs::set_permissions(strongroom.path("disk.qcow2"), PermissionsExt::from_mode(0o600)).unwrap();
    // Without root the image is the user's own, and the sandbox opens it as usual.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(strongroom.path("disk.qcow2"), Some(65_534), Some(65_534)).unwrap();
    }
    strongroom.json(&["volume", "import", "disk.qcow2", "ds/vm1", "--unencrypted"]);
    let (_server, uri) = strongroom.expose("ds/vm1", &["--read-only", "--unencrypted"]);
    strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", &uri]);
}
