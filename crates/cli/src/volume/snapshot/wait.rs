//! Waiting for a merge that the process that exposes a volume does.

use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use strongroom_types::display_bytes;
use strongroom_worker::control::{Client, MergeProgress, MergeStatus, status_of};

use crate::error::CliError;
use crate::output::Output;
use crate::progress::{Meter, display_about};

/// How often the process is asked.
const ASKS_EVERY: Duration = Duration::from_millis(200);

/// How often it may be silent in a row: it exchanges its worker now and then.
const SILENCES_MAX: u32 = 60;

/// Returns when the volume has no layers left to be merged.
pub fn await_merges(path: &Path, output: &Output) -> Result<(), CliError> {
    let mut meter: Option<(u64, Meter)> = None;
    let mut silences = 0;
    loop {
        let Some(status) = status_of(path) else {
            silences += 1;
            if silences > SILENCES_MAX || Client::connect(path)?.is_none() {
                let consequence = "the merge goes on when it is exposed again";
                return Err(CliError::NotExposed { path: path.to_owned(), consequence });
            }
            sleep(ASKS_EVERY);
            continue;
        };
        silences = 0;
        let Some(merge) = status.merge else { return Ok(()) };
        let MergeStatus { state, copied_bytes, total_bytes, reason, .. } = *merge;
        let ended = |reason| Err(CliError::MergeEnded { path: path.to_owned(), reason });
        match state {
            MergeProgress::Running | MergeProgress::Waiting => {}
            MergeProgress::Paused => return ended("it is paused".to_owned()),
            MergeProgress::Failed => return ended(reason.unwrap_or_default()),
        }
        // The next two layers begin at nothing again.
        let is_same = meter.as_ref().is_some_and(|(last, _)| *last <= copied_bytes);
        if !is_same {
            meter = Some((copied_bytes, Meter::start(output, "merging", total_bytes)));
        }
        if let Some((last, meter)) = &mut meter {
            *last = copied_bytes;
            meter.at(copied_bytes);
        }
        sleep(ASKS_EVERY);
    }
}

/// Why layers that could be merged are not.
pub const WAITS_FOR_OTHERS: &str =
    "layers wait until no other volume has them: a linked clone, or the volume that this one is a clone of";

/// How far a merge has come, in words.
pub fn in_words(merge: &MergeStatus) -> String {
    let MergeStatus { state, copied_bytes, total_bytes, seconds_left, reason } = merge;
    let place = format!("{} of {}", display_bytes(*copied_bytes), display_bytes(*total_bytes));
    let reason = reason.as_deref().unwrap_or("no reason is known");
    match state {
        MergeProgress::Running => {
            let left = seconds_left.map(|left| format!(", about {} left", display_about(left)));
            format!("two layers are merged, {place} are done{}", left.unwrap_or_default())
        }
        MergeProgress::Paused => {
            format!("paused, {place} are done; go on with 'volume snapshot merge'")
        }
        MergeProgress::Waiting => format!("waits, {place} are done, and goes on by itself: {reason}"),
        MergeProgress::Failed => format!(
            "FAILED: {reason}; nothing is lost: see to that, and begin again with 'volume snapshot merge'"
        ),
    }
}
