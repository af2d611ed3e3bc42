//! What arrives of a layer, checked beside its writing: each piece is read back past the page
//! cache while those after it are read and written.

use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::{Builder, Scope, ScopedJoinHandle};

use strongroom_types::LayerId;

use super::layer_content::{Digester, LayerContent, LayerDigest, LayerPiece, PIECES_WAITING, ReadPiece};
use super::piece_memory::PieceMemory;
use crate::file::directory::system_io;
use crate::file::error::DatastoreError;

/// What is done with the pieces of a layer that arrives.
pub(super) struct Checks<'a> {
    /// The files into which they were written.
    pub into: &'a LayerContent,
    /// Their layer.
    pub layer: LayerId,
    /// Whether each of them is read back and compared.
    pub reads_back: bool,
    /// Makes the digest of all of them.
    pub digester: Option<Digester>,
}

/// The thread that checks pieces.
pub(super) struct ReadBack<'scope> {
    written: SyncSender<ReadPiece>,
    free: Receiver<PieceMemory>,
    checking: ScopedJoinHandle<'scope, Result<Option<LayerDigest>, DatastoreError>>,
}

/// The thread has ended, and its result says why.
pub(super) struct Ended;

impl<'scope> ReadBack<'scope> {
    /// Begins to wait for pieces.
    pub(super) fn begin<'a: 'scope>(
        scope: &'scope Scope<'scope, '_>,
        checks: Checks<'a>,
    ) -> Result<Self, DatastoreError> {
        let (written, pieces) = sync_channel(PIECES_WAITING);
        let (checked, free) = channel();
        let path = checks.into.path();
        let thread = Builder::new().name("layer-read-back".to_owned());
        let checking = thread.spawn_scoped(scope, move || checks.run(&pieces, &checked));
        let checking = checking.map_err(|error| system_io("read back a layer of", path, &error))?;
        Ok(Self { written, free, checking })
    }

    /// Memory with the content of a piece.
    pub(super) fn copy_of(&self, piece: &LayerPiece<'_>) -> ReadPiece {
        let mut memory = self.free.try_recv().unwrap_or_else(|_| PieceMemory::new());
        memory.room(piece.content.len()).copy_from_slice(piece.content);
        ReadPiece { part: piece.part, offset: piece.offset, memory }
    }

    /// Has a piece checked that was written.
    pub(super) fn check(&self, written: ReadPiece) -> Result<(), Ended> {
        self.written.send(written).map_err(|_| Ended)
    }

    /// Waits until all pieces were checked. Returns their digest, if it was to be made.
    ///
    /// # Errors
    /// [`DatastoreError::NotRelocated`] if something else was read back.
    pub(super) fn finish(self) -> Result<Option<LayerDigest>, DatastoreError> {
        let Self { written, free, checking } = self;
        drop((written, free));
        checking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Checks<'_> {
    fn run(
        self,
        pieces: &Receiver<ReadPiece>,
        checked: &Sender<PieceMemory>,
    ) -> Result<Option<LayerDigest>, DatastoreError> {
        let Self { into, layer, reads_back, mut digester } = self;
        let mut found = PieceMemory::new();
        for written in pieces {
            let piece = written.piece();
            if let Some(digester) = &mut digester {
                digester.add(&piece);
            }
            if reads_back && into.read_place(&piece, &mut found)? != piece.content {
                return Err(DatastoreError::NotRelocated { path: into.path().to_owned(), layer });
            }
            // If nobody writes any more, nobody needs memory.
            let _ = checked.send(written.memory);
        }
        Ok(digester.map(Digester::finish))
    }
}
