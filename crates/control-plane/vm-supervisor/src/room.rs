//! Checks that a datastore has room for a machine's whole memory.

use strongroom_datastore::file::storage::file_system_of;
use strongroom_host::protocol::{Problem, VmSpec};
use strongroom_streams::{SLOT_BYTES_MAX, stream_bytes};
use strongroom_types::{VolumeSize, display_bytes};

/// The most that a machine has beside its guest's memory, in bytes: video memory, firmware, device
/// state.
const BESIDES_BYTES: u64 = 256 << 20;
/// The share of headers with page addresses: 8 bytes and some for each page of 4096.
const HEADS_SHARE: u64 = 256;

/// Returns the size of a volume for a VM's memory, if there is room for all of it. Pages of zeroes
/// take none, but their number is not known. `changed_bytes` is for pages that are written more
/// than once, because the guest changes them meanwhile. `what` and `next_step` are for the error
/// message.
///
/// # Errors
/// `no_space`.
pub fn for_memory(
    spec: &VmSpec,
    changed_bytes: u64,
    what: &str,
    next_step: &str,
) -> Result<VolumeSize, Problem> {
    let pages_bytes = spec.memory_bytes.bytes() + changed_bytes;
    for_content(spec, pages_bytes + pages_bytes / HEADS_SHARE + BESIDES_BYTES, what, next_step)
}

/// Returns the size of a volume for a stream with this much content, if there is room for it.
///
/// # Errors
/// `no_space`.
pub fn for_content(
    spec: &VmSpec,
    content_bytes: u64,
    what: &str,
    next_step: &str,
) -> Result<VolumeSize, Problem> {
    let bytes = stream_bytes(content_bytes, SLOT_BYTES_MAX);
    check(file_system_of(&spec.directory())?.available_bytes, bytes, what, next_step)?;
    VolumeSize::new(bytes).map_err(|error| Problem::new("bad_size", error.to_string()))
}

fn check(free_bytes: u64, bytes: u64, what: &str, next_step: &str) -> Result<(), Problem> {
    if free_bytes >= bytes {
        return Ok(());
    }
    let (free, wanted) = (display_bytes(free_bytes), display_bytes(bytes));
    let message = format!("the datastore has {free} free, and {what} may take {wanted}");
    Err(Problem::new("no_space", message).with_next_step(next_step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_memory_that_does_not_fit_is_refused_before_anything_is_done() {
        let scratch = tempfile::tempdir().unwrap();
        let datastore = serde_json::to_string(scratch.path()).unwrap();
        let text = format!(
            r#"{{"id":"{}","name":"web1","datastore":{datastore},"memory_bytes":1048576,"disks":[]}}"#,
            strongroom_types::VmId::random()
        );
        let spec: VmSpec = serde_json::from_str(&text).unwrap();
        std::fs::create_dir(spec.directory()).unwrap();
        let size = for_memory(&spec, 0, "a dump", "make room").unwrap();
        assert!(size.bytes() > BESIDES_BYTES);
        let refused = check(size.bytes() - 1, size.bytes(), "a dump", "make room").unwrap_err();
        assert_eq!((refused.code.as_str(), refused.next_step.as_deref()), ("no_space", Some("make room")));
        assert!(refused.message.contains(&format!("a dump may take {size}")), "{}", refused.message);
    }
}
