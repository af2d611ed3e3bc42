//! Machines that join as hosts, and hosts that are removed.
//!
//! ```text
//! token   token at the key server -> the host's record -> the token's answer; the host is looked for from then on
//! remove  no VM, no datastore there, and none from then on -> its token and certificates end
//!         -> it is released, if it answers -> its record
//! ```
//!
//! A crash between two of these steps leaves a host that can be removed again, and no record of a
//! host whose certificate is still valid.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use strongroom_api::host::{CreateHostToken, HostToken};
use strongroom_api::limits::{HOST_TOKEN_DEFAULT_S, HOST_TOKEN_MAX_S, HOST_TOKEN_MIN_S};
use strongroom_api::{ErrorCode, ObjectKind, ObjectRef, Problem};
use strongroom_host::protocol::FORMATS;
use strongroom_types::counted;
use uuid::Uuid;

use super::Control;
use super::boards::Baseline;
use super::seats::HostSeat;
use super::wishes::Caller;
use crate::inventory::by_name_or_id;
use crate::joining::{Admission, Joining};
use crate::keys::KeyProblem;
use crate::problems;
use crate::records::{HostRecord, JoinedHost, NetworkRecord};

/// The format of a [`HostToken`].
const TOKEN_FORMAT: u32 = 1;
impl Control {
    /// Lets machines join, and connects to those that have joined.
    pub fn let_join(&self, joining: Arc<dyn Joining>) {
        let joining = self.joining.get_or_init(|| joining);
        let known: Vec<HostRecord> =
            self.inventory.read().hosts.iter().map(|row| HostRecord::clone(&row.record)).collect();
        for host in known.iter().filter(|host| self.seat(host.id).is_none()) {
            if let Some(joined) = &host.joined {
                self.seat_joined(&**joining, host, joined);
            }
        }
    }

    fn seat_joined(&self, joining: &dyn Joining, record: &HostRecord, joined: &JoinedHost) {
        let host = joining.connect(joined.address, joined.client);
        host.set_term(self.term);
        let address = Some(joined.address.to_string());
        if !self.hosts.add(HostSeat::new(record.id, record.name.clone(), address, host)) {
            tracing::error!(host = %record.name, "there are too many hosts in this run; restart the control plane");
        }
    }

    fn joining(&self) -> Result<&dyn Joining, Problem> {
        let none = || problems::conflict("this control plane takes no other hosts");
        self.joining.get().map(|joining| &**joining).ok_or_else(none)
    }

