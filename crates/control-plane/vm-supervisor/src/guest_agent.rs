//! Has the agent in the guest freeze the guest's file systems, and thaw them.
//!
//! ```text
//! find -> freeze, from here on a thaw is owed -> the volumes' snapshot -> thaw, confirmed -> nothing is owed
//! ```
//!
//! A guest whose file systems are frozen waits with every write. So a thaw that is owed stays owed
//! until the agent has confirmed it, whatever became of the freeze: its answer may be late. It is
//! asked for in the same conversation, then by [`GuestAgent::thaw_owed`] again and again, and by
//! the supervisor that takes over from this one.
//!
//! What a guest says is believed only about its own data. The process that reads it is another one:
//! [`strongroom_hypervisor::guest_agent`].

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use strongroom_host::protocol::{Problem, QuiesceWithin, VmName};
use strongroom_hypervisor::{AgentError, Conversation};

use crate::starter::Starter;

/// How long a guest may take to thaw: no time, unless it is still freezing.
const THAWS_WITHIN: Duration = Duration::from_secs(10);

/// The agent in a VM's guest.
#[derive(Debug)]
pub struct GuestAgent {
    vm: VmName,
    starter: Starter,
    /// Held during a conversation: QEMU's channel has one client at a time.
    conversing: Mutex<()>,
    /// The conversation for a snapshot that is being made.
    present: Mutex<Weak<Conversation>>,
    /// Whether the guest's file systems may be frozen.
    owes_thaw: AtomicBool,
}

/// A guest whose file systems are frozen. They are thawed when this value is dropped, at the
/// latest.
pub struct Frozen<'agent> {
    agent: &'agent GuestAgent,
    conversation: Arc<Conversation>,
    _conversing: MutexGuard<'agent, ()>,
    file_systems: u64,
    since: Instant,
    thawed: bool,
}

impl GuestAgent {
    /// The agent of this VM. `owes_thaw` tells whether a former supervisor may have frozen its
    /// guest.
    pub fn new(vm: VmName, starter: Starter, owes_thaw: bool) -> Self {
        let (conversing, present) = (Mutex::default(), Mutex::default());
        Self { vm, starter, conversing, present, owes_thaw: AtomicBool::new(owes_thaw) }
    }

    /// Whether the guest's file systems may be frozen, though no snapshot is being made.
    pub fn owes_thaw(&self) -> bool {
        self.owes_thaw.load(Ordering::Relaxed)
    }

    /// The guest boots again, and nothing of it is frozen.
    pub fn guest_was_reset(&self) {
        self.owes_thaw.store(false, Ordering::Relaxed);
    }

    /// Ends the conversation for a snapshot, if there is one. If the guest was frozen for it, a
    /// thaw is owed.
    pub fn hang_up(&self) {
        if let Some(conversation) = self.present.lock().upgrade() {
            conversation.end();
        }
    }

    /// Freezes the guest's file systems. Waits at most a little longer than `within`. The end of
    /// QEMU ends the wait, and [`hang_up`](Self::hang_up) does after `abandoned` was set.
    ///
    /// # Errors
    /// If the guest has no agent, or it does not do so in time. Nothing is frozen then, or a thaw
    /// is owed.
    pub fn freeze(&self, within: QuiesceWithin, abandoned: &AtomicBool) -> Result<Frozen<'_>, Problem> {
        let deadline = Instant::now() + within.duration();
        let left = || deadline.saturating_duration_since(Instant::now());
        let conversing = self.conversing.lock();
        let conversation = Arc::new(self.converse()?);
        *self.present.lock() = Arc::downgrade(&conversation);
        if abandoned.load(Ordering::Relaxed) {
            return Err(Problem::new("abandoned", "it was abandoned"));
        }
        if self.owes_thaw() {
            self.thaw_in(&conversation).map_err(|error| self.still_frozen(&error))?;
        }
        conversation.find(left()).map_err(|error| self.unfit(&error))?;
        let since = Instant::now();
        self.owes_thaw.store(true, Ordering::Relaxed);
        let answer = conversation.freeze(left());
        let file_systems = *answer.as_ref().unwrap_or(&0);
        let frozen =
            Frozen { agent: self, conversation, _conversing: conversing, file_systems, since, thawed: false };
        // From here on, an error drops it, and so thaws what may be frozen.
        match answer {
            Ok(0) => {
                let message = format!("the guest of VM {} has no file system that can be frozen", self.vm);
                Err(refusal(message).with_next_step("leave out --quiesce"))
            }
            Ok(_) => Ok(frozen),
            Err(error) => Err(self.not_frozen(within, &error)),
        }
    }

    /// Thaws the guest's file systems, if that is owed.
    ///
    /// # Errors
    /// If the agent does not confirm it. It stays owed.
    pub fn thaw_owed(&self) -> Result<(), Problem> {
        let _conversing = self.conversing.lock();
        if !self.owes_thaw() {
            return Ok(());
        }
        let thawed = self.thaw_in(&self.converse()?).map_err(|error| self.still_frozen(&error))?;
        tracing::info!("VM {}: {thawed} file systems of its guest were thawed", self.vm);
        Ok(())
    }

    fn converse(&self) -> Result<Conversation, Problem> {
        let process = self.starter.start_agent_monitor()?;
        Conversation::begin(process).map_err(|error| self.unfit(&error))
    }

    fn thaw_in(&self, conversation: &Conversation) -> Result<u64, AgentError> {
        let thawed = conversation.thaw(THAWS_WITHIN)?;
        self.owes_thaw.store(false, Ordering::Relaxed);
        Ok(thawed)
    }

    fn unfit(&self, error: &AgentError) -> Problem {
        refusal(format!("the guest agent of VM {} cannot be used: {error}", self.vm))
            .with_next_step("install qemu-guest-agent in the guest and start it, or leave out --quiesce")
    }

    fn not_frozen(&self, within: QuiesceWithin, error: &AgentError) -> Problem {
        let message = match error {
            AgentError::Silent => format!(
                "the guest of VM {} has not frozen its file systems within {} s",
                self.vm,
                within.duration().as_secs()
            ),
            error => format!("the guest of VM {} does not freeze its file systems: {error}", self.vm),
        };
        refusal(message).with_next_step("give it more time (--quiesce-within), or leave out --quiesce")
    }

    fn still_frozen(&self, error: &AgentError) -> Problem {
        let message = format!("the file systems of the guest of VM {} may be frozen: {error}", self.vm);
        refusal(message).with_next_step("thaw them in the guest (`fsfreeze --unfreeze`), or reset the VM")
    }
}

impl Frozen<'_> {
    /// Thaws the file systems. Returns for how long they were frozen.
    ///
    /// # Errors
    /// If not all of them were frozen until now, or the agent does not confirm that they are
    /// thawed.
    pub fn thaw(mut self) -> Result<Duration, Problem> {
        let thawed = self.thaw_now()?;
        if thawed < self.file_systems {
            let message = format!(
                "the guest of VM {} had thawed its file systems before the snapshot was made: {thawed} of {} were frozen",
                self.agent.vm, self.file_systems
            );
            return Err(Problem::new("not_quiesced", message).with_next_step("make it again"));
        }
        Ok(self.since.elapsed())
    }

    fn thaw_now(&mut self) -> Result<u64, Problem> {
        self.thawed = true;
        self.agent.thaw_in(&self.conversation).map_err(|error| self.agent.still_frozen(&error))
    }
}

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        if !self.thawed
            && let Err(problem) = self.thaw_now()
        {
            tracing::error!("{problem}");
        }
    }
}

fn refusal(message: String) -> Problem {
    Problem::new("guest_agent", message)
}
