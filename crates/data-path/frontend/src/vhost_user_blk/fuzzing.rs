//! Entry points for fuzzers: all data that a hostile front end or guest writes and this module
//! reads, without sockets and disks. `fuzz/` runs them; the tests here replay interesting inputs
//! that fuzzing has found.

use std::cell::RefCell;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use strongroom_memory::{GuestAddress, GuestMemory, GuestRegion};

use super::chain::{Chain, Run, take_first, take_last, total_bytes};
use super::in_flight::InFlightArea;
use super::message::{Header, Message};
use super::protocol::{BODY_BYTES_MAX, CONFIG_BYTES_MAX, FILES_MAX, INDIRECT_DESCRIPTORS_MAX};
use super::split_ring::{Layout, RingError, SplitRing};

/// A guest's memory: two regions side by side.
const REGION_BYTES: usize = 8 << 10;
/// Queues of up to this many entries fit into the in-flight area; there are larger ones.
const AREA_ENTRIES: u16 = 64;
/// Chains taken from one queue: more than the longest queue holds.
const CHAINS_MAX: usize = 1200;

/// Interprets `input` as a message: a count of files, a header, a body.
pub fn message(input: &[u8]) {
    let Some((count, rest)) = input.split_first() else { return };
    let Some((header, body)) = rest.split_first_chunk::<{ Header::BYTES }>() else { return };
    let Ok(header) = Header::parse(header) else { return };
    assert!(header.body_bytes <= BODY_BYTES_MAX);
    let Some(body) = body.get(..header.body_bytes as usize) else { return };
    // A channel accepts no more files.
    let files = null_files(usize::from(*count) % (FILES_MAX + 1));
    let came = files.len();
    let Ok(message) = Message::parse(header.request, body, files) else { return };
    match message {
        Message::SetMemoryTable(regions) => assert_eq!(regions.len(), came),
        Message::SetConfig(range, bytes) => {
            assert_eq!(bytes.len(), range.bytes as usize);
            assert!(range.offset + range.bytes <= CONFIG_BYTES_MAX);
        }
        Message::GetConfig(range) => assert!(range.offset + range.bytes <= CONFIG_BYTES_MAX),
        Message::AddRegion(..) | Message::SetLog(..) | Message::SetInFlight(..) => assert_eq!(came, 1),
        _ => {}
    }
}

/// Interprets `input` as a queue, the guest's memory around it, and a killed predecessor's note
/// about it.
pub fn queue(input: &[u8]) {
    let Some((start, content)) = input.split_first_chunk::<12>() else { return };
    let word = |at: usize| u16::from_le_bytes([start[at], start[at + 1]]);
    let place = |at| GuestAddress(word(at).into());
    let (flags, size) = (start[0], 1_u16.wrapping_shl(start[1].into()));
    let layout = Layout { size, descriptors: place(4), available: place(6), used: place(8) };
    let noted = usize::from(word(10)).min(content.len());
    let (note, guest) = content.split_at(noted);
    STAGE.with_borrow_mut(|stage| {
        let stage = stage.get_or_insert_with(Stage::new);
        stage.set(guest, note);
        let in_flight = (flags & 4 != 0).then_some((&stage.area, 0));
        // At worst the content of the rings ends the guest's own queue.
        let _ = serve(&stage.memory, layout, word(2), flags, in_flight);
    });
}

/// The work of a queue's thread without a disk: it takes chains, accesses their memory, and puts
/// them into the used ring.
fn serve(
    memory: &Arc<GuestMemory>,
    layout: Layout,
    next_available: u16,
    flags: u8,
    in_flight: Option<(&Arc<InFlightArea>, usize)>,
) -> Result<(), RingError> {
    let (event_index, indirect) = (flags & 1 != 0, flags & 2 != 0);
    let mut ring = SplitRing::new(memory, layout, next_available, event_index, in_flight)?;
    assert!(ring.replayed() <= usize::from(layout.size));
    let mut chain = Chain::default();
    for taken in 0..CHAINS_MAX {
        let Some(head) = ring.take()? else {
            ring.publish()?;
            if !ring.listen()? {
                return Ok(());
            }
            ring.be_quiet()?;
            continue;
        };
        assert!(head < layout.size);
        chain.walk(memory, &layout, head, indirect)?;
        check(memory, &chain, layout.size);
        let whole = total_bytes(&chain.readable);
        let request = take_first::<16>(memory, &mut chain.readable)?;
        assert_eq!(total_bytes(&chain.readable) + request.map_or(0, |_| 16), whole);
        if let Some(status) = take_last(&mut chain.writable) {
            memory.store_u8(status, 0)?;
        }
        ring.put_used(head, total_bytes(&chain.writable) as u32)?;
        if taken % 3 == 0 {
            ring.publish()?;
        }
    }
    Ok(())
}

/// Checks that a walk ends after the descriptors of two tables, and that every run is in memory.
fn check(memory: &GuestMemory, chain: &Chain, size: u16) {
    let descriptors = usize::from(size) + INDIRECT_DESCRIPTORS_MAX as usize;
    assert!(chain.readable.len() + chain.writable.len() <= 2 * descriptors);
    let is_memory = |(address, length): &Run| *length > 0 && memory.segment(*address, *length).is_ok();
    assert!(chain.readable.iter().chain(&chain.writable).all(is_memory));
}

fn null_files(count: usize) -> Vec<OwnedFd> {
    thread_local!(static NULL: Option<File> = File::open("/dev/null").ok());
    NULL.with(|null| (0..count).filter_map(|_| null.as_ref()?.as_fd().try_clone_to_owned().ok()).collect())
}

thread_local!(static STAGE: RefCell<Option<Stage>> = const { RefCell::new(None) });

/// Made once per thread, and refilled for each input.
struct Stage {
    file: File,
    memory: Arc<GuestMemory>,
    area_file: File,
    area: Arc<InFlightArea>,
}

#[expect(clippy::unwrap_used, reason = "a fuzzer without memory ends")]
impl Stage {
    fn new() -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 2 * REGION_BYTES as u64).unwrap();
        let region = |at: usize| {
            GuestRegion::map(&file, at as u64, GuestAddress(at as u64), REGION_BYTES as u64).unwrap()
        };
        let memory = Arc::new(GuestMemory::new(vec![region(0), region(REGION_BYTES)], None).unwrap());
        let area = Arc::new(InFlightArea::create(1, AREA_ENTRIES).unwrap());
        let area_file = area.file().try_clone().unwrap().into();
        Self { file: file.into(), memory, area_file, area }
    }

    /// Sets the content, cut to what fits and padded with zeroes.
    fn set(&self, guest: &[u8], note: &[u8]) {
        let fill = |file: &File, from: &[u8], bytes: usize| {
            let mut content = from[..from.len().min(bytes)].to_vec();
            content.resize(bytes, 0);
            file.write_all_at(&content, 0).unwrap();
        };
        fill(&self.file, guest, 2 * REGION_BYTES);
        fill(&self.area_file, note, self.area.description().bytes as usize);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    fn replay(target: &str, feed: fn(&[u8])) {
        let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/corpus").join(target);
        let mut count = 0;
        for input in std::fs::read_dir(&corpus).unwrap() {
            feed(&std::fs::read(input.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count > 0, "{} is empty", corpus.display());
    }

    #[test]
    fn the_corpus_of_messages_is_taken() {
        replay("message", super::message);
    }

    #[test]
    fn the_corpus_of_queues_is_taken() {
        replay("queue", super::queue);
    }
}
