//! Packs content with many zeroes, such as a guest's memory, without them.
//!
//! The packed form is a sequence of frames: the count of zeroes, the count of data bytes after
//! them, and the data. The stream around it marks the end and guarantees completeness.

use std::io::{self, Read, Write};

use zeroize::Zeroizing;

use crate::error::StreamError;
use crate::medium::Medium;
use crate::writer::StreamWriter;

/// A frame's head: the count of zeroes (8 bytes) and of data bytes (4 bytes), little-endian.
const FRAME_BYTES: usize = 12;
/// The unit that is left out if it is all zeroes, in bytes: a page of most guests.
const BLOCK_BYTES: usize = 4096;
/// The bytes that are examined at once, and the most data of a written frame. A reader needs no
/// limit, because it stores no frame.
const PIECE_BYTES: usize = 1 << 20;

impl<M: Medium> StreamWriter<M> {
    /// Appends all of `source`, packed, and returns its length in bytes. After each read `wanted`
    /// is called with the count of bytes read so far; an error of `wanted` ends the copy.
    ///
    /// # Errors
    /// As [`write`](Self::write), and those of `source` and `wanted`.
    pub fn pack_from(
        &mut self,
        mut source: impl Read,
        mut wanted: impl FnMut(u64) -> io::Result<()>,
    ) -> Result<u64, StreamError> {
        let mut piece = Zeroizing::new(vec![0; PIECE_BYTES]);
        let (mut zeroes, mut content_bytes) = (0, 0);
        loop {
            let filled = fill(&mut source, &mut piece)?;
            content_bytes += filled as u64;
            wanted(content_bytes)?;
            let mut rest = &piece[..filled];
            while !rest.is_empty() {
                let (nothing, from_data) = rest.split_at(run_bytes(rest, is_zeroes));
                zeroes += nothing.len() as u64;
                let (data, behind) = from_data.split_at(run_bytes(from_data, |block| !is_zeroes(block)));
                if !data.is_empty() {
                    self.frame(std::mem::take(&mut zeroes), data)?;
                }
                rest = behind;
            }
            if filled < PIECE_BYTES {
                break;
            }
        }
        if zeroes > 0 {
            self.frame(zeroes, &[])?;
        }
        Ok(content_bytes)
    }

    fn frame(&mut self, zeroes: u64, data: &[u8]) -> Result<(), StreamError> {
        let mut head = [0; FRAME_BYTES];
        head[..8].copy_from_slice(&zeroes.to_le_bytes());
        head[8..].copy_from_slice(&(data.len() as u32).to_le_bytes());
        self.write(&head)?;
        self.write(data)
    }
}

