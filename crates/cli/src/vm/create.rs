//! `strongroom vm create`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::host::Host;
use strongroom_api::vm::{
    AddDisk, Board, Cdrom, CreateVm, DiskFrontend, DiskKind, EncryptionWish, Firmware, MemorySize, Notes,
    Tag, VmView,
};
use strongroom_api::{Name, Reference};
use strongroom_processes::Signals;
use strongroom_types::{VolumeSize, display_bytes};

use super::disk::{ImageArguments, ImagePlace, Upload, bring};
use super::hardware::{self, Line};
use super::options::{
    BoardArguments, BootArguments, GrowthArguments, MachineArgument, NetworkArguments, PlaceArguments,
    RestartArgument, cpus, frontend, parse_cdrom, parse_disk, parse_memory,
};
use super::seed::{SEED_DISK, SeedArguments};
use crate::api::{ApiArguments, WaitArguments, follow_with_images, parse_reference, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(
    after_help = "All guest data of the VM is sealed under its own key, which its key provider stores \
and only this VM's host gets. Its volumes are in the datastore, in a directory with the VM's name.

Without --net it has one network interface on the network 'user': the guest reaches what its host \
reaches, but cannot be reached. This needs passt on the host; if it is missing, the VM has no network, \
and this command says so.

It boots from --cdrom before its disks, until `strongroom vm set VM --cdrom none`; `strongroom vm screen \
VM` shows the installer.

Examples:
  strongroom vm create web1 --cpus 2 --memory 2G --disk 20G --image debian.qcow2
  strongroom vm create db1 --cpus 4 --memory 8G --disk 40G --disk 200G --policy gold --no-wait
  strongroom vm create vault1 --memory 2G --disk 20G --integrity --image debian.qcow2
  strongroom vm create web2 --memory 2G --disk 20G --swap 2G --image debian-cloud.qcow2 --user-data user-data.yaml
  strongroom vm create new1 --memory 2G --disk 20G --cdrom /var/lib/strongroom/hostd/boot/debian.iso
  strongroom vm create web4 --memory 2G --disk 20G --image https://example.org/debian.qcow2 --sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  strongroom vm create web3 --memory 2G --disk 20G --image debian.qcow2 --net bridge=br0,vlan=7
  strongroom vm create win1 --cpus 4 --memory 8G --disk 60G --image windows.qcow2 --uefi --tpm"
)]
pub struct CreateArguments {
    /// Name of the VM
    name: Name,

    /// Number of virtual processors
    #[arg(long, value_name = "N", default_value_t = 1)]
    cpus: u32,

    /// Guest memory, such as 512M or 2G
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    memory: MemorySize,

    #[command(flatten)]
    growth: GrowthArguments,

    /// Disk of this size, such as 20G; repeatable. The first one is /dev/vda
    #[arg(long = "disk", value_name = "SIZE", value_parser = parse_disk)]
    disks: Vec<VolumeSize>,

    /// Store a keyed tag for each block of the disks: a block that was modified or replaced by an
    /// old one cannot be read. Costs space, and time on writes
    #[arg(long, requires = "disks", conflicts_with = "unencrypted")]
    integrity: bool,

    /// Swap disk of this size, empty at each start; repeatable. The guest finds it by its label,
    /// swap0
    #[arg(long = "swap", value_name = "SIZE", value_parser = parse_disk, requires = "disks")]
    swaps: Vec<VolumeSize>,

    /// Image to write to the first disk: a file, or an https:// URL with --sha256 or --sha512
    #[arg(long, requires = "disks")]
    image: Option<ImagePlace>,

    #[command(flatten)]
    format: ImageArguments,

    #[command(flatten)]
    place: PlaceArguments,

    /// Placement group of the VM
    #[arg(long, value_name = "GROUP", value_parser = parse_reference)]
    placement_group: Option<Reference>,

    /// Main board
    #[arg(long, value_enum, default_value = "q35")]
    machine: MachineArgument,

    #[command(flatten)]
    board: BoardArguments,

    #[command(flatten)]
    network: NetworkArguments,

    /// Image in a CD-ROM drive, to install from: a file in one of the host's boot directories
    #[arg(long, value_name = "FILE", value_parser = parse_cdrom)]
    cdrom: Option<Cdrom>,

    /// Protocol between the guest and its disks
    #[arg(long, value_parser = frontend(), default_value = "vhost-user")]
    frontend: DiskFrontend,

    /// Boot with UEFI instead of a BIOS; its variables are in a sealed volume
    #[arg(long)]
    uefi: bool,

    #[command(flatten)]
    seed: SeedArguments,

    /// Add a TPM 2.0, whose state is sealed
    #[arg(long)]
    tpm: bool,

    #[command(flatten)]
    boot: BootArguments,

    /// When to restart it automatically
    #[arg(long, value_enum, default_value = "on-failure")]
    restart: RestartArgument,

    /// Notes about the VM
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    notes: Notes,

    /// Tag of the VM, KEY or KEY=VALUE; repeatable
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,

