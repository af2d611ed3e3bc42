//! One front end's connection: the state that it has set, and the queues that run with it.
//!
//! If a message changes anything that a running queue uses, the queue ends first (after it has
//! answered the requests that it took) and restarts afterwards. So no request in flight sees a
//! change, and no message handler must consider it.

mod handover;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::fstat;
use strongroom_memory::{GuestError, GuestMemory};
use strongroom_ring::Lanes;
use thiserror::Error;

use super::activity::{Activity, NotActive};
use super::channel::{ChannelError, Reply, send_whole};
use super::device::Device;
use super::dirty_log::DirtyPages;
use super::guest_memory::{REGIONS_MAX, RegionError, Regions};
use super::in_flight::{InFlightArea, InFlightDescription, InFlightError, Note};
use super::message::{Header, LogDescription, Message, MessageError, RingState, encode};
use super::protocol::{
    ACTIVATION_TIMEOUT, LOG_BYTES_MAX, backend_request, feature, header_flag, protocol_feature,
};
use super::ring_setup::{RingSetup, SetupError, Surroundings};
use super::suspended::SuspendedError;
use super::transfers::Unfinished;

/// A refused message. The front end gets an answer if it asked for one; otherwise the session ends,
/// because the front end would continue as if the message had succeeded.
#[derive(Debug, Error)]
pub enum Refusal {
    /// It cannot be parsed.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// Features that were not offered.
    #[error("features {0:#x} were not offered")]
    Features(u64),
    /// A message of a protocol feature that was not agreed on.
    #[error("a message of protocol feature {0:#x}, which was not agreed on")]
    NotAgreed(u64),
    /// No such ring.
    #[error("there is no ring {0}")]
    NoSuchRing(u32),
    /// A number that is invalid for this message.
    #[error("{0} is no number for this message")]
    Number(u32),
    /// Part of the configuration space that a driver may not write.
    #[error("the driver may not write this part of the configuration space")]
    Config,
    /// The guest's memory cannot be used.
    #[error(transparent)]
    Regions(#[from] RegionError),
    /// A ring cannot be used.
    #[error(transparent)]
    Ring(#[from] SetupError),
    /// The in-flight area cannot be used.
    #[error(transparent)]
    InFlight(#[from] InFlightError),
    /// The dirty log cannot be used.
    #[error("a dirty log of {0} bytes; at most {LOG_BYTES_MAX} are served, and its file must hold it")]
    Log(u64),
    /// Another front end runs the device, or has run it since.
    #[error(transparent)]
    NotActive(#[from] NotActive),
    /// A predecessor's session cannot be resumed.
    #[error(transparent)]
    Suspended(#[from] SuspendedError),
}

impl From<GuestError> for Refusal {
    fn from(error: GuestError) -> Self {
        Refusal::Regions(error.into())
    }
}

/// The answer to a message.
enum Answer {
    /// An acknowledgement, only if the front end asked for it.
    Done,
    /// Always sent.
    Body(Vec<u8>),
    /// Always sent, as long as the request was, and with a file.
    InFlight(InFlightDescription, OwnedFd),
}

/// The state that sessions of one server share.
#[derive(Clone)]
pub struct Place {
    /// The session's number among those connected.
    pub seat: usize,
    /// The disk, of which every session makes its own view.
    pub device: Arc<Device>,
    /// Which session runs it.
    pub activity: Arc<Activity>,
    /// The threads that queues run on.
    pub lanes: Lanes,
}

/// The state of a connection.
pub struct Session {
    place: Place,
    /// This session's view of the disk.
    device: Arc<Device>,
    features: u64,
    protocol_features: u64,
    /// Virtio's device status, which we store for the front end.
    status: u8,
    regions: Regions,
    memory: Arc<GuestMemory>,
    rings: Vec<RingSetup>,
    /// The channel for messages that this side sends on its own initiative.
    backend_channel: Option<OwnedFd>,
    in_flight: Option<Arc<InFlightArea>>,
    log: Option<Arc<DirtyPages>>,
    /// The last run of the device that this front end had.
    run: Option<u64>,
}

impl Session {
    /// A new session without any state.
    pub fn new(place: Place) -> Result<Self, RegionError> {
        let regions = Regions::default();
        let mut session = Self {
            device: Arc::new(place.device.for_another()),
            place,
            features: 0,
            protocol_features: 0,
            status: 0,
            memory: regions.memory(None)?,
            regions,
            rings: Vec::new(),
            backend_channel: None,
            in_flight: None,
            log: None,
            run: None,
        };
        session.reset_rings();
        Ok(session)
    }

    /// Handles a message. Returns the answer, if there is one.
    pub fn handle(
        &mut self,
        header: Header,
        body: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Reply>, Refusal> {
        let reply = |body: &[u8]| Some(Reply { bytes: header.reply(body), file: None });
        let done = Message::parse(header.request, body, files)
            .map_err(Refusal::from)
            .and_then(|message| self.obey(message));
        let acknowledges = header.needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0;
        match done {
            Ok(Answer::Body(body)) => Ok(reply(&body)),
            Ok(Answer::InFlight(area, file)) => {
                let mut answer = Vec::with_capacity(body.len());
                answer.extend(area.bytes.to_le_bytes());
                answer.extend(area.offset.to_le_bytes());
                answer.extend(area.queues.to_le_bytes());
                answer.extend(area.queue_size.to_le_bytes());
                answer.resize(body.len(), 0);
                Ok(Some(Reply { bytes: header.reply(&answer), file: Some(file) }))
            }
            Ok(Answer::Done) if acknowledges => Ok(reply(&0_u64.to_le_bytes())),
            Ok(Answer::Done) => Ok(None),
            Err(refusal) if acknowledges => {
                tracing::warn!(request = header.request, %refusal, "a front end's message is refused");
                Ok(reply(&1_u64.to_le_bytes()))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Whether any queue runs.
    pub fn runs(&self) -> bool {
        self.rings.iter().any(RingSetup::runs)
    }

    /// Ends all queues, after they have answered the requests that they took.
    pub fn end(&mut self) {
        self.rings.iter_mut().for_each(RingSetup::pause);
    }

    /// Tells the front end that the configuration space has changed.
    pub fn announce_config(&self) -> Result<(), ChannelError> {
        let Some(channel) = &self.backend_channel else { return Ok(()) };
        send_whole(channel, &encode(backend_request::CONFIG_CHANGE, header_flag::VERSION, &[]), None)
    }

    fn obey(&mut self, message: Message) -> Result<Answer, Refusal> {
        match message {
            Message::GetFeatures => return Ok(number(self.device.features())),
            Message::SetFeatures(features) => self.set_features(features)?,
            Message::SetOwner => {}
            Message::ResetOwner => self.reset_rings(),
            Message::ResetDevice => {
                self.need(protocol_feature::RESET_DEVICE)?;
                self.reset_rings();
                self.features = 0;
                self.device.reset();
                self.in_flight = None;
                self.run = None;
            }
            Message::GetProtocolFeatures => return Ok(number(protocol_feature::OFFERED)),
            Message::SetProtocolFeatures(features) => {
                if features & !protocol_feature::OFFERED != 0 {
                    return Err(Refusal::Features(features));
                }
                self.protocol_features = features;
            }
            Message::GetQueueCount => {
                self.need(protocol_feature::MQ)?;
                return Ok(number(u64::from(self.device.queues())));
            }
            Message::GetMemorySlots => {
                self.need(protocol_feature::CONFIGURE_MEM_SLOTS)?;
                return Ok(number(REGIONS_MAX as u64));
            }
            Message::SetMemoryTable(described) => {
                self.end();
                self.set_regions(Regions::new(described)?)?;
            }
            Message::SetLog(log, file) => {
                self.need(protocol_feature::LOG_SHMFD)?;
                self.log = Some(map_log(log, file)?);
                self.set_memory()?;
                return Ok(number(0));
            }
            Message::SetLogEvent => {}
            Message::GetInFlight(wanted) => {
                self.need(protocol_feature::INFLIGHT_SHMFD)?;
                let area = InFlightArea::create(wanted.queues, wanted.queue_size)?;
                let file = area.file().try_clone().map_err(SuspendedError::from)?;
                return Ok(Answer::InFlight(area.description(), file));
            }
            Message::SetInFlight(area, file) => {
                self.need(protocol_feature::INFLIGHT_SHMFD)?;
                self.set_in_flight(InFlightArea::map(area, file)?)?;
            }
            Message::GetStatus => {
                self.need(protocol_feature::STATUS)?;
                return Ok(number(u64::from(self.status)));
            }
            Message::SetStatus(status) => {
                self.need(protocol_feature::STATUS)?;
                self.status = u8::try_from(status).map_err(|_| Refusal::Number(status as u32))?;
                // Virtio's reset.
                if self.status == 0 {
                    self.rings.iter_mut().for_each(|ring| {
                        ring.stop(Unfinished::Left);
                    });
                    self.release();
                }
            }
            Message::AddRegion(description, file) => {
                self.need(protocol_feature::CONFIGURE_MEM_SLOTS)?;
                self.set_regions(self.regions.with(description, file)?)?;
            }
            Message::RemoveRegion(description) => {
                self.need(protocol_feature::CONFIGURE_MEM_SLOTS)?;
                self.set_regions(self.regions.without(description)?)?;
            }
            Message::SetBackendChannel(file) => {
                self.need(protocol_feature::BACKEND_REQ)?;
                self.backend_channel = Some(file);
            }
            Message::GetConfig(range) => {
                self.need(protocol_feature::CONFIG)?;
                let mut body: Vec<u8> =
                    [range.offset, range.bytes, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
                body.extend(self.device.read_config(range));
                return Ok(Answer::Body(body));
            }
            Message::SetConfig(range, bytes) => {
                self.need(protocol_feature::CONFIG)?;
                if !self.device.write_config(range, &bytes) {
                    return Err(Refusal::Config);
                }
                self.write_note()?;
            }
            ring => return self.obey_for_ring(ring),
        }
        Ok(Answer::Done)
    }

    fn obey_for_ring(&mut self, message: Message) -> Result<Answer, Refusal> {
        let index = match message {
            Message::GetRingBase(index) => {
                // While memory is logged the guest is migrating, and the in-flight area does not go
                // with it.
                let unfinished = if self.is_logged() { Unfinished::Failed } else { Unfinished::Left };
                let base = self.ring(index)?.stop(unfinished);
                self.release();
                let body = [index, u32::from(base)].iter().flat_map(|word| word.to_le_bytes()).collect();
                return Ok(Answer::Body(body));
            }
            Message::SetRingSize(RingState { index, number }) => {
                self.ring(index)?.set_size(number)?;
                index
            }
            Message::SetRingBase(RingState { index, number }) => {
                self.ring(index)?.set_base(number);
                index
            }
            Message::SetRingAddresses(index, addresses) => {
                self.ring(index)?.set_addresses(addresses);
                index
            }
            Message::EnableRing(RingState { index, number: number @ (0 | 1) }) => {
                self.ring(index)?.enable(number == 1);
                index
            }
            Message::EnableRing(RingState { number, .. }) => return Err(Refusal::Number(number)),
            Message::SetRingKick(index, file) => {
                // Without a file a front end requests a polled ring, which would occupy a
                // processor.
                if file.is_none() {
                    return Err(Refusal::Number(u32::from(index)));
                }
                self.ring(u32::from(index))?.set_kick(file)?;
                u32::from(index)
            }
            Message::SetRingCall(index, file) => {
                self.ring(u32::from(index))?.set_call(file)?;
                u32::from(index)
            }
            Message::SetRingError(index, file) => {
                self.ring(u32::from(index))?.set_error(file)?;
                u32::from(index)
            }
            // All other messages were handled before.
            _ => return Ok(Answer::Done),
        };
        self.resume(index as usize..index as usize + 1)?;
        Ok(Answer::Done)
    }

    fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        if features & !self.device.features() != 0 {
            return Err(Refusal::Features(features));
        }
        self.end();
        self.features = features;
        // A front end without protocol features has no message to enable a ring.
        if features & feature::PROTOCOL_FEATURES == 0 {
            self.rings.iter_mut().for_each(|ring| ring.enable(true));
        }
        self.set_memory()
    }

    fn set_regions(&mut self, regions: Regions) -> Result<(), Refusal> {
        self.end();
        self.regions = regions;
        self.set_memory()
    }

    /// Restarts the queues with the memory as it is described now, and with or without logging of
    /// writes to it.
    fn set_memory(&mut self) -> Result<(), Refusal> {
        self.end();
        self.map_memory()?;
        self.resume(0..self.rings.len())
    }

    fn map_memory(&mut self) -> Result<(), RegionError> {
        self.memory = self.regions.memory(self.log.as_ref().filter(|_| self.is_logged()))?;
        Ok(())
    }

    /// Whether writes to the guest's memory must be logged.
    fn is_logged(&self) -> bool {
        self.features & feature::LOG_ALL != 0
    }

    /// Adopts an area: a new one, or one with a predecessor's state.
    fn set_in_flight(&mut self, area: InFlightArea) -> Result<(), Refusal> {
        self.end();
        if let Some(note) = area.note()? {
            self.run = self.run.or(Some(note.run));
            self.device.set_writeback(!note.write_through);
        }
        self.in_flight = Some(Arc::new(area));
        self.write_note()?;
        self.resume(0..self.rings.len())
    }

    /// Writes the note with facts that a successor cannot learn from the front end.
    fn write_note(&self) -> Result<(), InFlightError> {
        match (&self.in_flight, self.run) {
            (Some(area), Some(run)) => area.set_note(Note { run, write_through: !self.device.writeback() }),
            _ => Ok(()),
        }
    }

    fn reset_rings(&mut self) {
        self.end();
        self.rings =
            (0..usize::from(self.device.queues())).map(|index| RingSetup::new(index, false)).collect();
        self.release();
    }

    fn resume(&mut self, indices: std::ops::Range<usize>) -> Result<(), Refusal> {
        // When QEMU reconnects during a migration, it agrees on logging first and sends the log
        // last.
        let lacks_log = self.is_logged() && self.log.is_none();
        let none_can = !self.rings[indices.clone()].iter().any(RingSetup::can_resume);
        if self.regions.is_empty() || lacks_log || none_can {
            return Ok(());
        }
        let Place { seat, activity, lanes, .. } = &self.place;
        self.run = Some(activity.begin(*seat, self.run, ACTIVATION_TIMEOUT)?);
        self.write_note()?;
        let surroundings = Surroundings {
            regions: &self.regions,
            memory: &self.memory,
            device: &self.device,
            features: self.features,
            in_flight: self.in_flight.as_ref(),
            lanes,
        };
        for ring in &mut self.rings[indices] {
            ring.resume(&surroundings)?;
        }
        Ok(())
    }

    /// Lets another session run the device once the front end has stopped every ring.
    fn release(&self) {
        if self.rings.iter().all(RingSetup::is_stopped) {
            self.place.activity.end(self.place.seat);
        }
    }

    fn ring(&mut self, index: u32) -> Result<&mut RingSetup, Refusal> {
        self.rings.get_mut(index as usize).ok_or(Refusal::NoSuchRing(index))
    }

    fn need(&self, feature: u64) -> Result<(), Refusal> {
        if self.protocol_features & feature != 0 { Ok(()) } else { Err(Refusal::NotAgreed(feature)) }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end();
        self.place.activity.end(self.place.seat);
    }
}

fn map_log(log: LogDescription, file: OwnedFd) -> Result<Arc<DirtyPages>, Refusal> {
    let LogDescription { bytes, offset } = log;
    let file_bytes = fstat(&file).map_err(GuestError::Map)?.st_size;
    let reaches = offset.checked_add(bytes).is_some_and(|end| end <= u64::try_from(file_bytes).unwrap_or(0));
    if bytes > LOG_BYTES_MAX || !reaches {
        return Err(Refusal::Log(bytes));
    }
    Ok(Arc::new(DirtyPages::map(log, file)?))
}

fn number(number: u64) -> Answer {
    Answer::Body(number.to_le_bytes().to_vec())
}
