//! The encrypted part of a backup: AES-256-GCM in chunks of up to 64 KiB, so that any length can be
//! written and read with little memory, and no chunk is used before it has authenticated.
//!
//! ```text
//! chunk: length (4 bytes, big-endian; highest bit set on the last chunk) | ciphertext | tag (16 bytes)
//! nonce: the chunk's number (8 bytes) | 1 on the last chunk, else 0 (4 bytes)
//! associated data: SHA-256 of the header's line, with its line end | nonce | the chunk's length field
//! ```
//! The key is used for this file only, so counting nonces never repeat. Chunks cannot be omitted,
//! swapped, truncated or moved to another header.

use std::io::{self, Read, Write};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::digest::{SHA256, digest};
use strongroom_crypto::kdf::hkdf_sha256;
use strongroom_memory::secret::SecretBytes;
use zeroize::{Zeroize, Zeroizing};

use super::error::BackupError;
use super::header::BackupId;

/// Most plaintext bytes of a chunk.
pub(super) const CHUNK_BYTES: usize = 64 << 10;
const TAG_BYTES: usize = 16;
const LAST: u32 = 1 << 31;
const KEY_INFO: &[u8] = b"strongroom backup v1 archive";

/// The key of one archive, and the header that its chunks are bound to.
pub(super) struct ArchiveKey {
    key: LessSafeKey,
    header_sha256: [u8; 32],
}

impl ArchiveKey {
    pub fn new(backup_key: &SecretBytes, id: BackupId, header_line: &[u8]) -> Result<Self, BackupError> {
        let key = hkdf_sha256(backup_key, id.as_uuid().as_bytes(), KEY_INFO, AES_256_GCM.key_len())?;
        let key = UnboundKey::new(&AES_256_GCM, key.expose())
            .map_err(|_| BackupError::Library { call: "AES-256-GCM set-up" })?;
        let mut header_sha256 = [0; 32];
        header_sha256.copy_from_slice(digest(&SHA256, header_line).as_ref());
        Ok(Self { key: LessSafeKey::new(key), header_sha256 })
    }

    fn nonce(number: u64, is_last: bool) -> [u8; 12] {
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&number.to_be_bytes());
        nonce[11] = u8::from(is_last);
        nonce
    }

    fn associated_data(&self, nonce: &[u8; 12], length: u32) -> Aad<Vec<u8>> {
        Aad::from([&self.header_sha256[..], nonce, &length.to_be_bytes()].concat())
    }
}

/// Writes an archive.
pub(super) struct ArchiveWriter<'a, W> {
    key: &'a ArchiveKey,
    out: W,
    number: u64,
    chunk: Zeroizing<Vec<u8>>,
}

impl<'a, W: Write> ArchiveWriter<'a, W> {
    pub fn new(key: &'a ArchiveKey, out: W) -> Self {
        Self { key, out, number: 0, chunk: Zeroizing::new(Vec::with_capacity(CHUNK_BYTES)) }
    }

    /// Adds plaintext bytes.
    pub fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            // A full chunk waits for more data, because only then is it known not to be the last.
            if self.chunk.len() == CHUNK_BYTES {
                self.seal(false)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.chunk.len()));
            self.chunk.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    /// Writes the last chunk, and returns the writer.
    pub fn finish(mut self) -> io::Result<W> {
        self.seal(true)?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn seal(&mut self, is_last: bool) -> io::Result<()> {
        let length = self.chunk.len() as u32 | if is_last { LAST } else { 0 };
        let nonce = ArchiveKey::nonce(self.number, is_last);
        let associated = self.key.associated_data(&nonce, length);
        let tag = self
            .key
            .key
            .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), associated, &mut self.chunk)
            .map_err(|_| io::Error::other("AES-256-GCM failed in the cryptographic library"))?;
        self.out.write_all(&length.to_be_bytes())?;
        self.out.write_all(&self.chunk)?;
        self.out.write_all(tag.as_ref())?;
        self.chunk.clear();
        self.number += 1;
        Ok(())
    }
}

