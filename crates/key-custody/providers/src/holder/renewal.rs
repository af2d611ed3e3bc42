//! The thread that confirms held keys and requests awaited ones.

use std::time::{Duration, SystemTime};

use strongroom_keys::{Kek, ProviderKey, RevokedHow};

use super::{Entry, Held, HolderEvent, Outage, Shared, Waiting, boot_time, fetch_from};
use crate::error::ProviderError;
use crate::provider::{KeyFacts, KeyProvider, KeyState, ServerState};

/// Runs until the holder is dropped.
pub(super) fn run(shared: &Shared) {
    let mut renewal_due = boot_time() + shared.terms.renew_period;
    while let Some(due) = wait(shared, renewal_due) {
        if due {
            renew_all(shared);
            renewal_due = boot_time() + shared.terms.renew_period;
        }
        retry_all(shared);
    }
}

/// Waits for the next renewal or, while a key is awaited, for the next retry. Returns whether a
/// renewal is due, or `None` if the holder has ended.
fn wait(shared: &Shared, renewal_due: Duration) -> Option<bool> {
    let mut state = shared.state.lock();
    let retry_due = boot_time() + shared.terms.retry_period;
    loop {
        let now = boot_time();
        let unasked = |entry: &Entry| matches!(entry, Entry::Waiting(Waiting { reason: None, .. }));
        let waiting = state.keys.values().any(|entry| matches!(entry, Entry::Waiting(_)));
        // A lease that ends before the next renewal is detected when it ends.
        let ends = state.keys.values().filter_map(|entry| match entry {
            Entry::Held(held) => Some(held.ends(&shared.terms)),
            _ => None,
        });
        let renewal_due = ends.min().map_or(renewal_due, |end| renewal_due.min(end));
        if state.ended {
            return None;
        }
        if now >= renewal_due || std::mem::take(&mut state.renews_now) {
            return Some(true);
        }
        if (waiting && now >= retry_due) || state.keys.values().any(unasked) {
            return Some(false);
        }
        let next = if waiting { renewal_due.min(retry_due) } else { renewal_due };
        shared.changed.wait_for(&mut state, next.saturating_sub(now));
    }
}

fn renew_all(shared: &Shared) {
    let held = |(key, entry): (&ProviderKey, &Entry)| matches!(entry, Entry::Held(_)).then(|| key.clone());
    let keys: Vec<_> = shared.state.lock().keys.iter().filter_map(held).collect();
    let mut round = Round::default();
    for key in keys {
        let asked_at = boot_time();
        let answer = round.ask(shared, |provider| provider.facts(&key));
        renewed(shared, &key, asked_at, answer);
    }
}

/// One round of requests. After one call to an unreachable provider the other keys are skipped,
/// because each call would wait as long.
#[derive(Default)]
struct Round {
    unreachable: Option<String>,
}

impl Round {
    fn ask<Answer>(
        &mut self,
        shared: &Shared,
        question: impl FnOnce(&dyn KeyProvider) -> Result<Answer, ProviderError>,
    ) -> Result<Answer, ProviderError> {
        if let Some(reason) = &self.unreachable {
            return Err(ProviderError::Unavailable { reason: reason.clone() });
        }
        let provider = (shared.provider)()?;
        let answer = question(&*provider);
        if let Err(ProviderError::Unavailable { reason }) = &answer
            && provider.health().iter().all(|server| server.state != ServerState::Up)
        {
            self.unreachable = Some(reason.clone());
        }
        answer
    }
}

