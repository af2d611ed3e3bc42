//! What each operation, and each field of its request, requires of the caller.
//!
//! [`OPERATIONS`](crate::OPERATIONS) has a [`Guard`] for each operation. The fields whose use takes
//! more are [`Part`]s, and each type of a request body is [`Guarded`]: it names the parts that it
//! uses by taking itself apart without `..`, so that a new field does not compile until its guard
//! is chosen.

use crate::Privilege;
use crate::access::{
    ChangePassword, CreateFolder, CreateGrant, CreateRole, CreateToken, CreateUser, Explain, MoveVm,
    RenewSecondFactor, SetAccessLogRetention, SetFolder, SignIn, VerifyAccessLog,
};
use crate::backup::MakeInventoryBackup;
use crate::browser::{BeginPageSignIn, PageSignIn};
use crate::datastore::{AddDatastore, AddDatastoreHost, RebuildDatastore};
use crate::emergency::{CreateEmergency, EmergencySignIn};
use crate::host::{AdmitHost, BalanceHosts, CreateHostToken, EvacuateHost, FenceHost, SetHost};
use crate::identity::{BeginSignIn, CreateIdentityProvider, FinishSignIn, SetIdentityProvider};
use crate::network::{AddNetworkHost, CreateNetwork};
use crate::placement::{CreatePlacementGroup, SetPlacementGroup};
use crate::policy::{ApplyPolicy, CreatePolicy, SetPolicy};
use crate::recipient::{CreateRecipient, TestRecipient};
use crate::vm::{
    AddDisk, AddNic, Cdrom, CloneVm, CreateSnapshot, CreateVm, DeleteVm, DumpVm, EncryptDisk, ImportDisk,
    MoveDisk, MoveToHost, Nic, NicBackend, PatchNic, PatchVm, PowerOptions, RegisterVm, ResizeDisk, RevertVm,
    RotateKey, SetCryptoperiod, SetLimits, SetSnapshotSchedule, SnapshotRule, StartVm, StopVm, TemplateVm,
    TicketUse,
};
use crate::volume::{
    BindVolume, ChangeVolumes, CloneVolume, CreateVolume, DeleteVolume, DeleteVolumeSnapshot, ReadVolumes,
    ResizeVolume, RevertVolume, SnapshotVolume, UnbindVolume, VolumeChange,
};

/// Privileges that are needed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// For every object.
    pub always: &'static [Privilege],
    /// In addition, for a VM or volume that is encrypted.
    pub if_encrypted: &'static [Privilege],
}

impl Needs {
    /// Needs these privileges, whether the object is encrypted or not.
    pub const fn plain(always: &'static [Privilege]) -> Self {
        Self { always, if_encrypted: &[] }
    }
}

/// Who may call an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Anyone, without a token.
    Everyone,
    /// Everyone with a token. The answer has what the caller may view, or is about the caller.
    Callers,
    /// Callers with the privileges on the object that the path names, or on the site.
    Needs(Needs),
    /// Callers with the privileges that the request's parts need.
    Request,
    /// Each entry of the request is judged on its own.
    Entries,
}

