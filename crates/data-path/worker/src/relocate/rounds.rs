//! The rounds in which a volume in use is copied: a new top takes the writes, what is below is
//! complete, and that is copied. Each round leaves a layer, which a later merge removes.

use std::path::{Path, PathBuf};

use strongroom_datastore::file::{CHAIN_LAYERS_MAX, DatastoreError, describe};
use strongroom_types::LayerId;

use crate::beside::{ANSWER_WITHIN, Patience, ServedError, ServedVolume};
use crate::control::{Answer, Client, ControlError, Request};

/// So little is copied in a fraction of a second, with the clients away.
const LITTLE_BYTES: u64 = 32 << 20;

/// A round that leaves more than this part of what the one before has left is the last: clients
/// write as fast as it is copied.
const SHRINKS_TO: f64 = 0.8;

/// The most rounds.
const ROUNDS_MAX: usize = 8;

/// Layers that a chain keeps free: snapshots are made meanwhile, and afterwards.
const LAYERS_FREE: usize = 8;

/// How many rounds there are.
#[derive(Debug)]
pub struct Rounds {
    done: usize,
    left_bytes: u64,
}

impl Rounds {
    /// Before the first one, with so much to copy.
    pub fn before(left_bytes: u64) -> Self {
        Self { done: 0, left_bytes }
    }

    /// Whether another one is worth it, after one that has left so much.
    pub fn go_on(&mut self, left_bytes: u64) -> bool {
        self.done += 1;
        let before = std::mem::replace(&mut self.left_bytes, left_bytes);
        let shrinks = left_bytes as f64 <= before as f64 * SHRINKS_TO;
        self.done < ROUNDS_MAX && !is_little(left_bytes) && shrinks
    }
}

/// Whether so much is copied with the clients away.
pub(super) fn is_little(left_bytes: u64) -> bool {
    left_bytes <= LITTLE_BYTES
}

/// Whether clients have written so much since the last round that another one is due.
pub(super) fn has_grown(before_bytes: u64, left_bytes: u64) -> bool {
    left_bytes > 2 * before_bytes.max(LITTLE_BYTES)
}

/// Whether a volume takes another layer.
pub(super) fn has_layers_free(volume: &Path) -> Result<bool, DatastoreError> {
    Ok(describe(volume)?.descriptor.chain().count() + LAYERS_FREE <= CHAIN_LAYERS_MAX)
}

/// Has a new top put on, and waits until what is below is complete.
pub(super) fn put_new_top<P: Copy>(
    served: ServedVolume<'_>,
    least_generation: u64,
    patience: &mut Patience<'_, P>,
) -> Result<(), ServedError> {
    let over = describe(served.path)?.descriptor.top;
    loop {
        match patience.on(put_top(served, over, least_generation))? {
            Some(true) => return Ok(()),
            Some(false) | None => patience.pause()?,
        }
    }
}

/// Has a new top put on a layer that takes the writes. Returns whether what is below is complete.
fn put_top(served: ServedVolume<'_>, over: LayerId, least_generation: u64) -> Result<bool, ServedError> {
    let Some(client) = Client::connect_to(served.path, served.supervisor)? else {
        return Err(keeps_changing(served.path.to_owned(), String::new()).into());
    };
    match client.ask(Request::NewTop { over, least_generation }, ANSWER_WITHIN)? {
        Answer::NewTop { is_ready, .. } => Ok(is_ready),
        other => Err(ControlError::of_answer(served.path, other).into()),
    }
}

pub(super) fn keeps_changing(path: PathBuf, _reason: String) -> DatastoreError {
    DatastoreError::KeepsChanging { path }
}
