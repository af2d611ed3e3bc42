//! The way of a running VM's memory to another host: a relay beside QEMU at either end, and an
//! authenticated wire between them, encrypted unless the control plane's grant says otherwise.
//!
//! ```text
//!   QEMU --unix--> source's relay ==TCP, records==> target's relay --unix--> QEMU
//!        channel 0, 1, 2 ...                                      in the same order
//! ```
//!
//! | module | holds |
//! |---|---|
//! | [`attempt`] | what a host admits: a grant for this VM, generation and pair of hosts, used once |
//! | `handshake` | the two hosts prove themselves to each other, and agree on a secret |
//! | `keys` | the keys of channels, from that secret |
//! | [`record`] | sealed records: order and end are authenticated |
//! | `line` | what the two relays tell each other |
//! | [`relay`] | the channels, from QEMU to QEMU |
//!
//! It promises:
//! - **Nobody between the hosts learns or changes anything.** A record that was changed, dropped,
//!   repeated, put elsewhere or cut off ends the migration. If the grant says so, and only then,
//!   whoever is on the wire can read what QEMU sends, and still not change it.
//! - **An attempt has a secret of its own**, which the control plane does not know. Nothing is
//!   resumed: neither a TLS session nor a channel.
//! - **All or nothing.** A failure of a channel, or of either side, ends all channels of the
//!   migration. QEMU at the source then goes on; that the one at the target does not is for those
//!   who started it, stopped.
//! - **It ends at once** when it is cancelled, whatever its peers do.
//! - **No plain text of the guest** leaves this process but to QEMU, unless the grant says so; its
//!   buffers are in no core dump, and wiped.
//!
//! What may not enter: QMP, VMs' states and generations, disks. Who migrates what, and when it is
//! committed, is decided elsewhere.
#![forbid(unsafe_code)]

pub mod attempt;
mod error;
mod handshake;
mod keys;
mod line;
pub mod record;
pub mod relay;

pub use attempt::{Attempt, Site, UsedGrants};
pub use error::{MigrateError, Reason};
pub use relay::{Migration, Options, Progress};
