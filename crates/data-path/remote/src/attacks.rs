//! Hostile entries on a lane.

use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use strongroom_datastore::file::storage::BY_PATH;
use strongroom_memory::{BufferPool, CHUNK_BYTES, WordsWriter, make_shared_chunks};
use strongroom_ring::Ring;
use strongroom_wire::PacketSocket;
use tempfile::TempDir;

use crate::message::{Answer, Ask};
use crate::packet;
use crate::ring::{CHUNKS, ClientRing, Ended, Entry, LAYOUT, make, operation};
use crate::server::Server;

/// A client that does what it likes.
struct Attacker {
    _directory: TempDir,
    directory: PacketSocket,
    file: PacketSocket,
    ring: ClientRing,
    words: OwnedFd,
    pool: BufferPool,
    event: OwnedFd,
    lane: PacketSocket,
    number: u64,
}

fn ask(socket: &PacketSocket, ask: &Ask, files: &[std::os::fd::BorrowedFd<'_>]) -> (Answer, Vec<OwnedFd>) {
    packet::send(socket, ask, &[], files).unwrap();
    let mut room = vec![0; 8192];
    let received = packet::receive(socket, &mut room).unwrap();
    (received.message, received.files)
}

fn object(answered: (Answer, Vec<OwnedFd>)) -> PacketSocket {
    let (Answer::Opened { .. }, mut files) = answered else { panic!("{:?}", answered.0) };
    PacketSocket::adopt(files.remove(0)).unwrap()
}

impl Attacker {
    fn new() -> Self {
        let temporary = tempfile::tempdir().unwrap();
        std::fs::write(temporary.path().join("file"), [7; 16_384]).unwrap();
        let server = Server::new(BY_PATH, || Ring::new(8).map_err(|_| strongroom_io::IoError::Closed));
        let (ours, theirs) = PacketSocket::pair().unwrap();
        thread::spawn(move || server.serve(theirs).unwrap());
        let path = temporary.path().to_owned();
        let directory = object(ask(&ours, &Ask::OpenDirectory { path }, &[]));
        let file = object(ask(&directory, &Ask::Open { name: "file".to_owned(), flags: 2 }, &[]));
        let (words, chunks) = (make().unwrap(), make_shared_chunks(CHUNKS).unwrap());
        let wakes = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let files = [words.as_fd(), chunks.as_fd(), wakes.as_fd()];
        let (answer, mut files) = ask(&file, &Ask::OpenLane { layout: LAYOUT }, &files);
        let Answer::Opened { token } = answer else { panic!("{answer:?}") };
        let event = files.pop().unwrap();
        let lane = PacketSocket::adopt(files.pop().unwrap()).unwrap();
        let (Answer::Attached { file: number }, _) = ask(&file, &Ask::Attach { lane: token }, &[]) else {
            panic!("not attached")
        };
        let (ring, pool) =
            (ClientRing::map(&words).unwrap(), BufferPool::of_shared(&chunks, CHUNKS).unwrap());
        let number = number.into();
        Self { _directory: temporary, directory, file, ring, words, pool, event, lane, number }
    }

    fn submit(&mut self, entries: &[Entry]) {
        entries.iter().for_each(|entry| self.ring.push(*entry));
        self.ring.publish();
        rustix::io::write(&self.event, &1_u64.to_ne_bytes()).unwrap();
    }

    fn ends(&mut self, count: usize) -> Vec<Ended> {
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut ended = Vec::new();
        while ended.len() < count {
            ended.extend(self.ring.reap().unwrap());
            assert!(Instant::now() < deadline, "{ended:?}");
            thread::yield_now();
        }
        ended
    }

    fn entry(&self) -> Entry {
        let (operation, file) = (operation::WRITE, self.number);
        Entry { tag: 1, operation, file, offset: 0, length: 4096, place: 0 }
    }

    /// The file, through its socket.
    fn content(&self) -> Vec<u8> {
        packet::send(&self.file, &Ask::ReadAt { offset: 0, bytes: 32_768 }, &[], &[]).unwrap();
        let mut room = vec![0; 1 << 17];
        packet::receive::<Answer>(&self.file, &mut room).unwrap().data.to_vec()
    }
}

#[test]
fn an_entry_that_the_client_may_not_make_is_refused_alone() {
    let mut attacker = Attacker::new();
    let good = attacker.entry();
    let hostile = [
        Entry { file: good.file + 1, ..good },
        Entry { file: u64::MAX, ..good },
        Entry { file: good.file | 1 << 32, ..good },
        Entry { operation: 8, ..good },
        Entry { operation: u64::MAX, ..good },
        Entry { length: 0, ..good },
        Entry { length: CHUNK_BYTES as u64 + 1, ..good },
        Entry { length: u64::MAX, ..good },
        Entry { offset: u64::MAX, ..good },
        Entry { offset: u64::MAX - 4095, ..good },
        Entry { offset: i64::MAX as u64, ..good },
        Entry { operation: operation::PUNCH, offset: 1, length: u64::MAX, ..good },
        Entry { place: (CHUNKS * CHUNK_BYTES) as u64, ..good },
        Entry { place: u64::MAX, ..good },
        Entry { place: 1, ..good },
        Entry { place: 4096, length: 8192, ..good },
    ];
    for (tag, entry) in hostile.into_iter().enumerate() {
        attacker.submit(&[Entry { tag: tag as u64, ..entry }]);
        let ended = attacker.ends(1);
        assert_eq!((ended[0].tag, ended[0].code != 0), (tag as u64, true), "{entry:?}");
    }
    assert_eq!(attacker.content(), [7; 16_384]);
    attacker.submit(&[good]);
    assert_eq!(attacker.ends(1), [Ended { tag: 1, code: 0 }]);
    assert_eq!(attacker.content()[..4097], [[0; 4096].as_slice(), &[7]].concat());
}

/// Two operations on the same memory would be two owners of one buffer.
#[test]
fn memory_that_is_in_use_is_not_used_again() {
    let mut attacker = Attacker::new();
    let good = attacker.entry();
    let mut buffer = attacker.pool.take_at(0, 8192).unwrap();
    buffer.copy_from(&BufferPool::brief().take(8192).unwrap());
    let both = [Entry { tag: 1, length: 8192, ..good }, Entry { tag: 2, place: 4096, offset: 8192, ..good }];
    attacker.submit(&both);
    let mut ended = attacker.ends(2);
    ended.sort_by_key(|ended| ended.tag);
    assert_eq!((ended[0].code, ended[1].code != 0), (0, true), "{ended:?}");
    assert_eq!(attacker.content()[8192..], [7; 8192]);
}

#[test]
fn a_ring_that_is_broken_ends_and_the_file_is_served_on() {
    let mut attacker = Attacker::new();
    let words = attacker.words.try_clone().unwrap();
    let count = rustix::fs::fstat(&words).unwrap().st_size as usize / 8;
    let writer = WordsWriter::map(&words, count).unwrap();
    writer.words()[0].store(1 << 40, std::sync::atomic::Ordering::SeqCst);
    rustix::io::write(&attacker.event, &1_u64.to_ne_bytes()).unwrap();
    // The lane goes as soon as its thread has seen that, and nothing can be attached to it.
    drop(std::mem::replace(&mut attacker.lane, PacketSocket::pair().unwrap().0));
    assert_eq!(attacker.content(), [7; 16_384]);
    let (answer, _) = ask(&attacker.directory, &Ask::Names { after: None }, &[]);
    assert!(matches!(answer, Answer::Names { names, is_all: true } if names == ["file"]));
}

#[test]
fn a_lane_over_files_of_another_kind_is_refused() {
    let attacker = Attacker::new();
    let (words, chunks) = (make().unwrap(), make_shared_chunks(CHUNKS).unwrap());
    let small = make_shared_chunks(CHUNKS - 1).unwrap();
    let wakes = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let null: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
    let open = |layout, files: &[&OwnedFd]| {
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        ask(&attacker.file, &Ask::OpenLane { layout }, &files).0
    };
    let refused = Answer::failed(rustix::io::Errno::INVAL);
    assert_eq!(open(LAYOUT + 1, &[&words, &chunks, &wakes]), refused);
    assert_eq!(open(LAYOUT, &[&words, &chunks]), refused);
    assert_eq!(open(LAYOUT, &[&null, &chunks, &wakes]), refused);
    assert_eq!(open(LAYOUT, &[&words, &null, &wakes]), refused);
    assert_eq!(open(LAYOUT, &[&words, &small, &wakes]), refused);
    assert_eq!(open(LAYOUT, &[&chunks, &words, &wakes]), refused);
}
