//! The kernel's queues, and the memory and files that the kernel works on.
//!
//! A [`Job`] is handed over whole: its buffer, file or socket belongs to [`Uring`] from [`Uring::send`] until
//! [`Uring::next_completed`] gives it back with the kernel's answer. Nothing else in this room holds a pointer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::{Errno, ReadWriteFlags};
use strongroom_io::{DataFile, InFlight, IoError, Slot, Waker};

use crate::error::RingError;
use crate::file::{OpenFile, Place, Places};
use crate::operation::{Call, Operation};
use crate::watch::{Direction, WatchToken};

/// Registered files of one ring: some volumes with a chain of layers each. More are used by their descriptors.
const PLACES: u32 = 64;

/// Names the answer to a cancellation, which nobody waits for. No slot has this tag.
const CANCELLATION: u64 = u64::MAX;

/// What the kernel is asked to do, with everything that it touches meanwhile.
pub(crate) enum Job {
    /// A step of a file operation.
    File(Operation),
    /// Answer once when another thread wakes this one.
    PollWaker(Arc<Waker>),
    /// Answer once when the socket is ready.
    PollSocket { socket: Rc<OwnedFd>, events: PollFlags, watch: WatchToken, direction: Direction },
}

/// A ring of the kernel, what is under way in it, and what waits for room in it.
pub(crate) struct Uring {
    ring: IoUring,
    jobs: InFlight<Job>,
    /// Above the tag of every job so far.
    tags_end: u64,
    /// Entries in order of submission that found the submission queue full.
    backlog: VecDeque<squeue::Entry>,
    completed: VecDeque<(Slot, i32)>,
    places: Rc<RefCell<Places>>,
    enters: u64,
}

impl Uring {
    /// A ring with `entries` submission entries and twice as many completion entries.
    pub(crate) fn new(entries: u32) -> Result<Self, RingError> {
        let ring = set_up(entries)?;
        if !ring.params().is_feature_nodrop() {
            return Err(RingError::TooOld("completions that are never dropped (5.5)"));
        }
        if !ring.params().is_feature_ext_arg() {
            return Err(RingError::TooOld("waiting with a timeout (5.11)"));
        }
        // Without a table every file is used by its descriptor, which costs a little time and nothing else.
        let registers = ring.submitter().register_files_sparse(PLACES).is_ok();
        Ok(Self {
            ring,
            jobs: InFlight::with_depth(2 * entries as usize),
            tags_end: 0,
            backlog: VecDeque::with_capacity(entries as usize),
            completed: VecDeque::with_capacity(2 * entries as usize),
            places: Rc::new(RefCell::new(Places::new(if registers { PLACES } else { 0 }))),
            enters: 0,
        })
    }

    /// Registers a file.
    pub(crate) fn open(&mut self, file: Arc<dyn DataFile>) -> Result<Rc<OpenFile>, IoError> {
        self.release_places();
        let fd = file.as_fd().ok_or(Errno::BADF)?.as_raw_fd();
        let place = Place::take(&self.places).filter(|place| {
            let update = self.ring.submitter().register_files_update(place.index(), &[fd]);
            update.is_ok()
        });
        let zero_range = Cell::new(true);
        Ok(Rc::new(OpenFile { file, place, zero_range }))
    }

    /// Lets go of registered files that nobody uses any more, whose locks (`flock`) would last until then. The kernel
    /// may take a moment longer than this call; it never takes less than the file's last operation.
    pub(crate) fn release_places(&mut self) {
        let mut places = self.places.borrow_mut();
        while let Some(index) = places.vacated.pop() {
            if self.ring.submitter().register_files_update(index, &[-1]).is_ok() {
                places.free.push(index);
            }
        }
    }

    /// Takes a job, to be sent with the next [`Self::submit`] or [`Self::sleep`].
    pub(crate) fn send(&mut self, job: Job) -> Slot {
        let entry = entry_of(&job);
        let slot = self.jobs.insert(job);
        self.tags_end = self.tags_end.max(slot.tag() + 1);
        self.push(entry.user_data(slot.tag()));
        slot
    }

