//! Runs one virtual machine: its QEMU, and what QEMU needs beside the machine's disks.
//!
//! - [`machine`]: what a machine is made of, and the arguments of QEMU that make it so.
//! - [`qemu`]: the process: started paused, confined and found again by a fresh supervisor.
//! - [`qmp`]: what is said to it, and what it says; [`monitor`]: the process that hears it, for who
//!   must not.
//! - [`swtpm`]: its TPM; [`network`]: what its network cards are connected to; [`firmware`]: UEFI;
//!   [`kvm`]: whether the hardware runs it.
//! - [`launch`]: the moment between fork and QEMU in which the process gives up what it does not
//!   need.
//!
//! It knows sockets of disks, and nothing of volumes, keys or whoever asks for the machine. It
//! blocks with deadlines, and has a thread for each connection to QEMU or a monitor, one that
//! starts monitors, and no other. What a guest, a captured QEMU or a captured monitor can say is
//! bounded before it takes memory here.
#![forbid(unsafe_code)]

pub mod firmware;
pub mod kvm;
pub mod launch;
pub mod machine;
pub mod monitor;
pub mod network;
mod packet;
pub mod qemu;
pub mod qmp;
pub mod swtpm;

pub use launch::{Isolation, Launcher};
pub use machine::MachineSpec;
pub use monitor::Monitor;
pub use qemu::{ProgramError, Qemu, QemuError, QemuIdentity, QemuProgram, RunDirectory};
pub use qmp::{PowerEvent, Qmp, QmpError};
pub use swtpm::Swtpm;
