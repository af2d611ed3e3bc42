//! What the processes of a VM can do to each other, and its supervisor to the host.

use std::collections::HashSet;
use std::io::Seek;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use strongroom_host::protocol::{
    Disk, ImageFormat, MacAddress, Network, Nic, OperationId, OperationKind, OperationState, PowerState,
    StartOptions, VmSpec, VolumeState,
};
use strongroom_host::run_directory::HostRunDirectory;
use strongroom_host::wire::{Wire, WireError};
use strongroom_providers::{KmipConfig, ProviderConfig, Registry, SourceConfig};
use strongroom_test_peers::Pki;

use super::FORCED;
use super::processes_below;
use super::support::{Host, SOON, boot_sector, kill, until};

/// Tries to attack the process whose id is the argument. Prints each success.
const TRIES: &str = r#"
kill -0 "$1" 2>/dev/null && echo signal
head -c 0 "/proc/$1/environ" 2>/dev/null && echo environ
head -c 0 "/proc/$1/mem" 2>/dev/null && echo memory
ls "/proc/$1/fd/" >/dev/null 2>&1 && echo files
:
"#;

fn status(pid: u32, field: &str) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim().to_owned()
}

fn uid(pid: u32) -> u32 {
    status(pid, "Uid:").split_whitespace().next().unwrap().parse().unwrap()
}

fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap().trim().to_owned()
}

pub fn apart() {
    let host = Host::start();
    let mut spec = host.spec("web1", 2);
    spec.nics = vec![Nic::new("52:54:00:12:34:56".parse().unwrap(), Network::User)];
    host.done(&spec, 0, host.create(&spec));
    host.import(&spec, &boot_sector());
    host.done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() });
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    host.console(&spec).await_line("ready");
    let supervisor = running.supervisor_pid.unwrap();
    let qemu = running.qemu_pid.unwrap();

    // The only process that holds keys has no privileges, cannot gain any, and is filtered.
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(u64::from_str_radix(&status(supervisor, set), 16), Ok(0), "{set}");
    }
    assert_eq!((status(supervisor, "NoNewPrivs:"), status(supervisor, "Seccomp:")), ("1".into(), "2".into()));
    // One process starts all the others and does nothing else.
    let below = processes_below(supervisor);
    assert!(below.contains(&qemu) && below.len() >= 4, "{below:?}");

    if rustix::process::geteuid().is_root() {
        assert_eq!(u64::from_str_radix(&status(supervisor, "CapBnd:"), 16), Ok(0));
        let others: Vec<u32> = below.iter().copied().filter(|pid| uid(*pid) != 0).collect();
        assert_eq!(below.len() - others.len(), 1, "all but what starts them have users of their own");
        let users: HashSet<u32> = others.iter().map(|pid| uid(*pid)).collect();
        assert_eq!(users.len(), others.len(), "no two processes are the same user");
        for attacker in &others {
            for victim in below.iter().chain([&supervisor]).filter(|victim| *victim != attacker) {
                let user = uid(*attacker);
                let tried = Command::new("/bin/sh")
                    .args(["-c", TRIES, "sh", &victim.to_string()])
                    .uid(user)
                    .gid(user)
                    .current_dir("/")
                    .stdin(Stdio::null())
                    .output()
                    .unwrap();
                let could = String::from_utf8(tried.stdout).unwrap();
                assert_eq!(could, "", "{} could do that to {}", name(*attacker), name(*victim));
            }
        }
    } else {
        eprintln!("another user for each process takes root; only the supervisor was looked at");
    }
    host.done(&spec, 1, FORCED);
    host.assert_nobody_left();
}

