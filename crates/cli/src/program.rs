//! The command line as a whole.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::LazyLock;

use clap::error::ErrorKind;
use clap::{ArgAction, CommandFactory, Parser, Subcommand};
use strongroom_datastore::file::FORMAT_VERSION;
use tracing_subscriber::EnvFilter;

use crate::access::{
    AccessCommand, FolderCommand, LoginArguments, LogoutArguments, RoleCommand, UserCommand,
};
use crate::audit::AuditCommand;
use crate::certificate::CertificateCommand;
use crate::completions::CompletionsArguments;
use crate::device::DeviceCommand;
use crate::device::process::{DEVICE_PROCESS_COMMAND, DeviceProcessArguments};
use crate::disk::DiskCommand;
use crate::doctor::DoctorArguments;
use crate::error::CliError;
use crate::evidence::EvidenceArguments;
use crate::inventory::{DatastoreCommand, EventCommand, HostCommand, TaskCommand};
use crate::inventory_backup::InventoryCommand;
use crate::key::KeyCommand;
use crate::key_provider::KeyProviderCommand;
use crate::keyserver::KeyserverCommand;
use crate::log::Lines;
use crate::manual::ManArguments;
use crate::network::NetworkCommand;
use crate::output::{Output, printable};
use crate::placement_group::PlacementGroupCommand;
use crate::policy::PolicyCommand;
use crate::recipient::RecipientCommand;
use crate::serve::{GUEST_RELAY_COMMAND, GuestRelayArguments, RELAY_COMMAND, RelayArguments, ServeArguments};
use crate::support::SupportArguments;
use crate::vm::VmCommand;
use crate::vm_supervisor::{LAUNCHER_COMMAND, LauncherArguments, SUPERVISOR_COMMAND, SupervisorArguments};
use crate::volume::VolumeCommand;
use crate::worker::{
    STARTER_COMMAND, STORAGE_COMMAND, StarterArguments, StorageArguments, WORKER_COMMAND, WorkerArguments,
};

/// The environment variable with a filter for the log, as `--log` takes it.
const LOG_VARIABLE: &str = "STRONGROOM_LOG";

/// The exit status of an invalid command line; the same as clap's.
const USAGE_STATUS: u8 = 2;

static VERSION: LazyLock<String> = LazyLock::new(|| {
    let program = env!("CARGO_PKG_VERSION");
    let module = strongroom_crypto::module::name();
    format!(
        "{program} (volume format: writes up to {FORMAT_VERSION}, reads up to {FORMAT_VERSION}; ciphers: {module})"
    )
});

const EXAMPLES: &str = "\
Examples:
  strongroom serve --datastore vms=/srv/vms
  strongroom vm create web1 --memory 2G --disk 20G --image debian.qcow2
  strongroom volume create ./ds/vm1 --size 20G
  strongroom volume expose ./ds/vm1 --nbd unix:/run/vm1.sock
  strongroom volume list ./ds

