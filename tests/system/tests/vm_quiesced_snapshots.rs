//! Quiesced snapshots: the agent in the guest freezes the guest's file systems meanwhile, and no
//! guest stays frozen, whoever is killed and whatever its agent says.

use rustix::process::{Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::{Console, Scratch, Serving, datastore};

/// A text of the guest that only the guest may read.
const MARKER: &str = "strongroom-quiesced-snapshot-marker-51c8";

/// The guest's end of the agent's channel.
const PORT: &str = "/dev/vport?p1";

/// The agent calls it before it freezes, and after it has thawed. Its second line is a test's.
const HOOK: &str = "printf '#!/bin/sh\\necho $1 >> /tmp/asked\\n[ ! -e /tmp/$1 ] || . /tmp/$1\\n' > /tmp/hook; chmod +x /tmp/hook";

fn with_vm<'scratch>(scratch: &'scratch Scratch) -> (Serving<'scratch>, String, Console) {
    let serving = Serving::start(scratch);
    let guest = serving.test_guest_with_agent();
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --disk 16M {guest}"));
    serving.runs("vm start web1");
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let mut console = serving.console("web1");
    console.wait_until_ready();
    (serving, id, console)
}

/// Gives the guest a file system on its first disk, and the channel's device.
fn prepare(console: &mut Console) {
    console.session.run("insmod /lib/modules/virtio_console.ko");
    console.session.run("mkfs.ext4 -q /dev/vda && mount -t ext4 /dev/vda /mnt");
    console.session.wait_until(&format!("[ -c {PORT} ]"));
}

fn start_agent(console: &mut Console) {
    console.session.run(HOOK);
    console.session.run(&format!(
        "qemu-ga -m virtio-serial -p $(echo {PORT}) -t /tmp -l /tmp/agent.log -F/tmp/hook >/dev/null 2>&1 & true"
    ));
}

/// Starts an agent of the test's: it answers as the real one does, but for these lines of a case.
/// The port ends at once as long as nobody is at its other end.
fn start_script(console: &mut Console, cases: &str) {
    let script = format!(
        "while :; do read -r line <&9 || {{ sleep 0.1; continue; }}; case \"$line\" in {cases} \
         *guest-sync-delimited*) id=${{line#*\\\"id\\\":}}; id=${{id%%\\}}*}}; \
         printf '\\377{{\"return\": %s}}\\n' $id >&9;; \
         *guest-info*) printf '{{\"return\": {{\"supported_commands\": [{{\"name\": \"guest-fsfreeze-freeze\", \"enabled\": true}}, \
         {{\"name\": \"guest-fsfreeze-thaw\", \"enabled\": true}}]}}}}\\n' >&9;; \
         *freeze-freeze*) echo freeze >> /tmp/asked; printf '{{\"return\": 1}}\\n' >&9;; \
         *freeze-thaw*) echo thaw >> /tmp/asked; printf '{{\"return\": 1}}\\n' >&9;; esac; done"
    );
    let file = script.replace('\'', "'\\''");
    console.session.run(&format!("rm -f /tmp/asked; printf %s '{file}' > /tmp/agent.sh"));
    console.session.run(&format!("sh /tmp/agent.sh 9<>$(echo {PORT}) >/dev/null 2>&1 & agent=$!"));
}

fn end_script(console: &mut Console) {
    console.session.run("kill $agent; wait $agent 2>/dev/null; true");
    // A `sleep` of the script may outlive it, and holds the port.
    console.session.wait_until(&format!("true 9<>$(echo {PORT})"));
}

fn snapshots(serving: &Serving) -> Vec<Value> {
    serving.json("vm snapshot list web1")["items"].as_array().unwrap().clone()
}

/// Whether a snapshot is called quiesced.
fn is_quiesced(serving: &Serving, name: &str) -> bool {
    let all = snapshots(serving);
    let found = all.iter().find(|snapshot| snapshot["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {all:?}"))["quiesced"] == true
}

/// The guest writes to its file system, which waits for ever if that is frozen.
fn writes(console: &mut Console) {
    console.session.run("echo it goes on > /mnt/goes-on && sync");
}

/// Each monitor of an agent ends with its conversation.
fn nobody_converses(serving: &Serving, id: &str) {
    drop(serving.wait_until("web1", "is left alone", |_| serving.agent_monitors_of(id).is_empty()));
}

