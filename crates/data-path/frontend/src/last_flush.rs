//! The flush with which a server ends.

use std::rc::Rc;

use rustix::io::Errno;
use strongroom_io::{Disk, Io, IoError, Plain, Request, Thread};
use strongroom_memory::BufferPool;
use strongroom_ring::Ring;

/// Makes all writes durable, on the thread of `ring`. `memory_bytes` is the memory for the stages
/// below.
pub fn flush(disk: &dyn Disk<Plain>, ring: &Ring, memory_bytes: usize) -> Result<(), IoError> {
    if disk.limits().read_only {
        return Ok(());
    }
    let pool = BufferPool::new(memory_bytes).map_err(|_| IoError::from(Errno::NOMEM))?;
    let mut channel = disk.open(&Thread { pool, reactor: Rc::new(ring.clone()) }, 1)?;
    channel.submit(Io { tag: 0, request: Request::Flush });
    channel.kick();
    let mut done = Vec::new();
    loop {
        channel.poll(&mut done);
        if let Some(end) = done.pop() {
            return end.result;
        }
        ring.wait(None)?;
    }
}