/// A supervisor without its starter would fail at the first worker that dies. So it ends, and is
/// replaced together with its starter.
pub fn starter_is_killed() {
    let host = Host::start();
    let spec = host.spec("web1", 1);
    host.done(&spec, 0, host.create(&spec));
    host.import(&spec, &boot_sector());
    host.done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() });
    let first = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    let supervisor = first.supervisor_pid.unwrap();
    let qemu = first.qemu_pid.unwrap();
    let starter = processes_below(supervisor)[0];
    kill(starter);
    let adopted = host.await_vm(&spec, |vm| {
        vm.power == PowerState::Running
            && vm.supervisor_pid.is_some_and(|now| now != supervisor)
            && vm.volumes.iter().all(|volume| volume.state == VolumeState::Serving)
    });
    assert_eq!(adopted.qemu_pid, Some(qemu));
    kill(adopted.volumes[0].worker_pid.unwrap());
    host.await_vm(&spec, |vm| {
        vm.volumes.iter().any(|volume| volume.restarts == 1 && volume.state == VolumeState::Serving)
    });
    host.done(&spec, 1, OperationKind::Reset);
    host.console(&spec).await_line("ready");
    host.done(&spec, 1, FORCED);
    host.assert_nobody_left();
}

/// A supervisor that an attacker controls, with its starter.
struct Captured {
    starter: Child,
    wire: Wire,
}

/// A starter's answer, with its files.
type Answered = Result<(Value, Vec<OwnedFd>), String>;

impl Captured {
    /// For a VM that is off; its starter gets the task that hostd would send.
    fn of(host: &Host, spec: &VmSpec) -> Self {
        let (wire, theirs) = Wire::pair().unwrap();
        let starter = Command::new(std::env::current_exe().unwrap())
            .arg("vm-supervisor")
            .stdin(theirs)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let run = HostRunDirectory::at(&host.path("run")).unwrap().vm(spec.id);
        run.make().unwrap();
        let task = json!({ "StartProcesses": { "spec": spec, "generation": 1, "adopt": null } });
        let qemu = strongroom_hypervisor::qemu::DEFAULT_PROGRAM;
        let birth =
            json!({ "home": host.path("home"), "run": run.path(), "qemu": qemu, "grants": [], "task": task });
        wire.send(&birth, &[]).unwrap();
        Self { starter, wire }
    }

