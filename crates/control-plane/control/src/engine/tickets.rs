//! Direct requests to hosts and key providers: tickets, and the state of a VM's keys.

use std::sync::Arc;

use parking_lot::Mutex;
use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_api::key::{KeyStanding, KeyState, KeyStatus};
use strongroom_api::vm::{DiskKind, ImageFormat, Ticket, TicketUse};
use strongroom_api::{ErrorCode, Name, ObjectKind, Problem};
use strongroom_host::protocol::{Grant, TicketId, TicketRequest, VmSpec};
use strongroom_types::VmId;
use strongroom_vm::DiskName;

use super::wishes::{Caller, dump_of, image_format, state};
use super::{Control, HostSeat};
use crate::host::Host;
use crate::inventory::{Index, Row};
use crate::keys::{GrantFor, KeyProblem};
use crate::problems;
use crate::records::{PolicyRecord, VmRecord};

/// Whether an action requires an entry in the audit log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MustRecord {
    /// It does for an encrypted VM.
    OfEncrypted,
    /// It does not; the entry is only attempted.
    Never,
}

/// The tickets that may not have been presented yet. They are forgotten with the process: a ticket
/// lasts for less time than a restart and the change of a right.
#[derive(Default)]
pub(super) struct TicketsOut(Mutex<Vec<TicketOut>>);

struct TicketOut {
    caller: Caller,
    host: Arc<dyn Host>,
    vm: VmId,
    id: TicketId,
    ticket: Ticket,
    use_: TicketUse,
}

/// The policy of a VM that refuses its console and screen to browsers, if it does.
pub(super) fn denying_browsers<'index>(
    index: &'index Index,
    vm: &VmRecord,
) -> Option<&'index Row<PolicyRecord>> {
    index.policy_of(vm).filter(|policy| policy.rules.browser_console_denied)
}

/// A ticket that was taken for a browser.
#[derive(Clone, Debug)]
pub struct TakenTicket {
    /// The ticket.
    pub ticket: Ticket,
    vm: VmId,
    /// Who asked for it, and for what.
    caller: Caller,
}

