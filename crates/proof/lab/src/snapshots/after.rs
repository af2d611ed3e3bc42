//! The speed of writes right after a snapshot, beside overwriting: two steps of the study of first
//! writes.

use std::fs;
use std::path::Path;

use super::config::SnapshotsConfig;
use crate::first_writes::result::FileSystemResult;
use crate::first_writes::steps::Step;
use crate::first_writes::study::{Study, StudyConfig, Subject};
use crate::study::SubjectError;

/// Ours.
pub const OURS: &str = "strongroom";
/// Theirs, with a new overlay for a snapshot.
pub const PEER: &str = "qcow2 with LUKS";

/// Requests in flight.
const DEPTH: u16 = 32;

/// Measures it, and keeps every figure of every round in `results`.
pub fn measure(
    config: &SnapshotsConfig,
    results: &Path,
    progress: &dyn Fn(&str),
) -> Result<FileSystemResult, SubjectError> {
    let mut subjects =
        vec![Subject { product: Box::new(config.strongroom(OURS, true)), only_overwriting: false }];
    if config.has_peers {
        subjects.push(Subject { product: Box::new(config.qcow2(PEER)), only_overwriting: false });
    }
    let study_config = StudyConfig {
        volume_bytes: config.sizes.after,
        log_bytes: config.sizes.after_log,
        sequential_bytes: 0,
        steps: vec![Step::Over, Step::AfterSnapshot],
        rounds: config.rounds,
        sequential_depth: 1,
        seed: 1,
    };
    let place = config.place(&config.fresh_directory("after")?, DEPTH);
    let result = Study { place, config: &study_config, subjects: &subjects, progress }.run()?;
    fs::write(results, serde_json::to_string_pretty(&result)?)
        .map_err(|error| format!("cannot write {}: {error}", results.display()))?;
    Ok(result)
}
