//! The instruments do what they are told, so that tests that lean on them mean something.

use std::time::{Duration, Instant};

use strongroom_filters::delay::{Delay, DelayDisk, Delays};
use strongroom_filters::error::{ErrorDisk, Fault, Moment, Trigger};
use strongroom_io::conformance::{Driver, Setup};
use strongroom_io::{Disk, IoError, Request, RequestKind, Sealed};
use strongroom_types::Extent;

use crate::support::memory;

const SIZE_BYTES: u64 = 1 << 20;

fn driver(disk: &dyn Disk<Sealed>) -> Driver<Sealed> {
    Driver::open(disk, &Setup::default(), 32, 4 << 20, 0).unwrap()
}

fn write(driver: &mut Driver<Sealed>, block: u64) -> Result<(), IoError> {
    let from = driver.memory.with::<Sealed>(&[1; 4096], &mut driver.random).unwrap();
    let extent = Extent::between(block * 4096, block * 4096 + 4096);
    driver.run(Request::Write { extent, from, durable: false }).unwrap().result
}

#[test]
fn a_delay_is_of_its_kind_and_never_shorter() {
    let delay = Duration::from_millis(3);
    let delays = Delays { flush: Delay::Constant(delay), ..Delays::default() };
    let disk = DelayDisk::new(memory(SIZE_BYTES), delays, 0);
    let mut driver = driver(&disk);
    let before = Instant::now();
    driver.succeed(Request::Flush).unwrap();
    assert!(before.elapsed() >= delay);
    // A delay that nobody could wait for is not of this kind.
    let never = Delays { read: Delay::Constant(Duration::from_secs(86_400)), ..Delays::default() };
    let disk = DelayDisk::new(memory(SIZE_BYTES), never, 0);
    write(&mut self::driver(&disk), 0).unwrap();
}

#[test]
fn a_range_of_delays_lets_requests_overtake_each_other() {
    let delays = Delays::all(Delay::Uniform(Duration::ZERO, Duration::from_millis(2)));
    let disk = DelayDisk::new(memory(SIZE_BYTES), delays, 11);
    let mut driver = driver(&disk);
    let submitted: Vec<u64> = (0..32).map(|_| driver.submit(Request::Flush)).collect();
    let mut ended = Vec::new();
    while driver.in_flight() > 0 {
        ended.extend(driver.wait().unwrap().iter().map(|done| done.tag));
    }
    assert_ne!(ended, submitted);
}

#[test]
fn the_nth_fails_and_no_other() {
    let fault = Fault { kind: Some(RequestKind::Write), ..Fault::new(Trigger::Nth(3)) };
    let disk = ErrorDisk::new(memory(SIZE_BYTES), &[fault], 0);
    let (mut first, mut second) = (driver(&disk), driver(&disk));
    first.succeed(Request::Flush).unwrap();
    let results = [write(&mut first, 0), write(&mut second, 1), write(&mut first, 2), write(&mut second, 3)];
    assert_eq!(results, [Ok(()), Ok(()), Err(IoError::Injected), Ok(())]);
    assert!(first.read(Extent::between(8192, 12_288)).unwrap() == [0; 4096], "it was not done");
}

#[test]
fn bad_sectors_fail_whatever_touches_them() {
    let error = IoError::from_errno(5);
    let fault = Fault { error, ..Fault::new(Trigger::Touches(Extent::between(8192 + 512, 8192 + 1024))) };
    let disk = ErrorDisk::new(memory(SIZE_BYTES), &[fault], 0);
    let mut driver = driver(&disk);
    assert_eq!(write(&mut driver, 2), Err(error));
    assert_eq!(write(&mut driver, 3), Ok(()));
    let discard = Request::Discard { extent: Extent::between(0, SIZE_BYTES) };
    assert_eq!(driver.run(discard).unwrap().result, Err(error));
    driver.succeed(Request::Flush).unwrap();
}

#[test]
fn a_failure_after_the_fact_has_happened() {
    let fault = Fault { moment: Moment::After, error: IoError::NoSpace, ..Fault::new(Trigger::Nth(1)) };
    let disk = ErrorDisk::new(memory(SIZE_BYTES), &[fault], 0);
    let mut driver = driver(&disk);
    assert_eq!(write(&mut driver, 0), Err(IoError::NoSpace));
    assert!(driver.read(Extent::between(0, 4096)).unwrap() == [1; 4096]);
}

#[test]
fn chance_is_repeatable_and_about_as_likely_as_asked() {
    let failures = |seed| {
        let fault = Fault::new(Trigger::Probability(0.25));
        let disk = ErrorDisk::new(memory(SIZE_BYTES), &[fault], seed);
        let mut driver = driver(&disk);
        (0..400).filter(|_| driver.run(Request::Flush).unwrap().result.is_err()).collect::<Vec<_>>()
    };
    assert_eq!(failures(1), failures(1));
    assert_ne!(failures(1), failures(2));
    assert!((60..140).contains(&failures(1).len()), "{}", failures(1).len());
}
