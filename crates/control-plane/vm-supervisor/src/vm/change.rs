//! A change of what a running machine has. It waits for the guest, on a thread of its own.

use std::sync::mpsc::{Receiver, Sender, channel};

use strongroom_host::orders::Report;

use crate::door::Connection;

/// A change in progress, with the connection that waits for its end.
#[derive(Debug)]
pub(super) struct Change<Wanted> {
    wanted: Wanted,
    asked_by: Connection,
    request: u64,
    woken: Sender<()>,
}

impl<Wanted: PartialEq> Change<Wanted> {
    /// A change that begins. Its thread gets the other end: that is woken when QEMU has released a
    /// device, or may have.
    pub(super) fn new(wanted: Wanted, asked_by: &Connection, request: u64) -> (Self, Receiver<()>) {
        let (woken, wakes) = channel();
        (Self { wanted, asked_by: asked_by.clone(), request, woken }, wakes)
    }

    /// What the machine is to have.
    pub(super) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// Answers this request at the end, and not the one before it for the same change.
    pub(super) fn answer_to(&mut self, asked_by: &Connection, request: u64) {
        (self.asked_by, self.request) = (asked_by.clone(), request);
    }

    /// Wakes the change's thread.
    pub(super) fn wake(&self) {
        let _ = self.woken.send(());
    }

    /// Sends the answer to the last request.
    pub(super) fn answer(&self, report: impl FnOnce(u64) -> Report) {
        self.asked_by.send(&report(self.request));
    }
}
