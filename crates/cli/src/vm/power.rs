//! `strongroom vm start`, `stop`, `restart`, `pause`, `suspend`, `resume`, `reset`.

use std::fmt;

use clap::Args;
use serde::Serialize;
use strongroom_api::limits::STOP_TIMEOUT_DEFAULT_S;
use strongroom_api::vm::{PowerOptions, StartVm, StopVm, VmView};

use crate::api::{Api, ApiArguments, Begun, WaitArguments, follow, segment};
use crate::error::CliError;
use crate::output::Output;

/// The VM.
#[derive(Debug, Args)]
struct Which {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    wait: WaitArguments,

    #[command(flatten)]
    api: ApiArguments,
}

/// The arguments of `start`.
#[derive(Debug, Args)]
#[command(after_help = "A VM whose key is unavailable waits for it, and starts as soon as it is available: \
`strongroom vm show` names the key and its provider. A suspended VM continues with its memory, which is \
completely verified first; if it is not authentic, or does not fit the VM any more, the VM stays \
suspended.

Examples:
  strongroom vm start web1
  strongroom vm start web1 --discard-memory
  strongroom vm start web1 --paused
  strongroom vm start web1 && strongroom vm console web1")]
pub struct StartArguments {
    /// Discard the memory of a suspended VM, and boot it
    #[arg(long)]
    discard_memory: bool,

    /// Start it paused; `vm resume` lets it run
    #[arg(long)]
    paused: bool,

    // The last one: options after it would be shown under its heading.
    #[command(flatten)]
    which: Which,
}

/// How to stop it.
#[derive(Clone, Copy, Debug, Args)]
struct Gently {
    /// Power it off at once, without shutting down the guest
    #[arg(long)]
    force: bool,

    /// Time for the guest to shut down before it is powered off, in seconds [default: 60]
    #[arg(long, value_name = "SECONDS", conflicts_with = "force")]
    timeout: Option<u32>,
}

impl Gently {
    /// The message for a person who waits for a guest to shut down; `None` with --force.
    fn says(self, vm: &str) -> Option<String> {
        let seconds = self.timeout.unwrap_or(STOP_TIMEOUT_DEFAULT_S);
        (!self.force).then(|| {
            format!(
                "asking the guest of {vm} to shut down; if it has not after {seconds} s, it is cut off (--timeout SECONDS gives it \
                 another time, --force none)"
            )
        })
    }
}

impl From<Gently> for StopVm {
    fn from(gently: Gently) -> Self {
        Self { force: gently.force, timeout_s: gently.timeout }
    }
}

/// The arguments of `stop`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  strongroom vm stop web1\n  strongroom vm stop web1 --timeout 300\n  strongroom vm stop web1 --force"
)]
pub struct StopArguments {
    #[command(flatten)]
    gently: Gently,

    #[command(flatten)]
    which: Which,
}

/// The arguments of `restart`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm restart web1")]
pub struct RestartArguments {
    #[command(flatten)]
    gently: Gently,

    #[command(flatten)]
    which: Which,
}

/// The arguments of `pause`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm pause web1")]
pub struct PauseArguments {
    #[command(flatten)]
    which: Which,
}

/// The arguments of `suspend`.
#[derive(Debug, Args)]
#[command(
    after_help = "The memory and the device state are sealed in the VM's own volume `memory`, under the \
VM's key; the next `vm start` continues with them. If this fails, the guest keeps running.

Example:
  strongroom vm suspend web1"
)]
pub struct SuspendArguments {
    #[command(flatten)]
    which: Which,
}

/// The arguments of `resume`.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  strongroom vm resume web1")]
pub struct ResumeArguments {
    #[command(flatten)]
    which: Which,
}

/// The arguments of `reset`.
#[derive(Debug, Args)]
#[command(after_help = "Data that the guest has not written to its disks is lost.

Example:
  strongroom vm reset web1")]
pub struct ResetArguments {
    #[command(flatten)]
    which: Which,
}

#[derive(Serialize)]
#[serde(transparent)]
struct Now(VmView);

impl fmt::Display for Now {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vm = &self.0.summary;
        write!(f, "{} is {}", vm.name, vm.power.as_str().replace('_', "-"))?;
        match &vm.reason {
            Some(reason) => write!(f, ": {reason}"),
            None => Ok(()),
        }
    }
}

/// A change of a VM's power state.
#[derive(Clone, Copy)]
struct Change {
    /// The end of the API's path.
    action: &'static str,
    /// The verb for the progress.
    verb: &'static str,
}

impl Which {
    /// Starts the task and waits for it. `says` is shown while a running VM is waited for.
    fn run(
        &self,
        output: &Output,
        Change { action, verb }: Change,
        body: &impl Serialize,
        says: Option<String>,
    ) -> Result<(), CliError> {
        let api = self.api.connect()?;
        let vm = format!("/v1/vms/{}", segment(&self.vm));
        let before: Option<VmView> = says.as_ref().map(|_| api.get(&vm)).transpose()?;
        let task = api.post(&format!("{vm}/{action}"), body)?;
        if self.wait.no_wait {
            return output.answer(&Begun(task));
        }
        if let (Some(says), true) = (says, before.is_some_and(|vm| vm.summary.power.is_on())) {
            output.remark(&says);
        }
        follow(&api, output, verb, task)?;
        tell(&api, output, &vm)
    }
}

fn tell(api: &Api, output: &Output, vm: &str) -> Result<(), CliError> {
    output.answer(&Now(api.get(vm)?))
}

impl StartArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let how = StartVm { discard_memory: self.discard_memory, paused: self.paused };
        self.which.run(output, Change { action: "start", verb: "starting" }, &how, None)
    }
}

impl StopArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let says = self.gently.says(&self.which.vm);
        self.which.run(output, Change { action: "stop", verb: "stopping" }, &StopVm::from(self.gently), says)
    }
}

impl RestartArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let says = self.gently.says(&self.which.vm);
        self.which.run(
            output,
            Change { action: "restart", verb: "restarting" },
            &StopVm::from(self.gently),
            says,
        )
    }
}

impl PauseArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        self.which.run(output, Change { action: "pause", verb: "pausing" }, &PowerOptions::default(), None)
    }
}

impl SuspendArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let says =
            format!("writing the memory of {} to its datastore, sealed; then it is off", self.which.vm);
        self.which.run(
            output,
            Change { action: "suspend", verb: "suspending" },
            &PowerOptions::default(),
            Some(says),
        )
    }
}

impl ResumeArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        self.which.run(output, Change { action: "resume", verb: "resuming" }, &PowerOptions::default(), None)
    }
}

impl ResetArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        self.which.run(output, Change { action: "reset", verb: "resetting" }, &PowerOptions::default(), None)
    }
}
