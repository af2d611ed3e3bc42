//! Tickets: short-lived permits for one connection to a guest.
//!
//! The control plane requests a ticket and gives it to its client, which presents it on hostd's
//! guest socket. So the guest's data never passes through the control plane, and the client needs
//! no other right than the ticket.
//!
//! On the guest socket (`<run>/hostd/guest.sock`, a stream) the client sends one line, a
//! [`GuestHello`], and receives one, a [`GuestWelcome`] or `{"error": ...}`. After a welcome the
//! stream is the guest's console or VNC server, or a dump, or the content of a disk as frames
//! (`strongroom-streams`).
//!
//! A client on the same machine may send an open file with the first byte of the line
//! (`SCM_RIGHTS`), which is the image to read, or the one to write, in place of frames: hostd opens
//! no path that a client names.
//!
//! A client on another machine connects to the host's port ([`GuestPort`]), over TLS 1.3 with the
//! protocol [`GUEST_PROTOCOL`] (ALPN). It shows no certificate, and knows the host by the digest
//! that came with the ticket. What follows is the same.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_datastore::file::CheckReport;
use strongroom_types::hex;
use strongroom_vm::DiskName;

use super::dump::{Dump, GuestEnd};
use super::grant::Grant;
use super::operation::ImageFormat;
use super::problem::Problem;
use super::spec::VmSpec;

/// The name in ALPN of a client with a ticket. hostd's other client there, its control plane, names
/// none.
pub const GUEST_PROTOCOL: &[u8] = b"strongroom-guest/1";

/// The length of a ticket: it cannot be guessed in the seconds before it expires.
const TICKET_BYTES: usize = 16;

/// A ticket, as 32 hexadecimal digits. Anyone who has it can use it, so it is kept out of logs.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TicketId([u8; TICKET_BYTES]);

impl TicketId {
    /// The ticket with these bytes, which must be random.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl FromStr for TicketId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bytes = hex::decode(text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or("a ticket is 32 hexadecimal digits in lower case")
    }
}

impl TryFrom<String> for TicketId {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<TicketId> for String {
    fn from(ticket: TicketId) -> Self {
        hex::encode(&ticket.0)
    }
}

/// Redacted.
impl fmt::Debug for TicketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketId(redacted)")
    }
}

/// The purpose of a ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TicketRequest {
    /// The serial console of a running VM.
    Console {
        /// Only to read: a console can have many readers and one writer.
        #[serde(default)]
        read_only: bool,
        /// Who takes over from the client that writes, for that one to be told; absent if it goes
        /// on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        taken_by: Option<String>,
    },
    /// The recorded output of its serial console, also of a VM that is off.
    ConsoleLog {
        /// The VM.
        spec: Box<VmSpec>,
        /// Grants for its key, in case it is off.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// A dump of its guest, also of a VM that is off.
    Dump {
        /// The VM.
        spec: Box<VmSpec>,
        /// The dump's number.
        number: u32,
        /// Grants for its key, in case it is off.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// A check of one of its disks while it is off.
    Check {
        /// The VM.
        spec: Box<VmSpec>,
        /// The disk.
        disk: DiskName,
        /// Checks its blocks as well as its descriptor and files.
        reads_blocks: bool,
        /// Grants for its key.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// A copy of one of its disks while it is off: into a file that the client sends as for an
    /// upload, which is new, and open for reading and writing; or, if it sends none, as frames.
    Export {
        /// The VM.
        spec: Box<VmSpec>,
        /// The disk.
        disk: DiskName,
        /// The format of the file.
        format: ImageFormat,
        /// Grants for its key.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// All of its volumes while it is off, as they are stored, for the host that it moves to: see
    /// [`OperationKind::Fetch`](super::OperationKind::Fetch).
    Volumes {
        /// The VM.
        spec: Box<VmSpec>,
        /// Grants for its keys.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// Its screen, over VNC.
    Vnc,
    /// The same for somebody who only looks: nothing that the client sends changes anything.
    VncToLook,
    /// An image for a disk: a file that comes beside the ticket, or, if none does, frames behind
    /// it, which are raw. An [`ImportDisk`](super::OperationKind::ImportDisk) then names the
    /// ticket. File or connection are kept for a minute until it does.
    Upload {
        /// The disk.
        disk: DiskName,
    },
}

impl TicketRequest {
    /// The configuration, for tickets that open a volume.
    pub fn spec(&self) -> Option<&VmSpec> {
        match self {
            Self::ConsoleLog { spec, .. }
            | Self::Dump { spec, .. }
            | Self::Check { spec, .. }
            | Self::Export { spec, .. }
            | Self::Volumes { spec, .. } => Some(spec),
            Self::Console { .. } | Self::Vnc | Self::VncToLook | Self::Upload { .. } => None,
        }
    }
}

/// A ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// The ticket itself.
    pub ticket: TicketId,
    /// When it expires: seconds since 1970-01-01 00:00 UTC.
    pub expires_unix_seconds: u64,
    /// The socket that accepts it.
    pub socket: std::path::PathBuf,
    /// The port that accepts it, too, for clients on other machines; absent if the host has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<GuestPort>,
}

/// A host's port for clients with tickets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestPort {
    /// Where it listens.
    pub listen: SocketAddr,
    /// SHA-256 of the certificate that the host shows there, as 64 hexadecimal digits.
    pub certificate_sha256: String,
}

/// Ends a ticket that nobody has presented: its caller has lost the right to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VoidTicket {
    /// The ticket.
    pub ticket: TicketId,
}

/// A client's first line on the guest socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestHello {
    /// The format: [`FORMAT`](super::FORMAT).
    pub format: u32,
    /// The ticket.
    pub ticket: TicketId,
}

