//! An attacker who can write to the datastore, against a host: the datastore's content does not
//! decide what is opened, written or shown.

use strongroom_datastore::file::{CreateOptions, Protection, Provisioning, create, describe};
use strongroom_host::client::ClientError;
use strongroom_host::protocol::{
    Disk, DiskChange, DiskKey, HeldVolume, NewVmSnapshot, OperationKind, OperationOutcome, OperationState,
    PowerState, SnapshotChange, StartOptions, TicketRequest, VmSpec,
};
use strongroom_types::{SnapshotId, VolumeSize};

use super::FORCED;
use crate::support::{Host, KeySite, boot_sector, kill};

/// Plain text that must not appear in the datastore.
const MARKER: &[u8] = b"strongroom-marker-of-an-image";

/// Makes a VM under a key. Returns it as the control plane knows it afterwards.
fn sealed_vm(host: &Host, site: &KeySite, name: &str, disks: usize) -> VmSpec {
    let mut spec = host.spec(name, disks);
    for disk in &mut spec.disks {
        disk.key = DiskKey::provider(site.key.clone(), None);
    }
    spec.seed = true;
    let made = host.done(&spec, 0, host.create(&spec));
    keep(&mut spec, made);
    spec
}

/// Keeps the outcome of an operation, as the control plane does.
fn keep(spec: &mut VmSpec, told: Option<OperationOutcome>) {
    let Some(OperationOutcome::Volumes(volumes)) = told else { panic!("{told:?}") };
    *spec = spec.clone().with_facts(&volumes);
}

/// The attacker records that nothing of the VM is encrypted, and makes hostd read that.
fn call_it_clear(host: &mut Host, spec: &VmSpec) {
    let path = spec.directory().join("vm.json");
    let mut text: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for disk in text["spec"]["disks"].as_array_mut().unwrap() {
        disk["key"] = "unencrypted".into();
        disk.as_object_mut().unwrap().remove("volume");
    }
    text["spec"]["own_volumes"] = serde_json::Value::Array(Vec::new());
    std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
    // hostd reads it at its next start at the latest.
    host.kill_hostd();
    host.start_hostd();
    let read = host.await_vm(spec, |vm| vm.spec.is_some()).spec.unwrap();
    assert!(!read.is_encrypted(), "the attack has no effect: {read:?}");
}

/// A control plane that has a successor goes on giving orders.
pub fn former_term() {
    let mut host = Host::start();
    let spec = host.spec("web1", 1);
    host.direct(5);
    host.done(&spec, 0, host.create(&spec));
    let successor = host.request(0, OperationKind::Configure { spec: Box::new(spec.clone()) });
    host.direct(7);
    host.operate(&spec, &successor).unwrap();
    host.await_operation(successor.operation);
    let all_are_refused = |host: &Host, term: u64| {
        host.direct(term);
        let more = VmSpec { memory_bytes: (128 << 20).try_into().unwrap(), ..spec.clone() };
        let of_spec = Box::new(more.clone());
        let orders = [
            OperationKind::Delete,
            OperationKind::Configure { spec: of_spec.clone() },
            OperationKind::Start { spec: of_spec, how: StartOptions::default() },
            FORCED,
        ];
        let mut refused: Vec<Result<(), ClientError>> = Vec::new();
        for kind in orders {
            refused.push(host.operate(&spec, &host.request(1, kind)).map(drop));
        }
        refused.push(host.try_cancel(successor.operation).map(drop));
        refused.push(
            host.ticket(
                &spec,
                TicketRequest::ConsoleLog { spec: Box::new(spec.clone()), grants: Vec::new() },
            )
            .map(drop),
        );
        let ticket = host.no_ticket();
        refused.push(host.void(&ticket));
        refused.push(host.try_add_datastore().map(drop));
        refused.push(host.try_look_through().map(drop));
        refused.push(host.try_judge(&spec).map(drop));
        for (number, refused) in refused.into_iter().enumerate() {
            let Err(ClientError::Refused { status: 409, problem }) = refused else {
                panic!("order {number} of term {term}: {refused:?}");
            };
            assert_eq!(problem.code, "old_term", "order {number} of term {term}: {problem}");
        }
        // A reader needs no term.
        host.vms();
    };
    all_are_refused(&host, 5);
    host.kill_hostd();
    host.start_hostd();
    for term in [0, 5, 6] {
        all_are_refused(&host, term);
    }
    assert_eq!(host.read(&spec).memory_bytes, spec.memory_bytes);
    host.direct(7);
    host.done(&spec, 0, OperationKind::Delete);
}

