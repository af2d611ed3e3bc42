//! Three machines and one datastore: VMs are started, moved and evacuated while daemons are killed
//! and machines are cut off at random. No VM ever runs twice, none is lost, and each keeps what is
//! on its disks.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{Process, Scratch, put_test_guest, seed, take_place};

use super::machines_support::{Cables, Guests, Machine, WITHIN, qemus_of};

/// The number of requests that something is killed or cut off during.
const ROUNDS: usize = if cfg!(feature = "full") { 60 } else { 5 };
/// The VMs: the first two have guests.
const VMS: [&str; 3] = ["web1", "web2", "data1"];

/// What happens during a request.
#[derive(Clone, Copy, Debug)]
enum Blow {
    /// The control plane's process is killed.
    Control,
    /// The key server's process is killed.
    KeyServer,
    /// hostd of the first machine is killed.
    FirstHostd,
    /// Everything of the first machine but its VMs is killed.
    Site,
    /// hostd of another machine is killed.
    Host(usize),
    /// Another machine is cut off.
    Cut(usize),
}

const BLOWS: [Blow; 8] = [
    Blow::Control,
    Blow::KeyServer,
    Blow::FirstHostd,
    Blow::Site,
    Blow::Host(1),
    Blow::Host(2),
    Blow::Cut(1),
    Blow::Cut(2),
];

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn three_machines_run_each_vm_once_whatever_is_killed_or_cut_off() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let seed = seed();
    println!("STRONGROOM_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let cables = Cables::lay(3);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let _places = [take_place(), take_place()];
    let mut site = Site::begin(&scratch, &cables);
    for round in 0..ROUNDS {
        let wish = site.wish(&mut random);
        let blow = BLOWS[random.random_range(0..BLOWS.len())];
        let (before, after) = (random.random_range(0..600), random.random_range(0..1500));
        println!("round {round}: {wish}; {blow:?} after {before} ms, mended after {after} ms");
        let task = site.first().json(&format!("{wish} --no-wait"));
        thread::sleep(Duration::from_millis(before));
        site.strike(blow, Duration::from_millis(after));
        site.settles(&task);
    }
    site.end();
}

struct Site<'test> {
    scratch: &'test Scratch,
    cables: &'test Cables,
    machines: [Machine<'test>; 3],
    /// What serves on each machine.
    serving: [Option<Process>; 3],
    ids: BTreeMap<&'static str, String>,
    watch: Watch,
}

impl<'test> Site<'test> {
    fn begin(scratch: &'test Scratch, cables: &'test Cables) -> Self {
        let machines = [0, 1, 2].map(|number| Machine::new(scratch, cables, number));
        let guest = put_test_guest(scratch);
        for machine in &machines {
            machine.takes_guests_kernel();
        }
        let [first, second, third] = &machines;
        let serving = [first.starts_site(), first.lets_join(second), first.lets_join(third)].map(Some);
        let shared = scratch.make_directory("shared");
        first.runs(&format!("datastore add shared {} --host host1", shared.display()));
        for host in ["host2", "host3"] {
            first.runs(&format!("datastore add-host shared --host {host}"));
        }
        let mut content = vec![0; 8 << 20];
        for (number, vm) in VMS.iter().enumerate() {
            StdRng::seed_from_u64(number as u64).fill(&mut content[..]);
            fs::write(scratch.path(&format!("{vm}.raw")), &content).unwrap();
            let machine = if number < 2 { format!("--machine pc {guest}") } else { String::new() };
            first.runs(&format!(
                "vm create {vm} --datastore shared --host host1 --memory 192M --net none --disk 8M --swap 8M --image {vm}.raw {machine}"
            ));
        }
        let ids: BTreeMap<_, _> = VMS.iter().map(|vm| (*vm, id(first, vm))).collect();
        let watch = Watch::begin(scratch, ids.values().cloned().collect());
        Self { scratch, cables, machines, serving, ids, watch }
    }

