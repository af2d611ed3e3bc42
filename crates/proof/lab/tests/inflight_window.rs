//! A server is killed after it has published an answer to the driver, and before it has recorded
//! that in the inflight area. By then the driver may have rewritten the same block through another
//! queue, and a successor that repeats the old write destroys the newer one. The test constructs
//! this state for every point at which the kill can happen.
#![allow(clippy::unwrap_used)]

mod support;

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strongroom_lab::vhost_user::front_end::{FrontEnd, Settings};
use strongroom_lab::vhost_user::inflight::Entry;
use strongroom_lab::vhost_user::queue::{Answered, Operation, Queue, Shape};
use strongroom_types::Extent;

use support::{Lie, Local, LyingDisk, Served};

const BLOCK: usize = 4096;
/// Requests of the last batch.
const BATCH: usize = 4;
const DEADLINE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

fn block(index: usize) -> Extent {
    Extent::new((index * BLOCK) as u64, BLOCK as u64).unwrap()
}

/// Waits until the device has called.
fn await_call(queue: &mut Queue) {
    if !queue.listen().unwrap() {
        let ready = poll(&mut [PollFd::new(queue.call_file(), PollFlags::IN)], Some(&DEADLINE));
        assert_eq!(ready, Ok(1), "the device did not answer in time");
    }
}

fn await_answer(queue: &mut Queue) -> Answered {
    loop {
        if let Some(answered) = queue.take_answered().unwrap() {
            assert_eq!(answered.status, 0);
            return answered;
        }
        await_call(queue);
    }
}

/// Fills each block with one byte, in one batch.
fn write_blocks(queue: &mut Queue, byte: u8) {
    for slot in 0..BATCH {
        let content = [byte + slot as u8; BLOCK];
        queue.submit(slot, &Operation::Write(block(slot)), &Shape::default(), &content).unwrap();
    }
    queue.publish().unwrap();
    for _ in 0..BATCH {
        await_answer(queue);
    }
}

/// Returns the fill byte of each block.
fn read_blocks(queue: &mut Queue) -> Vec<u8> {
    let read = |slot| {
        queue.submit(slot, &Operation::Read(block(slot)), &Shape::default(), &[0; BLOCK]).unwrap();
        queue.publish().unwrap();
        let mut content = [0; BLOCK];
        let answered = await_answer(queue);
        queue.content(answered.slot, &mut content).unwrap();
        assert!(content.iter().all(|byte| *byte == content[0]));
        content[0]
    };
    (0..BATCH).map(read).collect()
}

/// Old writes through queue 0 and newer ones of the same blocks through queue 1, all answered; then
/// the server is gone. `heads` has those of the old writes, the last first.
struct Scene {
    local: Local,
    front_end: FrontEnd,
    heads: Vec<u16>,
    used_index: u16,
}

const OLD: u8 = 0x10;
const NEW: u8 = 0x80;

impl Scene {
    fn new() -> Self {
        let disk = Arc::new(Served(LyingDisk::new(Lie::None)));
        let local = Local::start(disk.clone());
        let settings = Settings { queue_size: 16, ..Settings::new(2, BATCH as u16) };
        let mut front_end = FrontEnd::connect(&local.socket, settings).unwrap();
        write_blocks(&mut front_end.queues()[0], OLD);
        write_blocks(&mut front_end.queues()[1], NEW);
        let local = local.restart(disk);
        let used_index = front_end.queues()[0].ring().used_index().unwrap();
        assert_eq!(usize::from(used_index), BATCH);
        let area = front_end.inflight().unwrap().queue(0);
        assert_eq!((area.version(), area.used_index()), (Ok(1), Ok(used_index)));
        assert!(area.in_flight(used_index).unwrap().is_empty());
        let mut heads = vec![area.last_batch_head().unwrap()];
        for index in 1..BATCH {
            heads.push(area.entry(heads[index - 1]).unwrap().next);
        }
        Self { local, front_end, heads, used_index }
    }

    /// Marks the heads in the area.
    fn mark_in_flight(&self, heads: &[u16]) {
        let area = self.front_end.inflight().unwrap().queue(0);
        for head in heads {
            let entry = area.entry(*head).unwrap();
            area.set_entry(*head, Entry { in_flight: true, ..entry }).unwrap();
        }
    }
}

#[test]
fn an_answered_write_is_not_done_again_over_a_newer_one() {
    // The number of entries of the batch that the dead server had cleared, from either end; and the
    // size of its last batch.
    for (cleared, last_batch) in [(0, 4), (1, 4), (3, 4), (4, 4), (0, 1), (1, 2), (0, 3)] {
        for first_cleared_last in [false, true] {
            let Scene { local, mut front_end, heads, used_index } = {
                let scene = Scene::new();
                let mut batch = scene.heads[..last_batch].to_vec();
                if first_cleared_last {
                    batch.reverse();
                }
                scene.mark_in_flight(&batch[cleared..]);
                let area = scene.front_end.inflight().unwrap().queue(0);
                area.set_used_index(scene.used_index - last_batch as u16).unwrap();
                scene
            };
            front_end.reconnect().unwrap();
            // A request on each queue, after which no old request can be processed.
            for queue in front_end.queues() {
                queue.submit(0, &Operation::Flush, &Shape::default(), &[]).unwrap();
                queue.publish().unwrap();
                await_answer(queue);
            }
            assert_eq!(front_end.queues()[0].ring().used_index(), Ok(used_index + 1), "an answer too many");
            let newer: Vec<u8> = (0..BATCH).map(|slot| NEW + slot as u8).collect();
            assert_eq!(read_blocks(&mut front_end.queues()[1]), newer, "{cleared} of {last_batch} {heads:?}");
            let area = front_end.inflight().unwrap().queue(0);
            assert_eq!((area.used_index(), area.in_flight(used_index + 1)), (Ok(used_index + 1), Ok(vec![])));
            local.server.stop().unwrap();
        }
    }
}

#[test]
fn a_write_that_was_taken_and_not_answered_is_done_once() {
    // The same requests, made available again, taken, and not answered. Without the index, this
    // state could not be distinguished from the one above.
    let Scene { local, mut front_end, heads, used_index } = {
        let mut scene = Scene::new();
        let ring = scene.front_end.queues()[0].ring_mut();
        scene.heads.iter().for_each(|head| ring.make_available(*head).unwrap());
        ring.publish().unwrap();
        scene.mark_in_flight(&scene.heads);
        scene
    };
    front_end.reconnect().unwrap();
    let end = used_index + heads.len() as u16;
    while front_end.queues()[0].ring().used_index().unwrap() != end {
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(front_end.queues()[0].call_file().as_fd(), PollFlags::IN)],
            Some(&DEADLINE),
        );
        assert_eq!(ready, Ok(1), "nothing was done again");
    }
    let older: Vec<u8> = (0..BATCH).map(|slot| OLD + slot as u8).collect();
    assert_eq!(read_blocks(&mut front_end.queues()[1]), older);
    // Stopped, so that no further answers can come.
    assert_eq!(front_end.stop().unwrap()[0], end);
    assert_eq!(front_end.queues()[0].ring().used_index(), Ok(end));
    local.server.stop().unwrap();
}
