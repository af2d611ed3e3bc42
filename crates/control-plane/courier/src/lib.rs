//! Carries messages about alarms out of the site.
//!
//! - `webhook`: JSON in a signed POST, as [Standard Webhooks] describes it.
//! - `mail`: text, through a relay that the control plane's machine is set up with.
//!
//! A message names objects and says what troubles them. It has no key, no token and nothing of
//! guests. What the other side answers is not read, except the status.
//!
//! [Standard Webhooks]: https://www.standardwebhooks.com
#![forbid(unsafe_code)]

mod mail;
mod relay;
mod webhook;

use std::io;
use std::path::{Path, PathBuf};

use strongroom_api::recipient::{Destination, Message};
use strongroom_control::courier::{Courier, Undelivered};
use uuid::Uuid;

pub use relay::{MailRelay, RelayAddress, RelayError};
use webhook::SigningKey;

/// The key of all webhooks' secrets, in the control plane's home.
const KEY: &str = "webhook.key";

/// Carries messages.
pub struct Couriers {
    key: SigningKey,
    relay: PathBuf,
}

impl Couriers {
    /// The couriers of the control plane with this home, which exists. Makes their key if there is
    /// none.
    ///
    /// # Errors
    /// Those of the file system; [`io::ErrorKind::InvalidData`] for a key that is damaged.
    pub fn open(control: &Path) -> io::Result<Self> {
        Ok(Self { key: SigningKey::open(&control.join(KEY))?, relay: MailRelay::file(control) })
    }
}

impl Courier for Couriers {
    fn check(&self, to: &Destination) -> Result<(), Undelivered> {
        match to {
            Destination::Webhook { authorities, .. } => webhook::client(authorities.as_ref()).map(drop),
            Destination::Mail { .. } => mail::transport(&self.relay).map(drop),
        }
    }

    fn deliver(&self, recipient: Uuid, to: &Destination, message: &Message) -> Result<(), Undelivered> {
        match to {
            Destination::Webhook { url, authorities } => {
                webhook::post(&self.key, recipient, url, authorities.as_ref(), message)
            }
            Destination::Mail { address } => mail::send(&self.relay, address, message),
        }
    }

    fn secret(&self, recipient: Uuid) -> String {
        self.key.secret_of(recipient).shown()
    }
}
