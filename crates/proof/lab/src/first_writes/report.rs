//! The results as tables, in Markdown.

use std::fmt::{self, Display, Formatter};

use super::figures::{Figures, Spread};
use super::result::{FileSystemResult, Phase, SubjectResult};
use crate::markdown::{thousands, write_table};
use crate::processes::Memory;

const RANDOM: [(Phase, &str); 7] = [
    (Phase::FirstUntilFull, "first writes until the log is full"),
    (Phase::FirstBeyond, "first writes from there to ten times that"),
    (Phase::FirstAll, "first writes, all of these"),
    (Phase::AfterSnapshotUntilFull, "after a snapshot, until the log is full"),
    (Phase::AfterSnapshotBeyond, "after a snapshot, from there to ten times that"),
    (Phase::AfterSnapshotAll, "after a snapshot, all of these"),
    (Phase::Over, "overwriting"),
];

const SEQUENTIAL: [(Phase, Phase, &str); 4] = [
    (Phase::First64K, Phase::Over64K, "64 KiB, first writes"),
    (Phase::Over64K, Phase::Over64K, "64 KiB, overwriting"),
    (Phase::First512K, Phase::Over512K, "512 KiB, first writes"),
    (Phase::Over512K, Phase::Over512K, "512 KiB, overwriting"),
];

const RANDOM_HEAD: [&str; 8] =
    ["", "IOPS", "of overwriting", "median", "p99", "of overwriting's", "longest", "server CPU per write"];
const SEQUENTIAL_HEAD: [&str; 6] =
    ["", "MB/s", "of overwriting", "p99", "of overwriting's", "server CPU per write"];
const OPENING: &str =
    "Opening, from the program's start to the first answered read, and memory of the process that serves:";
const OPENING_HEAD: [&str; 8] = [
    "",
    "after `kill -9`, log full",
    "after an orderly end",
    "orderly end",
    "idle: RSS, PSS, own",
    "log full",
    "all processes",
    "settled",
];

/// Shows the results of one file system.
pub struct Tables<'a>(pub &'a FileSystemResult);

impl Display for Tables<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self(result) = self;
        let said = if result.log_told { "by its own word" } else { "as given" };
        let [before, after] = result.load_averages;
        writeln!(f, "### {}\n", result.file_system)?;
        writeln!(
            f,
            "The log holds {} MiB ({said}). Load average {before:.1} before and {after:.1} after.\n",
            result.log_bytes >> 20
        )?;
        table(f, "4 KiB random writes:", &RANDOM_HEAD, &rows(result, random_rows))?;
        table(f, "Sequential writes:", &SEQUENTIAL_HEAD, &rows(result, sequential_rows))?;
        table(f, OPENING, &OPENING_HEAD, &rows(result, opening_row))?;
        after_snapshot_ratio(f, &result.subjects)?;
        thick_ratio(f, &result.subjects)
    }
}

/// A row's cells.
type Row = Vec<String>;

fn rows(result: &FileSystemResult, of: impl Fn(&SubjectResult) -> Vec<Row>) -> Vec<Row> {
    result.subjects.iter().flat_map(of).collect()
}

/// Writes a table, unless none of it was measured.
fn table(f: &mut Formatter<'_>, title: &str, head: &[&str], rows: &[Row]) -> fmt::Result {
    if rows.is_empty() {
        return Ok(());
    }
    writeln!(f, "{title}\n")?;
    write_table(f, head, rows)?;
    writeln!(f)
}

