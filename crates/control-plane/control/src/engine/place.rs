//! Makes a VM's record from a request: has its host chosen, applies its policy, and fills in
//! defaults.

use std::path::PathBuf;

use strongroom_api::policy::PolicyRules;
use strongroom_api::vm::{CreateVm, DesiredPower, EncryptionWish, Lifecycle, Nic, NicBackend};
use strongroom_api::{ErrorCode, Name, ObjectKind, Problem};
use strongroom_host::protocol;
use strongroom_types::{
    DatastoreId, IoLimits, KeyRequestId, NAME_BYTES_MAX, ProviderKey, ProviderName, VmId,
};
use strongroom_vm::{DiskKind, Firmware, MacAddress};
use uuid::Uuid;

use super::Control;
use super::access::find_folder;
use super::boards;
use super::describe::{host_reads, one_for_each_key};
use super::networks::connected;
use super::placement::{Among, Choice, Needs, must_not_be_in_maintenance};
use super::placement_groups;
use super::wishes::name_of;
use crate::inventory::{Draft, Index, Row, by_name_or_id};
use crate::problems;
use crate::records::{
    DatastorePaths, DatastoreRecord, DiskRecord, DiskSealing, Hardware, KeyWish, PolicyRecord, VmRecord,
};

/// The record of a new VM.
pub(super) struct Placed {
    pub vm: VmRecord,
    /// Why it is placed where it is, if there was a choice.
    pub reason: Option<String>,
}

impl Placed {
    /// Adds the event that says why.
    pub fn told(&self, draft: Draft, task: Uuid) -> Draft {
        let Some(reason) = &self.reason else { return draft };
        let message = format!("{}: {reason}", problems::called(&self.vm));
        draft.event("vm.placed", &self.vm.object(), message, Some(task))
    }
}

impl Control {
    /// Makes the record of the requested VM.
    pub(super) fn place(&self, index: &Index, wish: &CreateVm, task: Uuid) -> Result<Placed, Problem> {
        let datastore = find_datastore(index, wish.datastore.as_deref())?;
        let policy = find_policy(index, wish.policy.as_deref())?;
        let rules = policy.map_or_else(PolicyRules::default, |policy| policy.rules.clone());
        let group =
            wish.placement_group.as_ref().map(|named| placement_groups::called(index, named.as_str()));
        let group = group.transpose()?;
        let board = boards::wanted(&wish.board, &rules);
        let needs = Needs {
            called: format!("VM {}", wish.name),
            board: Some(&board),
            has_processor_of: None,
            datastore,
            policy,
            memory_bytes: wish.memory_bytes.bytes(),
            processors: wish.cpus.count(),
            nics: wish.nics.as_deref(),
            others: Vec::new(),
            vm: None,
            has_tpm: wish.tpm,
            groups: group.into_iter().collect(),
        };
        let among = wish.host.as_deref().map_or(Among::All, Among::Named);
        let Choice { seat, reason } = self.choose(index, &needs, &among)?;
        let (sealing, key_wish) = self.sealing(&wish.encryption, &rules)?;
        let (mut data, mut swap) = (0.., 0..);
        let disks = wish.disks.iter().map(|disk| {
            let name = match disk.kind {
                DiskKind::Data => format!("disk{}", data.next().unwrap_or(0)),
                DiskKind::Swap => format!("swap{}", swap.next().unwrap_or(0)),
            };
            Ok(DiskRecord {
                name: name.parse().map_err(|_| problems::invalid("too many disks"))?,
                size: disk.size_bytes,
                kind: disk.kind,
                frontend: disk.frontend,
                sealing: sealing.clone(),
                volume: None,
                pinned: false,
                least_generation: 0,
                thick: rules.thick_required,
                integrity: disk.integrity || (rules.integrity_required && may_have_tags(disk.kind, &sealing)),
                volume_name: None,
                shares_with: Vec::new(),
                limits: rules.disk_limits,
                datastore: None,
                moves_from: None,
                moves_to: None,
            })
        });
        let hardware = Hardware {
            own_volumes: Vec::new(),
            board: boards::on_host(board, seat),
            firmware: wish.firmware,
            cpus: wish.cpus,
            memory: wish.memory_bytes,
            growth: wish.growth,
            disks: disks.collect::<Result<_, Problem>>()?,
            limits: IoLimits::NONE,
            nics: addressed(&self.networks(index, seat.id, wish)?)?,
            tpm: wish.tpm,
            seed: wish.seed,
            boot: wish.boot.clone(),
            cdrom: wish.cdrom.clone(),
        };
        let id = VmId::random();
        let vm = VmRecord {
            id,
            name: wish.name.clone(),
            directory: free_directory(index, datastore.id, &wish.name, id)?,
            notes: wish.notes.clone(),
            tags: one_for_each_key(&wish.tags)?,
            datastore: datastore.id,
            host: seat.id,
            policy: policy.map(|policy| policy.id),
            folder: find_folder(index, wish.folder.as_ref())?,
            key_wish: key_wish.filter(|_| !hardware.disks.is_empty()),
            renews_data_keys: false,
            hardware,
            lifecycle: Lifecycle::Creating,
            desired: DesiredPower::Stopped,
            restart: rules.restart.unwrap_or(wish.restart),
            generation: 0,
            task: Some(task),
            from_backup: false,
            created_unix_seconds: self.now_unix_ms() / 1000,
            data_keys_unix_seconds: None,
            prepared: 0,
            restarts_unix_ms: Vec::new(),
            origin: None,
            template: None,
            holds_volume: false,
            was_encrypted: false,
        };
        let path_of = |_| Some(PathBuf::from(datastore.on(seat.id)?.path.as_str()));
        check(&vm, &DatastorePaths::of(&vm, path_of).unwrap_or_else(|| DatastorePaths::nowhere(&vm)))?;
        host_reads(seat, &vm)?;
        Ok(Placed { vm, reason })
    }

