//! `strongroom keyserver hand-over`: transfers keys from one client to another, with the consent of
//! two administrators.

use std::fmt;

use clap::{Args, Subcommand};
use serde::Serialize;
use strongroom_keyserver::access::ClientId;
use strongroom_keyserver::management::protocol::HandOverAnswer;
use strongroom_keyserver::management::questions::{
    CancelHandOver, ConfirmHandOver, HandOvers, ProposeHandOver,
};
use strongroom_keyserver::objects::id::ObjectId;
use uuid::Uuid;

use super::administration::AdministrationArguments;
use crate::error::CliError;
use crate::output::Output;

/// The commands for transfers.
#[derive(Debug, Subcommand)]
pub enum HandOverCommand {
    /// Request the transfer of keys from one client to another
    Ask(AskArguments),
    /// List pending transfers
    List(ListArguments),
    /// Confirm a transfer, as a second administrator; this transfers the keys
    #[command(
        after_help = "Example:\n  strongroom keyserver hand-over confirm 5f0c2f62-7a43-4d1c-9d57-8f5d3a0b9c11 --server kms1:5697 --identity ~/bob"
    )]
    Confirm(OneArguments),
    /// Cancel a pending transfer
    #[command(
        after_help = "Example:\n  strongroom keyserver hand-over cancel 5f0c2f62-7a43-4d1c-9d57-8f5d3a0b9c11"
    )]
    Cancel(OneArguments),
}

/// The arguments of `ask`.
#[derive(Debug, Args)]
#[command(
    after_help = "Nothing changes until another administrator confirms it, because the owner of a key \
can fetch it. Both clients must have the same role, client or control. The present owner may be revoked; \
it loses access to the transferred keys.

Examples:
  strongroom keyserver hand-over ask --from 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --to 0b5f8c4e-52f8-4d57-8ad8-70a1f1de9a33 \\
    --reason 'the appliance was replaced'"
)]
pub struct AskArguments {
    /// Id of the client that owns the keys, from `client list`
    #[arg(long, value_name = "CLIENT")]
    from: ClientId,

    /// Id of the client that gets the keys
    #[arg(long, value_name = "CLIENT")]
    to: ClientId,

    /// Key to transfer; repeatable [default: all keys of the client]
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<ObjectId>,

    /// Reason, which is recorded
    #[arg(long, value_name = "TEXT")]
    reason: String,

    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of `list`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom keyserver hand-over list")]
pub struct ListArguments {
    #[command(flatten)]
    server: AdministrationArguments,
}

/// The arguments of commands on one transfer.
#[derive(Debug, Args)]
pub struct OneArguments {
    /// Id of the transfer, from `ask` or `list`
    id: Uuid,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Listed {
    items: Vec<HandOverAnswer>,
}

/// A transfer, and its new state.
#[derive(Serialize)]
struct Answered {
    #[serde(flatten)]
    hand_over: HandOverAnswer,
    #[serde(skip)]
    became: Became,
}

#[derive(Clone, Copy)]
enum Became {
    AskedFor,
    Done,
    Cancelled,
}

impl HandOverCommand {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let (hand_over, became) = match self {
            Self::List(ListArguments { server }) => {
                return output.answer(&Listed { items: server.administrator()?.ask(HandOvers {})? });
            }
            Self::Ask(AskArguments { from, to, keys, reason, server }) => {
                let (from, to, keys, reason) = (*from, *to, keys.clone(), reason.clone());
                let question = ProposeHandOver { from, to, keys, reason };
                (server.administrator()?.ask(question)?, Became::AskedFor)
            }
            Self::Confirm(OneArguments { id, server }) => {
                (server.administrator()?.ask(ConfirmHandOver { id: *id })?, Became::Done)
            }
            Self::Cancel(OneArguments { id, server }) => {
                (server.administrator()?.ask(CancelHandOver { id: *id })?, Became::Cancelled)
            }
        };
        output.answer(&Answered { hand_over, became })
    }
}

fn number_of_keys(hand_over: &HandOverAnswer) -> String {
    match hand_over.keys.len() {
        1 => "1 key".to_owned(),
        keys => format!("{keys} keys"),
    }
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.items.is_empty() {
            return f.write_str("no hand-over waits");
        }
        for (index, hand_over) in self.items.iter().enumerate() {
            let HandOverAnswer { id, from, to, keys, reason, requested_by } = hand_over;
            let gap = if index == 0 { "" } else { "\n" };
            write!(f, "{gap}{id}: {} of {from} to {to}", number_of_keys(hand_over))?;
            write!(f, "\n  asked for by {requested_by}: {reason}")?;
            for key in keys {
                write!(f, "\n  {key}")?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HandOverAnswer { id, from, to, .. } = &self.hand_over;
        let keys = number_of_keys(&self.hand_over);
        match self.became {
            Became::AskedFor => write!(
                f,
                "to be handed over to {to}: {keys} of {from}\nanother administrator agrees: strongroom keyserver hand-over confirm {id}"
            ),
            Became::Done => write!(f, "handed over to {to}: {keys} of {from}"),
            Became::Cancelled => write!(f, "not handed over to {to}: {keys} of {from}"),
        }
    }
}
