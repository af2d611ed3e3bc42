//! Decides who may do what.
//!
//! A request is judged three times: when it is read, against the guard of its operation and of its
//! parts; in the transaction that records it; and by its task before it begins something at a host,
//! because its caller may have lost a role meanwhile, or its VM may be in another folder.
//!
//! An object that the caller may not view does not exist for it: the refusal is the same.

use std::collections::HashSet;

use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_api::event::Event;
use strongroom_api::guard::{Guard, Needs, On, Part, PartOf};
use strongroom_api::{
    BuiltInRole, ErrorCode, Name, ObjectKind, ObjectRef, Operation, Privilege, PrivilegeSet, Problem,
    Reference,
};
use strongroom_types::{DatastoreId, VmId};
use uuid::Uuid;

use super::Control;
use super::volume_changes::find;
use super::wishes::Caller;
use crate::inventory::{Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{
    AskedBy, CredentialUse, Entrance, FolderRecord, NeedAt, OutsideSessionRecord, Place, Principal, RoleAt,
    TaskRecord, VmRecord, address_text,
};

/// The rights of a caller, as they are now.
#[derive(Clone, Debug)]
pub struct Rights {
    at: Vec<PrivilegesAt>,
    /// The rights of the user that a token acts for: the token has no more.
    within: Option<Box<Rights>>,
}

#[derive(Clone, Debug)]
struct PrivilegesAt {
    place: Place,
    privileges: PrivilegeSet,
}

/// Where the VMs are that a caller may view.
pub struct Reach {
    /// VMs and folders outside of which there are none; `None` for the whole site.
    pub places: Option<Vec<Place>>,
    /// Whether the caller may view each VM there.
    pub is_exact: bool,
}

impl Rights {
    /// The rights of a principal. One that is gone has none.
    pub fn of(index: &Index, principal: Principal) -> Self {
        let none = Self { at: Vec::new(), within: None };
        match principal {
            Principal::Machine => {
                let all = PrivilegesAt { place: Place::Site, privileges: PrivilegeSet::all() };
                Self { at: vec![all], within: None }
            }
            Principal::User(user) => {
                let at = index.grants_to(user).filter_map(|grant| privileges_at(index, &grant.role));
                Self { at: at.collect(), within: None }
            }
            Principal::Token(id) => {
                if let Some(session) = index.outside_session(id) {
                    return Self { at: of_outside(index, session), within: None };
                }
                let Some(token) = index.credentials.iter().find(|token| token.id == id) else { return none };
                let CredentialUse::Token { role, .. } = &token.use_ else { return none };
                let within = token.user.map(|user| Box::new(Self::of(index, Principal::User(user))));
                Self { at: privileges_at(index, role).into_iter().collect(), within }
            }
        }
    }

    /// The privileges at a place.
    pub fn at(&self, index: &Index, place: Place) -> PrivilegeSet {
        self.at_place(place, folder_of(index, place))
    }

    /// The privileges for a VM or volume.
    fn for_vm(&self, vm: &VmRecord) -> PrivilegeSet {
        self.at_place(Place::Vm(vm.id), vm.folder)
    }

    /// The places besides the whole site at which the caller has privileges, each once, with them.
    /// What it may do to a VM is what it may do everywhere, at the VM's folder and at the VM.
    pub fn by_place(&self, index: &Index) -> Vec<(Place, PrivilegeSet)> {
        let mut listed = HashSet::new();
        let places = self.places().into_iter().filter(|place| listed.insert(*place));
        let with_privileges = |place: Place| {
            let privileges = self.at(index, place);
            (place != Place::Site && privileges.iter().next().is_some()).then_some((place, privileges))
        };
        places.filter_map(with_privileges).collect()
    }

    /// The places for which roles were given to the caller, or to the user that a token acts for.
    fn places(&self) -> Vec<Place> {
        let within = self.within.iter().flat_map(|within| within.places());
        self.at.iter().map(|at| at.place).chain(within).collect()
    }

    fn at_place(&self, place: Place, folder: Option<Uuid>) -> PrivilegeSet {
        let mut all = PrivilegeSet::default();
        for at in self.at.iter().filter(|at| counts_at(at.place, place, folder)) {
            all.add(&at.privileges);
        }
        match &self.within {
            Some(within) => all.common(&within.at_place(place, folder)),
            None => all,
        }
    }

    /// Whether the caller may view the whole site.
    pub fn sees_site(&self) -> bool {
        self.at_place(Place::Site, None).has(Privilege::View)
    }

    /// Whether the caller may view a VM or volume.
    pub fn sees_vm(&self, vm: &VmRecord) -> bool {
        self.for_vm(vm).has(Privilege::View)
    }

    /// Where the VMs are that the caller may view.
    pub fn reach(&self) -> Reach {
        let views = |at: &&PrivilegesAt| at.privileges.has(Privilege::View);
        let places: Vec<Place> = self.at.iter().filter(views).map(|at| at.place).collect();
        let own = (!places.contains(&Place::Site)).then_some(places);
        match (own, self.within.as_deref().map(Self::reach)) {
            (places, None) => Reach { places, is_exact: true },
            (None, Some(within)) => within,
            (Some(places), Some(within)) => {
                Reach { places: Some(places), is_exact: within.places.is_none() && within.is_exact }
            }
        }
    }

    /// Whether the caller may view a folder or datastore.
    pub fn sees_place(&self, place: Place) -> bool {
        self.at_place(place, None).has(Privilege::View)
    }

    /// Whether the caller may view anything: then it sees which policies and key providers there
    /// are.
    pub fn sees_something(&self) -> bool {
        self.at.iter().any(|at| self.at_place(at.place, None).has(Privilege::View))
    }

    /// Whether the caller may view an object that an event, an alarm or a task is about.
    pub fn sees_object(&self, index: &Index, object: &ObjectRef) -> bool {
        match (object.kind, object.id) {
            (ObjectKind::Vm | ObjectKind::Volume, Some(id)) => {
                let vm = index.vm(VmId::from_bytes(*id.as_bytes()));
                vm.map_or_else(|| self.sees_site(), |vm| self.sees_vm(vm))
            }
            (ObjectKind::Datastore, Some(id)) => {
                self.sees_place(Place::Datastore(DatastoreId::from_bytes(*id.as_bytes())))
            }
            (ObjectKind::Network, Some(id)) => self.sees_place(Place::Network(id)),
            (
                ObjectKind::Vm
                | ObjectKind::Volume
                | ObjectKind::Datastore
                | ObjectKind::Network
                | ObjectKind::Policy
                | ObjectKind::KeyProvider
                | ObjectKind::Host
                | ObjectKind::Task
                | ObjectKind::Control
                | ObjectKind::PlacementGroup
                | ObjectKind::Recipient,
                _,
            ) => self.sees_site(),
        }
    }

    /// Whether the caller may see an event.
    pub fn sees_event(&self, index: &Index, event: &Event) -> bool {
        let object = &event.object;
        match (object.kind, object.id) {
            // What is left of it is in the event.
            (ObjectKind::Vm | ObjectKind::Volume, Some(id)) if event.ends_its_object() => {
                let place = Place::Vm(VmId::from_bytes(*id.as_bytes()));
                self.at_place(place, event.folder).has(Privilege::View)
            }
            _ => self.sees_object(index, object),
        }
    }
}

/// The folder that a VM or volume is in.
pub(super) fn folder_of(index: &Index, place: Place) -> Option<Uuid> {
    match place {
        Place::Vm(vm) => index.vm(vm).and_then(|vm| vm.folder),
        Place::Site | Place::Folder(_) | Place::Datastore(_) | Place::Network(_) => None,
    }
}

/// Whether a role that was given for a place counts at another one, which is in this folder.
pub(super) fn counts_at(given_for: Place, place: Place, folder: Option<Uuid>) -> bool {
    match given_for {
        Place::Site => true,
        Place::Folder(of) => folder == Some(of) || place == given_for,
        Place::Vm(_) | Place::Datastore(_) | Place::Network(_) => place == given_for,
    }
}

/// The privileges of a role, if it is there.
pub(super) fn privileges_of(index: &Index, role: &Name) -> Option<PrivilegeSet> {
    let built_in = BuiltInRole::named(role.as_str()).map(BuiltInRole::privileges);
    built_in.or_else(|| index.own_role(role).map(|own| own.privileges.clone()))
}

/// The rights of somebody who is no user: those of the groups, while the provider is there, or
/// those of an administrator in an emergency.
fn of_outside(index: &Index, session: &OutsideSessionRecord) -> Vec<PrivilegesAt> {
    match &session.entrance {
        Entrance::Provider { provider, .. } => {
            let known = index.identity_providers.contains(&provider.to_string());
            let grants = index.grants_by_groups(session).filter(|_| known);
            grants.filter_map(|grant| privileges_at(index, &grant.role)).collect()
        }
        Entrance::Emergency { .. } => {
            let privileges = BuiltInRole::Administrator.privileges();
            vec![PrivilegesAt { place: Place::Site, privileges }]
        }
    }
}

fn privileges_at(index: &Index, role: &RoleAt) -> Option<PrivilegesAt> {
    Some(PrivilegesAt { place: role.place, privileges: privileges_of(index, &role.role)? })
}

/// A caller whose operation is admitted, with the object that the path names.
#[derive(Clone, Debug)]
pub struct Admitted {
    /// The caller.
    pub caller: Caller,
    /// The object.
    pub path: Option<Place>,
}

/// The part of a path that names an object: `vm` and `web1` for `/v1/vms/web1`.
#[derive(Clone, Copy, Debug)]
pub struct PathPart<'path> {
    /// Its name in the operation's path.
    pub parameter: &'path str,
    /// Its value.
    pub value: &'path str,
}

