//! What the processes of a host agree on, without a key: hostd, which starts the supervisors of
//! VMs; these; and whoever asks hostd.
//!
//! - [`protocol`]: what hostd is asked and answers, as types. [`client`]: how it is asked.
//! - [`orders`]: what hostd and a VM's supervisor say to each other. [`wire`], [`proof`],
//!   [`process`]: over what, and how they know each other.
//! - [`run_directory`], [`vm_directory`]: where a VM is, while it runs and for good; [`vm_lock`]:
//!   one at a time.
//! - [`state_file`], [`layout`], [`served`]: what runs of a VM, and where its volumes are served.
//! - [`attestation`], [`dumps`], [`volume_facts`]: what a VM's directory says of its configuration,
//!   its dumps and its volumes.
//!
//! A KEK has no place here. What needs one is a function of its caller's
//! ([`attestation::Attestation::make`]), and that is the VM's supervisor.
#![forbid(unsafe_code)]

pub mod attestation;
pub mod client;
pub mod dumps;
pub mod layout;
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
