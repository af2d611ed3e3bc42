//! `strongroom vm disk add`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::vm::{AddDisk, Disk, DiskFrontend, DiskKind, VmView};
use strongroom_processes::Signals;
use strongroom_types::{VolumeSize, display_bytes};

use super::super::options::{frontend, parse_disk};
use super::{ImageArguments, ImagePlace, Upload, bring};
use crate::api::{ApiArguments, Begun, WaitArguments, follow_with_images, segment};
use crate::error::CliError;
use crate::output::Output;

/// The arguments of `add`.
#[derive(Debug, Args)]
#[command(
    after_help = "The disk is empty, and encrypted under the VM's key unless the VM is not encrypted. A \
running guest sees it at once, as a virtio disk whose serial number is the disk's name; it is also there \
at every later start.

Examples:
  strongroom vm disk add web1 --size 20G
  strongroom vm disk add web1 --size 20G --image data.qcow2
  strongroom vm disk add web1 --size 20G --integrity
  strongroom vm disk add web1 --size 2G --swap"
)]
pub struct AddArguments {
    /// Name or id of the VM
    vm: String,

    /// Size of the disk, such as 20G
    #[arg(long, value_name = "SIZE", value_parser = parse_disk)]
    size: VolumeSize,

    /// Make it a swap disk, empty at each start; the guest finds it by its label, swap0 and so on
    #[arg(long)]
    swap: bool,

    /// Store a keyed tag for each block: a block that was modified or replaced by an old one cannot
    /// be read
    #[arg(long, conflicts_with = "swap")]
    integrity: bool,

    /// Image to write to the disk: a file, or an https:// URL with --sha256 or --sha512; the VM
    /// must be off
    #[arg(long, conflicts_with_all = ["swap", "no_wait"])]
    image: Option<ImagePlace>,

    #[command(flatten)]
    format: ImageArguments,

    /// Protocol between the guest and the disk
    #[arg(long, value_parser = frontend(), default_value = "vhost-user")]
    frontend: DiskFrontend,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Added {
    vm: String,
    #[serde(flatten)]
    disk: Disk,
}

impl fmt::Display for Added {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sealed = if self.disk.key.is_some() { "" } else { ", NOT encrypted" };
        let size = display_bytes(self.disk.size_bytes);
        write!(f, "{} has one more disk, {}: {size}{sealed}", self.vm, self.disk.name)
    }
}

impl AddArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let image = self
            .image
            .as_ref()
            .map(|place| Upload::open(output, &self.api, place, &self.format))
            .transpose()?;
        if let Some(image) = &image {
            image.fits("the new disk", self.size)?;
        }
        let signals = image.as_ref().map(|_| Signals::catch()).transpose().map_err(CliError::Signals)?;
        let api = self.api.connect()?;
        let vm = format!("/v1/vms/{}", segment(&self.vm));
        let before: VmView = api.get(&vm)?;
        if image.is_some() && before.summary.power.is_on() {
            let message = format!(
                "{} is on, and an image is put into a disk of a VM that is off: stop it first",
                self.vm
            );
            return Err(CliError::Usage(message));
        }
        let kind = if self.swap { DiskKind::Swap } else { DiskKind::Data };
        let fill = image.is_some();
        let wish =
            AddDisk { size_bytes: self.size, kind, frontend: self.frontend, fill, integrity: self.integrity };
        let task = api.post(&format!("{vm}/disks"), &wish)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        let mut bring = |disk: &Name| match (&image, &signals) {
            (Some(image), Some(signals)) => bring(&api, output, signals, &self.vm, disk, image),
            _ => Err(CliError::Usage(format!("nobody has an image for {disk}"))),
        };
        follow_with_images(&api, output, "adding a disk to", task, signals.as_ref(), &mut bring)?;
        let after: VmView = api.get(&vm)?;
        let is_new = |disk: &Disk| before.disks.iter().all(|known| known.name != disk.name);
        let Some(disk) = after.disks.into_iter().find(is_new) else {
            return Err(CliError::Usage(format!(
                "the new disk of {} was taken out again meanwhile",
                self.vm
            )));
        };
        output.answer(&Added { vm: self.vm.clone(), disk })
    }
}
