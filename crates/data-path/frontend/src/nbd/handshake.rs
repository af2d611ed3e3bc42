//! Negotiation: from the first byte of a connection until transmission starts.
//!
//! Pure: bytes go in, bytes and a [`Step`] come out. Only fixed newstyle is supported. If TLS is
//! required, only STARTTLS and ABORT are answered before it; every other option is refused whatever
//! its data, so that an unauthenticated client learns nothing, not even whether an export exists.

use strongroom_io::Limits;
use thiserror::Error;

use super::export::{Export, Geometry};
use super::option::{ClientOption, ContextQuery, InfoQuery, OptionHeader, TAKES_NO_DATA};
use super::protocol::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, INIT_PASSWORD, OPTION_BYTES_MAX, OPTION_MAGIC,
    OPTION_REPLY_MAGIC, OPTIONS_MAX, handshake_flag, info, option, option_reply,
};

/// The security of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// A unix socket: every user with access to the socket may use it, and STARTTLS is refused.
    Local,
    /// TLS is required before any other option is answered.
    TlsRequired,
    /// TLS is established, and the client is authorized.
    Tls,
}

/// The next step of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Receive more.
    More,
    /// Send the output, and continue under TLS.
    StartTls,
    /// The client chose the export: [`Handshake::accept`] or [`Handshake::refuse`] answers.
    Chosen,
    /// Send the output, and close.
    Close(CloseReason),
}

/// The reasons why a negotiation ends without transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CloseReason {
    /// The client aborted it.
    #[error("the client ended the negotiation")]
    Aborted,
    /// An oldstyle or plain newstyle client.
    #[error("the client does not speak the fixed newstyle protocol")]
    NotFixedNewstyle,
    /// Flags that this server did not offer.
    #[error("the client set flags that were not offered: {0:#x}")]
    UnknownFlags(u32),
    /// The client violated the protocol.
    #[error("the client sent something that is no option")]
    BadMagic,
    /// More options than any client needs.
    #[error("the client sent more than {OPTIONS_MAX} options")]
    TooManyOptions,
    /// EXPORT_NAME, which has no error reply, for an export that does not exist or is not yet
    /// allowed.
    #[error("the client chose an export that it cannot have, by an option that knows no error reply")]
    Unanswerable,
}

/// The result of the negotiation: how transmission works on this connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The export as the client knows it.
    pub geometry: Geometry,
    /// Whether replies are structured.
    pub structured_replies: bool,
    /// Whether the client may ask for block status.
    pub allocation_context: bool,
}

/// The state of a negotiation.
#[derive(Debug)]
pub struct Handshake {
    export: Export,
    security: Security,
    phase: Phase,
    shutting_down: bool,
    no_zeroes: bool,
    structured_replies: bool,
    allocation_context: bool,
    options: u32,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    ClientFlags,
    Option,
    /// Data that is skipped; after it the negotiation goes on, or ends.
    Skip {
        left: u32,
        then: Option<CloseReason>,
    },
    Chosen(Choice),
}

#[derive(Clone, Copy, Debug)]
enum Choice {
    ExportName,
    Go(Wanted),
}