/// The command of the operating system command (ECMA-48, OSC) with which a supervisor tells a
/// client of a console that another one writes now. No terminal has it.
pub const NEWS_COMMAND: u32 = 7341;

/// The answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestWelcome {
    /// The console follows: first its last output, then its present output.
    Console {
        /// Whether the client's input reaches the guest. It does not if another client writes.
        writer: bool,
        /// How many of the following bytes are former output; absent from a supervisor that does
        /// not say.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        recorded_bytes: Option<u64>,
        /// By what a client that writes knows from the guest's output that another one has taken
        /// over: the control string [`NEWS_COMMAND`], this text, and who it is, with semicolons
        /// between them. The guest does not know the text, so it cannot say this. Absent from a
        /// supervisor that does not say it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        news: Option<String>,
    },
    /// The console log follows, and then the end of the stream.
    ConsoleLog,
    /// The dump follows in chunks, each with its length before it (32 bits, little-endian).
    /// Together the chunks are the packed content of the dump (`strongroom_streams::Unpacker`),
    /// each part of which was verified before it was sent. An empty chunk is the last, and a line
    /// follows it, a [`GuestEnd`](super::GuestEnd). A stream without that line is incomplete.
    Dump(Box<Dump>),
    /// The disk is checked. Lines follow, each a [`CheckNews`]; a stream without the last line is
    /// incomplete.
    Check {
        /// The disk's size, in bytes.
        size_bytes: u64,
    },
    /// The disk is copied. If it is into a file, lines follow, each an [`ExportNews`], and a stream
    /// without the last line is incomplete. Otherwise frames do.
    Export {
        /// The disk's size, in bytes.
        size_bytes: u64,
    },
    /// Questions about the volumes are answered (`strongroom_streams::VolumeGiver`).
    Volumes,
    /// The VNC server follows.
    Vnc,
    /// The image was received, or its frames are expected as soon as an import names the ticket.
    Upload,
}

/// A line about the copy of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportNews {
    /// The progress of the copy.
    Copied {
        /// The bytes of the disk that are copied.
        bytes: u64,
    },
    /// The last line: the copy is complete and durable, or the reason that it is not.
    End(GuestEnd),
}

/// A line about the check of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckNews {
    /// The progress of the check.
    Read {
        /// The bytes of the disk that are checked.
        bytes: u64,
    },
    /// The last line.
    End(CheckEnd),
}

/// The end of a disk's check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckEnd {
    /// The disk was checked. The report has the findings.
    Done(CheckReport),
    /// It could not be checked.
    Error(Problem),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_its_text_and_is_not_shown() {
        let ticket = TicketId::from_bytes([7; 16]);
        let text = serde_json::to_string(&ticket).unwrap();
        assert_eq!(text, format!("\"{}\"", "07".repeat(16)));
        assert_eq!(serde_json::from_str::<TicketId>(&text).unwrap(), ticket);
        assert_eq!(format!("{ticket:?}"), "TicketId(redacted)");
        assert!("07".parse::<TicketId>().is_err());
    }
}
