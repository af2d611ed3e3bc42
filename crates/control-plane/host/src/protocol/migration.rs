//! A VM that moves to another host while it runs ([`crate::migration`] has who runs it).
//!
//! ```text
//! Offer     source: what the machine must find elsewhere
//! FetchLive target that does not reach the volumes: it has them but for what the guest writes last
//! Receive   target: room for it: QEMU waits, and so does a relay, on this port
//! Send      source: the memory passes; the guest stops, its volumes are closed, the VM is leaving
//! TakeUp    target: its volumes are opened; nothing runs yet
//! Settle    both: where the guest goes on, and where nothing of it stays
//! ```

use std::fmt;
use std::net::SocketAddr;

use base64ct::{Base64, Encoding};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use strongroom_hypervisor::qmp::MigrationSettings;
use uuid::Uuid;

use super::names::{HandoverId, VmGeneration};
use super::operation::VolumesElsewhere;
use super::problem::Problem;
use super::spec::VmSpec;

/// The longest part of a permit, in bytes: a certificate.
const PERMIT_BYTES_MAX: usize = 16 << 10;

/// The properties of a running machine that another host must have, too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningMachine {
    /// What tells its guest that it is no copy (vmgenid).
    pub generation_id: Uuid,
    /// The version of its QEMU, as `7.2`.
    pub qemu: String,
    /// Whether KVM runs its processors.
    pub kvm: bool,
}

/// A running VM, as its host offers it to another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Offer {
    /// The machine.
    pub machine: RunningMachine,
    /// Whether it was paused on request.
    pub paused: bool,
    /// The configuration that it runs with.
    pub spec: Box<VmSpec>,
}

/// What permits two hosts to pass a running VM's memory on. hostd gives it to the relay, which
/// understands it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MigrationPermit {
    /// The grant; base64 in JSON.
    #[serde(serialize_with = "write", deserialize_with = "read")]
    pub grant: Vec<u8>,
    /// The certificate whose key signed it, DER; base64 in JSON.
    #[serde(serialize_with = "write", deserialize_with = "read")]
    pub signer: Vec<u8>,
}

/// The order to a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sending {
    /// The generation that runs.
    pub running: VmGeneration,
    /// Where the target's relay listens.
    pub to: SocketAddr,
    /// How the memory passes.
    pub settings: MigrationSettings,
    /// What permits it.
    pub permit: MigrationPermit,
    /// Whether the target has [fetched](super::OperationKind::FetchLive) the volumes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub with_volumes: bool,
}

/// The order to a target that does not reach the VM's datastore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FetchingLive {
    /// What comes, with the places of its volumes at the target.
    pub offer: Offer,
    /// How the memory will pass.
    pub settings: MigrationSettings,
    /// The handover of this attempt, which is written into the VM's directory.
    pub handover: HandoverId,
    /// Where its volumes are.
    pub from: VolumesElsewhere,
}

/// The order to a target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Receiving {
    /// What comes.
    pub offer: Offer,
    /// How the memory passes.
    pub settings: MigrationSettings,
    /// What permits it.
    pub permit: MigrationPermit,
}

/// Redacted.
impl fmt::Debug for MigrationPermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MigrationPermit(redacted)")
    }
}

impl RunningMachine {
    /// Checks that a QEMU of this version, with or without KVM, can go on with it. The version of a
    /// pinned machine type is the same in every QEMU from that on.
    ///
    /// # Errors
    /// Names the difference.
    pub fn fits(&self, qemu: (u32, u32), kvm: bool, spec: &VmSpec) -> Result<(), Problem> {
        let refused = |what: String| {
            Problem::new(
                "other_machine",
                format!("VM {} does not move here while it runs: {what}", spec.name),
            )
        };
        if self.kvm != kvm {
            let with = |kvm| if kvm { "KVM" } else { "emulation" };
            return Err(refused(format!("it runs with {}, and this host has {}", with(self.kvm), with(kvm))));
        }
        let there = self
            .qemu
            .split_once('.')
            .and_then(|(major, minor)| Some((major.parse::<u32>().ok()?, minor.parse::<u32>().ok()?)));
        let Some(there) = there else {
            return Err(refused(format!("{:?} is no version of QEMU", self.qemu)));
        };
        let is_pinned = spec.board.machine_type.is_some();
        if there == qemu || (is_pinned && there < qemu) {
            return Ok(());
        }
        let (here, next) = (format!("{}.{}", qemu.0, qemu.1), "bring both hosts to the same QEMU");
        Err(refused(format!("it runs on QEMU {}, and this host has {here}", self.qemu)).with_next_step(next))
    }
}

/// Checks that a VM can move while it runs.
///
/// # Errors
/// Names what keeps it where it is.
pub fn check_moves_live(spec: &VmSpec) -> Result<(), Problem> {
    spec.check_whole()
}

fn write<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&Base64::encode_string(bytes))
}

fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = Base64::decode_vec(&text).ok();
    bytes
        .filter(|bytes| (1..=PERMIT_BYTES_MAX).contains(&bytes.len()))
        .ok_or_else(|| serde::de::Error::custom("a part of a permit is base64, and at most 16 KiB long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{DiskBecomes, DiskKey};

    #[test]
    fn a_machine_goes_on_where_it_fits() {
        let machine = RunningMachine { generation_id: Uuid::nil(), qemu: "7.2".to_owned(), kvm: true };
        let mut spec = VmSpec::for_tests("web1", true);
        spec.board.machine_type = None;
        machine.fits((7, 2), true, &spec).unwrap();
        for (qemu, kvm, says) in [
            ((8, 0), true, "runs on QEMU 7.2, and this host has 8.0"),
            ((7, 2), false, "runs with KVM, and this host has emulation"),
        ] {
            let refused = machine.fits(qemu, kvm, &spec).unwrap_err();
            assert!(refused.message.contains(says), "{refused}");
        }
        spec.board.machine_type = Some("pc-q35-7.2".parse().unwrap());
        machine.fits((8, 0), true, &spec).unwrap();
        machine.fits((7, 1), true, &spec).unwrap_err();
        let lies = RunningMachine { qemu: "seven".to_owned(), ..machine };
        assert!(lies.fits((7, 2), true, &spec).unwrap_err().message.contains("no version"));
    }

    #[test]
    fn what_keeps_a_vm_where_it_is_is_named() {
        let spec = VmSpec::for_tests("web1", true);
        let moves = |change: &dyn Fn(&mut VmSpec)| {
            let mut spec = spec.clone();
            change(&mut spec);
            check_moves_live(&spec).map_err(|problem| problem.message)
        };
        assert_eq!(moves(&|spec| (spec.seed, spec.tpm) = (true, true)), Ok(()));
        let half_clear = |spec: &mut VmSpec| {
            let key = spec.disks[0].key.provider_key().unwrap().clone();
            let becomes = DiskBecomes::Encrypted;
            spec.disks[0].key = DiskKey::HalfClear { key, kek: None, becomes };
        };
        assert!(moves(&half_clear).unwrap_err().contains("not encrypted as a whole"));
    }
}