/// A part of a request that takes privileges of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// A new VM or volume.
    New,
    /// A new VM or volume that is encrypted.
    NewEncrypted,
    /// An existing key for a new VM.
    ExistingKey,
    /// A place in a datastore.
    Datastore,
    /// Name, notes, tags.
    Description,
    /// Processors, memory, automatic restart.
    Size,
    /// What the guest boots: kernel, initial RAM disk, command line, boot order.
    Boot,
    /// The image in the CD-ROM drive.
    Cdrom,
    /// Network cards.
    Nics,
    /// A card on a network.
    Network,
    /// A card on a bridge or tap device of a host.
    HostInterface,
    /// Whether there is a screen.
    Screen,
    /// An image that fills a disk or the cloud-init seed.
    Fill,
    /// A new disk.
    NewDisk,
    /// A freeze by the agent in the guest.
    GuestAgent,
    /// A snapshot.
    Snapshot,
    /// A return to a snapshot, with the NVRAM and, if asked for, memory and TPM.
    Revert,
    /// A clone.
    Clone,
    /// A clone in plain text of what is encrypted.
    DecryptedClone,
    /// An encrypted clone of what is in plain text.
    EncryptedClone,
    /// The console, its log, the screen.
    Console,
    /// The content of a dump.
    Dump,
    /// A copy of a disk in plain text.
    Export,
    /// A check of a disk.
    Check,
    /// A map of a volume.
    Map,
    /// A configuration for which no key vouches.
    UnvouchedConfiguration,
    /// A larger volume.
    Resize,
    /// The deletion of a volume.
    Delete,
    /// A disk that a VM gets, with its content, or loses.
    Bind,
    /// A folder that a VM is moved into.
    Folder,
    /// The placement group of a new VM.
    PlacementGroup,
}

impl Part {
    /// Every part.
    pub const ALL: [Self; 31] = [
        Self::New,
        Self::NewEncrypted,
        Self::ExistingKey,
        Self::Datastore,
        Self::Description,
        Self::Size,
        Self::Boot,
        Self::Cdrom,
        Self::Nics,
        Self::Network,
        Self::HostInterface,
        Self::Screen,
        Self::Fill,
        Self::NewDisk,
        Self::GuestAgent,
        Self::Snapshot,
        Self::Revert,
        Self::Clone,
        Self::DecryptedClone,
        Self::EncryptedClone,
        Self::Console,
        Self::Dump,
        Self::Export,
        Self::Check,
        Self::Map,
        Self::UnvouchedConfiguration,
        Self::Resize,
        Self::Delete,
        Self::Bind,
        Self::Folder,
        Self::PlacementGroup,
    ];

    /// The fields, for people.
    pub const fn fields(self) -> &'static str {
        match self {
            Self::New => "a new VM or volume",
            Self::NewEncrypted => "`encryption.encrypted`, `encrypted` of something new",
            Self::ExistingKey => "`encryption.key`",
            Self::Datastore => "`datastore` of something new, or of what moves; `with_volumes`",
            Self::Description => "`name`, `notes`, `tags` of what is there",
            Self::Size => "`cpus`, `memory_bytes`, `growth`, `machine_type`, `processor`, `restart`",
            Self::Boot => "`boot`",
            Self::Cdrom => "`cdrom`",
            Self::Nics => "`nics`",
            Self::Network => "a network in `nics`",
            Self::HostInterface => "a bridge or tap device in `nics`",
            Self::Screen => "`vnc`",
            Self::Fill => "`fill`, an upload, an import, the seed",
            Self::NewDisk => "a new disk of a VM",
            Self::GuestAgent => "`quiesce_within_s`",
            Self::Snapshot => "a snapshot, `with`, the one that a linked clone leaves",
            Self::Revert => "a revert, with NVRAM, memory, `tpm`",
            Self::Clone => "a clone",
            Self::DecryptedClone => "`encrypted: false` of a clone",
            Self::EncryptedClone => "`encrypted: true` of a clone",
            Self::Console => "tickets `console`, `console_log`, `vnc`",
            Self::Dump => "a dump, ticket `dump`",
            Self::Export => "ticket `export`",
            Self::Check => "ticket `check`",
            Self::Map => "a reading of a volume",
            Self::UnvouchedConfiguration => "`accept_configuration`",
            Self::Resize => "a larger volume",
            Self::Delete => "the deletion of a volume",
            Self::Bind => "`bind`, `unbind`",
            Self::Folder => "`folder` of a move",
            Self::PlacementGroup => "`placement_group`",
        }
    }

    /// What it takes.
    pub const fn needs(self) -> Needs {
        use Privilege as P;
        let (always, if_encrypted): (&[P], &[P]) = match self {
            Self::New | Self::Datastore => (&[P::Create], &[]),
            Self::NewEncrypted => (&[P::EncryptNew], &[]),
            Self::Network | Self::HostInterface => (&[P::Connect], &[]),
            Self::ExistingKey => (&[P::ManageKeys], &[]),
            Self::Description | Self::Size | Self::Resize | Self::PlacementGroup => (&[P::Configure], &[]),
            Self::Boot | Self::Cdrom | Self::Nics | Self::Screen | Self::Fill | Self::GuestAgent => {
                (&[P::GuestControl], &[P::Access])
            }
            Self::NewDisk => (&[P::Configure], &[P::AddDisk]),
            Self::Snapshot => (&[P::Snapshot], &[]),
            Self::Revert => (&[P::Snapshot, P::GuestControl], &[P::Access]),
            Self::Clone => (&[P::Create], &[P::Clone]),
            Self::DecryptedClone => (&[P::Export], &[P::Decrypt, P::Access]),
            Self::EncryptedClone => (&[P::Encrypt], &[]),
            Self::Console => (&[P::Console], &[P::Access]),
            Self::Dump | Self::Export => (&[P::Export], &[P::Access]),
            Self::Check | Self::Map => (&[P::Backup], &[]),
            Self::UnvouchedConfiguration => (&[P::Access], &[]),
            Self::Delete => (&[P::Delete], &[]),
            Self::Bind => (&[P::Configure, P::GuestControl], &[P::AddDisk, P::Access]),
            Self::Folder => (&[P::Roles], &[]),
        };
        Needs { always, if_encrypted }
    }
}

