//! Tests whether KVM works for the VMs of this host.
//!
//! The presence of /dev/kvm proves little. In a virtual machine it may refuse what QEMU needs, or
//! run a few instructions and fail at the first that a kernel needs: one such KVM ran a guest
//! without paging, but no Linux. Root may also have access that the users of VMs lack. So the test
//! runs a guest that does the first steps of a kernel: it enters long mode by way of protected
//! mode, with paging, does an atomic 16-byte exchange, and reports success through a device that
//! ends QEMU with a chosen status.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, pidfd_open, prlimit};

use crate::launch::readable;
use crate::qemu::QemuProgram;

/// The device node.
pub(crate) const DEVICE: &str = "/dev/kvm";
/// The version of this test. Results of an earlier version do not count.
pub(crate) const TRIAL: u32 = 2;
/// A working KVM takes a tenth of a second; this is the limit for one that blocks.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// The limit for one that spins, in processor time, which other load does not lengthen.
const PROCESSOR_SECONDS: u64 = 1;
/// The size of the smallest BIOS image.
const ROM_BYTES: usize = 64 << 10;
/// The reset vector of a processor: 16 bytes before the end.
const RESET_VECTOR: usize = ROM_BYTES - 16;
/// `ljmp $0xf000, $0`: jumps to the beginning of the ROM.
const TO_THE_BEGINNING: [u8; 5] = [0xea, 0x00, 0x00, 0x00, 0xf0];
/// isa-debug-exit ends QEMU with a status of twice the byte plus one.
const REACHED: i32 = 0x10 * 2 + 1;

/// The guest's program, at 0xf0000.
#[rustfmt::skip]
const CODE: [u8; 206] = [
    // 16 bits: cli; ds = cs; lgdt; cr0 |= PE; jump to 32 bits
    0xfa, 0x8c, 0xc8, 0x8e, 0xd8, 0x66, 0x0f, 0x01, 0x16, 0xc8, 0x00,
    0x0f, 0x20, 0xc0, 0x0c, 0x01, 0x0f, 0x22, 0xc0,
    0x66, 0xea, 0x1b, 0x00, 0x0f, 0x00, 0x08, 0x00,
    // 32 bits: data segments, and a stack at 0x5000
    0x66, 0xb8, 0x10, 0x00, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, 0xbc, 0x00, 0x50, 0x00, 0x00,
    // three tables from 0x1000 on, cleared; their first entries map the first 2 MiB
    0xbf, 0x00, 0x10, 0x00, 0x00, 0x31, 0xc0, 0xb9, 0x00, 0x0c, 0x00, 0x00, 0xf3, 0xab,
    0xc7, 0x05, 0x00, 0x10, 0x00, 0x00, 0x03, 0x20, 0x00, 0x00,
    0xc7, 0x05, 0x00, 0x20, 0x00, 0x00, 0x03, 0x30, 0x00, 0x00,
    0xc7, 0x05, 0x00, 0x30, 0x00, 0x00, 0x83, 0x00, 0x00, 0x00,
    // cr4 |= PAE; cr3 = 0x1000; EFER |= LME; cr0 |= PG; jump to 64 bits
    0x0f, 0x20, 0xe0, 0x83, 0xc8, 0x20, 0x0f, 0x22, 0xe0,
    0xb8, 0x00, 0x10, 0x00, 0x00, 0x0f, 0x22, 0xd8,
    0xb9, 0x80, 0x00, 0x00, 0xc0, 0x0f, 0x32, 0x0d, 0x00, 0x01, 0x00, 0x00, 0x0f, 0x30,
    0x0f, 0x20, 0xc0, 0x0d, 0x00, 0x00, 0x00, 0x80, 0x0f, 0x22, 0xc0,
    0xea, 0x87, 0x00, 0x0f, 0x00, 0x18, 0x00,
    // 64 bits: lock cmpxchg16b of zeros at 0x6000; if they were, out 0xf4, 0x10
    0xbd, 0x00, 0x60, 0x00, 0x00, 0x31, 0xc0, 0x31, 0xd2, 0xbb, 0x01, 0x00, 0x00, 0x00, 0x31, 0xc9,
    0xf0, 0x48, 0x0f, 0xc7, 0x4d, 0x00, 0x75, 0x04, 0xb0, 0x10, 0xe6, 0xf4,
    0xf4, 0xeb, 0xfd, 0x66, 0x90,
    // segments: none, 32-bit code, data, 64-bit code; and where they are
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xcf, 0x00,
    0xff, 0xff, 0x00, 0x00, 0x00, 0x92, 0xcf, 0x00, 0xff, 0xff, 0x00, 0x00, 0x00, 0x9a, 0xaf, 0x00,
    0x1f, 0x00, 0xa8, 0x00, 0x0f, 0x00,
];

/// The error if KVM works, but the users of VMs may not open it.
pub const NOT_SHARED: &str =
    "/dev/kvm is open to root alone, and each guest's QEMU runs as a user of its own";

