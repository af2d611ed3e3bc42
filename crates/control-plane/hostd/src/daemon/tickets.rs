//! Tickets, and the images that came with them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use strongroom_host::protocol::{Problem, TicketId, TicketRequest};
use strongroom_types::VmId;
use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a ticket is good.
pub const GOOD_FOR: Duration = Duration::from_secs(30);
/// How long an image waits for the operation that takes it up.
const IMAGE_KEPT_FOR: Duration = Duration::from_secs(60);
/// Tickets at once.
const TICKETS_MAX: usize = 1024;

/// The tickets that are good.
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
    /// Makes one; says until when it is good.
    ///
    /// # Errors
    /// If there are too many.
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

    /// Uses one for a console or a screen, once.
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

    /// The image that came with a ticket for this VM, once; waits until it comes.
    ///
    /// # Errors
    /// If the ticket is not good, or not for that.
    pub async fn image(
        &self,
        ticket: &TicketId,
        vm: VmId,
        wanted: &TicketRequest,
    ) -> Result<OwnedFd, Problem> {
        loop {
            let came = self.images.notified();
            tokio::pin!(came);
            // From here on no coming is missed.
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
        // Who waits for an image hears when its ticket is no good any more.
        let (ticket, _) = tickets.mint(vm, upload.clone()).unwrap();
        assert_eq!(tickets.image(&ticket, vm, &upload).await.unwrap_err().code, "bad_ticket");
    }
}
