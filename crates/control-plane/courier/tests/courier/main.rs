//! Messages to webhooks and through mail relays, as real servers get them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod mail;
mod tls;
mod webhook;
