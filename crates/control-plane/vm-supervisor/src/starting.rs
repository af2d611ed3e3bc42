//! Starts a VM: its keys, volumes and QEMU. Each can take a long time, so this has a thread of its
//! own.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_datastore::file::Descriptor;
use strongroom_host::layout::Layout;
use strongroom_host::orders::{Incoming, Orphan, RunTask};
use strongroom_host::protocol::{
    Disk, DiskKind, DiskName, MigrationSettings, Problem, Progress, VmSpec, VolumeFacts, WaitingFor,
    check_moves_live,
};
use strongroom_host::run_directory::VmRunDirectory;
use strongroom_host::vm_directory::VmRecord;
use strongroom_hypervisor::{Qemu, QemuProgram, RunDirectory, Swtpm};
use strongroom_worker::supervise::{LimitPage, Standby, Supervisor};
use uuid::Uuid;

use crate::another_host::{FetchesBeside, fetch_beside};
use crate::disk_move::take_name_back;
use crate::guest_client::TELLS_EVERY;
use crate::keys::VmKeys;
use crate::memory;
use crate::starter::Starter;
use crate::swap;
use crate::transfer::qmp_problem;
use crate::vm::Event;
use crate::volumes::{ServedVolume, VolumeError, VolumeHost, VolumeNews};
use crate::vtpm::{ArrivingTpm, Keeper, TpmError, TpmPlace};

/// How often an unavailable key is requested again.
const KEY_RETRY: Duration = Duration::from_secs(2);
/// The same while a provider behind the key server is unavailable: each attempt is an entry in the
/// key server's audit log, and a call of it to the provider.
const KEY_RETRY_BEHIND_BROKER: Duration = Duration::from_secs(5);
/// The same without a grant: each attempt is an entry in the key server's audit log.
const KEY_RETRY_WITHOUT_GRANT: Duration = Duration::from_secs(30);

/// QEMU's status of a machine that stands still for the last part of a migration.
const FINISHES_MIGRATION: &str = "finish-migrate";
/// How long QEMU may take to end a migration that was cancelled.
const MOVE_ENDS_WITHIN: Duration = Duration::from_secs(30);
/// The interval between queries.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// A started VM.
#[derive(Debug)]
pub struct Started {
    /// The volumes, in the order of the layout.
    pub volumes: Vec<ServedVolume>,
    /// QEMU, which is paused unless it was adopted.
    pub qemu: Qemu,
    /// Records the states of its TPM, if it has a working one.
    pub tpm: Option<Keeper>,
    /// The TPM of a VM that comes from another host.
    pub arriving: Option<ArrivingTpm>,
    /// The workers of a VM that comes from another host, which wait for their volumes.
    pub awaiting: Vec<AwaitingDisk>,
    /// The volumes of such a VM, if they come from there, too.
    pub coming: Option<ComingVolumes>,
}

/// What the volumes are that come from another host, once it has closed them.
pub type ComingVolumes = Receiver<Result<Vec<VolumeFacts>, Problem>>;

/// A disk whose worker waits for its volume.
#[derive(Debug)]
pub struct AwaitingDisk {
    /// The number of its socket.
    pub socket: usize,
    /// The disk.
    pub disk: Disk,
    /// The worker.
    pub standby: Standby,
}

/// A machine, with its TPM if it has a working one.
type Launched = (Qemu, Option<Swtpm>);

/// A probe of QEMU in progress.
type Probing = Option<JoinHandle<Result<QemuProgram, Problem>>>;

/// The inputs of a start.
pub struct Starting {
    /// The VM.
    pub task: RunTask,
    /// Where its volumes are served.
    pub layout: Layout,
    /// Its run directory.
    pub run: VmRunDirectory,
    /// Its keys.
    pub keys: Arc<VmKeys>,
    /// Starts its processes.
    pub starter: Starter,
    /// The page of the limits of all its disks together.
    pub limits: Arc<LimitPage>,
    /// Receives the events.
    pub events: Sender<Event>,
    /// What the VM's main thread tells it.
    pub control: StartControl,
}

/// What a start is told while it runs.
pub struct StartControl {
    nudged: Receiver<()>,
    abandoned: Arc<AtomicBool>,
    sources: Receiver<VolumeSource>,
}

