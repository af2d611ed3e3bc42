//! The `strongroom` program: the command line for people and scripts.
//!
//! Each command is one file: its arguments, its action, and its answer as text and as JSON. Shared
//! modules:
//!
//! - [`program`]: the command line as a whole, logging, exit status.
//! - [`keys`]: the sources of passphrases and keys, never the command line or the environment.
//! - [`grants`]: the permissions for a host to fetch keys.
//! - [`image`]: disk images of other formats.
//! - [`output`]: answers for people and programs. [`error`]: errors for both.
//!
//! This crate has no rules about volumes: it calls the crates below, and words their results.
#![forbid(unsafe_code)]

mod access;
mod api;
mod audit;
mod certificate;
mod completions;
mod device;
mod disk;
mod doctor;
mod duration;
mod error;
mod evidence;
mod grants;
mod home;
mod inventory;
mod inventory_backup;
mod key;
mod key_provider;
mod keyring;
mod keys;
mod keyserver;
mod limits;
mod log;
mod manual;
#[cfg(test)]
mod named_commands;
mod network;
mod new_file;
mod output;
mod placement_group;
mod policy;
mod program;
mod progress;
mod readiness;
mod recipient;
mod serve;
mod support;
mod terminal;
mod vm;
mod vm_supervisor;
mod volume;
mod worker;

/// Keys pass through buffers of TLS and of parsers, which do not wipe them.
#[global_allocator]
static ALLOCATOR: strongroom_memory::WipingAllocator = strongroom_memory::WipingAllocator::new();

fn main() -> std::process::ExitCode {
    program::run()
}
