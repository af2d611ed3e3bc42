//! `strongroom key-provider test`.

use std::fmt;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_keys::ProviderName;
use strongroom_providers::{FailedProvider, Registry, ServerCheck, check};
use strongroom_types::{counted, without_numbers};

use crate::error::CliError;
use crate::home::HomeArguments;
use crate::output::{Output, Table};

/// The arguments of `test`.
#[derive(Debug, Args)]
#[command(after_help = "Creates a key at each server, gets it and destroys it.

Exit status: 0 all servers work; 1 a server fails.

Examples:
  strongroom key-provider test corp
  strongroom key-provider test corp --json | jq '.servers[] | select(.well | not)'")]
pub struct TestArguments {
    /// Name of the key provider
    name: ProviderName,

    #[command(flatten)]
    home: HomeArguments,
}

#[derive(Serialize)]
struct Report {
    name: ProviderName,
    well: bool,
    servers: Vec<ServerReport>,
}

#[derive(Serialize)]
struct ServerReport {
    well: bool,
    #[serde(flatten)]
    check: ServerCheck,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = Vec::new();
        for ServerReport { check, .. } in &self.servers {
            for step in &check.steps {
                let (result, took) =
                    if step.ok { ("ok", milliseconds(step.took_us)) } else { ("FAILED", String::new()) };
                let detail = without_numbers(&step.detail);
                rows.push([check.server.clone(), step.step.to_owned(), result.to_owned(), took, detail]);
            }
        }
        let head = ["SERVER", "STEP", "RESULT", "TIME", "DETAIL"];
        let failed = self.servers.iter().filter(|server| !server.well).count();
        let verdict = match (failed, self.servers.len()) {
            (0, 1) => "the server is well".to_owned(),
            (0, all) => format!("all {all} servers are well"),
            (failed, all) => format!("{failed} of {} failed", counted(all, "server")),
        };
        write!(f, "{}\n{}: {verdict}", Table { head, rows }, self.name)
    }
}

fn milliseconds(microseconds: u64) -> String {
    format!("{}.{} ms", microseconds / 1000, microseconds / 100 % 10)
}

impl TestArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        let config = Registry::of_home(&self.home.path()?).get(&self.name)?;
        let checks = check(&config)
            .map_err(|error| CliError::Provider(FailedProvider { name: self.name.clone(), error }))?;
        let servers: Vec<_> =
            checks.into_iter().map(|check| ServerReport { well: check.is_well(), check }).collect();
        let well = servers.iter().all(|server| server.well);
        output.answer(&Report { name: self.name.clone(), well, servers })?;
        Ok(if well { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
