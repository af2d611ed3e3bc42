//! The packets of a monitor, in a form that the process that holds keys can decode without a JSON
//! parser.
//!
//! ```text
//! packet     kind: 1 byte, then             1 hello    version: 4 bytes major, 4 bytes minor
//!                                           2 answer   id: 8 bytes, outcome
//!                                           3 event    kind: 1 byte, then what belongs to it
//!                                           4 over     text
//! outcome    kind: 1 byte, then what belongs to it, in the order of `Answer`, from 0x80 on of `QmpError`
//! text       length: 2 bytes, at most TEXT_BYTES_MAX, then so many printable bytes of ASCII (0x20 to 0x7e)
//! ```
//!
//! Numbers are little-endian; yes is 1, no is 0. A packet ends with its content: one with more,
//! less, or different bytes is [`Nonsense`]. Both ends are the same program, so there is no
//! version.

use std::fmt::Write;

use thiserror::Error;
use uuid::Uuid;

use crate::qmp::{
    ANSWERS_WITHIN, MigrationPhase, MigrationProgress, PowerEvent, QmpError, Refusal, RunStatus, Transfer,
};
use crate::version::Version;

/// The longest text: a sentence. Longer texts of QEMU's are cut.
const TEXT_BYTES_MAX: usize = 512;
/// The longest packet: three texts, and their headers.
pub(crate) const SAID_BYTES_MAX: usize = 2048;
const _: () = assert!(3 * (2 + TEXT_BYTES_MAX) + 16 <= SAID_BYTES_MAX, "all that is said fits");

/// A packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// QEMU was greeted.
    Hello(Version),
    /// The answer to the request with this number.
    Answer { id: u64, outcome: Outcome },
    /// An event.
    Event(PowerEvent),
    /// QEMU's connection has ended, and this is the monitor's last packet.
    Over(String),
}

/// The outcome of a request.
pub(crate) type Outcome = Result<Answer, QmpError>;

/// The answer to a successful request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Status(RunStatus),
    Transfer(Transfer),
    Migration(MigrationProgress),
    GenerationId(Option<Uuid>),
    YesOrNo(bool),
    Count(u64),
}

