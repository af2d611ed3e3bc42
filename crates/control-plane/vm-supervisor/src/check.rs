//! The check of a disk of a VM that is off, for a client.

use strongroom_datastore::file::{CheckReport, Finding, Severity, check, describe};
use strongroom_host::protocol::{CheckEnd, CheckNews, Disk, DiskName, GuestWelcome, Problem, VmSpec};
use strongroom_worker::Progress;
use strongroom_worker::check::check_blocks;

use crate::export::{data_disk, open_to_read};
use crate::guest_client::GuestClient;
use crate::job::key_problem;
use crate::keys::VmKeys;

/// A check of one disk.
pub struct DiskCheck<'a> {
    spec: &'a VmSpec,
    disk: &'a Disk,
    keys: &'a VmKeys,
    reads_blocks: bool,
}

impl<'a> DiskCheck<'a> {
    /// Finds the disk.
    ///
    /// # Errors
    /// If the VM has no data disk with this name.
    pub fn new(
        spec: &'a VmSpec,
        disk: &DiskName,
        reads_blocks: bool,
        keys: &'a VmKeys,
    ) -> Result<Self, Problem> {
        Ok(Self { spec, disk: data_disk(spec, disk)?, keys, reads_blocks })
    }

    /// Checks the disk, and sends the client the findings, or the reason that it cannot be checked.
    pub fn give(&self, client: &GuestClient) {
        let size_bytes = self.disk.size_bytes.bytes();
        // The client is gone.
        if client.say(&GuestWelcome::Check { size_bytes }).is_err() {
            return;
        }
        let end = match self.report(client) {
            Ok(report) => CheckEnd::Done(report),
            Err(problem) => CheckEnd::Error(problem),
        };
        let _ = client.say(&CheckNews::End(end));
    }

    fn report(&self, client: &GuestClient) -> Result<CheckReport, Problem> {
        let path = self.spec.volume_path(&self.disk.name);
        // The check itself reports a descriptor that cannot be read.
        let described = describe(&path).ok();
        let kek = self.keys.hold_for(&self.disk.key, described.as_ref().map(|volume| &volume.descriptor));
        let kek = kek.map_err(key_problem)?;
        let checked = check(&path, kek.as_deref());
        let mut findings = checked?;
        if findings.iter().any(|finding| finding.severity == Severity::Error) {
            return Ok(CheckReport::new(findings, None));
        }
        // Opening verifies that this is the VM's volume, encrypted as configured, and not rolled
        // back.
        let volume = match open_to_read(self.spec, self.disk, None, self.keys) {
            Ok(volume) => volume,
            Err(problem) if problem.code == "in_use" => return Err(problem),
            Err(problem) => {
                findings.push(Finding { severity: Severity::Error, message: problem.to_string() });
                return Ok(CheckReport::new(findings, None));
            }
        };
        if !self.reads_blocks {
            return Ok(CheckReport::new(findings, None));
        }
        let mut report = |bytes| client.report(&CheckNews::Read { bytes });
        let mut progress = Progress { stop: client.stop().flag, report: &mut report };
        let data = check_blocks(volume, &mut findings, &mut progress).map_err(|error| {
            Problem::new("check", format!("the blocks of {} cannot be read: {error}", path.display()))
        })?;
        Ok(CheckReport::new(findings, Some(data)))
    }
}