    /// Checks that a VM may be started on its host now.
    pub(super) fn may_start(&self, index: &Index, vm: &VmRecord) -> Result<(), Problem> {
        index.host_of(vm).map_or(Ok(()), |host| must_not_be_in_maintenance(host))?;
        if let Some(seat) = self.runs_elsewhere(index, vm) {
            let message = format!("VM {} runs on host {}, which is not its host", vm.name, seat.name);
            return Err(problems::conflict(message).next(
                "see which of the two is right before anything is started: `strongroom event alarms`",
            ));
        }
        self.check_host(index, vm)
    }

    /// Checks that a VM's policy allows its host in the host's present state.
    fn check_host(&self, index: &Index, vm: &VmRecord) -> Result<(), Problem> {
        let Some(policy) = index.policy_of(vm) else { return Ok(()) };
        let Some(seat) = self.seat(vm.host) else { return Err(problems::host_unknown(vm.name.as_str())) };
        self.check_crypto_safe(policy, &problems::called(vm), seat)
    }

    /// Returns the requested network interfaces; by default one on the network `user`, if the host
    /// supports it.
    fn networks(&self, index: &Index, host: Uuid, wish: &CreateVm) -> Result<Vec<Nic>, Problem> {
        let Some(nics) = &wish.nics else {
            let user = Nic::on(NicBackend::User {});
            return Ok(if self.lacks_user_network(host) { Vec::new() } else { vec![user] });
        };
        self.connected_on(index, host, nics)
    }

    /// Connects network interfaces on a host, if it can connect them.
    pub(super) fn connected_on(&self, index: &Index, host: Uuid, nics: &[Nic]) -> Result<Vec<Nic>, Problem> {
        let connected = connected(index, nics, host)?;
        let wants_user = nics.iter().any(|nic| nic.backend == NicBackend::User {});
        if !wants_user || !self.lacks_user_network(host) {
            return Ok(connected);
        }
        let name = self.seat(host).map_or("", |seat| seat.name.as_str());
        let message = format!("host {name} has no passt, which connects guests by the network user");
        Err(Problem::new(ErrorCode::NoHost, message)
            .next("install it there (Debian: passt), or choose a bridge, or no network card: `--net none`"))
    }

