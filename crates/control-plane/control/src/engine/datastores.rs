//! Datastores, and the hosts that reach them.
//!
//! A host marks a directory as a new datastore. For a further host it only compares the mark that
//! the directory bears there already, and the inventory has the host once it has done so. That a
//! mark was not copied with everything else shows when a VM moves: the next host finds what the
//! former one has just written.

use std::path::{Component, Path};

use strongroom_api::datastore::{AddDatastore, AddDatastoreHost};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_host::protocol::{DatastoreRequest, FORMAT_WITH_MOVES};
use strongroom_types::{DatastoreId, counted};

use super::alarms::datastore_object;
use super::place::find_datastore;
use super::placement::is_bound_for;
use super::wishes::Caller;
use super::{Control, HostSeat};
use crate::inventory::{Draft, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{DatastoreRecord, Mount, VmRecord};

/// The most hosts of a datastore: those of a site.
const HOSTS_MAX: usize = 64;

impl Control {
    /// Adds a datastore to the inventory. Its host first checks and marks it.
    pub fn add_datastore(&self, caller: &Caller, wish: &AddDatastore) -> Result<Task, Problem> {
        if let Some(known) = self.known_request(caller)? {
            return Ok(known);
        }
        // Checked before the host marks the directory.
        if by_name_or_id(&self.inventory.read().datastores, wish.name.as_str()).is_some() {
            return Err(problems::name_taken(ObjectKind::Datastore, wish.name.as_str()));
        }
        let seat = self.find_seat(wish.host.as_deref())?;
        self.is_nobodys_path(seat, &wish.path)?;
        let id = self.use_on_host(seat, wish.name.as_str(), &wish.path, None)?;
        self.wish(caller, |index, task| {
            if let Some(known) = index.datastores.get(&id.to_string()) {
                return Err(problems::name_taken(ObjectKind::Datastore, known.name.as_str()));
            }
            if by_name_or_id(&index.datastores, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Datastore, wish.name.as_str()));
            }
            let first = Mount { path: wish.path.clone(), host: seat.id };
            let record = DatastoreRecord { id, name: wish.name.clone(), first, others: Vec::new() };
            let object = datastore_object(&record);
            let task = self.task_done(task, TaskKind::DatastoreAdd, object, caller);
            Ok((task, with_host(index, seat, self.draft().create_named(&record))?))
        })
    }

    /// Has another host use a datastore. The host compares the mark that the directory bears there.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn add_datastore_host(
        &self,
        caller: &Caller,
        named: &str,
        wish: &AddDatastoreHost,
    ) -> Result<Task, Problem> {
        if let Some(known) = self.known_request(caller)? {
            return Ok(known);
        }
        let datastore = find_datastore(&self.inventory.read(), Some(named))?.clone();
        let seat = self.find_seat(Some(&wish.host))?;
        let path = wish.path.clone().unwrap_or_else(|| datastore.first.path.clone());
        may_have(&datastore, seat)?;
        self.is_nobodys_path(seat, &path)?;
        speaks_of_moves(seat)?;
        let id = self.use_on_host(seat, datastore.name.as_str(), &path, Some(datastore.id))?;
        if id != datastore.id {
            // It was compared there. A host that says so and uses another one lies.
            let message = format!("{path} on host {} is datastore {id}, not {}", seat.name, datastore.id);
            return Err(Problem::new(ErrorCode::DatastoreUnavailable, message));
        }
        self.wish(caller, |index, task| {
            let datastore = find_datastore(index, Some(named))?;
            may_have(datastore, seat)?;
            let mut shared = DatastoreRecord::clone(&datastore.record);
            shared.others.push(Mount { path: path.clone(), host: seat.id });
            let object = datastore_object(datastore);
            let message = format!("host {} reaches datastore {} ({path})", seat.name, datastore.name);
            let draft = self.draft().replace(datastore, &shared);
            let draft = draft.event("datastore.host_added", &object, message, Some(task));
            let task = self.task_done(task, TaskKind::DatastoreAddHost, object, caller);
            Ok((task, with_host(index, seat, draft)?))
        })
    }

    /// Ends the use of a datastore by a host that has none of its VMs.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn remove_datastore_host(&self, caller: &Caller, named: &str, host: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            let datastore = find_datastore(index, Some(named))?;
            let host = by_name_or_id(&index.hosts, host)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, host))?;
            if datastore.on(host.id).is_none() {
                let message = format!("host {} does not reach datastore {}", host.name, datastore.name);
                return Err(problems::conflict(message));
            }
            let Some(left) = datastore.without(host.id) else {
                let message = format!("host {} is the only one of datastore {}", host.name, datastore.name);
                let remove =
                    format!("remove the datastore: `strongroom datastore remove {}`", datastore.name);
                return Err(Problem::new(ErrorCode::InUse, message).next(remove));
            };
            let is_here = |vm: &&Row<VmRecord>| vm.host == host.id || is_bound_for(index, vm, host.id);
            let vms = index.vms_in(datastore.id).filter(is_here).count();
            if vms > 0 {
                let message =
                    format!("host {} has {} of datastore {}", host.name, counted(vms, "VM"), datastore.name);
                return Err(Problem::new(ErrorCode::InUse, message)
                    .next(format!("move them first: `strongroom host evacuate {}`", host.name)));
            }
            let object = datastore_object(datastore);
            let message = format!("host {} reaches datastore {} no more", host.name, datastore.name);
            let draft = self.draft().replace(datastore, &left);
            let draft = draft.event("datastore.host_removed", &object, message, Some(task));
            let task = self.task_done(task, TaskKind::DatastoreRemoveHost, object, caller);
            // A request that places a VM there at the same time looks once more.
            Ok((task, draft.replace(host, &host.record)))
        })
    }

    /// Has the other hosts of its datastore notice that a VM is deleted: they list what they have
    /// found there.
    pub(super) fn forget_elsewhere(&self, vm: &VmRecord) {
        let lists = |mount: &&Mount| {
            let seat = self.seat(mount.host).filter(|seat| seat.id != vm.host);
            seat.is_some_and(|seat| seat.seen().vms.contains_key(&vm.id))
        };
        let mounts: Vec<Mount> = {
            let index = self.inventory.read();
            let datastore = index.datastore_of(vm);
            datastore.map_or_else(Vec::new, |datastore| datastore.mounts().filter(lists).cloned().collect())
        };
        for Mount { path, host } in mounts {
            let Some(seat) = self.seat(host) else { continue };
            if let Err(error) =
                seat.host.look_through(&DatastoreRequest { path: path.into(), expected: None })
            {
                tracing::debug!(host = %seat.name, %error, "it still lists a VM that is deleted");
            }
        }
    }

    /// Makes a host use a directory as a datastore. Returns the id that it bears there. A directory
    /// that has to bear an `expected` one is not marked.
    fn use_on_host(
        &self,
        seat: &HostSeat,
        name: &str,
        path: &str,
        expected: Option<DatastoreId>,
    ) -> Result<DatastoreId, Problem> {
        let request = DatastoreRequest { path: path.into(), expected };
        let told = seat.host.add_datastore(&request).map_err(|error| {
            let problem = problems::host(seat.name.as_str(), &error);
            Problem { message: format!("datastore {name}: {}", problem.message), ..problem }
        })?;
        let id = told.id.ok_or_else(|| {
            let why = told.reason.unwrap_or_else(|| "it bears no id".to_owned());
            Problem::new(ErrorCode::DatastoreUnavailable, format!("{path} cannot be a datastore: {why}"))
        })?;
        // The host's state is read before the datastore is in the inventory, which would otherwise
        // show it as missing. An error is repeated soon.
        if let Err(error) = self.hear_state(seat) {
            tracing::debug!(host = %seat.name, %error, "the host's state could not be read again");
        }
        Ok(id)
    }

    /// Refuses the directory of a known datastore, and one above or in it: a VM would be in both.
    /// Another disk with another mark may be mounted there now, and its VMs would be mistaken for
    /// those of the absent one.
    fn is_nobodys_path(&self, seat: &HostSeat, path: &str) -> Result<(), Problem> {
        let index = self.inventory.read();
        let wanted = Path::new(path);
        if wanted.components().any(|part| part == Component::ParentDir) {
            return Err(problems::invalid(format!("{path}: a datastore's path has no `..`")));
        }
        let there = |known: &Row<DatastoreRecord>| {
            let mount = known.on(seat.id)?;
            let there = Path::new(&mount.path);
            let overlaps = wanted.starts_with(there) || there.starts_with(wanted);
            overlaps.then(|| (known.name.clone(), mount.path.clone()))
        };
        let Some((name, known)) = index.datastores.iter().find_map(there) else { return Ok(()) };
        if Path::new(&known) != wanted {
            let message = format!("{path} and {known}, the directory of datastore {name}, overlap");
            return Err(Problem::new(ErrorCode::NameTaken, message).next("choose another directory"));
        }
        let message = format!("{path} is the directory of datastore {name} already");
        Err(Problem::new(ErrorCode::NameTaken, message).next(format!(
            "use {name}; where another disk is mounted there now, mount that of {name}, or forget {name} first: \
             `strongroom datastore remove {name}`"
        )))
    }

    /// Removes a datastore without VMs from the inventory; its files stay.
    pub fn remove_datastore(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            let datastore = by_name_or_id(&index.datastores, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Datastore, named))?;
            let vms = index.vms_in(datastore.id).count();
            if vms > 0 {
                let message = format!("datastore {} has {}", datastore.name, counted(vms, "VM"));
                return Err(Problem::new(ErrorCode::InUse, message)
                    .next("delete, move or unregister what is in it first"));
            }
            let task = self.task_done(task, TaskKind::DatastoreRemove, datastore_object(datastore), caller);
            Ok((task, self.draft().remove_named(datastore)))
        })
    }
}

