//! A study of known quantities.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::StdRng;

use super::nbd::NbdServer;
use super::work::Build;
use crate::study::{Metric, Pace, Study, Subject, SubjectError, Workload};

pub(super) const DELAY: &str = "a known delay, 4 KiB random read, depth 1";
pub(super) const RATE: &str = "a known rate, 64 KiB random read, depth 4";
pub(super) const SAME_SERVER: &str = "the same server twice, 4 KiB random read, depth 16";
pub(super) const WORK: &str = "work of a known amount";
pub(super) const PROGRAMS: &str = "two builds of strongroom, 4 KiB random read, depth 16";

pub(super) const PLAIN: &str = "nbdkit";
pub(super) const AGAIN: &str = "nbdkit, again";
pub(super) const DELAYED: &str = "nbdkit, delayed";
pub(super) const DELAYED_AGAIN: &str = "nbdkit, delayed, again";
pub(super) const LIMITED: &str = "nbdkit, limited";
pub(super) const FIRST: &str = "work";
pub(super) const FIRST_AGAIN: &str = "work, again";
pub(super) const SLOWER: &str = "work, slower";
pub(super) const PROGRAM: &str = "strongroom";
pub(super) const SLOWER_PROGRAM: &str = "strongroom, the slower build";

/// The injected quantities.
#[derive(Clone, Debug)]
pub struct ProofConfig {
    /// The rounds and durations.
    pub pace: Pace,
    /// The delay of one server's answers.
    pub delay: Duration,
    /// The rate limit of another, in bits per second.
    pub rate_bits: u64,
    /// How much longer the slower work takes, as a fraction.
    pub slower: f64,
    /// The random error of each measurement of work, as a fraction.
    pub noise: f64,
    /// The proofs to run.
    pub proofs: Vec<Proof>,
    /// `strongroom-lab`.
    pub lab: PathBuf,
    /// Two builds of `strongroom`, the second known to be slower.
    pub programs: Option<(PathBuf, PathBuf)>,
}

/// What can be put to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Proof {
    /// A known delay is found, and that two servers with it are equal.
    Delay,
    /// A known rate is found.
    Rate,
    /// The same server twice is equal.
    Same,
    /// Work that takes longer is told from noise, and the same work twice is equal.
    Work,
}

/// A subject with a known result.
pub struct Known {
    pub(super) name: String,
    pub(super) load: Load,
    headline: Metric,
}

/// The load on a subject.
#[derive(Clone, Copy)]
pub(super) enum Load {
    Nbd { block_bytes: u32, depth: u32 },
    Work,
}

impl Workload for Known {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        self.headline
    }

    fn must_saturate(&self) -> bool {
        match self.load {
            Load::Nbd { depth, .. } => depth > 1,
            Load::Work => true,
        }
    }
}

/// The study. Its temporary files are in `directory`.
pub fn study(
    directory: &Path,
    config: &ProofConfig,
    stop: &Arc<AtomicBool>,
) -> Result<Study<'static, Known>, SubjectError> {
    let mut subjects = servers(directory, config, stop);
    if config.proofs.contains(&Proof::Work) {
        subjects.extend(builds(config));
    }
    if let Some((program, slower)) = &config.programs {
        let volume = directory.join("volume");
        make_volume(program, &volume)?;
        for (name, program) in [(PROGRAM, program.clone()), (SLOWER_PROGRAM, slower.clone())] {
            let volume = volume.clone();
            let command = move |socket: &Path| expose(&program, &volume, socket);
            let served = server(directory, name, &[PROGRAMS], stop, command);
            subjects.push(Box::new(NbdServer { is_to_be_written: true, has_late_processes: true, ..served }));
        }
    }
    let mut workloads = workloads();
    workloads.retain(|known| subjects.iter().any(|subject| subject.supports(known)));
    let settings = BTreeMap::from([
        ("delay".to_owned(), format!("{:?}", config.delay)),
        ("rate".to_owned(), format!("{} bit/s", config.rate_bits)),
        ("slower".to_owned(), config.slower.to_string()),
        ("noise".to_owned(), config.noise.to_string()),
    ]);
    Ok(Study { name: "prove".to_owned(), settings, subjects, workloads, pace: config.pace })
}

fn workloads() -> Vec<Known> {
    let nbd = |block_kib: u32, depth| Load::Nbd { block_bytes: block_kib << 10, depth };
    let known = |name: &str, load, headline| Known { name: name.to_owned(), load, headline };
    vec![
        known(DELAY, nbd(4, 1), Metric::LatencyMeanUs),
        known(RATE, nbd(64, 4), Metric::MegabytesPerSecond),
        known(SAME_SERVER, nbd(4, 16), Metric::ServerCpuUsPerOperation),
        known(WORK, Load::Work, Metric::ServerCpuUsPerOperation),
        known(PROGRAMS, nbd(4, 16), Metric::ServerCpuUsPerOperation),
    ]
}

