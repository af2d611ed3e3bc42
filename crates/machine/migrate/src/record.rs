//! Records: how a stream of bytes goes over the wire.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 1 | kind: 1 open, 2 data, 3 message of a relay, 4 end |
//! | 1 | 3 | length of the text, big-endian; 1 to 65,536 for data and messages, otherwise 0 |
//! | 4 | | text, AES-256-GCM; as it is if the grant says so |
//! | end − 16 | 16 | tag, over text and head |
//!
//! Of a text that is not encrypted, the tag is that of an empty one with head and text beside it
//! (GMAC, NIST SP 800-38D): it can be read, and not changed. Head and lengths are the same, and a
//! record with an encrypted text is none with a plain one, nor the other way round. The grant
//! decides which it is, and is in the keys (`handshake`); nothing on the wire does.
//!
//! The nonce is the record's number in its stream and is not sent, so a record is good in its place
//! only. A stream ends with a record that says so; without it, it is cut off. After
//! [`RECORDS_PER_KEY_MAX`] records both ends go on to the next key.

use strongroom_crypto::CryptoError;
use strongroom_crypto::aead::TAG_BYTES;
use strongroom_crypto::records::{RECORDS_PER_KEY_MAX, RecordOpener, RecordSealer};
use strongroom_keyserver::grant::Secrecy;
use strongroom_memory::secret::SecretBytes;
use thiserror::Error;
use zeroize::Zeroize;

use crate::keys::next_key;

/// The most text of a record, in bytes.
pub const TEXT_BYTES_MAX: usize = 64 << 10;
/// Bytes of a head.
pub const HEAD_BYTES: usize = 4;
/// Bytes of the longest record.
pub const RECORD_BYTES_MAX: usize = HEAD_BYTES + TEXT_BYTES_MAX + TAG_BYTES;
/// Bytes of a record beside its text.
pub const OVERHEAD_BYTES: usize = HEAD_BYTES + TAG_BYTES;

/// Whether this is the lab's build, whose records protect nothing: neither secret nor with a tag
/// that anybody verifies. What encryption costs is measured beside it. The program is not compiled
/// with it (`cli`).
pub const IS_NULL: bool = option_env!("STRONGROOM_NULL_CIPHER").is_some();

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The first of a channel: its sender has the channel's key.
    Open,
    /// Bytes of QEMU's.
    Data,
    /// A message of a relay.
    Message,
    /// The last of a stream.
    End,
}

/// Why a record is not taken.
#[derive(Debug, Error)]
pub enum RecordError {
    /// Its head is of no record.
    #[error("a record has an impossible head")]
    Head,
    /// It is not the next record of this stream, or not as it was sent.
    #[error("a record was changed, left out, repeated or put in another place")]
    NotTheNext,
    /// The stream stops without an end.
    #[error("the stream was cut off before its end")]
    CutOff,
    /// Something follows the end.
    #[error("something follows the end of the stream")]
    AfterTheEnd,
    /// A genuine record of a kind that has no place here.
    #[error("a record has no place here")]
    OutOfPlace,
    /// The cryptographic library failed.
    #[error(transparent)]
    Crypto(CryptoError),
}

/// What a record's head says, before it is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    kind: Kind,
    text_bytes: usize,
}

impl Head {
    /// Reads a head. The length of a record is within [`RECORD_BYTES_MAX`], whatever it says.
    ///
    /// # Errors
    /// [`RecordError::Head`].
    pub fn read([kind, high, middle, low]: [u8; HEAD_BYTES]) -> Result<Self, RecordError> {
        let text_bytes = u32::from_be_bytes([0, high, middle, low]) as usize;
        let (kind, has_text) = match kind {
            1 => (Kind::Open, false),
            2 => (Kind::Data, true),
            3 => (Kind::Message, true),
            4 => (Kind::End, false),
            _ => return Err(RecordError::Head),
        };
        if text_bytes > TEXT_BYTES_MAX || (text_bytes > 0) != has_text {
            return Err(RecordError::Head);
        }
        Ok(Self { kind, text_bytes })
    }

    /// Bytes of the whole record.
    pub fn record_bytes(self) -> usize {
        OVERHEAD_BYTES + self.text_bytes
    }

