//! The compared servers and files, driven by the runner.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::disks::{Disks, Use, connect, failed};
use super::fio::{self, Buffers, Target};
use super::guest_load::{GuestLoad, Guests, Loaded, Moment, Order, Pattern};
use super::once::OnceSession;
use super::peers::{Content, ServedDisk, Server};
use super::workload::{Client, DiskWorkload, Medium, Task};
use crate::programs::ProgramError;
use crate::service::Service;
use crate::study::{Disk, Metric, Sample, Session, Subject, SubjectError, Watch};
use crate::vhost_user::guest::Pages;
use crate::vhost_user::prepared::Lengths;

/// The first bytes from an NBD server (the protocol's `NBDMAGIC`).
const NBD_GREETING: &[u8; 8] = b"NBDMAGIC";
/// The first writes to a disk in memory before load.
const FILLING_BYTES: u32 = 512 << 10;
const FILLING_DEPTH: u16 = 8;

/// A file, loaded by fio.
pub struct RawFile<'study> {
    name: &'static str,
    buffers: Buffers,
    disks: &'study Disks,
    device: Option<Disk>,
}

/// The performance of the file itself, with ordinary buffers.
pub const RAW: &str = "raw file, fio io_uring";
/// The same, with buffers in huge pages.
pub const RAW_HUGE: &str = "raw file, fio io_uring, huge pages";

impl<'study> RawFile<'study> {
    /// The raw file, which other servers serve as well.
    pub fn new(buffers: Buffers, disks: &'study Disks) -> io::Result<Self> {
        let name = match buffers {
            Buffers::Plain => RAW,
            Buffers::Huge => RAW_HUGE,
        };
        Ok(Self { name, buffers, disks, device: Disk::under(disks.directory())? })
    }
}

impl RawFile<'_> {
    const WANTED: Use = Use::Load { medium: Medium::Disk, index: 0, disks: 1 };
    const LIKE: Server = Server::StorageDaemon(Content::Clear);

    /// Makes the file.
    pub fn prepare(&self, progress: &dyn Fn(&str)) -> Result<(), SubjectError> {
        prepare(self.disks, &Self::LIKE, Self::WANTED, self.name, progress)
    }
}

/// Makes a server's disk, and reports that.
fn prepare(
    disks: &Disks,
    server: &Server,
    wanted: Use,
    name: &str,
    progress: &dyn Fn(&str),
) -> Result<(), SubjectError> {
    if !disks.is_prepared(server, wanted) {
        let mib = disks.bytes(wanted) >> 20;
        progress(&format!("making and writing a disk of {mib} MiB for {name}"));
        disks.prepare(server, wanted)?;
    }
    Ok(())
}

impl Subject<DiskWorkload> for RawFile<'_> {
    fn name(&self) -> &str {
        self.name
    }

    fn supports(&self, workload: &DiskWorkload) -> bool {
        matches!(workload.task, Task::Load { medium: Medium::Disk, queues: 1, disks: 1, .. })
    }

    fn open(&mut self, workload: &DiskWorkload) -> Result<Box<dyn Session + '_>, SubjectError> {
        let Task::Load { pattern, .. } = workload.task else { return Err(not_supported(self.name)) };
        let path = self.disks.prepare(&Self::LIKE, Self::WANTED)?;
        Ok(Box::new(FileSession { raw: self, path, pattern, bytes: self.disks.bytes(Self::WANTED) }))
    }
}

struct FileSession<'study> {
    raw: &'study RawFile<'study>,
    path: PathBuf,
    pattern: Pattern,
    bytes: u64,
}

impl Session for FileSession<'_> {
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError> {
        let watch = Watch::after(warm_up, duration, self.raw.device.as_ref());
        let target = Target::File(&self.path, self.raw.buffers);
        let stop = &self.raw.disks.stop;
        let mut sample =
            fio::load(target, self.pattern, self.bytes, fio::LoadTime { warm_up, duration }, &[], stop)?;
        // There is no server: fio's time is that of the I/O.
        if let Some(cpu) = sample.get(Metric::ClientCpuUsPerOperation) {
            sample.set(Metric::ServerCpuUsPerOperation, cpu);
            sample.set(Metric::ClientCpuUsPerOperation, 0.0);
        }
        watch.stop(&mut sample)?;
        Ok(sample)
    }
}

