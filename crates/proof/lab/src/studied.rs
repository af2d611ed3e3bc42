//! What the commands that run a study have in common.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use strongroom_lab::study::{Machine, Report, ReportSettings, Store, Study, Workload};

/// A flag that is set when the command is to end.
pub fn stop_by_signals() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// The whole path of a program or file that takes part.
pub fn found(path: &Path) -> Result<PathBuf, String> {
    fs::canonicalize(path)
        .map_err(|error| format!("cannot find {}: {error}; build it, or say where it is", path.display()))
}

/// The whole path of the directory for results, which is made if it is missing.
pub fn made(directory: &Path) -> Result<PathBuf, String> {
    fs::create_dir_all(directory)
        .and_then(|()| fs::canonicalize(directory))
        .map_err(|error| format!("cannot make {}: {error}", directory.display()))
}

/// Leaves the rows whose names have this text; all of them without one.
pub fn keep_only<W: Workload>(study: &mut Study<'_, W>, text: Option<&str>) -> Result<(), String> {
    let Some(text) = text else { return Ok(()) };
    study.workloads.retain(|row| row.name().contains(text));
    match study.workloads.is_empty() {
        true => Err(format!("no row has '{text}' in its name; without --only all are measured")),
        false => Ok(()),
    }
}

/// Runs a study, whose measurements and report are in `directory`, and prints the report. One that
/// was interrupted goes on.
pub fn measure<W: Workload>(
    directory: &Path,
    mut study: Study<'_, W>,
    programs: BTreeMap<String, String>,
    settings: &ReportSettings,
    stop: &AtomicBool,
) -> Result<(), Box<dyn Error>> {
    let progress = |text: &str| eprintln!("{text}");
    let plan = study.plan();
    progress(&plan.to_string());
    let machine = Machine::describe(directory, programs)?;
    let mut store = Store::open(&directory.join("measurements"), &plan, &machine)?;
    study.run(&mut store, &progress, stop)?;
    let report = Report::of(&store, settings);
    let text = report.to_string();
    fs::write(directory.join("report.md"), &text)?;
    fs::write(directory.join("report.json"), serde_json::to_string_pretty(&report)?)?;
    print(&text);
    Ok(())
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
