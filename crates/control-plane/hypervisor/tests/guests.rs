//! Booted guests: the hardware that they see, and events of their machines.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use strongroom_hypervisor::firmware::Ovmf;
use strongroom_hypervisor::machine::{
    Accelerator, Boot, Cpus, DiskAttachment, Firmware, MacAddress, MachineSpec, MachineType, NbdExport,
    Network, Nic, SpecError,
};
use strongroom_hypervisor::network::NetworkState;
use strongroom_hypervisor::qemu::DeviceId;
use strongroom_hypervisor::qmp::{MigrationPhase, MigrationProgress, MigrationSettings};
use strongroom_hypervisor::{Monitor, PowerEvent, Qemu, QemuError, Swtpm};

use self::support::guest::{Console, guest_files, with_guest};
use self::support::servers::{Server, file};
use self::support::{Lab, Machine, SOON, accept_states, await_event, key, run, small, state_directory};

fn main() -> ExitCode {
    let mut trials: Vec<(&str, fn())> = vec![
        ("a_guest_finds_what_its_machine_was_said_to_have", a_guest_looks_around),
        ("a_guest_does_not_reach_the_hosts_loopback", a_guest_wants_the_loopback),
        ("a_guest_does_not_reach_the_hosts_addresses", a_guest_wants_its_host),
        ("a_guest_is_paused_reset_and_panics", a_guests_life),
        ("a_guest_moves_to_another_machine_and_stays_where_a_move_fails", a_guest_moves),
        ("kvm_works_where_a_real_guest_runs_on_it", kvm),
    ];
    if cfg!(feature = "full") {
        let long: [(&str, fn()); 3] = [
            ("a_guest_has_a_tpm", a_guest_has_a_tpm),
            ("disks_are_plugged_into_a_running_guest_and_out", plugged),
            ("uefi_keeps_its_variables", uefi),
        ];
        trials.extend(long);
    }
    run(trials)
}

fn export(server: &Server) -> NbdExport {
    NbdExport { socket: server.socket.clone(), export: "disk".to_owned() }
}

fn a_guest_looks_around() {
    let lab = Lab::new();
    let content = file(&lab.path().join("disk0"), 1 << 20);
    std::fs::write(&content, [b"the first disk".as_slice(), &[0; 1 << 20]].concat()).unwrap();
    let disk = Server::nbd(&lab.disk("disk0.sock"), &content);
    let shared = Server::vhost_user(&lab.disk("disk1.sock"), &file(&lab.path().join("disk1"), 8 << 20));
    let mut spec = with_guest(small(MachineType::Q35));
    spec.cpus = Cpus { sockets: 1, cores: 2, threads: 1 };
    spec.disks = vec![
        DiskAttachment::Nbd { server: export(&disk), serial: "serial-of-0".to_owned(), read_only: true },
        DiskAttachment::VhostUser { socket: shared.socket.clone(), queues: 2 },
    ];
    spec.board.guest_agent = true;
    let qemu = lab.start(&spec);
    let mut console = Console::connect(&lab.run_directory());
    qemu.monitor().cont().unwrap();
    console.wait_until_ready();
    assert_eq!(console.must("cat /sys/class/dmi/id/product_uuid"), spec.vm.to_string());
    assert_eq!(console.must("grep -c ^processor /proc/cpuinfo"), "2");
    assert_eq!(console.must("head -c 14 /dev/vda"), "the first disk");
    assert_eq!(console.must("cat /sys/block/vda/serial; echo; cat /sys/block/vda/ro"), "serial-of-0\n1");
    console.must("echo written >/dev/vdb && sync && head -c 7 /dev/vdb | grep -q written");
    console.must("while read -r module; do insmod /lib/modules/$module.ko; done </etc/spare-modules");
    assert_eq!(console.must("cat /sys/class/virtio-ports/*/name"), "org.qemu.guest_agent.0");
    assert!(console.must("cat /sys/class/misc/hw_random/rng_available").contains("virtio_rng"));
    console.must("head -c 16 /dev/hwrng >/dev/null");
    console
        .must("grep -q . /sys/bus/acpi/devices/QEMUVGID:00/hid || ls /sys/bus/acpi/devices | grep -qi vgid");
    console.send("exit");
    await_event(qemu.monitor(), |event| matches!(event, PowerEvent::Shutdown { guest: true, .. }));
    assert!(qemu.wait(SOON));
}

