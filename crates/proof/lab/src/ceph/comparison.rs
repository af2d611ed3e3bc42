//! The study: its subjects, workloads and baselines.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::peers::{ALL, Place, Server};
use crate::datapath::comparison::fingerprint;
use crate::datapath::disks::{FILLING, connect, failed};
use crate::datapath::guest_load::{GuestLoad, Guests, Order, Pattern};
use crate::datapath::peers::version;
use crate::datapath::subjects::{GuestSession, Running};
use crate::datapath::workload::{headline, told};
use crate::service::Service;
use crate::study::{Baseline, Metric, Pace, ReportSettings, Session, Study, Subject, SubjectError, Workload};
use crate::vhost_user::guest::Pages;
use crate::vhost_user::prepared::Lengths;

/// The configuration of a comparison.
#[derive(Clone, Debug)]
pub struct CephConfig {
    /// The configuration file of the cluster's `client.admin`.
    pub conf: PathBuf,
    /// The pool of all images.
    pub pool: String,
    /// The program that serves our volumes.
    pub program: PathBuf,
    /// For sockets and logs; a short path.
    pub directory: PathBuf,
    /// The passphrase, and the key file.
    pub secret: PathBuf,
    /// Bytes of each image.
    pub bytes: u64,
    /// Set to stop.
    pub stop: Arc<AtomicBool>,
}

impl CephConfig {
    fn place(&self) -> Place<'_> {
        Place {
            conf: &self.conf,
            pool: &self.pool,
            program: &self.program,
            secret: &self.secret,
            bytes: self.bytes,
        }
    }
}

/// A load: a row of the report.
#[derive(Clone, Debug)]
pub struct CephWorkload {
    name: String,
    pattern: Pattern,
    /// Requests a second, if not as many as are answered.
    per_second: Option<f64>,
}

impl Workload for CephWorkload {
    fn name(&self) -> &str {
        &self.name
    }

    fn headline(&self) -> Metric {
        headline(self.pattern)
    }

    fn must_saturate(&self) -> bool {
        self.pattern.depth > 1 && self.per_second.is_none()
    }
}

/// Reads and writes that are also measured at half of the rate that our clear volume reaches.
const PACED: [Pattern; 2] = [
    Pattern { order: Order::Random, reads_percent: 100, block_bytes: 4096, depth: 32 },
    Pattern { order: Order::Random, reads_percent: 0, block_bytes: 4096, depth: 32 },
];

/// The rows in which servers are asked for as much as they answer.
pub fn rows() -> Vec<CephWorkload> {
    let row = |order, reads_percent, kib: u32, depth| {
        let pattern = Pattern { order, reads_percent, block_bytes: kib << 10, depth };
        CephWorkload { name: told(pattern), pattern, per_second: None }
    };
    vec![
        row(Order::Random, 100, 4, 32),
        row(Order::Random, 0, 4, 32),
        row(Order::Random, 70, 4, 8),
        row(Order::Random, 100, 4, 1),
        row(Order::Random, 0, 4, 1),
        row(Order::Sequential, 100, 512, 8),
        row(Order::Sequential, 0, 512, 8),
    ]
}

/// A server and its image.
struct Image<'study> {
    server: Server,
    config: &'study CephConfig,
}

impl Image<'_> {
    /// Operations a second, measured for as long as one measurement takes.
    fn reaches(&self, pattern: Pattern, pace: Pace) -> Result<f64, SubjectError> {
        let mut session = self.start(pattern)?;
        let loaded = session.load.run(pace.warm_up, pace.duration, &mut || {});
        let (loaded, _) = loaded.map_err(|error| failed(&session.running.0[0], error))?;
        Ok(loaded.operations as f64 / loaded.elapsed.as_secs_f64())
    }

    fn start(&self, pattern: Pattern) -> Result<GuestSession<'static>, SubjectError> {
        let guests = Guests { queues: 1, pages: Pages::Huge, spin: Duration::ZERO, lengths: Lengths::Same };
        let socket = self.config.directory.join("socket");
        let _ = fs::remove_file(&socket);
        let command = self.server.serve(self.config.place(), &socket);
        let log = self.config.directory.join("server.log");
        let mut service = Service::start(self.server.name(), command, &socket, &log)?;
        let front_end = service.connect(&self.config.stop, |socket| connect(socket, pattern, guests))?;
        let load = GuestLoad::new(vec![front_end], pattern, guests, Arc::clone(&self.config.stop));
        let load = load.map_err(|error| failed(&service, error))?;
        Ok(GuestSession { load, running: Running(vec![service]), device: None })
    }

    /// Makes the image, and writes all of it.
    fn prepare(&self) -> Result<(), SubjectError> {
        self.server.create(self.config.place())?;
        let mut session = self.start(FILLING)?;
        let filled = session.load.fill(1);
        Ok(filled.map_err(|error| failed(&session.running.0[0], error))?)
    }
}

impl Subject<CephWorkload> for Image<'_> {
    fn name(&self) -> &str {
        self.server.name()
    }

    fn supports(&self, _: &CephWorkload) -> bool {
        true
    }

    fn open(&mut self, workload: &CephWorkload) -> Result<Box<dyn Session + '_>, SubjectError> {
        let mut session = self.start(workload.pattern)?;
        if let Some(per_second) = workload.per_second {
            session.load.pace(per_second);
        }
        Ok(Box::new(session))
    }
}

/// The study, after making every image. `progress` receives the name of each.
pub fn study<'study>(
    config: &'study CephConfig,
    pace: Pace,
    progress: &dyn Fn(&str),
) -> Result<Study<'study, CephWorkload>, SubjectError> {
    let mut subjects: Vec<Box<dyn Subject<CephWorkload> + 'study>> = Vec::new();
    for server in ALL {
        let image = Image { server, config };
        progress(&format!("making and writing an image of {} MiB for {}", config.bytes >> 20, server.name()));
        image.prepare()?;
        subjects.push(Box::new(image));
    }
    let mut settings = BTreeMap::from([
        ("an image".to_owned(), format!("{} MiB", config.bytes >> 20)),
        ("the pool".to_owned(), config.pool.clone()),
    ]);
    let mut workloads = rows();
    for pattern in PACED {
        let half = (Image { server: Server::Clear, config }.reaches(pattern, pace)? / 2.0).round();
        let name = format!("{}, at half of what our clear volume reaches", told(pattern));
        settings.insert(name.clone(), format!("{half} operations a second"));
        workloads.push(CephWorkload { name, pattern, per_second: Some(half) });
    }
    Ok(Study { name: "ceph".to_owned(), settings, subjects, workloads, pace })
}

/// The baselines: QEMU's driver, plain and with LUKS, and our own server without encryption.
pub fn report_settings() -> ReportSettings {
    let baseline = |title: &str, server: Server| Baseline {
        title: title.to_owned(),
        subjects: vec![server.name().to_owned()],
    };
    let baselines = vec![
        baseline("QEMU, plain", Server::QemuPlain),
        baseline("QEMU, LUKS", Server::QemuLuks),
        baseline("our clear", Server::Clear),
    ];
    let mut settings = ReportSettings::new(baselines);
    settings.columns.push(Metric::OperationsPerSecond);
    settings
}

/// The programs that take part, with their versions.
pub fn programs(config: &CephConfig) -> io::Result<BTreeMap<String, String>> {
    let qemu = "qemu-storage-daemon";
    let mut programs = BTreeMap::from([("strongroom".to_owned(), fingerprint(&config.program)?)]);
    programs.extend(version(qemu).map(|version| (qemu.to_owned(), version)));
    Ok(programs)
}
