//! The kernel's queues, and the memory and files that the kernel accesses.
//!
//! A [`Job`] is handed over as a whole: its buffer, file or socket belongs to [`Uring`] from
//! [`Uring::send`] until [`Uring::next_completed`] returns it with the kernel's answer. No other
//! code in this crate holds a pointer.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use io_uring::types::{Fixed, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::event::PollFlags;
use rustix::io::{Errno, ReadWriteFlags};
use strongroom_io::{DataFile, InFlight, IoError, Slot};

use crate::error::RingError;
use crate::file::{OpenFile, Place, Places};
use crate::operation::{Call, Operation};
use crate::registered::RegisteredChunks;
use crate::setup::{WAKER_PLACE, set_up};
use crate::watch::{Direction, WatchToken};

/// The tag of cancellations, whose answers are ignored. No slot has this tag.
const CANCELLATION: u64 = u64::MAX;

/// A request to the kernel, with everything that it accesses meanwhile.
pub(crate) enum Job {
    /// A step of a file operation.
    File(Operation),
    /// Completes once, when another thread wakes this one.
    PollWaker,
    /// Completes once, when the socket is ready.
    PollSocket { socket: Rc<Place>, events: PollFlags, watch: WatchToken, direction: Direction },
}

/// A ring of the kernel, the jobs in it, and the entries that wait for room in it.
pub(crate) struct Uring {
    ring: IoUring,
    jobs: InFlight<Job>,
    /// A bound above the tags of all jobs so far.
    tags_end: u64,
    /// Entries in order of submission that found the submission queue full.
    backlog: VecDeque<squeue::Entry>,
    completed: VecDeque<(Slot, i32)>,
    places: Rc<RefCell<Places>>,
    chunks: RegisteredChunks,
    enters: u64,
}

impl Uring {
    /// Makes a ring with `entries` submission entries and twice as many completion entries, for the
    /// calling thread, which other threads wake by the event `waker`.
    pub(crate) fn new(entries: u32, waker: BorrowedFd<'_>) -> Result<Self, RingError> {
        let (ring, places, chunks) = set_up(entries, waker)?;
        Ok(Self {
            ring,
            jobs: InFlight::with_depth(2 * entries as usize),
            tags_end: 0,
            backlog: VecDeque::with_capacity(entries as usize),
            completed: VecDeque::with_capacity(2 * entries as usize),
            places: Rc::new(RefCell::new(Places::new(WAKER_PLACE + 1..places))),
            chunks,
            enters: 0,
        })
    }

    /// Registers a file.
    pub(crate) fn open(&mut self, file: Arc<dyn DataFile>) -> Result<Rc<OpenFile>, IoError> {
        let place = self.place(file.as_fd().ok_or(Errno::BADF)?)?;
        let zero_range = Cell::new(true);
        Ok(Rc::new(OpenFile { _file: file, place, zero_range }))
    }

    /// Gives a file or socket a place in the ring's table. The kernel keeps it open until the place
    /// is given back.
    pub(crate) fn place(&mut self, file: BorrowedFd<'_>) -> Result<Place, IoError> {
        self.release_places();
        let place = Place::take(&self.places)?;
        let update = self.ring.submitter().register_files_update(place.index(), &[file.as_raw_fd()]);
        update.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        Ok(place)
    }

    /// Releases registered files without users, whose locks (`flock`) would last until then. The
    /// kernel may take a moment longer than this call, and at least until the file's last operation
    /// ends.
    pub(crate) fn release_places(&mut self) {
        let mut places = self.places.borrow_mut();
        while let Some(index) = places.vacated.pop() {
            if self.ring.submitter().register_files_update(index, &[-1]).is_ok() {
                places.free.push(index);
            }
        }
    }

    /// Releases registered memory that has been freed.
    pub(crate) fn release_chunks(&mut self) {
        self.chunks.release(&self.ring);
    }

    /// Queues a job, to be submitted by the next [`Self::submit`] or [`Self::sleep`].
    pub(crate) fn send(&mut self, job: Job) -> Slot {
        let entry = self.entry_of(&job);
        let slot = self.jobs.insert(job);
        self.tags_end = self.tags_end.max(slot.tag() + 1);
        self.push(entry.user_data(slot.tag()));
        slot
    }

    /// Asks the kernel to end a job soon; the job comes back through [`Self::next_completed`] as
    /// usual.
    ///
    /// The slot may be reused before the kernel sees this, but never by a job that the kernel sees
    /// earlier: entries keep their order, so only the intended job can be cancelled.
    pub(crate) fn cancel(&mut self, slot: Slot) {
        // It names no file, but the ring accepts no entry without the flag.
        let entry = opcode::AsyncCancel::new(slot.tag()).build().flags(squeue::Flags::FIXED_FILE);
        self.push(entry.user_data(CANCELLATION));
    }

    /// Submits all queued entries; no system call if there are none. Entries for which the kernel
    /// has no memory now remain.
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