pub fn clear_configuration() {
    let mut host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = sealed_vm(&host, &site, "secret1", 1);
    call_it_clear(&mut host, &spec);

    // Everything that is written is sealed: an image, cloud-init's data, and an added disk.
    let mut image = boot_sector();
    image.extend(MARKER);
    image.resize(8192, 0);
    let filled = host.import_into(&spec, "disk0", &image);
    keep(&mut spec, filled);
    let filled = host.import_into(&spec, "seed", &image);
    keep(&mut spec, filled);
    host.assert_sealed(&spec, MARKER);
    call_it_clear(&mut host, &spec);
    let added =
        Disk { name: "disk1".parse().unwrap(), volume: None, least_generation: 0, ..spec.disks[0].clone() };
    let change = DiskChange::Add { disk: Box::new(added.clone()) };
    let told = host.done(&spec, 0, OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change });
    spec.disks.push(added);
    keep(&mut spec, told);
    let kek = |disk: usize| match &spec.disks[disk].key {
        DiskKey::Provider { kek, .. } | DiskKey::HalfClear { kek, .. } => *kek,
        DiskKey::Unencrypted => None,
    };
    assert!(kek(1).is_some() && kek(1) == kek(0), "{:?}", spec.disks);

    // Only sealed data is shown: a forged console log is not accepted.
    call_it_clear(&mut host, &spec);
    let forged = CreateOptions {
        size: VolumeSize::new(4 << 20).unwrap(),
        provisioning: Provisioning::Thin,
        protection: Protection::Unencrypted,
        log_bytes: Some(0),
        integrity: None,
    };
    create(&spec.directory().join("console"), &forged).unwrap();
    let ticket = TicketRequest::ConsoleLog { spec: Box::new(spec.clone()), grants: Vec::new() };
    let told = host.told_for(&spec, ticket);
    assert!(told.contains("not encrypted") && !told.contains("console_log"), "{told}");
    std::fs::remove_dir_all(spec.directory().join("console")).unwrap();

    // A missing installation image prevents a start, but not access to the VM's disks.
    let gone = VmSpec { cdrom: Some("/gone.iso".into()), ..spec.clone() };
    let export = host.export(&gone, "disk0");
    assert!(!export.contains("gone.iso"), "{export}");
    let filled = host.import_into(&gone, "seed", &image);
    keep(&mut spec, filled);
    let start = OperationKind::Start { spec: Box::new(gone), how: StartOptions::default() };
    assert!(host.refused(&spec, 1, start).message.contains("/gone.iso"));

    // The VM starts as the control plane configured it, not as its directory says.
    call_it_clear(&mut host, &spec);
    let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    assert_eq!(host.done(&spec, 1, start), None);
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    assert!(running.volumes.iter().all(|volume| volume.kek.is_some()), "{running:?}");
    host.console(&spec).await_line("ready");
    host.done(&spec, 1, FORCED);
    host.assert_nobody_left();
}

