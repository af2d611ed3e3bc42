//! Volumes that move to another host: what is read here, and what is made of it there.

use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

use strongroom_datastore::file::*;
use strongroom_types::{BLOCK_BYTES, LayerId, VolumeId};

use crate::relocation::{Destination, content, on, options, with_content, write_blocks};
use crate::volume::{LOCK_WAIT, MIB, Volume, close_in_order, kek};

/// The way between the hosts: it may lie, or break off.
struct Way<'a> {
    from: &'a DepartingVolume<'a>,
    /// Pieces that pass before it breaks off.
    pieces: usize,
    /// What passed.
    passed: Vec<(LayerId, u64)>,
    /// Layers that were there already.
    skipped: Vec<LayerId>,
    lies: Option<Lie>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// A bit of a piece differs.
    Content,
    /// A piece is left out.
    Missing,
    /// It lies behind the end of the layer.
    Beyond,
    /// It does not begin with a block.
    Askew,
    /// It is of a file that no layer of the volume has.
    NoPart,
    /// It comes once more, with another content.
    Again,
}

impl<'a> Way<'a> {
    fn of(from: &'a DepartingVolume<'a>) -> Self {
        Self { from, pieces: usize::MAX, passed: Vec::new(), skipped: Vec::new(), lies: None }
    }
}

impl LayerSource for Way<'_> {
    fn read(
        &mut self,
        layer: &LayerRecord,
        left_there: Option<&mut LeftThere<'_>>,
        take: &mut TakePiece<'_>,
    ) -> Result<Option<LayerDigest>, DatastoreError> {
        if let Some(left_there) = left_there {
            let (there, here) =
                (left_there()?, self.from.read(layer.id, &mut |_| Ok(ControlFlow::Continue(())))?);
            if there == here {
                self.skipped.push(layer.id);
                return Ok(here);
            }
        }
        let broke_off = || DatastoreError::NotReceived { path: "there".into(), reason: "broken".to_owned() };
        let Self { from, pieces, passed, lies, .. } = self;
        from.read(layer.id, &mut |piece| {
            *pieces = pieces.checked_sub(1).ok_or_else(broke_off)?;
            passed.push((layer.id, piece.content.len() as u64));
            // Somewhere in memory, as what has come over a network.
            let anywhere = [&[0], piece.content].concat();
            let mut lied = piece.content.to_vec();
            match lies.take() {
                None => take(&LayerPiece { content: &anywhere[1..], ..*piece }),
                Some(Lie::Missing) => Ok(ControlFlow::Continue(())),
                Some(Lie::Content) => {
                    lied[0] ^= 1;
                    take(&LayerPiece { content: &lied, ..*piece })
                }
                Some(Lie::Beyond) => take(&LayerPiece { offset: 1 << 40, ..*piece }),
                Some(Lie::Askew) => take(&LayerPiece { offset: piece.offset + 512, ..*piece }),
                Some(Lie::NoPart) => take(&LayerPiece { part: LayerPart::Tags, ..*piece }),
                Some(Lie::Again) => {
                    let _ = take(piece)?;
                    lied[0] ^= 1;
                    take(&LayerPiece { content: &lied, ..*piece })
                }
            }
        })
    }
}