/// A server and its disks.
pub struct ServedDisks<'study> {
    pub(super) name: String,
    pub(super) server: Server,
    pub(super) disks: &'study Disks,
    device: Option<Disk>,
    pages: Pages,
    spin: Duration,
}

impl<'study> ServedDisks<'study> {
    /// The disks of `server`. Guests' memory consists of `pages`, and they poll for answers for
    /// `spin` before they sleep.
    pub fn new(server: Server, disks: &'study Disks, pages: Pages, spin: Duration) -> io::Result<Self> {
        let device = Disk::under(disks.directory())?;
        Ok(Self { name: server.name(), server, disks, device, pages, spin })
    }

    /// Makes the disks for a workload.
    pub fn prepare(&self, workload: &DiskWorkload, progress: &dyn Fn(&str)) -> Result<(), SubjectError> {
        let mut wanted = uses(workload.task).into_iter();
        wanted.try_for_each(|wanted| prepare(self.disks, &self.server, wanted, &self.name, progress))
    }

    pub(super) fn start(
        &self,
        wanted: Use,
        client: Client,
        queues: u16,
        index: u16,
    ) -> Result<Service, SubjectError> {
        let image = self.disks.prepare(&self.server, wanted)?;
        let socket = self.disks.socket(index);
        // A killed server has left its socket there.
        let _ = std::fs::remove_file(&socket);
        let medium = match wanted {
            Use::Load { medium, .. } => medium,
            Use::Open | Use::Map => Medium::Disk,
        };
        let disk = ServedDisk {
            image: &image,
            bytes: self.disks.bytes(wanted),
            medium,
            client,
            socket: &socket,
            secret: self.disks.secret(),
            queues,
        };
        let command = self.server.serve(&disk);
        Ok(Service::start(&self.name, command, &socket, &self.disks.log(index))?)
    }

    fn device_of(&self, medium: Medium) -> Option<&Disk> {
        self.device.as_ref().filter(|_| medium == Medium::Disk)
    }

    pub(super) fn guests(&self, queues: u16) -> Guests {
        Guests { queues, pages: self.pages, spin: self.spin, lengths: Lengths::Same }
    }

    fn open_for_guests(&self, task: Task) -> Result<GuestSession<'_>, SubjectError> {
        let Task::Load { medium, pattern, queues, .. } = task else { return Err(not_supported(&self.name)) };
        let guests = self.guests(queues);
        let mut running = Running(Vec::new());
        for (wanted, index) in uses(task).into_iter().zip(0..) {
            running.0.push(self.start(wanted, Client::VhostUser, queues, index)?);
        }
        if self.server.has_no_file() && self.server.content() != Content::Nothing {
            let filling = Pattern {
                order: Order::Sequential,
                reads_percent: 0,
                block_bytes: FILLING_BYTES,
                depth: FILLING_DEPTH,
            };
            self.connect(&mut running, filling, self.guests(1))?
                .fill(1)
                .map_err(|error| failed(&running.0[0], error))?;
        }
        let load = self.connect(&mut running, pattern, guests)?;
        Ok(GuestSession { load, running, device: self.device_of(medium) })
    }

    pub(super) fn connect(
        &self,
        running: &mut Running,
        pattern: Pattern,
        guests: Guests,
    ) -> Result<GuestLoad, SubjectError> {
        let stop = &self.disks.stop;
        let mut front_ends = Vec::new();
        for service in &mut running.0 {
            front_ends.push(service.connect(stop, |socket: &Path| connect(socket, pattern, guests))?);
        }
        let load = GuestLoad::new(front_ends, pattern, guests, Arc::clone(stop));
        Ok(load.map_err(|error| failed(&running.0[0], error))?)
    }

    fn open_for_fio(&self, task: Task) -> Result<NbdSession<'_>, SubjectError> {
        let Task::Load { medium, pattern, .. } = task else { return Err(not_supported(&self.name)) };
        let wanted = Use::Load { medium, index: 0, disks: 1 };
        let mut running = Running(vec![self.start(wanted, Client::Nbd, 1, 0)?]);
        let stop = &self.disks.stop;
        running.0[0].connect(stop, greeted)?;
        let (bytes, socket) = (self.disks.bytes(wanted), self.disks.socket(0));
        if self.server.has_no_file() {
            fio::fill(Target::Nbd(&socket), bytes, stop)?;
        }
        let device = self.device_of(medium);
        Ok(NbdSession { served: self, running, socket, pattern, bytes, device })
    }
}

