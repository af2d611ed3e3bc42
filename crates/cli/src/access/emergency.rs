//! `strongroom access emergency`: credentials for when nobody can sign in as usual.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::access::Done;
use strongroom_api::emergency::{CreateEmergency, EmergencyCredential, NewEmergency};
use strongroom_api::vm::PowerOptions;

use crate::api::{ApiArguments, segment, show, table};
use crate::error::CliError;
use crate::output::{Output, utc};

/// The commands for emergency credentials.
#[derive(Debug, Subcommand)]
pub enum EmergencyCommand {
    /// Create an emergency credential and print it, once
    #[command(
        after_help = "Print it on paper, and keep it in a sealed envelope away from this machine. It works once: \
'strongroom login --emergency' gives a session of an hour with the role administrator, and everyone whom alarms reach is told.

Example:
  strongroom access emergency create envelope1"
    )]
    Create(CredentialArguments),
    /// List emergency credentials, and their last uses
    #[command(after_help = "Example:\n  strongroom access emergency list")]
    List(ListArguments),
    /// Give an emergency credential another secret, also after its use, and print that, once
    #[command(after_help = "Example:\n  strongroom access emergency rotate envelope1")]
    Rotate(CredentialArguments),
    /// Say that somebody has looked at the use of an emergency credential, which ends the alarm
    #[command(after_help = "An emergency session cannot do this.

Example:
  strongroom access emergency acknowledge envelope1")]
    Acknowledge(CredentialArguments),
    /// Delete an emergency credential, and end its session
    #[command(after_help = "Example:\n  strongroom access emergency revoke envelope1")]
    Revoke(CredentialArguments),
}

/// The arguments of commands on a credential.
#[derive(Debug, Args)]
pub struct CredentialArguments {
    /// Name of the credential
    name: Name,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
pub struct ListArguments {
    #[command(flatten)]
    api: ApiArguments,
}

/// A new secret: that alone is on stdout, so that it can go to a printer.
#[derive(Serialize)]
#[serde(transparent)]
struct Printed(NewEmergency);

impl fmt::Display for Printed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.secret.expose())
    }
}

pub(super) const HEAD: [&str; 4] = ["EMERGENCY CREDENTIAL", "STATE", "MADE", "LAST USE"];

pub(super) fn row(credential: &EmergencyCredential) -> [String; 4] {
    let used = credential.last_use.as_ref().map_or_else(
        || "never".to_owned(),
        |used| {
            let seen = used
                .acknowledged_by
                .as_ref()
                .map_or_else(|| "NOT ACKNOWLEDGED".to_owned(), |by| format!("acknowledged by {by}"));
            format!("{} from {}: {} ({seen})", utc(used.at_unix_seconds), used.from, used.reason)
        },
    );
    let state = if credential.usable { "usable" } else { "used up" };
    [credential.name.to_string(), state.to_owned(), utc(credential.created_unix_seconds), used]
}

impl EmergencyCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let path =
            |name: &Name, part: &str| format!("/v1/emergency-credentials/{}{part}", segment(name.as_str()));
        match self {
            Self::Create(CredentialArguments { name, api }) => {
                let wish = CreateEmergency { name: name.clone() };
                let made = api.connect()?.post_for("/v1/emergency-credentials", &wish)?;
                output.remark(&format!("emergency credential {name}, shown once; it works once:"));
                output.answer(&Printed(made))
            }
            Self::List(ListArguments { api }) => {
                let none =
                    "there are no emergency credentials; `strongroom access emergency create` makes one";
                table(output, api.connect()?.list("/v1/emergency-credentials")?, HEAD, none, row)
            }
            Self::Rotate(CredentialArguments { name, api }) => {
                let made = api.connect()?.post_for(&path(name, "/rotate"), &PowerOptions {})?;
                output
                    .remark(&format!("emergency credential {name}, shown once; the old one counts no more:"));
                output.answer(&Printed(made))
            }
            Self::Acknowledge(CredentialArguments { name, api }) => {
                let seen: EmergencyCredential =
                    api.connect()?.post_for(&path(name, "/acknowledge"), &PowerOptions {})?;
                show(output, seen, format_args!("the use of emergency credential {name} is acknowledged"))
            }
            Self::Revoke(CredentialArguments { name, api }) => {
                api.connect()?.remove(&path(name, ""))?;
                show(output, Done {}, format_args!("emergency credential {name} is revoked"))
            }
        }
    }
}
