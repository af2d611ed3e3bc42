//! A cache of decoded metadata, so that a key that is fetched repeatedly is decrypted each time but
//! decoded once.
//!
//! A record is opened and authenticated each time, and its metadata are compared with the cached
//! bytes. No secret is cached.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::id::ObjectId;
use super::object::{MetadataError, Sketch};

/// Most cached objects. Beyond that the cache is cleared.
const SKETCHES_MAX: usize = 4096;

/// The longest cached metadata: those of most keys have a few hundred bytes, and the cache stays
/// within 16 MiB.
const METADATA_MAX_BYTES: usize = 4096;

/// The cache.
#[derive(Debug, Default)]
pub(super) struct Sketches(Mutex<HashMap<ObjectId, Arc<Remembered>>>);

#[derive(Debug)]
struct Remembered {
    metadata: Vec<u8>,
    sketch: Arc<Sketch>,
}

impl Sketches {
    /// The object that these metadata describe.
    ///
    /// # Errors
    ///
    /// [`MetadataError`].
    pub fn read(&self, id: ObjectId, metadata: Vec<u8>) -> Result<Arc<Sketch>, MetadataError> {
        let remembered = self.0.lock().get(&id).map(Arc::clone);
        if let Some(remembered) = remembered.filter(|remembered| remembered.metadata == metadata) {
            return Ok(Arc::clone(&remembered.sketch));
        }
        let sketch = Arc::new(Sketch::read(id, &metadata)?);
        if metadata.len() <= METADATA_MAX_BYTES {
            let remembered = Arc::new(Remembered { metadata, sketch: Arc::clone(&sketch) });
            let mut all = self.0.lock();
            if all.len() >= SKETCHES_MAX {
                all.clear();
            }
            all.insert(id, remembered);
        }
        Ok(sketch)
    }
}
