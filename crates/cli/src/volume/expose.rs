//! `strongroom volume expose`.

use std::fmt;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::Access;
use strongroom_frontend::listen::{self, Listener};
use strongroom_frontend::nbd::{Export, Identity, LANE_DEPTH, NbdConfig, NbdServer, TlsConfig};
use strongroom_frontend::vhost_user_blk::{VhostUserConfig, VhostUserServer};
use strongroom_ring::Lanes;
use strongroom_types::display_bytes;
use strongroom_worker::assemble;

use super::attach::{Attachment, Show, shell_word};
use super::open::OpenArguments;
use crate::error::CliError;
use crate::output::Output;
use crate::signals::Signals;

/// Which volume, where, and to whom.
#[derive(Debug, Args)]
#[command(
    after_help = "Stays in the foreground. The first line on stdout, printed when clients can connect, is the NBD URI, or \
for vhost-user the socket's path. SIGTERM, SIGINT (Control-C) and SIGHUP end it: what is in flight is done and flushed first.

Over TCP every client needs a certificate that the authority signed and that names an identity given with \
--authorize: dns:NAME, uri:URI, or sha256:FINGERPRINT. Without TLS not a byte is served.

Examples:
  strongroom volume expose ./ds/vm1
  strongroom volume expose ./ds/vm1 --nbd unix:/run/vm1.sock
  strongroom volume expose ./ds/vm1 --vhost-user unix:/run/vm1.sock --show libvirt
  strongroom volume expose ./ds/vm1 --nbd tcp:[::]:10809 --key-file vm1.key \\
    --authorize dns:host1.example.org --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem"
)]
pub struct ExposeArguments {
    /// The volume
    path: PathBuf,

    #[command(flatten)]
    address: Address,

    /// Take no writes; others can read beside it
    #[arg(long)]
    read_only: bool,

    /// For whom lines to paste are printed; with --json, all of them are
    #[arg(long, value_enum, value_name = "WHOM", default_value_t)]
    show: Show,

    #[command(flatten)]
    open: OpenArguments,

    #[command(flatten)]
    tls: TlsArguments,
}

/// Where, and by which protocol.
#[derive(Debug, Args)]
#[group(multiple = false)]
struct Address {
    /// Where NBD clients connect: unix:SOCKET or tcp:HOST:PORT [default: unix:PATH.sock, beside the volume]
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<NbdAddress>,

    /// Where QEMU connects, to have the volume as a virtio disk in shared memory: unix:SOCKET
    #[arg(long, value_name = "ADDRESS")]
    vhost_user: Option<UnixAddress>,
}

/// What TCP needs and a unix socket has no use for.
#[derive(Debug, Args)]
#[command(next_help_heading = "Over TCP")]
struct TlsArguments {
    /// Certificates of the authorities that sign clients' certificates
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// The server's certificate, and those that lead to its root
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// The server's private key
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// A client that may connect; can be given more than once
    #[arg(long, value_name = "IDENTITY")]
    authorize: Vec<Identity>,
}

impl TlsArguments {
    fn is_given(&self) -> bool {
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        files.into_iter().any(Option::is_some) || !self.authorize.is_empty()
    }
}

/// Printed for a vhost-user disk: a guest uses as many as it has processors, up to this.
const SUGGESTED_QUEUES: u16 = 4;

const TLS_FOR_TCP: &str =
    "--tls-ca, --tls-cert, --tls-key and --authorize are for tcp: a unix socket is its owner's alone";

/// An address as it was written.
#[derive(Clone, Debug)]
enum NbdAddress {
    Unix(PathBuf),
    Tcp(String),
}

impl FromStr for NbdAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self::Unix(path.into())),
            Some(("tcp", address)) if address.contains(':') => Ok(Self::Tcp(address.to_owned())),
            _ => Err(format!("'{text}' is no address; write unix:/path/of/socket or tcp:HOST:PORT")),
        }
    }
}

/// The path of a socket, as it was written.
#[derive(Clone, Debug)]
struct UnixAddress(PathBuf);

impl FromStr for UnixAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self(path.into())),
            _ => Err(format!("'{text}' is no address of a socket; write unix:/path/of/socket")),
        }
    }
}

#[derive(Serialize)]
struct Exposed {
    path: PathBuf,
    #[serde(flatten)]
    place: Place,
    size_bytes: u64,
    encrypted: bool,
    read_only: bool,
    #[serde(flatten)]
    attachment: Attachment,
    #[serde(skip)]
    show: Show,
}

/// What clients are given to find the volume.
#[derive(Serialize)]
#[serde(untagged)]
enum Place {
    Nbd { uri: String, export: String },
    VhostUser { vhost_user: PathBuf },
}

/// Where the volume is exposed.
enum Target {
    Nbd(listen::Address, Option<TlsConfig>),
    VhostUser(PathBuf),
}

/// What serves the volume.
enum Server {
    Nbd(NbdServer),
    VhostUser(VhostUserServer),
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Place::Nbd { uri, .. } => writeln!(f, "{uri}\n")?,
            Place::VhostUser { vhost_user } => writeln!(f, "{}\n", vhost_user.display())?,
        }
        let protection = if self.encrypted { "encrypted" } else { "NOT encrypted" };
        let access = if self.read_only { ", read-only" } else { "" };
        let size = display_bytes(self.size_bytes);
        writeln!(
            f,
            "{} ({size}, {protection}{access}) is exposed until Control-C or SIGTERM. To use it:",
            self.path.display()
        )?;
        write!(f, "{}", self.attachment.show(self.show))?;
        if let (Place::Nbd { uri, .. }, Show::Qemu) = (&self.place, self.show) {
            let uri = shell_word(uri);
            write!(f, "\n  qemu-img info {uri}\n  nbdcopy {uri} - | sha256sum")?;
        }
        Ok(())
    }
}

