//! Real QEMUs whose guests do not run: they have the requested configuration, and the sandbox
//! holds.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod support;

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use strongroom_hypervisor::launch::Measure;
use strongroom_hypervisor::machine::{
    Cpus, DiskAttachment, Firmware, Link, MacAddress, MachineSpec, MachineType, NbdExport, Network, Nic,
};
use strongroom_hypervisor::monitor::Loss;
use strongroom_hypervisor::network::{NetworkState, OpenNetwork};
use strongroom_hypervisor::qemu::{DeviceId, HotPlugError, MachineProcess, NewMonitor};
use strongroom_hypervisor::swtpm::SwtpmError;
use strongroom_hypervisor::{PowerEvent, Qemu, QemuError, QemuIdentity, Qmp, QmpError, Swtpm};

use self::support::servers::{Server, file};
use self::support::{
    Lab, Machine, OtherSupervisor, SOON, accept_states, await_event, key, run, small, state_directory,
};

fn main() -> ExitCode {
    run(vec![
        ("a_machine_is_started_paused_runs_resets_and_ends", a_machine_lives),
        ("a_machine_with_everything_is_what_it_was_said_to_be", everything),
        ("qemu_is_confined", qemu_is_confined),
        ("a_machine_is_adopted_when_its_supervisor_was_killed", adopted),
        ("an_ordinary_users_machine_is_adopted_too", adopted_by_an_ordinary_user),
        ("a_monitor_has_no_right_and_another_one_takes_its_place", monitor_is_replaced),
        ("a_qemu_is_taken_over_though_monitors_die", is_taken_over_by_another_monitor),
        ("a_monitor_that_stands_still_ends_with_who_started_it", monitor_ends_with_its_starter),
        ("a_killed_qemu_is_seen_and_its_sockets_are_replaced", killed),
        ("disks_and_network_cards_are_plugged_in", plugged),
        ("what_qemu_does_not_like_is_told", refused),
        ("a_tpms_state_is_sealed_with_its_key", sealed_tpm),
    ])
}

fn a_machine_lives() {
    for machine in [MachineType::Pc, MachineType::Q35] {
        let lab = Lab::new();
        let qemu = lab.start(&small(machine));
        let monitor = qemu.monitor();
        assert_eq!(monitor.status().unwrap().word, "prelaunch");
        monitor.cont().unwrap();
        await_event(monitor, |event| *event == PowerEvent::Resumed);
        monitor.stop().unwrap();
        await_event(monitor, |event| *event == PowerEvent::Stopped);
        assert!(!monitor.status().unwrap().running);
        monitor.cont().unwrap();
        monitor.reset().unwrap();
        await_event(monitor, |event| matches!(event, PowerEvent::Reset { guest: false }));
        monitor.press_power_button().unwrap();
        await_event(monitor, |event| *event == PowerEvent::PowerDownRequested);
        monitor.quit().unwrap();
        let quit = |event: &PowerEvent| matches!(event, PowerEvent::Shutdown { guest: false, reason } if reason == "host-qmp-quit");
        await_event(monitor, quit);
        assert!(qemu.wait(SOON));
    }
}

fn everything() {
    for (machine, version) in [(MachineType::Pc, "pc-i440fx-7.1"), (MachineType::Q35, "pc-q35-7.1")] {
        let lab = Lab::new();
        let variables = strongroom_hypervisor::firmware::Ovmf::find().unwrap().variables;
        let nvram = lab.path().join("nvram");
        std::fs::copy(variables, &nvram).unwrap();
        let nvram = Server::nbd(&lab.disk("nvram.sock"), &nvram);
        let disk = Server::nbd(&lab.disk("disk, 0.sock"), &file(&lab.path().join("disk0"), 8 << 20));
        let shared = Server::vhost_user(&lab.disk("disk1.sock"), &file(&lab.path().join("disk1"), 8 << 20));
        let export = |server: &Server| NbdExport { socket: server.socket.clone(), export: "disk".to_owned() };
        let tpm = Swtpm::start(&lab.run_directory(), &lab.isolation(), &state_directory(&lab), Some(key(1)))
            .unwrap();
        accept_states(&lab);
        let mut spec = small(machine);
        spec.name = "--a, b=c,process=evil\n-S \"q\" ${x}".to_owned();
        spec.cpus = Cpus { sockets: 2, cores: 2, threads: 1 };
        spec.memory = "64M".parse().unwrap();
        spec.firmware = Firmware::Uefi { nvram: Some(export(&nvram)) };
        let serial = "sn,=x".to_owned();
        spec.disks = vec![
            DiskAttachment::Nbd { server: export(&disk), serial, read_only: false },
            DiskAttachment::VhostUser { socket: shared.socket.clone(), queues: 2 },
        ];
        spec.nics = vec![Nic::new(MacAddress::of(spec.vm, 0), Network::User)];
        spec.tpm = Some(tpm.socket());
        (spec.board.guest_agent, spec.board.vnc) = (true, true);
        spec.board.machine_type = Some(version.parse().unwrap());
        spec.board.processor = Some("x86-64-v3".parse().unwrap());
        let qemu = lab.start(&spec);
        assert_eq!(qemu.networks(), [NetworkState::Passt]);
        assert_eq!(measures(&qemu), lab.shortfalls());
        let qemu = is_what_was_said(&lab, qemu, &spec);
        let adopted = Swtpm::adopt(&lab.run_directory(), tpm.identity()).unwrap().unwrap();
        // swtpm serves QEMU until QEMU is gone.
        drop(qemu);
        assert!(tpm.wait(SOON) && adopted.wait(SOON));
        assert!(Swtpm::adopt(&lab.run_directory(), tpm.identity()).unwrap().is_none());
    }
}