/// A connection to the host that has the volumes of a VM that comes.
#[derive(Debug)]
pub struct VolumeSource {
    /// The number of the request that has brought it.
    pub number: u64,
    /// The connection.
    pub from: UnixStream,
}

/// Tells a start something.
#[derive(Debug)]
pub struct StartHandle {
    nudge: SyncSender<()>,
    abandoned: Arc<AtomicBool>,
    sources: Sender<VolumeSource>,
}

/// The two ends of a start's control.
pub fn start_control() -> (StartHandle, StartControl) {
    let (nudge, nudged) = sync_channel(1);
    let (give_source, sources) = channel();
    let abandoned = Arc::new(AtomicBool::new(false));
    let handle = StartHandle { nudge, abandoned: Arc::clone(&abandoned), sources: give_source };
    (handle, StartControl { nudged, abandoned, sources })
}

impl StartHandle {
    /// There are new grants: an unavailable key is requested again.
    pub fn nudge(&self) {
        // A nudge that waits already is enough.
        let _ = self.nudge.try_send(());
    }

    /// Gives the start a connection to the host that has the volumes.
    ///
    /// # Errors
    /// If the start has ended.
    pub fn bring(&self, source: VolumeSource) -> Result<(), Problem> {
        let over = |_| Problem::new("other_step", "the VM's volumes are here, or do not come any more");
        self.sources.send(source).map_err(over)
    }

    /// Abandons the start. Also seen by what goes on after it until the VM is off.
    pub fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
        self.nudge();
    }

    /// Whether the VM's end has begun.
    pub fn abandoned(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.abandoned)
    }
}

impl Starting {
    /// Starts the machine, and reports the result as an event.
    pub fn run(self) {
        let started = self.start();
        let _ = self.events.send(Event::Started(started.map(Box::new)));
    }

    fn start(&self) -> Result<Started, Problem> {
        if let Some(incoming) = &self.task.incoming {
            return self.await_memory(incoming);
        }
        let spec = &self.task.spec;
        let begun = Instant::now();
        let probing = self.probing();
        let served = self.layout.disks(spec);
        let mut volumes = Vec::with_capacity(served.len());
        for (place, disk) in &served {
            match self.serve_when_key_is_there(place.socket, disk) {
                Ok(volume) => volumes.push(volume),
                Err(problem) => {
                    volumes.iter().for_each(ServedVolume::stop);
                    return Err(problem);
                }
            }
        }
        let ready = Instant::now();
        let machine = match self.task.adopt {
            Some(orphan) => self.adopt(orphan),
            None => self.boot_or_resume(probing),
        };
        tracing::info!(
            "VM {}: keys and volumes after {} ms, QEMU after {} ms",
            spec.name,
            (ready - begun).as_millis(),
            ready.elapsed().as_millis()
        );
        match machine {
            Ok((qemu, swtpm)) => {
                let tpm = swtpm.and_then(|swtpm| self.keep_tpm(swtpm));
                Ok(Started { volumes, qemu, tpm, arriving: None, awaiting: Vec::new(), coming: None })
            }
            Err(problem) => {
                volumes.iter().for_each(ServedVolume::stop);
                Err(problem)
            }
        }
    }

    /// Starts a machine that waits for its memory from another host, with its disks and without
    /// their volumes, which that host has.
    fn await_memory(&self, incoming: &Incoming) -> Result<Started, Problem> {
        let spec = &self.task.spec;
        check_moves_live(spec)?;
        let program = self.starter.probe_qemu()?;
        let version = program.version();
        incoming.machine.fits((version.major, version.minor), program.kvm().is_ok(), spec)?;
        let coming = if incoming.with_volumes { Some(self.await_volumes(incoming.settings)?) } else { None };
        let mut awaiting = Vec::new();
        for (place, disk) in self.layout.disks(spec) {
            let comes = coming.as_ref().and_then(|coming| coming.served.get(&disk.name));
            let standby =
                self.when_key_is_there(|| self.volume_host().stand_by(spec, &disk, place.socket, comes))?;
            awaiting.push(AwaitingDisk { socket: place.socket, disk, standby });
        }
        let run = self.qemus_directory()?;
        let mut arriving = match spec.tpm {
            true => Some(self.await_tpm(&run).map_err(|error| error.problem())?),
            false => None,
        };
        let swtpm = arriving.as_mut().map(ArrivingTpm::swtpm_mut);
        let mut qemu = self.start_qemu(incoming.machine.generation_id, true, swtpm)?;
        match qemu.monitor().receive_memory(&run.incoming(), incoming.settings) {
            Ok(()) => {
                let coming = coming.map(|coming| coming.arriving);
                Ok(Started { volumes: Vec::new(), qemu, tpm: None, arriving, awaiting, coming })
            }
            Err(error) => {
                qemu.kill();
                Err(qmp_problem(error))
            }
        }
    }

