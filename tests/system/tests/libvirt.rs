//! A libvirt user pastes the output of `volume expose --show libvirt`: the domain boots from the
//! volume, survives the kill of the volume's worker, and takes a second volume while it runs.

#![cfg(feature = "full")]

use std::fs;
use std::path::Path;
use std::time::Duration;

use strongroom_system_tests::family::{kill, worker_of};
use strongroom_system_tests::{
    CommandLine, Exercise, ExerciseReport, Libvirt, Machine, Process, Protection, Scratch, Session, Volume,
};

/// A name with special characters of every syntax that it passes through.
const NBD_NAME: &str = "vm 1, \"o'dd\" <&>";
/// Debian 12's libvirt 9.0 accepts such a name for a vhost-user socket, but does not escape it in
/// its own files.
const VHOST_USER_NAME: &str = "vm 1, \"odd\"";
const EXPOSE_DEADLINE: Duration = Duration::from_secs(60);
/// Operations before and after the kill of the worker.
const OPERATIONS: u64 = 200;
const EXERCISE: &str = "diskexercise --device /dev/vdb --length 16M --threads 4 --ops 100";

#[test]
fn libvirt_boots_from_vhost_user_and_takes_nbd() {
    boots_and_takes(Machine::Q35, "--vhost-user", "--nbd");
}

#[test]
fn libvirt_boots_from_nbd_and_takes_vhost_user() {
    boots_and_takes(Machine::Pc, "--nbd", "--vhost-user");
}

fn boots_and_takes(machine: Machine, first: &str, second: &str) {
    let scratch = Scratch::new();
    let libvirt = Libvirt::start(&scratch);
    let name = |protocol| if protocol == "--nbd" { NBD_NAME } else { VHOST_USER_NAME };
    let boot = Volume::create(&scratch, name(first), "64M", Protection::Encrypted);
    let plugged = Volume::create(&scratch, name(second), "64M", Protection::Encrypted);
    let (boot_server, boot_lines) = expose(&scratch, &boot, first);
    let (plugged_server, plugged_lines) = expose(&scratch, &plugged, second);
    // Hot-plugging a vhost-user disk needs a domain with shared memory.
    let memory_backing =
        boot_lines.memory_backing.or(plugged_lines.memory_backing).expect("one is vhost-user");
    let mut guest = libvirt.boot("vm1", machine, &memory_backing, &boot_lines.disk);

    let mut exercise = Exercise::start_in(&mut guest, "/dev/vda", "32M", 4);
    exercise.wait_for_more(OPERATIONS);
    // Debian 12's libvirt 9.0 does not pass an NBD disk's reconnect delay to QEMU.
    if first == "--vhost-user" {
        kill(worker_of(boot_server.id()));
        exercise.wait_for_more(OPERATIONS);
    }
    exercise.stop().assert_clean();

    // Only the second disk's name must be changed in the output.
    let disk = plugged_lines.disk.replace("<target dev='vda'", "<target dev='vdb'");
    let file = scratch.path("plugged.xml");
    fs::write(&file, disk).expect("a file can be written");
    plug_and_unplug(&libvirt, &mut guest, &file);
    plug_and_unplug(&libvirt, &mut guest, &file);

    libvirt.virsh(&["destroy", "vm1"]);
    for server in [boot_server, plugged_server] {
        assert!(server.terminate(EXPOSE_DEADLINE).success());
    }
}

fn plug_and_unplug(libvirt: &Libvirt<'_>, guest: &mut Session, file: &Path) {
    let file = file.to_string_lossy();
    libvirt.virsh(&["attach-device", "vm1", &file, "--live"]);
    guest.wait_until("[ -b /dev/vdb ]");
    ExerciseReport::parse(&guest.run(EXERCISE)).assert_clean();
    ExerciseReport::parse(&guest.run(&format!("{EXERCISE} --verify-only"))).assert_clean();
    libvirt.virsh(&["detach-device", "vm1", &file, "--live"]);
    guest.wait_until("! [ -e /dev/vdb ]");
}

/// The program's output for libvirt.
struct Lines {
    memory_backing: Option<String>,
    disk: String,
}

/// Exposes a volume over the protocol of this option, on the same socket each time.
fn expose(scratch: &Scratch, volume: &Volume<'_>, protocol: &str) -> (Process, Lines) {
    let [path, key_file] = [volume.path(), volume.key_file()].map(|path| path.to_string_lossy().into_owned());
    let address = format!("unix:{path}.socket");
    let mut server = CommandLine::new(scratch).start(
        "expose",
        &["volume", "expose", &path, "--key-file", &key_file, protocol, &address, "--show", "libvirt"],
    );
    let mut memory_backing = None;
    let mut text = String::new();
    loop {
        let line = server.wait_for_line("what libvirt needs", EXPOSE_DEADLINE, |_| true);
        match line.trim() {
            "<memoryBacking>" => text.clear(),
            comment if comment.starts_with("<!-- in <devices>") => text.clear(),
            _ => {}
        }
        text.push_str(&line);
        text.push('\n');
        match line.trim() {
            "</memoryBacking>" => memory_backing = Some(text.clone()),
            "</disk>" => return (server, Lines { memory_backing, disk: text }),
            _ => {}
        }
    }
}
