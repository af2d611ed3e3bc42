//! A VM moves between two machines while its guest counts, in its memory and on its disk: the
//! program as administrators type it, the relay between the machines, and a recorder at the switch.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{
    Process, Scratch, datastore, put_test_guest, put_test_guest_for_uefi, seed, take_place,
};
use strongroom_test_peers::CephCluster;

use super::machines_support::{
    AT_THE_SWITCH, Cables, FIRST, Guests, Machine, Recorder, WITHIN, kill_all, living_qemus_of, qemus_of,
};
use super::vm_device_state::{define_tpm_index, tpm_marker, write_tpm_marker};

/// What the guest's memory is full of. It is typed in two parts, so that nothing but the memory has
/// the whole.
const MARKER: &str = "strongroom-memory-marker-5d1c";
const FILLS: &str = "m=strongroom-memory; m=$m-marker-5d1c; yes $m | head -c 20000000 > /full";
/// The guest counts in the second block of its disk, a write after the other.
const COUNTING: &str = "(n=0; while n=$((n+1)); do printf '%-4096d' $n | \
     dd of=/dev/vda bs=4096 seek=1 conv=notrunc,fsync 2>/dev/null; echo $n > /count; done) \
     </dev/null >/dev/null 2>&1 &";
/// How far the guest has counted. The file is empty for a moment before each write.
const HEARD: &str = "until c=$(cat /count) && [ -n \"$c\" ]; do :; done; echo $c";
/// What the guest has heard of, and then what the disk has.
const CHECKS: &str = "until c=$(cat /count) && [ -n \"$c\" ]; do :; done; d=$(dd if=/dev/vda bs=4096 skip=1 count=1 iflag=direct 2>/dev/null | \
     head -c 20); echo counted $c of $((d))";

/// What a guest that counts has in its memory, and how far it has come.
struct Counting {
    full: String,
    count: u64,
}

impl Counting {
    /// It counts on over a console of its present host, its memory is as it was, and its disk has
    /// every write that it has heard of.
    #[track_caller]
    fn goes_on(&mut self, machine: &Machine<'_>) {
        let mut console = machine.console("moving-guest-1");
        console.session.wait_until(&format!("[ $(cat /count) -gt {} ]", self.count));
        let said = console.session.run(CHECKS);
        let numbers: Vec<u64> = said.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [heard, written] = numbers[..] else { panic!("{said}") };
        assert!(written >= heard && heard > self.count, "{said} after {}", self.count);
        assert_eq!(console.session.run("md5sum /full"), self.full);
        self.count = heard;
    }
}

/// The first machine, which the other one reaches as a host, too.
fn starts_site(first: &Machine<'_>) -> Process {
    first.starts_site_with(&format!("--listen-guests {FIRST}:5691"))
}

/// What two machines have for VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Datastores {
    /// One, which both reach.
    Shared,
    /// One each, which the other one does not reach.
    Apart,
    /// One on a Ceph cluster at the switch, which both reach under names of their own.
    Cluster,
}

