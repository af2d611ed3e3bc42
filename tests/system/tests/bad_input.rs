//! Invalid, foreign, used or full objects are refused with one clear sentence, and nothing else is
//! changed.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use strongroom_system_tests::{CommandLine, Scratch, Snapshot, assert_refused};

const KEY: [u8; 32] = [0x33; 32];
const WITH_KEY: [&str; 2] = ["--key-file", "vm1.key"];
const CLOSES_WITHIN: Duration = Duration::from_secs(60);

/// A datastore with the volume `ds/vm1`, 4 MiB, under a key file.
fn with_volume(scratch: &Scratch) -> CommandLine<'_> {
    let strongroom = CommandLine::new(scratch);
    strongroom.write_key_file("vm1.key", &KEY);
    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "4M"], &WITH_KEY[..]].concat());
    strongroom
}

/// A disk of 24 MiB that is dense and does not compress.
fn write_noise(strongroom: &CommandLine<'_>, name: &str) {
    let noise: Vec<u8> =
        (0..24_u32 << 20).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(strongroom.path(name), noise).unwrap();
}

#[test]
fn a_wrong_key_opens_nothing() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    fs::write(strongroom.path("right"), "correct horse").unwrap();
    fs::write(strongroom.path("wrong"), "correct hors").unwrap();
    fs::write(strongroom.path("empty"), "\n").unwrap();
    fs::write(strongroom.path("endless"), "x".repeat(5000)).unwrap();
    strongroom.run_with_passphrase("right", &["volume", "create", "ds/vm2", "--size", "4M"]).success();
    strongroom.json(&["volume", "create", "ds/clear", "--size", "4M", "--unencrypted"]);
    strongroom.write_key_file("other.key", &[0x34; 32]);
    strongroom.write_key_file("short.key", &[0x34; 31]);
    fs::write(strongroom.path("open.key"), KEY).unwrap();
    // The mode is set whatever the umask is.
    fs::set_permissions(strongroom.path("open.key"), PermissionsExt::from_mode(0o644)).unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));

    let check = |file, message: &str| {
        let finished = strongroom.run_with_passphrase(file, &["volume", "check", "ds/vm2"]);
        assert_refused(&finished, 1, message);
    };
    check(
        "wrong",
        "wrong passphrase for ds/vm2; try again, or, if it is certainly right, restore the volume's descriptor from a backup: it was edited",
    );
    check("empty", "a passphrase has 1 to 1024 bytes; this one has 0");
    check("endless", "a passphrase has 1 to 1024 bytes; this one has 1026");
    strongroom.expose_is_refused(
        "ds/vm1",
        &["--key-file", "other.key"],
        "the key in other.key is not that of ds/vm1; give the key file that the volume was created with",
    );
    strongroom.expose_is_refused(
        "ds/vm1",
        &["--key-file", "short.key"],
        "key file short.key holds no key: it must have 32 bytes, or 64 hexadecimal digits; \
         make one with: (umask 077; head -c 32 /dev/urandom > short.key)",
    );
    strongroom.expose_is_refused(
        "ds/vm1",
        &["--key-file", "none"],
        "cannot read key file none: No such file or directory; check the path",
    );
    strongroom.expose_is_refused(
        "ds/vm1",
        &["--unencrypted"],
        "ds/vm1 is encrypted; give its key file instead of --unencrypted",
    );
    strongroom.is_refused(
        &["volume", "check", "ds/vm2", "--key-file", "vm1.key"],
        1,
        "cannot open ds/vm2: the volume's key comes from a passphrase, not from a key file",
    );
    strongroom.is_refused(
        &["volume", "resize", "ds/clear", "--size", "8M", "--key-file", "vm1.key"],
        1,
        "ds/clear is not encrypted; if that is meant, say so with --unencrypted",
    );
    strongroom.is_refused(
        &["volume", "check", "ds/vm2", "--passphrase-fd", "77"],
        2,
        "file descriptor 77 is not open; open it as in: --passphrase-fd 77 77<FILE",
    );
    let open_key = strongroom.run(&["volume", "check", "ds/vm1", "--key-file", "open.key"]).failure();
    assert!(open_key.contains("can be read by others (mode 0"), "{open_key}");
    before.assert_untouched(&strongroom.path("ds"));
}

