//! `strongroom task`, `event`, `host`, `datastore`: the control plane's other objects.

use std::cmp::Reverse;
use std::fmt::{self, Display};
use std::net::SocketAddr;
use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use strongroom_api::alarm::Alarm;
use strongroom_api::datastore::{
    AddCeph, AddDatastore, AddDatastoreHost, CapacitySample, CapacityTrend, CephAccess, Datastore,
    DatastoreCapacity, DatastoreHost, Found, RebuildDatastore, TrendDirection,
};
use strongroom_api::event::{Event, EventListQuery};
use strongroom_api::host::{
    AdmitHost, Balance, BalanceHosts, CreateHostToken, EvacuateHost, FenceHost, Host, HostFenced, HostLoad,
    HostToken, PlannedMove, SetHost,
};
use strongroom_api::task::{Progress, ProgressUnit, Task, TaskListQuery, TaskState};
use strongroom_api::vm::{Capabilities, MachineType, ProcessorModel};
use strongroom_api::{ListQuery, Name, ObjectRef, Page};
use strongroom_files::FileError;
use strongroom_types::{
    Bandwidth, CephClient, CephName, CephPools, CephUser, Redundancy, counted, display_bytes, parse_id,
    unix_milliseconds_now,
};
use uuid::Uuid;

use crate::api::{Api, ApiArguments, WaitArguments, follow, segment, show, table, time_ms, word};
use crate::error::CliError;
use crate::keyserver::parse_address;
use crate::output::{Output, utc};
use crate::progress::display_about;

/// The default limit of a list.
const MOST: u32 = 50;

/// The commands for tasks.
#[derive(Debug, Subcommand)]
pub enum TaskCommand {
    /// List tasks, newest first
    #[command(after_help = "Examples:\n  strongroom task list\n  strongroom task list --most 500 --json")]
    List(MostArguments),
    /// Show a task
    #[command(after_help = "Example:\n  strongroom task show 019ab0f6-0d52-7c55-8e0a-6e5b3f0a3c11")]
    Show(TaskArguments),
    /// Cancel a task
    #[command(after_help = "Example:\n  strongroom task cancel 019ab0f6-0d52-7c55-8e0a-6e5b3f0a3c11")]
    Cancel(TaskArguments),
}

/// The arguments of commands with a limited list.
#[derive(Debug, Args)]
pub struct MostArguments {
    /// Greatest number of entries
    #[arg(long, value_name = "N", default_value_t = MOST)]
    most: u32,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a task.
#[derive(Debug, Args)]
pub struct TaskArguments {
    /// Id of the task, from `strongroom task list`
    #[arg(value_parser = parse_id)]
    task: Uuid,

    #[command(flatten)]
    api: ApiArguments,
}

fn object(object: &ObjectRef) -> String {
    object.name.clone()
}

impl TaskCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(MostArguments { most, api }) => {
                let query = TaskListQuery { limit: Some(*most), ..TaskListQuery::default() };
                let tasks: Page<Task> = api.connect()?.query("/v1/tasks", &query)?;
                let head = ["TASK", "WHAT", "STATE", "BEGUN", "BY", "ERROR"];
                table(output, tasks, head, "there are no tasks", |task| {
                    let error = task.error.as_ref().map(|error| error.message.clone());
                    [
                        task.id.to_string(),
                        task.shown_title(),
                        word(task.state),
                        time_ms(task.created_unix_ms),
                        task.by.clone(),
                        error.unwrap_or_default(),
                    ]
                })
            }
            Self::Show(TaskArguments { task, api }) => {
                let task: Task = api.connect()?.get(&format!("/v1/tasks/{task}"))?;
                let text = describe(&task);
                show(output, task, text)
            }
            Self::Cancel(TaskArguments { task, api }) => {
                let task = api.connect()?.delete(&format!("/v1/tasks/{task}"))?;
                let text = describe(&task);
                show(output, task, text)
            }
        }
    }
}

fn describe(task: &Task) -> String {
    let mut text = format!("{}: {}", task.shown_title(), word(task.state));
    if let Some(progress) = task.progress.filter(|progress| progress.total > 0) {
        let percent = u128::from(progress.done) * 100 / u128::from(progress.total);
        text.push_str(&format!(", {percent} %"));
        if let Some(passing) = progress.passing {
            text.push_str(&format!(
                ", {} of memory pass a second and the guest changes {}",
                display_bytes(passing.bytes_per_second),
                display_bytes(passing.changed_bytes_per_second)
            ));
            if passing.slowed_percent > 0 {
                text.push_str(&format!(", slowed down by {} %", passing.slowed_percent));
            }
        }
        if let Some(left) = seconds_left(task.state, progress, elapsed_ms(task)) {
            text.push_str(&format!(", about {} left", display_about(left)));
        }
    }
    if task.cancelling && !task.state.is_over() {
        text.push_str(", to be ended");
    }
    for more in [task.note.as_ref(), task.error.as_ref().map(|error| &error.message)].into_iter().flatten() {
        text.push_str(&format!("\n  {more}"));
    }
    if let Some(next) = task.error.as_ref().and_then(|error| error.next_step.as_ref()) {
        text.push_str(&format!("\n  next: {next}"));
    }
    text
}

