//! The process that does a job's privileged steps, or runs another program for it.
//!
//! A job has a VM's keys, so it is confined ([`crate::walls`]). Before that it starts this second
//! process, as a VM's supervisor starts its starter. This process has no key and gets no grant. It
//! does the one task in its first packet, and ends with its job.
//!
//! ```text
//! hostd -> job    keys; the VM's directory; no right, few system calls
//!            -> hand   root's rights; gives a VM's directory its name, or has qemu-img copy
//!                 -> qemu-img, in its sandbox: has the image, and a socket at which the job serves the disk
//! ```

use std::fs::File;
use std::iter;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use strongroom_host::orders::{Birth, HandTask, Task, Way};
use strongroom_host::protocol::{ImageFormat, Problem, VmSpec};
use strongroom_host::vm_directory::StagedVm;
use strongroom_host::vm_lock::VmLock;
use strongroom_host::wire::{Wire, WireError};
use strongroom_images::qemu_img::Conversion;
use strongroom_images::{Format, ImageError, ServedDisk, Stop};
use strongroom_io::{Disk, Plain};
use strongroom_types::VolumeSize;

use crate::SupervisorError;
use crate::clusters::Clusters;
use crate::job::{IMAGE, image_problem, said_format};
use crate::starter::start_this_program;

/// Timeout for the rename, and for the preparation of a copy, on a busy host.
const ANSWERS_WITHIN: Duration = Duration::from_secs(120);
/// The interval between progress reports.
const TELLS_EVERY: Duration = Duration::from_millis(100);

/// The job's message that the directory is complete.
#[derive(Serialize, Deserialize)]
struct Complete {}

#[derive(Serialize, Deserialize)]
struct Answered {
    answer: Answer,
}

#[derive(Serialize, Deserialize)]
enum Answer {
    /// The copy is ready. The socket on which to serve the disk comes with the packet, and after it
    /// the one for the image, if that is not the hand's.
    Listens,
    Copied {
        bytes: u64,
    },
    Done,
    Failed(Problem),
}

fn start(
    home: &Path,
    clusters: &Clusters,
    task: HandTask,
    file: Option<BorrowedFd<'_>>,
) -> Result<Wire, Problem> {
    let nothing = Path::new("").to_owned();
    let task = Task::Hand(task);
    let (home, run, qemu) = (home.to_owned(), nothing.clone(), nothing);
    let birth = Birth { home, run, qemu, grants: Vec::new(), clusters: clusters.clone(), task };
    start_this_program(&birth, file.as_slice()).map_err(Problem::system)
}

fn away(error: WireError) -> Problem {
    Problem::new("hand", format!("the process that helps with this does not answer: {error}"))
}

/// Gives a VM's directory its name, for a job without the permission.
pub struct NameGiver(Wire);

impl NameGiver {
    /// Starts the process. The VM stays locked as long as it lives, whatever happens to the job.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(home: &Path, clusters: &Clusters, spec: &VmSpec, lock: &VmLock) -> Result<Self, Problem> {
        start(home, clusters, HandTask::Name(Box::new(spec.clone())), Some(lock.as_fd())).map(Self)
    }

    /// Gives the complete directory its name, durably.
    ///
    /// # Errors
    /// Also if another directory has taken the name.
    pub fn give(self) -> Result<(), Problem> {
        self.0.send(&Complete {}, &[]).map_err(away)?;
        match self.0.receive_within::<Answered>(ANSWERS_WITHIN).map_err(away)?.0.answer {
            Answer::Done => Ok(()),
            Answer::Failed(problem) => Err(problem),
            Answer::Listens | Answer::Copied { .. } => Err(unexpected()),
        }
    }
}

/// Has qemu-img copy between an image and a disk of the job's.
pub struct Converter {
    wire: Wire,
    listener: OwnedFd,
    image_listener: Option<OwnedFd>,
}

impl Converter {
    /// Starts the process, unless the job can copy this format itself. Without an `image` the job
    /// serves it.
    ///
    /// # Errors
    /// If the process, or a sandbox for qemu-img, cannot be started.
    pub fn for_image(
        home: &Path,
        image: Option<&File>,
        format: ImageFormat,
        size_bytes: VolumeSize,
        way: Way,
    ) -> Result<Option<Self>, Problem> {
        if format == ImageFormat::Raw {
            return Ok(None);
        }
        let task = HandTask::Convert { format, size_bytes, way };
        let wire = start(home, &Clusters::new(), task, image.map(File::as_fd))?;
        let (Answered { answer }, files) = wire.receive_within(ANSWERS_WITHIN).map_err(away)?;
        let mut files = files.into_iter();
        match (answer, files.next(), files.next()) {
            (Answer::Listens, Some(listener), image_listener)
                if image_listener.is_none() == image.is_some() =>
            {
                Ok(Some(Self { wire, listener, image_listener }))
            }
            (Answer::Failed(problem), _, _) => Err(problem),
            _ => Err(unexpected()),
        }
    }