/// Applies the provider's answer to a key.
fn renewed(shared: &Shared, key: &ProviderKey, asked_at: Duration, answer: Result<KeyFacts, ProviderError>) {
    let mut events = Vec::new();
    let mut state = shared.state.lock();
    // It may have been forgotten meanwhile.
    let Some(entry) = state.keys.get_mut(key) else { return };
    let Entry::Held(held) = entry else { return };
    let revoked = match &answer {
        Ok(KeyFacts { state: KeyState::Compromised, .. }) | Err(ProviderError::Compromised) => {
            Some(RevokedHow::Compromised)
        }
        Ok(KeyFacts { state: KeyState::Destroyed, .. })
        | Err(ProviderError::Destroyed | ProviderError::NoSuchKey) => Some(RevokedHow::Destroyed),
        _ => None,
    };
    if let Some(how) = revoked {
        *entry = Entry::Revoked { how, since: SystemTime::now() };
        events.push(HolderEvent::Revoked { key: key.clone(), how });
    } else {
        match answer {
            Ok(facts) => confirm(held, key, asked_at, &facts, &mut events),
            Err(error) => {
                let (refused, upstream) = (!error.ends_by_itself(), error.absence().upstream().cloned());
                let outage = Outage { refused, reason: error.to_string(), upstream };
                if held.outage.is_none() {
                    held.since = SystemTime::now();
                    events.push(HolderEvent::Outage { key: key.clone(), reason: outage.reason.clone() });
                }
                held.outage = Some(outage);
            }
        }
        if held.is_over(&shared.terms) {
            // Without an outage it is requested at once.
            let outage = held.outage.take();
            let (reason, upstream) =
                outage.map_or((None, None), |outage| (Some(outage.reason), outage.upstream));
            *entry = Entry::Waiting(Waiting { reason, upstream, ..Waiting::begins() });
            events.push(HolderEvent::LeaseEnded { key: key.clone() });
        }
    }
    drop(state);
    tell(shared, events);
}

fn confirm(
    held: &mut Held,
    key: &ProviderKey,
    asked_at: Duration,
    facts: &KeyFacts,
    events: &mut Vec<HolderEvent>,
) {
    held.confirmed = asked_at;
    if held.outage.take().is_some() {
        held.since = SystemTime::now();
        events.push(HolderEvent::Back { key: key.clone() });
    }
    let over = facts.deactivates.is_some_and(|at| at <= SystemTime::now());
    if (over || facts.state == KeyState::Deactivated) && !held.expired {
        held.expired = true;
        events.push(HolderEvent::Expired { key: key.clone(), since: facts.deactivates });
    }
}

fn retry_all(shared: &Shared) {
    let waiting =
        |(key, entry): (&ProviderKey, &Entry)| matches!(entry, Entry::Waiting(_)).then(|| key.clone());
    let keys: Vec<_> = shared.state.lock().keys.iter().filter_map(waiting).collect();
    let mut round = Round::default();
    for key in keys {
        let asked_at = boot_time();
        let answer = round.ask(shared, |provider| fetch_from(provider, &key));
        retried(shared, &key, asked_at, answer);
    }
}

fn retried(shared: &Shared, key: &ProviderKey, asked_at: Duration, answer: Result<Kek, ProviderError>) {
    let mut events = Vec::new();
    let mut state = shared.state.lock();
    let Some(entry) = state.keys.get_mut(key) else { return };
    let Entry::Waiting(waiting) = entry else { return };
    match answer {
        Ok(kek) => {
            *entry = Entry::Held(Held::new(kek, asked_at));
            events.push(HolderEvent::Back { key: key.clone() });
        }
        Err(error @ (ProviderError::Compromised | ProviderError::Destroyed)) => {
            let how = match error {
                ProviderError::Compromised => RevokedHow::Compromised,
                _ => RevokedHow::Destroyed,
            };
            *entry = Entry::Revoked { how, since: SystemTime::now() };
            events.push(HolderEvent::Revoked { key: key.clone(), how });
        }
        // That it needs another grant says less than why it is not available.
        Err(ProviderError::Ungranted { .. }) if waiting.reason.is_some() => {}
        Err(error) => {
            let reason = error.to_string();
            waiting.upstream = error.absence().upstream().cloned();
            if waiting.reason.replace(reason.clone()).is_none() {
                events.push(HolderEvent::Outage { key: key.clone(), reason });
            }
        }
    }
    drop(state);
    tell(shared, events);
}

fn tell(shared: &Shared, events: Vec<HolderEvent>) {
    for event in events {
        tracing::debug!(?event, "key lease");
        (shared.on_event)(event);
    }
}
