//! `strongroom access session`: the sessions of people who have signed in.

use clap::{Args, Subcommand};
use strongroom_api::access::{Done, Session};
use strongroom_types::parse_id;
use uuid::Uuid;

use crate::api::{ApiArguments, show, table};
use crate::error::CliError;
use crate::output::{Output, utc};

/// The commands for sessions.
#[derive(Debug, Subcommand)]
pub enum SessionCommand {
    /// List your sessions, or all of them if you may manage roles
    List(ListArguments),
    /// End a session
    End(EndArguments),
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom access session list")]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `end`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom access session end 5f0c2f62-7a43-4d1c-9d57-8f5d3a0b9c11")]
pub struct EndArguments {
    /// Id of the session, from `strongroom access session list`
    #[arg(value_parser = parse_id)]
    session: Uuid,

    #[command(flatten)]
    api: ApiArguments,
}

impl SessionCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        match self {
            Self::List(ListArguments { api }) => {
                let sessions = api.connect()?.list("/v1/sessions")?;
                let head = ["USER", "BEGUN", "ENDS", "ID"];
                table(output, sessions, head, "nobody is signed in", |session: &Session| {
                    [
                        session.user.clone(),
                        utc(session.created_unix_seconds),
                        utc(session.expires_unix_seconds),
                        session.id.to_string(),
                    ]
                })
            }
            Self::End(EndArguments { session, api }) => {
                api.connect()?.remove(&format!("/v1/sessions/{session}"))?;
                show(output, Done {}, format_args!("session {session} is ended"))
            }
        }
    }
}
