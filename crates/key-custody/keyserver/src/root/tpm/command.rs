//! Messages to and from a TPM (TPM 2.0 Library, Part 1, 18, and Part 3): big-endian fields, sized
//! buffers.

use zeroize::Zeroizing;

use super::error::TpmError;
use super::session::Session;
use super::transport::{HEADER_BYTES, Transport};
use super::{PcrSelection, TpmDevice};

/// Capacity for the longest command (Load, with two blobs), so that a buffer with a secret never
/// grows.
const COMMAND_BYTES_MAX: usize = 2048;
/// How often a command is resent on the TPM's request, which happens during self-tests or while it
/// frees memory.
const RETRIES_MAX: u32 = 16;

const TAG_NO_SESSIONS: u16 = 0x8001;
const TAG_SESSIONS: u16 = 0x8002;
const RC_YIELDED: u32 = 0x908;
const RC_TESTING: u32 = 0x90a;
const RC_RETRY: u32 = 0x922;
/// The session handle that stands for a password.
const PASSWORD_SESSION: u32 = 0x4000_0009;

/// A command's code and, for errors, its name.
#[derive(Clone, Copy)]
pub(super) struct Code {
    pub number: u32,
    pub name: &'static str,
}

/// A TPM entity: a handle, and the name that authenticates it (Part 1, 16).
#[derive(Clone, Debug)]
pub(super) struct Entity {
    pub handle: u32,
    pub name: Vec<u8>,
}

impl Entity {
    /// A hierarchy or session: its name is its handle.
    pub fn permanent(handle: u32) -> Self {
        Self { handle, name: handle.to_be_bytes().to_vec() }
    }
}

/// How the first handle of a command is authorised.
pub(super) enum Authorization<'a> {
    /// Not at all: the command needs none.
    None,
    /// By the empty password.
    EmptyPassword,
    /// By a session, which ends with the command. It encrypts the first parameter of the command
    /// or, if `false`, of the response.
    Session { session: &'a mut Session, encrypts_command: bool },
}

/// A response's content.
pub(super) struct Response {
    pub handle: Option<u32>,
    pub parameters: Zeroizing<Vec<u8>>,
}

/// A TPM, and the objects loaded into it, which are unloaded on drop.
pub(super) struct Tpm {
    transport: Transport,
    device: TpmDevice,
    loaded: Vec<u32>,
}

impl Tpm {
    pub fn open(device: &TpmDevice) -> Result<Self, TpmError> {
        let unreachable = |error| TpmError::Unreachable { device: device.clone(), error };
        let transport = Transport::open(device).map_err(unreachable)?;
        Ok(Self { transport, device: device.clone(), loaded: Vec::new() })
    }

    /// Marks `handle` for unloading.
    pub fn keep(&mut self, handle: u32) {
        self.loaded.push(handle);
    }

    /// Runs one command. `returns_handle` says whether its response has one. `pcrs` is only for
    /// error messages.
    pub fn run(
        &mut self,
        code: Code,
        entities: &[&Entity],
        authorization: Authorization<'_>,
        parameters: Writer,
        returns_handle: bool,
        pcrs: Option<&PcrSelection>,
    ) -> Result<Response, TpmError> {
        let mut parameters = parameters.into_bytes();
        let mut command = Writer::new();
        let has_sessions = !matches!(authorization, Authorization::None);
        command.u16(if has_sessions { TAG_SESSIONS } else { TAG_NO_SESSIONS });
        command.u32(0).u32(code.number);
        for entity in entities {
            command.u32(entity.handle);
        }
        let mut session = match authorization {
            Authorization::None => None,
            Authorization::EmptyPassword => {
                command.u32(9).u32(PASSWORD_SESSION).sized(&[]).u8(0).sized(&[]);
                None
            }
            Authorization::Session { session, encrypts_command } => {
                let area = session.authorize(code, entities, &mut parameters, encrypts_command)?;
                command.u32(area.len() as u32).bytes(&area);
                Some((session, encrypts_command))
            }
        };
        command.bytes(&parameters);
        let mut command = command.into_bytes();
        let length = command.len() as u32;
        command[2..6].copy_from_slice(&length.to_be_bytes());

        let response = self.transact(code, &command, pcrs)?;
        let mut reader = Reader::new(&response[HEADER_BYTES..], code.name);
        let handle = if returns_handle { Some(reader.u32()?) } else { None };
        let parameters = if has_sessions {
            let length = reader.u32()? as usize;
            let parameters = reader.take(length)?;
            let mut parameters = copy(parameters);
            if let Some((session, encrypts_command)) = &mut session {
                session.accept(code, &mut parameters, &mut reader, !*encrypts_command)?;
                // A command that succeeded has ended the session.
                let ended = session.handle();
                self.loaded.retain(|&handle| handle != ended);
            }
            parameters
        } else {
            copy(reader.rest())
        };
        Ok(Response { handle, parameters })
    }

