//! Moves of volumes between two directories, beside copies of the same file: the subjects of a
//! study.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::datapath::comparison::fingerprint;
use crate::programs::{ProgramError, make_secret, run};
use crate::study::{
    Baseline, Metric, Pace, ReportSettings, Sample, Session, Study, Subject, SubjectError, Workload,
};

/// What moves are measured with.
#[derive(Clone, Debug)]
pub struct MovesConfig {
    /// The program, of a release build.
    pub program: PathBuf,
    /// Two directories of the lab's own, one on each file system.
    pub places: [PathBuf; 2],
    /// The size of the volume, all of which is allocated, in bytes.
    pub size_bytes: u64,
}

/// A direction: a row of the report.
#[derive(Clone, Debug)]
pub struct Direction {
    name: &'static str,
    from: usize,
}

impl Workload for Direction {
    fn name(&self) -> &str {
        self.name
    }

    fn headline(&self) -> Metric {
        Metric::MegabytesPerSecond
    }
}

/// How the content gets there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The program moves the volume, and deletes the former one.
    Move,
    /// A copy of the layer's file with direct I/O, made durable.
    Copy,
    /// The same, which is then read once more past the page cache.
    CopyReadBack,
}

/// Subjects by their names in reports.
pub const MOVE: &str = "move";
/// See [`MOVE`].
pub const COPY: &str = "copy";
/// See [`MOVE`].
pub const COPY_READ_BACK: &str = "copy, read back";

const VOLUME: &str = "volume";
const COPIED: &str = "copy";
/// What `dd` transfers at once.
const PIECE: &str = "bs=1M";

/// The study. It makes the volume's key and content.
///
/// # Errors
/// If they cannot be made.
pub fn study(config: &MovesConfig, pace: Pace) -> Result<Study<'_, Direction>, SubjectError> {
    make_secret(&config.key())?;
    let size = format!("count={}", config.size_bytes >> 20);
    run(Command::new("dd")
        .args(["if=/dev/urandom", PIECE, &size, "status=none"])
        .arg(output(&config.content())))?;
    let subject =
        |(name, way)| -> Box<dyn Subject<Direction> + '_> { Box::new(Passage { name, way, config }) };
    let ways = [(MOVE, Way::Move), (COPY, Way::Copy), (COPY_READ_BACK, Way::CopyReadBack)];
    Ok(Study {
        name: "moves of volumes".to_owned(),
        settings: BTreeMap::from([
            (
                "volume".to_owned(),
                format!("{} MiB, encrypted, in one layer, used by nobody", config.size_bytes >> 20),
            ),
            ("copies".to_owned(), "dd, 1 MiB at once, iflag=direct oflag=direct conv=fsync".to_owned()),
        ]),
        subjects: ways.into_iter().map(subject).collect(),
        workloads: vec![Direction { name: "there", from: 0 }, Direction { name: "back", from: 1 }],
        pace,
    })
}

/// The baselines: a copy that is read back, as a moved volume is, and one that is not.
pub fn report_settings() -> ReportSettings {
    ReportSettings::new([COPY_READ_BACK, COPY].map(Baseline::of).to_vec())
}

/// The programs that take part, with their versions.
///
/// # Errors
/// If one cannot be read.
pub fn programs(config: &MovesConfig) -> io::Result<BTreeMap<String, String>> {
    Ok(BTreeMap::from([("strongroom".to_owned(), fingerprint(&config.program)?)]))
}

impl MovesConfig {
    fn key(&self) -> PathBuf {
        self.places[0].join("key")
    }

    fn content(&self) -> PathBuf {
        self.places[0].join("content")
    }

    fn store(&self, place: usize) -> PathBuf {
        self.places[place].join("store")
    }

    /// Runs a command of the program about the volume.
    fn volume(&self, words: &[&str], paths: &[&Path]) -> Result<(), ProgramError> {
        let mut command = Command::new(&self.program);
        command.arg("volume").args(words).arg("--key-file").arg(self.key()).args(paths);
        run(&mut command).map(drop)
    }

    fn forget(&self) -> io::Result<()> {
        for place in 0..self.places.len() {
            for left in [self.store(place), self.places[place].join(COPIED)] {
                match fs::symlink_metadata(&left) {
                    Ok(found) if found.is_dir() => fs::remove_dir_all(&left)?,
                    Ok(_) => fs::remove_file(&left)?,
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

struct Passage<'study> {
    name: &'static str,
    way: Way,
    config: &'study MovesConfig,
}

impl Subject<Direction> for Passage<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, _: &Direction) -> bool {
        true
    }

    fn open(&mut self, workload: &Direction) -> Result<Box<dyn Session + '_>, SubjectError> {
        let config = self.config;
        config.forget()?;
        for place in 0..config.places.len() {
            fs::create_dir(config.store(place))?;
        }
        let volume = config.store(workload.from).join(VOLUME);
        config.volume(&["import", "--format", "raw"], &[&config.content(), &volume])?;
        // Nothing that was made before is written while something is measured.
        rustix::fs::sync();
        Ok(Box::new(Ready { way: self.way, config, volume, to: 1 - workload.from }))
    }
}

struct Ready<'study> {
    way: Way,
    config: &'study MovesConfig,
    volume: PathBuf,
    to: usize,
}

impl Session for Ready<'_> {
    fn measure(&mut self, _: Duration, _: Duration) -> Result<Sample, SubjectError> {
        let began = Instant::now();
        match self.way {
            Way::Move => {
                let to = self.config.store(self.to);
                let to = format!("--to={}", to.display());
                self.config.volume(&["move", &to], &[&self.volume])?;
            }
            Way::Copy | Way::CopyReadBack => {
                let copy = self.config.places[self.to].join(COPIED);
                let from = format!("if={}", layer_of(&self.volume)?.display());
                let how = [PIECE, "iflag=direct", "oflag=direct", "conv=fsync", "status=none"];
                run(Command::new("dd").arg(from).args(how).arg(output(&copy)))?;
                if self.way == Way::CopyReadBack {
                    let from = format!("if={}", copy.display());
                    run(Command::new("dd").args([
                        &from,
                        "of=/dev/null",
                        PIECE,
                        "iflag=direct",
                        "status=none",
                    ]))?;
                }
            }
        }
        let elapsed = began.elapsed();
        let mut sample = Sample::default();
        sample.set(Metric::ElapsedMs, elapsed.as_secs_f64() * 1e3);
        sample.set(Metric::MegabytesPerSecond, self.config.size_bytes as f64 / 1e6 / elapsed.as_secs_f64());
        Ok(sample)
    }
}

/// What `dd` writes.
fn output(path: &Path) -> String {
    format!("of={}", path.display())
}

/// The file of a volume's only layer.
fn layer_of(volume: &Path) -> io::Result<PathBuf> {
    let files = fs::read_dir(volume)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    let is_layer =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("layer-"));
    files.into_iter().find(is_layer).ok_or_else(|| io::Error::other("the volume has no layer"))
}