pub fn exchanged_volumes() {
    let host = Host::start();
    let site = KeySite::start(&host);
    let spec = sealed_vm(&host, &site, "secret1", 2);
    let other = sealed_vm(&host, &site, "secret2", 1);
    let place = |vm: &VmSpec, name: &str| vm.directory().join(name);
    let aside = spec.datastore.join("aside");
    // Volumes of the same VM, of another VM under the same key, and one of the VM's own. Each pair
    // is swapped, tried, and swapped back.
    let exchanges = [
        (place(&spec, "disk0"), place(&spec, "disk1")),
        (place(&spec, "disk0"), place(&other, "disk0")),
        (place(&spec, "seed"), place(&other, "seed")),
    ];
    for (generation, (here, there)) in (1..).zip(exchanges) {
        let exchange = || {
            std::fs::rename(&here, &aside).unwrap();
            std::fs::rename(&there, &here).unwrap();
            std::fs::rename(&aside, &there).unwrap();
        };
        exchange();
        let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
        let refused = host.refused(&spec, generation, start);
        let says = format!("{} holds volume", here.display());
        assert!(refused.message.contains(&says), "{refused:?}");
        if here.ends_with("disk0") {
            let export = host.export(&spec, "disk0");
            assert!(export.contains("other_volume"), "{export}");
            let (disk, size_bytes) = ("disk0".parse().unwrap(), VolumeSize::new(2 << 20).unwrap());
            let change = DiskChange::Resize { disk, size_bytes };
            let grow = OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change };
            assert_eq!(host.refused(&spec, 0, grow).code, "other_volume");
        }
        exchange();
    }
    let request =
        host.request(2, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() });
    host.operate(&spec, &request).unwrap();
    assert_eq!(host.await_operation(request.operation).state, OperationState::Done);
    host.done(&spec, 4, FORCED);
    host.assert_nobody_left();
}

