//! A disk's content on its way between two machines, inside TLS: its data without its zeroes, and
//! an end that says that nothing is missing.
//!
//! ```text
//! head      "SRDISK01", the size of the disk (8 bytes)
//! 'D'       offset (8 bytes), length (4 bytes), the data
//! 'F'       length (4 bytes), a text: the sender has failed, and this is the reason
//! 'E'       the count of bytes of data (8 bytes), SHA-256 of everything before this digest
//! ```
//!
//! Numbers are little-endian. Data comes in any order, each byte of the disk at most once, in whole
//! sectors; what does not come is zeroes. A stream without `E` is incomplete. A reader never
//! believes a length: a frame is at most [`FRAME_DATA_BYTES_MAX`], and all data together at most
//! the disk.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use strongroom_crypto::mac::{DIGEST_BYTES, Sha256};
use strongroom_types::{Extent, MAX_VOLUME_BYTES, SECTOR_BYTES};
use thiserror::Error;
use zeroize::Zeroizing;

const MAGIC: [u8; 8] = *b"SRDISK01";
const DATA: u8 = b'D';
const FAILED: u8 = b'F';
const END: u8 = b'E';

/// The most data of a frame, in bytes.
pub const FRAME_DATA_BYTES_MAX: usize = 1 << 20;
/// The longest reason of a sender that has failed, in bytes.
const REASON_BYTES_MAX: usize = 64 << 10;

/// Why a stream is not taken.
#[derive(Debug, Error)]
pub enum FrameError {
    /// It broke off, or the connection failed.
    #[error("it broke off before its end: {0}")]
    BrokeOff(io::Error),
    /// Too little has come for too long.
    #[error("less than {least_bytes} bytes have come in {window:?}")]
    Stalled {
        /// What must come, at the least.
        least_bytes: u64,
        /// In which time.
        window: Duration,
    },
    /// It is no such stream.
    #[error("it is no content of a disk: {0}")]
    Malformed(&'static str),
    /// It is for a larger disk, or has more data than its own.
    #[error("it is for a disk of {stream_bytes} bytes, and there is room for {room_bytes}")]
    TooLong {
        /// What it takes, in bytes.
        stream_bytes: u64,
        /// What there is, in bytes.
        room_bytes: u64,
    },
    /// Its digest or its count is not that of what came.
    #[error("what came is not what was sent")]
    Altered,
}

impl From<io::Error> for FrameError {
    fn from(error: io::Error) -> Self {
        Self::BrokeOff(error)
    }
}

/// Sends the content of a disk.
pub struct FrameWriter<W> {
    to: W,
    digest: Sha256,
    data_bytes: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Begins with the head.
    ///
    /// # Errors
    /// Those of `to`, as for all methods here.
    pub fn begin(to: W, size_bytes: u64) -> io::Result<Self> {
        let mut writer = Self { to, digest: Sha256::default(), data_bytes: 0 };
        writer.put(&MAGIC)?;
        writer.put(&size_bytes.to_le_bytes())?;
        Ok(writer)
    }

    /// Sends data of the disk, at most [`FRAME_DATA_BYTES_MAX`] in whole sectors.
    pub fn data(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let length = u32::try_from(data.len()).map_err(io::Error::other)?;
        let mut head = [0; 13];
        head[0] = DATA;
        head[1..9].copy_from_slice(&offset.to_le_bytes());
        head[9..].copy_from_slice(&length.to_le_bytes());
        self.put(&head)?;
        self.put(data)?;
        self.data_bytes += u64::from(length);
        Ok(())
    }

    /// Ends the stream: everything has been sent.
    pub fn finish(mut self) -> io::Result<W> {
        let mut head = [0; 9];
        head[0] = END;
        head[1..].copy_from_slice(&self.data_bytes.to_le_bytes());
        self.put(&head)?;
        let Self { mut to, digest, .. } = self;
        to.write_all(&digest.finish())?;
        to.flush()?;
        Ok(to)
    }