fn elapsed_ms(task: &Task) -> u64 {
    unix_milliseconds_now().saturating_sub(task.created_unix_ms)
}

/// How long a task takes that moves bytes, at the speed that it has had since it was requested.
fn seconds_left(state: TaskState, progress: Progress, elapsed_ms: u64) -> Option<u64> {
    let Progress { done, total, unit: ProgressUnit::Bytes, passing } = progress else { return None };
    if let Some(passing) = passing {
        return passing.seconds_left.filter(|_| state == TaskState::Running);
    }
    let left = u128::from(total.saturating_sub(done)) * u128::from(elapsed_ms / 1000);
    let left = left.checked_div(done.into()).filter(|_| state == TaskState::Running)?;
    u64::try_from(left).ok()
}

/// The commands for events.
#[derive(Debug, Subcommand)]
pub enum EventCommand {
    /// List events
    #[command(after_help = "Examples:\n  strongroom event list\n  strongroom event list --most 500 --json")]
    List(MostArguments),
    /// Follow events until Control-C
    Follow(FollowArguments),
    /// List active alarms
    Alarms(AlarmArguments),
}

/// The arguments of `follow`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom event follow")]
pub struct FollowArguments {
    /// Start after event number N
    #[arg(long, value_name = "N")]
    after: Option<u64>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `alarms`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom event alarms")]
pub struct AlarmArguments {
    #[command(flatten)]
    api: ApiArguments,
}

impl EventCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(MostArguments { most, api }) => {
                let query = EventListQuery { limit: Some(*most), ..EventListQuery::default() };
                let events: Page<Event> = api.connect()?.query("/v1/events", &query)?;
                table(
                    output,
                    events,
                    ["NUMBER", "WHEN", "WHAT", "OF", "MESSAGE"],
                    "nothing happened yet",
                    |event| {
                        [
                            event.id.to_string(),
                            time_ms(event.at_unix_ms),
                            event.kind.clone(),
                            object(&event.object),
                            event.message.clone(),
                        ]
                    },
                )
            }
            Self::Follow(FollowArguments { after, api }) => {
                let query = after.map(|after| format!("?after={after}")).unwrap_or_default();
                let mut failed = None;
                api.connect()?.stream(&format!("/v1/events/stream{query}"), &mut |line| {
                    // Server-sent events (HTML, section 9.2). The other fields are for browsers.
                    let Some(event) = line.strip_prefix("data:") else { return true };
                    let Ok(event) = serde_json::from_str::<Event>(event.trim_start()) else { return true };
                    let text = format!("{}  {}  {}", time_ms(event.at_unix_ms), event.kind, event.message);
                    failed = show(output, event, text).err();
                    failed.is_none()
                })?;
                failed.map_or(Ok(()), Err)
            }
            Self::Alarms(AlarmArguments { api }) => {
                let alarms: Page<Alarm> = api.connect()?.get("/v1/alarms")?;
                table(output, alarms, ["SEVERITY", "SINCE", "WHAT", "NEXT"], "nothing is wrong", |alarm| {
                    [
                        word(alarm.severity),
                        time_ms(alarm.since_unix_ms),
                        alarm.message.clone(),
                        alarm.next_step.clone(),
                    ]
                })
            }
        }
    }
}

/// The commands for hosts.
#[derive(Debug, Subcommand)]
pub enum HostCommand {
    /// List the machines that run VMs
    List(HostListArguments),
    /// Create a token with which a machine joins as a host
    Token(HostTokenArguments),
    /// Show a host
    #[command(after_help = "Example:\n  strongroom host show host2")]
    Show(HostArguments),
    /// List the processors that hosts can give to guests
    Processors(HostProcessorsArguments),
    /// Set whether a host is in maintenance: no VM is placed or started there
    Maintenance(HostMaintenanceArguments),
    /// Move all VMs away from a host, which is in maintenance from then on
    Evacuate(HostEvacuateArguments),
    /// Show which VMs would move so that hosts are balanced, and have them move
    Balance(HostBalanceArguments),
    /// Declare a host lost: it is shut out from Ceph clusters, and its VMs there go elsewhere
    Fence(HostFenceArguments),
    /// Let a host that was declared lost use its Ceph clusters again
    Admit(HostAdmitArguments),
    /// Remove a host without VMs and datastores; its certificate is revoked
    #[command(after_help = "Example:\n  strongroom host remove host2")]
    Remove(HostArguments),
}

/// The arguments of `token`.
#[derive(Debug, Args)]
#[command(
    after_help = "The token is secret until it is used or has expired, and good once. Take it to the machine, install \
the same version there, and join:

  strongroom serve --role host --join 10.0.0.5:5697 --token-file token

The address after --join is that of enrolment on this machine, where 'serve' has to listen for other machines: \
--listen-kmip and --listen-enrolment.

