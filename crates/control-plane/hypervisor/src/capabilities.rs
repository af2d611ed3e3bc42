//! What a QEMU can give to guests here: machine types, processors, features.
//!
//! QEMU itself is asked, with the accelerator that guests run with: it compares each processor with
//! what the host's processor, the kernel and QEMU have. It runs without a machine for that. What it
//! says is used to choose hosts. Each start has QEMU check again (`enforce`).

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::Deserialize;
use serde_json::{Value, json};
use strongroom_vm::{Capabilities, Level, MachineVersion, ProcessorModel};

use crate::launch::readable;
use crate::qemu::QemuProgram;

/// QEMU answers in a fifth of a second; this is the limit for one that blocks.
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
/// Most that is read of its answers, in bytes: QEMU 7.2 says 55 KiB.
const ANSWERS_BYTES_MAX: u64 = 4 << 20;
/// Most features of a processor, of which QEMU 7.2 knows 432 with all of their names.
const FEATURES_MAX: usize = 2048;
/// Models that are what the host has, or nothing, and therefore no model of any processor.
const NO_MODELS: [&str; 3] = ["base", "host", "max"];
/// The beginning of properties that are QEMU's own matter.
const PRIVATE: &str = "x-";

#[derive(Deserialize)]
struct Machine {
    name: String,
    #[serde(default)]
    alias: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Definition {
    name: String,
    /// Absent if QEMU cannot say.
    #[serde(default)]
    unavailable_features: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Expansion {
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    props: serde_json::Map<String, Value>,
}

/// Asks a QEMU what it can give to guests.
///
/// # Errors
/// What went wrong, in a sentence.
pub fn probe(program: &QemuProgram) -> Result<Capabilities, String> {
    let kvm = program.kvm().is_ok();
    let (accelerator, all) = if kvm { ("kvm", "host") } else { ("tcg", "max") };
    let questions = [
        json!({ "execute": "qmp_capabilities" }),
        json!({ "execute": "query-machines", "id": "machines" }),
        json!({ "execute": "query-cpu-definitions", "id": "processors" }),
        json!({ "execute": "query-cpu-model-expansion", "id": "features",
                "arguments": { "type": "full", "model": { "name": all } } }),
        json!({ "execute": "quit" }),
    ];
    let questions: Vec<String> = questions.iter().map(Value::to_string).collect();
    understood(&ask(program, accelerator, &questions.join("\n"))?)
}

/// Runs QEMU without a machine, and returns its answers.
fn ask(program: &QemuProgram, accelerator: &str, questions: &str) -> Result<String, String> {
    let failed = |error: &dyn std::fmt::Display| format!("QEMU cannot be asked what it can do: {error}");
    let mut command = Command::new(program.path());
    command.args(["-S", "-no-user-config", "-nodefaults", "-display", "none", "-qmp", "stdio"]);
    command.args(["-machine", "none", "-accel", accelerator]);
    command.env_clear().stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = Running(command.spawn().map_err(|error| failed(&error))?);
    // The questions fit into the pipe, and the end of it does not end QEMU.
    let mut questions_to = child.0.stdin.take().ok_or_else(|| failed(&"it has no input"))?;
    questions_to.write_all(format!("{questions}\n").as_bytes()).map_err(|error| failed(&error))?;
    let answers = child.0.stdout.take().ok_or_else(|| failed(&"it has no output"))?;
    let reading = std::thread::Builder::new().name("capabilities".to_owned()).spawn(move || {
        let mut said = String::new();
        answers.take(ANSWERS_BYTES_MAX).read_to_string(&mut said).map(|_| said)
    });
    let reading = reading.map_err(|error| failed(&error))?;
    let ended = pidfd_open(Pid::from_child(&child.0), PidfdFlags::empty())
        .and_then(|pidfd| readable(std::os::fd::AsFd::as_fd(&pidfd), ANSWERS_WITHIN));
    // If it has not ended, this ends the reading, too.
    drop(child);
    drop(questions_to);
    let said = reading.join().map_err(|_| failed(&"its answers cannot be read"))?;
    match ended {
        Ok(true) => said.map_err(|error| failed(&error)),
        Ok(false) => Err(failed(&format_args!("it does not answer within {ANSWERS_WITHIN:?}"))),
        Err(errno) => Err(failed(&errno)),
    }
}

/// A QEMU, which ends with this.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the answers say.
fn understood(said: &str) -> Result<Capabilities, String> {
    let answers: Vec<Value> = said.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let machines: Vec<Machine> = answer(&answers, "machines")?;
    let definitions: Vec<Definition> = answer(&answers, "processors")?;
    let Expansion { model } = answer(&answers, "features")?;
    let vendor = model.props.get("vendor").and_then(Value::as_str).and_then(|vendor| vendor.parse().ok());
    let mut features: Vec<String> =
        model.props.into_iter().filter(|(_, value)| *value == true).map(|(name, _)| name).collect();
    features.retain(|name| !name.starts_with(PRIVATE));
    features.sort();
    features.truncate(FEATURES_MAX);
    let version = |name: &str| name.parse::<MachineVersion>().ok();
    let mut machine_types: Vec<MachineVersion> =
        machines.iter().filter_map(|machine| version(&machine.name)).collect();
    machine_types.sort_by(|a, b| (b.numbers(), b).cmp(&(a.numbers(), a)));
    let is_default = |machine: &&Machine| matches!(machine.alias.as_deref(), Some("q35" | "pc"));
    let default_machine_types =
        machines.iter().filter(is_default).filter_map(|machine| version(&machine.name)).collect();
    let has = |feature: &str| features.binary_search_by(|known| known.as_str().cmp(feature)).is_ok();
    let levels = Level::ALL.into_iter().rev().filter(|level| level.features().all(has));
    let mut named: Vec<ProcessorModel> = definitions
        .into_iter()
        .filter(|definition| !NO_MODELS.contains(&definition.name.as_str()))
        .filter(|definition| definition.unavailable_features.as_ref().is_some_and(Vec::is_empty))
        .filter_map(|definition| definition.name.parse().ok())
        .filter(|model| matches!(model, ProcessorModel::Named(_)))
        .collect();
    named.sort();
    let processors = levels.map(ProcessorModel::Level).chain(named).collect();
    Ok(Capabilities { machine_types, default_machine_types, processors, features, vendor })
}

fn answer<Answer: for<'de> Deserialize<'de>>(answers: &[Value], id: &str) -> Result<Answer, String> {
    let answer = answers.iter().find(|answer| answer["id"] == id);
    let answer = answer.ok_or_else(|| format!("QEMU does not say which {id} it has"))?;
    Answer::deserialize(&answer["return"])
        .map_err(|error| format!("QEMU's answer about its {id} cannot be read: {error}: {}", answer["error"]))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strongroom_vm::QemuName;

    use super::*;
    use crate::qemu::DEFAULT_PROGRAM;

    #[test]
    fn an_installed_qemu_says_what_it_can_give() {
        let program = QemuProgram::probe(Path::new(DEFAULT_PROGRAM)).unwrap();
        let found = probe(&program).unwrap();
        assert!(found.machine_types.len() > 10, "{found:?}");
        assert_eq!(found.default_machine_types.len(), 2);
        // The newest one of each board is the default of a QEMU that no distribution has changed.
        assert!(found.default_machine_types.contains(&found.machine_types[0]), "{found:?}");
        assert!(found.processors.contains(&"x86-64-v2".parse().unwrap()), "{found:?}");
        assert!(found.processors.contains(&"Nehalem".parse().unwrap()), "{found:?}");
        assert!(found.features.iter().any(|feature| feature == "sse4.2"));
        let vendor = found.vendor.as_ref().map(QemuName::as_str);
        assert!(matches!(vendor, Some("GenuineIntel" | "AuthenticAMD")), "{vendor:?}");
        assert!(!found.processors.iter().any(|model| NO_MODELS.contains(&model.as_str())));
    }

    #[test]
    fn a_processor_that_lacks_something_is_not_offered() {
        let said = |sse: bool| {
            let mut props: serde_json::Map<_, _> = Level::V2
                .features()
                .map(|name| (name.to_owned(), Value::from(sse || name != "ssse3")))
                .collect();
            props.insert("vendor".to_owned(), Value::from("AuthenticAMD"));
            [
                json!({ "return": {} }),
                json!({ "id": "machines", "return": [
                    { "name": "pc-q35-9.2" }, { "name": "pc-q35-10.0", "alias": "q35" },
                    { "name": "microvm" }, { "name": "pc-q35-1,x=y" } ] }),
                json!({ "id": "processors", "return": [
                    { "name": "EPYC", "unavailable-features": ["sha-ni"] },
                    { "name": "Conroe", "unavailable-features": [] },
                    { "name": "max", "unavailable-features": [] },
                    { "name": "Unsaid" } ] }),
                json!({ "id": "features", "return": { "model": { "name": "max", "props": props } } }),
            ]
            .map(|line| line.to_string())
            .join("\n")
        };
        let names = |found: &Capabilities| {
            found.processors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        let found = understood(&said(true)).unwrap();
        assert_eq!(names(&found), "x86-64-v2 Conroe");
        assert_eq!(found.vendor.as_ref().map(QemuName::as_str), Some("AuthenticAMD"));
        let machines: Vec<_> = found.machine_types.iter().map(MachineVersion::as_str).collect();
        assert_eq!(machines, ["pc-q35-10.0", "pc-q35-9.2"]);
        assert_eq!(found.default_machine_types[0].as_str(), "pc-q35-10.0");
        assert_eq!(names(&understood(&said(false)).unwrap()), "Conroe");
        assert!(understood("").unwrap_err().contains("machines"));
    }
}
