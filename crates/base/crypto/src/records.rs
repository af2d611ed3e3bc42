//! AES-256-GCM (NIST SP 800-38D) of the records of a stream, in place, in their order.
//!
//! A record's nonce is its number, which both ends count and nobody sends: a record that is
//! missing, repeated, out of its order or of another stream does not authenticate. Therefore a key
//! is for one stream in one direction, and neither end can go back.
//!
//! The module refuses a nonce that is not higher than the one before (aws-lc's AEAD of TLS 1.3), so
//! that a mistake here cannot use one twice.

use aws_lc_rs::aead::{AES_256_GCM, Aad, Nonce, TlsProtocolId, TlsRecordOpeningKey, TlsRecordSealingKey};
use strongroom_memory::secret::SecretBytes;
use zeroize::Zeroize;

use crate::aead::{KEY_BYTES, NONCE_BYTES, TAG_BYTES};
use crate::error::{Algorithm, CryptoError, check_key, check_limit};

const ALGORITHM: Algorithm = Algorithm::Aes256Gcm;

/// The most records under one key. With records of 64 KiB they are 2^32 blocks, after which
/// somebody who reads all of them distinguishes them from random bytes with a probability of less
/// than 2^-64.
pub const RECORDS_PER_KEY_MAX: u64 = 1 << 20;

/// The sealing end of a stream. aws-lc-rs keeps the expanded key on the heap and wipes it on drop.
pub struct RecordSealer {
    key: TlsRecordSealingKey,
    number: u64,
}

impl RecordSealer {
    /// Begins with the first record under this key.
    ///
    /// # Errors
    /// [`CryptoError::KeyLength`] unless the key has [`KEY_BYTES`]; [`CryptoError::Library`].
    pub fn new(key: &SecretBytes) -> Result<Self, CryptoError> {
        check_key(ALGORITHM, key, KEY_BYTES)?;
        let key = TlsRecordSealingKey::new(&AES_256_GCM, TlsProtocolId::TLS13, key.expose());
        Ok(Self { key: key.map_err(|_| failed("EVP_AEAD_CTX_init"))?, number: 0 })
    }

    /// The records that it has sealed.
    pub fn count(&self) -> u64 {
        self.number
    }

    /// Encrypts the next record in place, and returns its tag. `associated_data` is authenticated
    /// with it.
    ///
    /// # Errors
    /// [`CryptoError::Limit`] after [`RECORDS_PER_KEY_MAX`]; [`CryptoError::Library`]. The text is
    /// wiped then.
    pub fn seal(&mut self, associated_data: &[u8], text: &mut [u8]) -> Result<[u8; TAG_BYTES], CryptoError> {
        let sealed = next(&mut self.number).and_then(|nonce| {
            let sealed = self.key.seal_in_place_separate_tag(nonce, Aad::from(associated_data), text);
            sealed.map_err(|_| failed("EVP_AEAD_CTX_seal_scatter"))
        });
        let tag = sealed.inspect_err(|_| text.zeroize())?;
        let mut bytes = [0; TAG_BYTES];
        bytes.copy_from_slice(tag.as_ref());
        Ok(bytes)
    }
}

/// The opening end of a stream.
pub struct RecordOpener {
    key: TlsRecordOpeningKey,
    number: u64,
}

impl RecordOpener {
    /// Begins with the first record under this key.
    ///
    /// # Errors
    /// As [`RecordSealer::new`].
    pub fn new(key: &SecretBytes) -> Result<Self, CryptoError> {
        check_key(ALGORITHM, key, KEY_BYTES)?;
        let key = TlsRecordOpeningKey::new(&AES_256_GCM, TlsProtocolId::TLS13, key.expose());
        Ok(Self { key: key.map_err(|_| failed("EVP_AEAD_CTX_init"))?, number: 0 })
    }

    /// The records that it has opened, or tried to.
    pub fn count(&self) -> u64 {
        self.number
    }

    /// Decrypts the next record, a text and the tag behind it, in place, and returns the text.
    ///
    /// # Errors
    /// [`CryptoError::Authentication`] if it is any other record; [`CryptoError::Limit`] after
    /// [`RECORDS_PER_KEY_MAX`]. The text is wiped then, and the stream has ended.
    pub fn open<'text>(
        &mut self,
        associated_data: &[u8],
        text_and_tag: &'text mut [u8],
    ) -> Result<&'text mut [u8], CryptoError> {
        let nonce = next(&mut self.number)?;
        let length = text_and_tag.len().checked_sub(TAG_BYTES);
        let length = length.ok_or(CryptoError::Authentication { algorithm: ALGORITHM })?;
        if self.key.open_in_place(nonce, Aad::from(associated_data), text_and_tag).is_err() {
            text_and_tag.zeroize();
            return Err(CryptoError::Authentication { algorithm: ALGORITHM });
        }
        Ok(&mut text_and_tag[..length])
    }
}

