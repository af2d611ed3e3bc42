//! The machines that run VMs.

use serde::{Deserialize, Serialize};
use strongroom_types::{Bandwidth, VmId};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::name::Name;
use crate::vm::{Capabilities, ProcessorModel};

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Host {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: String,
    /// Whether it answers.
    pub state: HostState,
    /// Whether it is in maintenance: no VM is placed or started there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub maintenance: bool,
    /// Whether it was declared lost: no VM is placed or started there until it is admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fenced: Option<HostFenced>,
    /// Where it is reached; absent for the control plane's own machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The version of Strongroom on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The number of its processors.
    pub cpus: u32,
    /// The model of its processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_model: Option<String>,
    /// What its QEMU can give to guests; absent while that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// What it cannot give of what VMs and policies of the site demand of processors, or of what
    /// all other hosts have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processor_lacks: Vec<ProcessorLack>,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Its free memory, in bytes.
    pub memory_free_bytes: u64,
    /// The memory of all VMs that are placed there or on their way, in bytes.
    #[serde(default)]
    pub memory_placed_bytes: u64,
    /// The accelerator that guests run with: `kvm` or `tcg`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator: Option<String>,
    /// The programs and the firmware that VMs are started with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programs: Option<HostPrograms>,
    /// The directories that may hold kernels, initial ram disks and CD-ROM images of VMs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub boot_directories: Vec<String>,
    /// Whether secrets can reach one of its disks: `incapable`, `prepared`, `safe` or
    /// `pending-incapable`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub crypto_safe: Option<String>,
    /// The reasons for that state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub crypto_safe_reasons: Vec<String>,
    /// The number of VMs that run on it.
    pub vms_running: u32,
    /// The number of operations in progress.
    pub operations_running: u32,
    /// The number of queued operations.
    pub operations_waiting: u32,
}

/// The programs that a host starts VMs with, each by its path; a program that is not installed is
/// absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostPrograms {
    /// QEMU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu: Option<String>,
    /// QEMU's version, as `7.2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_version: Option<String>,
    /// The UEFI firmware for guests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uefi: Option<String>,
    /// passt, which connects guests to the network `user`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<String>,
    /// swtpm, which emulates TPMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swtpm: Option<String>,
}

/// Whether a host answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It answers.
    Connected,
    /// It does not answer.
    Disconnected,
    /// It has not been asked yet.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A host that was declared lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostFenced {
    /// When, in milliseconds since 1970.
    pub at_unix_ms: u64,
    /// Whether it is shut out from all its clusters. Otherwise it may still write, and the request
    /// is to be repeated.
    pub complete: bool,
}

/// A request to declare a host lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FenceHost {
    /// The host's name once more.
    #[schema(min_length = 1, max_length = 63)]
    pub confirm: String,
    /// Whether it is shut out although it answers. VMs that run there lose their disks.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub even_if_it_answers: bool,
}

/// A request to admit a host that was declared lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct AdmitHost {
    /// Whether the machine has started again since, if the control plane does not know its last
    /// start before that.
    pub has_started_again: bool,
}

/// A request to change a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetHost {
    /// Whether it is in maintenance: no VM is placed or started there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maintenance: Option<bool>,
}

/// A request to move all VMs away from a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub struct EvacuateHost {
    /// Whether VMs that cannot move while they run are shut down, moved and started again.
    /// Otherwise they stay.
    pub shut_down: bool,
    /// How long each guest has to shut down, in seconds: a minute by default. It is powered off
    /// then.
    #[schema(minimum = 1, maximum = 3600)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_s: Option<u32>,
    /// Whether VMs whose datastore no other host reaches move with their volumes: to the datastore
    /// of another host that has the most space. Otherwise they stay.
    pub with_volumes: bool,
    /// How fast each VM that moves while it runs, or with its volumes, passes at most, in bytes per
    /// second. Four VMs move at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<Bandwidth>,
}

