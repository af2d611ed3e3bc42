//! The load of the machine and its disk during a measurement.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::fs::{major, makedev, minor};

use super::{Metric, Sample};

/// A disk in the kernel's statistics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its name, such as `vda1`.
    pub name: String,
    device: DeviceNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DeviceNumber {
    major: u32,
    minor: u32,
}

impl DeviceNumber {
    fn of(number: u64) -> Self {
        Self { major: major(number), minor: minor(number) }
    }
}

impl Disk {
    /// The disk that holds a file or directory; `None` if that is in memory, or on several disks.
    pub fn under(path: &Path) -> io::Result<Option<Self>> {
        let device = DeviceNumber::of(fs::metadata(path)?.dev());
        if let Some(disk) = Self::of(device)? {
            return Ok(Some(disk));
        }
        // A file system with its own device numbers, such as btrfs, lists its disk in the mounts.
        let mounts = fs::read_to_string("/proc/self/mountinfo")?;
        let wanted = format!("{}:{}", device.major, device.minor);
        let Some(source) = mounts.lines().find_map(|line| source_in(line, &wanted)) else { return Ok(None) };
        match fs::metadata(source) {
            Ok(source) => Self::of(DeviceNumber::of(source.rdev())),
            Err(_) => Ok(None),
        }
    }

    fn of(device: DeviceNumber) -> io::Result<Option<Self>> {
        let statistics = fs::read_to_string("/proc/diskstats")?;
        let line = disk_line(&statistics, device);
        Ok(line.map(|fields| Self { name: fields[2].to_owned(), device }))
    }

    /// Its device number, for other kernel interfaces.
    pub fn number(&self) -> u64 {
        makedev(self.device.major, self.device.minor)
    }

    /// How long it has been busy so far.
    fn busy(&self) -> io::Result<Duration> {
        let statistics = fs::read_to_string("/proc/diskstats")?;
        let ms = disk_line(&statistics, self.device).and_then(|fields| fields.get(12)?.parse().ok());
        ms.map(Duration::from_millis).ok_or_else(|| not_there("/proc/diskstats", &self.name))
    }
}

/// The fields of a device's line in `/proc/diskstats` (Documentation/admin-guide/iostats.rst):
/// io_ticks is the tenth after the name.
fn disk_line(statistics: &str, device: DeviceNumber) -> Option<Vec<&str>> {
    let (major, minor) = (device.major.to_string(), device.minor.to_string());
    let fields = statistics.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.into_iter().find(|fields| fields.len() > 12 && fields[0] == major && fields[1] == minor)
}

/// The source of a mount of the device, in a line of mountinfo (proc(5)).
fn source_in<'line>(line: &'line str, device: &str) -> Option<&'line str> {
    let (mount, source) = line.split_once(" - ")?;
    let is_it = mount.split(' ').nth(2)? == device;
    let source = source.split(' ').nth(1)?;
    (is_it && source.starts_with('/')).then_some(source)
}

fn not_there(path: &str, what: &str) -> io::Error {
    io::Error::other(format!("{path} does not tell of {what}"))
}

/// The time of all processors so far, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Processors {
    busy: u64,
    stolen: u64,
    all: u64,
}

impl Processors {
    fn now() -> io::Result<Self> {
        Self::parse(&fs::read_to_string("/proc/stat")?).ok_or_else(|| not_there("/proc/stat", "processors"))
    }

    /// Parses `/proc/stat` (proc(5)). Guests' time is included in user time.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let [user, nice, system, idle, wait, interrupts, soft_interrupts, stolen, ..] = ticks[..] else {
            return None;
        };
        let busy = user + nice + system + interrupts + soft_interrupts;
        Some(Self { busy, stolen, all: busy + stolen + idle + wait })
    }
}

/// The counters at a moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    processors: Processors,
    disk: Option<Duration>,
}

impl Reading {
    fn now(disk: Option<&Disk>) -> io::Result<Self> {
        let disk = disk.map(Disk::busy).transpose()?;
        Ok(Self { at: Instant::now(), processors: Processors::now()?, disk })
    }

    fn until(&self, end: &Self, sample: &mut Sample) {
        let share = |part: u64, of: u64| part as f64 / of.max(1) as f64;
        let all = end.processors.all.saturating_sub(self.processors.all);
        let busy = end.processors.busy.saturating_sub(self.processors.busy);
        let stolen = end.processors.stolen.saturating_sub(self.processors.stolen);
        sample.set(Metric::MachineBusyShare, share(busy, all).min(1.0));
        sample.set(Metric::StolenShare, share(stolen, all).min(1.0));
        if let (Some(start_busy), Some(end_busy)) = (self.disk, end.disk) {
            let elapsed = (end.at - self.at).as_secs_f64().max(f64::MIN_POSITIVE);
            let share = end_busy.saturating_sub(start_busy).as_secs_f64() / elapsed;
            sample.set(Metric::DiskBusyShare, share.min(1.0));
        }
    }
}

/// Watches the machine and a disk during a measurement.
#[derive(Debug)]
pub struct Watch {
    disk: Option<Disk>,
    start: Reading,
}

