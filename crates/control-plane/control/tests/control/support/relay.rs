//! The relay of guest data, in this process.

use std::os::fd::AsFd;

use strongroom_control::guest_relay::{GuestRelay, HandedOver, NotTaken};
use strongroom_guest_relay::{HandedFiles, Handover, run};
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
        let host = host.as_ref().map(AsFd::as_fd);
        let files = HandedFiles { browser: browser.as_fd(), leash: leash.as_fd(), host };
        handover.send(&self.0, files).map_err(|error| NotTaken(error.to_string()))
    }
}
