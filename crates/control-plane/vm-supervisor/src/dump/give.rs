//! Sends a sealed dump to a client.

use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use strongroom_datastore::file::describe;
use strongroom_host::dumps;
use strongroom_host::protocol::{Dump, GuestEnd, GuestWelcome, OwnVolume, Problem, ProblemBody, VmSpec};
use strongroom_keys::Kek;
use strongroom_streams::{StreamKind, StreamReader};

use super::{Description, FORMAT, PACKED};
use crate::guest_client::TAKEN_WITHIN;
use crate::own_volume::OpenOwnVolume;

/// How long another reader of the dump may hold it: less than a client waits for its welcome.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// A dump that is open for sending.
pub struct GivenDump {
    dump: Dump,
    stream: StreamReader<OpenOwnVolume>,
    /// The dump's name in error messages.
    place: String,
}

impl GivenDump {
    /// Opens the VM's dump with this number. Its content is verified as it is sent.
    ///
    /// # Errors
    /// If it does not exist, is another dump than `vm.json` says, or its first records are not
    /// authentic.
    pub fn open(spec: &VmSpec, number: u32, kek: Option<&Kek>) -> Result<Self, Problem> {
        let dump = dumps::settle(spec)?.into_iter().find(|dump| dump.number == number);
        let none = || Problem::new("no_such_dump", format!("VM {} has no dump {number}", spec.name));
        let dump = dump.ok_or_else(none)?;
        let path = spec.own_volume_path(OwnVolume::Dump(number));
        let place = format!("dump {number} of VM {} ({})", spec.name, path.display());
        let refused =
            |why: String| Problem::new("dump_refused", format!("{place} is not what was dumped: {why}"));
        let cannot = |error: &dyn std::fmt::Display| {
            Problem::new("dump", format!("{place} cannot be opened: {error}"))
        };
        let volume = describe(&path).map_err(|error| cannot(&error))?.descriptor.volume;
        if volume != dump.volume {
            return Err(refused(format!("it is volume {volume}, and should be {}", dump.volume)));
        }
        let medium = OpenOwnVolume::open_within(&path, kek, LOCK_WAIT).map_err(|error| cannot(&error))?;
        let stream = StreamReader::open(medium, StreamKind::Dump, volume)
            .map_err(|error| refused(error.to_string()))?;
        let description: Description =
            serde_json::from_slice(stream.description()).map_err(|error| refused(error.to_string()))?;
        if (description.format, description.content.as_str()) != (FORMAT, PACKED) {
            let format = description.format;
            return Err(cannot(&format!("it is of format {format}, and this program reads {FORMAT}")));
        }
        if (description.vm, description.number) != (spec.id, number) {
            let Description { vm, number, .. } = description;
            return Err(refused(format!("it is dump {number} of VM {vm}")));
        }
        Ok(Self { dump, stream, place })
    }
}

/// Sends a dump to a client, after a welcome, each record after its verification; or the error.
/// Returns whether the client has read all of it.
pub fn give(mut client: UnixStream, opened: Result<GivenDump, Problem>) -> bool {
    let _ = client.set_nonblocking(false).and_then(|()| client.set_write_timeout(Some(TAKEN_WITHIN)));
    let GivenDump { dump, mut stream, place } = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let _ = line(&mut client, &ProblemBody { error });
            return false;
        }
    };
    if line(&mut client, &GuestWelcome::Dump(Box::new(dump))).is_err() {
        return false;
    }
    let mut chunks = Chunks { client: &client, is_gone: false };
    let end = match stream.copy_to(&mut chunks, |_| Ok(())) {
        Ok(_) => GuestEnd::Done,
        // A client that has disconnected does not want it.
        Err(_) if chunks.is_gone => return false,
        Err(error) => {
            let message = format!("{place} is not what was dumped, or cannot be read: {error}");
            tracing::warn!("{message}");
            GuestEnd::Error(Problem::new("dump_refused", message))
        }
    };
    client.write_all(&[0; 4]).and_then(|()| line(&mut client, &end)).is_ok() && end == GuestEnd::Done
}

fn line(client: &mut UnixStream, said: &impl serde::Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(said)?;
    line.push(b'\n');
    client.write_all(&line)
}

/// A writer whose every write is a chunk.
struct Chunks<'a> {
    client: &'a UnixStream,
    is_gone: bool,
}

impl Write for Chunks<'_> {
    fn write(&mut self, content: &[u8]) -> io::Result<usize> {
        if content.is_empty() {
            return Ok(0);
        }
        // Records are far shorter.
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        let written =
            self.client.write_all(&length.to_le_bytes()).and_then(|()| self.client.write_all(content));
        self.is_gone = written.is_err();
        written.map(|()| content.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
