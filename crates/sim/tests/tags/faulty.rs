//! A disk that lies: it says that a write is done, and has done another one, or none.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Request, Sealed, Thread};
use strongroom_types::{BLOCK_BYTES, Extent};

/// What becomes of the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    None = 0,
    /// It is not done.
    Lost = 1,
    /// It lands two blocks further on.
    Misdirected = 2,
}

pub struct LyingDisk {
    below: Arc<dyn Disk<Sealed>>,
    next: Arc<AtomicU8>,
}

impl LyingDisk {
    pub fn new(below: Arc<dyn Disk<Sealed>>) -> (Arc<Self>, impl Fn(Lie)) {
        let next = Arc::new(AtomicU8::new(Lie::None as u8));
        let disk = Arc::new(Self { below, next: Arc::clone(&next) });
        (disk, move |lie: Lie| next.store(lie as u8, Ordering::SeqCst))
    }
}

impl Disk<Sealed> for LyingDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        let below = self.below.open(thread, depth)?;
        Ok(Box::new(LyingChannel { below, next: Arc::clone(&self.next), ended: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct LyingChannel {
    below: Box<dyn Channel<Sealed>>,
    next: Arc<AtomicU8>,
    ended: Vec<Done<Sealed>>,
}

impl Channel<Sealed> for LyingChannel {
    fn submit(&mut self, mut io: Io<Sealed>) {
        if let Request::Write { extent, .. } = &mut io.request {
            let lie = self.next.swap(Lie::None as u8, Ordering::SeqCst);
            if lie == Lie::Lost as u8 {
                return self.ended.push(io.end(Ok(())));
            }
            if lie == Lie::Misdirected as u8 {
                *extent = Extent::between(extent.offset() + 2 * BLOCK_BYTES, extent.end() + 2 * BLOCK_BYTES);
            }
        }
        self.below.submit(io);
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        self.below.poll(done);
        done.append(&mut self.ended);
    }
}