/// The error for a packet that no monitor sends.
#[derive(Debug, PartialEq, Eq, Error)]
#[error("the monitor says what none says: {0}")]
pub(crate) struct Nonsense(pub &'static str);

mod kind {
    pub const HELLO: u8 = 1;
    pub const ANSWER: u8 = 2;
    pub const EVENT: u8 = 3;
    pub const OVER: u8 = 4;
}

mod outcome {
    pub const DONE: u8 = 0;
    pub const STATUS: u8 = 1;
    pub const TRANSFER: u8 = 2;
    pub const GENERATION_ID: u8 = 3;
    pub const YES_OR_NO: u8 = 4;
    pub const COUNT: u8 = 5;
    pub const MIGRATION: u8 = 6;
    pub const REFUSED: u8 = 0x80;
    pub const UNREADABLE: u8 = 0x81;
    pub const SILENT: u8 = 0x82;
    pub const NO_PORT: u8 = 0x83;
    pub const OVER: u8 = 0x84;
}

mod transfer {
    pub const UNDER_WAY: u8 = 0;
    pub const COMPLETED: u8 = 1;
    pub const FAILED: u8 = 2;
    pub const ABOUT_TO_SWITCH: u8 = 3;
}

mod event {
    pub const RESUMED: u8 = 1;
    pub const STOPPED: u8 = 2;
    pub const SHUTDOWN: u8 = 3;
    pub const RESET: u8 = 4;
    pub const POWER_DOWN_REQUESTED: u8 = 5;
    pub const PANICKED: u8 = 6;
    pub const IO_ERROR: u8 = 7;
    pub const DEVICE_DELETED: u8 = 8;
    pub const NETWORK_LOST: u8 = 9;
    pub const DUMPED: u8 = 10;
    pub const MISSED: u8 = 11;
}

impl Said {
    /// Encodes the packet; `None` for an event that no one waits for.
    pub fn encode(&self) -> Option<Vec<u8>> {
        let mut packet = Packet::default();
        match self {
            Self::Hello(version) => {
                packet.byte(kind::HELLO);
                packet.0.extend(version.major.to_le_bytes());
                packet.0.extend(version.minor.to_le_bytes());
            }
            Self::Answer { id, outcome } => {
                packet.byte(kind::ANSWER);
                packet.0.extend(id.to_le_bytes());
                packet.outcome(outcome);
            }
            Self::Event(PowerEvent::Other { .. }) => return None,
            Self::Event(event) => {
                packet.byte(kind::EVENT);
                packet.event(event);
            }
            Self::Over(reason) => {
                packet.byte(kind::OVER);
                packet.text(reason);
            }
        }
        Some(packet.0)
    }

    /// Decodes a packet.
    pub fn decode(packet: &[u8]) -> Result<Self, Nonsense> {
        let mut fields = Fields(packet);
        let said = match fields.byte()? {
            kind::HELLO => {
                let (major, minor) =
                    (u32::from_le_bytes(fields.array()?), u32::from_le_bytes(fields.array()?));
                Self::Hello(Version { major, minor })
            }
            kind::ANSWER => {
                Self::Answer { id: u64::from_le_bytes(fields.array()?), outcome: fields.outcome()? }
            }
            kind::EVENT => Self::Event(fields.event()?),
            kind::OVER => Self::Over(fields.text()?),
            _ => return Err(Nonsense("a packet of no known kind")),
        };
        if fields.0.is_empty() { Ok(said) } else { Err(Nonsense("a packet with more than it should have")) }
    }
}

/// A packet under construction.
#[derive(Default)]
struct Packet(Vec<u8>);

impl Packet {
    fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    fn yes_or_no(&mut self, answer: bool) {
        self.byte(answer.into());
    }

    /// Escapes unprintable characters, and cuts a text that is too long.
    fn text(&mut self, text: &str) {
        let mut shown = String::new();
        for character in text.chars().take(TEXT_BYTES_MAX) {
            match character {
                ' '..='~' => shown.push(character),
                other => drop(write!(shown, "{}", other.escape_default())),
            }
        }
        // It is ASCII by now, so any length is a character boundary.
        shown.truncate(TEXT_BYTES_MAX);
        let length = u16::try_from(shown.len()).unwrap_or_default();
        self.0.extend(length.to_le_bytes());
        self.0.extend(shown.as_bytes());
    }

    fn outcome(&mut self, outcome: &Outcome) {
        match outcome {
            Ok(Answer::Done) => self.byte(outcome::DONE),
            Ok(Answer::Status(status)) => {
                self.byte(outcome::STATUS);
                self.yes_or_no(status.running);
                self.text(&status.word);
            }
            Ok(Answer::Transfer(transfer)) => {
                self.byte(outcome::TRANSFER);
                match transfer {
                    Transfer::UnderWay => self.byte(transfer::UNDER_WAY),
                    Transfer::Completed => self.byte(transfer::COMPLETED),
                    Transfer::Failed(why) => {
                        self.byte(transfer::FAILED);
                        self.text(why);
                    }
                }
            }
            Ok(Answer::Migration(progress)) => {
                self.byte(outcome::MIGRATION);
                self.migration(progress);
            }
            Ok(Answer::GenerationId(id)) => {
                self.byte(outcome::GENERATION_ID);
                self.yes_or_no(id.is_some());
                self.0.extend(id.iter().flat_map(Uuid::as_bytes));
            }
            Ok(Answer::YesOrNo(answer)) => {
                self.byte(outcome::YES_OR_NO);
                self.yes_or_no(*answer);
            }
            Ok(Answer::Count(count)) => {
                self.byte(outcome::COUNT);
                self.0.extend(count.to_le_bytes());
            }
            Err(error) => self.error(error),
        }
    }

    fn migration(&mut self, progress: &MigrationProgress) {
        let MigrationProgress {
            phase,
            sent_bytes,
            remaining_bytes,
            total_bytes,
            bytes_per_second,
            dirty_bytes_per_second,
            rounds,
            slowed_percent,
        } = progress;
        for number in [
            sent_bytes,
            remaining_bytes,
            total_bytes,
            bytes_per_second,
            dirty_bytes_per_second,
            rounds,
            slowed_percent,
        ] {
            self.0.extend(number.to_le_bytes());
        }
        match phase {
            MigrationPhase::UnderWay => self.byte(transfer::UNDER_WAY),
            MigrationPhase::AboutToSwitch => self.byte(transfer::ABOUT_TO_SWITCH),
            MigrationPhase::Completed => self.byte(transfer::COMPLETED),
            MigrationPhase::Failed(why) => {
                self.byte(transfer::FAILED);
                self.text(why);
            }
        }
    }

    fn error(&mut self, error: &QmpError) {
        match error {
            QmpError::Refused { command, refusal } => {
                self.byte(outcome::REFUSED);
                [command, &refusal.class, &refusal.desc].into_iter().for_each(|text| self.text(text));
            }
            QmpError::Answer { command, reason } => {
                self.byte(outcome::UNREADABLE);
                [command, reason].into_iter().for_each(|text| self.text(text));
            }
            QmpError::Silent { command, .. } => {
                self.byte(outcome::SILENT);
                self.text(command);
            }
            QmpError::NoPort => self.byte(outcome::NO_PORT),
            // A monitor never connects, so this error is reported as the end.
            QmpError::Over(reason) | QmpError::Connect { reason, .. } => {
                self.byte(outcome::OVER);
                self.text(reason);
            }
        }
    }

    fn event(&mut self, event: &PowerEvent) {
        match event {
            PowerEvent::Resumed => self.byte(event::RESUMED),
            PowerEvent::Stopped => self.byte(event::STOPPED),
            PowerEvent::Shutdown { guest, reason } => {
                self.byte(event::SHUTDOWN);
                self.yes_or_no(*guest);
                self.text(reason);
            }
            PowerEvent::Reset { guest } => {
                self.byte(event::RESET);
                self.yes_or_no(*guest);
            }
            PowerEvent::PowerDownRequested => self.byte(event::POWER_DOWN_REQUESTED),
            PowerEvent::Panicked => self.byte(event::PANICKED),
            PowerEvent::IoError { device, stopped } => {
                self.byte(event::IO_ERROR);
                self.yes_or_no(*stopped);
                self.text(device);
            }
            PowerEvent::DeviceDeleted { device } => {
                self.byte(event::DEVICE_DELETED);
                self.text(device);
            }
            PowerEvent::NetworkLost { network } => {
                self.byte(event::NETWORK_LOST);
                self.text(network);
            }
            PowerEvent::Dumped { error } => {
                self.byte(event::DUMPED);
                self.yes_or_no(error.is_some());
                error.iter().for_each(|error| self.text(error));
            }
            PowerEvent::Missed | PowerEvent::Other { .. } => self.byte(event::MISSED),
        }
    }
}

/// The unread part of a packet.
struct Fields<'packet>(&'packet [u8]);