    /// Fetches the volumes, but what the guest writes last, over one of the connections that are
    /// brought for that.
    fn await_volumes(&self, settings: MigrationSettings) -> Result<Coming, Problem> {
        loop {
            let VolumeSource { number, from } = self.next_source()?;
            let (nearly_there, is_nearly_there) = sync_channel(1);
            let (arrived, arriving) = sync_channel(1);
            let main = Fetching {
                events: self.events.clone(),
                abandoned: Arc::clone(&self.control.abandoned),
                nearly_there,
            };
            let (keys, spec) = (Arc::clone(&self.keys), self.task.spec.clone());
            let work = move || {
                let fetched = fetch_beside(&keys, &spec, from, settings, &main);
                drop(main);
                let _ = arrived.send(fetched);
            };
            thread::Builder::new().name("volumes".to_owned()).spawn(work).map_err(Problem::system)?;
            let fetched = match is_nearly_there.recv() {
                Ok(served) => Ok(Coming { served, arriving }),
                Err(_) => Err(match arriving.recv() {
                    Ok(Err(problem)) => problem,
                    Ok(Ok(_)) | Err(_) => Problem::new("internal", "nobody fetches the volumes"),
                }),
            };
            let told = fetched.as_ref().map(drop).map_err(Clone::clone);
            let _ = self.events.send(Event::VolumesFetched(number, told));
            match fetched {
                Ok(coming) => return Ok(coming),
                Err(problem) => tracing::warn!("VM {}: {problem}", self.task.spec.name),
            }
        }
    }

    fn next_source(&self) -> Result<VolumeSource, Problem> {
        loop {
            if self.control.abandoned.load(Ordering::Relaxed) {
                return Err(abandoned());
            }
            match self.control.sources.recv_timeout(TELLS_EVERY) {
                Ok(source) => return Ok(source),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(abandoned()),
            }
        }
    }

    /// Probes QEMU while keys are fetched, unless an earlier result is known.
    fn probing(&self) -> Probing {
        self.task.adopt.is_none().then_some(())?;
        let starter = self.starter.clone();
        thread::Builder::new().name("probe".to_owned()).spawn(move || starter.probe_qemu()).ok()
    }

    /// Starts a machine that boots, or one that has loaded its suspended memory.
    fn boot_or_resume(&self, probing: Probing) -> Result<Launched, Problem> {
        let program = match probing {
            Some(probing) => probing.join().map_err(|_| Problem::new("internal", "QEMU's probe panicked"))?,
            None => self.starter.probe_qemu(),
        }?;
        let memory = memory::to_take_up(&self.task, &self.keys, &program, &self.control.abandoned)?;
        record_start(&self.task, &self.keys)?;
        let Some(memory) = memory else { return self.launch(Uuid::new_v4(), false) };
        let (mut qemu, swtpm) = self.launch(memory.generation_id(), true)?;
        match memory.load(&qemu, &self.control.abandoned) {
            Ok(()) => Ok((qemu, swtpm)),
            Err(problem) => {
                qemu.kill();
                Err(problem)
            }
        }
    }

    /// Starts its TPM, if it has one, and QEMU with this generation id. `waiting` makes QEMU wait
    /// for its memory.
    fn launch(&self, generation_id: Uuid, waiting: bool) -> Result<Launched, Problem> {
        let run = self.qemus_directory()?;
        let mut swtpm = match self.task.spec.tpm {
            true => Some(self.start_tpm(&run, waiting)?),
            false => None,
        };
        Ok((self.start_qemu(generation_id, waiting, swtpm.as_mut())?, swtpm))
    }

