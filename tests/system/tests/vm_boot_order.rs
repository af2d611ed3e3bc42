//! A VM is booted from the devices that are named, in that order, and from no others.

use std::fs;
use std::time::{Duration, Instant};

use strongroom_system_tests::{Scratch, Serving};

/// Timeout of a boot by emulated firmware.
const BOOTS_WITHIN: Duration = Duration::from_secs(120);

const FROM_CD: &str = "strongroom-order-2b7a: the CD-ROM was started";
const FROM_CD_BY_UEFI: &str = "strongroom-order-2b7a: the CD-ROM was started by UEFI";
const FROM_FIRST: &str = "strongroom-order-2b7a: the first disk was started";
const FROM_SECOND: &str = "strongroom-order-2b7a: the second disk was started";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_boots_from_the_device_that_is_first_in_its_order() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    fs::write(scratch.path("first.raw"), crate::install_media::disk(FROM_FIRST)).unwrap();
    fs::write(scratch.path("second.raw"), crate::install_media::disk(FROM_SECOND)).unwrap();
    let cd = scratch.path("home/hostd/boot/cd.iso");
    fs::write(&cd, crate::install_media::iso(FROM_CD, FROM_CD_BY_UEFI)).unwrap();
    serving.runs(&format!(
        "vm create web1 --memory 64M --disk 16M --net user --image first.raw --format raw --cdrom {}",
        cd.display()
    ));
    serving.runs("vm disk add web1 --size 16M --image second.raw --format raw");
    let _place = serving.take_place();
    let refused = serving.is_refused("vm set web1 --boot disk2");
    assert!(refused.contains("it has no disk2 to boot from"), "{refused}");
    for (order, said) in [
        ("disk1,cdrom", FROM_SECOND),
        ("cdrom,disk0", FROM_CD),
        ("disk0,disk1,cdrom", FROM_FIRST),
        ("default", FROM_CD),
    ] {
        serving.runs(&format!("vm set web1 --boot {order}"));
        let shown = serving.runs("vm show web1");
        let line = format!("boots from  {}", order.replace(',', ", "));
        assert_eq!(shown.contains(&line), order != "default", "{shown}");
        assert_eq!(boots(&serving, "web1"), said, "{order}");
    }
    // An order goes with a clone, and a disk that goes leaves it.
    serving.runs("vm set web1 --boot disk1,disk0");
    serving.runs("vm clone web1 web2");
    assert_eq!(boots(&serving, "web2"), FROM_SECOND);
    serving.runs("vm disk remove web1 disk1 --yes");
    assert!(serving.runs("vm show web1").contains("boots from  disk0\n"));
    assert_eq!(boots(&serving, "web1"), FROM_FIRST);
    // A card that is booted from has its ROM; without anything in the network the next one is
    // tried.
    serving.runs("vm set web1 --boot nic0,cdrom");
    assert_eq!(boots(&serving, "web1"), FROM_CD);
}

/// Starts a VM, and returns what it was booted from.
fn boots(serving: &Serving<'_>, vm: &str) -> &'static str {
    let all = [FROM_CD, FROM_FIRST, FROM_SECOND];
    let count = |said: &str| {
        // Before the first output there is no history.
        let told = serving.strongroom.run_shell(&script(&format!("vm console {vm} --history")));
        told.stdout.matches(said).count()
    };
    let before = all.map(count);
    serving.runs(&format!("vm start {vm}"));
    let until = Instant::now() + BOOTS_WITHIN;
    let booted = loop {
        if let Some(said) = all.iter().zip(before).find(|(said, before)| count(said) > *before) {
            break said.0;
        }
        assert!(Instant::now() < until, "{vm} has not booted within {BOOTS_WITHIN:?}");
    };
    serving.runs(&format!("vm stop {vm} --force"));
    booted
}

fn script(arguments: &str) -> String {
    format!("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" {arguments}")
}
