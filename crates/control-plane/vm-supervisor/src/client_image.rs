//! The image of a client that is asked for its bytes while a disk is filled with it.
//!
//! ```text
//! job -> client     questions; several are open at once
//! client -> job     answers, in order
//! the connection is lost -> hostd is told -> it sends a new one when the client has come back with another
//!                           ticket -> what was not answered is asked for again
//! ```
//!
//! A client that comes back has to have the same image: its size, and what it has answered first
//! and last, are compared.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use strongroom_crypto::mac::Sha256;
use strongroom_host::orders::{JobRequest, Report};
use strongroom_host::protocol::Problem;
use strongroom_host::wire::{Wire, WireError};
use strongroom_images::ImageBytes;
use strongroom_io::{
    Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, TRANSFER_BYTES_MAX, Thread,
};
use strongroom_streams::{IMAGE_DATA_BYTES_MAX, ImageStreamError, ImageTaker};
use strongroom_types::{Extent, SECTOR_BYTES};
use zeroize::Zeroizing;

/// How long a client may take for an answer. With its image it takes the place of an operation.
const ANSWERS_WITHIN: Duration = Duration::from_secs(60);
/// How much of an answer is compared with that of a client that has come back, in bytes.
const SAMPLE_BYTES: u64 = 4096;
/// How long a client that was lost may stay away.
pub const RETURNS_WITHIN: Duration = Duration::from_secs(300);

/// The image of a client.
pub struct ClientImage {
    size_bytes: u64,
    asking: Arc<Mutex<Asking>>,
}

/// The client, and what it is asked.
struct Asking {
    client: Option<ImageTaker<Line>>,
    hostd: Wire,
    size_bytes: u64,
    /// What the client has answered first and last.
    first: Option<Answered>,
    last: Option<Answered>,
    /// What was asked and not answered, in order, and the channels that wait for it.
    open: VecDeque<(ChannelNumber, Extent)>,
    /// The answers that wait for their channel, in the order of its reads.
    answers: HashMap<ChannelNumber, Vec<Answer>>,
    channels: ChannelNumber,
    /// Why there are no more answers.
    lost: Option<Problem>,
}

type ChannelNumber = usize;
type Answer = Result<Zeroizing<Vec<u8>>, IoError>;

/// The beginning of an answer.
struct Answered {
    extent: Extent,
    digest: [u8; 32],
}

impl Answered {
    fn new(extent: Extent, bytes: &[u8]) -> Self {
        let length = extent.length().min(SAMPLE_BYTES);
        let mut digest = Sha256::default();
        digest.update(&bytes[..length as usize]);
        let extent = Extent::between(extent.offset(), extent.offset() + length);
        Self { extent, digest: digest.finish() }
    }
}

impl ClientImage {
    /// The image of the client at the other end of `client`. hostd sends over `hostd` the
    /// connections of a client that comes back.
    ///
    /// # Errors
    /// If the client offers none.
    pub fn begin(client: OwnedFd, hostd: &Wire) -> Result<Self, Problem> {
        let hostd = hostd.try_clone().map_err(Problem::system)?;
        let client = Line::open(client, &hostd).map_err(Problem::system)?;
        let client = ImageTaker::begin(client).map_err(|error| not_whole(&error))?;
        let size_bytes = client.size_bytes();
        let asking = Asking {
            client: Some(client),
            hostd,
            size_bytes,
            first: None,
            last: None,
            open: VecDeque::new(),
            answers: HashMap::new(),
            channels: 0,
            lost: None,
        };
        Ok(Self { size_bytes, asking: Arc::new(Mutex::new(asking)) })
    }

    /// Why the client gives no more answers, if it does not.
    pub fn lost(&self) -> Option<Problem> {
        self.asking.lock().lost.clone()
    }

    /// Tells the client that nothing more is wanted.
    pub fn end(&self) {
        if let Some(client) = self.asking.lock().client.take() {
            // One that has gone meanwhile has given everything.
            let _ = client.end();
        }
    }
}

impl ImageBytes for ClientImage {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let end = offset.saturating_add(into.len().min(IMAGE_DATA_BYTES_MAX) as u64).min(self.size_bytes);
        let wanted = Extent::between(offset.min(end), end);
        if wanted.is_empty() {
            return Ok(0);
        }
        let length = wanted.length() as usize;
        let answered = self.asking.lock().read(wanted, &mut into[..length]);
        answered.map_err(|problem| io::Error::other(problem.message))?;
        Ok(length)
    }

    fn size_bytes(&self) -> io::Result<u64> {
        Ok(self.size_bytes)
    }

    fn is_device(&self) -> bool {
        false
    }
}

