//! Damages streams in many ways, and checks that each is detected.

use proptest::prelude::*;

use super::*;
use strongroom_types::VolumeId;

const SLOT: u32 = SLOT_BYTES_MIN;
const CONTENT_MAX: usize = 4096 - 64;
const VOLUME: VolumeId = VolumeId::from_bytes([9; 16]);

fn written(content: &[u8]) -> Vec<u8> {
    let bytes = stream_bytes(content.len() as u64, SLOT) as usize;
    let mut writer =
        StreamWriter::begin(vec![0; bytes], StreamKind::Memory, VOLUME, SLOT, b"of a VM").unwrap();
    writer.write(content).unwrap();
    writer.finish().unwrap().1
}

fn read(medium: Vec<u8>) -> Result<Vec<u8>, StreamError> {
    let mut reader = StreamReader::open(medium, StreamKind::Memory, VOLUME)?;
    let bytes = reader.verify(|_| Ok(()))?;
    let mut content = Vec::new();
    assert_eq!(reader.copy_to(&mut content, |_| Ok(()))?, bytes);
    assert_eq!(reader.description(), b"of a VM");
    Ok(content)
}

fn guest(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|byte| (byte * 31 % 251) as u8 + 1).collect()
}

fn slot(number: usize) -> std::ops::Range<usize> {
    4096 + number * SLOT as usize..4096 + (number + 1) * SLOT as usize
}

#[test]
fn what_was_written_is_read_whatever_its_length() {
    for bytes in [0, 1, CONTENT_MAX - 1, CONTENT_MAX, CONTENT_MAX + 1, 3 * CONTENT_MAX] {
        let content = guest(bytes);
        let medium = written(&content);
        assert_eq!(read(medium.clone()).unwrap(), content);
        let mut copied = vec![0; medium.len()];
        let mut writer =
            StreamWriter::begin(&mut copied, StreamKind::Memory, VOLUME, SLOT, b"of a VM").unwrap();
        writer.copy_from(&content[..], |_| Ok(())).unwrap();
        assert_eq!(writer.finish().unwrap().0, bytes as u64);
        assert_eq!(read(copied).unwrap(), content);
        if bytes > 16 {
            assert!(!medium.windows(16).any(|window| content.starts_with(window)), "it is sealed");
        }
    }
}

#[test]
fn every_bit_that_is_flipped_is_noticed() {
    let mut medium = written(&guest(CONTENT_MAX + 9));
    // First block, description, a whole record and the last one; the rest was never written.
    for byte in 0..slot(2).end {
        // Flip every bit of the fields, but only one per byte of contents and paddings, whose seal
        // treats all bits alike.
        let bits =
            if byte % 4096 < 128 || (4064..4096).contains(&byte) { 0..8 } else { byte % 8..byte % 8 + 1 };
        for bit in bits {
            medium[byte] ^= 1 << bit;
            assert!(read(medium.clone()).is_err(), "bit {bit} of byte {byte}");
            medium[byte] ^= 1 << bit;
        }
    }
    assert!(read(medium).is_ok());
}

#[test]
fn what_is_wrong_is_named() {
    let content = guest(3 * CONTENT_MAX + 5);
    let medium = written(&content);
    let damaged = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut medium = medium.clone();
        change(&mut medium);
        read(medium).unwrap_err().to_string()
    };
    assert_eq!(
        damaged(&|m| m[slot(2).start + 100] ^= 1),
        "record 2 of its stream is damaged, or is from another stream"
    );
    assert_eq!(
        damaged(&|m| {
            let (one, two) = (m[slot(1)].to_vec(), m[slot(2)].to_vec());
            m[slot(2)].copy_from_slice(&one);
            m[slot(1)].copy_from_slice(&two);
        }),
        "record 2 of its stream lies where record 1 belongs: it was moved, or put back"
    );
    let cut = "its stream breaks off at record 3: it was never finished, or its end was cut off";
    assert_eq!(damaged(&|m| m[slot(3).start..].fill(0)), cut);
    assert_eq!(damaged(&|m| m.truncate(slot(3).start)), cut);
    // A last record that replaces an earlier one is detected by its number.
    assert_eq!(
        damaged(&|m| m.copy_within(slot(4), slot(2).start)),
        "record 4 of its stream lies where record 2 belongs: it was moved, or put back"
    );
    let other = written(&content);
    assert!(damaged(&|m| m[slot(1)].copy_from_slice(&other[slot(1)])).starts_with("record 1"));
    assert_eq!(
        damaged(&|m| m[..4096].copy_from_slice(&other[..4096])),
        "record 0 of its stream is damaged, or is from another stream"
    );
    assert_eq!(
        damaged(&|m| m[70] ^= 1),
        "the first block of its stream is damaged, or is from another stream"
    );
    assert_eq!(damaged(&|m| m.fill(0)), "there is no stream in it");
    assert!(damaged(&|m| m[8] = 2).starts_with("its stream is of format 2"));
    let elsewhere = StreamReader::open(medium.clone(), StreamKind::Memory, VolumeId::random()).unwrap_err();
    assert!(matches!(elsewhere, StreamError::AnotherVolume), "{elsewhere}");
    let dump = StreamReader::open(medium, StreamKind::Dump, VOLUME).unwrap_err();
    assert_eq!(dump.to_string(), "its stream is a suspended memory, and should be a guest's dump");
}