/// The nonce of record `number`, which is counted.
fn next(number: &mut u64) -> Result<Nonce, CryptoError> {
    let records = usize::try_from(*number).unwrap_or(usize::MAX);
    check_limit(ALGORITHM, "number of records under one key", records, 0..=RECORDS_PER_KEY_MAX as usize - 1)?;
    let mut nonce = [0; NONCE_BYTES];
    nonce[NONCE_BYTES - 8..].copy_from_slice(&number.to_be_bytes());
    *number += 1;
    Ok(Nonce::assume_unique_for_key(nonce))
}

macro_rules! omits_the_key {
    ($($name:ident),*) => {$(
        /// Omits the key.
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($name), "({} records, key redacted)"), self.number)
            }
        }
    )*};
}

omits_the_key!(RecordSealer, RecordOpener);

fn failed(call: &'static str) -> CryptoError {
    CryptoError::Library { algorithm: ALGORITHM, call, code: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aead;

    fn both() -> (SecretBytes, RecordSealer, RecordOpener) {
        let key = SecretBytes::random(KEY_BYTES).unwrap();
        let (sealer, opener) = (RecordSealer::new(&key).unwrap(), RecordOpener::new(&key).unwrap());
        (key, sealer, opener)
    }

    fn sealed(sealer: &mut RecordSealer, data: &[u8], text: &[u8]) -> Vec<u8> {
        let mut record = text.to_vec();
        let tag = sealer.seal(data, &mut record).unwrap();
        [&record[..], &tag].concat()
    }

    #[test]
    fn it_is_the_same_cipher_as_that_of_envelopes_with_the_number_as_nonce() {
        let (key, mut sealer, _) = both();
        for number in 0..3_u8 {
            let ciphertext_and_tag = sealed(&mut sealer, b"head", b"a page");
            let mut nonce = [0; NONCE_BYTES];
            nonce[NONCE_BYTES - 1] = number;
            let opened = aead::open(&key, b"head", &aead::Sealed { nonce, ciphertext_and_tag }).unwrap();
            assert_eq!(opened.expose(), b"a page");
        }
    }

    #[test]
    fn only_the_next_record_of_the_stream_opens() {
        let (_, mut sealer, mut opener) = both();
        let records: Vec<_> = (0..4).map(|number: u8| sealed(&mut sealer, b"h", &[number; 100])).collect();
        assert_eq!(opener.open(b"h", &mut records[0].clone()).unwrap(), [0; 100]);
        assert_eq!(opener.open(b"h", &mut records[1].clone()).unwrap(), [1; 100]);
        // Repeated, of another place, under another head, changed, cut: each ends the stream.
        let (_, mut other, _) = both();
        let foreign = sealed(&mut other, b"h", &[2; 100]);
        let mut changed = records[2].clone();
        changed[50] ^= 1;
        let wrong: [(&[u8], &[u8]); 6] = [
            (b"h", &records[1]),
            (b"h", &records[3]),
            (b"g", &records[2]),
            (b"h", &changed),
            (b"h", &records[2][..15]),
            (b"h", &foreign),
        ];
        for (data, record) in wrong {
            opener.number = 2;
            let mut record = record.to_vec();
            let error = opener.open(data, &mut record).unwrap_err();
            assert!(matches!(error, CryptoError::Authentication { .. }), "{error}");
            assert!(record.len() < TAG_BYTES || record.iter().all(|byte| *byte == 0));
        }
        opener.number = 2;
        assert_eq!(opener.open(b"h", &mut records[2].clone()).unwrap(), [2; 100]);
    }

    #[test]
    fn a_key_has_an_end_and_no_nonce_comes_twice() {
        let (_, mut sealer, mut opener) = both();
        (sealer.number, opener.number) = (RECORDS_PER_KEY_MAX - 1, RECORDS_PER_KEY_MAX - 1);
        let last = sealed(&mut sealer, b"", b"last");
        assert_eq!(opener.open(b"", &mut last.clone()).unwrap(), b"last");
        let mut text = *b"one more";
        assert!(matches!(sealer.seal(b"", &mut text), Err(CryptoError::Limit { .. })));
        assert_eq!(text, [0; 8]);
        assert!(matches!(opener.open(b"", &mut last.clone()), Err(CryptoError::Limit { .. })));
        // The module itself refuses to go back.
        let (_, mut sealer, _) = both();
        (0..3).for_each(|_| drop(sealed(&mut sealer, b"", b"text")));
        sealer.number = 2;
        assert!(matches!(sealer.seal(b"", &mut text), Err(CryptoError::Library { .. })));
        assert!(RecordSealer::new(&SecretBytes::random(16).unwrap()).is_err());
    }
}