Exit status: 0 done; 1 failed, or `volume check` found errors; 2 the command line is invalid.
Errors go to stderr, with --json as {\"error\": {\"code\": ..., \"message\": ...}}.";

/// Encrypted storage for virtual machines
#[derive(Debug, Parser)]
#[command(name = "strongroom", version = VERSION.as_str(), after_help = EXAMPLES)]
pub struct Program {
    #[command(subcommand)]
    command: Command,

    /// Print the answer as one JSON document on stdout, and errors as JSON on stderr
    #[arg(long, global = true, help_heading = "Global options")]
    json: bool,

    /// Print more on stderr; repeat for everything
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    verbose: u8,

    /// End when the parent process PID ends, for programs that start this one
    #[arg(long, global = true, hide = true, value_name = "PID")]
    ends_with: Option<u32>,

    /// Log level on stderr: error, warn, info, debug or trace, or a filter such as
    /// strongroom_frontend=debug [env: STRONGROOM_LOG]
    #[arg(long, global = true, value_name = "LEVEL", value_parser = parse_filter, help_heading = "Global options")]
    log: Option<EnvFilter>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create, expose, snapshot, import and otherwise manage volumes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Run Strongroom on this machine: key server, host and control plane
    Serve(Box<ServeArguments>),
    /// Create, run and manage VMs
    #[command(subcommand)]
    Vm(VmCommand),
    /// Create, clone, snapshot and delete disks that no VM has, and give them to VMs
    #[command(subcommand)]
    Disk(DiskCommand),
    /// Encrypted block devices of this machine, for Ceph, LVM and file systems
    #[command(subcommand)]
    Device(DeviceCommand),
    /// List, add and inspect datastores
    #[command(subcommand)]
    Datastore(DatastoreCommand),
    /// List, create and delete networks, and say on which bridges hosts have them
    #[command(subcommand)]
    Network(NetworkCommand),
    /// List, create and delete policies for VMs
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Keep VMs on different hosts, or near each other
    #[command(subcommand)]
    PlacementGroup(PlacementGroupCommand),
    /// List, show and cancel tasks of the control plane
    #[command(subcommand)]
    Task(TaskCommand),
    /// List and follow events, and list alarms
    #[command(subcommand)]
    Event(EventCommand),
    /// Send alarms to people and programs outside
    #[command(subcommand)]
    Recipient(RecipientCommand),
    /// List hosts
    #[command(subcommand)]
    Host(HostCommand),
    /// Sign in to the control plane; later commands then act as this user
    Login(LoginArguments),
    /// End the session that `strongroom login` began
    Logout(LogoutArguments),
    /// Create, list and delete users, and change their passwords and second factors
    #[command(subcommand)]
    User(UserCommand),
    /// List, show, create and delete roles, and give them to users
    #[command(subcommand)]
    Role(RoleCommand),
    /// List, create and delete folders, and move VMs into them
    #[command(subcommand)]
    Folder(FolderCommand),
    /// Review who may do what, read the access log, manage tokens for programs and sessions
    #[command(subcommand)]
    Access(AccessCommand),
    /// Request and install a certificate of the API from an authority
    #[command(subcommand)]
    Certificate(CertificateCommand),
    /// Back the inventory up, check backups of it, and restore it
    #[command(subcommand)]
    Inventory(InventoryCommand),
    /// Check whether this machine is fit for encrypted VMs
    Doctor(DoctorArguments),
    /// Write what someone who helps from outside needs to see, without names
    Support(SupportArguments),
    /// List, show, rotate and destroy keys, and show their history
    #[command(subcommand)]
    Key(KeyCommand),
    /// Add, list, test and remove key providers
    #[command(subcommand)]
    KeyProvider(KeyProviderCommand),
    /// Run and administer the embedded key server
    #[command(subcommand)]
    Keyserver(Box<KeyserverCommand>),
    /// Verify the key server's audit log
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Write a signed file for auditors: keys, what needs them, who got them, what was re-encrypted
    Evidence(Box<EvidenceArguments>),
    /// Print a shell completion script
    Completions(CompletionsArguments),
    /// Write manual pages
    Man(ManArguments),
    /// Serve a volume; started by `volume expose`
    #[command(hide = true, name = WORKER_COMMAND)]
    Worker(WorkerArguments),
    /// Start the workers of a volume; started by `volume expose`
    #[command(hide = true, name = STARTER_COMMAND)]
    WorkerStarter(StarterArguments),
    /// Have the files of volumes on a cluster; started by what uses them
    #[command(hide = true, name = STORAGE_COMMAND)]
    StorageProcess(StorageArguments),
    /// Pass a running VM's memory on to another host; started by hostd
    #[command(hide = true, name = RELAY_COMMAND)]
    MemoryRelay(RelayArguments),
    /// Carry consoles and screens to browsers; started by the control plane
    #[command(hide = true, name = GUEST_RELAY_COMMAND)]
    GuestRelay(GuestRelayArguments),
    /// Keep a device attached; started by `device serve`
    #[command(hide = true, name = DEVICE_PROCESS_COMMAND)]
    DeviceProcess(DeviceProcessArguments),
    /// Manage a VM; started by hostd
    #[command(hide = true, name = SUPERVISOR_COMMAND)]
    VmSupervisor(SupervisorArguments),
    /// Become a VM's QEMU; started by its supervisor
    #[command(hide = true, name = LAUNCHER_COMMAND)]
    Launcher(LauncherArguments),
}

/// Parses a filter. An unknown level is an error, not ignored.
fn parse_filter(text: &str) -> Result<EnvFilter, String> {
    EnvFilter::try_new(text).map_err(|_| {
        format!("'{text}' is no log filter: write error, warn, info, debug or trace, or as in strongroom_frontend=debug")
    })
}

/// The whole command line, for generated documents and scripts.
pub fn command_line() -> clap::Command {
    Program::command()
}

/// Parses the command line and runs the command.
pub fn run() -> ExitCode {
    let program = match Program::try_parse() {
        Ok(program) => program,
        Err(error) => return explain_usage(&error),
    };
    let json = program.json;
    match program.execute() {
        Ok(status) => status,
        Err(error) => {
            error.report(json);
            ExitCode::from(error.status())
        }
    }
}

impl Program {
    fn execute(mut self) -> Result<ExitCode, CliError> {
        let log = self.start_log()?;
        self.ends_with.map_or(Ok(()), end_with)?;
        let output = Output::new(self.json);
        match &self.command {
            Command::Volume(command) => command.run(&output, &log),
            Command::Serve(arguments) => arguments.run(&output, &log).map(|()| ExitCode::SUCCESS),
            Command::Vm(command) => command.run(&output),
            Command::Disk(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Device(command) => command.run(&output, &log),
            Command::Datastore(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Network(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Policy(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Task(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Event(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::PlacementGroup(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Recipient(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Host(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Login(arguments) => arguments.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Logout(arguments) => arguments.run(&output).map(|()| ExitCode::SUCCESS),
            Command::User(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Role(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Folder(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Access(command) => command.run(&output),
            Command::Certificate(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Inventory(command) => command.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Doctor(arguments) => arguments.run(&output),
            Command::Support(arguments) => arguments.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Key(command) => command.run(&output),
            Command::KeyProvider(command) => command.run(&output),
            Command::Keyserver(command) => command.run(&output),
            Command::Audit(command) => command.run(&output),
            Command::Evidence(arguments) => arguments.run(&output).map(|()| ExitCode::SUCCESS),
            Command::Completions(arguments) => arguments.run(),
            Command::Man(arguments) => arguments.run(&output),
            Command::Worker(arguments) => arguments.run(),
            Command::WorkerStarter(arguments) => arguments.run(&log),
            Command::StorageProcess(arguments) => arguments.run(),
            Command::MemoryRelay(arguments) => arguments.run(),
            Command::GuestRelay(arguments) => arguments.run(),
            Command::DeviceProcess(arguments) => arguments.run(&log).map(|()| ExitCode::SUCCESS),
            Command::VmSupervisor(arguments) => arguments.run(&log),
            Command::Launcher(arguments) => arguments.run(),
        }
    }

    /// Starts the log. Returns the arguments that make another process of this program log in the
    /// same way.
    fn start_log(&mut self) -> Result<Vec<OsString>, CliError> {
        let filter = match (self.log.take(), self.verbose) {
            (Some(filter), _) => filter,
            (None, 0) => match std::env::var(LOG_VARIABLE) {
                Ok(text) => parse_filter(&text)
                    .map_err(|refused| CliError::Usage(format!("{LOG_VARIABLE}: {refused}")))?,
                Err(_) => EnvFilter::new("warn"),
            },
            (None, 1) => EnvFilter::new("debug"),
            (None, _) => EnvFilter::new("trace"),
        };
        let mut alike = vec!["--log".into(), filter.to_string().into()];
        alike.extend((0..self.verbose).map(|_| "--verbose".into()));
        let subscriber =
            tracing_subscriber::fmt().with_env_filter(filter).with_ansi(std::io::stderr().is_terminal());
        let subscriber = subscriber.with_writer(|| Lines(std::io::stderr()));
        // Times are useful in the log of a server, but not for a single warning of a short command.
        let started = if self.verbose > 0 {
            subscriber.try_init()
        } else {
            subscriber.without_time().with_target(false).try_init()
        };
        started.map_err(|error| CliError::Usage(format!("the log cannot be started: {error}")))?;
        Ok(alike)
    }
}

/// Makes the kernel kill this process when its parent ends. A parent that ends in order ends its
/// children first; if it is killed, its successor can take their place at once.
fn end_with(parent: u32) -> Result<(), CliError> {
    let failed = |errno: rustix::io::Errno| CliError::Signals(errno.into());
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).map_err(failed)?;
    let present = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
    // The parent may have ended before this call.
    if present == Some(parent) { Ok(()) } else { Err(CliError::Interrupted) }
}

/// Prints clap's help and version to stdout, and its errors to stderr.
fn explain_usage(error: &clap::Error) -> ExitCode {
    let informs = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
    if !informs && std::env::args_os().any(|argument| argument == "--json") {
        let message = error.to_string();
        let message = message.trim().trim_start_matches("error: ");
        CliError::Usage(printable(message).into_owned()).report(true);
        return ExitCode::from(USAGE_STATUS);
    }
    // If stdout or stderr is closed, the message is lost.
    let _ = error.print();
    if informs { ExitCode::SUCCESS } else { ExitCode::from(USAGE_STATUS) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Program::command().debug_assert();
    }

    /// Every command's help has an example, and it is one of this command.
    #[test]
    fn every_help_has_an_example_of_its_own() {
        fn visit(command: &mut clap::Command, wrong: &mut Vec<String>) {
            let help = command.render_long_help().to_string();
            // The commands of the supervisor, the worker and the launcher are not for users.
            if command.get_subcommands().next().is_none() && !command.is_hide_set() {
                let called = command.get_bin_name().unwrap_or_default().to_owned();
                let examples = help.split_once("Example").map_or("", |(_, examples)| examples);
                let examples = examples.split_whitespace().collect::<Vec<_>>().join(" ");
                if !examples.contains(&called) {
                    wrong.push(format!("{called}: {examples}"));
                }
            }
            let commands = command.get_subcommands_mut().filter(|command| command.get_name() != "help");
            commands.for_each(|command| visit(command, wrong));
        }
        let (mut program, mut wrong) = (Program::command(), Vec::new());
        program.build();
        visit(&mut program, &mut wrong);
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