    fn ask(&self, ask: Value, files: &[BorrowedFd<'_>]) -> Answered {
        let (reply, theirs) = Wire::pair().unwrap();
        let files: Vec<_> = std::iter::once(theirs.as_fd()).chain(files.iter().copied()).collect();
        self.wire.send(&json!({ "ask": ask }), &files).unwrap();
        drop(files);
        drop(theirs);
        let (answer, files) = reply.receive_within::<Value>(SOON).unwrap();
        match answer["answer"].get("Failed") {
            Some(problem) => Err(problem["message"].as_str().unwrap().to_owned()),
            None => Ok((answer["answer"].clone(), files)),
        }
    }

    fn worker(&self, frontend: Value) -> Answered {
        self.worker_with(frontend, 0)
    }

    /// A worker that is asked for with so many pages of limits, none of which is sent.
    fn worker_with(&self, frontend: Value, limit_pages: usize) -> Answered {
        // A worker whose socket does not listen exits.
        let directory = tempfile::tempdir().unwrap();
        let listener = std::os::unix::net::UnixListener::bind(directory.path().join("socket")).unwrap();
        let worker =
            json!({ "program": 0, "frontend": frontend, "placement": null, "limit_pages": limit_pages });
        self.ask(json!({ "Worker": worker }), &[listener.as_fd()])
    }

    fn qemu(&self) -> Answered {
        let generation_id = "6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001";
        self.ask(json!({ "Qemu": { "generation_id": generation_id, "waiting": true } }), &[])
    }

    fn swtpm(&self) -> Answered {
        let (key, _) = std::io::pipe().unwrap();
        self.ask(json!("Swtpm"), &[key.as_fd()])
    }

    fn kill(&self, pid: &Value) {
        self.ask(json!({ "Kill": { "pid": pid } }), &[]).unwrap();
    }
}

fn place_tpm_state() -> Value {
    json!({ "PlaceTpmState": { "is_empty": false } })
}

/// A supervisor under an attacker's control can start only what its VM may need: as many processes
/// at once, of those kinds, with those arguments.
pub fn starter_is_asked_for_more() {
    let host = Host::start();
    // With a disk, QEMU would wait for the disk's server.
    let spec = host.spec("web1", 0);
    let captured = Captured::of(&host, &spec);
    let disk = json!({ "nbd": { "export": "disk0", "tls": null } });
    if rustix::process::geteuid().is_root() {
        has_as_many_workers_as_a_vm_needs(&captured, &disk);
    } else {
        has_no_more_living_workers_than_a_vm_needs(&captured, &disk);
    }

    // Frontends that no disk of a VM uses.
    let tls = json!({ "certificates": "", "authorities": "", "admitted": [] });
    let frontends = [
        json!({ "nbd": { "export": "disk0", "tls": tls } }),
        json!({ "nbd": { "export": "../disk0", "tls": null } }),
        json!({ "vhost_user": { "serial": "disk0", "queues_max": u16::MAX } }),
        json!({ "vhost_user": { "serial": "d".repeat(21), "queues_max": 1 } }),
    ];
    for frontend in frontends {
        let refused = captured.worker(frontend).unwrap_err();
        assert!(refused.contains("no disk of a VM"), "{refused}");
    }

    for limit_pages in [1, 2, usize::MAX] {
        let refused = captured.worker_with(disk.clone(), limit_pages).unwrap_err();
        assert!(refused.contains("with other files than it gets"), "{refused}");
    }

    // One QEMU, and no TPM for a VM without one.
    let (first, _) = captured.qemu().unwrap();
    let refused = captured.qemu().unwrap_err();
    assert!(refused.contains("runs already"), "{refused}");
    let asks = ["TpmState", "WatchTpm", "TpmGate", "TakeTpmState"].map(|ask| json!(ask));
    let asks = asks.into_iter().chain([place_tpm_state()]);
    let refused: Vec<_> = asks.map(|ask| captured.ask(ask, &[])).collect();
    for refused in refused.into_iter().chain([captured.swtpm()]) {
        let refused = refused.unwrap_err();
        assert!(refused.contains("has no TPM"), "{refused}");
    }
    assert!(captured.ask(json!("Orphan"), &[]).is_err());
    captured.kill(&first["Process"]["identity"]["pid"]);
    let (second, _) = captured.qemu().unwrap();
    captured.kill(&second["Process"]["identity"]["pid"]);

    // What swtpm has in a directory is not put elsewhere.
    let spec = VmSpec { tpm: true, ..host.spec("web2", 0) };
    let other = Captured::of(&host, &spec);
    let refused = other.ask(place_tpm_state(), &[]).unwrap_err();
    assert!(refused.contains("has its place"), "{refused}");
    let refused = other.ask(json!("TakeTpmState"), &[]).unwrap_err();
    assert!(refused.contains("is its swtpm's"), "{refused}");

    // The starter ends with its supervisor.
    for Captured { mut starter, wire } in [captured, other] {
        drop(wire);
        starter.wait().unwrap();
    }
}

/// Neither a supervisor under an attacker's control nor its starter opens a network that no order
/// of the control plane has named: the starter has no word for it, hostd opens only what an order
/// names and the host allows, and without hostd's open file a supervisor plugs no card in.
pub fn no_network_without_an_order() {
    let host = Host::start();
    let spec = host.spec("web1", 0);
    let captured = Captured::of(&host, &spec);
    let (first, _) = captured.qemu().unwrap();
    let tap = json!({ "tap": { "device": "tap-of-attack" } });
    for ask in [
        json!({ "Network": { "network": tap } }),
        json!({ "Nic": { "mac": "52:54:00:00:00:01", "network": "user" } }),
        json!({ "Qemu": { "generation_id": "6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001", "waiting": true,
            "nics": [{ "mac": "52:54:00:00:00:01", "network": tap }] } }),
        json!({ "Connect": { "to": "Network" } }),
    ] {
        let (reply, theirs) = Wire::pair().unwrap();
        captured.wire.send(&json!({ "ask": ask }), &[theirs.as_fd()]).unwrap();
        drop(theirs);
        match reply.receive_within::<Value>(SOON) {
            // It does not understand.
            Err(WireError::Gone) => {}
            // A second QEMU, without what it was asked to have beside.
            Ok((answer, files)) => {
                assert!(answer["answer"]["Failed"]["message"].as_str().unwrap().contains("runs already"));
                assert!(files.is_empty());
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(!Path::new("/sys/class/net/tap-of-attack").exists());
    captured.kill(&first["Process"]["identity"]["pid"]);
    let Captured { mut starter, wire } = captured;
    drop(wire);
    starter.wait().unwrap();

    let spec = host.spec("web2", 1);
    host.done(&spec, 0, host.create(&spec));
    host.import(&spec, &boot_sector());
    host.done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() });
    host.console(&spec).await_line("ready");
    let nic = Nic::new("52:54:00:00:00:02".parse().unwrap(), Network::User);
    let with = |nic: &Nic| VmSpec { nics: vec![nic.clone()], ..spec.clone() };
    let set = |spec: VmSpec, open: Vec<MacAddress>| OperationKind::SetNics { spec: Box::new(spec), open };
    // The order names the card, but does not have its network opened.
    assert_eq!(host.refused(&spec, 1, set(with(&nic), Vec::new())).code, "not_granted");
    // The order has the network of a card opened that it does not name.
    assert_eq!(host.refused(&spec, 1, set(spec.clone(), vec![nic.mac])).code, "bad_request");
    // The host does not allow it.
    let tap = Network::Tap { device: "tap-of-attack".parse().unwrap() };
    let other = Nic { network: tap, ..nic.clone() };
    assert_eq!(host.refused(&spec, 1, set(with(&other), vec![nic.mac])).code, "no_such_interface");
    assert!(!Path::new("/sys/class/net/tap-of-attack").exists());
    // Asked again, it has the card already, and what was opened is closed.
    host.done(&spec, 1, set(with(&nic), vec![nic.mac]));
    host.done(&spec, 1, set(with(&nic), vec![nic.mac]));
    host.done(&spec, 1, FORCED);
}

/// One worker for each possible disk and for UEFI's variables, and a successor for each.
const WORKERS_MAX: usize = 2 * (16 + 1);

fn has_as_many_workers_as_a_vm_needs(captured: &Captured, disk: &Value) {
    let workers: Vec<_> = std::iter::from_fn(|| captured.worker(disk.clone()).ok()).take(100).collect();
    assert_eq!(workers.len(), WORKERS_MAX);
    let refused = captured.worker(disk.clone()).unwrap_err();
    assert!(refused.contains("as many workers as it may have"), "{refused}");
    // The place of a dead worker is free again, whether its end was requested or not.
    let dies = &workers[0].0["Worker"]["pid"];
    captured.kill(dies);
    let successor = until("its place is free", || captured.worker(disk.clone()).ok());
    captured.kill(&successor.0["Worker"]["pid"]);
}

/// An ordinary user's limit of locked memory may be too small for so many rings. A worker without a
/// ring exits, and its place is free again.
fn has_no_more_living_workers_than_a_vm_needs(captured: &Captured, disk: &Value) {
    let lives = |(_, files): &(Value, Vec<OwnedFd>)| {
        let pidfd = &files[1];
        poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&Timespec::default())) == Ok(0)
    };
    let mut workers = Vec::new();
    for _ in 0..100 {
        workers.extend(captured.worker(disk.clone()).ok());
        assert!(workers.iter().filter(|worker| lives(worker)).count() <= WORKERS_MAX);
    }
    assert!(!workers.is_empty());
}