impl Datastores {
    /// That of a host.
    fn of(self, host: &str) -> &'static str {
        match (self, host) {
            (Self::Shared | Self::Cluster, _) => "shared",
            (Self::Apart, "host1") => "near",
            (Self::Apart, _) => "far",
        }
    }

    /// The command that moves the VM to a host.
    fn move_to(self, host: &str) -> String {
        let datastore = match self {
            Self::Shared | Self::Cluster => String::new(),
            Self::Apart => format!(" --datastore {}", self.of(host)),
        };
        format!("vm migrate moving-guest-1 --to {host}{datastore} --pause-ms 2000")
    }

    /// Nothing of the VM is in the datastore of the other host.
    #[track_caller]
    fn has_it_in_one(self, scratch: &Scratch, id: &str, host: &str) {
        let other = if host == "host1" { "host2" } else { "host1" };
        if self == Self::Apart {
            let is_of_it = |name: &String| name.contains("moving-guest-1") || name.contains(id);
            let names = std::fs::read_dir(scratch.path(self.of(other))).unwrap();
            let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert_eq!(names.filter(is_of_it).collect::<Vec<_>>(), [""; 0], "on {host}");
        }
    }

    /// The cluster, if there is one.
    fn cluster(self, cables: &Cables) -> Option<CephCluster> {
        (self == Self::Cluster).then(|| CephCluster::start_in(&cables.switch, AT_THE_SWITCH, 3))
    }

    /// Both machines are hosts of one site.
    fn of_one_site(
        self,
        scratch: &Scratch,
        [first, second]: [&Machine<'_>; 2],
        cluster: Option<&mut CephCluster>,
    ) -> [Process; 2] {
        first.takes_guests_kernel();
        let serving = [starts_site(first), first.lets_join(second)];
        let path = |host| scratch.make_directory(self.of(host));
        match self {
            Self::Cluster => {
                let cluster = cluster.expect("a cluster");
                let (conf, keyring) = (cluster.conf.clone(), cluster.conf.with_file_name("keyring"));
                let files = format!("--conf {} --keyring {}", conf.display(), keyring.display());
                for user in ["client.host1", "client.host2"] {
                    cluster.add_user(user);
                }
                let add = "datastore add shared --rbd rep2 --host host1 --user client.host1";
                first.runs(&format!("{add} {files}"));
                first.runs(&format!("datastore add-host shared --host host2 --user client.host2 {files}"));
            }
            Self::Shared => {
                first.runs(&format!("datastore add shared {} --host host1", path("host1").display()));
                first.runs("datastore add-host shared --host host2");
            }
            Self::Apart => {
                for host in ["host1", "host2"] {
                    let (name, path) = (self.of(host), path(host));
                    first.runs(&format!("datastore add {name} {} --host {host}", path.display()));
                }
            }
        }
        serving
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_running_vm_moves_between_hosts_and_the_wire_sees_nothing() {
    moves_unseen(Datastores::Shared);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_running_vm_moves_with_its_volumes_and_the_wire_sees_nothing() {
    moves_unseen(Datastores::Apart);
}

fn moves_unseen(datastores: Datastores) {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let guest = put_test_guest(&scratch);
    let [site, host] = datastores.of_one_site(&scratch, [&first, &second], None);
    first.runs(&format!(
        "vm create moving-guest-1 --datastore {} --host host1 --memory 256M --net none --disk 16M --machine pc {guest}",
        datastores.of("host1")
    ));
    let id = first.json("vm show moving-guest-1")["id"].as_str().unwrap().to_owned();
    let runs_on = |run: &str| qemus_of(&scratch, run, &id).len();
    let _place = take_place();
    first.runs("vm start moving-guest-1");
    let mut console = first.console("moving-guest-1");
    console.wait_until_ready();
    let full = console.session.run(&format!("{FILLS}; md5sum /full"));
    console.session.run(COUNTING);
    drop(console);
    let mut guest = Counting { full, count: 2 };
    guest.goes_on(&first);

    let recorder = Recorder::start(&scratch, &cables, "wire");
    recorder.sees_what_is_plain(&first);
    for (to, runs, channels) in [("host2", (0, 1), 1), ("host1", (1, 0), 3), ("host2", (0, 1), 8)] {
        first.runs(&format!("{} --channels {channels}", datastores.move_to(to)));
        let vm = first.json("vm show moving-guest-1");
        assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some(to)), "{vm}");
        assert_eq!((runs_on("first-run"), runs_on("run")), runs, "on {to}");
        guest.goes_on(&first);
        datastores.has_it_in_one(&scratch, &id, to);
    }
    let recorded = recorder.end();
    assert!(recorded.packets > 10_000, "{recorded:?}");
    // The name is long enough not to be in so much ciphertext by chance.
    for secret in [MARKER, "moving-guest-1", &id] {
        assert_eq!(recorded.occurrences(secret), 0, "{secret} was on the wire");
    }
    let audit = scratch.path("first-home/keyserver/audit");
    assert!(datastore::occurrences(&audit, b"the memory of VM moving-guest-1 passes to host host2") > 0);

    // The machine that it has left knows nothing of it, also after a restart, and the one that has
    // it keeps it.
    site.kill();
    let site = starts_site(&first);
    host.kill();
    let host = second.starts_host("");
    first.wait_until("vm show moving-guest-1", "is known again", |vm| vm["power"] == "running");
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));

    // Cancelled in the middle, it runs where it ran.
    let task = first.json(&format!("{} --bandwidth 1M --no-wait", datastores.move_to("host1")));
    let show = format!("task show {}", task["id"].as_str().unwrap());
    first.wait_until(&show, "is under way", |task| task["progress"]["done"].as_u64() > Some(1 << 20));
    first.runs(&format!("task cancel {}", task["id"].as_str().unwrap()));
    let ended = first.wait_until(&show, "has ended", |task| task["state"] != "running");
    assert_eq!(ended["state"], "cancelled", "{ended}");
    guest.goes_on(&first);
    assert_eq!((runs_on("first-run"), runs_on("run")), (0, 1));
    datastores.has_it_in_one(&scratch, &id, "host2");

    // The machine in maintenance gives up what runs.
    match datastores {
        Datastores::Shared | Datastores::Cluster => first.runs("host evacuate host2"),
        Datastores::Apart => first.runs(&datastores.move_to("host1")),
    };
    let vm = first.json("vm show moving-guest-1");
    assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some("host1")), "{vm}");
    guest.goes_on(&first);
    first.runs("vm stop moving-guest-1 --force");
    first.runs("vm delete moving-guest-1 --yes");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}

