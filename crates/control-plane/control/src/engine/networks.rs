//! Networks of the site, and the bridges on which hosts have them.
//!
//! A card on a network is recorded with the bridge and VLAN that its VM's host has for it, so that
//! an order to the host needs nothing else. That stays right because a network's VLAN never
//! changes, a host does not lose a network while it has VMs on it, and a VM that moves is connected
//! anew. Every request passes [`hold_networks`], so no network goes while a request for a card on
//! it is made.

use std::collections::BTreeSet;

use strongroom_api::network::{AddNetworkHost, CreateNetwork, Network, NetworkHost};
use strongroom_api::task::{Task, TaskKind};
use strongroom_api::vm::{Nic, NicBackend};
use strongroom_api::{ErrorCode, ObjectKind, Problem, Reference};
use strongroom_types::counted;
use uuid::Uuid;

use super::Control;
use super::access::Rights;
use super::placement::is_bound_for;
use super::wishes::Caller;
use crate::inventory::{Draft, Facet, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{NetworkRecord, OnBridge, Place, TaskRecord, VmRecord};

/// Most networks of a site: as many as there are VLANs.
const NETWORKS_MAX: usize = 4094;
/// The most hosts of a network: those of a site.
const HOSTS_MAX: usize = 64;

impl Control {
    /// The networks that a caller may view.
    pub fn list_networks_for(&self, rights: &Rights) -> Vec<Network> {
        let index = self.inventory.read();
        let seen = index.networks.iter().filter(|network| rights.sees_place(Place::Network(network.id)));
        seen.map(|network| view(&index, network)).collect()
    }

    /// One network.
    ///
    /// # Errors
    /// [`Problem`] if it does not exist, as for all methods here.
    pub fn show_network(&self, named: &str) -> Result<Network, Problem> {
        let index = self.inventory.read();
        let network = find_network(&index, named)?;
        Ok(view(&index, network))
    }

    /// Makes a network, which no host has yet.
    pub fn create_network(&self, caller: &Caller, wish: &CreateNetwork) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            if by_name_or_id(&index.networks, wish.name.as_str()).is_some() {
                return Err(problems::name_taken(ObjectKind::Network, wish.name.as_str()));
            }
            if index.networks.len() >= NETWORKS_MAX {
                let message = format!("a site has at most {NETWORKS_MAX} networks");
                return Err(Problem::new(ErrorCode::TooMany, message).next("delete one that is not needed"));
            }
            let record = NetworkRecord {
                id: Uuid::new_v4(),
                name: wish.name.clone(),
                vlan: wish.vlan,
                hosts: Vec::new(),
            };
            let task = self.task_done(task, TaskKind::NetworkCreate, record.object(), caller);
            Ok((task, self.draft().create_named(&record)))
        })
    }

    /// Deletes a network that no VM is connected to.
    pub fn delete_network(&self, caller: &Caller, named: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            let network = find_network(index, named)?;
            let vms = index.members(&Facet::Network(network.id)).len();
            must_be_free(network, vms, "")?;
            let task = self.task_done(task, TaskKind::NetworkDelete, network.object(), caller);
            Ok((task, self.draft().remove_named(network)))
        })
    }

    /// Says on which bridge a host has a network.
    pub fn add_network_host(
        &self,
        caller: &Caller,
        named: &str,
        wish: &AddNetworkHost,
    ) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            let network = find_network(index, named)?;
            let host = by_name_or_id(&index.hosts, &wish.host)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, &wish.host))?;
            if let Some(on) = network.on(host.id) {
                let message = format!("host {} has network {} on {}", host.name, network.name, on.bridge);
                let remove =
                    format!("`strongroom network remove-host {} --host {}` first", network.name, host.name);
                return Err(problems::conflict(message).next(remove));
            }
            if network.hosts.len() >= HOSTS_MAX {
                let message = format!("a network is on at most {HOSTS_MAX} hosts");
                return Err(Problem::new(ErrorCode::TooMany, message));
            }
            let mut more = NetworkRecord::clone(&network.record);
            more.hosts.push(OnBridge { host: host.id, bridge: wish.bridge.clone() });
            let message = format!("host {} has network {} on {}", host.name, network.name, wish.bridge);
            let draft = self.draft().replace(network, &more).present(host);
            let draft = draft.event("network.host_added", &network.object(), message, Some(task));
            let task = self.task_done(task, TaskKind::NetworkAddHost, network.object(), caller);
            Ok((task, draft))
        })
    }

    /// Says that a host has a network no more; none of its VMs is connected to it.
    pub fn remove_network_host(&self, caller: &Caller, named: &str, host: &str) -> Result<Task, Problem> {
        self.wish(caller, |index, task| {
            let network = find_network(index, named)?;
            let host = by_name_or_id(&index.hosts, host)
                .ok_or_else(|| problems::not_found(ObjectKind::Host, host))?;
            if network.on(host.id).is_none() {
                let message = format!("host {} does not have network {}", host.name, network.name);
                return Err(problems::conflict(message).next("there is nothing to do"));
            }
            let is_here = |vm: &&Row<VmRecord>| vm.host == host.id || is_bound_for(index, vm, host.id);
            let vms = index.vms_with(&Facet::Network(network.id)).filter(is_here).count();
            must_be_free(network, vms, &format!(" on host {}", host.name))?;
            let mut less = NetworkRecord::clone(&network.record);
            less.hosts.retain(|on| on.host != host.id);
            let message = format!("host {} has network {} no more", host.name, network.name);
            let draft = self.draft().replace(network, &less);
            let draft = draft.event("network.host_removed", &network.object(), message, Some(task));
            let task = self.task_done(task, TaskKind::NetworkRemoveHost, network.object(), caller);
            Ok((task, draft))
        })
    }
}

