//! An image that is on another machine, inside TLS: the host that fills a disk with it asks for its
//! bytes, and the client that has it answers.
//!
//! ```text
//! client    "SRIMAGE1", the size of the image (8 bytes)
//! host      'R' offset (8 bytes), length (4 bytes): these bytes are wanted
//!           'E'             nothing more is wanted
//!           'X' length (4 bytes), a text: this image is not taken, for this reason
//! client    'D' the bytes   in the order in which they are asked for
//!           'Z'             they are zeroes
//!           'X' length (4 bytes), a text: they cannot be read, for this reason
//! ```
//!
//! Numbers are little-endian. Several questions may be open. A client that comes back begins anew,
//! and is asked again for what it has not answered. Neither end believes a length: a question is
//! for at most [`IMAGE_DATA_BYTES_MAX`] inside of the image.

use std::io::{self, Read, Write};

use strongroom_types::{Extent, MAX_VOLUME_BYTES};
use thiserror::Error;
use zeroize::Zeroizing;

use crate::volumes::take;

const MAGIC: [u8; 8] = *b"SRIMAGE1";
const READ: u8 = b'R';
const END: u8 = b'E';
const DATA: u8 = b'D';
const ZEROES: u8 = b'Z';
const REASON: u8 = b'X';

/// The most bytes of one question.
pub const IMAGE_DATA_BYTES_MAX: usize = 1 << 20;
/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 4 << 10;

/// Why an image does not pass.
#[derive(Debug, Error)]
pub enum ImageStreamError {
    /// The connection failed, or was closed too early.
    #[error("the connection broke off: {0}")]
    BrokeOff(#[from] io::Error),
    /// What came is no question or no answer.
    #[error("the other end says something else than was expected: {0}")]
    Malformed(&'static str),
    /// The other end says why it does not go on.
    #[error("{0}")]
    Refused(String),
}

/// The end that has the image.
pub struct ImageGiver<S: Read + Write> {
    stream: S,
    size_bytes: u64,
}

impl<S: Read + Write> ImageGiver<S> {
    /// Offers an image of this size.
    ///
    /// # Errors
    /// [`ImageStreamError::BrokeOff`].
    pub fn begin(mut stream: S, size_bytes: u64) -> Result<Self, ImageStreamError> {
        let mut head = [0; 16];
        head[..8].copy_from_slice(&MAGIC);
        head[8..].copy_from_slice(&size_bytes.to_le_bytes());
        stream.write_all(&head)?;
        stream.flush()?;
        Ok(Self { stream, size_bytes })
    }

    /// Answers until nothing more is wanted. `read` fills a buffer from an offset of the image on;
    /// its failure is told to the host, and returned.
    ///
    /// # Errors
    /// [`ImageStreamError`].
    pub fn answer(
        mut self,
        mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    ) -> Result<(), ImageStreamError> {
        let mut answer = Zeroizing::new(Vec::new());
        while let Some(wanted) = self.next_question()? {
            answer.clear();
            answer.resize(1 + wanted.length() as usize, 0);
            answer[0] = DATA;
            if let Err(error) = read(wanted.offset(), &mut answer[1..]) {
                put_reason(&mut self.stream, &error.to_string())?;
                return Err(error.into());
            }
            let is_zero = answer[1..].iter().all(|byte| *byte == 0);
            self.stream.write_all(if is_zero { &[ZEROES] } else { &answer })?;
            self.stream.flush()?;
        }
        Ok(())
    }

    /// The next question; `None` after the last one.
    fn next_question(&mut self) -> Result<Option<Extent>, ImageStreamError> {
        match take(&mut self.stream)? {
            [END] => Ok(None),
            [REASON] => Err(ImageStreamError::Refused(take_reason(&mut self.stream)?)),
            [READ] => {
                let offset = u64::from_le_bytes(take(&mut self.stream)?);
                let length = u32::from_le_bytes(take(&mut self.stream)?) as usize;
                let end = offset.checked_add(length as u64).filter(|end| *end <= self.size_bytes);
                match end {
                    Some(end) if (1..=IMAGE_DATA_BYTES_MAX).contains(&length) => {
                        Ok(Some(Extent::between(offset, end)))
                    }
                    _ => Err(ImageStreamError::Malformed("it asks for what no image has")),
                }
            }
            _ => Err(ImageStreamError::Malformed("there is no such question")),
        }
    }
}

/// The end that reads the image.
pub struct ImageTaker<S: Read + Write> {
    stream: S,
    size_bytes: u64,
}

impl<S: Read + Write> ImageTaker<S> {
    /// Waits for the offer of a client.
    ///
    /// # Errors
    /// [`ImageStreamError`], also for an image that is larger than any disk.
    pub fn begin(mut stream: S) -> Result<Self, ImageStreamError> {
        if take::<8>(&mut stream)? != MAGIC {
            return Err(ImageStreamError::Malformed("it offers no image; a client of this release does"));
        }
        let size_bytes = u64::from_le_bytes(take(&mut stream)?);
        match size_bytes {
            1..=MAX_VOLUME_BYTES => Ok(Self { stream, size_bytes }),
            _ => Err(ImageStreamError::Malformed("no image has its size")),
        }
    }

    /// The size of the image, in bytes.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The connection.
    pub fn stream(&self) -> &S {
        &self.stream
    }

    /// Asks for bytes inside of the image, at most [`IMAGE_DATA_BYTES_MAX`].
    ///
    /// # Errors
    /// [`ImageStreamError::BrokeOff`].
    pub fn ask(&mut self, wanted: Extent) -> Result<(), ImageStreamError> {
        debug_assert!(wanted.end() <= self.size_bytes && wanted.length() <= IMAGE_DATA_BYTES_MAX as u64);
        let mut question = [0; 13];
        question[0] = READ;
        question[1..9].copy_from_slice(&wanted.offset().to_le_bytes());
        question[9..].copy_from_slice(&(wanted.length() as u32).to_le_bytes());
        Ok(self.stream.write_all(&question)?)
    }

    /// Takes the answer to the first open question, which was for as many bytes as `into` has.
    ///
    /// # Errors
    /// [`ImageStreamError`].
    pub fn answer(&mut self, into: &mut [u8]) -> Result<(), ImageStreamError> {
        match take(&mut self.stream)? {
            [DATA] => Ok(self.stream.read_exact(into)?),
            [ZEROES] => {
                into.fill(0);
                Ok(())
            }
            [REASON] => Err(ImageStreamError::Refused(take_reason(&mut self.stream)?)),
            _ => Err(ImageStreamError::Malformed("there is no such answer")),
        }
    }

    /// Says that nothing more is wanted.
    ///
    /// # Errors
    /// [`ImageStreamError::BrokeOff`].
    pub fn end(mut self) -> Result<(), ImageStreamError> {
        self.stream.write_all(&[END])?;
        Ok(self.stream.flush()?)
    }

    /// Says why this image is not taken.
    ///
    /// # Errors
    /// [`ImageStreamError::BrokeOff`].
    pub fn refuse(mut self, reason: &str) -> Result<(), ImageStreamError> {
        Ok(put_reason(&mut self.stream, reason)?)
    }
}

fn take_reason(from: &mut impl Read) -> Result<String, ImageStreamError> {
    let length = u32::from_le_bytes(take(from)?) as usize;
    if length > REASON_BYTES_MAX {
        return Err(ImageStreamError::Malformed("a reason is too long"));
    }
    let mut reason = vec![0; length];
    from.read_exact(&mut reason)?;
    Ok(String::from_utf8_lossy(&reason).into_owned())
}

fn put_reason(to: &mut impl Write, reason: &str) -> io::Result<()> {
    let reason = &reason.as_bytes()[..reason.len().min(REASON_BYTES_MAX)];
    to.write_all(&[REASON])?;
    to.write_all(&(reason.len() as u32).to_le_bytes())?;
    to.write_all(reason)?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    const SIZE_BYTES: u64 = 3 << 20;

    /// A client with an image of zeroes and, from its second megabyte on, sevens.
    fn client(stream: UnixStream) -> thread::JoinHandle<Result<(), ImageStreamError>> {
        thread::spawn(move || {
            ImageGiver::begin(stream, SIZE_BYTES)?.answer(|offset, into| {
                into.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = 7 * u8::from(at >= 1 << 20));
                Ok(())
            })
        })
    }

    #[test]
    fn what_is_asked_for_comes_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = client(theirs);
        let mut taker = ImageTaker::begin(ours).unwrap();
        assert_eq!(taker.size_bytes(), SIZE_BYTES);
        let (first, second) = (Extent::between(0, 1 << 20), Extent::between((1 << 20) - 1, (1 << 20) + 1));
        taker.ask(first).unwrap();
        taker.ask(second).unwrap();
        let mut whole = vec![9; 1 << 20];
        taker.answer(&mut whole).unwrap();
        assert!(whole.iter().all(|byte| *byte == 0));
        let mut two = [9; 2];
        taker.answer(&mut two).unwrap();
        assert_eq!(two, [0, 7]);
        taker.end().unwrap();
        client.join().unwrap().unwrap();
    }

