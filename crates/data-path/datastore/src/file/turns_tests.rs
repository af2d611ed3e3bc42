use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_memory::{BufferPool, CHUNK_BYTES};

use super::*;

/// A file without any behaviour.
#[derive(Debug)]
struct AnyFile;

impl DataFile for AnyFile {
    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The leaf that all queues to a file send to. It keeps files alive as a real leaf does, and
/// requires that no two syncs are under way at once.
#[derive(Default)]
struct Leaf {
    under_way: Vec<UnderWay>,
    /// Offsets of writes, in the order in which they were done.
    written: Vec<u64>,
    /// How many of them a sync has covered.
    durable: usize,
    syncs_begun: usize,
}

struct UnderWay {
    inbox: Rc<Inbox>,
    _file: Arc<dyn DataFile>,
    io: FileIo,
    /// The writes that a sync covers: those done when it began.
    covers: usize,
}

#[derive(Default)]
struct Inbox {
    done: RefCell<Vec<FileDone>>,
    is_closed: Cell<bool>,
}

impl Leaf {
    /// Ends one of the operations under way with `result`; a failed one has no effect.
    fn end(&mut self, at: usize, result: Result<(), IoError>) {
        let UnderWay { inbox, io, covers, .. } = self.under_way.swap_remove(at);
        let buffer = match io.operation {
            FileOperation::Write { offset, from, durable } => {
                assert!(!durable, "a durable write is a write and a sync");
                if result.is_ok() {
                    self.written.push(offset);
                }
                Some(from)
            }
            _ => {
                if result.is_ok() {
                    self.durable = self.durable.max(covers);
                }
                None
            }
        };
        if !inbox.is_closed.get() {
            inbox.done.borrow_mut().push(FileDone { tag: io.tag, result, buffer });
        }
    }

    fn is_durable(&self, offset: u64) -> bool {
        self.written[..self.durable].contains(&offset)
    }
}

struct LeafQueue {
    leaf: Rc<RefCell<Leaf>>,
    files: Vec<Arc<dyn DataFile>>,
    inbox: Rc<Inbox>,
}

impl FileQueue for LeafQueue {
    fn register(&mut self, file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        self.files.push(file);
        Ok(FileToken((self.files.len() - 1) as u32))
    }

    fn submit(&mut self, io: FileIo) {
        let leaf = &mut *self.leaf.borrow_mut();
        let is_sync = |io: &FileIo| matches!(io.operation, FileOperation::SyncData);
        if is_sync(&io) {
            assert!(!leaf.under_way.iter().any(|other| is_sync(&other.io)), "two syncs are under way");
            leaf.syncs_begun += 1;
        }
        let (inbox, file) = (Rc::clone(&self.inbox), Arc::clone(&self.files[io.file.0 as usize]));
        leaf.under_way.push(UnderWay { inbox, _file: file, io, covers: leaf.written.len() });
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        done.append(&mut self.inbox.done.borrow_mut());
    }
}

impl Drop for LeafQueue {
    fn drop(&mut self) {
        self.inbox.is_closed.set(true);
    }
}

/// A file with queues of several threads.
struct Bench {
    leaf: Rc<RefCell<Leaf>>,
    file: Arc<dyn DataFile>,
    turns: Arc<Turns>,
    pool: BufferPool,
}

impl Bench {
    fn new() -> Self {
        Self {
            leaf: Rc::default(),
            file: Arc::new(AnyFile),
            turns: Arc::default(),
            pool: BufferPool::new(CHUNK_BYTES).unwrap(),
        }
    }

    fn queue(&self) -> TurnQueue {
        let below = LeafQueue { leaf: Rc::clone(&self.leaf), files: Vec::new(), inbox: Rc::default() };
        let waker = Arc::new(Waker::new().unwrap());
        let mut queue = TurnQueue::over(Box::new(below), waker, Arc::clone(&self.turns));
        assert_eq!(queue.register(Arc::clone(&self.file)), Ok(FileToken(0)));
        queue
    }

    fn write(&self, offset: u64, durable: bool) -> FileOperation {
        FileOperation::Write { offset, from: self.pool.take(512).unwrap(), durable }
    }

    fn end_all(&self, result: Result<(), IoError>) {
        let mut leaf = self.leaf.borrow_mut();
        while !leaf.under_way.is_empty() {
            leaf.end(0, result);
        }
    }
}

fn submit(queue: &mut TurnQueue, tag: u64, operation: FileOperation) {
    queue.submit(FileIo { tag, file: FileToken(0), operation });
}

/// The tags and results of operations that have ended.
fn ended(queue: &mut TurnQueue) -> Vec<(u64, Result<(), IoError>)> {
    let mut done = Vec::new();
    queue.poll(&mut done);
    done.into_iter().map(|done| (done.tag, done.result)).collect()
}

#[test]
fn syncs_of_a_file_take_turns_and_cover_what_they_must() {
    let (mut syncs, mut covered) = (0, 0);
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let bench = Bench::new();
        let mut queues: Vec<_> = (0..3).map(|_| (bench.queue(), BTreeMap::new())).collect();
        // The writes answered so far, which a sync requested from now on must cover.
        let mut told: Vec<u64> = Vec::new();
        let mut tag = 0;
        let mut steps = 400;
        while steps > 0 || queues.iter().any(|(_, in_flight)| !in_flight.is_empty()) {
            let at = random.random_range(0..queues.len());
            let (queue, in_flight) = &mut queues[at];
            match random.random_range(0..8) {
                0..3 if steps > 0 => {
                    tag += 1;
                    let (operation, covers) = match random.random_range(0..3) {
                        0 => (FileOperation::SyncData, told.clone()),
                        1 => (bench.write(tag, true), vec![tag]),
                        _ => (bench.write(tag, false), Vec::new()),
                    };
                    in_flight.insert(tag, covers);
                    submit(queue, tag, operation);
                }
                3..5 => {
                    let mut leaf = bench.leaf.borrow_mut();
                    if !leaf.under_way.is_empty() {
                        let at = random.random_range(0..leaf.under_way.len());
                        leaf.end(at, Ok(()));
                    }
                }
                5 if steps > 0 && random.random_ratio(1, 8) => {
                    // The completions of its operations under way never arrive.
                    queues[at] = (bench.queue(), BTreeMap::new());
                }
                _ => {
                    for (tag, result) in ended(queue) {
                        assert_eq!(result, Ok(()));
                        let covers = in_flight.remove(&tag).unwrap();
                        let leaf = bench.leaf.borrow();
                        covered += usize::from(!covers.is_empty());
                        assert!(covers.iter().all(|offset| leaf.is_durable(*offset)), "seed {seed}");
                        if leaf.written.contains(&tag) {
                            told.push(tag);
                        }
                    }
                }
            }
            steps -= usize::from(steps > 0);
        }
        syncs += bench.leaf.borrow().syncs_begun;
    }
    assert!(covered > syncs && syncs > 2000, "{covered} syncs were asked for, and {syncs} begun");
}

