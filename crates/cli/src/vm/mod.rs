//! `strongroom vm`: one file per group of commands. All of them are requests to the control plane,
//! except those for guests of libvirt.

mod check;
mod clone;
mod clone_sealing;
mod console;
mod create;
mod disk;
mod dump;
mod export;
mod guest_lines;
mod guest_socket;
mod hardware;
mod key;
mod libvirt;
mod limit;
mod list;
mod migrate;
mod nic;
mod options;
mod ova;
mod power;
mod quiesce;
mod remove;
mod screen;
mod seed;
mod set;
mod show;
mod snapshot;
mod snapshot_schedule;
mod stats;
mod template;

use std::process::ExitCode;

use clap::Subcommand;

pub use self::clone_sealing::SealingArguments;
pub use self::options::parse_disk;
pub use self::remove::is_meant;
pub use self::snapshot::{made, others_of};
pub use self::snapshot_schedule::parse_period;
use crate::error::CliError;
use crate::output::Output;

/// The commands for VMs.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Create a VM and its volumes, sealed under its own key
    Create(Box<create::CreateArguments>),
    /// List VMs
    List(list::ListArguments),
    /// Show a VM's configuration and state
    Show(show::ShowArguments),
    /// Watch a VM's disk statistics: rates, queue depth, errors, latencies
    Stats(stats::StatsArguments),
    /// Start a VM
    Start(power::StartArguments),
    /// Stop a VM: ask its guest to shut down, and power it off after a timeout
    Stop(power::StopArguments),
    /// Stop a VM and start it again
    Restart(power::RestartArguments),
    /// Pause a VM's processors
    Pause(power::PauseArguments),
    /// Suspend a VM: seal its memory and power it off; its next start resumes it
    Suspend(power::SuspendArguments),
    /// Resume a paused VM
    Resume(power::ResumeArguments),
    /// Reset a VM, like the reset button of a machine
    Reset(power::ResetArguments),
    /// Connect to a VM's serial console
    Console(console::ConsoleArguments),
    /// Open a VM's screen for a VNC viewer, or take a screenshot
    Screen(screen::ScreenArguments),
    /// Create, list, open and delete sealed dumps of a guest's memory
    #[command(subcommand)]
    Dump(dump::DumpCommand),
    /// Create, list, revert to, delete and schedule snapshots of a VM's disks
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Create a VM with the hardware and the disks' content of another one
    Clone(clone::CloneArguments),
    /// Make a VM that is off a template, which is only cloned
    Template(template::TemplateArguments),
    /// Move a VM, running or off, to another host that reaches its datastore
    #[command(alias = "move")]
    Migrate(migrate::MigrateArguments),
    /// Check the disks of a VM that is off
    Check(check::CheckArguments),
    /// Export a disk of a VM that is off to an unencrypted image
    Export(export::ExportArguments),
    /// Export a VM that is off to an unencrypted OVA, for other hypervisors
    ExportOva(ova::ExportOvaArguments),
    /// Create a VM from an OVA of another hypervisor
    Import(Box<ova::ImportOvaArguments>),
    /// Change the name, notes and tags of a VM, and the configuration of one that is off
    Set(set::SetArguments),
    /// Limit how fast the requests of all disks of a VM together are carried out
    Limit(limit::LimitVmArguments),
    /// Manage a VM's disks, and attach volumes to guests of libvirt
    #[command(subcommand)]
    Disk(disk::DiskCommand),
    /// List, add and remove a VM's network cards
    #[command(subcommand)]
    Nic(nic::NicCommand),
    /// Replace the cloud-init seed of a VM
    Seed(seed::SetSeedArguments),
    /// Show the state of a VM's keys, and rotate them
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Delete a VM and all its volumes
    Delete(remove::DeleteArguments),
    /// Add a VM in a datastore to the inventory
    Register(remove::RegisterArguments),
    /// Remove a VM from the inventory; its files stay
    Unregister(remove::UnregisterArguments),
}

impl VmCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        match self {
            Self::Create(arguments) => arguments.run(output),
            Self::List(arguments) => arguments.run(output),
            Self::Show(arguments) => arguments.run(output),
            Self::Stats(arguments) => arguments.run(output),
            Self::Start(arguments) => arguments.run(output),
            Self::Stop(arguments) => arguments.run(output),
            Self::Restart(arguments) => arguments.run(output),
            Self::Pause(arguments) => arguments.run(output),
            Self::Suspend(arguments) => arguments.run(output),
            Self::Resume(arguments) => arguments.run(output),
            Self::Reset(arguments) => arguments.run(output),
            Self::Console(arguments) => arguments.run(output),
            Self::Screen(arguments) => arguments.run(output),
            Self::Dump(command) => command.run(output),
            Self::Snapshot(command) => command.run(output),
            Self::Clone(arguments) => arguments.run(output),
            Self::Template(arguments) => arguments.run(output),
            Self::Migrate(arguments) => arguments.run(output),
            Self::Check(arguments) => return arguments.run(output),
            Self::Export(arguments) => arguments.run(output),
            Self::ExportOva(arguments) => arguments.run(output),
            Self::Import(arguments) => arguments.run(output),
            Self::Set(arguments) => arguments.run(output),
            Self::Limit(arguments) => arguments.run(output),
            Self::Disk(command) => command.run(output),
            Self::Nic(command) => command.run(output),
            Self::Seed(arguments) => arguments.run(output),
            Self::Key(command) => command.run(output),
            Self::Delete(arguments) => arguments.run(output),
            Self::Register(arguments) => arguments.run(output),
            Self::Unregister(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
