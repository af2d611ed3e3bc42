//! `strongroom key destroy`.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;
use strongroom_jobs::JobError;
use strongroom_jobs::datastores::{KnownDatastores, check_unneeded};
use strongroom_jobs::destructions::KeptDestructions;
use strongroom_jobs::inventory::{Inventory, Key};
use strongroom_keyserver::evidence::DataKeyFate;
use strongroom_keyserver::management::questions::{
    CancelDestruction, ConfirmDestruction, ScheduleDestruction,
};
use strongroom_keyserver::objects::destruction::{DELAY_MAX_SECONDS, DELAY_MIN_SECONDS, REASON_MAX_BYTES};
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_providers::{FailedProvider, ProviderError, SourceConfig};
use strongroom_types::{display_seconds, unix_seconds_now};

use super::waiting::WaitingDestruction;
use super::{DatastoreArguments, KeyNameArguments};
use crate::duration::parse_seconds;
use crate::error::CliError;
use crate::keyserver::AdministrationArguments;
use crate::output::{Output, utc};

/// The arguments of `destroy`.
#[derive(Debug, Args)]
#[command(
    after_help = "Destroying a key destroys all data that it protects, in every copy and backup. So it \
takes several steps: the destruction is scheduled, which takes the key out of use for new data at once; \
a delay passes, in which it can be cancelled; and a second person confirms it. It is refused, with a \
list, while a volume needs the key. It says what became of the data keys that were under it, as the audit \
log has it, which 'strongroom evidence' writes into a signed report. The volumes are searched in every datastore in which this machine \
created a volume with a provider's key, and in those given with --datastore, which are remembered. If \
such a datastore cannot be read, nothing is destroyed; if it is lost for good, give --forget-datastore. \
Volumes of other machines, and copies made in other ways, are not found.

Linked clones of a VM have the content that they share with it under their own keys. Their names are listed, and the destruction of \
the VM's keys is refused until they are deleted, or with --leave-to-clones.

A key in the embedded key server is protected by the server: it searches for volumes itself, at each \
step and again after the delay, requires another administrator's certificate (--identity) for --confirm, \
and then destroys the key. Other providers support neither a delay nor a second person. For them this \
machine's home stores the delay, and --confirm destroys the key when it is over, whoever runs it: a \
second person is not enforced, and anyone with the provider's credentials can destroy the key without \
this program. A transit engine (Vault) stores no keys that could be destroyed.

Examples:
  strongroom key destroy 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --delay 14d --reason 'the customer left'
  strongroom key destroy 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --confirm --identity ./second-admin
  strongroom key destroy 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --cancel"
)]
pub struct DestroyArguments {
    #[command(flatten)]
    key: KeyNameArguments,

    /// Reason for the destruction, which is recorded
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["confirm", "cancel"])]
    reason: Option<String>,

    /// Least delay before the destruction, such as 12h or 14d; from 1h to 400d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_seconds)]
    delay: u64,

    /// Confirm a scheduled destruction
    #[arg(long, conflicts_with_all = ["reason", "cancel"])]
    confirm: bool,

    /// Cancel a scheduled destruction; the key stays out of use, but still opens what it has sealed
    #[arg(long, conflicts_with = "reason")]
    cancel: bool,

    /// Destroy it although linked clones of its VM keep content that was under it
    #[arg(long, conflicts_with_all = ["confirm", "cancel"])]
    leave_to_clones: bool,

    #[command(flatten)]
    datastores: DatastoreArguments,

    /// Treat the datastore at DIR and its volumes as lost for good; repeatable
    #[arg(long, value_name = "DIR")]
    forget_datastore: Vec<PathBuf>,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Answer {
    key: String,
    /// `scheduled`, `confirmed`, `cancelled` or `destroyed`.
    step: &'static str,
    #[serde(flatten)]
    waiting: WaitingDestruction,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, step, waiting } = self;
        let due = utc(waiting.due_unix_seconds);
        if let Some(fate) = waiting.data_keys {
            writeln!(f, "{}", fate_of_data_keys(fate))?;
        }
        match (*step, waiting.enforced) {
            ("scheduled", true) => write!(
                f,
                "key {key} is out of use, and will be destroyed after {due} if another administrator confirms it:\n  \
                 strongroom key destroy {key} --confirm --identity DIR"
            ),
            ("scheduled", false) => write!(
                f,
                "key {key} is out of use, and can be destroyed after {due}:\n  strongroom key destroy {key} --confirm"
            ),
            ("confirmed", _) => write!(f, "confirmed: key {key} will be destroyed after {due}"),
            ("cancelled", _) => {
                write!(
                    f,
                    "key {key} will not be destroyed; it stays out of use, and opens what it has sealed"
                )
            }
            _ => write!(f, "key {key} is destroyed"),
        }
    }
}

