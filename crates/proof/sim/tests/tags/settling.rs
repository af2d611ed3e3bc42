//! A guest reads while blocks left unsettled by a crash are settled.

use std::rc::Rc;
use std::sync::Arc;

use strongroom_datastore::file::{Access, Integrity, Provisioning};
use strongroom_io::{Disk, Io, Sealed};
use strongroom_memory::BufferPool;
use strongroom_sim::SimFs;

use super::volume::*;

/// Two pieces of settling, and one transfer.
const BYTES: u64 = 96 * BLOCK as u64;

/// A read fetches its tags; meanwhile the settling adopts the blocks and finishes the region; then
/// the read compares.
#[test]
fn a_read_that_began_before_its_region_was_settled_is_no_false_alarm() {
    for seed in 0..300 {
        let (before, kek) = (SimFs::new(seed), kek());
        create_volume(&before, &kek, BYTES, Provisioning::Thick, Some(Integrity::NEW));
        let mut volume = open_volume(&before, &kek, Access::ReadWrite).unwrap();
        let disk = tags_over(Arc::clone(&volume.disk) as Arc<dyn Disk<Sealed>>, &mut volume);
        let mut queue = Queue::on(&before, &disk);
        // Not flushed: blocks may exist without their tags.
        queue.write(1, blocks(0, 96));
        let fs = before.cut(seed);
        let mut volume = open_volume(&fs, &kek, Access::ReadWrite).unwrap();
        let disk = tags_over(Arc::clone(&volume.disk) as Arc<dyn Disk<Sealed>>, &mut volume);
        let pool = BufferPool::new(8 << 20).unwrap();
        let mut guests: Vec<Queue> = (0..2)
            .map(|number| Queue::open(&disk, Rc::new(fs.reactor(seed * 2 + number).unwrap()), &pool))
            .collect();
        let mut left = 2;
        for guest in &mut guests {
            let request = guest.read_request(blocks(0, 96));
            guest.channel.submit(Io { tag: 1, request });
        }
        let mut done = Vec::new();
        while left > 0 {
            for guest in &mut guests {
                guest.channel.kick();
                guest.channel.poll(&mut done);
            }
            for done in done.drain(..) {
                assert_eq!(done.result, Ok(()), "seed {seed}");
                left -= 1;
            }
        }
    }
}