/// Tests KVM with the program and accelerator of real machines, and a guest that ends at once.
/// Returns the reason if it does not work.
pub fn probe(program: &QemuProgram) -> Result<(), String> {
    if !Path::new(DEVICE).exists() {
        return Err(format!(
            "there is no {DEVICE}: the processor's virtualisation is off, or the module is not loaded"
        ));
    }
    run_guest(program, ["-accel", "kvm", "-cpu", "host"])
}

/// Runs the guest to its end.
fn run_guest(program: &QemuProgram, accelerator: [&str; 4]) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| format!("it cannot be tried: {error}");
    let mut rom =
        std::fs::File::from(memfd_create("probe", MemfdFlags::empty()).map_err(|errno| failed(&errno))?);
    let mut content = vec![0xf4; ROM_BYTES];
    content[..CODE.len()].copy_from_slice(&CODE);
    content[RESET_VECTOR..RESET_VECTOR + TO_THE_BEGINNING.len()].copy_from_slice(&TO_THE_BEGINNING);
    rom.write_all(&content).map_err(|error| failed(&error))?;
    let mut command = Command::new(program.path());
    // QEMU opens the file through this process, which outlives it. An inherited descriptor would
    // also reach other programs that start now.
    command.arg("-bios").arg(format!("/proc/{}/fd/{}", std::process::id(), rom.as_raw_fd()));
    command.args(["-no-user-config", "-nodefaults", "-display", "none", "-machine", "pc", "-m", "16"]);
    command.args(accelerator).args(["-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let most = Rlimit { current: Some(PROCESSOR_SECONDS), maximum: Some(PROCESSOR_SECONDS) };
    // Without this limit, a spinning guest is only detected later.
    let _ = prlimit(Some(Pid::from_child(&child)), Resource::Cpu, most);
    let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .and_then(|pidfd| readable(std::os::fd::AsFd::as_fd(&pidfd), ANSWERS_WITHIN));
    if !matches!(ended, Ok(true)) {
        let _ = child.kill();
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    match output.status.code() {
        Some(REACHED) => Ok(()),
        // Killed by the limit of processor time, or by this process.
        None => Err("a guest that does what kernels do first does not get through it".to_owned()),
        Some(_) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(said.lines().next().unwrap_or("QEMU ended").to_owned())
        }
    }
}

/// Whether the users of VMs may open the device. Checked each time: a device's mode can change
/// while programs run.
///
/// # Errors
/// [`NOT_SHARED`].
pub(crate) fn is_shared() -> Result<(), &'static str> {
    // If this process is not root, QEMU runs as the same user, and the test has covered it.
    let Some(found) = std::fs::metadata(DEVICE).ok().filter(|_| rustix::process::geteuid().is_root()) else {
        return Ok(());
    };
    if shared_with(found.mode(), found.gid()).is_some() { Ok(()) } else { Err(NOT_SHARED) }
}

/// The group that a VM's user must join to use KVM, if one is needed.
pub(crate) fn group() -> Option<u32> {
    let found = std::fs::metadata(DEVICE).ok()?;
    match shared_with(found.mode(), found.gid())? {
        Shared::Everybody => None,
        Shared::Group(group) => Some(group),
    }
}

/// The users, beside root, that may open a device.
#[derive(Debug, PartialEq, Eq)]
enum Shared {
    Everybody,
    Group(u32),
}

/// A VM's user never joins root's group.
fn shared_with(mode: u32, group: u32) -> Option<Shared> {
    match (mode & 0o006, mode & 0o060) {
        (0o006, _) => Some(Shared::Everybody),
        (_, 0o060) if group != 0 => Some(Shared::Group(group)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_gets_through_where_processors_are_emulated() {
        let program = QemuProgram::probe(Path::new(crate::qemu::DEFAULT_PROGRAM)).unwrap();
        assert_eq!(run_guest(&program, ["-accel", "tcg", "-cpu", "max"]), Ok(()));
        // The test fails without an instruction that every kernel needs.
        let lacking = run_guest(&program, ["-accel", "tcg", "-cpu", "qemu64,cx16=off"]);
        assert!(lacking.unwrap_err().contains("does not get through"));
    }

    #[test]
    fn a_device_that_is_roots_alone_is_of_no_use_to_vms() {
        // The modes of devtmpfs, of udev (root:kvm), of some distributions, and of containers.
        assert_eq!(shared_with(0o020600, 0), None);
        assert_eq!(shared_with(0o020660, 104), Some(Shared::Group(104)));
        assert_eq!(shared_with(0o020666, 104), Some(Shared::Everybody));
        assert_eq!(shared_with(0o020660, 0), None, "nobody joins root's group");
        assert_eq!(shared_with(0o020640, 104), None, "a guest needs more than reading");
    }

    #[test]
    fn the_guests_program_and_where_it_begins_fit_into_the_rom() {
        assert!(CODE.len() < RESET_VECTOR);
        assert!(RESET_VECTOR + TO_THE_BEGINNING.len() <= ROM_BYTES);
    }
}
