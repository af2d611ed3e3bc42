//! The requests of a device that its worker has not answered, and the connection over which they
//! are sent. When it ends, they are sent anew over the next one.
//!
//! That is safe: a successor reads the volume when the last write of its predecessor has ended, the
//! kernel never has two requests for one block in flight, and each request may be repeated.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use parking_lot::{Condvar, Mutex};
use strongroom_frontend::nbd::protocol::{command, command_flag};

use crate::nbd::{self, Connect, Export, Header};

/// Between two attempts to connect.
const CONNECT_EVERY: Duration = Duration::from_millis(50);
/// The most bytes that one request frees or zeroes; a longer one is made of several.
const ZEROES_BYTES_MAX: u32 = 256 << 20;
/// NBD's `ESHUTDOWN`: the server ends, and its successor answers.
const SHUTTING_DOWN: u32 = 108;

/// A request, and who waits for it.
pub(crate) enum Request {
    /// Read.
    Read { offset: u64, length: u32, reply: ReplyData },
    /// Write.
    Write { offset: u64, content: Arc<[u8]>, reply: ReplyWrite },
    /// Make all answered writes durable.
    Flush(Waiting),
    /// Make a range zero, and free it if it may be.
    Zero { offset: u64, length: u32, free: bool, whole: Arc<Whole> },
}

/// Who waits for a flush.
pub(crate) enum Waiting {
    /// The kernel.
    Kernel(ReplyEmpty),
    /// This process, before it ends.
    Process(Arc<Flushed>),
}

/// The end of a flush of this process's own.
#[derive(Default)]
pub(crate) struct Flushed {
    result: Mutex<Option<Result<(), u32>>>,
    ended: Condvar,
}

impl Flushed {
    /// Waits for it; `None` after `at_most`.
    pub fn wait(&self, at_most: Duration) -> Option<Result<(), u32>> {
        let mut result = self.result.lock();
        if result.is_none() {
            self.ended.wait_for(&mut result, at_most);
        }
        *result
    }

    fn end(&self, result: Result<(), u32>) {
        *self.result.lock() = Some(result);
        self.ended.notify_all();
    }
}

impl Waiting {
    fn end(self, result: Result<(), u32>) {
        match (self, result) {
            (Self::Kernel(reply), Ok(())) => reply.ok(),
            (Self::Kernel(reply), Err(error)) => reply.error(errno(error)),
            (Self::Process(flushed), result) => flushed.end(result),
        }
    }
}

/// A range that is made zero by several requests.
pub(crate) struct Whole(Mutex<(usize, Option<ReplyEmpty>)>);

impl Whole {
    /// Ends one of its requests. It is answered when all have ended, or one has failed.
    fn end_part(&self, result: Result<(), u32>) {
        let mut whole = self.0.lock();
        whole.0 -= 1;
        match result {
            Ok(()) if whole.0 > 0 => {}
            Ok(()) => whole.1.take().map_or((), ReplyEmpty::ok),
            Err(error) => whole.1.take().map_or((), |reply| reply.error(errno(error))),
        }
    }
}

impl Request {
    /// The requests that make a range zero.
    pub fn zero(offset: u64, length: u64, free: bool, reply: ReplyEmpty) -> Vec<Self> {
        let part_bytes = u64::from(ZEROES_BYTES_MAX);
        let parts = usize::try_from(length.div_ceil(part_bytes)).unwrap_or(usize::MAX);
        let whole = Arc::new(Whole(Mutex::new((parts, Some(reply)))));
        let starts = (offset..offset + length).step_by(ZEROES_BYTES_MAX as usize);
        let part = |start: u64| Self::Zero {
            offset: start,
            length: u32::try_from((offset + length - start).min(part_bytes)).unwrap_or(ZEROES_BYTES_MAX),
            free,
            whole: Arc::clone(&whole),
        };
        starts.map(part).collect()
    }

    /// What is sent of it.
    fn message(&self, cookie: u64) -> Message {
        let plain = |command, offset, length| Header { command, flags: 0, cookie, offset, length };
        let (header, content) = match self {
            Self::Read { offset, length, .. } => (plain(command::READ, *offset, *length), None),
            Self::Write { offset, content, .. } => {
                // The kernel's writes are no longer than a mebibyte.
                let length = u32::try_from(content.len()).unwrap_or(u32::MAX);
                (plain(command::WRITE, *offset, length), Some(Arc::clone(content)))
            }
            Self::Flush(_) => (plain(command::FLUSH, 0, 0), None),
            Self::Zero { offset, length, free, .. } => {
                let flags = if *free { 0 } else { command_flag::NO_HOLE };
                (Header { flags, ..plain(command::WRITE_ZEROES, *offset, *length) }, None)
            }
        };
        Message { header, content }
    }

    /// Answers it, with the content if it is a read.
    fn end(self, result: Result<&[u8], u32>) {
        match (self, result) {
            (Self::Read { reply, .. }, Ok(content)) => reply.data(content),
            (Self::Read { reply, .. }, Err(error)) => reply.error(errno(error)),
            (Self::Write { content, reply, .. }, Ok(_)) => {
                reply.written(u32::try_from(content.len()).unwrap_or(u32::MAX));
            }
            (Self::Write { reply, .. }, Err(error)) => reply.error(errno(error)),
            (Self::Flush(waiting), result) => waiting.end(result.map(drop)),
            (Self::Zero { whole, .. }, result) => whole.end_part(result.map(drop)),
        }
    }

