//! Two machines, each with a datastore that the other one does not reach: a VM moves between them
//! with its volumes, its snapshots and its dumps, while it runs and while it is off; and then
//! whatever is killed or cut off meanwhile.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use strongroom_system_tests::{Scratch, datastore, put_test_guest_for_uefi, take_place};

use super::machines_support::{Cables, FIRST, Guests, Machine, Recorder, WITHIN, qemus_of};

/// In the guest's disk, its memory, and its dump. It is typed in two parts.
const MARKER: &str = "strongroom-carried-marker-61f0";
const WRITES: &str = "m=strongroom-carried; yes $m-marker-61f0 | head -c 4194304 | \
     dd of=/dev/vda bs=4096 seek=16 conv=notrunc,fsync 2>/dev/null; md5sum /dev/vda";

struct Site<'test> {
    scratch: &'test Scratch,
    first: Machine<'test>,
    second: Machine<'test>,
    id: String,
}

impl Site<'_> {
    fn directory(&self, datastore: &str) -> PathBuf {
        self.scratch.path(&format!("{datastore}/moving-guest-1"))
    }

    /// Nothing of the VM is in a datastore.
    #[track_caller]
    fn has_nothing(&self, datastore: &str) {
        let names: Vec<_> = fs::read_dir(self.scratch.path(datastore)).unwrap().map(Result::unwrap).collect();
        let of_it = names.iter().map(|entry| entry.file_name().into_string().unwrap());
        let of_it: Vec<_> =
            of_it.filter(|name| name.contains("moving-guest-1") || name.contains(&self.id)).collect();
        assert_eq!(of_it, [""; 0], "{datastore}");
    }

    #[track_caller]
    fn is_at(&self, host: &str, datastore: &str) {
        let vm = self.first.json("vm show moving-guest-1");
        assert_eq!((vm["host"].as_str(), vm["datastore"].as_str()), (Some(host), Some(datastore)), "{vm}");
        assert!(self.directory(datastore).join("vm.json").exists());
        self.has_nothing(if datastore == "near" { "far" } else { "near" });
    }

    /// The guest has on its disk what it had.
    #[track_caller]
    fn has_its_disk(&self, written: &str) {
        let _place = take_place();
        self.first.runs("vm start moving-guest-1");
        let mut console = self.first.console("moving-guest-1");
        console.wait_until_ready();
        assert_eq!(console.session.run("md5sum /dev/vda"), written);
        drop(console);
        self.first.runs("vm stop moving-guest-1 --force");
    }

    /// Waits until a task that was begun with `--no-wait` has ended. Returns it.
    #[track_caller]
    fn ended(&self, task: &Value) -> Value {
        let show = format!("task show {}", task["id"].as_str().unwrap());
        self.first.wait_until(&show, "has ended", |task| task["state"] != "running")
    }

    #[track_caller]
    fn done(&self, task: &Value) {
        let task = self.ended(task);
        assert_eq!(task["state"], "done", "{task}");
    }
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_moves_with_its_volumes_between_machines_that_share_nothing() {
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
    first.takes_guests_kernel();
    let serves = |first: &Machine<'_>| first.starts_site_with(&format!("--listen-guests {FIRST}:5691"));
    let site = serves(&first);
    let host = first.lets_join(&second);
    for (name, host) in [("near", "host1"), ("far", "host2")] {
        let path = scratch.make_directory(name);
        first.runs(&format!("datastore add {name} {} --host {host}", path.display()));
    }
    let user_data = scratch.path("user-data");
    fs::write(&user_data, "#cloud-config\n").unwrap();
    first.runs(&format!(
        "vm create moving-guest-1 --datastore near --host host1 --memory 256M --net none --disk 16M --swap 16M --uefi \
         --user-data {} {guest}",
        user_data.display()
    ));
    let id = first.json("vm show moving-guest-1")["id"].as_str().unwrap().to_owned();
    let it = Site { scratch: &scratch, first, second, id };
    let first = &it.first;

    // It gets a snapshot with memory, a dump, and other content.
    let place = take_place();
    first.runs("vm start moving-guest-1");
    let mut console = first.console("moving-guest-1");
    console.wait_until_ready();
    let at_snapshot = console.session.run("md5sum /dev/vda");
    first.runs("vm snapshot create moving-guest-1 before --memory");
    let written = console.session.run(WRITES);
    assert_ne!(written, at_snapshot);
    drop(console);
    first.runs("vm dump create moving-guest-1");
    // While it runs, with all of that.
    for (host, datastore) in [("host2", "far"), ("host1", "near")] {
        first.runs(&format!("vm migrate moving-guest-1 --to {host} --datastore {datastore} --pause-ms 2000"));
        it.is_at(host, datastore);
        assert_eq!(first.console("moving-guest-1").session.run("md5sum /dev/vda"), written);
    }
    first.runs("vm stop moving-guest-1 --force");
    drop(place);
    let refused = first.is_refused("vm migrate moving-guest-1 --to host2");
    assert!(refused.contains("near"), "{refused}");

    let recorder = Recorder::start(&scratch, &cables, "wire");
    recorder.sees_what_is_plain(first);
    first.runs("vm migrate moving-guest-1 --to host2 --datastore far");
    it.is_at("host2", "far");
    let recorded = recorder.end();
    assert!(recorded.packets > 1000, "{recorded:?}");
    // The name is long enough not to be in so much ciphertext by chance.
    for secret in [MARKER, "moving-guest-1", &it.id] {
        assert_eq!(recorded.occurrences(secret), 0, "{secret} was on the wire");
    }
    assert_eq!(datastore::occurrences(&scratch.path("far"), MARKER.as_bytes()), 0);
    let audit = scratch.path("first-home/keyserver/audit");
    assert!(datastore::occurrences(&audit, b"the volumes of VM moving-guest-1 pass to host host2") > 0);
    it.has_its_disk(&written);
    assert_eq!(qemus_of(&scratch, "first-run", &it.id).len(), 0);
    // The dump and the snapshot have come along.
    let dumps = scratch.make_directory("dumps");
    first.runs(&format!("vm dump open moving-guest-1 1 --to {}/dump", dumps.display()));
    assert!(datastore::occurrences(&dumps, MARKER.as_bytes()) > 0);
    first.runs("vm snapshot revert moving-guest-1 before --keep-as now --disks-only");
    it.has_its_disk(&at_snapshot);
    first.runs("vm snapshot revert moving-guest-1 now --discard --yes");
    it.has_its_disk(&written);

    // Killed in the middle of moves: the whole first machine, and hostd of the second one.
    let task = first.json("vm migrate moving-guest-1 --to host1 --datastore near --no-wait");
    site.kill();
    let site = serves(first);
    it.done(&task);
    it.is_at("host1", "near");
    let task = first.json("vm migrate moving-guest-1 --to host2 --datastore far --no-wait");
    host.kill();
    let host = it.second.starts_host("");
    it.done(&task);
    it.is_at("host2", "far");
    // The cable is cut: the task waits, and goes on.
    let task = first.json("vm migrate moving-guest-1 --to host1 --datastore near --no-wait");
    cables.cut(1);
    first.wait_until("host show host2", "is away", |host| host["state"] == "disconnected");
    cables.mend(1);
    it.done(&task);
    it.is_at("host1", "near");
    it.has_its_disk(&written);

    // Cancelled at different moments, it is whole at one of the two.
    for pause_ms in [0, 50, 100, 200, 400, 800] {
        let here = first.json("vm show moving-guest-1")["host"].as_str().unwrap().to_owned();
        let (to, into) = if here == "host1" { ("host2", "far") } else { ("host1", "near") };
        let task = first.json(&format!("vm migrate moving-guest-1 --to {to} --datastore {into} --no-wait"));
        std::thread::sleep(std::time::Duration::from_millis(pause_ms));
        let _ = first.tries(&format!("task cancel {}", task["id"].as_str().unwrap()));
        let ended = it.ended(&task);
        match ended["state"].as_str() {
            Some("done") => it.is_at(to, into),
            Some("cancelled") => it.is_at(&here, if here == "host1" { "near" } else { "far" }),
            _ => panic!("{ended}"),
        }
    }
    it.has_its_disk(&written);
    first.runs("vm delete moving-guest-1 --yes");
    for datastore in ["near", "far"] {
        it.has_nothing(datastore);
    }
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