impl Control {
    /// Requests a ticket for a connection to a guest. It is passed on, and not stored durably.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn ticket(&self, caller: &Caller, named: &str, wanted: &TicketUse) -> Result<Ticket, Problem> {
        let vm = self.inventory.read().find_vm(named).cloned();
        let vm = vm.ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        let request = match wanted {
            TicketUse::Console { read_only: true, take_over: true } => {
                let problem = problems::invalid("who only reads takes over from nobody");
                return Err(problem.next("leave out `read_only` or `take_over`"));
            }
            TicketUse::Console { read_only, take_over } => {
                let taken_by = take_over.then(|| caller.name.clone());
                TicketRequest::Console { read_only: *read_only, taken_by }
            }
            TicketUse::ConsoleLog {} => {
                TicketRequest::ConsoleLog { spec: self.told(&vm)?, grants: self.log_grants(&vm)? }
            }
            TicketUse::Dump { number } => {
                dump_of(&self.inventory.read(), &vm, *number)?;
                let (spec, grants) = (self.told(&vm)?, self.log_grants(&vm)?);
                TicketRequest::Dump { spec, number: *number, grants }
            }
            TicketUse::Check { disk, data } => self.check_request(&vm, disk, *data)?,
            TicketUse::Export { disk, format } => self.export_request(&vm, disk, *format)?,
            TicketUse::Vnc { read_only: false } => TicketRequest::Vnc,
            TicketUse::Vnc { read_only: true } => TicketRequest::VncToLook,
            TicketUse::Upload { disk } => {
                let Some(disk) = vm.hardware.fillable(disk.as_str()) else {
                    return Err(problems::not_found(
                        ObjectKind::Volume,
                        &format!("{disk} of VM {}", vm.name),
                    ));
                };
                TicketRequest::Upload { disk }
            }
        };
        let seat = self.seat_of(&vm)?;
        knows_of(seat, wanted)?;
        let (kind, what) = use_of(wanted, vm.name.as_str());
        self.still_may(&self.inventory.read(), caller)?;
        let entry = caller.entry_of(AccessKind::Ticket, what.clone());
        self.record_access(caller, AccessEntry { object: Some(vm.object()), ..entry })?;
        self.put_on_record(caller, &vm, &what, MustRecord::OfEncrypted)?;
        let told = seat.host.ticket(vm.id, &request);
        let told = told.map_err(|error| problems::host(seat.name.as_str(), &error))?;
        if let Some(kind) = kind {
            // The event is recorded before the ticket can be used.
            let message = format!("{what}, by {}", caller.name);
            let event = || self.draft().event(kind, &vm.object(), message.clone(), None);
            self.race(|| Ok(self.inventory.commit(event())?))?;
        }
        // A host on another machine is reached where its record says, whatever it says itself.
        let listens = told.port.as_ref().map(|port| port.listen.to_string());
        let ticket = Ticket {
            ticket: told.ticket.clone().into(),
            expires_unix_seconds: told.expires_unix_seconds,
            socket: told.socket.display().to_string(),
            host: seat.name.to_string(),
            address: seat.address.clone().or(listens),
            certificate_sha256: told.port.map(|port| port.certificate_sha256),
        };
        let out = TicketOut {
            caller: caller.clone(),
            host: Arc::clone(&seat.host),
            vm: vm.id,
            id: told.ticket,
            ticket: ticket.clone(),
            use_: wanted.clone(),
        };
        self.tickets.0.lock().push(out);
        // The right may have been lost while the host was asked.
        self.void_tickets();
        self.still_may(&self.inventory.read(), caller)?;
        Ok(ticket)
    }

    /// Takes a ticket of this caller for a console, a screen or an upload, once, to be presented
    /// for its browser.
    ///
    /// # Errors
    /// `not_found` if there is none, or it was taken; `forbidden` if the VM's policy says so.
    pub fn take_ticket(&self, caller: &Caller, ticket: &str) -> Result<TakenTicket, Problem> {
        self.void_tickets();
        let mut out = self.tickets.0.lock();
        let is_it = |out: &TicketOut| {
            let is_shown = matches!(
                out.use_,
                TicketUse::Console { .. } | TicketUse::Vnc { .. } | TicketUse::Upload { .. }
            );
            is_shown && out.caller.principal == caller.principal && out.ticket.ticket == ticket
        };
        let found = out.iter().position(is_it);
        let found = found.ok_or_else(|| {
            let problem = Problem::new(ErrorCode::NotFound, "there is no such ticket of this caller");
            problem.next("ask for another one: each is used once, within 30 seconds")
        })?;
        let TicketOut { vm, ticket, caller, .. } = out.swap_remove(found);
        drop(out);
        self.expect_browsers(vm)?;
        Ok(TakenTicket { ticket, vm, caller })
    }

    /// Whether what a browser has opened with a ticket may go on: its caller has the right to it,
    /// and the VM's policy permits it.
    pub fn may_go_on(&self, taken: &TakenTicket) -> bool {
        self.still_may(&self.inventory.read(), &taken.caller).is_ok()
            && self.expect_browsers(taken.vm).is_ok()
    }

    /// Refuses guest data to browsers if the VM's policy does.
    fn expect_browsers(&self, vm: VmId) -> Result<(), Problem> {
        let index = self.inventory.read();
        let Some(vm) = index.vm(vm) else { return Ok(()) };
        denying_browsers(&index, vm).map_or(Ok(()), |policy| {
            let problem = Problem::new(
                ErrorCode::Forbidden,
                format!(
                    "policy {} refuses VM {}'s console and screen, and its uploads, to browsers",
                    policy.name, vm.name
                ),
            );
            Err(problem.next("the command line goes to the VM's host directly: `strongroom vm`"))
        })
    }

    /// Ends the tickets of callers that have lost their right to them. Connections that are open
    /// stay.
    pub(super) fn void_tickets(&self) {
        let mut out = self.tickets.0.lock();
        if out.is_empty() {
            return;
        }
        let now_unix_seconds = self.now_unix_ms() / 1000;
        out.retain(|out| out.ticket.expires_unix_seconds > now_unix_seconds);
        let lost: Vec<_> = {
            let index = self.inventory.read();
            out.extract_if(.., |out| self.still_may(&index, &out.caller).is_err()).collect()
        };
        drop(out);
        for TicketOut { caller, host, id, .. } in lost {
            // An unreachable host may still take it, for some seconds.
            if let Err(error) = host.void_ticket(&id) {
                tracing::warn!(caller = %caller.name, "a ticket could not be ended: {error}");
            }
        }
    }

    /// Makes the key server record in its audit log that someone accesses guest data.
    pub(super) fn put_on_record(
        &self,
        caller: &Caller,
        vm: &VmRecord,
        what: &str,
        must: MustRecord,
    ) -> Result<(), Problem> {
        match self.keys.record_use(vm.id, what, &caller.name) {
            Ok(()) => Ok(()),
            Err(problem) if must == MustRecord::Never || !vm.hardware.encrypted() => {
                tracing::warn!(vm = %vm.name, %problem, what, "not on the audit log");
                Ok(())
            }
            Err(problem) => {
                let message =
                    format!("VM {} is encrypted, and this cannot be put on record: {problem}", vm.name);
                Err(Problem::new(ErrorCode::KeyUnavailable, message)
                    .next("see to it that the key server runs, and that its disk is not full"))
            }
        }
    }

    /// The request to the host for a copy of a disk.
    fn export_request(
        &self,
        vm: &VmRecord,
        disk: &Name,
        format: ImageFormat,
    ) -> Result<TicketRequest, Problem> {
        if format == ImageFormat::Auto {
            return Err(problems::invalid(
                "an image is written in a format that is said: raw, qcow2, vmdk or vhdx",
            ));
        }
        let disk = self.disk_of_one_off(vm, disk)?;
        let (spec, grants) = (self.told(vm)?, self.log_grants(vm)?);
        Ok(TicketRequest::Export { spec, disk, format: image_format(format), grants })
    }

    /// The request to the host for a check of a disk.
    fn check_request(&self, vm: &VmRecord, disk: &Name, data: bool) -> Result<TicketRequest, Problem> {
        let disk = self.disk_of_one_off(vm, disk)?;
        let (spec, grants) = (self.told(vm)?, self.log_grants(vm)?);
        Ok(TicketRequest::Check { spec, disk, reads_blocks: data, grants })
    }

    /// Returns a data disk of a VM that is off.
    fn disk_of_one_off(&self, vm: &VmRecord, disk: &Name) -> Result<DiskName, Problem> {
        let named = vm.hardware.disks.iter().filter(|one| one.kind == DiskKind::Data).map(|one| &one.name);
        let mut found = named.filter(|name| name.as_str() == disk.as_str());
        let none = || problems::not_found(ObjectKind::Volume, &format!("{disk} of VM {}", vm.name));
        let disk = found.next().ok_or_else(none)?.clone();
        let power = self.inventory.read().observed(vm.id).map(|seen| seen.power);
        if let Some(power) = power.filter(|power| power.is_on()) {
            let problem = state(vm, power, "its disks are its guest's, who writes to them all the while");
            return Err(problem.next(format!("stop it first: `strongroom vm stop {}`", vm.name)));
        }
        Ok(disk)
    }

    /// Returns the configuration for a host that opens the VM's volumes.
    pub(super) fn told(&self, vm: &VmRecord) -> Result<Box<VmSpec>, Problem> {
        let paths = self.datastore_paths(vm).ok_or_else(|| problems::datastore_unknown(vm))?;
        vm.told(&paths).map(Box::new).ok_or_else(|| problems::key_never_made(vm))
    }

    /// Returns grants for the key of a VM that is off, which encrypts its console log and its
    /// dumps.
    pub(super) fn log_grants(&self, vm: &VmRecord) -> Result<Vec<Grant>, Problem> {
        let on = self.inventory.read().observed(vm.id).is_some_and(|seen| seen.power.is_on());
        let keys = vm.hardware.keys();
        if on || keys.is_empty() {
            return Ok(Vec::new());
        }
        let seat = self.seat_of(vm)?;
        let grants = self.keys.grant(vm.id, vm.generation(), GrantFor::Current, seat.name.as_str(), &keys);
        grants.map_err(|problem| match problem {
            KeyProblem::Unavailable(reason) | KeyProblem::Refused(reason) => Problem::new(
                ErrorCode::KeyUnavailable,
                format!("VM {}: no leave to use {}: {reason}", vm.name, keys[0]),
            ),
        })
    }

    /// Queries the providers for the states of a VM's keys.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn key_status(&self, named: &str) -> Result<KeyStatus, Problem> {
        let vm = self.inventory.read().find_vm(named).cloned();
        let vm = vm.ok_or_else(|| problems::not_found(ObjectKind::Vm, named))?;
        let keys = vm.hardware.keys();
        let mut standings = self.keys.states(&keys);
        if standings.len() != keys.len() {
            return Err(Problem::new(ErrorCode::Internal, "the key providers did not answer for every key"));
        }
        if let Some(wish) = vm.key_wish.as_ref().filter(|_| keys.is_empty()) {
            standings.push(KeyStanding {
                provider: wish.provider.to_string(),
                key: String::new(),
                state: KeyState::Pending,
                reason: Some("it has not been made yet".to_owned()),
                expires_unix_seconds: None,
            });
        }
        Ok(KeyStatus { vm: vm.id, encrypted: vm.hardware.encrypted(), keys: standings })
    }
}