impl Caller {
    /// What a task records, to check it again when it runs.
    pub(super) fn asked(&self) -> Option<AskedBy> {
        match self.principal {
            Principal::Machine => None,
            Principal::User(_) | Principal::Token(_) => {
                Some(AskedBy { principal: self.principal, needs: self.needs.clone() })
            }
        }
    }

    /// An entry of the access log about the caller.
    pub(super) fn entry_of(&self, kind: AccessKind, message: impl Into<String>) -> AccessEntry {
        AccessEntry {
            id: 0,
            previous: None,
            at_unix_ms: 0,
            kind,
            by: self.name.clone(),
            from: self.from.map(address_text),
            operation: self.operation.map(str::to_owned),
            object: None,
            task: None,
            message: message.into(),
            repeated: None,
        }
    }
}

impl Control {
    /// The rights of a caller now.
    pub fn rights(&self, principal: Principal) -> Rights {
        Rights::of(&self.inventory.read(), principal)
    }

    /// Admits a caller to an operation on the object that its path names.
    ///
    /// # Errors
    /// `not_found` for an object that the caller may not view, `forbidden`.
    pub fn admit(
        &self,
        mut caller: Caller,
        operation: &Operation,
        path: Option<PathPart<'_>>,
    ) -> Result<Admitted, Problem> {
        if caller.principal == Principal::Machine {
            return Ok(Admitted { caller, path: None });
        }
        let index = self.inventory.read();
        let rights = Rights::of(&index, caller.principal);
        let place = path.map(|part| place_of(&index, part));
        let needs = match operation.guard {
            Guard::Everyone | Guard::Callers | Guard::Entries | Guard::Request => None,
            Guard::Needs(needs) => Some(needs),
        };
        let found = match place {
            None => Place::Site,
            Some(Ok(place)) => place,
            // Someone who sees everything learns from the operation that it is not there.
            Some(Err(_)) if rights.sees_site() => Place::Site,
            Some(Err(problem)) => return Err(problem),
        };
        if let Some(needs) = needs {
            let hidden = || path.map_or_else(|| lacks_view(&index), |part| not_there(&index, part));
            caller.needs.push(judge(&index, &rights, found, needs, hidden)?);
        }
        Ok(Admitted { caller, path: Some(found) })
    }

