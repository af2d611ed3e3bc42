//! The state of a VM as hosts see it, and the hosts that are told.

use std::collections::BTreeSet;
use std::time::{Instant, SystemTime};

use strongroom_host::orders::Report;
use strongroom_host::protocol::{ObservedVm, PowerState, VmReason, WaitingFor};

use crate::door::Connection;
use crate::observe;

/// The state of a VM, apart from that of its parts.
#[derive(Debug)]
pub(super) struct Standing {
    pub(super) power: PowerState,
    pub(super) since: SystemTime,
    pub(super) reason: Option<VmReason>,
    /// A key that is missing.
    pub(super) missing: Option<WaitingFor>,
}

impl Standing {
    pub(super) fn starting(reason: Option<VmReason>) -> Self {
        Self { power: PowerState::Starting, since: SystemTime::now(), reason, missing: None }
    }

    pub(super) fn becomes(&mut self, power: PowerState, reason: Option<VmReason>) {
        if self.power != power {
            self.since = SystemTime::now();
        }
        (self.power, self.reason) = (power, reason);
    }
}

/// What has failed while the guest goes on.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) tpm: bool,
    /// The networks of the cards that are disconnected, as QEMU names them.
    pub(super) networks: BTreeSet<String>,
    /// The guest's file systems may be frozen, and its agent is asked again and again.
    pub(super) thaw_is_late: bool,
    /// When it is tried again to begin that.
    pub(super) thaw_again_at: Option<Instant>,
}

impl Losses {
    pub(super) fn reason(&self) -> Option<VmReason> {
        match self {
            Self { thaw_is_late: true, .. } => Some(observe::guest_may_be_frozen()),
            Self { tpm: true, .. } => Some(observe::tpm_lost()),
            Self { networks, .. } if !networks.is_empty() => Some(observe::network_lost()),
            _ => None,
        }
    }
}

/// The connections of hostd, and what they were told last.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    connections: Vec<Connection>,
    told: Option<ObservedVm>,
}

impl Hosts {
    pub(super) fn add(&mut self, connection: Connection) {
        self.connections.push(connection);
        // The new connection has not received the state yet.
        self.told = None;
    }

    pub(super) fn remove(&mut self, id: u64) {
        self.connections.retain(|connection| connection.id != id);
    }

    pub(super) fn send(&self, report: &Report) {
        for host in &self.connections {
            host.send(report);
        }
    }

    /// Reports the state, if it has changed.
    pub(super) fn tell(&mut self, now: ObservedVm) {
        if self.told.as_ref() == Some(&now) {
            return;
        }
        let report = Report::State(Box::new(now));
        self.send(&report);
        if let Report::State(now) = report {
            self.told = Some(*now);
        }
    }
}
