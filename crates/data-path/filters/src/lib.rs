//! One stage each between guest and volume.
//!
//! | filter | above | below | what it does |
//! |---|---|---|---|
//! | [`blocksize`] | plain | plain | any alignment above, whole blocks below; home of the range locks |
//! | [`crypt`] | plain | sealed | AES-256-XTS, the only way to a volume unless a person chose otherwise |
//! | [`cleartext`] | plain | sealed | no encryption, for volumes that a person chose to keep clear |
//! | [`switch`] | any | the same | replaces the disk below under running requests |
//! | [`mixed`] | plain | sealed | both, while a person has a volume encrypted or decrypted that is in use |
//! | [`qos`] | any | the same | requests wait so that limits of operations and bytes a second are kept |
//! | [`park`] | plain | plain | what finds no room waits until there is some, and the owner hears of it |
//! | [`delay`] | any | the same | makes requests take longer: a test instrument |
//! | [`error`] | any | the same | makes requests fail: a test instrument |
//!
//! A filter is a [`Disk`](strongroom_io::Disk) on top of another and never knows which. It promises
//! what every stage promises (`strongroom_io`), is run through the conformance suite, and has a
//! section in `docs/filters.md`.
//!
//! No file, socket, descriptor or key hierarchy enters this room: keys come in as ciphers that are
//! set up.
#![forbid(unsafe_code)]

pub mod blocksize;
mod bounce;
pub mod cleartext;
pub mod crypt;
pub mod delay;
pub mod error;
pub mod mixed;
pub mod park;
pub mod qos;
mod random;
pub mod switch;

/// The kernel's number of "out of memory", on every architecture that Linux has.
const ENOMEM: i32 = 12;
