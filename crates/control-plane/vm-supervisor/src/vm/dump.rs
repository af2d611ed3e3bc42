//! Dumps the guest of a running VM, and deletes and sends its dumps.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use strongroom_host::dumps;
use strongroom_host::orders::Report;
use strongroom_host::protocol::{
    Dump, OperationId, OwnVolume, PowerState, Problem, Progress, VmReason, VmSpec,
};
use strongroom_types::display_bytes;

use super::activity::Activity;
use super::{Event, Vm, now_and_then};
use crate::door::Connection;
use crate::dump::{Dumping, GivenDump, await_none, give};
use crate::observe;
use crate::own_volume::hold_key;

/// A dump without a waiting request is abandoned after this time: by then a killed hostd has been
/// restarted, and has asked again.
const NOBODY_WAITS: Duration = Duration::from_secs(60);

/// A dump in progress, with the connection that waits for it.
#[derive(Debug)]
pub(super) struct DumpUnderWay {
    operation: OperationId,
    asked_by: Option<(Connection, u64)>,
    nobody_since: Option<Instant>,
    abandoned: Arc<AtomicBool>,
    /// The guest's state before the dump.
    before: (PowerState, Option<VmReason>),
    /// QEMU's reason for a failure.
    qemu_said: Option<String>,
    work: JoinHandle<()>,
}

#[cfg(test)]
impl DumpUnderWay {
    pub(super) fn for_tests(asked_by: Connection, operation: OperationId) -> Self {
        let (nobody_since, qemu_said, before) = (None, None, (PowerState::Running, None));
        let (asked_by, abandoned, work) = (Some((asked_by, 1)), Arc::default(), thread::spawn(|| {}));
        Self { operation, asked_by, nobody_since, abandoned, before, qemu_said, work }
    }
}

/// Returns the VM's dumps.
pub(super) fn found(spec: &VmSpec) -> Vec<Dump> {
    let found = dumps::settle(spec);
    found.inspect_err(|problem| tracing::warn!("VM {}: its dumps: {problem}", spec.name)).unwrap_or_default()
}

impl Vm {
    /// Begins a dump on a thread of its own. The request is answered when the dump has ended.
    pub(super) fn dump(
        &mut self,
        asked_by: &Connection,
        request: u64,
        operation: OperationId,
        label: Option<String>,
    ) -> Result<(), Problem> {
        let asked_by = Some((asked_by.clone(), request));
        if let Some(dump) = self.activity.dump_mut().filter(|dump| dump.operation == operation) {
            // A hostd that was killed has requested it.
            (dump.asked_by, dump.nobody_since) = (asked_by, None);
            return Ok(());
        }
        if self.dumps.iter().any(|dump| dump.operation == operation) {
            self.answer(asked_by, None);
            return Ok(());
        }
        let machine = self.machine()?;
        self.activity.allow_another()?;
        if !matches!(self.standing.power, PowerState::Running | PowerState::Paused) {
            return Err(self.not_running());
        }
        let abandoned = Arc::new(AtomicBool::new(false));
        let dumping = Dumping {
            spec: self.task.spec.clone(),
            keys: Arc::clone(&self.keys),
            machine,
            operation,
            label,
            abandoned: Arc::clone(&abandoned),
        };
        let events = self.events.clone();
        let tidying = self.removals.dumps.take();
        let work = move || {
            // The thread logs its own errors.
            let _ = tidying.map(JoinHandle::join);
            let dumped = dumping.run(now_and_then(|progress| {
                let _ = events.send(Event::DumpProgress(progress));
            }));
            let _ = events.send(Event::Dumped(dumped));
        };
        let work = thread::Builder::new().name("dump".to_owned()).spawn(work);
        let work = work.map_err(Problem::system)?;
        let before = (self.standing.power, self.standing.reason.clone());
        let (nobody_since, qemu_said) = (None, None);
        let dump = DumpUnderWay { operation, asked_by, nobody_since, abandoned, before, qemu_said, work };
        self.activity = Activity::Dump(dump);
        self.standing.becomes(PowerState::Paused, Some(observe::dumping()));
        Ok(())
    }

    pub(super) fn dump_progress(&mut self, progress: Progress) {
        if self
            .activity
            .dump()
            .and_then(|dump| dump.nobody_since)
            .is_some_and(|at| at.elapsed() > NOBODY_WAITS)
        {
            self.abandon_dump();
        }
        self.tell_progress(progress);
    }

    /// Handles a closed connection. A later hostd asks again for a dump that is still wanted.
    pub(super) fn dump_is_nobodys(&mut self, connection: u64) {
        if let Some(dump) = self.activity.dump_mut()
            && dump.asked_by.take_if(|(asked_by, _)| asked_by.id == connection).is_some()
        {
            dump.nobody_since = Some(Instant::now());
        }
    }

    pub(super) fn dump_was_said_to_fail(&mut self, why: Option<String>) {
        if let Some(dump) = self.activity.dump_mut() {
            dump.qemu_said = why;
        }
    }

    /// Abandons the dump and resumes the guest, unless it is too late.
    pub(super) fn abandon_dump(&self) {
        if let Some(dump) = self.activity.dump() {
            dump.abandoned.store(true, Ordering::Relaxed);
        }
    }