    /// Whether there are completions, or the kernel holds some back until it is entered.
    pub(crate) fn has_arrived(&mut self) -> bool {
        !self.completed.is_empty() || self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    /// Submits all queued entries, and waits for a completion, a signal, or until `at_most` has
    /// passed. It may end early.
    pub(crate) fn sleep(&mut self, at_most: Option<Duration>) -> Result<(), Errno> {
        if !self.backlog.is_empty() {
            self.submit()?;
            // The kernel did not take all entries, or completions had to be read to make room: do
            // not sleep.
            if !self.backlog.is_empty() || !self.completed.is_empty() {
                return Ok(());
            }
        }
        self.enter(1, at_most)
    }

    /// Collects completions; it takes a system call only if the kernel signals that it holds some
    /// back.
    pub(crate) fn collect(&mut self) {
        self.drain();
        // Do this once: the kernel can leave this flag set without any work if it marks work that
        // this thread has run meanwhile, and clears it only with the next work.
        if self.completed.is_empty() && self.ring.submission().taskrun() {
            // An error here, and below, recurs when the loop sleeps.
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

    /// The next job that the kernel has ended, with its answer: a count, or a negative error
    /// number.
    pub(crate) fn next_completed(&mut self) -> Option<(Job, i32)> {
        while let Some((slot, answer)) = self.completed.pop_front() {
            if let Some(job) = self.jobs.take(slot) {
                return Some((job, answer));
            }
        }
        None
    }

    /// Count of jobs that were sent and have not come back.
    pub(crate) fn jobs(&self) -> usize {
        self.jobs.len()
    }

    /// Whether any entry is not submitted yet.
    pub(crate) fn has_unsent(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    /// The count of system calls so far.
    pub(crate) fn enters(&self) -> u64 {
        self.enters
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.backlog.push_back(entry);
        self.fill();
    }

    /// Moves entries from the backlog into the submission queue while there is room; returns the
    /// queue's length.
    fn fill(&mut self) -> usize {
        let mut submission = self.ring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: an entry names memory only inside the `Buffer` of its job (`entry_of`), and a
            // file only by the place that its job holds. The job was put into `jobs` before its
            // entry got here. It leaves `jobs` only in `next_completed`, after the kernel's last
            // answer to it; `Drop` waits for that answer, or leaks the jobs. A buffer's memory does
            // not move, and no code reads or writes it while its job is in `jobs`, which is private
            // to this file.
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

    /// The entry of a job. Its pointers point into the job's buffer, and are valid as long as the
    /// job is kept.
    fn entry_of(&mut self, job: &Job) -> squeue::Entry {
        match job {
            Job::File(operation) => self.file_entry(operation),
            Job::PollWaker => {
                opcode::PollAdd::new(Fixed(WAKER_PLACE), u32::from(PollFlags::IN.bits())).build()
            }
            Job::PollSocket { socket, events, .. } => {
                opcode::PollAdd::new(Fixed(socket.index()), u32::from(events.bits())).build()
            }
        }
    }

    fn file_entry(&mut self, operation: &Operation) -> squeue::Entry {
        let file = Fixed(operation.file.place.index());
        match operation.call() {
            Call::Read { into, start, offset } => {
                let length = into.len().saturating_sub(start) as u32;
                let address = into.address().as_ptr().wrapping_add(start);
                match self.chunks.place_of(&self.ring, into) {
                    Some(place) => {
                        opcode::ReadFixed::new(file, address, length, place).offset(offset).build()
                    }
                    None => opcode::Read::new(file, address, length).offset(offset).build(),
                }
            }
            Call::Write { from, start, offset, durable } => {
                let flags = if durable { ReadWriteFlags::DSYNC } else { ReadWriteFlags::empty() }.bits() as _;
                let length = from.len().saturating_sub(start) as u32;
                let address = from.address().as_ptr().wrapping_add(start);
                match self.chunks.place_of(&self.ring, from) {
                    Some(place) => opcode::WriteFixed::new(file, address, length, place)
                        .offset(offset)
                        .rw_flags(flags)
                        .build(),
                    None => opcode::Write::new(file, address, length).offset(offset).rw_flags(flags).build(),
                }
            }
            Call::Sync { data_only } => {
                let flags = if data_only { FsyncFlags::DATASYNC } else { FsyncFlags::empty() };
                opcode::Fsync::new(file).flags(flags).build()
            }
            Call::Allocate { extent, mode } => opcode::Fallocate::new(file, extent.length())
                .offset(extent.offset())
                .mode(mode.bits() as i32)
                .build(),
        }
    }

    /// The one system call: submits the submission queue, and waits for `want` completions.
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
            // The time has passed, or a signal arrived.
            Some(Errno::TIME | Errno::INTR) => Ok(()),
            // No memory for more entries now, or too many unread completions: read them, and the
            // caller tries again.
            Some(Errno::AGAIN | Errno::BUSY) => {
                self.drain();
                Ok(())
            }
            errno => Err(errno.unwrap_or(Errno::IO)),
        }
    }
}

/// Waits until the kernel has released everything.
///
/// All submitted jobs are cancelled first. Polls and queued work end at once; a transfer that a
/// device works on takes its time. If the kernel cannot be called any more, the memory that it may
/// still access is leaked.
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
        // Closing a ring releases registered files some time later. This does it now, so that the
        // next owner of a file's lock does not wait longer than necessary.
        let _ = self.ring.submitter().unregister_files();
    }
}

#[cfg(test)]
#[path = "uring_tests.rs"]
mod tests;