    fn first(&self) -> &Machine<'test> {
        &self.machines[0]
    }

    /// A request whose preconditions are met.
    fn wish(&self, random: &mut StdRng) -> String {
        let host = |random: &mut StdRng| format!("host{}", random.random_range(1..4));
        if random.random_ratio(1, 4) {
            return format!("host evacuate {} --shut-down --timeout 1", host(random));
        }
        let name = VMS[random.random_range(0..VMS.len())];
        let vm = self.first().json(&format!("vm show {name}"));
        let runs = vm["power"] == "running";
        // The third VM has nothing to boot from.
        if name == "data1" || random.random_bool(0.5) {
            let others = ["host1", "host2", "host3"].into_iter().filter(|host| vm["host"] != *host);
            let to = others.collect::<Vec<_>>()[random.random_range(0..2)];
            if runs {
                self.first().runs(&format!("vm stop {name} --force"));
            }
            return format!("vm migrate {name} --to {to}");
        }
        if runs { format!("vm stop {name} --force") } else { format!("vm start {name}") }
    }

    /// Something is killed or cut off, and mended.
    fn strike(&mut self, blow: Blow, after: Duration) {
        let kills = |words: &[&str]| {
            // Daemons that are killed are started again by `serve`.
            let serve = self.serving[0].as_ref().unwrap();
            kill_process(serve.child(words), Signal::KILL).unwrap();
            thread::sleep(after);
        };
        match blow {
            Blow::Control => kills(&["serve", "--role control"]),
            Blow::KeyServer => kills(&["keyserver", "run"]),
            Blow::FirstHostd => kills(&["serve", "--role host"]),
            Blow::Site => {
                self.serving[0].take().unwrap().kill();
                thread::sleep(after);
                self.serving[0] = Some(self.machines[0].starts_site());
            }
            Blow::Host(number) => {
                self.serving[number].take().unwrap().kill();
                thread::sleep(after);
                self.serving[number] = Some(self.machines[number].starts_host(""));
            }
            Blow::Cut(number) => {
                self.cables.cut(number);
                // Until the control plane notices, or only for a moment.
                if after > Duration::from_secs(1) {
                    let show = format!("host show host{}", number + 1);
                    self.first().wait_until(&show, "is away", |host| host["state"] == "disconnected");
                }
                thread::sleep(after);
                self.cables.mend(number);
            }
        }
    }

    /// Waits until nothing is left to do, and compares what runs with the inventory.
    fn settles(&self, task: &Value) {
        let first = self.first();
        for number in 1..=3 {
            let show = format!("host show host{number}");
            first.wait_until(&show, "answers", |host| host["state"] == "connected");
        }
        let show = format!("task show {}", task["id"].as_str().unwrap());
        let task = first.wait_until(&show, "has ended", |task| task["state"] != "running");
        println!("    {} {}", task["state"], task["error"]["message"]);
        let is_over =
            |tasks: &Value| tasks["items"].as_array().unwrap().iter().all(|task| task["state"] != "running");
        first.wait_until("task list", "all have ended", is_over);
        for number in 1..=3 {
            first.runs(&format!("host maintenance host{number} off"));
        }
        for (name, id) in &self.ids {
            let is_settled = |vm: &Value| vm["power"] == "running" || vm["power"] == "stopped";
            let vm = first.wait_until(&format!("vm show {name}"), "is known", is_settled);
            let of_host = |machine: &Machine<'_>| {
                let is_meant = |pid: &u64| self.watch.now(id).contains(pid);
                qemus_of(self.scratch, machine.run(), id).into_iter().filter(is_meant).count()
            };
            for machine in &self.machines {
                let runs_here = vm["power"] == "running" && vm["host"] == machine.host().as_str();
                assert_eq!(of_host(machine), usize::from(runs_here), "{name} on {}: {vm}", machine.host());
            }
        }
        self.watch.nothing_ran_twice();
    }

    /// Each VM has what was on its disk in the beginning.
    fn end(mut self) {
        for name in VMS {
            let vm = self.first().json(&format!("vm show {name}"));
            if vm["power"] == "running" {
                self.first().runs(&format!("vm stop {name} --force"));
            }
            if vm["host"] != "host1" {
                self.first().runs(&format!("vm migrate {name} --to host1"));
            }
            self.first().runs(&format!("vm export {name} {name}.after --format raw"));
            let read = |file: &str| fs::read(self.scratch.path(file)).unwrap();
            assert!(read(&format!("{name}.after")) == read(&format!("{name}.raw")), "{name} lost content");
            self.first().runs(&format!("vm delete {name} --yes"));
        }
        self.watch.nothing_ran_twice();
        for process in self.serving.iter_mut().rev() {
            process.take().unwrap().terminate(WITHIN);
        }
    }
}

fn id(machine: &Machine<'_>, vm: &str) -> String {
    machine.json(&format!("vm show {vm}"))["id"].as_str().unwrap().to_owned()
}

/// Looks all the time at which VMs have a QEMU.
struct Watch {
    directory: String,
    is_over: Arc<AtomicBool>,
    has_met_two: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    fn begin(scratch: &Scratch, vms: Vec<String>) -> Self {
        let directory = scratch.path("").display().to_string();
        let is_over = Arc::new(AtomicBool::new(false));
        let has_met_two = Arc::new(AtomicBool::new(false));
        let looks = {
            let (directory, is_over, has_met_two) =
                (directory.clone(), Arc::clone(&is_over), Arc::clone(&has_met_two));
            move || {
                while !is_over.load(Ordering::Relaxed) {
                    if vms.iter().any(|vm| qemus(&directory, vm).len() > 1) {
                        has_met_two.store(true, Ordering::Relaxed);
                    }
                    thread::sleep(Duration::from_millis(50));
                }
            }
        };
        Self { directory, is_over, has_met_two, thread: Some(thread::spawn(looks)) }
    }

    /// The QEMUs of a VM, on whichever machine.
    fn now(&self, vm: &str) -> Vec<u64> {
        qemus(&self.directory, vm)
    }

    #[track_caller]
    fn nothing_ran_twice(&self) {
        assert!(!self.has_met_two.load(Ordering::Relaxed), "a VM had two QEMUs at the same time");
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The processes that are a VM's QEMU, of the test with this directory.
fn qemus(directory: &str, vm: &str) -> Vec<u64> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u64>().ok());
    let is_one = |pid: &u64| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        let mut words = line.split('\0');
        words.next().is_some_and(|program| program.contains("qemu-system"))
            && words.any(|word| word == vm)
            && line.contains(directory)
    };
    pids.filter(is_one).collect()
}
