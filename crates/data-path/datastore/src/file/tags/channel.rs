//! The channel of one queue through the stage: takes requests and completions, and decides when
//! stalled requests are tried again.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use strongroom_io::{
    Channel, Done, FileDone, FileIo, FileOperation, FileQueue, FileToken, InFlight, Io, IoError, Lock,
    LockMode, LockQueue, LockTicket, Request, Sealed, Slot, Thread, Waker,
};
use strongroom_memory::{CHUNK_BYTES, ReservedPool};
use strongroom_types::BLOCK_BYTES;

use super::disk::{Shared, State};
use super::flush::{Pass, Said};
use super::layout::{blocks, marks_offset, presence_offset};
use super::pages::PageSlot;
use super::presence::PresencePage;
use super::request::{Active, Asker, Freeing, Step, Work};
use super::settle::{Doubt, Settler};
use super::stores::Stores;
use crate::file::tagging::{PAGE_BYTES, Tag};

/// The most pages that are written to the file at once, to make room or by a pass: enough to keep a
/// device busy.
pub const STORES_AT_ONCE: u32 = 32;

/// The tag that a pass's flush has in the disk below. Those of requests are slots, of 32 bits.
const PASS_TAG: u64 = 1 << 32;

/// The stage's own requests to the disk below: a pass's flush, a settling read, and a read of
/// blocks that a failed change has left in doubt.
const OWN_DEPTH: usize = 3;

pub struct TagsChannel {
    pub(super) shared: Arc<Shared>,
    pub(super) below: Box<dyn Channel<Sealed>>,
    queue: Box<dyn FileQueue>,
    file: FileToken,
    stores: Stores,
    pub(super) pool: ReservedPool,
    locks: LockQueue,
    pub(super) waker: Arc<Waker>,
    pub(super) active: InFlight<Active>,
    file_work: InFlight<FileWork>,
    pub(super) pass: Option<Pass>,
    pub(super) settler: Option<Settler>,
    /// The blocks of failed changes, examined one after the other.
    pub(super) doubts: VecDeque<Doubt>,
    /// A page that removes marks is being written.
    pub(super) unmarking: bool,
    stalled: VecDeque<Slot>,
    /// Memory for tags, to be reused.
    spare: Vec<Vec<Tag>>,
    /// The tags computed from the blocks that were read.
    pub(super) computed: Vec<Tag>,
    /// Whether something was submitted since the last kick.
    unkicked: bool,
    /// Whether something has ended, so that others may go on.
    pub(super) moved: bool,
    granted: Vec<(LockTicket, Lock)>,
    returned: Vec<Done<Sealed>>,
    file_done: Vec<FileDone>,
    ended: Vec<Done<Sealed>>,
}

/// An operation that was sent to the sidecar.
#[derive(Clone, Copy)]
pub(super) enum FileWork {
    Load { page: u64, slot: PageSlot },
    Store { slot: PageSlot, owner: Owner },
    Mark,
    Unmark { marks_page: u64 },
    Presence { presence_page: u64 },
    Free { request: Slot },
    Sync,
}

/// The owner that waits for a page to reach the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Request(Slot),
    Pass,
}

impl TagsChannel {
    pub(super) fn open(shared: Arc<Shared>, thread: &Thread, depth: usize) -> Result<Self, IoError> {
        let mut queue = shared.sync_order.queue(&*shared.file, thread)?;
        let file = queue.register(Arc::clone(&shared.file) as _)?;
        let waker = thread.reactor.waker();
        let mut channel = Self {
            below: shared.inner.open(thread, depth + OWN_DEPTH)?,
            pool: ReservedPool::new(&thread.pool, CHUNK_BYTES),
            locks: shared.locks.queue(Arc::clone(&waker)),
            queue,
            file,
            stores: Stores::open(&shared, thread)?,
            waker,
            active: InFlight::with_depth(depth + 2),
            file_work: InFlight::with_depth(depth),
            pass: None,
            settler: None,
            doubts: VecDeque::new(),
            unmarking: false,
            stalled: VecDeque::with_capacity(depth),
            spare: Vec::new(),
            computed: Vec::new(),
            unkicked: false,
            moved: false,
            granted: Vec::new(),
            returned: Vec::with_capacity(depth),
            file_done: Vec::with_capacity(depth),
            ended: Vec::with_capacity(depth),
            shared,
        };
        channel.begin_settling();
        channel.kick();
        Ok(channel)
    }

