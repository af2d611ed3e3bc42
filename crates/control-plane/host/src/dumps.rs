//! The dumps in a VM's directory, and the remains of interrupted ones.
//!
//! ```text
//! made      volume `dump-N.making` filled, its end marked > `vm.json` says so > it gets its name, `dump-N`
//! deleted   volume gone > `vm.json` says so
//! ```
//!
//! So a directory with the name of a dump is a complete dump. A dump that `vm.json` lists gets its
//! name even if the process that made it was killed. Any other unfinished dump belongs to no one
//! and is removed. None of this takes a key.

use std::time::Duration;

use strongroom_datastore::file::storage::is_gone;
use strongroom_datastore::file::{delete as delete_volume, rename};
use strongroom_vm::limits::DUMPS_MAX;

use crate::protocol::{DUMP_MAKING, Dump, FILLING, OwnVolume, Problem, VmSpec};
use crate::vm_directory::{VmRecord, entries_of};

/// How long the deletion of a dump waits for its readers to close it.
const LOCK_WAIT: Duration = Duration::from_secs(30);

/// Returns the number for the VM's next dump.
///
/// # Errors
/// If the VM has too many dumps.
pub fn next_number(spec: &VmSpec) -> Result<u32, Problem> {
    let record = VmRecord::read_of(&spec.directory(), spec.id)?;
    if record.dumps.len() >= DUMPS_MAX {
        let message = format!("VM {} has {DUMPS_MAX} dumps", spec.name);
        let next = format!("delete one that nobody needs: `strongroom vm dump list {}`", spec.name);
        return Err(Problem::new("too_many_dumps", message).with_next_step(next));
    }
    let there = numbers(spec, "")?;
    let told = record.dumps.iter().map(|dump| dump.number);
    let last = told.chain(there).max().unwrap_or_default().max(record.last_dump);
    last.checked_add(1).ok_or_else(|| Problem::new("too_many_dumps", "there are no numbers left for dumps"))
}

/// Publishes a dump that is complete under its temporary name. From now on it is listed.
///
/// # Errors
/// If `vm.json` cannot be written. The dump is then not listed.
pub fn publish(spec: &VmSpec, dump: Dump) -> Result<Vec<Dump>, Problem> {
    let record = VmRecord::change(spec, |record| {
        record.last_dump = record.last_dump.max(dump.number);
        record.dumps.push(dump);
        Ok(record.clone())
    })?;
    if let Err(problem) = finish_names(spec, &record) {
        // The dump is listed, and readers also look for it under its temporary name.
        tracing::warn!("VM {}: {problem}", spec.name);
    }
    Ok(record.dumps)
}

/// Returns the VM's dumps. Renames a dump that was listed but not yet renamed when its process was
/// killed.
///
/// # Errors
/// If the VM's directory cannot be read or written.
pub fn settle(spec: &VmSpec) -> Result<Vec<Dump>, Problem> {
    let record = VmRecord::read_of(&spec.directory(), spec.id)?;
    finish_names(spec, &record)?;
    Ok(record.dumps)
}

/// Removes unfinished dumps. The caller ensures that no dump is in progress.
///
/// # Errors
/// If one cannot be removed.
pub fn remove_unfinished(spec: &VmSpec) -> Result<(), Problem> {
    let record = VmRecord::read_of(&spec.directory(), spec.id)?;
    finish_names(spec, &record)?;
    for ending in [DUMP_MAKING, &format!("{DUMP_MAKING}{FILLING}")] {
        for number in numbers(spec, ending)? {
            let path = spec.directory().join(format!("{}{ending}", OwnVolume::Dump(number).name()));
            tracing::info!("VM {}: {} never was whole, and is removed", spec.name, path.display());
            delete_volume(&path, LOCK_WAIT)?;
        }
    }
    Ok(())
}

/// Deletes a dump, and returns the remaining ones. Succeeds if the dump is already gone.
///
/// # Errors
/// If a client is reading it, or it cannot be deleted.
pub fn delete(spec: &VmSpec, number: u32) -> Result<Vec<Dump>, Problem> {
    delete_content(spec, number)?;
    forget(spec, number)
}

/// The first half of [`delete`], which is slow: deletes the dump's volume.
///
/// # Errors
/// If a client is reading it, or it cannot be deleted.
pub fn delete_content(spec: &VmSpec, number: u32) -> Result<(), Problem> {
    let record = VmRecord::read_of(&spec.directory(), spec.id)?;
    if !record.dumps.iter().any(|dump| dump.number == number) {
        return Ok(());
    }
    finish_names(spec, &record)?;
    let path = spec.own_volume_path(OwnVolume::Dump(number));
    match is_gone(&path) {
        true => Ok(()),
        false => delete_volume(&path, LOCK_WAIT).map_err(Problem::from),
    }
}

/// The second half of [`delete`]: removes the dump from `vm.json`, and returns the remaining ones.
///
/// # Errors
/// If `vm.json` cannot be written.
pub fn forget(spec: &VmSpec, number: u32) -> Result<Vec<Dump>, Problem> {
    VmRecord::change(spec, |record| {
        let before = record.dumps.len();
        record.dumps.retain(|dump| dump.number != number);
        if record.dumps.len() != before {
            record.last_dump = record.last_dump.max(number);
        }
        Ok(record.dumps.clone())
    })
}