#[test]
fn a_volume_arrives_with_its_snapshots_and_keeps_its_identity() {
    for volume in [
        Volume::encrypted(4 * MIB),
        Volume::clear(4 * MIB),
        Volume::new(Some(kek(1)), 2 * MIB, Provisioning::Thick),
    ] {
        let volume = with_content(volume);
        let (before, files, there) = (volume.descriptor(), content(&volume.path), Destination::on_disk());
        let from = begin_departure(&volume.path, &options(&volume)).unwrap();
        let mut arriving = begin_arrival(
            &there.place(),
            from.sent().clone(),
            InUse::No,
            Some(before.volume),
            &options(&volume),
        )
        .unwrap();
        assert_eq!(arriving.layers().count(), before.layers.len());
        let copied = arriving.copy(&mut Way::of(&from), &mut on).unwrap().unwrap();
        assert_eq!((copied.layers, copied.shared_layers), (before.layers.len(), 0));
        assert!(!there.place().exists(), "it has no name yet");
        let after = arriving.take_place().unwrap();
        assert_eq!(after, Descriptor { generation: before.generation + 1, ..before.clone() });
        assert_eq!(content(&there.place()), files);
        // Nothing was changed here.
        drop(from);
        assert_eq!((volume.descriptor(), content(&volume.path)), (before, files));
        let options = OpenOptions {
            protection: volume.protection(),
            access: Access::ReadWrite,
            lock_wait: LOCK_WAIT,
            least_generation: after.generation,
        };
        close_in_order(open(&there.place(), &options).unwrap());
    }
}

#[test]
fn what_was_not_sent_so_is_not_received() {
    let volume = with_content(Volume::clear(2 * MIB));
    let from = begin_departure(&volume.path, &options(&volume)).unwrap();
    for (lie, code) in [
        (Lie::Content, "not_relocated"),
        (Lie::Missing, "not_relocated"),
        (Lie::Beyond, "not_received"),
        (Lie::Askew, "not_received"),
        (Lie::NoPart, "not_received"),
        (Lie::Again, "not_received"),
    ] {
        let there = Destination::new();
        let sent = from.sent().clone();
        let mut arriving = begin_arrival(&there.place(), sent, InUse::No, None, &options(&volume)).unwrap();
        let mut way = Way { lies: Some(lie), ..Way::of(&from) };
        assert_eq!(arriving.copy(&mut way, &mut on).unwrap_err().code(), code, "{lie:?}");
        assert_eq!(arriving.take_place().unwrap_err().code(), "not_copied");
        assert!(!there.place().exists(), "{lie:?}");
    }
}

#[test]
fn only_the_volume_that_is_expected_arrives() {
    let volume = with_content(Volume::encrypted(MIB));
    let (other, clear) = (Volume::encrypted(MIB), Volume::clear(MIB));
    let of = |volume: &Volume| begin_departure(&volume.path, &options(volume)).unwrap().sent().clone();
    let (right, own) = (volume.descriptor(), options(&volume));
    let there = Destination::new();
    let refused = |sent: SentVolume, id: VolumeId, options: &RelocateOptions<'_>| {
        let refused =
            begin_arrival(&there.place(), sent, InUse::No, Some(id), options).map(drop).unwrap_err();
        assert_eq!(there.names(), [""; 0], "{refused}");
        refused.code().to_owned()
    };
    assert_eq!(refused(of(&volume), other.descriptor().volume, &own), "other_volume");
    assert_eq!(refused(of(&other), right.volume, &own), "other_volume");
    assert_eq!(refused(of(&clear), right.volume, &own), "not_encrypted");
    let mut changed = of(&volume);
    let at = changed.descriptor.len() / 2;
    changed.descriptor[at] ^= 1;
    assert!(["damaged", "not_authentic"].contains(&refused(changed, right.volume, &own).as_str()));
    let stranger = kek(9);
    let under_another = RelocateOptions { protection: Protection::Encrypted(&stranger), ..own };
    assert_eq!(refused(of(&volume), right.volume, &under_another), "wrong_key");
    let later = RelocateOptions { least_generation: right.generation + 1, ..own };
    assert_eq!(refused(of(&volume), right.volume, &later), "rolled_back");
    // A place that is taken, and a room that is too small.
    let mut large = of(&volume);
    large.allocated_bytes.values_mut().for_each(|bytes| *bytes = u64::MAX / 2);
    assert_eq!(
        begin_arrival(&there.place(), large, InUse::No, None, &own).map(drop).unwrap_err().code(),
        "full"
    );
    fs::create_dir(there.place()).unwrap();
    let taken = begin_arrival(&there.place(), of(&volume), InUse::No, None, &own).map(drop).unwrap_err();
    assert!(matches!(taken, DatastoreError::Exists { .. }), "{taken}");
}

