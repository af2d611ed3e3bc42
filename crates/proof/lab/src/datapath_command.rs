//! `strongroom-lab datapath`.

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use strongroom_lab::datapath::comparison::{
    ComparisonConfig, Form, finish, missing, now, programs, report_settings, rows, study, unfinished,
};
use strongroom_lab::datapath::disks::{Disks, Sizes};
use strongroom_lab::datapath::workload::{Group, MAP_RUNS};
use strongroom_lab::study::{Machine, Metric, Pace, PaceLimits, Report, Store, Workload};
use strongroom_lab::vhost_user::guest::Pages;

use crate::studied::{found, made, stop_by_signals};

/// The overhead of a measurement: a server's start, connection and end.
const OPEN: Duration = Duration::from_millis(300);
/// The divisor for the size of each of several disks.
const SEVERAL_DISKS: u64 = 8;

/// Measures this project's worker beside other servers of disks, in the same run, interleaved.
///
/// Beside the raw file (fio), QEMU's storage daemon, qemu-nbd and nbdkit, each with LUKS and
/// without. The quick form, which is the default, takes less than ten minutes. Disks, of some 8 GiB
/// in all, are made in the directory and kept for the next run; an interrupted run goes on where it
/// was. Ends with a table for each row, and keeps every raw value.
#[derive(Args)]
#[command(after_help = "Examples:
  strongroom-lab datapath
  strongroom-lab datapath --full
  strongroom-lab datapath --group disk,memory --rounds 6 --seconds 2
  strongroom-lab datapath --baseline-program ./strongroom-before --group encryption")]
pub struct Arguments {
    /// The strongroom program, of a release build.
    #[arg(long, value_name = "PATH", default_value = "target/release/strongroom")]
    program: PathBuf,
    /// Another build of it, to be compared with.
    #[arg(long, value_name = "PATH")]
    baseline_program: Option<PathBuf>,
    /// Where disks and results are; on the file system that is to be measured.
    #[arg(long, value_name = "DIRECTORY", default_value = "target/lab/datapath")]
    directory: PathBuf,
    /// The most important rows, in less than ten minutes. What is done without saying anything.
    #[arg(long)]
    quick: bool,
    /// Every row, with as many rounds as a verdict needs; some two hours.
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Two rows, four subjects, small disks: a first impression, a line for each subject.
    #[arg(long, conflicts_with_all = ["quick", "full"])]
    brief: bool,
    /// Only these groups.
    #[arg(long, value_enum, value_delimiter = ',')]
    group: Vec<Group>,
    /// Show the rows and end.
    #[arg(long)]
    list: bool,
    /// Rounds; every other one goes backwards. Fewer than six give no verdict.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// How long each measurement is, in seconds, beside a third of it to warm up.
    #[arg(long)]
    seconds: Option<f64>,
    /// Make the most of so many minutes, in place of a number of rounds.
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    minutes: Option<f64>,
    /// Size of a disk, in MiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..=1_048_576))]
    disk_mib: Option<u64>,
    /// Size of a disk in memory or on tmpfs, in MiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    memory_mib: Option<u64>,
    /// Guests' memory in pages of 4 KiB, in place of 2 MiB where the system gives them to shared
    /// memory.
    #[arg(long)]
    small_pages: bool,
    /// How long a guest looks for answers before it sleeps, in microseconds.
    #[arg(long, default_value_t = 0)]
    spin_us: u64,
    /// Fail where a peer is not installed, in place of leaving it out.
    #[arg(long)]
    require_peers: bool,
    /// The report as JSON, with every raw value.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    let form = arguments.form();
    let rows = rows(form, &arguments.group);
    if arguments.list {
        rows.iter().for_each(|row| print(row.name()));
        return Ok(());
    }
    let stop = stop_by_signals()?;
    let absent: Vec<String> = missing()
        .iter()
        .map(|missing| format!("{} is not installed (Debian: {})", missing.program, missing.package))
        .collect();
    if arguments.require_peers && !absent.is_empty() {
        return Err(format!("{}; install them, or leave --require-peers out", absent.join("; ")).into());
    }
    let config = arguments.config(form)?;
    let programs = programs(&config).map_err(|error| {
        format!("cannot read {}: {error}; build it, or say where it is", config.program.display())
    })?;
    let directory = made(&arguments.directory)?;
    let progress = |text: &str| eprintln!("{text}");
    absent.iter().for_each(|text| progress(&format!("note: {text}; its rows are left out")));

