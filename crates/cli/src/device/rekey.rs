//! `strongroom device rekey`: one job for many devices, the same as `volume rekey --kek`.

use std::process::ExitCode;

use clap::Args;
use strongroom_datastore::file::describe;
use strongroom_devices::record::{ClusterName, Device, DeviceName};
use strongroom_jobs::NewKeySource;
use strongroom_jobs::rekey::{Freshness, Rekey, Volumes};
use strongroom_keys::ProviderName;
use strongroom_processes::Signals;

use super::PlaceArguments;
use crate::error::CliError;
use crate::keys::KeyArguments;
use crate::output::Output;
use crate::volume::open::LockArguments;
use crate::volume::rekey::Answer;

/// The arguments of `rekey`.
#[derive(Debug, Args)]
#[command(
    after_help = "No data is copied: the data keys are wrapped under a new key, which is created at the key \
provider. Devices that shared a key share the new one. Programs use the devices meanwhile. If the job is \
interrupted or killed, run it again to continue.

Examples:
  strongroom device rekey osd0
  strongroom device rekey --all
  strongroom device rekey --cluster ceph --to-key-provider corp2"
)]
pub struct RekeyArguments {
    /// Names of the devices
    #[arg(required_unless_present_any = ["all", "cluster"], conflicts_with_all = ["all", "cluster"])]
    names: Vec<DeviceName>,

    /// All devices of this machine
    #[arg(long)]
    all: bool,

    /// All devices of cluster NAME on this machine
    #[arg(long, value_name = "NAME", conflicts_with = "all")]
    cluster: Option<ClusterName>,

    /// Create the new key at key provider NAME [default: the present one]
    #[arg(long, value_name = "NAME")]
    to_key_provider: Option<ProviderName>,

    #[command(flatten)]
    lock: LockArguments,

    #[command(flatten)]
    place: PlaceArguments,
}

impl RekeyArguments {
    /// Runs the command. The exit status tells whether all were moved.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let devices = self.place.devices()?;
        let chosen = self.chosen()?;
        let provider = match &self.to_key_provider {
            Some(provider) => provider.clone(),
            None => present_provider(&chosen)?,
        };
        for device in &chosen {
            describe(&device.volume)?.descriptor.expect_volume(&device.volume, Some(device.volume_id))?;
        }
        let paths: Vec<_> = chosen.iter().map(|device| device.volume.clone()).collect();
        let key = KeyArguments::of_providers(&self.place.home);
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let job = Rekey {
            home: &self.place.places()?.home,
            volumes: &Volumes::these(&paths)?,
            to: &NewKeySource::Provider(provider),
            keyring: &*key.keyring()?,
            present: &key,
            freshness: Freshness::default(),
            lock_wait: self.lock.lock_wait,
            is_interrupted: &|| signals.came(),
        };
        let rekeyed = job.carry_out()?;
        for mut device in chosen {
            let moved = rekeyed.volumes.iter().find(|volume| volume.path == device.volume);
            if let Some(moved) = moved.filter(|moved| moved.generation > device.least_generation) {
                // The descriptors under the earlier key are refused from now on.
                device.attached = devices.get(&device.name)?.attached;
                device.least_generation = moved.generation;
                devices.replace(&device)?;
            }
        }
        let finished = rekeyed.finished;
        output.answer(&Answer(rekeyed))?;
        Ok(if finished { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn chosen(&self) -> Result<Vec<Device>, CliError> {
        let devices = self.place.devices()?;
        if !self.names.is_empty() {
            return Ok(self.names.iter().map(|name| devices.get(name)).collect::<Result<_, _>>()?);
        }
        let all: Vec<Device> = devices.all()?.into_iter().collect::<Result<_, _>>()?;
        let is_chosen = |device: &Device| self.all || device.cluster == self.cluster;
        let chosen: Vec<Device> = all.into_iter().filter(is_chosen).collect();
        match (&self.cluster, chosen.is_empty()) {
            (_, false) => Ok(chosen),
            (Some(cluster), true) => {
                Err(CliError::Usage(format!("no device of this machine is of cluster {cluster}")))
            }
            (None, true) => Err(CliError::Usage("this machine has no devices".to_owned())),
        }
    }
}

/// The provider that all of them have their key at.
fn present_provider(devices: &[Device]) -> Result<ProviderName, CliError> {
    let mut found: Option<ProviderName> = None;
    for device in devices {
        let descriptor = describe(&device.volume)?.descriptor;
        let key = descriptor.encryption.as_ref().and_then(|encryption| encryption.kek.source.provider_key());
        let Some(key) = key else {
            return Err(CliError::Usage(format!("{} is not under a key provider's key", device.name)));
        };
        if found.as_ref().is_some_and(|found| *found != key.provider) {
            let text = "the devices have their keys at several key providers; give --to-key-provider";
            return Err(CliError::Usage(text.to_owned()));
        }
        found = Some(key.provider.clone());
    }
    found.ok_or_else(|| CliError::Usage("this machine has no devices".to_owned()))
}