#[test]
fn an_attempt_goes_on_with_what_the_last_one_has_left() {
    let volume = with_content(Volume::encrypted(4 * MIB));
    let (before, files, there) = (volume.descriptor(), content(&volume.path), Destination::new());
    let from = begin_departure(&volume.path, &options(&volume)).unwrap();
    let begin =
        || begin_arrival(&there.place(), from.sent().clone(), InUse::No, None, &options(&volume)).unwrap();
    let mut all = Way::of(&from);
    begin().copy(&mut all, &mut on).unwrap().unwrap();
    for pieces in 0..all.passed.len() {
        // Nothing but the layers of an attempt is known to the next one.
        let mut broken = Way { pieces, ..Way::of(&from) };
        let other = Destination::new();
        let mut arriving =
            begin_arrival(&other.place(), from.sent().clone(), InUse::No, None, &options(&volume)).unwrap();
        assert_eq!(arriving.copy(&mut broken, &mut on).unwrap_err().code(), "not_received");
        drop(arriving);
        let mut next = Way::of(&from);
        let mut arriving =
            begin_arrival(&other.place(), from.sent().clone(), InUse::No, None, &options(&volume)).unwrap();
        arriving.copy(&mut next, &mut on).unwrap().unwrap();
        let of = |way: &Way<'_>, layer| way.passed.iter().filter(|(of, _)| *of == layer).count();
        let has_content = |layer: &LayerId| of(&all, *layer) > 0;
        let was_complete = |layer: &LayerId| has_content(layer) && of(&broken, *layer) == of(&all, *layer);
        let complete: Vec<LayerId> =
            before.layers.iter().map(|layer| layer.id).filter(was_complete).collect();
        // What is left of another one may be zeroes.
        assert!(complete.iter().all(|layer| next.skipped.contains(layer)), "after {pieces} pieces");
        arriving.take_place().unwrap();
        assert_eq!(content(&other.place()), files, "{pieces}");
    }
    // What somebody has written there meanwhile is not taken for it.
    let left: Vec<_> = fs::read_dir(fs::read_dir(there.datastore()).unwrap().next().unwrap().unwrap().path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("layer-"))
        .collect();
    let file = fs::File::options().write(true).open(&left[0]).unwrap();
    file.write_all_at(&[0xEE; BLOCK_BYTES as usize], 9 * BLOCK_BYTES).unwrap();
    let mut arriving = begin();
    let mut way = Way::of(&from);
    arriving.copy(&mut way, &mut on).unwrap().unwrap();
    assert_eq!(way.skipped.len(), before.layers.len() - 1, "the one that differs is sent once more");
    arriving.take_place().unwrap();
    assert_eq!(content(&there.place()), files);
}

#[test]
fn it_ends_when_it_is_asked_to_and_a_volume_in_use_does_not_depart() {
    let volume = with_content(Volume::encrypted(2 * MIB));
    let in_use = volume.open().unwrap();
    let briefly = RelocateOptions { lock_wait: std::time::Duration::ZERO, ..options(&volume) };
    let refused = begin_departure(&volume.path, &briefly).map(drop).unwrap_err();
    assert!(matches!(refused, DatastoreError::InUse { .. }), "{refused}");
    close_in_order(in_use);
    let from = begin_departure(&volume.path, &options(&volume)).unwrap();
    let there = Destination::new();
    let mut arriving =
        begin_arrival(&there.place(), from.sent().clone(), InUse::No, None, &options(&volume)).unwrap();
    let ended = arriving.copy(&mut Way::of(&from), &mut |_| ControlFlow::Break(())).unwrap();
    assert_eq!(ended, None);
    assert_eq!(arriving.take_place().unwrap_err().code(), "not_copied");
}

/// The way of a volume that is in use where it comes from.
struct Beside<'a, 'v> {
    from: &'a mut DepartingBeside<'v>,
    passed: Vec<LayerId>,
    changes: bool,
}

