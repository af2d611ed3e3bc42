//! A slow link between two network namespaces: every frame arrives after a delay, and no more of
//! them than a rate allows. The kernels that tests run on have no `netem`.
//!
//! It is a cable with a TAP device at either end (`carry.py`), so what runs over it has the round
//! trips of its own TCP. It loses nothing: a sender that is faster than the rate is held back, as
//! by the queue of its own network card. Frames are as long as the sender's segments are together,
//! up to 64 KiB; at 1 Gb/s one takes 0.5 ms.
//!
//! The processes that carry are none of what is measured over it, but they do take processors.

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroU64;
use std::process::{Child, Command, Stdio, id};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::programs::{ProgramError, run};

const CARRY: &str = include_str!("carry.py");
/// Frames that a device holds between the sender's kernel and the link: the rest waits where it
/// comes from.
const DEVICE_FRAMES: &str = "16";
/// Faster than any machine carries.
const UNLIMITED_BYTES_PER_SECOND: u64 = 1 << 40;

/// How slow a link is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowness {
    /// Delay of each frame, one way: half of what a round trip takes at least.
    pub delay: Duration,
    /// Bytes that pass in a second each way, with the headers of Ethernet; `None`: as many as the
    /// machine carries.
    pub bytes_per_second: Option<NonZeroU64>,
}

/// One end of a link: a device in a network namespace. The link makes the device.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// The namespace, which `ip netns` knows.
    pub namespace: &'a str,
    /// The device's name there.
    pub device: &'a str,
}

/// A link. It is cut when this is dropped, or this process ends; its devices are gone then.
#[derive(Debug)]
pub struct Link {
    carrying: Child,
}

impl Link {
    /// Lays a link. Its devices are there and have no addresses; nothing passes before they are up.
    ///
    /// # Errors
    /// If there is no Python, or this process may not make devices.
    pub fn lay(ends: [End<'_>; 2], slowness: Slowness) -> Result<Self, ProgramError> {
        static LAID: AtomicUsize = AtomicUsize::new(0);
        let number = LAID.fetch_add(1, Ordering::Relaxed);
        // Until they are where they belong, they need names of their own among this process's.
        let plugs = ["a", "b"].map(|end| format!("sr{}-{number}{end}", id()));
        let rate = slowness.bytes_per_second.map_or(UNLIMITED_BYTES_PER_SECOND, NonZeroU64::get);
        let mut command = Command::new("python3");
        command.args(["-c", CARRY]).args(&plugs);
        command.args([slowness.delay.as_secs_f64().to_string(), rate.to_string()]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let failed = |error| ProgramError::Program {
            program: "python3".to_owned(),
            error,
            next: "a slow link needs python3, root and /dev/net/tun",
        };
        let mut link = Self { carrying: command.spawn().map_err(failed)? };
        let mut said = String::new();
        let stdout = link.carrying.stdout.take();
        if let Some(stdout) = stdout {
            BufReader::new(stdout).read_line(&mut said).map_err(failed)?;
        }
        if said.trim_end() != "plugged" {
            let error = std::io::Error::other("it made no devices; its message is above");
            return Err(failed(error));
        }
        for (plug, End { namespace, device }) in plugs.iter().zip(ends) {
            ip(&["link", "set", plug, "txqueuelen", DEVICE_FRAMES])?;
            ip(&["link", "set", plug, "netns", namespace, "name", device])?;
        }
        if let Some(stdin) = link.carrying.stdin.as_mut() {
            writeln!(stdin, "carry").map_err(failed)?;
        }
        Ok(link)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.carrying.stdin.take());
        let _ = self.carrying.wait();
    }
}

/// Two network namespaces with a link between them, at [`ADDRESSES`].
#[derive(Debug)]
pub struct Apart {
    /// The namespaces.
    pub namespaces: [String; 2],
    link: Option<Link>,
}

/// Where the two are.
pub const ADDRESSES: [&str; 2] = ["10.78.0.1", "10.78.0.2"];
const DEVICE: &str = "wire";

impl Apart {
    /// Makes the two namespaces, and lays the link between them: one of the kernel's own (veth), or
    /// a slow one.
    ///
    /// # Errors
    /// As [`Link::lay`].
    pub fn over(slowness: Option<Slowness>) -> Result<Self, ProgramError> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let namespaces = [1, 2].map(|end| format!("sr-apart-{end}-{}-{number}", id()));
        let mut apart = Self { namespaces, link: None };
        for namespace in &apart.namespaces {
            ip(&["netns", "add", namespace])?;
        }
        let ends = apart.namespaces.each_ref().map(|namespace| End { namespace, device: DEVICE });
        match slowness {
            Some(slowness) => apart.link = Some(Link::lay(ends, slowness)?),
            None => {
                let [End { namespace: one, .. }, End { namespace: other, .. }] = ends;
                let peer = ["peer", "name", DEVICE, "netns", other];
                ip(&[&["-n", one, "link", "add", DEVICE, "type", "veth"], &peer[..]].concat())?;
            }
        }
        for (namespace, address) in apart.namespaces.iter().zip(ADDRESSES) {
            ip(&["-n", namespace, "link", "set", "lo", "up"])?;
            ip(&["-n", namespace, "address", "add", &format!("{address}/24"), "dev", DEVICE])?;
            ip(&["-n", namespace, "link", "set", DEVICE, "up"])?;
        }
        Ok(apart)
    }

    /// A program in one of the two.
    pub fn command(&self, end: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespaces[end], program]);
        command
    }

    /// Sets a parameter of the kernel in both.
    ///
    /// # Errors
    /// If it has no such parameter in a network namespace.
    pub fn set(&self, parameter: &str, value: &str) -> Result<(), ProgramError> {
        for end in 0..self.namespaces.len() {
            let mut sysctl = self.command(end, "sysctl");
            run(sysctl.args(["--quiet", "--write", &format!("{parameter}={value}")]))?;
        }
        Ok(())
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        drop(self.link.take());
        for namespace in &self.namespaces {
            let _ = Command::new("ip").args(["netns", "delete", namespace]).status();
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), ProgramError> {
    run(Command::new("ip").args(arguments)).map(drop)
}