fn finish_names(spec: &VmSpec, record: &VmRecord) -> Result<(), Problem> {
    for dump in &record.dumps {
        let (made, place) =
            (spec.dump_making_path(dump.number), spec.own_volume_path(OwnVolume::Dump(dump.number)));
        if is_gone(&place) && !is_gone(&made) {
            rename(&made, &place)?;
        }
    }
    Ok(())
}

/// Returns the numbers of the entries in the VM's directory with a dump's name and this ending.
fn numbers(spec: &VmSpec, ending: &str) -> Result<Vec<u32>, Problem> {
    let names = entries_of(&spec.directory())?.into_iter().map(|(name, _)| name);
    let named = names.filter_map(|name| {
        let OwnVolume::Dump(number) = OwnVolume::named(name.strip_suffix(ending)?)? else { return None };
        Some(number)
    });
    Ok(named.collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use strongroom_datastore::file::{CreateOptions, Protection, Provisioning, create, describe};
    use strongroom_types::{VmId, VolumeSize};

    use super::*;
    use crate::protocol::OperationId;
    use crate::vm_directory::StagedVm;

    fn vm(datastore: &Path) -> VmSpec {
        let id = VmId::random();
        let disk = r#"{"name":"disk0","size_bytes":1048576,"key":"unencrypted"}"#;
        let datastore = serde_json::to_string(datastore).unwrap();
        let text = format!(
            r#"{{"id":"{id}","name":"web1","datastore":{datastore},"memory_bytes":33554432,"disks":[{disk}]}}"#
        );
        let spec: VmSpec = serde_json::from_str(&text).unwrap();
        let staged = StagedVm::begin(&spec).unwrap().unwrap();
        VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
        staged.take_name().unwrap();
        spec
    }

    /// Leaves a complete dump that is not published yet.
    fn make(spec: &VmSpec, number: u32) -> Dump {
        let options = CreateOptions {
            size: VolumeSize::new(1 << 20).unwrap(),
            provisioning: Provisioning::Thin,
            protection: Protection::Unencrypted,
            log_bytes: Some(0),
            integrity: None,
        };
        let path = spec.dump_making_path(number);
        create(&path, &options).unwrap();
        Dump {
            number,
            volume: describe(&path).unwrap().descriptor.volume,
            bytes: 1,
            sealed_bytes: 1,
            at_unix_seconds: 1,
            label: None,
            operation: OperationId::random(),
        }
    }

    fn names(spec: &VmSpec) -> Vec<String> {
        let entries = std::fs::read_dir(spec.directory()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.filter(|name| name.starts_with("dump")).collect();
        names.sort();
        names
    }

    #[test]
    fn a_dump_has_its_name_when_it_is_whole_and_no_other_one_gets_it() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = vm(scratch.path());
        assert_eq!(next_number(&spec).unwrap(), 1);
        let first = make(&spec, 1);
        assert_eq!(publish(&spec, first.clone()).unwrap(), std::slice::from_ref(&first));
        assert_eq!(names(&spec), ["dump-1"]);
        assert_eq!(next_number(&spec).unwrap(), 2);
        let second = make(&spec, 2);
        publish(&spec, second.clone()).unwrap();
        assert_eq!(delete(&spec, 2).unwrap(), std::slice::from_ref(&first));
        assert_eq!(delete(&spec, 2).unwrap(), [first]);
        assert_eq!(names(&spec), ["dump-1"]);
        assert_eq!(next_number(&spec).unwrap(), 3, "no number is given twice");
        // A directory that someone else has put there is not overwritten.
        create_directory(&spec, "dump-7");
        assert_eq!(next_number(&spec).unwrap(), 8);
    }

    fn create_directory(spec: &VmSpec, name: &str) {
        std::fs::create_dir(spec.directory().join(name)).unwrap();
    }

    #[test]
    fn what_an_interrupted_one_leaves_is_named_or_removed() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = vm(scratch.path());
        // Killed between the write of `vm.json` and the rename.
        let whole = make(&spec, 1);
        let mut record = VmRecord::read_of(&spec.directory(), spec.id).unwrap();
        record.dumps.push(whole.clone());
        record.write(&spec.directory()).unwrap();
        // And one killed before that write.
        make(&spec, 2);
        assert_eq!(names(&spec), ["dump-1.making", "dump-2.making"]);
        assert_eq!(settle(&spec).unwrap(), [whole]);
        assert_eq!(names(&spec), ["dump-1", "dump-2.making"]);
        remove_unfinished(&spec).unwrap();
        assert_eq!(names(&spec), ["dump-1"]);
        // Killed between the deletion of the volume and the write of `vm.json`.
        delete_volume(&spec.own_volume_path(OwnVolume::Dump(1)), LOCK_WAIT).unwrap();
        assert_eq!(delete(&spec, 1).unwrap(), []);
    }

    #[test]
    fn a_vm_has_so_many_dumps_and_no_more() {
        let scratch = tempfile::tempdir().unwrap();
        let spec = vm(scratch.path());
        let one = make(&spec, 1);
        let mut record = VmRecord::read_of(&spec.directory(), spec.id).unwrap();
        record.dumps = vec![one; DUMPS_MAX];
        record.write(&spec.directory()).unwrap();
        let refused = next_number(&spec).unwrap_err();
        assert_eq!(refused.code, "too_many_dumps");
        assert!(refused.to_string().contains("vm dump list web1"), "{refused}");
    }
}