impl Subject<DiskWorkload> for ServedDisks<'_> {
    fn name(&self) -> &str {
        &self.name
    }

    fn supports(&self, workload: &DiskWorkload) -> bool {
        let content = self.server.content();
        let is_file = !self.server.has_no_file();
        match workload.task {
            Task::Load { medium, client, .. } => self.server.serves(medium, client),
            // qemu-img makes images; a raw file needs no creation.
            Task::Create => {
                self.server.is_ours() && is_file || self.server == Server::StorageDaemon(Content::Encrypted)
            }
            Task::Open => is_file && self.server.serves(Medium::Disk, Client::VhostUser),
            Task::Map => {
                is_file
                    && self.server.serves(Medium::Disk, Client::Nbd)
                    && (self.server.is_ours() || content == Content::Clear)
            }
        }
    }

    fn open(&mut self, workload: &DiskWorkload) -> Result<Box<dyn Session + '_>, SubjectError> {
        Ok(match workload.task {
            Task::Load { client: Client::VhostUser, .. } => Box::new(self.open_for_guests(workload.task)?),
            Task::Load { client: Client::Nbd, .. } => Box::new(self.open_for_fio(workload.task)?),
            task => Box::new(OnceSession::new(self, task)),
        })
    }
}

/// The disks that a task needs.
fn uses(task: Task) -> Vec<Use> {
    match task {
        Task::Load { medium, disks, .. } => {
            (0..disks).map(|index| Use::Load { medium, index, disks }).collect()
        }
        Task::Create => Vec::new(),
        Task::Open => vec![Use::Open],
        Task::Map => vec![Use::Map],
    }
}

/// Running servers, which are ended in order when they are no longer needed, so that the next one
/// finds its volume closed.
pub(crate) struct Running(pub(crate) Vec<Service>);

impl Running {
    fn processor_time(&self) -> Result<Duration, ProgramError> {
        self.0.iter().map(Service::processor_time).sum()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for service in self.0.drain(..) {
            match service.end() {
                // The failure of a server that is already gone has been reported.
                Ok(_) | Err(ProgramError::Process { .. }) => {}
                Err(error) => eprintln!("strongroom-lab: {error}"),
            }
        }
    }
}

/// Guests and their servers. The guests are dropped first.
pub(crate) struct GuestSession<'study> {
    pub(crate) load: GuestLoad,
    pub(crate) running: Running,
    pub(crate) device: Option<&'study Disk>,
}

impl Session for GuestSession<'_> {
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError> {
        self.measure_with(warm_up, duration, &mut |_| {}, |_| Ok(()))
    }
}

