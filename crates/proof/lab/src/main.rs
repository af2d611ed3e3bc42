//! `strongroom-lab`: studies and load generators that a person runs.
#![forbid(unsafe_code)]

mod ceph_command;
mod datapath_command;
mod first_writes_command;
mod kmip_load_command;
mod migrate_command;
mod moves_command;
mod prove_command;
mod scratch;
mod snapshots_command;
mod soak_command;
mod studied;
mod vhost_user_load;
mod vhost_user_verify;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Studies and load generators, for Strongroom and for what it is compared with.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Ceph(ceph_command::Arguments),
    Datapath(datapath_command::Arguments),
    FirstWrites(first_writes_command::Arguments),
    KmipLoad(kmip_load_command::Arguments),
    Migrate(migrate_command::Arguments),
    Moves(moves_command::Arguments),
    VhostUserLoad(vhost_user_load::Arguments),
    Prove(prove_command::Arguments),
    Snapshots(snapshots_command::Arguments),
    Soak(soak_command::Arguments),
    VhostUserVerify(vhost_user_verify::Arguments),
    #[command(hide = true)]
    Work(prove_command::WorkArguments),
}

fn main() -> ExitCode {
    let done: Result<(), Box<dyn Error>> = match Arguments::parse().command {
        Command::Ceph(arguments) => ceph_command::run(&arguments),
        Command::Datapath(arguments) => datapath_command::run(&arguments),
        Command::FirstWrites(arguments) => first_writes_command::run(&arguments).map_err(Into::into),
        Command::KmipLoad(arguments) => kmip_load_command::run(&arguments).map_err(Into::into),
        Command::Migrate(arguments) => migrate_command::run(&arguments),
        Command::Moves(arguments) => moves_command::run(&arguments),
        Command::VhostUserLoad(arguments) => vhost_user_load::run(&arguments),
        Command::Prove(arguments) => prove_command::run(&arguments),
        Command::Snapshots(arguments) => {
            snapshots_command::run(&arguments).map_err(|error| error as Box<dyn Error>)
        }
        Command::Soak(arguments) => soak_command::run_soak(&arguments).map_err(Into::into),
        Command::VhostUserVerify(arguments) => vhost_user_verify::run(&arguments).map_err(Into::into),
        Command::Work(arguments) => prove_command::work(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strongroom-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
