//! A VM's hardware on the command line.

use std::path::{Path, PathBuf};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use strongroom_api::vm::{Boot, Cdrom, Nic, NicBackend, RestartPolicy};
use strongroom_api::{Name, Reference};
use strongroom_files::FileError;
use strongroom_types::VolumeSize;
use strongroom_vm::{
    BootDevice, BootError, Cpus, DiskFrontend, Growth, InterfaceName, MachineType, MachineVersion,
    MemorySize, NetworkError, ProcessorModel, VlanId,
};

use crate::api::parse_reference;
use crate::error::CliError;

/// Where a new VM is, and what it keeps to.
#[derive(Debug, Args)]
pub struct PlaceArguments {
    /// Datastore [default: the only one]
    #[arg(long, value_name = "NAME")]
    pub datastore: Option<String>,

    /// Host of the VM [default: the one that fits best of those that reach the datastore]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// Folder of the VM; roles that count in it count for the VM
    #[arg(long, value_name = "FOLDER", value_parser = parse_reference)]
    pub folder: Option<Reference>,

    /// Policy of the VM
    #[arg(long, value_name = "NAME")]
    pub policy: Option<String>,
}

/// The version of the main board, and the processor.
#[derive(Clone, Debug, Args)]
pub struct BoardArguments {
    /// Version of the main board, such as pc-q35-7.2. `strongroom host show` lists those of a host
    #[arg(long, value_name = "TYPE")]
    pub machine_type: Option<MachineVersion>,

    /// Processor that the guest sees: `host`, a level such as x86-64-v3, or a model of QEMU.
    /// `strongroom host processors` lists those that all hosts can give
    #[arg(long, value_name = "MODEL")]
    pub processor: Option<ProcessorModel>,
}

/// The virtual main board.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum MachineArgument {
    /// PCI Express
    Q35,
    /// i440FX, for old guests
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

/// Reads how the guest gets at a disk.
pub fn frontend() -> impl TypedValueParser<Value = DiskFrontend> {
    frontend_as("vhost-user-blk, over memory that worker and guest share", "NBD, through QEMU's block layer")
}

/// The same, with these words about each frontend in the help.
pub fn frontend_as(
    vhost_user: &'static str,
    nbd: &'static str,
) -> impl TypedValueParser<Value = DiskFrontend> {
    let words = [(DiskFrontend::VhostUser, vhost_user), (DiskFrontend::Nbd, nbd)]
        .map(|(frontend, help)| PossibleValue::new(frontend_word(frontend)).help(help));
    PossibleValuesParser::new(words).map(|word| match word == frontend_word(DiskFrontend::Nbd) {
        true => DiskFrontend::Nbd,
        false => DiskFrontend::VhostUser,
    })
}

/// What a frontend is called on the command line, and in its answers.
pub fn frontend_word(frontend: DiskFrontend) -> &'static str {
    match frontend {
        DiskFrontend::VhostUser => "vhost-user",
        DiskFrontend::Nbd => "nbd",
    }
}

/// Whether a VM that should run and does not is started again.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum RestartArgument {
    /// After a crash or a power failure of the host
    OnFailure,
    /// Never automatically
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

/// What a VM boots.
#[derive(Debug, Default, Args)]
pub struct BootArguments {
    /// Devices to boot from, in this order and no others, such as disk1,cdrom,nic0; `default` for
    /// the CD-ROM drive, then the disks
    #[arg(long = "boot", value_name = "DEVICES", value_parser = parse_order, conflicts_with = "kernel")]
    order: Option<BootOrder>,

    /// Boot this kernel instead of the first disk: a file in one of the host's boot directories
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,

    /// Initial RAM disk of the kernel
    #[arg(long, value_name = "FILE", requires = "kernel")]
    initrd: Option<PathBuf>,

    /// Command line of the kernel; it is shown and logged, so it must not contain secrets
    #[arg(long, value_name = "TEXT", requires = "kernel")]
    append: Option<String>,
}