fn servers(directory: &Path, config: &ProofConfig, stop: &Arc<AtomicBool>) -> Vec<Box<dyn Subject<Known>>> {
    let delay = vec!["--filter=delay".to_owned(), format!("rdelay={}ms", config.delay.as_millis())];
    // The burst that a server may accumulate while idle: little compared with a measurement, and
    // more than its occasional lateness.
    let rate = [format!("rate={}", config.rate_bits), "burstiness=0.02".to_owned()];
    let rate: Vec<String> = ["--filter=rate".to_owned()].into_iter().chain(rate).collect();
    type Of = &'static [(Proof, &'static str)];
    let servers: [(&str, Vec<String>, Of); 5] = [
        (PLAIN, vec![], &[(Proof::Delay, DELAY), (Proof::Rate, RATE), (Proof::Same, SAME_SERVER)]),
        (AGAIN, vec![], &[(Proof::Same, SAME_SERVER)]),
        (DELAYED, delay.clone(), &[(Proof::Delay, DELAY)]),
        (DELAYED_AGAIN, delay, &[(Proof::Delay, DELAY)]),
        (LIMITED, rate, &[(Proof::Rate, RATE)]),
    ];
    let mut subjects: Vec<Box<dyn Subject<Known>>> = Vec::new();
    for (name, arguments, of) in servers {
        let workloads: Vec<&str> = of
            .iter()
            .filter(|(proof, _)| config.proofs.contains(proof))
            .map(|(_, workload)| *workload)
            .collect();
        if !workloads.is_empty() {
            let command = move |socket: &Path| nbdkit(socket, &arguments);
            subjects.push(Box::new(server(directory, name, &workloads, stop, command)));
        }
    }
    subjects
}

fn server(
    directory: &Path,
    name: &str,
    workloads: &[&str],
    stop: &Arc<AtomicBool>,
    command: impl Fn(&Path) -> Command + 'static,
) -> NbdServer {
    NbdServer {
        name: name.to_owned(),
        directory: directory.to_owned(),
        command: Box::new(command),
        workloads: workloads.iter().map(|workload| (*workload).to_owned()).collect(),
        is_to_be_written: false,
        has_late_processes: false,
        stop: Arc::clone(stop),
    }
}

/// 64 MiB of memory, with filters before the plugin and their parameters behind it.
fn nbdkit(socket: &Path, arguments: &[String]) -> Command {
    let mut command = Command::new("nbdkit");
    command.args(["--foreground", "--exit-with-parent", "--unix"]).arg(socket);
    let (filters, parameters): (Vec<_>, Vec<_>) =
        arguments.iter().partition(|argument| argument.starts_with("--"));
    command.args(filters).args(["memory", "64M"]).args(parameters);
    command
}

fn builds(config: &ProofConfig) -> Vec<Box<dyn Subject<Known>>> {
    let builds = [(FIRST, 1.0), (SLOWER, 1.0 + config.slower), (FIRST_AGAIN, 1.0)];
    let build = |(seed, (name, times)): (usize, (&str, f64))| -> Box<dyn Subject<Known>> {
        let random = StdRng::seed_from_u64(seed as u64);
        Box::new(Build {
            name: name.to_owned(),
            program: config.lab.clone(),
            times,
            noise: config.noise,
            random,
        })
    };
    builds.into_iter().enumerate().map(build).collect()
}

/// Makes an encrypted volume of 64 MiB with its own key; both builds serve it.
fn make_volume(program: &Path, volume: &Path) -> Result<(), SubjectError> {
    let key_file = volume.with_extension("key");
    if !volume.exists() {
        let mut key = [0; 32];
        fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600).open(&key_file)?.write_all(&key)?;
        let mut command = Command::new(program);
        command.args(["volume", "create"]).arg(volume).args(["--size", "64M", "--key-file"]).arg(&key_file);
        let output = command.output().map_err(|error| not_run(program, &error))?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned().into());
        }
    }
    Ok(())
}

/// It ends whenever this process does, because the volume must be free when the study continues.
fn expose(program: &Path, volume: &Path, socket: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "TERM", "--"]).arg(program);
    command.args(["volume", "expose"]).arg(volume).arg("--key-file").arg(volume.with_extension("key"));
    command.arg("--nbd").arg(format!("unix:{}", socket.display()));
    command
}

fn not_run(program: &Path, error: &io::Error) -> SubjectError {
    format!("cannot run {}: {error}; build it, or say where it is", program.display()).into()
}
