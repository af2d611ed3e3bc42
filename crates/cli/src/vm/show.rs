//! `strongroom vm show`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::host::Host;
use strongroom_api::policy::Deviation;
use strongroom_api::vm::{CryptoperiodView, Growth, RestartPolicy, VmView};
use strongroom_types::{MigrationMode, display_bytes};

use super::hardware::{self, Line};
use super::set::in_words;
use super::snapshot::others_of;
use crate::api::{ApiArguments, segment};
use crate::error::CliError;
use crate::output::{Output, utc};

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm show web1")]
pub struct ShowArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    vm: VmView,
    /// Its host, if it can be reached.
    #[serde(skip)]
    host: Option<Host>,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vm, host } = self;
        let (summary, host) = (&vm.summary, host.as_ref());
        writeln!(f, "name        {}", summary.name)?;
        writeln!(f, "id          {}", summary.id)?;
        if !summary.tags.is_empty() {
            let tags = summary.tags.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            writeln!(f, "tags        {tags}")?;
        }
        for line in vm.notes.as_str().lines() {
            writeln!(f, "notes       {}", line.replace('\t', "    "))?;
        }
        write!(f, "state       {}", summary.power.as_str().replace('_', "-"))?;
        if let Some(since) = vm.since_unix_seconds {
            write!(f, " since {}", utc(since))?;
        }
        if let Some(reason) = &summary.reason {
            write!(f, ": {reason}")?;
        }
        writeln!(f)?;
        if summary.template {
            writeln!(f, "template    is only cloned, not started or changed")?;
        }
        if let Some(origin) = &summary.origin {
            let kind = if origin.linked { "linked clone" } else { "clone" };
            let gone = if origin.is_gone { ", which is gone" } else { "" };
            writeln!(f, "origin      {kind} of {}{gone}", origin.name)?;
        }
        if !vm.linked_clones.is_empty() {
            let clones = vm.linked_clones.iter().map(Name::as_str).collect::<Vec<_>>().join(", ");
            writeln!(f, "clones      {clones} share its disks")?;
        }
        writeln!(f, "starts      {}", vm.generation)?;
        if let Some(host) = &summary.host {
            writeln!(f, "host        {host}")?;
        }
        write!(f, "datastore   {}", summary.datastore)?;
        match &vm.directory {
            Some(directory) => writeln!(f, ", in directory {directory}")?,
            None => writeln!(f)?,
        }
        if let Some(policy) = &summary.policy {
            writeln!(f, "policy      {policy}")?;
        }
        for Deviation { message, next_step, .. } in &vm.deviations {
            writeln!(f, "  deviates  {message}; {next_step}")?;
        }
        match (vm.migration, vm.migration_overruled) {
            (_, Some(rule)) => writeln!(
                f,
                "migration   memory is encrypted: the VM is encrypted, or was, whatever its policy says ({rule})"
            )?,
            (MigrationMode::Required, None) => {}
            (MigrationMode::Opportunistic, None) => {
                writeln!(
                    f,
                    "migration   memory is in plain text if a host has no instructions for encryption"
                )?;
            }
            (MigrationMode::Disabled, None) => writeln!(f, "migration   memory is in plain text")?,
        }
        match (&vm.key, summary.encrypted) {
            (Some(key), _) => writeln!(f, "key         {} at {}", key.key, key.provider)?,
            (None, true) => writeln!(f, "key         not made yet")?,
            (None, false) => writeln!(f, "key         none: NOT encrypted")?,
        }
        if let Some(since) = vm.data_keys_unix_seconds {
            write!(f, "data keys   of {}", utc(since))?;
            if let Some(CryptoperiodView { period, next_unix_seconds, waits, failed }) = &vm.cryptoperiod {
                write!(f, "; renewed {}, next {}", in_words(period), utc(*next_unix_seconds))?;
                if let Some(why) = waits {
                    write!(f, ", waits: {why}")?;
                }
                if let Some(failed) = failed {
                    write!(f, "; failed at {}: {}", utc(failed.at_unix_seconds), failed.reason)?;
                }
            }
            writeln!(f)?;
        }
        writeln!(f, "processors  {}", summary.cpus)?;
        write!(f, "memory      {}", display_bytes(summary.memory_bytes))?;
        let Growth { max_cpus, max_memory_bytes } = vm.growth;
        if let Some(most) = max_memory_bytes {
            write!(f, ", up to {most} while it runs")?;
        }
        if let Some(most) = max_cpus {
            write!(f, "\nmax CPUs    {most} while it runs")?;
        }
        match host {
            Some(host) if !summary.power.is_on() => {
                writeln!(f, "; {} has {} free", host.name, display_bytes(host.memory_free_bytes))?;
            }
            _ => writeln!(f)?,
        }
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
        for snapshot in &vm.snapshots {
            let current = if snapshot.is_current { "; current" } else { "" };
            let with = snapshot.group.as_ref().map(|group| format!("; with {}", others_of(group)));
            let (with, made) = (with.unwrap_or_default(), utc(snapshot.at_unix_seconds));
            writeln!(f, "snapshot    {}, of {made}{with}{current}", snapshot.name)?;
        }
        let lines = hardware::start(vm, host).into_iter().chain(hardware::cdrom(vm));
        let lines = lines.chain(hardware::disks(vm)).chain(hardware::network(vm, host));
        for Line { name, text } in lines {
            writeln!(f, "{name:10}  {text}")?;
        }
        if !vm.limits.is_none() {
            writeln!(f, "limits      {} of all disks together", vm.limits)?;
        }
        if vm.seed {
            writeln!(f, "seed        for cloud-init")?;
        }
        let restart = match vm.restart {
            RestartPolicy::OnFailure => "after a crash, and after the host was without power",
            RestartPolicy::Never => "never by itself",
        };
        writeln!(f, "restarted   {restart}")?;
        write!(f, "created     {}", utc(vm.created_unix_seconds))
    }
}

impl ShowArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        let host = hardware::host_of(&api, &vm);
        output.answer(&Shown { vm, host })
    }
}