/// The guest is measured into the TPM from its first instruction on.
fn a_guest_has_a_tpm() {
    let lab = Lab::new();
    let tpm =
        Swtpm::start(&lab.run_directory(), &lab.isolation(), &state_directory(&lab), Some(key(7))).unwrap();
    accept_states(&lab);
    let mut spec = with_guest(small(MachineType::Q35));
    spec.tpm = Some(tpm.socket());
    assert_eq!(spec.validate(), Err(SpecError::TpmBelowInitrd));
    let Boot::DirectKernel { kernel, .. } = &mut spec.boot else { unreachable!() };
    *kernel = guest_files().join("vmlinuz");
    spec.firmware = Firmware::Uefi { nvram: None };
    let qemu = lab.start(&spec);
    let mut console = Console::connect(&lab.run_directory());
    qemu.monitor().cont().unwrap();
    console.wait_until_ready();
    console.must("test -c /dev/tpm0");
    assert_eq!(console.must("cat /sys/class/tpm/tpm0/tpm_version_major"), "2");
    let measured = console.must("cat /sys/class/tpm/tpm0/pcr-sha256/4");
    assert_ne!(measured.trim_start_matches('0'), "", "nothing was measured");
    console.send("exit");
    assert!(qemu.wait(SOON));
    assert!(tpm.wait(SOON));
}

/// A guest with a card on the user network and its address. It has a route to the gateway, and no
/// other.
fn with_an_address(lab: &Lab) -> (Machine, Console, String) {
    let mut spec = with_guest(small(MachineType::Q35));
    spec.nics = vec![Nic::new(MacAddress::of(spec.vm, 0), Network::User)];
    let qemu = lab.start(&spec);
    assert_eq!(qemu.networks(), &[NetworkState::Passt]);
    let mut console = Console::connect(&lab.run_directory());
    qemu.monitor().cont().unwrap();
    console.wait_until_ready();
    console.must("while read -r module; do insmod /lib/modules/$module.ko; done </etc/spare-modules");
    console.must("ip link set eth0 up");
    // The network works: passt assigns an address, and answers for the gateway.
    console.must(
        "printf '#!/bin/sh\\n[ \"$1\" = bound ] && echo \"$ip $router\" >/tmp/lease\\nexit 0\\n' >/tmp/script && \
         chmod +x /tmp/script",
    );
    console.must("udhcpc -i eth0 -n -q -t 10 -T 1 -s /tmp/script >/dev/null 2>&1");
    let lease = console.must("cat /tmp/lease");
    let (address, router) = lease.split_once(' ').unwrap();
    console.must(&format!("ip addr add {address}/32 dev eth0 && ip route add {router}/32 dev eth0"));
    (qemu, console, lease.clone())
}

/// A guest with routes of its own sends frames to 127.0.0.1 out of its network card; passt alone
/// would connect to it.
fn a_guest_wants_the_loopback() {
    let lab = Lab::new();
    let loopback = TcpListener::bind("127.0.0.1:0").unwrap();
    loopback.set_nonblocking(true).unwrap();
    let port = loopback.local_addr().unwrap().port();
    let (_qemu, mut console, lease) = with_an_address(&lab);
    let (address, router) = lease.split_once(' ').unwrap();
    console.must("echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet");
    console.must(&format!("ip route add 127.0.0.0/8 via {router} dev eth0 src {address}"));
    assert!(console.must("ip route get 127.0.0.1").contains("dev eth0"));
    for target in [format!("127.0.0.1 {port}"), format!("127.1.2.3 {port}")] {
        is_not_reached(&mut console, &target);
    }
    assert_eq!(loopback.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// The guest tries to connect and its frames leave it, but nothing answers.
fn is_not_reached(console: &mut Console, target: &str) {
    let sent = |console: &mut Console| -> u64 {
        console.must("cat /sys/class/net/eth0/statistics/tx_packets").parse().unwrap()
    };
    let before = sent(console);
    let (said, status) = console.run(&format!("timeout 3 nc {target} </dev/null"));
    assert_ne!(status, 0, "{target}: {said}");
    assert!(sent(console) > before, "{target}: the guest did not even try");
}

/// The test's host is a network of its own, and its neighbour another: the guest reaches the
/// neighbour, but none of the host's addresses, nor an address that the host gets while the guest
/// runs.
fn a_guest_wants_its_host() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it takes root to make networks");
        return;
    }
    // The network belongs to the thread, and to processes that it starts.
    std::thread::spawn(in_a_network_of_its_own).join().unwrap();
}