fn measures(qemu: &Qemu) -> Vec<Measure> {
    qemu.shortfalls().iter().map(|shortfall| shortfall.measure).collect()
}

/// Queries QEMU itself, which serves one QMP client at a time: its monitor is gone meanwhile.
fn is_what_was_said(lab: &Lab, qemu: Machine, spec: &MachineSpec) -> Machine {
    let identity = qemu.identity();
    drop(qemu.released());
    let qmp = Qmp::connect(&lab.run_directory().qmp(), SOON).unwrap();
    let ask = |command: &str| qmp.execute_value(command, &json!({})).unwrap();
    assert_eq!(ask("query-name")["name"], spec.name);
    assert_eq!(ask("query-uuid")["UUID"], spec.vm.to_string());
    assert_eq!(ask("query-memory-size-summary")["base-memory"], spec.memory.bytes());
    assert_eq!(ask("query-cpus-fast").as_array().unwrap().len(), 4);
    assert_eq!(ask("query-vm-generation-id")["guid"], spec.generation_id.to_string());
    let version = json!({ "path": "/machine", "property": "type" });
    let kind = qmp.execute_value("qom-get", &version).unwrap();
    assert_eq!(kind, format!("{}-machine", spec.board.machine_type.as_ref().unwrap()));
    let avx2 = json!({ "path": "/machine/unattached/device[0]", "property": "avx2" });
    assert_eq!(qmp.execute_value("qom-get", &avx2).unwrap(), true);
    assert_eq!(ask("query-tpm").as_array().unwrap().len(), 1);
    assert_eq!(ask("query-vnc")["enabled"], true);
    for memory in ask("query-memdev").as_array().unwrap() {
        let said = ["share", "merge", "dump", "prealloc"].map(|key| memory[key].as_bool().unwrap());
        assert_eq!(said, [true, false, false, false]);
    }
    let serial = json!({ "path": "/machine/peripheral/disk0", "property": "serial" });
    assert_eq!(qmp.execute_value("qom-get", &serial).unwrap(), "sn,=x");
    drop(qmp);
    Machine::of(adopt(lab, identity).unwrap())
}

