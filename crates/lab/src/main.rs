//! `strongroom-lab`: studies and load generators that a person runs.
#![forbid(unsafe_code)]

mod vhost_user_verify;

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
    VhostUserVerify(vhost_user_verify::Arguments),
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::VhostUserVerify(arguments) => vhost_user_verify::run(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("strongroom-lab: {error}");
            ExitCode::FAILURE
        }
    }
}
