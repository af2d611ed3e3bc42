//! The volumes of a VM on their way to another host, inside TLS: the host that gets them asks, and
//! the one that has them answers.
//!
//! ```text
//! asked     'V' name          a volume: what it is, and its layers
//!           'L' id (16 bytes), 0; or 1, digest (32 bytes): a layer of that volume, unless it has that digest
//!           'F' name          a file beside the volumes
//!           'R'               what was asked for is there: the rest, once the volumes of a VM that runs are closed
//!           'E'               everything is there
//! answered  'V' length (4 bytes), descriptor, count (2 bytes), of each layer its id and allocated bytes (8)
//!           'D' part (1 byte), offset (8 bytes), length (4 bytes), data; any number of them, and then
//!           'L' digest (32 bytes) of the layer; alone, if it is that which was asked with
//!           'F' length (4 bytes), content
//!           'N'               there is none of that name, or the layer still changes
//!           'W'               to 'R': clients have written much, so the volumes are to be asked for again
//!           'C'               to 'R': they are closed, and the rest follows unasked:
//!             'v' name, the answer 'V'; of each layer that was not given 'l' id, the answer to 'L'; at last 'E'
//!           'E'               to 'E'
//!           'X' length (4 bytes), a text: it cannot be given, and this is the reason
//! ```
//!
//! Numbers are little-endian, a name is its length (1 byte) and as many bytes. What descriptors and
//! the files of layers are, the callers know. A reader never believes a length.

use std::fmt;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::ops::ControlFlow;

use strongroom_types::LayerId;
use thiserror::Error;
use zeroize::Zeroizing;

/// The most data of an answer, in bytes.
pub const VOLUME_DATA_BYTES_MAX: usize = 1 << 20;
/// The longest descriptor, and the longest file beside volumes, in bytes.
pub const VOLUME_FILE_BYTES_MAX: usize = 16 << 20;
/// The longest reason, in bytes.
const REASON_BYTES_MAX: usize = 64 << 10;
/// Heads are gathered; data that is longer passes by.
const BUFFER_BYTES: usize = 64 << 10;
const DIGEST_BYTES: usize = 32;

/// Why volumes do not pass.
#[derive(Debug, Error)]
pub enum VolumesError {
    /// The connection failed, or was closed too early.
    #[error("the connection to the other host broke off: {0}")]
    BrokeOff(#[from] io::Error),
    /// What came is no question or no answer to the last one.
    #[error("the other host says something else than was expected: {0}")]
    Malformed(&'static str),
    /// The other host cannot give it.
    #[error("the other host says: {0}")]
    Refused(String),
}

/// A question of the host that gets the volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// A volume. Questions for layers are about it from then on.
    Volume(String),
    /// The content of a layer.
    Layer {
        /// The layer.
        layer: LayerId,
        /// The digest of what is there already.
        left_there: Option<[u8; DIGEST_BYTES]>,
    },
    /// A file beside the volumes.
    File(String),
    /// What was asked for is there. Answered when there is more.
    Rest,
    /// Everything is there.
    End,
}

/// The answer to the question for the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Clients have written much: the volumes are to be asked for again.
    Grown,
    /// The volumes are closed, and the rest follows.
    Closed,
}

/// A part of the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RestPart {
    /// A volume. Layers are of it from then on.
    Volume(String, GivenVolume),
    /// A layer, whose content follows.
    Layer(LayerId),
    /// That was all.
    End,
}

/// A volume as the other host has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenVolume {
    /// Its descriptor, as it is stored.
    pub descriptor: Vec<u8>,
    /// Its layers, and the bytes that their files have allocated.
    pub layers: Vec<(LayerId, u64)>,
}

/// The end that has the volumes.
pub struct VolumeGiver<R, W: Write> {
    from: BufReader<R>,
    to: BufWriter<W>,
}

impl<R: Read, W: Write> VolumeGiver<R, W> {
    /// The two directions of a connection.
    pub fn new(from: R, to: W) -> Self {
        Self {
            from: BufReader::with_capacity(BUFFER_BYTES, from),
            to: BufWriter::with_capacity(BUFFER_BYTES, to),
        }
    }