    /// Admits a caller to the parts of a request.
    ///
    /// # Errors
    /// As [`admit`](Self::admit).
    pub fn admit_parts(
        &self,
        mut caller: Caller,
        path: Option<Place>,
        parts: &[PartOf<'_>],
    ) -> Result<Caller, Problem> {
        if caller.principal == Principal::Machine {
            return Ok(caller);
        }
        let index = self.inventory.read();
        let rights = Rights::of(&index, caller.principal);
        for PartOf { part, on } in parts {
            let place = self::on(&index, path, *on)?;
            let hidden = || not_on(&index, *on);
            caller.needs.push(judge(&index, &rights, place, part.needs(), hidden)?);
        }
        Ok(caller)
    }

    /// Checks a caller again, with the rights of this index. A request that nobody has judged is
    /// refused.
    pub(super) fn still_may(&self, index: &Index, caller: &Caller) -> Result<(), Problem> {
        let Some(asked) = caller.asked() else { return Ok(()) };
        if asked.needs.is_empty() {
            tracing::error!(caller = %caller.name, "a request was not judged");
            return Err(forbidden(index, Place::Site, &[]));
        }
        may(index, &asked)
    }

    /// Checks the caller of a task again before the task begins something.
    pub(super) fn task_may(&self, task: &TaskRecord) -> Result<(), Problem> {
        task.asked.as_ref().map_or(Ok(()), |asked| may(&self.inventory.read(), asked))
    }

    /// Records that an operation was refused. A caller that is refused all the time is counted.
    ///
    /// # Errors
    /// [`Problem`] if it cannot be recorded.
    pub fn record_refusal(&self, caller: &Caller, operation: &str, problem: &Problem) -> Result<(), Problem> {
        let message = format!("{operation}: {}", problem.message);
        self.record_limited(caller, &caller.name, caller.entry_of(AccessKind::Refused, message))
    }

    /// Records that a browser made a request for a page that is not this server's. These are
    /// counted apart: nobody's page keeps the caller's own refusals out of the log.
    ///
    /// # Errors
    /// [`Problem`] if it cannot be recorded.
    pub fn record_foreign(&self, caller: &Caller, problem: &Problem) -> Result<(), Problem> {
        let operation = caller.operation.unwrap_or("no operation");
        let message = format!("{operation}: {}", problem.message);
        let key = format!("{} of other pages", caller.name);
        self.record_limited(caller, &key, caller.entry_of(AccessKind::Refused, message))
    }

    /// Records an entry of the access log before what it reports is done.
    pub(super) fn record_access(&self, caller: &Caller, entry: AccessEntry) -> Result<(), Problem> {
        self.race(|| Ok(self.commit_for(caller, self.draft(), entry.clone())?))
    }

    /// As [`record_access`](Self::record_access), unless there were many of this key within the
    /// hour.
    pub(super) fn record_limited(
        &self,
        caller: &Caller,
        key: &str,
        entry: AccessEntry,
    ) -> Result<(), Problem> {
        match self.refusals.count(key, self.now_unix_ms()) {
            Counted::Kept { before } => {
                let repeated = (before > 0).then_some(before);
                self.record_access(caller, AccessEntry { repeated, ..entry })
            }
            Counted::Left => {
                caller.receipt.give();
                Ok(())
            }
        }
    }
}

/// The most entries of one caller in an hour, so that nobody pushes others' out of the log.
const REFUSALS_RECORDED: u64 = 20;
/// That time, in milliseconds.
const REFUSALS_WITHIN_MS: u64 = 3_600_000;
/// The most callers that are counted at a time.
const REFUSED_CALLERS_MAX: usize = 4096;

/// Counts refusals by caller.
#[derive(Debug, Default)]
pub(super) struct Refusals(parking_lot::Mutex<std::collections::HashMap<String, Refused>>);

#[derive(Debug)]
struct Refused {
    since_unix_ms: u64,
    recorded: u64,
    left: u64,
}

/// Whether a refusal is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counted {
    /// It is; `before` is how many of the hour before were not.
    Kept { before: u64 },
    /// It is not.
    Left,
}

