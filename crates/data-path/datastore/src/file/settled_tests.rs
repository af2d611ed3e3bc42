use std::cell::RefCell;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use rustix::fs::{FallocateFlags, fallocate};
use strongroom_memory::{BufferPool, CHUNK_BYTES};

use super::super::host::HostFile;
use super::*;

/// What the leaf gets, and ends when it is asked to.
#[derive(Default)]
struct Leaf {
    under_way: Vec<FileIo>,
    ended: Vec<FileDone>,
}

struct LeafQueue(Rc<RefCell<Leaf>>);

impl FileQueue for LeafQueue {
    fn register(&mut self, _file: Arc<dyn DataFile>) -> Result<FileToken, IoError> {
        Ok(FileToken(3))
    }

    fn submit(&mut self, io: FileIo) {
        self.0.borrow_mut().under_way.push(io);
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<FileDone>) {
        done.append(&mut self.0.borrow_mut().ended);
    }
}

/// A file of which the first and the third block are written, and two threads' queues to it.
struct Bench {
    file: std::fs::File,
    pool: BufferPool,
    queues: [(SettlingQueue, Rc<RefCell<Leaf>>); 2],
}

const BLOCK: u64 = BLOCK_BYTES;

impl Bench {
    fn new() -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(16 * BLOCK).unwrap();
        for block in [0, 2] {
            file.write_all_at(&[1; BLOCK as usize], block * BLOCK).unwrap();
        }
        let stored: Arc<dyn StoredFile> = Arc::new(HostFile(file.try_clone().unwrap()));
        let map = FileMap::of(&stored).unwrap();
        let queue = || {
            let leaf = Rc::new(RefCell::new(Leaf::default()));
            let mut queue =
                SettlingQueue::over(Box::new(LeafQueue(Rc::clone(&leaf))), vec![Arc::clone(&map)]);
            assert_eq!(queue.register(Arc::clone(&stored) as _), Ok(FileToken(3)));
            (queue, leaf)
        };
        Self { file, pool: BufferPool::new(CHUNK_BYTES).unwrap(), queues: [queue(), queue()] }
    }

    fn submit(&mut self, queue: usize, operation: FileOperation) {
        self.queues[queue].0.submit(FileIo { tag: 7, file: FileToken(3), operation });
    }

    fn write(&mut self, queue: usize, block: u64, durable: bool) {
        let mut from = self.pool.take(BLOCK as usize).unwrap();
        from.bytes_mut().fill(1);
        self.submit(queue, FileOperation::Write { offset: block * BLOCK, from, durable });
    }

    /// Ends the first operation under way of a queue, as the kernel does, and returns what it was
    /// and what the stage hears.
    fn end(&mut self, queue: usize) -> (&'static str, Vec<Result<(), IoError>>) {
        let (above, leaf) = &mut self.queues[queue];
        let FileIo { tag, operation, .. } = leaf.borrow_mut().under_way.remove(0);
        let (what, buffer) = match operation {
            FileOperation::Write { offset, from, durable } => {
                self.file.write_all_at(from.bytes(), offset).unwrap();
                (if durable { "durable write" } else { "write" }, Some(from))
            }
            FileOperation::SyncData => ("sync of data", None),
            FileOperation::Sync => ("sync", None),
            FileOperation::Punch { extent } => {
                let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&self.file, mode, extent.offset(), extent.length()).unwrap();
                ("punch", None)
            }
            other => panic!("{other:?}"),
        };
        leaf.borrow_mut().ended.push(FileDone { tag, result: Ok(()), buffer });
        let mut done = Vec::new();
        above.poll(&mut done);
        assert!(done.iter().all(|done| done.tag == 7));
        (what, done.into_iter().map(|done| done.result).collect())
    }

    /// What a flush of a queue becomes.
    fn flush(&mut self, queue: usize) -> &'static str {
        self.submit(queue, FileOperation::SyncData);
        let (what, heard) = self.end(queue);
        assert_eq!(heard, [Ok(())]);
        what
    }
}

#[test]
fn the_first_sync_is_whole_and_those_of_blocks_that_were_written_before_are_not() {
    let mut bench = Bench::new();
    assert_eq!(bench.flush(0), "sync", "what a predecessor changed may not be durable");
    for block in [0, 2] {
        bench.write(0, block, false);
        assert_eq!(bench.end(0), ("write", vec![Ok(())]));
        assert_eq!(bench.flush(1), "sync of data");
        bench.write(0, block, true);
        assert_eq!(bench.end(0), ("durable write", vec![Ok(())]));
    }
}

#[test]
fn a_write_of_a_new_block_makes_the_next_sync_whole_on_every_thread() {
    let mut bench = Bench::new();
    assert_eq!(bench.flush(0), "sync");
    bench.write(0, 5, false);
    assert_eq!(bench.flush(1), "sync", "the kernel may have done it already");
    assert_eq!(bench.end(0), ("write", vec![Ok(())]));
    assert_eq!(bench.flush(1), "sync", "the sync before may have come too early");
    assert_eq!(bench.flush(0), "sync of data");
    bench.write(1, 5, true);
    assert_eq!(bench.end(1), ("durable write", vec![Ok(())]));
}

#[test]
fn a_durable_write_that_changes_the_map_is_answered_after_a_whole_sync() {
    let mut bench = Bench::new();
    assert_eq!(bench.flush(0), "sync");
    bench.write(0, 7, true);
    assert_eq!(bench.end(0), ("write", vec![]));
    assert_eq!(bench.end(0), ("sync", vec![Ok(())]));
    assert_eq!(bench.flush(0), "sync of data");
}

/// A block that another thread's write has just mapped is written as the file system says, and that
/// is not durable yet.
#[test]
fn a_durable_write_beside_a_change_of_the_map_waits_for_a_whole_sync() {
    let mut bench = Bench::new();
    assert_eq!(bench.flush(0), "sync");
    bench.write(0, 5, false);
    bench.write(1, 0, true);
    assert_eq!(bench.end(1), ("write", vec![]));
    assert_eq!(bench.end(1), ("sync", vec![Ok(())]));
    assert_eq!(bench.end(0), ("write", vec![Ok(())]));
}

#[test]
fn freed_blocks_count_as_not_written() {
    let mut bench = Bench::new();
    assert_eq!(bench.flush(0), "sync");
    bench.submit(0, FileOperation::Punch { extent: Extent::between(0, BLOCK) });
    assert_eq!(bench.end(0), ("punch", vec![Ok(())]));
    assert_eq!(bench.flush(0), "sync");
    bench.write(0, 0, false);
    assert_eq!(bench.end(0), ("write", vec![Ok(())]));
    assert_eq!(bench.flush(0), "sync");
    assert_eq!(bench.flush(0), "sync of data");
}

#[test]
fn a_failed_sync_settles_nothing() {
    let mut bench = Bench::new();
    bench.submit(0, FileOperation::SyncData);
    let (above, leaf) = &mut bench.queues[0];
    let tag = leaf.borrow_mut().under_way.remove(0).tag;
    leaf.borrow_mut().ended.push(FileDone { tag, result: Err(IoError::NoSpace), buffer: None });
    let mut done = Vec::new();
    above.poll(&mut done);
    assert_eq!(done[0].result, Err(IoError::NoSpace));
    assert_eq!(bench.flush(1), "sync");
}