impl GuestSession<'_> {
    /// Measures with `beside` called beside the load. Servers may have replaced their processes at
    /// [`Moment::Warm`]. If they replace them again meanwhile, their processor time is unknown.
    pub(crate) fn measure_beside(
        &mut self,
        warm_up: Duration,
        duration: Duration,
        beside: &mut dyn FnMut(Moment),
    ) -> Result<Sample, SubjectError> {
        self.measure_with(warm_up, duration, beside, Service::see_successors)
    }

    fn measure_with(
        &mut self,
        warm_up: Duration,
        duration: Duration,
        beside: &mut dyn FnMut(Moment),
        see_processes: fn(&mut Service) -> Result<(), ProgramError>,
    ) -> Result<Sample, SubjectError> {
        let Self { load, running, device } = self;
        let mut sample = Sample::default();
        let mut watch = None;
        let mut at_edge = || -> Result<Option<Duration>, SubjectError> {
            match watch.take() {
                None => {
                    running.0.iter_mut().try_for_each(see_processes)?;
                    watch = Some(Watch::start(*device)?);
                }
                Some(watch) => Watch::stop(watch, &mut sample)?,
            }
            match running.processor_time() {
                Err(ProgramError::Process { .. }) => Ok(None),
                time => Ok(Some(time?)),
            }
        };
        let loaded = load.run_beside(warm_up, duration, beside, &mut at_edge);
        let (loaded, [before, after]) = loaded.map_err(|error| failed(&running.0[0], error))?;
        let server_cpu = before?.zip(after?).map(|(before, after)| after.saturating_sub(before));
        set(&mut sample, &loaded, server_cpu);
        Ok(sample)
    }
}

/// Stores the guests' results as metrics.
fn set(sample: &mut Sample, loaded: &Loaded, server_cpu: Option<Duration>) {
    let us = |duration: Duration| duration.as_secs_f64() * 1e6;
    let (operations, seconds) = (loaded.operations as f64, loaded.elapsed.as_secs_f64());
    if seconds > 0.0 {
        sample.set(Metric::OperationsPerSecond, operations / seconds);
        sample.set(Metric::MegabytesPerSecond, loaded.bytes as f64 / seconds / 1e6);
    }
    if operations > 0.0 {
        if let Some(server_cpu) = server_cpu {
            sample.set(Metric::ServerCpuUsPerOperation, us(server_cpu) / operations);
        }
        sample.set(Metric::ClientCpuUsPerOperation, us(loaded.client_cpu) / operations);
    }
    for (metric, share) in
        [(Metric::LatencyP50Us, 0.5), (Metric::LatencyP99Us, 0.99), (Metric::LatencyP999Us, 0.999)]
    {
        sample.set(metric, us(loaded.latencies.quantile(share)));
    }
    sample.set(Metric::LatencyMaxUs, us(loaded.latencies.longest()));
}

/// An NBD server, loaded by fio.
struct NbdSession<'study> {
    served: &'study ServedDisks<'study>,
    running: Running,
    socket: PathBuf,
    pattern: Pattern,
    bytes: u64,
    device: Option<&'study Disk>,
}

impl Session for NbdSession<'_> {
    fn measure(&mut self, warm_up: Duration, duration: Duration) -> Result<Sample, SubjectError> {
        let watch = Watch::after(warm_up, duration, self.device);
        let servers: Vec<_> = self.running.0[0].process_ids().collect();
        let target = Target::Nbd(&self.socket);
        let stop = &self.served.disks.stop;
        let loaded =
            fio::load(target, self.pattern, self.bytes, fio::LoadTime { warm_up, duration }, &servers, stop);
        let mut sample = loaded.map_err(|error| match error {
            ProgramError::Signal => error,
            error => self.running.0[0].failed(error),
        })?;
        watch.stop(&mut sample)?;
        Ok(sample)
    }
}

/// Whether an NBD server answers: one that passes its socket on listens before it serves.
pub(super) fn greeted(socket: &Path) -> io::Result<Option<()>> {
    let Ok(mut connection) = UnixStream::connect(socket) else { return Ok(None) };
    connection.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut greeting = [0; 8];
    connection.read_exact(&mut greeting)?;
    if &greeting == NBD_GREETING { Ok(Some(())) } else { Err(io::Error::other("it does not speak NBD")) }
}

/// The error for a row that a subject does not support.
pub(super) fn not_supported(name: &str) -> SubjectError {
    format!("{name} cannot do that").into()
}
