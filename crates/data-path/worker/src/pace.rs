//! How fast blocks are moved beside a volume's clients: by a merge, or by a re-encryption.
//!
//! ```text
//! a step -> a pause -> the next step
//! ```
//!
//! The pause keeps what clients lose within a limit, whatever the disk and the processors can do.
//! The mean latency of their requests is measured in steps and in pauses. Clients that wait for
//! each request before the next one have `quiet / working` of their speed while a step works, so
//! they lose the rest of it for the part of the time that steps take, and that part is chosen so
//! that they keep what was asked for. As long as too little was measured, a step counts as if it
//! took everything from them, twice. Without clients there are no pauses. A limit in bytes per
//! second holds beside that.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use strongroom_statistics::Answered;
use thiserror::Error;

/// The longest pause for clients: a disk that was stalled once is tried again.
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The least part of the time that steps get: whatever they cost, a job comes to its end.
const TIME_MIN: f64 = 0.01;

/// The greatest part of the time that steps get beside clients: pauses are measured, too.
const TIME_MAX: f64 = 0.9;

/// The part of what clients may lose that the measured latencies account for. The rest is what they
/// do not show: a request that begins in a step and ends in a pause is counted in the pause, and
/// clients have processors of their own to share with the job. With all of it, clients that were to
/// keep 80 % kept 73 % (`PERFORMANCE.md`, *Snapshots*).
const SEEN: f64 = 0.7;

/// The requests from which on their mean latency says something.
const REQUESTS_MIN: u64 = 32;

/// The requests that a mean latency remembers: what clients and disk do changes.
const REQUESTS_MAX: u64 = 2048;

/// The part of their speed that clients keep beside a job, in percent: 0 to 99.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct ClientShare(u8);

/// Clients cannot keep such a part of their speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("clients keep 0 to 99 percent of their speed beside a job, and not {0}")]
pub struct BadClientShare(u8);

impl TryFrom<u8> for ClientShare {
    type Error = BadClientShare;

    fn try_from(percent: u8) -> Result<Self, BadClientShare> {
        if percent < 100 { Ok(Self(percent)) } else { Err(BadClientShare(percent)) }
    }
}

impl From<ClientShare> for u8 {
    fn from(share: ClientShare) -> Self {
        share.0
    }
}

impl Default for ClientShare {
    fn default() -> Self {
        Self(80)
    }
}

impl ClientShare {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The part of their speed that a job may take from clients.
    fn may_lose(self) -> f64 {
        f64::from(100 - self.0) / 100.0
    }
}

/// How a job shares the machine with the volume's clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle {
    /// The most bytes per second; no limit but the clients' needs if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<u64>,
    /// What the clients keep of their speed.
    #[serde(default, skip_serializing_if = "ClientShare::is_default")]
    pub clients_keep: ClientShare,
}

/// When steps are due.
#[derive(Debug)]
pub struct Pace {
    harm: Harm,
    began: Instant,
    took: Duration,
    bytes: u64,
}

impl Default for Pace {
    /// That of a job whose first step is due now.
    fn default() -> Self {
        Self { harm: Harm::default(), began: Instant::now(), took: Duration::ZERO, bytes: 0 }
    }
}

impl Pace {
    /// A step begins. `answered` is what clients have had answered until now, if that is counted.
    pub fn begin(&mut self, answered: Option<Answered>) {
        self.harm.see(answered, |harm| &mut harm.quiet);
        self.began = Instant::now();
    }

    /// The step has ended, after it has moved so much.
    pub fn end(&mut self, bytes: u64, answered: Option<Answered>) {
        (self.took, self.bytes) = (self.began.elapsed(), bytes);
        self.harm.see(answered, |harm| &mut harm.working);
    }

    /// When the last step began.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// How long the next step has to wait.
    pub fn pause(&self, throttle: Throttle, are_clients_busy: bool, now: Instant) -> Duration {
        let time = are_clients_busy.then(|| self.harm.time(throttle.clients_keep));
        let wanted = pause_of(self.took, self.bytes, throttle.bytes_per_second, time);
        wanted.saturating_sub(now.saturating_duration_since(self.began + self.took))
    }
}

/// What steps cost clients.
#[derive(Debug, Default)]
struct Harm {
    last: Option<Answered>,
    /// Their requests in pauses.
    quiet: Latencies,
    /// Their requests while steps worked.
    working: Latencies,
}

impl Harm {
    fn see(&mut self, answered: Option<Answered>, when: impl FnOnce(&mut Self) -> &mut Latencies) {
        if let (Some(before), Some(now)) = (self.last, answered) {
            when(self).add(now.since(before));
        }
        self.last = answered;
    }

    /// The part of the time that steps may take, so that clients keep this part of their speed.
    fn time(&self, clients_keep: ClientShare) -> f64 {
        let time = match (self.quiet.mean_ns(), self.working.mean_ns()) {
            (Some(quiet), Some(working)) => {
                let lost = 1.0 - (quiet / working).min(1.0);
                if lost > 0.0 { SEEN * clients_keep.may_lose() / lost } else { TIME_MAX }
            }
            _ => clients_keep.may_lose() / 2.0,
        };
        time.clamp(TIME_MIN, TIME_MAX)
    }
}

/// A mean latency of the last requests.
#[derive(Debug, Default)]
struct Latencies(Answered);

