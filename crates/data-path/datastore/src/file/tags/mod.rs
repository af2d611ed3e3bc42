//! Tags: a sidecar that tells whether a block is the one that was last written there.
//!
//! AES-XTS hides the content of a block, but does not detect changes. With tags
//! (`volume create --integrity`) every block of an encrypted layer has a keyed tag in a separate
//! file, bound to volume, layer, key epoch and address: HMAC-SHA256 of the ciphertext, truncated to
//! 128 bits. Every read compares them. A block that is damaged, was moved to another place, or was
//! reverted to an older content than its tag's, fails the read instead of reaching the guest.
//!
//! ```text
//! crypt -> tags: verify what is read, tag what is written -> the layer's blocks
//!               |
//!               tags2-<layer id>
//! ```
//!
//! **Absence.** Absent blocks are authenticated too: in a page of tags that exists each block has a
//! tag, and a tagged record tells which pages exist (`presence`). In the former format, which
//! remains supported, a tag of zeroes means "nothing here" (`TagsFacts::absence` is `None`).
//!
//! **Atomicity.** Block and tag lie in two files, and between two flushes any write to either may
//! have become durable or not. The stage does not order them. It durably *marks* a region of 16 MiB
//! before anything in it changes, and removes the mark when a flush has made all of it durable and
//! it has been idle for a while. After a crash it accepts a block of a marked region even if its
//! tag does not match: the block may have been in flight, and torn at 512 bytes, and no stored tag
//! could prove that. Such a block is tagged again, counted and reported. `docs/decisions/0009` has
//! the alternatives.
//!
//! **Consequences.** An attacker who can cut the power or kill the process, *and* write to the
//! datastore before the volume is reopened, can change the blocks that were marked; only the count
//! shows it. An attacker who restores an old sector of marks, with its tag, can do the same; so
//! adopted blocks after an orderly shutdown are an alarm. A failed change opens no such window: the
//! old tags are kept until the data is written, and only its blocks are examined before the failure
//! is reported. Not detected at all: reverting a block together with its tag, or the whole volume.
//!
//! The modules, from the top: `disk` is the stage; `channel` takes requests and completions;
//! `request` and `steps` track the progress of each request; `flush` makes data and tags durable
//! together; `settle` examines the blocks that a crash or a failure has left. They share, under one
//! mutex that is never held across a wait: `pages`, the tags in memory; `presence`, which pages
//! exist; `regions`, the marks; `passes`, which flush each request waits for. `layout` is the file
//! byte by byte, and `keys` computes tags.

mod channel;
mod counts;
mod disk;
mod flush;
mod keys;
mod layout;
mod pages;
mod passes;
mod presence;
mod regions;
mod renew;
mod request;
mod settle;
mod steps;
mod stores;

pub use counts::{TagCounts, TagsWatch};
pub use disk::{TagsDisk, TagsFacts, TagsTuning};
pub(super) use disk::{marks_nothing, say_nothing_is_there};
pub use keys::TagKeys;
pub use layout::Layout;
pub(super) use renew::renew;
