//! A disk that does not carry out requests but reports success.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Request, Sealed, Thread};
use strongroom_types::{BLOCK_BYTES, Extent};

/// The replacement of a request, or its immediate completion.
type Submits = dyn Fn(Io<Sealed>) -> Result<Io<Sealed>, Done<Sealed>> + Send + Sync;

pub struct FaultyDisk {
    pub below: Arc<dyn Disk<Sealed>>,
    pub submits: Arc<Submits>,
}

/// The fate of the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    None = 0,
    /// It is not done.
    Lost = 1,
    /// It lands two blocks further on.
    Misdirected = 2,
}

impl FaultyDisk {
    /// A disk that lies on request.
    pub fn lying(below: Arc<dyn Disk<Sealed>>) -> (Arc<Self>, impl Fn(Lie)) {
        let next = Arc::new(AtomicU8::new(Lie::None as u8));
        let told = Arc::clone(&next);
        let submits = move |mut io: Io<Sealed>| {
            if let Request::Write { extent, .. } = &mut io.request {
                let lie = told.swap(Lie::None as u8, Ordering::SeqCst);
                if lie == Lie::Lost as u8 {
                    return Err(io.end(Ok(())));
                }
                if lie == Lie::Misdirected as u8 {
                    *extent =
                        Extent::between(extent.offset() + 2 * BLOCK_BYTES, extent.end() + 2 * BLOCK_BYTES);
                }
            }
            Ok(io)
        };
        let disk = Arc::new(Self { below, submits: Arc::new(submits) });
        (disk, move |lie: Lie| next.store(lie as u8, Ordering::SeqCst))
    }
}

impl Disk<Sealed> for FaultyDisk {
    fn limits(&self) -> Limits {
        self.below.limits()
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Sealed>>, IoError> {
        let below = self.below.open(thread, depth)?;
        Ok(Box::new(FaultyChannel { below, submits: Arc::clone(&self.submits), ended: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        self.below.allocation(extent, report)
    }
}

struct FaultyChannel {
    below: Box<dyn Channel<Sealed>>,
    submits: Arc<Submits>,
    ended: Vec<Done<Sealed>>,
}

impl Channel<Sealed> for FaultyChannel {
    fn submit(&mut self, io: Io<Sealed>) {
        match (self.submits)(io) {
            Ok(io) => self.below.submit(io),
            Err(done) => self.ended.push(done),
        }
    }

    fn kick(&mut self) {
        self.below.kick();
    }

    fn poll(&mut self, done: &mut Vec<Done<Sealed>>) {
        self.below.poll(done);
        done.append(&mut self.ended);
    }
}