    fn bytes(kind: Kind, text_bytes: usize) -> [u8; HEAD_BYTES] {
        let kind = match kind {
            Kind::Open => 1,
            Kind::Data => 2,
            Kind::Message => 3,
            Kind::End => 4,
        };
        let [_, high, middle, low] = (text_bytes as u32).to_be_bytes();
        [kind, high, middle, low]
    }
}

/// The sending end of a stream.
#[derive(Debug)]
pub struct Sealer {
    sealer: RecordSealer,
    key: SecretBytes,
    secrecy: Secrecy,
    records_per_key: u64,
}

impl Sealer {
    /// Begins a stream under its first key.
    ///
    /// # Errors
    /// If there is no memory for the key.
    pub fn new(key: SecretBytes, secrecy: Secrecy) -> Result<Self, CryptoError> {
        Ok(Self { sealer: RecordSealer::new(&key)?, key, secrecy, records_per_key: RECORDS_PER_KEY_MAX })
    }

    /// Makes the next record in place: `record` has room for a head, then the text, then room for a
    /// tag.
    ///
    /// # Errors
    /// Those of the library; the text is then wiped.
    ///
    /// # Panics
    /// If `record` is shorter than [`OVERHEAD_BYTES`] or longer than [`RECORD_BYTES_MAX`].
    pub fn seal(&mut self, kind: Kind, record: &mut [u8]) -> Result<(), CryptoError> {
        assert!((OVERHEAD_BYTES..=RECORD_BYTES_MAX).contains(&record.len()), "{} bytes", record.len());
        if self.sealer.count() == self.records_per_key {
            self.key = next_key(&self.key)?;
            self.sealer = RecordSealer::new(&self.key)?;
        }
        let head = Head::bytes(kind, record.len() - OVERHEAD_BYTES);
        let (front, tag) = record.split_at_mut(record.len() - TAG_BYTES);
        front[..HEAD_BYTES].copy_from_slice(&head);
        if IS_NULL {
            return Ok(());
        }
        let sealed = match self.secrecy {
            Secrecy::Encrypted => self.sealer.seal(&head, &mut front[HEAD_BYTES..])?,
            Secrecy::Plain => self.sealer.seal(front, &mut []).inspect_err(|_| front.zeroize())?,
        };
        tag.copy_from_slice(&sealed);
        Ok(())
    }

    /// A record with this short text, or none.
    ///
    /// # Errors
    /// As [`seal`](Self::seal).
    pub fn sealed(&mut self, kind: Kind, text: &[u8]) -> Result<Vec<u8>, CryptoError> {
        let mut record = [&[0; HEAD_BYTES], text, &[0; TAG_BYTES]].concat();
        self.seal(kind, &mut record)?;
        Ok(record)
    }
}

/// The receiving end of a stream.
#[derive(Debug)]
pub struct Opener {
    opener: RecordOpener,
    key: SecretBytes,
    secrecy: Secrecy,
    records_per_key: u64,
    has_ended: bool,
}

impl Opener {
    /// Begins a stream under its first key.
    ///
    /// # Errors
    /// If there is no memory for the key.
    pub fn new(key: SecretBytes, secrecy: Secrecy) -> Result<Self, CryptoError> {
        let opener = RecordOpener::new(&key)?;
        Ok(Self { opener, key, secrecy, records_per_key: RECORDS_PER_KEY_MAX, has_ended: false })
    }