    /// Key provider [default: the policy's, or the only one]
    #[arg(long, value_name = "NAME", conflicts_with = "unencrypted")]
    key_provider: Option<Name>,

    /// Do not encrypt the VM: anyone who can read the datastore can read it
    #[arg(long)]
    unencrypted: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Created {
    #[serde(flatten)]
    vm: VmView,
    /// Its host, if it can be reached.
    #[serde(skip)]
    host: Option<Host>,
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VmView { summary, key, .. } = &self.vm;
        let (name, datastore) = (&summary.name, &summary.datastore);
        write!(f, "created {name} in {datastore}: {}", display_bytes(summary.disk_bytes))?;
        match key {
            Some(key) => write!(f, ", sealed under key {} of {}", key.key, key.provider)?,
            None => f.write_str(", NOT encrypted")?,
        }
        let of_vm = hardware::disks(&self.vm)
            .into_iter()
            .chain(hardware::network(&self.vm, self.host.as_ref()))
            .chain(hardware::cdrom(&self.vm));
        for Line { name, text } in of_vm {
            write!(f, "\n  {name:8}  {text}")?;
        }
        // Installers of most systems use only the screen.
        let look = if self.vm.cdrom.image().is_some() { "screen" } else { "console" };
        write!(f, "\nNext:\n  strongroom vm start {name} && strongroom vm {look} {name}")
    }
}

impl CreateArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        // Check the image before the VM is made.
        let image = self
            .image
            .as_ref()
            .map(|place| Upload::open(output, &self.api, place, &self.format))
            .transpose()?;
        let seed = self.seed.read()?;
        if (image.is_some() || seed.is_some()) && self.wait.no_wait {
            return Err(CliError::Usage(
                "an image or a seed is handed over once its disk is there: leave out --no-wait, or fill the disk later with \
                 `strongroom vm disk import` or `strongroom vm seed`"
                    .to_owned(),
            ));
        }
        if let (Some(image), Some(size)) = (&image, self.disks.first()) {
            image.fits("disk0", *size)?;
        }
        let fills = image.is_some() || seed.is_some();
        let signals = fills.then(Signals::catch).transpose().map_err(CliError::Signals)?;
        let api = self.api.connect()?;
        let task = api.post("/v1/vms", &self.wish()?)?;
        if self.wait.no_wait {
            return output.answer(&crate::api::Begun(task));
        }
        let name = self.name.as_str();
        let vm = format!("/v1/vms/{}", segment(name));
        // The VM is made only with them: even if this process ends, the VM has its image or does
        // not exist.
        let mut bring = |disk: &Name| {
            let none = || CliError::Usage(format!("nobody has an image for {disk}"));
            let signals = signals.as_ref().ok_or_else(none)?;
            let send = |image: &Upload| bring(&api, output, signals, name, disk, image);
            match (&image, &seed) {
                (_, Some(seed)) if disk.as_str() == SEED_DISK => send(&seed.image(&api.get(&vm)?)?),
                (Some(image), _) => send(image),
                _ => Err(none()),
            }
        };
        follow_with_images(&api, output, "creating", task, signals.as_ref(), &mut bring)?;
        let made: VmView = api.get(&vm)?;
        let host = hardware::host_of(&api, &made);
        output.answer(&Created { vm: made, host })
    }

    fn wish(&self) -> Result<CreateVm, CliError> {
        // The image belongs to the first disk.
        let is_filled = |at: usize| at == 0 && self.image.is_some();
        let data = self.disks.iter().enumerate().map(|(at, size)| (*size, DiskKind::Data, is_filled(at)));
        let disks = data.chain(self.swaps.iter().map(|size| (*size, DiskKind::Swap, false)));
        let disks = disks.map(|(size_bytes, kind, fill)| {
            let integrity = self.integrity && kind == DiskKind::Data;
            AddDisk { size_bytes, kind, frontend: self.frontend, fill, integrity }
        });
        Ok(CreateVm {
            name: self.name.clone(),
            datastore: self.place.datastore.clone(),
            host: self.place.host.clone(),
            folder: self.place.folder.clone(),
            policy: self.place.policy.clone(),
            placement_group: self.placement_group.clone(),
            board: Board {
                machine: self.machine.into(),
                machine_type: self.board.machine_type.clone(),
                processor: self.board.processor.clone(),
                ..Board::default()
            },
            firmware: if self.uefi { Firmware::Uefi } else { Firmware::Bios },
            cpus: cpus(self.cpus)?,
            memory_bytes: self.memory,
            growth: self.growth.wanted(),
            disks: disks.collect(),
            nics: self.network.nics()?,
            tpm: self.tpm,
            seed: self.seed.is_wanted(),
            fill_seed: self.seed.is_wanted(),
            boot: self.boot.boot()?.unwrap_or_default(),
            cdrom: self.cdrom.clone().unwrap_or_default(),
            encryption: EncryptionWish {
                encrypted: !self.unencrypted,
                provider: self.key_provider.clone(),
                key: None,
            },
            restart: self.restart.into(),
            notes: self.notes.clone(),
            tags: self.tags.clone(),
        })
    }
}