/// Checks the process's confinement, as the kernel reports it.
fn qemu_is_confined() {
    let lab = Lab::new();
    let secret = lab.path().join("secret");
    std::fs::write(&secret, "of another").unwrap();
    let qemu = lab.start(&small(MachineType::Q35));
    assert_eq!(measures(&qemu), lab.shortfalls());
    let process = Path::new("/proc").join(qemu.identity().pid.to_string());
    let read = |file: &str| std::fs::read_to_string(process.join(file)).unwrap();
    let status = read("status");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
        line.unwrap_or_else(|| panic!("no {name}")).to_owned()
    };
    for capabilities in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(field(capabilities), "0000000000000000", "{capabilities}");
    }
    assert_eq!((field("NoNewPrivs").as_str(), field("Seccomp").as_str()), ("1", "2"));
    if let Some((user, _)) = lab.user {
        assert_eq!(
            field("Uid"),
            [user.to_string(), user.to_string(), user.to_string(), user.to_string()].join("\t")
        );
        assert_eq!(field("Groups").trim(), "");
    }
    assert_eq!(u64::from_str_radix(read("coredump_filter").trim(), 16), Ok(0));
    let core = read("limits").lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
    // At 1 the kernel does not start a core dump program either. Only root can raise a limit of 0.
    let limits: Vec<_> = core.split_whitespace().skip(4).take(2).collect();
    assert!(limits == ["1", "1"] || (lab.user.is_none() && limits == ["0", "0"]), "{core}");
    for namespace in ["net", "ipc", "uts", "mnt", "cgroup"] {
        let of = |process: &Path| std::fs::read_link(process.join("ns").join(namespace)).unwrap();
        assert_ne!(of(&process), of(Path::new("/proc/self")), "{namespace}");
    }
    // Its root directory has the required files, and nothing else of the host's.
    let root = process.join("root");
    let mut seen: Vec<_> =
        std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    seen.sort();
    let way = |path: &Path| path.components().nth(1).unwrap().as_os_str().to_owned();
    let needed = ["dev", "lib", "lib64", "usr"].map(std::ffi::OsString::from).into_iter();
    let needed: BTreeSet<_> = needed.chain([way(lab.path()), way(lab.program.path())]).collect();
    assert_eq!(seen, needed.into_iter().collect::<Vec<_>>());
    let inside = |path: &Path| root.join(path.strip_prefix("/").unwrap());
    assert!(!inside(&secret).exists() && inside(lab.run_directory().path()).exists());
    assert!(inside(Path::new("/usr/bin/env")).metadata().is_ok());
    let read_only = std::fs::write(inside(Path::new("/usr/of-a-test")), "").unwrap_err();
    assert_eq!(read_only.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // Only its user can access its sockets.
    let directory = std::fs::metadata(lab.run_directory().path()).unwrap();
    assert_eq!(directory.permissions().mode() & 0o777, 0o700);
    for socket in [lab.run_directory().qmp(), lab.run_directory().console()] {
        let socket = std::fs::metadata(socket).unwrap();
        assert_eq!((socket.mode() & 0o077, socket.uid()), (0, qemu.identity().uid));
    }
    // Guest memory is shared, and in no dump ("dd").
    let maps = read("smaps");
    let guest = maps.split("VmFlags:").find(|map| map.contains("memory-backend-memfd")).map(str::len);
    let flags =
        maps.split("memory-backend-memfd").nth(1).and_then(|rest| rest.split("VmFlags:").nth(1)).unwrap();
    assert!(guest.is_some() && flags.lines().next().unwrap().split_whitespace().any(|flag| flag == "dd"));
}

fn adopted() {
    let lab = Lab::new();
    let other = OtherSupervisor::start(&lab, None);
    let identity = other.kill();
    adopt_and_end(&lab, identity);
}

fn adopted_by_an_ordinary_user() {
    if !rustix::process::geteuid().is_root() {
        return; // the other test is this one
    }
    let lab = Lab::new();
    let nobody = 65534;
    let other = OtherSupervisor::start(&lab, Some(nobody));
    assert_eq!(other.qemu.uid, nobody);
    let identity = other.kill();
    adopt_and_end(&lab, identity);
}

/// Adopts a QEMU whose supervisor was killed, with its first monitor.
fn adopt(lab: &Lab, identity: QemuIdentity) -> Result<Qemu, QemuError> {
    let found = MachineProcess::find(&lab.run_directory(), identity, &lab.isolation())?;
    Qemu::take_over(found, || Err("the first monitor is to do".to_owned()))
}

fn adopt_and_end(lab: &Lab, identity: QemuIdentity) {
    let later = QemuIdentity { start_time_ticks: identity.start_time_ticks + 1, ..identity };
    assert!(matches!(adopt(lab, later), Err(QemuError::Ended { .. })));
    let stranger = QemuIdentity { uid: identity.uid + 1, ..identity };
    assert!(matches!(adopt(lab, stranger), Err(QemuError::Stranger { .. })));
    let mut qemu = Machine::of(adopt(lab, identity).unwrap());
    assert_eq!(qemu.identity(), identity);
    qemu.monitor().cont().unwrap();
    await_event(qemu.monitor(), |event| *event == PowerEvent::Resumed);
    assert!(qemu.stop_now(SOON));
    assert!(matches!(adopt(lab, identity), Err(QemuError::Ended { .. })));
}

fn pid(of: Option<u32>) -> Pid {
    Pid::from_raw(of.unwrap().cast_signed()).unwrap()
}