/// A volume moves from its holder to a VM and back. One that was exchanged, put back or replaced by
/// a link meanwhile does not become the VM's, and is where it was afterwards.
pub fn bound_volumes() {
    let host = Host::start();
    let site = KeySite::start(&host);
    let spec = sealed_vm(&host, &site, "secret1", 1);
    let other = sealed_vm(&host, &site, "secret2", 1);
    let mut held = sealed_vm(&host, &site, "data1", 1);
    held.holds_volume = true;
    let start = OperationKind::Start { spec: Box::new(held.clone()), how: StartOptions::default() };
    assert_eq!(host.refused(&held, 1, start).code, "bad_spec", "a holder does not start");
    let place = held.directory().join("disk0");
    let grow = |held: &VmSpec, mebibytes: u64| {
        let size_bytes = VolumeSize::new(mebibytes << 20).unwrap();
        let change = DiskChange::Resize { disk: "disk0".parse().unwrap(), size_bytes };
        OperationKind::ChangeDisk { spec: Box::new(held.clone()), change }
    };
    let older = std::fs::read(place.join("descriptor")).unwrap();
    let grown = host.done(&held, 0, grow(&held, 2));
    held.disks[0].size_bytes = VolumeSize::new(2 << 20).unwrap();
    keep(&mut held, grown);
    let newer = std::fs::read(place.join("descriptor")).unwrap();
    // As many descriptors as the held one, so that only its id tells.
    host.done(&other, 0, grow(&other, 2));

    let disk = Disk { name: "disk1".parse().unwrap(), ..held.disks[0].clone() };
    let home = HeldVolume { holder: held.id, name: held.name.clone(), disk: "disk0".parse().unwrap() };
    let with = |change: DiskChange, spec: &VmSpec| OperationKind::ChangeDisk {
        spec: Box::new(spec.clone()),
        change,
    };
    let bind = || with(DiskChange::Bind { disk: Box::new(disk.clone()), from: home.clone() }, &spec);
    let undo = || {
        assert!(place.symlink_metadata().is_ok(), "it is where it was");
        let unbind = DiskChange::Unbind { disk: disk.name.clone(), to: home.clone() };
        host.done(&spec, 0, with(unbind, &spec));
        assert!(place.symlink_metadata().is_ok(), "it is still there");
        assert_eq!(host.read(&spec).disks.len(), 1);
    };
    let aside = spec.datastore.join("aside");
    // An old descriptor, another volume of the same key, a link.
    std::fs::write(place.join("descriptor"), &older).unwrap();
    let refused = host.refused(&spec, 0, bind());
    assert!(refused.message.contains("it was rolled back"), "{refused:?}");
    undo();
    std::fs::write(place.join("descriptor"), &newer).unwrap();
    std::fs::rename(&place, &aside).unwrap();
    std::fs::rename(other.directory().join("disk0"), &place).unwrap();
    let refused = host.refused(&spec, 0, bind());
    assert_eq!(refused.code, "other_volume", "{refused:?}");
    undo();
    std::fs::rename(&place, other.directory().join("disk0")).unwrap();
    std::os::unix::fs::symlink(&aside, &place).unwrap();
    let refused = host.refused(&spec, 0, bind());
    assert_eq!(refused.code, "link", "{refused:?}");
    undo();
    std::fs::remove_file(&place).unwrap();
    // The holder's directory is a link to another place.
    let elsewhere = host.path("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(&aside, elsewhere.join("disk0")).unwrap();
    std::fs::rename(held.directory(), &aside).unwrap();
    std::os::unix::fs::symlink(&elsewhere, held.directory()).unwrap();
    let refused = host.refused(&spec, 0, bind());
    assert!(elsewhere.join("disk0").exists(), "{refused:?}");
    std::fs::remove_file(held.directory()).unwrap();
    std::fs::rename(&aside, held.directory()).unwrap();
    std::fs::rename(elsewhere.join("disk0"), &place).unwrap();

    // The right one. What is asked again is done already.
    for _ in 0..2 {
        host.done(&spec, 0, bind());
    }
    assert!(place.symlink_metadata().is_err());
    assert_eq!(host.read(&spec).disks[1].volume, disk.volume);
    let mut bound = spec.clone();
    bound.disks.push(disk.clone());
    assert_eq!(host.judged(&bound), Vec::<String>::new(), "its key vouches for it");
    let unbind = || with(DiskChange::Unbind { disk: disk.name.clone(), to: home.clone() }, &bound);
    for _ in 0..2 {
        host.done(&bound, 0, unbind());
    }
    let grown = host.done(&held, 0, grow(&held, 3));
    keep(&mut held, grown);
    assert_eq!(host.judged(&spec), Vec::<String>::new());
    host.assert_nobody_left();
}

/// Old descriptors are refused because of their generation, which the control plane sends with each
/// volume. Every operation that opens a volume checks it.
pub fn older_descriptors() {
    let host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = sealed_vm(&host, &site, "older1", 2);
    let descriptor = spec.directory().join("disk0/descriptor");
    let older = std::fs::read(&descriptor).unwrap();
    let least = |spec: &VmSpec| spec.disks[0].least_generation;
    let before = least(&spec);
    let (disk, size_bytes) = ("disk0".parse().unwrap(), VolumeSize::new(2 << 20).unwrap());
    let change = DiskChange::Resize { disk, size_bytes };
    let grown = host.done(&spec, 0, OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change });
    spec.disks[0].size_bytes = size_bytes;
    keep(&mut spec, grown);
    assert_eq!(least(&spec), before + 1, "a host says what it has raised the generation to");
    let newer = std::fs::read(&descriptor).unwrap();
    std::fs::write(&descriptor, &older).unwrap();
    let start =
        |spec: &VmSpec| OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    let resize = |spec: &VmSpec| {
        let (disk, size_bytes) = ("disk0".parse().unwrap(), VolumeSize::new(3 << 20).unwrap());
        let change = DiskChange::Resize { disk, size_bytes };
        OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change }
    };
    let rekey = |spec: &VmSpec| {
        let mut moved = spec.clone();
        let next = site.another_key();
        for disk in &mut moved.disks {
            if let DiskKey::Provider { next: to, .. } = &mut disk.key {
                *to = Some(next.clone());
            }
        }
        OperationKind::Rekey { spec: Box::new(moved), data: false }
    };
    let refused = |spec: &VmSpec, generation, kind| {
        let problem = host.refused(spec, generation, kind);
        assert!(problem.message.contains("it was rolled back"), "{problem:?}");
    };
    refused(&spec, 1, start(&spec));
    refused(&spec, 0, resize(&spec));
    let export = host.export(&spec, "disk0");
    assert!(export.contains("rolled_back"), "{export}");
    std::fs::write(&descriptor, newer).unwrap();
    // One of the VM's own volumes, as if the control plane knew a later generation.
    for own in 0..spec.own_volumes.len() {
        let mut later = spec.clone();
        later.own_volumes[own].least_generation += 1;
        refused(&later, 2 + own as u64, start(&later));
    }
    assert!(!spec.own_volumes.is_empty(), "{spec:?}");
    assert_eq!(host.done(&spec, 9, start(&spec)), None);
    host.done(&spec, 9, FORCED);
    // If one volume is old, swapped or clear, none is moved.
    let newer = std::fs::read(&descriptor).unwrap();
    std::fs::write(&descriptor, &older).unwrap();
    let before = generations(&spec);
    refused(&spec, 0, rekey(&spec));
    assert_eq!(generations(&spec), before);
    std::fs::write(&descriptor, newer).unwrap();
    let (before, aside) = (generations(&spec), spec.datastore.join("aside"));
    for (place, other) in [("disk1", "disk0"), ("seed", "disk0")] {
        let place = spec.directory().join(place).join("descriptor");
        std::fs::rename(&place, &aside).unwrap();
        std::fs::copy(spec.directory().join(other).join("descriptor"), &place).unwrap();
        assert_eq!(host.refused(&spec, 0, rekey(&spec)).code, "other_volume");
        std::fs::rename(&aside, &place).unwrap();
        assert_eq!(generations(&spec), before);
    }
    host.done(&spec, 0, rekey(&spec));
    assert!(generations(&spec).iter().zip(before).all(|(now, before)| *now == before + 2));
    host.assert_nobody_left();
}