/// Begins a snapshot for which the guest has five minutes, and cancels it when this returns.
fn give_up(serving: &Serving, name: &str, has_begun: impl FnOnce()) {
    serving.runs(&format!("vm snapshot create web1 {name} --quiesce --quiesce-within 5m --no-wait"));
    has_begun();
    let task = serving.vm("web1")["task"].as_str().unwrap().to_owned();
    serving.runs(&format!("task cancel {task}"));
    // Much sooner than after five minutes.
    drop(serving.wait_until("web1", "is let be", |vm| vm["task"].is_null()));
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_quiesced_snapshot_has_what_the_guest_has_written_and_not_flushed() {
    let scratch = Scratch::new();
    let (serving, id, mut console) = with_vm(&scratch);
    let _place = serving.take_place();
    let refused = serving.is_refused("vm snapshot create web1 none --quiesce --memory");
    assert!(refused.contains("leave out"), "{refused}");
    let refused = serving.is_refused("vm snapshot create web1 none --quiesce --quiesce-within 2s");
    assert!(refused.contains("guest agent of VM web1 cannot be used: it does not answer"), "{refused}");
    assert!(refused.contains("install qemu-guest-agent"), "{refused}");
    serving.runs("vm pause web1");
    let refused = serving.is_refused("vm snapshot create web1 none --quiesce");
    assert!(refused.contains("web1 is paused") && refused.contains("vm resume web1"), "{refused}");
    serving.runs("vm resume web1");
    assert_eq!(snapshots(&serving), Vec::<Value>::new());

    prepare(&mut console);
    start_agent(&mut console);
    console.session.run(&format!("echo {MARKER} > /mnt/unflushed"));
    serving.runs("vm snapshot create web1 quiet --quiesce");
    assert_eq!(console.session.run("cat /tmp/asked").trim().replace('\r', ""), "freeze\nthaw");
    writes(&mut console);
    console.session.run("rm /mnt/unflushed && sync");
    serving.runs("vm snapshot create web1 loud");
    assert!(is_quiesced(&serving, "quiet") && !is_quiesced(&serving, "loud"));
    let shown = serving.runs("vm snapshot show web1 quiet");
    assert!(shown.contains("quiesced    yes"), "{shown}");
    nobody_converses(&serving, &id);
    // At one instant with a disk that no VM has, and no guest.
    serving.runs("disk create data1 --size 16M");
    serving.runs("vm snapshot create web1 together --with data1 --quiesce");
    assert!(is_quiesced(&serving, "together"));
    assert_eq!(serving.json("disk show data1")["snapshots"][0]["quiesced"], Value::Null);
    writes(&mut console);
    nobody_converses(&serving, &id);
    // A linked clone gets one, too.
    serving.runs("vm clone web1 web2 --linked --quiesce");
    assert!(is_quiesced(&serving, "clone-web2"));
    drop(console);

    // Without a guest nothing is to be frozen, and none was.
    serving.runs("vm stop web1 --force");
    serving.runs("vm snapshot create web1 off --quiesce");
    assert!(!is_quiesced(&serving, "off"));
    serving.runs("vm snapshot revert web1 quiet --discard --yes");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run("e2fsck -p /dev/vda || [ $? = 1 ]");
    console.session.run("mount -t ext4 /dev/vda /mnt");
    assert!(console.session.run("cat /mnt/unflushed").contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
}

/// The supervisor dies while the agent is about to freeze, and after it has: the next one has the
/// guest thawed, and the snapshot is made all the same.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_frozen_guest_goes_on_whoever_is_killed() {
    let scratch = Scratch::new();
    let (serving, id, mut console) = with_vm(&scratch);
    let _place = serving.take_place();
    prepare(&mut console);
    start_agent(&mut console);
    for (round, when) in ["freeze", "thaw"].into_iter().enumerate() {
        console.session.run(&format!("rm -f /tmp/asked; echo 'sleep 3; rm -f /tmp/{when}' > /tmp/{when}"));
        serving.runs(&format!("vm snapshot create web1 round-{round} --quiesce --no-wait"));
        console.session.wait_until(&format!("grep -q {when} /tmp/asked"));
        drop(console);
        kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
        console = serving.console_when_taken_over("web1", &id);
        writes(&mut console);
        drop(serving.wait_until("web1", "is let be", |vm| vm["task"].is_null()));
        writes(&mut console);
        assert!(is_quiesced(&serving, &format!("round-{round}")));
        assert_eq!(snapshots(&serving).len(), round + 1);
        drop(serving.wait_until("web1", "has nothing to tell", |vm| vm["reason"].is_null()));
    }
    // A task that is cancelled leaves no frozen guest either.
    console.session.run("rm -f /tmp/asked; echo 'sleep 3' > /tmp/freeze");
    give_up(&serving, "given-up", || console.session.wait_until("grep -q freeze /tmp/asked"));
    console.session.wait_until("grep -q thaw /tmp/asked");
    writes(&mut console);
    drop(console);
    assert_eq!(snapshots(&serving).len(), 2);
    serving.runs("vm stop web1 --force");
}

/// What a hostile agent says, and what it does not say.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_guest_that_lies_has_no_quiesced_snapshot_and_holds_nothing_up() {
    let scratch = Scratch::new();
    let (serving, id, mut console) = with_vm(&scratch);
    let _place = serving.take_place();
    prepare(&mut console);
    let huge = "head -c 200000 /dev/zero | tr '\\000' x >&9; echo >&9";
    for (cases, part) in [
        // It has thawed by itself.
        ("*freeze-thaw*) echo '{\"return\": 0}' >&9;;".to_owned(), "0 of 1 were frozen"),
        ("*freeze-freeze*) echo '{\"return\": 18446744073709551616}' >&9;;".to_owned(), "cannot be used"),
        ("*freeze-freeze*) echo '{\"return\": 0}' >&9;;".to_owned(), "no file system that can be frozen"),
        ("*freeze-freeze*) echo '{\"error\": {\"desc\": \"not today\"}}' >&9;;".to_owned(), "not today"),
        (format!("*freeze-freeze*) {huge};;"), "cannot be used"),
        ("*guest-info*) exec cat /dev/zero >&9;;".to_owned(), "a line of more than 65536 bytes"),
    ] {
        start_script(&mut console, &cases);
        let refused = serving.is_refused("vm snapshot create web1 lied --quiesce");
        assert!(refused.contains(part), "{cases}: {refused}");
        assert!(refused.contains("VM web1"), "{refused}");
        if cases.contains("freeze-freeze") {
            console.session.wait_until("grep -q thaw /tmp/asked");
        }
        end_script(&mut console);
        assert_eq!(snapshots(&serving), Vec::<Value>::new(), "{cases}");
        let of_volume = serving.json("volume snapshot list ds/web1/disk0");
        assert_eq!(of_volume["snapshots"].as_array().unwrap().len(), 0, "{cases}: {of_volume}");
        nobody_converses(&serving, &id);
    }

    // It is silent while it is frozen. Whoever asks is told, and the thaw is asked for until it
    // comes.
    start_script(&mut console, "*freeze-thaw*) [ -e /tmp/thaws ] && echo '{\"return\": 1}' >&9;;");
    let refused = serving.is_refused("vm snapshot create web1 lied --quiesce");
    assert!(refused.contains("may be frozen") && refused.contains("fsfreeze --unfreeze"), "{refused}");
    drop(serving.wait_until("web1", "may be frozen", |vm| {
        vm["reason"].as_str().is_some_and(|reason| reason.contains("may be frozen"))
    }));
    assert_eq!(snapshots(&serving), Vec::<Value>::new());
    // The layer of the one that was removed may still be on its way to the disk.
    serving.wait_until_told("vm snapshot create web1 others-can-be-made", "made snapshot");
    console.session.run("touch /tmp/thaws");
    drop(serving.wait_until("web1", "has thawed", |vm| vm["reason"].is_null()));
    end_script(&mut console);

    // A guest that is silent holds up neither a cancellation nor the power switch.
    start_script(&mut console, "*freeze-freeze*) echo asked > /tmp/waits;;");
    give_up(&serving, "lied", || console.session.wait_until("[ -e /tmp/waits ]"));
    drop(console);
    serving.runs("vm stop web1 --force");
    drop(serving.wait_until("web1", "is let be", |vm| vm["task"].is_null() && vm["power"] == "stopped"));
    assert_eq!(snapshots(&serving).len(), 1);
}
