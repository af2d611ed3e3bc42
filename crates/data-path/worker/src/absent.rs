//! The disk of a volume that is not open yet: what a guest's driver has to know of it, and no
//! content.
//!
//! A VM that moves while it runs is loaded beside the one that runs, with the same disks. Its
//! volumes are opened when the other one has closed them, and that one keeps its sessions, too: it
//! may have to go on. No guest runs meanwhile, unless QEMU continues it by itself because the move
//! fails: then requests wait here until the volume [arrives](AbsentDisk::arrive).
//!
//! QEMU reads when it starts: the firmware's variables, whose content then comes with the memory,
//! and the first sector of a disk, for its geometry. A [new](Early::ReadsZeroes) disk answers that.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, Thread, Waker};
use strongroom_types::{Extent, VolumeSize};

use crate::layers::{Ciphers, StackError};
use crate::stack::memory_disk;

/// What becomes of a request that comes before the volume is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Early {
    /// No guest has run with the disk: reads return zeroes, flushes succeed, changes wait.
    ReadsZeroes,
    /// A guest has run with it, and may go on: everything waits.
    Waits,
}

/// The disk of a volume that is not open yet.
pub struct AbsentDisk {
    limits: Limits,
    early: Early,
    arrival: Arc<Arrival>,
}

/// The volume, once it is open, and the threads that wait for it.
#[derive(Default)]
struct Arrival {
    /// `None` if it will not be opened.
    volume: OnceLock<Option<Arc<dyn Disk<Plain>>>>,
    threads: Mutex<Vec<Arc<Waker>>>,
}

impl Arrival {
    fn decide(&self, volume: Option<Arc<dyn Disk<Plain>>>) {
        if self.volume.set(volume).is_ok() {
            self.threads.lock().iter().for_each(|waker| waker.wake());
        }
    }
}

struct AbsentChannel {
    arrival: Arc<Arrival>,
    thread: Thread,
    depth: usize,
    early: Early,
    /// The requests that were answered without the volume.
    answered: Vec<Done<Plain>>,
    /// The requests that wait, in order.
    waiting: Vec<Io<Plain>>,
    /// The volume's, once it is open.
    channel: Option<Box<dyn Channel<Plain>>>,
}

impl AbsentDisk {
    /// The disk of a volume of this size. `discards` tells whether the volume frees space.
    pub fn new(size: VolumeSize, discards: bool, early: Early) -> Result<Arc<Self>, StackError> {
        // The limits of a volume come from the same stages.
        let limits = memory_disk(size, Ciphers::Unencrypted)?.limits();
        Ok(Arc::new(Self { limits: Limits { discards, ..limits }, early, arrival: Arc::default() }))
    }

    /// Has the requests that wait carried out, and all later ones.
    pub fn arrive(&self, volume: Arc<dyn Disk<Plain>>) {
        self.arrival.decide(Some(volume));
    }

    /// Has the requests that wait fail, and all later ones: the volume will not be opened here.
    pub fn give_up(&self) {
        self.arrival.decide(None);
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
            early: self.early,
            answered: Vec::with_capacity(depth),
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
            match volume.as_ref().map(|volume| volume.open(&self.thread, self.depth)) {
                Some(Ok(mut channel)) => {
                    self.waiting.drain(..).for_each(|io| channel.submit(io));
                    channel.kick();
                    self.channel = Some(channel);
                }
                Some(Err(error)) => tracing::error!(%error, "requests cannot go on over the volume"),
                None => self.answered.extend(self.waiting.drain(..).map(|io| io.end(Err(IoError::Closed)))),
            }
        }
        self.channel.as_mut()
    }
}

impl Channel<Plain> for AbsentChannel {
    fn submit(&mut self, io: Io<Plain>) {
        match (&mut self.channel, self.early) {
            (Some(channel), _) => channel.submit(io),
            (None, Early::Waits) => self.waiting.push(io),
            (None, Early::ReadsZeroes) => match answered(io) {
                Ok(done) => self.answered.push(done),
                Err(io) => self.waiting.push(io),
            },
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
        done.append(&mut self.answered);
    }
}

/// Answers a request of a client that has written nothing, unless it changes the disk.
fn answered(mut io: Io<Plain>) -> Result<Done<Plain>, Io<Plain>> {
    match &mut io.request {
        Request::Read { into, .. } => into.fill_zero(0, into.len()),
        Request::Flush => {}
        Request::Write { .. } | Request::Discard { .. } | Request::WriteZeroes { .. } => return Err(io),
    }
    Ok(io.end(Ok(())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::client::Client;
    use crate::transfer::TransferError;

    fn piece(byte: u8) -> Vec<u8> {
        vec![byte; 4096]
    }

    fn extent(number: u8) -> Extent {
        Extent::new(u64::from(number) * 4096, 4096).unwrap()
    }

    fn read(client: &mut Client, number: u8) -> Vec<u8> {
        let mut found = Vec::new();
        client.read(extent(number), &mut |_, _| Ok(())).unwrap();
        client
            .settle(0, &mut |_, buffer| {
                found.extend_from_slice(buffer.bytes());
                Ok(())
            })
            .unwrap();
        found
    }

    /// QEMU continues a guest by itself if the rest of its memory does not pass.
    #[test]
    fn what_is_asked_for_before_the_volume_is_open_is_done_when_it_is() {
        let size = VolumeSize::new(1 << 20).unwrap();
        let volume = memory_disk(size, Ciphers::Unencrypted).unwrap();
        for early in [Early::Waits, Early::ReadsZeroes] {
            let absent = AbsentDisk::new(size, false, early).unwrap();
            let mut client = Client::open(&*absent).unwrap();
            for number in 0..3 {
                client.write(extent(number), &piece(number)).unwrap();
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
            client.write(extent(3), &piece(3)).unwrap();
            client.flush().unwrap();
            let mut direct = Client::open(&*volume).unwrap();
            for number in 0..4 {
                assert_eq!(read(&mut direct, number), piece(number));
            }
        }
    }

    /// QEMU flushes when it ends, also where its VM has left.
    #[test]
    fn what_waits_for_a_volume_that_does_not_come_fails() {
        let absent = AbsentDisk::new(VolumeSize::new(1 << 20).unwrap(), false, Early::Waits).unwrap();
        let mut client = Client::open(&*absent).unwrap();
        client.write(extent(0), &piece(1)).unwrap();
        absent.give_up();
        assert!(matches!(client.settle_writes(), Err(TransferError::Volume(IoError::Closed))));
    }

    /// QEMU reads the firmware's variables when it starts.
    #[test]
    fn a_new_disk_reads_as_zeroes_until_its_volume_is_open() {
        let size = VolumeSize::new(1 << 20).unwrap();
        let volume = memory_disk(size, Ciphers::Unencrypted).unwrap();
        let mut direct = Client::open(&*volume).unwrap();
        direct.write(extent(1), &piece(7)).unwrap();
        direct.flush().unwrap();
        let absent = AbsentDisk::new(size, false, Early::ReadsZeroes).unwrap();
        let mut client = Client::open(&*absent).unwrap();
        assert_eq!(read(&mut client, 1), piece(0));
        client.flush().unwrap();
        absent.arrive(volume);
        assert_eq!(read(&mut client, 1), piece(7));
    }
}
