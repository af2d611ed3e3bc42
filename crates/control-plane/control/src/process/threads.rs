//! The threads that do what the inventory wants. All of them block: for the store's device, for
//! hosts, for key providers.

use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::engine::{Control, Next};
use crate::inventory::Failure;

/// Tasks that are worked on at once. A step is short: waiting is the schedule's, and hosts have
/// queues of their own.
const WORKERS: usize = 16;
/// Steps of a task before another one has its turn.
const STEPS_MAX: usize = 32;
/// How long a host's changes are waited for. An end of the process waits no longer than this.
const CHANGES_WAIT: Duration = Duration::from_secs(2);
/// The pause before a host that does not answer is asked again, and a task after the store has
/// failed.
const TROUBLE_PAUSE: Duration = Duration::from_secs(1);
/// How often alarms are reviewed.
const REVIEW_PAUSE: Duration = Duration::from_secs(5);
/// How often hosts are asked what guests asked of their disks: as old may a metric be, or an alarm
/// late.
const SAMPLE_PAUSE: Duration = Duration::from_secs(10);
/// How often key providers are asked how they are, and old history is taken away.
const PROVIDERS_PAUSE: Duration = Duration::from_secs(30);

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
    /// Waits for the end, for this long. True if it has come.
    fn within(&self, wait: Duration) -> bool {
        let mut told = self.told.lock();
        self.changed.wait_while_for(&mut told, |told| !*told, wait);
        *told
    }
}

impl Threads {
    /// Starts them.
    pub fn start(control: &Arc<Control>) -> io::Result<Self> {
        let mut threads = Self { end: Arc::default(), handles: Vec::new(), control: Arc::clone(control) };
        for number in 0..WORKERS {
            threads.spawn(format!("task-{number}"), |control, _| work(control))?;
        }
        for host in control.hosts() {
            threads.spawn(format!("host-{host}"), move |control, end| watch(control, host, end))?;
        }
        threads.spawn("review".to_owned(), review)?;
        threads.spawn("sample".to_owned(), sample)?;
        Ok(threads)
    }

    fn spawn(&mut self, name: String, body: impl FnOnce(&Control, &End) + Send + 'static) -> io::Result<()> {
        let (control, end) = (Arc::clone(&self.control), Arc::clone(&self.end));
        let handle = thread::Builder::new().name(name).spawn(move || body(&control, &end))?;
        self.handles.push(handle);
        Ok(())
    }

    /// Ends them and waits for it.
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

/// Hears what a host says.
fn watch(control: &Control, host: Uuid, end: &End) {
    while !end.within(Duration::ZERO) {
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

/// Asks what guests asked of their disks.
fn sample(control: &Control, end: &End) {
    while !end.within(SAMPLE_PAUSE) {
        control.sample();
    }
}

/// Looks after alarms, key providers and history.
fn review(control: &Control, end: &End) {
    let mut asked: Option<Instant> = None;
    loop {
        if asked.is_none_or(|asked| asked.elapsed() >= PROVIDERS_PAUSE) {
            control.ask_providers();
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
