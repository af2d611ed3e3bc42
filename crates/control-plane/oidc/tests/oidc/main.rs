//! A provider that says what it should not, and what comes of it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod attacks;
mod provider;
