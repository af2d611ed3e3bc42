//! What needs a key: asked of whoever knows the datastores, before a key is destroyed.
//!
//! This room knows no datastore; who starts the server says who does ([`Dependents`]). The answer
//! comes from disks, some of which hang: an [`Inquiry`] asks one question at a time, on a thread of
//! its own, and waits only so long. A disk that never answers costs the server that one thread, and
//! nothing is destroyed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::id::ObjectId;

/// Knows what can be opened only with a key.
pub trait Dependents: Send + Sync {
    /// Names of everything known that has an envelope under this key: volumes, snapshots, clones,
    /// backups, templates. May block for disks.
    ///
    /// # Errors
    ///
    /// Why that cannot be said. Then nothing is destroyed.
    fn of(&self, key: ObjectId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>>;
}

/// Nothing needs any key: of a server beside which there are no volumes.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDependents;

impl Dependents for NoDependents {
    fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Vec::new())
    }
}

/// How long an answer is waited for: well below the 20 s that an administrator's question may take,
/// and enough to read some 100,000 descriptors.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Asks [`Dependents`].
pub struct Inquiry {
    dependents: Arc<dyn Dependents>,
    turn: Arc<Semaphore>,
    answer_within: Duration,
}

/// Why it is not known what needs a key.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// It was looked, and something was in the way.
    #[error("{0}")]
    Unreadable(Box<dyn std::error::Error + Send + Sync>),
    /// It is still being looked.
    #[error("a datastore has not answered within {} seconds; is a disk stuck?", waited.as_secs())]
    Slow {
        /// For how long it was waited.
        waited: Duration,
    },
}

impl Inquiry {
    /// Asks `dependents` from now on.
    pub fn new(dependents: Arc<dyn Dependents>) -> Self {
        Self { dependents, turn: Arc::new(Semaphore::new(1)), answer_within: ANSWER_WITHIN }
    }

    /// Names of everything known that needs the key.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub async fn of(&self, key: ObjectId) -> Result<Vec<String>, Unknown> {
        let asked = async {
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            let turn = turn.map_err(|closed| Unknown::Unreadable(closed.into()))?;
            let dependents = Arc::clone(&self.dependents);
            let answer = tokio::task::spawn_blocking(move || {
                let answer = dependents.of(key);
                drop(turn);
                answer
            });
            answer.await.map_err(|error| Unknown::Unreadable(error.into()))?.map_err(Unknown::Unreadable)
        };
        let slow = Unknown::Slow { waited: self.answer_within };
        tokio::time::timeout(self.answer_within, asked).await.unwrap_or(Err(slow))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use parking_lot::Mutex;

    use super::*;

    /// A disk that answers when it is told to.
    struct Stuck(Mutex<Receiver<()>>);

    impl Dependents for Stuck {
        fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
            self.0.lock().recv()?;
            Ok(vec!["vm1".to_owned()])
        }
    }

    #[test]
    fn a_disk_that_is_stuck_is_waited_for_only_so_long_and_answers_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (answer, wait) = channel();
        runtime.block_on(async {
            let mut inquiry = Inquiry::new(Arc::new(Stuck(Mutex::new(wait))));
            inquiry.answer_within = Duration::from_millis(1);
            // The second one waits for its turn, which the first one has.
            for _ in 0..2 {
                assert!(matches!(inquiry.of(ObjectId::random()).await, Err(Unknown::Slow { .. })));
            }
            answer.send(()).unwrap();
            answer.send(()).unwrap();
            inquiry.answer_within = Duration::MAX;
            assert_eq!(inquiry.of(ObjectId::random()).await.unwrap(), ["vm1"]);
        });
    }
}
