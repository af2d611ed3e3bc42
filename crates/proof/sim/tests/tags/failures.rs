//! Writes that fail while the volume is in use: their effect is determined before they are
//! answered, so that no other content of their region is adopted later.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use strongroom_datastore::file::tags::TagsDisk;
use strongroom_datastore::file::{Access, Integrity, OpenVolume, Provisioning};
use strongroom_io::{Disk, Io, IoError, Request, Sealed};
use strongroom_sim::{Faults, SimFs};
use strongroom_types::BLOCK_BYTES;

use super::faulty::FaultyDisk;
use super::volume::*;

const SIZE: u64 = 3 << 20;

/// The fate of requests.
#[derive(Clone, Copy)]
enum Mood {
    Well = 0,
    /// Writes and zeroings find no room, and have no effect.
    Full = 1,
    /// Writes fail, but are done.
    Half = 2,
    /// Nothing is done.
    Dead = 3,
}

struct Subject {
    fs: SimFs,
    volume: OpenVolume,
    disk: TagsDisk,
    queue: Queue,
    mood: Arc<AtomicU8>,
}

impl Subject {
    /// Blocks 0 to 15 are written, and flushed.
    fn new(provisioning: Provisioning) -> Self {
        let fs = SimFs::new(1);
        create_volume(&fs, &kek(), SIZE, provisioning, Some(Integrity::NEW));
        let mut subject = Self::open(fs);
        subject.queue.write(1, blocks(0, 16));
        subject.queue.flush();
        subject
    }

    fn open(fs: SimFs) -> Self {
        let mut volume = open_volume(&fs, &kek(), Access::ReadWrite).unwrap();
        let mood = Arc::new(AtomicU8::new(Mood::Well as u8));
        let now = Arc::clone(&mood);
        let submits = move |io: Io<Sealed>| {
            let mood = now.load(Ordering::SeqCst);
            let is_change = matches!(io.request, Request::Write { .. } | Request::WriteZeroes { .. });
            match io.request {
                _ if mood == Mood::Full as u8 && is_change => Err(io.end(Err(IoError::NoSpace))),
                _ if mood == Mood::Dead as u8 => Err(io.end(Err(IoError::Closed))),
                _ => Ok(io),
            }
        };
        let ended_mood = Arc::clone(&mood);
        let below = Arc::clone(&volume.disk) as Arc<dyn Disk<Sealed>>;
        let below = FaultyDisk { below, submits: Arc::new(submits) };
        let below = HalfDone { below, mood: ended_mood };
        let disk = tags_over(Arc::new(below), &mut volume);
        let queue = Queue::on(&fs, &disk);
        Self { fs, volume, disk, queue, mood }
    }

    fn feel(&self, mood: Mood) {
        self.mood.store(mood as u8, Ordering::SeqCst);
    }

    fn fails(&mut self, request: Request<Sealed>) -> IoError {
        self.queue.run(request).result.unwrap_err()
    }

    /// Closes it. Returns whether a successor has no unsettled blocks.
    fn close(self) -> (SimFs, bool) {
        let Self { fs, volume, disk, queue, .. } = self;
        drop(queue);
        let in_order = disk.close();
        drop((disk, volume));
        (fs, in_order)
    }
}

/// A disk whose writes fail after they were done.
struct HalfDone {
    below: FaultyDisk,
    mood: Arc<AtomicU8>,
}

impl Disk<Sealed> for HalfDone {
    fn limits(&self) -> strongroom_io::Limits {
        self.below.limits()
    }

    fn open(
        &self,
        thread: &strongroom_io::Thread,
        depth: usize,
    ) -> Result<Box<dyn strongroom_io::Channel<Sealed>>, IoError> {
        Ok(Box::new(HalfDoneChannel { below: self.below.open(thread, depth)?, mood: Arc::clone(&self.mood) }))
    }