impl Asking {
    /// Reads a part of the image, after everything that was asked before.
    fn read(&mut self, wanted: Extent, into: &mut [u8]) -> Result<(), Problem> {
        while !self.open.is_empty() {
            self.take_answer();
        }
        loop {
            if let Some(lost) = &self.lost {
                return Err(lost.clone());
            }
            let Some(client) = &mut self.client else {
                self.await_client();
                continue;
            };
            match client.ask(wanted).and_then(|()| client.next_answer(into)) {
                Ok(()) => {
                    self.remember(wanted, into);
                    return Ok(());
                }
                Err(error) => self.lose(&error),
            }
        }
    }

    /// Asks for what a read wants, without the zeroes behind the end of the image.
    fn begin(&mut self, channel: ChannelNumber, extent: Extent) {
        let wanted = extent.intersection(Extent::between(0, self.size_bytes));
        self.open.push_back((channel, wanted));
        if let Some(client) = &mut self.client
            && let Err(error) = client.ask(wanted)
        {
            self.lose(&error);
        }
    }

    /// Takes the answer to the first open question, and waits for a lost client if necessary.
    fn take_answer(&mut self) {
        let Some((channel, wanted)) = self.open.front().copied() else { return };
        let mut bytes = Zeroizing::new(vec![0; wanted.length() as usize]);
        let answer = loop {
            if self.lost.is_some() {
                break Err(IoError::from(Errno::PIPE));
            }
            let Some(client) = &mut self.client else {
                self.await_client();
                continue;
            };
            match client.next_answer(&mut bytes) {
                Ok(()) => {
                    self.remember(wanted, &bytes);
                    break Ok(bytes);
                }
                Err(error) => self.lose(&error),
            }
        };
        self.open.pop_front();
        self.answers.entry(channel).or_default().push(answer);
    }

    fn remember(&mut self, extent: Extent, bytes: &[u8]) {
        let answered = Answered::new(extent, bytes);
        match self.first {
            None => self.first = Some(answered),
            Some(_) => self.last = Some(answered),
        }
    }

    /// Gives a client up. One that has said why it cannot go on need not come back.
    fn lose(&mut self, error: &ImageStreamError) {
        self.client = None;
        match error {
            ImageStreamError::BrokeOff(error) => {
                tracing::info!(%error, "the client with the image is lost");
            }
            ImageStreamError::Malformed(_) | ImageStreamError::Refused(_) => {
                self.lost = Some(not_whole(error));
            }
        }
    }

    /// Waits for a client that has come back with the same image, and asks it for what is open.
    fn await_client(&mut self) {
        let until = Instant::now() + RETURNS_WITHIN;
        while self.client.is_none() && self.lost.is_none() {
            let _ = self.hostd.send(&Report::ClientIsAway, &[]);
            let left = until.saturating_duration_since(Instant::now());
            match self.hostd.receive_within::<JobRequest>(left) {
                Ok((JobRequest::Client {}, files)) => self.client = self.back(files),
                Ok((JobRequest::WindUp {}, _)) => {}
                Err(WireError::Silent(_)) => self.lost = Some(stayed_away()),
                Err(error) => self.lost = Some(Problem::new("hostd_gone", format!("hostd is gone: {error}"))),
            }
        }
    }

    /// The client of a new connection, if it has the same image.
    fn back(&self, files: Vec<OwnedFd>) -> Option<ImageTaker<Line>> {
        let line = Line::open(files.into_iter().next()?, &self.hostd).ok()?;
        let mut client = ImageTaker::begin(line).ok()?;
        let is_same = client.size_bytes() == self.size_bytes
            && [&self.first, &self.last].into_iter().flatten().all(|before| {
                let mut now = Zeroizing::new(vec![0; before.extent.length() as usize]);
                let read = client.ask(before.extent).and_then(|()| client.next_answer(&mut now));
                read.is_ok() && Answered::new(before.extent, &now).digest == before.digest
            });
        if !is_same {
            let _ = client.refuse("it is not the image of which a part is here already");
            return None;
        }
        self.open.iter().try_for_each(|(_, wanted)| client.ask(*wanted)).ok()?;
        Some(client)
    }
}

