//! `strongroom keyserver custody`: the custodians of backups, on whom two administrators agree.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_keyserver::management::protocol::{CustodyAnswer, NamedCustody};
use strongroom_keyserver::management::questions::{ConfirmCustodians, Custodians};
use strongroom_types::hex;

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::Output;

/// The commands for custodians of backups.
#[derive(Debug, Subcommand)]
pub enum CustodyCommand {
    /// Show the custodians of backups, and proposed ones
    Show(ShowArguments),
    /// Confirm proposed custodians, as a second administrator
    Confirm(ConfirmArguments),
}

/// The arguments of `show`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver custody show")]
pub struct ShowArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `confirm`.
#[derive(Debug, Args)]
#[command(
    after_help = "Ask the custodians for the digests of their public keys, and compare them: the owners \
of these keys can open later backups.

Example:
  strongroom keyserver custody confirm 00112233445566778899aabbccddeeff --server kms1:5697 --identity ~/bob"
)]
pub struct ConfirmArguments {
    /// Id of the proposal, from `custody show`
    id: String,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Shown(CustodyAnswer);

#[derive(Serialize)]
#[serde(transparent)]
struct Confirmed(NamedCustody);

impl CustodyCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::Show(ShowArguments { server }) => {
                output.answer(&Shown(server.administrator()?.ask(Custodians {})?))
            }
            Self::Confirm(ConfirmArguments { id, server }) => {
                let question = ConfirmCustodians { id: id.clone() };
                output.answer(&Confirmed(server.administrator()?.ask(question)?))
            }
        }
    }
}

fn write(f: &mut fmt::Formatter<'_>, custody: &NamedCustody) -> fmt::Result {
    for custodian in &custody.custodians {
        write!(f, "\n  {}  {}", hex::encode(&custodian.key_sha256), custodian.name)?;
    }
    Ok(())
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0.present {
            Some(present) => {
                write!(f, "backups take {} of {} to open", present.threshold, present.custodians.len())?;
                write(f, present)?;
            }
            None => f.write_str("there was no backup yet: the first one names its custodians")?,
        }
        let Some(proposed) = &self.0.proposed else { return Ok(()) };
        let by = proposed.proposed_by.as_ref().map(ToString::to_string).unwrap_or_default();
        write!(f, "\n{by} asked for {} of {} instead", proposed.threshold, proposed.custodians.len())?;
        write(f, proposed)?;
        write!(f, "\nanother administrator agrees: strongroom keyserver custody confirm {}", proposed.id)
    }
}

impl fmt::Display for Confirmed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "backups take {} of {} to open from now on", self.0.threshold, self.0.custodians.len())?;
        write(f, &self.0)
    }
}
