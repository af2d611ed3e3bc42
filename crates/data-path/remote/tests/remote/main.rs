//! Files of another process; here it is another thread, with the host's files.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod attacks;
mod conformance;
mod life;
mod support;
