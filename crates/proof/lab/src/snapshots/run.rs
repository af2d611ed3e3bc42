//! Runs the parts, and keeps their files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::{Part, SnapshotsConfig};
use super::gap::Group;
use super::goals::{self, Goal};
use super::jobs::Job;
use super::pairs::{self, PairFile, pooled};
use super::{after, chains, create, gap, jobs, merge, rewrite};
use crate::datapath::comparison::{finish, now, unfinished};
use crate::first_writes::report::Tables;
use crate::study::{Machine, Report, ReportSettings, Store, Study, SubjectError, Workload, version_of};

/// What a part has found.
pub struct Found {
    /// Tables in Markdown.
    pub markdown: String,
    /// The goals, and whether they were reached.
    pub goals: Vec<Goal>,
    /// Where every raw value is.
    pub directory: PathBuf,
}

/// Measures a part. Its files are in a new directory within `directory`, which also has those of an
/// interrupted run, with which the same part goes on.
pub fn run(
    part: Part,
    config: &SnapshotsConfig,
    directory: &Path,
    progress: &dyn Fn(&str),
) -> Result<Found, SubjectError> {
    let files = Files { part, config, directory, progress };
    let end = |report: &Report, place: &Path, goals: Vec<Goal>| {
        files.end(&report.to_string(), Some(report), place, goals)
    };
    match part {
        Part::Gap => {
            let file = Arc::new(PairFile::default());
            let mut study = gap::study(config, &file);
            let keep = |place: &Path| file.keep_in(place.join("pairs.jsonl"));
            let (report, place) = files.measure(&mut study, &gap::report_settings(), &keep)?;
            let pooled = pooled(&file.read()?);
            let text = format!("### Gap\n\n{}\n{}", machine_line(&report), pairs::table(&pooled, &report));
            let most = config.volumes.iter().max().copied().unwrap_or_default();
            let largest: Vec<String> =
                config.depths.iter().map(|depth| Group::new(most, *depth).name().to_owned()).collect();
            let goals = goals::of_gaps(&pooled, &report, &largest);
            files.end(&text, Some(&report), &place, goals)
        }
        Part::Create => {
            let (found, place) =
                files.measure(&mut create::study(config)?, &create::report_settings(), &nothing)?;
            end(&found, &place, goals::of_creation(&found))
        }
        Part::Chains => {
            let mut study = chains::study(config, progress)?;
            let (found, place) = files.measure(&mut study, &chains::report_settings(), &nothing)?;
            end(&found, &place, goals::of_chains(&found))
        }
        Part::Merge => {
            let (found, place) =
                files.measure(&mut merge::study(config)?, &merge::report_settings(), &nothing)?;
            end(&found, &place, goals::of_merges(&found))
        }
        Part::Reencrypt | Part::Move => {
            let job = if part == Part::Move { Job::Move } else { Job::Renewal };
            let (found, place) =
                files.measure(&mut jobs::study(job, config)?, &jobs::report_settings(), &nothing)?;
            end(&found, &place, goals::of_job(&found, job))
        }
        Part::Rewrite => {
            let (found, place) =
                files.measure(&mut rewrite::study(config)?, &rewrite::report_settings(), &nothing)?;
            end(&found, &place, goals::of_rewriting(&found))
        }
        Part::After => {
            let place = directory.join("unfinished-after");
            fs::create_dir_all(&place)?;
            let result = after::measure(config, &place.join("report.json"), progress)?;
            let (text, goals) = (Tables(&result).to_string(), goals::of_writes(&result));
            files.end(&text, None, &place, goals)
        }
    }
}

/// For parts without files of their own.
fn nothing(_: &Path) -> io::Result<()> {
    Ok(())
}

struct Files<'run> {
    part: Part,
    config: &'run SnapshotsConfig,
    directory: &'run Path,
    progress: &'run dyn Fn(&str),
}

impl Files<'_> {
    /// Measures what an earlier run has not; returns the report and its directory.
    fn measure<W: Workload>(
        &self,
        study: &mut Study<'_, W>,
        settings: &ReportSettings,
        keep: &dyn Fn(&Path) -> io::Result<()>,
    ) -> Result<(Report, PathBuf), SubjectError> {
        let Self { config, directory, progress, .. } = self;
        let plan = study.plan();
        progress(&plan.to_string());
        let programs = self.programs()?;
        let machine = Machine::describe(directory, programs.clone())?;
        let place = unfinished(directory, &plan, &programs);
        let mut store = Store::open(&place, &plan, &machine)?;
        keep(&place)?;
        study.run(&mut store, progress, &config.stop)?;
        Ok((Report::of(&store, settings), place))
    }

    /// The compared programs, with their versions.
    fn programs(&self) -> Result<BTreeMap<String, String>, SubjectError> {
        let mut programs = vec![("strongroom", self.config.program.as_path())];
        if self.config.has_peers {
            programs.extend(["qemu-storage-daemon", "qemu-img"].map(|name| (name, Path::new(name))));
        }
        let version = |(name, path): (&str, &Path)| {
            let version = version_of(path).map_err(|error| {
                format!("cannot run {}: {error}; build or install it, or say where it is", path.display())
            })?;
            Ok::<_, SubjectError>((name.to_owned(), version))
        };
        programs.into_iter().map(version).collect()
    }

    fn end(
        &self,
        markdown: &str,
        report: Option<&Report>,
        place: &Path,
        goals: Vec<Goal>,
    ) -> Result<Found, SubjectError> {
        let write = |name: &str, text: String| {
            let path = place.join(name);
            fs::write(&path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
        };
        write("report.md", format!("{markdown}\n{}", goals::table(&goals)))?;
        if let Some(report) = report {
            write("report.json", serde_json::to_string_pretty(report)?)?;
        }
        let directory = finish(place, self.directory, &format!("{}-{}", self.part.name(), now()))?;
        Ok(Found { markdown: markdown.to_owned(), goals, directory })
    }
}

/// The beginning of a report: its machine and its rounds.
fn machine_line(report: &Report) -> String {
    let text = report.to_string();
    text.lines().next().unwrap_or_default().to_owned() + "\n"
}
