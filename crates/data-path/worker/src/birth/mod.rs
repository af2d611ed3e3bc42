//! What a supervisor and its worker say to each other, over the socket that the worker was born
//! with.
//!
//! The supervisor orders and the worker reports, one report for each order. A message is a packet
//! of JSON with open files beside it; keys are packets of their own, raw, from secret memory to
//! secret memory. What is received is bounded before memory is taken for it.
//!
//! ```text
//! supervisor                       worker
//! Start, the listening socket  ->
//!                              <-  Ready      it is confined, its threads are there
//! Keys, then each key          ->
//!                              <-  Keyed
//! Serve, the layers' files     ->
//!                              <-  Serving
//! Grow                         ->
//!                              <-  Grown      the guest has been told
//! Suspend                      ->
//!                              <-  Suspended  with the layers' files and those of the sessions, for a successor's Serve
//! End                          ->
//!                              <-  Ended
//! ```
//!
//! While it serves, a worker also says unasked how the volume fares (`Condition`).
//!
//! An order that cannot be followed is answered with `Failed`. When one side is gone, the other
//! reads the end of the stream: a worker then drains, flushes and ends, and a supervisor starts
//! another.
//!
//! **Versions.** Every message bears the format that it is written in. A program reads its own
//! format and the one before, and refuses any other with both numbers. The supervisor writes its
//! own; the worker answers in the supervisor's. So a supervisor can start a worker of its own
//! release or the next one, and a newer supervisor refuses, and is refused by, a worker that is too
//! old.

mod message;
mod socket;

pub use message::{FORMATS, Frontend, Keys, Order, Report, Start, Tls};
pub use socket::{BirthError, BirthSocket, FILES_MAX, MESSAGE_BYTES_MAX};
