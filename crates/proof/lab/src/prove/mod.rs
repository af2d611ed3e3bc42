//! Tests the instrument: it measures known quantities, and must find them.
//!
//! - A server with a known delay, and one with a known rate limit: nbdkit, an independent program,
//!   with its `delay` and `rate` filters over memory, driven by fio. Must be found within 5 %.
//! - Work that takes 5 % longer, with random errors of some 2 % in each measurement: must be
//!   distinguished from the original work, with the approximate ratio.
//! - The same server twice, and the same work twice: no difference must be found.
//! - Two builds of `strongroom`, the second known to be slower: they must be distinguished.
//!
//! [`study`] has the measurements, [`claims`] the required results.

pub mod claims;
mod nbd;
pub mod study;
pub mod work;
