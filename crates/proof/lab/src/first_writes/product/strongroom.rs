//! Volumes of `strongroom`.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;

use super::{LogFacts, Product};
use crate::first_writes::error::StudyError;
use crate::programs::{line_of, run};

/// The merge of an exposed volume's layers in the same output.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MergeFacts {
    /// `running`, or why it does not go on.
    pub state: String,
    /// How much of the upper layer is behind.
    pub copied_bytes: u64,
}

#[derive(Deserialize)]
struct Info {
    log: Option<LogFacts>,
    exposure: Option<ExposureFacts>,
}

#[derive(Deserialize)]
struct ExposureFacts {
    merge: Option<MergeFacts>,
}

/// Volumes of `strongroom`.
#[derive(Clone)]
pub struct Strongroom {
    /// Its name in reports.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The key of all volumes; without one they are not encrypted.
    pub key_file: Option<PathBuf>,
    /// Whether space is allocated on creation.
    pub thick: bool,
}

impl Strongroom {
    fn volume(&self, verb: &str, place: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["volume", verb]).arg(place);
        command
    }

    fn with_key(&self, mut command: Command) -> Command {
        match &self.key_file {
            Some(key_file) => command.arg("--key-file").arg(key_file),
            None => command.arg("--unencrypted"),
        };
        command
    }

    /// The command that makes a snapshot of the first volume, and of the others at the same
    /// instant, which needs no key if they are exposed.
    pub fn snapshot_command(&self, places: &[PathBuf], name: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--json", "volume", "snapshot", "create"]);
        let (first, others) = places.split_at(places.len().min(1));
        command.args(first).arg(name);
        for place in others {
            command.arg("--with").arg(place);
        }
        command
    }

    /// How far the merge of an exposed volume has come; `None` if none is left.
    pub fn merge(&self, place: &Path) -> Result<Option<MergeFacts>, StudyError> {
        Ok(self.info(place)?.exposure.and_then(|exposure| exposure.merge))
    }

    fn info(&self, place: &Path) -> Result<Info, StudyError> {
        let mut command = self.volume("info", place);
        command.arg("--json");
        let line = line_of(&command);
        let answer = run(&mut command)?;
        serde_json::from_slice(&answer).map_err(|error| StudyError::Answer { command: line, error })
    }
}

impl Product for Strongroom {
    fn name(&self) -> &str {
        &self.name
    }

    fn create(&self, place: &Path, bytes: u64) -> Result<(), StudyError> {
        let mut command = self.with_key(self.volume("create", place));
        command.args(["--size", &bytes.to_string()]).args(self.thick.then_some("--thick"));
        Ok(run(&mut command).map(drop)?)
    }

    fn serve(&self, place: &Path, socket: &Path, _: u16) -> Command {
        let mut command = self.with_key(self.volume("expose", place));
        command.arg("--vhost-user").arg(format!("unix:{}", socket.display()));
        command
    }

    fn outlives_kill(&self) -> bool {
        true
    }

    fn log(&self, place: &Path) -> Result<Option<LogFacts>, StudyError> {
        Ok(self.info(place)?.log)
    }

    fn snapshot(&self, place: &Path, name: &str) -> Result<(), StudyError> {
        let command = self.snapshot_command(&[place.to_owned()], name);
        Ok(run(&mut self.with_key(command)).map(drop)?)
    }

    fn snapshots_while_served(&self) -> bool {
        true
    }

    fn delete_snapshot(&self, place: &Path, name: &str) -> Result<(), StudyError> {
        let mut command = Command::new(&self.program);
        command.args(["volume", "snapshot", "delete"]).arg(place).args([name, "--wait"]);
        Ok(run(&mut self.with_key(command)).map(drop)?)
    }

    fn delete(&self, place: &Path) -> Result<(), StudyError> {
        let mut command = self.volume("delete", place);
        command.arg("--yes");
        Ok(run(&mut command).map(drop)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_found_where_info_tells_of_one() {
        let log = |text: &str| serde_json::from_str::<Info>(text).unwrap().log;
        assert_eq!(log(r#"{"size_bytes": 4096}"#), None);
        assert_eq!(log(r#"{"log": null}"#), None);
        let told = LogFacts { size_bytes: 16 << 20, used_bytes: None };
        assert_eq!(log(r#"{"log": {"size_bytes": 16777216}}"#), Some(told));
        let used = LogFacts { used_bytes: Some(4096), ..told };
        assert_eq!(log(r#"{"log": {"size_bytes": 16777216, "used_bytes": 4096, "x": 1}}"#), Some(used));
    }

    #[test]
    fn a_merge_is_found_where_info_tells_of_one() {
        let merge = |text: &str| {
            let info = serde_json::from_str::<Info>(text).unwrap();
            info.exposure.and_then(|exposure| exposure.merge)
        };
        assert_eq!(merge(r#"{"exposure": null}"#), None);
        assert_eq!(merge(r#"{"exposure": {"merge": null}}"#), None);
        let told =
            r#"{"exposure": {"merge": {"state": "running", "copied_bytes": 4096, "total_bytes": 8192}}}"#;
        let expected = MergeFacts { state: "running".to_owned(), copied_bytes: 4096 };
        assert_eq!(merge(told), Some(expected));
    }
}
