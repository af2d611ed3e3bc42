//! The choice of a server, and failover to the next one.
//!
//! Servers are asked in the order of preference, those with known problems last. If a server
//! refuses or breaks the connection, the next one is asked at once. If it is silent, the next one
//! is asked as well after [`HEDGE_AFTER`], and the first answer counts. So a call is answered
//! within [`FAILOVER_LIMIT`] as long as one server answers within 600 ms. Background health checks
//! spare later calls even that wait, and let calls return to the preferred server once it has been
//! healthy for a while.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use strongroom_kmip::client::{Client, ClientError, ClientOptions};
use strongroom_kmip::protocol::{QueryFunction, ResultReason};

use super::member::Member;
use crate::CALL_LIMIT;
use crate::config::{KmipConfig, misconfigured};
use crate::error::ProviderError;
use crate::provider::{ServerHealth, ServerState};

/// The longest time until a call is answered if preferred servers are silent or gone.
pub const FAILOVER_LIMIT: Duration = Duration::from_secs(2);

/// How long to wait for a silent server before the next is asked as well, in clusters of up to
/// three; larger ones share twice this time.
pub const HEDGE_AFTER: Duration = Duration::from_millis(700);

/// The time between health checks of a healthy server; others are checked five times as often.
pub const HEALTH_PERIOD: Duration = Duration::from_secs(5);

/// The start of the embedded key server's message when it brokers a provider that cannot be
/// reached. The key is unavailable, and nobody has refused it.
const UPSTREAM_UNAVAILABLE: &str = "upstream-unavailable: ";
/// The starts of its messages that another grant helps against.
const UNGRANTED: [&str; 4] = ["grant-needed: ", "grant-replayed: ", "grant-expired: ", "grant-in-use: "];

/// Whether a failed request reached a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// It certainly reached none.
    No,
    /// It is unknown.
    Perhaps,
    /// It was answered.
    Yes,
}

/// Servers that have the same keys.
pub struct Cluster {
    members: Vec<Arc<Member>>,
    request_timeout: Duration,
    hedge_after: Duration,
    ended: Arc<(Mutex<bool>, Condvar)>,
}

impl Cluster {
    /// The cluster of a configuration. It connects to no server yet.
    ///
    /// # Errors
    /// [`ProviderError::Misconfigured`], as when TLS files cannot be read.
    pub fn new(config: &KmipConfig) -> Result<Self, ProviderError> {
        let addresses = config.addresses()?;
        let is_alone = addresses.len() == 1;
        let client = |server| {
            let mut options = ClientOptions::new(server, config.tls_files());
            options.server_name.clone_from(&config.server_name);
            options.request_timeout = Duration::from_millis(config.request_timeout_ms);
            // A server that is slow to connect is not given up unless there is another one.
            if is_alone || options.connect_timeout > options.request_timeout {
                options.connect_timeout = options.request_timeout;
            }
            Client::new(options).map(Member::new).map(Arc::new).map_err(misconfigured)
        };
        let members: Vec<_> = addresses.into_iter().map(client).collect::<Result<_, _>>()?;
        let gaps = u32::try_from(members.len()).unwrap_or(u32::MAX).saturating_sub(1).max(1);
        let hedge_after = HEDGE_AFTER.min(2 * HEDGE_AFTER / gaps);
        Ok(Self {
            members,
            request_timeout: Duration::from_millis(config.request_timeout_ms),
            hedge_after,
            ended: Arc::default(),
        })
    }

