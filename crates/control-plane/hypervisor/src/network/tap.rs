//! Tap devices, and the bridges that they are added to.
//!
//! The device is opened here and passed to QEMU, which may not open one. A device that was made for
//! a card disappears when QEMU closes it, however QEMU ends.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::{NetworkError, NetworkState, OpenNetwork};
use crate::machine::{InterfaceName, VlanId};

/// The directories of `ip` and `bridge` (iproute2).
const DIRECTORIES: [&str; 3] = ["/usr/sbin", "/usr/bin", "/sbin"];
/// The name pattern of devices for bridges; the kernel fills in a number.
const DEVICE_PATTERN: &str = "strong%d";

/// Opens a device, and creates it if it does not exist.
pub(super) fn open(device: &InterfaceName) -> Result<OpenNetwork, NetworkError> {
    let tap = make(device.as_str())?;
    ready(&tap, device.clone())
}

/// Makes a new device in a bridge.
pub(super) fn in_bridge(bridge: &InterfaceName, vlan: Option<VlanId>) -> Result<OpenNetwork, NetworkError> {
    let tap = make(DEVICE_PATTERN)?;
    let failed =
        |error: io::Error| NetworkError::Tap { action: "name", device: DEVICE_PATTERN.to_owned(), error };
    let name = tap.name().map_err(failed)?;
    let device: InterfaceName = name.parse().map_err(|_| failed(io::ErrorKind::InvalidData.into()))?;
    let run = |program, arguments: &[&str]| {
        run(program, arguments).map_err(|said| NetworkError::Bridge {
            device: device.to_string(),
            bridge: bridge.to_string(),
            said,
        })
    };
    let device_name = device.as_str();
    run("ip", &["link", "set", "dev", device_name, "master", bridge.as_str()])?;
    if let Some(vlan) = vlan {
        // The guest must not be in the bridge's default VLAN.
        let number = vlan.number().to_string();
        run("bridge", &["vlan", "del", "dev", device_name, "vid", "1-4094"])?;
        run("bridge", &["vlan", "add", "dev", device_name, "vid", &number, "pvid", "untagged"])?;
        // A bridge takes VLANs for its ports also while it passes all frames to all of them.
        let shown = run("ip", &["-details", "-json", "link", "show", "dev", bridge.as_str()])?;
        if !separates_vlans(&shown) {
            let said = "it does not separate VLANs: its vlan_filtering is off".to_owned();
            let (device, bridge) = (device.to_string(), bridge.to_string());
            return Err(NetworkError::Bridge { device, bridge, said });
        }
    }
    ready(&tap, device)
}

/// Whether a bridge does, as `ip` shows it.
fn separates_vlans(shown: &str) -> bool {
    let shown: serde_json::Value = serde_json::from_str(shown).unwrap_or_default();
    shown[0]["linkinfo"]["info_data"]["vlan_filtering"] == 1
}

fn make(name: &str) -> Result<SyncDevice, NetworkError> {
    // With the header that QEMU's virtio-net fills in, the host computes checksums and splits
    // segments.
    DeviceBuilder::new()
        .name(name)
        .layer(Layer::L2)
        .offload(true)
        .build_sync()
        .map_err(|error| NetworkError::Tap { action: "open", device: name.to_owned(), error })
}

fn ready(tap: &SyncDevice, device: InterfaceName) -> Result<OpenNetwork, NetworkError> {
    let file = tap.as_fd().try_clone_to_owned().map_err(NetworkError::Sockets)?;
    Ok(OpenNetwork { state: NetworkState::Tap(device), file: Some(file), processes: Vec::new() })
}

/// Runs a program of iproute2. Returns its output, or its errors if it fails.
fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let path =
        DIRECTORIES.iter().map(|directory| Path::new(directory).join(program)).find(|path| path.exists());
    let path = path.ok_or_else(|| format!("{program} is not installed (Debian: iproute2)"))?;
    let output = Command::new(path).args(arguments).env_clear().stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bridge_separates_vlans_only_if_it_says_so() {
        let shown = |data: &str| format!(r#"[{{"linkinfo":{{"info_kind":"bridge","info_data":{data}}}}}]"#);
        assert!(separates_vlans(&shown(r#"{"vlan_filtering":1}"#)));
        for other in [&shown(r#"{"vlan_filtering":0}"#), &shown("{}"), "[{}]", "[]", "", "no JSON"] {
            assert!(!separates_vlans(other), "{other}");
        }
    }
}
