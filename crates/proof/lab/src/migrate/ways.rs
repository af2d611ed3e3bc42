//! The ways of a VM's memory from QEMU to QEMU: the subjects of the study.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::gap::watch;
use super::guest::CountingGuest;
use super::qemu::{Machine, Qemu, write_disk};
use crate::datapath::comparison::fingerprint;
use crate::datapath::peers::version;
use crate::link::{ADDRESSES, Apart, Slowness};
use crate::programs::{ProgramError, option_value, run};
use crate::service::Service;
use crate::study::{
    Baseline, Metric, Pace, ReportSettings, Sample, Session, Study, Subject, SubjectError, Workload,
};

/// What the ways are measured with.
#[derive(Clone, Debug)]
pub struct WaysConfig {
    /// The relays of the product (`relays`, an example of `strongroom-migrate`).
    pub relays: PathBuf,
    /// The same relays with a cipher that does nothing (`null_relays`).
    pub null_relays: Option<PathBuf>,
    /// For sockets, logs and disks; a short path.
    pub scratch: PathBuf,
    /// Bytes that the guest's memory is filled with.
    pub filled_bytes: u32,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

/// Under what memory passes: a row of the report.
#[derive(Clone, Debug)]
pub struct Distance {
    name: String,
    slowness: Option<Slowness>,
    /// QEMU's own limit, for all ways the same.
    bytes_per_second: Option<NonZeroU64>,
}

impl Workload for Distance {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        Metric::ElapsedMs
    }
}

/// A gigabit a second, in bytes.
pub const GIGABIT: NonZeroU64 = NonZeroU64::new(125_000_000).unwrap();

/// A link of a gigabit a second, with this round trip.
pub fn long_link(round_trip: Duration) -> Slowness {
    Slowness { delay: round_trip / 2, bytes_per_second: Some(GIGABIT) }
}

/// The rows: over a cable as fast as the machine is, at 10 Gb/s, and over long links.
pub fn distances() -> Vec<Distance> {
    let cable =
        |name: &str, bytes_per_second| Distance { name: name.to_owned(), slowness: None, bytes_per_second };
    let long = |milliseconds| Distance {
        name: format!("1 Gb/s, {milliseconds} ms there and back"),
        slowness: Some(long_link(Duration::from_millis(milliseconds))),
        bytes_per_second: None,
    };
    vec![
        cable("a cable, no limit", None),
        cable("a cable, QEMU sends 10 Gb/s", GIGABIT.checked_mul(NonZeroU64::MIN.saturating_add(9))),
        long(0),
        long(10),
        long(150),
    ]
}

/// How memory passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// QEMU to QEMU, over TCP.
    Qemu,
    /// The same in QEMU's TLS, with certificates.
    QemuTls,
    /// Through relays.
    Relays(Cipher),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cipher {
    Encrypted,
    /// A tag alone: a policy's `disabled`.
    Tag,
    Null,
}

/// Subjects by their names in reports.
pub const ENCRYPTED: &str = "relays, encrypted";
/// See [`ENCRYPTED`].
pub const TAG: &str = "relays, plain text with a tag";
/// See [`ENCRYPTED`].
pub const NULL: &str = "relays, null cipher";
/// See [`ENCRYPTED`].
pub const QEMU: &str = "QEMU, plain";
/// See [`ENCRYPTED`].
pub const QEMU_TLS: &str = "QEMU, TLS";

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Qemu => QEMU,
            Self::QemuTls => QEMU_TLS,
            Self::Relays(Cipher::Encrypted) => ENCRYPTED,
            Self::Relays(Cipher::Tag) => TAG,
            Self::Relays(Cipher::Null) => NULL,
        }
    }
}

/// The study. It makes the certificates of QEMU's TLS.
///
/// # Errors
/// If openssl does not.
pub fn study(config: &WaysConfig, pace: Pace) -> Result<Study<'_, Distance>, SubjectError> {
    let tls = config.scratch.join("tls");
    make_certificates(&tls)?;
    let guest = CountingGuest { filled_bytes: config.filled_bytes, pages_per_tick: 1, works: false };
    let disk = config.scratch.join("guest.img");
    write_disk(guest, &disk)?;
    let mut ways = vec![Way::Relays(Cipher::Encrypted), Way::Relays(Cipher::Tag), Way::Qemu, Way::QemuTls];
    if config.null_relays.is_some() {
        ways.insert(2, Way::Relays(Cipher::Null));
    }
    let subject = |way| -> Box<dyn Subject<Distance> + '_> {
        Box::new(Passage { way, config, guest, disk: disk.clone(), tls: tls.clone() })
    };
    Ok(Study {
        name: "migrate, ways".to_owned(),
        settings: BTreeMap::from([
            (
                "the guest".to_owned(),
                format!("{} MiB that no program shortens, 4 MB/s changing", config.filled_bytes >> 20),
            ),
            ("channels".to_owned(), "1".to_owned()),
        ]),
        subjects: ways.into_iter().map(subject).collect(),
        workloads: distances(),
        pace,
    })
}