Example:
  umask 077; strongroom host token host2 --address 10.0.0.6:5691 > token"
)]
pub struct HostTokenArguments {
    /// Name of the host
    name: Name,

    /// Address at which this machine will reach the host
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    address: SocketAddr,

    /// Validity of the token, in seconds [default: 3600]
    #[arg(long, value_name = "SECONDS")]
    valid: Option<u32>,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a host.
#[derive(Debug, Args)]
pub struct HostArguments {
    /// Name or id of the host
    host: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `maintenance`.
#[derive(Debug, Args)]
#[command(
    after_help = "VMs that run there go on. An alarm is raised as long as it is on.\n\nExamples:\n  strongroom host maintenance host2 on\n  strongroom host maintenance host2 off"
)]
pub struct HostMaintenanceArguments {
    /// Name or id of the host
    host: String,

    /// Whether it is in maintenance
    state: Switch,

    #[command(flatten)]
    api: ApiArguments,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}

/// The arguments of `evacuate`.
#[derive(Debug, Args)]
#[command(
    after_help = "VMs move to other hosts that reach their datastores, those that run while they run. With --shut-down, VMs that \
cannot are shut down, moved, and started on their new hosts. With --with-volumes, VMs whose datastores no other host \
reaches move with their volumes, each to the datastore with the most space. What cannot be moved is named in the end, \
with the reasons.

Examples:
  strongroom host evacuate host2
  strongroom host evacuate host2 --shut-down
  strongroom host evacuate host2 --with-volumes --bandwidth 100M"
)]
pub struct HostEvacuateArguments {
    /// Name or id of the host
    host: String,

    /// Shut down VMs that cannot move while they run, and start them on their new hosts
    #[arg(long)]
    shut_down: bool,

    /// How long each guest has to shut down, in seconds; it is powered off then [default: 60]
    #[arg(long, value_name = "SECONDS", requires = "shut_down")]
    timeout: Option<u32>,

    /// Move the volumes of VMs whose datastores no other host reaches to other hosts' datastores
    #[arg(long)]
    with_volumes: bool,

    /// Most bytes a second that pass of each VM, such as 100M; 1M to 64G [default: what the network
    /// gives]
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Bandwidth>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `balance`.
#[derive(Debug, Args)]
#[command(
    after_help = "VMs that run move from full hosts to emptier ones while they run, until the parts of the hosts' memory that are in use \
differ by at most a tenth. Without --apply nothing moves. With it, exactly the moves that are shown are carried out, four at a time.

Examples:
  strongroom host balance
  strongroom host balance --apply"
)]
pub struct HostBalanceArguments {
    /// Carry out the moves
    #[arg(long)]
    apply: bool,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `fence`.
#[derive(Debug, Args)]
#[command(
    after_help = "For a machine that is gone, or that nobody reaches while it may still run. Another host of each of its datastores on Ceph \
clusters has the cluster refuse whatever it still writes. Only then do its VMs there belong to other hosts: those that restart by \
themselves are started, the others can be. VMs in directories of the host stay `unknown`. Nothing is placed or started on it until its \
machine has started again, and `strongroom host admit` says so.

Examples:
  strongroom host fence host2 --confirm host2
  strongroom host fence host2 --confirm host2 --even-if-it-answers"
)]
pub struct HostFenceArguments {
    /// Name or id of the host
    host: String,

    /// Name of the host once more
    #[arg(long, value_name = "NAME")]
    confirm: String,

    /// Shut it out although it answers: VMs that run there lose their disks
    #[arg(long)]
    even_if_it_answers: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `admit`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom host admit host2")]
pub struct HostAdmitArguments {
    /// Name or id of the host
    host: String,

    /// The machine has started again since (if its last start before is not known)
    #[arg(long)]
    has_started_again: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `processors`.
#[derive(Debug, Args)]
#[command(
    after_help = "A VM with a processor that all hosts can give can be on each of them. `host` is the whole processor of the VM's host, \
and takes it to others that have as much. The levels x86-64-v2 to x86-64-v4 are what compilers and distributions mean by them, without what \
guards against faults of single processors; models of QEMU, such as EPYC-IBPB or Haswell-noTSX-IBRS, have that.

Example:
  strongroom host processors"
)]
pub struct HostProcessorsArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// A processor, and who can give it.
#[derive(Serialize)]
struct GivenProcessor {
    processor: ProcessorModel,
    /// Whether all hosts can that say what they can give.
    by_all: bool,
    hosts: Vec<String>,
}

/// The processors of all hosts, those first that most hosts can give.
fn given_processors(hosts: &[Host]) -> Vec<GivenProcessor> {
    let telling: Vec<(&Host, &Capabilities)> =
        hosts.iter().filter_map(|host| Some((host, host.capabilities.as_ref()?))).collect();
    let mut all: Vec<GivenProcessor> = Vec::new();
    for model in telling.iter().flat_map(|(_, has)| &has.processors) {
        if all.iter().any(|known| known.processor == *model) {
            continue;
        }
        let giving = telling.iter().filter(|(_, has)| has.has_processor(model));
        let hosts: Vec<String> = giving.map(|(host, _)| host.name.clone()).collect();
        all.push(GivenProcessor { processor: model.clone(), by_all: hosts.len() == telling.len(), hosts });
    }
    all.sort_by_key(|one| Reverse(one.hosts.len()));
    all
}

