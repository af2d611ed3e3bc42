//! The disk of a volume that is not open yet: what a guest's driver has to know of it, and no
//! content.
//!
//! A VM that moves while it runs is loaded beside the one that runs, with the same disks. Its
//! volumes are opened when the other one has closed them, and that one keeps its sessions, too: it
//! may have to go on. No ring of a guest runs meanwhile. If QEMU starts one all the same, requests
//! wait here: they are in the memory that QEMU keeps for them, and the next worker repeats them.

use std::sync::Arc;

use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Thread};
use strongroom_types::{Extent, VolumeSize};

use crate::layers::{Ciphers, StackError};
use crate::stack::memory_disk;

struct AbsentDisk(Limits);

/// The requests that wait, until the process ends.
struct AbsentChannel(Vec<Io<Plain>>);

/// The disk of a volume of this size. `discards` tells whether the volume frees space.
pub fn absent_disk(size: VolumeSize, discards: bool) -> Result<Arc<dyn Disk<Plain>>, StackError> {
    // The limits of a volume come from the same stages.
    let limits = memory_disk(size, Ciphers::Unencrypted)?.limits();
    Ok(Arc::new(AbsentDisk(Limits { discards, ..limits })))
}

impl Disk<Plain> for AbsentDisk {
    fn limits(&self) -> Limits {
        self.0
    }

    fn open(&self, _: &Thread, depth: usize) -> Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(AbsentChannel(Vec::with_capacity(depth))))
    }

    fn allocation(&self, _: Extent, _: &mut dyn FnMut(Extent, Allocation) -> bool) -> Result<(), IoError> {
        Err(IoError::Closed)
    }
}

impl Channel<Plain> for AbsentChannel {
    fn submit(&mut self, io: Io<Plain>) {
        self.0.push(io);
    }

    fn kick(&mut self) {}

    fn poll(&mut self, _: &mut Vec<Done<Plain>>) {}
}