/// The problem of an image that did not come whole.
fn not_whole(error: &ImageStreamError) -> Problem {
    let message = format!("the image has not come whole: {error}");
    Problem::new("image_incomplete", message).with_next_step("send it again")
}

fn stayed_away() -> Problem {
    let message =
        format!("the client with the image has not come back within {} s", RETURNS_WITHIN.as_secs());
    Problem::new("image_incomplete", message).with_next_step("send it again")
}

trait NextAnswer {
    fn next_answer(&mut self, into: &mut [u8]) -> Result<(), ImageStreamError>;
}

impl NextAnswer for ImageTaker<Line> {
    /// Takes an answer, for which the client has [`ANSWERS_WITHIN`].
    fn next_answer(&mut self, into: &mut [u8]) -> Result<(), ImageStreamError> {
        self.stream().until.set(Instant::now() + ANSWERS_WITHIN);
        self.answer(into)
    }
}

/// A connection to a client. Reads end early when hostd has something to say, which is that the
/// client has come anew.
struct Line {
    client: UnixStream,
    hostd: OwnedFd,
    until: Cell<Instant>,
}

impl Line {
    fn open(client: OwnedFd, hostd: &Wire) -> io::Result<Self> {
        let client = UnixStream::from(client);
        client.set_nonblocking(false)?;
        client.set_write_timeout(Some(ANSWERS_WITHIN))?;
        let hostd = hostd.as_fd().try_clone_to_owned()?;
        Ok(Self { client, hostd, until: Cell::new(Instant::now() + ANSWERS_WITHIN) })
    }
}

impl Read for Line {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = self.until.get().saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).map_err(io::Error::other)?;
        let mut watched = [PollFd::new(&self.client, PollFlags::IN), PollFd::new(&self.hostd, PollFlags::IN)];
        if poll(&mut watched, Some(&left))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match watched[1].revents().is_empty() {
            true => self.client.read(into),
            false => Err(io::Error::other("the client has come anew, or hostd is gone")),
        }
    }
}

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.client.flush()
    }
}

impl Disk<Plain> for ClientImage {
    fn limits(&self) -> Limits {
        Limits {
            size_bytes: self.size_bytes.next_multiple_of(SECTOR_BYTES),
            block_bytes: SECTOR_BYTES as u32,
            preferred_bytes: TRANSFER_BYTES_MAX,
            transfer_bytes_max: TRANSFER_BYTES_MAX,
            read_only: true,
            discards: false,
        }
    }

    fn open(&self, _: &Thread, _: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        let number = {
            let mut asking = self.asking.lock();
            asking.channels += 1;
            asking.channels
        };
        let asking = Arc::clone(&self.asking);
        let (refused, open) = (Vec::new(), VecDeque::new());
        Ok(Box::new(ClientChannel { number, limits: self.limits(), asking, refused, open }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        report(extent.intersection(Extent::between(0, self.limits().size_bytes)), Allocation::Data);
        Ok(())
    }
}

struct ClientChannel {
    number: ChannelNumber,
    limits: Limits,
    asking: Arc<Mutex<Asking>>,
    refused: Vec<Done<Plain>>,
    /// The reads that wait for answers, in order.
    open: VecDeque<Io<Plain>>,
}

impl Channel<Plain> for ClientChannel {
    fn submit(&mut self, io: Io<Plain>) {
        match (self.limits.check(&io.request), &io.request) {
            (Ok(()), Request::Read { extent, .. }) => {
                self.asking.lock().begin(self.number, *extent);
                self.open.push_back(io);
            }
            (checked, _) => self.refused.push(io.end(checked)),
        }
    }

    fn kick(&mut self) {}

    /// Waits for an answer: this thread has nothing else to do.
    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        done.append(&mut self.refused);
        if self.open.is_empty() {
            return;
        }
        let mut asking = self.asking.lock();
        let answers = loop {
            if let Some(answers) = asking.answers.remove(&self.number) {
                break answers;
            }
            asking.take_answer();
        };
        drop(asking);
        for answer in answers {
            let Some(mut io) = self.open.pop_front() else { break };
            let result = answer.map(|bytes| {
                if let Request::Read { into, .. } = &mut io.request {
                    into.copy_from(0, &bytes);
                    into.fill_zero(bytes.len(), into.len() - bytes.len());
                }
            });
            done.push(io.end(result));
        }
    }
}
