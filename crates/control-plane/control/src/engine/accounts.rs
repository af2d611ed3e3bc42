//! Users, roles, folders and grants.
//!
//! Nobody gives what it does not have: a grant, a token, and the password of another user take
//! every privilege that they give, at the same place. A VM moves into a folder only with every
//! privilege that the roles of that folder then have on it.

use strongroom_api::access::{
    AccessKind, ChangePassword, CreateFolder, CreateGrant, CreateRole, CreateUser, Explain, Explanation,
    Folder, FolderUse, Grant, Me, MoveVm, NewUser, Password, Quota, RenewSecondFactor, Review, RightsAt,
    Role, Scope, SetFolder, User,
};
use strongroom_api::guard::Guard;
use strongroom_api::identity::ProviderGroup;
use strongroom_api::limits::{PASSWORD_BYTES_MAX, PASSWORD_BYTES_MIN, QUOTA_BYTES_MAX, QUOTA_COUNT_MAX};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::{
    BuiltInRole, ErrorCode, Name, ObjectKind, Privilege, PrivilegeSet, Problem, Reference, operation,
};
use strongroom_types::hex;
use uuid::Uuid;

use super::access::{
    ASK_FOR_A_ROLE, AccessObject, Rights, counts_at, find_folder, folder_called, folder_of, forbidden,
    needed, no_such, privileges_of,
};
use super::emergency::emergency_view;
use super::identity_providers::{Grantee, find_provider, provider_view};
use super::quotas::{used, used_in};
use super::wishes::{Caller, idle};
use super::{Control, Stop};
use crate::inventory::{Draft, Facet, Index, Row, by_name_or_id};
use crate::passwords::{PasswordError, PasswordHash, TOTP_SECRET_BYTES, Verdict, base32};
use crate::problems;
use crate::records::{
    AUTOMATIC, CredentialRecord, CredentialUse, FolderRecord, GrantRecord, GroupGrantRecord, Place,
    Principal, RoleAt, RoleRecord, SCHEDULER, UserRecord, VmRecord,
};

/// The most users: more than any site has people.
const USERS_MAX: usize = 10_000;
/// The most roles of a site's own.
const ROLES_MAX: usize = 256;
/// The most folders.
const FOLDERS_MAX: usize = 10_000;
/// The most roles of one user.
const GRANTS_OF_ONE_MAX: usize = 64;
/// The most roles of groups of identity providers.
const GROUP_GRANTS_MAX: usize = 4096;

