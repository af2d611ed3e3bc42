//! A guest finds the processor and the machine type that its VM has, and nothing else.

use strongroom_system_tests::{Console, Scratch, Serving};

/// The machine's version, as the guest's firmware says it.
const VERSION: &str = "cat /sys/class/dmi/id/product_version";

fn has(console: &mut Console, flag: &str) -> bool {
    let found = console.session.run(&format!("grep -qw {flag} /proc/cpuinfo && echo yes || echo no"));
    found.trim() == "yes"
}

fn started(serving: &Serving) -> Console {
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console
}

#[test]
fn a_guest_sees_the_processor_and_the_machine_type_of_its_vm() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let listed = serving.runs("host processors");
    assert!(listed.lines().any(|line| line.starts_with("x86-64-v2") && line.contains("all")), "{listed}");
    let create = |name: &str, more: &str| {
        format!("vm create {name} --memory 256M --net none --disk 64M {more} {guest}")
    };
    for (more, says) in [
        ("--processor Nonesuch", "cannot give the whole processor Nonesuch"),
        ("--machine-type pc-q35-99.0", "no machine type pc-q35-99.0"),
        ("--machine-type pc-i440fx-7.2", "version of another main board"),
    ] {
        let refused = serving.is_refused(&create("web2", more));
        assert!(refused.contains(says), "{more}: {refused}");
    }
    serving.runs(&create("web1", "--processor x86-64-v2 --machine-type pc-q35-7.1"));
    let shown = serving.vm("web1");
    assert_eq!((&shown["processor"], &shown["machine_type"]), (&"x86-64-v2".into(), &"pc-q35-7.1".into()));
    let _place = serving.take_place();
    let mut console = started(&serving);
    assert!(has(&mut console, "sse4_2") && !has(&mut console, "avx2") && !has(&mut console, "svm"));
    assert_eq!(console.session.run(VERSION).trim(), "pc-q35-7.1");
    let refused = serving.is_refused("vm set web1 --processor x86-64-v3");
    assert!(refused.contains("it has to be off"), "{refused}");

    // A memory continues with the devices that it has, so they stay as they are.
    serving.runs("vm suspend web1");
    let refused = serving.is_refused("vm set web1 --machine-type pc-q35-7.2");
    assert!(refused.contains("suspended"), "{refused}");
    drop(console);
    serving.runs("vm start web1");
    serving.runs("vm stop web1 --force");

    serving.runs("vm set web1 --processor x86-64-v3 --machine-type pc-q35-7.2");
    let mut console = started(&serving);
    assert!(has(&mut console, "avx2") && has(&mut console, "aes"));
    assert_eq!(console.session.run(VERSION).trim(), "pc-q35-7.2");
    drop(console);
    serving.runs("vm stop web1 --force");

    // By default the machine type is recorded, and the processor is the host's.
    serving.runs(&create("web3", ""));
    let shown = serving.vm("web3");
    assert_eq!(shown["processor"], "host");
    assert!(shown["machine_type"].as_str().unwrap().starts_with("pc-q35-"), "{shown}");
}