    /// Makes a token with which a machine becomes a host.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn host_token(&self, caller: &Caller, wish: &CreateHostToken) -> Result<HostToken, Problem> {
        let joining = self.joining()?;
        let address: SocketAddr = wish.address.parse().map_err(|_| {
            problems::invalid(format!("address: '{}' is no ADDRESS:PORT", wish.address))
                .next("write it as in 10.0.0.6:5691 or [fd00::6]:5691")
        })?;
        if address.port() == 0 || address.ip().is_unspecified() {
            return Err(problems::invalid(
                "address: name the one address and port at which the host listens",
            ));
        }
        let valid_seconds = wish.valid_seconds.unwrap_or(HOST_TOKEN_DEFAULT_S);
        if !(HOST_TOKEN_MIN_S..=HOST_TOKEN_MAX_S).contains(&valid_seconds) {
            return Err(problems::invalid("valid_seconds: a token is good for one minute to seven days"));
        }
        let valid = Duration::from_secs(valid_seconds.into());
        // Looked at before the key server makes a token, and again in the transaction.
        self.must_be_new_host(wish, address)?;
        let admitted = joining.admit(&wish.name, valid).map_err(key_problem)?;
        let Admission { client, token_id, .. } = &admitted;
        let joined = JoinedHost { address, client: *client, token_id: token_id.clone(), removing: false };
        let record = HostRecord {
            id: Uuid::new_v4(),
            name: wish.name.clone(),
            joined: Some(joined.clone()),
            maintenance: false,
            fenced: None,
        };
        let message =
            format!("a token was made with which a machine joins as host {} at {address}", wish.name);
        let kept = self.change(caller, message.clone(), |index, _| {
            if by_name_or_id(&index.hosts, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Host, wish.name.as_str()));
            }
            let draft = self.draft().create_named(&record);
            Ok(((), draft.event("host.token", &host_object(&record), message.clone(), None)))
        });
        if let Err(problem) = kept {
            // Nobody has seen the token. If it cannot be ended now, it expires.
            if let Err(error) = joining.expel(&admitted.token_id, admitted.client) {
                tracing::warn!(%error, "a token that nobody has could not be ended");
            }
            return Err(problem);
        }
        self.seat_joined(joining, &record, &joined);
        Ok(HostToken {
            format: TOKEN_FORMAT,
            host: record.id,
            name: record.name.to_string(),
            address: address.to_string(),
            token: admitted.token,
            made_unix_seconds: self.now_unix_ms() / 1000,
            expires_unix_seconds: admitted.expires_unix_seconds,
            enrolment: admitted.enrolment.to_string(),
            kmip: admitted.kmip.to_string(),
            server_name: admitted.server_name,
            authority: admitted.authority,
            control: admitted.control.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host_formats: [FORMATS.oldest, FORMATS.newest],
            architecture: std::env::consts::ARCH.to_owned(),
            processors: Baseline::of(&self.inventory.read(), self.hosts.iter()).beside(None),
        })
    }

    fn must_be_new_host(&self, wish: &CreateHostToken, address: SocketAddr) -> Result<(), Problem> {
        if !self.hosts.has_room() {
            let message = "this run of the control plane has had too many hosts";
            return Err(Problem::new(ErrorCode::TooMany, message).next("restart it"));
        }
        let index = self.inventory.read();
        if by_name_or_id(&index.hosts, wish.name.as_str()).is_some() {
            let problem = problems::name_taken(ObjectKind::Host, wish.name.as_str());
            let remove =
                format!("for another token of it, remove it first: `strongroom host remove {}`", wish.name);
            return Err(problem.next(remove));
        }
        let at = |host: &HostRecord| host.joined.as_ref().is_some_and(|joined| joined.address == address);
        match index.hosts.iter().find(|host| at(host)) {
            Some(host) => Err(problems::conflict(format!("host {} has address {address}", host.name))),
            None => Ok(()),
        }
    }

    /// Removes a host without VMs and datastores: its certificates end, and it takes no orders from
    /// then on.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn remove_host(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        let joining = self.joining()?;
        let message = format!("host {named} is removed, and its certificate revoked");
        let (id, name, joined) = self.change(caller, message.clone(), |index, _| {
            let host = by_name_or_id(&index.hosts, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, named))?;
            may_be_removed(index, host)?;
            let Some(joined) = host.joined.clone() else {
                let message = format!("host {} is the control plane's own machine", host.name);
                return Err(Problem::new(ErrorCode::InUse, message));
            };
            let removing = JoinedHost { removing: true, ..joined.clone() };
            let removing = HostRecord { joined: Some(removing), ..HostRecord::clone(&host.record) };
            Ok(((host.id, host.name.clone(), joined), self.draft().replace(host, &removing)))
        })?;
        joining.expel(&joined.token_id, joined.client).map_err(key_problem)?;
        if let Some(seat) = self.seat(id)
            && let Err(error) = seat.host.release()
        {
            tracing::warn!(host = %name, %error, "the host was not told that it is removed; its certificate is revoked");
        }
        let message = format!("host {name} was removed, and its certificate revoked");
        self.race(|| {
            let index = self.inventory.read();
            let Some(host) = index.hosts.get(&id.to_string()) else { return Ok(()) };
            let mut draft = self.draft().remove_named(host);
            for network in index.networks.iter().filter(|network| network.on(id).is_some()) {
                let mut less = NetworkRecord::clone(&network.record);
                less.hosts.retain(|on| on.host != id);
                draft = draft.replace(network, &less);
            }
            let draft = draft.event("host.removed", &host_object(host), message.clone(), None);
            drop(index);
            Ok(self.inventory.commit(draft)?)
        })?;
        if let Some(seat) = self.seat(id) {
            seat.remove();
            self.unreview_host(seat);
        }
        Ok(())
    }
}

fn may_be_removed(index: &crate::inventory::Index, host: &HostRecord) -> Result<(), Problem> {
    let vms = index.vms_on(host.id).count();
    if vms > 0 {
        let message = format!("host {} has {}", host.name, counted(vms, "VM"));
        return Err(Problem::new(ErrorCode::InUse, message)
            .next(format!("`strongroom host evacuate {}`, or delete or unregister them first", host.name)));
    }
    if let Some(datastore) = index.datastores.iter().find(|datastore| datastore.on(host.id).is_some()) {
        let message = format!("host {} has datastore {}", host.name, datastore.name);
        let name = &datastore.name;
        let command = match datastore.is_shared() {
            true => format!("datastore remove-host {name} --host {}", host.name),
            false => format!("datastore remove {name}"),
        };
        let remove = format!("remove it first, its files stay: `strongroom {command}`");
        return Err(Problem::new(ErrorCode::InUse, message).next(remove));
    }
    Ok(())
}

pub(super) fn host_object(host: &HostRecord) -> ObjectRef {
    ObjectRef { kind: ObjectKind::Host, id: Some(host.id), name: host.name.to_string() }
}

fn key_problem(problem: KeyProblem) -> Problem {
    match problem {
        KeyProblem::Unavailable(reason) => Problem::new(ErrorCode::Unavailable, reason),
        KeyProblem::Refused(reason) => problems::conflict(reason),
    }
}