    #[test]
    fn a_question_beyond_the_image_is_not_answered() {
        for (offset, length) in [(SIZE_BYTES, 1), (u64::MAX, 2), (0, 0), (0, (1 << 20) + 1)] {
            let (mut ours, theirs) = UnixStream::pair().unwrap();
            let client = client(theirs);
            ours.write_all(&[READ]).unwrap();
            ours.write_all(&u64::to_le_bytes(offset)).unwrap();
            ours.write_all(&u32::to_le_bytes(length)).unwrap();
            let refused = client.join().unwrap().unwrap_err();
            assert!(matches!(refused, ImageStreamError::Malformed(_)), "{offset} {length}: {refused}");
        }
    }

    #[test]
    fn each_end_says_why_it_does_not_go_on() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = client(theirs);
        ImageTaker::begin(ours).unwrap().refuse("it is another image").unwrap();
        assert_eq!(client.join().unwrap().unwrap_err().to_string(), "it is another image");

        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = thread::spawn(move || {
            ImageGiver::begin(theirs, SIZE_BYTES)?.answer(|_, _| Err(io::Error::other("a bad sector")))
        });
        let mut taker = ImageTaker::begin(ours).unwrap();
        taker.ask(Extent::between(0, 512)).unwrap();
        let told = taker.answer(&mut [0; 512]).unwrap_err();
        assert!(matches!(&told, ImageStreamError::Refused(reason) if reason == "a bad sector"), "{told}");
        client.join().unwrap().unwrap_err();
    }

    #[test]
    fn what_offers_no_image_is_refused() {
        let offers: [&[u8]; 4] = [
            b"SRDISK01\0\0\x10\0\0\0\0\0",
            b"SRIMAGE1\0\0\0\0\0\0\0\0",
            b"SRIMAGE1\xff\xff\xff\xff\xff\xff\xff\xff",
            b"SRIM",
        ];
        for offer in offers {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(offer).unwrap();
            drop(theirs);
            assert!(ImageTaker::begin(ours).is_err(), "{offer:?}");
        }
    }
}
