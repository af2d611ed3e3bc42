//! The states of a managed object and the dates that move it (KMIP 1.4, 3.22 to 3.32; NIST SP
//! 800-57 part 1).
//!
//! ```text
//!             2: Destroy                        10: Revoke, compromised
//!  PreActive ------------> Destroyed --------------------------> DestroyedCompromised
//!   |    | 3: Revoke,         ^ 7: Destroy                              ^ 9: Destroy
//!   |    |    compromised     |                                         |
//!   |    +--------------------|--------------> Compromised -------------+
//!   | 4: Activate,            |   8: Revoke,   ^   ^
//!   |    Activation Date      |   compromised  |   | 5: Revoke, compromised
//!   +-----> Active ----> Deactivated ----------+   |
//!             |    6: Revoke, Deactivation Date    |
//!             +------------------------------------+
//! ```
//!
//! Nothing runs when a date is reached: the state is computed from the dates on every read, and
//! stored with the next change. So a server that was off has missed nothing.

use serde::{Deserialize, Serialize};

use super::clock::UnixSeconds;

/// The state of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// It exists but may not be used for cryptography yet.
    PreActive,
    /// It may be used to protect and to process.
    Active,
    /// It may be used only to process data protected before.
    Deactivated,
    /// It may be known to others; it may be used only to process, under special circumstances.
    Compromised,
    /// Its material is gone.
    Destroyed,
    /// Its material is gone, and was found to be compromised before or after.
    DestroyedCompromised,
}

impl State {
    /// What people call it.
    pub fn word(self) -> &'static str {
        match self {
            Self::PreActive => "pre-active",
            Self::Active => "active",
            Self::Deactivated => "deactivated",
            Self::Compromised => "compromised",
            Self::Destroyed | Self::DestroyedCompromised => "destroyed",
        }
    }

    /// Whether the material is gone for good.
    pub fn is_destroyed(self) -> bool {
        matches!(self, Self::Destroyed | Self::DestroyedCompromised)
    }
}

/// A date of an object that a client may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SettableDate {
    /// When it becomes active.
    Activation,
    /// Before it, an active object may not process (decrypt, verify).
    ProcessStart,
    /// After it, an active object may not protect (encrypt, sign).
    ProtectStop,
    /// When it becomes deactivated.
    Deactivation,
}

/// The dates that a client may give a new object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RequestedDates {
    /// See [`SettableDate::Activation`].
    pub activation: Option<UnixSeconds>,
    /// See [`SettableDate::ProcessStart`].
    pub process_start: Option<UnixSeconds>,
    /// See [`SettableDate::ProtectStop`].
    pub protect_stop: Option<UnixSeconds>,
    /// See [`SettableDate::Deactivation`].
    pub deactivation: Option<UnixSeconds>,
    /// When the material was created elsewhere; for registered objects.
    pub original_creation: Option<UnixSeconds>,
}

/// Why an object's state does not permit an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LifeCycleError {
    /// The state has no such transition.
    #[error("an object in state {state:?} cannot be {asked}")]
    NoTransition {
        /// The state it is in.
        state: State,
        /// The requested transition, as a participle.
        asked: &'static str,
    },
    /// The date has been reached, or the state is past the point where it matters.
    #[error("the {date:?} date of an object in state {state:?} can no longer be changed")]
    DateIsFixed {
        /// Which date.
        date: SettableDate,
        /// The state it is in.
        state: State,
    },
    /// Two dates contradict each other.
    #[error("the {later:?} date may not come before the {earlier:?} date")]
    DatesOutOfOrder {
        /// The date that has to come first.
        earlier: SettableDate,
        /// The date that has to come after it.
        later: SettableDate,
    },
    /// It is archived or, for Recover, not archived.
    #[error("the object is {}", if *.archived { "archived; recover it first" } else { "not archived" })]
    Archived {
        /// Whether it is archived.
        archived: bool,
    },
}

/// State and dates of one object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LifeCycle {
    state: State,
    initial: UnixSeconds,
    last_change: UnixSeconds,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    activation: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    process_start: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    protect_stop: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    deactivation: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    compromise: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    compromise_occurrence: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    destroy: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    archive: Option<UnixSeconds>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    original_creation: Option<UnixSeconds>,
}

