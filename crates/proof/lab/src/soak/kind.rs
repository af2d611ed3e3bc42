//! The kinds of volumes in a soak, and their events.

use serde::Serialize;

/// A kind of volume. All of them are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Allocates space on demand, through its first-write log. All events happen to it.
    Thin,
    /// Allocates all of its space at first. One process exposes it from beginning to end.
    Thick,
    /// Keeps a tag of every block.
    Tags,
    /// Served by one worker from beginning to end, so that one process is observed for an hour.
    Lasting,
    /// On a file system that becomes full.
    Small,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Thin, Kind::Thick, Kind::Tags, Kind::Lasting, Kind::Small];

    /// The name of its volume.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Thin => "thin",
            Kind::Thick => "thick",
            Kind::Tags => "tags",
            Kind::Lasting => "lasting",
            Kind::Small => "small",
        }
    }

    /// The arguments of `volume create` beside size and key.
    pub fn create_arguments(self) -> &'static [&'static str] {
        match self {
            Kind::Thick => &["--thick"],
            Kind::Tags => &["--integrity"],
            Kind::Thin | Kind::Lasting | Kind::Small => &[],
        }
    }

    /// Whether this may happen to it.
    pub fn suffers(self, event: Event) -> bool {
        match (self, event) {
            (Kind::Small, Event::Full) => true,
            (_, Event::Full) => false,
            (Kind::Lasting, Event::Kill | Event::KillTwice | Event::Upgrade | Event::Restart) => false,
            (Kind::Thick, Event::Restart) => false,
            _ => true,
        }
    }
}

/// An event on a volume under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Its worker is killed, with requests in flight.
    Kill,
    /// The same, and the successor too as soon as it exists.
    KillTwice,
    /// Its worker is replaced in order.
    Upgrade,
    /// It grows; the load extends into the new part.
    Grow,
    /// Its key-encryption key is replaced.
    Rekey,
    /// Its worker is stopped for a while, like one with a hanging disk.
    Freeze,
    /// Its client is cut off, and reconnects.
    Disconnect,
    /// Its guest stops its queues in order, disconnects, and reconnects, as in a reboot.
    Requeue,
    /// The process that exposes it ends; the volume is checked, and exposed again.
    Restart,
    /// Its file system is full until its guest waits, and has room again after another event.
    Full,
}

impl Event {
    /// All of them.
    pub const ALL: [Event; 10] = [
        Event::Kill,
        Event::KillTwice,
        Event::Upgrade,
        Event::Grow,
        Event::Rekey,
        Event::Freeze,
        Event::Disconnect,
        Event::Requeue,
        Event::Restart,
        Event::Full,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Event::Kill => "kill",
            Event::KillTwice => "kill twice",
            Event::Upgrade => "upgrade",
            Event::Grow => "grow",
            Event::Rekey => "rekey",
            Event::Freeze => "freeze",
            Event::Disconnect => "disconnect",
            Event::Requeue => "requeue",
            Event::Restart => "restart",
            Event::Full => "full",
        }
    }
}