#[test]
fn sizes_that_no_volume_has_are_refused() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    for (size, reason) in [
        ("0", "a size of 0 bytes is too small; the smallest volume has 4096 bytes"),
        ("4095", "a size of 4095 bytes is too small; the smallest volume has 4096 bytes"),
        ("4097", "a size of 4097 bytes is not a multiple of 512; the nearest above is 4608"),
        ("65T", "a size of 65T is too large; the largest volume has 64T"),
        ("99999999999999999999P", "a size of 16383.99P is too large; the largest volume has 64T"),
        ("-1", "unexpected argument '-1' found"),
        (
            "20 apples",
            "'20 apples' is not a size; write a number of bytes or a number with a unit, such as 20G or 512M",
        ),
    ] {
        let finished = strongroom.run(&["volume", "create", "ds/vm1", "--size", size, "--unencrypted"]);
        assert_eq!(finished.status.code(), Some(2), "{size}");
        let refusal = finished.failure();
        assert!(refusal.contains(reason), "{size}: {refusal}");
        assert!(!strongroom.path("ds").exists());
    }
}

#[test]
fn names_that_no_volume_has_are_refused() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    for (path, message) in [
        ("ds/.hidden", "ds/.hidden cannot be the name of a volume: hidden names are the datastore's own"),
        ("ds/..", "ds/.. exists already; choose another name, or delete it first"),
        ("ds/a\u{1b}[2J", "ds/a\\u{1b}[2J cannot be the name of a volume: it holds a control character"),
    ] {
        fs::create_dir_all(strongroom.path("ds")).unwrap();
        strongroom.is_refused(&["volume", "create", path, "--size", "4M", "--unencrypted"], 1, message);
        assert_eq!(fs::read_dir(strongroom.path("ds")).unwrap().count(), 0);
    }
}

#[test]
fn a_second_writer_is_told_who_has_the_volume() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let (server, uri) = strongroom.expose("ds/vm1", &WITH_KEY);
    let before = Snapshot::of(&strongroom.path("ds"));
    let message = format!("ds/vm1 is in use by process {}; stop that first", server.id());
    let impatient = [&WITH_KEY[..], &["--lock-wait", "0s"]].concat();
    strongroom.expose_is_refused("ds/vm1", &impatient, &message);
    strongroom.expose_is_refused("ds/vm1", &[&impatient[..], &["--read-only"]].concat(), &message);
    strongroom.is_refused(&["volume", "delete", "ds/vm1", "--yes", "--lock-wait", "0s"], 1, &message);
    let export = ["volume", "export", "ds/vm1", "copy", "--format", "raw"];
    strongroom.is_refused(&[&export[..], &impatient].concat(), 1, &message);
    assert!(!strongroom.path("copy").exists());
    // Reading is always possible.
    strongroom.json(&[&["volume", "check", "ds/vm1"], &WITH_KEY[..]].concat());
    before.assert_untouched(&strongroom.path("ds"));
    strongroom.peer("qemu-io", &["-f", "raw", "-c", "write -P 5 0 4M", &uri]);
    assert!(server.terminate(CLOSES_WITHIN).success());
}

#[test]
fn a_socket_inside_of_the_volume_is_refused() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let exposed = ["volume", "expose", "ds/vm1", "--nbd", "unix:ds/vm1/vm.sock"];
    let socket = strongroom.path("./ds/vm1/vm.sock");
    let message = format!("{} is inside of ds/vm1; choose a place beside it", socket.display());
    strongroom.is_refused(&[&exposed[..], &WITH_KEY].concat(), 2, &message.replace("/./", "/"));
    strongroom.json(&[&["volume", "check", "ds/vm1"], &WITH_KEY[..]].concat());
}

#[test]
fn a_worker_is_nothing_for_a_person() {
    let scratch = Scratch::new();
    CommandLine::new(&scratch).is_refused(
        &["worker"],
        2,
        "a worker is started by 'strongroom volume expose', and does nothing without it",
    );
}

#[test]
fn a_socket_that_is_in_use_is_left_alone() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let _other = std::os::unix::net::UnixListener::bind(strongroom.path("vm.sock")).unwrap();
    let socket = strongroom.path("vm.sock");
    let message = format!("a server already listens on {}", socket.display());
    strongroom.expose_is_refused("ds/vm1", &WITH_KEY, &message);
    assert!(socket.exists());
}

#[test]
fn tcp_is_refused_without_tls() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let exposed = ["volume", "expose", "ds/vm1", "--nbd", "tcp:127.0.0.1:0"];
    strongroom.is_refused(
        &[&exposed[..], &WITH_KEY].concat(),
        2,
        "tcp is served under TLS alone: give --tls-ca, --tls-cert, --tls-key and --authorize, or use unix:SOCKET",
    );
}