    /// Starts QEMU, with this TPM, which ends if QEMU does not start.
    fn start_qemu(
        &self,
        generation_id: Uuid,
        waiting: bool,
        swtpm: Option<&mut Swtpm>,
    ) -> Result<Qemu, Problem> {
        match self.starter.start_qemu(generation_id, waiting) {
            Ok(qemu) => Ok(qemu),
            Err(problem) => {
                let said = swtpm.map(|swtpm| {
                    swtpm.kill();
                    swtpm.said()
                });
                // If the key does not open the state, swtpm's output says more than QEMU's.
                match said.filter(|said| !said.is_empty()) {
                    Some(said) => {
                        Err(Problem::new("qemu", format!("{}; its TPM says: {said}", problem.message)))
                    }
                    None => Err(problem),
                }
            }
        }
    }

    fn adopt(&self, orphan: Orphan) -> Result<Launched, Problem> {
        let found = self.starter.find_orphan(&self.qemus_directory()?, orphan)?;
        end_of_move(&found.0)?;
        if self.task.spec.tpm && found.1.is_none() {
            let _ = self.events.send(Event::TpmLost("it has ended".to_owned()));
        }
        Ok(found)
    }

    fn qemus_directory(&self) -> Result<RunDirectory, Problem> {
        RunDirectory::open(self.run.path()).map_err(|error| Problem::new("qemu", error.to_string()))
    }

    fn tpm(&self) -> TpmPlace {
        TpmPlace::of(&self.task, &self.run, &self.keys, &self.starter)
    }

    /// Starts a TPM that waits for its state, which comes with the guest's memory.
    fn await_tpm(&self, run: &RunDirectory) -> Result<ArrivingTpm, TpmError> {
        let arriving = ArrivingTpm::start(self.tpm(), run)?;
        let _ = self.events.send(Event::TpmStarted(arriving.swtpm().identity()));
        Ok(arriving)
    }

    /// Starts the VM's TPM as soon as its key is available.
    fn start_tpm(&self, run: &RunDirectory, resumes: bool) -> Result<Swtpm, Problem> {
        let mut waits = false;
        loop {
            match self.tpm().start(run, resumes) {
                Ok(swtpm) => {
                    if waits {
                        let _ = self.events.send(Event::KeyMissing(None));
                    }
                    let _ = self.events.send(Event::TpmStarted(swtpm.identity()));
                    return Ok(swtpm);
                }
                Err(error) => {
                    let missing = error.missing_key().ok_or_else(|| error.problem())?;
                    waits = true;
                    self.wait(self.keys.waiting_for(missing));
                    if self.control.abandoned.load(Ordering::Relaxed) {
                        return Err(abandoned());
                    }
                }
            }
        }
    }

    /// Starts to record the states of the TPM. If that fails, the VM runs, but the TPM does not
    /// answer commands that change its state until another supervisor records it.
    fn keep_tpm(&self, swtpm: Swtpm) -> Option<Keeper> {
        kept(&self.task.spec, Keeper::start(self.tpm(), swtpm, tpm_is_lost(&self.events)))
    }

    fn volume_host(&self) -> VolumeHost<'_> {
        let changed_over = self.task.changed_over.as_ref();
        let (run, limits) = (&self.run, &self.limits);
        VolumeHost { keys: &self.keys, starter: &self.starter, run, limits, changed_over }
    }

    /// Serves a disk as soon as its key is available.
    fn serve_when_key_is_there(&self, index: usize, disk: &Disk) -> Result<ServedVolume, Problem> {
        let supervisor = self.when_key_is_there(|| {
            let renewed = match self.task.adopt {
                None if disk.kind == DiskKind::Swap => swap::renew(&self.task, disk, &self.keys),
                _ => Ok(()),
            };
            let undecided = self.task.undecided.as_ref().filter(|moved| moved.disk == disk.name);
            let taken_back =
                undecided.map_or(Ok(()), |moved| take_name_back(&self.keys, &self.task.spec, disk, moved));
            renewed.and(taken_back).and_then(|()| self.volume_host().serve(&self.task.spec, disk, index))
        })?;
        keep_served(index, supervisor, disk, &self.events).map_err(Problem::system)
    }

    /// Does something as soon as a key is available.
    fn when_key_is_there<T>(&self, attempt: impl Fn() -> Result<T, VolumeError>) -> Result<T, Problem> {
        let mut waits = false;
        loop {
            if self.control.abandoned.load(Ordering::Relaxed) {
                return Err(abandoned());
            }
            match attempt() {
                Ok(done) => {
                    if waits {
                        let _ = self.events.send(Event::KeyMissing(None));
                    }
                    return Ok(done);
                }
                Err(error) => {
                    let waiting = self.missing(&error).ok_or_else(|| error.problem())?;
                    waits = true;
                    self.wait(waiting);
                }
            }
        }
    }

    fn missing(&self, error: &VolumeError) -> Option<WaitingFor> {
        Some(self.keys.waiting_for(error.missing_key()?))
    }

    fn wait(&self, waiting: WaitingFor) {
        let pause = match &waiting {
            WaitingFor { grant_wanted: true, .. } => KEY_RETRY_WITHOUT_GRANT,
            WaitingFor { upstream: Some(_), .. } => KEY_RETRY_BEHIND_BROKER,
            _ => KEY_RETRY,
        };
        let _ = self.events.send(Event::KeyMissing(Some(waiting)));
        match self.control.nudged.recv_timeout(pause) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => self.control.abandoned.store(true, Ordering::Relaxed),
        }
    }
}