impl LifeCycle {
    /// A new object. It is active at once if its Activation Date is not in the future.
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::DatesOutOfOrder`].
    pub fn begin(dates: RequestedDates, now: UnixSeconds) -> Result<Self, LifeCycleError> {
        let mut life = Self {
            state: State::PreActive,
            initial: now,
            last_change: now,
            activation: dates.activation,
            process_start: dates.process_start,
            protect_stop: dates.protect_stop,
            deactivation: dates.deactivation,
            compromise: None,
            compromise_occurrence: None,
            destroy: None,
            archive: None,
            original_creation: dates.original_creation,
        };
        life.check_order()?;
        life.settle(now);
        Ok(life)
    }

    /// The state at `now`, with the dates taken into account.
    pub fn state_at(&self, now: UnixSeconds) -> State {
        let reached = |date: Option<UnixSeconds>| date.is_some_and(|date| date <= now);
        let state = match self.state {
            State::PreActive if reached(self.activation) => State::Active,
            state => state,
        };
        match state {
            State::Active if reached(self.deactivation) => State::Deactivated,
            state => state,
        }
    }

    /// Applies the dates reached by `now` to the stored state.
    fn settle(&mut self, now: UnixSeconds) {
        self.state = self.state_at(now);
    }

    /// Records a change of any attribute.
    pub fn touch(&mut self, now: UnixSeconds) {
        self.settle(now);
        self.last_change = now;
    }

    /// Activates a pre-active object now (transition 4).
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::NoTransition`] in every other state.
    pub fn activate(&mut self, now: UnixSeconds) -> Result<(), LifeCycleError> {
        self.settle(now);
        if self.state != State::PreActive {
            return Err(LifeCycleError::NoTransition { state: self.state, asked: "activated" });
        }
        let activation = self.activation.replace(now);
        if let Err(error) = self.check_order() {
            self.activation = activation;
            return Err(error);
        }
        self.touch(now);
        Ok(())
    }

    /// Revokes without compromise: an active object is deactivated now (transition 6).
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::NoTransition`] in every other state.
    pub fn deactivate(&mut self, now: UnixSeconds) -> Result<(), LifeCycleError> {
        self.settle(now);
        if self.state != State::Active {
            return Err(LifeCycleError::NoTransition { state: self.state, asked: "deactivated" });
        }
        self.state = State::Deactivated;
        self.deactivation = Some(now);
        self.last_change = now;
        Ok(())
    }

    /// Revokes for a compromise, which `occurrence` may backdate (transitions 3, 5, 8 and 10).
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::NoTransition`] if it is known to be compromised already.
    pub fn compromise(
        &mut self,
        occurrence: Option<UnixSeconds>,
        now: UnixSeconds,
    ) -> Result<(), LifeCycleError> {
        self.settle(now);
        self.state = match self.state {
            State::PreActive | State::Active | State::Deactivated => State::Compromised,
            State::Destroyed => State::DestroyedCompromised,
            state => return Err(LifeCycleError::NoTransition { state, asked: "compromised" }),
        };
        self.compromise = Some(now);
        self.compromise_occurrence = occurrence.or(Some(now));
        self.last_change = now;
        Ok(())
    }

    /// Destroys (transitions 2, 7 and 9). An active object has to be revoked first.
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::NoTransition`] if it is active or destroyed already.
    pub fn destroy(&mut self, now: UnixSeconds) -> Result<(), LifeCycleError> {
        self.settle(now);
        self.state = match self.state {
            State::PreActive | State::Deactivated => State::Destroyed,
            State::Compromised => State::DestroyedCompromised,
            state => return Err(LifeCycleError::NoTransition { state, asked: "destroyed" }),
        };
        self.destroy = Some(now);
        self.last_change = now;
        Ok(())
    }

    /// Archives it: it cannot be fetched until it is recovered.
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::Archived`] if it is already archived.
    pub fn archive(&mut self, now: UnixSeconds) -> Result<(), LifeCycleError> {
        if self.archive.is_some() {
            return Err(LifeCycleError::Archived { archived: true });
        }
        self.archive = Some(now);
        self.touch(now);
        Ok(())
    }

    /// Recovers it from the archive.
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::Archived`] if it is not archived.
    pub fn recover(&mut self, now: UnixSeconds) -> Result<(), LifeCycleError> {
        self.archive.take().ok_or(LifeCycleError::Archived { archived: false })?;
        self.touch(now);
        Ok(())
    }

    /// Sets or moves a date, and applies its effect at once.
    ///
    /// # Errors
    ///
    /// [`LifeCycleError::DateIsFixed`] once the date was reached or no longer matters;
    /// [`LifeCycleError::DatesOutOfOrder`].
    pub fn set_date(
        &mut self,
        date: SettableDate,
        value: UnixSeconds,
        now: UnixSeconds,
    ) -> Result<(), LifeCycleError> {
        self.settle(now);
        let was_reached = self.date(date).is_some_and(|at| at <= now);
        let open = match date {
            SettableDate::Activation => self.state == State::PreActive,
            SettableDate::ProcessStart | SettableDate::ProtectStop => {
                self.state == State::PreActive || (self.state == State::Active && !was_reached)
            }
            SettableDate::Deactivation => matches!(self.state, State::PreActive | State::Active),
        };
        if !open {
            return Err(LifeCycleError::DateIsFixed { date, state: self.state });
        }
        let before = self.date(date);
        *self.date_mut(date) = Some(value);
        if let Err(error) = self.check_order() {
            *self.date_mut(date) = before;
            return Err(error);
        }
        self.touch(now);
        Ok(())
    }

    /// Whether it may be used to encrypt, wrap or sign at `now`.
    pub fn may_protect(&self, now: UnixSeconds) -> bool {
        self.state_at(now) == State::Active && self.protect_stop.is_none_or(|stop| now < stop)
    }

    /// Whether it may be used to decrypt, unwrap or verify at `now`. A deactivated or compromised
    /// object still may, so that no protected data is lost.
    pub fn may_process(&self, now: UnixSeconds) -> bool {
        match self.state_at(now) {
            State::Active => self.process_start.is_none_or(|start| start <= now),
            State::Deactivated | State::Compromised => true,
            _ => false,
        }
    }

    /// A date that clients set.
    pub fn date(&self, date: SettableDate) -> Option<UnixSeconds> {
        match date {
            SettableDate::Activation => self.activation,
            SettableDate::ProcessStart => self.process_start,
            SettableDate::ProtectStop => self.protect_stop,
            SettableDate::Deactivation => self.deactivation,
        }
    }

    /// When it was made or registered here.
    pub fn initial(&self) -> UnixSeconds {
        self.initial
    }

    /// When it last changed, by a client or by one of its dates.
    pub fn last_change_at(&self, now: UnixSeconds) -> UnixSeconds {
        if self.state_at(now) == self.state {
            return self.last_change;
        }
        let reached = [self.activation, self.deactivation].into_iter().flatten().filter(|date| *date <= now);
        reached.fold(self.last_change, std::cmp::max)
    }

    /// When it was found to be compromised.
    pub fn compromised(&self) -> Option<UnixSeconds> {
        self.compromise
    }

    /// When it is believed to have been compromised.
    pub fn compromise_occurred(&self) -> Option<UnixSeconds> {
        self.compromise_occurrence
    }

    /// When its material was destroyed.
    pub fn destroyed(&self) -> Option<UnixSeconds> {
        self.destroy
    }

    /// When it went into the archive, if it is there.
    pub fn archived(&self) -> Option<UnixSeconds> {
        self.archive
    }

    /// When its material was created, if that is known.
    pub fn original_creation(&self) -> Option<UnixSeconds> {
        self.original_creation
    }

    fn date_mut(&mut self, date: SettableDate) -> &mut Option<UnixSeconds> {
        match date {
            SettableDate::Activation => &mut self.activation,
            SettableDate::ProcessStart => &mut self.process_start,
            SettableDate::ProtectStop => &mut self.protect_stop,
            SettableDate::Deactivation => &mut self.deactivation,
        }
    }

    /// Activation comes first, deactivation last (KMIP 1.4, 3.24 to 3.27).
    fn check_order(&self) -> Result<(), LifeCycleError> {
        use SettableDate::{Activation, Deactivation, ProcessStart, ProtectStop};
        for (earlier, later) in [
            (Activation, ProcessStart),
            (Activation, ProtectStop),
            (Activation, Deactivation),
            (ProcessStart, Deactivation),
            (ProtectStop, Deactivation),
        ] {
            if let (Some(first), Some(second)) = (self.date(earlier), self.date(later))
                && second < first
            {
                return Err(LifeCycleError::DatesOutOfOrder { earlier, later });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "lifecycle_tests.rs"]
mod tests;