#[test]
fn who_asks_while_a_sync_is_under_way_shares_the_next() {
    let bench = Bench::new();
    let (mut first, mut second) = (bench.queue(), bench.queue());
    submit(&mut first, 1, FileOperation::SyncData);
    submit(&mut first, 2, FileOperation::SyncData);
    submit(&mut second, 3, bench.write(0, true));
    submit(&mut second, 4, FileOperation::SyncData);
    bench.end_all(Ok(()));
    assert_eq!(ended(&mut second), []);
    assert_eq!(ended(&mut first), [(1, Ok(()))]);
    bench.end_all(Ok(()));
    assert_eq!(ended(&mut first), [(2, Ok(()))]);
    assert_eq!(ended(&mut second), [(4, Ok(())), (3, Ok(()))]);
    assert_eq!(bench.leaf.borrow().syncs_begun, 2);
}

#[test]
fn a_failed_sync_fails_all_who_share_it_and_all_to_come() {
    for (error, told) in [(IoError::Closed, IoError::Closed), (IoError::NoSpace, IoError::FlushFailed)] {
        let bench = Bench::new();
        let (mut first, mut second) = (bench.queue(), bench.queue());
        submit(&mut first, 1, FileOperation::SyncData);
        submit(&mut second, 2, FileOperation::SyncData);
        bench.end_all(Err(error));
        assert_eq!(ended(&mut first), [(1, Err(told))]);
        assert_eq!(ended(&mut second), [(2, Err(told))]);
        submit(&mut second, 3, bench.write(0, true));
        bench.end_all(Ok(()));
        assert_eq!(ended(&mut second), [(3, Err(told))]);
        submit(&mut first, 4, FileOperation::SyncData);
        assert_eq!(ended(&mut first), [(4, Err(told))]);
        assert_eq!(bench.leaf.borrow().syncs_begun, 1);
    }
}

#[test]
fn a_write_without_room_fails_alone() {
    let bench = Bench::new();
    let mut queue = bench.queue();
    submit(&mut queue, 1, bench.write(0, true));
    bench.end_all(Err(IoError::NoSpace));
    assert_eq!(ended(&mut queue), [(1, Err(IoError::NoSpace))]);
    submit(&mut queue, 2, FileOperation::SyncData);
    bench.end_all(Ok(()));
    assert_eq!(ended(&mut queue), [(2, Ok(()))]);
}

#[test]
fn a_sync_that_nobody_hears_of_holds_its_turn_and_answers_nobody() {
    let bench = Bench::new();
    let (mut first, mut second, mut third) = (bench.queue(), bench.queue(), bench.queue());
    submit(&mut first, 1, FileOperation::SyncData);
    submit(&mut second, 2, FileOperation::SyncData);
    submit(&mut third, 3, FileOperation::SyncData);
    bench.end_all(Ok(()));
    assert_eq!(ended(&mut first), [(1, Ok(()))]);
    // The second sends the sync for both, and is dropped.
    assert_eq!(ended(&mut second), []);
    drop(second);
    assert_eq!(ended(&mut third), []);
    assert_eq!(bench.leaf.borrow().syncs_begun, 2);
    bench.end_all(Ok(()));
    assert_eq!(ended(&mut third), []);
    assert_eq!(bench.leaf.borrow().syncs_begun, 3);
    bench.end_all(Ok(()));
    assert_eq!(ended(&mut third), [(3, Ok(()))]);
}

#[test]
fn syncs_of_different_files_do_not_wait_for_each_other() {
    let bench = Bench::new();
    let other = Bench { turns: Arc::clone(&bench.turns), ..Bench::new() };
    let (mut queue, mut other_queue) = (bench.queue(), other.queue());
    submit(&mut queue, 1, FileOperation::SyncData);
    submit(&mut other_queue, 2, FileOperation::SyncData);
    assert_eq!((bench.leaf.borrow().syncs_begun, other.leaf.borrow().syncs_begun), (1, 1));
}

#[test]
fn side_by_side_the_queue_is_the_leafs_own() {
    assert!(matches!(SyncOrder::new(false, []), SyncOrder::SideBySide(maps) if maps.is_empty()));
    assert!(matches!(SyncOrder::new(true, []), SyncOrder::InTurn(_)));
}