    fn transact(
        &mut self,
        code: Code,
        command: &[u8],
        pcrs: Option<&PcrSelection>,
    ) -> Result<Zeroizing<Vec<u8>>, TpmError> {
        for _ in 0..RETRIES_MAX {
            let response = self
                .transport
                .transact(command)
                .map_err(|error| TpmError::Unreachable { device: self.device.clone(), error })?;
            let mut reader = Reader::new(&response, code.name);
            let tag = reader.u16()?;
            let _length = reader.u32()?;
            match reader.u32()? {
                0 if tag == TAG_SESSIONS || tag == TAG_NO_SESSIONS => return Ok(response),
                0 => return Err(TpmError::Protocol { command: code.name, why: "an unknown tag" }),
                RC_YIELDED | RC_TESTING | RC_RETRY => {}
                refusal => return Err(TpmError::of_code(code.name, refusal, pcrs)),
            }
        }
        Err(TpmError::Refused { command: code.name, code: RC_RETRY })
    }
}

impl Drop for Tpm {
    fn drop(&mut self) {
        const FLUSH_CONTEXT: Code = Code { number: 0x165, name: "TPM2_FlushContext" };
        for handle in std::mem::take(&mut self.loaded).into_iter().rev() {
            let mut parameters = Writer::new();
            parameters.u32(handle);
            // A TPM that cannot unload is unreachable, or has been reset, which unloads too.
            let _ = self.run(FLUSH_CONTEXT, &[], Authorization::None, parameters, false, None);
        }
    }
}

fn copy(bytes: &[u8]) -> Zeroizing<Vec<u8>> {
    Zeroizing::new(bytes.to_vec())
}

/// Writes fields. Has its final capacity from the start, and is wiped.
pub(super) struct Writer(Zeroizing<Vec<u8>>);

impl Writer {
    pub fn new() -> Self {
        Self(Zeroizing::new(Vec::with_capacity(COMMAND_BYTES_MAX)))
    }

    pub fn u8(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        debug_assert!(self.0.len() + bytes.len() <= COMMAND_BYTES_MAX, "a command with a secret grows");
        self.0.extend_from_slice(bytes);
        self
    }

    /// A TPM2B: two bytes of length, then the bytes.
    pub fn sized(&mut self, bytes: &[u8]) -> &mut Self {
        self.u16(bytes.len() as u16).bytes(bytes)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Zeroizing<Vec<u8>> {
        self.0
    }
}

/// Reads fields.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
    command: &'static str,
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8], command: &'static str) -> Self {
        Self { rest: bytes, command }
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], TpmError> {
        let why = "its response is shorter than its fields";
        let (taken, rest) =
            self.rest.split_at_checked(length).ok_or(TpmError::Protocol { command: self.command, why })?;
        self.rest = rest;
        Ok(taken)
    }

    pub fn u8(&mut self) -> Result<u8, TpmError> {
        Ok(self.take(1)?[0])
    }

    pub fn u16(&mut self) -> Result<u16, TpmError> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub fn u32(&mut self) -> Result<u32, TpmError> {
        let bytes = self.take(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub fn sized(&mut self) -> Result<&'a [u8], TpmError> {
        let length = self.u16()?;
        self.take(usize::from(length))
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}