    let disks = Disks::new(&directory.join("disks"), config.sizes, Arc::clone(&stop))?;
    let mut study =
        study(&config, rows, Pace::default(), &disks, &progress).map_err(|error| error.to_string())?;
    study.pace = arguments.pace(form, study.plan().measurements_per_round())?;
    let plan = study.plan();
    progress(&plan.to_string());
    let machine = Machine::describe(&directory, programs.clone())?;
    let place = unfinished(&directory, &plan, &programs);
    let mut store = Store::open(&place, &plan, &machine)?;
    study.run(&mut store, &progress, &stop)?;

    let report = Report::of(&store, &report_settings(&config));
    drop(store);
    let notes: String = absent.iter().map(|text| format!("\nNot measured: {text}.\n")).collect();
    let (markdown, json) = (format!("{report}{notes}"), serde_json::to_string_pretty(&report)?);
    write(&place.join("report.md"), &markdown)?;
    write(&place.join("report.json"), &json)?;
    let finished = finish(&place, &directory, &format!("{}-{}", form_name(form), now()))?;
    match (arguments.json, form) {
        (true, _) => print(&json),
        (false, Form::Brief) => print(&brief(&report)),
        (false, _) => {
            print(&markdown);
            progress(&format!("report and raw values: {}", finished.display()));
        }
    }
    Ok(())
}

impl Arguments {
    fn form(&self) -> Form {
        match (self.full, self.brief) {
            (true, _) => Form::Full,
            (_, true) => Form::Brief,
            _ => Form::Quick,
        }
    }

    fn config(&self, form: Form) -> Result<ComparisonConfig, Box<dyn Error>> {
        let (disk_mib, memory_mib) = match form {
            Form::Brief => (256, 128),
            Form::Quick | Form::Full => (2048, 512),
        };
        let disk = self.disk_mib.unwrap_or(disk_mib) << 20;
        Ok(ComparisonConfig {
            form,
            groups: self.group.clone(),
            program: found(&self.program)?,
            baseline_program: self.baseline_program.as_deref().map(found).transpose()?,
            sizes: Sizes {
                disk,
                one_of_several: (disk / SEVERAL_DISKS).next_multiple_of(1 << 20),
                map_runs: MAP_RUNS,
                memory: self.memory_mib.unwrap_or(memory_mib) << 20,
            },
            pages: if self.small_pages { Pages::Small } else { Pages::Huge },
            spin: Duration::from_micros(self.spin_us),
        })
    }

    fn pace(&self, form: Form, per_round: usize) -> Result<Pace, Box<dyn Error>> {
        if let Some(minutes) = self.minutes {
            let limits = PaceLimits { open: OPEN, ..PaceLimits::default() };
            return Ok(Pace::within(Duration::try_from_secs_f64(minutes * 60.0)?, per_round, &limits)?);
        }
        let (rounds, seconds) = match form {
            Form::Brief => (2, 1.0),
            Form::Quick => (6, 0.6),
            Form::Full => (6, 3.0),
        };
        let duration = Duration::try_from_secs_f64(self.seconds.unwrap_or(seconds))?;
        Ok(Pace { rounds: self.rounds.unwrap_or(rounds), warm_up: duration / 3, duration })
    }
}

/// Explains a ratio above 1 in the brief table, which the baseline's name makes look impossible.
const ABOVE_RAW: &str = "\n
A ratio above 1.00 is no error: fio moves the raw file through ordinary pages, and a worker's buffers are huge pages,
which the disk takes in fewer, larger pieces. Small differences are the disk's, whose speed varies while this runs.
`make measure` has the raw file with huge pages beside it, and medians of six rounds.";

/// A line for each subject, for a terminal.
fn brief(report: &Report) -> String {
    let mut text = format!("{:26}", "");
    for workload in &report.workloads {
        text += &format!("{:>36}", workload.name.trim_start_matches("disk: "));
    }
    let Some(first) = report.workloads.first() else { return text };
    let mut is_above_raw = false;
    for row in &first.rows {
        text += &format!("\n{:26}", row.subject);
        for workload in &report.workloads {
            let headline = |subject| workload.row(subject)?.median(workload.headline);
            let unit = if workload.headline == Metric::OperationsPerSecond { "IOPS" } else { "MB/s" };
            if let (Some(median), Some(raw)) =
                (headline(row.subject.as_str()), headline(first.rows[0].subject.as_str()))
            {
                is_above_raw |= median > raw;
                text += &format!("{median:>24.0} {unit} ({:.2})", median / raw);
            }
        }
    }
    if is_above_raw {
        text += ABOVE_RAW;
    }
    text
}

fn form_name(form: Form) -> &'static str {
    match form {
        Form::Quick => "quick",
        Form::Full => "full",
        Form::Brief => "brief",
    }
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[allow(clippy::print_stdout)]
fn print(text: &str) {
    println!("{text}");
}
