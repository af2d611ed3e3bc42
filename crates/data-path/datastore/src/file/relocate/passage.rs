//! A layer on its way into its files. It is read at its origin, written, and read back, all at the
//! same time.

use std::cell::RefCell;
use std::ops::ControlFlow;
use std::thread;

use strongroom_types::LayerId;

use super::layer_content::{LayerContent, LayerDigest, LayerPiece};
use super::piece_memory::PieceMemory;
use super::read_back::{Checks, Ended, ReadBack};
use crate::file::descriptor::LayerRecord;
use crate::file::error::DatastoreError;

/// Where a layer is read that arrives.
pub(super) enum LayerOrigin<'a> {
    /// On this host.
    Here(&'a LayerContent),
    /// On another one.
    Elsewhere(&'a mut dyn LayerSource),
}

/// Whether blocks that arrive may be there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// The files are new.
    Nothing,
    /// An earlier attempt has left them: what is there is compared, and not written again.
    Some,
}

/// A layer that was passed and written.
pub(super) struct Passed {
    pub written_bytes: u64,
    /// The digest of the pieces that were written. There is none of pieces that were read on this
    /// host and written into new files: each was compared when it was read back.
    pub arrived: Option<LayerDigest>,
    /// The digest that the layer has at its origin.
    pub said: Option<LayerDigest>,
}

/// Passes a layer from its origin into its files. The result is `None` if `moved` has ended it.
pub(super) fn pass(
    from: &mut LayerOrigin<'_>,
    into: &LayerContent,
    layer: &LayerRecord,
    found: Found,
    moved: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<Option<Passed>, DatastoreError> {
    let is_here = matches!(from, LayerOrigin::Here(_));
    let digester = (!is_here || found == Found::Some).then(|| into.digester());
    let checks = Checks { into, layer: layer.id, reads_back: found == Found::Nothing, digester };
    let moved = RefCell::new(moved);
    let moved = |bytes| (moved.borrow_mut())(bytes);
    thread::scope(|scope| {
        let read_back = ReadBack::begin(scope, checks)?;
        let present = PieceMemory::new();
        let mut writer =
            Writer { into, read_back: &read_back, found, present, written_bytes: 0, next: (0, 0) };
        let mut take = |piece: &LayerPiece<'_>| match writer.write(piece, layer.id)? {
            ControlFlow::Continue(()) => Ok(moved(piece.content.len() as u64)),
            ended => Ok(ended),
        };
        let said = match from {
            LayerOrigin::Here(content) => {
                content.read_ahead(&mut |_| {}, &mut take)?.is_continue().then_some(None)
            }
            LayerOrigin::Elsewhere(source) => {
                let mut left_there = || into.read(&mut |_| Ok(moved(0)));
                let left_there: Option<&mut LeftThere<'_>> = match found {
                    Found::Some => Some(&mut left_there),
                    Found::Nothing => None,
                };
                source.read(layer, left_there, &mut take)?.map(Some)
            }
        };
        let written_bytes = writer.written_bytes;
        let arrived = read_back.finish()?;
        // What was read on this host is what arrived.
        Ok(said.map(|said| Passed { written_bytes, arrived, said: said.or(arrived) }))
    })
}

/// Writes the pieces of a layer in their order.
struct Writer<'a, 'scope> {
    into: &'a LayerContent,
    read_back: &'a ReadBack<'scope>,
    found: Found,
    /// What was found in the place of a piece.
    present: PieceMemory,
    written_bytes: u64,
    /// The part and place at which the next piece begins at the earliest: one that came before it
    /// is not written over.
    next: (u8, u64),
}

impl Writer<'_, '_> {
    /// Writes a piece. The result is a break if something else was read back.
    fn write(&mut self, piece: &LayerPiece<'_>, layer: LayerId) -> Result<ControlFlow<()>, DatastoreError> {
        let begins = (piece.part.number(), piece.offset);
        if !self.into.takes(piece) || begins < self.next {
            let (path, reason) = (self.into.path().to_owned(), format!("layer {layer} has no such piece"));
            return Err(DatastoreError::NotReceived { path, reason });
        }
        self.next = (begins.0, piece.offset + piece.content.len() as u64);
        let copy = self.read_back.copy_of(piece);
        let present = match self.found {
            Found::Nothing => None,
            Found::Some => Some(self.into.read_place(piece, &mut self.present)?),
        };
        self.written_bytes += self.into.write(&copy.piece(), present)?;
        Ok(match self.read_back.check(copy) {
            Ok(()) => ControlFlow::Continue(()),
            Err(Ended) => ControlFlow::Break(()),
        })
    }
}

/// Where the layers of a volume that arrives are read.
pub trait LayerSource {
    /// Reads a layer, and gives its pieces to `take` in order. Returns the digest of what it has;
    /// `None` if `take`, or `left_there`, has ended it early. `left_there` is the digest of what an
    /// earlier attempt has left at the destination, if that is anything: a source from which
    /// reading takes long need not give what is there already.
    ///
    /// # Errors
    /// If it cannot be read, and those of `take`.
    fn read(
        &mut self,
        layer: &LayerRecord,
        left_there: Option<&mut LeftThere<'_>>,
        take: &mut TakePiece<'_>,
    ) -> Result<Option<LayerDigest>, DatastoreError>;
}

/// Says what an earlier attempt has left of a layer, as [`LayerSource::read`] uses it.
pub type LeftThere<'a> = dyn FnMut() -> Result<Option<LayerDigest>, DatastoreError> + 'a;
/// Takes the pieces of a layer, and may end its reading.
pub type TakePiece<'a> = dyn FnMut(&LayerPiece<'_>) -> Result<ControlFlow<()>, DatastoreError> + 'a;