/// The baselines: the same relays without encryption, and QEMU's own ways.
pub fn report_settings() -> ReportSettings {
    let mut settings = ReportSettings::new([NULL, TAG, QEMU, QEMU_TLS].map(Baseline::of).to_vec());
    settings.columns = vec![Metric::MegabytesPerSecond, Metric::LongestGapMs, Metric::ProcessorMsPerGib];
    settings
}

/// The programs that take part, with their versions.
///
/// # Errors
/// If one cannot be read.
pub fn programs(config: &WaysConfig) -> io::Result<BTreeMap<String, String>> {
    let qemu = "qemu-system-x86_64";
    let mut programs = BTreeMap::from([("relays".to_owned(), fingerprint(&config.relays)?)]);
    if let Some(null) = &config.null_relays {
        programs.insert("relays with a null cipher".to_owned(), fingerprint(null)?);
    }
    programs.extend(version(qemu).map(|version| (qemu.to_owned(), version)));
    Ok(programs)
}

/// A certificate authority, and certificates of both ends, as QEMU's `tls-creds-x509` wants them.
fn make_certificates(directory: &Path) -> Result<(), ProgramError> {
    let failed = |error| ProgramError::File { action: "make", path: directory.to_owned(), error };
    fs::DirBuilder::new().mode(0o700).create(directory).map_err(failed)?;
    let script = "set -e
        openssl req -x509 -newkey rsa:2048 -nodes -keyout ca-key.pem -out ca-cert.pem -days 2 -subj /CN=lab \
            -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign
        for end in server client; do
            openssl req -newkey rsa:2048 -nodes -keyout $end-key.pem -out $end.csr -subj /CN=$end
            printf 'subjectAltName=DNS:server\\nkeyUsage=critical,digitalSignature,keyEncipherment\\n' >$end.ext
            printf 'extendedKeyUsage=serverAuth,clientAuth\\n' >>$end.ext
            openssl x509 -req -in $end.csr -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -days 2 \
                -extfile $end.ext -out $end-cert.pem
        done";
    run(Command::new("sh").args(["-c", script]).current_dir(directory)).map(drop)
}

/// One way, with its guest.
struct Passage<'study> {
    way: Way,
    config: &'study WaysConfig,
    guest: CountingGuest,
    disk: PathBuf,
    tls: PathBuf,
}

impl Subject<Distance> for Passage<'_> {
    fn name(&self) -> &str {
        self.way.name()
    }

    fn supports(&self, _: &Distance) -> bool {
        true
    }

    fn open(&mut self, workload: &Distance) -> Result<Box<dyn Session + '_>, SubjectError> {
        let apart = Apart::over(workload.slowness)?;
        wide_buffers(&apart)?;
        let stop = &self.config.stop;
        let machine = |more: Vec<String>| Machine {
            guest: self.guest,
            disk: &self.disk,
            directory: &self.config.scratch,
            more,
        };
        let credentials = |endpoint: &str| match self.way {
            Way::QemuTls => {
                let directory = option_value(&self.tls);
                let object =
                    format!("tls-creds-x509,id=tls,dir={directory},endpoint={endpoint},verify-peer=on");
                vec!["-object".to_owned(), object]
            }
            Way::Qemu | Way::Relays(_) => Vec::new(),
        };
        let mut waiting = credentials("server");
        waiting.extend(["-incoming", "defer"].map(str::to_owned));
        let mut source = Qemu::start("source", (&apart, 0), &machine(credentials("client")), stop)?;
        let mut target = Qemu::start("target", (&apart, 1), &machine(waiting), stop)?;
        let mut parameters = json!({
            "max-bandwidth": workload.bytes_per_second.map_or(1 << 40, NonZeroU64::get),
            "downtime-limit": 300,
        });
        if self.way == Way::QemuTls {
            target.execute("migrate-set-parameters", &json!({ "tls-creds": "tls" }))?;
            parameters["tls-creds"] = json!("tls");
            parameters["tls-hostname"] = json!("server");
        }
        source.execute("migrate-set-parameters", &parameters)?;
        let place = |what: &str| self.config.scratch.join(what);
        let (to, listens) = match self.way {
            Way::Qemu | Way::QemuTls => {
                let address = format!("tcp:{}:4444", ADDRESSES[1]);
                (address.clone(), address)
            }
            Way::Relays(_) => {
                let sockets = ["out.sock", "in.sock"].map(place);
                sockets.iter().for_each(|socket| drop(fs::remove_file(socket)));
                let [to, listens] = sockets.map(|socket| format!("unix:{}", socket.display()));
                (to, listens)
            }
        };
        target.execute("migrate-incoming", &json!({ "uri": listens }))?;
        let relays = match self.way {
            Way::Relays(cipher) => Some(self.start_relays(cipher, &apart)?),
            Way::Qemu | Way::QemuTls => None,
        };
        source.await_guest()?;
        Ok(Box::new(Migrating { source, target, relays, to, stop: Arc::clone(stop), _apart: apart }))
    }
}