/// Why reading an archive failed.
#[derive(Debug)]
pub(super) enum Broken {
    /// A system error.
    System(io::Error),
    /// The bytes from `offset` on (from the archive's start) are damaged.
    Damaged { offset: u64, why: &'static str },
}

/// Reads an archive, each byte only after its chunk has authenticated.
pub(super) struct ArchiveReader<'a, R> {
    key: &'a ArchiveKey,
    input: R,
    number: u64,
    /// The offsets of the current chunk and of the next one.
    offset: u64,
    next_offset: u64,
    /// The current chunk's plaintext, and how many bytes of it were read.
    chunk: Zeroizing<Vec<u8>>,
    taken: usize,
    was_last: bool,
}

impl<'a, R: Read> ArchiveReader<'a, R> {
    pub fn new(key: &'a ArchiveKey, input: R) -> Self {
        let chunk = Zeroizing::new(Vec::with_capacity(CHUNK_BYTES + TAG_BYTES));
        Self { key, input, number: 0, offset: 0, next_offset: 0, chunk, taken: 0, was_last: false }
    }

    /// Fills `bytes`.
    pub fn read_exact(&mut self, mut bytes: &mut [u8]) -> Result<(), Broken> {
        while !bytes.is_empty() {
            if self.taken == self.chunk.len() {
                if self.was_last {
                    return Err(self.damaged("its content ends in the middle of a record"));
                }
                self.open_next()?;
            }
            let count = bytes.len().min(self.chunk.len() - self.taken);
            let (now, later) = bytes.split_at_mut(count);
            now.copy_from_slice(&self.chunk[self.taken..self.taken + count]);
            self.taken += count;
            bytes = later;
        }
        Ok(())
    }

    /// Checks that nothing follows.
    pub fn finish(mut self) -> Result<(), Broken> {
        if !self.was_last || self.taken != self.chunk.len() {
            return Err(self.damaged("there is content after its end"));
        }
        self.offset = self.next_offset;
        match self.input.read(&mut [0]) {
            Ok(0) => Ok(()),
            Ok(_) => Err(self.damaged("there are bytes after its end")),
            Err(error) => Err(Broken::System(error)),
        }
    }

    /// The error that the last data read is invalid.
    pub fn damaged(&self, why: &'static str) -> Broken {
        Broken::Damaged { offset: self.offset, why }
    }

    fn open_next(&mut self) -> Result<(), Broken> {
        self.offset = self.next_offset;
        let mut length = [0; 4];
        self.fill_from_file(&mut length)?;
        let length = u32::from_be_bytes(length);
        let (is_last, plain_bytes) = (length & LAST != 0, (length & !LAST) as usize);
        // Only the last chunk may be short, and none may be empty: the writer makes no others.
        if plain_bytes > CHUNK_BYTES || plain_bytes == 0 || (!is_last && plain_bytes < CHUNK_BYTES) {
            return Err(self.damaged("a chunk has an impossible length"));
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.zeroize();
        chunk.resize(plain_bytes + TAG_BYTES, 0);
        let outcome = self.fill_from_file(&mut chunk).and_then(|()| self.authenticate(&mut chunk, length));
        if outcome.is_err() {
            chunk.zeroize();
        }
        chunk.truncate(plain_bytes);
        self.chunk = chunk;
        outcome?;
        self.number += 1;
        self.next_offset += (4 + plain_bytes + TAG_BYTES) as u64;
        self.taken = 0;
        self.was_last = is_last;
        Ok(())
    }

    fn authenticate(&self, chunk: &mut [u8], length: u32) -> Result<(), Broken> {
        let nonce = ArchiveKey::nonce(self.number, length & LAST != 0);
        let associated = self.key.associated_data(&nonce, length);
        self.key
            .key
            .open_in_place(Nonce::assume_unique_for_key(nonce), associated, chunk)
            .map(drop)
            .map_err(|_| self.damaged("a chunk does not authenticate"))
    }

    fn fill_from_file(&mut self, bytes: &mut [u8]) -> Result<(), Broken> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => self.damaged("it is cut off"),
            _ => Broken::System(error),
        })
    }
}