/// What the destruction of a key means for the data that was under it.
fn fate_of_data_keys(fate: DataKeyFate) -> &'static str {
    match fate {
        DataKeyFate::Renewed => {
            "what left this key was re-encrypted, by the audit log; `strongroom evidence` writes the report"
        }
        DataKeyFate::Kept => {
            "WARNING: data keys that were under this key are in use under another one. Without it old copies of descriptors \
             do not open, but the data is not gone: re-encrypt it (`strongroom vm key rotate VM --data`)"
        }
        DataKeyFate::Shared => {
            "WARNING: what left this key was re-encrypted, but linked clones may have layers under the old data keys"
        }
        DataKeyFate::NotOnRecord => {
            "no re-encryption of what was under this key is on record: what was moved without --data keeps its data keys"
        }
    }
}

impl DestroyArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<ExitCode, CliError> {
        self.check()?;
        let home = self.server.home()?;
        let known = KnownDatastores::of_home(&home);
        for datastore in &self.forget_datastore {
            if !known.forget(datastore)? {
                output.remark(&format!("{} was not known", datastore.display()));
            }
        }
        // Record them, so that the server finds them when the delay is over.
        for datastore in &self.datastores.datastores {
            known.note(datastore)?;
        }
        let inventory = Inventory::open(&home, &[], self.server.overseer().as_ref())?;
        let answer = if self.server.is_given() && self.key.provider.is_none() {
            // An administrator need not be a client of the server.
            self.at_server(&inventory, &self.key.key)?
        } else {
            let key = inventory.find(&self.key.name())?;
            match inventory.is_embedded(&key.key.provider) {
                true => self.at_server(&inventory, key.key.key.as_str())?,
                false => self.at_another(&inventory, &KeptDestructions::of_home(&home), &key)?,
            }
        };
        output.answer(&answer)?;
        Ok(ExitCode::SUCCESS)
    }

    fn check(&self) -> Result<(), CliError> {
        match &self.reason {
            Some(reason) if reason.len() > REASON_MAX_BYTES => {
                Err(CliError::Usage(format!("--reason has at most {REASON_MAX_BYTES} bytes")))
            }
            _ => Ok(()),
        }
    }

    /// For a key in the embedded key server, which enforces the rules.
    fn at_server(&self, inventory: &Inventory, key: &str) -> Result<Answer, CliError> {
        let id = object_id(key)?;
        if !self.cancel {
            // The server checks this too, but only this list is complete.
            check_unneeded(inventory.scan(), |other| other.key.as_str() == key).map_err(JobError::from)?;
        }
        let administrator = self.server.administrator()?;
        let (step, answer) = if self.cancel {
            ("cancelled", administrator.ask(CancelDestruction { key: id })?)
        } else if self.confirm {
            ("confirmed", administrator.ask(ConfirmDestruction { key: id })?)
        } else {
            let delay_seconds = i64::try_from(self.delay).unwrap_or(i64::MAX);
            let (reason, leave_to_clones) = (self.reason.clone().unwrap_or_default(), self.leave_to_clones);
            let schedule = ScheduleDestruction { key: id, delay_seconds, reason, leave_to_clones };
            ("scheduled", administrator.ask(schedule)?)
        };
        Ok(Answer { key: key.to_owned(), step, waiting: (&answer).into() })
    }

    /// For a key at another provider; this program enforces the delay.
    fn at_another(
        &self,
        inventory: &Inventory,
        destructions: &KeptDestructions,
        key: &Key,
    ) -> Result<Answer, CliError> {
        let name = key.key.key.to_string();
        if self.cancel {
            let kept = destructions.cancel(&key.key)?;
            return Ok(Answer { key: name, step: "cancelled", waiting: (&kept).into() });
        }
        if inventory
            .config(&key.key.provider)
            .is_some_and(|config| matches!(config.source, SourceConfig::Vault(_)))
        {
            let error = ProviderError::Unsupported(
                "a transit engine keeps no keys that could be destroyed; whoever deletes a volume deletes its wrapped KEK",
            );
            return Err(CliError::Provider(FailedProvider { name: key.key.provider.clone(), error }));
        }
        check_unneeded(inventory.scan(), |other| inventory.may_be_same(other, &key.key))
            .map_err(JobError::from)?;
        let provider = inventory.provider(&key.key.provider)?;
        let (step, kept) = if self.confirm {
            let now = unix_seconds_now();
            ("destroyed", destructions.carry_out(&*provider, &key.key, now)?)
        } else {
            let (least, most) = (DELAY_MIN_SECONDS.unsigned_abs(), DELAY_MAX_SECONDS.unsigned_abs());
            if !(least..=most).contains(&self.delay) {
                let (least, most) = (display_seconds(least), display_seconds(most));
                return Err(CliError::Usage(format!("--delay is a time from {least} to {most}")));
            }
            let reason = self.reason.as_deref().unwrap_or_default();
            ("scheduled", destructions.schedule(&*provider, &key.key, self.delay, reason)?)
        };
        Ok(Answer { key: name, step, waiting: (&kept).into() })
    }
}

/// Parses the id of a key of the embedded server.
pub fn object_id(key: &str) -> Result<ObjectId, CliError> {
    key.parse()
        .map_err(|error| CliError::Usage(format!("'{key}' is no key of the embedded key server: {error}")))
}