/// Fills `into`, less if `source` ends before. Returns the count of bytes.
fn fill(source: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match source.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// The length in bytes of the leading blocks of `content` for which `so` is true; the last block
/// may be shorter.
fn run_bytes(content: &[u8], so: impl Fn(&[u8]) -> bool) -> usize {
    content.chunks(BLOCK_BYTES).take_while(|block| so(block)).map(<[u8]>::len).sum()
}

fn is_zeroes(block: &[u8]) -> bool {
    // Folded by cache lines, so that the compiler uses wide registers.
    block.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The sink of unpacked content.
pub trait Unpacked {
    /// Receives the next data.
    ///
    /// # Errors
    /// An error ends the unpacking.
    fn data(&mut self, data: &[u8]) -> io::Result<()>;

    /// Receives `count` zeroes, which come next.
    ///
    /// # Errors
    /// An error ends the unpacking.
    fn zeroes(&mut self, count: u64) -> io::Result<()>;
}

/// Unpacks the data that is written to it, in pieces of any length.
#[derive(Debug)]
pub struct Unpacker<Sink> {
    sink: Sink,
    head: [u8; FRAME_BYTES],
    head_filled: usize,
    /// Bytes of the frame's data that have not arrived yet.
    awaited_bytes: usize,
    content_bytes: u64,
}

impl<Sink: Unpacked> Unpacker<Sink> {
    /// Makes an unpacker into `sink`.
    pub fn new(sink: Sink) -> Self {
        Self { sink, head: [0; FRAME_BYTES], head_filled: 0, awaited_bytes: 0, content_bytes: 0 }
    }

    /// Ends the unpacking. Returns the length of the content in bytes, and the sink.
    ///
    /// # Errors
    /// If the input ends within a frame.
    pub fn finish(self) -> io::Result<(u64, Sink)> {
        match (self.head_filled, self.awaited_bytes) {
            (0, 0) => Ok((self.content_bytes, self.sink)),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn begin_frame(&mut self) -> io::Result<()> {
        let (mut zeroes, mut data) = ([0; 8], [0; 4]);
        zeroes.copy_from_slice(&self.head[..8]);
        data.copy_from_slice(&self.head[8..]);
        let zeroes = u64::from_le_bytes(zeroes);
        self.count(zeroes)?;
        if zeroes > 0 {
            self.sink.zeroes(zeroes)?;
        }
        (self.head_filled, self.awaited_bytes) = (0, u32::from_le_bytes(data) as usize);
        Ok(())
    }

    fn count(&mut self, bytes: u64) -> io::Result<()> {
        let content = self.content_bytes.checked_add(bytes).filter(|content| i64::try_from(*content).is_ok());
        self.content_bytes = content.ok_or(io::ErrorKind::InvalidData)?;
        Ok(())
    }
}

impl<Sink: Unpacked> Write for Unpacker<Sink> {
    fn write(&mut self, packed: &[u8]) -> io::Result<usize> {
        if self.awaited_bytes > 0 {
            let count = packed.len().min(self.awaited_bytes);
            self.count(count as u64)?;
            self.sink.data(&packed[..count])?;
            self.awaited_bytes -= count;
            return Ok(count);
        }
        let count = packed.len().min(FRAME_BYTES - self.head_filled);
        self.head[self.head_filled..][..count].copy_from_slice(&packed[..count]);
        self.head_filled += count;
        if self.head_filled == FRAME_BYTES {
            self.begin_frame()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strongroom_types::VolumeId;

    use super::*;
    use crate::{StreamKind, StreamReader, stream_bytes};

    const VOLUME: VolumeId = VolumeId::from_bytes([7; 16]);

    #[derive(Default)]
    struct Content {
        bytes: Vec<u8>,
        zeroes: u64,
    }

    impl Unpacked for Content {
        fn data(&mut self, data: &[u8]) -> io::Result<()> {
            self.bytes.extend_from_slice(data);
            Ok(())
        }

        fn zeroes(&mut self, count: u64) -> io::Result<()> {
            self.bytes.resize(self.bytes.len() + count as usize, 0);
            self.zeroes += count;
            Ok(())
        }
    }

    /// Packs the content, and unpacks it in this many pieces. Returns the packed length and the
    /// result.
    fn round_trip(content: &[u8], pieces: usize) -> (u64, Content) {
        let medium = vec![0; stream_bytes(2 * content.len() as u64 + 64, 4096) as usize];
        let mut writer = StreamWriter::begin(medium, StreamKind::Dump, VOLUME, 4096, b"").unwrap();
        assert_eq!(writer.pack_from(content, |_| Ok(())).unwrap(), content.len() as u64);
        let (packed_bytes, medium) = writer.finish().unwrap();
        let mut packed = Vec::new();
        let mut reader = StreamReader::open(medium, StreamKind::Dump, VOLUME).unwrap();
        reader.copy_to(&mut packed, |_| Ok(())).unwrap();
        let mut unpacker = Unpacker::new(Content::default());
        packed.chunks(pieces).for_each(|piece| unpacker.write_all(piece).unwrap());
        let (bytes, unpacked) = unpacker.finish().unwrap();
        assert_eq!(bytes, unpacked.bytes.len() as u64);
        (packed_bytes, unpacked)
    }

    #[test]
    fn pages_of_zeroes_take_no_room() {
        let mut content = vec![0; 3 << 20];
        content[..5].copy_from_slice(b"first");
        content[(2 << 20) + 100] = 1;
        let (packed_bytes, unpacked) = round_trip(&content, 7);
        assert!(unpacked.bytes == content);
        assert_eq!(unpacked.zeroes, (3 << 20) - 2 * 4096);
        assert_eq!(packed_bytes, 3 * 12 + 2 * 4096);
    }

    #[test]
    fn what_breaks_off_or_is_too_much_is_refused() {
        let mut broken = Unpacker::new(Content::default());
        broken.write_all(&[0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1]).unwrap();
        assert!(broken.finish().is_err());
        let mut broken = Unpacker::new(Content::default());
        broken.write_all(&[0; 5]).unwrap();
        assert!(broken.finish().is_err());
        struct Nowhere;
        impl Unpacked for Nowhere {
            fn data(&mut self, _: &[u8]) -> io::Result<()> {
                Ok(())
            }
            fn zeroes(&mut self, _: u64) -> io::Result<()> {
                Ok(())
            }
        }
        assert!(Unpacker::new(Nowhere).write_all(&[0xff; 12]).is_err());
    }

    proptest! {
        #[test]
        fn what_was_packed_is_unpacked(
            runs in prop::collection::vec((any::<bool>(), 0..9000_usize), 0..8), pieces in 1..5000_usize
        ) {
            let content: Vec<u8> = runs.iter().flat_map(|(data, bytes)| vec![u8::from(*data); *bytes]).collect();
            let (_, unpacked) = round_trip(&content, pieces);
            prop_assert!(unpacked.bytes == content);
        }
    }
}