impl BootArguments {
    /// The boot options, if any were given.
    pub fn boot(&self) -> Result<Option<Boot>, CliError> {
        if let Some(BootOrder(order)) = &self.order {
            return Ok(Some(Boot::Disk { order: order.clone() }));
        }
        let Some(kernel) = self.kernel.as_deref().map(absolute).transpose()? else { return Ok(None) };
        let initrd = self.initrd.as_deref().map(absolute).transpose()?;
        Ok(Some(Boot::Kernel { kernel, initrd, arguments: self.append.clone().unwrap_or_default() }))
    }
}

/// The devices that a VM boots from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootOrder(Vec<BootDevice>);

/// Parses `disk1,cdrom,nic0`, or `default`.
fn parse_order(text: &str) -> Result<BootOrder, String> {
    if text == "default" {
        return Ok(BootOrder(Vec::new()));
    }
    let devices = text.split(',').map(|device| device.parse().map_err(|error: BootError| error.to_string()));
    devices.collect::<Result<_, _>>().map(BootOrder)
}

/// The network interfaces of a VM.
#[derive(Debug, Default, Args)]
pub struct NetworkArguments {
    /// Network interface: the name of a network, user, tap=NAME, bridge=NAME or bridge=NAME,vlan=N;
    /// repeatable. `none` for no network
    #[arg(long = "net", value_name = "NETWORK", value_parser = parse_network)]
    networks: Vec<NetworkArgument>,
}

/// A network on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkArgument {
    /// No network.
    None,
    /// The backend of an interface.
    Backend(NicBackend),
}

impl NetworkArguments {
    /// All interfaces, if any were given.
    pub fn nics(&self) -> Result<Option<Vec<Nic>>, CliError> {
        if self.networks.len() > 1 && self.networks.contains(&NetworkArgument::None) {
            return Err(CliError::Usage(
                "--net none leaves no room for another --net; say one of them".to_owned(),
            ));
        }
        let backend = |network: &NetworkArgument| match network {
            NetworkArgument::None => None,
            NetworkArgument::Backend(backend) => Some(Nic::on(backend.clone())),
        };
        Ok((!self.networks.is_empty()).then(|| self.networks.iter().filter_map(backend).collect()))
    }
}

/// Parses the image of a CD-ROM drive, or `none` for no drive.
pub fn parse_cdrom(text: &str) -> Result<Cdrom, String> {
    match text {
        "" => Err("name a file, or none".to_owned()),
        "none" => Ok(Cdrom::Absent),
        path => Ok(Cdrom::Image { path: absolute(Path::new(path)).map_err(|error| error.to_string())? }),
    }
}

/// The absolute path, because the host has another working directory.
fn absolute(path: &Path) -> Result<PathBuf, CliError> {
    std::path::absolute(path)
        .map_err(|error| CliError::File(FileError { action: "find", path: path.to_owned(), error }))
}

/// The processors for a count.
pub fn cpus(count: u32) -> Result<Cpus, CliError> {
    let cpus = Cpus::of_cores(count);
    cpus.check().map(|()| cpus).map_err(|error| CliError::Usage(error.to_string()))
}

/// How far a VM grows while it runs.
#[derive(Clone, Copy, Debug, Args)]
pub struct GrowthArguments {
    /// Most virtual processors while the VM runs; without it, those that it is started with
    #[arg(long, value_name = "N")]
    max_cpus: Option<u32>,

    /// Most guest memory while the VM runs, larger than that by a multiple of 128M
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    max_memory: Option<MemorySize>,
}

impl GrowthArguments {
    /// What was given.
    pub fn wanted(self) -> Growth {
        Growth { max_cpus: self.max_cpus, max_memory_bytes: self.max_memory }
    }

    /// What was given, if anything was.
    pub fn given(self) -> Option<Growth> {
        Some(self.wanted()).filter(|growth| !growth.is_none())
    }
}