    /// Opens the next record in place; `record` is as long as its [`Head`] says. Returns its kind
    /// and its text.
    ///
    /// # Errors
    /// [`RecordError`]: the stream is of no further use. The text is wiped.
    pub fn open<'r>(&mut self, record: &'r mut [u8]) -> Result<(Kind, &'r mut [u8]), RecordError> {
        if self.has_ended {
            return Err(RecordError::AfterTheEnd);
        }
        let Some((head, _)) = record.split_first_chunk::<HEAD_BYTES>() else {
            return Err(RecordError::Head);
        };
        let head = *head;
        let Head { kind, .. } = Head::read(head)?;
        if self.opener.count() == self.records_per_key {
            self.key = next_key(&self.key).map_err(RecordError::Crypto)?;
            self.opener = RecordOpener::new(&self.key).map_err(RecordError::Crypto)?;
        }
        if IS_NULL {
            self.has_ended = kind == Kind::End;
            let end = record.len() - TAG_BYTES;
            return Ok((kind, &mut record[HEAD_BYTES..end]));
        }
        let text = self.text(head, record).map_err(|error| match error {
            CryptoError::Authentication { .. } => RecordError::NotTheNext,
            other => RecordError::Crypto(other),
        })?;
        self.has_ended = kind == Kind::End;
        Ok((kind, text))
    }

    fn text<'r>(
        &mut self,
        head: [u8; HEAD_BYTES],
        record: &'r mut [u8],
    ) -> Result<&'r mut [u8], CryptoError> {
        match self.secrecy {
            Secrecy::Encrypted => self.opener.open(&head, &mut record[HEAD_BYTES..]),
            Secrecy::Plain => {
                let end = record.len().saturating_sub(TAG_BYTES).max(HEAD_BYTES);
                let (head_and_text, tag) = record.split_at_mut(end);
                self.opener.open(head_and_text, tag).inspect_err(|_| head_and_text.zeroize())?;
                Ok(&mut head_and_text[HEAD_BYTES..])
            }
        }
    }

    /// Whether the end has come.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use strongroom_crypto::aead::{NONCE_BYTES, Sealed, open};

    use super::*;

    const EITHER: [Secrecy; 2] = [Secrecy::Encrypted, Secrecy::Plain];

    fn both(key: &SecretBytes, secrecy: Secrecy) -> (Sealer, Opener) {
        let key = || key.duplicate().unwrap();
        (Sealer::new(key(), secrecy).unwrap(), Opener::new(key(), secrecy).unwrap())
    }

    fn key() -> SecretBytes {
        SecretBytes::random(32).unwrap()
    }

    #[test]
    fn a_record_is_as_the_documentation_says() {
        for secrecy in EITHER {
            let (mut sealer, mut opener) = both(&key(), secrecy);
            let mut record = sealer.sealed(Kind::Data, &[9; 300]).unwrap();
            assert_eq!(record.len(), 320);
            assert_eq!(record[..4], [2, 0, 1, 44]);
            assert_eq!(record[4..304] == [9; 300], secrecy == Secrecy::Plain);
            assert_eq!(Head::read([2, 0, 1, 44]).unwrap().record_bytes(), 320);
            assert_eq!(opener.open(&mut record).unwrap(), (Kind::Data, &mut [9; 300][..]));
            let mut longest = sealer.sealed(Kind::Data, &vec![1; TEXT_BYTES_MAX]).unwrap();
            assert_eq!(longest.len(), RECORD_BYTES_MAX);
            assert_eq!(opener.open(&mut longest).unwrap().1, vec![1; TEXT_BYTES_MAX]);
        }
    }

    #[test]
    fn the_tag_of_a_plain_record_is_gmac_of_its_head_and_text() {
        let key = key();
        let (mut sealer, _) = both(&key, Secrecy::Plain);
        for number in 0..3 {
            let record = sealer.sealed(Kind::Data, b"a page").unwrap();
            let mut nonce = [0; NONCE_BYTES];
            nonce[NONCE_BYTES - 1] = number;
            let (head_and_text, tag) = record.split_at(record.len() - TAG_BYTES);
            let sealed = Sealed { nonce, ciphertext_and_tag: tag.to_vec() };
            assert_eq!(open(&key, head_and_text, &sealed).unwrap().expose(), b"");
        }
    }

    /// Both ends have the same key, which no grant of two kinds gives them.
    #[test]
    fn an_encrypted_record_is_no_plain_one_nor_the_other_way_round() {
        let key = key();
        for (sent, awaited) in [(EITHER[0], EITHER[1]), (EITHER[1], EITHER[0])] {
            let ((mut sealer, _), (_, mut opener)) = (both(&key, sent), both(&key, awaited));
            let mut record = sealer.sealed(Kind::Data, b"a page").unwrap();
            assert!(matches!(opener.open(&mut record), Err(RecordError::NotTheNext)));
            assert!(!record.windows(6).any(|part| part == b"a page"), "nothing of it is left");
        }
    }

    #[test]
    fn no_head_claims_more_than_a_record_has() {
        for head in [
            [2, 1, 0, 1],
            [2, 0xff, 0xff, 0xff],
            [2, 0, 0, 0],
            [4, 0, 0, 1],
            [1, 0, 0, 1],
            [0; 4],
            [5, 0, 0, 1],
        ] {
            assert!(matches!(Head::read(head), Err(RecordError::Head)), "{head:?}");
        }
    }

    #[test]
    fn nothing_follows_the_end() {
        let (mut sealer, mut opener) = both(&key(), Secrecy::Encrypted);
        let mut end = sealer.sealed(Kind::End, &[]).unwrap();
        assert!(!opener.has_ended());
        assert_eq!(opener.open(&mut end).unwrap().0, Kind::End);
        assert!(opener.has_ended());
        let mut more = sealer.sealed(Kind::Data, b"more").unwrap();
        assert!(matches!(opener.open(&mut more), Err(RecordError::AfterTheEnd)));
    }

    #[test]
    fn the_kind_of_a_record_is_authenticated() {
        for secrecy in EITHER {
            let (mut sealer, mut opener) = both(&key(), secrecy);
            let mut record = sealer.sealed(Kind::Data, b"text").unwrap();
            record[0] = 3;
            assert!(matches!(opener.open(&mut record), Err(RecordError::NotTheNext)));
        }
    }

    #[test]
    fn a_stream_goes_on_under_other_keys() {
        let key = key();
        let (mut sealer, mut opener) = both(&key, Secrecy::Encrypted);
        (sealer.records_per_key, opener.records_per_key) = (3, 3);
        let records: Vec<_> = (0..10_u8).map(|at| sealer.sealed(Kind::Data, &[at; 50]).unwrap()).collect();
        for (at, record) in records.iter().enumerate() {
            assert_eq!(opener.open(&mut record.clone()).unwrap().1, [at as u8; 50]);
        }
        // Under the first key alone, the fourth record is not to be opened.
        let (_, mut first) = both(&key, Secrecy::Encrypted);
        records[..3].iter().for_each(|record| assert!(first.open(&mut record.clone()).is_ok()));
        assert!(matches!(first.open(&mut records[3].clone()), Err(RecordError::NotTheNext)));
    }

    proptest! {
        #[test]
        fn what_an_attacker_makes_of_a_stream_is_a_prefix_of_it_or_an_error(
            texts in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..40), 1..8),
            is_plain: bool, deed in 0..6_u8, at: prop::sample::Index, to: prop::sample::Index, bit: prop::sample::Index,
        ) {
            let (mut sealer, mut opener) = both(&key(), EITHER[usize::from(is_plain)]);
            let mut records: Vec<_> = texts.iter().map(|text| sealer.sealed(Kind::Data, text).unwrap()).collect();
            records.push(sealer.sealed(Kind::End, &[]).unwrap());
            let (at, to) = (at.index(records.len()), to.index(records.len()));
            match deed {
                0 => drop(records.remove(at)),
                1 => records.insert(to, records[at].clone()),
                2 => records.swap(at, to),
                3 => records.truncate(at),
                4 => {
                    let bit = bit.index(records[at].len() * 8);
                    records[at][bit / 8] ^= 1 << (bit % 8);
                }
                _ => {}
            }
            let is_as_sent = deed == 5 || (deed == 2 && at == to);
            let wire = records.concat();
            let (mut rest, mut opened) = (&wire[..], Vec::new());
            let whole = loop {
                let Some((head, _)) = rest.split_first_chunk() else { break opener.has_ended() };
                let Ok(head) = Head::read(*head) else { break false };
                let Some((record, after)) = rest.split_at_checked(head.record_bytes()) else { break false };
                let mut record = record.to_vec();
                match opener.open(&mut record) {
                    Ok((Kind::Data, text)) => opened.push(text.to_vec()),
                    Ok(_) => {}
                    Err(_) => break false,
                }
                rest = after;
            };
            prop_assert!(texts.starts_with(&opened));
            prop_assert_eq!(whole, is_as_sent);
        }
    }
}
