//! Samples the resources of the serving processes: memory, descriptors, threads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::tools::{LOOK_PERIOD, birth_of, workers_of};
use crate::processes::Memory;

/// The role of a process for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It supervises the volume's worker.
    Supervisor,
    /// It serves the volume.
    Worker,
}

/// One sample of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the soak began.
    pub seconds: f64,
    /// The volume.
    pub volume: String,
    /// The role.
    pub role: Role,
    /// Its id, which together with the start time in clock ticks identifies it.
    pub pid: u32,
    /// Its start time in clock ticks.
    pub birth_ticks: u64,
    /// Private memory.
    pub anonymous_bytes: u64,
    /// The part in huge pages: I/O buffers, which vary with the load. `None` if only root may read
    /// it.
    pub huge_bytes: Option<u64>,
    /// Its share of all memory that it uses (PSS).
    pub proportional_bytes: u64,
    /// All memory that it uses, including the guest's (RSS).
    pub resident_bytes: u64,
    /// Open descriptors; `None` if only root may count them.
    pub descriptors: Option<u64>,
    /// Threads.
    pub threads: u64,
}

/// The watched volumes, and the process that exposes each, which is zero while there is none.
pub type Watched = Vec<(Kind, Arc<AtomicU32>)>;

/// Samples every `period` until `stop`, and writes a line of JSON for each process. Returns all
/// samples.
pub fn watch(
    watched: &Watched,
    period: Duration,
    mut lines: impl Write,
    stop: &AtomicBool,
) -> io::Result<Vec<Sample>> {
    let start = Instant::now();
    let mut samples = Vec::new();
    let mut next = start;
    while !stop.load(Ordering::Relaxed) {
        if Instant::now() < next {
            thread::sleep(LOOK_PERIOD);
            continue;
        }
        next += period;
        for (kind, supervisor) in watched {
            let supervisor = supervisor.load(Ordering::SeqCst);
            let workers = workers_of(supervisor).into_iter().map(|pid| (Role::Worker, pid));
            for (role, pid) in std::iter::once((Role::Supervisor, supervisor)).chain(workers) {
                // A process that has ended meanwhile has no sample.
                let Some(sample) = look(start.elapsed(), *kind, role, pid) else { continue };
                serde_json::to_writer(&mut lines, &sample)?;
                writeln!(lines)?;
                samples.push(sample);
            }
        }
        lines.flush()?;
    }
    Ok(samples)
}

fn look(since: Duration, kind: Kind, role: Role, pid: u32) -> Option<Sample> {
    let birth_ticks = birth_of(pid)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let field = |name| -> Option<u64> {
        status.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
    };
    // Only its owner can read the details; everyone can read the status.
    let of_status = || Memory {
        resident_bytes: field("VmRSS:").unwrap_or_default() << 10,
        proportional_bytes: 0,
        anonymous_bytes: field("RssAnon:").unwrap_or_default() << 10,
    };
    let memory = Memory::of(pid).unwrap_or_else(|_| of_status());
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|entries| entries.count() as u64);
    // An ending process has released its memory before it is gone.
    if memory.resident_bytes == 0 || birth_of(pid) != Some(birth_ticks) {
        return None;
    }
    Some(Sample {
        seconds: since.as_secs_f64(),
        volume: kind.name().to_owned(),
        role,
        pid,
        birth_ticks,
        anonymous_bytes: memory.anonymous_bytes,
        huge_bytes: huge_bytes_of(pid),
        proportional_bytes: memory.proportional_bytes,
        resident_bytes: memory.resident_bytes,
        descriptors,
        threads: field("Threads:")?,
    })
}

fn huge_bytes_of(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    line.split_whitespace().next()?.parse().ok().map(|kib: u64| kib << 10)
}

/// The processes in samples, by identity.
pub fn processes(samples: &[Sample]) -> BTreeMap<(u32, u64), Role> {
    samples.iter().map(|sample| ((sample.pid, sample.birth_ticks), sample.role)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// Lines, and whether one was of a worker.
    struct Lines<'test>(Vec<u8>, &'test AtomicBool);

    impl Write for Lines<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            let has_worker = String::from_utf8_lossy(&self.0).contains("\"worker\"");
            self.1.fetch_or(has_worker, Ordering::SeqCst);
            Ok(())
        }
    }

    #[test]
    fn a_supervisor_and_its_workers_are_looked_at_until_the_end() {
        // A worker is started by another process than its supervisor.
        let script = "exec 3<&0; (cat <&3 & wait) & wait";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let watched = vec![(Kind::Thin, Arc::new(AtomicU32::new(child.id())))];
        let (stop, has_worker) = (AtomicBool::new(false), AtomicBool::new(false));
        let mut lines = Lines(Vec::new(), &has_worker);
        let samples = thread::scope(|scope| {
            let watching =
                scope.spawn(|| watch(&watched, Duration::from_millis(1), &mut lines, &stop).unwrap());
            while !has_worker.load(Ordering::SeqCst) {
                assert!(!watching.is_finished());
                thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            watching.join().unwrap()
        });
        drop(child.stdin.take());
        child.wait().unwrap();
        let of = |role| samples.iter().filter(move |sample| sample.role == role);
        assert!(of(Role::Worker).count() > 0 && of(Role::Supervisor).all(|sample| sample.pid == child.id()));
        assert!(samples.iter().all(|sample| sample.descriptors >= Some(1) && sample.threads == 1));
        let text = String::from_utf8(lines.0).unwrap();
        let first: Sample = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((first.pid, text.lines().count()), (child.id(), samples.len()));
    }
}