impl Handshake {
    /// Begins the negotiation of a new connection, and appends the server's first bytes to
    /// `output`.
    pub fn new(export: Export, security: Security, output: &mut Vec<u8>) -> Self {
        output.extend(INIT_PASSWORD.to_be_bytes());
        output.extend(OPTION_MAGIC.to_be_bytes());
        output.extend((handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_be_bytes());
        Self {
            export,
            security,
            phase: Phase::ClientFlags,
            shutting_down: false,
            no_zeroes: false,
            structured_replies: false,
            allocation_context: false,
            options: 0,
        }
    }

    /// From now on every option is answered with ERR_SHUTDOWN.
    pub fn shut_down(&mut self) {
        self.shutting_down = true;
    }

    /// Notes that TLS is established and the client is authorized. Earlier results of the
    /// negotiation are dropped.
    pub fn secured(&mut self) {
        self.security = Security::Tls;
        self.structured_replies = false;
        self.allocation_context = false;
    }

    /// Parses `input`, and appends the replies to `output`. Returns how many bytes were taken, and
    /// the next step. `input` must be able to grow to [`OPTION_BYTES_MAX`] plus an option's header.
    pub fn advance(&mut self, input: &[u8], limits: &Limits, output: &mut Vec<u8>) -> (usize, Step) {
        let mut taken = 0;
        loop {
            let rest = &input[taken..];
            let (used, step) = match self.phase {
                Phase::ClientFlags => self.client_flags(rest),
                Phase::Option => self.option(rest, limits, output),
                Phase::Skip { left, then } => self.skip(left, then, rest),
                Phase::Chosen(_) => (0, Some(Step::Chosen)),
            };
            taken += used;
            if let Some(step) = step {
                return (taken, step);
            }
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Option<Step>) {
        let Some(bytes) = input.first_chunk() else {
            return (0, Some(Step::More));
        };
        let flags = u32::from_be_bytes(*bytes);
        let known = u32::from(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
        let close = if flags & !known != 0 {
            Some(CloseReason::UnknownFlags(flags & !known))
        } else if flags & u32::from(handshake_flag::FIXED_NEWSTYLE) == 0 {
            Some(CloseReason::NotFixedNewstyle)
        } else {
            None
        };
        self.no_zeroes = flags & u32::from(handshake_flag::NO_ZEROES) != 0;
        self.phase = Phase::Option;
        (bytes.len(), close.map(Step::Close))
    }

    fn skip(&mut self, left: u32, then: Option<CloseReason>, input: &[u8]) -> (usize, Option<Step>) {
        let skipped = input.len().min(left as usize);
        let left = left - skipped as u32;
        if left > 0 {
            self.phase = Phase::Skip { left, then };
            return (skipped, Some(Step::More));
        }
        self.phase = Phase::Option;
        (skipped, then.map(Step::Close))
    }

    fn option(&mut self, input: &[u8], limits: &Limits, output: &mut Vec<u8>) -> (usize, Option<Step>) {
        let Some((header, rest)) = input.split_first_chunk() else {
            return (0, Some(Step::More));
        };
        let Some(header) = OptionHeader::parse(header) else {
            return (0, Some(Step::Close(CloseReason::BadMagic)));
        };
        let refusal = self.refusal(header);
        if refusal.is_none() && rest.len() < header.length as usize {
            return (0, Some(Step::More));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return (0, Some(Step::Close(CloseReason::TooManyOptions)));
        }
        if header.number == option::SET_META_CONTEXT {
            // The earlier choice is replaced even if this option fails: the protocol requires that.
            self.allocation_context = false;
        }
        let mut reply = OptionReply { number: header.number, output };
        if header.number == option::ABORT {
            // Its data is ignored, however long it is.
            reply.ack();
            self.phase = Phase::Skip { left: header.length, then: Some(CloseReason::Aborted) };
            return (OptionHeader::BYTES, None);
        }
        if let Some((kind, text)) = refusal {
            if header.number == option::EXPORT_NAME {
                return (0, Some(Step::Close(CloseReason::Unanswerable)));
            }
            reply.error(kind, text);
            self.phase = Phase::Skip { left: header.length, then: None };
            return (OptionHeader::BYTES, None);
        }
        let data = &rest[..header.length as usize];
        let step = match ClientOption::parse(header.number, data) {
            Ok(option) => self.answer(option, limits, &mut reply),
            Err(_) if header.number == option::EXPORT_NAME => Some(Step::Close(CloseReason::Unanswerable)),
            Err(error) => {
                reply.error(option_reply::ERR_INVALID, error.0);
                None
            }
        };
        (OptionHeader::BYTES + data.len(), step)
    }

    /// The reason why an option other than ABORT is refused before its data is parsed.
    fn refusal(&self, header: OptionHeader) -> Option<(u32, &'static str)> {
        if self.security == Security::TlsRequired && header.number != option::START_TLS {
            Some((option_reply::ERR_TLS_REQD, "this server speaks only under TLS"))
        } else if self.shutting_down {
            Some((option_reply::ERR_SHUTDOWN, "this server is shutting down"))
        } else if header.length as usize > OPTION_BYTES_MAX {
            Some(match header.number {
                option::LIST | option::START_TLS | option::STRUCTURED_REPLY => {
                    (option_reply::ERR_INVALID, TAKES_NO_DATA.0)
                }
                option::EXPORT_NAME
                | option::INFO
                | option::GO
                | option::LIST_META_CONTEXT
                | option::SET_META_CONTEXT => (option_reply::ERR_TOO_BIG, "this option is too long"),
                _ => UNKNOWN_OPTION,
            })
        } else {
            None
        }
    }

    fn answer(
        &mut self,
        option: ClientOption<'_>,
        limits: &Limits,
        reply: &mut OptionReply<'_>,
    ) -> Option<Step> {
        match option {
            ClientOption::StartTls => match self.security {
                Security::TlsRequired => {
                    reply.ack();
                    return Some(Step::StartTls);
                }
                Security::Tls => reply.error(option_reply::ERR_INVALID, "TLS is established already"),
                Security::Local => reply.error(option_reply::ERR_POLICY, "this socket has no TLS"),
            },
            ClientOption::ExportName(name) if self.export.is_called(name) => {
                self.phase = Phase::Chosen(Choice::ExportName);
            }
            ClientOption::ExportName(_) => return Some(Step::Close(CloseReason::Unanswerable)),
            ClientOption::List => {
                let name = self.export.name.as_bytes();
                let length = (name.len() as u32).to_be_bytes();
                reply.send(option_reply::SERVER, &[&length, name, self.export.description.as_bytes()]);
                reply.ack();
            }
            ClientOption::Info(query) if self.export.is_called(query.name) => {
                self.describe(&Geometry::new(limits), Wanted::by(&query), reply);
                reply.ack();
            }
            ClientOption::Go(query) if self.export.is_called(query.name) => {
                self.phase = Phase::Chosen(Choice::Go(Wanted::by(&query)));
            }
            ClientOption::Info(_) | ClientOption::Go(_) => reply.unknown_export(),
            ClientOption::StructuredReply => {
                self.structured_replies = true;
                reply.ack();
            }
            ClientOption::ListMetaContext(query) => self.list_contexts(&query, reply),
            ClientOption::SetMetaContext(query) => self.set_contexts(&query, reply),
            ClientOption::Unknown => reply.error(UNKNOWN_OPTION.0, UNKNOWN_OPTION.1),
        }
        None
    }

    fn list_contexts(&self, query: &ContextQuery<'_>, reply: &mut OptionReply<'_>) {
        if !self.structured_replies {
            return reply.error(option_reply::ERR_INVALID, NEEDS_STRUCTURED_REPLIES);
        }
        if !self.export.is_called(query.name) {
            return reply.unknown_export();
        }
        let matches = |text: &[u8]| text == b"base:" || text == ALLOCATION_CONTEXT.as_bytes();
        if query.count == 0 || query.queries().any(matches) {
            reply.context(0);
        }
        reply.ack();
    }

    fn set_contexts(&mut self, query: &ContextQuery<'_>, reply: &mut OptionReply<'_>) {
        if !self.structured_replies {
            return reply.error(option_reply::ERR_INVALID, NEEDS_STRUCTURED_REPLIES);
        }
        if !self.export.is_called(query.name) {
            return reply.unknown_export();
        }
        if query.queries().any(|text| text == ALLOCATION_CONTEXT.as_bytes()) {
            self.allocation_context = true;
            reply.context(ALLOCATION_CONTEXT_ID);
        }
        reply.ack();
    }

    /// The information that INFO and GO give before their ACK.
    fn describe(&self, geometry: &Geometry, wanted: Wanted, reply: &mut OptionReply<'_>) {
        let flags = geometry.transmission_flags(self.structured_replies);
        reply.info(info::EXPORT, &[&geometry.size_bytes.to_be_bytes(), &flags.to_be_bytes()]);
        reply.info(
            info::BLOCK_SIZE,
            &[
                &geometry.block_bytes.to_be_bytes(),
                &geometry.preferred_bytes.to_be_bytes(),
                &geometry.payload_bytes_max().to_be_bytes(),
            ],
        );
        if wanted.name {
            reply.info(info::NAME, &[self.export.name.as_bytes()]);
        }
        if wanted.description && !self.export.description.is_empty() {
            reply.info(info::DESCRIPTION, &[self.export.description.as_bytes()]);
        }
    }

    /// After [`Step::Chosen`]: lets the client into transmission on a disk with these limits.
    pub fn accept(&mut self, limits: &Limits, output: &mut Vec<u8>) -> Agreement {
        let geometry = Geometry::new(limits);
        match self.phase {
            Phase::Chosen(Choice::Go(wanted)) => {
                let mut reply = OptionReply { number: option::GO, output };
                self.describe(&geometry, wanted, &mut reply);
                reply.ack();
            }
            // Of the other phases only EXPORT_NAME's is reached; its answer has its own format.
            _ => {
                output.extend(geometry.size_bytes.to_be_bytes());
                output.extend(geometry.transmission_flags(self.structured_replies).to_be_bytes());
                if !self.no_zeroes {
                    output.extend([0; 124]);
                }
            }
        }
        Agreement {
            geometry,
            structured_replies: self.structured_replies,
            allocation_context: self.allocation_context,
        }
    }

    /// After [`Step::Chosen`]: refuses the export, which is not available now. The client may
    /// negotiate further, or must be cut off.
    pub fn refuse(&mut self, output: &mut Vec<u8>) -> Step {
        let chosen = std::mem::replace(&mut self.phase, Phase::Option);
        if !matches!(chosen, Phase::Chosen(Choice::Go { .. })) {
            return Step::Close(CloseReason::Unanswerable);
        }
        let mut reply = OptionReply { number: option::GO, output };
        if self.shutting_down {
            reply.error(option_reply::ERR_SHUTDOWN, "this server is shutting down");
        } else {
            reply.error(option_reply::ERR_UNKNOWN, "the export cannot be opened now");
        }
        Step::More
    }
}

const UNKNOWN_OPTION: (u32, &str) = (option_reply::ERR_UNSUP, "this option is not supported");
const NEEDS_STRUCTURED_REPLIES: &str = "negotiate structured replies first";

/// The export information that a client requested, beyond what every client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    name: bool,
    description: bool,
}

impl Wanted {
    fn by(query: &InfoQuery<'_>) -> Self {
        Self { name: query.wants_name, description: query.wants_description }
    }
}

/// Writes replies to one option.
struct OptionReply<'a> {
    number: u32,
    output: &'a mut Vec<u8>,
}

impl OptionReply<'_> {
    fn send(&mut self, kind: u32, data: &[&[u8]]) {
        let length: usize = data.iter().map(|part| part.len()).sum();
        self.output.extend(OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend(self.number.to_be_bytes());
        self.output.extend(kind.to_be_bytes());
        self.output.extend((length as u32).to_be_bytes());
        data.iter().for_each(|part| self.output.extend(*part));
    }

    fn ack(&mut self) {
        self.send(option_reply::ACK, &[]);
    }

    fn error(&mut self, kind: u32, text: &str) {
        self.send(kind, &[text.as_bytes()]);
    }

    fn unknown_export(&mut self) {
        self.error(option_reply::ERR_UNKNOWN, "there is no such export");
    }

    fn info(&mut self, kind: u16, data: &[&[u8]]) {
        let kind = kind.to_be_bytes();
        let all: Vec<&[u8]> = std::iter::once(&kind[..]).chain(data.iter().copied()).collect();
        self.send(option_reply::INFO, &all);
    }

    fn context(&mut self, id: u32) {
        self.send(option_reply::META_CONTEXT, &[&id.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()]);
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
