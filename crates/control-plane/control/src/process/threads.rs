//! The threads of the control plane. All of them block: on the store's device, on hosts, or on key
//! providers.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle, ScopedJoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::engine::{Control, Next};
use crate::inventory::Failure;

/// The number of tasks in progress. A step is short: the schedule does the waiting, and hosts have
/// queues of their own.
const WORKERS: usize = 16;
/// The most steps of a task before another one gets its turn.
const STEPS_MAX: usize = 32;
/// How long a request for a host's changes waits.
const CHANGES_WAIT: Duration = Duration::from_secs(2);
/// The pause after an error of a host, or of the store in a task.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// The interval between looks for hosts that have joined.
const HOSTS_PAUSE: Duration = Duration::from_secs(1);
/// The interval between reviews of alarms.
const REVIEW_PAUSE: Duration = Duration::from_secs(5);
/// The interval between samples of disk counters. A metric can be this old, and an alarm this late.
const SAMPLE_PAUSE: Duration = Duration::from_secs(10);
/// The interval between looks whether a backup of the inventory is due.
const BACKUPS_PAUSE: Duration = Duration::from_secs(2);
/// The interval between looks for messages to recipients.
const MESSAGES_PAUSE: Duration = Duration::from_secs(2);
/// The interval between queries of key providers, between removals of old history, and between
/// looks whether a datastore's capacity has to be written down.
const PROVIDERS_PAUSE: Duration = Duration::from_secs(30);

/// The interval between looks at the queue of scheduled snapshots.
const SNAPSHOTS_PAUSE: Duration = Duration::from_secs(1);
/// The most tasks that the schedules begin in that time, so that the VMs of a site do not all begin
/// at once after the control plane was off.
const SNAPSHOTS_AT_A_TIME: usize = 16;

/// The interval between readings of volumes' space. One reads as many as fit into a request, the
/// oldest first: 1,024 volumes in 16 s.
const SPACES_PAUSE: Duration = Duration::from_secs(1);

/// The interval between verifications of the whole access log; the first one is at the start.
const VERIFY_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);
/// The interval between looks whether the head of the access log has to go to the audit log.
const ANCHOR_PAUSE: Duration = Duration::from_secs(10 * 60);

/// The threads of a control plane.
pub(super) struct Threads {
    end: Arc<End>,
    handles: Vec<JoinHandle<()>>,
    control: Arc<Control>,
}

#[derive(Default)]
struct End {
    told: Mutex<bool>,
    changed: Condvar,
}

impl End {
    /// Waits for the end for this long. Returns whether it has come.
    fn within(&self, wait: Duration) -> bool {
        let mut told = self.told.lock();
        self.changed.wait_while_for(&mut told, |told| !*told, wait);
        *told
    }
}

impl Threads {
    /// Starts the threads.
    pub fn start(control: &Arc<Control>) -> io::Result<Self> {
        let mut threads = Self { end: Arc::default(), handles: Vec::new(), control: Arc::clone(control) };
        for number in 0..WORKERS {
            threads.spawn(format!("task-{number}"), |control, _| work(control))?;
        }
        threads.spawn("hosts".to_owned(), watch_hosts)?;
        threads.spawn("review".to_owned(), review)?;
        threads.spawn("recipients".to_owned(), send_messages)?;
        threads.spawn("backups".to_owned(), make_backups)?;
        threads.spawn("sample".to_owned(), sample)?;
        threads.spawn("spaces".to_owned(), read_spaces)?;
        threads.spawn("snapshots".to_owned(), make_snapshots)?;
        threads.spawn("access-log".to_owned(), guard_access_log)?;
        Ok(threads)
    }

    fn spawn(&mut self, name: String, body: impl FnOnce(&Control, &End) + Send + 'static) -> io::Result<()> {
        let (control, end) = (Arc::clone(&self.control), Arc::clone(&self.end));
        let handle = thread::Builder::new().name(name).spawn(move || body(&control, &end))?;
        self.handles.push(handle);
        Ok(())
    }

    /// Ends the threads, and waits for them.
    pub fn end(mut self) {
        self.tell();
        for handle in std::mem::take(&mut self.handles) {
            if handle.join().is_err() {
                tracing::error!("a thread of the control plane has panicked");
            }
        }
    }

    fn tell(&self) {
        *self.end.told.lock() = true;
        self.end.changed.notify_all();
        self.control.schedule.end();
        self.control.end_changes();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.tell();
    }
}

