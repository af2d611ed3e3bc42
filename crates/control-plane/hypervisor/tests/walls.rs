//! What a captured QEMU cannot do. A program in its place tries.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use strongroom_hypervisor::machine::{MacAddress, MachineSpec, MachineType, Network, Nic, VlanId};
use strongroom_hypervisor::network::{NetworkError, NetworkState};
use strongroom_hypervisor::{Isolation, Qemu, QemuError, QemuProgram};

use self::support::{Lab, in_own_network, make_directory, run_with, small};

fn main() -> ExitCode {
    let trials: Vec<(&str, fn())> = vec![
        ("a_hostile_qemu_reaches_nothing_of_others", hostile),
        ("a_network_card_is_in_its_bridge_and_its_vlan_alone", bridged),
    ];
    run_with(trials, &[(IN_BRIDGE, in_bridge)])
}

/// The attempts, and the expected result of each: the program's exit status decides.
const STAND_IN: &str = r#"#!/usr/bin/sh
if [ "$1" = --version ]; then echo "QEMU emulator version 7.2.0"; exit; fi
try() {
    name=$1
    shift
    if "$@" >/dev/null 2>&1; then echo "$name: done"; else echo "$name: refused"; fi >>"OWN/tried"
}
connect() { perl -MIO::Socket::UNIX -e 'IO::Socket::UNIX->new(Peer => $ARGV[0]) or exit 1' "$1"; }
try 'write to its own directory' touch OWN/own
try 'connect to the socket of its own disk' connect OWN_DISK
try 'read a secret of its supervisor' cat SECRET
try 'see a machine of another user' ls OTHER
try 'connect to the QMP of another machine' connect OTHER/qemu/qmp.sock
try 'signal another machine' kill -0 OTHER_PID
try 'see processes' ls /proc/1
try 'read files of the host' cat /etc/passwd
try 'write programs' touch /usr/bin/evil
try 'write to its root directory' touch /evil
try 'make a device' mknod OWN/device c 1 3
try 'connect to the host' bash -c 'exec 3<>/dev/tcp/127.0.0.1/PORT'
try 'become root' perl -e '$> = 0; $> == 0 or exit 1'
try 'mount' mount -t tmpfs none OWN
try 'change the network' ip link add evil type dummy
echo tried all >&2
exit 1
"#;

fn hostile() {
    if !rustix::process::geteuid().is_root() {
        return; // another user for each machine takes root
    }
    let (lab, other) = (Lab::new(), Lab::new());
    let other_machine = other.start(&small(MachineType::Q35));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = lab.path().join("secret");
    std::fs::write(&secret, "of the supervisor").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    let disk = lab.disk("disk0.sock");
    let _server = std::os::unix::net::UnixListener::bind(&disk).unwrap();
    let run = lab.run_directory();
    let program = lab.path().join("bin/qemu");
    make_directory(program.parent().unwrap(), 0o755);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let script = STAND_IN
        .replace("OWN_DISK", &text(&disk))
        .replace("OTHER_PID", &other_machine.identity().pid.to_string())
        .replace("OWN", &text(run.path()))
        .replace("SECRET", &text(&secret))
        .replace("OTHER", &text(other.path()))
        .replace("PORT", &listener.local_addr().unwrap().port().to_string());
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let mut spec = small(MachineType::Q35);
    spec.disks = vec![strongroom_hypervisor::machine::DiskAttachment::VhostUser { socket: disk, queues: 1 }];
    let program = QemuProgram::probe(&program).unwrap();
    // Another user than that of the other machine.
    let user = lab.user.map(|(uid, gid)| (uid + 1, gid + 1));
    let run = strongroom_hypervisor::RunDirectory::create(lab.path(), user).unwrap_or(run);
    let isolation = Isolation { user, ..lab.isolation() };
    match Qemu::start(&program, &spec, &run, &isolation) {
        Err(QemuError::Failed { said }) => assert!(said.contains("tried all"), "{said}"),
        other => panic!("{other:?}"),
    }
    let tried = std::fs::read_to_string(run.path().join("tried")).unwrap();
    let (done, refused): (Vec<_>, Vec<_>) = tried.lines().partition(|line| line.ends_with(": done"));
    let allowed = ["write to its own directory: done", "connect to the socket of its own disk: done"];
    assert_eq!(done, allowed, "{refused:?}");
    assert_eq!(
        refused.len(),
        STAND_IN.lines().filter(|line| line.starts_with("try '")).count() - allowed.len()
    );
}