/// A job has no privileges by the time that it gets a key. Here it waits for a key server that
/// never answers, and is inspected meanwhile.
pub fn jobs() {
    let host = Host::start();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let pki = Pki::new();
    let identity = pki.client("host1");
    let config = ProviderConfig::new(SourceConfig::Kmip(KmipConfig {
        servers: vec![silent.local_addr().unwrap().to_string()],
        ca: pki.authority(),
        certificate: identity.certificate,
        key: identity.key,
        server_name: None,
        request_timeout_ms: 1_000,
        named_keys: true,
    }));
    Registry::of_home(&host.path("home")).add(&"away".parse().unwrap(), &config).unwrap();
    let spec = host.encrypted_vm("web1");
    let new = VmSpec { id: strongroom_types::VmId::random(), name: "web2".parse().unwrap(), ..spec.clone() };
    let begin = |spec: &VmSpec, kind: OperationKind| {
        let request = host.request(0, kind);
        host.operate(spec, &request).unwrap();
        request.operation
    };
    confined(&host, begin(&new, host.create(&new)));
    let mut larger = spec.clone();
    larger.disks.push(Disk { name: "disk1".parse().unwrap(), volume: None, ..spec.disks[0].clone() });
    confined(&host, begin(&spec, OperationKind::Configure { spec: Box::new(larger) }));
    for (format, image) in [(ImageFormat::Raw, vec![1; 4096]), (ImageFormat::Qcow2, qcow2(&[1; 4096]))] {
        let (operation, _client) = host.begin_import(&spec, "disk0", &image, format);
        confined(&host, operation);
    }
    for format in [ImageFormat::Raw, ImageFormat::Qcow2] {
        std::thread::scope(|scope| {
            let job = scope.spawn(|| confined_job(host.hostd_pid(), || ()));
            let (told, _) = host.export_as(&spec, "disk0", format);
            assert!(told.contains("key_unavailable") || told.contains("provider"), "{told}");
            job.join().unwrap();
        });
    }
}

