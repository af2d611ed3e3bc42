//! Conversations with the guest agent (qemu-ga), which freezes and thaws the guest's file systems.
//!
//! The agent's words are JSON that the guest itself sends, so the process that holds a VM's keys
//! never reads them. For each conversation there is a process of the kind of a
//! [monitor](crate::monitor), as confined, with the guest's channel in place of QMP. It is not the
//! monitor of QEMU: that one answers requests one after the other, and a guest can be silent for
//! minutes.
//!
//! ```text
//! supervisor                     agent monitor                         QEMU, guest
//!   find, freeze, thaw   -->       0xFF, sync with a number, command  -->
//!                                  anything, 0xFF, the number         <--
//!   packets of fixed form <--      the command's answer               <--
//! ```
//!
//! - [`Conversation`]: the supervisor's side. [`process`]: the process.
//! - [`channel`]: the protocol (QEMU `qga/qapi-schema.json`), bounded in bytes and time.
//!
//! A guest can lie. What it says decides only about its own data: whether its file systems were
//! frozen while a snapshot of them was made.

mod channel;
pub(crate) mod process;

use std::os::fd::OwnedFd;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::monitor::connection::{Connection, Hello};
use crate::monitor::request::Question;
use crate::monitor::said::Answer;
use crate::qmp::QmpError;

/// How much longer the supervisor waits than the process, so that it can report a silent guest.
const MARGIN: Duration = Duration::from_secs(5);

/// The requests to the process. Each has its own timeout, since it depends on the guest.
#[derive(Debug, Serialize, Deserialize)]
enum AgentRequest {
    Find { within: Duration },
    Freeze { within: Duration },
    Thaw { within: Duration },
}

impl Question for AgentRequest {
    fn command(&self) -> &'static str {
        match self {
            Self::Find { .. } => channel::INFO,
            Self::Freeze { .. } => channel::FREEZE,
            Self::Thaw { .. } => channel::THAW,
        }
    }
}

/// Why the guest agent did not do what it was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AgentError {
    /// It does not answer.
    #[error("it does not answer")]
    Silent,
    /// It refused a command.
    #[error("it refuses {command}: {reason}")]
    Refused {
        /// The command.
        command: String,
        /// Its reason.
        reason: String,
    },
    /// Its answer does not have the command's form.
    #[error("its answer to {command} cannot be used: {reason}")]
    Unusable {
        /// The command.
        command: String,
        /// The error in the answer.
        reason: String,
    },
    /// The connection has ended: that of QEMU to the guest, or the process.
    #[error("the connection to it has ended: {0}")]
    Over(String),
}

impl From<QmpError> for AgentError {
    fn from(error: QmpError) -> Self {
        match error {
            QmpError::Refused { command, refusal } => Self::Refused { command, reason: refusal.desc },
            QmpError::Answer { command, reason } => Self::Unusable { command, reason },
            QmpError::Silent { .. } => Self::Silent,
            QmpError::Over(reason) | QmpError::Connect { reason, .. } => Self::Over(reason),
            QmpError::NoPort => Self::Over(error.to_string()),
        }
    }
}

/// The supervisor's connection to the process of a conversation, which ends with this value.
#[derive(Debug)]
pub struct Conversation(Connection);

impl Conversation {
    /// Begins a conversation through the process at the other end.
    ///
    /// # Errors
    /// If the thread that listens to it cannot be started.
    pub fn begin(socket: OwnedFd) -> Result<Self, AgentError> {
        Ok(Self(Connection::open(socket, Hello::None)?))
    }

    /// Looks for an agent that freezes file systems. Changes nothing in the guest.
    ///
    /// # Errors
    /// If there is none, or it does not answer within that time.
    pub fn find(&self, within: Duration) -> Result<(), AgentError> {
        self.ask(AgentRequest::Find { within }, within, |answer| (answer == Answer::Done).then_some(()))
    }

    /// Freezes the guest's file systems, which writes their data to the disks first. Returns their
    /// number. After an error, the guest may freeze them all the same, now or later:
    /// [`thaw`](Self::thaw) them.
    ///
    /// # Errors
    /// If the agent refuses, or has not answered within that time.
    pub fn freeze(&self, within: Duration) -> Result<u64, AgentError> {
        self.ask(AgentRequest::Freeze { within }, within, count)
    }

    /// Thaws the guest's file systems. Returns the number of those that were frozen until now. The
    /// guest gets the request even if its answer comes later.
    ///
    /// # Errors
    /// If the agent refuses, or has not answered within that time.
    pub fn thaw(&self, within: Duration) -> Result<u64, AgentError> {
        self.ask(AgentRequest::Thaw { within }, within, count)
    }

    /// Ends the conversation. What waits for an answer gets an error.
    pub fn end(&self) {
        let _ = self.0.give_up("it was ended");
    }

    fn ask<T>(
        &self,
        request: AgentRequest,
        within: Duration,
        expected: impl FnOnce(Answer) -> Option<T>,
    ) -> Result<T, AgentError> {
        let answer = self.0.ask(request, &[], within.saturating_add(MARGIN))?;
        let other = || self.0.give_up("its monitor answers another question");
        Ok(expected(answer).ok_or_else(other)?)
    }
}

fn count(answer: Answer) -> Option<u64> {
    match answer {
        Answer::Count(count) => Some(count),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
