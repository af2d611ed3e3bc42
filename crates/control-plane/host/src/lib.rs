//! The agreements between the processes of a host, none of which needs a key: between hostd, the
//! supervisors of VMs that it starts, and hostd's clients.
//!
//! - [`protocol`]: the types of hostd's interface. [`client`]: its client, and `kept`,
//!   the connections that it keeps.
//! - [`orders`]: the messages between hostd and a VM's supervisor. [`wire`], [`proof`],
//!   [`process`]: their transport, and how the two identify each other.
//! - [`run_directory`], [`vm_directory`]: the files of a VM, while it runs and for good;
//!   [`vm_lock`]: one change at a time.
//! - [`state_file`], [`layout`], [`served`]: the processes of a VM, and where its volumes are
//!   served.
//! - [`disk_switch`]: where a disk is that moves to another datastore while its VM runs.
//! - [`migration`]: who runs a VM that moves between hosts while it runs.
//! - [`attestation`], [`dumps`], [`volume_facts`]: the records in a VM's directory about its
//!   configuration, its dumps and its volumes.
//!
//! No KEK may enter. A step that needs one is a function of the caller, the VM's supervisor
//! ([`attestation::Attestation::make`]).
#![forbid(unsafe_code)]

pub mod attestation;
pub mod client;
pub mod disk_switch;
pub mod dumps;
mod kept;
pub mod layout;
pub mod migration;
pub mod nic_layout;
pub mod orders;
pub mod process;
pub mod proof;
pub mod protocol;
pub mod run_directory;
pub mod served;
pub mod state_file;
pub mod vm_directory;
pub mod vm_lock;
pub mod volume_facts;
pub mod wire;
