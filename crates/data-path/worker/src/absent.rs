//! The disk of a volume that is not open yet: what a guest's driver has to know of it, and no
//! content.
//!
//! A VM that moves while it runs is loaded beside the one that runs, with the same disks. Its
//! volumes are opened when the other one has closed them, and that one keeps its sessions, too: it
//! may have to go on. No ring of a guest runs meanwhile, unless QEMU continues it by itself because
//! the move fails: then requests wait here until the volume [arrives](AbsentDisk::arrive).

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Thread, Waker};
use strongroom_types::{Extent, VolumeSize};

use crate::layers::{Ciphers, StackError};
use crate::stack::memory_disk;

/// The disk of a volume that is not open yet.
pub struct AbsentDisk {
    limits: Limits,
    arrival: Arc<Arrival>,
}

/// The volume, once it is open, and the threads that wait for it.
#[derive(Default)]
struct Arrival {
    volume: OnceLock<Arc<dyn Disk<Plain>>>,
    threads: Mutex<Vec<Arc<Waker>>>,
}

struct AbsentChannel {
    arrival: Arc<Arrival>,
    thread: Thread,
    depth: usize,
    /// The requests that wait, in order.
    waiting: Vec<Io<Plain>>,
    /// The volume's, once it is open.
    channel: Option<Box<dyn Channel<Plain>>>,
}

impl AbsentDisk {
    /// The disk of a volume of this size. `discards` tells whether the volume frees space.
    pub fn new(size: VolumeSize, discards: bool) -> Result<Arc<Self>, StackError> {
        // The limits of a volume come from the same stages.
        let limits = memory_disk(size, Ciphers::Unencrypted)?.limits();
        Ok(Arc::new(Self { limits: Limits { discards, ..limits }, arrival: Arc::default() }))
    }

    /// Has the requests that wait carried out, and all later ones.
    pub fn arrive(&self, volume: Arc<dyn Disk<Plain>>) {
        if self.arrival.volume.set(volume).is_ok() {
            self.arrival.threads.lock().iter().for_each(|waker| waker.wake());
        }
    }
}

impl Disk<Plain> for AbsentDisk {
    fn limits(&self) -> Limits {
        self.limits
    }

    fn open(&self, thread: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        self.arrival.threads.lock().push(thread.reactor.waker());
        Ok(Box::new(AbsentChannel {
            arrival: Arc::clone(&self.arrival),
            thread: thread.clone(),
            depth,
            waiting: Vec::with_capacity(depth),
            channel: None,
        }))
    }

    fn allocation(&self, _: Extent, _: &mut dyn FnMut(Extent, Allocation) -> bool) -> Result<(), IoError> {
        Err(IoError::Closed)
    }
}

impl AbsentChannel {
    /// The volume's channel, with what waited for it.
    fn arrived(&mut self) -> Option<&mut Box<dyn Channel<Plain>>> {
        if self.channel.is_none()
            && let Some(volume) = self.arrival.volume.get()
        {
            match volume.open(&self.thread, self.depth) {
                Ok(mut channel) => {
                    self.waiting.drain(..).for_each(|io| channel.submit(io));
                    channel.kick();
                    self.channel = Some(channel);
                }
                Err(error) => tracing::error!(%error, "requests cannot go on over the volume"),
            }
        }
        self.channel.as_mut()
    }
}

impl Channel<Plain> for AbsentChannel {
    fn submit(&mut self, io: Io<Plain>) {
        match &mut self.channel {
            Some(channel) => channel.submit(io),
            None => self.waiting.push(io),
        }
    }

    fn kick(&mut self) {
        if let Some(channel) = self.arrived() {
            channel.kick();
        }
    }

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        if let Some(channel) = self.arrived() {
            channel.poll(done);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Client;

    fn piece(byte: u8) -> Vec<u8> {
        vec![byte; 4096]
    }

    /// QEMU continues a guest by itself if the rest of its memory does not pass.
    #[test]
    fn what_is_asked_for_before_the_volume_is_open_is_done_when_it_is() {
        let size = VolumeSize::new(1 << 20).unwrap();
        let absent = AbsentDisk::new(size, false).unwrap();
        let volume = memory_disk(size, Ciphers::Unencrypted).unwrap();
        let mut client = Client::open(&*absent).unwrap();
        for number in 0..3 {
            client.write(Extent::new(u64::from(number) * 4096, 4096).unwrap(), &piece(number)).unwrap();
        }
        let arrives = std::thread::spawn({
            let (absent, volume) = (Arc::clone(&absent), Arc::clone(&volume));
            move || {
                std::thread::sleep(Duration::from_millis(20));
                absent.arrive(volume);
            }
        });
        client.settle_writes().unwrap();
        arrives.join().unwrap();
        client.write(Extent::new(3 * 4096, 4096).unwrap(), &piece(3)).unwrap();
        client.flush().unwrap();
        let mut direct = Client::open(&*volume).unwrap();
        for number in 0..4_u8 {
            let extent = Extent::new(u64::from(number) * 4096, 4096).unwrap();
            direct.read(extent, &mut |_, _| Ok(())).unwrap();
            let mut found = Vec::new();
            direct
                .settle(0, &mut |_, buffer| {
                    found.extend_from_slice(buffer.bytes());
                    Ok(())
                })
                .unwrap();
            assert_eq!(found, piece(number));
        }
    }
}
