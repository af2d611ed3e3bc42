//! A guest's side of vhost-user.

#![allow(dead_code, reason = "the tests of the frontend need all of it")]

#[path = "../../../frontend/tests/vhost_user_support/driver.rs"]
pub mod driver;
#[path = "../../../frontend/tests/vhost_user_support/front_end.rs"]
pub mod front_end;

use std::time::Duration;

/// How long a test waits for an event that must happen.
pub const DEADLINE: Duration = Duration::from_secs(60);