/// A variable of the firmware, and a text for the guest's swapped-out memory.
const VARIABLE: &str = "/sys/firmware/efi/efivars/Strongroom-3c8b1d52-7a0e-4f0c-9a3e-6f6d3c1f0b55";
const SWAPPED: &str = "strongroom-swap-marker-7e21";
/// What the firmware has measured of itself and its configuration.
const MEASURED: &str = "cat /sys/class/tpm/tpm0/pcr-sha256/0 /sys/class/tpm/tpm0/pcr-sha256/7";

/// UEFI's variables, a disk for swap and cloud-init's data are reached by NBD, and QEMU reads some
/// of it before the other machine has given it up. Its TPM goes on without a reset.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn what_a_vm_has_beside_its_disks_moves_with_it() {
    moves_all(Datastores::Shared);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn what_a_vm_has_beside_its_disks_moves_with_its_volumes() {
    moves_all(Datastores::Apart);
}

fn moves_all(datastores: Datastores) {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let guest = put_test_guest_for_uefi(&scratch);
    let [site, host] = datastores.of_one_site(&scratch, [&first, &second], None);
    // The state of a TPM is in a directory of its host.
    let has_tpm = datastores == Datastores::Shared;
    let user_data = scratch.path("user-data");
    std::fs::write(&user_data, "#cloud-config\n# moves\n").unwrap();
    first.runs(&format!(
        "vm create moving-guest-1 --datastore {} --host host1 --memory 256M --net none --disk 16M --swap 32M --uefi \
         {} --user-data {} {guest}",
        datastores.of("host1"),
        if has_tpm { "--tpm" } else { "" },
        user_data.display()
    ));
    let swap = scratch.path(&format!("{}/moving-guest-1/swap0", datastores.of("host2")));
    let _place = take_place();
    first.runs("vm start moving-guest-1");
    let mut console = first.console("moving-guest-1");
    console.wait_until_ready();
    console
        .session
        .run("insmod /lib/modules/efivarfs.ko && mount -t efivarfs none /sys/firmware/efi/efivars");
    for module in ["fat", "vfat", "nls_cp437", "nls_ascii"] {
        console.session.run(&format!("insmod /lib/modules/{module}.ko"));
    }
    console.session.run(&format!(
        "echo {SWAPPED} > text; dd if=text of=/dev/vdb bs=4096 seek=100 conv=sync,fsync 2>&1; {COUNTING}"
    ));
    let mut measured = String::new();
    if has_tpm {
        define_tpm_index(&mut console);
        measured = console.session.run(MEASURED);
        assert!(measured.len() > 64, "{measured}");
    }
    drop(console);
    let mut written: Vec<String> = Vec::new();
    for (at, to) in ["host2", "host1", "host2"].into_iter().enumerate() {
        let name = VARIABLE.replace("Strongroom", &format!("Before{at}"));
        // Non-volatile, for boot and run time (UEFI 2.10, 8.2).
        let text = format!("printf '\\007\\000\\000\\000written{at}' > {name}");
        let mut console = first.console("moving-guest-1");
        console.session.run(&text);
        let in_tpm = format!("strongroom-tpm-marker-moved-{at:04}");
        if has_tpm {
            write_tpm_marker(&mut console, &in_tpm);
        }
        drop(console);
        written.push(name);
        first.runs(&datastores.move_to(to));
        assert_eq!(first.json("vm show moving-guest-1")["host"], to);
        let mut console = first.console("moving-guest-1");
        for (at, name) in written.iter().enumerate() {
            assert!(console.session.run(&format!("cat {name}")).contains(&format!("written{at}")), "{to}");
        }
        if has_tpm {
            assert_eq!(tpm_marker(&mut console), in_tpm, "{to}");
            assert_eq!(console.session.run(MEASURED), measured, "{to}");
        }
        let swapped = "dd if=/dev/vdb bs=4096 skip=100 count=1 iflag=direct 2>/dev/null | tr -d '\\000'";
        assert!(console.session.run(swapped).contains(SWAPPED), "{to}");
        console.session.run("mount -r -t vfat /dev/vdc /mnt");
        assert!(console.session.run("cat /mnt/user-data; umount /mnt").contains("# moves"), "{to}");
        let counted = console.session.run(HEARD).trim().parse::<u64>().unwrap();
        console.session.wait_until(&format!("[ $(cat /count) -gt {counted} ]"));
    }
    assert!(swap.exists());
    first.runs("vm stop moving-guest-1 --force");
    assert!(!swap.exists(), "what was swapped out outlives the guest");
    // The firmware has what was written before the last move, also after it boots.
    first.runs("vm start moving-guest-1");
    let mut console = first.console("moving-guest-1");
    console.wait_until_ready();
    console
        .session
        .run("insmod /lib/modules/efivarfs.ko && mount -t efivarfs none /sys/firmware/efi/efivars");
    for (at, name) in written.iter().enumerate() {
        assert!(console.session.run(&format!("cat {name}")).contains(&format!("written{at}")));
    }
    if has_tpm {
        assert_eq!(tpm_marker(&mut console), "strongroom-tpm-marker-moved-0002");
    }
    drop(console);
    first.runs("vm stop moving-guest-1 --force");
    first.runs("vm delete moving-guest-1 --yes");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}

