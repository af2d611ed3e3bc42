//! What the processes that serve take, again and again: memory, descriptors, threads.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::kind::Kind;
use super::tools::{LOOK_PERIOD, birth_of, children_of};
use crate::first_writes::processes::Memory;

/// What a process does for a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It answers for the volume.
    Supervisor,
    /// It serves it.
    Worker,
}

/// One look at one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Since the soak began.
    pub seconds: f64,
    /// Whose.
    pub volume: String,
    /// Which.
    pub role: Role,
    /// Its number, and when it started, in ticks of the machine's: who it is.
    pub pid: u32,
    /// As above.
    pub birth_ticks: u64,
    /// Memory that is its own alone.
    pub anonymous_bytes: u64,
    /// Its share of all memory that it uses (PSS).
    pub proportional_bytes: u64,
    /// All memory that it uses, the guest's included (RSS).
    pub resident_bytes: u64,
    /// Open descriptors; nothing where only root may count them.
    pub descriptors: Option<u64>,
    /// Threads.
    pub threads: u64,
}

/// Who is looked at: volumes, and the process that exposes each, which is zero while there is none.
pub type Watched = Vec<(Kind, Arc<AtomicU32>)>;

/// Looks every `period` until `stop`, and writes a line of JSON for each process; all of them in the end.
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
            let workers = children_of(supervisor).into_iter().map(|pid| (Role::Worker, pid));
            for (role, pid) in std::iter::once((Role::Supervisor, supervisor)).chain(workers) {
                // One that has gone meanwhile has nothing any more.
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
    // Its parts are for its owner alone; the status is for everybody.
    let of_status = || Memory {
        resident_bytes: field("VmRSS:").unwrap_or_default() << 10,
        proportional_bytes: 0,
        anonymous_bytes: field("RssAnon:").unwrap_or_default() << 10,
    };
    let memory = Memory::of(pid).unwrap_or_else(|_| of_status());
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|entries| entries.count() as u64);
    // One that ends has let go of its memory before it is gone.
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
        proportional_bytes: memory.proportional_bytes,
        resident_bytes: memory.resident_bytes,
        descriptors,
        threads: field("Threads:")?,
    })
}

/// The processes of samples, by who they are.
pub fn processes(samples: &[Sample]) -> BTreeMap<(u32, u64), Role> {
    samples.iter().map(|sample| ((sample.pid, sample.birth_ticks), sample.role)).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_and_its_children_are_looked_at_until_the_end() {
        let script = "cat & wait";
        let mut child = Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap();
        let watched = vec![(Kind::Thin, Arc::new(AtomicU32::new(child.id())))];
        let stop = AtomicBool::new(false);
        let mut lines = Vec::new();
        let samples = thread::scope(|scope| {
            let watching =
                scope.spawn(|| watch(&watched, Duration::from_millis(1), &mut lines, &stop).unwrap());
            while children_of(child.id()).is_empty() {
                thread::yield_now();
            }
            let until = Instant::now() + Duration::from_millis(200);
            while Instant::now() < until {
                thread::yield_now();
            }
            stop.store(true, Ordering::Relaxed);
            watching.join().unwrap()
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let of = |role| samples.iter().filter(move |sample| sample.role == role);
        assert!(of(Role::Worker).count() > 0 && of(Role::Supervisor).all(|sample| sample.pid == child.id()));
        assert!(samples.iter().all(|sample| sample.descriptors >= Some(3) && sample.threads == 1));
        let text = String::from_utf8(lines).unwrap();
        let first: Sample = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!((first.pid, text.lines().count()), (child.id(), samples.len()));
    }
}
