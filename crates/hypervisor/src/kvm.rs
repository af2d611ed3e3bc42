//! Whether KVM works here.
//!
//! That /dev/kvm is there says little: in a virtual machine it may refuse what QEMU needs, and QEMU then ends at the first
//! guest. So a guest is run. It is sixteen bytes of firmware that say that they were reached, by a device that ends
//! QEMU with a status of their choice.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::launch::readable;
use crate::qemu::QemuProgram;

/// The device.
pub(crate) const DEVICE: &str = "/dev/kvm";
/// A working KVM takes a tenth of a second.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// As large as a BIOS must be.
const ROM_BYTES: usize = 64 << 10;
/// Where a processor begins: 16 bytes before the end.
const RESET_VECTOR: usize = ROM_BYTES - 16;
/// `mov al, 0x10; out 0xf4, al; hlt`
const CODE: [u8; 5] = [0xb0, 0x10, 0xe6, 0xf4, 0xf4];
/// isa-debug-exit ends QEMU with twice the byte and one.
const REACHED: i32 = 0x10 * 2 + 1;

/// That KVM works, or why not: what machines would be started with is started, with a guest that ends at once.
pub fn probe(program: &QemuProgram) -> Result<(), String> {
    if !Path::new(DEVICE).exists() {
        return Err(format!(
            "there is no {DEVICE}: the processor's virtualisation is off, or the module is not loaded"
        ));
    }
    let failed = |error: &dyn std::fmt::Display| format!("it cannot be tried: {error}");
    let mut rom =
        std::fs::File::from(memfd_create("probe", MemfdFlags::empty()).map_err(|errno| failed(&errno))?);
    let mut content = vec![0xf4; ROM_BYTES];
    content[RESET_VECTOR..RESET_VECTOR + CODE.len()].copy_from_slice(&CODE);
    rom.write_all(&content).map_err(|error| failed(&error))?;
    let mut command = Command::new(program.path());
    // Through us, who stay: a descriptor that QEMU inherited would be inherited by whatever else starts now.
    command.arg("-bios").arg(format!("/proc/{}/fd/{}", std::process::id(), rom.as_raw_fd()));
    command.args(["-no-user-config", "-nodefaults", "-display", "none", "-machine", "pc", "-m", "16"]);
    command.args(["-accel", "kvm", "-cpu", "host", "-device", "isa-debug-exit,iobase=0xf4,iosize=4"]);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let ended = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
        .and_then(|pidfd| readable(std::os::fd::AsFd::as_fd(&pidfd), ANSWERS_WITHIN));
    if !matches!(ended, Ok(true)) {
        let _ = child.kill();
    }
    let output = child.wait_with_output().map_err(|error| failed(&error))?;
    match output.status.code() {
        Some(REACHED) => Ok(()),
        _ if !matches!(ended, Ok(true)) => Err("a guest's first instructions were never reached".to_owned()),
        _ => Err(String::from_utf8_lossy(&output.stderr).lines().next().unwrap_or("QEMU ended").to_owned()),
    }
}

/// The group that may use KVM, beside root: the VM's user joins it.
pub(crate) fn group() -> Option<u32> {
    std::fs::metadata(DEVICE).ok().map(|metadata| metadata.gid())
}