fn processors(api: &ApiArguments, output: &Output) -> Result<(), CliError> {
    let hosts: Page<Host> = api.connect()?.query("/v1/hosts", &ListQuery::default())?;
    let items = given_processors(&hosts.items);
    let all = Page { total: items.len() as u64, items, next: None };
    table(output, all, ["PROCESSOR", "HOSTS"], "no host says which processors it can give", |one| {
        [one.processor.to_string(), if one.by_all { "all".to_owned() } else { one.hosts.join(", ") }]
    })
}

/// A plan, for people.
fn told_balance(balance: &Balance) -> String {
    let mut lines: Vec<String> = balance
        .hosts
        .iter()
        .map(|load| {
            let HostLoad { host, memory_bytes, running_bytes, after_bytes } = load;
            let percent = |bytes: u64| bytes.saturating_mul(100) / memory_bytes.max(&1);
            let after = match after_bytes == running_bytes {
                true => String::new(),
                false => format!(", {} % after the moves", percent(*after_bytes)),
            };
            format!(
                "host {host}: VMs that run have {} of {}, {} %{after}",
                display_bytes(*running_bytes),
                display_bytes(*memory_bytes),
                percent(*running_bytes)
            )
        })
        .collect();
    lines.extend(balance.moves.iter().map(|planned| {
        let PlannedMove { name, from, to, memory_bytes, .. } = planned;
        format!("VM {name} ({}) moves from host {from} to host {to}", display_bytes(*memory_bytes))
    }));
    if balance.moves.is_empty() {
        lines.push("nothing is to be moved".to_owned());
    }
    lines.join("\n")
}

#[derive(Serialize)]
struct HostRemoved {
    host: String,
}

impl Display for HostRemoved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host {} is removed; end `strongroom serve` there", self.host)
    }
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom host list")]
pub struct HostListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

impl HostCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(HostListArguments { api }) => Self::list(api, output),
            Self::Token(HostTokenArguments { name, address, valid, api }) => {
                let wish = CreateHostToken {
                    name: name.clone(),
                    address: address.to_string(),
                    valid_seconds: *valid,
                };
                let token: HostToken = api.connect()?.post_for("/v1/hosts", &wish)?;
                let text = serde_json::to_string(&token).map_err(|error| CliError::Output(error.into()))?;
                let (until, fingerprint) = (utc(token.expires_unix_seconds), token.authority.clone());
                let join = format!(
                    "good once, until {until}; join with --join {} --fingerprint {fingerprint}",
                    token.enrolment
                );
                show(output, token, text)?;
                // Not on stdout, because the token is redirected to a file as it is.
                output.remark(&join);
                Ok(())
            }
            Self::Show(HostArguments { host, api }) => {
                let host: Host = api.connect()?.get(&format!("/v1/hosts/{}", segment(host)))?;
                let text = host_text(&host);
                show(output, host, text)
            }
            Self::Processors(HostProcessorsArguments { api }) => processors(api, output),
            Self::Maintenance(HostMaintenanceArguments { host, state, api }) => {
                let maintenance = *state == Switch::On;
                let path = format!("/v1/hosts/{}", segment(host));
                let set = SetHost { maintenance: Some(maintenance) };
                let changed: Host = api.connect()?.patch_for(&path, &set)?;
                let said = match maintenance {
                    true => format!("host {host} is in maintenance: no VM is placed or started there"),
                    false => format!("host {host} is in maintenance no more"),
                };
                show(output, changed, said)
            }
            Self::Evacuate(HostEvacuateArguments {
                host,
                shut_down,
                timeout,
                with_volumes,
                bandwidth,
                wait,
                api,
            }) => {
                let api = api.connect()?;
                let wish = EvacuateHost {
                    shut_down: *shut_down,
                    timeout_s: *timeout,
                    with_volumes: *with_volumes,
                    bytes_per_second: *bandwidth,
                };
                let task = api.post(&format!("/v1/hosts/{}/evacuate", segment(host)), &wish)?;
                let said = format!("nothing is on host {host} any more; it is in maintenance");
                ended(&api, output, *wait, "moving", task, said.as_str())
            }
            Self::Balance(HostBalanceArguments { apply, wait, api }) => {
                let api = api.connect()?;
                let balance: Balance = api.get("/v1/balance")?;
                let text = told_balance(&balance);
                let Some(plan) = balance.plan.clone().filter(|_| *apply) else {
                    return show(output, balance, text);
                };
                output.remark(&text);
                let task = api.post("/v1/balance", &BalanceHosts { plan })?;
                ended(&api, output, *wait, "moving", task, "the hosts are balanced")
            }
            Self::Fence(HostFenceArguments { host, confirm, even_if_it_answers, api }) => {
                let wish = FenceHost { confirm: confirm.clone(), even_if_it_answers: *even_if_it_answers };
                let fenced: Host =
                    api.connect()?.post_for(&format!("/v1/hosts/{}/fence", segment(host)), &wish)?;
                let text = format!(
                    "host {host} is shut out from its clusters; its VMs there are of other hosts: `strongroom vm list`"
                );
                show(output, fenced, text)
            }
            Self::Admit(HostAdmitArguments { host, has_started_again, api }) => {
                let wish = AdmitHost { has_started_again: *has_started_again };
                let admitted: Host =
                    api.connect()?.post_for(&format!("/v1/hosts/{}/admit", segment(host)), &wish)?;
                show(output, admitted, format!("host {host} uses its clusters again, and takes VMs"))
            }
            Self::Remove(HostArguments { host, api }) => {
                api.connect()?.remove(&format!("/v1/hosts/{}", segment(host)))?;
                output.answer(&HostRemoved { host: host.clone() })
            }
        }
    }

    fn list(api: &ApiArguments, output: &Output) -> Result<(), CliError> {
        let hosts: Page<Host> = api.connect()?.query("/v1/hosts", &ListQuery::default())?;
        let head =
            ["NAME", "STATE", "CPUS", "MEMORY", "FREE", "GUESTS ON", "VMS", "MEMORY STAYS IN", "REASONS"];
        table(output, hosts, head, "there are no hosts", |host| {
            [
                host.name.clone(),
                state_of(host),
                host.cpus.to_string(),
                display_bytes(host.memory_bytes),
                display_bytes(host.memory_free_bytes),
                host.accelerator.clone().unwrap_or_default(),
                host.vms_running.to_string(),
                host.crypto_safe.clone().unwrap_or_default(),
                host.crypto_safe_reasons.join("; "),
            ]
        })
    }
}

