//! Network cards come, go and have a cable while a VM runs, whatever is killed meanwhile.

use rustix::process::{Signal, geteuid, kill_process};
use strongroom_system_tests::{Console, Scratch, Serving};

/// The driver of network cards, which the guest loads only on request.
const LOAD_DRIVER: &str =
    "for m in failover net_failover virtio_net; do insmod /lib/modules/$m.ko 2>/dev/null; done; true";

/// The guest's side of a link to the host, on a network of the test's own.
struct Link {
    device: String,
    host: String,
    guest: String,
}

impl Link {
    /// The device's name and the network belong to this process alone.
    fn of_test() -> Self {
        let number = std::process::id() % 16384;
        let (high, low) = (number / 64, (number % 64) * 4);
        Self {
            device: format!("srp{number}"),
            host: format!("10.219.{high}.{}", low + 1),
            guest: format!("10.219.{high}.{}", low + 2),
        }
    }

    /// Makes the host's side.
    fn set_up(&self, serving: &Serving<'_>) {
        let Self { device, host, .. } = self;
        serving.strongroom.peer("ip", &["tuntap", "add", "dev", device, "mode", "tap"]);
        serving.strongroom.peer("ip", &["addr", "add", &format!("{host}/30"), "dev", device]);
        serving.strongroom.peer("ip", &["link", "set", "dev", device, "up"]);
    }

    /// Whether a process has the device.
    fn is_used(&self) -> bool {
        let path = format!("/sys/class/net/{}/carrier", self.device);
        std::fs::read_to_string(path).is_ok_and(|carrier| carrier.trim() == "1")
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = std::process::Command::new("ip").args(["link", "del", "dev", &self.device]).status();
    }
}

/// Whether the guest reaches the host through this card.
fn set_up_in_guest(console: &mut Console, card: &str, link: &Link) {
    let Link { host, guest, .. } = link;
    console.session.run(&format!(
        "ip link set {card} up && ip addr add {guest}/30 dev {card} && ping -c 1 -W 10 {host}"
    ));
}

fn mac_of(serving: &Serving<'_>, number: usize) -> String {
    serving.vm("web1")["nics"][number]["mac"].as_str().unwrap().to_owned()
}

