//! Tags: a sidecar that tells whether a block is the one that was last written there.
//!
//! AES-XTS hides what a block says, and notices nothing. With tags (`volume create --integrity`)
//! every block of an encrypted layer has a keyed tag in a file of its own, bound to volume, layer,
//! key epoch and address: HMAC-SHA256 of the ciphertext, 128 bits of it. Every read compares, and a
//! block that is damaged, was put in another's place, or back to an earlier content than its tag's,
//! fails the read instead of reaching the guest.
//!
//! ```text
//! crypt -> tags: verify what is read, tag what is written -> the layer's blocks
//!               |
//!               tags2-<layer id>
//! ```
//!
//! **Absence.** That there is nothing needs the key to say, too: in a page of tags that is there
//! each block has a tag, and which pages are there is said under a tag (`presence`). In the former
//! format, which is used as before, a tag of zeroes says "nothing here" (`TagsFacts::absence` is
//! none).
//!
//! **Atomicity.** Block and tag lie in two files, and between two flushes whatever was written of
//! either may have become durable or not. The stage does not order them: it *marks* a region of 16
//! MiB, durably, before anything in it changes; takes the mark away when a flush has made all of it
//! durable and it has been quiet for a while; and after a crash takes a block of a marked region,
//! whose tag does not match, as it is: it may be what was in flight, torn at 512 bytes even, and no
//! stored tag could say so. It is tagged anew, counted and told of. `docs/decisions/0009` has the
//! alternatives.
//!
//! **What that means.** Whoever can cut the power, or kill the process, *and* write to the
//! datastore before the volume is opened again, can change what was marked then, and is not noticed
//! but by the count. Who puts back a mark from earlier, with its own tag, can do so too; so a count
//! of adopted blocks after an orderly end is an alarm. A change that fails opens no such window:
//! the tags that were are kept until the data is written, and its blocks alone are looked at before
//! the failure is answered. Not detected at all: a block and its tag put back together, the whole
//! volume put back.
//!
//! The parts, from the top: `disk` is the stage; `channel` what comes in and what comes back,
//! `request` and `steps` how far each request is; `flush` makes data and tags durable together;
//! `settle` goes through what a crash, or a failure, has left. They share, under one mutex that is
//! never held while anything waits: `pages`, tags in memory; `presence`, which pages there are;
//! `regions`, the marks; `passes`, who waits for which flush. `layout` is the file byte by byte,
//! `keys` how tags are computed.

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

pub use counts::{TagCounts, TagsWatch};
pub use disk::{TagsDisk, TagsFacts, TagsTuning};
pub(super) use disk::{marks_nothing, say_nothing_is_there};
pub use keys::TagKeys;
pub use layout::Layout;
pub(super) use renew::renew;