impl Control {
    /// Makes a user without any role.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_user(
        &self,
        caller: &Caller,
        wish: &CreateUser,
        hash: &dyn PasswordHash,
    ) -> Result<NewUser, Problem> {
        let password = hashed(wish.password.expose(), hash)?;
        let secret = new_totp_secret()?;
        let id = Uuid::new_v4();
        let user = self.change(caller, format!("user {} was made", wish.name), |index, _| {
            account_name_is_free(index, &wish.name)?;
            within(index.users.len(), USERS_MAX, "users")?;
            let record = UserRecord {
                id,
                name: wish.name.clone(),
                password: password.clone(),
                totp_secret: hex::encode(&secret),
                totp_step: 0,
                created_unix_seconds: self.now_unix_ms() / 1000,
                last_sign_in_unix_seconds: None,
            };
            let draft = self.draft().create_named(&record);
            Ok((user_view(index, &record), draft))
        })?;
        Ok(NewUser { user, totp_secret: base32(&secret).into() })
    }

    /// Deletes a user with its roles, sessions and tokens.
    pub fn delete_user(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("user {named} was deleted"), |index, rights| {
            let user = find_user(index, named)?;
            covers_user(index, rights, user)?;
            let draft = without_credentials(index, self.draft().remove_named(user), user.id, |_| true);
            Ok(((), index.grants_to(user.id).fold(draft, |draft, grant| draft.remove(grant))))
        })
    }

    /// Sets the password of a user, and ends its sessions. A user sets its own with the present
    /// one.
    pub fn change_password(
        &self,
        caller: &Caller,
        named: &str,
        wish: &ChangePassword,
        hash: &dyn PasswordHash,
    ) -> Result<(), Problem> {
        let account = self.whose_account(caller, named, wish.current.as_ref(), hash)?;
        let password = hashed(wish.password.expose(), hash)?;
        self.change(caller, format!("user {named} got another password"), |index, rights| {
            let user = find_user(index, named)?;
            account.may_change(index, rights, user)?;
            let changed = UserRecord { password: password.clone(), ..UserRecord::clone(&user.record) };
            Ok(((), self.with_user_changed(index, user, &changed)))
        })
    }

    /// Gives a user another second factor, and ends its sessions. A user renews its own with its
    /// present password. Codes of the former secret count no more.
    pub fn renew_second_factor(
        &self,
        caller: &Caller,
        named: &str,
        wish: &RenewSecondFactor,
        hash: &dyn PasswordHash,
    ) -> Result<NewUser, Problem> {
        let account = self.whose_account(caller, named, wish.current.as_ref(), hash)?;
        let secret = new_totp_secret()?;
        let user =
            self.change(caller, format!("user {named} got another second factor"), |index, rights| {
                let user = find_user(index, named)?;
                account.may_change(index, rights, user)?;
                let changed =
                    UserRecord { totp_secret: hex::encode(&secret), ..UserRecord::clone(&user.record) };
                Ok((user_view(index, &changed), self.with_user_changed(index, user, &changed)))
            })?;
        Ok(NewUser { user, totp_secret: base32(&secret).into() })
    }

    /// Says whether an account is the caller's own, which it proves with its present password.
    fn whose_account(
        &self,
        caller: &Caller,
        named: &str,
        current: Option<&Password>,
        hash: &dyn PasswordHash,
    ) -> Result<Account, Problem> {
        current.map_or(Ok(()), |current| expect_length(current.expose()))?;
        let user = find_user(&self.inventory.read(), named).cloned();
        if !user.as_ref().is_ok_and(|user| caller.principal == Principal::User(user.id)) {
            must_have(&self.rights(caller.principal), &self.inventory.read(), Place::Site, Privilege::Roles)?;
            return Ok(Account::OfAnother);
        }
        let stored = user.as_ref().map_or("", |user| &user.password);
        match hash.verify(current.map_or("", Password::expose), stored).map_err(unchecked)? {
            Verdict::Right => Ok(Account::Own),
            Verdict::Wrong => {
                let message = format!("the present password of user {named} is another one");
                Err(Problem::new(ErrorCode::Forbidden, message).next("try again"))
            }
        }
    }

    /// The transaction that changes a user and ends its sessions.
    fn with_user_changed(&self, index: &Index, user: &Row<UserRecord>, changed: &UserRecord) -> Draft {
        let is_session = |credential: &CredentialRecord| credential.use_ == CredentialUse::Session;
        without_credentials(index, self.draft().replace(user, changed), user.id, is_session)
    }

    /// All users.
    pub fn list_users(&self) -> Vec<User> {
        let index = self.inventory.read();
        index.users.iter().map(|user| user_view(&index, user)).collect()
    }

    /// Makes a role.
    pub fn create_role(&self, caller: &Caller, wish: &CreateRole) -> Result<Role, Problem> {
        self.change(caller, format!("role {} was made: {}", wish.name, wish.privileges), |index, rights| {
            if privileges_of(index, &wish.name).is_some() {
                return Err(taken("role", &wish.name));
            }
            within(index.roles.len(), ROLES_MAX, "roles")?;
            covers(index, rights, Place::Site, &wish.privileges)?;
            let (name, privileges) = (wish.name.clone(), wish.privileges.clone());
            let record = RoleRecord { id: Uuid::new_v4(), name, privileges };
            Ok((role_view(&record), self.draft().create_named(&record)))
        })
    }

    /// Deletes a role of the site's own that nobody has.
    pub fn delete_role(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("role {named} was deleted"), |index, rights| {
            let role =
                by_name_or_id(&index.roles, named).ok_or_else(|| no_such(AccessObject::Role, named))?;
            covers(index, rights, Place::Site, &role.privileges)?;
            if given_roles(index).any(|at| at.role == role.name) {
                let message = format!("a user, group or token has role {named}");
                let problem = Problem::new(ErrorCode::InUse, message);
                return Err(problem.next("`strongroom access review` says who: revoke it first"));
            }
            Ok(((), self.draft().remove_named(role)))
        })
    }

    /// All roles.
    pub fn list_roles(&self) -> Vec<Role> {
        roles(&self.inventory.read())
    }

    /// Makes a folder.
    pub fn create_folder(&self, caller: &Caller, wish: &CreateFolder) -> Result<Folder, Problem> {
        self.change(caller, format!("folder {} was made", wish.name), |index, _| {
            if by_name_or_id(&index.folders, wish.name.as_str()).is_some() {
                return Err(taken("folder", &wish.name));
            }
            within(index.folders.len(), FOLDERS_MAX, "folders")?;
            let record =
                FolderRecord { id: Uuid::new_v4(), name: wish.name.clone(), quota: Quota::default() };
            Ok((folder_view(&record, FolderUse::default()), self.draft().create_named(&record)))
        })
    }

    /// Deletes a folder that nothing is in, and that no role counts for.
    pub fn delete_folder(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("folder {named} was deleted"), |index, _| {
            let folder = folder_called(index, named)?;
            let here = Place::Folder(folder.id);
            let has_roles = given_roles(index).any(|at| at.place == here);
            if has_roles || !index.members(&Facet::Folder(folder.id)).is_empty() {
                let message = format!("folder {named} has VMs, volumes or roles");
                let next = "move its VMs with `strongroom folder move` and revoke its roles with `strongroom role revoke`";
                return Err(Problem::new(ErrorCode::InUse, message).next(next));
            }
            Ok(((), self.draft().remove_named(folder)))
        })
    }

    /// Sets the quota of a folder. What is in it stays, if it has more.
    pub fn set_folder(&self, caller: &Caller, named: &str, wish: &SetFolder) -> Result<Folder, Problem> {
        let SetFolder { quota } = wish;
        check_quota(quota)?;
        self.change(caller, format!("the quota of folder {named} was set: {quota}"), |index, _| {
            let folder = folder_called(index, named)?;
            let changed = FolderRecord { quota: *quota, ..FolderRecord::clone(&folder.record) };
            let used = used_in(index, folder.id, &[], None);
            Ok((folder_view(&changed, used), self.draft().replace(folder, &changed)))
        })
    }

    /// The folders that a caller may view.
    pub fn list_folders(&self, rights: &Rights) -> Vec<Folder> {
        let index = self.inventory.read();
        let mut used = used(&index);
        let seen = index.folders.iter().filter(|folder| rights.sees_place(Place::Folder(folder.id)));
        seen.map(|folder| folder_view(folder, used.remove(&folder.id).unwrap_or_default())).collect()
    }

    /// Moves a VM, or a volume that no VM has, into a folder or out of all.
    pub fn move_vm(&self, caller: &Caller, named: &str, wish: &MoveVm) -> Result<Task, Problem> {
        self.wish(caller, |index, id| {
            let vm = index.find_any(named).ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
            let vm = idle(index, vm)?;
            let folder = find_folder(index, wish.folder.as_ref())?;
            // Those who have roles there gain them for this VM.
            let rights = Rights::of(index, caller.principal);
            let here = folder.map(Place::Folder);
            for role in given_roles(index).filter(|role| Some(role.place) == here) {
                let gained = privileges_of(index, &role.role).unwrap_or_default();
                covers(index, &rights, Place::Vm(vm.id), &gained)?;
            }
            let changed = VmRecord { folder, ..VmRecord::clone(&vm.record) };
            let task = self.task_done(id, TaskKind::VmMove, vm.object(), caller);
            Ok((task, self.draft().replace(vm, &changed)))
        })
    }

    /// Gives a user or a group a role.
    pub fn create_grant(&self, caller: &Caller, wish: &CreateGrant) -> Result<Grant, Problem> {
        let grantee = Grantee::of(wish)?;
        let whom = match &grantee {
            Grantee::User(user) => format!("user {user}"),
            Grantee::Group(group) => group_text(group),
        };
        let message = format!("{whom} got role {}: {}", wish.role, scope_text(&wish.scope));
        let (id, now, by) = (Uuid::new_v4(), self.now_unix_ms() / 1000, caller.name.clone());
        self.change(caller, message, |index, rights| {
            let place = place_of_scope(index, rights, &wish.scope)?;
            must_have(rights, index, place, Privilege::Roles)?;
            let role = RoleAt { role: wish.role.clone(), place };
            let privileges = privileges_of(index, &wish.role)
                .ok_or_else(|| no_such(AccessObject::Role, wish.role.as_str()))?;
            let (grant, draft) = match &grantee {
                Grantee::User(user) => {
                    let user = find_user(index, user.as_str())?;
                    covers(index, rights, place, &privileges)?;
                    within(index.grants_to(user.id).count(), GRANTS_OF_ONE_MAX, "roles of one user")?;
                    let by = by.clone();
                    let record = GrantRecord { id, user: user.id, role, by, created_unix_seconds: now };
                    (Some(grant_view(index, user, &record)), self.draft().create(&record).present(user))
                }
                Grantee::Group(ProviderGroup { provider, group }) => {
                    let provider = find_provider(index, provider.as_str())?;
                    covers(index, rights, place, &privileges)?;
                    within(index.group_grants.len(), GROUP_GRANTS_MAX, "roles of groups")?;
                    let (group, by) = (group.clone(), by.clone());
                    let record = GroupGrantRecord {
                        id,
                        provider: provider.id,
                        group,
                        role,
                        by,
                        created_unix_seconds: now,
                    };
                    (group_grant_view(index, &record), self.draft().create(&record).present(provider))
                }
            };
            let grant = grant.ok_or_else(|| no_such(AccessObject::Grant, &id.to_string()))?;
            Ok((grant, with_role(index, draft, &wish.role)))
        })
    }

    /// The roles of the caller, and those that it may revoke; all of them for one that reviews
    /// rights.
    pub fn list_grants(&self, caller: &Caller) -> Vec<Grant> {
        let index = self.inventory.read();
        let rights = Rights::of(&index, caller.principal);
        let sees_all = rights.at(&index, Place::Site).has(Privilege::Audit);
        let is_seen = |grant: &GrantRecord| {
            sees_all
                || caller.principal == Principal::User(grant.user)
                || rights.at(&index, grant.role.place).has(Privilege::Roles)
        };
        let seen = index.grants.iter().filter(|grant| is_seen(grant));
        let named = seen.filter_map(|grant| Some((index.users.get(&grant.user.to_string())?, grant)));
        let of_users = named.map(|(user, grant)| grant_view(&index, user, grant));
        let own: Vec<Uuid> = outside_grants(&index, caller.principal).map(|grant| grant.id).collect();
        let of_groups = index.group_grants.iter().filter(|grant| {
            sees_all || own.contains(&grant.id) || rights.at(&index, grant.role.place).has(Privilege::Roles)
        });
        of_users.chain(of_groups.filter_map(|grant| group_grant_view(&index, grant))).collect()
    }

    /// Takes a role from a user or a group.
    pub fn delete_grant(&self, caller: &Caller, id: Uuid) -> Result<(), Problem> {
        let message = grant_text(&self.inventory.read(), id);
        let message = message.map_or_else(|| format!("grant {id}"), |grant| format!("{grant} (grant {id})"));
        self.change(caller, format!("{message} was revoked"), |index, rights| {
            let none = || no_such(AccessObject::Grant, &id.to_string());
            let key = id.to_string();
            let (role, draft) = match (index.grants.get(&key), index.group_grants.get(&key)) {
                (Some(grant), _) => (&grant.role, self.draft().remove(grant)),
                (None, Some(grant)) => (&grant.role, self.draft().remove(grant)),
                (None, None) => return Err(none()),
            };
            must_have(rights, index, role.place, Privilege::Roles).map_err(|_| none())?;
            let privileges = privileges_of(index, &role.role).unwrap_or_default();
            covers(index, rights, role.place, &privileges)?;
            Ok(((), draft))
        })
    }

    /// What a caller may do.
    pub fn me(&self, caller: &Caller) -> Me {
        let index = self.inventory.read();
        let user = match caller.principal {
            Principal::User(user) => index.users.get(&user.to_string()),
            Principal::Machine | Principal::Token(_) => None,
        };
        let rights = Rights::of(&index, caller.principal);
        let places = rights.by_place(&index).into_iter();
        let of_user = user.map(|user| grants_of(&index, user)).unwrap_or_default();
        let of_groups = outside_grants(&index, caller.principal);
        let of_groups = of_groups.filter_map(|grant| group_grant_view(&index, grant));
        Me {
            name: caller.name.clone(),
            site: rights.at(&index, Place::Site),
            places: places
                .map(|(place, privileges)| RightsAt { scope: scope_of(&index, place), privileges })
                .collect(),
            grants: of_user.into_iter().chain(of_groups).collect(),
        }
    }

    /// Lists who may do what.
    pub fn access_review(&self, caller: &Caller) -> Result<Review, Problem> {
        self.record_access(caller, caller.entry_of(AccessKind::Read, "the list of rights was read"))?;
        let now = self.now_unix_ms() / 1000;
        let index = self.inventory.read();
        let grants = index.group_grants.iter();
        Ok(Review {
            identity_providers: index.identity_providers.iter().map(|one| provider_view(one)).collect(),
            group_grants: grants.filter_map(|grant| group_grant_view(&index, grant)).collect(),
            emergency_credentials: index.emergencies.iter().map(|one| emergency_view(one)).collect(),
            sessions: super::credentials::current_sessions(&index, now),
            users: index.users.iter().map(|user| user_view(&index, user)).collect(),
            tokens: super::credentials::views(&index, |_| true),
            roles: roles(&index),
            unlimited_tokens: index.tokens.len() as u64,
        })
    }

    /// Says whether a user may call an operation, and why.
    pub fn explain_access(&self, wish: &Explain) -> Result<Explanation, Problem> {
        let index = self.inventory.read();
        let user = find_user(&index, wish.user.as_str())?;
        let named = wish.operation.as_str();
        let operation = operation(named).ok_or_else(|| no_such(AccessObject::Operation, named))?;
        let place = match &wish.vm {
            Some(vm) => {
                let found = index.find_any(vm.as_str());
                let none = || problems::not_found(ObjectKind::Vm, vm.as_str());
                Place::Vm(found.ok_or_else(none)?.id)
            }
            None => Place::Site,
        };
        let needs: PrivilegeSet = match operation.guard {
            Guard::Needs(needs) => needed(&index, place, needs).into_iter().collect(),
            Guard::Everyone | Guard::Callers | Guard::Request | Guard::Entries => PrivilegeSet::default(),
        };
        let held = Rights::of(&index, Principal::User(user.id)).at(&index, place);
        let lacks: PrivilegeSet = needs.iter().filter(|needed| !held.has(*needed)).collect();
        let folder = folder_of(&index, place);
        let grants = index.grants_to(user.id).filter(|grant| counts_at(grant.role.place, place, folder));
        let grants = grants.map(|grant| grant_view(&index, user, grant)).collect();
        Ok(Explanation { allowed: lacks.is_empty(), needs, lacks, grants })
    }

    /// Commits a change of who may do what, with its entry in the access log. The roles by which
    /// the caller may do it are still there then.
    pub(super) fn change<Made>(
        &self,
        caller: &Caller,
        message: String,
        judge: impl Fn(&Index, &Rights) -> Result<(Made, Draft), Problem>,
    ) -> Result<Made, Problem> {
        self.race(|| {
            let (made, draft) = {
                let index = self.inventory.read();
                let rights = Rights::of(&index, caller.principal);
                if !caller.needs.is_empty() {
                    self.still_may(&index, caller)?;
                }
                let (made, draft) = judge(&index, &rights)?;
                (made, pinned(&index, caller.principal, draft))
            };
            self.commit_for(caller, draft, caller.entry_of(AccessKind::Changed, message.clone()))?;
            Ok::<_, Stop>(made)
        })
    }
}

