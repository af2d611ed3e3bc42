//! Datastores, and the hosts that reach them.
//!
//! A host marks a directory as a new datastore. For a further host it only compares the mark that
//! the directory bears there already, and the inventory has the host once it has done so. That a
//! mark was not copied with everything else shows when a VM moves: the next host finds what the
//! former one has just written.
//!
//! The mark of a datastore on a Ceph cluster is in its pool and namespace, whatever the host calls
//! the cluster; its path is made of it. Each of its hosts has a cephx user of its own there.

use std::path::{Component, Path};

use strongroom_api::datastore::{AddDatastore, AddDatastoreHost, CephAccess};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::{ErrorCode, ObjectKind, Problem};
use strongroom_datastore::file::storage::{CLUSTERS, cluster_path};
use strongroom_host::protocol::{
    DatastoreRequest, FORMAT_WITH_CLUSTERS, FORMAT_WITH_DISK_PLACES, FORMAT_WITH_FETCHED_VMS,
    FORMAT_WITH_LIVE_MOVES, FORMAT_WITH_MOVES, FORMAT_WITH_SWITCHES,
};
use strongroom_types::{CephClient, CephMount, CephPools, CephUser, DatastoreId, Redundancy, counted};
use strongroom_vm::check_host_path;

use super::alarms::datastore_object;
use super::place::find_datastore;
use super::placement::is_bound_for;
use super::wishes::Caller;
use super::{Control, HostSeat};
use crate::inventory::{Draft, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{CapacityDaysRecord, CapacityHoursRecord, DatastoreRecord, Mount, TaskRecord, VmRecord};

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
        let place = Place::of(wish)?;
        match &place {
            Place::Directory(path) => self.is_nobodys_path(seat, path)?,
            Place::Pools(mount) => {
                speaks_of_clusters(seat)?;
                self.are_nobodys_pools(seat, mount)?;
            }
        }
        let id = self.use_on_host(seat, wish.name.as_str(), &place, None)?;
        let wished = self.wish(caller, |index, task| {
            if let Some(known) = index.datastores.get(&id.to_string()) {
                return Err(is_known(known, seat));
            }
            if by_name_or_id(&index.datastores, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Datastore, wish.name.as_str()));
            }
            let ceph = place.pools().cloned();
            let first = place.mount(seat, id);
            let redundancy = seat.redundancy_of(id);
            let (name, others) = (wish.name.clone(), Vec::new());
            let record = DatastoreRecord { id, name, ceph, redundancy, first, others };
            let object = datastore_object(&record);
            let task = self.task_done(task, TaskKind::DatastoreAdd, object, caller);
            Ok((task, with_host(index, seat, self.draft().create_named(&record))?))
        });
        let known = self.inventory.read().datastores.get(&id.to_string()).cloned();
        if let (Err(_), Some(known)) = (&wished, known) {
            self.use_as_before(seat, &known);
        }
        wished
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
        let place = Place::of_another_host(&datastore, wish)?;
        may_have(&datastore, seat, &place)?;
        match &place {
            Place::Directory(path) => {
                self.is_nobodys_path(seat, path)?;
                speaks_of_moves(seat)?;
            }
            Place::Pools(_) => speaks_of_clusters(seat)?,
        }
        let id = self.use_on_host(seat, datastore.name.as_str(), &place, Some(datastore.id))?;
        if id != datastore.id {
            // It was compared there. A host that says so and uses another one lies.
            let message = format!("{place} on host {} is datastore {id}, not {}", seat.name, datastore.id);
            return Err(Problem::new(ErrorCode::DatastoreUnavailable, message));
        }
        self.wish(caller, |index, task| {
            let datastore = find_datastore(index, Some(named))?;
            may_have(datastore, seat, &place)?;
            let mut shared = DatastoreRecord::clone(&datastore.record);
            shared.others.push(place.mount(seat, id));
            let object = datastore_object(datastore);
            let message = format!("host {} reaches datastore {} ({place})", seat.name, datastore.name);
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
            disks_arrive(index, datastore)?;
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
        for mount in mounts {
            let Some(seat) = self.seat(mount.host) else { continue };
            if let Err(error) = seat.host.look_through(&looked_through(&mount)) {
                tracing::debug!(host = %seat.name, %error, "it still lists a VM that is deleted");
            }
        }
    }

    /// Makes a host use a directory, or pools, as a datastore. Returns the id that it bears there.
    /// One that has to bear an `expected` id is not marked.
    fn use_on_host(
        &self,
        seat: &HostSeat,
        name: &str,
        place: &Place,
        expected: Option<DatastoreId>,
    ) -> Result<DatastoreId, Problem> {
        let (path, ceph) = match place {
            Place::Directory(path) => (path.into(), None),
            Place::Pools(mount) => (CLUSTERS.into(), Some(mount.clone())),
        };
        let request = DatastoreRequest { path, expected, ceph };
        let told = seat.host.add_datastore(&request).map_err(|error| {
            let problem = problems::host(seat.name.as_str(), &error);
            Problem { message: format!("datastore {name}: {}", problem.message), ..problem }
        })?;
        let id = told.id.ok_or_else(|| {
            let why = told.reason.unwrap_or_else(|| "it bears no id".to_owned());
            Problem::new(ErrorCode::DatastoreUnavailable, format!("{place} cannot be a datastore: {why}"))
        })?;
        // The host's state is read before the datastore is in the inventory, which would otherwise
        // show it as missing. An error is repeated soon.
        if let Err(error) = self.hear_state(seat) {
            tracing::debug!(host = %seat.name, %error, "the host's state could not be read again");
        }
        Ok(id)
    }

    /// Writes down what the pools of a host's datastores outlive, if it has changed: the least that
    /// all of their hosts say. An error is repeated soon.
    pub(super) fn note_redundancy(&self, seat: &HostSeat) {
        let mut draft = self.draft();
        {
            let index = self.inventory.read();
            let here =
                index.datastores.iter().filter(|known| known.ceph.is_some() && known.on(seat.id).is_some());
            for known in here {
                let said = known.mounts().filter_map(|mount| self.seat(mount.host)?.redundancy_of(known.id));
                let least = said.reduce(Redundancy::least);
                if least.is_none() || least == known.redundancy {
                    continue;
                }
                let changed = DatastoreRecord { redundancy: least, ..DatastoreRecord::clone(&known.record) };
                draft = draft.replace(known, &changed);
            }
        }
        if let Err(error) = self.inventory.commit(draft) {
            tracing::debug!(host = %seat.name, %error, "the redundancy of datastores was not written down");
        }
    }

    /// Has a host use a known datastore as the inventory says, after it was asked to use its pools
    /// in another way. What a request that is refused has changed there is undone.
    fn use_as_before(&self, seat: &HostSeat, known: &DatastoreRecord) {
        let mount = known.on(seat.id).and_then(|mount| mount.client.clone());
        let (Some(pools), Some(client)) = (known.ceph.clone(), mount) else { return };
        let place = Place::Pools(CephMount { pools, client });
        if let Err(problem) = self.use_on_host(seat, known.name.as_str(), &place, Some(known.id)) {
            tracing::warn!(host = %seat.name, datastore = %known.name, %problem, "it is not used as before");
        }
    }

    /// Refuses the pools of a datastore that the host reaches already. It may call the same cluster
    /// by another file; the datastore's id shows that.
    fn are_nobodys_pools(&self, seat: &HostSeat, wanted: &CephMount) -> Result<(), Problem> {
        let index = self.inventory.read();
        let is_there = |known: &&Row<DatastoreRecord>| {
            let client = known.on(seat.id).and_then(|mount| mount.client.as_ref());
            let (CephPools { pool, namespace, .. }, conf) = (&wanted.pools, &wanted.client.conf);
            let is_same = |pools: &CephPools| pools.pool == *pool && pools.namespace == *namespace;
            client.is_some_and(|client| client.conf == *conf) && known.ceph.as_ref().is_some_and(is_same)
        };
        index.datastores.iter().find(is_there).map_or(Ok(()), |known| Err(is_known(known, seat)))
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
            disks_arrive(index, datastore)?;
            let vms = index.vms_in(datastore.id).count();
            if vms > 0 {
                let message = format!("datastore {} has {}", datastore.name, counted(vms, "VM"));
                return Err(Problem::new(ErrorCode::InUse, message)
                    .next("delete, move or unregister what is in it first"));
            }
            let task = self.task_done(task, TaskKind::DatastoreRemove, datastore_object(datastore), caller);
            let id = datastore.id.to_string();
            let draft = self.draft().remove_named(datastore);
            Ok((task, draft.discard::<CapacityHoursRecord>(&id).discard::<CapacityDaysRecord>(&id)))
        })
    }
}

