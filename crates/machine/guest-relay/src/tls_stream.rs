//! The rest of a TLS 1.3 connection (RFC 8446, 5.2) whose handshake another process has done: its
//! application data, under the traffic keys that it was given.
//!
//! A peer that asks for other keys (`KeyUpdate`) or sends a ticket is not served further: browsers
//! do neither. There is no resumption, and the keys are of this one connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use strongroom_crypto::gcm;
use strongroom_memory::secret::SecretBytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use zeroize::Zeroize;

/// Bytes of the head of a record.
const HEAD_BYTES: usize = 5;
/// The most plain text of a record.
const TEXT_BYTES_MAX: usize = 1 << 14;
/// The most that a record has after its head.
const SEALED_BYTES_MAX: usize = TEXT_BYTES_MAX + 256;
/// Bytes of a record's tag.
const TAG_BYTES: usize = 16;
/// Bytes of the key of a direction.
pub const KEY_BYTES: usize = 32;
/// Bytes of the initialisation vector of a direction.
pub const IV_BYTES: usize = 12;
/// The most records under one key: RFC 8446, 5.5 has some 2^24.5 of full length.
const RECORDS_MAX: u64 = 1 << 24;

/// Content types.
const ALERT: u8 = 21;
const APPLICATION_DATA: u8 = 23;
/// The protocol's version in the head of a record, for all time.
const LEGACY_VERSION: [u8; 2] = [3, 3];
/// An alert of level `warning` that says that nothing more follows.
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

/// The keys of one direction, and the number of its next record.
pub struct Direction {
    /// The key of AES-256-GCM.
    pub key: SecretBytes,
    /// The vector that each record's number is combined with.
    pub iv: [u8; IV_BYTES],
    /// The number of the next record.
    pub next: u64,
}

impl Direction {
    fn nonce(&mut self) -> io::Result<[u8; IV_BYTES]> {
        if self.next >= RECORDS_MAX {
            return Err(io::Error::other("the connection has passed as much as its keys are for"));
        }
        let mut nonce = self.iv;
        for (byte, number) in nonce[IV_BYTES - 8..].iter_mut().zip(self.next.to_be_bytes()) {
            *byte ^= number;
        }
        self.next += 1;
        Ok(nonce)
    }
}

/// A TLS connection after its handshake.
pub struct TlsStream<S> {
    socket: S,
    receiving: Direction,
    sending: Direction,
    /// What has arrived of a record, with its head.
    arrived: Vec<u8>,
    /// The plain text of the last record, and how much of it was read.
    text: Vec<u8>,
    read: usize,
    /// Records that are not sent yet, and how much of them is.
    leaving: Vec<u8>,
    left: usize,
    is_ended: bool,
    is_shut: bool,
}

impl<S> TlsStream<S> {
    /// Goes on with a connection.
    pub fn new(socket: S, receiving: Direction, sending: Direction) -> Self {
        let (arrived, text, leaving) = (Vec::new(), Vec::new(), Vec::new());
        Self {
            socket,
            receiving,
            sending,
            arrived,
            text,
            read: 0,
            leaving,
            left: 0,
            is_ended: false,
            is_shut: false,
        }
    }

    /// Opens the record that has arrived.
    fn open(&mut self) -> io::Result<()> {
        let malformed = |reason: &'static str| io::Error::new(io::ErrorKind::InvalidData, reason);
        let nonce = self.receiving.nonce()?;
        let (head, sealed) = self.arrived.split_at_mut(HEAD_BYTES);
        let length = sealed.len().checked_sub(TAG_BYTES).ok_or_else(|| malformed("a record is too short"))?;
        let (text, tag) = sealed.split_at_mut(length);
        gcm::open(&self.receiving.key, &nonce, head, text, tag)
            .map_err(|_| malformed("a record is not authentic"))?;
        // The content's type comes before zeroes.
        let end =
            text.iter().rposition(|byte| *byte != 0).ok_or_else(|| malformed("a record has no type"))?;
        match (text[end], &text[..end]) {
            (APPLICATION_DATA, content) => {
                self.text.zeroize();
                self.text.extend_from_slice(content);
                self.read = 0;
            }
            (ALERT, content) if *content == CLOSE_NOTIFY => self.is_ended = true,
            (ALERT, _) => return Err(io::ErrorKind::ConnectionAborted.into()),
            _ => return Err(malformed("a record is neither data nor an end")),
        }
        self.arrived.zeroize();
        Ok(())
    }

