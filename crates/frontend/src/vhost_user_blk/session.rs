//! One front end's connection: what it has said so far, and the queues that run by it.
//!
//! Whatever a message changes under a running queue, the queue ends first (having answered what it took) and starts
//! anew after; so nothing in flight ever sees a change, and no message has to think of it.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use strongroom_memory::{GuestError, GuestMemory};
use thiserror::Error;

use super::channel::{ChannelError, send_whole};
use super::device::Device;
use super::guest_memory::{REGIONS_MAX, RegionError, Regions};
use super::message::{Header, Message, MessageError, RingState, encode};
use super::protocol::{backend_request, feature, header_flag, protocol_feature};
use super::ring_setup::{RingSetup, SetupError};

/// A message that is refused. The front end is told where it asked to be; otherwise the session ends, since it would
/// go on as if the message had been heeded.
#[derive(Debug, Error)]
pub enum Refusal {
    /// Not understood.
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
    /// A number that is none here.
    #[error("{0} is no number for this message")]
    Number(u32),
    /// Part of the configuration space that a driver may not write.
    #[error("the driver may not write this part of the configuration space")]
    Config,
    /// The guest's memory.
    #[error(transparent)]
    Regions(#[from] RegionError),
    /// A ring.
    #[error(transparent)]
    Ring(#[from] SetupError),
}

impl From<GuestError> for Refusal {
    fn from(error: GuestError) -> Self {
        Refusal::Regions(error.into())
    }
}

/// What a message is answered with.
enum Answer {
    /// Only where the front end asked for it.
    Done,
    /// Always.
    Body(Vec<u8>),
}

/// The state of a connection.
pub struct Session {
    device: Arc<Device>,
    features: u64,
    protocol_features: u64,
    regions: Regions,
    memory: Arc<GuestMemory>,
    rings: Vec<RingSetup>,
    /// Where this side may send messages of its own.
    backend_channel: Option<OwnedFd>,
}

impl Session {
    /// A session of which nothing is known.
    pub fn new(device: Arc<Device>) -> Result<Self, GuestError> {
        device.reset();
        let regions = Regions::default();
        let mut session = Self {
            features: 0,
            protocol_features: 0,
            memory: regions.memory()?,
            regions,
            rings: Vec::new(),
            device,
            backend_channel: None,
        };
        session.reset_rings();
        Ok(session)
    }

    /// Does what a message asks for: the bytes of the answer, if there is one.
    pub fn handle(
        &mut self,
        header: Header,
        body: &[u8],
        files: Vec<OwnedFd>,
    ) -> Result<Option<Vec<u8>>, Refusal> {
        let done = Message::parse(header.request, body, files)
            .map_err(Refusal::from)
            .and_then(|message| self.obey(message));
        let acknowledges = header.needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0;
        match done {
            Ok(Answer::Body(body)) => Ok(Some(header.reply(&body))),
            Ok(Answer::Done) if acknowledges => Ok(Some(header.reply(&0_u64.to_le_bytes()))),
            Ok(Answer::Done) => Ok(None),
            Err(refusal) if acknowledges => {
                tracing::warn!(request = header.request, %refusal, "a front end's message is refused");
                Ok(Some(header.reply(&1_u64.to_le_bytes())))
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Ends all queues, after they have answered what they took.
    pub fn end(&mut self) {
        self.rings.iter_mut().for_each(RingSetup::pause);
    }

    /// Tells the front end that the configuration space is not as it was.
    pub fn announce_config(&self) -> Result<(), ChannelError> {
        let Some(channel) = &self.backend_channel else { return Ok(()) };
        send_whole(channel, &encode(backend_request::CONFIG_CHANGE, header_flag::VERSION, &[]))
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
            }
            ring => return self.obey_for_ring(ring),
        }
        Ok(Answer::Done)
    }

    fn obey_for_ring(&mut self, message: Message) -> Result<Answer, Refusal> {
        let index = match message {
            Message::GetRingBase(index) => {
                let base = self.ring(index)?.stop();
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
                // Without a file a front end asks for a ring that is polled, which costs a processor.
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
            // Everything else was obeyed before it came here.
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
        // A front end that does not know protocol features has no message to enable a ring.
        if features & feature::PROTOCOL_FEATURES == 0 {
            self.rings.iter_mut().for_each(|ring| ring.enable(true));
        }
        self.resume(0..self.rings.len())
    }

    fn set_regions(&mut self, regions: Regions) -> Result<(), Refusal> {
        let memory = regions.memory()?;
        self.end();
        self.regions = regions;
        self.memory = memory;
        self.resume(0..self.rings.len())
    }

    fn reset_rings(&mut self) {
        self.end();
        self.rings =
            (0..usize::from(self.device.queues())).map(|index| RingSetup::new(index, false)).collect();
    }

    fn resume(&mut self, indices: std::ops::Range<usize>) -> Result<(), Refusal> {
        for ring in &mut self.rings[indices] {
            ring.resume(&self.regions, &self.memory, &self.device, self.features)?;
        }
        Ok(())
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
    }
}

fn number(number: u64) -> Answer {
    Answer::Body(number.to_le_bytes().to_vec())
}