/// Whether a host answers, and takes VMs.
fn state_of(host: &Host) -> String {
    let maintenance = if host.maintenance { ", in maintenance" } else { "" };
    let fenced = match &host.fenced {
        None => "",
        Some(HostFenced { complete: true, .. }) => ", fenced",
        Some(HostFenced { complete: false, .. }) => ", not completely fenced",
    };
    let lacks: Vec<&str> = host.processor_lacks.iter().map(|lack| lack.what.as_str()).collect();
    let lacks = if lacks.is_empty() { String::new() } else { format!(", lacks {}", lacks.join(", ")) };
    format!("{}{maintenance}{fenced}{lacks}", word(host.state))
}

/// The machine types of a host, for people: the newest ones, and the oldest one.
fn machine_types_of(host: &Host) -> String {
    let Some(has) = &host.capabilities else { return "unknown".to_owned() };
    let of = |machine| {
        let types = has.machine_types.iter().filter(|version| version.machine() == machine);
        types.map(ToString::to_string).collect::<Vec<_>>().join(" ")
    };
    format!("{}\n             {}", of(MachineType::Q35), of(MachineType::Pc))
}

/// The processors that a host can give, for people.
fn processors_of(host: &Host) -> String {
    let Some(has) = &host.capabilities else { return "unknown".to_owned() };
    has.processors.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// A host for people.
fn host_text(host: &Host) -> String {
    let here = || "this machine's control socket".to_owned();
    let mut lines = vec![
        format!("name         {}", host.name),
        format!("state        {}", state_of(host)),
        format!("address      {}", host.address.clone().unwrap_or_else(here)),
        format!("version      {}", host.version.clone().unwrap_or_default()),
        format!("cpus         {} {}", host.cpus, host.cpu_model.as_deref().unwrap_or_default()),
        format!(
            "memory       {}, {} free, {} placed",
            display_bytes(host.memory_bytes),
            display_bytes(host.memory_free_bytes),
            display_bytes(host.memory_placed_bytes)
        ),
        format!("machines     {}", machine_types_of(host)),
        format!("processors   {}", processors_of(host)),
        format!("VMs running  {}", host.vms_running),
        format!("crypto-safe  {}", host.crypto_safe.clone().unwrap_or_default()),
    ];
    lines.extend(host.crypto_safe_reasons.iter().map(|reason| format!("             {reason}")));
    lines.extend(host.processor_lacks.iter().map(|lack| format!("lacks        {}", lack.message)));
    lines.join("\n")
}

/// The commands for datastores.
#[derive(Debug, Subcommand)]
pub enum DatastoreCommand {
    /// List the datastores
    List(DatastoreListArguments),
    /// Add a directory, or a pool of a Ceph cluster, as a datastore
    Add(DatastoreAddArguments),
    /// Show a datastore, and the hosts that reach it
    #[command(after_help = "Example:\n  strongroom datastore show ds1")]
    Show(DatastoreArguments),
    /// Have another host use a datastore that it reaches, too
    AddHost(DatastoreAddHostArguments),
    /// End the use of a datastore by a host that has none of its VMs
    #[command(after_help = "Example:\n  strongroom datastore remove-host ds1 --host host2")]
    RemoveHost(DatastoreRemoveHostArguments),
    /// Remove a datastore without VMs from the inventory; its files stay
    #[command(after_help = "Example:\n  strongroom datastore remove ds1")]
    Remove(DatastoreArguments),
    /// Show the content of a datastore, compared with the inventory
    #[command(after_help = "Example:\n  strongroom datastore contents ds1")]
    Contents(DatastoreArguments),
    /// Show what a datastore had in the past, and when it will be full
    #[command(
        after_help = "The control plane keeps a sample of each hour for a week, and one of each day for three years. The trend is the \
median change of the last 30 days, and is shown after 7. With --json, all samples are shown.

Example:
  strongroom datastore capacity ds1"
    )]
    Capacity(DatastoreArguments),
    /// Register all VMs of a datastore that can be registered
    Rebuild(RebuildArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom datastore list")]
pub struct DatastoreListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `add`.
#[derive(Debug, Args)]
#[command(
    after_help = "On a Ceph cluster, Strongroom's files are images and objects in a namespace of the pool, encrypted as in a directory: \
the cluster sees neither data nor keys. The pool of --rbd is replicated; that of --data-pool may be erasure-coded, with overwrites allowed. \
Each host reaches the cluster as a Ceph user of its own, by whom it is fenced if it is lost. Its key stays in the keyring on that host, \
which only root may read. docs/CEPH.md says how pools and users are made.

Examples:
  mkdir -p /srv/vms
  strongroom datastore add ds1 /srv/vms
  strongroom datastore add big --rbd vms --user client.host1
  strongroom datastore add wide --rbd vms --data-pool vms-ec --namespace wide --user client.host1 --host host1"
)]
pub struct DatastoreAddArguments {
    /// Name of the datastore
    name: Name,