/// Checks that a host knows what a ticket is for. One that does not answer is not known to be of an
/// earlier version.
fn knows_of(seat: &HostSeat, wanted: &TicketUse) -> Result<(), Problem> {
    let what = match wanted {
        TicketUse::Console { take_over: true, .. } => "nobody takes a console over",
        TicketUse::Vnc { read_only: true } => "nobody only looks at a screen",
        TicketUse::Console { take_over: false, .. }
        | TicketUse::Vnc { read_only: false }
        | TicketUse::ConsoleLog {}
        | TicketUse::Dump { .. }
        | TicketUse::Check { .. }
        | TicketUse::Export { .. }
        | TicketUse::Upload { .. } => return Ok(()),
    };
    let seen = seat.seen();
    match &seen.state {
        Some(state) if !state.consoles_change_hands => {
            let message = format!("host {} has version {}, in which {what}", seat.name, state.version);
            Err(Problem::new(ErrorCode::NoHost, message).next("upgrade the program there"))
        }
        Some(_) | None => Ok(()),
    }
}

/// The event of a ticket for guest data: its kind, and its text.
fn use_of(wanted: &TicketUse, vm: &str) -> (Option<&'static str>, String) {
    let (kind, what) = match wanted {
        TicketUse::Console { read_only: false, take_over: false } => {
            ("vm.console_opened", format!("the console of VM {vm} is opened"))
        }
        TicketUse::Console { read_only: false, take_over: true } => {
            ("vm.console_opened", format!("the console of VM {vm} is taken over from who writes"))
        }
        TicketUse::Console { read_only: true, .. } => {
            ("vm.console_opened", format!("the console, to be read only, of VM {vm} is opened"))
        }
        TicketUse::ConsoleLog {} => ("vm.console_opened", format!("the console's log of VM {vm} is opened")),
        TicketUse::Vnc { read_only: false } => {
            ("vm.screen_opened", format!("the screen of VM {vm} is opened"))
        }
        TicketUse::Vnc { read_only: true } => {
            ("vm.screen_opened", format!("the screen, to be looked at only, of VM {vm} is opened"))
        }
        TicketUse::Dump { number } => ("vm.dump_opened", format!("dump {number} of VM {vm} is opened")),
        // A check reveals only whether the disk is intact.
        TicketUse::Check { disk, .. } => return (None, format!("{disk} of VM {vm} is checked")),
        TicketUse::Export { disk, .. } => ("vm.disk_exported", format!("{disk} of VM {vm} is exported")),
        // The import that follows has an event of its own.
        TicketUse::Upload { disk } => return (None, format!("an image is brought for {disk} of VM {vm}")),
    };
    (Some(kind), what)
}
