//! What is kept of a device: a file in the home, without secrets.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use strongroom_types::VolumeId;

use crate::error::{DeviceError, file};

strongroom_types::name_type! {
    /// The name of a device ([`strongroom_types::check_name`]).
    DeviceName
}
strongroom_types::name_type! {
    /// The name of the devices that share a key ([`strongroom_types::check_name`]).
    ClusterName
}

/// The records' directory in the home.
const DIRECTORY: &str = "devices";
/// The ending of a record's name.
const ENDING: &str = ".json";
/// The format of records.
const FORMAT: u32 = 1;
/// The longest record: a path and some names.
const RECORD_BYTES_MAX: u64 = 16 << 10;

/// A device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Device {
    format: u32,
    /// Its name.
    pub name: DeviceName,
    /// Its volume's directory, absolute.
    pub volume: PathBuf,
    /// Its volume's id: whoever writes the datastore could put another volume under the same key
    /// there.
    pub volume_id: VolumeId,
    /// The least generation of the volume's descriptor that is accepted.
    pub least_generation: u64,
    /// The devices that it shares its key with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<ClusterName>,
    /// Whether it is to be attached, now and after each start of the machine.
    pub attached: bool,
}

impl Device {
    /// A device that is not attached yet.
    pub fn new(
        name: DeviceName,
        volume: PathBuf,
        volume_id: VolumeId,
        least_generation: u64,
        cluster: Option<ClusterName>,
    ) -> Self {
        Self { format: FORMAT, name, volume, volume_id, least_generation, cluster, attached: false }
    }
}

/// The devices of a home.
#[derive(Clone, Debug)]
pub struct Devices {
    directory: PathBuf,
}

impl Devices {
    /// Those of this home; there may be none yet.
    pub fn of_home(home: &Path) -> Self {
        Self { directory: home.join(DIRECTORY) }
    }

    /// The directory of the records, which is made if it is missing.
    ///
    /// # Errors
    /// [`DeviceError::File`].
    pub fn directory(&self) -> Result<&Path, DeviceError> {
        std::fs::create_dir_all(&self.directory).map_err(file("create", &self.directory))?;
        Ok(&self.directory)
    }

    /// One device.
    ///
    /// # Errors
    /// [`DeviceError::NotFound`], [`DeviceError::Record`], [`DeviceError::File`].
    pub fn get(&self, name: &DeviceName) -> Result<Device, DeviceError> {
        let path = self.path(name);
        let bytes = strongroom_files::read(&path, RECORD_BYTES_MAX).map_err(|error| match error.kind() {
            ErrorKind::NotFound => DeviceError::NotFound { name: name.clone() },
            _ => file("read", &path)(error),
        })?;
        let refused = |why: String| DeviceError::Record { path: path.clone(), why };
        let format: Format = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
        if format.format > FORMAT {
            return Err(refused(format!("it is of format {}, of a newer version", format.format)));
        }
        let device: Device = serde_json::from_slice(&bytes).map_err(|error| refused(error.to_string()))?;
        if device.name != *name {
            return Err(refused(format!("it is that of {}", device.name)));
        }
        Ok(device)
    }

    /// All of them, by name. One that cannot be read is an error in its place.
    ///
    /// # Errors
    /// [`DeviceError::File`] if the directory cannot be read.
    pub fn all(&self) -> Result<Vec<Result<Device, DeviceError>>, DeviceError> {
        let paths = match strongroom_files::list(&self.directory, ENDING) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            listed => listed.map_err(file("list", &self.directory))?,
        };
        let name = |path: &Path| path.file_name()?.to_str()?.strip_suffix(ENDING)?.parse::<DeviceName>().ok();
        let mut names: Vec<DeviceName> = paths.iter().filter_map(|path| name(path)).collect();
        names.sort();
        Ok(names.iter().map(|name| self.get(name)).collect())
    }

    /// Keeps a new device.
    ///
    /// # Errors
    /// [`DeviceError::Exists`], [`DeviceError::File`].
    pub fn create(&self, device: &Device) -> Result<(), DeviceError> {
        self.directory()?;
        let path = self.path(&device.name);
        strongroom_files::create(&path, &text(device)).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => DeviceError::Exists { name: device.name.clone() },
            _ => file("write", &path)(error),
        })
    }

    /// Keeps a changed device.
    ///
    /// # Errors
    /// [`DeviceError::File`].
    pub fn replace(&self, device: &Device) -> Result<(), DeviceError> {
        let path = self.path(&device.name);
        strongroom_files::replace(&path, &text(device)).map_err(file("write", &path))
    }

    /// Forgets a device.
    ///
    /// # Errors
    /// [`DeviceError::File`].
    pub fn remove(&self, name: &DeviceName) -> Result<(), DeviceError> {
        let path = self.path(name);
        strongroom_files::remove(&path).map(drop).map_err(file("remove", &path))
    }

    fn path(&self, name: &DeviceName) -> PathBuf {
        self.directory.join(format!("{name}{ENDING}"))
    }
}

/// What is read of a record first.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

fn text(device: &Device) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(device).unwrap_or_default();
    text.push(b'\n');
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_kept_whole_and_an_odd_one_is_refused() {
        let home = tempfile::tempdir().unwrap();
        let devices = Devices::of_home(home.path());
        assert!(devices.all().unwrap().is_empty());
        let name: DeviceName = "osd0".parse().unwrap();
        let cluster = Some("ceph".parse().unwrap());
        let device =
            Device::new(name.clone(), "/srv/devices/osd0".into(), VolumeId::from_bytes([7; 16]), 3, cluster);
        devices.create(&device).unwrap();
        assert_eq!(devices.get(&name).unwrap(), device);
        assert!(matches!(devices.create(&device), Err(DeviceError::Exists { .. })));
        let path = devices.path(&name);
        for (odd, said) in [
            (r#"{"format": 2}"#, "newer"),
            (r#"{"format": 1, "x": 1}"#, "unknown field"),
            ("", "EOF"),
            (&String::from_utf8(text(&device)).unwrap().replace("\"osd0\"", "\"osd1\""), "osd1"),
        ] {
            std::fs::write(&path, odd).unwrap();
            let refused = devices.get(&name).unwrap_err().to_string();
            assert!(refused.contains(said), "{refused}");
            assert!(devices.all().unwrap()[0].is_err());
        }
        devices.remove(&name).unwrap();
        assert!(matches!(devices.get(&name), Err(DeviceError::NotFound { .. })));
    }
}
