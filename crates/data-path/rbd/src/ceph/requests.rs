//! A thread's asynchronous requests to images.
//!
//! librbd reports each end on a thread of its own, into the mailbox, and wakes the thread that sent
//! the request, at most once per sleep. An eventfd of librbd (`rbd_set_image_notification`) would
//! be one for each image of a chain, and a further system call for each report.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;
use strongroom_io::{InFlight, Slot, Waker};
use strongroom_memory::Buffer;
use strongroom_types::Extent;

use super::image::Image;
use super::library::{Functions, Handle};
use super::{checked, checked_size};

/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
const THICK: c_int = 1;

/// A request to an image.
#[derive(Debug)]
pub enum Submission {
    /// Fill the buffer from this offset on.
    Read(u64, Buffer),
    /// Write the buffer at this offset.
    Write(u64, Buffer),
    /// Make the extent read as zeroes and free its space.
    Free(Extent),
    /// Make the extent read as zeroes and keep its space.
    Zero(Extent),
    /// Wait for the writes before it.
    Flush,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Ended<T> {
    /// The submitter's name for it.
    pub tag: T,
    /// The count of bytes of a transfer.
    pub result: Result<usize, Errno>,
    /// The buffer of a transfer.
    pub buffer: Option<Buffer>,
}

/// A request that was not started.
#[derive(Debug)]
pub struct Refused {
    /// Why.
    pub errno: Errno,
    /// The buffer of a transfer.
    pub buffer: Option<Buffer>,
}

/// The requests of one thread, each with a tag of the submitter's. It keeps their buffers and
/// images until they have ended; dropping it waits for them.
pub struct Requests<T> {
    under_way: InFlight<Request<T>>,
    mailbox: Arc<Mailbox>,
    /// Reports taken from the mailbox.
    reports: Vec<Report>,
}

struct Request<T> {
    tag: T,
    buffer: Option<Buffer>,
    is_read: bool,
    _image: Arc<Image>,
}

struct Mailbox {
    reports: Mutex<Vec<Report>>,
    arrived: Condvar,
    waker: Arc<Waker>,
}

struct Report {
    slot: Slot,
    result: Result<usize, Errno>,
}

/// What a completion of librbd carries.
struct Reporter {
    functions: &'static Functions,
    slot: Slot,
    to: Arc<Mailbox>,
}

impl<T> Requests<T> {
    /// Requests of the thread that `waker` wakes, about `depth` of them at a time.
    pub fn new(waker: Arc<Waker>, depth: usize) -> Self {
        let reports = Mutex::new(Vec::with_capacity(depth));
        Self {
            under_way: InFlight::with_depth(depth),
            mailbox: Arc::new(Mailbox { reports, arrived: Condvar::new(), waker }),
            reports: Vec::with_capacity(depth),
        }
    }

    /// Starts a request. It does not wait for the cluster.
    pub fn submit(&mut self, image: &Arc<Image>, tag: T, submission: Submission) -> Result<(), Refused> {
        let (start, buffer) = match submission {
            Submission::Read(offset, into) => (Start::Read(offset), Some(into)),
            Submission::Write(offset, from) => (Start::Write(offset), Some(from)),
            Submission::Free(extent) => (Start::Zeroes(extent, 0), None),
            Submission::Zero(extent) => (Start::Zeroes(extent, THICK), None),
            Submission::Flush => (Start::Flush, None),
        };
        let is_read = matches!(start, Start::Read(_));
        let slot = self.under_way.insert(Request { tag, buffer, is_read, _image: Arc::clone(image) });
        let Err(errno) = self.start(image, slot, start) else { return Ok(()) };
        let buffer = self.under_way.take(slot).and_then(|request| request.buffer);
        Err(Refused { errno, buffer })
    }

    fn start(&mut self, image: &Image, slot: Slot, start: Start) -> Result<(), Errno> {
        let functions = image.functions();
        let reporter = Box::new(Reporter { functions, slot, to: Arc::clone(&self.mailbox) });
        let reporter = Box::into_raw(reporter);
        let mut completion = ptr::null_mut();
        // SAFETY: the callback takes the box back, once.
        let made = unsafe { (functions.rbd_aio_create_completion)(reporter.cast(), report, &mut completion) };
        if let Err(errno) = checked(made) {
            // SAFETY: no completion has it.
            drop(unsafe { Box::from_raw(reporter) });
            return Err(errno);
        }
        let buffer = self.under_way.get_mut(slot).and_then(|request| request.buffer.as_ref());
        let handle = image.handle();
        // SAFETY: the request in the table keeps the image, and the buffer, which nobody touches,
        // until the end is reported.
        let started = unsafe {
            match (start, buffer) {
                (Start::Read(offset), Some(into)) => {
                    let (length, bytes) = (into.len(), into.address().as_ptr());
                    (functions.rbd_aio_read)(handle, offset, length, bytes.cast::<c_char>(), completion)
                }
                (Start::Write(offset), Some(from)) => {
                    let (length, bytes) = (from.len(), from.address().as_ptr());
                    (functions.rbd_aio_write)(handle, offset, length, bytes.cast::<c_char>(), completion)
                }
                (Start::Zeroes(extent, flags), _) => {
                    let length = extent.length() as usize;
                    (functions.rbd_aio_write_zeroes)(handle, extent.offset(), length, completion, flags, 0)
                }
                (Start::Flush, _) => (functions.rbd_aio_flush)(handle, completion),
                (Start::Read(_) | Start::Write(_), None) => -Errno::INVAL.raw_os_error(),
            }
        };
        checked(started).map(drop).inspect_err(|_| {
            // SAFETY: a request that was not started is not reported, so both are ours.
            unsafe {
                (functions.rbd_aio_release)(completion);
                drop(Box::from_raw(reporter));
            }
        })
    }

    /// Takes those that have ended since.
    pub fn poll(&mut self, mut ended: impl FnMut(Ended<T>)) {
        std::mem::swap(&mut self.reports, &mut *self.mailbox.reports.lock());
        for Report { slot, result } in self.reports.drain(..) {
            if let Some(Request { tag, buffer, is_read, .. }) = self.under_way.take(slot) {
                let whole_bytes = buffer.as_ref().map_or(0, Buffer::len);
                // Only a read reports a count.
                let result = result.map(|count| if is_read { count } else { whole_bytes });
                ended(Ended { tag, result, buffer });
            }
        }
    }
}

/// How a request is started; its buffer lies in the table.
#[derive(Clone, Copy)]
enum Start {
    Read(u64),
    Write(u64),
    Zeroes(Extent, c_int),
    Flush,
}

impl<T> Drop for Requests<T> {
    fn drop(&mut self) {
        let mut reports = self.mailbox.reports.lock();
        while reports.len() < self.under_way.len() {
            self.mailbox.arrived.wait(&mut reports);
        }
    }
}

/// Reports the end of a request.
///
/// # Safety
/// `argument` must be the [`Reporter`] that the completion was made with, and this its only call.
unsafe extern "C" fn report(completion: Handle, argument: *mut c_void) {
    // SAFETY: as the caller promises.
    let Reporter { functions, slot, to } = *unsafe { Box::from_raw(argument.cast::<Reporter>()) };
    // SAFETY: the completion has ended, and is released once.
    let returned = unsafe {
        let returned = (functions.rbd_aio_get_return_value)(completion);
        (functions.rbd_aio_release)(completion);
        returned
    };
    to.reports.lock().push(Report { slot, result: checked_size(returned) });
    to.arrived.notify_all();
    to.waker.wake();
}
