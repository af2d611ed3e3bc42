//! `strongroom vm show`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::vm::{Boot, Firmware, MachineType, NicBackend, VmView};
use strongroom_types::display_bytes;

use crate::api::{ApiArguments, segment};
use crate::error::CliError;
use crate::output::{Output, utc};

/// Which VM.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm show web1")]
pub struct ShowArguments {
    /// The VM, by name or id
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(VmView);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vm = &self.0;
        let VmView { summary, .. } = vm;
        writeln!(f, "name        {}", summary.name)?;
        writeln!(f, "id          {}", summary.id)?;
        write!(f, "state       {}", summary.power.as_str().replace('_', "-"))?;
        if let Some(since) = vm.since_unix_seconds {
            write!(f, " since {}", utc(since))?;
        }
        if let Some(reason) = &summary.reason {
            write!(f, ": {reason}")?;
        }
        writeln!(f)?;
        writeln!(f, "starts      {}", vm.generation)?;
        if let Some(host) = &summary.host {
            writeln!(f, "host        {host}")?;
        }
        writeln!(f, "datastore   {}", summary.datastore)?;
        if let Some(policy) = &summary.policy {
            writeln!(f, "policy      {policy}")?;
        }
        match (&vm.key, summary.encrypted) {
            (Some(key), _) => writeln!(f, "key         {} at {}", key.key, key.provider)?,
            (None, true) => writeln!(f, "key         not made yet")?,
            (None, false) => writeln!(f, "key         none: NOT encrypted")?,
        }
        writeln!(f, "processors  {}", summary.cpus)?;
        writeln!(f, "memory      {}", display_bytes(summary.memory_bytes))?;
        writeln!(f, "machine     {}", machine(vm))?;
        if let Some(memory) = &vm.suspended {
            let (size, since) = (display_bytes(memory.bytes), utc(memory.at_unix_seconds));
            writeln!(f, "suspended   {size} of memory, sealed in volume {} since {since}", memory.volume)?;
        }
        for dump in &vm.dumps {
            let (number, size, at) =
                (dump.number, display_bytes(dump.sealed_bytes), utc(dump.at_unix_seconds));
            write!(f, "dump        {number}, {size} sealed, of {at}")?;
            match &dump.label {
                Some(label) => writeln!(f, ": {label}")?,
                None => writeln!(f)?,
            }
        }
        for disk in &vm.disks {
            writeln!(f, "{:10}  {}", disk.name, display_bytes(disk.size_bytes))?;
        }
        for (number, nic) in vm.nics.iter().enumerate() {
            let backend = match &nic.backend {
                NicBackend::User {} => "user".to_owned(),
                NicBackend::Tap { device } => format!("tap {device}"),
                NicBackend::Bridge { device, vlan: None } => format!("bridge {device}"),
                NicBackend::Bridge { device, vlan: Some(vlan) } => format!("bridge {device}, VLAN {vlan}"),
            };
            let name = format!("nic{number}");
            writeln!(f, "{name:10}  {backend}  {}", nic.mac.as_deref().unwrap_or_default())?;
        }
        if let Boot::Kernel { kernel, .. } = &vm.boot {
            writeln!(f, "kernel      {}", kernel.display())?;
        }
        if vm.seed {
            writeln!(f, "seed        for cloud-init")?;
        }
        write!(f, "created     {}", utc(vm.created_unix_seconds))
    }
}

fn machine(vm: &VmView) -> String {
    let board = match vm.machine {
        MachineType::Q35 => "q35",
        MachineType::Pc => "pc",
    };
    let firmware = match vm.firmware {
        Firmware::Bios => "BIOS",
        Firmware::Uefi => "UEFI",
    };
    let tpm = if vm.tpm { ", TPM 2.0" } else { "" };
    format!("{board}, {firmware}{tpm}")
}

impl ShowArguments {
    /// Shows it.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        output.answer(&Shown(self.api.connect()?.get(&format!("/v1/vms/{}", segment(&self.vm)))?))
    }
}
