//! Opens a volume from the command line.

use std::path::Path;
use std::time::Duration;

use clap::Args;
use strongroom_datastore::file::{
    Access, DatastoreError, Deks, DescribedVolume, Descriptor, OpenLayer, OpenOptions, OpenVolume,
    Protection, VolumeHead, describe, open, open_apart,
};
use strongroom_jobs::rekey::Freshness;
use strongroom_keys::Kek;
use strongroom_types::{KekId, VolumeId};

use crate::error::CliError;
use crate::keys::{KeyArguments, VolumeKey};

/// The longest wait: a day exceeds any useful wait, and is far from overflows in time arithmetic.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(86_400);

/// How to open the volume: its key, and its expected identity.
#[derive(Debug, Args)]
pub struct OpenArguments {
    #[command(flatten)]
    pub key: KeyArguments,

    #[command(flatten)]
    pub freshness: FreshnessArguments,

    #[command(flatten)]
    pub lock: LockArguments,
}

/// How long to wait for the volume's lock.
#[derive(Clone, Copy, Debug, Args)]
pub struct LockArguments {
    /// How long to wait for another process to release the volume, such as 3s, 500ms or 2m. A
    /// killed process releases it within a tenth of a second, later on a slow disk
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_duration)]
    pub lock_wait: Duration,
}

/// What the volume is expected to be.
#[derive(Clone, Copy, Debug, Args)]
pub struct FreshnessArguments {
    /// Refuse a volume whose descriptor is older than generation N, as after the restore of an old
    /// copy
    #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    pub least_generation: u64,

    /// Refuse a volume with another KEK: the owner of an earlier KEK could have forged its
    /// descriptor
    #[arg(long, value_name = "KEK-ID")]
    pub expect_kek: Option<KekId>,

    /// Refuse a volume with another id
    #[arg(long, value_name = "VOLUME-ID")]
    pub expect_volume: Option<VolumeId>,
}

impl From<FreshnessArguments> for Freshness {
    fn from(arguments: FreshnessArguments) -> Self {
        let FreshnessArguments { least_generation, expect_kek, expect_volume } = arguments;
        Self { least_generation, expect_kek, expect_volume }
    }
}

impl FreshnessArguments {
    /// Whether any expectation was given.
    pub fn are_given(&self) -> bool {
        self.least_generation > 0 || self.expect_kek.is_some() || self.expect_volume.is_some()
    }

    /// Checks an unopened volume: that it is the expected one, and no older than known.
    pub fn verify(&self, path: &Path, descriptor: &Descriptor) -> Result<(), DatastoreError> {
        descriptor.expect_volume(path, self.expect_volume)?;
        descriptor.expect_generation(path, self.least_generation)
    }
}

impl OpenArguments {
    /// Asks for the key of the volume at `path`, and opens it.
    pub fn open(&self, path: &Path, access: Access) -> Result<(OpenVolume, VolumeKey), CliError> {
        let key = self.ask_for_key(path)?;
        let volume = open(path, &self.options(&key, access))?;
        volume.descriptor().expect_volume(path, self.freshness.expect_volume)?;
        Ok((volume, key))
    }

    /// As [`open`](Self::open), for two processes. `under` says what protection is accepted, of the
    /// volume's key and the next one.
    pub fn open_apart(
        &self,
        path: &Path,
        access: Access,
        next: Option<&Kek>,
        under: impl for<'k> FnOnce(&'k VolumeKey, Option<&'k Kek>) -> Protection<'k>,
    ) -> Result<(VolumeHead, OpenLayer, Deks, VolumeKey), CliError> {
        let key = self.ask_for_key(path)?;
        let protection = under(&key, next);
        let options = OpenOptions { protection, ..self.options(&key, access) };
        let (mut head, layer, deks) = open_apart(path, &options)?;
        head.descriptor().expect_volume(path, self.freshness.expect_volume)?;
        if access == Access::ReadWrite {
            head.resolve_group(protection)?;
        }
        Ok((head, layer, deks, key))
    }

    /// Asks for the key of the volume at `path`.
    pub fn ask_for_key(&self, path: &Path) -> Result<VolumeKey, CliError> {
        let DescribedVolume { descriptor, .. } = describe(path)?;
        self.key.for_volume(path, &descriptor, self.freshness.expect_kek)
    }

    /// The options that open the volume with this key.
    pub fn options<'a>(&self, key: &'a VolumeKey, access: Access) -> OpenOptions<'a> {
        OpenOptions {
            protection: key.protection(),
            access,
            lock_wait: self.lock.lock_wait,
            least_generation: self.freshness.least_generation,
        }
    }
}

/// Parses `3s`, `500ms`, `2m` or `1h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let number_end = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let milliseconds = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(format!("'{text}' is not a time; write 3s, 500ms or 2m")),
    };
    let number: u64 = number.parse().map_err(|_| format!("'{text}' is not a time; write 3s, 500ms or 2m"))?;
    let duration = Duration::from_millis(number.saturating_mul(milliseconds));
    if duration > LOCK_WAIT_MAX {
        return Err(format!("'{text}' is too long; the longest wait is 24h"));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        assert_eq!(parse_duration("3s"), Ok(Duration::from_secs(3)));
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("24h"), Ok(LOCK_WAIT_MAX));
        for text in
            ["", "3", "s", "-1s", "25h", "99999999999999999999s", "18446744073709551615h", "1.5s", "3 s"]
        {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
