//! How long a guest does nothing while it moves.
//!
//! Its count is read in the memory of both QEMUs, all the time. The higher of the two is the
//! guest's: while its memory passes, the target's is behind, and afterwards the source's stands
//! still.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::guest::{Counts, GuestMemory};

/// The time between two readings. The guest counts once a millisecond.
const READS_EVERY: Duration = Duration::from_micros(500);
/// How often the target's memory is looked for as long as there is none.
const LOOKS_EVERY: Duration = Duration::from_millis(50);

/// What was seen of a guest.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    /// The longest time in which it did not count.
    pub longest_gap: Duration,
    /// When it first counted at the target.
    pub came: Option<Instant>,
    /// What it had counted when it stood still at the source, and when that was.
    pub left: Option<(Instant, Counts)>,
    /// Turns at the source while it was watched. The guest's own count of them begins anew after
    /// some seconds.
    pub turns: u64,
}

/// Watches a guest until `is_over`.
pub fn watch(
    source: &GuestMemory,
    mut target: impl FnMut() -> Option<GuestMemory>,
    is_over: &AtomicBool,
) -> Seen {
    let mut seen = Seen::default();
    let (mut at_target, mut looked) = (target(), Instant::now());
    let (mut last, mut since) = (0, Instant::now());
    let mut turns = source.counts().unwrap_or_default().turns;
    while !is_over.load(Ordering::Acquire) {
        let now = Instant::now();
        if at_target.is_none() && now - looked > LOOKS_EVERY {
            (at_target, looked) = (target(), now);
        }
        // The target is read first: what it has then, the source has had before.
        let there = at_target.as_ref().and_then(|memory| memory.counts().ok()).unwrap_or_default();
        // A source that has ended counts no more.
        let here = source.counts().unwrap_or_default();
        let ticks = there.ticks.max(here.ticks);
        if here.ticks > 0 {
            seen.turns += u64::from(here.turns.wrapping_sub(turns));
            turns = here.turns;
        }
        if ticks > last {
            seen.longest_gap = seen.longest_gap.max(now - since);
            (last, since) = (ticks, now);
            if there.ticks > here.ticks && seen.left.is_some() {
                seen.came.get_or_insert(now);
            } else {
                seen.left = Some((now, here));
            }
        }
        thread::sleep(READS_EVERY);
    }
    seen
}