/// The object that a part of a request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On<'request> {
    /// The object that the path names.
    Path,
    /// The site.
    Site,
    /// A folder; the site without one.
    Folder(Option<&'request str>),
    /// A datastore; the only one without a name.
    Datastore(Option<&'request str>),
    /// A network.
    Network(&'request str),
    /// A VM, or a volume that no VM has.
    Vm(&'request str),
    /// A volume, which a VM may have.
    Volume(&'request str),
}

/// A part of a request, and what it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartOf<'request> {
    /// The part.
    pub part: Part,
    /// The object.
    pub on: On<'request>,
}

/// The parts of a request.
#[derive(Debug, Default)]
pub struct Parts<'request>(Vec<PartOf<'request>>);

impl<'request> Parts<'request> {
    /// The parts of a request.
    pub fn of(request: &'request impl Guarded) -> Vec<PartOf<'request>> {
        let mut parts = Self::default();
        request.list(&mut parts);
        parts.0
    }

    fn add(&mut self, part: Part, on: On<'request>) {
        self.0.push(PartOf { part, on });
    }

    /// What network cards are connected to.
    fn add_networks(&mut self, networks: impl IntoIterator<Item = &'request NicBackend>) {
        for network in networks {
            match network {
                NicBackend::User {} => {}
                NicBackend::Tap { device: _ } | NicBackend::Bridge { device: _, vlan: _ } => {
                    self.add(Part::HostInterface, On::Site);
                }
                NicBackend::Network { network, on: _ } => {
                    self.add(Part::Network, On::Network(network.as_str()));
                }
            }
        }
    }

    fn add_if(&mut self, is_used: bool, part: Part, on: On<'request>) {
        if is_used {
            self.add(part, on);
        }
    }
}

/// A request that names what it takes.
pub trait Guarded {
    /// Lists its parts, beyond what its operation takes.
    fn list<'request>(&'request self, parts: &mut Parts<'request>);
}

impl Guarded for CreateVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        // What is `_` says only how large it is, and what a guest of its own finds.
        let Self {
            folder,
            datastore,
            encryption,
            disks,
            fill_seed,
            boot,
            cdrom,
            nics,
            name: _,
            host: _,
            policy: _,
            placement_group,
            board: _,
            firmware: _,
            cpus: _,
            memory_bytes: _,
            growth: _,
            tpm: _,
            seed: _,
            restart: _,
            notes: _,
            tags: _,
        } = self;
        let on = On::Folder(folder.as_ref().map(crate::Reference::as_str));
        parts.add(Part::New, on);
        parts.add(Part::Datastore, On::Datastore(datastore.as_deref()));
        parts.add_if(encryption.encrypted, Part::NewEncrypted, on);
        parts.add_if(encryption.key.is_some(), Part::ExistingKey, on);
        parts.add_if(*fill_seed || disks.iter().any(|disk| disk.fill), Part::Fill, on);
        parts.add_if(*boot != crate::vm::Boot::default(), Part::Boot, on);
        parts.add_if(*cdrom != Cdrom::Absent, Part::Cdrom, on);
        parts.add_if(nics.as_ref().is_some_and(|nics| !nics.is_empty()), Part::Nics, on);
        parts.add_if(placement_group.is_some(), Part::PlacementGroup, On::Site);
        parts.add_networks(nics.iter().flatten().map(|nic| &nic.backend));
    }
}

impl Guarded for CloneVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self {
            datastore,
            quiesce_within_s,
            encrypted,
            name: _,
            snapshot: _,
            linked: _,
            integrity: _,
            key_provider: _,
        } = self;
        if let Some(datastore) = datastore {
            parts.add(Part::Datastore, On::Datastore(Some(datastore)));
        }
        parts.add_if(quiesce_within_s.is_some(), Part::GuestAgent, On::Path);
        parts.add_if(*encrypted == Some(false), Part::DecryptedClone, On::Path);
        parts.add_if(*encrypted == Some(true), Part::EncryptedClone, On::Path);
    }
}

