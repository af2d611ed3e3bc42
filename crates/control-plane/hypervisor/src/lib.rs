//! Runs one virtual machine: its QEMU, and the processes that QEMU needs beside the disks' servers.
//!
//! - [`machine`]: the description of a machine, and the QEMU arguments for it.
//! - [`qemu`]: the QEMU process: started paused, confined, and adopted by a later supervisor.
//! - [`qmp`]: the protocol of QEMU's control socket; [`monitor`]: the process that speaks it for a
//!   process that must not. [`guest_agent`]: conversations with the agent in the guest, in a
//!   process of the same kind.
//! - [`swtpm`]: its TPM; [`network`]: the networks of its cards; [`firmware`]: UEFI; [`kvm`]:
//!   whether KVM works here.
//! - [`capabilities`]: what a QEMU can give to guests here.
//! - [`launch`]: the time between fork and exec, in which the process drops its privileges;
//!   `launched`: what it then becomes.
//!
//! It knows the sockets of disks, but not volumes, keys or its callers. Its calls block with
//! deadlines. It has one thread for each connection to QEMU or a monitor, one that starts monitors,
//! and no other. Everything that a guest, a captured QEMU or a captured monitor can send is bounded
//! before it takes memory here.
#![forbid(unsafe_code)]

pub mod capabilities;
pub mod firmware;
pub mod guest_agent;
pub mod kvm;
pub mod launch;
mod launched;
pub mod machine;
pub mod monitor;
pub mod network;
mod packet;
pub mod qemu;
pub mod qmp;
pub mod swtpm;
mod version;

pub use guest_agent::{AgentError, Conversation};
pub use launch::{Isolation, Launcher};
pub use launched::process_main;
pub use machine::{MachineSpec, RunDirectory};
pub use monitor::Monitor;
pub use qemu::{ProgramError, Qemu, QemuError, QemuIdentity, QemuProgram};
pub use qmp::{PowerEvent, Qmp, QmpError};
pub use swtpm::Swtpm;
pub use version::Version;