/// Volumes that come.
struct Coming {
    /// What is known of those that have a worker.
    served: BTreeMap<DiskName, Descriptor>,
    arriving: ComingVolumes,
}

/// What a thread that fetches volumes tells.
struct Fetching {
    events: Sender<Event>,
    abandoned: Arc<AtomicBool>,
    nearly_there: SyncSender<BTreeMap<DiskName, Descriptor>>,
}

impl FetchesBeside for Fetching {
    fn tell(&self, progress: Progress) -> Result<(), Problem> {
        let _ = self.events.send(Event::Progress(progress));
        if self.abandoned.load(Ordering::Relaxed) { Err(abandoned()) } else { Ok(()) }
    }

    fn nearly_there(&self, served: BTreeMap<DiskName, Descriptor>) {
        let _ = self.nearly_there.send(served);
    }
}

/// Tells of the end of a running VM's TPM.
pub fn tpm_is_lost(events: &Sender<Event>) -> impl FnOnce(String) + Send + use<> {
    let events = events.clone();
    move |said| drop(events.send(Event::TpmLost(said)))
}

/// The keeper of a VM's TPM, if it was started.
pub fn kept(spec: &VmSpec, keeper: io::Result<Keeper>) -> Option<Keeper> {
    let told = |error: &io::Error| {
        tracing::error!("VM {}: its TPM's states are not recorded: {error}", spec.name);
    };
    keeper.inspect_err(told).ok()
}

/// Records a start. From here on, a repetition of its order does not start the VM again. A
/// suspended memory stays until the guest resumes it.
///
/// # Errors
/// If its directory cannot be written, or its key is not there.
pub fn record_start(task: &RunTask, keys: &VmKeys) -> Result<(), Problem> {
    VmRecord::change(&task.spec, |record| {
        record.snapshots.check_whole(&task.spec.name)?;
        record.generation = task.generation;
        let attested = record.become_attested(&task.spec, |key, what| keys.attest(key, what));
        attested.map_err(|error| Problem::new("key_unavailable", error.to_string()))
    })
}

/// Keeps a volume served, and reports its news as events.
pub fn keep_served(
    index: usize,
    supervisor: Supervisor,
    disk: &Disk,
    events: &Sender<Event>,
) -> io::Result<ServedVolume> {
    let events = Arc::new(Mutex::new(events.clone()));
    let tell = move |news: VolumeNews| {
        let events = events.lock();
        let _ = events.send(Event::Volume(index, news));
    };
    ServedVolume::run(supervisor, disk.name.as_str(), tell)
}

/// Ends what a supervisor that died has left of a move of the memory to another host: QEMU would
/// not continue the guest in the middle of one.
fn end_of_move(qemu: &Qemu) -> Result<(), Problem> {
    let until = Instant::now() + MOVE_ENDS_WITHIN;
    let monitor = qemu.monitor();
    while monitor.status().map_err(qmp_problem)?.word == FINISHES_MIGRATION && Instant::now() < until {
        monitor.end_saving().map_err(qmp_problem)?;
        thread::sleep(LOOK_AGAIN);
    }
    Ok(())
}

fn abandoned() -> Problem {
    Problem::new("abandoned", "it was stopped before it had started")
}
