//! Converts tags of the former format to the one that authenticates absent blocks.
//!
//! The former format does not authenticate absent blocks, so they are accepted as found: blocks
//! that were erased before stay undetected. Marks are copied, so a block that need not match its
//! tag before need not match it afterwards.

use strongroom_io::IoError;
use strongroom_types::KeyEpoch;

use super::keys::{Sectors, TagKeys};
use super::layout::{
    Layout, MARKS_OFFSET, TAGS_PER_PAGE, marks_offset, presence_offset, presence_pages, set_tag_at, tag_at,
};
use super::presence::Presence;
use crate::file::sidecar_pages::{self, Found};
use crate::file::storage::StoredFile;
use crate::file::tagging::{Binding, NOTHING, PAGE_BYTES};

/// Fills the empty sidecar `to` from the sidecar `from` of the former format, without making it
/// durable. `epoch` is the layer's.
pub(in crate::file) fn renew(
    from: &dyn StoredFile,
    to: &dyn StoredFile,
    binding: &Binding,
    keys: &TagKeys,
    epoch: KeyEpoch,
    layer_bytes: u64,
) -> Result<(), IoError> {
    let marks = MARKS_OFFSET..Layout::FORMER.page_offset(0);
    sidecar_pages::read(from, marks, Found::Durable, |number, page| {
        to.write_at(marks_offset(number), page).map_err(Into::into)
    })?;
    let mut presence = Presence::default();
    let tags = Layout::FORMER.page_offset(0)..Layout::FORMER.file_bytes(layer_bytes);
    sidecar_pages::read(from, tags, Found::Durable, |number, page| {
        if page.iter().all(|byte| *byte == 0) {
            return Ok(());
        }
        let mut renewed = [0; PAGE_BYTES];
        renewed.copy_from_slice(page);
        for at in 0..TAGS_PER_PAGE {
            if tag_at(page, at as usize) == NOTHING {
                let tag = keys.nothing(binding, epoch, number * TAGS_PER_PAGE + at);
                let tag = tag.map_err(|_| IoError::Cipher)?.ok_or(IoError::Cipher)?;
                set_tag_at(&mut renewed, at as usize, tag);
            }
        }
        presence.found(number);
        to.write_at(Layout::CURRENT.page_offset(number), &renewed).map_err(Into::into)
    })?;
    (0..presence_pages(layer_bytes)).for_each(|number| presence.not_said(number));
    for said in presence.take_unsaid() {
        let mut page = *said.content;
        let tagged = keys.tag_sectors(binding, Sectors::Presence, said.number, &mut page);
        tagged.map_err(|_| IoError::Cipher)?;
        to.write_at(presence_offset(said.number), &page)?;
    }
    Ok(())
}