fn random_rows(subject: &SubjectResult) -> Vec<Row> {
    let over = subject.rounds(Phase::Over);
    let measured = RANDOM.into_iter().filter(|(phase, _)| !subject.rounds(*phase).is_empty());
    let row = |(phase, name)| {
        let rounds = subject.rounds(phase);
        vec![
            format!("{}, {name}", subject.name),
            whole(spread(rounds, |figures| figures.iops)),
            ratio(rounds, over, |figures| figures.iops),
            microseconds(spread(rounds, |figures| figures.median_us)),
            microseconds(spread(rounds, |figures| figures.p99_us)),
            ratio(rounds, over, |figures| figures.p99_us),
            microseconds(spread(rounds, |figures| figures.longest_us)),
            tenths(spread(rounds, |figures| figures.processor_us), "us"),
        ]
    };
    measured.map(row).collect()
}

fn sequential_rows(subject: &SubjectResult) -> Vec<Row> {
    let measured = SEQUENTIAL.into_iter().filter(|(phase, ..)| !subject.rounds(*phase).is_empty());
    let row = |(phase, over, name)| {
        let (rounds, over) = (subject.rounds(phase), subject.rounds(over));
        vec![
            format!("{}, {name}", subject.name),
            whole(spread(rounds, |figures| figures.megabytes_per_second)),
            ratio(rounds, over, |figures| figures.megabytes_per_second),
            microseconds(spread(rounds, |figures| figures.p99_us)),
            ratio(rounds, over, |figures| figures.p99_us),
            tenths(spread(rounds, |figures| figures.processor_us), "us"),
        ]
    };
    measured.map(row).collect()
}

fn opening_row(subject: &SubjectResult) -> Vec<Row> {
    if subject.reopen_full_ms.is_empty() {
        return Vec::new();
    }
    let of = |rounds: &[f64]| tenths(Spread::of(rounds.iter().copied()), "ms");
    vec![vec![
        subject.name.clone(),
        of(&subject.reopen_full_ms),
        of(&subject.reopen_empty_ms),
        of(&subject.close_ms),
        memory(&subject.memory_idle),
        memory(&subject.memory_full),
        memory(&subject.memory_full_all),
        memory(&subject.memory_settled),
    ]]
}

/// Compares writes right after a snapshot of the first product with those of others.
fn after_snapshot_ratio(f: &mut Formatter<'_>, subjects: &[SubjectResult]) -> fmt::Result {
    let Some((first, others)) = subjects.split_first() else { return Ok(()) };
    for other in others.iter().filter(|other| !other.rounds(Phase::AfterSnapshotAll).is_empty()) {
        let iops = |phase| ratio(first.rounds(phase), other.rounds(phase), |figures| figures.iops);
        writeln!(
            f,
            "Right after a snapshot, {} as a ratio to {}: IOPS until the log is full {}, beyond {}.\n",
            first.name,
            other.name,
            iops(Phase::AfterSnapshotUntilFull),
            iops(Phase::AfterSnapshotBeyond),
        )?;
    }
    Ok(())
}

/// Compares the first product with those that are only overwritten: the cost of a thin volume once
/// everything is written.
fn thick_ratio(f: &mut Formatter<'_>, subjects: &[SubjectResult]) -> fmt::Result {
    let Some((first, others)) = subjects.split_first() else { return Ok(()) };
    let has_first_writes = |subject: &SubjectResult| {
        [Phase::FirstAll, Phase::AfterSnapshotAll].iter().any(|phase| !subject.rounds(*phase).is_empty())
    };
    for thick in others.iter().filter(|subject| !has_first_writes(subject)) {
        let (rounds, over) = (first.rounds(Phase::Over), thick.rounds(Phase::Over));
        if rounds.is_empty() {
            continue;
        }
        writeln!(
            f,
            "Overwriting, {} as a ratio to {}: IOPS {}, p99 {}, CPU per write {}.",
            first.name,
            thick.name,
            ratio(rounds, over, |figures| figures.iops),
            ratio(rounds, over, |figures| figures.p99_us),
            ratio(rounds, over, |figures| figures.processor_us),
        )?;
    }
    Ok(())
}

fn spread(rounds: &[Figures], figure: impl Fn(&Figures) -> f64) -> Option<Spread> {
    Spread::of(rounds.iter().map(figure))
}