    /// Ends a dump, successful or not. The guest is resumed in either case, if it was running.
    pub(super) fn dumped(&mut self, dumped: Result<Dump, Problem>) {
        let Some(dump) = self.activity.end_dump() else { return };
        let DumpUnderWay { asked_by, before, qemu_said, abandoned, work, .. } = dump;
        // The thread has sent its last event.
        let _ = work.join();
        let spec = self.task.spec.clone();
        let published = dumped.and_then(|dump| {
            let (number, bytes) = (dump.number, display_bytes(dump.sealed_bytes));
            dumps::publish(&spec, dump).map(|dumps| (number, bytes, dumps))
        });
        let problem = match published {
            Ok((number, bytes, dumps)) => {
                tracing::info!("VM {}: dump {number} of its guest is sealed ({bytes})", spec.name);
                self.dumps = dumps;
                None
            }
            Err(problem) => {
                let said = qemu_said.filter(|_| problem.code == "qemu" && !abandoned.load(Ordering::Relaxed));
                let message = match said {
                    Some(said) => format!("{}: {said}", problem.message),
                    None => problem.message,
                };
                let problem = Problem { message, ..problem };
                tracing::warn!("VM {}: its guest is not dumped: {problem}", spec.name);
                // Removes the dump that could not be published.
                self.tidy_dumps();
                Some(problem)
            }
        };
        let (power, reason) = before;
        self.go_on_after_saving(power, reason);
        self.tell();
        self.answer(asked_by, problem);
    }

    pub(super) fn go_on_after_saving(&mut self, power: PowerState, reason: Option<VmReason>) {
        if self.stop.is_some() {
            // A stop was requested meanwhile.
            return self.ask_guest_to_end(false);
        }
        if power == PowerState::Paused && self.halted.reason().is_none() && !is_halted_by_us(reason.as_ref())
        {
            // It was paused for a reason of its own.
            return self.standing.becomes(power, reason);
        }
        if let Err(problem) = self.halt_or_go_on() {
            tracing::error!("VM {}: {problem}", self.task.spec.name);
        }
    }

    /// A supervisor that died may have been dumping. Its QEMU soon gives up, and can only then
    /// resume.
    pub(super) fn await_dump_of_predecessor(&self) {
        if self.task.adopt.is_none() {
            return;
        }
        let Some(machine) = &self.machine else { return };
        if let Err(problem) = await_none(machine.qemu().monitor()) {
            tracing::warn!("VM {}: {problem}", self.task.spec.name);
        }
    }

    /// Removes unfinished dumps, which may be large, without waiting for the end.
    pub(super) fn tidy_dumps(&mut self) {
        let spec = self.task.spec.clone();
        let work = move || {
            if let Err(problem) = dumps::remove_unfinished(&spec) {
                tracing::warn!("VM {}: what is left of a dump: {problem}", spec.name);
            }
        };
        match thread::Builder::new().name("dumps".to_owned()).spawn(work) {
            Ok(tidying) => self.removals.dumps = Some(tidying),
            Err(error) => tracing::warn!("VM {}: what is left of a dump: {error}", self.task.spec.name),
        }
    }

    /// Begins to delete a dump on a thread of its own. The request is answered when the dump is
    /// gone.
    pub(super) fn delete_dump(
        &self,
        asked_by: &Connection,
        request: u64,
        number: u32,
    ) -> Result<(), Problem> {
        self.activity.allow_use_of_guest()?;
        let (spec, events) = (self.task.spec.clone(), self.events.clone());
        let asked_by = (asked_by.clone(), request);
        let work = move || {
            let gone = dumps::delete_content(&spec, number);
            let _ = events.send(Event::DumpGone { number, gone, asked_by });
        };
        let begun = thread::Builder::new().name("delete dump".to_owned()).spawn(work);
        begun.map(drop).map_err(Problem::system)
    }

    pub(super) fn dump_is_gone(
        &mut self,
        number: u32,
        gone: Result<(), Problem>,
        asked_by: (Connection, u64),
    ) {
        let forgotten = gone.and_then(|()| dumps::forget(&self.task.spec, number));
        let problem = forgotten.map(|dumps| self.dumps = dumps).err();
        self.tell();
        self.answer(Some(asked_by), problem);
    }

    /// Sends a dump to a client on a thread of its own, since that takes a while.
    pub(super) fn open_dump(&self, number: u32, client: OwnedFd) -> Result<(), Problem> {
        let (spec, keys) = (self.task.spec.clone(), Arc::clone(&self.keys));
        let work = move || {
            let kek = hold_key(&keys, &spec, OwnVolume::Dump(number)).map_err(|error| error.problem());
            let opened = kek.and_then(|kek| GivenDump::open(&spec, number, kek.as_deref()));
            give(UnixStream::from(client), opened);
        };
        let begun = thread::Builder::new().name("open dump".to_owned()).spawn(work);
        begun.map(drop).map_err(Problem::system)
    }

    /// Abandons a dump in progress before the process ends, and answers its request.
    pub(super) fn end_dump(&mut self) {
        self.abandon_dump();
        if let Some(dump) = self.activity.end_dump() {
            let _ = dump.work.join();
            let problem = Problem::new("stopping", "the VM has ended, and what was dumped of it is gone");
            self.answer(dump.asked_by, Some(problem));
        }
    }

    fn answer(&self, asked_by: Option<(Connection, u64)>, problem: Option<Problem>) {
        let Some((connection, id)) = asked_by else { return };
        connection.send(&Report::answer(id, problem));
    }
}

/// Whether this supervisor has paused it, rather than QEMU or the guest.
fn is_halted_by_us(reason: Option<&VmReason>) -> bool {
    reason.is_some_and(|reason| ["no_space", "paused_by_request"].contains(&reason.code.as_str()))
}
