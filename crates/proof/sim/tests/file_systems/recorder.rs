//! A mounted file system whose device records all its requests.
//!
//! ```text
//! file system -> loop device -> FUSE -> qemu-storage-daemon: blklogwrites -> an image and a log
//! ```
//!
//! An entry is written after its request has taken effect and before that is reported, so the log's
//! order is an order in which the requests took effect. A flush of the loop device is an fsync of
//! the file below it, a discard is a punched hole, and the log records both as such. The loop
//! device has no FUA, so the kernel turns it into a write and a flush.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tempfile::TempDir;

use super::file_system::{FileSystem, Mounted, run};
use super::image::Image;
use super::write_log::{Clock, Entry, read_log};

/// How long the daemon may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time between two signals to end.
const SIGNAL_EVERY: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

pub struct Recorder {
    // Dropped in this order: the mount before the device.
    mounted: Option<Mounted>,
    daemon: Option<Daemon>,
    clock: Clock,
    place: TempDir,
    device_bytes: u64,
}

impl Recorder {
    /// Mounts `image`, and records everything from the mount on.
    pub fn start(file_system: &FileSystem, image: &Image) -> Result<Self, String> {
        let place = tempfile::tempdir().unwrap();
        image.write_to(&place.path().join("image")).unwrap();
        let daemon = Daemon::start(place.path());
        let at = place.path().join("mounted");
        std::fs::create_dir(&at).unwrap();
        let mounted = file_system.mount(&place.path().join("device"), &at)?;
        let clock = Clock::of(&place.path().join("log")).unwrap();
        Ok(Self { mounted: Some(mounted), daemon: Some(daemon), clock, place, device_bytes: image.length() })
    }

    pub fn path(&self) -> &Path {
        self.mounted.as_ref().unwrap().path()
    }

    /// The number of requests so far.
    pub fn moment(&self) -> usize {
        self.clock.moment().unwrap()
    }

    /// A clock for another thread.
    pub fn another_clock(&self) -> Clock {
        Clock::of(&self.place.path().join("log")).unwrap()
    }

    /// Unmounts, which is recorded too, and returns all requests.
    pub fn finish(mut self) -> Vec<Entry> {
        self.mounted = None;
        self.daemon = None;
        let log = File::open(self.place.path().join("log")).unwrap();
        read_log(&log, self.device_bytes).unwrap()
    }
}

/// The storage daemon, by its process id.
struct Daemon(Pid);

impl Daemon {
    /// Starts it, and returns when the device exists.
    fn start(place: &Path) -> Self {
        let named = |name: &str| place.join(name);
        File::create(named("log")).unwrap();
        // The file over which the device is mounted.
        File::create(named("device")).unwrap();
        let node = |parts: &str, path: Option<PathBuf>| {
            path.map_or(parts.to_owned(), |path| format!("{parts}{}", path.display()))
        };
        let logging = "driver=blklogwrites,node-name=recorded,file=data,log=log,discard=unmap,\
                       log-sector-size=512,log-super-update-interval=1";
        let export = "type=fuse,id=device,node-name=recorded,writable=on,mountpoint=";
        let mut daemon = Command::new("qemu-storage-daemon");
        daemon
            .arg("--blockdev")
            .arg(node("driver=file,node-name=data,discard=unmap,filename=", Some(named("image"))));
        daemon.arg("--blockdev").arg(node("driver=file,node-name=log,filename=", Some(named("log"))));
        daemon.arg("--blockdev").arg(logging);
        daemon.arg("--export").arg(node(export, Some(named("device"))));
        daemon.arg("--daemonize").arg("--pidfile").arg(named("pid"));
        // The parent exits when the device exists.
        run(&mut daemon).unwrap();
        let pid = std::fs::read_to_string(named("pid")).unwrap().trim().parse().unwrap();
        Self(Pid::from_raw(pid).unwrap())
    }
}

impl Daemon {
    /// Signals it to end until it does. One signal is not enough: its handler sets a flag, and a
    /// signal between the daemon's check of the flag and its sleep is lost.
    fn end(&self) -> Result<usize, Errno> {
        let daemon = pidfd_open(self.0, PidfdFlags::empty())?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            match pidfd_send_signal(&daemon, Signal::TERM) {
                Ok(()) => {}
                Err(Errno::SRCH) => return Ok(1),
                Err(errno) => return Err(errno),
            }
            if poll(&mut [PollFd::new(&daemon, PollFlags::IN)], Some(&SIGNAL_EVERY))? > 0 {
                return Ok(1);
            }
        }
        Ok(0)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let ended = self.end();
        assert!(ended == Ok(1) || std::thread::panicking(), "the storage daemon does not end: {ended:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use rustix::fs::{FallocateFlags, fallocate};

    use super::*;
    use crate::file_system::{BTRFS, EXT4, XFS};
    use crate::write_log::Change;

    /// The basis of these tests: a returned fsync is in the log as a write followed by a flush, and
    /// freed space arrives as a discard.
    #[test]
    #[cfg_attr(not(feature = "file-systems"), ignore = "scripts/test-power-cuts runs it")]
    fn writes_flushes_and_discards_reach_the_log_in_order() {
        for file_system in [&EXT4, &XFS, &BTRFS] {
            let place = tempfile::tempdir().unwrap();
            let recorder = Recorder::start(file_system, &file_system.make(place.path())).unwrap();
            let file = File::create_new(recorder.path().join("file")).unwrap();
            file.write_all_at(&[0xA5; 1 << 20], 0).unwrap();
            let written = recorder.moment();
            file.sync_all().unwrap();
            let synced = recorder.moment();
            fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 0, 1 << 20).unwrap();
            rustix::fs::syncfs(&file).unwrap();
            drop(file);
            let entries = recorder.finish();
            let holds = |entry: &Entry| matches!(&entry.change, Change::Write { bytes, .. } if bytes[..512] == [0xA5; 512]);
            let data = entries.iter().rposition(holds).unwrap();
            assert!(data < synced, "{}: the data was sent before the fsync returned", file_system.name);
            let flushed = entries[data..synced].iter().any(|entry| entry.flushes);
            assert!(flushed, "{}: it was flushed before the fsync returned", file_system.name);
            assert!(written < synced, "{}: the moment moved on", file_system.name);
            let discards =
                |entry: &Entry| matches!(entry.change, Change::Discard { length, .. } if length >= 1 << 19);
            assert!(entries[synced..].iter().any(discards), "{}: the space was discarded", file_system.name);
        }
    }
}
