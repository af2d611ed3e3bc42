//! `strongroom volume create`.

use std::fmt;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use strongroom_datastore::file::{CreateOptions, DatastoreError, Integrity, Provisioning, create, describe};
use strongroom_types::{VolumeSize, display_bytes};

use super::describe::VolumeFacts;
use crate::error::CliError;
use crate::keys::NewKeyArguments;
use crate::output::Output;

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --key-provider, --key-file, --passphrase-fd or --unencrypted you are asked for \
a passphrase, twice. If you lose the passphrase or the key file, you lose the volume: there is no other \
way to open it.

Examples:
  strongroom volume create ./ds/vm1 --size 20G
  strongroom volume create ./ds/vm1 --size 20G --key-provider corp
  strongroom volume create ./ds/vm1 --size 20G --key-provider corp --key-id 8d2b... --grant vm1.grant
  (umask 077; head -c 32 /dev/urandom > vm1.key)
  strongroom volume create ./ds/vm1 --size 20G --key-file vm1.key"
)]
pub struct CreateArguments {
    /// Path of the new volume, in the datastore's directory; the last missing directory is created
    path: PathBuf,

    /// Size that the guest sees, such as 20G, 1.5T or a number of bytes; a multiple of 512 from
    /// 4096 to 64T
    #[arg(long)]
    size: VolumeSize,

    #[command(flatten)]
    provisioning: ProvisioningArguments,

    #[command(flatten)]
    key: NewKeyArguments,
}

/// How the blocks of a volume are tagged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum TagAlgorithm {
    /// AES-256 of POLYVAL: the fastest
    #[value(name = "polyval-aes-256")]
    PolyvalAes,
    /// Approved by FIPS, and the only one of a FIPS build
    #[value(name = "hmac-sha256")]
    HmacSha256,
}

/// Tags of blocks.
#[derive(Clone, Copy, Debug, Args)]
pub struct TagArguments {
    /// Store a keyed tag for every block, so that reads detect a block that is damaged, misplaced
    /// or replaced by an old one; takes 1/256 of the space, and time. Only for encrypted volumes
    /// [default algorithm: the fastest]
    #[arg(long, value_name = "ALGORITHM", num_args = 0..=1, require_equals = true)]
    #[allow(clippy::option_option, reason = "clap: the option, and its value")]
    integrity: Option<Option<TagAlgorithm>>,
}

impl TagArguments {
    /// How blocks are to be tagged, if they are.
    pub fn integrity(self) -> Option<Integrity> {
        self.integrity.map(|algorithm| match algorithm {
            None => Integrity::NEW,
            Some(TagAlgorithm::PolyvalAes) => Integrity::PolyvalAesAbsence,
            Some(TagAlgorithm::HmacSha256) => Integrity::HmacSha256Absence,
        })
    }
}

/// Provisioning, and integrity tags.
#[derive(Clone, Copy, Debug, Args)]
pub struct ProvisioningArguments {
    /// Allocate all space now and keep it; by default it is allocated on write, and discards free
    /// it
    #[arg(long)]
    thick: bool,

    #[command(flatten)]
    pub tags: TagArguments,
}

impl From<ProvisioningArguments> for Provisioning {
    fn from(arguments: ProvisioningArguments) -> Self {
        if arguments.thick { Self::Thick } else { Self::Thin }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct Created(VolumeFacts);

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(volume) = self;
        let protection = if volume.encryption.is_some() { "encrypted" } else { "NOT encrypted" };
        let (path, size) = (volume.path.display(), display_bytes(volume.size_bytes));
        write!(f, "created {path}: {size}, {}, {protection}", volume.provisioning)
    }
}

impl CreateArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        // Check this before a person thinks of a passphrase in vain.
        if self.path.symlink_metadata().is_ok() {
            return Err(DatastoreError::Exists { path: self.path.clone() }.into());
        }
        let key = self.key.for_new_volume(&self.path)?;
        let options = CreateOptions {
            size: self.size,
            provisioning: self.provisioning.into(),
            protection: key.protection(),
            log_bytes: None,
            integrity: self.provisioning.tags.integrity(),
        };
        create(&self.path, &options)?;
        output.answer(&Created(VolumeFacts::from(&describe(&self.path)?)))
    }
}
