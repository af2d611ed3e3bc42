//! A gate that limits concurrency, first come, first served.

use parking_lot::{Condvar, Mutex};

/// Admits a limited number of threads at once.
#[derive(Debug)]
pub struct Gate {
    free: Mutex<usize>,
    left: Condvar,
}

/// A thread's place.
pub struct Place<'gate>(&'gate Gate);

impl Gate {
    /// A gate for this many at a time.
    pub fn new(places: usize) -> Self {
        Self { free: Mutex::new(places), left: Condvar::new() }
    }

    /// Waits for a place.
    pub fn enter(&self) -> Place<'_> {
        let mut free = self.free.lock();
        self.left.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Place(self)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        *self.0.free.lock() += 1;
        self.0.left.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn no_more_are_within_than_there_are_places() {
        let (gate, within, most) = (Gate::new(2), AtomicUsize::new(0), AtomicUsize::new(0));
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _place = gate.enter();
                        most.fetch_max(within.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        within.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(most.load(Ordering::SeqCst) <= 2);
    }
}