/// How evenly the memory of VMs that run is spread over the hosts that take VMs, and the moves that
/// would even it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Balance {
    /// The hosts, the fullest first.
    pub hosts: Vec<HostLoad>,
    /// The moves, in their order. None if the hosts are balanced, or nothing can move.
    pub moves: Vec<PlannedMove>,
    /// What names these moves in a request to carry them out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<String>,
}

/// What the VMs that run on a host have of its memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostLoad {
    /// The host.
    pub host: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// The memory of the VMs that run on it, in bytes.
    pub running_bytes: u64,
    /// The same after the moves.
    pub after_bytes: u64,
}

/// The move of a VM that runs, as it is planned.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlannedMove {
    /// The VM.
    #[schema(value_type = String, format = Uuid)]
    pub vm: VmId,
    /// Its name.
    pub name: String,
    /// The host where it runs.
    pub from: String,
    /// The host that it moves to.
    pub to: String,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
}

/// A request to carry out the moves of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BalanceHosts {
    /// The plan, as it was shown. If other moves are planned by now, nothing is done.
    #[schema(max_length = 64)]
    pub plan: String,
}

/// A request for a token with which a machine joins as a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateHostToken {
    /// The host's name.
    pub name: Name,
    /// The address at which the control plane will reach it, as in `10.0.0.6:5691`.
    #[schema(min_length = 1, max_length = 64)]
    pub address: String,
    /// How long the token can be used, in seconds: an hour by default.
    #[schema(minimum = 60, maximum = 604_800)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub valid_seconds: Option<u32>,
}

/// What a machine needs to join as a host. It is secret until it is used or has expired.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HostToken {
    /// The format of this token.
    pub format: u32,
    /// The host's id.
    pub host: Uuid,
    /// Its name.
    pub name: String,
    /// The address at which it is to listen.
    pub address: String,
    /// The enrolment token of the key server, which can be used once.
    pub token: String,
    /// When it was made, in seconds since 1970.
    pub made_unix_seconds: u64,
    /// When it expires, in seconds since 1970.
    pub expires_unix_seconds: u64,
    /// The address at which the key server enrols.
    pub enrolment: String,
    /// The address at which the key server hands out keys.
    pub kmip: String,
    /// A name in the key server's certificate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
    /// SHA-256 of the certificate of the key server's authority, in hexadecimal.
    pub authority: String,
    /// The id of the control plane at the key server: its orders are the only ones that the host
    /// takes.
    pub control: String,
    /// The control plane's version.
    pub version: String,
    /// The oldest and the newest format in which it speaks with hosts.
    pub host_formats: [u32; 2],
    /// The architecture of its processors, as in `x86_64`.
    pub architecture: String,
    /// What the site demands of processors.
    #[serde(default)]
    pub processors: SiteProcessors,
}

/// What a site demands of a host's processor, and what its hosts have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct SiteProcessors {
    /// The processors that VMs have or policies demand, without `host`.
    pub demanded: Vec<DemandedProcessor>,
    /// What the processors of all hosts have that say so, in QEMU's words.
    pub features: Vec<String>,
    /// The makers of their processors.
    pub vendors: Vec<String>,
}

/// A processor that a site demands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DemandedProcessor {
    /// The processor.
    #[schema(value_type = String)]
    pub processor: ProcessorModel,
    /// Some of the VMs that have it, by name.
    pub vms: Vec<String>,
    /// The number of all VMs that have it.
    pub vms_total: u64,
    /// The policies that demand it, by name.
    pub policies: Vec<String>,
}

/// What a host's processor lacks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProcessorLack {
    /// What: a processor, features, or a maker.
    pub what: String,
    /// Who needs it, and what follows, as a sentence.
    pub message: String,
}