    /// Takes a request that is within the limits, and begins with its lock.
    pub(super) fn begin(&mut self, asker: Asker, request: Request<Sealed>) -> Slot {
        let extent = match &request {
            Request::Discard { extent } => extent.narrowed_to(BLOCK_BYTES),
            _ => request.extent(),
        };
        let mode = match &request {
            Request::Read { .. } => LockMode::Shared,
            Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. } => {
                LockMode::Exclusive
            }
            Request::Flush => {
                let work = Work::Flush(self.shared.state().passes.next());
                let slot = self.active.insert(Active { asker, work, ..Active::default() });
                self.advance(slot);
                return slot;
            }
        };
        let work = Work::Locking(request);
        let tags = self.spare.pop().unwrap_or_default();
        let slot = self.active.insert(Active { asker, extent, work, tags, ..Active::default() });
        if let Some(lock) = self.locks.acquire(extent, mode, LockTicket(slot.tag())) {
            self.locked(slot, lock);
        }
        slot
    }

    /// Starts a request that has got its lock.
    fn locked(&mut self, slot: Slot, lock: Lock) {
        let Some(active) = self.active.get_mut(slot) else { return };
        active.lock = Some(lock);
        let Work::Locking(request) = mem::take(&mut active.work) else { return };
        match request {
            Request::Read { extent, into } => {
                active.work = Work::Read;
                active.tags.clear();
                active.tags.resize(blocks(extent).count(), 0);
                self.send_below(slot.tag(), Request::Read { extent, into });
            }
            Request::Write { from, durable, .. } => {
                active.work = Work::Write { durable, step: Step::Reserving };
                let Active { extent, tags, .. } = active;
                let first = blocks(*extent).start;
                active.error = self.shared.compute(first, &from, tags).err();
                active.memory = Some(from);
            }
            // Discarded blocks always become zeroes, so that their tags can say "nothing here".
            Request::Discard { .. } => {
                let (rest, step, freeing) = (active.extent, Step::Marking, Freeing::NotYet);
                active.work = Work::Zero { rest, may_unmap: true, durable: false, step, freeing };
                active.tags.clear();
                active.next_part();
            }
            Request::WriteZeroes { extent: rest, may_unmap, durable } => {
                let (step, freeing) = (Step::Marking, Freeing::NotYet);
                active.work = Work::Zero { rest, may_unmap, durable, step, freeing };
                active.tags.clear();
                active.next_part();
            }
            Request::Flush => {}
        }
        self.advance(slot);
    }

    pub(super) fn send_below(&mut self, tag: u64, request: Request<Sealed>) {
        self.below.submit(Io { tag, request });
        self.unkicked = true;
    }

    pub(super) fn flush_below(&mut self) {
        self.send_below(PASS_TAG, Request::Flush);
    }

    /// Sends an operation to the sidecar.
    pub(super) fn send(&mut self, work: FileWork, operation: FileOperation) {
        let tag = self.file_work.insert(work).tag();
        self.queue.submit(FileIo { tag, file: self.file, operation });
        self.unkicked = true;
    }

    /// Reads a page that this channel has claimed. Returns `false` if there is no memory for it
    /// now.
    pub(super) fn load(&mut self, page: u64, slot: PageSlot) -> bool {
        let Some(into) = self.pool.take(PAGE_BYTES) else { return false };
        self.send(
            FileWork::Load { page, slot },
            FileOperation::Read { offset: self.shared.layout.page_offset(page), into },
        );
        true
    }

    /// Sends a dirty page to the file. Returns `false` if there is no memory for it now.
    pub(super) fn store(&mut self, state: &mut State, slot: PageSlot, owner: Owner) -> bool {
        let Some(mut from) = self.pool.take(PAGE_BYTES) else { return false };
        let (page, content) = state.pages.begin_writing(slot);
        from.bytes_mut().copy_from_slice(content);
        state.unsynced = true;
        let offset = self.shared.layout.page_offset(page);
        let tag = self.file_work.insert(FileWork::Store { slot, owner }).tag();
        self.stores.submit(tag, FileOperation::Write { offset, from, durable: false });
        self.unkicked = true;
        true
    }

    /// Makes the wanted marks durable, unless a page of marks is already being written.
    pub(super) fn mark(&mut self, state: &mut State) -> Result<(), IoError> {
        let Some(from) = self.pool.take(PAGE_BYTES) else { return Ok(()) };
        let Some(marks_page) = state.regions.begin_marking() else { return Ok(()) };
        self.send_marks(state, marks_page, from, FileWork::Mark).inspect_err(|_| {
            state.regions.end_marking(false);
        })
    }

    /// Sends a page of marks; durably, if something waits for it.
    pub(super) fn send_marks(
        &mut self,
        state: &mut State,
        marks_page: u64,
        mut from: strongroom_memory::Buffer,
        work: FileWork,
    ) -> Result<(), IoError> {
        self.shared.fill_marks(&state.regions, marks_page, from.bytes_mut())?;
        let durable = matches!(work, FileWork::Mark);
        state.unsynced |= !durable;
        self.send(work, FileOperation::Write { offset: marks_offset(marks_page), from, durable });
        Ok(())
    }

    /// Durably sends a page of presence.
    pub(super) fn say_presence(&mut self, page: &PresencePage) -> Result<Said, IoError> {
        let Some(mut from) = self.pool.take(PAGE_BYTES) else { return Ok(Said::NoMemory) };
        self.shared.fill_presence(page, from.bytes_mut())?;
        let (presence_page, offset) = (page.number, presence_offset(page.number));
        let operation = FileOperation::Write { offset, from, durable: true };
        self.send(FileWork::Presence { presence_page }, operation);
        Ok(Said::UnderWay)
    }

    /// Advances a request as far as possible.
    pub(super) fn advance(&mut self, slot: Slot) {
        let Some(active) = self.active.get_mut(slot) else { return };
        let mut request = mem::take(active);
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let mut next = self.step(slot, &mut request, &mut state);
        while next == Next::Verifies {
            // Release the lock during the computation.
            drop(state);
            let wrong = self.compare(&mut request);
            state = shared.state();
            next = self.judge(slot, &mut request, &mut state, wrong);
        }
        if next == Next::Stalled {
            state.wake_me(&self.waker);
        }
        drop(state);
        if let Next::Ended(result) = next {
            return self.finish(slot, request, result);
        }
        if next == Next::Stalled && !mem::replace(&mut request.stalled, true) {
            self.stalled.push_back(slot);
        }
        if let Some(active) = self.active.get_mut(slot) {
            *active = request;
        }
    }

    pub(super) fn release(&mut self, lock: Option<Lock>) {
        if let Some(lock) = lock {
            self.locks.release(lock);
            self.moved = true;
        }
    }

    pub(super) fn finish(&mut self, slot: Slot, mut request: Active, result: Result<(), IoError>) {
        self.active.take(slot);
        self.release(request.lock.take());
        let tags = mem::take(&mut request.tags);
        // A flush has taken no memory: giving back its empty `Vec` would grow the list with each
        // flush.
        if tags.capacity() > 0 {
            self.spare.push(tags);
        }
        self.moved = true;
        match request.asker {
            Asker::Submitter(tag) => self.ended.push(Done { tag, result, memory: request.memory }),
            Asker::Settling => self.settled(request.extent, result),
            Asker::Doubt => self.looked_at(request.extent, result),
        }
    }

    pub(super) fn look_again(&mut self) {
        for _ in 0..self.stalled.len() {
            let Some(slot) = self.stalled.pop_front() else { return };
            if let Some(active) = self.active.get_mut(slot) {
                active.stalled = false;
                self.advance(slot);
            }
        }
    }

    fn on_returned(&mut self, done: Done<Sealed>) {
        if done.tag == PASS_TAG {
            if let Some(pass) = &mut self.pass {
                pass.below = Some(done.result);
            }
            return;
        }
        let Some(slot) = Slot::from_tag(done.tag) else { return };
        let Some(active) = self.active.get_mut(slot) else {
            debug_assert!(false, "the disk below returned what was not submitted");
            return;
        };
        active.returned = Some(done.result);
        active.memory = done.memory.or(active.memory.take());
        self.advance(slot);
    }

    fn on_file_done(&mut self, done: FileDone) {
        let Some(work) = Slot::from_tag(done.tag).and_then(|slot| self.file_work.take(slot)) else {
            debug_assert!(false, "the sidecar returned what was not submitted");
            return;
        };
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        let FileDone { result, buffer, .. } = done;
        match work {
            FileWork::Load { page, slot } => match (result, buffer) {
                (Ok(()), Some(content)) => state.pages.loaded(slot, content.bytes()),
                (result, _) => {
                    state.pages.not_loaded(slot);
                    let error = result.err().unwrap_or(IoError::Closed);
                    self.fail_those(error, |request| request.needs_page(page));
                }
            },
            FileWork::Store { slot, owner } => {
                state.end_storing(slot, result.is_ok());
                state.unsynced = true;
                match owner {
                    Owner::Pass => self.stored_by_pass(slot, result),
                    Owner::Request(request) => {
                        if let Some(active) = self.active.get_mut(request) {
                            active.stores -= 1;
                            if active.wants_room {
                                active.error = active.error.or(result.err());
                            }
                        }
                    }
                }
            }
            FileWork::Mark => {
                state.regions.end_marking(result.is_ok());
                if let Err(error) = result {
                    // A durable write that finds no room fails alone. Any other error may affect
                    // other writes too.
                    if error != IoError::NoSpace {
                        state.passes.fail();
                    }
                    self.fail_those(error, Active::is_marking);
                }
            }
            FileWork::Unmark { marks_page } => {
                state.regions.end_unmarking(marks_page, result.is_ok());
                self.unmarking = false;
                state.unsynced = true;
            }
            FileWork::Presence { presence_page } => {
                if let Err(error) = result {
                    if let Some(presence) = &mut state.presence {
                        presence.not_said(presence_page);
                    }
                    if error != IoError::NoSpace {
                        state.passes.fail();
                    }
                }
                self.said_by_pass(result);
            }
            FileWork::Free { request } => {
                state.unsynced = true;
                if let Some(active) = self.active.get_mut(request) {
                    active.freed(result);
                }
            }
            FileWork::Sync => {
                if result.is_err() {
                    state.passes.fail();
                }
                if let Some(pass) = &mut self.pass {
                    pass.synced = Some(result);
                }
            }
        }
        state.wake_others(&self.waker);
        drop(state);
        if let FileWork::Free { request } | FileWork::Store { owner: Owner::Request(request), .. } = work {
            self.advance(request);
        }
    }

    /// Fails the requests of this channel that wait for the failed operation. Other channels try
    /// again themselves.
    fn fail_those(&mut self, error: IoError, which: impl Fn(&Active) -> bool) {
        for slot in &self.stalled {
            if let Some(active) = self.active.get_mut(*slot).filter(|active| which(active)) {
                active.error.get_or_insert(error);
            }
        }
    }
}

