//! Two machines, each in a network namespace of its own, are one site: the second one joins, runs a
//! guest, is cut off and comes back, and is removed.

use std::process::id;
use std::time::{Duration, Instant};

use serde_json::Value;
use strongroom_system_tests::{CommandLine, Finished, Process, Scratch, end_vms, put_test_guest};

/// Timeout of whatever the site does by itself.
const WITHIN: Duration = Duration::from_secs(120);

const FIRST: &str = "10.77.0.1";
const SECOND: &str = "10.77.0.2";

/// A machine: a network namespace, a home and a run directory.
struct Machine<'test> {
    program: CommandLine<'test>,
    namespace: String,
    home: &'static str,
}

impl<'test> Machine<'test> {
    fn new(scratch: &'test Scratch, namespace: String, home: &'static str) -> Self {
        Self { program: CommandLine::new(scratch), namespace, home }
    }

    fn script(&self, arguments: &str) -> String {
        let Self { namespace, home, .. } = self;
        format!("exec ip netns exec {namespace} env STRONGROOM_HOME=\"$PWD/{home}\" {arguments}")
    }

    fn tries(&self, arguments: &str) -> Finished {
        self.program.run_shell(&self.script(&format!("\"$STRONGROOM\" {arguments}")))
    }

    #[track_caller]
    fn runs(&self, arguments: &str) -> String {
        self.tries(arguments).success()
    }

    #[track_caller]
    fn is_refused(&self, arguments: &str) -> String {
        self.tries(arguments).failure()
    }

    #[track_caller]
    fn json(&self, arguments: &str) -> Value {
        let said = self.runs(&format!("--json {arguments}"));
        serde_json::from_str(&said).unwrap_or_else(|error| panic!("{arguments}: {error}: {said}"))
    }

    /// Waits until the answer to a command satisfies `is_so`.
    #[track_caller]
    fn wait_until(&self, arguments: &str, awaited: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + WITHIN;
        loop {
            let told = self.tries(&format!("--json {arguments}"));
            match serde_json::from_str(&told.stdout) {
                Ok(answer) if told.status.success() && is_so(&answer) => return answer,
                _ => {
                    assert!(Instant::now() < until, "{arguments}: {awaited}: not within {WITHIN:?}: {told:?}")
                }
            }
        }
    }

    fn serves(&self, name: &str, arguments: &str) -> Process {
        let script = self.script(&format!("\"$STRONGROOM\" {arguments} --run \"$PWD/{}\"", self.run()));
        self.program.start_shell(name, &script)
    }

    fn run(&self) -> &'static str {
        if self.home == "home" { "run" } else { "first-run" }
    }

    /// The first machine: key server, hostd and control plane.
    fn starts_site(&self) -> Process {
        let mut serve = self.serves(
            "first",
            &format!(
                "serve --name host1 --listen-kmip {FIRST}:5696 --listen-enrolment {FIRST}:5697 --crypto-safe advised"
            ),
        );
        serve.wait_for_line("where its API is", WITHIN, |line| line.starts_with("https://"));
        serve
    }

    /// The second machine: hostd alone.
    fn starts_host(&self, more: &str) -> Process {
        let mut serve = self.serves("second", &format!("serve --role host --crypto-safe advised {more}"));
        serve.wait_for_line("that it serves", WITHIN, |line| line.starts_with("host host2 takes orders"));
        serve
    }

    /// Asks hostd of the second machine with the certificate in a directory, through curl.
    fn asks_second(&self, identity: &str) -> Finished {
        self.program.run_shell(&self.script(&format!(
            "curl --silent --show-error --max-time 20 --insecure --cert {identity}/cert.pem --key {identity}/key.pem \
             https://{SECOND}:5691/v1/host"
        )))
    }
}

/// A cable between two network namespaces.
struct Cable {
    ends: [String; 2],
}

fn ip(arguments: &str) {
    let done = std::process::Command::new("ip").args(arguments.split(' ')).status().unwrap();
    assert!(done.success(), "ip {arguments}: {done}");
}

impl Cable {
    fn lay() -> Self {
        let ends = ["a", "b"].map(|end| format!("sr-{end}-{}", id()));
        for end in &ends {
            ip(&format!("netns add {end}"));
            ip(&format!("-n {end} link set lo up"));
        }
        let [one, other] = &ends;
        ip(&format!("-n {one} link add wire type veth peer name wire netns {other}"));
        for (end, address) in ends.iter().zip([FIRST, SECOND]) {
            ip(&format!("-n {end} address add {address}/24 dev wire"));
            ip(&format!("-n {end} link set wire up"));
        }
        Self { ends }
    }

    fn cut(&self) {
        ip(&format!("-n {} link set wire down", self.ends[1]));
    }

    fn mend(&self) {
        ip(&format!("-n {} link set wire up", self.ends[1]));
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for end in &self.ends {
            let _ = std::process::Command::new("ip").args(["netns", "delete", end]).status();
        }
    }
}

/// Ends the VMs before the machines' processes are known to be gone.
struct Guests<'test>(&'test Scratch);

impl Drop for Guests<'_> {
    fn drop(&mut self) {
        end_vms(self.0);
    }
}

fn qemus_of(scratch: &Scratch, vm: &str) -> Vec<u64> {
    let text = std::fs::read(scratch.path(&format!("run/vms/{vm}/state.json"))).unwrap_or_default();
    let state: Value = serde_json::from_slice(&text).unwrap_or_default();
    state["qemu"]["pid"].as_u64().into_iter().collect()
}