impl LayerSource for Beside<'_, '_> {
    fn read(
        &mut self,
        layer: &LayerRecord,
        left_there: Option<&mut LeftThere<'_>>,
        take: &mut TakePiece<'_>,
    ) -> Result<Option<LayerDigest>, DatastoreError> {
        assert!(left_there.is_none(), "nothing of an earlier attempt is there");
        self.passed.push(layer.id);
        match self.from.read(layer.id, take)? {
            ReadLayer::Whole(digest) => Ok(Some(digest)),
            ReadLayer::Ended => Ok(None),
            ReadLayer::Changes => {
                self.changes = true;
                Ok(None)
            }
        }
    }
}

#[test]
fn of_a_volume_in_use_all_but_the_top_arrives_and_the_rest_when_it_is_closed() {
    let volume = with_content(Volume::encrypted(4 * MIB));
    let (before, there) = (volume.descriptor(), Destination::new());
    let own = options(&volume);
    let mut from = begin_departure_beside(&volume.path, &own).unwrap();
    let sent = from.sent().unwrap();
    let mut arriving = begin_arrival(&there.place(), sent, InUse::Yes, Some(before.volume), &own).unwrap();
    let all = arriving.left();
    let mut way = Beside { from: &mut from, passed: Vec::new(), changes: false };
    let copied = arriving.copy(&mut way, &mut on).unwrap().unwrap();
    assert_eq!(copied.layers, before.layers.len() - 1, "the top takes writes");
    assert!(!way.changes && !way.passed.contains(&before.top));
    assert_eq!(arriving.left().layers, 1);
    assert!(all.layers == before.layers.len() && all.bytes >= arriving.left().bytes);
    // The top cannot be read yet.
    let asked = from.read(before.top, &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
    assert_eq!(asked, ReadLayer::Changes);
    // Its former top is complete, and only that is copied.
    write_blocks(&volume, 5);
    volume.add_layer().unwrap();
    arriving.renew(from.sent().unwrap(), InUse::Yes).unwrap();
    let mut way = Beside { from: &mut from, passed: Vec::new(), changes: false };
    arriving.copy(&mut way, &mut on).unwrap().unwrap();
    assert_eq!(way.passed, [before.top]);
    write_blocks(&volume, 6);
    let closed = from.closed().unwrap();
    let files = content(&volume.path);
    assert_eq!(closed.rest().collect::<Vec<_>>(), [volume.descriptor().top]);
    arriving.forget_others().unwrap();
    arriving.renew(closed.sent().clone(), InUse::No).unwrap();
    let mut way = Way::of(&closed);
    assert_eq!(arriving.copy(&mut way, &mut on).unwrap().unwrap().layers, 1);
    arriving.take_place().unwrap();
    assert_eq!(content(&there.place()), files);
}

#[test]
fn a_volume_that_is_still_used_or_is_older_than_it_was_takes_no_place() {
    let volume = with_content(Volume::encrypted(2 * MIB));
    let own = options(&volume);
    let from = begin_departure_beside(&volume.path, &own).unwrap();
    let early = from.sent().unwrap();
    volume.add_layer().unwrap();
    let there = Destination::new();
    let mut arriving = begin_arrival(&there.place(), from.sent().unwrap(), InUse::Yes, None, &own).unwrap();
    assert_eq!(arriving.renew(early, InUse::No).unwrap_err().code(), "rolled_back");
    let other = Volume::encrypted(2 * MIB).and_layers(9);
    let sent = begin_departure_beside(&other.path, &options(&other)).unwrap().sent().unwrap();
    assert_eq!(arriving.renew(sent, InUse::No).unwrap_err().code(), "other_volume");
    let closed = from.closed().unwrap();
    arriving.copy(&mut Way::of(&closed), &mut on).unwrap().unwrap();
    assert_eq!(arriving.take_place().unwrap_err().code(), "not_copied");
    assert!(!there.place().exists());
}