/// Checks the monitor's confinement, as the kernel reports it, and that a machine survives its
/// loss.
fn monitor_is_replaced() {
    let lab = Lab::new();
    let run = lab.run_directory();
    let qemu = lab.start(&small(MachineType::Q35));
    let process = pid(qemu.monitor_process());
    let proc = PathBuf::from(format!("/proc/{}", process.as_raw_nonzero()));
    let status = std::fs::read_to_string(proc.join("status")).unwrap();
    let field =
        |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:", "CapBnd:"] {
        let none = lab.user.is_some() || set != "CapBnd:";
        assert!(!none || u64::from_str_radix(&field(set), 16) == Ok(0), "{set}");
    }
    assert_eq!((field("NoNewPrivs:"), field("Seccomp:")), ("1".to_owned(), "2".to_owned()));
    // Its root has programs and libraries, like QEMU's; its network is empty. Its open files are
    // sockets, and the memory file of its standard error.
    let own = |of: &str| std::fs::read_link(proc.join("ns").join(of)).unwrap();
    let ours = |of: &str| std::fs::read_link(format!("/proc/self/ns/{of}")).unwrap();
    for namespace in ["net", "mnt", "ipc", "uts"] {
        assert_ne!(own(namespace), ours(namespace));
    }
    let open = std::fs::read_dir(proc.join("fd")).unwrap().flatten();
    let open: Vec<_> = open.map(|entry| std::fs::read_link(entry.path()).unwrap()).collect();
    let allowed = ["socket:", "/memfd:stderr", "/dev/null"];
    let is_allowed = |file: &PathBuf| allowed.iter().any(|start| file.to_str().unwrap().starts_with(start));
    assert!(open.iter().all(is_allowed) && open.len() <= 7, "{open:?}");

    qemu.monitor().cont().unwrap();
    kill_process(process, Signal::KILL).unwrap();
    let over = loop {
        match qemu.monitor().next_event(SOON) {
            Ok(event) => assert!(event.is_some()),
            Err(error) => break error,
        }
    };
    assert!(matches!(over, QmpError::Over(_)));
    assert_eq!(qemu.monitor().lost(), Some(Loss::Monitor));
    assert!(matches!(qemu.monitor().stop(), Err(QmpError::Over(_))));
    let mut found = MachineProcess::find(&run, qemu.identity(), &lab.isolation()).unwrap();
    qemu.replace_monitor(found.hand_over().unwrap().monitor).unwrap();
    assert!(
        qemu.monitor().lost().is_none() && qemu.monitor().status().unwrap().running,
        "the guest has gone on"
    );
    qemu.monitor().stop().unwrap();
    await_event(qemu.monitor(), |event| *event == PowerEvent::Stopped);
    // A monitor that hangs can be replaced, too.
    kill_process(pid(found.monitor_process()), Signal::STOP).unwrap();
    let other = {
        found.end_monitor();
        let monitor = NewMonitor::start(&run, found.identity(), &lab.isolation()).unwrap();
        found.keep(monitor)
    };
    qemu.replace_monitor(other).unwrap();
    assert!(!qemu.monitor().status().unwrap().running);
    // The end of QEMU is different.
    qemu.monitor().quit().unwrap();
    assert!(qemu.wait(SOON));
    while qemu.monitor().next_event(SOON).is_ok() {}
    assert_eq!(qemu.monitor().lost(), Some(Loss::Qemu));
}

/// A running guest is not killed because the first monitors of its next supervisor die.
fn is_taken_over_by_another_monitor() {
    let lab = Lab::new();
    let run = lab.run_directory();
    let identity = OtherSupervisor::start(&lab, None).kill();
    let qemu = pid(Some(identity.pid));
    // A QEMU that stands still greets no monitor before it dies.
    let find_with_lost_monitor = || {
        kill_process(qemu, Signal::STOP).unwrap();
        let found = MachineProcess::find(&run, identity, &lab.isolation()).unwrap();
        kill_process(pid(found.monitor_process()), Signal::KILL).unwrap();
        found
    };
    let (mut asked, mut kept) = (0, None);
    let taken = Qemu::take_over(find_with_lost_monitor(), || {
        asked += 1;
        if asked == 1 {
            return Err("there is no process to spare".to_owned());
        }
        kill_process(qemu, Signal::CONT).unwrap();
        let mut again = MachineProcess::find(&run, identity, &lab.isolation()).unwrap();
        let connection = again.hand_over().unwrap().monitor;
        kept = Some(again);
        Ok(connection)
    });
    assert!(taken.unwrap().monitor().status().is_ok());
    assert_eq!(asked, 2);

    // Without a monitor, no one can supervise it.
    drop(kept);
    let left = Qemu::take_over(find_with_lost_monitor(), || Err("there is no process to spare".to_owned()));
    assert!(matches!(left, Err(QemuError::Unheard { .. })), "{left:?}");
    let found = MachineProcess::find(&run, identity, &lab.isolation());
    assert!(matches!(found, Err(QemuError::Ended { .. })), "{found:?}");
}

