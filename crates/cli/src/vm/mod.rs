//! `strongroom vm`: one file per group of commands. All of them are requests to the control plane,
//! except those for guests of libvirt.

mod check;
mod clone;
mod console;
mod create;
mod disk;
mod dump;
mod export;
mod guest_lines;
mod hardware;
mod key;
mod libvirt;
mod list;
mod options;
mod power;
mod remove;
mod screen;
mod seed;
mod set;
mod show;
mod snapshot;
mod stats;

use std::process::ExitCode;

use clap::Subcommand;

use crate::error::CliError;
use crate::output::Output;

/// The commands for VMs.
#[derive(Debug, Subcommand)]
pub enum VmCommand {
    /// Make a VM and its volumes, sealed under a key of its own
    Create(Box<create::CreateArguments>),
    /// List the VMs
    List(list::ListArguments),
    /// Show what a VM is and how it is
    Show(show::ShowArguments),
    /// Watch what a VM's guest asks of its disks: rates, queue, errors, latencies
    Stats(stats::StatsArguments),
    /// Start a VM
    Start(power::StartArguments),
    /// Stop a VM: its guest is asked to shut down, and cut off if it does not
    Stop(power::StopArguments),
    /// Stop a VM and start it
    Restart(power::RestartArguments),
    /// Let a VM's processors stand still
    Pause(power::PauseArguments),
    /// Seal a VM's memory and end it; its next start goes on with it
    Suspend(power::SuspendArguments),
    /// Let them go on
    Resume(power::ResumeArguments),
    /// Reset a VM, as the button on its case would
    Reset(power::ResetArguments),
    /// Use a VM's serial console
    Console(console::ConsoleArguments),
    /// Look at a VM's screen and use it, with a VNC viewer; or take a picture of it
    Screen(screen::ScreenArguments),
    /// Make sealed dumps of what a VM's guest has in its memory, and open them
    #[command(subcommand)]
    Dump(dump::DumpCommand),
    /// Keep what a VM's disks contain at one instant, and go back to it
    #[command(subcommand)]
    Snapshot(snapshot::SnapshotCommand),
    /// Make a VM with the content of another one
    Clone(clone::CloneArguments),
    /// Check the disks of a VM that is off
    Check(check::CheckArguments),
    /// Copy a disk of a VM that is off into an image, in plain text
    Export(export::ExportArguments),
    /// Change a VM that is off
    Set(set::SetArguments),
    /// Add, list, resize, remove and fill a VM's disks; attach volumes to guests of libvirt
    #[command(subcommand)]
    Disk(disk::DiskCommand),
    /// Replace what cloud-init in a VM's guest is told
    Seed(seed::SetSeedArguments),
    /// See how a VM's keys stand, and move it to a new one
    #[command(subcommand)]
    Key(key::KeyCommand),
    /// Delete a VM and all its volumes
    Delete(remove::DeleteArguments),
    /// Take a VM that lies in a datastore into the inventory
    Register(remove::RegisterArguments),
    /// Take a VM out of the inventory; its files stay
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
            Self::Check(arguments) => return arguments.run(output),
            Self::Export(arguments) => arguments.run(output),
            Self::Set(arguments) => arguments.run(output),
            Self::Disk(command) => command.run(output),
            Self::Seed(arguments) => arguments.run(output),
            Self::Key(command) => command.run(output),
            Self::Delete(arguments) => arguments.run(output),
            Self::Register(arguments) => arguments.run(output),
            Self::Unregister(arguments) => arguments.run(output),
        }?;
        Ok(ExitCode::SUCCESS)
    }
}