    /// Waits for the next question, which is answered by one of the other methods.
    ///
    /// # Errors
    /// [`VolumesError`], as for all methods here.
    pub fn next_asked(&mut self) -> Result<Asked, VolumesError> {
        let from = &mut self.from;
        match take(from)? {
            [b'V'] => Ok(Asked::Volume(take_name(from)?)),
            [b'F'] => Ok(Asked::File(take_name(from)?)),
            [b'R'] => Ok(Asked::Rest),
            [b'E'] => Ok(Asked::End),
            [b'L'] => {
                let layer = LayerId::from_bytes(take(from)?);
                let left_there = match take(from)? {
                    [0] => None,
                    [1] => Some(take(from)?),
                    _ => return Err(VolumesError::Malformed("a digest is there or is not")),
                };
                Ok(Asked::Layer { layer, left_there })
            }
            _ => Err(VolumesError::Malformed("there is no such question")),
        }
    }

    /// Answers with a volume.
    pub fn volume(&mut self, volume: &GivenVolume) -> Result<(), VolumesError> {
        self.put_volume(volume)?;
        Ok(self.to.flush()?)
    }

    /// Answers how it is about the rest.
    pub fn rest(&mut self, rest: Rest) -> Result<(), VolumesError> {
        self.to.write_all(match rest {
            Rest::Grown => b"W",
            Rest::Closed => b"C",
        })?;
        Ok(self.to.flush()?)
    }

    /// Begins a volume of the rest.
    pub fn rest_of(&mut self, name: &str, volume: &GivenVolume) -> Result<(), VolumesError> {
        let length = u8::try_from(name.len()).map_err(io::Error::other)?;
        self.to.write_all(&[b'v', length])?;
        self.to.write_all(name.as_bytes())?;
        self.put_volume(volume)
    }

    /// Begins a layer of the rest.
    pub fn rest_of_layer(&mut self, layer: LayerId) -> Result<(), VolumesError> {
        self.to.write_all(b"l")?;
        Ok(self.to.write_all(layer.as_bytes())?)
    }

    fn put_volume(&mut self, volume: &GivenVolume) -> Result<(), VolumesError> {
        self.to.write_all(b"V")?;
        self.put_long(&volume.descriptor)?;
        let count = u16::try_from(volume.layers.len()).map_err(io::Error::other)?;
        self.to.write_all(&count.to_le_bytes())?;
        for (layer, bytes) in &volume.layers {
            self.to.write_all(layer.as_bytes())?;
            self.to.write_all(&bytes.to_le_bytes())?;
        }
        Ok(())
    }

    /// Answers with a part of a layer, at most [`VOLUME_DATA_BYTES_MAX`].
    pub fn data(&mut self, part: u8, offset: u64, data: &[u8]) -> Result<(), VolumesError> {
        self.to.write_all(&[b'D', part])?;
        self.to.write_all(&offset.to_le_bytes())?;
        self.put_long(data)
    }

    /// Answers with the end of a layer.
    pub fn layer(&mut self, digest: &[u8; DIGEST_BYTES]) -> Result<(), VolumesError> {
        self.to.write_all(b"L")?;
        self.to.write_all(digest)?;
        Ok(self.to.flush()?)
    }

    /// Answers with a file.
    pub fn file(&mut self, content: &[u8]) -> Result<(), VolumesError> {
        self.to.write_all(b"F")?;
        self.put_long(content)?;
        Ok(self.to.flush()?)
    }

    /// Answers that there is no volume, or no file, of that name, or that a layer still changes.
    pub fn nothing(&mut self) -> Result<(), VolumesError> {
        self.to.write_all(b"N")?;
        Ok(self.to.flush()?)
    }

    /// Answers to the end, or ends the rest.
    pub fn end(mut self) -> Result<(), VolumesError> {
        self.to.write_all(b"E")?;
        Ok(self.to.flush()?)
    }

    /// Answers that it cannot be given, also after data of a layer.
    pub fn refuse(mut self, reason: &str) -> Result<(), VolumesError> {
        let reason = reason.as_bytes();
        self.to.write_all(b"X")?;
        self.put_long(&reason[..reason.len().min(REASON_BYTES_MAX)])?;
        Ok(self.to.flush()?)
    }

    fn put_long(&mut self, bytes: &[u8]) -> Result<(), VolumesError> {
        let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
        self.to.write_all(&length.to_le_bytes())?;
        Ok(self.to.write_all(bytes)?)
    }
}

/// Takes data of a layer: the number of the part, where it lies there, and the data.
pub type TakeData<'a, E> = dyn FnMut(u8, u64, &[u8]) -> Result<ControlFlow<()>, E> + 'a;

/// How the answer with a layer has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerTaken {
    /// With its digest.
    Whole([u8; DIGEST_BYTES]),
    /// The layer still changes where it is.
    Changes,
    /// Early. The connection is of no more use.
    Ended,
}

const NO_VOLUME: VolumesError = VolumesError::Malformed("that is no volume");