    /// Whether the host is known to lack support for the network `user`.
    fn lacks_user_network(&self, host: Uuid) -> bool {
        let Some(seat) = self.seat(host) else { return false };
        let seen = seat.seen();
        let programs = seen.state.as_ref().and_then(|state| state.programs.as_ref());
        programs.is_some_and(|programs| programs.passt.is_none())
    }

    /// Returns the sealing of its disks, and the request for a new key if one must be made.
    fn sealing(
        &self,
        wish: &EncryptionWish,
        rules: &PolicyRules,
    ) -> Result<(DiskSealing, Option<KeyWish>), Problem> {
        if !wish.encrypted {
            return Ok((DiskSealing::Clear, None));
        }
        let provider = match (&wish.provider, &rules.key_provider) {
            (Some(asked), Some(demanded)) if asked != demanded => {
                return Err(problems::conflict(format!(
                    "the policy demands key provider {demanded}, and {asked} was asked for"
                )));
            }
            (Some(name), _) | (None, Some(name)) => provider_name(name)?,
            (None, None) => self.only_provider()?,
        };
        let Some(key) = &wish.key else {
            return Ok((DiskSealing::Awaited, Some(KeyWish { provider, request: KeyRequestId::random() })));
        };
        let key = key.parse().map_err(|error| problems::invalid(format!("{error}")))?;
        Ok((DiskSealing::under(ProviderKey { provider, key, wrapped: None }, None), None))
    }

    /// Refuses an unknown key provider: a VM would wait for its key for ever.
    pub(super) fn must_be_provider(&self, name: &Name) -> Result<(), Problem> {
        let is_known = || self.providers().iter().any(|known| known.name == name.as_str());
        if !is_known() {
            // It may have been added since the last query.
            self.ask_providers();
        }
        if is_known() { Ok(()) } else { Err(problems::not_found(ObjectKind::KeyProvider, name.as_str())) }
    }

    pub(super) fn only_provider(&self) -> Result<ProviderName, Problem> {
        let providers = self.providers();
        let [provider] = providers.as_slice() else {
            let message = match providers.len() {
                0 => "there is no key provider, so no key for the VM".to_owned(),
                many => format!("there are {many} key providers; which one shall make the VM's key?"),
            };
            return Err(problems::invalid(message)
                .next("name one with --key-provider; `strongroom key-provider list` shows what there is"));
        };
        provider.name.parse().map_err(|error| problems::invalid(format!("{error}")))
    }
}

/// Returns the name of a new VM's directory, unless it is the VM's own: one that was renamed may
/// have kept that.
fn free_directory(
    index: &Index,
    datastore: DatastoreId,
    name: &Name,
    vm: VmId,
) -> Result<Option<Name>, Problem> {
    let is_there = |other: &&Row<VmRecord>| other.datastore == datastore;
    if index.vms_in(datastore).filter(is_there).all(|other| other.directory() != name) {
        return Ok(None);
    }
    let suffix = format!("-{}", vm.to_string().replace('-', ""));
    let kept = name.as_str().len().min(NAME_BYTES_MAX - suffix.len());
    name_of(&format!("{}{suffix}", &name.as_str()[..kept])).map(Some)
}

/// Returns the datastore with this name or id; the only one if none is named.
pub(super) fn find_datastore<'index>(
    index: &'index Index,
    named: Option<&str>,
) -> Result<&'index Row<DatastoreRecord>, Problem> {
    if let Some(named) = named {
        return by_name_or_id(&index.datastores, named)
            .ok_or_else(|| problems::not_found(ObjectKind::Datastore, named));
    }
    let mut all = index.datastores.iter();
    match (all.next(), all.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => {
            Err(problems::invalid("there is no datastore yet").next("`strongroom datastore add NAME PATH`"))
        }
        _ => Err(problems::invalid("there are several datastores; which one is meant?")
            .next("name one with --datastore")),
    }
}

