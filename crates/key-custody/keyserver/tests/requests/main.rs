//! The key server through the bytes of its messages: permissions of clients and hosts, batches,
//! records, crashes and edited stores.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod access;
mod batches;
mod broker;
mod destruction;
mod fixture;
mod older;
mod record;
mod storage;
mod vcenter;
