//! A VM's memory on its way from QEMU to QEMU: through the product's relays, and by QEMU's own
//! ways, over a cable and over long links.
//!
//! | module | holds |
//! |---|---|
//! | [`guest`] | a guest that counts, and can be read from outside |
//! | [`gap`] | how long it does nothing |
//! | [`qemu`] | a QEMU with it |
//! | [`ways`] | the study of the ways, by relays and QEMUs alone |
//! | [`whole`] | the study of whole moves, by the program |

pub mod gap;
pub mod guest;
pub mod qemu;
pub mod ways;
pub mod whole;