fn find_policy<'index>(
    index: &'index Index,
    named: Option<&str>,
) -> Result<Option<&'index Row<PolicyRecord>>, Problem> {
    let Some(named) = named else { return Ok(None) };
    let found = by_name_or_id(&index.policies, named);
    found.map(Some).ok_or_else(|| problems::not_found(ObjectKind::Policy, named))
}

/// Whether a disk can have integrity tags.
pub(super) fn may_have_tags(kind: DiskKind, sealing: &DiskSealing) -> bool {
    kind == DiskKind::Data && *sealing != DiskSealing::Clear
}

/// Checks a VM against the limits of the API and of hosts.
pub(super) fn check(vm: &VmRecord, paths: &DatastorePaths) -> Result<(), Problem> {
    let hardware = &vm.hardware;
    let keeps = hardware.tpm || hardware.seed || hardware.firmware == Firmware::Uefi;
    if hardware.disks.is_empty() && keeps {
        return Err(problems::invalid(
            "a VM without a disk has no key for what its firmware, TPM or seed keeps",
        )
        .next("give it a disk, or BIOS and no TPM or seed"));
    }
    check_integrity(&hardware.disks)?;
    match told_without_key(vm, paths) {
        Some(spec) => spec.check().map_err(|error: protocol::SpecError| problems::invalid(error.to_string())),
        None => Err(problems::invalid(format!("{} is no name of a VM", vm.name))),
    }
}

/// Tags need an encrypted data disk: their key is the disk's, and a swap disk is new at each start.
fn check_integrity(disks: &[DiskRecord]) -> Result<(), Problem> {
    for disk in disks.iter().filter(|disk| disk.integrity) {
        if disk.kind == DiskKind::Swap {
            let message =
                format!("{} is for swap and empty at each start, so it has no tags to keep", disk.name);
            return Err(problems::invalid(message).next("ask for integrity for disks that keep data"));
        }
        if disk.sealing == DiskSealing::Clear {
            let message = format!("{} is not encrypted, so there is no key to make tags with", disk.name);
            return Err(problems::invalid(message).next("leave out integrity, or encrypt the VM"));
        }
    }
    Ok(())
}

/// Returns the configuration for a host's check, with a placeholder for a key that does not exist
/// yet.
pub(super) fn told_without_key(vm: &VmRecord, paths: &DatastorePaths) -> Option<protocol::VmSpec> {
    let mut known = vm.clone();
    for disk in &mut known.hardware.disks {
        if disk.sealing == DiskSealing::Awaited {
            disk.sealing = DiskSealing::Clear;
            // Without the key there are no tags yet.
            disk.integrity = false;
        }
    }
    known.told(paths)
}

/// Gives each interface without an address one.
pub(super) fn addressed(nics: &[Nic]) -> Result<Vec<Nic>, Problem> {
    let address = |nic: &Nic| {
        if nic.mac.is_some() {
            return Ok(nic.clone());
        }
        let mut bytes = [0u8; 3];
        getrandom::fill(&mut bytes).map_err(|error| {
            Problem::new(ErrorCode::Unavailable, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Nic { mac: Some(MacAddress::of_qemu(bytes)), ..nic.clone() })
    };
    nics.iter().map(address).collect()
}

/// Returns the name of a key's provider.
pub(super) fn provider_of(key: &ProviderKey) -> Result<Name, Problem> {
    Name::new(key.provider.as_str()).map_err(|error| problems::invalid(error.to_string()))
}

pub(super) fn provider_name(name: &Name) -> Result<ProviderName, Problem> {
    name.as_str().parse().map_err(|error| problems::invalid(format!("{error}")))
}
