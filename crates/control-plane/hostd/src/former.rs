//! This version understands files and messages of the previous one. They were recorded from it
//! (`tests/former`), and are never edited. docs/INSTALL.md has the rule. Each release adds its own
//! recording, and removes the one from two releases earlier.

use serde::de::DeserializeOwned;
use serde_json::Value;
use strongroom_host::orders::{Birth, Report, Request, Task};
use strongroom_host::protocol::{Host, ObservedVms, PowerState, VmSpec};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::state_file::StateFile;
use strongroom_host::vm_directory::VmRecord;
use strongroom_host::wire::FORMATS;

use crate::checks::crypto_safe::CryptoSafeRule;
use crate::daemon::config::HostConfig;

const MESSAGES: &str = include_str!("../tests/former/messages.json");

/// Returns a recorded message, without the packet's envelope.
fn message<Message: DeserializeOwned>(kind: &str) -> Message {
    let all: Value = serde_json::from_str(MESSAGES).unwrap();
    let said = &all[kind];
    assert_eq!(
        said["format"], FORMATS.newest,
        "{kind}: a supervisor of the former version is not spoken to any more"
    );
    let mut said = said.clone();
    said.as_object_mut().unwrap().remove("format");
    serde_json::from_value(said).unwrap_or_else(|error| panic!("{kind}: {error}"))
}

#[test]
fn files_of_the_former_version_are_read() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("vm.json"), include_str!("../tests/former/vm.json")).unwrap();
    let record = VmRecord::read(directory.path()).unwrap().unwrap();
    assert_eq!(
        (record.generation.0, record.spec.name.as_str(), record.spec.is_encrypted()),
        (1, "web1", true)
    );

    std::fs::write(directory.path().join("host.json"), include_str!("../tests/former/host.json")).unwrap();
    let config = HostConfig::of_home(directory.path()).unwrap();
    assert_eq!((config.datastores.len(), config.crypto_safe), (1, CryptoSafeRule::Required));

    let run = VmRunDirectory::existing(directory.path().to_owned());
    std::fs::write(run.state(), include_str!("../tests/former/state.json")).unwrap();
    let state = StateFile::read(&run).unwrap().unwrap();
    assert!(state.qemu.is_some() && state.spec.kernel.is_some());
}

#[test]
fn supervisors_of_the_former_version_are_understood_and_understand() {
    let Report::State(vm) = message("report-State") else { panic!("a state") };
    assert_eq!(vm.power, PowerState::Stopped);
    for kind in ["report-Answer", "report-Progress", "report-Done"] {
        message::<Report>(kind);
    }
    // The requests of this version must use the words that the previous one knows.
    for kind in ["request-Pause", "request-Resume", "request-Console", "request-Stop"] {
        let request: Request = message(kind);
        let all: Value = serde_json::from_str(MESSAGES).unwrap();
        let mut again = serde_json::to_value(&request).unwrap();
        again["format"] = FORMATS.newest.into();
        assert_eq!(again, all[kind]);
    }
    let birth: Birth = message("birth-Run");
    let Task::Run(run) = birth.task else { panic!("a run") };
    assert_eq!((run.generation.0, birth.grants.len()), (1, 1));
}

#[test]
fn a_host_and_its_vms_as_the_former_version_told_them() {
    let vms: ObservedVms = serde_json::from_str(include_str!("../tests/former/vms.json")).unwrap();
    assert!(vms.vms[0].spec.as_deref().is_some_and(VmSpec::is_encrypted));
    let host: Host = serde_json::from_str(include_str!("../tests/former/host-state.json")).unwrap();
    assert!(!host.crypto_safe.required);
}

/// Files of a newer version are refused as such, not as damaged.
#[test]
fn files_of_a_newer_version_are_refused_as_newer() {
    let directory = tempfile::tempdir().unwrap();
    let newer = |name: &str, text: &str| {
        let text = text.replacen("\"format\": 1", "\"format\": 2", 1);
        assert!(text.contains("\"format\": 2"), "{name}");
        std::fs::write(directory.path().join(name), text).unwrap();
    };
    newer("vm.json", include_str!("../tests/former/vm.json"));
    newer("host.json", include_str!("../tests/former/host.json"));
    newer("state.json", include_str!("../tests/former/state.json"));
    let told = [
        VmRecord::read(directory.path()).unwrap_err().to_string(),
        HostConfig::of_home(directory.path()).unwrap_err().to_string(),
        StateFile::read(&VmRunDirectory::existing(directory.path().to_owned())).unwrap_err().to_string(),
    ];
    for told in told {
        assert!(told.contains("of format 2") && told.contains('1'), "{told}");
    }
    // A field that only a newer version knows is not dropped, neither in the record nor in the
    // configuration.
    for (at, with) in [("\"deleting\"", "\"hidden\": 1, \"deleting\""), ("\"tpm\"", "\"lidar\": 1, \"tpm\"")]
    {
        let text = include_str!("../tests/former/vm.json").replacen(at, with, 1);
        std::fs::write(directory.path().join("vm.json"), text).unwrap();
        let told = VmRecord::read(directory.path()).unwrap_err().to_string();
        assert!(told.contains("a newer version has written it"), "{told}");
    }
}
