//! Measures the cost of counting one request, in batches of one and of eight: the processor time of
//! the calling thread.

#![allow(clippy::print_stdout, reason = "its figures are for people to read")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use strongroom_statistics::{Operation, Page, Recorders};

const REQUESTS: u32 = 8_000_000;

fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec.unsigned_abs() as u32)
}

fn main() -> Result<(), strongroom_statistics::PageError> {
    let page = Page::make()?;
    let recorders = Recorders::of_page(&page)?;
    let mut lane = recorders.claim();
    for batch in [1, 8] {
        let begun = thread_time();
        for _ in 0..REQUESTS / batch {
            let taken = Instant::now();
            (0..batch).for_each(|_| lane.taken(black_box(taken)));
            let answered = Instant::now();
            for _ in 0..batch {
                black_box(lane.answered(Operation::Read, Ok(black_box(4096)), taken, answered));
            }
        }
        let cost_ns = (thread_time() - begun).as_nanos() / u128::from(REQUESTS);
        println!("{batch} in a batch: {cost_ns} ns a request, both looks at the clock included");
    }
    assert_eq!(page.read().read.requests(), u64::from(2 * REQUESTS));
    Ok(())
}
