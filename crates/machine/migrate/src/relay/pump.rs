//! One direction of one channel.
//!
//! Bytes are sealed and opened where they lie: the kernel copies them in from one socket and
//! out to the other, and nothing else does. Several records share a system call.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};

use strongroom_crypto::CryptoError;
use strongroom_memory::{Buffer, BufferPool, CHUNK_BYTES};
use thiserror::Error;
use zeroize::Zeroize;

use crate::record::{
    HEAD_BYTES, Head, Kind, OVERHEAD_BYTES, Opener, RECORD_BYTES_MAX, RecordError, Sealer, TEXT_BYTES_MAX,
};

/// The most records of a system call: their memory stays in a processor's second-level cache
/// between the kernel's copy and the cipher.
const BATCH: usize = 7;
/// Memory of one direction. It has one record more, so that a part of one can wait for its rest.
const INBOUND_BYTES: usize = (BATCH + 1) * RECORD_BYTES_MAX;

/// Why a direction has stopped.
#[derive(Debug, Error)]
pub enum PumpError {
    /// QEMU's side failed.
    #[error("QEMU: {0}")]
    Qemu(io::Error),
    /// The network's side failed.
    #[error("network: {0}")]
    Wire(io::Error),
    /// What came is not what was sent.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The library failed.
    #[error(transparent)]
    Crypto(#[from] CryptoError),
    /// There is no memory.
    #[error("there is no memory for a channel")]
    NoMemory,
}

/// A buffer of this thread that no core dump has, wiped when it is given back.
struct WipedBuffer(Buffer);

impl WipedBuffer {
    fn new(bytes: usize) -> Result<Self, PumpError> {
        let pool = BufferPool::new(CHUNK_BYTES).map_err(|_| PumpError::NoMemory)?;
        pool.take(bytes).map(Self).ok_or(PumpError::NoMemory)
    }
}

impl Drop for WipedBuffer {
    fn drop(&mut self) {
        self.0.bytes_mut().zeroize();
    }
}

/// The direction from QEMU to the wire.
pub struct Outbound {
    sealer: Sealer,
    buffer: WipedBuffer,
}

impl Outbound {
    /// A direction under this key, for this thread.
    ///
    /// # Errors
    /// [`PumpError::NoMemory`].
    pub fn new(sealer: Sealer) -> Result<Self, PumpError> {
        Ok(Self { sealer, buffer: WipedBuffer::new(BATCH * RECORD_BYTES_MAX)? })
    }

    /// Passes on what QEMU has sent. Returns how many bytes that were; none if QEMU has ended the
    /// stream, whose end is passed on then. `admit` waits until so many bytes may pass, and returns
    /// `false` if none may any more.
    ///
    /// # Errors
    /// [`PumpError`].
    pub fn pass(
        &mut self,
        mut qemu: impl Read,
        mut wire: impl Write,
        admit: impl FnOnce(usize) -> bool,
    ) -> Result<usize, PumpError> {
        let memory = self.buffer.0.bytes_mut();
        let count = {
            let mut places = memory.chunks_exact_mut(RECORD_BYTES_MAX);
            let mut texts: [IoSliceMut<'_>; BATCH] = std::array::from_fn(|_| {
                let place = places.next().unwrap_or_default();
                IoSliceMut::new(place.get_mut(HEAD_BYTES..HEAD_BYTES + TEXT_BYTES_MAX).unwrap_or_default())
            });
            retried(|| qemu.read_vectored(&mut texts)).map_err(PumpError::Qemu)?
        };
        if count == 0 {
            let end = self.sealer.sealed(Kind::End, &[])?;
            wire.write_all(&end).map_err(PumpError::Wire)?;
            return Ok(0);
        }
        if !admit(count) {
            return Err(PumpError::Qemu(io::ErrorKind::ConnectionAborted.into()));
        }
        // Records follow each other without gaps: all but the last are full.
        let whole = count.div_ceil(TEXT_BYTES_MAX) * OVERHEAD_BYTES + count;
        for record in memory[..whole].chunks_mut(RECORD_BYTES_MAX) {
            self.sealer.seal(Kind::Data, record)?;
        }
        wire.write_all(&memory[..whole]).map_err(PumpError::Wire)?;
        Ok(count)
    }
}