/// The result of advancing a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Ended(Result<(), IoError>),
    /// It waits for an operation of its own.
    Waits,
    /// It waits for something that other requests may be doing.
    Stalled,
    /// It is a read that has its blocks and their tags.
    Verifies,
}

impl Channel<Sealed> for TagsChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        let limits = self.shared.limits();
        if let Err(error) = limits.check(&io.request) {
            return self.ended.push(io.end(Err(error)));
        }
        let does_nothing = match &io.request {
            Request::Flush => limits.read_only,
            // The layer keeps its content.
            Request::Discard { extent } => !limits.discards || extent.narrowed_to(BLOCK_BYTES).is_empty(),
            Request::WriteZeroes { extent, .. } => extent.is_empty(),
            Request::Read { .. } | Request::Write { .. } => false,
        };
        if does_nothing {
            return self.ended.push(io.end(Ok(())));
        }
        self.begin(Asker::Submitter(io.tag), io.request);
    }

    fn kick(&mut self) {
        self.unkicked = false;
        self.below.kick();
        self.queue.kick();
        self.stores.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        loop {
            self.moved = false;
            let mut returned = mem::take(&mut self.returned);
            self.below.poll(&mut returned);
            let mut file_done = mem::take(&mut self.file_done);
            self.queue.poll(&mut file_done);
            self.stores.poll(&mut file_done);
            let mut granted = mem::take(&mut self.granted);
            self.locks.granted(&mut granted);
            self.moved |= !(returned.is_empty() && file_done.is_empty() && granted.is_empty());
            returned.drain(..).for_each(|done| self.on_returned(done));
            file_done.drain(..).for_each(|done| self.on_file_done(done));
            for (ticket, lock) in granted.drain(..) {
                if let Some(slot) = Slot::from_tag(ticket.0) {
                    self.locked(slot, lock);
                }
            }
            (self.returned, self.file_done, self.granted) = (returned, file_done, granted);
            self.look_again();
            self.run_pass();
            self.go_on_looking();
            self.go_on_settling();
            if self.unkicked {
                self.kick();
            } else if !self.moved {
                break;
            }
        }
        done.append(&mut self.ended);
    }
}

