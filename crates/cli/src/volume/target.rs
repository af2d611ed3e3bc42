//! The address at which a volume is exposed, and the clients that may connect.

use std::fs::File;
use std::io::{self, Read};
use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;
use strongroom_files::FileError;
use strongroom_frontend::listen;
use strongroom_frontend::nbd::{Identity, TlsConfig};
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes};
use strongroom_worker::birth::Tls;

use crate::error::CliError;

/// The address at which the volume is exposed.
pub enum Target {
    /// Over NBD; TCP requires TLS.
    Nbd(listen::Address, Option<ServerTls>),
    /// Over vhost-user, on this socket.
    VhostUser(PathBuf),
}

/// The TLS configuration: the public part and the private key.
pub struct ServerTls {
    /// Certificates and authorized clients.
    pub public: Tls,
    /// The private key, PEM.
    pub key: SecretBytes,
}

/// The address and the protocol.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct AddressArguments {
    /// Address for NBD clients: unix:SOCKET or tcp:HOST:PORT [default: unix:PATH.sock, beside the
    /// volume]
    #[arg(long, value_name = "ADDRESS")]
    nbd: Option<NbdAddress>,

    /// Address for QEMU, as a virtio disk in shared memory: unix:SOCKET
    #[arg(long, value_name = "ADDRESS")]
    vhost_user: Option<UnixAddress>,
}

/// The options for TCP. They must be the last of a command's arguments, because later ones would be
/// shown under their heading.
#[derive(Debug, Args)]
#[command(next_help_heading = "Over TCP")]
pub struct TlsArguments {
    /// Certificates of the authorities that sign clients' certificates, PEM
    #[arg(long, value_name = "FILE")]
    tls_ca: Option<PathBuf>,

    /// Certificate of the server, with its chain, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<PathBuf>,

    /// Private key of the server, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<PathBuf>,

    /// Client that may connect; repeatable
    #[arg(long, value_name = "IDENTITY")]
    authorize: Vec<Identity>,
}

impl TlsArguments {
    fn is_given(&self) -> bool {
        let files = [&self.tls_ca, &self.tls_cert, &self.tls_key];
        files.into_iter().any(Option::is_some) || !self.authorize.is_empty()
    }
}

const TLS_FOR_TCP: &str =
    "--tls-ca, --tls-cert, --tls-key and --authorize are for tcp: a unix socket is its owner's alone";

/// An address as given.
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

/// The path of a socket, as given.
#[derive(Clone, Debug)]
pub struct UnixAddress(pub PathBuf);

impl FromStr for UnixAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Self(path.into())),
            _ => Err(format!("'{text}' is no address of a socket; write unix:/path/of/socket")),
        }
    }
}

impl AddressArguments {
    /// The target that was chosen for the volume at `volume`; by default, NBD on a socket beside
    /// it.
    pub fn target(&self, tls: &TlsArguments, volume: &Path) -> Result<Target, CliError> {
        match (&self.nbd, &self.vhost_user) {
            (Some(address), _) => tls.listen(address),
            (None, Some(_)) if tls.is_given() => Err(CliError::Usage(TLS_FOR_TCP.to_owned())),
            (None, Some(UnixAddress(socket))) => Ok(Target::VhostUser(absolute(socket)?)),
            (None, None) => {
                let mut name = volume.file_name().unwrap_or_default().to_owned();
                name.push(".sock");
                tls.listen(&NbdAddress::Unix(volume.with_file_name(name)))
            }
        }
    }
}

impl TlsArguments {
    fn listen(&self, address: &NbdAddress) -> Result<Target, CliError> {
        let Self { tls_ca, tls_cert, tls_key, authorize } = self;
        let usage = |text: &str| Err(CliError::Usage(text.to_owned()));
        match (address, tls_ca, tls_cert, tls_key) {
            (NbdAddress::Unix(_), ..) if self.is_given() => usage(TLS_FOR_TCP),
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
                let tls = read_tls(certificate, key, authorities, authorize)?;
                Ok(Target::Nbd(listen::Address::Tcp(address), Some(tls)))
            }
            (NbdAddress::Tcp(_), ..) => usage(
                "tcp is served under TLS alone: give --tls-ca, --tls-cert, --tls-key and --authorize, or use unix:SOCKET",
            ),
        }
    }
}

/// Reads the TLS files, and refuses unusable ones.
fn read_tls(
    certificate: &Path,
    key: &Path,
    authorities: &Path,
    authorize: &[Identity],
) -> Result<ServerTls, CliError> {
    let failed =
        |path: &Path, error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    let text = |path: &Path| std::fs::read_to_string(path).map_err(|error| failed(path, error));
    let public = Tls {
        certificates: text(certificate)?,
        authorities: text(authorities)?,
        admitted: authorize.iter().map(Identity::to_string).collect(),
    };
    let key = read_secret(key).map_err(|error| failed(key, error))?;
    let (certificates, authorities) = (public.certificates.as_bytes(), public.authorities.as_bytes());
    // The worker repeats this; here a person gets the error at once.
    TlsConfig::from_pem(certificates, key.expose(), authorities, authorize.to_vec())?;
    Ok(ServerTls { public, key })
}

/// Reads a file directly into secret memory.
fn read_secret(path: &Path) -> io::Result<SecretBytes> {
    let mut file = File::open(path)?;
    let mut content = SecretBytes::zeroed(SECRET_MAX_BYTES).map_err(io::Error::other)?;
    let mut length = 0;
    while length < SECRET_MAX_BYTES {
        match file.read(&mut content.expose_mut()[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if length == SECRET_MAX_BYTES {
        return Err(io::Error::other(format!(
            "it has {SECRET_MAX_BYTES} bytes or more, and holds no private key"
        )));
    }
    let mut secret = SecretBytes::zeroed(length).map_err(io::Error::other)?;
    secret.expose_mut().copy_from_slice(&content.expose()[..length]);
    Ok(secret)
}

pub fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    let failed = |error| CliError::File(FileError { action: "find", path: path.to_owned(), error });
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