impl Refusals {
    fn count(&self, key: &str, now_unix_ms: u64) -> Counted {
        let mut all = self.0.lock();
        let is_over = |refused: &Refused| now_unix_ms.abs_diff(refused.since_unix_ms) > REFUSALS_WITHIN_MS;
        if all.len() >= REFUSED_CALLERS_MAX {
            all.retain(|_, refused| !is_over(refused));
        }
        if all.len() >= REFUSED_CALLERS_MAX && !all.contains_key(key) {
            return Counted::Left;
        }
        let fresh = || Refused { since_unix_ms: now_unix_ms, recorded: 0, left: 0 };
        let refused = all.entry(key.to_owned()).or_insert_with(fresh);
        let before = if is_over(refused) { std::mem::replace(refused, fresh()).left } else { 0 };
        if refused.recorded < REFUSALS_RECORDED {
            refused.recorded += 1;
            return Counted::Kept { before };
        }
        refused.left += 1;
        Counted::Left
    }
}

/// Judges needs at a place.
fn judge(
    index: &Index,
    rights: &Rights,
    place: Place,
    needs: Needs,
    hidden: impl FnOnce() -> Problem,
) -> Result<NeedAt, Problem> {
    let held = rights.at(index, place);
    if place != Place::Site && !held.has(Privilege::View) {
        return Err(hidden());
    }
    let privileges = needed(index, place, needs);
    let lacks: Vec<Privilege> = privileges.iter().copied().filter(|needed| !held.has(*needed)).collect();
    if lacks.is_empty() { Ok(NeedAt { place, privileges }) } else { Err(forbidden(index, place, &lacks)) }
}

