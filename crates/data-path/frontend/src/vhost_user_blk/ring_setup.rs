//! A front end's settings of one ring, and the queue that runs with them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use strongroom_memory::GuestMemory;
use strongroom_ring::Lanes;
use thiserror::Error;

use super::device::Device;
use super::guest_memory::Regions;
use super::in_flight::InFlightArea;
use super::message::RingAddresses;
use super::queue::{CallFile, Queue, QueueError, QueueSetup};
use super::split_ring::{Layout, RingError};
use super::suspended::{Incoming, Outgoing, SuspendedError, SuspendedRing};
use super::transfers::Unfinished;

/// The reasons why a ring cannot run as described.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A part of the ring is not in any region.
    #[error("part of ring {0} is not in the guest's memory")]
    Outside(usize),
    /// A part of the ring is not aligned as virtio requires.
    #[error("part of ring {0} is not aligned")]
    Misaligned(usize),
    /// The ring cannot be served.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The queue cannot start.
    #[error(transparent)]
    Queue(#[from] QueueError),
    /// A file that cannot be set not to block.
    #[error("a file of ring {index} cannot be used: {errno}")]
    File {
        /// The ring.
        index: usize,
        /// What the kernel said.
        errno: rustix::io::Errno,
    },
}

/// The parameters that all rings of a session share.
#[derive(Clone, Copy)]
pub struct Surroundings<'a> {
    /// Where the front end sees the guest's memory.
    pub regions: &'a Regions,
    /// The guest's memory.
    pub memory: &'a Arc<GuestMemory>,
    /// The disk.
    pub device: &'a Arc<Device>,
    /// The features that the driver agreed on.
    pub features: u64,
    /// The area that records requests in flight.
    pub in_flight: Option<&'a Arc<InFlightArea>>,
    /// The threads that queues run on.
    pub lanes: &'a Lanes,
}

/// One ring.
#[derive(Default)]
pub struct RingSetup {
    index: usize,
    size: u16,
    addresses: Option<RingAddresses>,
    next_available: u16,
    kick: Option<Arc<OwnedFd>>,
    call: Arc<CallFile>,
    error: Option<Arc<OwnedFd>>,
    enabled: bool,
    /// The running queue, and whether its requests in flight are recorded.
    queue: Option<(Queue, bool)>,
}

impl RingSetup {
    /// A ring without any settings.
    pub fn new(index: usize, enabled: bool) -> Self {
        Self { index, enabled, ..Self::default() }
    }

    /// Ends the queue, if it runs, after it has answered the requests that it took. The position is
    /// kept. Requests that wait for room are repeated when the queue resumes, here or elsewhere
    /// with the same in-flight area.
    pub fn pause(&mut self) {
        self.end_queue(Unfinished::Left);
    }

    fn end_queue(&mut self, unfinished: Unfinished) {
        if let Some((queue, has_area)) = self.queue.take() {
            self.next_available = queue.stop(if has_area { unfinished } else { Unfinished::Failed });
        }
    }

    /// Whether the ring has all settings that the queue needs, and the queue does not run.
    pub fn can_resume(&self) -> bool {
        self.queue.is_none()
            && self.enabled
            && self.size != 0
            && self.addresses.is_some()
            && self.kick.is_some()
    }

    /// Whether its queue runs.
    pub fn runs(&self) -> bool {
        self.queue.is_some()
    }

    /// Whether the front end has stopped the ring, or not started it.
    pub fn is_stopped(&self) -> bool {
        self.kick.is_none()
    }

    /// Starts the queue if the ring has all settings that it needs.
    pub fn resume(&mut self, surroundings: &Surroundings<'_>) -> Result<(), SetupError> {
        let Surroundings { regions, memory, device, features, in_flight, lanes } = *surroundings;
        let (Some(addresses), Some(kick)) = (self.addresses, &self.kick) else { return Ok(()) };
        if !self.can_resume() {
            return Ok(());
        }
        let setup = QueueSetup {
            index: self.index,
            device: Arc::clone(device),
            features,
            memory: Arc::clone(memory),
            layout: self.layout(addresses, regions)?,
            next_available: self.next_available,
            in_flight: in_flight.cloned(),
            kick: Arc::clone(kick),
            call: Arc::clone(&self.call),
            error: self.error.clone(),
        };
        self.queue = Some((Queue::start(setup, lanes)?, in_flight.is_some()));
        Ok(())
    }