/// Connects network cards on a host: those on networks of the site get the bridge that the host
/// has.
///
/// # Errors
/// If there is no such network, or the host does not have it.
pub(super) fn connected(index: &Index, nics: &[Nic], host: Uuid) -> Result<Vec<Nic>, Problem> {
    let connect = |nic: &Nic| {
        let Some(named) = nic.backend.network() else { return Ok(nic.clone()) };
        let network = find_network(index, named.as_str())?;
        let Some(on) = network.on(host) else {
            let name =
                index.hosts.get(&host.to_string()).map_or_else(String::new, |host| host.name.to_string());
            let message = format!("host {name} does not have network {}", network.name);
            return Err(Problem::new(ErrorCode::NoHost, message).next(format!(
                "`strongroom network add-host {} --host {name} --bridge NAME`",
                network.name
            )));
        };
        let id = Reference::try_from(network.id.to_string()).map_err(problems::invalid)?;
        Ok(Nic { backend: NicBackend::Network { network: id, on: Some(on) }, ..nic.clone() })
    };
    nics.iter().map(connect).collect()
}

/// The network cards of a VM for callers, with the networks' names.
pub(super) fn shown(index: &Index, nics: &[Nic]) -> Vec<Nic> {
    let show = |nic: &Nic| {
        let NicBackend::Network { network, on } = &nic.backend else { return nic.clone() };
        let found = index.networks.get(network.as_str());
        let network = found.map_or_else(|| network.clone(), |found| found.name.clone().into());
        Nic { backend: NicBackend::Network { network, on: on.clone() }, ..nic.clone() }
    };
    nics.iter().map(show).collect()
}

/// Makes a transaction that connects VMs to networks conflict with any that takes such a network
/// away at the same time.
pub(super) fn hold_networks(
    index: &Index,
    task: &TaskRecord,
    changed: &[VmRecord],
    draft: Draft,
) -> Result<Draft, Problem> {
    let mut held: BTreeSet<Uuid> = BTreeSet::new();
    for vm in changed {
        let before = index.vm(vm.id).filter(|before| before.host == vm.host && task.work.target().is_none());
        let had: BTreeSet<Uuid> = before.iter().flat_map(|before| before.hardware.networks()).collect();
        held.extend(vm.hardware.networks().filter(|network| !had.contains(network)));
    }
    held.into_iter().try_fold(draft, |draft, id| match index.networks.get(&id.to_string()) {
        // It is written again, so that the other transaction has to look once more.
        Some(network) => Ok(draft.replace(network, &network.record)),
        None => Err(problems::not_found(ObjectKind::Network, &id.to_string())),
    })
}

/// The network with this name or id.
fn find_network<'index>(index: &'index Index, named: &str) -> Result<&'index Row<NetworkRecord>, Problem> {
    by_name_or_id(&index.networks, named).ok_or_else(|| problems::not_found(ObjectKind::Network, named))
}

fn must_be_free(network: &NetworkRecord, vms: usize, place: &str) -> Result<(), Problem> {
    if vms == 0 {
        return Ok(());
    }
    let message = format!("network {} has {}{place}", network.name, counted(vms, "VM"));
    Err(Problem::new(ErrorCode::InUse, message)
        .next("connect them to another one first: `strongroom vm set VM --net ...`"))
}

fn view(index: &Index, network: &NetworkRecord) -> Network {
    let host = |on: &OnBridge| {
        let known = index.hosts.get(&on.host.to_string());
        let host = known.map_or_else(|| on.host.to_string(), |known| known.name.to_string());
        NetworkHost { host, bridge: on.bridge.clone() }
    };
    Network {
        id: network.id,
        name: network.name.clone(),
        vlan: network.vlan,
        hosts: network.hosts.iter().map(host).collect(),
        vms: index.members(&Facet::Network(network.id)).len() as u64,
    }
}
