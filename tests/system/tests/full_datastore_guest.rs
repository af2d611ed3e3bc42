//! Real guests whose datastore, a small ext4, fills up: over vhost-user the guest waits without an
//! error; over NBD QEMU pauses the guest. When a file beside the datastore is removed both
//! continue, and their file systems are intact.

#![cfg(feature = "full")]

use std::time::{Duration, Instant};

use crate::disk_support::{Mounts, await_log, await_state};
use serde_json::json;
use strongroom_system_tests::family::{kill, worker_of};
use strongroom_system_tests::{Guest, GuestPlan, Protection, Scratch, Session, Volume};

/// Timeout of work that an emulated guest does in a minute.
const GUEST_DEADLINE: Duration = Duration::from_secs(300);
/// More data than there is space for until the filler is removed.
const WRITE: &str =
    "dd if=/dev/urandom of=/mnt/written bs=1M count=100 conv=fsync 2>/dev/null; echo status $?";

/// An ext4 of 224 MiB with a filler of 128 MiB, and the volume `vm1` of 256 MiB in it.
fn small_datastore<'test>(scratch: &'test Scratch, mounts: &Mounts<'_>) -> Volume<'test> {
    let (image, place) = (scratch.path("ext4.img"), scratch.make_directory("disk"));
    let (image, place_shown) = (image.display(), place.display());
    mounts
        .run(&format!(
            "truncate --size 224M '{image}'; mkfs.ext4 -q -m 0 '{image}'; mount -o loop '{image}' '{place_shown}'
             mkdir '{place_shown}/ds'; fallocate --length 128M '{place_shown}/filler'"
        ))
        .success();
    mounts.place("vm1", &place.join("ds"));
    Volume::create(scratch, "vm1", "256M", Protection::Encrypted)
}

fn make_room(scratch: &Scratch, mounts: &Mounts<'_>) {
    mounts.run(&format!("rm '{}'", scratch.path("disk/filler").display())).success();
}

fn make_file_system(guest: &mut Guest) -> String {
    guest.run("mkfs.ext4 -q /dev/vda && mount /dev/vda /mnt");
    guest.run("dd if=/dev/urandom of=/mnt/before bs=1M count=8 conv=fsync 2>/dev/null");
    guest.run("sha256sum /mnt/before")
}

/// The guest's disk took all data, and the guest's kernel logged no error.
fn expect_whole(session: &mut Session, before: &str) {
    assert_eq!(session.run("sha256sum /mnt/before"), before);
    let complaints = session.run("dmesg | grep -ciE 'i/o error|ext4-fs error|remounting' || true");
    assert_eq!(complaints.trim(), "0", "{}", session.run("dmesg | tail -40"));
    let written = session.run("sha256sum /mnt/written");
    session.run("umount /mnt && echo 3 >/proc/sys/vm/drop_caches");
    let checked = session.try_run("e2fsck -f -n /dev/vda", GUEST_DEADLINE);
    assert_eq!(checked.status, 0, "{}", checked.text);
    session.run("mount /dev/vda /mnt");
    assert_eq!(session.run("sha256sum /mnt/written"), written);
}

#[test]
fn a_vhost_user_guest_waits_without_an_error() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let volume = small_datastore(&scratch, &mounts);
    let exposure = volume.expose_vhost_user();
    let mut guest = GuestPlan::new(&scratch, "guest").vhost_user(exposure.socket()).boot();
    let before = make_file_system(&mut guest);
    let writing = guest.start(WRITE);
    await_state(&volume, "parked");
    let parked = Instant::now();
    await_log(exposure.process(), "nothing is lost, and the guest goes on by itself");
    // Its worker dies and is replaced, and is upgraded; the guest notices neither.
    kill(worker_of(exposure.process().id()));
    await_log(exposure.process(), "the outage took");
    await_state(&volume, "parked");
    volume.upgrade().success();
    await_state(&volume, "parked");
    make_room(&scratch, &mounts);
    let paused = parked.elapsed();
    let made = Instant::now();
    let output = writing.finish(GUEST_DEADLINE);
    assert_eq!(output.text.trim(), "status 0");
    println!(
        "vhost-user: the guest waited {paused:.1?}, and was done {:.1?} after there was room",
        made.elapsed()
    );
    expect_whole(guest.session(), &before);
    guest.power_off();
    assert!(exposure.close().success());
}

#[test]
fn a_vhost_user_guest_that_is_stopped_while_it_waits_goes_on() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let volume = small_datastore(&scratch, &mounts);
    let mut exposure = volume.expose_vhost_user();
    let mut guest = GuestPlan::new(&scratch, "guest").vhost_user(exposure.socket()).boot();
    let before = make_file_system(&mut guest);
    let (session, qmp) = guest.session_and_qmp();
    let writing = session.start(WRITE);
    await_state(&volume, "parked");
    // QEMU stops the rings, and gets them back at once.
    let asked = Instant::now();
    qmp.execute("stop", json!({}));
    let stopped = asked.elapsed();
    qmp.execute("cont", json!({}));
    await_state(&volume, "parked");
    // The end of the server is not delayed either: the next one takes over the waiting requests.
    let asked = Instant::now();
    assert!(exposure.close().success());
    let closed = asked.elapsed();
    exposure = volume.expose_vhost_user();
    await_state(&volume, "parked");
    make_room(&scratch, &mounts);
    let output = writing.finish(GUEST_DEADLINE);
    assert_eq!(output.text.trim(), "status 0");
    println!(
        "stopped within {stopped:.1?}, server ended within {closed:.1?} while the guest's requests waited"
    );
    expect_whole(guest.session(), &before);
    guest.power_off();
    assert!(exposure.close().success());
}

#[test]
fn an_nbd_guest_is_stopped_by_qemu_and_continued() {
    let scratch = Scratch::new();
    let mounts = Mounts::new(&scratch);
    let volume = small_datastore(&scratch, &mounts);
    let exposure = volume.expose();
    let mut guest = Guest::boot(&scratch, "guest", &[exposure.socket()]);
    let before = make_file_system(&mut guest);
    let (session, qmp) = guest.session_and_qmp();
    let writing = session.start(WRITE);
    // QEMU's own rule for a disk: an error "no space" pauses the guest, and QEMU keeps the request.
    let error = qmp.wait_for_event("BLOCK_IO_ERROR", GUEST_DEADLINE);
    assert_eq!(
        (&error["data"]["action"], &error["data"]["nospace"]),
        (&json!("stop"), &json!(true)),
        "{error}"
    );
    qmp.wait_for_event("STOP", GUEST_DEADLINE);
    await_log(exposure.process(), "Its clients have been told so");
    make_room(&scratch, &mounts);
    qmp.execute("cont", json!({}));
    let output = writing.finish(GUEST_DEADLINE);
    assert_eq!(output.text.trim(), "status 0");
    expect_whole(guest.session(), &before);
    guest.power_off();
    assert!(exposure.close().success());
}
