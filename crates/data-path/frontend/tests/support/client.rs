//! A client that sends exactly what a test tells it to.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::memory_disk::DEADLINE;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISCONNECT: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const DF: u16 = 4;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_START_TLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_INFO: u32 = 3;
pub const REP_ERR_TLS_REQD: u32 = (1 << 31) | 5;
pub const REP_ERR_TOO_BIG: u32 = (1 << 31) | 9;

pub struct Client<S = UnixStream> {
    pub stream: S,
}

/// A whole reply of transmission.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    pub cookie: u64,
    pub error: u32,
    pub data: Vec<u8>,
}

impl Client {
    /// Connects, and exchanges flags.
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut client = Client { stream };
        client.greet();
        client
    }

    /// Connects, and negotiates until transmission, with structured replies.
    pub fn enter(socket: &Path) -> Self {
        let mut client = Self::connect(socket);
        client.negotiate();
        client
    }
}

impl<S: Read + Write> Client<S> {
    pub fn greet(&mut self) {
        let greeting = self.read(18);
        assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
        self.send(&[0, 0, 0, 3]);
    }

    pub fn negotiate(&mut self) {
        assert_eq!(self.option(OPT_STRUCTURED_REPLY, b"").last().unwrap().0, REP_ACK);
        self.option_without_reply(OPT_GO, &[0; 6]);
        assert_eq!(self.option_replies(OPT_GO).last().unwrap().0, REP_ACK);
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn read(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// Waits until the server has closed the connection, and skips what it still sends. Returns
    /// whether it has.
    pub fn await_close(&mut self) -> bool {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }

    pub fn option_without_reply(&mut self, number: u32, data: &[u8]) {
        let length = (data.len() as u32).to_be_bytes();
        self.send(&[&b"IHAVEOPT"[..], &number.to_be_bytes(), &length, data].concat());
    }

    /// Sends an option. Returns the types and data of all replies to it.
    pub fn option(&mut self, number: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.option_without_reply(number, data);
        self.option_replies(number)
    }

    pub fn option_replies(&mut self, number: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let header = self.read(20);
            assert_eq!(header[..8], 0x0003_e889_0455_65a9_u64.to_be_bytes());
            assert_eq!(header[8..12], number.to_be_bytes());
            let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let length = u32::from_be_bytes(header[16..].try_into().unwrap());
            replies.push((kind, self.read(length as usize)));
            if kind == REP_ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    pub fn request(&mut self, kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) {
        self.send(&request(kind, flags, cookie, offset, length));
    }

    pub fn write(&mut self, flags: u16, cookie: u64, offset: u64, content: &[u8]) {
        let header = request(WRITE, flags, cookie, offset, content.len() as u32);
        self.send(&[&header, content].concat());
    }

    /// The next reply, simple or of one chunk.
    pub fn reply(&mut self) -> Reply {
        let magic: [u8; 4] = self.read(4).try_into().unwrap();
        if magic == 0x6744_6698_u32.to_be_bytes() {
            let error = u32::from_be_bytes(self.read(4).try_into().unwrap());
            let cookie = u64::from_be_bytes(self.read(8).try_into().unwrap());
            return Reply { cookie, error, data: Vec::new() };
        }
        assert_eq!(magic, 0x668e_33ef_u32.to_be_bytes());
        let header = self.read(16);
        assert_eq!(header[..2], [0, 1], "all replies have one chunk");
        let kind = u16::from_be_bytes(header[2..4].try_into().unwrap());
        let cookie = u64::from_be_bytes(header[4..12].try_into().unwrap());
        let length = u32::from_be_bytes(header[12..].try_into().unwrap());
        let payload = self.read(length as usize);
        match kind {
            1 => Reply { cookie, error: 0, data: payload[8..].to_vec() },
            5 => Reply { cookie, error: 0, data: payload[4..].to_vec() },
            0x8001 => {
                let error = u32::from_be_bytes(payload[..4].try_into().unwrap());
                assert_ne!(error, 0);
                Reply { cookie, error, data: payload[6..].to_vec() }
            }
            _ => panic!("chunk of type {kind}"),
        }
    }

    /// The error of the next reply, which must be to this request.
    pub fn error_of(&mut self, cookie: u64) -> u32 {
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie, "{reply:?}");
        reply.error
    }
}

pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    [
        &0x2560_9513_u32.to_be_bytes()[..],
        &flags.to_be_bytes(),
        &kind.to_be_bytes(),
        &cookie.to_be_bytes(),
        &offset.to_be_bytes(),
        &length.to_be_bytes(),
    ]
    .concat()
}
