//! The `strongroom` program: what a person or a script asks for, and what they are told.
//!
//! Each command is one file: its arguments, what it does, and its answer as text and as JSON. What
//! they share:
//!
//! - [`program`]: the command line as a whole, logging, exit status.
//! - [`keys`]: where passphrases and keys come from; never the command line or the environment.
//! - [`grants`]: the leave by which a host has keys.
//! - [`image`]: disk images of other programs.
//! - [`output`]: answers for people and for programs. [`error`]: refusals for both.
//!
//! This room holds no rule about volumes: it asks the rooms below, and puts their answers into
//! words.
#![forbid(unsafe_code)]

mod api;
mod audit;
mod completions;
mod doctor;
mod duration;
mod error;
mod grants;
mod home;
mod inventory;
mod key;
mod key_provider;
mod keyring;
mod keys;
mod keyserver;
mod log;
mod manual;
#[cfg(test)]
mod named_commands;
mod new_file;
mod output;
mod program;
mod progress;
mod readiness;
mod serve;
mod terminal;
mod vm;
mod vm_supervisor;
mod volume;
mod worker;

/// Keys pass through buffers of TLS and of parsers, which wipe nothing.
#[global_allocator]
static ALLOCATOR: strongroom_memory::WipingAllocator = strongroom_memory::WipingAllocator::new();

fn main() -> std::process::ExitCode {
    program::run()
}