/// The end that gets the volumes.
pub struct VolumeTaker<R, W> {
    from: BufReader<R>,
    to: W,
    data: Zeroizing<Vec<u8>>,
}

impl<R: Read, W: Write> VolumeTaker<R, W> {
    /// The two directions of a connection.
    pub fn new(from: R, to: W) -> Self {
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        Self { from, to, data: Zeroizing::new(Vec::new()) }
    }

    /// Asks for a volume; `None` if there is none of that name.
    ///
    /// # Errors
    /// [`VolumesError`], as for all methods here.
    pub fn volume(&mut self, name: &str) -> Result<Option<GivenVolume>, VolumesError> {
        self.ask_named(b'V', name)?;
        match self.answer()? {
            b'N' => Ok(None),
            b'V' => self.take_volume().map(Some),
            _ => Err(NO_VOLUME),
        }
    }

    fn take_volume(&mut self) -> Result<GivenVolume, VolumesError> {
        let descriptor = self.take_long(VOLUME_FILE_BYTES_MAX)?.to_vec();
        let count = u16::from_le_bytes(self.take()?);
        let mut layers = Vec::new();
        for _ in 0..count {
            let layer = LayerId::from_bytes(self.take()?);
            layers.push((layer, u64::from_le_bytes(self.take()?)));
        }
        Ok(GivenVolume { descriptor, layers })
    }

    /// Says that what was asked for is there, and waits until there is more.
    pub fn rest(&mut self) -> Result<Rest, VolumesError> {
        self.put(b"R")?;
        match self.answer()? {
            b'W' => Ok(Rest::Grown),
            b'C' => Ok(Rest::Closed),
            _ => Err(VolumesError::Malformed("that says nothing about the rest")),
        }
    }

    /// The next part of the rest, once the volumes are closed.
    pub fn rest_part(&mut self) -> Result<RestPart, VolumesError> {
        match self.answer()? {
            b'v' => {
                let name = take_name(&mut self.from)?;
                match self.answer()? {
                    b'V' => Ok(RestPart::Volume(name, self.take_volume()?)),
                    _ => Err(NO_VOLUME),
                }
            }
            b'l' => Ok(RestPart::Layer(LayerId::from_bytes(self.take()?))),
            b'E' => Ok(RestPart::End),
            _ => Err(VolumesError::Malformed("that is no part of the rest")),
        }
    }

    /// Asks for a layer of the last volume, and takes its [content](Self::content). No data comes
    /// if the digest is `left_there`.
    ///
    /// # Errors
    /// Also those of `take`.
    pub fn layer<E: From<VolumesError>>(
        &mut self,
        layer: LayerId,
        left_there: Option<&[u8; DIGEST_BYTES]>,
        take: &mut TakeData<'_, E>,
    ) -> Result<LayerTaken, E> {
        let mut question = vec![b'L'];
        question.extend_from_slice(layer.as_bytes());
        question.push(u8::from(left_there.is_some()));
        question.extend_from_slice(left_there.map_or(&[], |digest| digest));
        self.put(&question)?;
        self.content(take)
    }

    /// Gives the data of a layer to `take`.
    ///
    /// # Errors
    /// Also those of `take`.
    pub fn content<E: From<VolumesError>>(&mut self, take: &mut TakeData<'_, E>) -> Result<LayerTaken, E> {
        let mut has_begun = false;
        loop {
            match self.answer()? {
                b'D' => {
                    let [part] = self.take()?;
                    let offset = u64::from_le_bytes(self.take()?);
                    self.take_long(VOLUME_DATA_BYTES_MAX)?;
                    if take(part, offset, &self.data)?.is_break() {
                        return Ok(LayerTaken::Ended);
                    }
                    has_begun = true;
                }
                b'L' => return Ok(LayerTaken::Whole(self.take()?)),
                b'N' if !has_begun => return Ok(LayerTaken::Changes),
                _ => return Err(VolumesError::Malformed("that is no part of a layer").into()),
            }
        }
    }

    /// Asks for a file beside the volumes; `None` if there is none of that name.
    pub fn file(&mut self, name: &str) -> Result<Option<Vec<u8>>, VolumesError> {
        self.ask_named(b'F', name)?;
        match self.answer()? {
            b'N' => Ok(None),
            b'F' => Ok(Some(self.take_long(VOLUME_FILE_BYTES_MAX)?.to_vec())),
            _ => Err(VolumesError::Malformed("that is no file")),
        }
    }

    /// Says that everything is there, and waits until the other host has heard so.
    pub fn end(mut self) -> Result<(), VolumesError> {
        self.put(b"E")?;
        match self.answer()? {
            b'E' => Ok(()),
            _ => Err(VolumesError::Malformed("that is no end")),
        }
    }

