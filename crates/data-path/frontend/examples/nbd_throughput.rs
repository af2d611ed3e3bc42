//! Random 4 KiB reads and writes over NBD from memory, compared with nbdkit's memory plugin,
//! alternating the two under the same fio.
//!
//! `cargo run --release -p strongroom-frontend --example nbd_throughput [SECONDS [ROUNDS]]`

use std::error::Error;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::nbd::{Export, LANE_DEPTH, NbdConfig, NbdServer};
use strongroom_io::{Allocation, Channel, Disk, Done, Io, IoError, Limits, Plain, Request, Thread};
use strongroom_ring::Lanes;
use strongroom_types::Extent;

const SIZE_BYTES: u64 = 1 << 30;
/// Bytes per lock: as many as a transfer has, so that no request needs more than two locks.
const SHARD_BYTES: u64 = 1 << 20;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let seconds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let rounds: usize = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let directory = tempfile::tempdir()?;
    let ours = directory.path().join("ours.sock");
    let theirs = directory.path().join("theirs.sock");

    let config = NbdConfig::new(Export { name: String::new(), description: String::new() });
    let listener = Listener::bind(&Address::Unix(ours.clone()))?;
    let lanes = Lanes::start("nbd", config.lanes(), LANE_DEPTH)?;
    let server = NbdServer::start(config, listener, Arc::new(Ram::new()), lanes)?;
    let nbdkit = Killed(
        Command::new("nbdkit")
            .args(["--foreground", "--unix"])
            .arg(&theirs)
            .args(["memory", &SIZE_BYTES.to_string()])
            .stdout(Stdio::null())
            .spawn()?,
    );
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::os::unix::net::UnixStream::connect(&theirs).is_err() {
        if Instant::now() > deadline {
            return Err("nbdkit does not answer".into());
        }
        std::thread::yield_now();
    }
    let servers = [("strongroom", &ours, std::process::id()), ("nbdkit", &theirs, nbdkit.0.id())];
    for (_, socket, _) in servers {
        fio(socket, "write", "1M", &["--size=100%"])?;
    }
    let time = format!("--runtime={seconds}");
    for round in 1..=rounds {
        for kind in ["randread", "randwrite"] {
            for (name, socket, process) in servers {
                let before = cpu_microseconds(process)?;
                let count = fio(socket, kind, "4k", &["--time_based", &time])?;
                let cpu = (cpu_microseconds(process)? - before) as f64 / count as f64;
                let iops = count / seconds;
                report(&format!(
                    "round {round}  {kind:9}  {name:10}  {iops:>7} IOPS  {cpu:5.2} us server CPU per I/O"
                ));
            }
        }
    }
    server.stop()?;
    Ok(())
}

#[allow(clippy::print_stdout)]
fn report(line: &str) {
    println!("{line}");
}

/// A process that is ended with this one.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs one job. Returns how many requests it made.
fn fio(socket: &Path, kind: &str, block: &str, more: &[&str]) -> Result<u64> {
    let output = Command::new("fio")
        .args(["--name=job", "--ioengine=nbd", "--thread", "--iodepth=32", "--output-format=terse"])
        .args([format!("--uri=nbd+unix:///?socket={}", socket.display())])
        .args([format!("--rw={kind}"), format!("--bs={block}")])
        .args(more)
        .output()?;
    let text = String::from_utf8(output.stdout)?;
    // Terse version 3: kilobytes transferred, of reads and of writes.
    let fields: Vec<&str> = text.trim().split(';').collect();
    let kilobytes = |index: usize| fields.get(index).and_then(|field| field.parse::<u64>().ok());
    match (output.status.success(), kilobytes(5), kilobytes(46)) {
        (true, Some(read), Some(written)) => Ok((read + written) / 4),
        _ => Err(format!("fio: {}\n{text}", output.status).into()),
    }
}

/// CPU time that a process has used, in user and kernel mode, with the threads that have ended.
fn cpu_microseconds(process: u32) -> Result<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    // The name comes second, in parentheses, and may contain any character; the times are the 14th
    // and 15th field.
    let (_, fields) = stat.rsplit_once(')').ok_or("no stat")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<u64>);
    let ticks: u64 = ticks.sum::<std::result::Result<u64, _>>()?;
    Ok(ticks * 1_000_000 / rustix::param::clock_ticks_per_second())
}

struct Ram(Arc<Vec<RwLock<Vec<u8>>>>);

impl Ram {
    fn new() -> Self {
        let shards = (0..SIZE_BYTES / SHARD_BYTES).map(|_| RwLock::new(vec![1; SHARD_BYTES as usize]));
        Self(Arc::new(shards.collect()))
    }
}

impl Disk<Plain> for Ram {
    fn limits(&self) -> Limits {
        Limits {
            size_bytes: SIZE_BYTES,
            block_bytes: 1,
            preferred_bytes: 4096,
            transfer_bytes_max: SHARD_BYTES as u32,
            read_only: false,
            discards: false,
        }
    }

    fn open(&self, _: &Thread, _: usize) -> std::result::Result<Box<dyn Channel<Plain>>, IoError> {
        Ok(Box::new(RamChannel { shards: Arc::clone(&self.0), done: Vec::new() }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> std::result::Result<(), IoError> {
        report(extent, Allocation::Data);
        Ok(())
    }
}

struct RamChannel {
    shards: Arc<Vec<RwLock<Vec<u8>>>>,
    done: Vec<Done<Plain>>,
}

impl Channel<Plain> for RamChannel {
    fn submit(&mut self, mut io: Io<Plain>) {
        let extent = io.request.extent();
        let mut at = extent.offset();
        while at < extent.end() {
            let shard = &self.shards[(at / SHARD_BYTES) as usize];
            let start = (at % SHARD_BYTES) as usize;
            let length = (SHARD_BYTES - at % SHARD_BYTES).min(extent.end() - at) as usize;
            let into = (at - extent.offset()) as usize;
            match &mut io.request {
                Request::Read { into: memory, .. } => {
                    let shard = shard.read();
                    memory.copy_from(into, &shard[start..start + length]);
                }
                Request::Write { from: memory, .. } => {
                    let mut shard = shard.write();
                    memory.copy_to(into, &mut shard[start..start + length]);
                }
                Request::WriteZeroes { .. } => {
                    let mut shard = shard.write();
                    shard[start..start + length].fill(0);
                }
                Request::Flush | Request::Discard { .. } => {}
            }
            at += length as u64;
        }
        self.done.push(io.end(Ok(())));
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<Done<Plain>>) {
        done.append(&mut self.done);
    }
}