/// The host's record is written again, so that a removal of the host at the same time looks for
/// datastores once more.
fn with_host(index: &Index, seat: &HostSeat, draft: Draft) -> Result<Draft, Problem> {
    let host = index.hosts.get(&seat.id.to_string());
    let host = host.ok_or_else(|| problems::not_found(ObjectKind::Host, seat.name.as_str()))?;
    if host.is_leaving() {
        return Err(problems::conflict(format!("host {} is being removed", host.name)));
    }
    Ok(draft.replace(host, &host.record))
}

fn may_have(datastore: &DatastoreRecord, seat: &HostSeat) -> Result<(), Problem> {
    if datastore.on(seat.id).is_some() {
        let message = format!("host {} reaches datastore {} already", seat.name, datastore.name);
        return Err(Problem::new(ErrorCode::NameTaken, message).next("there is nothing to do"));
    }
    if datastore.mounts().count() >= HOSTS_MAX {
        return Err(problems::invalid(format!("a datastore has at most {HOSTS_MAX} hosts")));
    }
    Ok(())
}

/// Checks that a host knows how VMs are handed over.
pub(super) fn speaks_of_moves(seat: &HostSeat) -> Result<(), Problem> {
    let seen = seat.seen();
    let Some(state) = &seen.state else {
        let message = format!("host {} has not said which version it is", seat.name);
        return Err(Problem::new(ErrorCode::HostUnavailable, message).next("see to it that hostd runs there"));
    };
    if state.formats.has(FORMAT_WITH_MOVES) {
        return Ok(());
    }
    let message = format!(
        "host {} has version {}, in which no VM moves between hosts and no datastore has several",
        seat.name, state.version
    );
    Err(Problem::new(ErrorCode::NoHost, message).next("upgrade the program there"))
}