/// Refuses to take away a datastore that a disk moves to.
fn disks_arrive(index: &Index, datastore: &DatastoreRecord) -> Result<(), Problem> {
    let moves = |task: &&Row<TaskRecord>| task.work.datastore_target() == Some(datastore.id);
    let Some(task) = index.open_tasks().find(moves) else { return Ok(()) };
    let message = format!("a disk of VM {} moves to datastore {}", task.task.object.name, datastore.name);
    Err(Problem::new(ErrorCode::InUse, message).next("wait for its task, or cancel it"))
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

fn may_have(datastore: &Row<DatastoreRecord>, seat: &HostSeat, place: &Place) -> Result<(), Problem> {
    if datastore.on(seat.id).is_some() {
        let message = format!("host {} reaches datastore {} already", seat.name, datastore.name);
        return Err(Problem::new(ErrorCode::NameTaken, message).next("there is nothing to do"));
    }
    if datastore.mounts().count() >= HOSTS_MAX {
        return Err(problems::invalid(format!("a datastore has at most {HOSTS_MAX} hosts")));
    }
    let mut users = datastore.mounts().filter_map(|mount| mount.client.as_ref().map(|client| &client.user));
    let Place::Pools(CephMount { client, .. }) = place else { return Ok(()) };
    if users.any(|user| *user == client.user) {
        let message = format!(
            "another host of datastore {} is {} to the cluster: a host that is lost is fenced by its user, so each has one of its own",
            datastore.name, client.user
        );
        return Err(Problem::new(ErrorCode::NameTaken, message).next(format!(
            "make one, `ceph auth get-or-create {} mon 'profile rbd' osd {}`, write its key to a file on host {}, and name it with --user",
            example_user(seat),
            capabilities(datastore),
            seat.name
        )));
    }
    Ok(())
}

/// A user that a host could have.
fn example_user(seat: &HostSeat) -> CephUser {
    let named = format!("client.{}", seat.name).parse();
    named.unwrap_or_else(|_| "client.host".parse().expect("a user's name"))
}

/// What a user may do on a datastore's storage daemons, as an argument of `ceph auth`.
fn capabilities(datastore: &DatastoreRecord) -> String {
    let Some(CephPools { pool, data_pool, .. }) = &datastore.ceph else { return String::new() };
    let all = std::iter::once(pool).chain(data_pool);
    let all: Vec<_> = all.map(|pool| format!("profile rbd pool={pool}")).collect();
    format!("'{}'", all.join(", "))
}

/// The pools, or the directory, are those of a datastore of the inventory.
fn is_known(known: &DatastoreRecord, seat: &HostSeat) -> Problem {
    let name = &known.name;
    let Some(CephPools { pool, namespace, .. }) = &known.ceph else {
        return problems::name_taken(ObjectKind::Datastore, name.as_str());
    };
    let message = format!("pool {pool}, namespace {namespace}, holds datastore {name} already");
    let next = match known.on(seat.id) {
        Some(_) => format!("use {name}, or name another namespace with --namespace"),
        None => format!(
            "have host {host} use {name}: `strongroom datastore add-host {name} --host {host} --user {user}`; or name \
             another namespace with --namespace",
            host = seat.name,
            user = example_user(seat)
        ),
    };
    Problem::new(ErrorCode::NameTaken, message).next(next)
}

/// Has a host look for VMs that other programs have added or removed.
pub(super) fn looked_through(mount: &Mount) -> DatastoreRequest {
    DatastoreRequest { path: mount.path.clone().into(), expected: None, ceph: None }
}

/// Where a datastore is, for a host.
enum Place {
    Directory(String),
    Pools(CephMount),
}

impl Place {
    fn of(wish: &AddDatastore) -> Result<Self, Problem> {
        match (&wish.path, &wish.ceph) {
            (Some(path), None) => Ok(Self::Directory(path.clone())),
            (None, Some(ceph)) => {
                Ok(Self::Pools(CephMount { pools: ceph.pools(), client: client_of(&ceph.client)? }))
            }
            (Some(_), Some(_)) => Err(problems::invalid("a datastore is a directory or pools, not both")
                .next("name a directory, or a pool with --rbd")),
            (None, None) => Err(problems::invalid("the request does not say where the datastore is")
                .next("name a directory (`path`), or a pool of a Ceph cluster (`ceph`; --rbd)")),
        }
    }

    fn of_another_host(datastore: &DatastoreRecord, wish: &AddDatastoreHost) -> Result<Self, Problem> {
        let name = &datastore.name;
        match (&datastore.ceph, &wish.ceph) {
            (None, None) => {
                Ok(Self::Directory(wish.path.clone().unwrap_or_else(|| datastore.first.path.clone())))
            }
            (None, Some(_)) => Err(problems::invalid(format!("datastore {name} is a directory, on no cluster"))
                .next("leave out --user, --conf and --keyring")),
            (Some(_), _) if wish.path.is_some() => {
                Err(problems::invalid(format!("datastore {name} is on a Ceph cluster, and has no directory"))
                    .next("leave out --path"))
            }
            (Some(_), None) => Err(problems::invalid(format!(
                "datastore {name} is on a Ceph cluster, and the request does not say as which user host {} reaches it",
                wish.host
            ))
            .next("name a user of its own with --user, and its files on that host with --conf and --keyring")),
            (Some(pools), Some(access)) => {
                Ok(Self::Pools(CephMount { pools: pools.clone(), client: client_of(access)? }))
            }
        }
    }

    fn pools(&self) -> Option<&CephPools> {
        match self {
            Self::Directory(_) => None,
            Self::Pools(mount) => Some(&mount.pools),
        }
    }

    fn mount(&self, seat: &HostSeat, id: DatastoreId) -> Mount {
        let (path, client) = match self {
            Self::Directory(path) => (path.clone(), None),
            Self::Pools(mount) => (cluster_path(id).display().to_string(), Some(mount.client.clone())),
        };
        Mount { path, host: seat.id, client }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => f.write_str(path),
            Self::Pools(CephMount { pools: CephPools { pool, namespace, .. }, client }) => {
                write!(f, "pool {pool}, namespace {namespace}, as {}", client.user)
            }
        }
    }
}

