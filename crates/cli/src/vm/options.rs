//! A VM's hardware on the command line.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use strongroom_api::vm::{Boot, Cpus, Frontend, MachineType, Memory, Nic, NicBackend, RestartPolicy};
use strongroom_types::{VolumeSize, parse_bytes};

use crate::error::CliError;

/// The virtual main board.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum MachineArgument {
    /// PCI Express
    Q35,
    /// The i440FX of old guests
    Pc,
}

impl From<MachineArgument> for MachineType {
    fn from(argument: MachineArgument) -> Self {
        match argument {
            MachineArgument::Q35 => Self::Q35,
            MachineArgument::Pc => Self::Pc,
        }
    }
}

/// How the guest gets at its disks.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum FrontendArgument {
    /// vhost-user-blk, over memory that worker and guest share
    VhostUser,
    /// NBD, through QEMU's block layer
    Nbd,
}

impl From<FrontendArgument> for Frontend {
    fn from(argument: FrontendArgument) -> Self {
        match argument {
            FrontendArgument::VhostUser => Self::VhostUser,
            FrontendArgument::Nbd => Self::Nbd,
        }
    }
}

/// Whether a VM that should run and does not is started again.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RestartArgument {
    /// After a crash, and after the host was without power
    OnFailure,
    /// Only when somebody says so
    Never,
}

impl From<RestartArgument> for RestartPolicy {
    fn from(argument: RestartArgument) -> Self {
        match argument {
            RestartArgument::OnFailure => Self::OnFailure,
            RestartArgument::Never => Self::Never,
        }
    }
}

/// A kernel that is started without a boot loader.
#[derive(Debug, Default, Args)]
pub struct BootArguments {
    /// Start this kernel instead of what is on the first disk; a file in one of the host's boot directories
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,

    /// Its initial ram disk
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,

    /// Its command line; it is shown and logged, so nothing secret belongs in it
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    append: Option<String>,
}

impl BootArguments {
    /// What is booted, if something was said.
    pub fn boot(&self) -> Option<Boot> {
        let kernel = self.kernel.clone()?;
        let arguments = self.append.clone().unwrap_or_default();
        Some(Boot::Kernel { kernel, initrd: self.initrd.clone(), arguments })
    }
}

/// Reads so many processors.
pub fn cpus(count: u32) -> Result<Cpus, CliError> {
    let cpus = Cpus::cores(count);
    cpus.check().map(|()| cpus).map_err(|error| CliError::Usage(error.to_string()))
}

/// Reads a size of memory, as in 512M or 2G.
pub fn parse_memory(text: &str) -> Result<Memory, String> {
    let bytes = parse_bytes(text).map_err(|error| error.to_string())?;
    Memory::new(bytes).map_err(|error| error.to_string())
}

/// Reads a disk's size.
pub fn parse_disk(text: &str) -> Result<VolumeSize, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Reads `user`, `tap=NAME`, `bridge=NAME` or `bridge=NAME,vlan=N`.
pub fn parse_nic(text: &str) -> Result<Nic, String> {
    let unknown =
        || format!("'{text}' is no network: write user, tap=NAME, bridge=NAME or bridge=NAME,vlan=N");
    let backend = match text.split_once('=') {
        None if text == "user" => NicBackend::User {},
        Some(("tap", device)) => NicBackend::Tap { device: device.to_owned() },
        Some(("bridge", rest)) => match rest.split_once(",vlan=") {
            Some((device, vlan)) => {
                let vlan = vlan.parse().map_err(|_| unknown())?;
                NicBackend::Bridge { device: device.to_owned(), vlan: Some(vlan) }
            }
            None => NicBackend::Bridge { device: rest.to_owned(), vlan: None },
        },
        _ => return Err(unknown()),
    };
    Ok(Nic { backend, mac: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_memory_are_read() {
        assert_eq!(parse_nic("user").unwrap().backend, NicBackend::User {});
        let bridge = NicBackend::Bridge { device: "br0".to_owned(), vlan: Some(7) };
        assert_eq!(parse_nic("bridge=br0,vlan=7").unwrap().backend, bridge);
        assert_eq!(parse_nic("tap=t0").unwrap().backend, NicBackend::Tap { device: "t0".to_owned() });
        for bad in ["", "wifi", "bridge=br0,vlan=x", "user=1"] {
            assert!(parse_nic(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_memory("2G").unwrap().bytes(), 2 << 30);
        assert!(parse_memory("1M").is_err());
    }
}
