//! The keys of tags: one per epoch, derived from the DEK that seals the epoch's blocks.

use std::sync::Arc;

use strongroom_crypto::block_tag::BlockTagAlgorithm;
use strongroom_crypto::{Algorithm, CryptoError};
use strongroom_types::{BLOCK_BYTES, KeyEpoch};

use crate::file::Deks;
use crate::file::tagging::{Binding, EmptySector, NOTHING, Tag, Tagger, of_something};

/// HKDF's info, which makes the key unique to this purpose and algorithm.
const INFO_OF_HMAC: &[u8] = b"strongroom block tag key v1";
const INFO_OF_POLYVAL: &[u8] = b"strongroom polyval tag key v1";

/// The beginning of the header of a sector of marks.
const MARKS: &[u8; 16] = b"strongroom marks";

/// The beginning of the header of a sector of presence.
const PRESENCE: &[u8; 16] = b"strongroom there";

/// The kinds of sectors of bits in a sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sectors {
    /// Regions in use.
    Marks,
    /// Pages of tags that exist.
    Presence,
}

impl Sectors {
    fn purpose(self) -> &'static [u8; 16] {
        match self {
            Self::Marks => MARKS,
            Self::Presence => PRESENCE,
        }
    }

    /// Without a mark nothing is adopted, so an attacker gains nothing by removing marks. Removing
    /// presence would erase blocks.
    fn empty(self) -> EmptySector {
        match self {
            Self::Marks => EmptySector::Zeroes,
            Self::Presence => EmptySector::Tagged,
        }
    }
}

/// The keys that tag a layer's blocks. Clones share them.
#[derive(Clone, Debug)]
pub struct TagKeys {
    by_hmac: Arc<Tagger>,
    /// `None` in a FIPS build.
    by_polyval: Option<Arc<Tagger>>,
    algorithm: BlockTagAlgorithm,
    /// The epoch whose key tags marks and presence; the newest if there is none.
    newest: Option<KeyEpoch>,
}

/// The reasons why tags cannot be computed.
#[derive(Debug)]
pub(super) enum TagError {
    /// There is no key for the epoch that a block is sealed under.
    UnknownEpoch(KeyEpoch),
    /// The cipher failed.
    Crypto(CryptoError),
}

impl From<CryptoError> for TagError {
    fn from(error: CryptoError) -> Self {
        Self::Crypto(error)
    }
}

impl TagKeys {
    /// Derives the keys of every algorithm; `None` if there is no DEK to derive from: a clear
    /// volume has no tags.
    ///
    /// # Errors
    /// If the cipher library has no memory.
    pub fn derive(deks: &Deks) -> Result<Option<Self>, CryptoError> {
        let of = |algorithm, info| Ok(Tagger::derive(deks, algorithm, info)?.map(Arc::new));
        let by_polyval = match of(BlockTagAlgorithm::PolyvalAes, INFO_OF_POLYVAL) {
            Err(CryptoError::OutsideModule { .. }) => None,
            derived => derived?,
        };
        let algorithm = BlockTagAlgorithm::HmacSha256;
        let by_hmac = of(algorithm, INFO_OF_HMAC)?;
        Ok(by_hmac.map(|by_hmac| Self { by_hmac, by_polyval, algorithm, newest: None }))
    }

    /// The keys of this algorithm.
    #[must_use]
    pub fn by(&self, algorithm: BlockTagAlgorithm) -> Self {
        Self { algorithm, ..self.clone() }
    }

    fn tagger(&self) -> Result<&Tagger, CryptoError> {
        match self.algorithm {
            BlockTagAlgorithm::HmacSha256 => Ok(&self.by_hmac),
            BlockTagAlgorithm::PolyvalAes => {
                let algorithm = Algorithm::PolyvalAes;
                self.by_polyval.as_deref().ok_or(CryptoError::OutsideModule { algorithm })
            }
        }
    }

    /// The keys of a layer whose newest epoch this is, of the keys of several. What only this layer
    /// relies on is then tagged under a key that is there as long as the layer is.
    #[must_use]
    pub fn of_layer(&self, newest: KeyEpoch) -> Self {
        Self { newest: Some(newest), ..self.clone() }
    }

    /// Computes the tag that each block of `bytes` must have, [`NOTHING`] for an absent one. The
    /// first block's number is `first`.
    pub(super) fn tags(
        &self,
        binding: &Binding,
        first: u64,
        bytes: &[u8],
        seals: &[Option<KeyEpoch>],
        tags: &mut Vec<Tag>,
    ) -> Result<(), TagError> {
        tags.clear();
        let tagger = self.tagger()?;
        for ((block, seal), number) in bytes.chunks(BLOCK_BYTES as usize).zip(seals).zip(first..) {
            tags.push(match seal {
                None => NOTHING,
                // A block written as zeroes is absent, whatever its seal. Ciphertext differs in its
                // first bytes.
                Some(_) if block.iter().all(|byte| *byte == 0) => NOTHING,
                Some(epoch) => match tagger.of(*epoch) {
                    Some(key) => of_something(key.tag(&binding.of_block(epoch.number(), number), block)?),
                    None => return Err(TagError::UnknownEpoch(*epoch)),
                },
            });
        }
        Ok(())
    }

    /// The tag of a block that is "nothing here", in a page of tags that exists; `None` without a
    /// key for the epoch.
    pub(super) fn nothing(
        &self,
        binding: &Binding,
        epoch: KeyEpoch,
        block: u64,
    ) -> Result<Option<Tag>, CryptoError> {
        let Some(key) = self.tagger()?.of(epoch) else { return Ok(None) };
        let tag = key.tag(&binding.of_nothing(epoch.number(), block), &[])?;
        Ok(Some(of_something(tag)))
    }

    /// Tags the sectors of a page, whose bits are already filled in.
    pub(super) fn tag_sectors(
        &self,
        binding: &Binding,
        sectors: Sectors,
        page_number: u64,
        page: &mut [u8],
    ) -> Result<(), CryptoError> {
        let header = |sector| binding.of_sector(sectors.purpose(), sector);
        self.tagger()?.tag_page(self.newest, header, page_number, page, sectors.empty())
    }

    /// Reports the bits of each sector of a page, or that it failed verification.
    pub(super) fn verify_sectors(
        &self,
        binding: &Binding,
        sectors: Sectors,
        page_number: u64,
        page: &[u8],
        report: impl FnMut(u64, Option<&[u8]>),
    ) -> Result<(), CryptoError> {
        let header = |sector| binding.of_sector(sectors.purpose(), sector);
        self.tagger()?.verify_page(header, page_number, page, sectors.empty(), report)
    }
}
