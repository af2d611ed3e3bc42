//! `strongroom support`: what someone who helps from outside needs to see, without names.

mod redaction;

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde_json::{Map, Value};
use strongroom_api::event::EventListQuery;
use strongroom_api::limits::PAGE_MAX;
use strongroom_api::task::TaskListQuery;
use strongroom_files::FileError;
use strongroom_types::{counted, unix_milliseconds_now};

use self::redaction::Redaction;
use crate::api::{Api, ApiArguments, show};
use crate::error::CliError;
use crate::new_file::NewFile;
use crate::output::Output;

/// The arguments of `support`.
#[derive(Debug, Args)]
#[command(
    after_help = "Writes one JSON file with the states of hosts, datastores, VMs and disks, with alarms, and the last events \
and tasks. Every name, address and path is replaced by one that says nothing, such as vm-3, the same \
everywhere in the file. There is no key, no token and nothing of guests in what it is made of. Read the file before you \
give it away: a message can quote something that is no name.

It takes the rights of the caller: what it may not view is not in the file.

Examples:
  strongroom support bundle.json
  strongroom support all-names.json --names"
)]
pub struct SupportArguments {
    /// New file to write
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Keep names, addresses and paths
    #[arg(long)]
    names: bool,

    #[command(flatten)]
    api: ApiArguments,
}

/// What was written.
#[derive(Serialize)]
struct Written {
    file: PathBuf,
    replaced: usize,
    missing: Vec<String>,
}

impl SupportArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let file = NewFile::create(&self.file)?;
        let (mut bundle, missing) = collected(&self.api.connect()?);
        let mut redaction = Redaction::default();
        if !self.names {
            redaction.learn(&bundle);
            redaction.apply(&mut bundle);
        }
        let failed = |error| CliError::File(FileError { action: "write", path: self.file.clone(), error });
        let text = serde_json::to_vec_pretty(&bundle).map_err(|error| CliError::Output(error.into()))?;
        let mut to = file.file();
        to.write_all(&text).and_then(|()| to.write_all(b"\n")).map_err(failed)?;
        file.finish()?;
        let replaced = redaction.len();
        let said = match self.names {
            true => format!("{} has all names", self.file.display()),
            false => format!("{}: {} replaced", self.file.display(), counted(replaced, "name")),
        };
        let said = match missing.is_empty() {
            true => said,
            false => format!("{said}; not in it: {}", missing.join(", ")),
        };
        show(output, Written { file: self.file.clone(), replaced, missing }, said)
    }
}

/// Everything that the caller may view, and what could not be read.
fn collected(api: &Api) -> (Value, Vec<String>) {
    let mut bundle = Map::new();
    bundle.insert("format".to_owned(), 1.into());
    bundle.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    bundle.insert("at_unix_ms".to_owned(), unix_milliseconds_now().into());
    let mut missing = Vec::new();
    let mut part = |name: &str, read: Result<Value, CliError>| {
        let value = read.unwrap_or_else(|error| {
            missing.push(name.to_owned());
            serde_json::json!({ "missing": error.to_string() })
        });
        bundle.insert(name.to_owned(), value);
    };
    for list in [
        "hosts",
        "datastores",
        "vms",
        "volumes",
        "networks",
        "policies",
        "key-providers",
        "folders",
        "alarms",
        "recipients",
    ] {
        let all = api.list::<Value>(&format!("/v1/{list}"));
        part(list, all.map(|all| all.items.into()));
    }
    let newest = EventListQuery { limit: Some(PAGE_MAX), ..EventListQuery::default() };
    part("events", api.query("/v1/events", &newest));
    let newest = TaskListQuery { limit: Some(PAGE_MAX), ..TaskListQuery::default() };
    part("tasks", api.query("/v1/tasks", &newest));
    (bundle.into(), missing)
}