fn monitor_ends_with_its_starter() {
    let lab = Lab::new();
    let other = OtherSupervisor::start(&lab, None);
    let monitor = other.monitor();
    kill_process(monitor, Signal::STOP).unwrap();
    let identity = other.kill();
    // The stopped monitor would still hold QEMU's only connection.
    adopt_and_end(&lab, identity);
    // The process that must reap it may not do so.
    let status = std::fs::read_to_string(format!("/proc/{}/status", monitor.as_raw_nonzero()));
    assert!(status.is_err() || status.unwrap().contains("State:\tZ"), "it is there");
}

fn killed() {
    let lab = Lab::new();
    let mut qemu = lab.start(&small(MachineType::Pc));
    assert!(qemu.kill());
    assert!(matches!(qemu.monitor().status(), Err(QmpError::Over(_))));
    assert!(matches!(qemu.monitor().next_event(SOON), Err(QmpError::Over(_))));
    assert_eq!(
        qemu.status().and_then(|status| std::os::unix::process::ExitStatusExt::signal(&status)),
        Some(9)
    );
    assert!(lab.run_directory().qmp().exists(), "it was left behind");
    let again = lab.start(&small(MachineType::Pc));
    assert!(!again.monitor().status().unwrap().running);
}

fn plugged() {
    for machine in [MachineType::Pc, MachineType::Q35] {
        let lab = Lab::new();
        let qemu = lab.start(&small(machine));
        let id = |name: &str| name.parse::<DeviceId>().unwrap();
        let nbd = Server::nbd(&lab.disk("late,0.sock"), &file(&lab.path().join("late0"), 1 << 20));
        let server = NbdExport { socket: nbd.socket.clone(), export: "disk".to_owned() };
        let disk = DiskAttachment::Nbd { server, serial: String::new(), read_only: false };
        qemu.plug_disk(&id("late0"), &disk, &lab.isolation()).unwrap();
        let shared = Server::vhost_user(&lab.disk("late1.sock"), &file(&lab.path().join("late1"), 1 << 20));
        let disk = DiskAttachment::VhostUser { socket: shared.socket.clone(), queues: 1 };
        qemu.plug_disk(&id("late1"), &disk, &lab.isolation()).unwrap();
        let nic = Nic::new("52:54:00:00:00:09".parse().unwrap(), Network::User);
        let network = OpenNetwork::open(&nic.network, &lab.isolation()).unwrap();
        assert_eq!(*network.state(), NetworkState::Passt);
        let (state, parts) = (network.state().clone(), network.into_parts());
        let file = parts.file.as_ref().map(AsFd::as_fd);
        qemu.plug_nic(&id("net"), &nic, &state, file).unwrap();
        qemu.set_link(&id("net"), Link::Down).unwrap();
        qemu.set_link(&id("net"), Link::Up).unwrap();
        for name in ["late0", "late1", "net"] {
            assert!(qemu.is_plugged(&id(name)).unwrap());
        }
        // A failed attempt leaves nothing behind, and can be repeated.
        let nothing = DiskAttachment::VhostUser { socket: lab.disk("nothing.sock"), queues: 1 };
        assert!(qemu.plug_disk(&id("none"), &nothing, &lab.isolation()).is_err());
        if machine == MachineType::Q35 {
            let nothing = NetworkState::Restricted("none is needed".to_owned());
            let mut plugs =
                (0..16).map(|number| qemu.plug_nic(&id(&format!("n{number}")), &nic, &nothing, None));
            // The first refusal comes when all ports are taken.
            let refused = plugs.find_map(Result::err);
            assert!(matches!(refused, Some(HotPlugError::Qmp(QmpError::NoPort))), "{refused:?}");
        }
    }
}