const IN_BRIDGE: &str = "bridge";

fn bridged() {
    if rustix::process::geteuid().is_root() {
        in_own_network(IN_BRIDGE);
    }
}

fn in_bridge() {
    let ip = |line: &str| -> String {
        let mut words = line.split(' ');
        let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    // A kernel without VLANs in bridges, or without bridges, can still pass a tap device.
    let adds = |more: &[&str]| {
        let bridge = ["link", "add", "br0", "type", "bridge"];
        Command::new("ip").args(bridge).args(more).output().unwrap().status.success()
    };
    let has_vlans = adds(&["vlan_filtering", "1"]);
    let has_bridges = has_vlans || adds(&[]);
    let lab = Lab::new();
    let mut spec = small(MachineType::Pc);
    let nic = |card, network| Nic::new(MacAddress::of(spec.vm, card), network);
    spec.nics = vec![nic(0, Network::Tap { device: "tap-of-test".parse().unwrap() })];
    if has_bridges {
        ip("ip link set br0 up");
        let bridge = "br0".parse().unwrap();
        if !has_vlans {
            eprintln!("this kernel's bridges have no VLANs; a card without one is tried");
        }
        ip("ip link add br1 type bridge");
        // A bridge that would pass all frames to a card in a VLAN gets none.
        let in_vlan = Network::Bridge { bridge: "br1".parse().unwrap(), vlan: Some(VlanId::new(7).unwrap()) };
        let other = MachineSpec { nics: vec![nic(2, in_vlan)], ..small(MachineType::Pc) };
        let refused = Qemu::start(&lab.program, &other, &lab.run_directory(), &lab.isolation());
        assert!(matches!(refused, Err(QemuError::Network(NetworkError::Bridge { .. }))), "{refused:?}");
        let vlan = has_vlans.then(|| VlanId::new(7).unwrap());
        spec.nics.push(Nic::new(MacAddress::of(spec.vm, 1), Network::Bridge { bridge, vlan }));
    } else {
        eprintln!("this kernel has no bridges; only a tap device is tried");
        let bridge = "br0".parse().unwrap();
        let without = Network::Bridge { bridge, vlan: None };
        let spec = MachineSpec { nics: vec![nic(1, without)], ..small(MachineType::Pc) };
        let refused = Qemu::start(&lab.program, &spec, &lab.run_directory(), &lab.isolation());
        assert!(matches!(refused, Err(QemuError::Network(NetworkError::Bridge { .. }))), "{refused:?}");
    }
    let mut qemu = lab.start(&spec);
    let taps = qemu.networks().iter().map(|network| match network {
        NetworkState::Tap(device) => device.to_string(),
        other => panic!("{other:?}"),
    });
    let taps: Vec<String> = taps.collect();
    assert_eq!(taps[0], "tap-of-test");
    assert!(ip("ip link show dev tap-of-test").contains("LOWER_UP"));
    if let Some(bridged) = taps.get(1) {
        if has_vlans {
            let shown = ip(&format!("bridge -json vlan show dev {bridged}"));
            let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
            let vlans = shown[0]["vlans"].as_array().unwrap();
            assert_eq!((vlans.len(), &vlans[0]["vlan"]), (1, &serde_json::json!(7)), "{shown}");
        }
        assert!(ip(&format!("ip link show dev {bridged}")).contains("master br0"));
    }
    // The devices disappear with QEMU, however QEMU ends.
    assert!(qemu.kill());
    let left = ip("ip link show");
    assert!(taps.iter().all(|tap| !left.contains(tap)), "{left}");
}