/// Makes a transaction conditional on the caller's own roles.
fn pinned(index: &Index, principal: Principal, draft: Draft) -> Draft {
    let of_user =
        |draft: Draft, user: Uuid| index.grants_to(user).fold(draft, |draft, grant| draft.present(grant));
    match principal {
        Principal::Machine => draft,
        Principal::User(user) => of_user(draft, user),
        Principal::Token(id) => match index.credentials.iter().find(|token| token.id == id) {
            Some(token) => match token.user {
                Some(user) => of_user(draft.present(token), user),
                None => draft.present(token),
            },
            None => match index.outside_session(id) {
                Some(session) => index
                    .grants_by_groups(session)
                    .fold(draft.present(session), |draft, grant| draft.present(grant)),
                None => draft,
            },
        },
    }
}

/// Makes a transaction conditional on a role of the site's own.
pub(super) fn with_role(index: &Index, draft: Draft, role: &Name) -> Draft {
    match index.own_role(role) {
        Some(own) => draft.present(own),
        None => draft,
    }
}

fn without_credentials(
    index: &Index,
    draft: Draft,
    user: Uuid,
    which: impl Fn(&CredentialRecord) -> bool,
) -> Draft {
    let all = index.credentials.iter().filter(|one| one.user == Some(user) && which(one));
    all.fold(draft, |draft, one| draft.remove(one))
}