fn refused() {
    let lab = Lab::new();
    let mut spec = small(MachineType::Q35);
    spec.disks = vec![DiskAttachment::Nbd {
        server: NbdExport { socket: lab.disk("nobody.sock"), export: String::new() },
        serial: String::new(),
        read_only: false,
    }];
    let start = |spec: &MachineSpec| Qemu::start(&lab.program, spec, &lab.run_directory(), &lab.isolation());
    // As root, the socket's owner must be changed first; otherwise QEMU reports the error.
    assert!(matches!(start(&spec), Err(QemuError::Prepare { .. } | QemuError::Failed { .. })));
    let listener = std::os::unix::net::UnixListener::bind(lab.disk("nobody.sock")).unwrap();
    drop(listener);
    match start(&spec) {
        Err(QemuError::Failed { said }) => assert!(said.contains("Connection refused"), "{said}"),
        other => panic!("{other:?}"),
    }
    // Nothing of a processor is left out, whatever was known of this host before.
    let mut spec = small(MachineType::Q35);
    for (model, lacking) in [("x86-64-v4", "avx512"), ("EPYC-Rome", "support requested feature")] {
        spec.board.processor = Some(model.parse().unwrap());
        match start(&spec) {
            Err(QemuError::Failed { said }) => assert!(said.contains(lacking), "{model}: {said}"),
            other => panic!("{model}: {other:?}"),
        }
    }
    spec.board.processor = Some("Nonesuch".parse().unwrap());
    match start(&spec) {
        Err(QemuError::Failed { said }) => assert!(said.contains("Nonesuch"), "{said}"),
        other => panic!("{other:?}"),
    }
    let mut spec = small(MachineType::Q35);
    spec.board.machine_type = Some("pc-q35-99.0".parse().unwrap());
    match start(&spec) {
        Err(QemuError::Failed { said }) => assert!(said.contains("unsupported machine type"), "{said}"),
        other => panic!("{other:?}"),
    }
    let mut spec = small(MachineType::Q35);
    spec.cpus = Cpus { sockets: 1000, cores: 1000, threads: 1 };
    assert!(matches!(start(&spec), Err(QemuError::Spec(_))));
}

fn sealed_tpm() {
    let lab = Lab::new();
    let state = state_directory(&lab);
    let mut spec = small(MachineType::Q35);
    let mut run_once = |key_byte| {
        let tpm = Swtpm::start(&lab.run_directory(), &lab.isolation(), &state, Some(key(key_byte)));
        let tpm = tpm.unwrap_or_else(|error| panic!("{error}"));
        accept_states(&lab);
        spec.tpm = Some(tpm.socket());
        let qemu = Qemu::start(&lab.program, &spec, &lab.run_directory(), &lab.isolation()).map(Machine::of);
        let qemu = match qemu {
            Ok(qemu) => qemu.monitor().cont().map(|()| qemu).map_err(QemuError::from),
            Err(error) => Err(error),
        };
        let ended = qemu.map(|mut qemu| qemu.stop_now(SOON));
        (ended, tpm.wait(SOON), tpm.said())
    };
    let first = run_once(1);
    assert!(matches!(first, (Ok(true), true, _)), "{first:?}");
    let files: Vec<_> = std::fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path()).collect();
    let permanent = files.iter().find(|path| path.to_str().unwrap().contains("permall")).unwrap();
    // Other users may not access the state.
    let metadata = std::fs::metadata(permanent).unwrap();
    assert_eq!(metadata.permissions().mode() & 0o077, 0, "{files:?}");
    let again = run_once(1);
    assert!(matches!(again, (Ok(true), true, _)), "{again:?}");
    let other_key = run_once(2);
    assert!(matches!(other_key.0, Err(QemuError::Failed { .. })), "{other_key:?}");
    assert!(other_key.2.contains("integrity"), "{other_key:?}");
    let strange = lab.path().join("strange");
    std::fs::create_dir_all(strange.join("directory")).unwrap();
    // Another directory, or a file with a second hard link, is refused: swtpm's user would become
    // its owner.
    let linked = lab.path().join("linked");
    std::fs::create_dir(&linked).unwrap();
    std::fs::write(lab.path().join("elsewhere"), "another's").unwrap();
    std::fs::hard_link(lab.path().join("elsewhere"), linked.join("tpm2-00.permall")).unwrap();
    std::os::unix::fs::symlink(&state, lab.path().join("link")).unwrap();
    for strange in [strange, linked, lab.path().join("link")] {
        let refused = Swtpm::start(&lab.run_directory(), &lab.isolation(), &strange, None);
        assert!(matches!(refused, Err(SwtpmError::NotState(_))), "{}", strange.display());
    }
}