/// The files of a host with the way to a cluster.
fn client_of(access: &CephAccess) -> Result<CephClient, Problem> {
    let client = access.client();
    for path in [&client.conf, &client.keyring] {
        check_host_path(path).map_err(|error| problems::invalid(error.to_string()))?;
    }
    Ok(client)
}

/// Checks that a host knows how VMs are handed over.
pub(super) fn speaks_of_moves(seat: &HostSeat) -> Result<(), Problem> {
    must_read(seat, FORMAT_WITH_MOVES, "no VM moves between hosts and no datastore has several")
}

/// Checks that a host knows how a running VM moves.
pub(super) fn speaks_of_live_moves(seat: &HostSeat) -> Result<(), Problem> {
    must_read(seat, FORMAT_WITH_LIVE_MOVES, "no VM moves while it runs")
}

/// Checks that a host knows VMs with disks in several datastores.
pub(super) fn speaks_of_disk_places(seat: &HostSeat) -> Result<(), Problem> {
    must_read(seat, FORMAT_WITH_DISK_PLACES, "all disks of a VM are in one datastore")
}

/// Checks that a host fetches the volumes of VMs from others, and gives them.
pub(super) fn speaks_of_fetched_vms(seat: &HostSeat) -> Result<(), Problem> {
    must_read(seat, FORMAT_WITH_FETCHED_VMS, "a VM moves between hosts that both reach its datastore")
}

