//! A queue that is driven one operation after another.

#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; not every test needs all of it"
)]

use std::sync::Arc;
use std::time::Duration;

use strongroom_io::conformance::EventLoop;
use strongroom_io::{DataFile, FileDone, FileIo, FileOperation, FileQueue, FileToken};
use strongroom_memory::{BufferPool, CHUNK_BYTES};

pub struct Queue {
    queue: Box<dyn FileQueue>,
    file: FileToken,
    event_loop: Box<dyn EventLoop>,
    pub pool: BufferPool,
}

impl Queue {
    pub fn new(event_loop: impl EventLoop + 'static, file: Arc<dyn DataFile>) -> Self {
        let mut queue = event_loop.reactor().file_queue().unwrap();
        let file = queue.register(file).unwrap();
        Self { queue, file, event_loop: Box::new(event_loop), pool: BufferPool::new(CHUNK_BYTES).unwrap() }
    }

    pub fn send(&mut self, tag: u64, operation: FileOperation) {
        self.queue.submit(FileIo { tag, file: self.file, operation });
        self.queue.kick();
    }

    pub fn poll(&mut self) -> Vec<FileDone> {
        let mut done = Vec::new();
        self.queue.poll(&mut done);
        done
    }

    pub fn run(&mut self, operation: FileOperation) -> FileDone {
        self.send(1, operation);
        loop {
            if let Some(done) = self.poll().pop() {
                return done;
            }
            self.event_loop.sleep(Duration::from_secs(30)).unwrap();
        }
    }

    pub fn write(&self, offset: u64, length: usize, fill: u8, durable: bool) -> FileOperation {
        let mut from = self.pool.take(length).unwrap();
        from.bytes_mut().fill(fill);
        FileOperation::Write { offset, from, durable }
    }

    pub fn read(&self, offset: u64, length: usize) -> FileOperation {
        let mut into = self.pool.take(length).unwrap();
        into.bytes_mut().fill(0xEE);
        FileOperation::Read { offset, into }
    }
}