    /// Ends the stream with the reason why it is incomplete.
    pub fn fail(mut self, reason: &[u8]) -> io::Result<()> {
        let reason = &reason[..reason.len().min(REASON_BYTES_MAX)];
        self.put(&[FAILED])?;
        self.put(&(reason.len() as u32).to_le_bytes())?;
        self.put(reason)?;
        self.to.flush()
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.digest.update(bytes);
        self.to.write_all(bytes)
    }
}

impl<W> fmt::Debug for FrameWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameWriter").field("data_bytes", &self.data_bytes).finish_non_exhaustive()
    }
}

/// The least speed of a sender, which takes a place of the receiver's as long as it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The least that must come in each window.
    pub least_bytes: u64,
    /// The window. A read of the stream must not wait for longer.
    pub window: Duration,
}

/// What a stream holds next.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Data of the disk.
    Data {
        /// Where it lies.
        extent: Extent,
        /// The data.
        data: &'a [u8],
    },
    /// The sender has failed, for this reason.
    Failed(String),
    /// Everything came, as it was sent.
    End,
}

/// Receives the content of a disk.
pub struct FrameReader<R> {
    from: R,
    digest: Sha256,
    size_bytes: u64,
    data_bytes: u64,
    data: Zeroizing<Vec<u8>>,
    pace: Pace,
    /// How long this window has waited for the sender.
    waited: Duration,
    window_bytes: u64,
}

impl<R: Read> FrameReader<R> {
    /// Reads the head of a stream for a disk of at most `room_bytes`.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn begin(from: R, room_bytes: u64, pace: Pace) -> Result<Self, FrameError> {
        let mut reader = Self {
            from,
            digest: Sha256::default(),
            size_bytes: 0,
            data_bytes: 0,
            data: Zeroizing::new(Vec::new()),
            pace,
            waited: Duration::ZERO,
            window_bytes: 0,
        };
        if reader.take::<8>()? != MAGIC {
            return Err(FrameError::Malformed("it begins otherwise"));
        }
        let size_bytes = u64::from_le_bytes(reader.take()?);
        if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES) || size_bytes > MAX_VOLUME_BYTES {
            return Err(FrameError::Malformed("no disk has its size"));
        }
        if size_bytes > room_bytes {
            return Err(FrameError::TooLong { stream_bytes: size_bytes, room_bytes });
        }
        reader.size_bytes = size_bytes;
        Ok(reader)
    }

    /// The size of the disk, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The bytes of data that have come.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Reads what comes next. After [`Frame::Failed`] and [`Frame::End`] nothing does.
    ///
    /// # Errors
    /// [`FrameError`].
    pub fn next_frame(&mut self) -> Result<Frame<'_>, FrameError> {
        match self.take::<1>()? {
            [DATA] => self.take_data(),
            [FAILED] => {
                let length = u32::from_le_bytes(self.take()?) as usize;
                if length > REASON_BYTES_MAX {
                    return Err(FrameError::Malformed("a reason is too long"));
                }
                self.fill(length)?;
                Ok(Frame::Failed(String::from_utf8_lossy(&self.data).into_owned()))
            }
            [END] => {
                let data_bytes = u64::from_le_bytes(self.take()?);
                let digest = std::mem::take(&mut self.digest).finish();
                let mut said = [0; DIGEST_BYTES];
                self.read(&mut said)?;
                if digest != said || data_bytes != self.data_bytes {
                    return Err(FrameError::Altered);
                }
                Ok(Frame::End)
            }
            _ => Err(FrameError::Malformed("there is no such frame")),
        }
    }

    fn take_data(&mut self) -> Result<Frame<'_>, FrameError> {
        let offset = u64::from_le_bytes(self.take()?);
        let length = u32::from_le_bytes(self.take()?) as usize;
        if length == 0 || length > FRAME_DATA_BYTES_MAX {
            return Err(FrameError::Malformed("a frame has too much data, or none"));
        }
        let end = offset.checked_add(length as u64).filter(|end| *end <= self.size_bytes);
        let Some(end) = end else {
            return Err(FrameError::Malformed("data lies beyond the end of the disk"));
        };
        let extent = Extent::between(offset, end);
        if !extent.is_aligned_to(SECTOR_BYTES) {
            return Err(FrameError::Malformed("data is not in whole sectors"));
        }
        self.data_bytes += extent.length();
        // So it ends, whatever the sender does.
        if self.data_bytes > self.size_bytes {
            let (stream_bytes, room_bytes) = (self.data_bytes, self.size_bytes);
            return Err(FrameError::TooLong { stream_bytes, room_bytes });
        }
        self.fill(length)?;
        self.keep_pace(length as u64)?;
        Ok(Frame::Data { extent, data: &self.data })
    }

    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], FrameError> {
        let mut bytes = [0; BYTES];
        self.read(&mut bytes)?;
        self.digest.update(&bytes);
        Ok(bytes)
    }

    fn fill(&mut self, length: usize) -> Result<(), FrameError> {
        let mut data = std::mem::take(&mut self.data);
        data.resize(length, 0);
        let read = self.read(&mut data);
        self.data = data;
        read?;
        self.digest.update(&self.data);
        Ok(())
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<()> {
        let began = Instant::now();
        let read = self.from.read_exact(into);
        self.waited += began.elapsed();
        read
    }

    /// Ends a stream that comes too slowly. Only waits for the sender count.
    fn keep_pace(&mut self, bytes: u64) -> Result<(), FrameError> {
        self.window_bytes += bytes;
        let Pace { least_bytes, window } = self.pace;
        if self.window_bytes >= least_bytes {
            (self.waited, self.window_bytes) = (Duration::ZERO, 0);
        } else if self.waited >= window {
            return Err(FrameError::Stalled { least_bytes, window });
        }
        Ok(())
    }
}