impl ExposeArguments {
    /// Exposes the volume until a signal comes.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let target = self.target()?;
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let (volume, _) = self.open.open(&self.path, access)?;
        let size_bytes = volume.descriptor().size_bytes.bytes();
        let encrypted = volume.descriptor().encryption.is_some();
        let signals = Signals::catch().map_err(CliError::Signals)?;

        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let read_only = self.read_only;
        let (server, place, attachment) = match target {
            Target::Nbd(address, tls) => {
                let listener = Listener::bind(&address)?;
                let attachment = Attachment::nbd(listener.address(), &name, read_only);
                let export = Export { name: name.clone(), description: String::new() };
                let config = NbdConfig { tls, ..NbdConfig::new(export) };
                let lanes = Lanes::start("nbd", config.lanes(), LANE_DEPTH)?;
                let server = NbdServer::start(config, listener, assemble(volume)?, lanes)?;
                let place = Place::Nbd { uri: server.uri().to_owned(), export: name };
                (Server::Nbd(server), place, attachment)
            }
            Target::VhostUser(socket) => {
                let config = VhostUserConfig::new(&name);
                let attachment = Attachment::vhost_user(&socket, SUGGESTED_QUEUES);
                let listener = Listener::bind(&listen::Address::Unix(socket.clone()))?;
                let lanes = Lanes::start("queue", usize::from(config.queues_max), LANE_DEPTH)?;
                let server = VhostUserServer::start(config, listener, assemble(volume)?, lanes)?;
                (Server::VhostUser(server), Place::VhostUser { vhost_user: socket }, attachment)
            }
        };
        let path = self.path.clone();
        let show = self.show;
        output.answer(&Exposed { path, place, size_bytes, encrypted, read_only, attachment, show })?;
        signals.wait().map_err(|errno| CliError::Signals(errno.into()))?;
        tracing::info!("ending: what is in flight is done and flushed first");
        match server {
            Server::Nbd(server) => Ok(server.stop()?),
            Server::VhostUser(server) => Ok(server.stop()?),
        }
    }

    /// Where the person wants it; without a word of theirs, over NBD on a socket beside the volume.
    fn target(&self) -> Result<Target, CliError> {
        match (&self.address.nbd, &self.address.vhost_user) {
            (Some(address), _) => self.listen(address),
            (None, Some(_)) if self.tls.is_given() => Err(CliError::Usage(TLS_FOR_TCP.to_owned())),
            (None, Some(UnixAddress(socket))) => Ok(Target::VhostUser(absolute(socket)?)),
            (None, None) => {
                let mut name = self.path.file_name().unwrap_or_default().to_owned();
                name.push(".sock");
                self.listen(&NbdAddress::Unix(self.path.with_file_name(name)))
            }
        }
    }

    fn listen(&self, address: &NbdAddress) -> Result<Target, CliError> {
        let TlsArguments { tls_ca, tls_cert, tls_key, authorize } = &self.tls;
        let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
        match (address, tls_ca, tls_cert, tls_key) {
            (NbdAddress::Unix(_), ..) if self.tls.is_given() => usage(TLS_FOR_TCP),
            // Clients that start in another directory must find it too.
            (NbdAddress::Unix(socket), ..) => Ok(Target::Nbd(listen::Address::Unix(absolute(socket)?), None)),
            (NbdAddress::Tcp(_), Some(_), Some(_), Some(_)) if authorize.is_empty() => {
                usage("tcp needs to know who may connect: give --authorize IDENTITY")
            }
            (NbdAddress::Tcp(address), Some(authorities), Some(certificate), Some(key)) => {
                let resolved = address.to_socket_addrs().map(|mut addresses| addresses.next());
                let Ok(Some(address)) = resolved else {
                    return usage(&format!("'{address}' is no address of this machine; write tcp:HOST:PORT"));
                };
                let read = |path: &PathBuf| {
                    let failed = |error| CliError::File { action: "read", path: path.clone(), error };
                    std::fs::read(path).map_err(failed)
                };
                let (certificate, key, authorities) = (read(certificate)?, read(key)?, read(authorities)?);
                let tls = TlsConfig::from_pem(&certificate, &key, &authorities, authorize.clone())?;
                Ok(Target::Nbd(listen::Address::Tcp(address), Some(tls)))
            }
            (NbdAddress::Tcp(_), ..) => usage(
                "tcp is served under TLS alone: give --tls-ca, --tls-cert, --tls-key and --authorize, or use unix:SOCKET",
            ),
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    let failed = |error| CliError::File { action: "find", path: path.to_owned(), error };
    std::path::absolute(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_two_kinds() {
        assert!(matches!("unix:/run/vm1.sock".parse(), Ok(NbdAddress::Unix(_))));
        assert!(
            matches!("tcp:[::1]:10809".parse(), Ok(NbdAddress::Tcp(address)) if address == "[::1]:10809")
        );
        assert!(UnixAddress::from_str("unix:/run/vm1.sock").is_ok());
        assert!(UnixAddress::from_str("tcp:[::1]:10809").is_err() && UnixAddress::from_str("unix:").is_err());
        for text in ["", "unix:", "tcp:", "tcp:host", "/run/vm1.sock", "udp:host:1"] {
            assert!(NbdAddress::from_str(text).is_err(), "{text}");
        }
    }
}
