//! Waiting for a task, with its progress on stderr.

use clap::Args;
use serde::Serialize;
use strongroom_api::task::{ProgressUnit, Task, TaskQuery, TaskState};

use super::Api;
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;
use crate::signals::Signals;

/// How long the control plane holds an answer back until there is news, in seconds.
const WAIT_S: u32 = 1;

/// Whether to wait.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct WaitArguments {
    /// Do not wait until it is done; `strongroom task show` says how far it is
    #[arg(long)]
    pub no_wait: bool,
}

/// Waits until the task has ended. Shows how far it is, and fails as it does.
pub fn follow(api: &Api, output: &Output, verb: &'static str, task: Task) -> Result<Task, CliError> {
    follow_unless(api, output, verb, task, None)
}

/// The same. A signal cancels the task, and it is waited until that is done.
pub fn follow_unless(
    api: &Api,
    output: &Output,
    verb: &'static str,
    task: Task,
    signals: Option<&Signals>,
) -> Result<Task, CliError> {
    let mut task = task;
    let (mut meter, mut note) = (None, None);
    let mut cancels = false;
    while !task.state.is_over() {
        if !cancels && signals.is_some_and(Signals::came) {
            cancels = true;
            output.remark(&format!("{verb} is cancelled"));
            // One that has ended meanwhile is not cancelled: the next answer says how it ended.
            let _: Result<Task, CliError> = api.delete(&format!("/v1/tasks/{}", task.id));
        }
        task = api.query(&format!("/v1/tasks/{}", task.id), &TaskQuery { wait_s: Some(WAIT_S) })?;
        if let Some(progress) = task.progress.filter(|progress| progress.unit == ProgressUnit::Bytes) {
            meter.get_or_insert_with(|| Meter::start(output, verb, progress.total)).at(progress.done);
        }
        if task.note.is_some() && task.note != note && !task.state.is_over() {
            note.clone_from(&task.note);
            output.remark(note.as_deref().unwrap_or_default());
        }
    }
    drop(meter);
    match (&task.error, task.state) {
        (Some(problem), _) => Err(CliError::problem(problem)),
        (None, TaskState::Cancelled) => Err(CliError::Api {
            code: "cancelled".to_owned(),
            message: format!("task {} was cancelled", task.id),
        }),
        (None, _) => Ok(task),
    }
}

/// What is said of a task that is not waited for.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Begun(pub Task);

impl std::fmt::Display for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {}", self.0.id)
    }
}