impl Watch {
    /// Begins now.
    pub fn start(disk: Option<&Disk>) -> io::Result<Self> {
        Ok(Self { disk: disk.cloned(), start: Reading::now(disk)? })
    }

    /// Ends now, and adds its metrics to the sample: [`Metric::MachineBusyShare`],
    /// [`Metric::StolenShare`] and, if there is a disk, [`Metric::DiskBusyShare`].
    pub fn stop(self, sample: &mut Sample) -> io::Result<()> {
        let end = Reading::now(self.disk.as_ref())?;
        self.start.until(&end, sample);
        Ok(())
    }

    /// Watches for `duration` after `warm_up`, beside a load that warms up by itself.
    pub fn after(warm_up: Duration, duration: Duration, disk: Option<&Disk>) -> TimedWatch {
        let disk = disk.cloned();
        let (end, ended) = channel();
        let watching = thread::spawn(move || watch(warm_up, duration, disk.as_ref(), &ended));
        TimedWatch { end, watching }
    }
}

/// A watch that begins and ends by time.
#[derive(Debug)]
pub struct TimedWatch {
    end: Sender<()>,
    watching: JoinHandle<io::Result<Option<(Reading, Reading)>>>,
}

impl TimedWatch {
    /// Adds its metrics to the sample, like [`Watch::stop`]; if its time is not over, those until
    /// now.
    pub fn stop(self, sample: &mut Sample) -> io::Result<()> {
        // A watch whose time is over has stopped receiving.
        let _ = self.end.send(());
        let seen = self.watching.join().map_err(|_| io::Error::other("the watch ended"))??;
        let (start, end) = seen.ok_or_else(|| io::Error::other("the load ended within its warm-up"))?;
        start.until(&end, sample);
        Ok(())
    }
}

fn watch(
    warm_up: Duration,
    duration: Duration,
    disk: Option<&Disk>,
    ended: &Receiver<()>,
) -> io::Result<Option<(Reading, Reading)>> {
    if !warm_up.is_zero() && ended.recv_timeout(warm_up).is_ok() {
        return Ok(None);
    }
    let start = Reading::now(disk)?;
    // In either case the watch is over.
    let _ = ended.recv_timeout(duration);
    Ok(Some((start, Reading::now(disk)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_read_as_the_kernel_writes_them() {
        let text = "cpu  10 2 30 400 5 6 7 8 9 1\ncpu0 1 1 1 1 1 1 1 1 1 1\nintr 5\n";
        assert_eq!(Processors::parse(text), Some(Processors { busy: 55, stolen: 8, all: 468 }));
        assert_eq!(Processors::parse("intr 5\n"), None);
        assert!(Processors::now().unwrap().all > 0);
    }

    #[test]
    fn disks_are_found_by_number_and_by_mount() {
        let text = " 254       0 vda 1 2 3 4 5 6 7 8 9 1234 11 0 0 0 0 0 0\n";
        assert_eq!(disk_line(text, DeviceNumber { major: 254, minor: 0 }).unwrap()[12], "1234");
        assert_eq!(disk_line(text, DeviceNumber { major: 254, minor: 1 }), None);
        let line = "36 35 0:31 / /data rw shared:1 - btrfs /dev/vdb rw,subvol=/";
        assert_eq!(source_in(line, "0:31"), Some("/dev/vdb"));
        assert_eq!(source_in(line, "0:3"), None);
        assert_eq!(source_in("22 28 0:21 / /run rw - tmpfs tmpfs rw", "0:21"), None);
        assert_eq!(Disk::under(Path::new("/proc")).unwrap(), None);
        assert!(Disk::under(Path::new("/no/such/path")).is_err());
    }

    #[test]
    fn shares_are_of_the_time_between() {
        let reading = |busy, stolen, all, at, disk_ms| {
            let disk = Some(Duration::from_millis(disk_ms));
            Reading { at, processors: Processors { busy, stolen, all }, disk }
        };
        let begin = Instant::now();
        let mut sample = Sample::default();
        reading(100, 0, 1000, begin, 7)
            .until(&reading(250, 20, 1200, begin + Duration::from_secs(2), 1507), &mut sample);
        assert_eq!(sample.get(Metric::MachineBusyShare), Some(0.75));
        assert_eq!(sample.get(Metric::StolenShare), Some(0.1));
        assert_eq!(sample.get(Metric::DiskBusyShare), Some(0.75));
    }

    #[test]
    fn a_watch_sees_what_it_watched() {
        let mut sample = Sample::default();
        Watch::start(None).unwrap().stop(&mut sample).unwrap();
        assert!(sample.get(Metric::MachineBusyShare).is_some());
        let mut sample = Sample::default();
        Watch::after(Duration::ZERO, Duration::ZERO, None).stop(&mut sample).unwrap();
        assert!(sample.get(Metric::DiskBusyShare).is_none());
        let hour = Duration::from_secs(3600);
        assert!(Watch::after(hour, hour, None).stop(&mut sample).is_err());
    }
}
