//! The same as `relays`, compiled with a cipher that does nothing: `STRONGROOM_NULL_CIPHER=1 cargo
//! build --release --package strongroom-migrate --example null_relays`. It has a name of its own so
//! that neither is taken for the other.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::assertions_on_constants,
    reason = "an instrument of the lab"
)]

#[path = "relays.rs"]
#[allow(dead_code, unreachable_pub, reason = "it has a beginning of its own")]
mod relays;

use strongroom_migrate::record::IS_NULL;

fn main() {
    assert!(IS_NULL, "it encrypts: build it with STRONGROOM_NULL_CIPHER=1");
    relays::pass();
}