/// The caller of a request that takes another part of a VM than its fields name.
pub(super) fn asked_for(index: &Index, caller: &Caller, part: Part, vm: VmId) -> Result<Caller, Problem> {
    let mut caller = caller.clone();
    if caller.principal != Principal::Machine {
        let (place, rights) = (Place::Vm(vm), Rights::of(index, caller.principal));
        let hidden = || problems::not_found(ObjectKind::Vm, &vm.to_string());
        caller.needs.push(judge(index, &rights, place, part.needs(), hidden)?);
    }
    Ok(caller)
}

/// The privileges that are needed at a place.
pub(super) fn needed(index: &Index, place: Place, needs: Needs) -> Vec<Privilege> {
    let encrypted = match place {
        Place::Vm(vm) => index.vm(vm).is_none_or(|vm| vm.hardware.encrypted()),
        Place::Site | Place::Folder(_) | Place::Datastore(_) | Place::Network(_) => false,
    };
    let more = if encrypted { needs.if_encrypted } else { &[] };
    needs.always.iter().chain(more).copied().collect()
}

/// Checks what was asked for, with the rights of this index.
pub(super) fn may(index: &Index, asked: &AskedBy) -> Result<(), Problem> {
    let rights = Rights::of(index, asked.principal);
    for need in &asked.needs {
        let held = rights.at(index, need.place);
        let lacks: Vec<Privilege> =
            need.privileges.iter().copied().filter(|needed| !held.has(*needed)).collect();
        if !lacks.is_empty() {
            return Err(forbidden(index, need.place, &lacks));
        }
    }
    Ok(())
}

/// The next step of a caller that lacks a privilege.
pub(super) const ASK_FOR_A_ROLE: &str =
    "`strongroom role list` says which role has it; ask someone who has it for that role";

/// The caller lacks privileges at a place that it may view.
pub(super) fn forbidden(index: &Index, place: Place, lacks: &[Privilege]) -> Problem {
    let names: Vec<&str> = lacks.iter().copied().map(Privilege::as_str).collect();
    let place = called(index, place);
    let message = match names.as_slice() {
        [] => format!("the caller's roles for {place} do not permit this"),
        names => {
            format!("the caller's roles for {place} do not permit this: it takes {}", names.join(", "))
        }
    };
    Problem::new(ErrorCode::Forbidden, message).next(ASK_FOR_A_ROLE)
}

/// A place in a sentence.
fn called(index: &Index, place: Place) -> String {
    let or_id = |kind: &str, name: Option<String>, id: String| format!("{kind} {}", name.unwrap_or(id));
    match place {
        Place::Site => "the site".to_owned(),
        Place::Folder(id) => {
            let found = index.folders.get(&id.to_string());
            or_id("folder", found.map(|folder| folder.name.to_string()), id.to_string())
        }
        Place::Vm(id) => index.vm(id).map_or_else(|| format!("VM {id}"), |vm| problems::called(vm)),
        Place::Datastore(id) => {
            let found = index.datastores.get(&id.to_string());
            or_id("datastore", found.map(|datastore| datastore.name.to_string()), id.to_string())
        }
        Place::Network(id) => {
            let found = index.networks.get(&id.to_string());
            or_id("network", found.map(|network| network.name.to_string()), id.to_string())
        }
    }
}

/// The place that a part of a path names.
fn place_of(index: &Index, part: PathPart<'_>) -> Result<Place, Problem> {
    let found = match part.parameter {
        "vm" => index.find_any(part.value).map(|vm| Place::Vm(vm.id)),
        "volume" => find(index, part.value).ok().map(|found| Place::Vm(found.owner.id)),
        "datastore" => by_name_or_id(&index.datastores, part.value).map(|found| Place::Datastore(found.id)),
        "network" => by_name_or_id(&index.networks, part.value).map(|found| Place::Network(found.id)),
        // The others are objects of the site, whose operations take privileges there.
        _ => Some(Place::Site),
    };
    found.ok_or_else(|| not_there(index, part))
}

fn lacks_view(index: &Index) -> Problem {
    forbidden(index, Place::Site, &[Privilege::View])
}

fn not_there(index: &Index, part: PathPart<'_>) -> Problem {
    let kind = match part.parameter {
        "vm" => ObjectKind::Vm,
        "volume" => ObjectKind::Volume,
        "datastore" => ObjectKind::Datastore,
        "network" => ObjectKind::Network,
        _ => return lacks_view(index),
    };
    problems::not_found(kind, part.value)
}