impl Fields<'_> {
    fn take(&mut self, count: usize) -> Result<&[u8], Nonsense> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Nonsense("a packet that ends too early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT], Nonsense> {
        let mut array = [0; COUNT];
        array.copy_from_slice(self.take(COUNT)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, Nonsense> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn yes_or_no(&mut self) -> Result<bool, Nonsense> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Nonsense("neither yes nor no")),
        }
    }

    fn text(&mut self) -> Result<String, Nonsense> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > TEXT_BYTES_MAX {
            return Err(Nonsense("a text that is too long"));
        }
        let bytes = self.take(length)?;
        if !bytes.iter().all(|byte| (b' '..=b'~').contains(byte)) {
            return Err(Nonsense("a text that cannot be shown"));
        }
        String::from_utf8(bytes.to_vec()).map_err(|_| Nonsense("a text that is none"))
    }

    fn outcome(&mut self) -> Result<Outcome, Nonsense> {
        Ok(Ok(match self.byte()? {
            outcome::DONE => Answer::Done,
            outcome::STATUS => Answer::Status(RunStatus { running: self.yes_or_no()?, word: self.text()? }),
            outcome::TRANSFER => Answer::Transfer(match self.byte()? {
                transfer::UNDER_WAY => Transfer::UnderWay,
                transfer::COMPLETED => Transfer::Completed,
                transfer::FAILED => Transfer::Failed(self.text()?),
                _ => return Err(Nonsense("a transfer that is no way")),
            }),
            outcome::GENERATION_ID => Answer::GenerationId(match self.yes_or_no()? {
                true => Some(Uuid::from_bytes(self.array()?)),
                false => None,
            }),
            outcome::YES_OR_NO => Answer::YesOrNo(self.yes_or_no()?),
            outcome::COUNT => Answer::Count(self.number()?),
            outcome::MIGRATION => Answer::Migration(self.migration()?),
            other => return self.error(other).map(Err),
        }))
    }

    fn number(&mut self) -> Result<u64, Nonsense> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn migration(&mut self) -> Result<MigrationProgress, Nonsense> {
        Ok(MigrationProgress {
            sent_bytes: self.number()?,
            remaining_bytes: self.number()?,
            total_bytes: self.number()?,
            bytes_per_second: self.number()?,
            dirty_bytes_per_second: self.number()?,
            rounds: self.number()?,
            slowed_percent: self.number()?,
            phase: match self.byte()? {
                transfer::UNDER_WAY => MigrationPhase::UnderWay,
                transfer::ABOUT_TO_SWITCH => MigrationPhase::AboutToSwitch,
                transfer::COMPLETED => MigrationPhase::Completed,
                transfer::FAILED => MigrationPhase::Failed(self.text()?),
                _ => return Err(Nonsense("a migration in no known phase")),
            },
        })
    }

    fn error(&mut self, kind: u8) -> Result<QmpError, Nonsense> {
        Ok(match kind {
            outcome::REFUSED => {
                let command = self.text()?;
                QmpError::Refused { command, refusal: Refusal { class: self.text()?, desc: self.text()? } }
            }
            outcome::UNREADABLE => QmpError::Answer { command: self.text()?, reason: self.text()? },
            outcome::SILENT => QmpError::Silent { command: self.text()?, within: ANSWERS_WITHIN },
            outcome::NO_PORT => QmpError::NoPort,
            outcome::OVER => QmpError::Over(self.text()?),
            _ => return Err(Nonsense("an answer of no known kind")),
        })
    }

    fn event(&mut self) -> Result<PowerEvent, Nonsense> {
        Ok(match self.byte()? {
            event::RESUMED => PowerEvent::Resumed,
            event::STOPPED => PowerEvent::Stopped,
            event::SHUTDOWN => PowerEvent::Shutdown { guest: self.yes_or_no()?, reason: self.text()? },
            event::RESET => PowerEvent::Reset { guest: self.yes_or_no()? },
            event::POWER_DOWN_REQUESTED => PowerEvent::PowerDownRequested,
            event::PANICKED => PowerEvent::Panicked,
            event::IO_ERROR => PowerEvent::IoError { stopped: self.yes_or_no()?, device: self.text()? },
            event::DEVICE_DELETED => PowerEvent::DeviceDeleted { device: self.text()? },
            event::NETWORK_LOST => PowerEvent::NetworkLost { network: self.text()? },
            event::DUMPED => PowerEvent::Dumped {
                error: match self.yes_or_no()? {
                    true => Some(self.text()?),
                    false => None,
                },
            },
            event::MISSED => PowerEvent::Missed,
            _ => return Err(Nonsense("an event of no known kind")),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn migration(phase: MigrationPhase) -> MigrationProgress {
        MigrationProgress {
            phase,
            sent_bytes: 1,
            remaining_bytes: 2,
            total_bytes: 3,
            bytes_per_second: u64::MAX,
            dirty_bytes_per_second: 5,
            rounds: 6,
            slowed_percent: 7,
        }
    }

    /// One packet of each kind.
    fn all() -> Vec<Said> {
        let text = || "it says so".to_owned();
        let refusal =
            Refusal { class: "GenericError".to_owned(), desc: "Device 'disk0' is \"not\" there".to_owned() };
        let outcomes = [
            Ok(Answer::Done),
            Ok(Answer::Status(RunStatus { running: true, word: "running".to_owned() })),
            Ok(Answer::Transfer(Transfer::UnderWay)),
            Ok(Answer::Transfer(Transfer::Completed)),
            Ok(Answer::Transfer(Transfer::Failed(text()))),
            Ok(Answer::GenerationId(None)),
            Ok(Answer::GenerationId(Some(Uuid::from_bytes([7; 16])))),
            Ok(Answer::YesOrNo(true)),
            Ok(Answer::Count(u64::MAX - 2)),
            Ok(Answer::Migration(migration(MigrationPhase::UnderWay))),
            Ok(Answer::Migration(migration(MigrationPhase::AboutToSwitch))),
            Ok(Answer::Migration(migration(MigrationPhase::Completed))),
            Ok(Answer::Migration(migration(MigrationPhase::Failed(text())))),
            Err(QmpError::Refused { command: text(), refusal }),
            Err(QmpError::Answer { command: text(), reason: text() }),
            Err(QmpError::Silent { command: text(), within: ANSWERS_WITHIN }),
            Err(QmpError::NoPort),
            Err(QmpError::Over(text())),
        ];
        let events = [
            PowerEvent::Resumed,
            PowerEvent::Stopped,
            PowerEvent::Shutdown { guest: true, reason: text() },
            PowerEvent::Reset { guest: false },
            PowerEvent::PowerDownRequested,
            PowerEvent::Panicked,
            PowerEvent::IoError { device: text(), stopped: true },
            PowerEvent::DeviceDeleted { device: text() },
            PowerEvent::NetworkLost { network: text() },
            PowerEvent::Dumped { error: None },
            PowerEvent::Dumped { error: Some(text()) },
            PowerEvent::Missed,
        ];
        let answers = outcomes.into_iter().map(|outcome| Said::Answer { id: u64::MAX - 1, outcome });
        let others = [Said::Hello(Version { major: 7, minor: 2 }), Said::Over(String::new())];
        answers.chain(events.into_iter().map(Said::Event)).chain(others).collect()
    }

    #[test]
    fn what_is_said_is_heard_and_less_or_more_is_nonsense() {
        for said in all() {
            let packet = said.encode().unwrap();
            assert!(packet.len() <= SAID_BYTES_MAX);
            assert_eq!(Said::decode(&packet), Ok(said.clone()));
            for length in 0..packet.len() {
                assert!(Said::decode(&packet[..length]).is_err(), "{said:?} in {length} bytes");
            }
            assert!(Said::decode(&[&packet[..], &[0]].concat()).is_err(), "{said:?} and a byte");
        }
        assert_eq!(Said::Event(PowerEvent::Other { name: "NEW".to_owned() }).encode(), None);
    }

    #[test]
    fn a_text_is_cut_and_shown_whatever_it_is() {
        let said = |text: &str| match Said::decode(&Said::Over(text.to_owned()).encode().unwrap()) {
            Ok(Said::Over(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(said("a\u{1b}[2J\n\u{202e}é\0"), "a\\u{1b}[2J\\n\\u{202e}\\u{e9}\\u{0}");
        assert_eq!(said(&"\u{10ffff}".repeat(1 << 20)).len(), TEXT_BYTES_MAX);
        // A packet that the encoder did not make is refused.
        for text in [&b"\x1b"[..], b"\x7f", b"\n", "é".as_bytes(), b"\0"] {
            let length = u16::try_from(text.len()).unwrap().to_le_bytes();
            assert!(Said::decode(&[&[kind::OVER][..], &length, text].concat()).is_err(), "{text:?}");
        }
        let long = [&[kind::OVER][..], &513_u16.to_le_bytes(), &[b'x'; 513]].concat();
        assert_eq!(Said::decode(&long), Err(Nonsense("a text that is too long")));
    }

    /// The memory that a packet's texts take, in bytes.
    fn text_bytes(said: &Said) -> usize {
        let refusal = |refusal: &Refusal| refusal.class.capacity() + refusal.desc.capacity();
        match said {
            Said::Hello(_) => 0,
            Said::Over(text) | Said::Answer { outcome: Err(QmpError::Over(text)), .. } => text.capacity(),
            Said::Answer { outcome, .. } => match outcome {
                Ok(Answer::Status(status)) => status.word.capacity(),
                Ok(Answer::Transfer(Transfer::Failed(why))) => why.capacity(),
                Ok(Answer::Migration(MigrationProgress { phase: MigrationPhase::Failed(why), .. })) => {
                    why.capacity()
                }
                Ok(_) => 0,
                Err(QmpError::Refused { command, refusal: why }) => command.capacity() + refusal(why),
                Err(QmpError::Answer { command, reason }) => command.capacity() + reason.capacity(),
                Err(QmpError::Silent { command, .. }) => command.capacity(),
                Err(_) => 0,
            },
            Said::Event(event) => match event {
                PowerEvent::Shutdown { reason: text, .. }
                | PowerEvent::IoError { device: text, .. }
                | PowerEvent::DeviceDeleted { device: text }
                | PowerEvent::NetworkLost { network: text }
                | PowerEvent::Dumped { error: Some(text) } => text.capacity(),
                _ => 0,
            },
        }
    }

    /// Almost valid packets: a valid one with some bytes changed, and perhaps with extra bytes at
    /// the end.
    fn damaged() -> impl Strategy<Value = Vec<u8>> {
        let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
        let tail = prop::collection::vec(any::<u8>(), 0..64);
        (prop::sample::select(all()), changes, tail).prop_map(|(said, changes, tail)| {
            let mut packet = said.encode().unwrap_or_default();
            for (place, byte) in changes {
                let place = place.index(packet.len());
                packet[place] = byte;
            }
            packet.extend(tail);
            packet
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        #[test]
        fn no_bytes_panic_or_take_memory_beyond_the_limit(
            packet in prop_oneof![prop::collection::vec(any::<u8>(), 0..SAID_BYTES_MAX), damaged()],
        ) {
            if let Ok(said) = Said::decode(&packet) {
                prop_assert!(text_bytes(&said) <= packet.len().min(3 * TEXT_BYTES_MAX));
                // Each packet has a single encoding, so an accepted packet is one that the encoder
                // would make.
                prop_assert_eq!(said.encode().unwrap(), packet);
            }
        }
    }
}
