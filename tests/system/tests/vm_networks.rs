//! Networks of the site, on a real host, which has the last word.

use strongroom_system_tests::{Scratch, Serving};

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