/// Refuses to give what the caller does not have.
pub(super) fn covers(
    index: &Index,
    rights: &Rights,
    place: Place,
    given: &PrivilegeSet,
) -> Result<(), Problem> {
    let Some(beyond) = given.beyond(&rights.at(index, place)) else { return Ok(()) };
    let message = format!("nobody gives what it does not have: the caller lacks {}", beyond.as_str());
    Err(Problem::new(ErrorCode::Forbidden, message).next(ASK_FOR_A_ROLE))
}

/// Refuses power over a user that may do more than the caller.
fn covers_user(index: &Index, rights: &Rights, user: &UserRecord) -> Result<(), Problem> {
    for grant in index.grants_to(user.id) {
        let privileges = privileges_of(index, &grant.role.role).unwrap_or_default();
        let Some(beyond) = privileges.beyond(&rights.at(index, grant.role.place)) else { continue };
        let (name, lacks) = (&user.name, beyond.as_str());
        let message = format!("user {name} may do what the caller may not: the caller lacks {lacks}");
        return Err(Problem::new(ErrorCode::Forbidden, message).next(ASK_FOR_A_ROLE));
    }
    Ok(())
}

/// Whose account a caller changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Account {
    /// Its own, which it has proved.
    Own,
    /// Another user's.
    OfAnother,
}