#[test]
fn a_second_machine_joins_runs_a_guest_is_cut_off_and_removed() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cable = Cable::lay();
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let first = Machine::new(&scratch, cable.ends[0].clone(), "first-home");
    let second = Machine::new(&scratch, cable.ends[1].clone(), "home");
    let site = first.starts_site();

    // A token, which is of use for one machine, once.
    first.runs(&format!("host token host2 --address {SECOND}:5691 > token && chmod 600 token"));
    assert_eq!(first.json("host show host2")["address"], format!("{SECOND}:5691"));
    let taken = first.is_refused(&format!("host token host2 --address {SECOND}:5691"));
    assert!(taken.contains("strongroom host remove host2"), "{taken}");
    let join = format!("--join {FIRST}:5697 --token-file token");
    let wrong = format!("serve --role host {join} --fingerprint {} --run \"$PWD/run\"", "ab".repeat(32));
    let refused = second.is_refused(&wrong);
    assert!(refused.contains("comes from the right machine"), "{refused}");
    assert!(!scratch.path("home/hostd/identity").exists(), "nothing was changed");
    let host = second.starts_host(&join);
    let again = second.is_refused(&format!("serve --role host {join} --run \"$PWD/run\""));
    assert!(again.contains("has joined a site as host host2"), "{again}");
    first.wait_until("host show host2", "answers", |host| host["state"] == "connected");

    // Only the control plane gives orders: neither the host's own certificate nor another role's.
    let asked = first.asks_second("first-home/control/identity").success();
    assert!(asked.contains("\"name\":\"host2\""), "{asked}");
    for other in ["home/hostd/identity", "first-home/hostd/identity", "first-home/keyserver/admin"] {
        let refused = first.asks_second(other);
        assert!(!refused.status.success() && !refused.stdout.contains("host2"), "{other}: {refused:?}");
    }

    // A guest on the second machine; its key is granted to that machine.
    let guest = put_test_guest(&scratch);
    for (name, host) in [("ds1", "host1"), ("ds2", "host2")] {
        scratch.make_directory(name);
        first.runs(&format!("datastore add {name} {} --host {host}", scratch.path(name).display()));
    }
    first.runs(&format!(
        "vm create web1 --datastore ds2 --memory 256M --net none --disk 64M --machine pc {guest}"
    ));
    // A hostile host asks the key server, with its certificate, for another host's VM.
    first.runs("vm create web0 --datastore ds1 --memory 256M --net none --disk 16M");
    let other = first.json("vm show web0");
    let (vm, key) = (other["id"].as_str().unwrap(), other["key"]["key"].as_str().unwrap());
    let as_host = format!("--server {FIRST}:5697 --identity home/hostd/identity");
    for attack in [
        format!("bind --vm 00000000-0000-4000-8000-000000000001 --from {vm} --key-id {key}"),
        format!("fence --vm {vm} --vm-generation 99"),
        "client list".to_owned(),
    ] {
        let refused = second.is_refused(&format!("keyserver {attack} {as_host}"));
        assert!(refused.contains("the role host may not do that"), "{attack}: {refused}");
    }

    let _place = strongroom_system_tests::take_place();
    first.runs("vm start web1");
    let vm = first.json("vm show web1");
    assert_eq!((vm["power"].as_str(), vm["host"].as_str()), (Some("running"), Some("host2")), "{vm}");
    let id = vm["id"].as_str().unwrap().to_owned();
    let qemus = qemus_of(&scratch, &id);
    assert_eq!(qemus.len(), 1);
    let console = first.is_refused("vm console web1 < /dev/null");
    assert!(
        console.contains("is on host host2") && console.contains("run this command on that machine"),
        "{console}"
    );
    let removal = first.is_refused("host remove host2");
    assert!(removal.contains("host host2 has 1 VM"), "{removal}");

    // The cable is cut: the VM is unknown, and runs on.
    cable.cut();
    first.wait_until("vm show web1", "is unknown", |vm| vm["power"] == "unknown");
    assert_eq!(first.json("host show host2")["state"], "disconnected");
    assert_eq!(qemus_of(&scratch, &id), qemus);
    cable.mend();
    first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");

    // hostd and the whole first machine are killed, in turn: nothing is started twice.
    host.kill();
    first.wait_until("vm show web1", "is unknown", |vm| vm["power"] == "unknown");
    let host = second.starts_host("");
    first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    site.kill();
    let site = first.starts_site();
    let vm = first.wait_until("vm show web1", "is known again", |vm| vm["power"] == "running");
    assert_eq!((vm["generation"].as_u64(), qemus_of(&scratch, &id)), (Some(1), qemus));

    // The host is removed: its certificate is revoked, and it takes no orders.
    first.runs("vm stop web1 --force");
    first.runs("vm delete web1 --yes");
    let datastore = first.is_refused("host remove host2");
    assert!(datastore.contains("strongroom datastore remove ds2"), "{datastore}");
    first.runs("datastore remove ds2");
    first.runs("host remove host2");
    assert!(first.is_refused("host show host2").contains("host2"));
    let clients = first.json("keyserver client list");
    let is_second = |client: &&Value| client["name"] == "host2";
    let client = clients["items"].as_array().unwrap().iter().find(is_second).unwrap();
    assert_eq!(client["is_revoked"], true, "{clients}");
    let term = std::fs::read_to_string(scratch.path("home/hostd/term.json")).unwrap();
    assert!(term.contains(&u64::MAX.to_string()), "{term}");
    host.terminate(WITHIN);
    site.terminate(WITHIN);
}
