//! `strongroom keyserver restore`.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::Serialize;
use strongroom_keys::ProviderName;
use strongroom_keyserver::access::{ClientName, Role};
use strongroom_keyserver::backup::{Content, Restored};
use strongroom_keyserver::process::open_state;
use strongroom_keyserver::recovery::{ServerTarget, recertify};
use strongroom_keyserver::state::State;
use strongroom_providers::{EMBEDDED, Registry, SourceConfig};
use time::OffsetDateTime;

use super::certificates::{ClientFiles, NewKey};
use super::directory::{DirectoryArguments, ServerSettings};
use super::root::SecretArguments;
use super::shares::ShareArguments;
use crate::error::CliError;
use crate::output::{Output, utc};

/// The arguments of `restore`.
#[derive(Debug, Args)]
#[command(after_help = "The server must not run. On a new machine, create one first with 'keyserver init': \
everything is sealed again under its root key. The restore needs the shares of as many custodians as the \
backup requires ('keyserver custodian list'); each custodian opens one with 'keyserver custodian \
open-share' or OpenSSL. Shares come from files, from file descriptors, or are typed, never from the \
command line.

Nothing changes until the whole backup has been verified and staged; then one step makes it the server's \
state. A restore that was killed is started again. Keys that were destroyed remain destroyed, whether \
the backup or the present server recorded it. Certificates of the backed-up server's clients work again; \
later enrolments and revocations are not in the backup.

Examples:
  strongroom keyserver init --tpm --name kms1.example.org
  strongroom keyserver restore kms.backup --share ada.share --share grace.share
  strongroom keyserver restore kms.backup --share-fd 3 --share-fd 4 --replace 3<ada.share 4<grace.share")]
pub struct RestoreArguments {
    /// File of the backup
    backup: PathBuf,

    #[command(flatten)]
    shares: ShareArguments,

    /// Restore even if the server has keys; those that the backup lacks are lost
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    directory: DirectoryArguments,

    #[command(flatten)]
    secret: SecretArguments,
}

/// The result of a restore.
#[derive(Serialize)]
struct Answer {
    directory: PathBuf,
    #[serde(flatten)]
    restored: Restored,
    /// SHA-256 of the authority's certificate.
    authority: String,
    /// Clients of this machine that got a new certificate.
    recertified: Vec<String>,
}

impl RestoreArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let directory = self.directory.path()?;
        let session = self.shares.open(&self.backup, Content::KeyServer)?;
        session.verify()?;
        if !directory.join("root.json").exists() {
            return Err(CliError::NothingToRestoreInto { directory });
        }
        let settings = ServerSettings::read(&directory)?;
        let key = self.secret.open(&directory)?;
        let restored = session.restore(&mut ServerTarget::open(&directory, &key)?, self.replace)?;
        // Record it.
        let state = open_state(&directory, &key, settings.authority(), settings.audit.options())?;
        let recertified = self.recertify(&state, &settings)?;
        let authority = state.authority.fingerprint().to_string();
        output.answer(&Answer { directory, restored, authority, recertified })
    }

    /// Issues certificates to this machine's own administrator and client, if the restored
    /// authority does not accept theirs.
    fn recertify(&self, state: &State, settings: &ServerSettings) -> Result<Vec<String>, CliError> {
        let mut own = vec![(Role::Admin, "admin", ClientFiles::in_directory(&state.directory.join("admin")))];
        own.extend(self.own_provider(settings)?.map(|files| (Role::Client, "local", files)));
        let mut recertified = Vec::new();
        for (role, name, files) in own {
            files.settle()?;
            if is_let_in(state, &files) {
                continue;
            }
            let client: ClientName = name.parse().map_err(|error| CliError::Usage(format!("{error}")))?;
            let key = NewKey::generate()?;
            let issued = recertify(state, role, &client, &key.signing_request)?;
            files.write(&key, &issued.record.pem(), &issued.roots_pem())?;
            recertified.push(name.to_owned());
        }
        Ok(recertified)
    }

    /// The files of this machine's key provider if it belongs to this server, and not to another
    /// one.
    fn own_provider(&self, settings: &ServerSettings) -> Result<Option<ClientFiles>, CliError> {
        let registry = Registry::of_home(&self.directory.home.path()?);
        let name: ProviderName = EMBEDDED
            .parse()
            .map_err(|error: strongroom_keys::ProviderNameError| CliError::Usage(error.to_string()))?;
        let Ok(config) = registry.get(&name) else { return Ok(None) };
        Ok(match config.source {
            SourceConfig::Embedded(kmip) if kmip.servers == [settings.listen.to_string()] => {
                Some(ClientFiles { ca: kmip.ca, certificate: kmip.certificate, key: kmip.key })
            }
            _ => None,
        })
    }
}

/// Whether the server accepts the certificate in the files.
fn is_let_in(state: &State, files: &ClientFiles) -> bool {
    let certificate = CertificateDer::from_pem_file(&files.certificate).ok();
    let now = OffsetDateTime::now_utc();
    files.are_there()
        && certificate.is_some_and(|certificate| state.authority.identify(&certificate, now).is_ok())
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Restored { backup, opened_by, buried } = &self.restored;
        let names: Vec<_> = opened_by.iter().map(ToString::to_string).collect();
        let made = utc(backup.created_unix_seconds);
        writeln!(f, "{} is what the key server was on {made}", self.directory.display())?;
        writeln!(f, "  backup      {}, opened by {}", backup.id, names.join(", "))?;
        writeln!(f, "  keys        {}", backup.counts.objects - buried)?;
        if *buried > 0 {
            writeln!(f, "  stay dead   {buried} that the backup has and were destroyed since")?;
        }
        writeln!(f, "  authority   {}", self.authority)?;
        for name in &self.recertified {
            writeln!(f, "  new certificate for {name}, of this machine")?;
        }
        write!(
            f,
            "\nNext: strongroom keyserver run. Then revoke again whom and what was revoked since that day, and enrol again who was enrolled."
        )
    }
}
