//! What the control plane hands over: a connection whose request it has admitted, with what the
//! relay needs for the rest of it.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustls::{ConnectionTrafficSecrets, ExtractedSecrets};
use serde::{Deserialize, Serialize};
use strongroom_api::vm::Ticket;
use strongroom_host::wire::{Wire, WireError};
use strongroom_memory::secret::SecretBytes;
use thiserror::Error;
use zeroize::Zeroizing;

use crate::tls_stream::{Direction, IV_BYTES, KEY_BYTES};

/// A connection of a browser, which has asked for a WebSocket and was answered with 101.
#[derive(Serialize, Deserialize)]
pub struct Handover {
    /// The keys of what the browser sends.
    receiving: TrafficKeys,
    /// The keys of what it is sent.
    sending: TrafficKeys,
    /// The ticket for the guest.
    ticket: Ticket,
}

/// The files beside it.
#[derive(Clone, Copy, Debug)]
pub struct HandedFiles<'a> {
    /// The connection's socket.
    pub browser: BorrowedFd<'a>,
    /// Its leash: the connection ends with the other end of this socket.
    pub leash: BorrowedFd<'a>,
    /// A socket that is connected to the VM's host, if that takes clients of this machine alone.
    pub host: Option<BorrowedFd<'a>>,
}

/// The keys of one direction of a TLS connection.
#[derive(Serialize, Deserialize)]
struct TrafficKeys {
    key: Zeroizing<[u8; KEY_BYTES]>,
    iv: [u8; IV_BYTES],
    next: u64,
}

/// A connection that cannot be handed over.
#[derive(Debug, Error)]
#[error("the connection is not encrypted with AES-256-GCM of TLS 1.3")]
pub struct OtherCipher;

impl Handover {
    /// The rest of a TLS 1.3 connection of a server.
    ///
    /// # Errors
    /// If it has another cipher.
    pub fn new(secrets: ExtractedSecrets, ticket: Ticket) -> Result<Self, OtherCipher> {
        let ExtractedSecrets { tx, rx } = secrets;
        let (receiving, sending) = (TrafficKeys::of(rx.0, rx.1)?, TrafficKeys::of(tx.0, tx.1)?);
        Ok(Self { receiving, sending, ticket })
    }

    /// Sends it to a relay.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn send(&self, wire: &Wire, files: HandedFiles<'_>) -> Result<(), WireError> {
        let HandedFiles { browser, leash, host } = files;
        let files: Vec<_> = [browser, leash].into_iter().chain(host).collect();
        wire.send(self, &files)
    }

    /// The ticket for the guest.
    pub fn ticket(&self) -> &Ticket {
        &self.ticket
    }

    /// The keys of what the browser sends, and of what it is sent.
    pub(crate) fn directions(&self) -> Option<(Direction, Direction)> {
        Some((self.receiving.direction()?, self.sending.direction()?))
    }
}

impl TrafficKeys {
    fn of(next: u64, secrets: ConnectionTrafficSecrets) -> Result<Self, OtherCipher> {
        let ConnectionTrafficSecrets::Aes256Gcm { key, iv } = secrets else { return Err(OtherCipher) };
        let key = key.as_ref().try_into().map_err(|_| OtherCipher)?;
        let iv = iv.as_ref().try_into().map_err(|_| OtherCipher)?;
        Ok(Self { key: Zeroizing::new(key), iv, next })
    }

    fn direction(&self) -> Option<Direction> {
        let key = SecretBytes::from_slice_and_wipe(&mut *self.key.clone()).ok()?;
        Some(Direction { key, iv: self.iv, next: self.next })
    }
}

/// What has been handed over, with its files.
pub(crate) struct Received {
    pub handover: Handover,
    pub browser: OwnedFd,
    pub leash: OwnedFd,
    pub host: Option<OwnedFd>,
}

impl Received {
    /// What [`Handover::send`] has sent; `None` if files are missing.
    pub fn new(handover: Handover, files: Vec<OwnedFd>) -> Option<Self> {
        let mut files = files.into_iter();
        Some(Self { handover, browser: files.next()?, leash: files.next()?, host: files.next() })
    }
}
