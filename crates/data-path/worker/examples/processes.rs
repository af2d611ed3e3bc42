//! A worker, and two processes that have a volume's files, for the tests of this room: one has the
//! host's, the other one those of a cluster. The program has its own commands for them.

use std::os::fd::AsFd;
use std::process::ExitCode;

use strongroom_datastore::file::storage::BY_PATH;
use strongroom_io::IoError;
use strongroom_remote::Server;
use strongroom_ring::Ring;

fn main() -> ExitCode {
    // A worker closes what it was not born with.
    let socket = || std::io::stdin().as_fd().try_clone_to_owned();
    let ended = match std::env::args().nth(1).as_deref() {
        Some("worker") => strongroom_worker::process_main::process_main().is_ok(),
        Some("host-files") => socket().is_ok_and(|socket| {
            let server = Server::new(BY_PATH, || Ring::new(64).map_err(|_| IoError::Closed));
            let served = server.serve(socket).is_ok();
            server.wait_until_unused();
            served
        }),
        Some("cluster-files") => {
            socket().is_ok_and(|socket| strongroom_rbd::process::process_main(socket).is_ok())
        }
        _ => false,
    };
    if ended { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
