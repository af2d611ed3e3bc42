//! Finds what depends on a key, before it is destroyed.
//!
//! This room knows no datastore; the process that starts the server supplies [`Dependents`]. The
//! answer comes from disks, which may hang: an [`Inquiry`] asks one question at a time, on a thread
//! of its own, and waits for a limited time. A disk that never answers costs the server one thread,
//! and nothing is destroyed.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use strongroom_types::VmId;
use tokio::sync::Semaphore;

use super::id::ObjectId;

/// Finds what can be opened only with a given key.
pub trait Dependents: Send + Sync {
    /// Names of all known volumes, snapshots, clones, backups and templates with an envelope under
    /// this key. May block for disks.
    ///
    /// # Errors
    ///
    /// If it cannot be determined. Then nothing is destroyed.
    fn of(&self, key: ObjectId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>>;

    /// Names of all known linked clones that share layers with this VM, or did: they have its
    /// content under their own keys. May block for disks.
    ///
    /// # Errors
    ///
    /// If it cannot be determined.
    fn clones_of(&self, vm: VmId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>>;
}

/// No dependents, for a server without volumes.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoDependents;

impl Dependents for NoDependents {
    fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        Ok(Vec::new())
    }

    fn clones_of(&self, _: VmId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        Ok(Vec::new())
    }
}

/// How long to wait for an answer: well below the 20 s of an administrator's question, and enough
/// to read some 100,000 descriptors.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Queries [`Dependents`].
pub struct Inquiry {
    dependents: Arc<dyn Dependents>,
    turn: Arc<Semaphore>,
    answer_within: Duration,
}

/// Why a key's dependents are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Unknown {
    /// The search failed.
    #[error("{0}")]
    Unreadable(Box<dyn Error + Send + Sync>),
    /// The search is still running.
    #[error("a datastore has not answered within {} seconds; is a disk stuck?", waited.as_secs())]
    Slow {
        /// How long the caller waited.
        waited: Duration,
    },
}

impl Inquiry {
    /// An inquiry of `dependents`.
    pub fn new(dependents: Arc<dyn Dependents>) -> Self {
        Self { dependents, turn: Arc::new(Semaphore::new(1)), answer_within: ANSWER_WITHIN }
    }

    /// Names of all known dependents of the key.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub async fn of(&self, key: ObjectId) -> Result<Vec<String>, Unknown> {
        self.ask(move |dependents| dependents.of(key)).await
    }

    /// Names of all known linked clones that have content of this VM.
    ///
    /// # Errors
    ///
    /// [`Unknown`].
    pub async fn clones_of(&self, vm: VmId) -> Result<Vec<String>, Unknown> {
        self.ask(move |dependents| dependents.clones_of(vm)).await
    }

    async fn ask(
        &self,
        question: impl FnOnce(&dyn Dependents) -> Result<Vec<String>, Box<dyn Error + Send + Sync>>
        + Send
        + 'static,
    ) -> Result<Vec<String>, Unknown> {
        let asked = async {
            let turn = Arc::clone(&self.turn).acquire_owned().await;
            let turn = turn.map_err(|closed| Unknown::Unreadable(closed.into()))?;
            let dependents = Arc::clone(&self.dependents);
            let answer = tokio::task::spawn_blocking(move || {
                let answer = question(&*dependents);
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

    /// A disk that answers on request.
    struct Stuck(Mutex<Receiver<()>>);

    impl Dependents for Stuck {
        fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
            self.0.lock().recv()?;
            Ok(vec!["vm1".to_owned()])
        }

        fn clones_of(&self, _: VmId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_disk_that_is_stuck_is_waited_for_only_so_long_and_answers_later() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let (answer, wait) = channel();
        runtime.block_on(async {
            let mut inquiry = Inquiry::new(Arc::new(Stuck(Mutex::new(wait))));
            inquiry.answer_within = Duration::from_millis(1);
            // The second inquiry waits for the first one's turn.
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