    fn allocation(
        &self,
        extent: strongroom_types::Extent,
        report: &mut dyn FnMut(strongroom_types::Extent, strongroom_io::Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct HalfDoneChannel {
    below: Box<dyn strongroom_io::Channel<Sealed>>,
    mood: Arc<AtomicU8>,
}

impl strongroom_io::Channel<Sealed> for HalfDoneChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<strongroom_io::Done<Sealed>>) {
        let from = done.len();
        self.below.poll(done);
        for done in &mut done[from..] {
            // The first request to complete in this mood is the write.
            let half = self.mood.compare_exchange(
                Mood::Half as u8,
                Mood::Well as u8,
                Ordering::SeqCst,
                Ordering::SeqCst,
            );
            if half.is_ok() {
                done.result = Err(IoError::Closed);
            }
        }
    }
}

/// An attacker changes a block of the region in which a write failed.
fn tamper(fs: &SimFs, block: u64) {
    let layer = file_of(fs, "layer-");
    let mut bytes = [0; BLOCK];
    layer.read_at(block * BLOCK_BYTES, &mut bytes).unwrap();
    bytes[7] ^= 1;
    layer.write_at(block * BLOCK_BYTES, &bytes).unwrap();
}

#[test]
fn a_write_that_found_no_room_leaves_nothing_to_adopt() {
    let ways = ["closed", "handed over", "while in use"];
    for (way, zeroes) in ways.into_iter().flat_map(|way| [(way, false), (way, true)]) {
        let mut subject = Subject::new(Provisioning::Thick);
        subject.feel(Mood::Full);
        let request = match zeroes {
            true => Request::WriteZeroes { extent: blocks(4, 3), may_unmap: true, durable: false },
            false => subject.queue.write_request(9, blocks(4, 3), false),
        };
        assert_eq!(subject.fails(request), IoError::NoSpace);
        subject.feel(Mood::Well);
        assert_eq!(subject.disk.counts().unsettled_regions, 0, "{way}");
        if way == "while in use" {
            tamper(&subject.fs, 5);
            assert_eq!(subject.queue.read(blocks(5, 1)), Err(IoError::Integrity { block: 5 }));
            continue;
        }
        if way == "closed" {
            subject.queue.flush();
        }
        let (fs, in_order) = subject.close();
        assert!(in_order, "{way}");
        tamper(&fs, 5);
        tamper(&fs, 12);
        let mut volume = open_volume(&fs, &kek(), Access::ReadWrite).unwrap();
        if let Some((_, facts)) = &mut volume.tags {
            facts.handed_over = way == "handed over";
        }
        let disk = tags_over(Arc::clone(&volume.disk) as _, &mut volume);
        let mut queue = Queue::on(&fs, &disk);
        for block in 0..16 {
            let is_tampered = [5, 12].contains(&block);
            assert_eq!(queue.read(blocks(block, 1)).is_err(), is_tampered, "{way}, block {block}");
        }
        assert_eq!(disk.counts().adopted, 0, "{way}");
    }
}

/// The effect of a failed write is determined, whether the old or the new content is there, and no
/// other content is accepted.
#[test]
fn a_write_that_failed_when_it_was_done_is_known() {
    let mut subject = Subject::new(Provisioning::Thick);
    subject.feel(Mood::Half);
    let request = subject.queue.write_request(9, blocks(4, 3), false);
    assert_eq!(subject.fails(request), IoError::Closed);
    let counts = subject.disk.counts();
    assert_eq!((counts.unsettled_regions, counts.adopted, counts.left_by_failures), (0, 0, 3));
    for block in 4..7 {
        assert!(subject.queue.shows(9, block).unwrap());
    }
    subject.queue.flush();
    let (fs, in_order) = subject.close();
    assert!(in_order);
    tamper(&fs, 5);
    let mut subject = Subject::open(fs);
    assert_eq!(subject.queue.read(blocks(5, 1)), Err(IoError::Integrity { block: 5 }));
    assert!(subject.queue.shows(9, 6).unwrap() && subject.queue.shows(1, 7).unwrap());
}

/// An unreadable block stays in doubt until it is read; until then its region stays marked, and the
/// doubt is reported.
#[test]
fn what_cannot_be_read_after_a_failure_stays_in_doubt_until_it_is_known() {
    for way in ["read", "written", "discarded", "closed"] {
        let mut subject = Subject::new(Provisioning::Thick);
        subject.feel(Mood::Dead);
        let request = subject.queue.write_request(9, blocks(4, 3), false);
        assert_eq!(subject.fails(request), IoError::Closed);
        subject.feel(Mood::Well);
        assert_eq!(subject.disk.counts().unsettled_regions, 1);
        match way {
            "read" => drop(subject.queue.read(blocks(0, 16)).unwrap()),
            "written" => subject.queue.write(10, blocks(3, 5)),
            "discarded" => {
                let extent = blocks(0, 256);
                let zeroes = Request::WriteZeroes { extent, may_unmap: true, durable: false };
                subject.queue.run(zeroes).result.unwrap();
            }
            _ => {}
        }
        let is_known = way != "closed";
        assert_eq!(subject.disk.counts().unsettled_regions, u64::from(!is_known), "{way}");
        subject.queue.flush();
        let (fs, in_order) = subject.close();
        assert_eq!(in_order, is_known, "{way}");
        let unsettled = Subject::open(fs).disk.counts().unsettled_regions;
        assert_eq!(unsettled, u64::from(!is_known), "{way}");
    }
}

/// A thin volume's tags find no room, before any data is written.
#[test]
fn a_write_whose_tags_find_no_room_is_not_begun() {
    use strongroom_datastore::file::storage::Storage;
    let mut subject = Subject::new(Provisioning::Thin);
    let directory = Storage::open_directory(&subject.fs, std::path::Path::new(PATH)).unwrap();
    let names = directory.names().unwrap();
    let taken: u64 = names.iter().map(|name| directory.allocated_bytes(name).unwrap()).sum();
    subject.fs.set_capacity(Some(taken));
    let request = subject.queue.write_request(9, blocks(300, 3), false);
    assert_eq!(subject.fails(request), IoError::NoSpace);
    assert_eq!(subject.queue.read(blocks(300, 3)).unwrap(), [0; 3 * BLOCK]);
    let counts = subject.disk.counts();
    assert_eq!((counts.unsettled_regions, counts.left_by_failures), (0, 0));
}

/// After a crash blocks are adopted on the channel of the first client, which goes away while pages
/// of tags are being written.
#[test]
fn a_client_that_goes_away_leaves_no_page_unwritten_and_no_flush_failing() {
    for seed in 0..40 {
        let (fs, kek) = (SimFs::new(seed), kek());
        create_volume(&fs, &kek, 64 << 20, Provisioning::Thick, Some(Integrity::NEW));
        let mut volume = open_volume(&fs, &kek, Access::ReadWrite).unwrap();
        let disk = tags_over(Arc::clone(&volume.disk) as Arc<dyn Disk<Sealed>>, &mut volume);
        let mut queue = Queue::on(&fs, &disk);
        // A page of tags for each, and there is memory for eight of them.
        (0..64).for_each(|page| queue.write(1, blocks(256 * page, 1)));
        let fs = fs.cut(seed);
        let mut volume = open_volume(&fs, &kek, Access::ReadWrite).unwrap();
        let disk = tags_over(Arc::clone(&volume.disk) as Arc<dyn Disk<Sealed>>, &mut volume);
        fs.record();
        let before = fs.moments();
        let mut goes = Queue::on(&fs, &disk);
        let mut stays = Queue::on(&fs, &disk);
        // Until it has sent a page, if it sends any: nothing else is written here.
        for _ in 0..300 {
            if fs.moments() > before {
                break;
            }
            goes.channel.kick();
            goes.channel.poll(&mut Vec::new());
        }
        drop(goes);
        stays.flush();
        (0..64).for_each(|page| drop(stays.read(blocks(256 * page, 1)).unwrap()));
        stays.flush();
    }
}

/// A failed write may have reached the log all the same. What is read after it is what is found
/// when the volume is opened again.
#[test]
fn a_failed_write_does_not_come_back_when_the_volume_is_opened_again() {
    let mut failed = 0;
    for seed in 0..200 {
        let (fs, kek) = (SimFs::new(seed), kek());
        create_volume(&fs, &kek, SIZE, Provisioning::Thin, None);
        let volume = open_volume(&fs, &kek, Access::ReadWrite).unwrap();
        let mut queue = Queue::on(&fs, &*volume.disk);
        if seed % 2 == 0 {
            queue.write(1, blocks(4, 4));
        }
        let request = match seed % 3 {
            0 => Request::Discard { extent: blocks(4, 4) },
            _ => queue.write_request(2, blocks(4, 4), false),
        };
        fs.set_faults(Faults { write_error_one_in: 2, ..Faults::default() });
        let done = queue.run(request);
        fs.set_faults(Faults::default());
        failed += usize::from(done.result.is_err());
        let before = queue.read(blocks(4, 4)).unwrap();
        drop((queue, volume));
        let volume = open_volume(&fs, &kek, Access::ReadWrite).unwrap();
        assert!(Queue::on(&fs, &*volume.disk).read(blocks(4, 4)).unwrap() == before, "seed {seed}");
    }
    assert!(failed > 40, "{failed}");
}
