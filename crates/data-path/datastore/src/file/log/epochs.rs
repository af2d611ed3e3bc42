//! Tells whether all transfers in place that began before a given moment have ended.
//!
//! A read that began while a block was "nothing here" must not be under way when the block's first
//! content is brought to its place: it could see half zeroes and half ciphertext, and zeroes
//! decrypt to noise. Transfers in place are counted in two alternating epochs. A transfer enters an
//! epoch before it looks its blocks up. So a transfer that has not seen a block's entry in the log
//! is in an epoch that began before the entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use strongroom_io::Waker;
use strongroom_memory::Padded;

/// The epoch that a transfer began in.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an epoch that is not left never ends"]
pub(in crate::file) struct Epoch(usize);

#[derive(Debug, Default)]
pub(in crate::file) struct Epochs {
    /// Read by each transfer and written once per cycle of the destager, so it is on a separate
    /// cache line from the counters that each transfer writes.
    turns: Padded<AtomicUsize>,
    /// Transfers under way in even and in odd epochs.
    under_way: [Padded<AtomicUsize>; 2],
    /// The thread that waits for the end of the last epoch.
    waiting: Mutex<Option<Arc<Waker>>>,
}

impl Epochs {
    /// Enters the current epoch. A transfer calls this before it looks its blocks up.
    pub fn enter(&self) -> Epoch {
        loop {
            let epoch = self.turns.load(Ordering::SeqCst) % 2;
            self.under_way[epoch].fetch_add(1, Ordering::SeqCst);
            if self.turns.load(Ordering::SeqCst) % 2 == epoch {
                return Epoch(epoch);
            }
            // The epoch turned in between, and may have been examined before we were counted.
            self.leave(Epoch(epoch));
        }
    }

    /// Leaves an epoch, when the transfer has ended or will not begin.
    pub fn leave(&self, Epoch(epoch): Epoch) {
        if self.under_way[epoch].fetch_sub(1, Ordering::SeqCst) == 1
            && self.turns.load(Ordering::SeqCst) % 2 != epoch
            && let Some(waker) = &*self.waiting.lock()
        {
            waker.wake();
        }
    }

    /// Begins another epoch. The one before the last must be [over](Self::is_over). `waker` is
    /// woken when the last one is.
    pub fn turn(&self, waker: &Arc<Waker>) {
        *self.waiting.lock() = Some(Arc::clone(waker));
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether all transfers of the epoch before this one have ended.
    pub fn is_over(&self) -> bool {
        let current = self.turns.load(Ordering::SeqCst) % 2;
        self.under_way[1 - current].load(Ordering::SeqCst) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_is_over_when_all_that_began_in_it_have_ended() {
        let epochs = Epochs::default();
        let waker = Arc::new(Waker::new().unwrap());
        let (first, second) = (epochs.enter(), epochs.enter());
        epochs.turn(&waker);
        let later = epochs.enter();
        epochs.leave(first);
        assert!(!epochs.is_over());
        epochs.leave(second);
        assert!(epochs.is_over());
        epochs.turn(&waker);
        assert!(!epochs.is_over());
        epochs.leave(later);
        assert!(epochs.is_over());
    }

    #[test]
    fn whoever_begins_after_a_turn_does_not_hold_it_up() {
        let epochs = Arc::new(Epochs::default());
        let transfers: Vec<_> = (0..3)
            .map(|_| {
                let epochs = Arc::clone(&epochs);
                std::thread::spawn(move || (0..20_000).for_each(|_| epochs.leave(epochs.enter())))
            })
            .collect();
        let waker = Arc::new(Waker::new().unwrap());
        for _ in 0..200 {
            epochs.turn(&waker);
            while !epochs.is_over() {
                std::thread::yield_now();
            }
        }
        transfers.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
