//! Accepts connections, and ends them in order.

use std::io;
use std::time::Duration;

use tokio::task::JoinSet;

/// The pause after the kernel has refused a connection, mostly for lack of file descriptors, which
/// are freed as connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener, each a task. Dropping this aborts them.
#[derive(Debug)]
pub struct Connections {
    listener: &'static str,
    open: JoinSet<()>,
}

impl Connections {
    /// Starts without connections. Log lines call the listener `listener`.
    pub fn new(listener: &'static str) -> Self {
        Self { listener, open: JoinSet::new() }
    }

    /// Waits for the next connection, which `next` accepts. Continues after an error of the kernel,
    /// and removes connections that have ended. Dropping the future loses no connection if dropping
    /// that of `next` loses none.
    pub async fn accept<T, Next>(&mut self, mut next: impl FnMut() -> Next) -> T
    where
        Next: Future<Output = io::Result<T>>,
    {
        loop {
            let accepted = tokio::select! {
                // This branch is disabled while no connection is open.
                Some(_) = self.open.join_next() => continue,
                accepted = next() => accepted,
            };
            match accepted {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!("{}: no connection could be accepted: {error}", self.listener);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Runs a connection until it ends.
    pub fn spawn(&mut self, connection: impl Future<Output = ()> + Send + 'static) {
        self.open.spawn(connection);
    }

    /// Waits until all connections have ended, and aborts those that have not ended `within` this
    /// time.
    pub async fn drain(mut self, within: Duration) {
        let ended = async { while self.open.join_next().await.is_some() {} };
        if tokio::time::timeout(within, ended).await.is_err() {
            self.open.shutdown().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_the_kernel_refuses_is_tried_again() {
        let mut connections = Connections::new("test");
        let mut tries = 0;
        let accepted = connections
            .accept(|| {
                tries += 1;
                std::future::ready(if tries < 3 { Err(io::Error::other("no descriptor")) } else { Ok(tries) })
            })
            .await;
        assert_eq!(accepted, 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_end_waits_for_what_is_under_way_and_not_for_ever() {
        let ended = Arc::new(AtomicU32::new(0));
        let mut connections = Connections::new("test");
        for seconds in [1, 2, 600] {
            let ended = Arc::clone(&ended);
            connections.spawn(async move {
                tokio::time::sleep(Duration::from_secs(seconds)).await;
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
        let began = tokio::time::Instant::now();
        connections.drain(Duration::from_secs(10)).await;
        assert_eq!(ended.load(Ordering::Relaxed), 2);
        assert!(began.elapsed() < Duration::from_secs(11));
    }
}
