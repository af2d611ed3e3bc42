//! Transmission on one connection: requests in, transfers, replies out.
//!
//! It uses no sockets: it takes requests from an [`Inbox`] and puts replies into an [`Outbox`]. Its
//! memory is bounded: a request is taken from the inbox only while fewer than
//! [`REQUESTS_IN_FLIGHT_MAX`] are in the disk or wait to be sent, and only if there is memory for
//! it. Otherwise it stays, the inbox fills, and the socket is not read.

use std::io::IoSliceMut;

use strongroom_io::Slot;
use strongroom_memory::Buffer;
use strongroom_ring::ENDS_POLLED_MAX;
use strongroom_types::Extent;
use thiserror::Error;

use super::handshake::Agreement;
use super::inbox::Inbox;
use super::outbox::Outbox;
use super::protocol::REQUESTS_IN_FLIGHT_MAX;
use super::reply::ErrorNumber;
use super::request::{Command, Refusal, RequestHeader};
use super::transfers::Transfers;

/// A client that violates the protocol. Nothing that it sends afterwards can be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the client sent something that is no request")]
pub struct NotARequest;

/// The state of a connection's transmission.
pub struct Session {
    agreement: Agreement,
    transfers: Transfers,
    receiving: Receiving,
    disconnecting: bool,
    shutting_down: bool,
}

/// The kind of the next bytes in the inbox.
enum Receiving {
    Request,
    /// Content of a write: `piece` is being filled, `rest` comes after it.
    Content {
        slot: Slot,
        piece: Option<Piece>,
        rest: Extent,
        bytes: u64,
    },
    /// Content of a refused write, if there is any.
    Refused {
        left: u32,
        cookie: u64,
        refusal: Refusal,
    },
}

struct Piece {
    extent: Extent,
    content: Buffer,
    filled: usize,
}

impl Piece {
    fn unfilled(&mut self) -> &mut [u8] {
        &mut self.content.bytes_mut()[self.filled..]
    }
}

const SHUTTING_DOWN: Refusal =
    Refusal { error: ErrorNumber::Shutdown, reason: "this server is shutting down" };

impl Session {
    /// A session with nothing in flight.
    pub fn new(agreement: Agreement, transfers: Transfers) -> Self {
        Self {
            agreement,
            transfers,
            receiving: Receiving::Request,
            disconnecting: false,
            shutting_down: false,
        }
    }

    /// Answers requests with ESHUTDOWN from now on.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Whether the client has announced that it sends no more requests.
    pub fn is_disconnecting(&self) -> bool {
        self.disconnecting
    }

    /// Whether the disk has no requests of this session.
    pub fn is_quiet(&self) -> bool {
        self.transfers.ios() == 0
    }

    /// Whether every completely received request is answered.
    pub fn is_answered(&self) -> bool {
        self.transfers.len() == 0 && matches!(self.receiving, Receiving::Request)
    }

