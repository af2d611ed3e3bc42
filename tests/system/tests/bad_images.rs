//! External disk images that are hostile, damaged, or not what they seem: each is refused with one
//! clear sentence, and nothing else is changed.

use std::fs;

use strongroom_system_tests::{CommandLine, Scratch, Snapshot};

const WITH_KEY: [&str; 2] = ["--key-file", "vm1.key"];

/// A datastore with a volume that an import must leave alone.
fn with_volume(scratch: &Scratch) -> CommandLine<'_> {
    let strongroom = CommandLine::new(scratch);
    strongroom.write_key_file("vm1.key", &[0x33; 32]);
    strongroom.json(&[&["volume", "create", "ds/vm1", "--size", "4M"], &WITH_KEY[..]].concat());
    strongroom
}

#[test]
fn images_that_refer_to_other_files_are_refused() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    fs::write(strongroom.path("secret.raw"), vec![0x42; 1 << 20]).unwrap();
    let secret = strongroom.path("secret.raw").display().to_string();
    strongroom.peer(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "-b", &secret, "-F", "raw", "backing.qcow2", "1M"],
    );
    let data_file = format!("data_file={secret},data_file_raw=on");
    strongroom.peer("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &data_file, "data.qcow2", "1M"]);
    strongroom.peer(
        "qemu-img",
        &["create", "-q", "-f", "vmdk", "-o", "subformat=monolithicFlat", "flat.vmdk", "1M"],
    );
    let extents = "# Disk DescriptorFile\nversion=1\nCID=fffffffe\nparentCID=ffffffff\ncreateType=\"monolithicFlat\"\n\
                   RW 2048 FLAT \"/etc/shadow\" 0\n";
    fs::write(strongroom.path("evil.vmdk"), extents).unwrap();
    let before = Snapshot::of(&strongroom.path("ds"));
    for (image, name, role) in [
        ("backing.qcow2", secret.as_str(), "its backing file"),
        ("data.qcow2", &secret, "its data file"),
        ("flat.vmdk", "flat-flat.vmdk", "its extent"),
        ("evil.vmdk", "/etc/shadow", "its extent"),
    ] {
        let message = format!(
            "{image} refers to another file, '{name}' ({role}), which could be any file of this machine; nothing was \
             read from it. Make one that refers to none, where you trust it: qemu-img convert -O qcow2 {image} WHOLE.qcow2"
        );
        let import = ["volume", "import", image, "ds/evil"];
        strongroom.is_refused(&[&import[..], &WITH_KEY].concat(), 1, &message);
        before.assert_untouched(&strongroom.path("ds"));
    }
}