impl Guarded for PatchVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self {
            name,
            notes,
            tags,
            cpus,
            memory_bytes,
            growth,
            machine_type,
            processor,
            nics,
            boot,
            cdrom,
            vnc,
            restart,
        } = self;
        let describes = name.is_some() || notes.is_some() || tags.is_some();
        parts.add_if(describes, Part::Description, On::Path);
        let board = machine_type.is_some() || processor.is_some();
        let sizes =
            cpus.is_some() || memory_bytes.is_some() || growth.is_some() || restart.is_some() || board;
        parts.add_if(sizes, Part::Size, On::Path);
        parts.add_if(nics.is_some(), Part::Nics, On::Path);
        parts.add_networks(nics.iter().flatten().map(|nic| &nic.backend));
        parts.add_if(boot.is_some(), Part::Boot, On::Path);
        parts.add_if(cdrom.is_some(), Part::Cdrom, On::Path);
        parts.add_if(vnc.is_some(), Part::Screen, On::Path);
    }
}

impl Guarded for CreateSnapshot {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { name: _, memory: _, quiesce_within_s, with } = self;
        parts.add_if(quiesce_within_s.is_some(), Part::GuestAgent, On::Path);
        for other in with {
            parts.add(Part::Snapshot, On::Vm(other.as_str()));
            parts.add_if(quiesce_within_s.is_some(), Part::GuestAgent, On::Vm(other.as_str()));
        }
    }
}

impl Guarded for RevertVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { keep_as: _, discard: _, disks_only: _, tpm: _ } = self;
        parts.add(Part::Revert, On::Path);
    }
}

impl Guarded for SetSnapshotSchedule {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { rules } = self;
        let freezes = |rule: &SnapshotRule| rule.quiesce_within_s.is_some();
        parts.add_if(rules.iter().any(freezes), Part::GuestAgent, On::Path);
    }
}

impl Guarded for TicketUse {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let part = match self {
            Self::Console { read_only: _, take_over: _ }
            | Self::ConsoleLog {}
            | Self::Vnc { read_only: _ } => Part::Console,
            Self::Dump { number: _ } => Part::Dump,
            Self::Check { disk: _, data: _ } => Part::Check,
            Self::Export { disk: _, format: _ } => Part::Export,
            Self::Upload { disk: _ } => Part::Fill,
        };
        parts.add(part, On::Path);
    }
}

