//! `strongroom device create`.

use std::fmt;
use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_datastore::file::{
    CreateOptions, DatastoreError, Provisioning, authenticated, create, delete, describe,
};
use strongroom_devices::DeviceError;
use strongroom_devices::record::{ClusterName, Device, DeviceName};
use strongroom_files::FileError;
use strongroom_keys::{KekSource, ProviderKeyId, ProviderName};
use strongroom_types::{BLOCK_BYTES, VolumeSize, display_bytes};

use super::PlaceArguments;
use crate::error::CliError;
use crate::keys::{KeyArguments, NewKeyArguments};
use crate::output::Output;
use crate::volume::create::ProvisioningArguments;

/// Of the file system's free space, what a device of all of it leaves for its own files and the
/// file system's: a part, and an amount.
const LEFT_PART: u64 = 64;
const LEFT_BYTES: u64 = 128 << 20;

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "The device is an encrypted volume in a directory of a mounted file system, for example \
one on a disk of its own. Each device has data keys of its own; the key that wraps them stays at the key \
provider and in memory. Devices of one --cluster on this machine share that key. \
'device attach' makes it a block device: /dev/strongroom/NAME.

A block device such as /dev/sdb needs a file system first: mkfs.xfs /dev/sdb, mount it, and name the \
directory with --on.

Examples:
  strongroom device create osd0 --on /srv/disk0 --all --key-provider corp --cluster ceph
  strongroom device create scratch --on /srv/disk1 --size 100G --key-provider embedded"
)]
pub struct CreateArguments {
    /// Name of the new device
    name: DeviceName,

    /// Existing directory for the device's volume
    #[arg(long, value_name = "DIR")]
    on: PathBuf,

    /// Size, such as 20G, 1.5T or a number of bytes; a multiple of 4096
    #[arg(long, required_unless_present = "all", conflicts_with = "all")]
    size: Option<VolumeSize>,

    /// Take all free space of the file system, and allocate it now
    #[arg(long)]
    all: bool,

    #[command(flatten)]
    provisioning: ProvisioningArguments,

    /// Key provider that has the key
    #[arg(long, value_name = "NAME")]
    key_provider: ProviderName,

    /// Use the existing key KEY at the key provider
    #[arg(long, value_name = "KEY")]
    key_id: Option<ProviderKeyId>,

    /// Share the key of the devices of cluster NAME on this machine; the first one gets a new key
    #[arg(long, value_name = "NAME")]
    cluster: Option<ClusterName>,

    #[command(flatten)]
    place: PlaceArguments,
}

#[derive(Serialize)]
struct Created {
    name: DeviceName,
    volume: PathBuf,
    size_bytes: u64,
    cluster: Option<ClusterName>,
    kek_id: Option<String>,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, volume, size_bytes, .. } = self;
        write!(
            f,
            "created device {name}: {}, in {}; `strongroom device attach {name}` makes it a block device",
            display_bytes(*size_bytes),
            volume.display()
        )
    }
}