    /// Existing directory on ext4, XFS, btrfs or tmpfs (a missing one may be on a disk that is not
    /// mounted)
    #[arg(required_unless_present = "rbd", conflicts_with = "rbd")]
    path: Option<std::path::PathBuf>,

    /// Replicated pool of a Ceph cluster, instead of a directory
    #[arg(long, value_name = "POOL", requires = "user")]
    rbd: Option<CephName>,

    /// Pool of the volumes' data, if another, such as an erasure-coded one
    #[arg(long, value_name = "POOL", requires = "rbd")]
    data_pool: Option<CephName>,

    /// Namespace in the pools [default: strongroom]
    #[arg(long, value_name = "NAME", requires = "rbd")]
    namespace: Option<CephName>,

    #[command(flatten)]
    access: CephArguments,

    /// Host of the directory, or that reaches the cluster [default: the only host]
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// How a host reaches a Ceph cluster.
#[derive(Debug, Args)]
struct CephArguments {
    /// The host's own Ceph user, as in client.host1
    #[arg(long, value_name = "USER")]
    user: Option<CephUser>,

    /// File on the host that says how the cluster is reached [default: /etc/ceph/ceph.conf]
    #[arg(long, value_name = "FILE", requires = "user")]
    conf: Option<String>,

    /// File on the host with the user's key [default: /etc/ceph/ceph.USER.keyring]
    #[arg(long, value_name = "FILE", requires = "user")]
    keyring: Option<String>,
}

impl CephArguments {
    fn access(&self) -> Option<CephAccess> {
        let Self { user, conf, keyring } = self;
        Some(CephAccess { user: user.clone()?, conf: conf.clone(), keyring: keyring.clone() })
    }
}

/// The arguments of `add-host`.
#[derive(Debug, Args)]
#[command(
    after_help = "Both hosts see the same directory: the host compares the datastore's mark, and a copy shows when a VM moves. \
VMs are then placed on the host that fits best. Never mount ext4, XFS or btrfs on two machines at once: that destroys them. \
For a datastore on a Ceph cluster, --user is a user of this host alone.

Examples:
  strongroom datastore add-host ds1 --host host2
  strongroom datastore add-host big --host host2 --user client.host2"
)]
pub struct DatastoreAddHostArguments {
    /// Name or id of the datastore
    datastore: String,

    /// Host that reaches it, too
    #[arg(long, value_name = "NAME")]
    host: String,

    /// Directory of the datastore there [default: as on its first host]
    #[arg(long, value_name = "DIR", conflicts_with = "user")]
    path: Option<String>,

    #[command(flatten)]
    access: CephArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `remove-host`.
#[derive(Debug, Args)]
pub struct DatastoreRemoveHostArguments {
    /// Name or id of the datastore
    datastore: String,

    /// Host that uses it no more
    #[arg(long, value_name = "NAME")]
    host: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of commands on a datastore.
#[derive(Debug, Args)]
pub struct DatastoreArguments {
    /// Name or id of the datastore
    datastore: String,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `rebuild`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom datastore rebuild ds1")]
pub struct RebuildArguments {
    /// As in `strongroom vm register`, for each VM; without it VMs with unauthenticated
    /// configurations are skipped, and events give the reasons
    #[arg(long)]
    accept_configuration: bool,

