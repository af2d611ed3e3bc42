//! Tags on a simulated file system: the damage they detect, and the absence of false alarms after
//! power cuts.
//!
//! `cargo test -p strongroom-sim --test tags -- --nocapture` prints the counts; with
//! `--features full` it does 20,000 cuts. `POWER_CUTS_SEED` is the first history's seed,
//! otherwise 1.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it did"
)]

#[path = "../support/campaign.rs"]
mod campaign;
mod cuts;
mod detection;
mod failures;
mod faulty;
mod former;
mod history;
#[path = "../../../../data-path/datastore/tests/support/interposed.rs"]
mod interposed;
mod mutations;
mod oracle;
mod settling;
mod volume;
