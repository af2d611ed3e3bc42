//! Which volumes a soak has, and what happens to each.

use serde::Serialize;

/// A kind of volume. All of them are encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Takes space when it is written to, through its first-write log. Everything happens to it.
    Thin,
    /// Takes all of its space at first. It is exposed by one process from beginning to end.
    Thick,
    /// Keeps a tag of every block.
    Tags,
    /// Served by one worker from beginning to end, so that an hour of one process is seen.
    Lasting,
    /// On a file system that gets full.
    Small,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 5] = [Kind::Thin, Kind::Thick, Kind::Tags, Kind::Lasting, Kind::Small];

    /// What its volume is called.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Thin => "thin",
            Kind::Thick => "thick",
            Kind::Tags => "tags",
            Kind::Lasting => "lasting",
            Kind::Small => "small",
        }
    }

    /// What `volume create` is told beside size and key.
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

/// What happens to a volume under load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Its worker is killed, with requests in flight.
    Kill,
    /// The same, and the successor too, as soon as there is one.
    KillTwice,
    /// Its worker is replaced in order.
    Upgrade,
    /// It grows; the load goes on into what is new.
    Grow,
    /// Its key-encryption key is replaced.
    Rekey,
    /// Its worker stands still for a while, as one does whose disk hangs.
    Freeze,
    /// Its client is cut off, and comes back.
    Disconnect,
    /// Its guest stops its queues in order, leaves, and comes back, as one that boots anew.
    Requeue,
    /// The process that exposes it ends, the volume is checked, and exposed anew.
    Restart,
    /// Its file system is full until its guest waits, and has room again after something else has
    /// happened.
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

    /// What it is called in reports.
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
