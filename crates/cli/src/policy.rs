//! `strongroom policy`: rules that VMs must keep.

use std::fmt::{self, Display};

use clap::{Args, Subcommand};
use strongroom_api::policy::{ApplyPolicy, CreatePolicy, Policy, PolicyRules, SetPolicy};
use strongroom_api::vm::{ProcessorModel, SnapshotRule};
use strongroom_api::{ListQuery, Name, Page};
use strongroom_types::{MigrationMode, display_seconds};

use crate::api::{ApiArguments, WaitArguments, segment, show, table};
use crate::error::CliError;
use crate::inventory::ended;
use crate::limits::LimitArguments;
use crate::output::Output;
use crate::vm::parse_period;

/// The commands for policies.
#[derive(Debug, Subcommand)]
pub enum PolicyCommand {
    /// List the policies
    List(PolicyListArguments),
    /// Create a policy
    Create(PolicyCreateArguments),
    /// Show a policy, and the VMs that deviate from it
    Show(PolicyArguments),
    /// Give a policy other rules
    Set(PolicySetArguments),
    /// Have the VMs that deviate from a policy keep its rules
    Apply(PolicyApplyArguments),
    /// Delete a policy that no VM uses
    Delete(PolicyArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom policy list")]
pub struct PolicyListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `create`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strongroom policy create gold --encryption-required --crypto-safe-hosts
  strongroom policy create lab --migration opportunistic")]
pub struct PolicyCreateArguments {
    /// Name of the policy
    name: Name,

    /// Description of the policy
    #[arg(long, value_name = "TEXT", default_value = "")]
    description: String,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `set`.
#[derive(Debug, Args)]
#[command(
    after_help = "The rules replace those that the policy has: one that is not named ends. VMs that do not keep them stay as they \
are; 'policy show' lists them, and each has an alarm that says what ends it.

Example:
  strongroom policy set gold --encryption-required --integrity-required --iops 5000 --snapshots 1d:7"
)]
pub struct PolicySetArguments {
    /// Name or id of the policy
    policy: String,

    #[command(flatten)]
    rules: RuleArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `apply`.
#[derive(Debug, Args)]
#[command(
    after_help = "Disks are encrypted, VMs move to keys of the policy's provider, limits are narrowed and snapshots scheduled, each by a task of \
its own, four VMs at a time. What no request can change, such as a missing TPM, is named in the end with the reasons, and so is what failed. \
Cancelling ends it after the tasks that have begun.

Example:
  strongroom policy apply gold"
)]
pub struct PolicyApplyArguments {
    /// Name or id of the policy
    policy: String,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The rules of a policy.
#[derive(Debug, Args)]
struct RuleArguments {
    /// Require encryption of its VMs
    #[arg(long)]
    encryption_required: bool,

    /// Key provider of its VMs
    #[arg(long, value_name = "NAME")]
    key_provider: Option<Name>,

    /// Run its VMs only on hosts where no secret in memory can reach a disk
    #[arg(long)]
    crypto_safe_hosts: bool,

    /// Alarm threshold for the 99th percentile of disk latency in milliseconds, exceeded for five
    /// minutes; 0 disables the alarm [default: 500]
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u32).range(..=60_000))]
    disk_latency_p99_ms: Option<u32>,

    /// Require a TPM of its VMs
    #[arg(long)]
    tpm_required: bool,

    /// Require integrity tags of their encrypted disks; new disks get them
    #[arg(long)]
    integrity_required: bool,

    /// Require that their disks take their whole space when they are made; new disks do
    #[arg(long)]
    thick_required: bool,

    /// Losses of storage devices, or of what else a Ceph cluster's rule keeps copies apart in, at
    /// one time, after which all their data is still there, at least
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(..=16))]
    losses_survived: Option<u8>,

    /// How the memory of its VMs passes to another host when they move while they run: encrypted
    /// (`required`), in plain text if a host has no instructions for encryption (`opportunistic`),
    /// or in plain text (`disabled`). VMs that are encrypted, or were, are always encrypted on
    /// their way [default: required]
    #[arg(long, value_name = "MODE")]
    migration: Option<MigrationMode>,

    /// Whether consoles and screens of its VMs are refused to browsers, and images from there,
    /// where they pass a process of the control plane's machine in plain text; the command line
    /// reaches them at the host
    #[arg(long)]
    deny_browser_console: bool,

    /// Snapshots that are made of each VM at least: the time from one to the next, and how many are
    /// kept, as in 1h:24; new VMs get them. Repeat for each period
    #[arg(long, value_name = "TIME:N", value_parser = parse_snapshots)]
    snapshots: Vec<SnapshotRule>,

    /// Processor of its VMs: `host`, a level such as x86-64-v3, or a model of QEMU; new VMs get it
    #[arg(long, value_name = "MODEL")]
    processor: Option<ProcessorModel>,

    /// The widest limits of each of their disks; new disks get them
    #[command(flatten)]
    disk_limits: LimitArguments,
}

impl RuleArguments {
    fn rules(&self) -> PolicyRules {
        PolicyRules {
            encryption_required: self.encryption_required,
            key_provider: self.key_provider.clone(),
            tpm_required: self.tpm_required,
            integrity_required: self.integrity_required,
            disk_limits: self.disk_limits.limits(),
            thick_required: self.thick_required,
            losses_survived: self.losses_survived,
            snapshots: self.snapshots.clone(),
            processor: self.processor.clone(),
            migration: self.migration,
            browser_console_denied: self.deny_browser_console,
            crypto_safe_hosts: self.crypto_safe_hosts,
            restart: None,
            disk_latency_p99_ms: self.disk_latency_p99_ms,
        }
    }
}

