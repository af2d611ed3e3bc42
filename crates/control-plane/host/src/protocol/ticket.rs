//! Tickets: the leave to speak with a guest, once and soon.
//!
//! The control plane asks for a ticket and gives it to its client, which shows it on hostd's guest
//! socket. So the guest's data never passes the control plane, and the client needs no other right
//! than the ticket.
//!
//! On the guest socket (`<run>/hostd/guest.sock`, a stream) the client sends one line, a
//! [`GuestHello`], and gets one, a [`GuestWelcome`] or `{"error": ...}`. After a welcome the stream
//! is the guest's console or VNC server, or a dump. With an upload, the image's open file comes
//! beside the first byte of the line (`SCM_RIGHTS`): hostd opens no path that a client names.

use std::fmt;
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

/// The bytes of a ticket: nobody guesses it in the seconds that it is good.
const TICKET_BYTES: usize = 16;

/// A ticket, as 32 hexadecimal digits. Whoever has it may use it: it is not shown in logs.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TicketId([u8; TICKET_BYTES]);

impl TicketId {
    /// The ticket of these bytes, which are to be random.
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

/// What a ticket is wanted for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TicketRequest {
    /// The serial console of a VM that runs.
    Console {
        /// To read only: there are many readers and one writer.
        #[serde(default)]
        read_only: bool,
    },
    /// What it said on its serial console, also of a VM that is off.
    ConsoleLog {
        /// What the VM is.
        spec: Box<VmSpec>,
        /// Leave to fetch its key, should it be off.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// A dump of its guest, also of a VM that is off.
    Dump {
        /// What the VM is.
        spec: Box<VmSpec>,
        /// Which.
        number: u32,
        /// Leave to fetch its key, should it be off.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// A check of one of its disks while it is off.
    Check {
        /// What the VM is.
        spec: Box<VmSpec>,
        /// Which disk.
        disk: DiskName,
        /// Its blocks too, and not its descriptor and files alone.
        reads_blocks: bool,
        /// Leave to fetch its key.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// One of its disks, copied into a file while it is off. The file comes as that of an upload
    /// does; it is new, and open to be read and written.
    Export {
        /// What the VM is.
        spec: Box<VmSpec>,
        /// Which disk.
        disk: DiskName,
        /// What is written.
        format: ImageFormat,
        /// Leave to fetch its key.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        grants: Vec<Grant>,
    },
    /// Its screen, by VNC.
    Vnc,
    /// An image for a disk. Shown with the image's file, the ticket is then named in
    /// [`ImportDisk`](super::OperationKind::ImportDisk); the file is kept until then, for a minute.
    Upload {
        /// Which disk.
        disk: DiskName,
    },
}

impl TicketRequest {
    /// The configuration that comes with whatever opens a volume.
    pub fn spec(&self) -> Option<&VmSpec> {
        match self {
            Self::ConsoleLog { spec, .. }
            | Self::Dump { spec, .. }
            | Self::Check { spec, .. }
            | Self::Export { spec, .. } => Some(spec),
            Self::Console { .. } | Self::Vnc | Self::Upload { .. } => None,
        }
    }
}

/// A ticket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket {
    /// It.
    pub ticket: TicketId,
    /// Until when it is good: seconds since 1970-01-01 00:00 UTC.
    pub expires_unix_seconds: u64,
    /// The socket where it is good.
    pub socket: std::path::PathBuf,
}

/// What a client says first on the guest socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestHello {
    /// The format: [`FORMAT`](super::FORMAT).
    pub format: u32,
    /// What it was given.
    pub ticket: TicketId,
}

/// What it is answered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GuestWelcome {
    /// The console follows: what it said last, and what it says.
    Console {
        /// Whether what is sent reaches the guest. Not if another one writes.
        writer: bool,
    },
    /// What was said on the console follows, and then the end.
    ConsoleLog,
    /// The dump follows in chunks: how many bytes it has (32 bits, little-endian), and these. All
    /// chunks are the packed content of the dump (`strongroom_streams::Unpacker`), each part of
    /// which was verified before. One without bytes is the last, and after it comes a line, a
    /// [`GuestEnd`](super::GuestEnd): without that, the dump has broken off.
    Dump(Box<Dump>),
    /// The disk is checked. Lines follow, each a [`CheckNews`]; without the last one the check has
    /// broken off.
    Check {
        /// The disk's size, in bytes.
        size_bytes: u64,
    },
    /// The disk is copied into the file. Lines follow, each an [`ExportNews`]; without the last one
    /// the copy has broken off.
    Export {
        /// The disk's size, in bytes.
        size_bytes: u64,
    },
    /// The VNC server follows.
    Vnc,
    /// The image was taken.
    Upload,
}

/// How a copy of a disk goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExportNews {
    /// So much of the disk is behind.
    Copied {
        /// Of the disk's size.
        bytes: u64,
    },
    /// The last line: all of it is written and durable, or why not.
    End(GuestEnd),
}

/// How a check of a disk goes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckNews {
    /// So much of the disk is behind.
    Read {
        /// Of the disk's size.
        bytes: u64,
    },
    /// The last line.
    End(CheckEnd),
}

/// How a check of a disk ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckEnd {
    /// The disk was checked, and this was found.
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
