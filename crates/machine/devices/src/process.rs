//! The process of one device: it has the device's file system and loop device, and starts what
//! exposes the volume. The key is there, not here.
//!
//! Order of an end: programs have closed the device; the loop device is gone; the volume is
//! flushed; the file system is gone; the exposure ends.

use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fuser::BackgroundSession;
use parking_lot::Mutex;
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use strongroom_processes::Signals;

use crate::error::{DeviceError, file};
use crate::file_system::{FILE, VolumeFile};
use crate::loop_device::{LoopDevice, User};
use crate::nbd::Connect;
use crate::record::{Device, DeviceName, Devices};
use crate::requests::{Flushed, Request, Requests, Waiting};
use crate::status::{Lock, RunFiles, State, Status};
use crate::watch::{Watch, wait};

/// How often it is looked whether a predecessor has ended, or programs have closed the device.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Between two starts of the exposure: the shortest and the longest time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// An exposure that lived so long is started at once.
const LASTED: Duration = Duration::from_secs(30);
/// How long programs may keep the device open after a signal to end.
const USERS_END_WITHIN: Duration = Duration::from_secs(60);
/// How long the kernel may take to let go of a loop device that nobody has open.
const UNBOUND_WITHIN: Duration = Duration::from_secs(10);
/// How long the last flush, and the exposure's end, may take.
const ENDS_WITHIN: Duration = Duration::from_secs(60);
/// The longest message of the exposure.
const MESSAGE_BYTES_MAX: usize = 4096;

/// Starts the exposure of a device's volume: NBD at this socket, the export named as its directory.
pub type Expose<'a> = &'a dyn Fn(&Device, &Path) -> Command;

/// Keeps a device attached until its record says otherwise, or a signal comes. While another
/// process has the device, waits for the end of that.
///
/// # Errors
/// [`DeviceError`]; the device is not attached then.
pub fn keep_attached(
    name: &DeviceName,
    devices: &Devices,
    run: &RunFiles,
    expose: Expose<'_>,
    signals: &Signals,
) -> Result<(), DeviceError> {
    run.directory()?;
    let watch = Watch::of(devices.directory()?)?;
    let _lock = loop {
        if signals.came() || !is_wanted(devices, name)? {
            return Ok(());
        }
        if let Some(lock) = Lock::try_take(&run.file(name, "lock"))? {
            break lock;
        }
        wait(&[signals.as_fd(), watch.as_fd()], Some(LOOK_EVERY))?;
        watch.clear();
    };
    // What this process and those that it starts need memory for may be what memory is written to.
    if let Err(errno) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::info!("the kernel may wait for {name} itself when memory is short: {errno}");
    }
    let mut process = DeviceProcess {
        name,
        devices,
        run,
        expose,
        signals,
        watch,
        told: None,
        exposure: None,
        next_start: Instant::now(),
        pause: PAUSE.0,
        attached: None,
    };
    process.remove_remains();
    let kept = process.keep();
    process.end();
    kept
}

