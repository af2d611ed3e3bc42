//! Tickets, and the images that were uploaded with them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use strongroom_host::protocol::{Problem, TicketId, TicketRequest};
use strongroom_types::VmId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The lifetime of a ticket.
pub const GOOD_FOR: Duration = Duration::from_secs(30);
/// How long an image waits for its import.
const IMAGE_KEPT_FOR: Duration = Duration::from_secs(60);
/// The most valid tickets.
const TICKETS_MAX: usize = 1024;

/// The valid tickets.
#[derive(Debug, Default)]
pub struct Tickets {
    good: Mutex<HashMap<TicketId, Entry>>,
    images: Notify,
}

#[derive(Debug)]
struct Entry {
    vm: VmId,
    request: TicketRequest,
    until: Instant,
    image: Option<OwnedFd>,
}

impl Tickets {
    /// Makes a ticket. Returns it with its expiry.
    ///
    /// # Errors
    /// If there are too many tickets.
    pub fn mint(&self, vm: VmId, request: TicketRequest) -> Result<(TicketId, SystemTime), Problem> {
        let mut good = self.lock();
        if good.len() >= TICKETS_MAX {
            return Err(Problem::new(
                "too_many_tickets",
                "too many tickets wait to be used; try again in a minute",
            ));
        }
        let ticket = TicketId::from_bytes(*uuid::Uuid::new_v4().as_bytes());
        let entry = Entry { vm, request, until: Instant::now() + GOOD_FOR, image: None };
        good.insert(ticket.clone(), entry);
        Ok((ticket, SystemTime::now() + GOOD_FOR))
    }

    /// Redeems a ticket for a console or a screen; this works once.
    pub fn redeem(
        &self,
        ticket: &TicketId,
        image: Option<OwnedFd>,
    ) -> Result<(VmId, TicketRequest), Problem> {
        let bad =
            || Problem::new("bad_ticket", "the ticket is not good, or not any more; ask for another one");
        let mut good = self.lock();
        let entry = good.get_mut(ticket).filter(|entry| entry.image.is_none()).ok_or_else(bad)?;
        if let TicketRequest::Upload { .. } = entry.request {
            let image = image.ok_or_else(|| Problem::new("no_file", "no image came beside the ticket"))?;
            entry.image = Some(image);
            entry.until = Instant::now() + IMAGE_KEPT_FOR;
            let redeemed = (entry.vm, entry.request.clone());
            drop(good);
            self.images.notify_waiters();
            return Ok(redeemed);
        }
        good.remove(ticket).map(|entry| (entry.vm, entry.request)).ok_or_else(bad)
    }

    /// Returns the image that was uploaded with a ticket for this VM, and waits for it if
    /// necessary; this works once.
    ///
    /// # Errors
    /// If the ticket is not valid, or has another purpose.
    pub async fn image(
        &self,
        ticket: &TicketId,
        vm: VmId,
        wanted: &TicketRequest,
    ) -> Result<OwnedFd, Problem> {
        loop {
            let came = self.images.notified();
            tokio::pin!(came);
            // From here on, an arriving image wakes this task.
            came.as_mut().enable();
            let until = {
                let mut good = self.lock();
                let entry = good.get(ticket).filter(|entry| entry.vm == vm && entry.request == *wanted);
                let bad = || {
                    Problem::new("bad_ticket", "no image came with the ticket, or not in time; send it again")
                };
                let entry = entry.ok_or_else(bad)?;
                if entry.image.is_some()
                    && let Some(image) = good.remove(ticket).and_then(|entry| entry.image)
                {
                    return Ok(image);
                }
                entry_until(&good, ticket)
            };
            let _ = tokio::time::timeout_at(until, came).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TicketId, Entry>> {
        let mut good = self.good.lock();
        let now = Instant::now();
        good.retain(|_, entry| entry.until > now);
        good
    }
}

fn entry_until(good: &HashMap<TicketId, Entry>, ticket: &TicketId) -> Instant {
    good.get(ticket).map_or_else(Instant::now, |entry| entry.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_ticket_is_good_once_and_for_what_it_was_asked_for() {
        let (tickets, vm) = (Tickets::default(), VmId::random());
        let (console, _) = tickets.mint(vm, TicketRequest::Vnc).unwrap();
        assert_eq!(tickets.redeem(&console, None).unwrap(), (vm, TicketRequest::Vnc));
        assert_eq!(tickets.redeem(&console, None).unwrap_err().code, "bad_ticket");
        let upload = TicketRequest::Upload { disk: "disk0".parse().unwrap() };
        let (ticket, _) = tickets.mint(vm, upload.clone()).unwrap();
        assert_eq!(tickets.redeem(&ticket, None).unwrap_err().code, "no_file");
        let image = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
        let (found, ()) = tokio::join!(tickets.image(&ticket, vm, &upload), async {
            tickets.redeem(&ticket, Some(image())).unwrap();
        });
        found.unwrap();
        assert_eq!(tickets.image(&ticket, vm, &upload).await.unwrap_err().code, "bad_ticket");
        let (other, _) = tickets.mint(vm, upload.clone()).unwrap();
        assert!(tickets.image(&other, VmId::random(), &upload).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_and_its_image_are_good_for_their_time() {
        const ALMOST: Duration = Duration::from_millis(1);
        let (tickets, vm) = (Tickets::default(), VmId::random());
        for (waits, is_good) in [(GOOD_FOR - ALMOST, true), (GOOD_FOR, false)] {
            let (console, _) = tickets.mint(vm, TicketRequest::Vnc).unwrap();
            tokio::time::advance(waits).await;
            assert_eq!(tickets.redeem(&console, None).is_ok(), is_good, "{waits:?}");
        }
        let upload = TicketRequest::Upload { disk: "disk0".parse().unwrap() };
        for (waits, is_good) in [(IMAGE_KEPT_FOR - ALMOST, true), (IMAGE_KEPT_FOR, false)] {
            let (ticket, _) = tickets.mint(vm, upload.clone()).unwrap();
            let image = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
            tickets.redeem(&ticket, Some(image)).unwrap();
            tokio::time::advance(waits).await;
            assert_eq!(tickets.image(&ticket, vm, &upload).await.is_ok(), is_good, "{waits:?}");
        }
        // A task that waits for an image gets an error when the ticket expires.
        let (ticket, _) = tickets.mint(vm, upload.clone()).unwrap();
        assert_eq!(tickets.image(&ticket, vm, &upload).await.unwrap_err().code, "bad_ticket");
    }
}