fn in_a_network_of_its_own() {
    unshare(CloneFlags::CLONE_NEWNET).unwrap();
    let (told, neighbours) = std::sync::mpsc::channel();
    let (set_up, may_listen) = std::sync::mpsc::channel::<()>();
    let (serving, serves) = std::sync::mpsc::channel();
    let neighbour = std::thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        told.send(rustix::thread::gettid().as_raw_nonzero().get()).unwrap();
        may_listen.recv().unwrap();
        ip("addr add 192.0.2.1/24 dev there");
        ip("link set there up");
        let listener = TcpListener::bind("192.0.2.1:7000").unwrap();
        serving.send(()).unwrap();
        for greeted in listener.incoming().take(2) {
            greeted.unwrap().write_all(b"the neighbour").unwrap();
        }
    });
    ip("link set lo up");
    ip(&format!("link add here type veth peer name there netns {}", neighbours.recv().unwrap()));
    for command in ["addr add 192.0.2.10/24 dev here", "link set here up", "route add default via 192.0.2.1"]
    {
        ip(command);
    }
    set_up.send(()).unwrap();
    serves.recv().unwrap();
    let host = TcpListener::bind("0.0.0.0:7000").unwrap();
    host.set_nonblocking(true).unwrap();

    let lab = Lab::new();
    let (_qemu, mut console, lease) = with_an_address(&lab);
    let router = lease.split_once(' ').unwrap().1;
    // passt gives the guest the host's address; the guest drops it to send frames there.
    console.must("ip addr flush dev eth0 && ip addr add 192.0.2.99/32 dev eth0");
    console.must(&format!("ip route add {router}/32 dev eth0; ip route add default via {router} dev eth0"));
    let reaches = |console: &mut Console| {
        console.must("timeout 5 nc 192.0.2.1 7000 </dev/null >/tmp/said; grep 'the neighbour' /tmp/said");
    };
    reaches(&mut console);
    is_not_reached(&mut console, "192.0.2.10 7000");
    // An address that is not the host's passes the filter, and nothing listens there; then it
    // becomes the host's.
    ip("addr add 198.51.100.7/32 dev lo");
    is_not_reached(&mut console, "198.51.100.7 7000");
    reaches(&mut console);
    assert_eq!(host.accept().map(drop).unwrap_err().kind(), ErrorKind::WouldBlock);
    neighbour.join().unwrap();
}

/// Runs `ip` in the network of the calling thread.
fn ip(arguments: &str) {
    let said = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    assert!(said.status.success(), "ip {arguments}: {said:?}");
}

fn plugged() {
    for machine in [MachineType::Pc, MachineType::Q35] {
        let lab = Lab::new();
        let id: DeviceId = "late".parse().unwrap();
        let content = file(&lab.path().join("late"), 1 << 20);
        std::fs::write(&content, [b"plugged in".as_slice(), &[0; 1 << 20]].concat()).unwrap();
        let nbd = Server::nbd(&lab.disk("nbd.sock"), &content);
        let shared = Server::vhost_user(&lab.disk("shared.sock"), &content);
        let qemu = lab.start(&with_guest(small(machine)));
        let mut console = Console::connect(&lab.run_directory());
        qemu.monitor().cont().unwrap();
        console.wait_until_ready();
        let disks = [
            DiskAttachment::Nbd { server: export(&nbd), serial: String::new(), read_only: false },
            DiskAttachment::VhostUser { socket: shared.socket.clone(), queues: 1 },
        ];
        for disk in disks {
            qemu.plug_disk(&id, &disk, &lab.isolation()).unwrap();
            console.must("until test -b /dev/vda; do usleep 10000; done");
            assert_eq!(console.must("head -c 10 /dev/vda"), "plugged in", "{machine:?}");
            qemu.unplug(&id).unwrap();
            let event =
                await_event(qemu.monitor(), |event| matches!(event, PowerEvent::DeviceDeleted { .. }));
            let PowerEvent::DeviceDeleted { device } = event else { unreachable!() };
            assert_eq!(device, id.in_machine());
            qemu.unplugged(&id);
            assert!(!qemu.is_plugged(&id).unwrap());
            console.must("until ! test -b /dev/vda; do usleep 10000; done");
        }
    }
}