impl Drop for TagsChannel {
    /// Gives up the operations under way, whose completions will never arrive. Reads do no harm,
    /// and pages that are being written are left to [`Stores`]. Other writes may land at any time:
    /// their locks stay held, and no flush succeeds any more.
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.state();
        if mem::take(&mut self.settler).is_some() {
            state.settling = false;
        }
        let mut lost = self.pass.is_some();
        let mut slots = (0..).map_while(Slot::from_tag);
        while !self.file_work.is_empty()
            && let Some(slot) = slots.next()
        {
            match self.file_work.take(slot) {
                Some(FileWork::Load { slot, .. }) => state.pages.not_loaded(slot),
                Some(FileWork::Store { slot, .. }) => self.stores.leave(slot),
                Some(_) => lost = true,
                None => {}
            }
        }
        let mut slots = (0..).map_while(Slot::from_tag);
        let mut locks = Vec::new();
        while !self.active.is_empty()
            && let Some(slot) = slots.next()
        {
            // A read that adopts blocks changes only their tags, in memory.
            if let Some(Active { work: Work::Read | Work::Adopt, lock: Some(lock), .. }) =
                self.active.take(slot)
            {
                locks.push(lock);
            }
        }
        if lost {
            state.passes.fail();
        }
        if self.pass.is_some() {
            state.passes.end(Err(IoError::FlushFailed));
        }
        state.wake_others(&self.waker);
        drop(state);
        locks.into_iter().for_each(|lock| self.locks.release(lock));
    }
}
