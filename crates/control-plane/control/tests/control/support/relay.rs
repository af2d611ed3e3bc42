//! The relay of guest data, in this process.

use std::os::fd::{AsFd, BorrowedFd};

use strongroom_control::guest_relay::{GuestRelay, HandedOver, NotTaken};
use strongroom_guest_relay::{Handover, run};
use strongroom_host::wire::Wire;

pub struct Relay(Wire);

impl Relay {
    pub fn start() -> Self {
        let (wire, theirs) = Wire::pair().unwrap();
        let theirs = Wire::adopt(theirs).unwrap();
        std::thread::spawn(move || run(&theirs).unwrap());
        Self(wire)
    }
}

impl GuestRelay for Relay {
    fn take(&self, connection: HandedOver) -> Result<(), NotTaken> {
        let HandedOver { secrets, browser, leash, ticket, host } = connection;
        let handover = Handover::new(secrets, ticket).map_err(|error| NotTaken(error.to_string()))?;
        let files: Vec<BorrowedFd<'_>> =
            [browser.as_fd(), leash.as_fd()].into_iter().chain(host.as_ref().map(AsFd::as_fd)).collect();
        self.0.send(&handover, &files).map_err(|error| NotTaken(error.to_string()))
    }
}
