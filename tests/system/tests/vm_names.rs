//! A VM gets another name, and its name goes to another VM, while its guest runs.

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Scratch, Serving};

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_vm_is_renamed_while_it_runs_and_another_one_gets_its_name() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 16M --tag env=prod {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console.session.run("echo shop > text; dd if=text of=/dev/vda bs=4096 conv=sync,fsync 2>&1");
    let renamed = serving.runs("vm set web1 --name shop1 --notes 'of the shop' --tag web");
    assert!(renamed.contains("web1 is named shop1 now"), "{renamed}");
    let shown = serving.runs("vm show shop1");
    for line in
        ["name        shop1", "in directory web1", "tags        env=prod, web", "notes       of the shop"]
    {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(serving.is_refused("vm show web1").contains("web1"));
    assert!(serving.is_refused("vm set shop1 --notes \u{1b}[2J").contains("not shown"));

    // A supervisor that takes over does not care.
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    drop(serving.console_when_taken_over("shop1", &id));
    // Everything goes on under the new name; a suspended memory fits a VM of another one.
    serving.runs("vm snapshot create shop1 first");
    serving.runs("vm disk add shop1 --size 16M");
    serving.runs("vm disk remove shop1 disk1 --yes");
    serving.runs("vm stop shop1 --force");
    serving.runs("vm start shop1");
    serving.console("shop1").wait_until_ready();
    serving.runs("vm suspend shop1");
    serving.runs("vm set shop1 --name shop2");
    serving.runs("vm start shop2");
    let mut console = serving.console("shop2");
    assert!(console.session.run("dd if=/dev/vda bs=4096 count=1 2>/dev/null").contains("shop"));
    drop(console);

    // The former name is another VM's, beside it in the datastore.
    serving.runs("vm create web1 --memory 256M --net none --disk 16M");
    let other = serving.vm("web1")["directory"].as_str().unwrap().to_owned();
    assert!(other.starts_with("web1-") && scratch.path(&format!("ds/{other}/disk0")).exists(), "{other}");
    assert!(scratch.path("ds/web1/disk0").exists());
    let listed = serving.runs("vm list --tag env=prod");
    assert!(listed.contains("shop2") && !listed.contains("web1 "), "{listed}");

    // The inventory is lost: the directories say who is who.
    serving.runs("vm stop shop2 --force");
    for vm in ["shop2", "web1"] {
        serving.runs(&format!("vm unregister {vm}"));
    }
    serving.runs("datastore rebuild ds");
    assert_eq!(serving.vm("shop2")["id"], id.as_str());
    assert_eq!(serving.vm("web1")["directory"], other.as_str());
    serving.runs("vm delete web1 --yes");
    assert!(!scratch.path(&format!("ds/{other}")).exists());
    serving.runs("vm delete shop2 --yes");
    assert!(!scratch.path("ds/web1").exists());
}