    /// The content that its reply has.
    fn content_bytes(&self) -> usize {
        match self {
            Self::Read { length, .. } => *length as usize,
            Self::Write { .. } | Self::Flush(_) | Self::Zero { .. } => 0,
        }
    }
}

struct Message {
    header: Header,
    content: Option<Arc<[u8]>>,
}

impl Message {
    fn send(&self, mut stream: &UnixStream) -> io::Result<()> {
        stream.write_all(&self.header.bytes())?;
        self.content.as_ref().map_or(Ok(()), |content| stream.write_all(content))
    }
}

/// The protocol's errors have Linux's numbers; one that is not in it is an I/O error.
fn errno(error: u32) -> Errno {
    match error {
        1 => Errno::EPERM,
        12 => Errno::ENOMEM,
        22 => Errno::EINVAL,
        28 => Errno::ENOSPC,
        _ => Errno::EIO,
    }
}

/// The requests that are not answered, and the connection. Who needs both locks takes the writer's
/// first. The one that reads replies takes only the table's, and never while it is held for a
/// transfer: so the worker can always send its replies, and so always reads requests.
pub(crate) struct Requests {
    socket: PathBuf,
    export: String,
    size_bytes: u64,
    writer: Mutex<Writer>,
    table: Mutex<BTreeMap<u64, Request>>,
    is_ending: AtomicBool,
}

struct Writer {
    /// `None` between two connections: the next one begins with all that is in the table.
    stream: Option<UnixStream>,
    next_cookie: u64,
}

impl Requests {
    /// Connects for the first time. [`run`](Self::run) takes the stream.
    pub fn connect(socket: PathBuf, export: String) -> Result<(Arc<Self>, UnixStream), Connect> {
        let (stream, Export { size_bytes }) = nbd::connect(&socket, &export)?;
        let writer = Mutex::new(Writer { stream: None, next_cookie: 0 });
        let table = Mutex::new(BTreeMap::new());
        let is_ending = AtomicBool::new(false);
        Ok((Arc::new(Self { socket, export, size_bytes, writer, table, is_ending }), stream))
    }

    /// The device's size.
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends a request. It is answered when its worker, or a successor of that, has answered it.
    pub fn submit(&self, request: Request) {
        let mut writer = self.writer.lock();
        let cookie = writer.next_cookie;
        writer.next_cookie += 1;
        let message = request.message(cookie);
        self.table.lock().insert(cookie, request);
        writer.send(&message);
    }

    /// Transfers requests and replies over this connection, and then over the next ones.
    pub fn run(&self, mut stream: UnixStream) {
        loop {
            if let Err(error) = self.serve(&stream) {
                tracing::warn!("the connection to the worker cannot be used: {error}");
            }
            self.writer.lock().stream = None;
            stream = loop {
                if self.is_ending.load(Ordering::Relaxed) {
                    return;
                }
                match nbd::connect(&self.socket, &self.export) {
                    Ok((stream, export)) if export.size_bytes >= self.size_bytes => break stream,
                    Ok(_) => tracing::error!("the volume is smaller than it was; its requests wait"),
                    Err(Connect::Protocol(error)) => tracing::warn!("{error}; its requests wait"),
                    Err(Connect::Io(_)) => {}
                }
                std::thread::sleep(CONNECT_EVERY);
            };
            tracing::info!("a successor of the worker answers");
        }
    }

    /// Sends what is not answered, and receives replies until the connection ends.
    fn serve(&self, stream: &UnixStream) -> io::Result<()> {
        std::thread::scope(|scope| {
            let mut writer = self.writer.lock();
            writer.stream = Some(stream.try_clone()?);
            // Replies are received meanwhile: else both sides could wait for room in the socket.
            std::thread::Builder::new().name("replies".to_owned()).spawn_scoped(scope, || {
                let end = self.receive(stream);
                // Ends a send that waits for room.
                let _ = stream.shutdown(Shutdown::Both);
                end
            })?;
            let unanswered: Vec<u64> = self.table.lock().keys().copied().collect();
            for cookie in unanswered {
                let message = self.table.lock().get(&cookie).map(|request| request.message(cookie));
                if let Some(message) = message {
                    writer.send(&message);
                }
            }
            Ok(())
        })
    }

    /// Receives replies until the connection ends.
    fn receive(&self, mut stream: &UnixStream) -> io::Result<()> {
        let mut content = Vec::new();
        loop {
            let (cookie, error) = nbd::read_reply(&mut stream)?;
            if error == SHUTTING_DOWN {
                return Ok(());
            }
            let Some(request) = self.table.lock().remove(&cookie) else {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a reply to no request"));
            };
            if error != 0 {
                request.end(Err(error));
                continue;
            }
            content.resize(request.content_bytes(), 0);
            if let Err(error) = stream.read_exact(&mut content) {
                self.table.lock().insert(cookie, request);
                return Err(error);
            }
            request.end(Ok(&content));
        }
    }

    /// Ends the connection. Nothing may be unanswered.
    pub fn end(&self) {
        self.is_ending.store(true, Ordering::Relaxed);
        if let Some(stream) = &self.writer.lock().stream {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Writer {
    /// If it cannot be sent, the receiving side sees the end of the connection, too.
    fn send(&mut self, message: &Message) {
        if let Some(stream) = &self.stream
            && message.send(stream).is_err()
        {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
