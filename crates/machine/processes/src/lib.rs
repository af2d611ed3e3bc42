//! The processes of `strongroom serve`: that one `serve` alone has a place, that its processes
//! run, and that they end when it is asked to end.
//!
//! What it promises:
//! - One process has a place ([`Alone`]), by a lock that the kernel gives back when it dies. Its
//!   successor waits a bounded time for a predecessor that was killed.
//! - A process ([`Role`]) that ends is started again, after a pause that grows while it does not
//!   last. All processes end with [`RunningRole`], in order or else by force.
//! - The end of a process is told to the one that records such ends until it has.
//! - A signal ([`Signals`]) ends every wait of this room at once.
//!
//! What may not enter: what the processes do, what their arguments mean, and any key. The caller
//! names programs, places and addresses.
#![forbid(unsafe_code)]

mod alone;
mod children;
mod error;
mod signals;

pub use self::alone::{Address, Alone, Place};
pub use self::children::{Role, RunningRole, keep, news_of, recorded};
pub use self::error::ProcessesError;
pub use self::signals::Signals;