impl Passage<'_> {
    fn start_relays(&self, cipher: Cipher, apart: &Apart) -> Result<Service, SubjectError> {
        let (program, secrecy) = match cipher {
            Cipher::Encrypted => (Some(&self.config.relays), "encrypted"),
            Cipher::Tag => (Some(&self.config.relays), "plain"),
            Cipher::Null => (self.config.null_relays.as_ref(), "encrypted"),
        };
        let mut command = Command::new(program.ok_or("there are no relays with a null cipher")?);
        let place = |what: &str| self.config.scratch.join(what);
        command.arg(secrecy).args(&apart.namespaces).arg(ADDRESSES[1]);
        let [to, listens] = ["out.sock", "in.sock"].map(place);
        command.arg(&to).arg(listens);
        let relays = Service::start("the relays", command, &to, &place("relays.log"))?;
        let until = Instant::now() + STARTS_WITHIN;
        while !relays.said().contains("ready") {
            if Instant::now() > until || self.config.stop.load(Ordering::Relaxed) {
                return Err(relays.late("become ready", STARTS_WITHIN).into());
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(relays)
    }
}

const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// Timeout of a migration.
const PASSES_WITHIN: Duration = Duration::from_secs(600);
/// Timeout of the target's guest, once everything has passed.
const GOES_ON_WITHIN: Duration = Duration::from_secs(10);

/// Buffers of a socket for the longest link: a gigabit a second for a round trip of 150 ms is 19
/// MB, and the kernel counts twice that. Its own limit of 4 MiB would be what is measured.
pub fn wide_buffers(apart: &Apart) -> Result<(), ProgramError> {
    apart.set("net.ipv4.tcp_wmem", "4096 65536 67108864")?;
    apart.set("net.ipv4.tcp_rmem", "4096 131072 67108864")
}

/// A guest that is about to move.
struct Migrating {
    source: Qemu,
    target: Qemu,
    relays: Option<Service>,
    to: String,
    stop: Arc<AtomicBool>,
    _apart: Apart,
}

impl Migrating {
    fn processor_time(&self) -> Result<Duration, ProgramError> {
        let services = [Some(&self.source.service), Some(&self.target.service), self.relays.as_ref()];
        services.into_iter().flatten().map(Service::processor_time).sum()
    }

    /// Waits until QEMU has sent everything. Returns what it says then.
    fn await_completion(&mut self) -> Result<Value, SubjectError> {
        let until = Instant::now() + PASSES_WITHIN;
        loop {
            let now = self.source.execute("query-migrate", &json!({}))?;
            match now["status"].as_str().unwrap_or_default() {
                "completed" => return Ok(now),
                "failed" | "cancelled" => return Err(format!("the migration has failed: {now}").into()),
                _ if Instant::now() > until => return Err(format!("it does not end: {now}").into()),
                _ if self.stop.load(Ordering::Relaxed) => return Err(ProgramError::Signal.into()),
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Session for Migrating {
    fn measure(&mut self, warm_up: Duration, afterwards: Duration) -> Result<Sample, SubjectError> {
        // What the guest takes when it does not move.
        let (before, began) = (self.processor_time()?, Instant::now());
        thread::sleep(warm_up);
        let idle = (self.processor_time()? - before).as_secs_f64() / began.elapsed().as_secs_f64();
        let (memory, target, is_over) =
            (self.source.memory()?, self.target.memory()?, AtomicBool::new(false));
        let before = self.processor_time()?;
        let (began, said, seen) = thread::scope(|scope| {
            let watching = scope.spawn(|| {
                let mut target = Some(target);
                watch(&memory, || target.take(), &is_over)
            });
            let began = Instant::now();
            let to = json!({ "uri": self.to });
            let said = self.source.execute("migrate", &to).and_then(|_| self.await_completion());
            // The target loads the rest.
            let until = Instant::now() + GOES_ON_WITHIN;
            while said.is_ok() && Instant::now() < until {
                let status = self.target.execute("query-status", &json!({}));
                if status.is_ok_and(|status| status["status"] == "running") {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
            let after = self.processor_time();
            thread::sleep(afterwards);
            is_over.store(true, Ordering::Release);
            let seen = watching.join().unwrap_or_default();
            said.and_then(|said| Ok((began, (said, after?), seen)))
        })?;
        let (said, after) = said;
        let came = seen.came.ok_or("the guest does not count at the target")?;
        let (elapsed, bytes) = (came - began, said["ram"]["transferred"].as_f64().unwrap_or_default());
        let spent = (after - before).as_secs_f64() - idle * elapsed.as_secs_f64();
        let gib = bytes / f64::from(1 << 30);
        let mut sample = Sample::default();
        sample.set(Metric::ElapsedMs, elapsed.as_secs_f64() * 1e3);
        sample.set(Metric::MegabytesPerSecond, bytes / 1e6 / elapsed.as_secs_f64());
        sample.set(Metric::LongestGapMs, seen.longest_gap.as_secs_f64() * 1e3);
        sample.set(Metric::ProcessorMsPerGib, (spent * 1e3 / gib).max(0.0));
        Ok(sample)
    }
}