    /// The state that a successor needs; the queue must not run.
    pub fn suspend(&self, files: &mut Outgoing) -> Result<SuspendedRing, SuspendedError> {
        Ok(SuspendedRing {
            size: self.size,
            addresses: self.addresses,
            next_available: self.next_available,
            enabled: self.enabled,
            kick: files.add_some(self.kick.as_deref())?,
            call: files.add_some(self.call.get().as_deref())?,
            error: files.add_some(self.error.as_deref())?,
        })
    }

    /// Restores a ring that a predecessor left.
    pub fn take_over(
        index: usize,
        ring: &SuspendedRing,
        files: &mut Incoming,
    ) -> Result<Self, SuspendedError> {
        let SuspendedRing { size, addresses, next_available, enabled, kick, call, error } = *ring;
        if size != 0 && Layout::check_size(size).is_err() {
            return Err(SuspendedError::DoesNotFit("the size of a ring"));
        }
        let setup = Self {
            index,
            size,
            addresses,
            next_available,
            enabled,
            kick: files.take_some(kick)?.map(Arc::new),
            error: files.take_some(error)?.map(Arc::new),
            ..Self::default()
        };
        setup.call.set(files.take_some(call)?.map(Arc::new));
        Ok(setup)
    }

    /// The layout of the ring in the guest's memory.
    fn layout(&self, user: RingAddresses, regions: &Regions) -> Result<Layout, SetupError> {
        let place = |address, bytes, alignment| {
            let place = regions.guest_address(address, bytes).ok_or(SetupError::Outside(self.index))?;
            let aligned = place.0.is_multiple_of(alignment);
            if aligned { Ok(place) } else { Err(SetupError::Misaligned(self.index)) }
        };
        Ok(Layout {
            size: self.size,
            descriptors: place(user.descriptors, Layout::descriptor_bytes(self.size), 16)?,
            available: place(user.available, Layout::available_bytes(self.size), 2)?,
            used: place(user.used, Layout::used_bytes(self.size), 4)?,
        })
    }

    /// Sets the count of entries.
    pub fn set_size(&mut self, size: u32) -> Result<(), SetupError> {
        let size = u16::try_from(size).unwrap_or(u16::MAX);
        Layout::check_size(size)?;
        self.pause();
        self.size = size;
        Ok(())
    }

    /// Sets the addresses of the ring.
    pub fn set_addresses(&mut self, addresses: RingAddresses) {
        self.pause();
        self.addresses = Some(addresses);
    }

    /// Sets the first entry to take.
    pub fn set_base(&mut self, base: u32) {
        self.pause();
        self.next_available = base as u16;
    }

    /// Stops the ring until it is kicked again. Returns the first entry that was not taken.
    pub fn stop(&mut self, unfinished: Unfinished) -> u16 {
        self.end_queue(unfinished);
        self.kick = None;
        self.call.set(None);
        self.next_available
    }

    /// Sets whether the queue may run.
    pub fn enable(&mut self, enabled: bool) {
        self.pause();
        self.enabled = enabled;
    }

    /// Sets the eventfd that signals new entries.
    pub fn set_kick(&mut self, file: Option<OwnedFd>) -> Result<(), SetupError> {
        let file = self.prepare(file)?;
        self.pause();
        self.kick = file;
        Ok(())
    }

    /// Sets the eventfd that interrupts the driver.
    pub fn set_call(&mut self, file: Option<OwnedFd>) -> Result<(), SetupError> {
        self.call.set(self.prepare(file)?);
        Ok(())
    }

    /// Sets the eventfd that tells the front end that the queue is broken.
    pub fn set_error(&mut self, file: Option<OwnedFd>) -> Result<(), SetupError> {
        let file = self.prepare(file)?;
        self.pause();
        self.error = file;
        Ok(())
    }

    /// Sets a file of the front end not to block, whatever it is.
    fn prepare(&self, file: Option<OwnedFd>) -> Result<Option<Arc<OwnedFd>>, SetupError> {
        let Some(file) = file else { return Ok(None) };
        let set = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::NONBLOCK));
        set.map_err(|errno| SetupError::File { index: self.index, errno })?;
        Ok(Some(Arc::new(file)))
    }
}