    fn ask_named(&mut self, kind: u8, name: &str) -> Result<(), VolumesError> {
        let length = u8::try_from(name.len()).map_err(io::Error::other)?;
        self.put(&[&[kind, length], name.as_bytes()].concat())
    }

    fn put(&mut self, question: &[u8]) -> Result<(), VolumesError> {
        self.to.write_all(question)?;
        Ok(self.to.flush()?)
    }

    /// The kind of the answer, unless it is a refusal.
    fn answer(&mut self) -> Result<u8, VolumesError> {
        match self.take()? {
            [b'X'] => {
                let reason = self.take_long(REASON_BYTES_MAX)?;
                Err(VolumesError::Refused(String::from_utf8_lossy(reason).into_owned()))
            }
            [kind] => Ok(kind),
        }
    }

    fn take<const BYTES: usize>(&mut self) -> Result<[u8; BYTES], VolumesError> {
        Ok(take(&mut self.from)?)
    }

    fn take_long(&mut self, most: usize) -> Result<&[u8], VolumesError> {
        let length = u32::from_le_bytes(self.take()?) as usize;
        if length > most {
            return Err(VolumesError::Malformed("it is too long"));
        }
        self.data.resize(length, 0);
        self.from.read_exact(&mut self.data)?;
        Ok(&self.data)
    }
}

/// Takes so many bytes.
pub(crate) fn take<const BYTES: usize>(from: &mut impl Read) -> io::Result<[u8; BYTES]> {
    let mut bytes = [0; BYTES];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_name(from: &mut impl Read) -> Result<String, VolumesError> {
    let [length] = take(from)?;
    let mut name = vec![0; length.into()];
    from.read_exact(&mut name)?;
    String::from_utf8(name).map_err(|_| VolumesError::Malformed("a name is no text"))
}

impl<R, W: Write> fmt::Debug for VolumeGiver<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeGiver").finish_non_exhaustive()
    }
}

