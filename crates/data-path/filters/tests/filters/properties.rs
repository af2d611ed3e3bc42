//! The whole stack against a vector of bytes: any alignment, any mixture of requests, while the
//! volume grows.

use std::collections::HashMap;
use std::sync::Arc;

use crate::support::{blocksize, crypt, memory};
use proptest::prelude::*;
use strongroom_datastore::memory::MemoryDisk;
use strongroom_filters::blocksize::BlocksizeDisk;
use strongroom_io::conformance::{Driver, Setup, TestPayload};
use strongroom_io::{Disk, Plain, Request};
use strongroom_types::{BLOCK_BYTES, Extent, VolumeSize};

const DEPTH: usize = 8;
const POOL_BYTES: usize = 4 << 20;
const SECTOR_BYTES: u64 = 512;

#[derive(Clone, Debug)]
enum Step {
    Read(Extent),
    Write(Extent, u8),
    WriteZeroes(Extent),
    Discard(Extent),
    Flush,
    /// To so many sectors, if that is more.
    Grow(u64),
}

/// Where and how long, in parts of 65536 of the size and of 40,000 bytes; steps are cut to what
/// fits when they are run.
fn extent() -> impl Strategy<Value = Extent> {
    let length = prop_oneof![1..600_u64, Just(512_u64), Just(4096_u64), 1..40_000_u64];
    let offset = prop_oneof![0..(300_u64 << 10), (0..75_u64).prop_map(|block| block * BLOCK_BYTES)];
    (offset, length).prop_map(|(offset, length)| Extent::between(offset, offset + length))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => extent().prop_map(Step::Read),
        6 => (extent(), any::<u8>()).prop_map(|(extent, fill)| Step::Write(extent, fill)),
        2 => extent().prop_map(Step::WriteZeroes),
        2 => extent().prop_map(Step::Discard),
        1 => Just(Step::Flush),
        1 => (8..600_u64).prop_map(Step::Grow),
    ]
}

/// The stack, driven on one channel, beside the vector that it must equal.
struct Subject {
    datastore: Arc<MemoryDisk>,
    disk: BlocksizeDisk,
    driver: Driver<Plain>,
    oracle: Vec<u8>,
    unit_bytes: u64,
    /// What is in flight, and what reads must return.
    busy: HashMap<u64, (Extent, Option<Vec<u8>>)>,
}

impl Subject {
    fn new(sectors: u64, unit_bytes: u32) -> Self {
        let size = sectors * SECTOR_BYTES;
        let datastore = memory(size);
        let disk = blocksize(Arc::new(crypt(Arc::clone(&datastore) as _)), size, unit_bytes);
        let driver = Driver::open(&disk, &Setup::default(), DEPTH, POOL_BYTES, 0).unwrap();
        let oracle = vec![0; size as usize];
        Self { datastore, disk, driver, oracle, unit_bytes: u64::from(unit_bytes), busy: HashMap::new() }
    }

    /// Cuts to the disk and to the unit; at least one unit.
    fn fit(&self, extent: Extent) -> Extent {
        let size = self.oracle.len() as u64;
        let offset = (extent.offset() % size) & !(self.unit_bytes - 1);
        let length = extent.length().next_multiple_of(self.unit_bytes).min(size - offset);
        Extent::between(offset, offset + length)
    }

    fn run(&mut self, step: Step) {
        let step = match step {
            Step::Read(extent) => Step::Read(self.fit(extent)),
            Step::Write(extent, fill) => Step::Write(self.fit(extent), fill),
            Step::WriteZeroes(extent) => Step::WriteZeroes(self.fit(extent)),
            Step::Discard(extent) => Step::Discard(self.fit(extent)),
            other => other,
        };
        let (Step::Read(extent) | Step::Write(extent, _) | Step::WriteZeroes(extent) | Step::Discard(extent)) =
            step
        else {
            return self.run_without_extent(&step);
        };
        // In flight together is only what does not overlap; it may well share blocks.
        while self.busy.len() == DEPTH || self.busy.values().any(|(busy, _)| busy.overlaps(extent)) {
            self.settle();
        }
        let range = extent.offset() as usize..extent.end() as usize;
        let mut expected = None;
        let request = match step {
            Step::Read(_) => {
                expected = Some(self.oracle[range].to_vec());
                let into =
                    self.driver.memory.blank::<Plain>(extent.length() as usize, &mut self.driver.random);
                Request::Read { extent, into: into.unwrap() }
            }
            Step::Write(_, fill) => {
                for (at, byte) in range.clone().zip(&mut self.oracle[range.clone()]) {
                    *byte = fill.wrapping_add((at % 253) as u8);
                }
                let from = self.driver.memory.with::<Plain>(&self.oracle[range], &mut self.driver.random);
                Request::Write { extent, from: from.unwrap(), durable: fill % 16 == 0 }
            }
            Step::WriteZeroes(_) => {
                self.oracle[range].fill(0);
                Request::WriteZeroes { extent, may_unmap: extent.length() % 2 == 0, durable: false }
            }
            _ => {
                // This stack frees every whole block at once; the last block is whole for nobody if
                // the disk ends in it.
                let blocks = extent.narrowed_to(BLOCK_BYTES);
                if !blocks.is_empty() {
                    self.oracle[blocks.offset() as usize..blocks.end() as usize].fill(0);
                }
                Request::Discard { extent }
            }
        };
        let tag = self.driver.submit(request);
        self.busy.insert(tag, (extent, expected));
    }

    fn run_without_extent(&mut self, step: &Step) {
        match step {
            Step::Grow(sectors) if sectors * SECTOR_BYTES > self.oracle.len() as u64 => {
                // While requests are in flight.
                let size = sectors * SECTOR_BYTES;
                assert!(self.disk.grow(size + (1 << 20)).is_err(), "the disk below has no room");
                self.datastore.grow(VolumeSize::new(size).unwrap()).unwrap();
                self.disk.grow(size).unwrap();
                assert_eq!(self.disk.limits().size_bytes, size);
                self.oracle.resize(size as usize, 0);
            }
            Step::Grow(sectors) => {
                let smaller = sectors * SECTOR_BYTES;
                assert_eq!(self.disk.grow(smaller).is_ok(), smaller == self.oracle.len() as u64);
            }
            _ => {
                let tag = self.driver.submit(Request::Flush);
                self.busy.insert(tag, (Extent::default(), None));
            }
        }
    }

    /// Waits until something has ended, and compares what was read.
    fn settle(&mut self) {
        for done in self.driver.wait().unwrap_or_else(|violation| panic!("{violation}")) {
            let (extent, expected) = self.busy.remove(&done.tag).unwrap();
            assert_eq!(done.result, Ok(()), "{extent}");
            if let Some(expected) = expected {
                let found = Plain::content(&done.memory.unwrap());
                let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                assert_eq!(wrong, None, "{extent}");
            }
        }
    }

    fn check_everything(mut self) {
        let all = Extent::between(0, self.oracle.len() as u64);
        self.run(Step::Read(all));
        while !self.busy.is_empty() {
            self.settle();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_stack_is_a_vector_of_bytes(
        sectors in 8..64_u64,
        unit_bytes in prop_oneof![Just(1_u32), Just(512)],
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut subject = Subject::new(sectors, unit_bytes);
        steps.into_iter().for_each(|step| subject.run(step));
        subject.check_everything();
    }
}