#[test]
fn a_read_only_datastore_can_be_read() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    let before = Snapshot::of(&strongroom.path("ds"));
    let said = strongroom
        .run_with_own_mounts(
            r#"
            mount --bind ds ds
            mount -o remount,ro,bind ds
            refused() { if "$STRONGROOM" "$@" 2>&1; then echo "NOT REFUSED: $*"; fi; }
            refused volume expose ds/vm1 --nbd unix:vm.sock --key-file vm1.key
            refused volume resize ds/vm1 --size 8M --key-file vm1.key
            refused volume delete ds/vm1 --yes
            refused volume create ds/vm2 --size 4M --key-file vm1.key | sed 's/new-[0-9a-f-]*/new-ID/'
            "$STRONGROOM" volume export ds/vm1 copy --format raw --key-file vm1.key 2>/dev/null
            "$STRONGROOM" volume check ds/vm1 --key-file vm1.key
            "#,
        )
        .success();
    let lines: Vec<&str> = said.lines().collect();
    let read_only = "error: ds/vm1 can only be read: Read-only file system; make its datastore writable, or open it \
                     read-only";
    assert_eq!(
        lines,
        [
            read_only,
            read_only,
            "error: cannot delete ds/vm1: Read-only file system; choose another place, or mount it writable",
            "error: cannot create ds/.strongroom-new-ID: Read-only file system; choose another place, or mount it writable",
            "exported ds/vm1 as copy (raw): 4M, not encrypted",
            "ds/vm1: no errors in its descriptor and files; its blocks were not read (--data reads them)",
        ]
    );
    before.assert_untouched(&strongroom.path("ds"));
}

#[test]
fn a_full_datastore_refuses_one_and_harms_no_other() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    write_noise(&strongroom, "big.raw");
    fs::create_dir(strongroom.path("small")).unwrap();
    strongroom.peer("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "big.raw", "big.qcow2"]);
    let said = strongroom
        .run_with_own_mounts(
            r#"
            mount -t tmpfs -o size=8m small-datastore small
            key="--key-file vm1.key"
            "$STRONGROOM" volume create small/other --size 4M $key >/dev/null
            tree() { find small | LC_ALL=C sort | xargs ls -ld --time-style=+ | cksum; cat small/*/descriptor | cksum; }
            before=$(tree)
            refused() {
                if "$STRONGROOM" "$@" $key 2>&1 | grep -v % ; then :; fi
                [ "$(tree)" = "$before" ] || echo "TOUCHED by $*"
            }
            refused volume import big.raw small/vm1
            refused volume import big.qcow2 small/vm1
            refused volume create small/vm1 --size 1G --thick
            "$STRONGROOM" volume check small/other $key
            "#,
        )
        .success();
    let full = "error: the datastore of small/vm1 is full";
    let next = "are needed; free some space or choose another datastore";
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("{full}: up to 24M {next}"), "{said}");
    assert_eq!(lines[1], format!("{full}: up to 24M {next}"), "{said}");
    assert_eq!(lines[2], format!("{full}: 1G {next}"), "{said}");
    assert_eq!(
        lines[3..],
        ["small/other: no errors in its descriptor and files; its blocks were not read (--data reads them)"],
        "{said}"
    );
}

#[test]
fn a_full_destination_keeps_nothing_of_an_export() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    write_noise(&strongroom, "big.raw");
    strongroom.json(&[&["volume", "import", "big.raw", "ds/big"], &WITH_KEY[..]].concat());
    fs::create_dir(strongroom.path("out")).unwrap();
    let said = strongroom
        .run_with_own_mounts(
            r#"
            mount -t tmpfs -o size=8m small-destination out
            for format in raw qcow2 vmdk vhdx; do
                "$STRONGROOM" volume export ds/big out/copy --format $format --key-file vm1.key 2>&1 && echo exported
            done | grep -v -e % -e note:
            ls out
            "#,
        )
        .success();
    let full =
        "error: cannot write out/copy: No space left on device; free some space, or choose another place";
    assert_eq!(said.lines().collect::<Vec<_>>(), [full; 4]);
}

#[test]
fn a_strangers_file_is_not_deleted_with_a_volume() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    fs::write(strongroom.path("ds/vm1/notes.txt"), "precious").unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));
    strongroom.is_refused(
        &["volume", "delete", "ds/vm1", "--yes"],
        1,
        "ds/vm1 holds 'notes.txt', which is not a part of a volume; nothing was deleted",
    );
    strongroom.is_refused(
        &["volume", "delete", "ds", "--yes"],
        1,
        "ds holds 'vm1', which is not a part of a volume; nothing was deleted",
    );
    before.assert_untouched(&strongroom.path("ds"));
}
