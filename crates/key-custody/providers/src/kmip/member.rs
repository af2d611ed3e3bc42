//! One server of a cluster, and its health.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use strongroom_kmip::client::{Client, ClientError};

use crate::provider::{ServerHealth, ServerState};

/// How long a server must answer after a failure before it is preferred again, so that a flapping
/// server does not fail every other request.
pub const RECOVERY_PERIOD: Duration = Duration::from_secs(3);

pub(super) struct Member {
    pub(super) client: Client,
    record: Mutex<Record>,
}

struct Record {
    state: ServerState,
    /// When it began to answer again, while it recovers.
    recovering_since: Instant,
    requests: u64,
    failures: u64,
    answers: u64,
    latency_sum: Duration,
    latency_max: Duration,
    last_failure: Option<String>,
}

impl Member {
    pub(super) fn new(client: Client) -> Self {
        let record = Record {
            state: ServerState::Up,
            recovering_since: Instant::now(),
            requests: 0,
            failures: 0,
            answers: 0,
            latency_sum: Duration::ZERO,
            latency_max: Duration::ZERO,
            last_failure: None,
        };
        Self { client, record: Mutex::new(record) }
    }

    /// Asks the server, and records the outcome.
    pub(super) fn ask<Answer>(
        &self,
        question: impl FnOnce(&Client) -> Result<Answer, ClientError>,
    ) -> Result<Answer, ClientError> {
        let begun = Instant::now();
        self.record.lock().requests += 1;
        let answer = question(&self.client);
        let took = begun.elapsed();
        let mut record = self.record.lock();
        match &answer {
            Err(error) if error.is_without_answer() => {
                record.failures += 1;
                record.failed(error.to_string());
            }
            _ => {
                record.answers += 1;
                record.latency_sum += took;
                record.latency_max = record.latency_max.max(took);
                record.answered(begun);
            }
        }
        answer
    }

    /// Checks whether the server answers; changes its state but no counters.
    pub(super) fn check(&self, question: impl FnOnce(&Client) -> Result<(), ClientError>) {
        let begun = Instant::now();
        match question(&self.client) {
            Err(error) if error.is_without_answer() => self.record.lock().failed(error.to_string()),
            _ => self.record.lock().answered(begun),
        }
    }

    /// Records that a request has waited so long that the next server is asked.
    pub(super) fn keeps_waiting(&self) {
        let mut record = self.record.lock();
        if matches!(record.state, ServerState::Up | ServerState::Recovering) {
            tracing::info!(server = %self.client.server(), "a key server keeps a request waiting");
            record.state = ServerState::Slow;
        }
    }

    pub(super) fn state(&self) -> ServerState {
        self.record.lock().state
    }

    pub(super) fn health(&self) -> ServerHealth {
        let record = self.record.lock();
        let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        ServerHealth {
            server: self.client.server().to_string(),
            state: record.state,
            requests: record.requests,
            failures: record.failures,
            latency_mean_us: micros(record.latency_sum).checked_div(record.answers).unwrap_or_default(),
            latency_max_us: micros(record.latency_max),
            last_failure: record.last_failure.clone(),
        }
    }
}

impl Record {
    fn failed(&mut self, reason: String) {
        if self.state != ServerState::Down {
            tracing::warn!(%reason, "a key server does not answer");
        }
        self.state = ServerState::Down;
        self.last_failure = Some(reason);
    }

    /// Records an answer to a request that was sent at `asked_at`.
    fn answered(&mut self, asked_at: Instant) {
        match self.state {
            ServerState::Up => {}
            ServerState::Slow | ServerState::Down => {
                self.state = ServerState::Recovering;
                self.recovering_since = Instant::now();
            }
            ServerState::Recovering => {
                if asked_at.saturating_duration_since(self.recovering_since) >= RECOVERY_PERIOD {
                    self.state = ServerState::Up;
                }
            }
        }
    }
}
