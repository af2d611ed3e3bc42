//! The program's environment on a machine: doctor's verdict, the configuration file, the unit.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use strongroom_system_tests::{CommandLine, Scratch, Serving};

/// The output of doctor, which may refuse the machine that runs the tests.
fn diagnose(strongroom: &CommandLine<'_>, arguments: &str) -> Value {
    let script = format!(
        "export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" --json doctor --run \"$PWD/run\" {arguments}"
    );
    let finished = strongroom.run_shell(&script);
    let diagnosis: Value =
        serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished:?}"));
    assert_eq!(finished.status.success(), diagnosis["verdict"] != "refused", "{finished:?}");
    diagnosis
}

fn finding<'of>(diagnosis: &'of Value, check: &str) -> &'of Value {
    let findings = diagnosis["findings"].as_array().unwrap();
    findings
        .iter()
        .find(|finding| finding["check"] == check)
        .unwrap_or_else(|| panic!("nothing of {check}: {diagnosis}"))
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn doctor_judges_a_machine_before_it_serves_and_finds_a_key_that_waits_for_its_vm() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    let before = diagnose(&strongroom, "");
    for check in
        ["swap", "kdump", "hibernation", "core-dumps", "io_uring", "qemu", "kvm", "clock", "space", "home"]
    {
        finding(&before, check);
    }
    assert_eq!(finding(&before, "cold-start")["verdict"], "ok");
    assert_eq!(
        fs::read_dir(scratch.path("")).unwrap().flatten().filter(|entry| entry.file_name() == "home").count(),
        0
    );

    let mut serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs("vm create vault1 --memory 64M --net none --disk 16M");
    let while_it_serves = diagnose(&strongroom, "");
    assert_eq!(finding(&while_it_serves, "serve")["verdict"], "ok");
    assert_eq!(finding(&while_it_serves, "root-key")["verdict"], "warning");
    assert_eq!(finding(&while_it_serves, "key-server-backup")["verdict"], "warning");
    assert_eq!(finding(&while_it_serves, "certificates")["verdict"], "ok");

    // A circle: a VM would serve the key server's own keys, and is itself under one of them.
    fs::write(scratch.path("strongroom.conf"), "provides-keys = vault1=embedded\n").unwrap();
    let circle = diagnose(&strongroom, "--config strongroom.conf");
    assert_eq!(circle["verdict"], "refused");
    let found = finding(&circle, "cold-start")["found"].as_str().unwrap();
    assert!(found.contains("VM vault1 needs key provider embedded: its disk disk0"), "{found}");
    assert!(found.contains("key provider embedded needs VM vault1"), "{found}");
    // It is also found while nothing runs, which is when it matters.
    serving.end();
    let circle = diagnose(&strongroom, "--config strongroom.conf");
    assert!(finding(&circle, "cold-start")["found"].as_str().unwrap().contains("vault1"));
    assert_eq!(finding(&circle, "serve")["verdict"], "warning");
    assert_eq!(finding(&circle, "key-server")["verdict"], "warning");
}

#[test]
fn a_bad_configuration_names_file_line_and_what_would_be_right() {
    let scratch = Scratch::new();
    fs::write(scratch.path("bad.conf"), "# settings\nlisten = 127.0.0.1:5690\ndatastores = x\n").unwrap();
    let strongroom = CommandLine::new(&scratch);
    let refused = strongroom
        .run_shell("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" serve --config bad.conf")
        .failure();
    assert!(refused.contains("bad.conf:3: there is no setting 'datastores'; there are listen,"), "{refused}");
}

#[test]
fn the_unit_is_one_and_as_closed_as_vms_let_it_be() {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/strongroom.service");
    let analyze = |arguments: &[&str]| {
        let output = Command::new("systemd-analyze").args(arguments).arg(&unit).output().ok()?;
        Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    // Machines without systemd lack this program.
    let Some(told) = analyze(&["verify"]) else { return };
    // The program and its manual page are not in the package's places, and the key is newer than
    // Debian 12's systemd.
    let expected = ["/usr/bin/strongroom", "man strongroom", "man:strongroom", "'DelegateSubgroup'"];
    let wrong: Vec<_> = told
        .lines()
        .filter(|line| {
            line.contains("strongroom.service") && !expected.iter().any(|part| line.contains(part))
        })
        .collect();
    assert!(wrong.is_empty(), "{wrong:?}");
    let told = analyze(&["security", "--offline=true", "--threshold=65"]).unwrap();
    let level =
        told.lines().find(|line| line.contains("Overall exposure level")).unwrap_or_else(|| panic!("{told}"));
    let level: f32 = level.rsplit_once(": ").unwrap().1.split(' ').next().unwrap().parse().unwrap();
    assert!(level <= 6.5, "{level}");
}
