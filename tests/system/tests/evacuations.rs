//! A machine is evacuated of many VMs that run, and dies in the middle of it.

use std::time::Instant;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{Scratch, take_place};

use super::machines_support::{Cables, FIRST, Guests, Machine, WITHIN, kill_all, living_qemus_of};

/// How many VMs.
const VMS: usize = 20;
/// How many take their volumes along.
const WITH_VOLUMES: usize = 6;

/// A guest that sleeps until it is asked. For a `w` it counts in its memory, writes the count to
/// its disk, and then says it: so what was said was acknowledged. For an `r` it says what the disk
/// has, 32 letters on: a console begins with what was said before.
fn image() -> Vec<u8> {
    let code: &[u8] = &[
        0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, // ds = es = 0
        0xc6, 0x06, 0x00, 0x80, b'0', // count = 0
        0xba, 0xf8, 0x03, 0xbe, 106, 0x7c, // dx = COM1, si = text
        0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // say it to its zero byte
        0xfb, 0xf4, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xf6, // sleep until there is a byte
        0xba, 0xf8, 0x03, 0xec, 0x3c, b'r', 0x74, 0x1d, 0x3c, b'w', 0x75, 0xea, // an r, or a w?
        0xfe, 0x06, 0x00, 0x80, // count
        0xb8, 0x01, 0x03, 0xbb, 0x00, 0x80, 0xb9, 0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13, // write
        0x72, 0x1c, 0xa0, 0x00, 0x80, 0xeb, 0x19, // al = count
        0xb8, 0x01, 0x02, 0xbb, 0x00, 0x82, 0xb9, 0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13, // read
        0x72, 0x07, 0xa0, 0x00, 0x82, 0x04, 0x20, 0xeb, 0x02, // al = what the disk has, changed
        0xb0, b'!', // al = an error
        0xba, 0xf8, 0x03, 0xee, 0xb0, 0x0a, 0xee, 0xeb, 0xaf, // say it
    ];
    assert_eq!(code.len(), 106);
    let mut disk = code.to_vec();
    disk.extend(b"ready\r\n\0");
    disk.resize(510, 0);
    disk.extend([0x55, 0xaa]);
    disk.resize(1 << 20, 0);
    disk
}

/// The VMs, with what their guests have counted to.
struct Vms<'test> {
    scratch: &'test Scratch,
    first: &'test Machine<'test>,
    machines: [&'test Machine<'test>; 2],
    ids: Vec<String>,
    counts: Vec<u8>,
}

impl<'test> Vms<'test> {
    /// Makes so many on the first machine, and starts them. They are told apart by their counts.
    fn make(
        scratch: &'test Scratch,
        machines: [&'test Machine<'test>; 2],
        datastore: &str,
        many: usize,
    ) -> Self {
        let first = machines[0];
        let mut vms = Self { scratch, first, machines, ids: Vec::new(), counts: vec![b'0'; many] };
        let path = scratch.path("boot.raw");
        std::fs::write(&path, image()).unwrap();
        for number in 0..many {
            let name = Self::name(number);
            first.runs(&format!(
                "vm create {name} --datastore {datastore} --host host1 --memory 32M --net none --disk 1M --image {} \
                 --machine pc --restart never",
                path.display()
            ));
            vms.ids.push(vms.shown(number)["id"].as_str().unwrap().to_owned());
            vms.start(number);
        }
        for (number, count) in vms.counts.iter_mut().enumerate() {
            let mut console = first.console(&Self::name(number));
            for _ in 0..=number {
                *count += 1;
                console.session.ask("w", &char::from(*count).to_string());
            }
        }
        vms
    }

    fn stop(&self) {
        (0..self.ids.len()).for_each(|number| {
            self.first.runs(&format!("vm stop {} --force", Self::name(number)));
        });
    }

    fn name(number: usize) -> String {
        format!("vm{number}")
    }

    /// Each counts on, with its memory.
    fn work(&mut self) {
        for (number, count) in self.counts.iter_mut().enumerate() {
            let mut console = self.first.console(&Self::name(number));
            *count += 1;
            console.session.ask("w", &char::from(*count).to_string());
        }
    }

    /// The machines' QEMUs of a VM.
    fn runs_on(&self, number: usize) -> Vec<String> {
        let has = |machine: &&&Machine<'_>| {
            !living_qemus_of(self.scratch, machine.run(), &self.ids[number]).is_empty()
        };
        self.machines.iter().filter(has).map(|machine| machine.host()).collect()
    }

    /// Starts a VM, and waits until its guest has booted.
    fn start(&self, number: usize) {
        let name = Self::name(number);
        self.first.runs(&format!("vm start {name}"));
        let until = Instant::now() + WITHIN;
        loop {
            let told = self.first.tries(&format!("vm console {name} --history"));
            if told.status.success() && told.stdout.trim_end().ends_with("ready") {
                return;
            }
            assert!(Instant::now() < until, "{name} does not boot: {told:?}");
        }
    }

    fn shown(&self, number: usize) -> Value {
        self.first.json(&format!("vm show {}", Self::name(number)))
    }

    /// All run, each on the one machine that the site says.
    fn run_once(&self) -> usize {
        let mut on_second = 0;
        for number in 0..self.ids.len() {
            let vm = self.shown(number);
            assert_eq!(vm["power"], "running", "{vm}");
            assert_eq!(self.runs_on(number), [vm["host"].as_str().unwrap()], "{vm}");
            on_second += usize::from(vm["host"] == "host2");
        }
        on_second
    }
}

