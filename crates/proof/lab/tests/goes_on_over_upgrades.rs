//! Verified load while each server hands its sessions over to the next, repeatedly.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::verify::{Load, LoadConfig, LoadError, Report, Until};

use support::{DISK_BYTES, Lie, Local, LyingDisk, Served};

const UPGRADES: usize = 40;
/// The minimum number of requests answered by each server.
const OPERATIONS: u64 = 100;
const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn no_request_is_lost_or_done_twice_over_upgrades() {
    let disk = Arc::new(Served(LyingDisk::new(Lie::None)));
    let first = Local::start(disk.clone());
    let front_end = FrontEnd::connect(&first.socket, Settings::new(4, 32)).unwrap();
    let config = LoadConfig { area_bytes: DISK_BYTES, ..LoadConfig::new(21) };
    let mut load = Load::new(front_end, config).unwrap();
    let (operations, wanted) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    let (local, report) = thread::scope(|scope| {
        let done = scope.spawn(|| -> Result<Report, LoadError> {
            while operations.load(Ordering::SeqCst) < wanted.load(Ordering::SeqCst) {
                load.run(Until::Operations(20))?;
                operations.store(load.report().operations(), Ordering::SeqCst);
            }
            load.finish()
        });
        let mut local = first;
        for upgrade in 0..UPGRADES {
            let before = operations.load(Ordering::SeqCst);
            let until = Instant::now() + DEADLINE;
            while operations.load(Ordering::SeqCst) < before + OPERATIONS && !done.is_finished() {
                assert!(Instant::now() < until, "nothing is answered after upgrade {upgrade}");
                thread::yield_now();
            }
            local = local.upgrade(disk.clone());
        }
        wanted.store(0, Ordering::SeqCst);
        (local, done.join().unwrap().unwrap())
    });
    println!("{UPGRADES} upgrades: {report}");
    assert!(report.operations() >= UPGRADES as u64 * OPERATIONS && report.out_of_order > 0);
    local.server.stop().unwrap();
}