/// The place of a part of a request.
fn on(index: &Index, path: Option<Place>, on: On<'_>) -> Result<Place, Problem> {
    let found = match on {
        On::Path => path,
        On::Site => Some(Place::Site),
        On::Folder(None) => Some(Place::Site),
        On::Folder(Some(named)) => by_name_or_id(&index.folders, named).map(|found| Place::Folder(found.id)),
        On::Datastore(Some(named)) => {
            by_name_or_id(&index.datastores, named).map(|found| Place::Datastore(found.id))
        }
        On::Datastore(None) => {
            let mut all = index.datastores.iter();
            match (all.next(), all.next()) {
                (Some(only), None) => Some(Place::Datastore(only.id)),
                _ => Some(Place::Site),
            }
        }
        On::Network(named) => by_name_or_id(&index.networks, named).map(|found| Place::Network(found.id)),
        On::Vm(named) => index.find_any(named).map(|vm| Place::Vm(vm.id)),
        On::Volume(named) => find(index, named).ok().map(|found| Place::Vm(found.owner.id)),
    };
    found.ok_or_else(|| not_on(index, on))
}

fn not_on(index: &Index, on: On<'_>) -> Problem {
    match on {
        On::Path | On::Site | On::Folder(None) | On::Datastore(None) => lacks_view(index),
        On::Folder(Some(named)) => no_such(AccessObject::Folder, named),
        On::Datastore(Some(named)) => problems::not_found(ObjectKind::Datastore, named),
        On::Network(named) => problems::not_found(ObjectKind::Network, named),
        On::Vm(named) => problems::not_found(ObjectKind::Vm, named),
        On::Volume(named) => problems::not_found(ObjectKind::Volume, named),
    }
}

/// What access is made of. The inventory has the other kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessObject {
    User,
    Role,
    Folder,
    Grant,
    Token,
    Session,
    IdentityProvider,
    EmergencyCredential,
    Operation,
}

/// There is no such object, or the caller may not view it.
pub(super) fn no_such(kind: AccessObject, named: &str) -> Problem {
    let (noun, next) = match kind {
        AccessObject::User => ("user", "`strongroom user list` shows what there is"),
        AccessObject::Role => ("role", "`strongroom role list` shows what there is"),
        AccessObject::Folder => ("folder", "`strongroom folder list` shows what there is"),
        AccessObject::Grant => ("grant", "`strongroom access review` shows what there is"),
        AccessObject::Token => ("token", "`strongroom access token list` shows what there is"),
        AccessObject::Session => ("session", "`strongroom access session list` shows what there is"),
        AccessObject::IdentityProvider => {
            ("identity provider", "`strongroom access provider list` shows what there is")
        }
        AccessObject::EmergencyCredential => {
            ("emergency credential", "`strongroom access emergency list` shows what there is")
        }
        AccessObject::Operation => ("operation", "see docs/API.md for what there is"),
    };
    Problem::new(ErrorCode::NotFound, format!("there is no {noun} {named}")).next(next)
}

/// The id of the folder with this name or id, if one is named.
pub(super) fn find_folder(index: &Index, named: Option<&Reference>) -> Result<Option<Uuid>, Problem> {
    let Some(named) = named else { return Ok(None) };
    folder_called(index, named.as_str()).map(|folder| Some(folder.id))
}

/// The folder with this name or id.
pub(super) fn folder_called<'index>(
    index: &'index Index,
    named: &str,
) -> Result<&'index Row<FolderRecord>, Problem> {
    by_name_or_id(&index.folders, named).ok_or_else(|| no_such(AccessObject::Folder, named))
}

/// Whether a caller may see a task: what it works on, or because it asked for it.
pub(super) fn sees_task(
    index: &Index,
    rights: &Rights,
    principal: Principal,
    task: &Row<TaskRecord>,
) -> bool {
    let asked = task.asked.as_ref().is_some_and(|asked| asked.principal == principal);
    asked || rights.sees_object(index, &task.task.object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_that_is_always_refused_fills_no_log() {
        let refusals = Refusals::default();
        for _ in 0..REFUSALS_RECORDED {
            assert_eq!(refusals.count("bob", 1000), Counted::Kept { before: 0 });
        }
        for _ in 0..7 {
            assert_eq!(refusals.count("bob", 1000), Counted::Left);
        }
        assert_eq!(refusals.count("ada", 1000), Counted::Kept { before: 0 });
        assert_eq!(refusals.count("bob", 1001 + REFUSALS_WITHIN_MS), Counted::Kept { before: 7 });
    }
}
