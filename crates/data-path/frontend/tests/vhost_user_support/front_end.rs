//! A minimal vhost-user front end.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use strongroom_memory::{GuestAddress, GuestMemory, GuestRegion};

use super::DEADLINE;
use super::driver::{Driver, QUEUE_BYTES, QUEUE_SIZE};

/// Bytes of the guest's memory.
pub const MEMORY_BYTES: u64 = 160 << 20;

/// The address at which this process claims to see the guest's memory.
pub const USER: u64 = 0x7f00_0000_0000;

pub const EVENT_INDEX: u64 = 1 << 29;
pub const INDIRECT: u64 = 1 << 28;
pub const FLUSH: u64 = 1 << 9;
pub const WCE: u64 = 1 << 11;
pub const LOG_ALL: u64 = 1 << 26;
/// VERSION_1, MQ, DISCARD, WRITE_ZEROES and protocol features.
pub const BASIC: u64 = 1 << 32 | 1 << 30 | 1 << 12 | 1 << 13 | 1 << 14;

pub struct FrontEnd {
    pub socket: UnixStream,
    pub file: OwnedFd,
    pub memory: Arc<GuestMemory>,
    pub features: u64,
}

impl FrontEnd {
    /// Connects with new memory, and agrees on features.
    pub fn connect(socket: &Path, features: u64) -> Self {
        let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, MEMORY_BYTES).unwrap();
        Self::connect_with(socket, features, file)
    }

    /// Connects with the memory of an existing guest.
    pub fn connect_with(socket: &Path, features: u64, file: OwnedFd) -> Self {
        let region = GuestRegion::map(&file, 0, GuestAddress(0), MEMORY_BYTES).unwrap();
        let memory = Arc::new(GuestMemory::new(vec![region], None).unwrap());
        let socket = UnixStream::connect(socket).unwrap();
        socket.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut front_end = Self { socket, file, memory, features };
        let offered = front_end.ask(1, &[]);
        assert_eq!(features & !offered, 0, "{offered:#x}");
        let protocol = front_end.ask(15, &[]);
        front_end.send(16, &[protocol], &[]);
        front_end.acknowledged(3, &[], &[]);
        front_end.acknowledged(2, &[features], &[]);
        let table = [1, 0, MEMORY_BYTES, USER, 0];
        let file = front_end.file.try_clone().unwrap();
        front_end.acknowledged(5, &table, &[file.as_fd()]);
        front_end
    }

    /// Sets a ring up and enables it.
    pub fn start(&mut self, index: u64, next_available: u64) -> Driver {
        let driver = Driver::new(&self.memory, index, self.features, next_available as u16);
        self.set_up(index, next_available, &driver);
        driver
    }

    pub fn set_up(&mut self, index: u64, base: u64, driver: &Driver) {
        let start = USER + index * QUEUE_BYTES;
        self.acknowledged(8, &[index | u64::from(QUEUE_SIZE) << 32], &[]);
        self.acknowledged(10, &[index | base << 32], &[]);
        self.acknowledged(9, &[index, start, start + 0x4000, start + 0x2000, 0], &[]);
        self.acknowledged(14, &[index], &[driver.error.as_fd()]);
        self.acknowledged(13, &[index], &[driver.call.as_fd()]);
        self.acknowledged(12, &[index], &[driver.kick.as_fd()]);
        self.acknowledged(18, &[index | 1 << 32], &[]);
    }

    /// Stops a ring. Returns where it stopped.
    pub fn stop(&mut self, index: u64) -> u64 {
        self.ask(11, &[index]) >> 32
    }

    /// Sends a message with these words.
    pub fn send(&mut self, request: u32, body: &[u64], files: &[BorrowedFd<'_>]) {
        self.send_flagged(request, 1, &bytes_of(body), files);
    }

    /// Sends a message and requires its acknowledgement.
    pub fn acknowledged(&mut self, request: u32, body: &[u64], files: &[BorrowedFd<'_>]) {
        assert_eq!(self.result(request, body, files), 0, "message {request}");
    }

    /// Sends a message. Returns its acknowledgement.
    pub fn result(&mut self, request: u32, body: &[u64], files: &[BorrowedFd<'_>]) -> u64 {
        self.send_flagged(request, 9, &bytes_of(body), files);
        self.number(request)
    }

    pub fn ask(&mut self, request: u32, body: &[u64]) -> u64 {
        self.send(request, body, &[]);
        self.number(request)
    }

    /// Sets up the log of the pages that the device writes to.
    pub fn set_log(&mut self, log: &OwnedFd, bytes: u64) {
        self.send(6, &[bytes, 0], &[log.as_fd()]);
        assert_eq!(self.number(6), 0);
        self.acknowledged(2, &[self.features | LOG_ALL], &[]);
    }

    fn number(&mut self, request: u32) -> u64 {
        u64::from_le_bytes(self.receive(request).try_into().unwrap())
    }

    /// Receives an answer's body.
    pub fn receive(&mut self, request: u32) -> Vec<u8> {
        let mut header = [0; 12];
        self.socket.read_exact(&mut header).unwrap();
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (request, 5));
        let mut body = vec![0; word(8) as usize];
        self.socket.read_exact(&mut body).unwrap();
        body
    }

    pub fn send_flagged(&mut self, request: u32, flags: u32, body: &[u8], files: &[BorrowedFd<'_>]) {
        let words = [request, flags, body.len() as u32].map(u32::to_le_bytes);
        let bytes = [words.as_flattened(), body].concat();
        if files.is_empty() {
            let _ = self.socket.write_all(&bytes);
            return;
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        let _ = sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// Waits until the server has ended the connection. Returns whether it did so without sending
    /// anything.
    pub fn await_cut(&mut self) -> bool {
        let mut rest = Vec::new();
        // The connection is reset if the server did not read everything.
        self.socket.read_to_end(&mut rest).is_err() || rest.is_empty()
    }
}

fn bytes_of(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

pub fn event() -> OwnedFd {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap()
}
