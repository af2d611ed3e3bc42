//! The REST interface, version 1: its requests, its answers, and what each operation touches.
//!
//! The control plane answers in these types, the CLI sends requests in them, and the OpenAPI
//! document at `/openapi.json` is generated from them. There is no I/O here, and nothing of
//! guests: no type can hold a key or guest data. Passwords and new tokens pass in types of
//! [`access`], which do not print them.
//!
//! # Conventions
//! - An object can be named by its name or by its id. A [`Name`] never has the form of an id.
//! - Each operation that changes something answers 202 with a [`Task`](task::Task), and takes an
//!   `Idempotency-Key`: a repeated request with the same key returns the same task and does
//!   nothing.
//! - An error is `{"error": {"code", "message", "next_step", "request"}}`; [`ErrorCode`] never
//!   changes its meaning.
//! - Each answer has the id of its request in a [header](REQUEST_HEADER), by which the server's log
//!   names it.
//! - Sizes are bytes, times are seconds or milliseconds since 1970, as the field's name says.
//! - A client ignores fields that it does not know. The server refuses them, so that a misspelt
//!   field is never lost.
#![forbid(unsafe_code)]

pub mod access;
pub mod alarm;
pub mod backup;
pub mod browser;
mod checked_text;
pub mod datastore;
pub mod emergency;
mod error;
pub mod event;
pub mod guard;
pub mod host;
pub mod identity;
pub mod key;
pub mod limits;
mod name;
pub mod network;
mod object;
mod object_only;
mod operations;
mod page;
pub mod placement;
pub mod policy;
mod privilege;
pub mod recipient;
pub mod task;
pub mod vm;
pub mod volume;

pub use error::{AnsweredProblem, ErrorBody, ErrorCode, Problem};
pub use name::Name;
pub use object::{ObjectKind, ObjectRef, Reference};
pub use operations::{Method, OPERATIONS, Operation, Touches, WhenFull, operation};
pub use page::{ListQuery, Page};
pub use privilege::{BuiltInRole, Privilege, PrivilegeSet};

/// The path prefix of every operation of this version.
pub const BASE_PATH: &str = "/v1";

/// The header that marks a repeated request as such: 1 to 128 printable ASCII characters.
pub const IDEMPOTENCY_KEY_HEADER: &str = "idempotency-key";

/// The header of each answer with the id of its request: 16 hexadecimal digits.
pub const REQUEST_HEADER: &str = "strongroom-request";

/// The extension of each operation in the OpenAPI document that states what it [touches](Touches).
pub const TOUCHES_EXTENSION: &str = "x-strongroom-touches";
