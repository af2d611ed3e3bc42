//! Tickets, and the images that came with them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};
use strongroom_host::orders::Brought;
use strongroom_host::protocol::{Problem, TicketId, TicketRequest, VmGeneration};
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
    bearer: TicketFor,
    request: TicketRequest,
    until: Instant,
    image: Option<Image>,
}

/// The VM of a ticket, and the start of it that the ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketFor {
    pub vm: VmId,
    pub generation: VmGeneration,
}

/// An image that a client has brought.
#[derive(Debug)]
pub struct Image {
    pub brought: Brought,
    /// The file, or the socket.
    pub from: OwnedFd,
}

impl Tickets {
    /// Makes a ticket. Returns it with its expiry.
    ///
    /// # Errors
    /// If there are too many tickets.
    pub fn mint(&self, bearer: TicketFor, request: TicketRequest) -> Result<(TicketId, SystemTime), Problem> {
        let mut good = self.lock();
        if good.len() >= TICKETS_MAX {
            return Err(Problem::new(
                "too_many_tickets",
                "too many tickets wait to be used; try again in a minute",
            ));
        }
        let ticket = TicketId::from_bytes(*uuid::Uuid::new_v4().as_bytes());
        let entry = Entry { bearer, request, until: Instant::now() + GOOD_FOR, image: None };
        good.insert(ticket.clone(), entry);
        Ok((ticket, SystemTime::now() + GOOD_FOR))
    }

    /// Redeems a ticket; this works once. `is_still_for` says whether the VM is what it was made
    /// for, and `image` is what the client brings with one for an upload, which is kept.
    ///
    /// # Errors
    /// If the ticket is not valid, or not any more.
    pub fn redeem(
        &self,
        ticket: &TicketId,
        is_still_for: impl FnOnce(TicketFor) -> Result<(), Problem>,
        image: impl FnOnce() -> Result<Image, Problem>,
    ) -> Result<(TicketFor, TicketRequest), Problem> {
        let mut good = self.lock();
        let entry = good.get_mut(ticket).filter(|entry| entry.image.is_none()).ok_or_else(not_good)?;
        is_still_for(entry.bearer)?;
        if let TicketRequest::Upload { .. } = entry.request {
            entry.image = Some(image()?);
            entry.until = Instant::now() + IMAGE_KEPT_FOR;
            let redeemed = (entry.bearer, entry.request.clone());
            drop(good);
            self.images.notify_waiters();
            return Ok(redeemed);
        }
        good.remove(ticket).map(|entry| (entry.bearer, entry.request)).ok_or_else(not_good)
    }

    /// Ends a ticket that has not been redeemed, with what came with it.
    pub fn void(&self, ticket: &TicketId) {
        self.lock().remove(ticket);
        self.images.notify_waiters();
    }

