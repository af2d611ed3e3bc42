//! What a layer holds, as it travels: pieces of its files with their places, and a digest of all of
//! it. Reading them and writing them are apart, so that what is read here can be written elsewhere.

use std::ops::{ControlFlow, Range};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use strongroom_crypto::mac::Sha256;
use strongroom_memory::{Buffer, BufferPool};
use strongroom_types::{BLOCK_BYTES, display_bytes};

use crate::file::blocks::is_zero;
use crate::file::descriptor::{Descriptor, LayerRecord};
use crate::file::directory::system;
use crate::file::disk::OpenLayer;
use crate::file::error::DatastoreError;
use crate::file::storage::StoredFile;
use crate::file::{discards, tags};

/// The most bytes of a [`LayerPiece`].
pub const LAYER_PIECE_BYTES_MAX: u64 = 1 << 20;

const BLOCK: usize = BLOCK_BYTES as usize;

/// One of the files of a layer whose content travels. The first-write log is empty, and is made
/// anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerPart {
    /// The blocks, as ciphertext.
    Blocks,
    /// Their tags.
    Tags,
    /// The record of discards.
    Discards,
}

/// A piece of one of these files: whole blocks of 4096 bytes, at most [`LAYER_PIECE_BYTES_MAX`].
/// Those of zeroes are nothing.
#[derive(Clone, Copy, Debug)]
pub struct LayerPiece<'a> {
    /// The file.
    pub part: LayerPart,
    /// Where it lies there, in bytes.
    pub offset: u64,
    /// The blocks.
    pub content: &'a [u8],
}

/// SHA-256 of what a layer has: of the number of each block that is not zeroes, and its content.
/// Two layers with the same content have the same, however their files are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerDigest([u8; 32]);

impl LayerDigest {
    /// The digest with these bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// The open files of a layer.
pub(super) struct LayerContent {
    path: PathBuf,
    parts: Vec<OpenPart>,
    pool: BufferPool,
}

struct OpenPart {
    part: LayerPart,
    file: Arc<dyn StoredFile>,
    /// Nothing of the content lies beyond.
    bytes: u64,
}

/// Whether blocks that are to be written may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The files are new.
    Nothing,
    /// An earlier attempt has left them: what is there is compared, and not written again.
    Some,
}

impl LayerContent {
    /// The content of the open files of a layer. `path` names the volume in errors.
    pub(super) fn of(path: PathBuf, descriptor: &Descriptor, layer: &LayerRecord, opened: OpenLayer) -> Self {
        let layer_bytes = descriptor.layer_size(layer).block_aligned_bytes();
        let tags_bytes = tags::Layout::of(Descriptor::absence_of(layer)).file_bytes(layer_bytes);
        let OpenLayer { file, tags, discards, .. } = opened;
        let mut parts = vec![OpenPart { part: LayerPart::Blocks, file, bytes: layer_bytes }];
        parts.extend(tags.map(|file| OpenPart { part: LayerPart::Tags, file, bytes: tags_bytes }));
        let discards_bytes = discards::file_bytes(layer_bytes);
        parts.extend(discards.map(|file| OpenPart {
            part: LayerPart::Discards,
            file,
            bytes: discards_bytes,
        }));
        Self { path, parts, pool: BufferPool::brief() }
    }

