//! The whole product: a site of two machines, whose VM moves to and fro while it runs.
//!
//! The machines are network namespaces with a link between them. The first one has control plane
//! and key server, so a move to the second has them at its source, and one back at its target.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::gap::{Seen, watch};
use super::guest::{CountingGuest, GuestMemory, TICKS_PER_SECOND};
use super::ways::{long_link, wide_buffers};
use crate::datapath::comparison::fingerprint;
use crate::datapath::peers::version;
use crate::link::{ADDRESSES, Apart};
use crate::processes::ProcessId;
use crate::programs::run;
use crate::service::Service;
use crate::study::{
    Baseline, Metric, Pace, ReportSettings, Sample, Session, Study, Subject, SubjectError, Workload,
};

/// What whole moves are measured with.
#[derive(Clone, Debug)]
pub struct WholeConfig {
    /// The program, of a release build.
    pub program: PathBuf,
    /// For homes, run directories and the datastore; a short path.
    pub scratch: PathBuf,
    /// Bytes that the guest's memory is filled with.
    pub filled_bytes: u32,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

/// A link and a guest: a row of the report.
#[derive(Clone, Debug)]
pub struct Move {
    name: String,
    round_trip: Duration,
    works: bool,
    /// Whether the control plane is at the target, and not at the source.
    returns: bool,
}

impl Workload for Move {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        Metric::LongestGapMs
    }
}

/// Round trips of the links.
const ROUND_TRIPS_MS: [u64; 3] = [0, 10, 150];

/// The rows.
pub fn moves() -> Vec<Move> {
    let of = |milliseconds, works, returns| Move {
        name: format!(
            "1 Gb/s, {milliseconds} ms there and back, {}, control plane at the {}",
            if works { "a guest that works" } else { "a guest that sleeps" },
            if returns { "target" } else { "source" }
        ),
        round_trip: Duration::from_millis(milliseconds),
        works,
        returns,
    };
    let all = ROUND_TRIPS_MS
        .into_iter()
        .flat_map(|milliseconds| [of(milliseconds, false, false), of(milliseconds, false, true)]);
    all.chain([of(0, true, false)]).collect()
}

/// A VM with encrypted disks, whose memory passes encrypted.
pub const ENCRYPTED: &str = "encrypted";
/// A VM that was never encrypted, with a policy that has its memory pass in plain text.
pub const PLAIN: &str = "in plain text";

/// The study.
pub fn study(config: &WholeConfig, pace: Pace) -> Study<'_, Move> {
    let subject = |name: &'static str, is_encrypted| -> Box<dyn Subject<Move> + '_> {
        Box::new(Moving { name, is_encrypted, config })
    };
    Study {
        name: "migrate, whole moves".to_owned(),
        settings: BTreeMap::from([(
            "the guest".to_owned(),
            format!("{} MiB that no program shortens, 4 MB/s changing", config.filled_bytes >> 20),
        )]),
        subjects: vec![subject(ENCRYPTED, true), subject(PLAIN, false)],
        workloads: moves(),
        pace,
    }
}

/// The baseline: the same without encryption.
pub fn report_settings() -> ReportSettings {
    let mut settings = ReportSettings::new(vec![Baseline::of(PLAIN)]);
    settings.columns = vec![Metric::ElapsedMs, Metric::ControlGapMs, Metric::GuestShare];
    settings
}

/// The programs that take part, with their versions.
///
/// # Errors
/// If one cannot be read.
pub fn programs(config: &WholeConfig) -> io::Result<BTreeMap<String, String>> {
    let qemu = "qemu-system-x86_64";
    let mut programs = BTreeMap::from([("strongroom".to_owned(), fingerprint(&config.program)?)]);
    programs.extend(version(qemu).map(|version| (qemu.to_owned(), version)));
    Ok(programs)
}

struct Moving<'study> {
    name: &'static str,
    is_encrypted: bool,
    config: &'study WholeConfig,
}

impl Subject<Move> for Moving<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, _: &Move) -> bool {
        true
    }

    fn open(&mut self, workload: &Move) -> Result<Box<dyn Session + '_>, SubjectError> {
        let guest = CountingGuest {
            filled_bytes: self.config.filled_bytes,
            pages_per_tick: 1,
            works: workload.works,
        };
        let site = Site::start(self.config, workload.round_trip)?;
        site.make_vm(guest, self.is_encrypted)?;
        let mut session = Watched { site, guest, returns: workload.returns };
        session.await_guest()?;
        if workload.returns {
            session.site.runs(&["vm", "migrate", VM, "--to", HOSTS[1]])?;
        }
        Ok(Box::new(session))
    }
}