    /// Serves the disk to qemu-img until the copy is complete and durable, and an image that is no
    /// file. `report` receives the bytes copied so far.
    ///
    /// # Errors
    /// [`ImageError::Interrupted`], and any error of the image or the disk.
    pub fn copy(
        self,
        image: Option<Arc<dyn Disk<Plain>>>,
        disk: Arc<dyn Disk<Plain>>,
        stop: Stop<'_>,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), Problem> {
        let Self { wire, listener, image_listener } = self;
        let image = image_listener.zip(image).map(|(listener, image)| ServedDisk::start(listener, image));
        let image = image.transpose().map_err(image_problem)?;
        let served = ServedDisk::start(listener, disk).map_err(image_problem)?;
        let copied = hear(&wire, stop, report);
        // Ends qemu-img, if it is still running.
        drop(wire);
        // Also after a failure: the disk must be closed before the volume can be deleted.
        let stopped = served.stop().map_err(image_problem);
        // It was only read.
        drop(image.map(ServedDisk::stop));
        copied?;
        stopped
    }
}

/// Receives progress until the end, or until the job must stop.
fn hear(wire: &Wire, stop: Stop<'_>, report: &mut dyn FnMut(u64)) -> Result<(), Problem> {
    loop {
        let mut watched =
            [PollFd::from_borrowed_fd(wire.as_fd(), PollFlags::IN), PollFd::new(&stop.wake, PollFlags::IN)];
        match poll(&mut watched, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Problem::system(errno)),
        }
        if stop.flag.load(Ordering::Relaxed) {
            return Err(image_problem(ImageError::Interrupted));
        }
        if watched[0].revents().is_empty() {
            continue;
        }
        match wire.receive::<Answered>().map_err(away)?.0.answer {
            Answer::Copied { bytes } => report(bytes),
            Answer::Done => return Ok(()),
            Answer::Failed(problem) => return Err(problem),
            Answer::Listens => return Err(unexpected()),
        }
    }
}

fn unexpected() -> Problem {
    Problem::new("hand", "the process that helps with this answered what was not asked for")
}

/// Does its task for the job at the other end.
///
/// # Errors
/// If the job is gone.
pub fn serve(task: HandTask, files: Vec<OwnedFd>, wire: Wire) -> Result<(), SupervisorError> {
    let _ = rustix::thread::set_name(c"strongroom-hand");
    let file = files.into_iter().next();
    let wire = Arc::new(wire);
    let done = match task {
        HandTask::Name(spec) => {
            // The file with the task is the VM's lock, which is released when this process ends.
            match wire.receive::<Complete>() {
                Err(WireError::Gone) => return Ok(()),
                complete => complete?,
            };
            let named = StagedVm::of(&spec).take_name();
            named.map_err(Problem::from)
        }
        HandTask::Convert { format, size_bytes, way } => {
            convert(file.map(File::from).as_ref(), format, size_bytes, way, &wire)
        }
    };
    let answer = done.map_or_else(Answer::Failed, |()| Answer::Done);
    match wire.send(&Answered { answer }, &[]) {
        Err(WireError::Gone) => Ok(()),
        sent => Ok(sent?),
    }
}

fn convert(
    image: Option<&File>,
    format: ImageFormat,
    size_bytes: VolumeSize,
    way: Way,
    wire: &Arc<Wire>,
) -> Result<(), Problem> {
    let Some(format) = said_format(format).filter(|format| *format != Format::Raw) else {
        return Err(Problem::new("internal", "qemu-img is not needed, or the format is not said"));
    };
    let name = Path::new(IMAGE);
    let conversion = match (way, image) {
        (Way::Import, Some(image)) => Conversion::of_image(format, image, name, size_bytes.bytes()),
        (Way::Import, None) => Conversion::of_remote_image(format, name, size_bytes.bytes()),
        (Way::Export, Some(image)) => Conversion::into_image(format, image, size_bytes.bytes()),
        (Way::Export, None) => return Err(Problem::new("no_file", "no file came to be written")),
    };
    let conversion = conversion.map_err(image_problem)?;
    let listeners: Vec<_> = iter::once(conversion.listener()).chain(conversion.image_listener()).collect();
    wire.send(&Answered { answer: Answer::Listens }, &listeners).map_err(away)?;
    let wake = eventfd(0, EventfdFlags::CLOEXEC).map_err(Problem::system)?;
    let gone = Arc::new(AtomicBool::new(false));
    let (theirs, flag, job) =
        (wake.try_clone().map_err(Problem::system)?, Arc::clone(&gone), Arc::clone(wire));
    let watch = move || {
        // The job sends nothing more, so this returns when it is gone.
        let _ = job.receive::<Answered>();
        flag.store(true, Ordering::Relaxed);
        let _ = rustix::io::write(&theirs, &1_u64.to_ne_bytes());
    };
    thread::Builder::new().name("job".to_owned()).spawn(watch).map_err(Problem::system)?;
    let mut told = Instant::now();
    let mut report = |bytes| {
        if told.elapsed() >= TELLS_EVERY {
            told = Instant::now();
            // A job that is gone is noticed elsewhere.
            let _ = wire.send(&Answered { answer: Answer::Copied { bytes } }, &[]);
        }
    };
    conversion.run(Stop { flag: &gone, wake: wake.as_fd() }, &mut report).map_err(image_problem)
}
