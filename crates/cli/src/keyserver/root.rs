//! `strongroom keyserver root`, and the options for root keys.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_crypto::kdf::Argon2idParams;
use strongroom_files::FileError;
use strongroom_keyserver::root::credential::CredentialName;
use strongroom_keyserver::root::passphrase::PassphraseWay;
use strongroom_keyserver::root::token::TokenWay;
use strongroom_keyserver::root::tpm::{PcrSelection, TpmDevice, TpmWay};
use strongroom_keyserver::root::{
    self, Access, Attempt, Description, Protection, RootKey, SecretSource, Way,
};
use strongroom_memory::secret::SecretBytes;

use super::directory::DirectoryArguments;
use super::init::warn;
use crate::error::CliError;
use crate::keys::{ask_once, ask_twice};
use crate::output::{Output, utc};

/// How a root key is protected.
#[derive(Debug, Default, Args)]
pub struct RootArguments {
    /// Seal the root key with this machine's TPM 2.0
    #[arg(long, group = "way")]
    tpm: bool,

    /// With --tpm: seal it to the present values of these PCRs, such as 7 or 0,2,7
    #[arg(long, value_name = "PCRS", value_delimiter = ',', requires = "tpm")]
    pcrs: Vec<u8>,

    /// With --tpm: TPM to use, a device or a socket that carries TPM commands [default:
    /// /dev/tpmrm0]
    #[arg(long, value_name = "PATH", requires = "tpm")]
    tpm_device: Option<PathBuf>,

    /// Seal it with a key in the PKCS#11 token with this label
    #[arg(long, group = "way", value_name = "LABEL", requires = "module")]
    token: Option<String>,

    /// With --token: PKCS#11 module of the token
    #[arg(long, value_name = "FILE", requires = "token")]
    module: Option<PathBuf>,

    /// Seal it with the systemd credential of this name
    #[arg(long, group = "way", value_name = "NAME")]
    credential: Option<String>,

    /// Seal it with a passphrase
    #[arg(long, group = "way")]
    passphrase: bool,

    /// Do not protect it: anyone with a copy of the disk has every key
    #[arg(long, group = "way")]
    unprotected: bool,

    #[command(flatten)]
    secret: SecretArguments,
}

/// The source of a root key's passphrase or of its token's PIN.
#[derive(Debug, Default, Args)]
pub struct SecretArguments {
    /// File with the root key's passphrase or its token's PIN, read now and at each start; it must
    /// be readable only by its owner
    #[arg(long, value_name = "FILE", group = "secret")]
    secret_file: Option<PathBuf>,

    /// File descriptor with the passphrase or PIN, read now; at each start it is asked for or given
    /// again
    #[arg(long, value_name = "N", group = "secret")]
    secret_fd: Option<u32>,

    /// Name of the systemd credential with the passphrase or PIN
    #[arg(long, value_name = "NAME", group = "secret")]
    secret_credential: Option<String>,
}

impl RootArguments {
    /// Makes the root key of a new server, or opens the existing one.
    pub fn create(&self, directory: &Path) -> Result<RootKey, CliError> {
        if directory.join("root.json").exists() {
            return self.secret.open(directory);
        }
        let way = self.way()?;
        let given = self.secret.given(&way, directory)?;
        Ok(root::create(directory, &way, &access(given.as_ref()))?)
    }

    /// A root key that the TPM seals, for any boot state.
    pub fn sealed_by_tpm(device: Option<PathBuf>) -> Self {
        Self { tpm: true, tpm_device: device, ..Self::default() }
    }

    fn way(&self) -> Result<Way, CliError> {
        Ok(match () {
            () if self.tpm => Way::Tpm(TpmWay {
                device: match &self.tpm_device {
                    None => TpmDevice::kernel(),
                    Some(path) => device_at(path)?,
                },
                pcrs: PcrSelection::new(self.pcrs.iter().copied()).map_err(root::RootError::from)?,
            }),
            () if self.passphrase => Way::Passphrase(PassphraseWay {
                source: self.secret.source()?,
                cost: Argon2idParams::calibrated().map_err(root::RootError::from)?,
            }),
            () => match (&self.token, &self.module, &self.credential) {
                (Some(label), Some(module), _) => Way::Token(TokenWay {
                    module: absolute(module)?,
                    label: label.clone(),
                    pin: self.secret.source()?,
                }),
                (_, _, Some(name)) => Way::Credential(CredentialName::new(name)?),
                _ => Way::PlainFile,
            },
        })
    }
}

