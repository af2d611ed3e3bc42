//! The handshake of the two hosts: TLS 1.3, in which each verifies the other's certificate, and
//! then a few words inside it.
//!
//! 1. TLS, with the certificates of both hosts, the key agreement X25519 with ML-KEM-768, and no
//!    session that is resumed.
//! 2. The source sends its grant, [`MIGRATION_GRANT_BYTES`].
//! 3. The target answers with a byte: whether it has the same one.
//! 4. Both derive the session's secret (RFC 8446, 7.5) under a context of the grant and the two
//!    certificates. TLS's own transcript behind that secret ends before the client's certificate.
//!
//! Then TLS has done its work: the connection goes on as the relays' line, with records. Each side
//! has read everything that the other one sent within TLS, because they speak in turn.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConnection, CommonState, HandshakeKind, NamedGroup, ProtocolVersion, ServerConnection};
use strongroom_crypto::mac::Sha256;
use strongroom_keyserver::access::{ClientId, Role};
use strongroom_keyserver::authority::peer::ExpectedPeer;
use strongroom_keyserver::grant::MIGRATION_GRANT_BYTES;
use strongroom_memory::secret::SecretBytes;

use crate::attempt::Admitted;
use crate::error::MigrateError;
use crate::keys::{SECRET_BYTES, SessionSecret};

/// How the two name what they speak (ALPN).
const PROTOCOL: &[u8] = b"strongroom-migrate/1";
/// The label of the exported secret.
const LABEL: &[u8] = b"EXPORTER-strongroom-migrate-1";
/// Timeout of a handshake, some round trips of distant hosts.
pub(crate) const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

const ACCEPTED: u8 = 1;
const OTHER_GRANT: u8 = 2;

/// The source's side, over a connection to the target.
pub(crate) fn as_source(admitted: &Admitted, wire: &TcpStream) -> Result<SessionSecret, MigrateError> {
    let peer = Peer::at(wire)?;
    let expected = host(admitted.grant.migrating().target);
    let config =
        admitted.site.side().connecting_for_guest_data(expected, PROTOCOL).map_err(own_certificate)?;
    // The name is not compared: the peer is known by its id.
    let name = ServerName::IpAddress(IpAddr::V4(Ipv4Addr::UNSPECIFIED).into());
    let mut tls = ClientConnection::new(Arc::new(config), name).map_err(own_certificate)?;
    let mut wire = Timed::new(wire);
    let mut stream = rustls::Stream::new(&mut tls, &mut wire);
    let mut answer = [0];
    stream
        .write_all(&admitted.bytes)
        .and_then(|()| stream.flush())
        .and_then(|()| stream.read_exact(&mut answer))
        .map_err(|error| peer.not_admitted(&error))?;
    match answer {
        [ACCEPTED] => {}
        [OTHER_GRANT] => return Err(MigrateError::GrantsDiffer { vm: admitted.grant.migrating().vm }),
        _ => return Err(peer.refused("it does not speak this protocol")),
    }
    let target = shown(&peer, &tls)?;
    let context = context(&admitted.bytes, &admitted.site.certificate, &target);
    secret(&peer, |into| tls.export_keying_material(into, LABEL, Some(&context)).map(drop))
}

/// The target's side, over a connection from somebody who says to be the source. `agreed` gets the
/// secret before the source hears that it is accepted: its channels come at once then.
pub(crate) fn as_target(
    admitted: &Admitted,
    wire: &TcpStream,
    agreed: impl FnOnce(SessionSecret),
) -> Result<(), MigrateError> {
    let peer = Peer::at(wire)?;
    let expected = host(admitted.grant.migrating().source);
    let config =
        admitted.site.side().listening_for_guest_data(expected, PROTOCOL).map_err(own_certificate)?;
    let mut tls = ServerConnection::new(Arc::new(config)).map_err(own_certificate)?;
    let mut wire = Timed::new(wire);
    let mut grant = [0; MIGRATION_GRANT_BYTES];
    let read = rustls::Stream::new(&mut tls, &mut wire).read_exact(&mut grant);
    read.map_err(|error| peer.not_admitted(&error))?;
    let is_same = grant[..] == admitted.bytes[..];
    if is_same {
        let source = shown(&peer, &tls)?;
        let context = context(&admitted.bytes, &source, &admitted.site.certificate);
        let export = |into: &mut [u8]| tls.export_keying_material(into, LABEL, Some(&context)).map(drop);
        agreed(secret(&peer, export)?);
    }
    let answer = if is_same { ACCEPTED } else { OTHER_GRANT };
    let mut stream = rustls::Stream::new(&mut tls, &mut wire);
    stream.write_all(&[answer]).and_then(|()| stream.flush()).map_err(|error| peer.not_admitted(&error))?;
    if is_same { Ok(()) } else { Err(MigrateError::GrantsDiffer { vm: admitted.grant.migrating().vm }) }
}