    /// Reads all of it. Returns its digest; `None` if `take` has ended it early.
    pub(super) fn read(
        &self,
        take: &mut dyn FnMut(&LayerPiece<'_>) -> Result<ControlFlow<()>, DatastoreError>,
    ) -> Result<Option<LayerDigest>, DatastoreError> {
        let mut digest = Sha256::default();
        for OpenPart { part, file, bytes } in &self.parts {
            digest.update(&[part.number()]);
            let mut at = 0;
            while let Some(run) = self.next_run(&**file, at..*bytes)? {
                for offset in run.clone().step_by(LAYER_PIECE_BYTES_MAX as usize) {
                    let buffer = self.read_piece(&**file, offset..run.end)?;
                    for (number, block) in (offset / BLOCK_BYTES..).zip(buffer.bytes().chunks(BLOCK)) {
                        if !is_zero(block) {
                            digest.update(&number.to_le_bytes());
                            digest.update(block);
                        }
                    }
                    let piece = LayerPiece { part: *part, offset, content: buffer.bytes() };
                    if take(&piece)?.is_break() {
                        return Ok(None);
                    }
                }
                at = run.end;
            }
        }
        Ok(Some(LayerDigest(digest.finish())))
    }

    /// The next run of data, in whole blocks. Its end is looked for once: that takes long in a file
    /// of many extents.
    fn next_run(
        &self,
        file: &dyn StoredFile,
        within: Range<u64>,
    ) -> Result<Option<Range<u64>>, DatastoreError> {
        let failed = |errno| system("read a layer of", &self.path)(errno);
        let start = match file.next_data(within.start) {
            Ok(data) => data.max(within.start) / BLOCK_BYTES * BLOCK_BYTES,
            Err(Errno::NXIO) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        if start >= within.end {
            return Ok(None);
        }
        let hole = file.next_hole(start.max(within.start)).map_err(failed)?;
        let end = hole.next_multiple_of(BLOCK_BYTES).max(start + BLOCK_BYTES);
        Ok(Some(start..end.min(within.end)))
    }

    /// Reads the first piece of a run.
    fn read_piece(&self, file: &dyn StoredFile, run: Range<u64>) -> Result<Buffer, DatastoreError> {
        let failed = |errno| system("read a layer of", &self.path)(errno);
        let wanted = (run.end - run.start).min(LAYER_PIECE_BYTES_MAX);
        let mut buffer = self.pool.take(wanted as usize).ok_or_else(|| failed(Errno::NOMEM))?;
        match file.read_at(run.start, buffer.bytes_mut()).map_err(failed)? as u64 {
            read if read == wanted => Ok(buffer),
            _ => Err(failed(Errno::IO)),
        }
    }

    /// Whether a piece is one of a layer with these files. What has come from elsewhere may not be.
    pub(super) fn takes(&self, piece: &LayerPiece<'_>) -> bool {
        let length = piece.content.len() as u64;
        let is_whole = length.is_multiple_of(BLOCK_BYTES) && piece.offset.is_multiple_of(BLOCK_BYTES);
        let ends_within = |open: &OpenPart| {
            open.part == piece.part && piece.offset.checked_add(length).is_some_and(|end| end <= open.bytes)
        };
        is_whole && length <= LAYER_PIECE_BYTES_MAX && self.parts.iter().any(ends_within)
    }

    /// Writes the blocks of a piece that are not zeroes, and that are not found there. Returns the
    /// bytes that were written.
    pub(super) fn write(&self, piece: &LayerPiece<'_>, found: Found) -> Result<u64, DatastoreError> {
        let failed = |errno| self.not_written(errno, piece.content.len() as u64);
        let Some(OpenPart { file, .. }) = self.parts.iter().find(|open| open.part == piece.part) else {
            return Err(failed(Errno::NOENT));
        };
        // Direct I/O takes memory that begins with a block; what has come from elsewhere does not.
        let mut aligned = None::<Buffer>;
        let content = if piece.content.as_ptr().addr().is_multiple_of(BLOCK) {
            piece.content
        } else {
            let mut taken = self.pool.take(piece.content.len()).ok_or_else(|| failed(Errno::NOMEM))?;
            taken.bytes_mut().copy_from_slice(piece.content);
            aligned.insert(taken).bytes()
        };
        let present = match found {
            Found::Nothing => None,
            Found::Some => {
                let mut present = self.pool.take(piece.content.len());
                let buffer = present.as_mut().ok_or_else(|| failed(Errno::NOMEM))?;
                let read = file.read_at(piece.offset, buffer.bytes_mut()).map_err(failed)?;
                if read < piece.content.len() {
                    return Err(failed(Errno::IO));
                }
                present
            }
        };
        let is_wanted = |at: usize| {
            let block = &content[at..at + BLOCK];
            let is_there = |present: &Buffer| present.bytes()[at..at + BLOCK] == *block;
            !is_zero(block) && !present.as_ref().is_some_and(is_there)
        };
        let (mut at, mut written_bytes) = (0, 0);
        while at < content.len() {
            let start = at;
            while at < content.len() && is_wanted(at) {
                at += BLOCK;
            }
            if at > start {
                let run = &content[start..at];
                file.write_at(piece.offset + start as u64, run).map_err(failed)?;
                written_bytes += run.len() as u64;
            } else {
                at += BLOCK;
            }
        }
        Ok(written_bytes)
    }

    /// The open files, which keep their locks.
    pub(super) fn into_files(self) -> Vec<Arc<dyn StoredFile>> {
        self.parts.into_iter().map(|open| open.file).collect()
    }

    /// Makes all of it durable.
    pub(super) fn sync(&self) -> Result<(), DatastoreError> {
        let synced = self.parts.iter().try_for_each(|open| open.file.sync());
        synced.map_err(|errno| self.not_written(errno, LAYER_PIECE_BYTES_MAX))
    }

    fn not_written(&self, errno: Errno, needed_bytes: u64) -> DatastoreError {
        match errno {
            Errno::NOSPC | Errno::DQUOT => {
                DatastoreError::Full { path: self.path.clone(), needed: display_bytes(needed_bytes) }
            }
            errno => system("write a layer of", &self.path)(errno),
        }
    }
}

impl LayerPart {
    /// Its number in digests, and on the way.
    pub fn number(self) -> u8 {
        match self {
            Self::Blocks => 0,
            Self::Tags => 1,
            Self::Discards => 2,
        }
    }

    /// The file with this number.
    pub fn of_number(number: u8) -> Option<Self> {
        [Self::Blocks, Self::Tags, Self::Discards].into_iter().find(|part| part.number() == number)
    }
}