/// Checks that a host moves disks of running VMs to other datastores.
pub(super) fn speaks_of_switches(seat: &HostSeat) -> Result<(), Problem> {
    must_read(seat, FORMAT_WITH_SWITCHES, "a disk moves to another datastore only while its VM is off")
}

/// Checks that a host knows datastores on clusters.
fn speaks_of_clusters(seat: &HostSeat) -> Result<(), Problem> {
    must_read(seat, FORMAT_WITH_CLUSTERS, "no datastore is on a Ceph cluster")
}

/// Checks that a host keeps the TPM of a VM whose directory is in a datastore. One that does not
/// answer is not known to be of an earlier version.
pub(super) fn keeps_tpms_in(seat: &HostSeat, datastore: &DatastoreRecord) -> Result<(), Problem> {
    let seen = seat.seen();
    match &seen.state {
        Some(state) if datastore.ceph.is_some() && !state.tpms_on_clusters => {
            let message = format!(
                "host {} has version {}, in which no VM on a Ceph cluster has a TPM",
                seat.name, state.version
            );
            Err(Problem::new(ErrorCode::NoHost, message)
                .next("upgrade the program there, or use a datastore that is a directory"))
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks that a VM with a TPM moves from or to a host while it runs. One that does not answer is
/// not known to be of an earlier version.
pub(super) fn moves_live_tpm(vm: &VmRecord, seat: &HostSeat) -> Result<(), Problem> {
    let seen = seat.seen();
    let Some(state) = &seen.state else { return Ok(()) };
    let refused = |why: String| {
        let message = format!("VM {} does not move while it runs: host {} has {why}", vm.name, seat.name);
        Err(Problem::new(ErrorCode::NoHost, message))
    };
    if !state.live_tpms {
        return refused(format!("version {}, in which no VM with a TPM does", state.version));
    }
    match state.programs.as_ref().is_some_and(|programs| programs.swtpm.is_none()) {
        true => refused("no swtpm, which its TPM needs".to_owned()),
        false => Ok(()),
    }
}

/// Checks that a host reads a format. `lacks` says what an earlier version lacks.
fn must_read(seat: &HostSeat, format: u32, lacks: &str) -> Result<(), Problem> {
    let seen = seat.seen();
    let Some(state) = &seen.state else {
        let message = format!("host {} has not said which version it is", seat.name);
        return Err(Problem::new(ErrorCode::HostUnavailable, message).next("see to it that hostd runs there"));
    };
    if state.formats.has(format) {
        return Ok(());
    }
    let message = format!("host {} has version {}, in which {lacks}", seat.name, state.version);
    Err(Problem::new(ErrorCode::NoHost, message).next("upgrade the program there"))
}