    #[command(flatten)]
    of: DatastoreArguments,
}

impl DatastoreCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(DatastoreListArguments { api }) => {
                let all: Page<Datastore> = api.connect()?.query("/v1/datastores", &ListQuery::default())?;
                let head = ["NAME", "STATE", "SIZE", "FREE", "PROVISIONED", "VMS", "PATH"];
                table(
                    output,
                    all,
                    head,
                    "there are no datastores; add one: strongroom datastore add NAME DIR (or --rbd POOL --user USER)",
                    |one| {
                        [
                            one.name.to_string(),
                            word(one.state),
                            display_bytes(one.total_bytes),
                            display_bytes(one.free_bytes),
                            display_bytes(one.provisioned_bytes),
                            one.vms.to_string(),
                            place_of(one),
                        ]
                    },
                )
            }
            Self::Add(DatastoreAddArguments {
                name,
                path,
                rbd,
                data_pool,
                namespace,
                access,
                host,
                wait,
                api,
            }) => {
                let path = path.as_deref().map(absolute).transpose()?;
                let add_ceph = |(pool, client): (&CephName, CephAccess)| {
                    let (data_pool, namespace) = (data_pool.clone(), namespace.clone());
                    AddCeph { pool: pool.clone(), data_pool, namespace, client }
                };
                let ceph = rbd.as_ref().zip(access.access()).map(add_ceph);
                if ceph.is_none() && access.user.is_some() {
                    return Err(CliError::Usage(
                        "--user is a Ceph user, and a directory is reached without one; name a pool with --rbd instead of the directory"
                            .to_owned(),
                    ));
                }
                let api = api.connect()?;
                let wish = AddDatastore { name: name.clone(), path, ceph, host: host.clone() };
                let task = api.post("/v1/datastores", &wish)?;
                ended(&api, output, *wait, "adding", task, &format!("{name} is a datastore"))
            }
            Self::Show(DatastoreArguments { datastore, api }) => {
                let path = format!("/v1/datastores/{}", segment(datastore));
                let found: Datastore = api.connect()?.get(&path)?;
                let text = datastore_text(&found);
                show(output, found, text)
            }
            Self::AddHost(DatastoreAddHostArguments { datastore, host, path, access, api }) => {
                let api = api.connect()?;
                let wish = AddDatastoreHost { host: host.clone(), path: path.clone(), ceph: access.access() };
                let task = api.post(&format!("/v1/datastores/{}/hosts", segment(datastore)), &wish)?;
                let said = format!("host {host} reaches datastore {datastore}");
                ended(&api, output, WaitArguments::default(), "adding", task, &said)
            }
            Self::RemoveHost(DatastoreRemoveHostArguments { datastore, host, api }) => {
                let api = api.connect()?;
                let path = format!("/v1/datastores/{}/hosts/{}", segment(datastore), segment(host));
                let task = api.delete(&path)?;
                let said = format!("host {host} uses datastore {datastore} no more; its files stay");
                ended(&api, output, WaitArguments::default(), "removing", task, &said)
            }
            Self::Remove(DatastoreArguments { datastore, api }) => {
                let api = api.connect()?;
                let task = api.delete(&format!("/v1/datastores/{}", segment(datastore)))?;
                let said = format!("{datastore} is a datastore no longer; its files stay");
                ended(&api, output, WaitArguments::default(), "removing", task, &said)
            }
            Self::Contents(DatastoreArguments { datastore, api }) => {
                let path = format!("/v1/datastores/{}/contents", segment(datastore));
                let found: Page<Found> = api.connect()?.get(&path)?;
                table(output, found, ["DIRECTORY", "STANDING", "REASON"], "it is empty", |found| {
                    [found.directory.clone(), word(found.standing), found.reason.clone().unwrap_or_default()]
                })
            }
            Self::Capacity(DatastoreArguments { datastore, api }) => {
                let path = format!("/v1/datastores/{}/capacity", segment(datastore));
                let found: DatastoreCapacity = api.connect()?.get(&path)?;
                let text = capacity_text(&found);
                show(output, found, text)
            }
            Self::Rebuild(RebuildArguments {
                accept_configuration,
                of: DatastoreArguments { datastore, api },
            }) => {
                let api = api.connect()?;
                let wish = RebuildDatastore { accept_configuration: *accept_configuration };
                let path = format!("/v1/datastores/{}/rebuild", segment(datastore));
                let task = api.post(&path, &wish)?;
                let said = format!("what could be registered of {datastore} is");
                ended(&api, output, WaitArguments::default(), "registering", task, &said)
            }
        }
    }
}

/// A directory's path, as its host knows it.
fn absolute(path: &Path) -> Result<String, CliError> {
    let failed = |error| CliError::File(FileError { action: "find", path: path.to_owned(), error });
    let absolute = std::path::absolute(path).map_err(failed)?;
    let text = absolute.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        CliError::Usage(format!("{} is not UTF-8, as a datastore's path has to be", path.display()))
    })
}