impl Account {
    /// Refuses power over another user's account to one that may do less than that user.
    fn may_change(self, index: &Index, rights: &Rights, user: &UserRecord) -> Result<(), Problem> {
        match self {
            Self::Own => Ok(()),
            Self::OfAnother => {
                must_have(rights, index, Place::Site, Privilege::Roles)?;
                covers_user(index, rights, user)
            }
        }
    }
}

pub(super) fn must_have(
    rights: &Rights,
    index: &Index,
    place: Place,
    privilege: Privilege,
) -> Result<(), Problem> {
    if rights.at(index, place).has(privilege) { Ok(()) } else { Err(forbidden(index, place, &[privilege])) }
}

/// The place of a scope that the caller may view.
pub(super) fn place_of_scope(index: &Index, rights: &Rights, scope: &Scope) -> Result<Place, Problem> {
    let place = match scope {
        Scope::Site {} => Some(Place::Site),
        Scope::Folder { folder } => {
            by_name_or_id(&index.folders, folder.as_str()).map(|found| Place::Folder(found.id))
        }
        Scope::Vm { vm } => index.find_any(vm.as_str()).map(|found| Place::Vm(found.id)),
        Scope::Datastore { datastore } => {
            by_name_or_id(&index.datastores, datastore.as_str()).map(|found| Place::Datastore(found.id))
        }
        Scope::Network { network } => {
            by_name_or_id(&index.networks, network.as_str()).map(|found| Place::Network(found.id))
        }
    };
    let seen = place.filter(|place| *place == Place::Site || rights.at(index, *place).has(Privilege::View));
    seen.ok_or_else(|| match scope {
        Scope::Site {} => forbidden(index, Place::Site, &[]),
        Scope::Folder { folder } => no_such(AccessObject::Folder, folder.as_str()),
        Scope::Vm { vm } => problems::not_found(ObjectKind::Vm, vm.as_str()),
        Scope::Datastore { datastore } => problems::not_found(ObjectKind::Datastore, datastore.as_str()),
        Scope::Network { network } => problems::not_found(ObjectKind::Network, network.as_str()),
    })
}