#[test]
fn nothing_of_a_damaged_record_is_given_out() {
    let content = guest(2 * CONTENT_MAX);
    let mut medium = written(&content);
    medium[slot(2).start + 64] ^= 1;
    let mut reader = StreamReader::open(medium, StreamKind::Memory, VOLUME).unwrap();
    let mut given = Vec::new();
    assert!(matches!(reader.copy_to(&mut given, |_| Ok(())), Err(StreamError::Damaged { number: 2 })));
    assert_eq!(given, content[..CONTENT_MAX]);
}

#[test]
fn what_is_not_finished_says_so_and_what_has_no_room_too() {
    let mut medium = vec![0; 5 * 4096];
    let mut writer = StreamWriter::begin(&mut medium, StreamKind::Memory, VOLUME, SLOT, b"of a VM").unwrap();
    writer.write(&guest(CONTENT_MAX + 1)).unwrap();
    drop(writer);
    assert!(matches!(read(medium.clone()), Err(StreamError::Unfinished { records: 1 | 2 })));
    let mut writer = StreamWriter::begin(&mut medium, StreamKind::Memory, VOLUME, SLOT, b"of a VM").unwrap();
    let error = writer.write(&guest(5 * CONTENT_MAX)).unwrap_err();
    assert!(matches!(error, StreamError::NoRoom { size_bytes: 20480 }), "{error}");
    let stopped = StreamWriter::begin(&mut medium, StreamKind::Memory, VOLUME, SLOT, b"").unwrap();
    let mut stopped = stopped;
    let error = stopped.copy_from(&[1; 9][..], |_| Err(std::io::ErrorKind::Interrupted.into())).unwrap_err();
    assert!(matches!(error, StreamError::Io(_)), "{error}");
    for (slot_bytes, description) in [(SLOT, CONTENT_MAX + 1), (SLOT / 2, 0), (SLOT + 1, 0), (2 << 20, 0)] {
        let begun =
            StreamWriter::begin(&mut medium, StreamKind::Memory, VOLUME, slot_bytes, &vec![1; description]);
        assert!(matches!(begun, Err(StreamError::Limit { .. })));
    }
}

