//! A user of libvirt guests, without Strongroom VMs, gives them encrypted disks:
//! `vm disk attach --libvirt`.

#![cfg(feature = "full")]

use std::time::Duration;

use serde_json::Value;
use strongroom_system_tests::{
    CommandLine, ExerciseReport, Libvirt, Machine, Process, Protection, Scratch, Session, Volume,
};

const SHARED_MEMORY: &str = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>";
const DEADLINE: Duration = Duration::from_secs(60);
const EXERCISE: &str = "diskexercise --device /dev/vda --length 16M --threads 4 --ops 100";

/// A user on a machine without systemd, where refusals name a command to run; the test runs it
/// literally.
struct Person<'test> {
    strongroom: CommandLine<'test>,
    connect: String,
}

impl<'test> Person<'test> {
    fn new(scratch: &'test Scratch, libvirt: &Libvirt<'_>) -> Self {
        let connect = format!("--connect '{}'", libvirt.uri());
        Self { strongroom: CommandLine::new(scratch), connect }
    }

    fn script(&self, arguments: &str) -> String {
        let Self { connect, .. } = self;
        // The machine that runs the tests may have systemd, which must not be touched.
        format!(
            r#"[ ! -d /run/systemd ] || mount -t tmpfs none /run/systemd; exec "$STRONGROOM" {arguments} {connect}"#
        )
    }

    #[track_caller]
    fn json(&self, arguments: &str) -> Value {
        let script = self.script(&format!("--json vm disk {arguments}"));
        let said = self.strongroom.run_with_own_mounts(&script).success();
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments}: {error}: {said}"))
    }

    #[track_caller]
    fn is_refused(&self, arguments: &str, with: &str) -> String {
        let said =
            self.strongroom.run_with_own_mounts(&self.script(&format!("vm disk {arguments}"))).failure();
        assert!(said.contains(with), "{arguments}: {said}");
        said
    }

    /// Runs the command that a refusal names.
    #[track_caller]
    fn obeys(&self, name: &str, refusal: &str) -> Process {
        let command = refusal.lines().find_map(|line| line.trim().strip_prefix("strongroom volume expose "));
        let command = command.unwrap_or_else(|| panic!("no command in {refusal}"));
        let script = format!(r#"exec "$STRONGROOM" volume expose {command}"#);
        let mut server = self.strongroom.start_shell(name, &script);
        server.wait_for_line("that it is exposed", DEADLINE, |line| line.contains("is exposed"));
        server
    }
}