/// Works on tasks that are due.
fn work(control: &Control) {
    while let Some(task) = control.schedule.take() {
        match advance(control, task) {
            Next::Over => control.schedule.forget(task),
            Next::Again => control.schedule.release(task, Duration::ZERO),
            Next::Wait(pause) => control.schedule.release(task, pause),
        }
    }
}

fn advance(control: &Control, task: Uuid) -> Next {
    for _ in 0..STEPS_MAX {
        match control.advance(task) {
            Ok(Next::Again) | Err(Failure::Raced) => {}
            Ok(next) => return next,
            Err(failure) => {
                tracing::error!(%task, %failure, "a task cannot go on");
                return Next::Wait(TROUBLE_PAUSE);
            }
        }
    }
    Next::Again
}

/// Follows the changes of all hosts, also of those that join.
fn watch_hosts(control: &Control, end: &End) {
    thread::scope(|scope| {
        let mut watched: BTreeMap<Uuid, ScopedJoinHandle<'_, ()>> = BTreeMap::new();
        loop {
            watched.retain(|_, watch| !watch.is_finished());
            for host in control.hosts() {
                if watched.contains_key(&host) {
                    continue;
                }
                let named = thread::Builder::new().name(format!("host-{host}"));
                match named.spawn_scoped(scope, move || watch(control, host, end)) {
                    Ok(watch) => drop(watched.insert(host, watch)),
                    Err(error) => tracing::error!(%host, %error, "no thread to follow a host; trying again"),
                }
            }
            if end.within(HOSTS_PAUSE) {
                return;
            }
        }
    });
}

/// Follows a host's changes until it is removed.
fn watch(control: &Control, host: Uuid, end: &End) {
    while !end.within(Duration::ZERO) && control.has_host(host) {
        let heard = control.observe(host, CHANGES_WAIT).and_then(|up| {
            control.settle()?;
            Ok(up)
        });
        let pause = match heard {
            Ok(true) => continue,
            Ok(false) => TROUBLE_PAUSE,
            Err(failure) => {
                tracing::error!(%failure, "what a host says cannot be written down");
                TROUBLE_PAUSE
            }
        };
        if end.within(pause) {
            return;
        }
    }
}

/// Samples disk counters.
fn sample(control: &Control, end: &End) {
    while !end.within(SAMPLE_PAUSE) {
        control.sample();
    }
}

/// Makes backups of the inventory that are due.
fn make_backups(control: &Control, end: &End) {
    while !end.within(BACKUPS_PAUSE) {
        control.make_due_backup();
    }
}

/// Sends recipients the messages that are due.
fn send_messages(control: &Control, end: &End) {
    thread::scope(|scope| {
        while !end.within(MESSAGES_PAUSE) {
            control.deliver(scope);
        }
    });
}

/// Reads what volumes take.
fn read_spaces(control: &Control, end: &End) {
    while !end.within(SPACES_PAUSE) {
        control.read_spaces();
    }
}

/// Begins scheduled snapshots that are due.
fn make_snapshots(control: &Control, end: &End) {
    while !end.within(SNAPSHOTS_PAUSE) {
        control.make_due_snapshots(SNAPSHOTS_AT_A_TIME);
    }
}

/// Verifies the access log, and puts its head on the audit log.
fn guard_access_log(control: &Control, end: &End) {
    let mut verified: Option<Instant> = None;
    loop {
        if verified.is_none_or(|verified| verified.elapsed() >= VERIFY_PAUSE) {
            if let Err(failure) = control.look_at_access_log(&[]) {
                tracing::error!(%failure, "the access log cannot be verified");
            }
            verified = Some(Instant::now());
        }
        if end.within(ANCHOR_PAUSE) {
            return;
        }
        if let Err(failure) = control.anchor_access_log() {
            tracing::warn!(%failure, "the head of the access log cannot be noted");
        }
    }
}

/// Reviews alarms and key providers, writes down datastores' capacity, and prunes history.
fn review(control: &Control, end: &End) {
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= PROVIDERS_PAUSE) {
            control.ask_providers();
            if let Err(failure) = control.note_capacity() {
                tracing::warn!(%failure, "the capacity of datastores was not written down");
            }
            if let Err(failure) = control.inventory.prune(control.now_unix_ms()) {
                tracing::warn!(%failure, "old history cannot be taken away");
            }
            asked = Some(Instant::now());
        }
        if let Err(failure) = control.review() {
            tracing::error!(%failure, "alarms cannot be written down");
        }
        if end.within(REVIEW_PAUSE) {
            return;
        }
    }
}