/// Parses a size of memory, such as 512M or 2G.
pub fn parse_memory(text: &str) -> Result<MemorySize, String> {
    text.parse().map_err(|error: strongroom_vm::MemorySizeError| error.to_string())
}

/// Parses a disk's size.
pub fn parse_disk(text: &str) -> Result<VolumeSize, String> {
    text.parse().map_err(|error| format!("{error}"))
}

/// Parses `none`, `user`, `tap=NAME`, `bridge=NAME` or `bridge=NAME,vlan=N`.
pub fn parse_network(text: &str) -> Result<NetworkArgument, String> {
    let unknown = || {
        format!(
            "'{text}' is no network: write the name of one, user, tap=NAME, bridge=NAME, bridge=NAME,vlan=N, or none"
        )
    };
    if text == "none" {
        return Ok(NetworkArgument::None);
    }
    let wrong = |error: NetworkError| error.to_string();
    let interface = |name: &str| name.parse::<InterfaceName>().map_err(wrong);
    let backend = match text.split_once('=') {
        None if text == "user" => NicBackend::User {},
        Some(("tap", device)) => NicBackend::Tap { device: interface(device)? },
        Some(("bridge", rest)) => match rest.split_once(",vlan=") {
            Some((device, vlan)) => {
                let vlan = VlanId::new(vlan.parse().map_err(|_| unknown())?).map_err(wrong)?;
                NicBackend::Bridge { device: interface(device)?, vlan: Some(vlan) }
            }
            None => NicBackend::Bridge { device: interface(rest)?, vlan: None },
        },
        Some(_) => return Err(unknown()),
        None => {
            let network = Name::new(text).map_err(|_| unknown())?.into();
            NicBackend::Network { network, on: None }
        }
    };
    Ok(NetworkArgument::Backend(backend))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_and_memory_are_read() {
        let backend = |text: &str| parse_network(text).map(|network| vec![network]);
        let nics = |networks| NetworkArguments { networks }.nics().unwrap();
        let read = |text: &str| nics(backend(text).unwrap()).unwrap()[0].backend.clone();
        assert_eq!(read("user"), NicBackend::User {});
        let bridge =
            NicBackend::Bridge { device: "br0".parse().unwrap(), vlan: Some(VlanId::new(7).unwrap()) };
        assert_eq!(read("bridge=br0,vlan=7"), bridge);
        assert_eq!(read("tap=t0"), NicBackend::Tap { device: "t0".parse().unwrap() });
        let lan = NicBackend::Network { network: Name::new("lan").unwrap().into(), on: None };
        assert_eq!(read("lan"), lan);
        for bad in ["", "wi fi", "bridge=br0,vlan=x", "bridge=br0,vlan=4095", "tap=a b", "user=1"] {
            assert!(parse_network(bad).is_err(), "{bad}");
        }
        // `none` differs from no option at all.
        assert_eq!((nics(backend("none").unwrap()), nics(Vec::new())), (Some(Vec::new()), None));
        let both = ["none", "user"].map(|text| parse_network(text).unwrap()).to_vec();
        let both = NetworkArguments { networks: both };
        assert!(both.nics().is_err());
        let order = parse_order("disk1,cdrom,nic0").unwrap().0;
        assert_eq!(order.iter().map(ToString::to_string).collect::<Vec<_>>(), ["disk1", "cdrom", "nic0"]);
        assert_eq!(parse_order("default"), Ok(BootOrder(Vec::new())));
        assert!(parse_order("").is_err() && parse_order("disk0,").is_err());
        assert_eq!(parse_cdrom("none"), Ok(Cdrom::Absent));
        assert!(parse_cdrom("debian.iso").unwrap().image().unwrap().is_absolute());
        assert_eq!(parse_memory("2G").unwrap().bytes(), 2 << 30);
        assert!(parse_memory("1M").is_err());
    }
}