fn is_wanted(devices: &Devices, name: &DeviceName) -> Result<bool, DeviceError> {
    match devices.get(name) {
        Ok(device) => Ok(device.attached),
        Err(DeviceError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

struct DeviceProcess<'a> {
    name: &'a DeviceName,
    devices: &'a Devices,
    run: &'a RunFiles,
    expose: Expose<'a>,
    signals: &'a Signals,
    watch: Watch,
    told: Option<Status>,
    exposure: Option<Exposure>,
    next_start: Instant,
    pause: Duration,
    attached: Option<Attached>,
}

/// The device itself.
struct Attached {
    requests: Arc<Requests>,
    transfers: JoinHandle<()>,
    session: BackgroundSession,
    loop_device: LoopDevice,
    /// Where its file system is mounted.
    at: PathBuf,
}

/// The process that exposes the volume.
struct Exposure {
    child: Child,
    pidfd: OwnedFd,
    started: Instant,
    /// What it says, as to a service manager.
    notices: UnixDatagram,
    is_ready: bool,
    /// Its last line on stderr.
    last_line: Arc<Mutex<String>>,
}

impl DeviceProcess<'_> {
    fn keep(&mut self) -> Result<(), DeviceError> {
        self.say(State::Starting)?;
        while !self.signals.came() && is_wanted(self.devices, self.name)? {
            self.see_to_exposure()?;
            self.attach_if_ready()?;
            if self.attached.as_ref().is_some_and(|attached| attached.session.guard.is_finished()) {
                let error = io::Error::other("the kernel has ended it");
                return Err(DeviceError::Mount { name: self.name.clone(), at: self.mount_point(), error });
            }
            let mut events = vec![self.signals.as_fd(), self.watch.as_fd()];
            // The end of its file system has no descriptor to wait for.
            let mut at_most = LASTED;
            match &self.exposure {
                Some(exposure) => {
                    events.extend([exposure.pidfd.as_fd(), exposure.notices.as_fd()]);
                    if exposure.is_ready && self.attached.is_none() {
                        at_most = LOOK_EVERY;
                    }
                }
                None => at_most = self.next_start.saturating_duration_since(Instant::now()),
            }
            wait(&events, Some(at_most))?;
            self.watch.clear();
        }
        Ok(())
    }

    /// Starts it, hears what it says, and notices its end.
    fn see_to_exposure(&mut self) -> Result<(), DeviceError> {
        let Some(exposure) = &mut self.exposure else {
            if Instant::now() >= self.next_start {
                self.exposure = Some(self.start_exposure()?);
            }
            return Ok(());
        };
        let mut waits = None;
        for notice in exposure.hear() {
            for line in notice.lines() {
                if line == "READY=1" {
                    exposure.is_ready = true;
                    waits = None;
                } else if let Some(status) = line.strip_prefix("STATUS=") {
                    waits = Some(status.to_owned());
                }
            }
        }
        if let Ok(Some(status)) = exposure.child.try_wait() {
            let last = exposure.last_line.lock().clone();
            self.pause =
                if exposure.started.elapsed() > LASTED { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
            self.next_start = Instant::now() + self.pause;
            self.exposure = None;
            let reason = if last.is_empty() { format!("it ended ({status})") } else { last };
            tracing::error!(device = %self.name, "the volume's exposure ended ({status}); it is started again");
            return self.say(State::Interrupted { reason });
        }
        let is_ready = exposure.is_ready;
        match waits {
            Some(reason) => self.say(State::WaitingForKey { reason }),
            None if is_ready && self.attached.is_some() => self.say(State::Attached),
            None => Ok(()),
        }
    }

    fn start_exposure(&self) -> Result<Exposure, DeviceError> {
        let device = self.devices.get(self.name)?;
        let (socket, notify) = (self.run.file(self.name, "sock"), self.run.file(self.name, "notify"));
        let _ = std::fs::remove_file(&notify);
        let notices = UnixDatagram::bind(&notify).map_err(file("create", &notify))?;
        notices.set_nonblocking(true).map_err(file("use", &notify))?;
        let mut command = (self.expose)(&device, &socket);
        command.env("NOTIFY_SOCKET", &notify);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error| DeviceError::Start { program, error };
        let mut child = command.spawn().map_err(failed)?;
        let last_line = Arc::new(Mutex::new(String::new()));
        if let Some(stderr) = child.stderr.take() {
            let last_line = Arc::clone(&last_line);
            std::thread::spawn(move || {
                for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                    let _ = writeln!(io::stderr(), "{line}");
                    *last_line.lock() = line;
                }
            });
        }
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(|errno| DeviceError::Wait(errno.into()))?;
        Ok(Exposure { child, pidfd, started: Instant::now(), notices, is_ready: false, last_line })
    }

    fn attach_if_ready(&mut self) -> Result<(), DeviceError> {
        if self.attached.is_some() || !self.exposure.as_ref().is_some_and(|exposure| exposure.is_ready) {
            return Ok(());
        }
        let volume = self.devices.get(self.name)?.volume;
        let export = volume.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let (requests, stream) = match Requests::connect(self.run.file(self.name, "sock"), export) {
            Ok(connected) => connected,
            // Its worker, or itself, has ended meanwhile.
            Err(Connect::Io(error)) => {
                tracing::debug!("not connected yet: {error}");
                return Ok(());
            }
            Err(Connect::Protocol(error)) => return Err(error),
        };
        let at = self.mount_point();
        let mut directory = std::fs::DirBuilder::new();
        directory.recursive(true).mode(0o700).create(&at).map_err(file("create", &at))?;
        let transfers = {
            let requests = Arc::clone(&requests);
            let transfers = std::thread::Builder::new().name("transfers".to_owned());
            transfers.spawn(move || requests.run(stream)).map_err(DeviceError::Wait)?
        };
        let mounted = VolumeFile(Arc::clone(&requests)).mount(&at);
        let session =
            mounted.map_err(|error| DeviceError::Mount { name: self.name.clone(), at: at.clone(), error })?;
        let loop_device = LoopDevice::over(&at.join(FILE), self.name)?;
        let link = RunFiles::link(self.name);
        let _ = std::fs::remove_file(&link);
        let linked = std::fs::create_dir_all(link.parent().unwrap_or(&link));
        let linked = linked.and_then(|()| symlink(loop_device.path(), &link));
        self.attached = Some(Attached { requests, transfers, session, loop_device, at });
        linked.map_err(file("create", &link))?;
        self.say(State::Attached)
    }

    fn mount_point(&self) -> PathBuf {
        self.run.file(self.name, "mount")
    }

    fn say(&mut self, state: State) -> Result<(), DeviceError> {
        let block_device = self.attached.as_ref().map(|attached| attached.loop_device.path().to_owned());
        let status = Status { pid: std::process::id(), block_device, state };
        if self.told.as_ref() == Some(&status) {
            return Ok(());
        }
        self.run.say(self.name, &status)?;
        self.told = Some(status);
        Ok(())
    }

    /// What a killed predecessor has left: a loop device whose requests fail, and a dead mount.
    fn remove_remains(&self) {
        let at = self.mount_point();
        let last = self.run.last_status(self.name).ok().flatten().and_then(|status| status.block_device);
        if let Some(left) = last.and_then(|path| LoopDevice::left(&path, &at.join(FILE))) {
            tracing::warn!(device = %self.name, "a killed process has left {}; it is detached", left.path().display());
            left.detach();
        }
        // Its number may be another device's by now.
        let _ = std::fs::remove_file(RunFiles::link(self.name));
        // There is none, as a rule.
        while rustix::mount::unmount(&at, UnmountFlags::DETACH).is_ok() {}
        self.run.forget(self.name);
    }

    fn end(&mut self) {
        if let Some(attached) = self.attached.take() {
            let users = self.await_users(&attached.loop_device);
            if !users.is_empty() {
                tracing::error!(device = %self.name, "detached while it is in use by {}", named(&users));
            }
            let _ = std::fs::remove_file(RunFiles::link(self.name));
            attached.end();
            let _ = std::fs::remove_dir(self.mount_point());
        }
        if let Some(exposure) = self.exposure.take() {
            exposure.end();
        }
        self.run.forget(self.name);
    }

    /// Waits until nobody has it open; after a signal, for [`USERS_END_WITHIN`] at most.
    fn await_users(&mut self, loop_device: &LoopDevice) -> Vec<User> {
        let mut until = None;
        loop {
            let users = loop_device.users();
            if self.signals.came() && until.is_none() {
                until = Some(Instant::now() + USERS_END_WITHIN);
            }
            if users.is_empty() || until.is_some_and(|until| Instant::now() >= until) {
                return users;
            }
            let status = Status {
                pid: std::process::id(),
                block_device: Some(loop_device.path().to_owned()),
                state: State::Detaching { users: named(&users) },
            };
            // Whether or not it is said, it is waited for.
            let _ = self.run.say(self.name, &status);
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

impl Attached {
    fn end(self) {
        let Self { requests, transfers, session, loop_device, at } = self;
        loop_device.detach();
        let until = Instant::now() + UNBOUND_WITHIN;
        while loop_device.is_bound() && Instant::now() < until {
            std::thread::sleep(LOOK_EVERY / 10);
        }
        let flushed = Arc::new(Flushed::default());
        requests.submit(Request::Flush(Waiting::Process(Arc::clone(&flushed))));
        match flushed.wait(ENDS_WITHIN) {
            Some(Ok(())) => {}
            Some(Err(error)) => tracing::error!("the volume was not flushed: error {error}"),
            None => tracing::error!("the volume was not flushed within {} s", ENDS_WITHIN.as_secs()),
        }
        // A worker that was started since has this mount in its own namespace, too, so the kernel
        // may not end the session now. It ends with this process.
        if let Err(errno) = rustix::mount::unmount(&at, UnmountFlags::DETACH) {
            tracing::warn!("the file system is not unmounted: {errno}");
        }
        drop(session);
        requests.end();
        let _ = transfers.join();
    }
}

impl Exposure {
    fn hear(&self) -> Vec<String> {
        let mut notices = Vec::new();
        let mut notice = [0; MESSAGE_BYTES_MAX];
        while let Ok(length) = self.notices.recv(&mut notice) {
            notices.push(String::from_utf8_lossy(&notice[..length]).into_owned());
        }
        notices
    }

    fn end(mut self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::TERM);
        if wait(&[self.pidfd.as_fd()], Some(ENDS_WITHIN)).is_err()
            || !matches!(self.child.try_wait(), Ok(Some(_)))
        {
            tracing::error!("the volume's exposure does not end; it is killed");
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Users, as text.
pub(crate) fn named(users: &[User]) -> String {
    users.iter().map(User::to_string).collect::<Vec<_>>().join(", ")
}

/// The programs that use a device.
///
/// # Errors
/// [`DeviceError::File`] if its status cannot be read.
pub fn users_of(name: &DeviceName, run: &RunFiles) -> Result<Vec<User>, DeviceError> {
    let status = run.status(name)?;
    let path = status.and_then(|status| status.block_device);
    let file = run.file(name, "mount").join(FILE);
    Ok(path.and_then(|path| LoopDevice::left(&path, &file)).map(|device| device.users()).unwrap_or_default())
}

/// Refuses a device that programs use.
///
/// # Errors
/// [`DeviceError::InUse`], [`DeviceError::File`].
pub fn refuse_used(name: &DeviceName, run: &RunFiles) -> Result<(), DeviceError> {
    let users = users_of(name, run)?;
    if users.is_empty() {
        return Ok(());
    }
    Err(DeviceError::InUse { name: name.clone(), users: named(&users) })
}
