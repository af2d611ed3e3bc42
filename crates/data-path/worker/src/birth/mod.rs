//! The protocol between a supervisor and its worker, over the socket that the worker was started
//! with.
//!
//! The supervisor sends orders and the worker reports, one report for each order but
//! `HoldDestaging`. A message is a packet of JSON with open files attached. Keys are separate, raw
//! packets, from secret memory to secret memory. The size of a packet is bounded before memory is
//! allocated for it.
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
//! HoldDestaging                ->
//! PrepareTop, its files, keys  ->
//!                              <-  TopPrepared
//! Freeze                       ->
//!                              <-  Frozen     nothing is under way, and requests are held
//! ChangeTop                    ->
//!                              <-  TopChanged with the files of the former top
//! WithdrawTop                  ->
//!                              <-  TopWithdrawn  instead of ChangeTop, or of Freeze
//! Suspend, or HandOver         ->
//!                              <-  Suspended  with the layers' files and those of the sessions, for a successor's Serve
//! End                          ->
//!                              <-  Ended
//! ```
//!
//! While it serves, a worker also reports the volume's condition without being asked (`Condition`).
//!
//! An order that cannot be followed is answered with `Failed`. When one side is gone, the other
//! reads the end of the stream: a worker then drains, flushes and ends; a supervisor starts another
//! worker.
//!
//! **Versions.** Every message names its format. A program reads its own format and the one before,
//! and refuses any other with an error that has both numbers. The supervisor writes its own format;
//! the worker answers in the supervisor's. So a supervisor can start a worker of its own release or
//! the next one. A newer supervisor and a worker that is too old refuse each other.

mod message;
mod socket;

pub use message::{FORMATS, Frontend, Keys, LimitPages, Order, Report, Start, Tls};
pub use socket::{BirthError, BirthSocket, FILES_MAX, MESSAGE_BYTES_MAX};