impl Guarded for DumpVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { label: _ } = self;
        parts.add(Part::Dump, On::Path);
    }
}

impl Guarded for AddDisk {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { size_bytes: _, kind: _, frontend: _, fill, integrity: _ } = self;
        parts.add(Part::NewDisk, On::Path);
        parts.add_if(*fill, Part::Fill, On::Path);
    }
}

impl Guarded for AddNic {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { nic } = self;
        parts.add(Part::Nics, On::Path);
        let Nic { backend, mac: _, link: _ } = nic;
        parts.add_networks([backend]);
    }
}

impl Guarded for PatchNic {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        // The link takes what the operation takes.
        let Self { backend, link: _ } = self;
        parts.add_networks(backend);
    }
}

impl Guarded for ImportDisk {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { ticket: _, format: _ } = self;
        parts.add(Part::Fill, On::Path);
    }
}

impl Guarded for RegisterVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { datastore, directory: _, accept_configuration } = self;
        parts.add(Part::Datastore, On::Datastore(datastore.as_deref()));
        parts.add_if(*accept_configuration, Part::UnvouchedConfiguration, On::Site);
    }
}

impl Guarded for RebuildDatastore {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { accept_configuration } = self;
        parts.add_if(*accept_configuration, Part::UnvouchedConfiguration, On::Site);
    }
}

impl Guarded for MoveVm {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { folder } = self;
        parts.add(Part::Folder, On::Folder(folder.as_ref().map(crate::Reference::as_str)));
    }
}

impl Guarded for VolumeChange {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        match self {
            Self::Create(wish) => wish.list(parts),
            Self::Clone(wish) => wish.list(parts),
            Self::Resize(ResizeVolume { volume, size_bytes: _ }) => {
                parts.add(Part::Resize, On::Volume(volume.as_str()));
            }
            Self::Snapshot(SnapshotVolume { volume, name: _, with }) => {
                parts.add(Part::Snapshot, On::Volume(volume.as_str()));
                for other in with {
                    parts.add(Part::Snapshot, On::Vm(other.as_str()));
                }
            }
            Self::Revert(RevertVolume { volume, snapshot: _, keep_as: _, discard: _ }) => {
                parts.add(Part::Revert, On::Volume(volume.as_str()));
            }
            Self::DeleteSnapshot(DeleteVolumeSnapshot { volume, snapshot: _ }) => {
                parts.add(Part::Snapshot, On::Volume(volume.as_str()));
            }
            Self::Bind(BindVolume { volume, vm }) => {
                parts.add(Part::Bind, On::Volume(volume.as_str()));
                parts.add(Part::Bind, On::Vm(vm.as_str()));
            }
            Self::Unbind(UnbindVolume { volume, name: _ }) => {
                parts.add(Part::Bind, On::Volume(volume.as_str()));
            }
            Self::Delete(DeleteVolume { volume, leave_to_clones: _ }) => {
                parts.add(Part::Delete, On::Volume(volume.as_str()));
            }
        }
    }
}

impl Guarded for CreateVolume {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self {
            name: _,
            size_bytes: _,
            folder,
            datastore,
            thick: _,
            integrity: _,
            encrypted,
            key_provider: _,
        } = self;
        let on = On::Folder(folder.as_ref().map(crate::Reference::as_str));
        parts.add(Part::New, on);
        parts.add(Part::Datastore, On::Datastore(datastore.as_ref().map(crate::Reference::as_str)));
        parts.add_if(*encrypted, Part::NewEncrypted, on);
    }
}

