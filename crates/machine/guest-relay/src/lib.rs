//! The process that carries guest data between a browser and the hosts of VMs.
//!
//! A browser reaches one origin, the API's, and the control plane must not see guest data. So the
//! control plane serves the request for a WebSocket, admits it and answers it with 101, and then
//! hands the connection over to this process: the socket, and the keys of the TLS connection from
//! there on. It keeps neither. This process has no other key, no inventory, and no name or address
//! of a host but that of the ticket.
//!
//! | file | holds |
//! |---|---|
//! | `handover` | what is handed over |
//! | `tls_stream` | the rest of a TLS connection |
//! | `guest` | the connection to a VM's host, also that of the command line |
//! | `session` | a WebSocket and its guest |
//! | `run` | the process |
//! | `process` | the control plane's side of it |
//!
//! What passes here is plain text: `docs/THREAT_MODEL.md` says who could read it.
#![forbid(unsafe_code)]

pub mod guest;
mod handover;
mod process;
mod run;
mod session;
mod tls_stream;

pub use self::handover::{HandedFiles, Handover, OtherCipher};
pub use self::process::{HandOverError, Relay};
pub use self::run::{RunError, relay_main, run};
