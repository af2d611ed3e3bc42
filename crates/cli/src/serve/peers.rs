//! Connections between the control plane and hosts on other machines: mutual TLS, under the
//! certificates that the key server has given to both.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rustls::ClientConfig;
use rustls::pki_types::CertificateDer;
use strongroom_api::Name;
use strongroom_control::host::{Host, Hostd};
use strongroom_control::joining::{Admission, Joining};
use strongroom_control::keys::KeyProblem;
use strongroom_host::client::{Client, HostTls};
use strongroom_host::protocol::GUEST_PROTOCOL;
use strongroom_hostd::daemon::{PortConfig, PortTls};
use strongroom_keyserver::access::{CertificateSha256, ClientId, Role};
use strongroom_keyserver::authority::claimed_identity;
use strongroom_keyserver::authority::enrol::token::EnrolmentToken;
use strongroom_keyserver::authority::peer::{ExpectedPeer, OwnSide, Revocations, connecting_as_stranger};
use strongroom_keyserver::management::questions::{CancelToken, Clients, CreateToken, RevokeClient, Tokens};
use tokio::runtime::Handle;

use crate::error::CliError;
use crate::keyserver::{Administrator, ClientFiles, ServerSettings, read_certificates};

/// One side's certificate, and the one peer that it admits. A renewed certificate is used from the
/// next connection on.
#[derive(Debug)]
pub struct SitePeer<Config> {
    files: ClientFiles,
    expected: ExpectedPeer,
    revocations: Arc<Revocations>,
    /// The configuration, and the certificate that it is for.
    made: Mutex<Option<(CertificateDer<'static>, Arc<Config>)>>,
}

impl<Config> SitePeer<Config> {
    /// The owner of these files, which admits this peer only, and none of its certificates that are
    /// revoked.
    pub fn new(files: ClientFiles, expected: ExpectedPeer, revocations: Arc<Revocations>) -> Self {
        Self { files, expected, revocations, made: Mutex::default() }
    }

    fn present(
        &self,
        make: impl FnOnce(OwnSide<'_>, ExpectedPeer) -> Result<Config, rustls::Error>,
    ) -> io::Result<Arc<Config>> {
        let unusable = |error: CliError| io::Error::other(error.to_string());
        let certificate = self.files.read_certificate().map_err(unusable)?;
        let mut made = self.made.lock();
        if let Some((of, config)) = &*made
            && *of == certificate
        {
            return Ok(Arc::clone(config));
        }
        let authorities = read_certificates(&self.files.ca).map_err(unusable)?;
        let key = self.files.read_key().map_err(unusable)?;
        let side = OwnSide {
            authorities: &authorities,
            certificate: certificate.clone(),
            key: &key,
            revocations: Arc::clone(&self.revocations),
        };
        let config = Arc::new(make(side, self.expected).map_err(io::Error::other)?);
        *made = Some((certificate, Arc::clone(&config)));
        Ok(config)
    }
}

impl HostTls for SitePeer<ClientConfig> {
    fn config(&self) -> io::Result<Arc<ClientConfig>> {
        self.present(|side, expected| side.connecting(expected))
    }
}

impl PortTls for SitePeer<PortConfig> {
    fn config(&self) -> io::Result<Arc<PortConfig>> {
        self.present(|side, expected| {
            let certificate_sha256 = CertificateSha256::of(&side.certificate).to_string();
            let guests = Arc::new(side.clone().listening_to_strangers(GUEST_PROTOCOL)?);
            let control = Arc::new(side.listening(expected)?);
            Ok(PortConfig { control, guests, certificate_sha256 })
        })
    }

    fn to_host(&self, certificate_sha256: &str) -> io::Result<Arc<ClientConfig>> {
        let certificate = certificate_sha256.parse().map_err(io::Error::other)?;
        Ok(Arc::new(connecting_as_stranger(certificate, GUEST_PROTOCOL).map_err(io::Error::other)?))
    }
}

/// How machines join the site of this one.
pub struct JoiningHere {
    /// The state directory of the key server.
    directory: PathBuf,
    /// The control plane's certificate.
    files: ClientFiles,
    revocations: Arc<Revocations>,
    runtime: Handle,
}

impl JoiningHere {
    /// Machines join the site of the key server in this directory, whose control plane has these
    /// files, and knows that these are revoked.
    pub fn new(directory: &Path, files: ClientFiles, revocations: Arc<Revocations>, runtime: Handle) -> Self {
        Self { directory: directory.to_owned(), files, revocations, runtime }
    }