impl Guarded for CloneVolume {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self {
            volume,
            name: _,
            snapshot: _,
            datastore,
            linked: _,
            encrypted,
            integrity: _,
            key_provider: _,
        } = self;
        let on = On::Volume(volume.as_str());
        parts.add(Part::Clone, on);
        if let Some(datastore) = datastore {
            parts.add(Part::Datastore, On::Datastore(Some(datastore.as_str())));
        }
        parts.add_if(*encrypted == Some(false), Part::DecryptedClone, on);
        parts.add_if(*encrypted == Some(true), Part::EncryptedClone, on);
    }
}

impl Guarded for MoveDisk {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { datastore } = self;
        parts.add(Part::Datastore, On::Datastore(Some(datastore.as_str())));
    }
}

impl Guarded for MoveToHost {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { datastore, host: _, pause_ms: _, bytes_per_second: _, channels: _ } = self;
        if let Some(datastore) = datastore {
            parts.add(Part::Datastore, On::Datastore(Some(datastore)));
        }
    }
}

impl Guarded for EvacuateHost {
    fn list<'request>(&'request self, parts: &mut Parts<'request>) {
        let Self { with_volumes, shut_down: _, timeout_s: _, bytes_per_second: _ } = self;
        // Any datastore may be the one that has room.
        parts.add_if(*with_volumes, Part::Datastore, On::Site);
    }
}

impl Guarded for PageSignIn {
    fn list<'request>(&'request self, _: &mut Parts<'request>) {
        match self {
            Self::Password { user: _, password: _, code: _ }
            | Self::Token { token: _ }
            | Self::Provider { state: _, code: _, iss: _ }
            | Self::Emergency { secret: _, reason: _ } => {}
        }
    }
}

/// Requests that take no more than their operation does.
macro_rules! whole {
    ($($request:ident { $($field:ident),* })*) => {$(
        impl Guarded for $request {
            fn list<'request>(&'request self, _: &mut Parts<'request>) {
                let Self { $($field: _),* } = self;
            }
        }
    )*};
}

whole! {
    PowerOptions {}
    StartVm { discard_memory, paused }
    StopVm { force, timeout_s }
    RotateKey { key_provider, data }
    SetCryptoperiod { cryptoperiod }
    TemplateVm { undo }
    DeleteVm { leave_to_clones, with_volumes }
    ResizeDisk { size_bytes }
    SetLimits { limits }
    EncryptDisk { integrity, key_provider }
    CreateNetwork { name, vlan }
    AddNetworkHost { host, bridge }
    CreatePolicy { name, description, rules }
    SetPolicy { rules }
    ApplyPolicy {}
    CreatePlacementGroup { name, keep }
    SetPlacementGroup { add, remove }
    MakeInventoryBackup { without_access_log }
    AddDatastore { name, path, ceph, host }
    AddDatastoreHost { host, path, ceph }
    SetHost { maintenance }
    BalanceHosts { plan }
    FenceHost { confirm, even_if_it_answers }
    AdmitHost { has_started_again }
    CreateHostToken { name, address, valid_seconds }
    ReadVolumes { readings }
    ChangeVolumes { changes }
    SignIn { user, password, code }
    CreateUser { name, password }
    ChangePassword { password, current }
    RenewSecondFactor { current }
    CreateRole { name, privileges }
    CreateFolder { name }
    SetFolder { quota }
    CreateRecipient { name, to, severity }
    TestRecipient {}
    CreateGrant { user, group, role, scope }
    CreateIdentityProvider {
        name, issuer, client_id, client_secret, scopes, user_claim, groups_claim, authorities, pages, session_s
    }
    SetIdentityProvider { client_secret }
    BeginSignIn { redirect }
    FinishSignIn { flow, state, code, iss }
    BeginPageSignIn { provider, redirect }
    CreateEmergency { name }
    EmergencySignIn { secret, reason }
    CreateToken { name, role, scope, expires_unix_seconds, certificate }
    Explain { user, operation, vm }
    VerifyAccessLog { heads }
    SetAccessLogRetention { keep_s, room_bytes }
}