impl Latencies {
    fn add(&mut self, seen: Answered) {
        let Answered { requests, time_ns } = &mut self.0;
        *requests = requests.saturating_add(seen.requests);
        *time_ns = time_ns.saturating_add(seen.time_ns);
        while *requests > REQUESTS_MAX {
            (*requests, *time_ns) = (*requests / 2, *time_ns / 2);
        }
    }

    /// The mean, if enough was seen. Whatever a counter says, it is a positive number.
    fn mean_ns(&self) -> Option<f64> {
        let Answered { requests, time_ns } = self.0;
        (requests >= REQUESTS_MIN).then(|| time_ns.max(1) as f64 / requests as f64)
    }
}

/// The pause after a step that took so long; `time` is the part of the time that steps may take,
/// if there are clients.
fn pause_of(took: Duration, bytes: u64, bytes_per_second: Option<u64>, time: Option<f64>) -> Duration {
    let for_clients = time.map_or(Duration::ZERO, |time| took.mul_f64(1.0 / time - 1.0));
    let for_limit = bytes_per_second.map_or(Duration::ZERO, |limit| {
        Duration::from_secs_f64(bytes as f64 / limit.max(1) as f64).saturating_sub(took)
    });
    for_clients.min(PAUSE_MAX).max(for_limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: f64 = 1e9;

    /// A client that waits for each request before the next one, whose requests take so long in
    /// pauses and while steps of 10 ms work. Returns the part of its speed that it keeps, and the
    /// part of the time that the job has had, once the job knows them.
    fn live(quiet_ns: f64, working_ns: f64, clients_keep: ClientShare) -> (f64, f64) {
        let step_s = 0.01;
        let (mut harm, mut total) = (Harm::default(), Answered::default());
        let (mut asked, mut worked_s, mut all_s) = (0.0, 0.0, 0.0);
        for round in 0..4000 {
            let mut phase = |seconds: f64, latency_ns: f64, harm: &mut Harm, is_quiet: bool| {
                let requests = seconds * SECOND_NS / latency_ns;
                total.requests += requests as u64;
                total.time_ns += (requests as u64 as f64 * latency_ns) as u64;
                harm.see(Some(total), |harm| if is_quiet { &mut harm.quiet } else { &mut harm.working });
                requests
            };
            let pause = pause_of(Duration::from_secs_f64(step_s), 0, None, Some(harm.time(clients_keep)));
            let in_step = phase(step_s, working_ns, &mut harm, false);
            let in_pause = phase(pause.as_secs_f64(), quiet_ns, &mut harm, true);
            if round >= 2000 {
                asked += in_step + in_pause;
                worked_s += step_s;
                all_s += step_s + pause.as_secs_f64();
            }
        }
        (asked * quiet_ns / SECOND_NS / all_s, worked_s / all_s)
    }

    #[test]
    fn clients_keep_their_part_whatever_a_step_costs_them() {
        for percent in [50, 80, 95] {
            let keep = ClientShare::try_from(percent).unwrap();
            for slower in [1.0, 1.1, 1.5, 3.0, 10.0] {
                let (kept, time) = live(100_000.0, 100_000.0 * slower, keep);
                let wanted = f64::from(percent) / 100.0;
                let aimed_at = 1.0 - SEEN * (1.0 - wanted);
                assert!(kept >= aimed_at - 0.02, "{percent} % at {slower}: {kept}");
                // And no more than that is left unused.
                assert!(
                    kept <= aimed_at + 0.02 || time >= TIME_MAX - 0.01,
                    "{percent} % at {slower}: {kept}, {time}"
                );
            }
        }
    }

    #[test]
    fn a_step_counts_as_costly_until_it_is_known() {
        assert!((Harm::default().time(ClientShare::default()) - 0.1).abs() < 1e-9);
        let took = Duration::from_millis(3);
        let pause = pause_of(took, 1 << 20, None, Some(0.1));
        assert!(pause.abs_diff(9 * took) < Duration::from_micros(1), "{pause:?}");
        assert_eq!(pause_of(Duration::from_secs(60), 1, None, Some(0.1)), PAUSE_MAX);
        // Counters that fell, of a worker that lies, are no requests.
        let mut harm = Harm::default();
        let fallen = [u64::MAX, 5].map(|requests| Answered { requests, time_ns: requests });
        fallen.into_iter().for_each(|answered| harm.see(Some(answered), |harm| &mut harm.quiet));
        assert_eq!(harm.quiet.mean_ns(), None);
    }

    #[test]
    fn without_clients_there_is_no_pause_and_a_limit_holds_all_the_same() {
        let took = Duration::from_millis(100);
        assert_eq!(pause_of(took, 1 << 20, None, None), Duration::ZERO);
        // 1 MiB at 2 MiB a second.
        assert_eq!(pause_of(took, 1 << 20, Some(2 << 20), None), Duration::from_millis(400));
        let beside = pause_of(took, 1 << 20, Some(1 << 30), Some(0.5));
        assert!(beside.abs_diff(took) < Duration::from_micros(1), "{beside:?}");
        assert_eq!(pause_of(took, 0, Some(1), None), Duration::ZERO);
    }

    #[test]
    fn a_share_is_less_than_all() {
        assert_eq!(ClientShare::try_from(100), Err(BadClientShare(100)));
        assert!(serde_json::from_str::<Throttle>(r#"{"clients_keep":200}"#).is_err());
        assert_eq!(serde_json::to_string(&Throttle::default()).unwrap(), "{}");
        assert_eq!(u8::from(serde_json::from_str::<Throttle>("{}").unwrap().clients_keep), 80);
    }
}
