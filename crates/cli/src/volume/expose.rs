//! `strongroom volume expose`.

use std::fmt;
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::Access;
use strongroom_frontend::nbd::{Export, Identity, Listen, NbdConfig, NbdServer, TlsConfig};
use strongroom_types::display_bytes;
use strongroom_worker::assemble;

use super::open::OpenArguments;
use crate::error::CliError;
use crate::output::Output;
use crate::signals::Signals;

/// Which volume, where, and to whom.
#[derive(Debug, Args)]
#[command(
    after_help = "Stays in the foreground. The first line on stdout, printed when clients can connect, is the NBD URI. \
SIGTERM, SIGINT (Control-C) and SIGHUP end it: what is in flight is done and flushed first.

Over TCP every client needs a certificate that the authority signed and that names an identity given with \
--authorize: dns:NAME, uri:URI, or sha256:FINGERPRINT. Without TLS not a byte is served.

Examples:
  strongroom volume expose ./ds/vm1 --nbd unix:/run/vm1.sock
  strongroom volume expose ./ds/vm1 --nbd tcp:[::]:10809 --key-file vm1.key \\
    --authorize dns:host1.example.org --tls-ca ca.pem --tls-cert cert.pem --tls-key key.pem"
)]
pub struct ExposeArguments {
    /// The volume
    path: PathBuf,

    /// Where clients connect: unix:SOCKET or tcp:HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    nbd: NbdAddress,

    /// Take no writes; others can read beside it
    #[arg(long)]
    read_only: bool,

    #[command(flatten)]
    open: OpenArguments,

    #[command(flatten)]
    tls: TlsArguments,
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

#[derive(Serialize)]
struct Exposed {
    path: PathBuf,
    uri: String,
    export: String,
    size_bytes: u64,
    encrypted: bool,
    read_only: bool,
    qemu_arguments: String,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uri = quoted(&self.uri);
        writeln!(f, "{}\n", self.uri)?;
        let protection = if self.encrypted { "encrypted" } else { "NOT encrypted" };
        let access = if self.read_only { ", read-only" } else { "" };
        let size = display_bytes(self.size_bytes);
        writeln!(
            f,
            "{} ({size}, {protection}{access}) is exposed until Control-C or SIGTERM. To use it:",
            self.path.display()
        )?;
        writeln!(f, "  qemu-system-x86_64 ... {}", self.qemu_arguments)?;
        writeln!(f, "  qemu-img info {uri}")?;
        write!(f, "  nbdcopy {uri} - | sha256sum")
    }
}

impl ExposeArguments {
    /// Exposes the volume until a signal comes.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let listen = self.listen()?;
        let access = if self.read_only { Access::ReadOnly } else { Access::ReadWrite };
        let (volume, _) = self.open.open(&self.path, access)?;
        let size_bytes = volume.descriptor.size_bytes.bytes();
        let encrypted = volume.descriptor.encryption.is_some();
        let signals = Signals::catch().map_err(CliError::Signals)?;

        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let qemu_arguments = qemu_arguments(&listen, &name, self.read_only);
        let export = Export { name: name.clone(), description: String::new() };
        let server = NbdServer::start(NbdConfig::new(listen, export), assemble(volume)?)?;
        let (path, uri) = (self.path.clone(), server.uri().to_owned());
        let read_only = self.read_only;
        let exposed = Exposed { path, uri, export: name, size_bytes, encrypted, read_only, qemu_arguments };
        output.answer(&exposed)?;
        signals.wait().map_err(|errno| CliError::Signals(errno.into()))?;
        tracing::info!("ending: what is in flight is done and flushed first");
        Ok(server.stop()?)
    }

    fn listen(&self) -> Result<Listen, CliError> {
        let TlsArguments { tls_ca, tls_cert, tls_key, authorize } = &self.tls;
        let none_of_tls = tls_ca.is_none() && tls_cert.is_none() && tls_key.is_none() && authorize.is_empty();
        let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
        match (&self.nbd, tls_ca, tls_cert, tls_key) {
            (NbdAddress::Unix(_), ..) if !none_of_tls => usage(
                "--tls-ca, --tls-cert, --tls-key and --authorize are for tcp: a unix socket is its owner's alone",
            ),
            // Clients that start in another directory must find it too.
            (NbdAddress::Unix(socket), ..) => Ok(Listen::Unix(absolute(socket)?)),
            (NbdAddress::Tcp(_), Some(_), Some(_), Some(_)) if authorize.is_empty() => {
                usage("tcp needs to know who may connect: give --authorize IDENTITY")
            }
            (NbdAddress::Tcp(address), Some(authorities), Some(certificate), Some(key)) => {
                let resolved = address.to_socket_addrs().map(|mut addresses| addresses.next());
                let Ok(Some(address)) = resolved else {
                    return usage(&format!("'{address}' is no address of this machine; write tcp:HOST:PORT"));
                };
                let tls = TlsConfig::from_pem_files(certificate, key, authorities, authorize.clone())?;
                Ok(Listen::Tls { address, tls })
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

/// What QEMU's command line needs. A client that waits for a restarted server gives its guest a pause, not an error.
fn qemu_arguments(listen: &Listen, export: &str, read_only: bool) -> String {
    // In QEMU's key=value lists a comma is written twice.
    let value = |text: &str| text.replace(',', ",,");
    let (before, server, after) = match listen {
        Listen::Unix(path) => {
            let path = value(&path.to_string_lossy());
            (String::new(), format!("server.type=unix,server.path={path}"), "")
        }
        Listen::Tls { address, .. } => (
            "-object tls-creds-x509,id=tls0,endpoint=client,dir=CERTIFICATES ".to_owned(),
            format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port()),
            ",tls-creds=tls0",
        ),
    };
    let access = if read_only { ",read-only=on" } else { ",discard=unmap" };
    let export = value(export);
    let blockdev = quoted(&format!(
        "driver=nbd,node-name=disk0,{server},export={export},reconnect-delay=60{access}{after}"
    ));
    format!("{before}-blockdev {blockdev} -device virtio-blk-pci,drive=disk0")
}

/// The text as one word of a shell.
fn quoted(text: &str) -> String {
    let plain = |character: char| character.is_ascii_alphanumeric() || "-_./:=,@%+".contains(character);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', r"'\''")) }
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
        for text in ["", "unix:", "tcp:", "tcp:host", "/run/vm1.sock", "udp:host:1"] {
            assert!(NbdAddress::from_str(text).is_err(), "{text}");
        }
    }

    #[test]
    fn odd_names_survive_qemus_syntax_and_the_shells() {
        let listen = Listen::Unix("/run/a,b c'd".into());
        assert_eq!(
            qemu_arguments(&listen, "vm,1", false),
            r"-blockdev 'driver=nbd,node-name=disk0,server.type=unix,server.path=/run/a,,b c'\''d,export=vm,,1,reconnect-delay=60,discard=unmap' -device virtio-blk-pci,drive=disk0"
        );
    }
}