/// Where a datastore is, for people.
fn place_of(datastore: &Datastore) -> String {
    let Some(CephPools { pool, namespace, .. }) = &datastore.ceph else { return datastore.path.clone() };
    format!("rbd:{pool}/{namespace}")
}

/// A datastore on one of its hosts, for people.
fn on_host(on: &DatastoreHost) -> String {
    let by = match &on.client {
        None => on.path.clone(),
        Some(CephClient { user, conf, keyring }) => {
            format!("as {user} by {} and {}", conf.display(), keyring.display())
        }
    };
    let why = on.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("on           {}, {by} ({}{why})", on.host, word(on.state))
}

/// The trend of what is used of a datastore, for people.
fn trend_text(trend: &CapacityTrend) -> String {
    let CapacityTrend { direction, days, bytes_per_day, full_in_days } = trend;
    let of_days = counted(*days as usize, "day");
    let by_day = display_bytes(bytes_per_day.unwrap_or_default().unsigned_abs());
    match (direction, full_in_days) {
        (TrendDirection::Unknown, _) => format!("not known yet: there is a history of {of_days}"),
        (TrendDirection::Unclear, _) => format!("no direction in the last {of_days}"),
        (TrendDirection::Growing, Some(full)) => format!(
            "full in about {}, at {by_day} a day, the growth of the last {of_days}",
            counted(*full as usize, "day")
        ),
        (TrendDirection::Growing, None) => {
            format!("grows by {by_day} a day in the last {of_days}: not full within 10 years")
        }
        (TrendDirection::Shrinking, _) => format!("shrinks by {by_day} a day in the last {of_days}"),
    }
}

/// The history of a datastore's capacity, for people: the days that are over, and the last hour.
fn capacity_text(found: &DatastoreCapacity) -> String {
    let mut lines = vec![format!("trend  {}", trend_text(&found.trend))];
    let shown = found.days.iter().chain(found.hours.last());
    let shown: Vec<&CapacitySample> = shown.collect();
    if shown.is_empty() {
        lines.push(
            "no host has reported what it has; the next report is written down within a minute".to_owned(),
        );
    } else {
        lines.push(format!("{:<20}  {:>10}  {:>10}  {:>11}", "AT", "USED", "OF", "PROVISIONED"));
    }
    lines.extend(shown.into_iter().map(|sample| {
        let CapacitySample { at_unix_seconds, total_bytes, used_bytes, provisioned_bytes } = *sample;
        let [used, of, provisioned] = [used_bytes, total_bytes, provisioned_bytes].map(display_bytes);
        format!("{:<20}  {used:>10}  {of:>10}  {provisioned:>11}", utc(at_unix_seconds))
    }));
    lines.join("\n")
}

/// A datastore for people.
fn datastore_text(found: &Datastore) -> String {
    let mut lines = vec![
        format!("name         {}", found.name),
        format!("id           {}", found.id),
        format!("state        {}", word(found.state)),
        format!(
            "size         {}, {} free",
            display_bytes(found.total_bytes),
            display_bytes(found.free_bytes)
        ),
        format!("provisioned  {}", display_bytes(found.provisioned_bytes)),
        format!("VMs          {}", found.vms),
        format!("trend        {}", trend_text(&found.trend)),
    ];
    if let Some(CephPools { pool, data_pool, namespace }) = &found.ceph {
        lines.push(format!("pool         {pool}, namespace {namespace}"));
        lines.extend(data_pool.iter().map(|pool| format!("data pool    {pool}")));
    }
    if let Some(Redundancy { losses_survived, losses_served }) = found.redundancy {
        lines.push(format!("redundancy   outlives {losses_survived}, serves with {losses_served}"));
    }
    lines.extend(found.hosts.iter().map(on_host));
    lines.join("\n")
}

/// Follows a task, unless it is not to be waited for, and shows how it has ended.
pub fn ended(
    api: &Api,
    output: &Output,
    wait: WaitArguments,
    verb: &'static str,
    task: Task,
    said: &str,
) -> Result<(), CliError> {
    if wait.no_wait {
        let text = format!("task {}", task.id);
        return show(output, task, text);
    }
    let task = follow(api, output, verb, task)?;
    show(output, task, said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_takes_as_long_as_what_was_done() {
        let progress = |done, unit| Progress { done, total: 4000, unit, passing: None };
        let left = |done| seconds_left(TaskState::Running, progress(done, ProgressUnit::Bytes), 60_000);
        assert_eq!([left(1000), left(4000), left(0)], [Some(180), Some(0), None]);
        assert_eq!(seconds_left(TaskState::Done, progress(1000, ProgressUnit::Bytes), 60_000), None);
        assert_eq!(seconds_left(TaskState::Running, progress(1000, ProgressUnit::Steps), 60_000), None);
        assert_eq!([90, 600, 7200].map(display_about), ["90 s", "10 min", "2 h"]);
    }
}
