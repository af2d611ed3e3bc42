//! Waits for a task, with its progress on stderr.

use std::thread;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use strongroom_api::Name;
use strongroom_api::task::{ProgressUnit, Task, TaskQuery, TaskState};
use strongroom_processes::Signals;

use super::Api;
use crate::error::CliError;
use crate::output::Output;
use crate::progress::Meter;

/// How long the control plane delays a response until there is news, in seconds.
const WAIT_S: u32 = 1;
/// How often an image of which a part is there is brought again.
const BRINGS_EVERY: Duration = Duration::from_secs(2);

/// Sends the image of a disk, and returns the state of the task that waits for it.
pub type Bring<'bring> = dyn FnMut(&Name) -> Result<Task, CliError> + 'bring;

/// Whether to wait for the task.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct WaitArguments {
    /// Return at once instead of waiting for the task; `strongroom task show` shows its progress
    #[arg(long)]
    pub no_wait: bool,
}

/// Waits until the task has ended, and shows its progress. If the task fails, this returns its
/// error.
pub fn follow(api: &Api, output: &Output, verb: &'static str, task: Task) -> Result<Task, CliError> {
    let mut bring = |disk: &Name| {
        Err(CliError::Usage(format!("the task waits for an image of {disk}, and there is none to bring")))
    };
    follow_with_images(api, output, verb, task, None, &mut bring)
}

/// As [`follow`], for a task that waits for images. `bring` sends the image of a disk, and returns
/// the task's state; if it fails, the task is cancelled, unless a part of the image is there
/// already: then it is brought again for as long as the task waits. A signal also cancels the task,
/// and this waits until it has ended.
pub fn follow_with_images(
    api: &Api,
    output: &Output,
    verb: &'static str,
    task: Task,
    signals: Option<&Signals>,
    bring: &mut Bring<'_>,
) -> Result<Task, CliError> {
    let mut task = task;
    let (mut meter, mut note) = (None, None);
    let (mut cancels, mut not_brought) = (false, None);
    // A task that has ended meanwhile is not cancelled; the next response shows how it ended.
    let cancel = |task: &Task| drop(api.delete(&format!("/v1/tasks/{}", task.id)));
    while !task.state.is_over() {
        if !cancels && signals.is_some_and(Signals::came) {
            cancels = true;
            output.remark(&format!("{verb} is cancelled; what was begun is taken back"));
            cancel(&task);
        } else if !cancels && let Some(disk) = task.awaits_image.clone() {
            match bring(&disk) {
                Ok(gone_on) => {
                    (task, meter) = (gone_on, None);
                    continue;
                }
                // Its connection was lost, and so is the way to a new one.
                Err(error) if task.note.is_some() && !matches!(error, CliError::Usage(_)) => {
                    output.remark(&format!("the image is not brought again yet: {error}"));
                    thread::sleep(BRINGS_EVERY);
                }
                Err(error) => {
                    (cancels, not_brought) = (true, Some(error));
                    cancel(&task);
                }
            }
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
        (None, TaskState::Cancelled) => Err(not_brought.unwrap_or_else(|| CliError::Api {
            code: "cancelled".to_owned(),
            message: format!("{verb} {} was cancelled", task.object.name),
        })),
        (None, _) => Ok(task),
    }
}

impl WaitArguments {
    /// Waits until the task has ended, unless the user does not want to, and answers with it.
    /// `said` is the answer for people.
    pub fn finish(
        &self,
        api: &Api,
        output: &Output,
        verb: &'static str,
        task: Task,
        said: String,
    ) -> Result<(), CliError> {
        if self.no_wait {
            return output.answer(&Begun(task));
        }
        let task = follow(api, output, verb, task)?;
        output.answer(&Ended { task, said })
    }
}

/// The answer for a task that has ended.
#[derive(Serialize)]
struct Ended {
    #[serde(flatten)]
    task: Task,
    #[serde(skip)]
    said: String,
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.said)
    }
}

/// The answer for a task that is not waited for.
#[derive(Serialize)]
#[serde(transparent)]
pub struct Begun(pub Task);

impl std::fmt::Display for Begun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "task {}", self.0.id)
    }
}