/// A scope with the names of today.
pub(super) fn scope_of(index: &Index, place: Place) -> Scope {
    // An id is a reference as well.
    let named =
        |name: Option<String>, id: String| Reference::try_from(name.unwrap_or(id)).unwrap_or_default();
    match place {
        Place::Site => Scope::Site {},
        Place::Folder(id) => {
            let found = index.folders.get(&id.to_string()).map(|found| found.name.to_string());
            Scope::Folder { folder: named(found, id.to_string()) }
        }
        Place::Vm(id) => {
            let found = index.vm(id).map(|found| found.name.to_string());
            Scope::Vm { vm: named(found, id.to_string()) }
        }
        Place::Datastore(id) => {
            let found = index.datastores.get(&id.to_string()).map(|found| found.name.to_string());
            Scope::Datastore { datastore: named(found, id.to_string()) }
        }
        Place::Network(id) => {
            let found = index.networks.get(&id.to_string()).map(|found| found.name.to_string());
            Scope::Network { network: named(found, id.to_string()) }
        }
    }
}

pub(super) fn scope_text(scope: &Scope) -> String {
    match scope {
        Scope::Site {} => "everywhere".to_owned(),
        Scope::Folder { folder } => format!("in folder {folder}"),
        Scope::Vm { vm } => format!("for VM {vm}"),
        Scope::Datastore { datastore } => format!("for datastore {datastore}"),
        Scope::Network { network } => format!("for network {network}"),
    }
}