impl SecretArguments {
    /// Opens the root key of an existing server, and asks a person if necessary.
    pub fn open(&self, directory: &Path) -> Result<RootKey, CliError> {
        let mut given = match self.secret_fd {
            Some(number) => Some(root::read_descriptor(number)?),
            None => None,
        };
        match root::open(directory, &access(given.as_ref())) {
            Err(root::RootError::NotGiven { what }) => {
                given = Some(ask_once(
                    directory,
                    &format!("The {what} of the root key of {}", directory.display()),
                )?);
                Ok(root::open(directory, &access(given.as_ref()))?)
            }
            opened => Ok(opened?),
        }
    }

    fn source(&self) -> Result<SecretSource, CliError> {
        Ok(match (&self.secret_file, &self.secret_credential) {
            (Some(path), _) => SecretSource::File { path: absolute(path)? },
            (None, Some(name)) => SecretSource::Credential { name: CredentialName::new(name)? },
            (None, None) => SecretSource::Given {},
        })
    }

    /// The secret from a person or a descriptor, if the way of protection needs one.
    fn given(&self, way: &Way, directory: &Path) -> Result<Option<SecretBytes>, CliError> {
        if let Some(number) = self.secret_fd {
            return Ok(Some(root::read_descriptor(number)?));
        }
        match way {
            Way::Passphrase(PassphraseWay { source: SecretSource::Given {}, .. }) => {
                ask_twice(&directory.join("root.json")).map(Some)
            }
            Way::Token(TokenWay { pin: SecretSource::Given {}, label, .. }) => {
                ask_once(directory, &format!("PIN of token {label}")).map(Some)
            }
            _ => Ok(None),
        }
    }
}

fn access(given: Option<&SecretBytes>) -> Access<'_> {
    let attempt = if given.is_some() { Attempt::Attended } else { Attempt::Unattended };
    Access { given, attempt, ..Access::of_this_service() }
}

fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path)
        .map_err(|error| CliError::File(FileError { action: "find", path: path.to_owned(), error }))
}

/// The TPM at a path, which is a device or a socket.
fn device_at(path: &Path) -> Result<TpmDevice, CliError> {
    use std::os::unix::fs::FileTypeExt;
    let path = absolute(path)?;
    let metadata = std::fs::metadata(&path)
        .map_err(|error| CliError::File(FileError { action: "find the TPM", path: path.clone(), error }))?;
    Ok(if metadata.file_type().is_socket() { TpmDevice::Socket { path } } else { TpmDevice::Device { path } })
}

/// The commands for a root key.
#[derive(Debug, Subcommand)]
pub enum RootCommand {
    /// Show the protection of the root key
    Show(ShowArguments),
    /// Change the protection of the root key, or seal it again; the server must not run
    Seal(SealArguments),
}

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver root show")]
pub struct ShowArguments {
    #[command(flatten)]
    directory: DirectoryArguments,
}

/// The arguments of `seal`.
#[derive(Debug, Args)]
#[command(after_help = "A person who got the root key earlier, from a copy of the disk when it was \
unprotected, still has it: in that case create a new server, and restore a backup into it.

Examples:
  strongroom keyserver root seal --tpm --pcrs 7
  strongroom keyserver root seal --passphrase --secret-fd 3 3<passphrase")]
pub struct SealArguments {
    #[command(flatten)]
    directory: DirectoryArguments,

    #[command(flatten)]
    root: RootArguments,

    /// File descriptor with the present passphrase or PIN
    #[arg(long, value_name = "N")]
    present_fd: Option<u32>,
}

/// The description of a root key's protection.
#[derive(Serialize)]
struct Shown {
    directory: PathBuf,
    #[serde(flatten)]
    root: Description,
}

impl RootCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let directory = match self {
            Self::Show(arguments) => arguments.directory.path()?,
            Self::Seal(arguments) => arguments.seal()?,
        };
        let credentials = Access::of_this_service().credentials_directory;
        let root = root::describe(&directory, credentials.as_deref())?;
        warn(output, &root);
        output.answer(&Shown { directory, root })
    }
}

impl SealArguments {
    fn seal(&self) -> Result<PathBuf, CliError> {
        let directory = self.directory.path()?;
        let present =
            SecretArguments { secret_file: None, secret_fd: self.present_fd, secret_credential: None };
        let key = present.open(&directory)?;
        let way = self.root.way()?;
        let given = self.root.secret.given(&way, &directory)?;
        root::reseal(&directory, &key, &way, &access(given.as_ref()))?;
        Ok(directory)
    }
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Description { id, protection, by, generation, sealed_unix_seconds, .. } = &self.root;
        let weak = if *protection == Protection::Unprotected { " (see the warning)" } else { "" };
        writeln!(f, "{}", self.directory.display())?;
        writeln!(f, "  protection  {protection}{weak}")?;
        writeln!(f, "  by          {by}")?;
        writeln!(f, "  root        {id}")?;
        write!(f, "  sealed      {} (seal {generation})", utc(*sealed_unix_seconds))
    }
}