/// The guest's name of the card with this address.
fn card_with(console: &mut Console, mac: &str) -> String {
    console.session.wait_until(&format!("grep -q {mac} /sys/class/net/*/address"));
    let path = console.session.run(&format!("grep -l {mac} /sys/class/net/*/address"));
    path.trim().split('/').nth(4).unwrap().to_owned()
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_network_card_comes_goes_and_has_a_cable_while_its_vm_runs() {
    if !geteuid().is_root() {
        eprintln!("tap devices take root");
        return;
    }
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(LOAD_DRIVER);

    // The guest talks with the host through a card that was not there when it started.
    let link = Link::of_test();
    link.set_up(&serving);
    let added = serving.runs(&format!("vm nic add web1 --net tap={}", link.device));
    assert!(added.contains("one more network card"), "{added}");
    let tap = mac_of(&serving, 0);
    let card = card_with(&mut console, &tap);
    set_up_in_guest(&mut console, &card, &link);
    let refused = serving.is_refused("vm suspend web1");
    assert!(refused.contains("plugged in or out"), "{refused}");
    // Another VM's card does not get the device while this one has it, and the refusal is told.
    let refused = serving.is_refused(&format!("vm nic add web1 --net tap={}", link.device));
    assert!(refused.contains(&link.device), "{refused}");
    assert_eq!(serving.vm("web1")["nics"].as_array().unwrap().len(), 1, "as before");

    serving.runs("vm nic set web1 nic0 --link down");
    console.session.wait_until(&format!("[ $(cat /sys/class/net/{card}/carrier) = 0 ]"));
    assert!(serving.runs("vm nic list web1").contains("DOWN"));
    let unheard =
        console.session.try_run(&format!("ping -c 1 -W 1 {}", link.host), std::time::Duration::from_secs(60));
    assert_ne!(unheard.status, 0, "{}", unheard.text);
    serving.runs(&format!("vm nic set web1 {tap} --link up"));
    console.session.wait_until(&format!("[ $(cat /sys/class/net/{card}/carrier) = 1 ]"));
    console.session.run(&format!("ping -c 1 -W 10 {}", link.host));

    // One through passt. Its process belongs to the VM's cgroup, and ends with the card.
    serving.runs("vm nic add web1 --net user");
    let user = mac_of(&serving, 1);
    let second = card_with(&mut console, &user);
    console.session.run(&format!("ip link set {second} up && udhcpc -i {second} -n -q -t 20 -s /bin/true"));

    // A supervisor that takes over knows the cards; a guest that boots again finds them.
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    console.session.run(&format!("ping -c 1 -W 10 {}", link.host));
    serving.runs("vm reset web1");
    console.wait_until_ready();
    console.session.run(LOAD_DRIVER);
    assert_eq!(card_with(&mut console, &tap), card);
    assert_eq!(card_with(&mut console, &user), second);
    set_up_in_guest(&mut console, &card, &link);

    serving.runs("vm pause web1");
    let refused = serving.is_refused("vm nic remove web1 nic0");
    assert!(refused.contains("stands still"), "{refused}");
    serving.runs("vm resume web1");
    serving.runs("vm nic remove web1 nic0");
    console.session.wait_until(&format!("! test -e /sys/class/net/{card}"));
    assert!(!link.is_used(), "QEMU has closed it");
    assert_eq!(mac_of(&serving, 0), user, "the numbers behind it fall by one");

    // The next start has the same cards, with their addresses and cables.
    serving.runs("vm nic set web1 nic0 --link down");
    drop(console);
    serving.runs("vm stop web1 --force");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(LOAD_DRIVER);
    let card = card_with(&mut console, &user);
    console.session.run(&format!("ip link set {card} up"));
    console.session.wait_until(&format!("[ $(cat /sys/class/net/{card}/carrier) = 0 ]"));

    // On another network, a card goes and comes back; and a card of the start goes, too.
    serving.runs(&format!("vm nic set web1 nic0 --net tap={} --link up", link.device));
    let card = card_with(&mut console, &user);
    assert!(link.is_used());
    set_up_in_guest(&mut console, &card, &link);
    serving.runs("vm nic remove web1 nic0");
    console.session.wait_until(&format!("! grep -q {user} /sys/class/net/*/address"));
    drop(console);
    serving.runs("vm stop web1 --force");
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_network_card_that_is_wished_for_comes_and_goes_whoever_is_killed() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --machine pc {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run(LOAD_DRIVER);
    drop(console);
    let cards_are = |count: usize| {
        serving.wait_until("web1", "has its cards and is let be", |vm| {
            vm["nics"].as_array().is_some_and(|nics| nics.len() == count) && vm["task"].is_null()
        });
    };
    let supervisor = || serving.processes_of(&id)[0];
    let host = || serving.process(&["serve", "--role host"]);
    let control = || serving.process(&["serve", "--role control"]);
    let everybody: [&dyn Fn() -> rustix::process::Pid; 3] = [&supervisor, &host, &control];
    for victim in everybody {
        serving.runs("vm nic add web1 --net user --no-wait");
        kill_process(victim(), Signal::KILL).unwrap();
        cards_are(1);
        let mac = mac_of(&serving, 0);
        let mut console = serving.console_when_taken_over("web1", &id);
        let card = card_with(&mut console, &mac);
        console.session.run(&format!("ip link set {card} up && udhcpc -i {card} -n -q -t 20 -s /bin/true"));
        drop(console);
        serving.runs("vm nic remove web1 nic0 --no-wait");
        kill_process(victim(), Signal::KILL).unwrap();
        cards_are(0);
        let mut console = serving.console_when_taken_over("web1", &id);
        console.session.wait_until(&format!("! grep -q {mac} /sys/class/net/*/address"));
    }
    serving.runs("vm stop web1 --force");
}

/// A guest without a system answers no request for a card.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_guest_that_does_not_let_go_of_a_card_keeps_it_until_it_is_off() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create web1 --memory 64M --net user --disk 16M");
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let before = serving.vm("web1")["nics"].clone();
    let refused = serving.is_refused("vm nic remove web1 nic0");
    assert!(refused.contains("has not let go of the network card"), "{refused}");
    assert!(refused.contains("stop the VM first"), "{refused}");
    assert_eq!(serving.vm("web1")["nics"], before, "it has it still");
    serving.runs("vm stop web1 --force");
    serving.runs("vm nic remove web1 nic0");
    assert_eq!(serving.vm("web1")["nics"], serde_json::json!([]));
}