fn a_guests_life() {
    let lab = Lab::new();
    let qemu: Machine = lab.start(&with_guest(small(MachineType::Pc)));
    let mut console = Console::connect(&lab.run_directory());
    let monitor = qemu.monitor();
    monitor.cont().unwrap();
    await_event(monitor, |event| *event == PowerEvent::Resumed);
    console.wait_until_ready();
    monitor.stop().unwrap();
    await_event(monitor, |event| *event == PowerEvent::Stopped);
    let tag = console.send("echo while it stands still");
    monitor.cont().unwrap();
    console.wait_for(&format!("{tag} 0"), SOON);
    monitor.reset().unwrap();
    await_event(monitor, |event| matches!(event, PowerEvent::Reset { guest: false }));
    console.wait_until_ready();
    console.must("while read -r module; do insmod /lib/modules/$module.ko; done </etc/spare-modules");
    console.send("echo c >/proc/sysrq-trigger");
    // A console client that does not read would block the guest.
    console.wait_for("</TASK>", SOON);
    await_event(monitor, |event| *event == PowerEvent::Panicked);
    let status = monitor.status().unwrap();
    assert_eq!((status.running, status.word.as_str()), (false, "guest-panicked"));
}

/// scripts/build-guest has tested KVM by booting the guest; the probe with its tiny guest must
/// agree.
fn kvm() {
    let found = std::fs::read_to_string(guest_files().join("accelerator")).unwrap();
    let lab = Lab::new();
    assert_eq!(lab.program.kvm().is_ok(), found.trim() == "kvm", "{:?}", lab.program.kvm());
    if let Err(reason) = lab.program.kvm() {
        assert!(!reason.is_empty());
        let spec = MachineSpec { accelerator: Accelerator::Kvm, ..small(MachineType::Q35) };
        let refused = Qemu::start(&lab.program, &spec, &lab.run_directory(), &lab.isolation());
        assert!(matches!(refused, Err(QemuError::NoKvm(_))), "{refused:?}");
    }
    let auto = lab.start(&MachineSpec { accelerator: Accelerator::Auto, ..small(MachineType::Q35) });
    assert_eq!(auto.monitor().runs_on_kvm().unwrap(), lab.program.kvm().is_ok());
}

fn uefi() {
    let lab = Lab::new();
    let variables = Ovmf::find().unwrap().variables;
    let content = lab.path().join("nvram");
    std::fs::copy(&variables, &content).unwrap();
    let nvram = Server::nbd(&lab.disk("nvram.sock"), &content);
    let mut spec = small(MachineType::Q35);
    spec.memory = "256M".parse().unwrap();
    spec.firmware = Firmware::Uefi { nvram: Some(export(&nvram)) };
    let mut qemu = lab.start(&spec);
    let mut console = Console::connect(&lab.run_directory());
    qemu.monitor().cont().unwrap();
    // The firmware's last output: it has found nothing to boot.
    console.wait_for("BdsDxe", Duration::from_secs(120));
    assert!(qemu.stop_now(SOON));
    drop(nvram);
    assert_ne!(std::fs::read(&content).unwrap(), std::fs::read(&variables).unwrap());
}