    /// Begins health checks of every server, in threads that end with the cluster. A single server
    /// is not checked, because it is asked regardless of its health.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn watch(&self) -> std::io::Result<()> {
        let watched = if self.members.len() > 1 { self.members.as_slice() } else { &[] };
        for member in watched {
            let (member, ended) = (Arc::clone(member), Arc::clone(&self.ended));
            let name = "key-server-health".to_owned();
            std::thread::Builder::new().name(name).spawn(move || watch(&member, &ended))?;
        }
        Ok(())
    }

    /// The servers' clients, in order of preference, for checks of each server.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.members.iter().map(|member| &member.client)
    }

    /// The health of the servers.
    pub fn health(&self) -> Vec<ServerHealth> {
        self.members.iter().map(|member| member.health()).collect()
    }

    /// Asks one server after the other until there is an answer. An object counts as unknown only
    /// if every server says so: a server that was just restored, or lags behind, may lack it.
    ///
    /// # Errors
    /// [`ProviderError::Unavailable`] with each server's failure, [`ProviderError::NoSuchKey`], or
    /// a server's refusal.
    pub fn call<Answer: Send + 'static>(
        &self,
        question: impl Fn(&Client) -> Result<Answer, ClientError> + Send + Sync + 'static,
    ) -> Result<Answer, ProviderError> {
        let order = self.order();
        let question = Arc::new(question);
        let (sender, receiver) = channel();
        let give_up = Instant::now() + CALL_LIMIT;
        let mut ask_next = Instant::now();
        let mut waiting: Vec<&Arc<Member>> = Vec::new();
        let mut left = order.into_iter();
        let (mut failures, mut unknown) = (Vec::new(), 0);
        loop {
            let now = Instant::now();
            if (now >= ask_next || waiting.is_empty())
                && let Some(member) = left.next()
            {
                waiting.iter().for_each(|silent| silent.keeps_waiting());
                start(member, &question, &sender)?;
                waiting.push(member);
                ask_next = now + self.hedge_after;
            }
            if waiting.is_empty() || now >= give_up {
                break;
            }
            let next_event = if left.len() > 0 { ask_next.min(give_up) } else { give_up };
            let (server, answer) = match receiver.recv_timeout(next_event.saturating_duration_since(now)) {
                Ok(outcome) => outcome,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            waiting.retain(|member| member.client.server().to_string() != server);
            match answer {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_without_answer() => {
                    failures.push(error.to_string());
                    ask_next = Instant::now();
                }
                Err(error) if is_unknown(&error) => {
                    unknown += 1;
                    failures.push(format!("{server} does not have the key"));
                    ask_next = Instant::now();
                }
                Err(error) => return Err(of_client(error)),
            }
        }
        if unknown > 0 && unknown == self.members.len() {
            return Err(ProviderError::NoSuchKey);
        }
        let silent = waiting.iter().map(|member| {
            format!("{}: no answer after {} ms", member.client.server(), CALL_LIMIT.as_millis())
        });
        failures.extend(silent);
        Err(unavailable(&failures))
    }

    /// Asks one server after the other, in the order of preference, until one may have processed
    /// the request. A request that must be sent only once never runs beside another attempt. Blocks
    /// up to the servers' own deadlines, and begins no call that could outlast [`CALL_LIMIT`].
    ///
    /// # Errors
    /// As [`call`](Self::call), each with whether the request reached a server.
    pub fn call_once<Answer>(
        &self,
        question: impl Fn(&Client) -> Result<Answer, ClientError>,
    ) -> Result<Answer, (ProviderError, Asked)> {
        let begun = Instant::now();
        let mut failures = Vec::new();
        for member in self.order() {
            let is_late = begun.elapsed() + self.request_timeout > CALL_LIMIT;
            if is_late && !failures.is_empty() {
                break;
            }
            match member.ask(&question) {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_uncertain() => {
                    failures.push(error.to_string());
                    return Err((unavailable(&failures), Asked::Perhaps));
                }
                Err(error) if error.is_without_answer() => failures.push(error.to_string()),
                Err(error) if is_unknown(&error) => return Err((ProviderError::NoSuchKey, Asked::Yes)),
                Err(error) => return Err((of_client(error), Asked::Yes)),
            }
        }
        Err((unavailable(&failures), Asked::No))
    }

    /// The servers in the order in which they are asked.
    fn order(&self) -> Vec<&Arc<Member>> {
        let mut order: Vec<_> = self.members.iter().collect();
        // The sort is stable: servers in the same state stay in the order of preference.
        order.sort_by_key(|member| match member.state() {
            ServerState::Up => 0,
            ServerState::Recovering => 1,
            ServerState::Slow => 2,
            ServerState::Down => 3,
        });
        order
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let (ended, changed) = &*self.ended;
        *ended.lock() = true;
        changed.notify_all();
    }
}

