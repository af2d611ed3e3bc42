//! `strongroom keyserver run`.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::datastores::KnownDatastores;
use strongroom_keyserver::Settings;
use strongroom_keyserver::broker::Upstream;
use strongroom_keyserver::process::{Addresses, KeyServerProcess, ProcessSettings, open_state};
use strongroom_keyserver::root::{self, Protection};
use strongroom_kmip::server::ServerLimits;
use strongroom_providers::EMBEDDED;
use time::OffsetDateTime;
use tokio::signal::unix::{SignalKind, signal};

use super::directory::{DirectoryArguments, ServerSettings, SettingsArguments, listen_for_administration};
use super::init;
use super::own_certificates::OwnCertificates;
use super::root::SecretArguments;
use super::syslog::SyslogSettings;
use super::upstream::BrokeredProviders;
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::output::Output;

/// The interval of checks whether a certificate of this machine expires soon.
const RENEWAL_LOOKED_AT_EVERY: Duration = Duration::from_secs(3600);

/// The arguments of `run`.
#[derive(Debug, Args)]
#[command(
    after_help = "Runs in the foreground. When clients can connect, the first lines on stdout show the \
addresses. SIGTERM, SIGINT (Control-C) and SIGHUP end it after the current requests.

If there is no state yet, it is created, with a root key that the TPM seals if one is usable, and that \
is otherwise unprotected. This machine becomes the server's administrator and client, so that 'volume \
create --key-provider embedded' works without further setup. For production, run 'keyserver init' first, \
and choose the protection of the root key.

Keys are released only to clients with certificates. Other services are off by default: computing with \
keys (--offer encrypt, mac, hash) and random bytes (--offer random).

Examples:
  strongroom keyserver run
  strongroom keyserver run --syslog logs.example.org --syslog-ca /etc/ssl/logs-ca.pem
  strongroom keyserver run --audit-keep-size 10G
  strongroom keyserver run --broker corp
  strongroom keyserver run --directory /srv/kms --listen 10.0.0.5:5696 --secret-fd 3 3<passphrase"
)]
pub struct RunArguments {
    #[command(flatten)]
    directory: DirectoryArguments,

    #[command(flatten)]
    settings: SettingsArguments,

    #[command(flatten)]
    secret: SecretArguments,

    /// TPM that seals the root key of a new server, a device or a socket [default: /dev/tpmrm0]
    #[arg(long, value_name = "PATH")]
    tpm_device: Option<PathBuf>,

    /// KMIP service to offer; repeatable
    #[arg(long, value_enum, value_name = "SERVICE")]
    offer: Vec<Offer>,

    /// Least delay of a key's destruction. Values below an hour are for tests: a person who can
    /// start the server could then destroy keys before a second person reacts, and 'keyserver
    /// status' warns of it
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_seconds)]
    destroy_delay_min: u64,
}

/// Services that are off by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Offer {
    Encrypt,
    Mac,
    Hash,
    Random,
}

#[derive(Serialize)]
struct Serving {
    directory: PathBuf,
    kmip: SocketAddr,
    enrolment: SocketAddr,
    authority: String,
    root: Protection,
    pid: u32,
}

impl RunArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let directory = self.directory.path()?;
        self.settings.check(&self.directory.home)?;
        let home = self.directory.home.path()?;
        if !directory.join("root.json").exists() {
            init::make_unasked(&self.directory, self.tpm_device.as_deref(), &self.settings)?;
            output.remark(&format!(
                "Made {}, and key provider '{EMBEDDED}' for this machine. Next, in another terminal:\n  \
                 strongroom volume create ./ds/vm1 --size 20G --key-provider {EMBEDDED}",
                directory.display()
            ));
        }
        let before = ServerSettings::read(&directory)?;
        let settings = self.settings.over(before.clone())?;
        let key = self.secret.open(&directory)?;
        let description =
            root::describe(&directory, root::Access::of_this_service().credentials_directory.as_deref())?;
        init::warn(output, &description);
        let state = open_state(&directory, &key, settings.authority(), settings.audit.options())?;
        let authority = state.authority.fingerprint().to_string();
        // From here on only derived keys are needed.
        drop(key);
        let own = OwnCertificates::new(&state.authority, &state.audit, &home, &directory);
        own.renew(OffsetDateTime::now_utc());
        let runtime = tokio::runtime::Runtime::new().map_err(CliError::Runtime)?;
        runtime.block_on(async {
            let (mut interrupt, mut terminate, mut hang_up) = (
                signal(SignalKind::interrupt()).map_err(CliError::Runtime)?,
                signal(SignalKind::terminate()).map_err(CliError::Runtime)?,
                signal(SignalKind::hangup()).map_err(CliError::Runtime)?,
            );
            // Datastores that are recorded while it serves count too.
            let dependents = Arc::new(KnownDatastores::of_home(&home));
            // Its file is removed when the server has ended.
            let administration = listen_for_administration(&directory)?;
            let socket = administration.as_ref().map(|socket| socket.as_fd().try_clone_to_owned());
            let socket = socket.transpose().map_err(CliError::Runtime)?;
            let service = self.service(&settings, socket)?;
            let service = KeyServerProcess::bind(state, service, dependents).await?;
            let Addresses { kmip, enrolment } = service.addresses();
            init::remember(&home, &directory, &before, &settings)?;
            let (root, pid) = (description.protection, std::process::id());
            output.answer(&Serving { directory, kmip, enrolment, authority, root, pid })?;
            let own = own.of_nobody_else();
            let renewing = tokio::spawn(async move {
                let mut hours = tokio::time::interval(RENEWAL_LOOKED_AT_EVERY);
                loop {
                    hours.tick().await;
                    let own = own.clone();
                    let _ = tokio::task::spawn_blocking(move || own.renew(OffsetDateTime::now_utc())).await;
                }
            });
            let told = async {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hang_up.recv() => {}
                }
            };
            let served = service.run(told).await;
            renewing.abort();
            Ok(served?)
        })
    }

    fn service(
        &self,
        settings: &ServerSettings,
        administration: Option<OwnedFd>,
    ) -> Result<ProcessSettings, CliError> {
        let is_on = |offer| self.offer.contains(&offer);
        let collector = settings.syslog.as_ref().map(SyslogSettings::collector).transpose()?;
        let upstream = match settings.brokered.as_slice() {
            [] => None,
            names => {
                let home = self.directory.home.path()?;
                Some(Arc::new(BrokeredProviders::new(&home, names.to_vec())?) as Arc<dyn Upstream>)
            }
        };
        Ok(ProcessSettings {
            collector,
            upstream,
            retention: settings.audit.retention(),
            kmip: settings.listen,
            enrolment: settings.listen_enrolment,
            administration,
            offered: Settings {
                encrypt: is_on(Offer::Encrypt),
                mac: is_on(Offer::Mac),
                hash: is_on(Offer::Hash),
                random: is_on(Offer::Random),
                delayed_destruction: true,
            },
            limits: ServerLimits::default(),
            destruction_delay_min_seconds: i64::try_from(self.destroy_delay_min).unwrap_or(i64::MAX),
        })
    }
}

impl fmt::Display for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "kmip {}", self.kmip)?;
        writeln!(f, "enrolment {}", self.enrolment)?;
        write!(
            f,
            "\n{} serves keys until Control-C or SIGTERM (root key: {}).\nAuthority {}",
            self.directory.display(),
            self.root,
            self.authority
        )
    }
}