    /// Seals a record, to be sent. If it cannot be, none of it leaves.
    fn seal(&mut self, content_type: u8, content: &[u8]) -> io::Result<()> {
        let nonce = self.sending.nonce()?;
        let length = content.len() + 1 + TAG_BYTES;
        let begins = self.leaving.len();
        self.leaving.extend_from_slice(&[APPLICATION_DATA]);
        self.leaving.extend_from_slice(&LEGACY_VERSION);
        self.leaving.extend_from_slice(&u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        self.leaving.extend_from_slice(content);
        self.leaving.push(content_type);
        let (head, text) = self.leaving[begins..].split_at_mut(HEAD_BYTES);
        match gcm::seal(&self.sending.key, &nonce, head, text) {
            Ok(tag) => self.leaving.extend_from_slice(&tag),
            Err(error) => {
                text.zeroize();
                self.leaving.truncate(begins);
                return Err(io::Error::other(error));
            }
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> TlsStream<S> {
    /// Reads until a record is complete. The result is false at the end of the connection.
    fn poll_record(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        loop {
            let wanted = match self.arrived.get(..HEAD_BYTES) {
                None => HEAD_BYTES,
                Some([kind, major, minor, high, low]) => {
                    let length = usize::from(u16::from_be_bytes([*high, *low]));
                    let is_one = *kind == APPLICATION_DATA && [*major, *minor] == LEGACY_VERSION;
                    if !is_one || length > SEALED_BYTES_MAX {
                        let reason = "what arrived is no record of TLS 1.3";
                        return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, reason)));
                    }
                    HEAD_BYTES + length
                }
                Some(_) => return Poll::Ready(Err(io::ErrorKind::InvalidData.into())),
            };
            let has = self.arrived.len();
            if has >= HEAD_BYTES && has == wanted {
                return Poll::Ready(Ok(true));
            }
            self.arrived.resize(wanted, 0);
            let mut room = ReadBuf::new(&mut self.arrived[has..]);
            let read = Pin::new(&mut self.socket).poll_read(context, &mut room);
            let count = room.filled().len();
            self.arrived.truncate(has + count);
            ready!(read)?;
            if count == 0 {
                // Without an alert, somebody may have cut it off.
                return match has {
                    0 => Poll::Ready(Ok(false)),
                    _ => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                };
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TlsStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let this = &mut *self;
            if this.read < this.text.len() {
                let count = into.remaining().min(this.text.len() - this.read);
                into.put_slice(&this.text[this.read..this.read + count]);
                this.read += count;
                return Poll::Ready(Ok(()));
            }
            if this.is_ended || into.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            match ready!(this.poll_record(context))? {
                true => this.open()?,
                false => this.is_ended = true,
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> TlsStream<S> {
    fn poll_leave(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.left < self.leaving.len() {
            match ready!(Pin::new(&mut self.socket).poll_write(context, &self.leaving[self.left..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.left += count,
            }
        }
        self.leaving.clear();
        self.left = 0;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TlsStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        // One record at a time: a peer that does not read holds no more of this process's memory.
        ready!(self.poll_leave(context))?;
        let count = from.len().min(TEXT_BYTES_MAX);
        self.seal(APPLICATION_DATA, &from[..count])?;
        // What the socket does not take now is sent before the next one.
        let _ = self.poll_leave(context)?;
        Poll::Ready(Ok(count))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_leave(context))?;
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.is_shut {
            self.is_shut = true;
            self.seal(ALERT, &CLOSE_NOTIFY)?;
        }
        ready!(self.poll_leave(context))?;
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl<S> Drop for TlsStream<S> {
    fn drop(&mut self) {
        self.text.zeroize();
        self.arrived.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    fn direction(next: u64) -> Direction {
        Direction { key: SecretBytes::zeroed(KEY_BYTES).unwrap(), iv: [0; IV_BYTES], next }
    }

    /// Whatever is done afterwards, what could not be sealed does not leave.
    #[tokio::test]
    async fn nothing_leaves_unsealed_when_the_keys_are_used_up() {
        let (ours, mut theirs) = duplex(1 << 16);
        let mut stream = TlsStream::new(ours, direction(0), direction(RECORDS_MAX - 1));
        stream.write_all(b"the last record").await.unwrap();
        stream.write_all(b"a plain text").await.unwrap_err();
        stream.flush().await.unwrap();
        stream.shutdown().await.unwrap_err();
        stream.flush().await.unwrap();
        drop(stream);
        let mut sent = Vec::new();
        theirs.read_to_end(&mut sent).await.unwrap();
        assert_eq!(sent.len(), HEAD_BYTES + b"the last record".len() + 1 + TAG_BYTES);
    }
}