impl SiteProcessors {
    /// What a host with these capabilities lacks.
    pub fn lacking(&self, has: &Capabilities) -> Vec<ProcessorLack> {
        let mut lacks = Vec::new();
        for demanded in self.demanded.iter().filter(|demanded| !has.has_processor(&demanded.processor)) {
            lacks.push(ProcessorLack {
                what: demanded.processor.to_string(),
                message: format!(
                    "it cannot give the whole processor {}, which {}: they do not run there",
                    demanded.processor,
                    demanded.who()
                ),
            });
        }
        let features: Vec<&str> = self
            .features
            .iter()
            .filter(|feature| !has.features.contains(feature))
            .map(String::as_str)
            .collect();
        if !features.is_empty() {
            let listed = listed(&features);
            lacks.push(ProcessorLack {
                message: format!(
                    "it lacks {listed}, which all other hosts have: no VM with the processor `host` moves there"
                ),
                what: listed,
            });
        }
        if let Some(vendor) = &has.vendor
            && !self.vendors.is_empty()
            && !self.vendors.iter().any(|known| known == vendor.as_str())
        {
            let others = self.vendors.join(" and ");
            lacks.push(ProcessorLack {
                message: format!(
                    "its processor is of {vendor}, and those of other hosts of {others}: with KVM a guest sees the maker of \
                     its host's, also with a processor of another name"
                ),
                what: format!("a processor of {others}"),
            });
        }
        lacks
    }
}

impl DemandedProcessor {
    /// Who demands it, with the verb.
    fn who(&self) -> String {
        let names: Vec<&str> = self.vms.iter().map(String::as_str).collect();
        let more = self.vms_total.saturating_sub(names.len() as u64);
        let vms = match (names.len(), more) {
            (0, _) => None,
            (1, 0) => Some(format!("VM {} has", names[0])),
            (_, 0) => Some(format!("VMs {} have", names.join(", "))),
            (_, more) => Some(format!("VMs {} and {more} more have", names.join(", "))),
        };
        let policies = match self.policies.as_slice() {
            [] => None,
            [one] => Some(format!("policy {one} demands")),
            all => Some(format!("policies {} demand", all.join(", "))),
        };
        vms.into_iter().chain(policies).collect::<Vec<_>>().join(" and ")
    }
}

/// Most features that a sentence lists.
const LISTED_MAX: usize = 8;

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(LISTED_MAX);
    let text = names.iter().take(LISTED_MAX).copied().collect::<Vec<_>>().join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

/// Without the secret.
impl std::fmt::Debug for HostToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostToken({} at {}, redacted)", self.name, self.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_host_lacks_is_named_with_those_who_need_it() {
        let site: SiteProcessors = serde_json::from_value(serde_json::json!({
            "demanded": [
                { "processor": "x86-64-v2", "vms": ["old"], "vms_total": 1, "policies": [] },
                { "processor": "x86-64-v4", "vms": ["web1", "web2"], "vms_total": 5, "policies": ["gold"] },
                { "processor": "Haswell", "vms": ["db1"], "vms_total": 1, "policies": [] },
                { "processor": "EPYC", "vms": [], "vms_total": 0, "policies": ["a", "b"] }
            ],
            "features": ["avx512f", "sse4.2"], "vendors": ["GenuineIntel"]
        }))
        .unwrap();
        let has: Capabilities = serde_json::from_value(serde_json::json!({
            "machine_types": [], "default_machine_types": [], "processors": ["x86-64-v2"],
            "features": ["sse4.2"], "vendor": "AuthenticAMD"
        }))
        .unwrap();
        let lacks = site.lacking(&has);
        let told: Vec<&str> = lacks.iter().map(|lack| lack.message.as_str()).collect();
        assert_eq!(lacks.len(), 5, "{told:?}");
        assert!(told[0].contains("x86-64-v4, which VMs web1, web2 and 3 more have and policy gold demands"));
        assert!(told[1].contains("Haswell, which VM db1 has"));
        assert!(told[2].contains("EPYC, which policies a, b demand"));
        assert!(told[3].contains("it lacks avx512f, which all other hosts have"));
        assert!(told[4].contains("of AuthenticAMD, and those of other hosts of GenuineIntel"));
        assert_eq!(SiteProcessors::default().lacking(&has), []);
    }
}
