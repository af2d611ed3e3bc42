//! VMs as archives of other hypervisors: written, read by Python and qemu-img, and taken back; and
//! archives of others, taken and refused.

use std::fs::File;
use std::os::unix::fs::FileExt;

use strongroom_system_tests::{CommandLine, Scratch, Serving, datastore};

use super::imports_and_exports::{MARKER, make_disk};

/// Reads an archive with Python alone: its files in order, their checksums against the manifest,
/// and what the description says of the hardware.
const READ: &str = r#"
import hashlib, re, sys, tarfile, xml.etree.ElementTree as tree
archive = tarfile.open(sys.argv[1])
names = archive.getnames()
print("files", *names)
content = {name: archive.extractfile(name).read() for name in names}
for line in content[names[1]].decode().splitlines():
    name, digest = re.fullmatch(r"SHA256\((.*)\)= ([0-9a-f]{64})", line).groups()
    assert hashlib.sha256(content[name]).hexdigest() == digest, name
    print("verified", name)
root = tree.fromstring(content[names[0]])
rasd = "{http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData}"
ovf = "{http://schemas.dmtf.org/ovf/envelope/1}"
for item in root.iter(ovf + "Item"):
    kind, quantity = item.findtext(rasd + "ResourceType"), item.findtext(rasd + "VirtualQuantity")
    print("item", kind, quantity or "")
for disk in root.iter(ovf + "Disk"):
    print("capacity", disk.get(ovf + "capacity"))
archive.extractall(sys.argv[2], filter="data")
"#;

fn read_by_python(strongroom: &CommandLine<'_>, archive: &str, into: &str) -> Vec<String> {
    let said = strongroom.peer("python3", &["-c", READ, archive, into]);
    said.lines().map(|line| line.trim().to_owned()).collect()
}

#[test]
fn a_vm_goes_out_as_an_archive_and_comes_back() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    make_disk(&strongroom);
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(
        "vm create web1 --cpus 3 --memory 256M --uefi --net none --disk 200M --disk 8M --image disk.raw",
    );
    serving.runs("vm export-ova web1 web1.ova");
    let size_bytes = 200 << 20;

    // As another program reads it.
    let said = read_by_python(&strongroom, "web1.ova", "out");
    for line in [
        "files web1.ovf web1.mf web1-disk0.vmdk web1-disk1.vmdk",
        "verified web1.ovf",
        "verified web1-disk0.vmdk",
        "verified web1-disk1.vmdk",
        "item 3 3",
        "item 4 256",
        "item 17",
        &format!("capacity {size_bytes}"),
    ] {
        assert!(said.iter().any(|said| said == line), "{line}: {said:#?}");
    }
    assert!(!said.iter().any(|line| line.starts_with("item 10")), "{said:#?}");
    let described = strongroom.peer("qemu-img", &["info", "out/web1-disk0.vmdk"]);
    assert!(described.contains("streamOptimized"), "{described}");
    File::options().write(true).open(scratch.path("disk.raw")).unwrap().set_len(size_bytes).unwrap();
    let is_the_disk = |format: &str, image: &str| {
        strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", format, "disk.raw", image]);
    };
    is_the_disk("vmdk", "out/web1-disk0.vmdk");
    assert_eq!(strongroom.run_shell("ls -A | grep vmdk").stdout, "", "the parts are gone");

    // As we read it.
    let made = serving.json("vm import web1.ova --name web2");
    assert_eq!((&made["cpus"], &made["memory_bytes"]), (&3.into(), &(256 << 20).into()), "{made}");
    assert_eq!((&made["firmware"], &made["encrypted"]), (&"uefi".into(), &true.into()), "{made}");
    assert_eq!(made["nics"].as_array().map(Vec::len), Some(0), "{made}");
    serving.runs("vm export web2 web2.raw --format raw");
    is_the_disk("raw", "web2.raw");
    assert_eq!(datastore::occurrences(&scratch.path("ds"), MARKER), 0);

    // Whatever was changed in it is noticed before a VM is made.
    let archive = std::fs::read(scratch.path("web1.ova")).unwrap();
    let is_refused = |says: &str, archive: &[u8]| {
        std::fs::write(scratch.path("bad.ova"), archive).unwrap();
        let refused = serving.is_refused("vm import bad.ova --name web3");
        assert!(refused.contains(says), "{says}: {refused}");
        assert!(serving.is_refused("vm show web3").contains("web3"));
    };
    let mut changed = archive.clone();
    let last = changed.len() - 2048;
    changed[last] ^= 1;
    is_refused("has another checksum than its manifest says", &changed);
    is_refused("it is incomplete", &archive[..archive.len() / 2]);
    is_refused("is no OVA", b"not an archive, but long enough to be the header of one".repeat(20).as_slice());
}

#[test]
fn an_archive_of_virtualbox_is_taken_over_with_notes() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let disk = File::create(scratch.path("disk.raw")).unwrap();
    disk.set_len(64 << 20).unwrap();
    disk.write_all_at(MARKER, 10 << 20).unwrap();
    let recorded = include_str!("../../../crates/machine/ova/src/recorded/virtualbox.ovf");
    let described = recorded.replace("8589934592", &(64_u64 << 20).to_string());
    std::fs::write(scratch.path("web1.ovf"), &described).unwrap();
    let image =
        ["-f", "raw", "-O", "vmdk", "-o", "subformat=streamOptimized", "disk.raw", "web1-disk001.vmdk"];
    strongroom.peer("qemu-img", &[&["convert"], &image[..]].concat());
    // VirtualBox states SHA-1, which is not believed.
    let packs = "sha1sum web1.ovf web1-disk001.vmdk | sed -E 's/(\\S+) +(\\S+)/SHA1 (\\2)= \\1/' > web1.mf && \
                 tar --format=ustar -cf web1.ova web1.ovf web1-disk001.vmdk web1.mf && rm web1-disk001.vmdk";
    strongroom.run_shell(packs).success();
    let made = serving.json("vm import web1.ova");
    assert_eq!((&made["name"], &made["cpus"]), (&"web1".into(), &2.into()), "{made}");
    let notes = made["notes"].to_string();
    assert!(notes.contains("does not vouch") && notes.contains("virtio"), "{notes}");
    serving.runs("vm export web1 copy.raw --format raw");
    strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", "copy.raw"]);

    // A description that leads out of the archive, and one that is not of its disk.
    for (old, new, says) in [
        ("href=\"web1-disk001.vmdk\"", "href=\"../../etc/shadow\"", "which it does not have"),
        ("67108864", "33554432", "is to have"),
        ("<Envelope", "<!DOCTYPE x [<!ENTITY y SYSTEM \"file:///etc/passwd\">]><Envelope", "DTD"),
    ] {
        std::fs::write(scratch.path("web1.ovf"), described.replacen(old, new, 1)).unwrap();
        strongroom.peer("qemu-img", &[&["convert"], &image[..]].concat());
        strongroom.run_shell("tar --format=ustar -cf bad.ova web1.ovf web1-disk001.vmdk").success();
        let refused = serving.is_refused("vm import bad.ova --name web2");
        assert!(refused.contains(says), "{says}: {refused}");
        assert!(serving.is_refused("vm show web2").contains("web2"));
    }
}