    /// Returns the image that was uploaded with a ticket for this VM, and waits for it if
    /// necessary; this works once.
    ///
    /// # Errors
    /// If the ticket is not valid, or has another purpose.
    pub async fn image(&self, ticket: &TicketId, vm: VmId, wanted: &TicketRequest) -> Result<Image, Problem> {
        loop {
            let came = self.images.notified();
            tokio::pin!(came);
            // From here on, an arriving image wakes this task.
            came.as_mut().enable();
            let until = {
                let mut good = self.lock();
                let entry =
                    good.get(ticket).filter(|entry| entry.bearer.vm == vm && entry.request == *wanted);
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

/// Why a ticket is not taken. It is the same for one that never was: nobody learns which there are.
pub fn not_good() -> Problem {
    Problem::new("bad_ticket", "the ticket is not good, or not any more; ask for another one")
}

fn entry_until(good: &HashMap<TicketId, Entry>, ticket: &TicketId) -> Instant {
    good.get(ticket).map_or_else(Instant::now, |entry| entry.until)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bearer() -> TicketFor {
        TicketFor { vm: VmId::random(), generation: VmGeneration(3) }
    }

    fn image() -> Result<Image, Problem> {
        Ok(Image { brought: Brought::File, from: std::fs::File::open("/dev/null").unwrap().into() })
    }

    fn still(_: TicketFor) -> Result<(), Problem> {
        Ok(())
    }

    fn nothing() -> Result<Image, Problem> {
        Err(Problem::new("no_file", "nothing came"))
    }

    #[tokio::test]
    async fn a_ticket_is_good_once_and_for_what_it_was_asked_for() {
        let (tickets, bearer) = (Tickets::default(), bearer());
        let (console, _) = tickets.mint(bearer, TicketRequest::Vnc).unwrap();
        assert_eq!(tickets.redeem(&console, still, nothing).unwrap(), (bearer, TicketRequest::Vnc));
        assert_eq!(tickets.redeem(&console, still, nothing).unwrap_err().code, "bad_ticket");
        let upload = TicketRequest::Upload { disk: "disk0".parse().unwrap() };
        let (ticket, _) = tickets.mint(bearer, upload.clone()).unwrap();
        let other = |_| Err(not_good());
        assert_eq!(tickets.redeem(&ticket, other, image).unwrap_err().code, "bad_ticket");
        assert_eq!(tickets.redeem(&ticket, still, nothing).unwrap_err().code, "no_file");
        let (found, ()) = tokio::join!(tickets.image(&ticket, bearer.vm, &upload), async {
            tickets.redeem(&ticket, still, image).unwrap();
        });
        found.unwrap();
        assert_eq!(tickets.image(&ticket, bearer.vm, &upload).await.unwrap_err().code, "bad_ticket");
        let (other, _) = tickets.mint(bearer, upload.clone()).unwrap();
        assert!(tickets.image(&other, VmId::random(), &upload).await.is_err());
    }

    #[tokio::test]
    async fn a_void_ticket_is_good_for_nothing() {
        let (tickets, bearer) = (Tickets::default(), bearer());
        let (console, _) = tickets.mint(bearer, TicketRequest::Vnc).unwrap();
        tickets.void(&console);
        assert_eq!(tickets.redeem(&console, still, nothing).unwrap_err().code, "bad_ticket");
        // What has come already is not used, and a task that waits for it hears so at once.
        let upload = TicketRequest::Upload { disk: "disk0".parse().unwrap() };
        let (ticket, _) = tickets.mint(bearer, upload.clone()).unwrap();
        let (found, ()) = tokio::join!(tickets.image(&ticket, bearer.vm, &upload), async {
            tickets.void(&ticket);
        });
        assert_eq!(found.unwrap_err().code, "bad_ticket");
        let (ticket, _) = tickets.mint(bearer, upload.clone()).unwrap();
        tickets.redeem(&ticket, still, image).unwrap();
        tickets.void(&ticket);
        assert_eq!(tickets.image(&ticket, bearer.vm, &upload).await.unwrap_err().code, "bad_ticket");
    }

    #[tokio::test(start_paused = true)]
    async fn a_ticket_and_its_image_are_good_for_their_time() {
        const ALMOST: Duration = Duration::from_millis(1);
        let (tickets, bearer) = (Tickets::default(), bearer());
        for (waits, is_good) in [(GOOD_FOR - ALMOST, true), (GOOD_FOR, false)] {
            let (console, _) = tickets.mint(bearer, TicketRequest::Vnc).unwrap();
            tokio::time::advance(waits).await;
            assert_eq!(tickets.redeem(&console, still, nothing).is_ok(), is_good, "{waits:?}");
        }
        let upload = TicketRequest::Upload { disk: "disk0".parse().unwrap() };
        for (waits, is_good) in [(IMAGE_KEPT_FOR - ALMOST, true), (IMAGE_KEPT_FOR, false)] {
            let (ticket, _) = tickets.mint(bearer, upload.clone()).unwrap();
            tickets.redeem(&ticket, still, image).unwrap();
            tokio::time::advance(waits).await;
            assert_eq!(tickets.image(&ticket, bearer.vm, &upload).await.is_ok(), is_good, "{waits:?}");
        }
        // A task that waits for an image gets an error when the ticket expires.
        let (ticket, _) = tickets.mint(bearer, upload.clone()).unwrap();
        assert_eq!(tickets.image(&ticket, bearer.vm, &upload).await.unwrap_err().code, "bad_ticket");
    }
}