impl<R, W> fmt::Debug for VolumeTaker<R, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeTaker").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    type Ends = (VolumeGiver<UnixStream, UnixStream>, VolumeTaker<UnixStream, UnixStream>);

    fn ends() -> Ends {
        let (giver, taker) = UnixStream::pair().unwrap();
        let (from, back) = (giver.try_clone().unwrap(), taker.try_clone().unwrap());
        (VolumeGiver::new(from, giver), VolumeTaker::new(back, taker))
    }

    fn id(fill: u8) -> LayerId {
        LayerId::from_bytes([fill; 16])
    }

    #[test]
    fn what_is_asked_is_answered() {
        let (mut giver, mut taker) = ends();
        let given = GivenVolume { descriptor: vec![7; 300], layers: vec![(id(1), 4096), (id(2), 0)] };
        let expected = given.clone();
        let gives = thread::spawn(move || {
            assert_eq!(giver.next_asked().unwrap(), Asked::Volume("disk0".to_owned()));
            giver.volume(&given).unwrap();
            assert_eq!(giver.next_asked().unwrap(), Asked::Layer { layer: id(1), left_there: None });
            giver.data(2, 1 << 40, &[9; VOLUME_DATA_BYTES_MAX]).unwrap();
            giver.data(0, 0, &[8; 4096]).unwrap();
            giver.layer(&[5; 32]).unwrap();
            let left_there = Some([6; 32]);
            assert_eq!(giver.next_asked().unwrap(), Asked::Layer { layer: id(2), left_there });
            giver.layer(&[6; 32]).unwrap();
            assert_eq!(giver.next_asked().unwrap(), Asked::File("vm.json".to_owned()));
            giver.file(b"{}").unwrap();
            assert_eq!(giver.next_asked().unwrap(), Asked::Volume("console".to_owned()));
            giver.nothing().unwrap();
            assert_eq!(giver.next_asked().unwrap(), Asked::End);
            giver.end().unwrap();
        });
        assert_eq!(taker.volume("disk0").unwrap(), Some(expected));
        let mut pieces = Vec::new();
        let mut keep = |part, offset, data: &[u8]| {
            pieces.push((part, offset, data.len(), data[0]));
            Ok::<_, VolumesError>(ControlFlow::Continue(()))
        };
        assert_eq!(taker.layer(id(1), None, &mut keep).unwrap(), LayerTaken::Whole([5; 32]));
        assert_eq!(taker.layer(id(2), Some(&[6; 32]), &mut keep).unwrap(), LayerTaken::Whole([6; 32]));
        assert_eq!(pieces, [(2, 1 << 40, VOLUME_DATA_BYTES_MAX, 9), (0, 0, 4096, 8)]);
        assert_eq!(taker.file("vm.json").unwrap().unwrap(), b"{}");
        assert_eq!(taker.volume("console").unwrap(), None);
        taker.end().unwrap();
        gives.join().unwrap();
    }

    #[test]
    fn the_rest_of_volumes_that_change_follows_unasked() {
        let (mut giver, mut taker) = ends();
        let given = GivenVolume { descriptor: vec![7; 300], layers: vec![(id(1), 4096)] };
        let expected = given.clone();
        let gives = thread::spawn(move || {
            assert_eq!(giver.next_asked().unwrap(), Asked::Layer { layer: id(1), left_there: None });
            giver.nothing().unwrap();
            assert_eq!(giver.next_asked().unwrap(), Asked::Rest);
            giver.rest(Rest::Grown).unwrap();
            assert_eq!(giver.next_asked().unwrap(), Asked::Rest);
            giver.rest(Rest::Closed).unwrap();
            giver.rest_of("disk0", &given).unwrap();
            giver.rest_of_layer(id(1)).unwrap();
            giver.data(0, 4096, &[8; 4096]).unwrap();
            giver.layer(&[5; 32]).unwrap();
            giver.end().unwrap();
        });
        let mut bytes = 0;
        let mut keep = |_, _, data: &[u8]| {
            bytes += data.len();
            Ok::<_, VolumesError>(ControlFlow::Continue(()))
        };
        assert_eq!(taker.layer(id(1), None, &mut keep).unwrap(), LayerTaken::Changes);
        assert_eq!(taker.rest().unwrap(), Rest::Grown);
        assert_eq!(taker.rest().unwrap(), Rest::Closed);
        assert_eq!(taker.rest_part().unwrap(), RestPart::Volume("disk0".to_owned(), expected));
        assert_eq!(taker.rest_part().unwrap(), RestPart::Layer(id(1)));
        assert_eq!(taker.content(&mut keep).unwrap(), LayerTaken::Whole([5; 32]));
        assert_eq!(taker.rest_part().unwrap(), RestPart::End);
        assert_eq!(bytes, 4096);
        gives.join().unwrap();
    }

    #[test]
    fn a_refusal_has_its_reason_also_in_the_middle_of_a_layer() {
        let (mut giver, mut taker) = ends();
        let gives = thread::spawn(move || {
            giver.next_asked().unwrap();
            giver.data(0, 0, &[1; 512]).unwrap();
            giver.refuse("the disk is dying").unwrap();
        });
        let mut keep = |_, _, _: &[u8]| Ok::<_, VolumesError>(ControlFlow::Continue(()));
        let refused = taker.layer(id(1), None, &mut keep).unwrap_err();
        assert!(refused.to_string().ends_with("the disk is dying"), "{refused}");
        gives.join().unwrap();
    }

    /// What a taker makes of an answer.
    fn taken(answer: &[u8]) -> [Result<(), VolumesError>; 6] {
        let taker = || VolumeTaker::new(answer, Vec::new());
        let mut keep = |_, _, data: &[u8]| {
            assert!(data.len() <= VOLUME_DATA_BYTES_MAX);
            Ok::<_, VolumesError>(ControlFlow::Continue(()))
        };
        [
            taker().volume("disk0").map(drop),
            taker().layer(id(1), None, &mut keep).map(drop),
            taker().file("vm.json").map(drop),
            taker().rest_part().map(drop),
            taker().rest().map(drop),
            taker().end(),
        ]
    }

    #[test]
    fn a_length_is_not_believed() {
        let huge = u32::MAX.to_le_bytes();
        let answers: [Vec<u8>; 5] = [
            [b"V".as_slice(), &huge].concat(),
            [b"D\0\0\0\0\0\0\0\0\0".as_slice(), &huge].concat(),
            [b"F".as_slice(), &huge].concat(),
            [b"v\x01aV".as_slice(), &huge].concat(),
            [b"X".as_slice(), &huge].concat(),
        ];
        for (at, answer) in answers.iter().enumerate() {
            let refused = &taken(answer)[at];
            assert!(matches!(refused, Err(VolumesError::Malformed(_))), "{at}: {refused:?}");
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_ends(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            taken(&bytes).into_iter().for_each(drop);
            let mut giver = VolumeGiver::new(&bytes[..], Vec::new());
            while let Ok(asked) = giver.next_asked() {
                prop_assert!(!matches!(&asked, Asked::Volume(name) if name.len() > 255));
            }
        }
    }
}