proptest! {
    #[test]
    fn no_bytes_at_all_are_read_as_a_stream(
        content in proptest::collection::vec(any::<u8>(), 0..3 * CONTENT_MAX),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), 1..=u8::MAX), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let medium = written(&content);
        let used = slot(content.len().div_ceil(CONTENT_MAX).max(1)).end;
        let mut damaged = medium.clone();
        for (at, change) in &damage {
            damaged[at.index(used)] ^= change;
        }
        if damaged != medium {
            prop_assert!(read(damaged).is_err());
        }
        let mut shorter = medium;
        shorter.truncate(cut.index(used));
        prop_assert!(read(shorter).is_err());
    }

    #[test]
    fn a_log_has_what_was_persisted_whenever_it_is_cut_off(
        said in proptest::collection::vec(proptest::collection::vec(1..=u8::MAX, 0..3000), 1..40),
        cut in any::<prop::sample::Index>(),
        torn in any::<prop::sample::Index>(),
    ) {
        let mut cuts = Cuts { medium: vec![0; 4096 * 8], left: None };
        Log::begin(&mut cuts, StreamKind::Console, VOLUME, Shape { slot_bytes: SLOT, ring_slots: 4 }).unwrap();
        let mut persisted = 0;
        let mut all = Vec::new();
        let cut = cut.index(said.len());
        for (index, said) in said.iter().enumerate() {
            // Each piece is written by another process, as if each had been killed.
            let mut log = Log::open(&mut cuts, StreamKind::Console, VOLUME).unwrap();
            if index == cut {
                log.medium().left = Some(torn.index(3 * 4096));
            }
            let done = log.say(said).and_then(|()| log.persist());
            all.extend_from_slice(said);
            if done.is_err() {
                break;
            }
            persisted = all.len();
        }
        cuts.left = None;
        let (kept, damaged) = kept(&mut cuts);
        prop_assert_eq!(damaged, 0);
        prop_assert!(all.windows(kept.len().max(1)).any(|window| window == kept) || kept.is_empty());
        let end = (0..=all.len()).rev().find(|end| all[..*end].ends_with(&kept)).unwrap();
        prop_assert!(end >= persisted, "{} of {}", end, persisted);
        prop_assert!(kept.len() >= persisted.min(3 * CONTENT_MAX));
    }
}

#[test]
fn damage_to_a_log_is_named_and_the_rest_is_read() {
    let mut medium = vec![0; 4096 * 8];
    let mut log =
        Log::begin(&mut medium, StreamKind::Console, VOLUME, Shape { slot_bytes: SLOT, ring_slots: 4 })
            .unwrap();
    let said = guest(9 * CONTENT_MAX + 10);
    log.say(&said).unwrap();
    log.persist().unwrap();
    assert_eq!(kept(&mut medium), (said[5 * CONTENT_MAX..].to_vec(), 0));
    // Records 5 to 8 are in slots 1, 2, 3 and 0, after two tails.
    let place = |number: usize| slot(2 + number % 4);
    let mut damaged = medium.clone();
    damaged[place(6).start + 99] ^= 1;
    let (rest, missing) = kept(&mut damaged);
    assert_eq!((rest.len(), missing), (3 * CONTENT_MAX + 10, 1));
    // An old record, restored.
    let mut back = medium.clone();
    back.copy_within(place(5), place(6).start);
    assert_eq!(kept(&mut back).1, 1);
    assert!(
        Log::begin(
            &mut medium,
            StreamKind::Console,
            VOLUME,
            Shape { slot_bytes: SLOT, ring_slots: RING_SLOTS_MAX + 1 }
        )
        .is_err()
    );
    assert!(
        Log::begin(&mut medium, StreamKind::Console, VOLUME, Shape { slot_bytes: SLOT, ring_slots: 6 })
            .is_err(),
        "no room"
    );
    assert!(matches!(
        StreamReader::open(&mut medium, StreamKind::Console, VOLUME),
        Err(StreamError::Unfinished { .. } | StreamError::Damaged { .. } | StreamError::Misplaced { .. })
    ));
}

fn kept(medium: &mut impl Medium) -> (Vec<u8>, usize) {
    let (mut kept, mut damaged) = (Vec::new(), 0);
    let mut log = Log::open(medium, StreamKind::Console, VOLUME).unwrap();
    log.read(|piece| match piece {
        LogPiece::Said(said) => kept.extend_from_slice(said),
        LogPiece::Damaged { .. } => damaged += 1,
    })
    .unwrap();
    (kept, damaged)
}

/// Memory whose power is cut after a number of bytes.
struct Cuts {
    medium: Vec<u8>,
    left: Option<usize>,
}

impl Medium for Cuts {
    fn size_bytes(&self) -> u64 {
        self.medium.len() as u64
    }

    fn read_at(&mut self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.medium.read_at(offset, into)
    }

    fn write_at(&mut self, offset: u64, from: &[u8]) -> std::io::Result<()> {
        let whole = self.left.is_none_or(|left| left >= from.len());
        let written = if whole { from.len() } else { self.left.unwrap_or(0) };
        self.medium.write_at(offset, &from[..written])?;
        self.left = self.left.map(|left| left - written);
        if whole { Ok(()) } else { Err(std::io::ErrorKind::BrokenPipe.into()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
