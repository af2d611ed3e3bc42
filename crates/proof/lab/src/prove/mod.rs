//! The instrument is put to the test: it measures what is known beforehand, and must find it.
//!
//! - A server that answers later by a known time, and one that is held to a known rate: nbdkit,
//!   which is not ours, with its `delay` and `rate` filters over memory, driven by fio. Found
//!   within 5 %.
//! - Work that takes 5 % longer, every measurement of it off by some 2 % at random: told from the
//!   same work, and by about how much.
//! - The same server twice, and the same work twice: no difference found.
//! - With two builds of `strongroom`, the second of them known to be slower: told from the first.
//!
//! [`study`] is what is measured, [`claims`] what must come of it.

pub mod claims;
mod nbd;
pub mod study;
pub mod work;