/// All roles that somebody or something has, with where they count.
fn given_roles(index: &Index) -> impl Iterator<Item = &RoleAt> {
    let of_users = index.grants.iter().map(|grant| &grant.role);
    let of_groups = index.group_grants.iter().map(|grant| &grant.role);
    of_users.chain(of_groups).chain(tokens(index).map(|(_, _, role)| role))
}

/// The roles that a caller has by the groups of an identity provider.
fn outside_grants(index: &Index, principal: Principal) -> impl Iterator<Item = &Row<GroupGrantRecord>> {
    let session = match principal {
        Principal::Token(id) => index.outside_session(id),
        Principal::Machine | Principal::User(_) => None,
    };
    session.into_iter().flat_map(|session| index.grants_by_groups(session))
}

/// The tokens with a role: their records, names and roles.
pub(super) fn tokens(index: &Index) -> impl Iterator<Item = (&Row<CredentialRecord>, &Name, &RoleAt)> {
    index.credentials.iter().filter_map(|one| match &one.use_ {
        CredentialUse::Token { name, role, .. } => Some((one, name, role)),
        CredentialUse::Session => None,
    })
}

/// Refuses a name that a user or token has, or the control plane itself: records name who asked.
pub(super) fn account_name_is_free(index: &Index, name: &Name) -> Result<(), Problem> {
    let text = name.as_str();
    let is_taken = [AUTOMATIC, SCHEDULER].contains(&text)
        || index.users.iter().any(|user| user.name == *name)
        || index.tokens.iter().any(|token| token.name == text)
        || tokens(index).any(|(_, known, _)| known == name);
    if is_taken { Err(taken("user or token", name)) } else { Ok(()) }
}

pub(super) fn find_user<'index>(
    index: &'index Index,
    named: &str,
) -> Result<&'index Row<UserRecord>, Problem> {
    by_name_or_id(&index.users, named).ok_or_else(|| no_such(AccessObject::User, named))
}

fn user_view(index: &Index, user: &UserRecord) -> User {
    User {
        id: user.id,
        name: user.name.clone(),
        created_unix_seconds: user.created_unix_seconds,
        last_sign_in_unix_seconds: user.last_sign_in_unix_seconds,
        grants: grants_of(index, user),
    }
}

fn grants_of(index: &Index, user: &UserRecord) -> Vec<Grant> {
    index.grants_to(user.id).map(|grant| grant_view(index, user, grant)).collect()
}

fn grant_view(index: &Index, user: &UserRecord, grant: &GrantRecord) -> Grant {
    Grant {
        id: grant.id,
        user: Some(user.name.clone()),
        group: None,
        role: grant.role.role.clone(),
        scope: scope_of(index, grant.role.place),
        by: grant.by.clone(),
        created_unix_seconds: grant.created_unix_seconds,
    }
}