fn parse_snapshots(text: &str) -> Result<SnapshotRule, String> {
    let (every, keep) = text.split_once(':').ok_or("give the time and how many are kept, as in 1d:7")?;
    let keep = keep.parse().map_err(|_| format!("'{keep}' is no number of snapshots"))?;
    Ok(SnapshotRule { every_s: parse_period(every)?, at_minutes: None, keep, quiesce_within_s: None })
}

/// The arguments of commands on a policy.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  strongroom policy show gold\n  strongroom policy delete gold")]
pub struct PolicyArguments {
    /// Name or id of the policy
    policy: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// A policy, for people.
struct PolicyText<'policy>(&'policy Policy);

impl Display for PolicyText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { id: _, name, description, rules, vms, deviating } = self.0;
        writeln!(f, "{name}  {description}")?;
        let demanded = |is| if is { "required" } else { "as wished" };
        writeln!(f, "encryption  {}", demanded(rules.encryption_required))?;
        writeln!(f, "keys from   {}", rules.key_provider.as_ref().map_or("any", |name| name.as_str()))?;
        writeln!(f, "integrity   {}", demanded(rules.integrity_required))?;
        writeln!(f, "TPM         {}", demanded(rules.tpm_required))?;
        writeln!(f, "disks       {}", rules.disk_limits)?;
        writeln!(f, "space       {}", if rules.thick_required { "all of it at once" } else { "as wished" })?;
        let survived =
            rules.losses_survived.map_or("as wished".to_owned(), |losses| format!("outlives {losses}"));
        writeln!(f, "losses      {survived}")?;
        let kept = |rule: &SnapshotRule| {
            format!("every {}, {} kept", display_seconds(rule.every_s.into()), rule.keep)
        };
        let snapshots: Vec<String> = rules.snapshots.iter().map(kept).collect();
        let snapshots = if snapshots.is_empty() { "as wished".to_owned() } else { snapshots.join("; ") };
        writeln!(f, "snapshots   {snapshots}")?;
        let processor = rules.processor.as_ref().map_or("as wished", ProcessorModel::as_str);
        writeln!(f, "processor   {processor}")?;
        let migration = match rules.migration.unwrap_or_default() {
            MigrationMode::Required => "memory is encrypted on its way to another host",
            MigrationMode::Opportunistic => {
                "memory of VMs that were never encrypted is in plain text if a host has no instructions for encryption"
            }
            MigrationMode::Disabled => "memory of VMs that were never encrypted is in plain text",
        };
        writeln!(f, "migration   {migration}")?;
        writeln!(
            f,
            "browsers    {}",
            if rules.browser_console_denied { "no consoles, screens and images" } else { "any" }
        )?;
        writeln!(f, "hosts       {}", if rules.crypto_safe_hosts { "crypto-safe" } else { "any" })?;
        write!(f, "VMs         {vms}")?;
        if !deviating.is_empty() {
            let names: Vec<&str> = deviating.iter().map(Name::as_str).collect();
            write!(f, "; {} deviate, and 'vm show' says how: {}", names.len(), names.join(", "))?;
        }
        Ok(())
    }
}

impl PolicyCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(PolicyListArguments { api }) => {
                let all: Page<Policy> = api.connect()?.query("/v1/policies", &ListQuery::default())?;
                table(
                    output,
                    all,
                    ["NAME", "SEALED", "KEYS FROM", "HOSTS", "VMS", "FOR"],
                    "there are no policies",
                    |one| {
                        let rules = &one.rules;
                        let either = |is, yes: &str, no: &str| if is { yes } else { no }.to_owned();
                        [
                            one.name.to_string(),
                            either(rules.encryption_required, "required", "as wished"),
                            rules.key_provider.as_ref().map_or("any".to_owned(), ToString::to_string),
                            either(rules.crypto_safe_hosts, "crypto-safe", "any"),
                            one.vms.to_string(),
                            one.description.clone(),
                        ]
                    },
                )
            }
            Self::Create(arguments) => {
                let api = arguments.api.connect()?;
                let wish = CreatePolicy {
                    name: arguments.name.clone(),
                    description: arguments.description.clone(),
                    rules: arguments.rules.rules(),
                };
                let task = api.post("/v1/policies", &wish)?;
                let said = format!("policy {} is made", arguments.name);
                ended(&api, output, WaitArguments::default(), "making", task, &said)
            }
            Self::Show(PolicyArguments { policy, api }) => {
                let path = format!("/v1/policies/{}", segment(policy));
                let shown: Policy = api.connect()?.get(&path)?;
                let text = PolicyText(&shown).to_string();
                show(output, shown, text)
            }
            Self::Set(PolicySetArguments { policy, rules, api }) => {
                let path = format!("/v1/policies/{}", segment(policy));
                let set: Policy = api.connect()?.patch_for(&path, &SetPolicy { rules: rules.rules() })?;
                let text = PolicyText(&set).to_string();
                show(output, set, text)
            }
            Self::Apply(PolicyApplyArguments { policy, wait, api }) => {
                let api = api.connect()?;
                let path = format!("/v1/policies/{}/applications", segment(policy));
                let task = api.post(&path, &ApplyPolicy {})?;
                let said = format!("all VMs of policy {policy} keep its rules");
                ended(&api, output, *wait, "applying", task, &said)
            }
            Self::Delete(PolicyArguments { policy, api }) => {
                let api = api.connect()?;
                let task = api.delete(&format!("/v1/policies/{}", segment(policy)))?;
                let said = format!("policy {policy} is deleted");
                ended(&api, output, WaitArguments::default(), "deleting", task, &said)
            }
        }
    }
}
