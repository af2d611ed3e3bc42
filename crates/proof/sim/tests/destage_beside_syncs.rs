//! A guest that syncs without a pause: its first writes are destaged to the layer all the same.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use strongroom_datastore::file::*;
use strongroom_io::{Channel, Disk, Io, Request, Sealed, Thread};
use strongroom_memory::BufferPool;
use strongroom_sim::SimFs;
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch, VolumeSize};

/// More rounds than any cycle takes.
const ROUNDS_MAX: usize = 20_000;

struct Queue {
    channel: Box<dyn Channel<Sealed>>,
    pool: BufferPool,
}

impl Queue {
    fn submit(&mut self, block: u64, durable: bool) {
        let mut from = self.pool.take(BLOCK_BYTES as usize).unwrap();
        let (bytes, seals) = from.parts_mut();
        bytes.fill(7);
        seals.fill(Some(KeyEpoch::FIRST));
        let extent = Extent::between(block * BLOCK_BYTES, (block + 1) * BLOCK_BYTES);
        self.channel.submit(Io { tag: 1, request: Request::Write { extent, from, durable } });
    }

    /// Waits until the submitted requests have completed, while the destager runs.
    fn finish(&mut self, destager: &mut Destager) {
        let mut done = Vec::new();
        while done.is_empty() {
            self.channel.kick();
            self.channel.poll(&mut done);
            destager.poll();
        }
        done[0].result.unwrap();
    }
}

#[test]
fn the_log_is_emptied_while_durable_writes_follow_each_other_without_a_pause() {
    for in_turn in [false, true] {
        let (fs, path, protection) = (SimFs::new(1), Path::new("/ds/vm"), Protection::Unencrypted);
        fs.set_skips_overlapping_syncs(in_turn);
        let (size, provisioning) = (VolumeSize::new(1 << 20).unwrap(), Provisioning::Thin);
        let (log_bytes, integrity) = (Some(LOG_BYTES_MIN), None);
        create_on(&fs, path, &CreateOptions { size, provisioning, protection, log_bytes, integrity })
            .unwrap();
        let (access, lock_wait) = (Access::ReadWrite, Duration::ZERO);
        let options = OpenOptions { protection, access, lock_wait, least_generation: 0 };
        let disk = open_on(&fs, path, &options).unwrap().disk;
        let pool = BufferPool::new(4 << 20).unwrap();
        let thread = |seed| Thread { pool: pool.clone(), reactor: Rc::new(fs.reactor(seed).unwrap()) };
        let mut destager = disk.destager(&thread(0)).unwrap().unwrap();
        destager.set_quiet(Duration::ZERO);
        let mut queues =
            [1, 2].map(|seed| Queue { channel: disk.open(&thread(seed), 1).unwrap(), pool: pool.clone() });
        let is_empty = || disk.log_size_and_use().unwrap().1 == 0;
        // These two blocks are overwritten in place from now on.
        for block in [0, 1] {
            queues[0].submit(block, false);
            queues[0].finish(&mut destager);
        }
        while !is_empty() {
            destager.poll();
        }
        queues[0].submit(100, false);
        queues[0].finish(&mut destager);
        // Whenever the destager polls, a sync is in flight.
        queues[0].submit(0, true);
        let emptied = (0..ROUNDS_MAX).map(|round| round % 2).any(|at| {
            queues[1 - at].submit(1 - at as u64, true);
            queues[1 - at].channel.kick();
            queues[at].finish(&mut destager);
            is_empty()
        });
        assert!(emptied, "syncs in turn: {in_turn}");
    }
}
