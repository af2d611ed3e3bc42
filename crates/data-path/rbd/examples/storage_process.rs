//! The storage process, for the tests of this room. The program has it as a command of its own.

use std::os::fd::AsFd;
use std::process::ExitCode;

fn main() -> ExitCode {
    let Ok(socket) = std::io::stdin().as_fd().try_clone_to_owned() else { return ExitCode::FAILURE };
    match strongroom_rbd::process::process_main(socket) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