/// Passes on what the source sends to the target, over any number of channels. Breaks off each that
/// has passed so many bytes.
fn relay(from: &Path, to: PathBuf, user: Option<(u32, u32)>, breaks_after: u64) {
    let listener = UnixListener::bind(from).unwrap();
    std::os::unix::fs::chown(from, user.map(|user| user.0), None).unwrap();
    std::thread::spawn(move || {
        for source in listener.incoming() {
            let (mut source, mut target) = (source.unwrap(), UnixStream::connect(&to).unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut (&mut source).take(breaks_after), &mut target);
                let _ = target.shutdown(Shutdown::Both);
                let _ = source.shutdown(Shutdown::Both);
            });
        }
    });
}

#[track_caller]
fn await_phase(monitor: &Monitor, is_it: impl Fn(&MigrationPhase) -> bool) -> MigrationProgress {
    let until = Instant::now() + SOON;
    loop {
        let progress = monitor.migration().unwrap();
        if is_it(&progress.phase) {
            return progress;
        }
        assert!(Instant::now() < until, "{progress:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn a_guest_moves() {
    let (here, there) = (Lab::new(), Lab::new());
    let spec = with_guest(small(MachineType::Q35));
    let source = here.start(&spec);
    let mut console = Console::connect(&here.run_directory());
    source.monitor().cont().unwrap();
    console.wait_until_ready();
    let sum = console.must("head -c 8000000 /dev/urandom >/tmp/data && md5sum </tmp/data");
    let settings = MigrationSettings { more_channels: 2, pause_ms: 20_000, bytes_per_second: 1 << 30 };
    let waiting = || {
        let waiting = Qemu::start_waiting(&there.program, &spec, &there.run_directory(), &there.isolation());
        let waiting = Machine::of(waiting.unwrap_or_else(|error| panic!("{error}")));
        waiting.monitor().receive_memory(&there.run_directory().incoming(), settings).unwrap();
        waiting
    };
    // One that fails.
    let outgoing = here.run_directory().outgoing();
    let mut target = waiting();
    relay(&outgoing, there.run_directory().incoming(), here.user, 1 << 20);
    source.monitor().send_memory(&outgoing, settings).unwrap();
    await_phase(source.monitor(), |phase| matches!(phase, MigrationPhase::Failed(_)));
    assert_eq!(console.must("md5sum </tmp/data"), sum);
    target.kill();
    std::fs::remove_file(&outgoing).unwrap();
    // One that is cancelled when the guest stands still already.
    let mut target = waiting();
    relay(&outgoing, there.run_directory().incoming(), here.user, u64::MAX);
    source.monitor().send_memory(&outgoing, settings).unwrap();
    await_phase(source.monitor(), |phase| *phase == MigrationPhase::AboutToSwitch);
    assert!(!source.monitor().status().unwrap().running);
    source.monitor().end_saving().unwrap();
    await_phase(source.monitor(), |phase| matches!(phase, MigrationPhase::Failed(_)));
    assert_eq!(console.must("md5sum </tmp/data"), sum);
    target.kill();
    std::fs::remove_file(&outgoing).unwrap();
    // One that succeeds.
    let target = waiting();
    relay(&outgoing, there.run_directory().incoming(), here.user, u64::MAX);
    source.monitor().send_memory(&outgoing, settings).unwrap();
    await_phase(source.monitor(), |phase| *phase == MigrationPhase::AboutToSwitch);
    assert!(!target.monitor().status().unwrap().running);
    source.monitor().switch_over().unwrap();
    let moved = await_phase(source.monitor(), |phase| *phase == MigrationPhase::Completed);
    assert!(moved.sent_bytes > 8_000_000 && moved.total_bytes >= 256 << 20, "{moved:?}");
    await_phase(target.monitor(), |phase| *phase == MigrationPhase::Completed);
    for machine in [&source, &target] {
        assert!(!machine.monitor().status().unwrap().running);
    }
    let mut console = Console::connect(&there.run_directory());
    target.monitor().cont().unwrap();
    assert_eq!(console.must("md5sum </tmp/data"), sum);
    // It can be suspended afterwards, as any other.
    let (mut from, to) = std::io::pipe().unwrap();
    target.monitor().stop().unwrap();
    target.monitor().save_memory(to.as_fd()).unwrap();
    drop(to);
    assert!(std::io::copy(&mut from, &mut std::io::sink()).unwrap() > 8_000_000);
}