/// The generations of the descriptors of a VM's disks and seed.
fn generations(spec: &VmSpec) -> Vec<u64> {
    let names = spec.known_volumes().into_iter().map(|known| known.name);
    names.map(|name| describe(&spec.volume_path(&name)).unwrap().descriptor.generation).collect()
}

/// As [`older_descriptors`], while the VM runs: generations that the control plane has learned
/// since the start count, and a supervisor that takes over knows those of its predecessor.
pub fn older_descriptors_of_a_running_vm() {
    let mut host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = sealed_vm(&host, &site, "older2", 2);
    let filled = host.import_into(&spec, "disk0", &boot_sector());
    keep(&mut spec, filled);
    let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    host.done(&spec, 1, start);
    host.console(&spec).await_line("ready");
    let resize = |spec: &VmSpec, mebibytes: u64| {
        let (disk, size_bytes) = ("disk1".parse().unwrap(), VolumeSize::new(mebibytes << 20).unwrap());
        let change = DiskChange::Resize { disk, size_bytes };
        OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change }
    };
    let rekey = |spec: &VmSpec| {
        let mut moved = spec.clone();
        moved.move_to(&site.another_key());
        OperationKind::Rekey { spec: Box::new(moved), data: false }
    };
    let descriptor = spec.directory().join("disk1/descriptor");
    let older = std::fs::read(&descriptor).unwrap();
    let resized = host.done(&spec, 1, resize(&spec, 2));
    spec.disks[1].size_bytes = VolumeSize::new(2 << 20).unwrap();
    let before = spec.disks[1].least_generation;
    keep(&mut spec, resized);
    assert_eq!(spec.disks[1].least_generation, before + 1);

    // The old descriptor is not reported as the disk's, and its size is not used.
    let newer = std::fs::read(&descriptor).unwrap();
    std::fs::write(&descriptor, &older).unwrap();
    assert!(host.refused(&spec, 1, rekey(&spec)).message.contains("it was rolled back"));
    let added =
        Disk { name: "disk2".parse().unwrap(), volume: None, least_generation: 0, ..spec.disks[1].clone() };
    let change = DiskChange::Add { disk: Box::new(added) };
    let add = OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change };
    assert!(host.refused(&spec, 1, add).message.contains("it was rolled back"));
    std::fs::write(&descriptor, &newer).unwrap();

    // The control plane knows a later generation than the supervisor: the served volume is old.
    let later = |disk: usize| {
        let mut later = spec.clone();
        later.disks[disk].least_generation += 1;
        later
    };
    assert_eq!(host.refused(&spec, 1, resize(&later(1), 3)).code, "rolled_back");
    let before = generations(&spec);
    assert_eq!(host.refused(&spec, 1, rekey(&later(0))).code, "rolled_back");
    assert_eq!(generations(&spec), before, "none was moved");
    host.done(&spec, 1, FORCED);

    // A supervisor dies, and its successor finds a descriptor from before the last change.
    let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    host.done(&spec, 2, start);
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    let older = std::fs::read(&descriptor).unwrap();
    let resized = host.done(&spec, 2, resize(&spec, 4));
    spec.disks[1].size_bytes = VolumeSize::new(4 << 20).unwrap();
    keep(&mut spec, resized);
    host.kill_hostd();
    kill(running.supervisor_pid.unwrap());
    std::fs::write(&descriptor, &older).unwrap();
    host.start_hostd();
    let off = host.await_vm(&spec, |vm| vm.power.is_off());
    assert!(off.reason.as_ref().unwrap().message.contains("it was rolled back"), "{off:?}");
    host.assert_nobody_left();
}

