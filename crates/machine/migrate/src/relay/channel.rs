//! A channel, once both its connections are there.
//!
//! Its connection to the target begins with a preamble in the clear, and an open record under the
//! channel's key, which only the source can have made:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `SRM1` |
//! | 4 | 16 | id of the session |
//! | 20 | 2 | number of the channel, big-endian |

use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;

use super::pump::{Inbound, Outbound, PumpError};
use super::shared::Shared;
use super::source::spawn;
use crate::error::MigrateError;
use crate::keys::{Direction, SESSION_ID_BYTES};
use crate::record::{Opener, RecordError, Sealer};

const MAGIC: [u8; 4] = *b"SRM1";
pub(super) const PREAMBLE_BYTES: usize = MAGIC.len() + SESSION_ID_BYTES + 2;

/// How a channel's connection begins.
pub(super) fn preamble(session: [u8; SESSION_ID_BYTES], number: u16) -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..4].copy_from_slice(&MAGIC);
    preamble[4..20].copy_from_slice(&session);
    preamble[20..].copy_from_slice(&number.to_be_bytes());
    preamble
}

/// The number in the preamble of a channel of this session.
pub(super) fn number_of(session: [u8; SESSION_ID_BYTES], preamble: [u8; PREAMBLE_BYTES]) -> Option<u16> {
    let number = u16::from_be_bytes([preamble[20], preamble[21]]);
    (preamble == self::preamble(session, number)).then_some(number)
}

/// Passes everything on in both directions, until both have ended or one fails. `is_sent` is called
/// when QEMU of this side has ended its direction, and all of it was sent.
pub(super) fn run(
    shared: &Arc<Shared>,
    number: u16,
    (qemu, wire): (&Arc<UnixStream>, &Arc<TcpStream>),
    (sealer, opener): (Sealer, Opener),
    sends: Direction,
    is_sent: impl FnOnce(),
) -> Result<(), MigrateError> {
    let hears = match sends {
        Direction::ToTarget => Direction::ToSource,
        Direction::ToSource => Direction::ToTarget,
    };
    thread::scope(|scope| {
        spawn(scope, &format!("migrate-{number}-in"), || {
            let passed = receive(shared, qemu, wire, opener, hears);
            passed.unwrap_or_else(|error| stop(shared, number, error));
        })?;
        match send(shared, qemu, wire, sealer, sends) {
            Ok(()) => is_sent(),
            Err(error) => stop(shared, number, error),
        }
        Ok(())
    })
}

fn send(
    shared: &Shared,
    qemu: &UnixStream,
    wire: &TcpStream,
    sealer: Sealer,
    direction: Direction,
) -> Result<(), PumpError> {
    let mut outbound = Outbound::new(sealer)?;
    // The limit is the source's to keep, of what it sends.
    let admit = |bytes| direction == Direction::ToSource || shared.pace(bytes);
    loop {
        match outbound.pass(qemu, wire, admit)? {
            0 => break,
            count => shared.passed(direction, count),
        }
    }
    shut(wire.shutdown(Shutdown::Write)).map_err(PumpError::Wire)
}

fn receive(
    shared: &Shared,
    qemu: &UnixStream,
    wire: &TcpStream,
    opener: Opener,
    direction: Direction,
) -> Result<(), PumpError> {
    let mut inbound = Inbound::new(opener)?;
    while !inbound.has_ended() {
        let count = inbound.pass(wire, qemu)?;
        shared.passed(direction, count);
    }
    // An end for QEMU.
    shut(qemu.shutdown(Shutdown::Write)).map_err(PumpError::Qemu)
}

/// A peer that has closed its end already needs no other end.
fn shut(shut: io::Result<()>) -> io::Result<()> {
    match shut {
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
        other => other,
    }
}

/// Ends the migration because a direction has stopped.
fn stop(shared: &Shared, channel: u16, error: PumpError) {
    match error {
        PumpError::Qemu(error) => shared.fail(MigrateError::Qemu { channel, error }),
        PumpError::Wire(error) => shared.broke_off(MigrateError::Wire { channel, error }),
        PumpError::Record(error @ RecordError::CutOff) => {
            shared.broke_off(MigrateError::Record { channel, error });
        }
        PumpError::Record(error) => shared.fail(MigrateError::Record { channel, error }),
        PumpError::Crypto(error) => shared.fail(error.into()),
        PumpError::NoMemory => shared.fail(MigrateError::Resources(io::ErrorKind::OutOfMemory.into())),
    }
}