#[test]
#[ignore = "long: make migrations"]
fn twenty_vms_are_evacuated_and_a_machine_dies_in_the_middle() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::with_identity(&scratch, &cables, 0);
    let second = Machine::with_identity(&scratch, &cables, 1);
    let site = first.starts_site_with(&format!("--listen-guests {FIRST}:5691"));
    let host = first.lets_join(&second);
    let shared = scratch.make_directory("shared");
    first.runs(&format!("datastore add shared {} --host host1", shared.display()));
    first.runs("datastore add-host shared --host host2");
    let _place = take_place();
    let mut vms = Vms::make(&scratch, [&first, &second], "shared", VMS);

    let begun = Instant::now();
    first.runs("host evacuate host1");
    println!("{VMS} VMs moved in {:?}", begun.elapsed());
    assert_eq!(vms.run_once(), VMS);
    vms.work();
    first.runs("host maintenance host1 off");

    // The machine that gives them back loses its power after the first ones.
    let task = first.json("host evacuate host2 --no-wait");
    first.wait_until("vm list", "has some that moved", |list| {
        let vms = list["items"].as_array().unwrap();
        vms.iter().filter(|vm| vm["host"] == "host1").count() >= 5
    });
    // A QEMU without a network has a namespace of its own.
    let qemus: Vec<u64> = vms.ids.iter().flat_map(|id| living_qemus_of(&scratch, second.run(), id)).collect();
    host.kill();
    kill_all(&cables.ends[1..], "");
    for pid in qemus.into_iter().filter_map(|pid| Pid::from_raw(pid as i32)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    first.wait_until("host show host2", "is silent", |host| host["state"] != "connected");
    // What has left it works on meanwhile.
    let moved: Vec<usize> = (0..VMS).filter(|number| vms.shown(*number)["power"] == "running").collect();
    assert!(!moved.is_empty());
    for number in &moved {
        assert_eq!(vms.runs_on(*number), ["host1"]);
    }

    second.boots();
    std::fs::remove_dir_all(scratch.path(second.run())).unwrap();
    let host = second.starts_host("");
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");
    let show = format!("task show {}", task["id"].as_str().unwrap());
    let ended = first.wait_until(&show, "has ended", |task| task["state"] != "running");
    assert_eq!(ended["state"], "failed", "{ended}");
    println!("{} moved before: {}", moved.len(), ended["error"]["message"]);
    first.runs("host maintenance host2 off");
    let mut booted = 0;
    for number in 0..VMS {
        let name = Vms::name(number);
        let is_known =
            |vm: &Value| ["running", "crashed", "stopped"].iter().any(|power| vm["power"] == *power);
        let vm = first.wait_until(&format!("vm show {name}"), "is known", is_known);
        if vm["power"] == "running" {
            continue;
        }
        assert!(!moved.contains(&number), "{vm}");
        vms.start(number);
        booted += 1;
        // Its disk has what its guest has heard of, and its memory is gone.
        let mut console = first.console(&name);
        console.session.ask("r", &char::from(vms.counts[number] + 0x20).to_string());
        vms.counts[number] = b'0';
    }
    println!("{booted} had lost their memory");
    vms.run_once();
    vms.work();
    first.runs("host evacuate host2");
    assert_eq!(vms.run_once(), 0);
    vms.work();
    vms.stop();
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}

/// Each machine has a datastore that the other one does not reach.
#[test]
#[ignore = "long: make migrations"]
fn vms_are_evacuated_with_their_volumes_while_they_run_there_and_back() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(2);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::with_identity(&scratch, &cables, 0);
    let second = Machine::with_identity(&scratch, &cables, 1);
    let site = first.starts_site_with(&format!("--listen-guests {FIRST}:5691"));
    let host = first.lets_join(&second);
    let [near, far] = ["near", "far"].map(|name| scratch.make_directory(name));
    first.runs(&format!("datastore add near {} --host host1", near.display()));
    first.runs(&format!("datastore add far {} --host host2", far.display()));
    let _place = take_place();
    let mut vms = Vms::make(&scratch, [&first, &second], "near", WITH_VOLUMES);
    let refused = first.tries("host evacuate host1");
    let told = format!("{WITH_VOLUMES} VMs could not be moved, and 0 were");
    assert!(!refused.status.success() && refused.stderr.contains(&told), "{refused:?}");
    assert!(refused.stderr.contains("--with-volumes"), "{refused:?}");
    for (way, datastore) in [("host1 --with-volumes", "far"), ("host2 --with-volumes --bandwidth 8M", "near")]
    {
        first.runs(&format!("host evacuate {way}"));
        first.runs("host maintenance host1 off");
        assert_eq!(vms.run_once(), if datastore == "far" { WITH_VOLUMES } else { 0 });
        for number in 0..WITH_VOLUMES {
            assert_eq!(vms.shown(number)["datastore"], datastore);
        }
        let left = if datastore == "far" { &near } else { &far };
        for number in 0..WITH_VOLUMES {
            assert!(!left.join(Vms::name(number)).exists(), "{} is left", Vms::name(number));
        }
        vms.work();
    }
    vms.stop();
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
