//! A guest with a vhost-user disk: a restart of the server is a pause, never an error; the guest's
//! data is there after a reboot, on the other machine type; and a thief of the datastore can read
//! nothing.

use std::time::Duration;

use strongroom_system_tests::{
    Exercise, Exposure, Guest, GuestPlan, Machine, Protection, Scratch, Volume, datastore,
};

/// Occurs only in the guest's data.
const MARKER: &str = "strongroom-marker-2b90e6f4";
/// Enough blocks that a file system cannot keep the file inline or in its journal alone.
const MARKER_FILE_BYTES: usize = 8 << 20;
/// Large enough to be visible beside the file system's own metadata when it is given back.
const DELETED_FILE_BYTES: u64 = 32 << 20;
/// Each restart meets other I/O in flight.
const RESTARTS: usize = 3;
/// Operations between two restarts.
const OPERATIONS_BETWEEN_RESTARTS: u64 = 200;

const E2FSCK_DEADLINE: Duration = Duration::from_secs(120);

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_guest_finds_in_its_second_boot_what_it_wrote_in_its_first() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "512M", Protection::Encrypted);
    let exposure = volume.expose_vhost_user();
    let first = GuestPlan::new(&scratch, "first-boot").machine(Machine::Pc);
    let mut guest = first.vhost_user(exposure.socket()).boot();
    assert_eq!(guest.run("cat /sys/block/vda/serial").trim(), "vm1");
    let exposure = sits_out_restarts(&mut guest, &volume, exposure);

    guest.run("mkfs.ext4 -q /dev/vda && mount -o discard /dev/vda /mnt");
    guest.run(&format!("yes {MARKER} | head -c {MARKER_FILE_BYTES} >/mnt/marker"));
    let written = guest.run("sha256sum /mnt/marker");
    let megabytes = DELETED_FILE_BYTES >> 20;
    guest.run(&format!("dd if=/dev/urandom of=/mnt/deleted bs=1M count={megabytes} conv=fsync"));
    let full = datastore::allocated_bytes(&volume.datastore());
    guest.run("rm /mnt/deleted && sync && fstrim /mnt");
    let after = datastore::allocated_bytes(&volume.datastore());
    assert!(after + DELETED_FILE_BYTES / 2 <= full, "{full} bytes with the file, {after} without");
    guest.power_off();
    assert!(exposure.close().success());

    let exposure = volume.expose_vhost_user();
    let second = GuestPlan::new(&scratch, "second-boot").machine(Machine::Q35);
    let mut guest = second.vhost_user(exposure.socket()).boot();
    let checked = guest.try_run("e2fsck -f -n /dev/vda", E2FSCK_DEADLINE);
    assert_eq!(checked.status, 0, "the file system is not clean: {}", checked.text);
    guest.run("mount /dev/vda /mnt");
    assert_eq!(guest.run("sha256sum /mnt/marker"), written);
    guest.power_off();
    assert!(exposure.close().success());
    assert_eq!(datastore::occurrences(&volume.datastore(), MARKER.as_bytes()), 0);
}

fn sits_out_restarts(guest: &mut Guest, volume: &Volume<'_>, mut exposure: Exposure) -> Exposure {
    let mut exercise = Exercise::start(guest, "/dev/vda", "64M");
    for _ in 0..RESTARTS {
        exercise.wait_for_more(OPERATIONS_BETWEEN_RESTARTS);
        assert!(exposure.close().success());
        exposure = volume.expose_vhost_user();
    }
    exercise.wait_for_more(OPERATIONS_BETWEEN_RESTARTS);
    exercise.stop().assert_clean();
    exposure
}
