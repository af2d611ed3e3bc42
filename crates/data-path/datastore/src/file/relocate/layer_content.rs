//! What a layer holds, as it travels: pieces of its files with their places, and a digest of all of
//! it. Reading them and writing them are apart, so that what is read here can be written elsewhere.

use std::ops::{ControlFlow, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::{thread, vec};

use rustix::io::Errno;
use strongroom_crypto::mac::Sha256;
use strongroom_types::{BLOCK_BYTES, display_bytes};

use super::passage::TakePiece;
use super::piece_memory::PieceMemory;
use crate::file::blocks::is_zero;
use crate::file::descriptor::{Descriptor, LayerRecord};
use crate::file::directory::{system, system_io};
use crate::file::disk::OpenLayer;
use crate::file::error::DatastoreError;
use crate::file::storage::StoredFile;
use crate::file::{discards, tags};

/// The most bytes of a [`LayerPiece`].
pub const LAYER_PIECE_BYTES_MAX: u64 = 1 << 20;

pub(super) const BLOCK: usize = BLOCK_BYTES as usize;

/// The pieces that wait between two threads: a disk that is slow for a moment does not stop the
/// other one.
pub(super) const PIECES_WAITING: usize = 4;

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

/// Makes the digest of a layer of its pieces, in their order.
pub(super) struct Digester {
    digest: Sha256,
    /// The parts that have not begun.
    parts: vec::IntoIter<LayerPart>,
    part: Option<LayerPart>,
}

/// The open files of a layer.
pub(super) struct LayerContent {
    path: PathBuf,
    parts: Vec<OpenPart>,
}

struct OpenPart {
    part: LayerPart,
    file: Arc<dyn StoredFile>,
    /// Nothing of the content lies beyond.
    bytes: u64,
}

/// A piece with its memory, which passes from one thread to another.
pub(super) struct ReadPiece {
    pub part: LayerPart,
    pub offset: u64,
    pub memory: PieceMemory,
}

impl ReadPiece {
    pub(super) fn piece(&self) -> LayerPiece<'_> {
        LayerPiece { part: self.part, offset: self.offset, content: self.memory.content() }
    }
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
        Self { path, parts }
    }

    /// Reads all of it, and gives it to `take` in order. Returns its digest; `None` if `take` has
    /// ended it early.
    pub(super) fn read(&self, take: &mut TakePiece<'_>) -> Result<Option<LayerDigest>, DatastoreError> {
        let mut digester = self.digester();
        let flow = self.read_ahead(&mut |piece| digester.add(piece), take)?;
        Ok(flow.is_continue().then(|| digester.finish()))
    }

    /// Reads all of it, and gives it to `take` in order, while a thread reads what follows and
    /// shows it to `seen`.
    pub(super) fn read_ahead(
        &self,
        seen: &mut (dyn FnMut(&LayerPiece<'_>) + Send),
        take: &mut TakePiece<'_>,
    ) -> Result<ControlFlow<()>, DatastoreError> {
        thread::scope(|scope| {
            let (read, pieces) = sync_channel(PIECES_WAITING);
            let (taken, free) = channel();
            let reader = thread::Builder::new().name("layer-reader".to_owned());
            let reading = reader.spawn_scoped(scope, move || self.read_all(seen, &free, &read));
            let reading = reading.map_err(|error| system_io("read a layer of", &self.path, &error))?;
            for read in pieces {
                if take(&read.piece())?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
                // If the reader has ended, it needs no more.
                let _ = taken.send(read.memory);
            }
            let ended = reading.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended.map(ControlFlow::Continue)
        })
    }

    /// Reads all of it, until nobody takes it any more.
    fn read_all(
        &self,
        seen: &mut (dyn FnMut(&LayerPiece<'_>) + Send),
        free: &Receiver<PieceMemory>,
        read: &SyncSender<ReadPiece>,
    ) -> Result<(), DatastoreError> {
        for OpenPart { part, file, bytes } in &self.parts {
            let mut at = 0;
            while let Some(run) = self.next_run(&**file, at..*bytes)? {
                for offset in run.clone().step_by(LAYER_PIECE_BYTES_MAX as usize) {
                    let memory = free.try_recv().unwrap_or_else(|_| PieceMemory::new());
                    let mut ahead = ReadPiece { part: *part, offset, memory };
                    let wanted = (run.end - offset).min(LAYER_PIECE_BYTES_MAX);
                    self.read_whole(&**file, offset, ahead.memory.room(wanted as usize))?;
                    seen(&ahead.piece());
                    if read.send(ahead).is_err() {
                        return Ok(());
                    }
                }
                at = run.end;
            }
        }
        Ok(())
    }

    /// Makes the digest of pieces of a layer with these files.
    pub(super) fn digester(&self) -> Digester {
        let parts: Vec<LayerPart> = self.parts.iter().map(|open| open.part).collect();
        Digester { digest: Sha256::default(), parts: parts.into_iter(), part: None }
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

    /// Fills `room` from `offset` on.
    fn read_whole(&self, file: &dyn StoredFile, offset: u64, room: &mut [u8]) -> Result<(), DatastoreError> {
        let failed = |errno| system("read a layer of", &self.path)(errno);
        match file.read_at(offset, room).map_err(failed)? == room.len() {
            true => Ok(()),
            false => Err(failed(Errno::IO)),
        }
    }

    /// Reads what lies in the place of a piece.
    ///
    /// # Errors
    /// If there is no such place, or it cannot be read.
    pub(super) fn read_place<'m>(
        &self,
        piece: &LayerPiece<'_>,
        memory: &'m mut PieceMemory,
    ) -> Result<&'m [u8], DatastoreError> {
        let file = self.file(piece.part)?;
        self.read_whole(file, piece.offset, memory.room(piece.content.len()))?;
        Ok(memory.content())
    }

    fn file(&self, part: LayerPart) -> Result<&dyn StoredFile, DatastoreError> {
        let open = self.parts.iter().find(|open| open.part == part);
        open.map(|open| &*open.file).ok_or_else(|| system("find a file of", &self.path)(Errno::NOENT))
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

    /// Writes the blocks of a piece that are not zeroes, and that `present`, what is found there,
    /// does not have. Returns the bytes that were written. Direct I/O takes content that begins
    /// with a block of memory, as [`PieceMemory`] does.
    pub(super) fn write(
        &self,
        piece: &LayerPiece<'_>,
        present: Option<&[u8]>,
    ) -> Result<u64, DatastoreError> {
        let file = self.file(piece.part)?;
        let content = piece.content;
        let is_wanted = |at: usize| {
            let block = at..at + BLOCK;
            !is_zero(&content[block.clone()])
                && present.is_none_or(|present| present[block.clone()] != content[block])
        };
        let (mut at, mut written_bytes) = (0, 0);
        while at < content.len() {
            let start = at;
            while at < content.len() && is_wanted(at) {
                at += BLOCK;
            }
            if at > start {
                let run = &content[start..at];
                let written = file.write_at(piece.offset + start as u64, run);
                written.map_err(|errno| self.not_written(errno, content.len() as u64))?;
                written_bytes += run.len() as u64;
            } else {
                at += BLOCK;
            }
        }
        Ok(written_bytes)
    }

    /// Where the volume is, or will be.
    pub(super) fn path(&self) -> &Path {
        &self.path
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

impl Digester {
    /// Adds the next piece.
    pub(super) fn add(&mut self, piece: &LayerPiece<'_>) {
        while self.part != Some(piece.part) && self.begin_next_part() {}
        for (number, block) in (piece.offset / BLOCK_BYTES..).zip(piece.content.chunks(BLOCK)) {
            if !is_zero(block) {
                self.digest.update(&number.to_le_bytes());
                self.digest.update(block);
            }
        }
    }

    /// The digest of all pieces.
    pub(super) fn finish(mut self) -> LayerDigest {
        while self.begin_next_part() {}
        LayerDigest(self.digest.finish())
    }

    fn begin_next_part(&mut self) -> bool {
        let next = self.parts.next();
        if let Some(part) = next {
            self.digest.update(&[part.number()]);
            self.part = next;
        }
        next.is_some()
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