    /// The memory for received bytes: content goes directly into a transfer's memory, if nothing
    /// waits before it, and the bytes after it into the inbox. Both are empty while nothing more
    /// may be received.
    pub fn space<'a>(&'a mut self, inbox: &'a mut Inbox) -> [IoSliceMut<'a>; 2] {
        match &mut self.receiving {
            Receiving::Content { piece: Some(piece), rest, .. }
                if inbox.is_empty() && piece.filled < piece.content.len() =>
            {
                // The content of the next piece follows, which would have to be copied from the
                // inbox.
                let after = if rest.is_empty() { inbox.space() } else { &mut [] };
                [IoSliceMut::new(piece.unfilled()), IoSliceMut::new(after)]
            }
            _ => [IoSliceMut::new(inbox.space()), IoSliceMut::new(&mut [])],
        }
    }

    /// Notes that `count` bytes were received into the space.
    pub fn received(&mut self, count: usize, inbox: &mut Inbox) {
        let mut left = count;
        if let Receiving::Content { piece: Some(piece), .. } = &mut self.receiving
            && inbox.is_empty()
        {
            let content = left.min(piece.content.len() - piece.filled);
            piece.filled += content;
            left -= content;
        }
        inbox.filled(left);
    }

    /// Takes some requests, advances the disk, and adds replies. Returns whether there may be more
    /// work at once. The replies can be sent between two calls, so that the client can continue
    /// while later ones are decrypted.
    pub fn advance(&mut self, inbox: &mut Inbox, outbox: &mut Outbox) -> Result<bool, NotARequest> {
        let more = self.receive(inbox, outbox)?;
        Ok(self.transfers.advance(outbox) || more)
    }

    /// As [`Self::advance`], for a client that is gone: takes no more requests, and sends no
    /// replies.
    pub fn wind_down(&mut self) {
        let mut nobody = Outbox::default();
        while self.transfers.advance(&mut nobody) {
            nobody.clear();
        }
    }

    /// Takes requests from the inbox, up to as many as should be sent to the disk at once. Returns
    /// whether it stopped for that reason.
    fn receive(&mut self, inbox: &mut Inbox, outbox: &mut Outbox) -> Result<bool, NotARequest> {
        self.transfers.take_now();
        let mut left = ENDS_POLLED_MAX;
        while left > 0 {
            let goes_on = match &self.receiving {
                Receiving::Request => {
                    left -= 1;
                    self.receive_request(inbox, outbox)?
                }
                Receiving::Content { .. } => self.receive_content(inbox, outbox),
                Receiving::Refused { .. } => self.receive_refused(inbox, outbox),
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn receive_request(&mut self, inbox: &mut Inbox, outbox: &mut Outbox) -> Result<bool, NotARequest> {
        let waiting = self.transfers.len() + outbox.replies();
        if self.disconnecting || waiting >= REQUESTS_IN_FLIGHT_MAX || !self.transfers.has_room() {
            return Ok(false);
        }
        let Some(bytes) = inbox.unread().first_chunk() else {
            return Ok(false);
        };
        let header = RequestHeader::parse(bytes).ok_or(NotARequest)?;
        let command = match header.command(&self.agreement) {
            Ok(command) if self.shutting_down && command != Command::Disconnect => Err(SHUTTING_DOWN),
            other => other,
        };
        let taken = match command {
            Ok(command) => self.start(header.cookie, command, outbox),
            Err(refusal) => {
                self.transfers.refused(header.operation());
                self.receiving =
                    Receiving::Refused { left: header.payload_bytes(), cookie: header.cookie, refusal };
                true
            }
        };
        if taken {
            inbox.consume(RequestHeader::BYTES);
        }
        Ok(taken)
    }

    /// Starts a request. Returns `false` if it must wait for memory or for others to end.
    fn start(&mut self, cookie: u64, command: Command, outbox: &mut Outbox) -> bool {
        match command {
            Command::Read(extent) => return self.transfers.read(cookie, extent),
            Command::Cache(extent) => return self.transfers.cache(cookie, extent, outbox),
            Command::Write { extent, durable } => {
                self.receiving = Receiving::Content {
                    slot: self.transfers.write(cookie, extent, durable),
                    piece: None,
                    rest: extent,
                    bytes: extent.length(),
                };
            }
            Command::Disconnect => self.disconnecting = true,
            Command::Flush => self.transfers.flush(cookie),
            Command::Trim { extent, durable } => self.transfers.discard(cookie, extent, durable),
            Command::WriteZeroes { extent, may_unmap, durable } => {
                self.transfers.write_zeroes(cookie, extent, may_unmap, durable)
            }
            Command::BlockStatus { extent, one } => self.transfers.block_status(cookie, extent, one, outbox),
        }
        true
    }

    /// Moves a write's content to the disk. Returns `false` once bytes, memory or room in the disk
    /// are missing.
    fn receive_content(&mut self, inbox: &mut Inbox, outbox: &mut Outbox) -> bool {
        let Receiving::Content { slot, piece, rest, bytes } = &mut self.receiving else {
            return false;
        };
        let (slot, bytes) = (*slot, *bytes);
        if piece.is_none() {
            let Some(extent) = self.transfers.pieces(*rest).next() else {
                self.receiving = Receiving::Request;
                self.transfers.close_write(slot, bytes, outbox);
                return true;
            };
            let Some(content) = self.transfers.memory(extent) else {
                return false;
            };
            *rest = Extent::between(extent.end(), rest.end());
            *piece = Some(Piece { extent, content, filled: 0 });
        }
        if let Some(filling) = piece {
            filling.filled += inbox.move_to(filling.unfilled());
            if filling.filled < filling.content.len() || !self.transfers.has_room() {
                return false;
            }
        }
        if let Some(Piece { extent, content, .. }) = piece.take() {
            self.transfers.write_piece(slot, extent, content);
        }
        true
    }

    /// Skips the content of a refused request, and answers it.
    fn receive_refused(&mut self, inbox: &mut Inbox, outbox: &mut Outbox) -> bool {
        let Receiving::Refused { left, cookie, refusal } = &mut self.receiving else {
            return false;
        };
        let skipped = inbox.unread().len().min(*left as usize);
        inbox.consume(skipped);
        *left -= skipped as u32;
        if *left > 0 {
            return false;
        }
        let (cookie, refusal) = (*cookie, *refusal);
        self.receiving = Receiving::Request;
        self.transfers.fail(cookie, refusal.error, refusal.reason, outbox);
        true
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
