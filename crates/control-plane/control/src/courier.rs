//! The control plane's interface to those who carry messages about alarms out of the site.

use strongroom_api::recipient::{Destination, Message};
use uuid::Uuid;

/// Why a message did not arrive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Undelivered(pub String);

/// Carries messages. Calls block, with a timeout of their own.
pub trait Courier: Send + Sync {
    /// Whether messages can be sent there at all: a relay for mail is set up, certificates can be
    /// read. Does not connect.
    ///
    /// # Errors
    /// [`Undelivered`], with what is wrong.
    fn check(&self, to: &Destination) -> Result<(), Undelivered>;

    /// Sends a message to the recipient with this id. When it returns, the other side has
    /// taken the message.
    ///
    /// # Errors
    /// [`Undelivered`]. The message may have arrived all the same.
    fn deliver(&self, recipient: Uuid, to: &Destination, message: &Message) -> Result<(), Undelivered>;

    /// The secret with which a recipient verifies messages to its webhook, in the form of Standard
    /// Webhooks.
    fn secret(&self, recipient: Uuid) -> String;
}
