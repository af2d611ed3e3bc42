//! Processors and memory are plugged into a VM that runs, and its disks reach the memory.

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Console, Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-growth-marker-93c7";

/// Has the guest use what is plugged in from now on, as a distribution's udev rules do.
const USE_MORE: &str = "echo online > /sys/devices/system/memory/auto_online_blocks; \
for block in /sys/devices/system/memory/memory*/state; do grep -q offline $block && echo online > $block; done; true";

/// The guest's memory in KiB, for a shell.
const MEMORY: &str = "$(sed -n 's/^MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo)";

fn memory_mib(console: &mut Console) -> u64 {
    let text = console.session.run(&format!("echo {MEMORY}"));
    text.trim().parse::<u64>().unwrap() / 1024
}

/// Waits until the guest has this much memory.
fn await_memory(console: &mut Console, mib: u64) {
    console.session.run(USE_MORE);
    console.session.wait_until(&format!("[ {MEMORY} -ge {} ]", mib << 10));
}

/// Waits until the guest has an online processor with this number.
fn await_cpu(console: &mut Console, number: u32) {
    let cpu = format!("/sys/devices/system/cpu/cpu{number}");
    console.session.wait_until(&format!("test -e {cpu}"));
    console.session.run(&format!("[ $(cat {cpu}/online) = 1 ] || echo 1 > {cpu}/online"));
    console.session.run(&format!("taskset -c {number} true"));
}

/// Writes from the guest's memory to the disk, and reads it back. What was plugged in is above 4
/// GiB, in the zone `Normal`, which Linux uses first: the disk's buffers are there.
fn the_disk_reaches_memory(console: &mut Console) {
    let session = &mut console.session;
    session.run("mkdir -p /mnt; grep -q ' /mnt ' /proc/mounts || mount -t tmpfs -o size=95% tmpfs /mnt");
    session.run("head -c 67108864 /dev/urandom > /mnt/all");
    session.run("dd if=/mnt/all of=/dev/vda bs=1M conv=fsync 2>/dev/null");
    session.run("echo 3 > /proc/sys/vm/drop_caches");
    session.run("dd if=/dev/vda of=/mnt/back bs=1M count=64 2>/dev/null && cmp /mnt/all /mnt/back");
    let pages = "awk '/^Node/ { normal = /Normal/ } normal && /nr_zone_(in)?active_(anon|file)/ { n += $2 } END { print n + 0 }' \
                 /proc/zoneinfo";
    let used: u64 = session.run(pages).trim().parse().unwrap();
    assert!(used >= (64 << 20) / 4096, "{used} pages of what was plugged in are used");
    session.run("rm /mnt/all /mnt/back");
}

fn grows(machine: &str, frontend: &str) {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!(
        "vm create web1 --cpus 1 --max-cpus 3 --memory 256M --max-memory 1G --net none --disk 128M \
         --machine {machine} --frontend {frontend} {guest}"
    ));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(USE_MORE);
    let before = memory_mib(&mut console);
    for (request, says) in [
        ("--memory 300M", "multiples of 128M"),
        ("--memory 2G", "at most 1G of memory"),
        ("--cpus 4", "at most 3 CPUs"),
        ("--memory 128M", "only grows"),
        ("--memory 384M --restart never", "it has to be off"),
    ] {
        let refused = serving.is_refused(&format!("vm set web1 {request}"));
        assert!(refused.contains(says), "{request}: {refused}");
    }

    let said = serving.runs("vm set web1 --memory 512M");
    assert!(said.contains("web1 is changed") && !said.contains("next start"), "{said}");
    await_memory(&mut console, before + 240);
    the_disk_reaches_memory(&mut console);
    serving.runs("vm set web1 --cpus 2");
    await_cpu(&mut console, 1);
    let refused = serving.is_refused("vm suspend web1");
    assert!(refused.contains("plugged in or out"), "{refused}");

    // A dump has the memory that was plugged in, sealed.
    console
        .session
        .run(&format!("i=0; while [ $i -lt 3000 ]; do echo {MARKER}; i=$((i+1)); done > /mnt/marker; sync"));
    serving.runs("vm dump create web1 --label grown");
    serving.runs("vm dump open web1 1 --to web1.core");
    let core = std::fs::metadata(scratch.path("web1.core")).unwrap().len();
    assert!(core >= 512 << 20, "{core}");
    let core = scratch.path("web1.core").display().to_string();
    serving.strongroom.peer("grep", &["--text", "--quiet", MARKER, &core]);
    std::fs::remove_file(scratch.path("web1.core")).unwrap();
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
    console.session.run("rm /mnt/marker");

    // A worker that takes another's place, and a supervisor that does, have the memory as well.
    for worker in serving.workers_of(&id) {
        kill_process(worker, Signal::KILL).unwrap();
    }
    the_disk_reaches_memory(&mut console);
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    serving.runs("vm set web1 --memory 640M --cpus 3");
    await_cpu(&mut console, 2);
    await_memory(&mut console, before + 360);
    the_disk_reaches_memory(&mut console);

    // A guest that boots again has all of it; processors that came later go.
    serving.runs("vm reset web1");
    console.wait_until_ready();
    await_memory(&mut console, before + 360);
    await_cpu(&mut console, 2);
    serving.runs("vm set web1 --cpus 2");
    console.session.wait_until("! test -e /sys/devices/system/cpu/cpu2");
    let refused = serving.is_refused("vm set web1 --memory 512M");
    assert!(refused.contains("only grows"), "{refused}");

    // The next start has the same.
    drop(console);
    serving.runs("vm stop web1 --force");
    let shown = serving.vm("web1");
    assert_eq!((&shown["cpus"], &shown["memory_bytes"]), (&2.into(), &(640_u64 << 20).into()), "{shown}");
    serving.runs("vm set web1 --cpus 1 --memory 384M");
    serving.runs("vm check web1");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(memory_mib(&mut console) < before + 256);
    drop(console);
    serving.runs("vm stop web1 --force");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_guest_gets_processors_and_memory_that_its_disks_reach() {
    grows("q35", "vhost-user");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_guest_on_the_older_board_gets_processors_and_memory() {
    grows("pc", "nbd");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_grows_as_was_asked_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!(
        "vm create web1 --max-cpus 4 --memory 256M --max-memory 2G --net none --disk 64M {guest}"
    ));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    serving.console("web1").wait_until_ready();
    let supervisor = || serving.processes_of(&id)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> rustix::process::Pid; 3] = [&supervisor, &host, &control];
    for (step, victim) in (1..).zip(everybody) {
        let (cpus, memory) = (1 + step, 256 + 128 * u64::from(step));
        serving.runs(&format!("vm set web1 --cpus {cpus} --memory {memory}M --no-wait"));
        kill_process(victim(), Signal::KILL).unwrap();
        serving.wait_until("web1", "has grown and is let be", |vm| {
            vm["cpus"] == cpus && vm["memory_bytes"] == memory << 20 && vm["task"].is_null()
        });
        let mut console = serving.console_when_taken_over("web1", &id);
        await_cpu(&mut console, cpus - 1);
        await_memory(&mut console, memory - 120);
    }
    serving.runs("vm stop web1 --force");
}