#[test]
fn a_guest_gets_a_disk_in_shared_memory_that_is_rekeyed_and_taken_out_again() {
    let scratch = Scratch::new();
    let libvirt = Libvirt::start(&scratch);
    let person = Person::new(&scratch, &libvirt);
    let volume = Volume::create(&scratch, "data 1", "64M", Protection::Encrypted);
    let other = Volume::create(&scratch, "data2", "64M", Protection::Encrypted);
    let (path, key) = (volume.path(), volume.key_file());
    let data1 = format!("--libvirt web1 '{}' --key-file '{}'", path.display(), key.display());
    let data2 =
        format!("--libvirt web1 {} --key-file {}", other.path().display(), other.key_file().display());

    person.is_refused(&format!("attach {data1}"), "libvirt knows no domain 'web1'");
    let mut guest = libvirt.boot("web1", Machine::Q35, SHARED_MEMORY, "");
    let unlocked = format!("attach --libvirt web1 '{}'", path.display());
    person.is_refused(&unlocked, "needs its key: give --key-file FILE");
    person.strongroom.write_key_file("wrong.key", &[0x77; 32]);
    let wrong = format!("{unlocked} --key-file wrong.key");
    person.is_refused(&wrong, "is not that of");

    let server =
        person.obeys("expose-1", &person.is_refused(&format!("attach {data1}"), "keep this running"));
    let attached = person.json(&format!("attach {data1}"));
    assert_eq!(
        (
            &attached["target"],
            &attached["frontend"],
            &attached["live"],
            &attached["config"],
            &attached["changed"]
        ),
        (&"vda".into(), &"vhost_user".into(), &true.into(), &true.into(), &true.into())
    );
    use_disk(&mut guest);
    assert_eq!(person.json(&format!("attach {data1}"))["changed"], false, "it is there already");

    let server2 =
        person.obeys("expose-2", &person.is_refused(&format!("attach {data2}"), "keep this running"));
    person.is_refused(&format!("attach {data2} --target vda"), "vda is another disk of web1 already");
    person.is_refused(&format!("attach {data2} --frontend nbd"), "is exposed over vhost-user");

    // Its key is replaced while the guest uses it.
    let new_key = scratch.path("new.key");
    person.strongroom.write_key_file("new.key", &[0x5a; 32]);
    let rekey = format!(
        r#""$STRONGROOM" volume rekey --kek '{}' --key-file '{}' --to-key-file '{}'"#,
        path.display(),
        key.display(),
        new_key.display()
    );
    person.strongroom.run_shell(&rekey).success();
    ExerciseReport::parse(&guest.run(&format!("{EXERCISE} --verify-only"))).assert_clean();
    use_disk(&mut guest);

    // No other guest can get it meanwhile, and a domain that is off gets another one when it
    // starts.
    libvirt.define("web2", SHARED_MEMORY);
    let for_web2 = |arguments: &str| format!("attach {}", arguments.replace("web1", "web2"));
    person.is_refused(&for_web2(&data1), "is vda of domain web1 already");
    let later = person.json(&for_web2(&data2));
    assert_eq!((&later["live"], &later["config"]), (&false.into(), &true.into()));
    libvirt.virsh(&["start", "web2", "--paused"]);
    libvirt.virsh(&["destroy", "web2"]);

    let gone = person.json(&format!("detach --libvirt web1 '{}'", path.display()));
    assert_eq!(
        (&gone["target"], &gone["live"], &gone["config"]),
        (&"vda".into(), &true.into(), &true.into())
    );
    guest.wait_until("! [ -e /dev/vda ]");
    let again = person.json(&format!("detach --libvirt web1 '{}'", path.display()));
    assert_eq!((&again["target"], &again["live"]), (&Value::Null, &false.into()));
    assert!(!libvirt.virsh(&["dumpxml", "--inactive", "web1"]).contains("ua-strongroom"));

    libvirt.virsh(&["destroy", "web1"]);
    for server in [server, server2] {
        assert!(server.terminate(DEADLINE).success());
    }
}

#[test]
fn a_guest_whose_memory_is_its_own_gets_a_disk_over_nbd() {
    let scratch = Scratch::new();
    let libvirt = Libvirt::start(&scratch);
    let person = Person::new(&scratch, &libvirt);
    let volume = Volume::create(&scratch, "data1", "64M", Protection::Encrypted);
    let data1 =
        format!("--libvirt web1 {} --key-file {}", volume.path().display(), volume.key_file().display());
    let mut guest = libvirt.boot("web1", Machine::Pc, "", "");

    let refused = person.is_refused(&format!("attach {data1}"), "the memory of web1 is not shared");
    assert!(refused.contains("<memoryBacking>") && refused.contains("--frontend nbd"), "{refused}");
    let nbd = format!("attach {data1} --frontend nbd");
    let server = person.obeys("expose-1", &person.is_refused(&nbd, "keep this running"));
    // For the running guest, and not for its next start.
    let attached = person.json(&format!("attach {data1} --live"));
    assert_eq!((&attached["frontend"], &attached["config"]), (&"nbd".into(), &false.into()));
    use_disk(&mut guest);
    assert_eq!(person.json(&format!("attach {data1}"))["config"], true);

    let gone = person.json(&format!("detach --libvirt web1 {}", volume.path().display()));
    assert_eq!((&gone["live"], &gone["config"]), (&true.into(), &true.into()));
    guest.wait_until("! [ -e /dev/vda ]");
    libvirt.virsh(&["destroy", "web1"]);
    assert!(server.terminate(DEADLINE).success());
}

#[track_caller]
fn use_disk(guest: &mut Session) {
    guest.wait_until("[ -b /dev/vda ]");
    ExerciseReport::parse(&guest.run(EXERCISE)).assert_clean();
    ExerciseReport::parse(&guest.run(&format!("{EXERCISE} --verify-only"))).assert_clean();
}