    fn administrator(&self, server: &ServerSettings) -> Result<Administrator, CliError> {
        let files = ClientFiles::in_directory(&self.directory.join("admin"));
        Administrator::new(server.administration(&self.directory)?, &files)
    }

    fn admitted(&self, name: &Name, valid: Duration) -> Result<Admission, CliError> {
        let server = ServerSettings::read(&self.directory)?;
        reachable(server.listen, "KMIP", "--listen-kmip")?;
        reachable(server.listen_enrolment, "enrolment", "--listen-enrolment")?;
        let control = claimed_identity(&self.files.read_certificate()?)
            .ok_or_else(|| CliError::Usage("the control plane's certificate names no client".to_owned()))?;
        let administrator = self.administrator(&server)?;
        let made = administrator.ask(CreateToken {
            client: None,
            name: name.as_str().parse().map_err(|error| CliError::Usage(format!("{error}")))?,
            role: Role::Host,
            valid_seconds: Some(u32::try_from(valid.as_secs()).unwrap_or(u32::MAX)),
            public_key: None,
            certificate_days: None,
        })?;
        let token = EnrolmentToken::read(made.token.as_str());
        let token = token.map_err(|error| CliError::Usage(error.to_string()))?;
        let tokens = administrator.ask(Tokens {})?;
        let known = tokens.into_iter().find(|known| known.id == made.id);
        let known = known.ok_or_else(|| CliError::Usage("the key server forgot the token".to_owned()))?;
        Ok(Admission {
            token: made.token.to_string(),
            token_id: made.id,
            expires_unix_seconds: u64::try_from(made.expires_unix_seconds).unwrap_or_default(),
            client: known.client,
            enrolment: server.listen_enrolment,
            kmip: server.listen,
            server_name: server.names.first().cloned(),
            authority: token.authority().to_string(),
            control: control.client,
        })
    }

    fn expelled(&self, token_id: &str, client: ClientId) -> Result<(), CliError> {
        let server = ServerSettings::read(&self.directory)?;
        let administrator = self.administrator(&server)?;
        // The token first, so that no certificate is made after those that exist have ended.
        let tokens = administrator.ask(Tokens {})?;
        if tokens.iter().any(|token| token.id == token_id && token.state == "open") {
            administrator.ask(CancelToken { id: token_id.to_owned() })?;
        }
        let clients = administrator.ask(Clients {})?;
        if clients.iter().any(|known| known.id == client && !known.is_revoked) {
            administrator.ask(RevokeClient { client, reason: "the host was removed".to_owned() })?;
        }
        Ok(())
    }
}

/// Refuses an address that no other machine reaches.
fn reachable(address: SocketAddr, of: &str, option: &str) -> Result<(), CliError> {
    if !address.ip().is_loopback() && !address.ip().is_unspecified() {
        return Ok(());
    }
    Err(CliError::Usage(format!(
        "the key server listens for {of} on {address}, which names this machine to no other one; start `strongroom serve` \
         with {option} ADDRESS:PORT"
    )))
}

impl Joining for JoiningHere {
    fn admit(&self, name: &Name, valid: Duration) -> Result<Admission, KeyProblem> {
        self.admitted(name, valid).map_err(problem)
    }

    fn expel(&self, token_id: &str, client: ClientId) -> Result<(), KeyProblem> {
        self.expelled(token_id, client).map_err(problem)
    }

    fn connect(&self, address: SocketAddr, client: ClientId) -> Arc<dyn Host> {
        let expected = ExpectedPeer { role: Role::Host, client };
        let peer = SitePeer::new(self.files.clone(), expected, Arc::clone(&self.revocations));
        let client = Client::at(address, Arc::new(peer));
        Arc::new(Hostd::new(client, self.runtime.clone()))
    }
}

fn problem(error: CliError) -> KeyProblem {
    match error {
        CliError::Usage(reason) => KeyProblem::Refused(reason),
        other => KeyProblem::Unavailable(other.to_string()),
    }
}
