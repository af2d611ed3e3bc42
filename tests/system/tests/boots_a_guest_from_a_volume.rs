//! A user makes a volume, exposes it, and runs a guest on it: the guest's data is there after a
//! reboot, its file system is clean, deleted files give their space back, and a thief of the
//! datastore can read nothing.

use std::time::Duration;

use strongroom_system_tests::{Guest, Protection, Scratch, Volume, datastore};

/// Occurs only in the guest's data.
const MARKER: &str = "strongroom-marker-7d1f0c2a";
/// Enough blocks that a file system cannot keep the file inline or in its journal alone.
const MARKER_FILE_BYTES: usize = 8 << 20;
/// Large enough to be visible beside the file system's own metadata when it is given back.
const DELETED_FILE_BYTES: u64 = 32 << 20;

const E2FSCK_DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn boots_a_guest_from_an_encrypted_volume() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "512M", Protection::Encrypted);
    use_in_two_boots(&scratch, &volume);
    assert_eq!(datastore::occurrences(&volume.datastore(), MARKER.as_bytes()), 0);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn boots_a_guest_from_an_unencrypted_volume() {
    let scratch = Scratch::new();
    let volume = Volume::create(&scratch, "vm1", "512M", Protection::Unencrypted);
    use_in_two_boots(&scratch, &volume);
    // The search that finds nothing in the encrypted volume finds every copy here.
    let written = MARKER_FILE_BYTES / (MARKER.len() + 1);
    assert!(datastore::occurrences(&volume.datastore(), MARKER.as_bytes()) >= written);
}

fn use_in_two_boots(scratch: &Scratch, volume: &Volume<'_>) {
    let exposure = volume.expose();
    let mut guest = Guest::boot(scratch, "first-boot", &[exposure.socket()]);
    guest.run("mkfs.ext4 -q /dev/vda && mount -o discard /dev/vda /mnt");
    guest.run(&format!("yes {MARKER} | head -c {MARKER_FILE_BYTES} >/mnt/marker"));
    let written = guest.run("sha256sum /mnt/marker");

    let before = datastore::allocated_bytes(&volume.datastore());
    guest.run(&format!(
        "dd if=/dev/urandom of=/mnt/deleted bs=1M count={} conv=fsync",
        DELETED_FILE_BYTES >> 20
    ));
    let full = datastore::allocated_bytes(&volume.datastore());
    assert!(
        full >= before + DELETED_FILE_BYTES,
        "{before} bytes were allocated before the file, {full} with it"
    );
    // The mount discards as soon as the deletion is in the journal, and fstrim discards the rest.
    guest.run("rm /mnt/deleted && sync && fstrim /mnt");
    let after = datastore::allocated_bytes(&volume.datastore());
    assert!(
        after + DELETED_FILE_BYTES / 2 <= full,
        "{full} bytes were allocated with the file, {after} without"
    );
    guest.power_off();
    assert!(exposure.close().success());

    let exposure = volume.expose();
    let mut guest = Guest::boot(scratch, "second-boot", &[exposure.socket()]);
    let checked = guest.try_run("e2fsck -f -n /dev/vda", E2FSCK_DEADLINE);
    assert_eq!(checked.status, 0, "the file system is not clean: {}", checked.text);
    guest.run("mount /dev/vda /mnt");
    assert_eq!(guest.run("sha256sum /mnt/marker"), written);
    guest.power_off();
    assert!(exposure.close().success());
}
