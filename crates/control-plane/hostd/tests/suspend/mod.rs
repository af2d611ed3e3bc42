//! Suspended VMs: the guest's memory is resumed, is in no file in the clear, and is either whole or
//! refused.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use strongroom_host::protocol::{
    DiskFrontend, DiskKey, Network, Nic, ObservedVm, OperationKind, OperationOutcome, OperationState,
    PowerState, StartOptions, VmSpec,
};

use super::FORCED;
use crate::support::{Console, Host, KeySite, kill, until};

/// A text in the guest's memory. Its disk has the text only in disguise.
pub const MARKER: &[u8] = b"strongroom-marker-in-the-memory-of-a-guest";
const DISGUISE: u8 = 0x55;

/// A disk whose guest writes [`MARKER`] into its memory and prints `ready`. For each input byte but
/// a `q`, it prints the number of bytes so far: `1`, `2` and so on in ASCII. The count is only in
/// its memory.
pub fn counting_guest() -> Vec<u8> {
    const TEXT: u8 = 79;
    const DISGUISED: u8 = TEXT + 8;
    let code: &[u8] = &[
        0x31,
        0xc0,
        0x8e,
        0xd8,
        0x8e,
        0xc0, // ds = es = 0
        0xbe,
        DISGUISED,
        0x7c,
        0xbf,
        0x00,
        0x90,
        0xb9,
        MARKER.len() as u8,
        0x00, // from si to 0x9000, so many
        0xac,
        0x34,
        DISGUISE,
        0xaa,
        0xe2,
        0xfa, // undisguised
        0xc6,
        0x06,
        0x00,
        0x80,
        b'0', // count = 0
        0xba,
        0xf8,
        0x03,
        0xbe,
        TEXT,
        0x7c, // dx = COM1, si = text
        0xac,
        0x84,
        0xc0,
        0x74,
        0x03,
        0xee,
        0xeb,
        0xf8, // say it to its zero byte
        0xba,
        0xfd,
        0x03,
        0xec,
        0xa8,
        0x01,
        0x74,
        0xfb, // wait for a byte
        0xba,
        0xf8,
        0x03,
        0xec,
        0x3c,
        0x71,
        0x74,
        0x0d, // is it a q?
        0xfe,
        0x06,
        0x00,
        0x80,
        0xa0,
        0x00,
        0x80,
        0xee,
        0xb0,
        0x0a,
        0xee,
        0xeb,
        0xe3, // count, and say it
        0xba,
        0x04,
        0x06,
        0xb8,
        0x00,
        0x20,
        0xef,
        0xf4,
        0xeb,
        0xfd, // ACPI's S5 of q35
    ];
    assert_eq!(code.len(), usize::from(TEXT));
    let mut sector = code.to_vec();
    sector.extend(b"ready\r\n\0");
    sector.extend(MARKER.iter().map(|byte| byte ^ DISGUISE));
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(4096, 0);
    sector
}

fn start(host: &Host, spec: &VmSpec, generation: u64, discard_memory: bool) {
    let how = StartOptions { discard_memory, ..StartOptions::default() };
    let kind = OperationKind::Start { spec: Box::new(spec.clone()), how };
    assert_eq!(host.done(spec, generation, kind), None);
}

fn start_refused(host: &Host, spec: &VmSpec, generation: u64) -> String {
    let kind = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    let refused = host.refused(spec, generation, kind);
    let suspended = host.await_vm(spec, |vm| vm.power == PowerState::Suspended);
    assert!(suspended.suspended.is_some(), "nothing is lost: {suspended:?}");
    refused.message
}

/// Checks the guest's next count.
pub fn counts(console: &mut Console, count: u8) {
    console.say("+");
    console.await_line(&char::from(b'0' + count).to_string());
}

fn off(host: &Host, spec: &VmSpec) -> ObservedVm {
    host.await_vm(spec, |vm| vm.power.is_off())
}