/// Snapshots that `vm.json` lists, hides or says to be in the making, and descriptors from before
/// them: a revert takes the volumes whose authenticated descriptors have the snapshot, or none.
pub fn forged_snapshots() {
    let host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = sealed_vm(&host, &site, "forged1", 2);
    let path = spec.directory().join("vm.json");
    let edit = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut text: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        edit(&mut text["snapshots"]);
        std::fs::write(&path, serde_json::to_vec(&text).unwrap()).unwrap();
    };
    let new = |name: &str| NewVmSnapshot::of_disks(SnapshotId::random(), name.parse().unwrap());
    let operation = |spec: &VmSpec, change: SnapshotChange| OperationKind::ChangeSnapshots {
        spec: Box::new(spec.clone()),
        change,
    };
    let create = |snapshot: &NewVmSnapshot| SnapshotChange::Create { snapshot: snapshot.clone() };
    let revert = |to: &NewVmSnapshot, keep: &NewVmSnapshot| SnapshotChange::Revert {
        to: to.id,
        keep: keep.clone(),
        discard: false,
        disks_only: false,
        tpm: false,
    };
    // The snapshots of a volume, and the one on which its content is based.
    let of = |spec: &VmSpec, disk: usize| {
        let descriptor = describe(&spec.volume_path(&spec.disks[disk].name)).unwrap().descriptor;
        let names: Vec<_> = descriptor.snapshots.iter().map(|snapshot| snapshot.name.to_string()).collect();
        let based =
            descriptor.nearest_snapshot(Some(descriptor.top)).map(|snapshot| snapshot.name.to_string());
        (names, based.unwrap())
    };
    let both = |spec: &VmSpec, names: &[&str], based: &str| {
        let expected = (names.iter().map(ToString::to_string).collect::<Vec<_>>(), based.to_owned());
        assert_eq!([of(spec, 0), of(spec, 1)], [expected.clone(), expected]);
    };
    let [first, second, third, invented] = ["first", "second", "third", "invented"].map(new);
    let descriptor = spec.directory().join("disk1/descriptor");
    let before = std::fs::read(&descriptor).unwrap();
    let made = host.done(&spec, 0, operation(&spec, create(&first)));
    keep(&mut spec, made);
    both(&spec, &["first"], "first");

    // A volume is hidden: its descriptor tells.
    edit(&|all| all["list"][0]["volumes"] = serde_json::json!(["disk0"]));
    let reverted = host.done(&spec, 0, operation(&spec, revert(&first, &second)));
    keep(&mut spec, reverted);
    both(&spec, &["first", "second"], "first");
    let before_repeat = generations(&spec);
    host.done(&spec, 0, operation(&spec, revert(&first, &second)));
    assert_eq!(generations(&spec), before_repeat, "it was asked for again");
    // A snapshot is invented, and a volume's descriptor is from before a snapshot.
    edit(&|all| {
        let mut forged = all["list"][0].clone();
        forged["id"] = serde_json::json!(invented.id);
        forged["name"] = serde_json::json!("invented");
        all["list"].as_array_mut().unwrap().push(forged);
    });
    let refused = host.refused(&spec, 0, operation(&spec, revert(&invented, &third)));
    assert_eq!(refused.code, "incomplete_snapshot");
    let now = std::fs::read(&descriptor).unwrap();
    std::fs::write(&descriptor, &before).unwrap();
    let refused = host.refused(&spec, 0, operation(&spec, revert(&first, &third)));
    assert!(refused.message.contains("it was rolled back"), "{refused:?}");
    std::fs::write(&descriptor, now).unwrap();
    both(&spec, &["first", "second"], "first");
    edit(&|all| drop(all["list"].as_array_mut().unwrap().pop()));

    // A creation that was interrupted after the volumes had it leaves nothing.
    let made = host.done(&spec, 0, operation(&spec, create(&third)));
    keep(&mut spec, made);
    edit(&|all| {
        drop(all["list"].as_array_mut().unwrap().pop());
        all["changing"] = serde_json::json!(create(&third));
    });
    let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    let fourth = new("third");
    let made = host.done(&spec, 0, operation(&spec, create(&fourth)));
    keep(&mut spec, made);
    both(&spec, &["first", "second", "third"], "third");

    // A revert that was interrupted prevents a start, and is continued with what it has kept.
    edit(&|all| {
        drop(all["list"].as_array_mut().unwrap().pop());
        all["changing"] = serde_json::json!(revert(&second, &fourth));
    });
    assert_eq!(host.refused(&spec, 1, start).code, "half_reverted");
    let refused = host.refused(&spec, 0, operation(&spec, create(&new("fifth"))));
    assert_eq!(refused.code, "half_reverted");
    let reverted = host.done(&spec, 0, operation(&spec, revert(&first, &new("fifth"))));
    keep(&mut spec, reverted);
    both(&spec, &["first", "second", "third"], "first");
    let listed = host.vms().vms[0].snapshots.clone().unwrap();
    assert_eq!((listed.current, listed.changing), (Some(first.id), None));
    assert_eq!(listed.list.last().unwrap().id, fourth.id);

    // A disk that a snapshot needs is neither filled nor removed.
    let remove = DiskChange::Remove { disk: "disk1".parse().unwrap() };
    let remove = OperationKind::ChangeDisk { spec: Box::new(spec.clone()), change: remove };
    assert_eq!(host.refused(&spec, 0, remove).code, "in_snapshot");
    for snapshot in [&first, &second, &fourth] {
        let delete = SnapshotChange::Delete { snapshot: snapshot.id };
        let deleted = host.done(&spec, 0, operation(&spec, delete));
        keep(&mut spec, deleted);
    }
    let descriptor = describe(&spec.volume_path(&spec.disks[1].name)).unwrap().descriptor;
    assert_eq!((descriptor.layers.len(), descriptor.snapshots.len()), (1, 0), "all is merged");
    host.assert_nobody_left();
}