    /// Asks the kernel to end a job soon; it comes back through [`Self::next_completed`] as every job does.
    ///
    /// The slot may be used anew before the kernel sees this, but never by a job that the kernel sees earlier:
    /// entries keep their order, so only the job that is meant can be hit.
    pub(crate) fn cancel(&mut self, slot: Slot) {
        let entry = opcode::AsyncCancel::new(slot.tag()).build();
        self.push(entry.user_data(CANCELLATION));
    }

    /// Sends everything that was taken; no system call if there is nothing. What the kernel has no memory for now stays.
    pub(crate) fn submit(&mut self) -> Result<(), Errno> {
        while self.has_unsent() {
            let unsent = self.fill();
            self.enter(0, None)?;
            if self.ring.submission().len() == unsent {
                break;
            }
        }
        Ok(())
    }

    /// Sends everything that was taken, and waits for a completion, a signal, or the end of `at_most`. It may end
    /// early.
    pub(crate) fn sleep(&mut self, at_most: Option<Duration>) -> Result<(), Errno> {
        if !self.backlog.is_empty() {
            self.submit()?;
            // The kernel took not all, or completions had to be read to make it: nothing to sleep over.
            if !self.backlog.is_empty() || !self.completed.is_empty() {
                return Ok(());
            }
        }
        self.enter(1, at_most)
    }

    /// Looks for completions; a system call only where the kernel says that it holds some back.
    pub(crate) fn collect(&mut self) {
        self.drain();
        // Asked once: the kernel can leave this flag set with nothing behind it, when it marks work that this thread has
        // run meanwhile, and clears it only with the next work there is.
        if self.completed.is_empty() && self.ring.submission().taskrun() {
            // An error here, and below, shows again when the loop sleeps.
            let _ = self.enter(0, None);
            self.drain();
        }
        while self.ring.submission().cq_overflow() {
            let before = self.completed.len();
            if self.enter(0, None).is_err() {
                return;
            }
            self.drain();
            if self.completed.len() == before {
                return;
            }
        }
    }

    /// The next job that the kernel has ended, with its answer: a count, or a negative error number.
    pub(crate) fn next_completed(&mut self) -> Option<(Job, i32)> {
        while let Some((slot, answer)) = self.completed.pop_front() {
            if let Some(job) = self.jobs.take(slot) {
                return Some((job, answer));
            }
        }
        None
    }

    /// Whether anything waits to be sent.
    pub(crate) fn has_unsent(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// How often the kernel was entered.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        self.fill();
    }