pub fn suspended() {
    let mut host = Host::start();
    let site = KeySite::start(&host);
    // A disk of each kind that a machine can have.
    let mut spec = host.spec("secret1", 2);
    spec.disks[1].frontend = DiskFrontend::Nbd;
    (spec.board.vnc, spec.board.guest_agent) = (true, true);
    spec.nics = vec![Nic::new("52:54:00:12:34:56".parse().unwrap(), Network::User)];
    for disk in &mut spec.disks {
        disk.key = DiskKey::provider(site.key.clone(), None);
    }
    let Some(OperationOutcome::Volumes(made)) = host.done(&spec, 0, host.create(&spec)) else { panic!() };
    for disk in &mut spec.disks {
        disk.key = DiskKey::provider(site.key.clone(), made[0].kek);
    }
    host.import(&spec, &counting_guest());
    start(&host, &spec, 1, false);
    let mut console = host.console(&spec);
    console.await_line("ready");
    counts(&mut console, 1);
    host.done(&spec, 1, OperationKind::Suspend);
    let suspended = host.await_vm(&spec, |vm| vm.power == PowerState::Suspended);
    let memory = suspended.suspended.unwrap();
    assert_eq!(suspended.reason.unwrap().code, "suspended");
    assert!(memory.bytes > 64 << 10, "{memory:?}");
    host.done(&spec, 1, OperationKind::Suspend);
    host.assert_nobody_left();
    host.assert_nowhere(MARKER);

    // A new hostd finds the memory in the VM's directory.
    host.kill_hostd();
    host.start_hostd();
    let found = host.await_vm(&spec, |vm| vm.power == PowerState::Suspended);
    assert_eq!(found.suspended, Some(memory.clone()));

    let mut other = spec.clone();
    other.memory_bytes = (other.memory_bytes.bytes() * 2).try_into().unwrap();
    let refused = start_refused(&host, &other, 2);
    assert!(refused.contains("the VM's configuration was changed since"), "{refused}");
    assert!(refused.contains("vm start secret1 --discard-memory"), "{refused}");
    let layer = layer(&spec.directory().join("memory"));
    let damaged = std::fs::File::options().read(true).write(true).open(&layer).unwrap();
    let (place, mut byte) = (4096 + (1 << 20) + 70_000, [0]);
    damaged.read_exact_at(&mut byte, place).unwrap();
    damaged.write_all_at(&[byte[0] ^ 1], place).unwrap();
    let refused = start_refused(&host, &spec, 2);
    assert!(
        refused.contains("secret1/memory") && refused.contains("record 1 of its stream is damaged"),
        "{refused}"
    );
    damaged.write_all_at(&byte, place).unwrap();

    start(&host, &spec, 2, false);
    let mut console = host.console(&spec);
    counts(&mut console, 2);
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    assert_eq!(running.suspended, None);
    until("the memory is gone", || (!spec.directory().join("memory").exists()).then_some(()));

    // A paused VM can be suspended too, and its memory can be discarded.
    host.done(&spec, 2, OperationKind::Pause);
    host.done(&spec, 2, OperationKind::Suspend);
    start(&host, &spec, 3, true);
    host.console(&spec).await_line("ready");
    assert!(!spec.directory().join("memory").exists());
    assert_eq!(host.refused(&spec, 9, OperationKind::Suspend).code, "other_generation");
    host.done(&spec, 3, FORCED);
    host.assert_nobody_left();
    host.assert_nowhere(MARKER);
}