/// The role of a group whose provider is there.
fn group_grant_view(index: &Index, grant: &GroupGrantRecord) -> Option<Grant> {
    let provider = index.identity_providers.get(&grant.provider.to_string())?.name.clone();
    Some(Grant {
        id: grant.id,
        user: None,
        group: Some(ProviderGroup { provider, group: grant.group.clone() }),
        role: grant.role.role.clone(),
        scope: scope_of(index, grant.role.place),
        by: grant.by.clone(),
        created_unix_seconds: grant.created_unix_seconds,
    })
}

fn group_text(group: &ProviderGroup) -> String {
    format!("group {} of identity provider {}", group.group, group.provider)
}

/// A grant in a sentence of the access log. Grants do not change.
fn grant_text(index: &Index, id: Uuid) -> Option<String> {
    let key = id.to_string();
    let (role, whose) = match (index.grants.get(&key), index.group_grants.get(&key)) {
        (Some(grant), _) => {
            let user = index.users.get(&grant.user.to_string())?;
            (&grant.role, format!("user {}", user.name))
        }
        (None, Some(grant)) => {
            let group = group_grant_view(index, grant)?.group?;
            (&grant.role, group_text(&group))
        }
        (None, None) => return None,
    };
    Some(format!("role {} of {whose} {}", role.role, scope_text(&scope_of(index, role.place))))
}

fn roles(index: &Index) -> Vec<Role> {
    let built_in = BuiltInRole::ALL.into_iter().filter_map(|role| {
        let name = Name::new(role.as_str()).ok()?;
        Some(Role { name, privileges: role.privileges(), built_in: true })
    });
    built_in.chain(index.roles.iter().map(|role| role_view(role))).collect()
}

fn role_view(role: &RoleRecord) -> Role {
    Role { name: role.name.clone(), privileges: role.privileges.clone(), built_in: false }
}

fn folder_view(folder: &FolderRecord, used: FolderUse) -> Folder {
    Folder { id: folder.id, name: folder.name.clone(), used, quota: folder.quota }
}

fn check_quota(quota: &Quota) -> Result<(), Problem> {
    let Quota { vms, cpus, memory_bytes, disk_bytes } = quota;
    let parts = [
        ("vms", vms, QUOTA_COUNT_MAX),
        ("cpus", cpus, QUOTA_COUNT_MAX),
        ("memory_bytes", memory_bytes, QUOTA_BYTES_MAX),
        ("disk_bytes", disk_bytes, QUOTA_BYTES_MAX),
    ];
    match parts.into_iter().find(|(_, value, most)| value.is_some_and(|value| value > *most)) {
        Some((part, _, most)) => {
            Err(problems::invalid(format!("quota.{part} is at most {most}; without it there is no limit")))
        }
        None => Ok(()),
    }
}

pub(super) fn taken(kind: &str, name: &Name) -> Problem {
    Problem::new(ErrorCode::NameTaken, format!("there is a {kind} {name} already"))
        .next("choose another name")
}

pub(super) fn within(count: usize, most: usize, what: &str) -> Result<(), Problem> {
    if count < most { Ok(()) } else { Err(problems::conflict(format!("there are {most} {what} already"))) }
}

fn expect_length(password: &str) -> Result<(), Problem> {
    if (PASSWORD_BYTES_MIN..=PASSWORD_BYTES_MAX).contains(&password.len()) {
        return Ok(());
    }
    let message = format!("a password has {PASSWORD_BYTES_MIN} to {PASSWORD_BYTES_MAX} bytes");
    Err(problems::invalid(message).next("choose another one"))
}

fn new_totp_secret() -> Result<[u8; TOTP_SECRET_BYTES], Problem> {
    let mut secret = [0; TOTP_SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(no_random)?;
    Ok(secret)
}

fn hashed(password: &str, hash: &dyn PasswordHash) -> Result<String, Problem> {
    expect_length(password)?;
    hash.hash(password).map_err(unchecked)
}

pub(super) fn unchecked(error: PasswordError) -> Problem {
    Problem::new(ErrorCode::Unavailable, error.to_string()).next("use a token")
}

pub(crate) fn no_random(error: getrandom::Error) -> Problem {
    Problem::new(ErrorCode::Unavailable, format!("the system gives no random numbers: {error}"))
}
