//! Records in an archive, and the manifest that ends them.
//!
//! ```text
//! record:   kind (1 byte) | key length (2) | value length (4) | key | value       lengths big-endian
//! manifest: kind 255, key empty, value JSON: how many records of each kind, SHA-256 of all bytes before it
//! ```
//! The chunks already prove that the data read is the data written. The manifest proves that the
//! data written is everything the source supplied; otherwise a writer that lost records would go
//! unnoticed.

use std::io::{self, Read, Write};

use aws_lc_rs::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::archive::{ArchiveReader, ArchiveWriter, Broken};
use super::error::BackupError;
use super::{Record, RecordKind};
use strongroom_types::hex;

/// Longest key of a record.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value of a record: four times the limit of a KMIP message, and so of an object.
pub const VALUE_BYTES_MAX: usize = 4 << 20;

const HEAD_BYTES: usize = 7;
const MANIFEST: u8 = 255;
/// Longest manifest: five numbers and a digest.
const MANIFEST_BYTES_MAX: usize = 1024;

/// The number of records of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counts {
    /// Records beside the keys.
    pub ledger: u64,
    /// Records of the certificate authority.
    pub authority: u64,
    /// Managed objects.
    pub objects: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Entries of the control plane's store.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub entries: u64,
    /// Files of the control plane's directory.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub files: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Counts {
    fn add(&mut self, kind: RecordKind) {
        *match kind {
            RecordKind::Ledger => &mut self.ledger,
            RecordKind::Authority => &mut self.authority,
            RecordKind::Object => &mut self.objects,
            RecordKind::Tombstone => &mut self.tombstones,
            RecordKind::Entry => &mut self.entries,
            RecordKind::File => &mut self.files,
        } += 1;
    }
}

/// The manifest, which ends the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub counts: Counts,
    #[serde(with = "hex::array")]
    pub sha256: [u8; 32],
}

impl RecordKind {
    fn code(self) -> u8 {
        match self {
            Self::Ledger => 1,
            Self::Authority => 2,
            Self::Object => 3,
            Self::Tombstone => 4,
            Self::Entry => 5,
            Self::File => 6,
        }
    }

    fn of_code(code: u8) -> Option<Self> {
        [Self::Ledger, Self::Authority, Self::Object, Self::Tombstone, Self::Entry, Self::File]
            .into_iter()
            .find(|kind| kind.code() == code)
    }
}

/// Writes records.
pub(super) struct RecordWriter<'a, W> {
    archive: ArchiveWriter<'a, W>,
    counts: Counts,
    hash: Context,
}

impl<'a, W: Write> RecordWriter<'a, W> {
    pub fn new(archive: ArchiveWriter<'a, W>) -> Self {
        Self { archive, counts: Counts::default(), hash: Context::new(&SHA256) }
    }

    /// Refuses a record that no reader would accept.
    pub fn check(record: &Record) -> Result<(), BackupError> {
        let (key_bytes, value_bytes) = (record.key.len(), record.value.len());
        if key_bytes <= KEY_BYTES_MAX && value_bytes <= VALUE_BYTES_MAX {
            return Ok(());
        }
        Err(BackupError::RecordLength { key_bytes, value_bytes })
    }

    /// Adds a record that [`check`](Self::check) accepted.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.counts.add(record.kind);
        self.write_fields(record.kind.code(), &record.key, &record.value)
    }

    /// Writes the manifest and the archive's end.
    pub fn finish(mut self) -> io::Result<(W, Manifest)> {
        let mut sha256 = [0; 32];
        sha256.copy_from_slice(self.hash.clone().finish().as_ref());
        let manifest = Manifest { counts: self.counts, sha256 };
        let value = serde_json::to_vec(&manifest).map_err(io::Error::other)?;
        self.write_fields(MANIFEST, &[], &value)?;
        Ok((self.archive.finish()?, manifest))
    }

    fn write_fields(&mut self, kind: u8, key: &[u8], value: &[u8]) -> io::Result<()> {
        let mut head = [0; HEAD_BYTES];
        head[0] = kind;
        head[1..3].copy_from_slice(&(key.len() as u16).to_be_bytes());
        head[3..].copy_from_slice(&(value.len() as u32).to_be_bytes());
        for bytes in [&head[..], key, value] {
            self.hash.update(bytes);
            self.archive.write(bytes)?;
        }
        Ok(())
    }
}

/// Reads records up to the manifest.
pub(super) struct RecordReader<'a, R> {
    archive: ArchiveReader<'a, R>,
    counts: Counts,
    hash: Context,
}

impl<'a, R: Read> RecordReader<'a, R> {
    pub fn new(archive: ArchiveReader<'a, R>) -> Self {
        Self { archive, counts: Counts::default(), hash: Context::new(&SHA256) }
    }

    /// Passes each record to `take`. Returns the manifest after checking that it matches.
    pub fn read_all<E: From<Broken>>(
        mut self,
        mut take: impl FnMut(Record) -> Result<(), E>,
    ) -> Result<Manifest, E> {
        loop {
            let mut head = [0; HEAD_BYTES];
            self.archive.read_exact(&mut head)?;
            let key_bytes = usize::from(u16::from_be_bytes([head[1], head[2]]));
            let value_bytes = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
            if head[0] == MANIFEST {
                return Ok(self.finish(key_bytes, value_bytes)?);
            }
            let Some(kind) = RecordKind::of_code(head[0]) else {
                return Err(self.archive.damaged("a record is of an unknown kind").into());
            };
            if key_bytes > KEY_BYTES_MAX || value_bytes > VALUE_BYTES_MAX {
                return Err(self.archive.damaged("a record is impossibly long").into());
            }
            let mut key = vec![0; key_bytes];
            let mut value = Zeroizing::new(vec![0; value_bytes]);
            self.archive.read_exact(&mut key)?;
            self.archive.read_exact(&mut value)?;
            for bytes in [&head[..], &key, &value] {
                self.hash.update(bytes);
            }
            self.counts.add(kind);
            take(Record { kind, key, value })?;
        }
    }

    fn finish(mut self, key_bytes: usize, value_bytes: usize) -> Result<Manifest, Broken> {
        let damaged = self.archive.damaged("its manifest cannot be read");
        if key_bytes != 0 || value_bytes > MANIFEST_BYTES_MAX {
            return Err(damaged);
        }
        let mut value = vec![0; value_bytes];
        self.archive.read_exact(&mut value)?;
        let manifest: Manifest = serde_json::from_slice(&value).map_err(|_| damaged)?;
        if manifest.counts != self.counts || manifest.sha256 != self.hash.finish().as_ref() {
            return Err(self.archive.damaged("its content is not what its manifest says"));
        }
        self.archive.finish()?;
        Ok(manifest)
    }
}