/// Waits until the operation's job is confined, and then until it has given up.
fn confined(host: &Host, operation: OperationId) {
    let goes_on = || {
        let now = host.operation(operation);
        assert!(!now.state.is_final(), "it ended, and nobody was confined: {now:?}");
    };
    confined_job(host.hostd_pid(), goes_on);
    host.await_operation(operation);
}

/// Waits until a process that hostd started is confined, and checks that it has no privileges.
fn confined_job(hostd: u32, goes_on: impl Fn()) {
    let field = |pid: u32, field: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        Some(status.lines().find_map(|line| line.strip_prefix(field))?.trim().to_owned())
    };
    let job = until("its job is confined", || {
        goes_on();
        let filtered = |pid: &u32| field(*pid, "Seccomp:").as_deref() == Some("2");
        processes_below(hostd).into_iter().find(filtered)
    });
    let is_root = rustix::process::geteuid().is_root();
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        let held = field(job, set).unwrap();
        assert!((set == "CapBnd:" && !is_root) || held.chars().all(|digit| digit == '0'), "{set} {held}");
    }
    assert_eq!(field(job, "NoNewPrivs:").unwrap(), "1");
}

/// An image that only qemu-img can read.
fn qcow2(content: &[u8]) -> Vec<u8> {
    let scratch = tempfile::tempdir().unwrap();
    let [raw, qcow2] = ["raw", "qcow2"].map(|name| scratch.path().join(name));
    std::fs::write(&raw, content).unwrap();
    convert(&Image { format: "raw", path: &raw }, &Image { format: "qcow2", path: &qcow2 });
    std::fs::read(qcow2).unwrap()
}

/// An image for or from qemu-img.
pub struct Image<'path> {
    pub format: &'static str,
    pub path: &'path Path,
}

pub fn convert(from: &Image<'_>, to: &Image<'_>) {
    let mut command = Command::new("qemu-img");
    command.args(["convert", "-f", from.format, "-O", to.format]).args([from.path, to.path]);
    assert!(command.status().unwrap().success());
}

/// Work of a job in a separate process: qemu-img imports an image, and exports one.
pub fn images() {
    let host = Host::start();
    let spec = host.spec("web1", 1);
    host.done(&spec, 0, host.create(&spec));
    let (operation, _client) = host.begin_import(&spec, "disk0", &qcow2(&boot_sector()), ImageFormat::Auto);
    let ended = host.await_operation(operation);
    assert_eq!(ended.state, OperationState::Done, "{ended:?}");
    host.done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() });
    host.console(&spec).await_line("ready");
    host.done(&spec, 1, FORCED);
    let (told, mut image) = host.export_as(&spec, "disk0", ImageFormat::Qcow2);
    assert!(told.contains("done"), "{told}");
    let scratch = tempfile::tempdir().unwrap();
    let [raw, qcow2] = ["raw", "qcow2"].map(|name| scratch.path().join(name));
    image.rewind().unwrap();
    std::io::copy(&mut image, &mut std::fs::File::create(&qcow2).unwrap()).unwrap();
    convert(&Image { format: "qcow2", path: &qcow2 }, &Image { format: "raw", path: &raw });
    let content = boot_sector();
    assert_eq!(std::fs::read(raw).unwrap()[..content.len()], content);
    // An invalid image is reported as such.
    let (operation, _client) = host.begin_import(&spec, "disk0", &boot_sector(), ImageFormat::Qcow2);
    assert_eq!(host.await_operation(operation).state, OperationState::Failed);
    host.assert_nobody_left();
}
