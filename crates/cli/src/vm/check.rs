//! `strongroom vm check`: checks the disks of a VM that is off. The VM's host does it, because only
//! the host gets their keys.

use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::vm::{DiskKind, Ticket, TicketUse, VmView};
use strongroom_datastore::file::CheckReport;
use strongroom_host::protocol::{CheckEnd, CheckNews, GuestWelcome};
use strongroom_processes::Signals;

use super::guest_lines::{Ended, GuestLines};
use super::guest_socket::{Guest, GuestSocket};
use crate::api::{Api, ApiArguments, segment};
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;
use crate::volume::check::write_report;

/// The arguments of `check`.
#[derive(Debug, Args)]
#[command(
    after_help = "The VM must be off or suspended. Its host fetches the key under a grant, authenticates \
each disk's descriptor, opens its envelopes and checks its files; it also checks that the disk belongs \
to the VM and is not older than the control plane's record. Nothing is changed. Without --data the \
blocks are not checked.

Exit status: 0 no errors; 1 errors were found.

Examples:
  strongroom vm check web1
  strongroom vm check web1 --data
  strongroom vm check web1 --disk disk1"
)]
pub struct CheckArguments {
    /// Name or id of the VM
    vm: String,

    /// Check only this disk
    #[arg(long, value_name = "DISK")]
    disk: Option<Name>,

    /// Also read every block. On a disk created with --integrity each block is compared with its
    /// tag; on any other disk this only shows that all blocks are readable
    #[arg(long)]
    data: bool,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Checked {
    vm: String,
    /// Whether there are no errors in any of them; notices are possible.
    clean: bool,
    disks: Vec<CheckedDisk>,
}

#[derive(Serialize)]
struct CheckedDisk {
    disk: Name,
    #[serde(flatten)]
    report: CheckReport,
}

impl fmt::Display for Checked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, CheckedDisk { disk, report }) in self.disks.iter().enumerate() {
            if at > 0 {
                writeln!(f)?;
            }
            write_report(f, &format_args!("{disk} of VM {}", self.vm), report)?;
        }
        Ok(())
    }
}

impl CheckArguments {
    /// Checks the disks, one after the other. The exit status tells the result.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let api = self.api.connect()?;
        let mut disks = Vec::new();
        for disk in self.wanted(&api)? {
            let report = self.check(&api, output, &disk)?;
            disks.push(CheckedDisk { disk, report });
        }
        let clean = disks.iter().all(|disk| disk.report.errors() == 0);
        output.answer(&Checked { vm: self.vm.clone(), clean, disks })?;
        Ok(if clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// The named disk, or all disks that keep data.
    fn wanted(&self, api: &Api) -> Result<Vec<Name>, CliError> {
        if let Some(disk) = &self.disk {
            return Ok(vec![disk.clone()]);
        }
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        let disks = vm.disks.into_iter().filter(|disk| disk.kind == DiskKind::Data);
        disks
            .map(|disk| disk.name.parse::<Name>().map_err(|error| CliError::Usage(error.to_string())))
            .collect()
    }

    fn check(&self, api: &Api, output: &Output, disk: &Name) -> Result<CheckReport, CliError> {
        let wanted = TicketUse::Check { disk: disk.clone(), data: self.data };
        let ticket: Ticket = api.post_for(&format!("/v1/vms/{}/tickets", segment(&self.vm)), &wanted)?;
        let signals = Signals::catch().map_err(CliError::Signals)?;
        let Guest { stream, welcome, .. } = GuestSocket::connect(&ticket)?.enter(&ticket)?;
        let GuestWelcome::Check { size_bytes } = welcome else {
            return Err(self.broke_off(disk, &io::ErrorKind::InvalidData.into()));
        };
        let mut meter = Meter::start(output, "reading", size_bytes);
        let mut lines = GuestLines::new(stream, signals);
        loop {
            match lines.next() {
                Ok(CheckNews::Read { bytes }) => meter.at(bytes),
                Ok(CheckNews::End(CheckEnd::Done(report))) => return Ok(report),
                Ok(CheckNews::End(CheckEnd::Error(problem))) => {
                    let (code, vm) = (problem.code.clone(), &self.vm);
                    let message = format!("cannot check {disk} of VM {vm}: {problem}");
                    return Err(CliError::Api { code, message });
                }
                Err(Ended::Interrupted) => return Err(CliError::Interrupted),
                Err(Ended::BrokeOff(error)) => return Err(self.broke_off(disk, &error)),
            }
        }
    }

    fn broke_off(&self, disk: &Name, error: &io::Error) -> CliError {
        let message = format!("the check of {disk} of VM {} broke off ({error}); check it again", self.vm);
        CliError::Api { code: "broke_off".to_owned(), message }
    }
}
