//! A migration's relays: what passes, and what attackers on the wire, other hosts and old grants
//! achieve.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod admission;
mod attacks;
mod passes;
mod qemu;
mod site;
mod wire;
