//! The errors of a migration.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use strongroom_crypto::CryptoError;
use strongroom_files::FileError;
use strongroom_keyserver::access::ClientId;
use strongroom_keyserver::grant::{GrantId, Refusal, VmGeneration, VmId};
use thiserror::Error;

use crate::record::RecordError;

/// Why a migration has not begun, or has ended early.
#[derive(Debug, Error)]
pub enum MigrateError {
    /// The grant is not genuine, or not valid now.
    #[error(
        "the grant for migrating VM {vm} is refused: {refusal}; begin the migration anew, with a new grant"
    )]
    Grant {
        /// The VM that was to migrate.
        vm: VmId,
        /// Why.
        refusal: Refusal,
    },
    /// The grant is for another VM.
    #[error("the grant is for migrating VM {granted}, not VM {vm}; begin the migration of VM {vm} anew")]
    OtherVm {
        /// The VM that was to migrate.
        vm: VmId,
        /// The VM in the grant.
        granted: VmId,
    },
    /// The grant is for another generation of the VM.
    #[error(
        "the grant is for generation {granted} of VM {vm}, which is in generation {present} here; begin the migration anew"
    )]
    OtherGeneration {
        /// The VM.
        vm: VmId,
        /// The generation in the grant.
        granted: VmGeneration,
        /// The generation here.
        present: VmGeneration,
    },
    /// The grant gives this host another part, or none.
    #[error(
        "the grant names host {granted} as the {part} of VM {vm}, and this is host {here}; begin the migration anew"
    )]
    OtherHost {
        /// The VM.
        vm: VmId,
        /// "source" or "target".
        part: &'static str,
        /// The host in the grant.
        granted: ClientId,
        /// This host.
        here: ClientId,
    },
    /// The grant lets the memory of an encrypted VM pass in plain text.
    #[error(
        "the grant is for migrating VM {vm} in plain text, and it has encrypted disks; begin the migration anew"
    )]
    InPlainText {
        /// The VM.
        vm: VmId,
    },
    /// The grant was used here before.
    #[error(
        "grant {grant} for migrating VM {vm} was used before; begin the migration anew, with a new grant"
    )]
    Used {
        /// The VM.
        vm: VmId,
        /// The grant.
        grant: GrantId,
    },
    /// Whether the grant was used before cannot be recorded.
    #[error("the use of a grant cannot be recorded: {0}; repair the directory, and begin the migration anew")]
    Ledger(#[from] FileError),
    /// This host's own certificate cannot be used.
    #[error("this host's certificate cannot be used for a migration: {0}; renew it")]
    OwnCertificate(String),
    /// An option is out of its bounds.
    #[error("{what} is {given}, and may be {allowed}")]
    Option {
        /// Which one.
        what: &'static str,
        /// What was given.
        given: u64,
        /// What may be.
        allowed: String,
    },
    /// The target does not answer.
    #[error(
        "the target host does not answer at {address}: {error}; check that its address and firewall let this host in"
    )]
    Connect {
        /// Where it should be.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The other host could not prove to be the one of the grant, or this one could not.
    #[error("the host at {address} and this one do not admit each other: {reason}")]
    NotAdmitted {
        /// The other host's address.
        address: SocketAddr,
        /// Why not.
        reason: String,
    },
    /// The two hosts have different grants.
    #[error("the source and the target of VM {vm} have different grants; begin the migration anew")]
    GrantsDiffer {
        /// The VM.
        vm: VmId,
    },
    /// Nobody came while the grant was valid.
    #[error("the source of VM {vm} has not come before its grant expired; begin the migration anew")]
    NobodyCame {
        /// The VM.
        vm: VmId,
    },
    /// QEMU's side of a channel failed.
    #[error("QEMU's end of channel {channel} failed: {error}; QEMU's log on this host says why")]
    Qemu {
        /// The channel.
        channel: u16,
        /// What happened.
        error: io::Error,
    },
    /// QEMU has opened more channels than it may.
    #[error("QEMU opened more than {channels_max} channels; set its multifd-channels to {} at most", channels_max - 1)]
    TooManyChannels {
        /// The most that it may open.
        channels_max: u16,
    },
    /// The network's side of a channel failed.
    #[error(
        "channel {channel} to the other host failed: {error}; check the network between the hosts, and begin anew"
    )]
    Wire {
        /// The channel.
        channel: u16,
        /// What happened.
        error: io::Error,
    },
    /// What came is not what was sent.
    #[error("channel {channel} was attacked, or the network is broken: {error}; nothing of it was used")]
    Record {
        /// The channel.
        channel: u16,
        /// What is wrong.
        error: RecordError,
    },
    /// What the other relay told this one is not what it sent.
    #[error("the connection of the two relays was attacked, or the network is broken: {0}")]
    Line(RecordError),
    /// The other relay is gone.
    #[error("the other host is gone: {0}; check whether it runs")]
    PeerGone(io::Error),
    /// The other relay says why it has ended the migration.
    #[error("the other host has ended the migration: {0}; its log says more")]
    PeerEnded(Reason),
    /// It was cancelled here.
    #[error("the migration was cancelled")]
    Cancelled,
    /// The cryptographic library failed.
    #[error("the cipher failed: {0}")]
    Crypto(#[from] CryptoError),
    /// The system has no thread, memory or socket left.
    #[error("this host has no room for the migration: {0}; free some, and begin anew")]
    Resources(io::Error),
}

/// What one relay says of its end to the other: no text, so nothing of one host shows up in the
/// other's log that it did not write itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It was cancelled there.
    Cancelled,
    /// QEMU failed there.
    Qemu {
        /// At this channel.
        channel: u16,
    },
    /// The network failed, as seen from there.
    Wire {
        /// At this channel.
        channel: u16,
    },
    /// A record was not what had been sent.
    Record {
        /// At this channel.
        channel: u16,
    },
    /// Another reason.
    Other,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cancelled => f.write_str("it was cancelled there"),
            Self::Qemu { channel } => write!(f, "QEMU failed there at channel {channel}"),
            Self::Wire { channel } => write!(f, "the network failed at channel {channel}"),
            Self::Record { channel } => {
                write!(f, "what came there on channel {channel} was not what was sent")
            }
            Self::Other => f.write_str("it failed there"),
        }
    }
}

impl MigrateError {
    /// What the other relay hears of it.
    pub fn reason(&self) -> Reason {
        match self {
            Self::Cancelled => Reason::Cancelled,
            Self::Qemu { channel, .. } => Reason::Qemu { channel: *channel },
            Self::TooManyChannels { channels_max } => Reason::Qemu { channel: *channels_max },
            Self::Wire { channel, .. } => Reason::Wire { channel: *channel },
            Self::Record { channel, .. } => Reason::Record { channel: *channel },
            _ => Reason::Other,
        }
    }
}
