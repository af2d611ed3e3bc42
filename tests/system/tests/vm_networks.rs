//! Networks of the site, on a real host, which has the last word.

use strongroom_system_tests::{Scratch, Serving, put_test_guest, take_place};

use super::machines_support::{Cables, Guests, Machine, WITHIN};

#[test]
fn a_network_is_what_a_host_has_and_allows() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("network create lan --vlan 20");
    let create = "vm create web1 --memory 64M --disk 16M --net lan";
    let refused = serving.is_refused(create);
    assert!(refused.contains("does not have network lan"), "{refused}");
    let host = serving.json("host list")["items"][0]["name"].as_str().unwrap().to_owned();
    serving.runs(&format!("network add-host lan --host {host} --bridge sr-none0"));
    let listed = serving.runs("network list");
    assert!(listed.contains("lan") && listed.contains("20") && listed.contains("(sr-none0)"), "{listed}");
    // The control plane's word is not enough: the host looks, before a key is made.
    let refused = serving.is_refused(create);
    assert!(refused.contains("this host has no bridge sr-none0"), "{refused}");
    assert!(serving.is_refused("vm show web1").contains("web1"), "nothing is left");
    assert!(!scratch.path("ds/web1").exists());

    // Single cards: what is not named stays.
    serving.runs("vm create web2 --memory 64M --disk 16M --net user");
    let before = serving.vm("web2")["nics"].clone();
    serving.runs("vm nic add web2 --net user");
    serving.runs("vm set web2 --boot nic0,nic1,disk0");
    let two = serving.vm("web2")["nics"].clone();
    assert_eq!((&two[0], two.as_array().unwrap().len()), (&before[0], 2), "{two}");
    let refused = serving.is_refused("vm nic add web2 --net lan");
    assert!(refused.contains("this host has no bridge sr-none0"), "{refused}");
    assert_eq!(serving.vm("web2")["nics"], two, "as before");
    serving.runs("vm nic remove web2 nic0");
    let one = serving.vm("web2");
    assert_eq!((&one["nics"][0], one["nics"].as_array().unwrap().len()), (&two[1], 1), "{one}");
    assert_eq!(one["boot"]["order"], serde_json::json!(["nic0", "disk0"]), "{one}");
    assert!(serving.is_refused("vm nic remove web2 nic1").contains("has no nic1"));
    let _place = serving.take_place();
    serving.runs("vm start web2");
    // The host has the last word about a VM that runs, too.
    let refused = serving.is_refused("vm nic add web2 --net lan");
    assert!(refused.contains("this host has no bridge sr-none0"), "{refused}");
    assert_eq!(serving.vm("web2")["nics"].as_array().unwrap().len(), 1);
    serving.runs("vm stop web2 --force");
    serving.runs(&format!("network remove-host lan --host {host}"));
    serving.runs("network delete lan");
}

/// What a guest does on its console, in lines that it can be given again and again.
fn does(machine: &Machine<'_>, vm: &str, line: &str) {
    let typed = format!(
        "(sleep 1; for n in $(seq 100); do echo \"{line} && echo don''e-as-told\"; sleep 1; done) | \
         timeout 110 \"$STRONGROOM\" vm console {vm} | grep --max-count 1 '^done-as-told'"
    );
    let done = machine.shell(&typed);
    assert!(done.stdout.contains("done-as-told"), "{vm}: {line}: {done:?}");
}

/// Two guests of a network and one of another one, in a host's own network namespace: with VLANs of
/// one bridge if the kernel's bridges have them, else with a bridge for each network.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn guests_of_a_network_reach_each_other_and_none_of_another_network() {
    if !rustix::process::geteuid().is_root() {
        println!("network namespaces need root; this test did nothing");
        return;
    }
    let cables = Cables::lay(1);
    let scratch = Scratch::new();
    let _guests = Guests(&scratch);
    let host = Machine::new(&scratch, &cables, 0);
    let guest = put_test_guest(&scratch);
    host.takes_guests_kernel();
    let has_vlans = host.shell("ip link add br0 type bridge vlan_filtering 1").status.success();
    if !has_vlans {
        println!("this kernel's bridges have no VLANs; each network has a bridge of its own");
        host.shell("ip link add br0 type bridge").success();
    }
    host.shell("ip link add br1 type bridge").success();
    host.shell("ip link set br0 up && ip link set br1 up").success();
    let site = host.starts_site();
    let datastore = scratch.make_directory("ds1");
    host.runs(&format!("datastore add ds1 {}", datastore.display()));
    let (lan, dmz, other) = if has_vlans { ("--vlan 20", "--vlan 30", "br0") } else { ("", "", "br1") };
    for (network, vlan, bridge) in [("lan", lan, "br0"), ("dmz", dmz, other), ("lost", "--vlan 40", "br1")] {
        host.runs(&format!("network create {network} {vlan}"));
        host.runs(&format!("network add-host {network} --host host1 --bridge {bridge}"));
    }
    let vm = format!("--memory 128M --disk 16M --unencrypted --machine pc {guest}");
    let refused = host.is_refused(&format!("vm create web0 {vm} --net lost"));
    assert!(refused.contains("br1 of this host does not separate VLAN 40 from others"), "{refused}");
    let all = [("web1", "lan", 1), ("web2", "lan", 2), ("db1", "dmz", 3)];
    for (name, network, _) in all {
        host.runs(&format!("vm create {name} {vm} --net {network}"));
    }
    let _place = take_place();
    for (name, _, number) in all {
        host.runs(&format!("vm start {name}"));
        let address =
            format!("ip addr flush dev eth0; ip addr add 192.0.2.{number}/24 dev eth0; ip link set eth0 up");
        does(&host, name, &address);
    }
    // A ping is sent until it is answered, and one that must not be answered is sent when another
    // guest of the same network has answered.
    does(&host, "web1", "ping -c 1 -W 2 192.0.2.2");
    does(&host, "web2", "ping -c 1 -W 2 192.0.2.1");
    does(&host, "web1", "! ping -c 3 -W 1 192.0.2.3");
    does(&host, "db1", "! ping -c 3 -W 1 192.0.2.1");
    // The guest of the other network becomes one of this one while it runs, and is reached then:
    // it was silent for its network alone.
    host.runs("vm nic set db1 nic0 --net lan");
    does(&host, "db1", "ping -c 1 -W 2 192.0.2.1");
    does(&host, "web2", "ping -c 1 -W 2 192.0.2.3");
    for (name, _, _) in all {
        host.runs(&format!("vm stop {name} --force"));
    }
    site.terminate(WITHIN);
}