/// Every value of the attested configuration is edited, one at a time. Each edit raises an
/// objection.
pub fn edited_configuration() {
    let mut host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = sealed_vm(&host, &site, "edited1", 2);
    let path = spec.directory().join("vm.json");
    assert_eq!(host.judged(&spec), [""; 0], "as it was made");
    let filled = host.import_into(&spec, "disk0", &boot_sector());
    keep(&mut spec, filled);
    let spec = host.read(&spec);
    assert_eq!(host.judged(&spec), [""; 0], "with a disk that was filled");
    assert!(spec.disks.iter().all(|disk| disk.volume.is_some()), "{spec:?}");
    let attested: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let mut edits = 0;
    for pointer in leaves(&attested["spec"], "/spec") {
        // Its path is not attested, and its name is checked earlier.
        if ["/spec/datastore", "/spec/id", "/spec/name"].contains(&pointer.as_str()) {
            continue;
        }
        let mut edited = attested.clone();
        let leaf = edited.pointer_mut(&pointer).unwrap();
        *leaf = match leaf {
            serde_json::Value::Bool(is) => (!*is).into(),
            serde_json::Value::Number(number) => (number.as_u64().unwrap() + (1 << 20)).into(),
            serde_json::Value::String(text) if text.contains("0") => text.replacen('0', "1", 1).into(),
            serde_json::Value::String(text) => format!("{text}0").into(),
            _ => continue,
        };
        let Ok(found) = serde_json::from_value::<VmSpec>(edited["spec"].clone()) else { continue };
        if found.check().is_err() {
            continue;
        }
        std::fs::write(&path, serde_json::to_vec(&edited).unwrap()).unwrap();
        let doubts = host.judged(&found);
        assert!(!doubts.is_empty(), "{pointer} was edited, and nothing is said of it");
        edits += 1;
    }
    assert!(edits > 10, "{edits} edits");
    // Without its attestation, and with that of another VM under the same key.
    let mut without = attested.clone();
    without.as_object_mut().unwrap().remove("attestation");
    std::fs::write(&path, serde_json::to_vec(&without).unwrap()).unwrap();
    assert!(host.judged(&spec)[0].contains("bears no attestation"));
    let other = sealed_vm(&host, &site, "edited2", 2);
    let theirs = std::fs::read(other.directory().join("vm.json")).unwrap();
    let theirs: serde_json::Value = serde_json::from_slice(&theirs).unwrap();
    let mut exchanged = attested.clone();
    exchanged["attestation"] = theirs["attestation"].clone();
    std::fs::write(&path, serde_json::to_vec(&exchanged).unwrap()).unwrap();
    assert!(host.judged(&spec)[0].contains("not authentic"));
    // The original file is still valid; a start rewrites it with an attestation.
    std::fs::write(&path, serde_json::to_vec(&attested).unwrap()).unwrap();
    assert_eq!(host.judged(&spec), [""; 0]);
    let start = OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() };
    assert_eq!(host.done(&spec, 1, start), None);
    assert_eq!(host.judged(&host.read(&spec)), [""; 0], "while it runs");
    host.done(&spec, 1, FORCED);
    host.kill_hostd();
    host.start_hostd();
    assert_eq!(host.judged(&host.read(&spec)), [""; 0]);
    host.assert_nobody_left();
}

/// Returns JSON pointers to all scalar values.
fn leaves(value: &serde_json::Value, at: &str) -> Vec<String> {
    match value {
        serde_json::Value::Object(parts) => {
            parts.iter().flat_map(|(name, part)| leaves(part, &format!("{at}/{name}"))).collect()
        }
        serde_json::Value::Array(parts) => parts
            .iter()
            .enumerate()
            .flat_map(|(index, part)| leaves(part, &format!("{at}/{index}")))
            .collect(),
        _ => vec![at.to_owned()],
    }
}