fn ratio(rounds: &[Figures], by: &[Figures], figure: impl Fn(&Figures) -> f64) -> String {
    shown(Spread::of_ratios(rounds, by, figure), |value| format!("{value:.2}"), "")
}

fn whole(spread: Option<Spread>) -> String {
    shown(spread, thousands, "")
}

fn microseconds(spread: Option<Spread>) -> String {
    shown(spread, thousands, " us")
}

fn tenths(spread: Option<Spread>, unit: &str) -> String {
    shown(spread, |value| format!("{value:.1}"), &format!(" {unit}"))
}

/// The median, with lowest and highest if there is more than one round.
fn shown(spread: Option<Spread>, number: impl Fn(f64) -> String, unit: &str) -> String {
    match spread {
        None => "-".to_owned(),
        Some(Spread { median, lowest, highest }) if lowest == highest => format!("{}{unit}", number(median)),
        Some(Spread { median, lowest, highest }) => {
            format!("{}{unit} ({} to {})", number(median), number(lowest), number(highest))
        }
    }
}

fn memory(rounds: &[Memory]) -> String {
    let median = |bytes: fn(&Memory) -> u64| {
        let spread = Spread::of(rounds.iter().map(|memory| bytes(memory) as f64 / f64::from(1 << 20)));
        spread.map_or("-".to_owned(), |spread| format!("{:.1}", spread.median))
    };
    format!(
        "{}, {}, {} MiB",
        median(|memory| memory.resident_bytes),
        median(|memory| memory.proportional_bytes),
        median(|memory| memory.anonymous_bytes)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(iops: f64, p99_us: f64) -> Figures {
        Figures { iops, p99_us, processor_us: 10.0, ..Figures::default() }
    }

    fn subject(name: &str, phases: &[(Phase, [f64; 2])]) -> SubjectResult {
        let mut subject = SubjectResult::new(name);
        for (phase, iops) in phases {
            iops.iter().for_each(|iops| subject.add(*phase, figures(*iops, 1e8 / iops)));
        }
        subject
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(whole(Spread::of([1000.0, 3000.0])), "2,000 (1,000 to 3,000)");
        assert_eq!((whole(None), whole(Spread::of([7.0]))), ("-".to_owned(), "7".to_owned()));
    }

    #[test]
    fn tables_hold_ratios_to_overwriting_and_leave_out_what_was_not_measured() {
        let mut thin = subject("thin", &[(Phase::FirstAll, [6e3, 8e3]), (Phase::Over, [1e4, 1e4])]);
        thin.reopen_full_ms = vec![31.0];
        thin.memory_idle =
            vec![Memory { resident_bytes: 8 << 20, proportional_bytes: 6 << 20, anonymous_bytes: 3 << 19 }];
        let thick = subject("thick", &[(Phase::Over, [1e4, 2e4])]);
        let result = FileSystemResult {
            file_system: "ext4".to_owned(),
            log_bytes: 16 << 20,
            log_told: true,
            load_averages: [0.5, 1.25],
            subjects: vec![thin, thick],
        };
        let text = Tables(&result).to_string();
        let row = |start: &str| text.lines().find(|line| line.starts_with(start)).map(str::to_owned);
        let first = row("| thin, first writes, all of these").unwrap();
        assert!(first.contains("| 7,000 (6,000 to 8,000) | 0.70 (0.60 to 0.80) |"), "{first}");
        assert!(first.contains("| 1.46 (1.25 to 1.67) |"), "{first}");
        assert_eq!(row("| thick, first writes"), None);
        assert!(row("| thick, overwriting").is_some());
        assert!(row("| thin | 31.0 ms | - | - | 8.0, 6.0, 1.5 MiB | -, -, - MiB |").is_some(), "{text}");
        assert!(text.contains("thin as a ratio to thick: IOPS 0.75 (0.50 to 1.00), p99 1.50"), "{text}");
    }
}