fn host(client: ClientId) -> ExpectedPeer {
    ExpectedPeer { role: Role::Host, client }
}

fn own_certificate(error: rustls::Error) -> MigrateError {
    MigrateError::OwnCertificate(error.to_string())
}

/// The certificate that the peer has shown, in a session that is as it should be. Nothing of this
/// is left to the configuration alone: what is moved under this session stays secret only if all
/// of it holds.
fn shown(peer: &Peer, tls: &CommonState) -> Result<CertificateDer<'static>, MigrateError> {
    let is_fresh =
        matches!(tls.handshake_kind(), Some(HandshakeKind::Full | HandshakeKind::FullWithHelloRetryRequest));
    let is_hybrid =
        tls.negotiated_key_exchange_group().is_some_and(|group| group.name() == NamedGroup::X25519MLKEM768);
    let is_ours =
        tls.protocol_version() == Some(ProtocolVersion::TLSv1_3) && tls.alpn_protocol() == Some(PROTOCOL);
    if !(is_fresh && is_hybrid && is_ours) {
        return Err(peer.refused("it does not speak this protocol"));
    }
    let shown = tls.peer_certificates().and_then(<[_]>::first);
    shown.cloned().map(CertificateDer::into_owned).ok_or_else(|| peer.refused("it has shown no certificate"))
}

/// What the secret is bound to: the grant, and the certificates of the source and the target.
fn context(grant: &[u8], source: &CertificateDer<'_>, target: &CertificateDer<'_>) -> [u8; 32] {
    let mut digest = Sha256::default();
    for part in [grant, source, target] {
        digest.update(&(part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    digest.finish()
}

fn secret(
    peer: &Peer,
    export: impl FnOnce(&mut [u8]) -> Result<(), rustls::Error>,
) -> Result<SessionSecret, MigrateError> {
    let mut secret = SecretBytes::zeroed(SECRET_BYTES)
        .map_err(|error| MigrateError::Resources(io::Error::other(error)))?;
    export(secret.expose_mut()).map_err(|error| peer.refused(&error.to_string()))?;
    Ok(SessionSecret::agreed(secret))
}

/// The other host, for errors.
struct Peer(SocketAddr);

impl Peer {
    fn at(wire: &TcpStream) -> Result<Self, MigrateError> {
        wire.peer_addr().map(Self).map_err(MigrateError::PeerGone)
    }

    fn refused(&self, reason: &str) -> MigrateError {
        MigrateError::NotAdmitted { address: self.0, reason: reason.to_owned() }
    }

    fn not_admitted(&self, error: &io::Error) -> MigrateError {
        self.refused(&match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                format!("it has not answered within {HANDSHAKE_WITHIN:?}")
            }
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                "it has broken off; its log says why".to_owned()
            }
            _ => error.to_string(),
        })
    }
}

/// A connection with a deadline for all that is read from it and written to it.
pub(crate) struct Timed<'w> {
    wire: &'w TcpStream,
    until: Instant,
}

impl<'w> Timed<'w> {
    pub(crate) fn new(wire: &'w TcpStream) -> Self {
        Self { wire, until: Instant::now() + HANDSHAKE_WITHIN }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.wire.set_read_timeout(self.left()?)?;
        let read = self.wire.read(into);
        self.wire.set_read_timeout(None)?;
        read
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.wire.set_write_timeout(self.left()?)?;
        let written = self.wire.write(from);
        self.wire.set_write_timeout(None)?;
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        self.wire.flush()
    }
}
