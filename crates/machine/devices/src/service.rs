//! The service: a device process for each device that is to be attached.
//!
//! Device processes outlive it when it is killed. The next service starts one more for each, which
//! waits for the end of that.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use strongroom_processes::Signals;

use crate::error::DeviceError;
use crate::record::{DeviceName, Devices};
use crate::status::{Lock, RunFiles, State};
use crate::watch::{Watch, wait};

/// Between two starts of a device process: the shortest and the longest time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
/// A process that lived so long is started at once.
const LASTED: Duration = Duration::from_secs(30);
/// How often it is looked whether device processes have ended.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How long device processes may take to end, before they are killed; longer than each of them
/// gives its programs, its flush and its exposure.
const ENDS_WITHIN: Duration = Duration::from_secs(180);

/// A device process.
struct Running {
    child: Option<(Child, OwnedFd)>,
    started: Instant,
    pause: Duration,
    next_start: Instant,
}

/// Attaches devices until a signal comes, and detaches them then. `tell` gets what a service
/// manager is told: READY=1 when all devices are attached that were to be.
///
/// # Errors
/// [`DeviceError::ServedAlready`]; [`DeviceError::File`] for a directory that cannot be used.
pub fn serve(
    devices: &Devices,
    run: &RunFiles,
    home: &std::path::Path,
    start: &dyn Fn(&DeviceName) -> Command,
    tell: &dyn Fn(&str),
    signals: &Signals,
) -> Result<(), DeviceError> {
    let (records, statuses) = (Watch::of(devices.directory()?)?, Watch::of(run.directory()?)?);
    let Some(_lock) = Lock::try_take(&run.service_lock())? else {
        let pid = run.served_by()?.unwrap_or_default();
        return Err(DeviceError::ServedAlready { pid, home: home.to_owned() });
    };
    let mut running: BTreeMap<DeviceName, Running> = BTreeMap::new();
    let mut told = String::new();
    let mut is_ready = false;
    while !signals.came() {
        records.clear();
        statuses.clear();
        let mut wanted = Vec::new();
        for device in devices.all()? {
            match device {
                Ok(device) if device.attached => wanted.push(device.name),
                Ok(_) => {}
                Err(error) => tracing::error!("{error}"),
            }
        }
        running.retain(|name, process| process.see_to(name) || wanted.contains(name));
        for name in &wanted {
            running.entry(name.clone()).or_insert_with(Running::new).start(name, start);
        }
        let (attached, waiting) = summary(&wanted, run)?;
        let text = format!("{attached} of {} devices attached{waiting}", wanted.len());
        if told != text {
            tell(&format!("STATUS={text}"));
            told = text;
        }
        if !is_ready && attached == wanted.len() {
            tell("READY=1");
            is_ready = true;
        }
        let mut events = vec![signals.as_fd(), records.as_fd(), statuses.as_fd()];
        events.extend(running.values().filter_map(|one| one.child.as_ref()).map(|(_, pidfd)| pidfd.as_fd()));
        let down = running.values().filter(|one| one.child.is_none()).map(|one| one.next_start).min();
        wait(&events, down.map(|at| at.saturating_duration_since(Instant::now())))?;
    }
    tell("STOPPING=1");
    end(running, devices, run)
}

/// How many are attached, and what the others wait for.
fn summary(wanted: &[DeviceName], run: &RunFiles) -> Result<(usize, String), DeviceError> {
    let mut attached = 0;
    let mut others = String::new();
    for name in wanted {
        match run.status(name)?.map(|status| status.state) {
            Some(State::Attached) => attached += 1,
            Some(State::WaitingForKey { .. }) => others.push_str(&format!("; {name} waits for the key")),
            Some(State::Interrupted { reason }) => others.push_str(&format!("; {name}: {reason}")),
            Some(State::Starting | State::Detaching { .. }) | None => {}
        }
    }
    Ok((attached, others))
}

impl Running {
    fn new() -> Self {
        Self { child: None, started: Instant::now(), pause: PAUSE.0, next_start: Instant::now() }
    }

    fn start(&mut self, name: &DeviceName, start: &dyn Fn(&DeviceName) -> Command) {
        if self.child.is_some() || Instant::now() < self.next_start {
            return;
        }
        // Control-C in a terminal reaches it through this process alone.
        let started = start(name).process_group(0).spawn().and_then(|child| {
            let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
            Ok((child, pidfd))
        });
        self.started = Instant::now();
        match started {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                tracing::error!("the process of device {name} does not start: {error}");
                self.next_start = Instant::now() + PAUSE.1;
            }
        }
    }

    /// Notices its end; returns whether it runs.
    fn see_to(&mut self, name: &DeviceName) -> bool {
        if let Some((child, _)) = &mut self.child
            && let Ok(Some(status)) = child.try_wait()
        {
            self.pause =
                if self.started.elapsed() > LASTED { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
            self.next_start = Instant::now() + self.pause;
            self.child = None;
            if !status.success() {
                tracing::error!("the process of device {name} ended ({status})");
            }
        }
        self.child.is_some()
    }
}

/// Ends all device processes, also those that an earlier service has started.
fn end(running: BTreeMap<DeviceName, Running>, devices: &Devices, run: &RunFiles) -> Result<(), DeviceError> {
    let mut children: Vec<Child> =
        running.into_values().filter_map(|one| one.child).map(|(child, _)| child).collect();
    for child in &children {
        // One that has ended already takes no signal.
        let _ = kill_process(Pid::from_child(child), Signal::TERM);
    }
    let names: Vec<DeviceName> = devices.all()?.into_iter().flatten().map(|device| device.name).collect();
    let holders = || -> Result<Vec<Pid>, DeviceError> {
        let mut pids = Vec::new();
        for name in &names {
            let pid = Lock::holder(&run.file(name, "lock"))?.and_then(|pid| pid.parse().ok());
            pids.extend(pid.and_then(Pid::from_raw));
        }
        Ok(pids)
    };
    for pid in holders()? {
        let _ = kill_process(pid, Signal::TERM);
    }
    let until = Instant::now() + ENDS_WITHIN;
    loop {
        children.retain_mut(|child| matches!(child.try_wait(), Ok(None)));
        let left = holders()?;
        if children.is_empty() && left.is_empty() {
            return Ok(());
        }
        if Instant::now() >= until {
            tracing::error!("device processes do not end; they are killed");
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            for child in &mut children {
                let _ = child.kill().and_then(|()| child.wait());
            }
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
}