const HOSTS: [&str; 2] = ["host1", "host2"];
const VM: &str = "counting1";
/// Timeout of whatever the site does by itself.
const WITHIN: Duration = Duration::from_secs(120);

/// A site of two machines.
struct Site<'study> {
    config: &'study WholeConfig,
    directory: PathBuf,
    stop: &'study AtomicBool,
    // In this order: processes end before their network does.
    serving: Vec<Service>,
    apart: Apart,
}

impl<'study> Site<'study> {
    fn start(config: &'study WholeConfig, round_trip: Duration) -> Result<Self, SubjectError> {
        let apart = Apart::over(Some(long_link(round_trip)))?;
        wide_buffers(&apart)?;
        let directory = config.scratch.join("site");
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        fs::create_dir_all(directory.join("shared"))?;
        let mut site = Self { config, directory, stop: &config.stop, serving: Vec::new(), apart };
        let [first, second] = ADDRESSES;
        site.serve(
            0,
            &[
                "--name",
                HOSTS[0],
                "--listen-kmip",
                &format!("{first}:5696"),
                "--listen-enrolment",
                &format!("{first}:5697"),
                "--listen-guests",
                &format!("{first}:5691"),
            ],
            "https://",
        )?;
        let token = site.runs(&["host", "token", HOSTS[1], "--address", &format!("{second}:5691")])?;
        let file = site.directory.join("token");
        fs::write(&file, token)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        let file = file.display().to_string();
        let joining = ["--role", "host", "--join", &format!("{first}:5697"), "--token-file", &file];
        site.serve(1, &joining, "takes orders")?;
        let until = Instant::now() + WITHIN;
        while site.json(&["host", "show", HOSTS[1]])?["state"] != "connected" {
            if Instant::now() > until {
                return Err("the second machine does not answer".into());
            }
            thread::sleep(Duration::from_millis(100));
        }
        let shared = site.directory.join("shared").display().to_string();
        site.runs(&["datastore", "add", "shared", &shared, "--host", HOSTS[0]])?;
        site.runs(&["datastore", "add-host", "shared", "--host", HOSTS[1]])?;
        Ok(site)
    }

    /// A command of the program on one of the machines.
    fn command(&self, machine: usize, arguments: &[&str]) -> Command {
        let program = self.config.program.display().to_string();
        let mut command = self.apart.command(machine, &program);
        command.env("STRONGROOM_HOME", self.directory.join(format!("home{machine}"))).args(arguments);
        command
    }

