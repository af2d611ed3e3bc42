//! `strongroom vm list`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::Page;
use strongroom_api::vm::{Lifecycle, Tag, VmListQuery, VmSummary};
use strongroom_types::display_bytes;

use crate::api::{Api, ApiArguments};
use crate::error::CliError;
use crate::output::{Output, Table};

/// The count of VMs per request.
const PAGE: u32 = 500;

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  strongroom vm list
  strongroom vm list web --state running
  strongroom vm list --tag env=prod
  strongroom vm list --json | jq -r '.items[].name'")]
pub struct ListArguments {
    /// List only VMs whose name contains this text
    name: Option<String>,

    /// List only VMs in this state: stopped, starting, running, paused, stopping, crashed,
    /// key-unavailable
    #[arg(long, value_name = "STATE")]
    state: Option<String>,

    /// List only VMs of this datastore
    #[arg(long, value_name = "NAME")]
    datastore: Option<String>,

    /// List only VMs on this host
    #[arg(long, value_name = "NAME")]
    host: Option<String>,

    /// List only VMs with this policy
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,

    /// List only VMs with this tag, KEY or KEY=VALUE; repeatable: with all of them
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<Tag>,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Listing(Page<VmSummary>);

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vms = &self.0.items;
        if vms.is_empty() {
            return f.write_str("there are no such VMs");
        }
        let row = |vm: &VmSummary| {
            let state = match vm.lifecycle {
                Lifecycle::Creating => "creating".to_owned(),
                Lifecycle::Deleting => "deleting".to_owned(),
                Lifecycle::Present if vm.template => "template".to_owned(),
                Lifecycle::Present => vm.power.as_str().replace('_', "-"),
            };
            [
                vm.name.to_string(),
                state,
                vm.cpus.to_string(),
                display_bytes(vm.memory_bytes),
                display_bytes(vm.disk_bytes),
                match (vm.encrypted, vm.partly_clear) {
                    (true, false) => "sealed",
                    (true, true) => "PARTLY CLEAR",
                    (false, _) => "CLEAR",
                }
                .to_owned(),
                vm.datastore.clone(),
                vm.host.clone().unwrap_or_default(),
                vm.reason.clone().unwrap_or_default(),
            ]
        };
        let head = ["NAME", "STATE", "CPUS", "MEMORY", "DISKS", "DATA", "DATASTORE", "HOST", "REASON"];
        write!(f, "{}", Table { head, rows: vms.iter().map(row).collect() })
    }
}

impl ListArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let mut query = VmListQuery {
            limit: Some(PAGE),
            name: self.name.clone(),
            power: self.state.as_deref().map(state).transpose()?,
            datastore: self.datastore.clone(),
            host: self.host.clone(),
            policy: self.policy.clone(),
            tag: (!self.tags.is_empty())
                .then(|| self.tags.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")),
            ..VmListQuery::default()
        };
        let mut all = page(&api, &query)?;
        while let Some(next) = all.next.take() {
            query.cursor = Some(next);
            let more = page(&api, &query)?;
            all.items.extend(more.items);
            all.next = more.next;
        }
        output.answer(&Listing(all))
    }
}

fn page(api: &Api, query: &VmListQuery) -> Result<Page<VmSummary>, CliError> {
    api.query("/v1/vms", query)
}

fn state(text: &str) -> Result<strongroom_api::vm::PowerState, CliError> {
    use strongroom_api::vm::PowerState;
    let known = [
        PowerState::Stopped,
        PowerState::Starting,
        PowerState::Running,
        PowerState::Paused,
        PowerState::Stopping,
        PowerState::Crashed,
        PowerState::Suspended,
        PowerState::KeyUnavailable,
    ];
    let wanted = text.replace('-', "_");
    known.into_iter().find(|state| state.as_str() == wanted).ok_or_else(|| {
        let names = known.map(|state| state.as_str().replace('_', "-")).join(", ");
        CliError::Usage(format!("'{text}' is no state of a VM; these are: {names}"))
    })
}