impl<R> fmt::Debug for FrameReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrameReader").field("data_bytes", &self.data_bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PACE: Pace = Pace { least_bytes: 1, window: Duration::from_secs(60) };
    const SIZE_BYTES: u64 = 8 * SECTOR_BYTES;

    fn sent(pieces: &[(u64, &[u8])]) -> Vec<u8> {
        let mut writer = FrameWriter::begin(Vec::new(), SIZE_BYTES).unwrap();
        pieces.iter().for_each(|(offset, data)| writer.data(*offset, data).unwrap());
        writer.finish().unwrap()
    }

    /// The disk that arrives.
    fn received(stream: &[u8], room_bytes: u64) -> Result<Vec<u8>, FrameError> {
        let mut reader = FrameReader::begin(stream, room_bytes, PACE)?;
        let mut disk = vec![0; SIZE_BYTES as usize];
        loop {
            match reader.next_frame()? {
                Frame::Data { extent, data } => {
                    disk[extent.offset() as usize..extent.end() as usize].copy_from_slice(data);
                }
                Frame::Failed(reason) => panic!("{reason}"),
                Frame::End => return Ok(disk),
            }
        }
    }

    #[test]
    fn a_disk_arrives_whole_or_not_at_all() {
        let stream = sent(&[(1024, &[7; 512]), (0, &[8; 1024])]);
        let disk = received(&stream, SIZE_BYTES).unwrap();
        assert!(disk[..1024] == [8; 1024] && disk[1024..1536] == [7; 512] && disk[1536..] == [0; 2560]);
        // Truncated anywhere.
        for end in 0..stream.len() {
            assert!(matches!(received(&stream[..end], SIZE_BYTES), Err(FrameError::BrokeOff(_))), "{end}");
        }
        // Changed anywhere.
        for at in 0..stream.len() {
            let mut changed = stream.clone();
            changed[at] ^= 1;
            assert!(received(&changed, SIZE_BYTES).is_err(), "{at}");
        }
        // Without a frame in the middle, or with one of them twice.
        let frame = 13 + 512;
        let without = [&stream[..16], &stream[16 + frame..]].concat();
        assert!(matches!(received(&without, SIZE_BYTES), Err(FrameError::Altered)));
        let twice = [&stream[..16 + frame], &stream[16..]].concat();
        assert!(matches!(received(&twice, SIZE_BYTES), Err(FrameError::Altered)));
    }

    #[test]
    fn more_than_the_disk_is_refused() {
        let too_large = received(&sent(&[]), SIZE_BYTES - 512).unwrap_err();
        assert!(matches!(too_large, FrameError::TooLong { stream_bytes: SIZE_BYTES, .. }), "{too_large}");
        let over = [1; 4096 + 512];
        assert!(matches!(received(&sent(&[(0, &over)]), SIZE_BYTES), Err(FrameError::Malformed(_))));
        let beyond = received(&sent(&[(SIZE_BYTES, &[1; 512])]), SIZE_BYTES).unwrap_err();
        assert!(matches!(beyond, FrameError::Malformed(_)), "{beyond}");
        let odd = received(&sent(&[(1, &[1; 512])]), SIZE_BYTES).unwrap_err();
        assert!(matches!(odd, FrameError::Malformed(_)), "{odd}");
        // The same sectors again and again.
        let again: Vec<_> = (0..9).map(|_| (0, &[1; 512][..])).collect();
        assert!(matches!(received(&sent(&again), SIZE_BYTES), Err(FrameError::TooLong { .. })));
        let mut long = FrameWriter::begin(Vec::new(), SIZE_BYTES).unwrap();
        long.data(0, &vec![1; FRAME_DATA_BYTES_MAX + 512]).unwrap();
        let stream = long.finish().unwrap();
        assert!(matches!(received(&stream, SIZE_BYTES), Err(FrameError::Malformed(_))));
    }

    #[test]
    fn a_sender_says_why_it_stops() {
        let mut stream = Vec::new();
        FrameWriter::begin(&mut stream, SIZE_BYTES).unwrap().fail(b"the disk is damaged").unwrap();
        let mut reader = FrameReader::begin(&stream[..], SIZE_BYTES, PACE).unwrap();
        assert_eq!(reader.next_frame().unwrap(), Frame::Failed("the disk is damaged".to_owned()));
    }

    #[test]
    fn a_stream_that_comes_too_slowly_ends() {
        let stream = sent(&[(0, &[1; 512]), (512, &[2; 512])]);
        let never = Pace { least_bytes: 513, window: Duration::ZERO };
        let mut reader = FrameReader::begin(&stream[..], SIZE_BYTES, never).unwrap();
        assert!(matches!(reader.next_frame(), Err(FrameError::Stalled { .. })));
        let enough = Pace { least_bytes: 512, ..never };
        let mut reader = FrameReader::begin(&stream[..], SIZE_BYTES, enough).unwrap();
        reader.next_frame().unwrap();
        reader.next_frame().unwrap();
        assert_eq!(reader.next_frame().unwrap(), Frame::End);
    }

    proptest! {
        #[test]
        fn any_bytes_end_and_take_no_more_memory_than_a_frame(
            bytes in prop::collection::vec(any::<u8>(), 0..600), begins_well: bool
        ) {
            let stream = match begins_well {
                true => [&MAGIC[..], &SIZE_BYTES.to_le_bytes(), &bytes].concat(),
                false => bytes,
            };
            if let Ok(mut reader) = FrameReader::begin(&stream[..], SIZE_BYTES, PACE) {
                while let Ok(Frame::Data { .. }) = reader.next_frame() {}
                prop_assert!(reader.data.capacity() <= 2 * FRAME_DATA_BYTES_MAX);
            }
        }
    }
}