    fn serve(&mut self, machine: usize, arguments: &[&str], ready: &str) -> Result<(), SubjectError> {
        let run = self.directory.join(format!("run{machine}"));
        let mut command = self.command(machine, &["serve", "--crypto-safe", "advised", "--run"]);
        command.arg(&run).args(arguments);
        let log = self.directory.join(format!("serve{machine}.log"));
        let service = Service::start(HOSTS[machine], command, &run, &log)?;
        let until = Instant::now() + WITHIN;
        while !fs::read_to_string(&log)?.contains(ready) {
            if Instant::now() > until || self.stop.load(Ordering::Relaxed) {
                return Err(service.late("serve", WITHIN).into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.serving.push(service);
        Ok(())
    }

    fn runs(&self, arguments: &[&str]) -> Result<String, SubjectError> {
        Ok(String::from_utf8(run(&mut self.command(0, arguments))?)?)
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, SubjectError> {
        Ok(serde_json::from_str(&self.runs(&[&["--json"], arguments].concat())?)?)
    }

    fn make_vm(&self, guest: CountingGuest, is_encrypted: bool) -> Result<(), SubjectError> {
        let image = self.directory.join("guest.img");
        let mut content = guest.boot_sector().to_vec();
        content.resize(1 << 20, 0);
        fs::write(&image, content)?;
        let (image, memory) = (image.display().to_string(), format!("{}M", guest.memory_mib()));
        let mut create = vec![
            "vm",
            "create",
            VM,
            "--datastore",
            "shared",
            "--host",
            HOSTS[0],
            "--memory",
            &memory,
            "--net",
            "none",
            "--disk",
            "16M",
            "--machine",
            "pc",
            "--image",
            &image,
        ];
        if !is_encrypted {
            self.runs(&["policy", "create", "plain", "--migration", "disabled"])?;
            create.extend(["--policy", "plain", "--unencrypted"]);
        }
        self.runs(&create)?;
        self.runs(&["vm", "start", VM]).map(drop)
    }

    /// The QEMU of the VM on a machine.
    fn qemu(&self, machine: usize) -> Option<ProcessId> {
        let vms = fs::read_dir(self.directory.join(format!("run{machine}/vms"))).ok()?;
        let mut states = vms.flatten().filter_map(|vm| fs::read(vm.path().join("state.json")).ok());
        let state: Value = serde_json::from_slice(&states.next()?).ok()?;
        state["qemu"]["pid"].as_u64()?.try_into().ok()
    }
}

impl Drop for Site<'_> {
    fn drop(&mut self) {
        // VMs outlive the program that started them.
        if !self.serving.is_empty() {
            let _ = self.runs(&["vm", "stop", VM, "--force"]);
        }
        while let Some(service) = self.serving.pop() {
            let _ = service.end();
        }
    }
}

/// A VM that is about to move, and is watched.
struct Watched<'study> {
    site: Site<'study>,
    guest: CountingGuest,
    returns: bool,
}

impl Watched<'_> {
    fn memory_at(&self, machine: usize) -> Option<GuestMemory> {
        GuestMemory::of(self.site.qemu(machine)?, u64::from(self.guest.memory_mib()) << 20).ok()
    }

    fn await_guest(&mut self) -> Result<(), SubjectError> {
        let until = Instant::now() + WITHIN;
        loop {
            let counts = self.memory_at(0).and_then(|memory| memory.counts().ok());
            if counts.is_some_and(|counts| counts.ticks > 0) {
                return Ok(());
            }
            if Instant::now() > until || self.site.stop.load(Ordering::Relaxed) {
                return Err("the guest does not count".into());
            }
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Session for Watched<'_> {
    fn measure(&mut self, warm_up: Duration, afterwards: Duration) -> Result<Sample, SubjectError> {
        let [from, to] = if self.returns { [1, 0] } else { [0, 1] };
        let memory = self.memory_at(from).ok_or("the VM has no memory at its source")?;
        let (still, control) = self.watched(&memory, |_| {
            let began = Instant::now();
            thread::sleep(warm_up);
            Ok(began.elapsed().as_secs_f64())
        })?;
        let ((began, before, ended), seen) = self.watched(&memory, |site| {
            let (began, before) = (Instant::now(), memory.counts()?);
            site.runs(&["vm", "migrate", VM, "--to", HOSTS[to]])?;
            let ended = Instant::now();
            thread::sleep(afterwards);
            Ok((began, before, ended))
        })?;
        let (left_at, left) = seen.left.ok_or("the guest did not count at its source")?;
        seen.came.ok_or("the guest does not count at its target")?;
        let mut sample = Sample::default();
        sample.set(Metric::LongestGapMs, seen.longest_gap.as_secs_f64() * 1e3);
        sample.set(Metric::ControlGapMs, control.longest_gap.as_secs_f64() * 1e3);
        sample.set(Metric::ElapsedMs, (ended - began).as_secs_f64() * 1e3);
        let seconds = (left_at - began).as_secs_f64();
        let (share, of) = match self.guest.works {
            true => (seen.turns as f64 / seconds, control.turns as f64 / still),
            false => (f64::from(left.ticks - before.ticks) / seconds, f64::from(TICKS_PER_SECOND)),
        };
        sample.set(Metric::GuestShare, share / of);
        Ok(sample)
    }
}

impl Watched<'_> {
    /// Watches the guest while something is done.
    fn watched<T: Send>(
        &self,
        source: &GuestMemory,
        done: impl FnOnce(&Site<'_>) -> Result<T, SubjectError>,
    ) -> Result<(T, Seen), SubjectError> {
        let is_over = AtomicBool::new(false);
        let to = usize::from(!self.returns);
        thread::scope(|scope| {
            let watching = scope.spawn(|| watch(source, || self.memory_at(to), &is_over));
            let done = done(&self.site);
            is_over.store(true, Ordering::Release);
            let seen = watching.join().unwrap_or_default();
            Ok((done?, seen))
        })
    }
}