/// Asks a server in a thread of its own, which ends with the server's answer or its deadline; the
/// caller may have stopped waiting by then. Calls are rare, a handful for each VM that starts.
fn start<Answer: Send + 'static>(
    member: &Arc<Member>,
    question: &Arc<impl Fn(&Client) -> Result<Answer, ClientError> + Send + Sync + 'static>,
    outcome: &Sender<(String, Result<Answer, ClientError>)>,
) -> Result<(), ProviderError> {
    let (member, question, outcome) = (Arc::clone(member), Arc::clone(question), outcome.clone());
    let ask = move || {
        let answer = member.ask(&*question);
        let _ = outcome.send((member.client.server().to_string(), answer));
    };
    let started = std::thread::Builder::new().name("key-server-call".to_owned()).spawn(ask);
    started
        .map(drop)
        .map_err(|error| ProviderError::Unavailable { reason: format!("no thread to ask with: {error}") })
}

fn watch(member: &Member, (ended, changed): &(Mutex<bool>, Condvar)) {
    loop {
        let period = if member.state() == ServerState::Up { HEALTH_PERIOD } else { HEALTH_PERIOD / 5 };
        let mut ended = ended.lock();
        changed.wait_while_for(&mut ended, |ended| !*ended, period);
        if *ended {
            return;
        }
        member.check(|client| client.query(&[QueryFunction::Operations]).map(drop));
    }
}

fn is_unknown(error: &ClientError) -> bool {
    error.refusal().is_some_and(|refusal| refusal.reason == ResultReason::ItemNotFound)
}

fn unavailable(failures: &[String]) -> ProviderError {
    ProviderError::Unavailable { reason: failures.join("; ") }
}

/// Converts an error that any other server would have caused too.
fn of_client(error: ClientError) -> ProviderError {
    match error {
        ClientError::Secret(error) => ProviderError::Secret(error),
        ClientError::TlsFiles(_) | ClientError::ServerName { .. } => misconfigured(error),
        ClientError::Refused { refusal, .. } if refusal.message.starts_with(UPSTREAM_UNAVAILABLE) => {
            upstream_unavailable(refusal.message)
        }
        ClientError::Refused { server, refusal } if is_ungranted(&refusal.message) => {
            ProviderError::Ungranted { reason: format!("{server}: {}; get another grant", refusal.message) }
        }
        error => ProviderError::Refused { reason: error.to_string() },
    }
}

fn is_ungranted(message: &str) -> bool {
    UNGRANTED.iter().any(|start| message.starts_with(start))
}

/// The broker's message, such as
/// `upstream-unavailable: key provider corp, key 4711: kms1 is silent`.
fn upstream_unavailable(message: String) -> ProviderError {
    let told = message.strip_prefix(UPSTREAM_UNAVAILABLE).and_then(|key| key.strip_prefix("key provider "));
    let named = told.and_then(|told| told.split_once(", "));
    match named.and_then(|(name, reason)| Some((name.parse().ok()?, reason))) {
        Some((upstream, reason)) => {
            ProviderError::UpstreamUnavailable { upstream, reason: reason.to_owned() }
        }
        None => ProviderError::Unavailable { reason: message },
    }
}

#[cfg(test)]
mod tests {
    use strongroom_keys::Absence;

    use super::*;

    #[test]
    fn a_broker_names_the_provider_that_is_away() {
        let told = "upstream-unavailable: key provider corp, key 4711: kms1:5696: no connection";
        let error = upstream_unavailable(told.to_owned());
        assert!(error.ends_by_itself() && error.may_come_back());
        assert_eq!(
            error.to_string(),
            "it comes from key provider corp, which is unavailable: key 4711: kms1:5696: no connection"
        );
        // A message of another form is still the reason.
        for told in ["upstream-unavailable: ", "upstream-unavailable: key provider \u{1b}[31m, key 4711: it"]
        {
            let error = upstream_unavailable(told.to_owned());
            assert_eq!((error.to_string().as_str(), error.absence()), (told, Absence::ForNow));
        }
    }
}