/// A policy gives up secrecy: the wire has the memory of a VM that was never encrypted. Once it
/// was, nothing of it is there any more.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn memory_is_on_the_wire_as_a_policy_has_it_until_the_vm_was_encrypted() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, &cables, 0);
    let second = Machine::new(&scratch, &cables, 1);
    let guest = put_test_guest(&scratch);
    let [site, host] = Datastores::Shared.of_one_site(&scratch, [&first, &second], None);
    first.runs("policy create lab --migration disabled");
    first.runs(&format!(
        "vm create moving-guest-1 --datastore shared --host host1 --memory 192M --net none --disk 16M --machine pc \
         --policy lab --unencrypted {guest}"
    ));
    let _place = take_place();
    let moved = |name: &str, to: &str| {
        first.runs("vm start moving-guest-1");
        let mut console = first.console("moving-guest-1");
        console.wait_until_ready();
        let full = console.session.run(&format!("{FILLS}; md5sum /full"));
        drop(console);
        let recorder = Recorder::start(&scratch, &cables, name);
        recorder.sees_what_is_plain(&first);
        first.runs(&format!("vm migrate moving-guest-1 --to {to} --pause-ms 2000"));
        let recorded = recorder.end();
        assert!(recorded.packets > 1000, "{recorded:?}");
        assert_eq!(first.console("moving-guest-1").session.run("md5sum /full"), full);
        first.runs("vm stop moving-guest-1 --force");
        recorded.occurrences(MARKER)
    };
    let found = moved("plain", "host2");
    assert!(found > 1000, "{found} times on the wire");
    assert_eq!(first.json("vm show moving-guest-1")["migration"], "disabled");
    let audit = scratch.path("first-home/keyserver/audit");
    let recorded = b"the memory of VM moving-guest-1 passes to host host2 in plain text";
    assert!(datastore::occurrences(&audit, recorded) > 0);
    first.runs("vm disk encrypt moving-guest-1 disk0");
    first.runs("vm disk decrypt moving-guest-1 disk0");
    let vm = first.json("vm show moving-guest-1");
    assert_eq!(
        (vm["migration"].as_str(), vm["migration_overruled"].as_str()),
        (Some("required"), Some("disabled"))
    );
    assert_eq!(moved("encrypted", "host1"), 0);
    first.runs("vm delete moving-guest-1 --yes");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}