impl CreateArguments {
    /// Runs the command. The record comes last: without it, there is no device.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let devices = self.place.devices()?;
        match devices.get(&self.name) {
            Err(DeviceError::NotFound { .. }) => {}
            Ok(_) => return Err(DeviceError::Exists { name: self.name.clone() }.into()),
            Err(error) => return Err(error.into()),
        }
        let directory = self.directory()?;
        let size = self.volume_size(&directory)?;
        let path = directory.join(self.name.as_str());
        if path.symlink_metadata().is_ok() {
            return Err(DatastoreError::Exists { path }.into());
        }
        let key_id = match &self.key_id {
            Some(key) => Some(key.clone()),
            None => self.key_of_cluster()?,
        };
        let arguments = NewKeyArguments::at_provider(&self.place.home, self.key_provider.clone(), key_id);
        let key = arguments.for_new_volume(&path)?;
        let provisioning = if self.all { Provisioning::Thick } else { self.provisioning.into() };
        let integrity = self.provisioning.tags.integrity();
        let options =
            CreateOptions { size, provisioning, protection: key.protection(), log_bytes: None, integrity };
        create(&path, &options)?;
        let descriptor = describe(&path)?.descriptor;
        let generation = descriptor.generation;
        let device =
            Device::new(self.name.clone(), path.clone(), descriptor.volume, generation, self.cluster.clone());
        if let Err(error) = devices.create(&device) {
            // Nobody has written to it.
            delete(&path, std::time::Duration::ZERO)?;
            return Err(error.into());
        }
        output.answer(&Created {
            name: self.name.clone(),
            volume: path,
            size_bytes: size.bytes(),
            cluster: self.cluster.clone(),
            kek_id: descriptor.encryption.map(|encryption| encryption.kek.id.to_string()),
        })
    }

    fn directory(&self) -> Result<PathBuf, CliError> {
        let failed = |error| CliError::File(FileError { action: "use", path: self.on.clone(), error });
        let metadata = self.on.metadata().map_err(failed)?;
        let on = self.on.display();
        if metadata.file_type().is_block_device() {
            return Err(CliError::Usage(format!(
                "{on} is a block device, and a volume needs a file system: `mkfs.xfs {on}`, mount it, and name the \
                 directory with --on"
            )));
        }
        if !metadata.is_dir() {
            return Err(CliError::Usage(format!("{on} is no directory; name one with --on")));
        }
        self.on.canonicalize().map_err(failed)
    }

    fn volume_size(&self, directory: &std::path::Path) -> Result<VolumeSize, CliError> {
        let Some(size) = self.size else { return self.all_free(directory) };
        if size.bytes().is_multiple_of(BLOCK_BYTES) {
            return Ok(size);
        }
        Err(CliError::Usage(format!("the size of a device is a multiple of {BLOCK_BYTES} bytes")))
    }

    fn all_free(&self, directory: &std::path::Path) -> Result<VolumeSize, CliError> {
        let failed = |error| CliError::File(FileError { action: "use", path: directory.to_owned(), error });
        let space = rustix::fs::statvfs(directory).map_err(|errno| failed(errno.into()))?;
        let free = space.f_bavail.saturating_mul(space.f_frsize);
        let bytes = (free - free / LEFT_PART).saturating_sub(LEFT_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
        VolumeSize::new(bytes).map_err(|_| {
            CliError::Usage(format!("{} has only {} free", directory.display(), display_bytes(free)))
        })
    }

    /// The key of the other devices of its cluster, on this machine.
    fn key_of_cluster(&self) -> Result<Option<ProviderKeyId>, CliError> {
        if self.cluster.is_none() {
            return Ok(None);
        }
        for device in self.place.devices()?.all()? {
            let device = device?;
            if device.cluster != self.cluster {
                continue;
            }
            // What lies on the datastore names the key that new data is sealed under: it is
            // authenticated first.
            let key = KeyArguments::of_providers(&self.place.home);
            let unverified = describe(&device.volume)?.descriptor;
            let key = key.for_volume(&device.volume, &unverified, None)?;
            let descriptor = authenticated(&device.volume, key.protection(), device.least_generation)?;
            descriptor.expect_volume(&device.volume, Some(device.volume_id))?;
            let source = descriptor.encryption.map(|encryption| encryption.kek.source);
            match source {
                Some(KekSource::Provider(key)) if key.provider == self.key_provider => {
                    if key.wrapped.is_some() {
                        return Err(CliError::Usage(format!(
                            "key provider {} keeps no keys that volumes could share; leave --cluster out",
                            key.provider
                        )));
                    }
                    return Ok(Some(key.key));
                }
                _ => {
                    return Err(CliError::Usage(format!(
                        "device {} of the same cluster has its key elsewhere; give its key provider, or move it first: \
                         `strongroom device rekey {} --to-key-provider {}`",
                        device.name, device.name, self.key_provider
                    )));
                }
            }
        }
        Ok(None)
    }
}
