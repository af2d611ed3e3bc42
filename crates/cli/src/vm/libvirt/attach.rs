//! `strongroom vm disk attach --libvirt`.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::Descriptor;
use strongroom_libvirt::{Attach, Attached, Libvirt, LibvirtError, Scope, is_target};
use strongroom_types::{display_bytes, shell_word};
use strongroom_vm::DiskFrontend;

use super::super::options::{frontend_as, frontend_word};
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;

/// The arguments of `attach`.
#[derive(Debug, Args)]
#[command(
    after_help = "For guests that libvirt runs; this needs neither a VM of Strongroom nor its API, and \
libvirt keeps managing the guest. strongroom-volume@.service serves the volume, now and after each boot, \
before libvirt starts guests; so its key must be available without a person, from a key provider or a \
key file. Without systemd or without root, the command prints what to run; a volume that is already \
exposed is used as it is.

Over vhost-user the guest's memory must be shared (<memoryBacking> in the domain); if it is not, the \
command explains how to change it, or use --frontend nbd.

A repeated command does only what is still missing. After 'volume rekey' to another key file or to a key \
provider, run it again with the new key, for the next boot.

Examples:
  strongroom vm disk attach --libvirt web1 /srv/volumes/data1 --key-file /etc/strongroom/data1.key
  strongroom vm disk attach --libvirt web1 /srv/volumes/data1 --target vdc --config
  strongroom vm disk attach --libvirt web1 /srv/volumes/data1 --frontend nbd --connect qemu:///system"
)]
pub struct AttachArguments {
    /// Guest: name, id or UUID of a libvirt domain
    #[arg(long, value_name = "DOMAIN", required = true)]
    libvirt: String,

    /// Path of the volume
    volume: PathBuf,

    /// Protocol [default: that of an exposed volume, or vhost-user]
    #[arg(
        long,
        value_name = "PROTOCOL",
        value_parser = frontend_as("Virtio disk in shared memory", "NBD over a unix socket, through QEMU")
    )]
    frontend: Option<DiskFrontend>,

    /// libvirt's name for the disk: vdb, vdc, ... [default: the first free one]
    #[arg(long, value_name = "NAME", value_parser = parse_target)]
    target: Option<String>,

    #[command(flatten)]
    scope: ScopeArguments,

    #[command(flatten)]
    connect: ConnectArguments,

    #[command(flatten)]
    key: KeyArguments,
}

/// The libvirt connection.
#[derive(Debug, Args)]
pub struct ConnectArguments {
    /// libvirt connection, as for virsh: qemu:///system, qemu:///session, ... [default: virsh's
    /// own]
    #[arg(long, value_name = "URI")]
    connect: Option<String>,
}

impl ConnectArguments {
    /// The libvirt of this connection.
    pub fn libvirt(&self) -> Libvirt {
        Libvirt::at(self.connect.clone())
    }
}

/// Whether a change affects the running guest or its next starts, as in virsh.
#[derive(Clone, Copy, Debug, Args)]
pub struct ScopeArguments {
    /// Change only the running guest, not its next starts [default: both, where they exist]
    #[arg(long)]
    live: bool,

    /// Change only the guest's next starts, not the running guest
    #[arg(long)]
    config: bool,
}

impl From<ScopeArguments> for Scope {
    fn from(arguments: ScopeArguments) -> Self {
        Self { live: arguments.live, config: arguments.config }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Answer(Attached);

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(attached) = self;
        let Attached { volume, domain, target, socket, .. } = attached;
        let when = match (attached.live, attached.config) {
            (true, true) => "now and at its next starts",
            (true, false) => "now; not at its next start",
            (false, true) if attached.runs => "from its next start on",
            (false, _) => "when it starts",
        };
        let already = if attached.changed { "" } else { " already" };
        let (size, protection) = (
            display_bytes(attached.size_bytes),
            if attached.encrypted { "encrypted" } else { "NOT encrypted" },
        );
        writeln!(f, "{} ({size}, {protection}) is {target} of {domain}{already}, {when}", volume.display())?;
        let protocol = frontend_word(attached.frontend);
        write!(f, "  served     over {protocol} on {}, ", socket.display())?;
        match (&attached.unit, attached.pid) {
            (Some(unit), _) => writeln!(f, "by {unit}, also after this machine's next start")?,
            (None, pid) => {
                let process = pid.map(|pid| format!(" {pid}")).unwrap_or_default();
                writeln!(
                    f,
                    "by the process{process} that somebody started: see to it that it runs before {domain} starts again"
                )?;
            }
        }
        writeln!(
            f,
            "  in guest   /dev/{target}, unless it has other disks than virtio's: `lsblk -o NAME,SIZE,SERIAL`"
        )?;
        write!(
            f,
            "  back again strongroom vm disk detach --libvirt {} {}",
            shell_word(domain),
            shell_word(&volume.to_string_lossy())
        )
    }
}

impl AttachArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        strongroom_worker::process::prepare_for_keys()?;
        let wish = Attach {
            libvirt: &self.connect.libvirt(),
            domain: &self.libvirt,
            volume: &self.volume,
            scope: self.scope.into(),
            frontend: self.frontend,
            target: self.target.as_deref(),
            key_is_given: self.key.are_given(),
            remark: &|text| output.remark(text),
        };
        output.answer(&Answer(wish.carry_out(&|path, descriptor| self.key_words(path, descriptor))?))
    }

    /// The arguments with which a service gets the key. The key is tried, so that a person learns
    /// of errors here and not from a log.
    fn key_words(&self, path: &Path, descriptor: &Descriptor) -> Result<Vec<String>, CliError> {
        let words = self.key.words_without_a_person(descriptor)?;
        let words = words.ok_or_else(|| LibvirtError::Passphrase(path.to_owned()))?;
        self.key.for_volume(path, descriptor, None)?;
        Ok(words)
    }
}

fn parse_target(text: &str) -> Result<String, String> {
    if is_target(text) {
        Ok(text.to_owned())
    } else {
        Err(format!("'{text}' is no virtio disk's name: vda, vdb, ..."))
    }
}