/// What happens during a move.
#[derive(Clone, Copy, Debug)]
enum Blow {
    Nothing,
    /// The control plane's process is killed.
    Control,
    /// The key server's process is killed.
    KeyServer,
    /// hostd of a machine is killed.
    Hostd(usize),
    /// A relay, the supervisor or the worker of the VM is killed, on either machine.
    Part(&'static str),
    /// The QEMU of the VM is killed, on the machine with this number.
    Qemu(usize),
    /// The second machine is cut off for a while.
    Cut,
}

const BLOWS: [Blow; 11] = [
    Blow::Nothing,
    Blow::Control,
    Blow::KeyServer,
    Blow::Hostd(0),
    Blow::Hostd(1),
    Blow::Part("memory-relay"),
    Blow::Part("vm-supervisor"),
    Blow::Part(" worker"),
    Blow::Qemu(0),
    Blow::Qemu(1),
    Blow::Cut,
];

/// The guest reads its count before it writes the next one. If it is another one than it wrote,
/// another guest writes, too, or an acknowledged write is lost.
const COUNTING_ALONE: &str = "has() { v=$(dd if=/dev/vda bs=4096 skip=1 count=1 iflag=direct 2>/dev/null | \
     tr -d '\\000 '); echo ${v:-0}; }; n=$(has); echo $n > /count; (while true; do v=$(has); [ $v = $n ] || \
     { echo $v, not $n > /broken; break; }; n=$((n+1)); printf '%-4096d' $n | \
     dd of=/dev/vda bs=4096 seek=1 conv=notrunc,fsync 2>/dev/null; echo $n > /count; done) \
     </dev/null >/dev/null 2>&1 &";

fn rounds() -> usize {
    std::env::var("MIGRATION_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3)
}

/// Moves to and fro, and each time something is killed or cut off. The guest is on one machine
/// then, with its memory unless its QEMU was killed, and no write that it has heard of is lost.
#[test]
#[ignore = "long: make migrations"]
fn a_vm_moves_between_hosts_whatever_is_killed_or_cut_off() {
    moves_harmed(Datastores::Shared);
}

/// The same, between hosts that share nothing.
#[test]
#[ignore = "long: make migrations"]
fn a_vm_moves_with_its_volumes_whatever_is_killed_or_cut_off() {
    moves_harmed(Datastores::Apart);
}

/// The same, on a Ceph cluster, from which a machine that is cut off is cut off, too.
#[test]
#[ignore = "long: make migrations"]
fn a_vm_moves_on_a_cluster_whatever_is_killed_or_cut_off() {
    moves_harmed(Datastores::Cluster);
}

fn moves_harmed(datastores: Datastores) {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let seed = seed();
    println!("STRONGROOM_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let cables = Cables::lay(2);
    let mut cluster = datastores.cluster(&cables);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let machines = [0, 1].map(|number| Machine::with_identity(&scratch, &cables, number));
    let [first, second] = &machines;
    let guest = put_test_guest(&scratch);
    let [site, host] = datastores.of_one_site(&scratch, [first, second], cluster.as_mut());
    let mut host = Some(host);
    first.runs(&format!(
        "vm create moving-guest-1 --datastore {} --host host1 --memory 192M --net none --disk 16M --restart never \
         --machine pc {guest}",
        datastores.of("host1")
    ));
    let id = first.json("vm show moving-guest-1")["id"].as_str().unwrap().to_owned();
    let _place = take_place();
    let (mut heard, mut boots, mut moved) = (0, 0, 0);
    for round in 0..rounds() {
        for machine in &machines {
            let show = format!("host show {}", machine.host());
            first.wait_until(&show, "answers", |host| host["state"] == "connected");
        }
        let vm = first.json("vm show moving-guest-1");
        if vm["power"] != "running" {
            first.runs("vm start moving-guest-1");
            let mut console = first.console("moving-guest-1");
            console.wait_until_ready();
            console.session.run(&format!("{FILLS}; {COUNTING_ALONE}"));
            console.session.wait_until(&format!("[ $(cat /count) -gt {heard} ]"));
            boots += 1;
        }
        let from = first.json("vm show moving-guest-1")["host"].as_str().unwrap().to_owned();
        let to = if from == "host1" { "host2" } else { "host1" };
        let blow = BLOWS[random.random_range(0..BLOWS.len())];
        let before = Duration::from_millis(random.random_range(0..3000));
        println!("round {round}: to {to}; {blow:?} after {before:?}");
        let channels = random.random_range(1..=4);
        let task = first.json(&format!("{} --channels {channels} --no-wait", datastores.move_to(to)));
        std::thread::sleep(before);
        let mut killed = Vec::new();
        match blow {
            Blow::Nothing => {}
            Blow::Control => kill_all(&cables.ends[..1], "--role control"),
            Blow::KeyServer => kill_all(&cables.ends[..1], "keyserver run"),
            // `serve` starts it again.
            Blow::Hostd(0) => kill_all(&cables.ends[..1], "serve --role host"),
            Blow::Hostd(_) => {
                host.take().unwrap().kill();
                host = Some(second.starts_host(""));
            }
            Blow::Part(words) => kill_all(&cables.ends, words),
            Blow::Qemu(number) => {
                killed = living_qemus_of(&scratch, machines[number].run(), &id);
                for pid in killed.iter().filter_map(|pid| Pid::from_raw(*pid as i32)) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            Blow::Cut => {
                cables.cut(1);
                std::thread::sleep(Duration::from_millis(random.random_range(100..4000)));
                cables.mend(1);
            }
        }
        let show = format!("task show {}", task["id"].as_str().unwrap());
        let task = first.wait_until(&show, "has ended", |task| task["state"] != "running");
        println!("    {} {}", task["state"], task["error"]["message"]);
        moved += usize::from(task["state"] == "done");
        // What was killed just now may not be noticed yet.
        let lives_on = |vm: &Value| {
            let machine = machines.iter().find(|machine| vm["host"] == machine.host().as_str()).unwrap();
            qemus_of(&scratch, machine.run(), &id).iter().any(|pid| !killed.contains(pid))
        };
        let is_known = |vm: &Value| {
            let power = vm["power"].as_str().unwrap_or_default();
            ["stopped", "crashed"].contains(&power) || (power == "running" && lives_on(vm))
        };
        let vm = first.wait_until("vm show moving-guest-1", "is known", is_known);
        let (runs, is_on) = (vm["power"] == "running", vm["host"].as_str().unwrap().to_owned());
        // What is left on the other machine is ended.
        for machine in &machines {
            if !(runs && is_on == machine.host()) {
                machine.wait_until_gone(&id);
            }
        }
        datastores.has_it_in_one(&scratch, &id, &is_on);
        if !runs {
            continue;
        }
        // To open a console is put on record there.
        first.wait_until("keyserver status", "answers", |_| true);
        let mut console = first.console("moving-guest-1");
        console.session.wait_until(&format!("[ -e /broken ] || [ $(cat /count) -gt {heard} ]"));
        let broken = console.session.run("cat /broken 2>/dev/null; true");
        assert_eq!(broken.trim(), "", "a write was lost, or another guest wrote");
        heard = console.session.run(HEARD).trim().parse::<u64>().unwrap();
    }
    println!("{} moves of {} rounds, {boots} boots, counted to {heard}", moved, rounds());
    assert!(moved > 0 && heard > 0);
    let _ = first.tries("vm stop moving-guest-1 --force");
    first.runs("vm delete moving-guest-1 --yes");
    host.take().unwrap().terminate(WITHIN);
    site.terminate(WITHIN);
}