    /// Moves entries from the backlog into the submission queue while there is room; returns the queue's length.
    fn fill(&mut self) -> usize {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: an entry names memory only inside the `Buffer` of its job (`entry_of`), and descriptors only of
            // the file or socket that its job holds. The job was put into `jobs` before its entry got here and leaves
            // it only in `next_completed`, after the kernel's last word on it; `Drop` waits for that word, or leaks
            // the jobs. A buffer's memory does not move, and nothing reads or writes it while its job is in
            // `jobs`, which is private to this file.
            if unsafe { submission.push(entry) }.is_err() {
                break;
            }
            self.backlog.pop_front();
        }
        submission.len()
    }

    fn drain(&mut self) {
        for entry in self.ring.completion() {
            if let Some(slot) = Slot::from_tag(entry.user_data()) {
                self.completed.push_back((slot, entry.result()));
            }
        }
    }

    /// The one system call: sends what is in the submission queue, and waits for `want` completions.
    fn enter(&mut self, want: usize, at_most: Option<Duration>) -> Result<(), Errno> {
        self.enters += 1;
        let timeout = at_most.map(Timespec::from);
        let args = match &timeout {
            Some(timeout) => SubmitArgs::new().timespec(timeout),
            None => SubmitArgs::new(),
        };
        let Err(error) = self.ring.submitter().submit_with_args(want, &args) else {
            return Ok(());
        };
        match Errno::from_io_error(&error) {
            // The time is over, or a signal came.
            Some(Errno::TIME | Errno::INTR) => Ok(()),
            // No memory for more now, or too many completions unread: read them, and the caller comes again.
            Some(Errno::AGAIN | Errno::BUSY) => {
                self.drain();
                Ok(())
            }
            errno => Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

/// Waits until the kernel has let go of everything.
///
/// What was sent is asked to end soon: polls and queued work do, while a transfer that a device works on takes its time.
/// If the kernel cannot be asked any more, what it may still touch is leaked.
impl Drop for Uring {
    fn drop(&mut self) {
        for tag in 0..self.tags_end {
            if let Some(slot) = Slot::from_tag(tag)
                && self.jobs.get_mut(slot).is_some()
            {
                self.cancel(slot);
            }
        }
        loop {
            self.collect();
            while self.next_completed().is_some() {}
            if self.jobs.is_empty() {
                break;
            }
            if let Err(errno) = self.sleep(None) {
                let jobs = std::mem::replace(&mut self.jobs, InFlight::with_depth(0));
                tracing::error!(%errno, count = jobs.len(), "io_uring failed; memory in use by it is never freed");
                std::mem::forget(jobs);
                break;
            }
        }
        // Closing a ring lets go of registered files some time later; this does it now, so that who waits for a file's lock
        // waits no longer than it must.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// A ring with what the kernel has of: completions that run only when this thread asks (6.1), or at least without
/// interrupting it (5.19), and submission that goes on after an entry that fails (5.18).
fn set_up(entries: u32) -> Result<IoUring, RingError> {
    let of_6_1 = |builder: &mut io_uring::Builder| {
        builder
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_single_issuer()
            .setup_defer_taskrun();
    };
    let of_5_19 = |builder: &mut io_uring::Builder| {
        builder.setup_submit_all().setup_coop_taskrun().setup_taskrun_flag();
    };
    let attempts: [&dyn Fn(&mut io_uring::Builder); 3] = [&of_6_1, &of_5_19, &|_| {}];
    let mut refused = RingError::TooOld("every way to set one up");
    for choose in attempts {
        let mut builder = IoUring::builder();
        // A child process must not inherit the queues' memory.
        builder.dontfork();
        choose(&mut builder);
        match builder.build(entries) {
            Ok(ring) => return Ok(ring),
            Err(error) => {
                refused = RingError::of_setup(entries, &error);
                if Errno::from_io_error(&error) != Some(Errno::INVAL) {
                    break;
                }
            }
        }
    }
    Err(refused)
}

/// The entry that asks for a job. Its pointers point into the job's buffer, and are good as long as the job is kept.
fn entry_of(job: &Job) -> squeue::Entry {
    match job {
        Job::File(operation) => file_entry(operation),
        Job::PollWaker(waker) => {
            opcode::PollAdd::new(Fd(waker.event().as_raw_fd()), u32::from(PollFlags::IN.bits())).build()
        }
        Job::PollSocket { socket, events, .. } => {
            opcode::PollAdd::new(Fd(socket.as_fd().as_raw_fd()), u32::from(events.bits())).build()
        }
    }
}

fn file_entry(operation: &Operation) -> squeue::Entry {
    let file = &operation.file;
    let (fd, flags) = match &file.place {
        Some(place) => (Fd(place.index() as i32), squeue::Flags::FIXED_FILE),
        // -1, for a file that has lost its descriptor, ends the operation with EBADF.
        None => (Fd(file.file.as_fd().map_or(-1, |fd| fd.as_raw_fd())), squeue::Flags::empty()),
    };
    let entry = match operation.call() {
        Call::Read { into, start, offset } => {
            let length = into.len().saturating_sub(start) as u32;
            let address = into.address().as_ptr().wrapping_add(start);
            opcode::Read::new(fd, address, length).offset(offset).build()
        }
        Call::Write { from, start, offset, durable } => {
            let durable = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() };
            let length = from.len().saturating_sub(start) as u32;
            let address = from.address().as_ptr().wrapping_add(start);
            opcode::Write::new(fd, address, length).offset(offset).rw_flags(durable.bits() as _).build()
        }
        Call::SyncData => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
        Call::Allocate { extent, mode } => opcode::Fallocate::new(fd, extent.length())
            .offset(extent.offset())
            .mode(mode.bits() as i32)
            .build(),
    };
    entry.flags(flags)
}