#[test]
fn images_that_are_not_what_they_seem_are_refused() {
    let scratch = Scratch::new();
    let strongroom = with_volume(&scratch);
    strongroom.peer("qemu-img", &["create", "-q", "-f", "qcow2", "good.qcow2", "64M"]);
    strongroom.peer("qemu-io", &["-f", "qcow2", "-c", "write -P 1 0 1M", "good.qcow2"]);
    let good = fs::read(strongroom.path("good.qcow2")).unwrap();
    fs::write(strongroom.path("named.img"), &good).unwrap();
    fs::write(strongroom.path("cut.qcow2"), &good[..good.len() / 2]).unwrap();
    fs::write(strongroom.path("header.qcow2"), &good[..20]).unwrap();
    fs::write(strongroom.path("noise.bin"), [9; 8192]).unwrap();
    fs::write(strongroom.path("odd.raw"), [9; 10_001]).unwrap();
    fs::write(strongroom.path("locked"), "0123456789").unwrap();
    strongroom.peer("qemu-img", &["create", "-q", "-f", "qcow2", "huge.qcow2", "100T"]);
    for (format, name) in
        [("vdi", "good.vdi"), ("vpc", "good.vhd"), ("qed", "good.qed"), ("parallels", "good.hds")]
    {
        strongroom.peer("qemu-img", &["create", "-q", "-f", format, name, "4M"]);
    }
    strongroom.peer("qemu-img", &["create", "-q", "-f", "vpc", "-o", "subformat=fixed", "fixed.vhd", "4M"]);
    fs::copy(strongroom.path("good.vdi"), strongroom.path("named-vdi.img")).unwrap();
    strongroom.peer("tar", &["cf", "vm.ova", "good.vdi"]);
    strongroom.peer("gzip", &["--keep", "good.qcow2"]);
    // qemu-img measures the speed of key derivation, and gives up where the clock is too coarse
    // ("Unable to get accurate CPU usage").
    let luks = "qemu-img create -q -f qcow2 --object secret,id=s,file=locked \
                -o encrypt.format=luks,encrypt.key-secret=s,encrypt.iter-time=10 luks.qcow2 4M";
    strongroom.run_shell(&format!("for _ in $(seq 20); do {luks} && exit 0; done; exit 1")).success();
    let before = Snapshot::of(&strongroom.path("ds"));
    for (image, format, message) in [
        (
            "named.img",
            "auto",
            "cannot tell the format of named.img for certain: it starts as a qcow2 image, but is named as a raw one, whose \
             guest could have written that; say it with --format raw, qcow2, vmdk or vhdx",
        ),
        (
            "noise.bin",
            "auto",
            "cannot tell the format of noise.bin for certain: it bears no format's mark, and is not named .raw or .img; \
             say it with --format raw, qcow2, vmdk or vhdx",
        ),
        (
            "good.qcow2",
            "vhdx",
            "good.qcow2 is not a vhdx image: it starts as a qcow2 image; name its format with --format, or get another copy of it",
        ),
        (
            "good.vdi",
            "auto",
            "good.vdi is a VirtualBox disk image (VDI), which is not imported; convert it first with: qemu-img convert -f vdi \
             -O qcow2 good.vdi good.qcow2",
        ),
        (
            "good.vhd",
            "auto",
            "good.vhd is a Virtual PC disk image (VHD), which is not imported; convert it first with: qemu-img convert -f vpc \
             -O qcow2 good.vhd good.qcow2",
        ),
        (
            "fixed.vhd",
            "qcow2",
            "fixed.vhd is a Virtual PC disk image (VHD), which is not imported; convert it first with: qemu-img convert -f vpc \
             -O qcow2 fixed.vhd fixed.qcow2",
        ),
        (
            "good.qed",
            "auto",
            "good.qed is a QED image, which is not imported; convert it first with: qemu-img convert -f qed -O qcow2 good.qed \
             good.qcow2",
        ),
        (
            "good.hds",
            "auto",
            "good.hds is a Parallels disk image, which is not imported; convert it first with: qemu-img convert -f parallels \
             -O qcow2 good.hds good.qcow2",
        ),
        (
            "vm.ova",
            "auto",
            "vm.ova is an archive (tar, which an OVA is), which is not imported; name its content with: tar tf vm.ova, unpack \
             its disk with: tar xf vm.ova DISK, and import that",
        ),
        (
            "good.qcow2.gz",
            "auto",
            "good.qcow2.gz is compressed with gzip, which is not imported; unpack it first with: gunzip --keep good.qcow2.gz",
        ),
        (
            "named-vdi.img",
            "auto",
            "by its content named-vdi.img is a VirtualBox disk image (VDI), which is not imported; convert it first with: \
             qemu-img convert -f vdi -O qcow2 named-vdi.img named-vdi.qcow2; if it is a disk's own bytes, whose guest wrote \
             that, say --format raw",
        ),
        (
            "header.qcow2",
            "auto",
            "header.qcow2 is not a qcow2 image: its header is cut off; name its format with --format, or get another copy of it",
        ),
        (
            "luks.qcow2",
            "auto",
            "luks.qcow2 is encrypted itself; decrypt it first with the program that made it",
        ),
        (
            "huge.qcow2",
            "auto",
            "huge.qcow2 cannot become a volume: a size of 100T is too large; the largest volume has 64T",
        ),
        (
            "odd.raw",
            "auto",
            "odd.raw cannot become a volume: a size of 10001 bytes is not a multiple of 512; the nearest above is 10240; \
             if it is a whole disk, pad it with: truncate -s 10240 odd.raw",
        ),
        ("missing.raw", "auto", "cannot open missing.raw: No such file or directory; check the path"),
    ] {
        let import = ["volume", "import", image, "ds/new", "--format", format];
        strongroom.is_refused(&[&import[..], &WITH_KEY].concat(), 1, message);
        before.assert_untouched(&strongroom.path("ds"));
    }
    let cut =
        strongroom.run(&[&["volume", "import", "cut.qcow2", "ds/new"], &WITH_KEY[..]].concat()).failure();
    assert!(cut.starts_with("error: cut.qcow2 is damaged or incomplete; get another copy of it."), "{cut}");
    before.assert_untouched(&strongroom.path("ds"));
    strongroom.is_refused(
        &["volume", "import", "/dev/null", "ds/new", "--unencrypted"],
        2,
        "/dev/null is neither a file nor a block device",
    );
}
