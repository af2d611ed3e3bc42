//! Hosts in maintenance: no VM is placed or started there. VMs that run go on.

use strongroom_api::host::{Host, SetHost};
use strongroom_api::{ObjectKind, Problem};

use super::Control;
use super::joining::host_object;
use super::wishes::Caller;
use crate::inventory::{Draft, Row, by_name_or_id};
use crate::problems;
use crate::records::HostRecord;

impl Control {
    /// Changes a host.
    ///
    /// # Errors
    /// [`Problem`].
    pub fn set_host(&self, caller: &Caller, named: &str, wish: &SetHost) -> Result<Host, Problem> {
        let message = match wish.maintenance {
            Some(true) => format!("host {named} is in maintenance"),
            Some(false) => format!("host {named} is in maintenance no more"),
            None => format!("host {named} was not changed"),
        };
        self.change(caller, message, |index, _| {
            let host = by_name_or_id(&index.hosts, named)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, named))?;
            let maintenance = wish.maintenance.unwrap_or(host.maintenance);
            Ok(((), self.with_maintenance(host, maintenance)))
        })?;
        self.show_host(named)
    }

    /// The transaction that sets whether a host is in maintenance.
    pub(super) fn with_maintenance(&self, host: &Row<HostRecord>, maintenance: bool) -> Draft {
        if host.maintenance == maintenance {
            return self.draft().unchanged(host);
        }
        let message = match maintenance {
            true => format!("host {} is in maintenance: no VM is placed or started there", host.name),
            false => format!("host {} is in maintenance no more", host.name),
        };
        let changed = HostRecord { maintenance, ..HostRecord::clone(&host.record) };
        self.draft().replace(host, &changed).event("host.maintenance", &host_object(host), message, None)
    }
}