/// Processes are killed while a VM is suspended or resumed. Its guest continues with its memory, or
/// has crashed as it does when its running QEMU is killed. A memory that is listed is whole.
pub fn killed() {
    let mut host = Host::start();
    let spec = host.spec("web1", 1);
    host.done(&spec, 0, host.create(&spec));
    host.import(&spec, &counting_guest());
    let (mut generation, mut count) = (1, 0);
    start(&host, &spec, generation, false);
    host.console(&spec).await_line("ready");
    for round in 0..9_u32 {
        let running = host.await_vm(&spec, |vm| {
            vm.power == PowerState::Running && vm.supervisor_pid.is_some() && vm.qemu_pid.is_some()
        });
        let asked = host.request(generation, OperationKind::Suspend);
        host.operate(&spec, &asked).unwrap();
        later(&host, round / 3);
        let qemu_killed = kill_one(&mut host, &running, round % 3);
        let now = host.await_vm(&spec, |vm| {
            vm.power.is_off() || vm.power == PowerState::Running && vm.supervisor_pid.is_some()
        });
        // A supervisor that survives has answered, or never will.
        if round % 3 != 2 {
            host.await_operation(asked.operation);
        }
        let now = if now.power == PowerState::Running { settled(&host, &spec) } else { now };
        match now.power {
            PowerState::Running => {}
            PowerState::Suspended => {
                generation += 1;
                start(&host, &spec, generation, false);
            }
            power => {
                assert!(qemu_killed, "{power:?}: {now:?}");
                (generation, count) = (generation + 1, 0);
                start(&host, &spec, generation, false);
                host.console(&spec).await_line("ready");
            }
        }
        count += 1;
        counts(&mut host.console(&spec), count);

        // The other direction.
        suspended_by_now(&host, &spec, generation);
        off(&host, &spec);
        generation += 1;
        let kind = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
        host.operate(&spec, &host.request(generation, kind)).unwrap();
        let on = host.await_vm(&spec, |vm| vm.supervisor_pid.is_some() || vm.power == PowerState::Running);
        later(&host, round / 3);
        let qemu_killed = kill_one(&mut host, &on, round % 3);
        let now = settled(&host, &spec);
        match now.power {
            PowerState::Running => {}
            PowerState::Suspended => {
                generation += 1;
                start(&host, &spec, generation, false);
            }
            power => {
                // It had resumed, or was about to: only its disks count.
                assert!(qemu_killed, "{power:?}: {now:?}");
                (generation, count) = (generation + 1, 0);
                start(&host, &spec, generation, false);
                host.console(&spec).await_line("ready");
            }
        }
        count += 1;
        counts(&mut host.console(&spec), count);
    }
    host.done(&spec, generation, FORCED);
    host.assert_nobody_left();
}

/// Waits until the VM is in no transition. Returns its state.
fn settled(host: &Host, spec: &VmSpec) -> ObservedVm {
    host.await_vm(spec, |vm| {
        let reason = vm.reason.as_ref().map(|reason| reason.code.as_str());
        vm.power.is_off()
            || vm.power == PowerState::Running && vm.supervisor_pid.is_some() && reason != Some("adopting")
    })
}

/// Suspends a VM, which may be at it still: a killed hostd has passed the request on, and nobody
/// was answered.
fn suspended_by_now(host: &Host, spec: &VmSpec, generation: u64) {
    until("the VM is suspended", || {
        let asked = host.request(generation, OperationKind::Suspend);
        host.operate(spec, &asked).unwrap();
        let ended = host.await_operation(asked.operation);
        let is_suspended = ended.state == OperationState::Done
            || host.await_vm(spec, |vm| vm.power != PowerState::Paused).power == PowerState::Suspended;
        is_suspended.then_some(())
    });
}

/// Waits for some hundreds of microseconds `times` times.
fn later(host: &Host, times: u32) {
    for _ in 0..times * 12 {
        host.vms();
    }
}

/// Kills the supervisor, QEMU or hostd. Returns whether it was QEMU.
fn kill_one(host: &mut Host, vm: &ObservedVm, which: u32) -> bool {
    let pid = match which {
        0 => vm.supervisor_pid,
        1 => vm.qemu_pid,
        _ => {
            host.kill_hostd();
            host.start_hostd();
            return false;
        }
    };
    // It may already have ended.
    match pid.and_then(strongroom_host::process::ProcessIdentity::of) {
        Some(_) => kill(pid.unwrap()),
        None => return false,
    }
    which == 1
}

fn layer(volume: &Path) -> PathBuf {
    let mut files = std::fs::read_dir(volume).unwrap().flatten();
    let layer = files.find(|file| file.file_name().to_string_lossy().starts_with("layer-"));
    layer.unwrap().path()
}
