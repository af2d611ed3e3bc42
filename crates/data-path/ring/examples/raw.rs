//! Measures the ring alone: 4 KiB random reads and overwrites at depth 32 of a file opened with
//! O_DIRECT.
//!
//! `cargo run --release -p strongroom-ring --example raw -- FILE [SECONDS]`
//!
//! FILE must exist and be fully written; its content is overwritten. Each direction prints one
//! line: operations per second, and per operation the CPU time (user and system, of this process)
//! and the system calls.
#![allow(clippy::print_stdout, reason = "it is a program that prints")]

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use strongroom_io::{FileIo, FileOperation, FileToken, Reactor};
use strongroom_memory::{Buffer, BufferPool};
use strongroom_ring::{Ring, RingFile};

const DEPTH: usize = 32;
const BLOCK: usize = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: raw FILE [SECONDS]")?;
    let seconds = arguments.next().map_or(Ok(10), |text| text.parse())?;
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(&path)?;
    for writes in [false, true] {
        measure(file.try_clone()?, writes, Duration::from_secs(seconds))?;
    }
    Ok(())
}

fn measure(file: File, writes: bool, duration: Duration) -> Result<(), Box<dyn Error>> {
    let ring = Ring::new(DEPTH)?;
    let mut queue = ring.file_queue()?;
    let mut offsets = Offsets { state: 0x9E37_79B9_7F4A_7C15, blocks: file.metadata()?.len() / BLOCK as u64 };
    let file = queue.register(Arc::new(RingFile::new(file)))?;
    let pool = BufferPool::new(2 << 20)?;
    let (start, cpu, enters) = (Instant::now(), cpu_time()?, ring.enters());
    for _ in 0..DEPTH {
        let mut buffer = pool.take(BLOCK).ok_or("the pool is empty")?;
        buffer.bytes_mut().fill(0x5A);
        queue.submit(operation(file, writes, offsets.next(), buffer));
    }
    let (mut count, mut done) = (0_u64, Vec::with_capacity(DEPTH));
    while start.elapsed() < duration {
        // This also submits. A stage kicks before its thread waits, but this program has nothing
        // else to do in between.
        ring.wait(None)?;
        queue.poll(&mut done);
        for ended in done.drain(..) {
            ended.result?;
            count += 1;
            let buffer = ended.buffer.ok_or("a transfer without its buffer")?;
            queue.submit(operation(file, writes, offsets.next(), buffer));
        }
    }
    let per_operation = |total: f64| total / count as f64;
    println!(
        "{}: {:.0} operations/s, {:.2} us CPU and {:.2} kernel entries per operation",
        if writes { "randwrite" } else { "randread" },
        count as f64 / start.elapsed().as_secs_f64(),
        per_operation((cpu_time()? - cpu).as_secs_f64() * 1e6),
        per_operation((ring.enters() - enters) as f64),
    );
    Ok(())
}

fn operation(file: FileToken, writes: bool, offset: u64, buffer: Buffer) -> FileIo {
    let operation = if writes {
        FileOperation::Write { offset, from: buffer, durable: false }
    } else {
        FileOperation::Read { offset, into: buffer }
    };
    FileIo { tag: offset, file, operation }
}

/// Block offsets in an order that repeats only after 2^64 of them (a linear congruential generator,
/// Knuth's MMIX).
struct Offsets {
    state: u64,
    blocks: u64,
}

impl Offsets {
    fn next(&mut self) -> u64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 16) % self.blocks * BLOCK as u64
    }
}

/// CPU time of this process so far, including the kernel's work for it (`/proc/self/stat`, proc(5),
/// fields 14 and 15).
fn cpu_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let after_name = stat.rsplit(')').next().ok_or("no name in /proc/self/stat")?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut ticks = || -> Result<u64, Box<dyn Error>> { Ok(fields.next().ok_or("too few fields")?.parse()?) };
    let total = ticks()? + ticks()?;
    Ok(Duration::from_secs_f64(total as f64 / rustix::param::clock_ticks_per_second() as f64))
}