/// The direction from the wire to QEMU.
pub struct Inbound {
    opener: Opener,
    buffer: WipedBuffer,
    /// What has come and is not opened.
    from: usize,
    to: usize,
}

impl Inbound {
    /// A direction under this key, for this thread.
    ///
    /// # Errors
    /// [`PumpError::NoMemory`].
    pub fn new(opener: Opener) -> Result<Self, PumpError> {
        Ok(Self { opener, buffer: WipedBuffer::new(INBOUND_BYTES)?, from: 0, to: 0 })
    }

    /// Passes on what has come. Returns how many bytes of QEMU's were passed on: none if not all of
    /// a record has come, or the stream has [ended](Self::has_ended).
    ///
    /// # Errors
    /// [`PumpError`]. No byte of a record that is not the next one is passed on, and none after it.
    pub fn pass(&mut self, mut wire: impl Read, mut qemu: impl Write) -> Result<usize, PumpError> {
        self.make_room();
        let memory = self.buffer.0.bytes_mut();
        match retried(|| wire.read(&mut memory[self.to..])).map_err(PumpError::Wire)? {
            0 => return Err(RecordError::CutOff.into()),
            count => self.to += count,
        }
        let mut texts: [IoSlice<'_>; BATCH * 2] = std::array::from_fn(|_| IoSlice::new(&[]));
        let mut passed = 0;
        let mut rest = &mut memory[self.from..self.to];
        let mut outcome = Ok(());
        loop {
            let mut filled = 0;
            for place in &mut texts {
                match next_text(&mut self.opener, &mut rest, &mut self.from) {
                    Ok(Some(text)) => {
                        passed += text.len();
                        *place = IoSlice::new(text);
                        filled += 1;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            // What came before a wrong record is as QEMU has sent it.
            write_all(&mut qemu, &mut texts[..filled]).map_err(PumpError::Qemu)?;
            outcome = match outcome {
                Ok(()) if filled == BATCH * 2 => Ok(()),
                Ok(()) => break,
                Err(error) => return Err(error.into()),
            };
        }
        if self.opener.has_ended() && self.from < self.to {
            return Err(RecordError::AfterTheEnd.into());
        }
        Ok(passed)
    }

    /// Whether the stream has ended, as its sender ended it.
    pub fn has_ended(&self) -> bool {
        self.opener.has_ended()
    }

    /// Makes room for the rest of a record, and for more if there is little.
    fn make_room(&mut self) {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        } else if INBOUND_BYTES - self.to < RECORD_BYTES_MAX {
            self.buffer.0.bytes_mut().copy_within(self.from..self.to, 0);
            (self.from, self.to) = (0, self.to - self.from);
        }
    }
}

/// Opens the next record in `rest` if all of it has come, and returns its text. An end has none.
fn next_text<'r>(
    opener: &mut Opener,
    rest: &mut &'r mut [u8],
    from: &mut usize,
) -> Result<Option<&'r [u8]>, RecordError> {
    if opener.has_ended() {
        return Ok(None);
    }
    let Some((head, _)) = rest.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let length = Head::read(*head)?.record_bytes();
    if rest.len() < length {
        return Ok(None);
    }
    let (record, after) = std::mem::take(rest).split_at_mut(length);
    (*rest, *from) = (after, *from + length);
    match opener.open(record)? {
        (Kind::Data, text) => Ok(Some(text)),
        (Kind::End, _) => Ok(None),
        (Kind::Open | Kind::Message, _) => Err(RecordError::OutOfPlace),
    }
}

fn write_all(to: &mut impl Write, mut texts: &mut [IoSlice<'_>]) -> io::Result<()> {
    while !texts.is_empty() {
        match retried(|| to.write_vectored(texts))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => IoSlice::advance_slices(&mut texts, count),
        }
    }
    Ok(())
}

fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

macro_rules! omits_its_content {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($name)).finish_non_exhaustive()
            }
        }
    )*};
}

omits_its_content!(Outbound, Inbound);

#[cfg(test)]
mod tests;
