//! What is written for someone who helps from outside has no name of the site, unless a person
//! wants it.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use strongroom_system_tests::{Scratch, Serving};

#[test]
fn a_bundle_has_the_states_of_the_site_and_none_of_its_names() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    scratch.make_directory("geheimordner");
    serving.runs("datastore add golddatastore geheimordner");
    serving.runs("vm create payroll --memory 64M --disk 8M --net none");
    serving.runs("disk create ledger --size 8M");
    serving.runs("folder create bigtenant");
    serving.runs("policy create bronzepolicy --description mandant");
    serving.runs("network create boardroom --vlan 20");
    serving.runs("vm set payroll --name wages --tag customer=krause --notes 'of krause'");
    serving.runs("vm set wages --name payroll");
    serving.runs("recipient relay --set smtp+plain://127.0.0.1:1 --from strongroom@example.com");
    serving.runs("recipient add nightshift --mail ops@customer.example");
    // Something that names the VM and its host in a sentence.
    serving.is_refused("recipient test nightshift");
    serving.is_refused("vm snapshot revert payroll monday");

    let said = serving.runs("support bundle.json");
    assert!(said.contains("names replaced"), "{said}");
    let bundle = fs::read_to_string(scratch.path("bundle.json")).unwrap();
    let names = [
        "golddatastore",
        "geheimordner",
        "payroll",
        "ledger",
        "bigtenant",
        "bronzepolicy",
        "mandant",
        "boardroom",
        "wages",
        "krause",
        "nightshift",
        "customer.example",
    ];
    for name in names {
        assert!(!bundle.contains(name), "{name} is in the bundle");
    }
    for there in ["\"vm-1\"", "\"datastore-1\"", "key_server_unbacked", "\"vms\"", "\"tasks\""] {
        assert!(bundle.contains(there), "{there} is not in the bundle");
    }
    assert_eq!(fs::metadata(scratch.path("bundle.json")).unwrap().permissions().mode() & 0o777, 0o600);
    let told = serving.is_refused("support bundle.json");
    assert!(told.contains("bundle.json"), "an existing file is replaced: {told}");
    serving.runs("support all.json --names");
    let all = fs::read_to_string(scratch.path("all.json")).unwrap();
    assert!(names.iter().all(|name| all.contains(name)), "--names keeps them");
}
