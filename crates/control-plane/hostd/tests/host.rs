//! A whole host: hostd, supervisors, workers and real QEMUs, each of which is killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod attacks;
mod client_images;
mod clusters;
mod console_log;
mod live_moves;
mod moves;
mod reencryption;
mod snapshot_groups;
mod support;
mod suspend;
mod tpm;
mod walls;

use std::process::ExitCode;

use strongroom_datastore::file::{MapForm, MapKind, MapRequest, View, describe};
use strongroom_host::client::ClientError;
use strongroom_host::protocol::{
    ChunksReport, DiskKey, ExtentReport, OperationKind, OperationOutcome, OperationState, PowerState,
    READINGS_MAX, Reading, ReadingRequest, StartOptions, Ticket, TicketRequest, VmSpec, VolumeQuestion,
    VolumeState,
};
use strongroom_types::{ChunkSize, VmId, VolumeId};

use self::support::{Host, KeySite, boot_sector, kill, long_trial, run, trial};

fn main() -> ExitCode {
    run(vec![
        trial("a_vm_lives_and_everything_can_be_asked_twice", a_vm_lives),
        trial("whoever_is_killed_the_guest_goes_on_or_the_vm_starts_again", everybody_is_killed),
        trial("many_are_made_and_deleted_at_once_and_a_killed_hostd_goes_on", many_at_once),
        trial("an_encrypted_vm_waits_for_its_key_and_goes_on_by_itself", encrypted_vm),
        long_trial("a_suspended_vm_goes_on_with_its_memory_which_is_sealed_and_whole", suspend::suspended),
        trial("a_tpm_keeps_what_it_has_acknowledged_whoever_is_killed", tpm::keeps_what_it_has_acknowledged),
        trial("no_process_of_a_vm_leaves_a_core", no_cores),
        trial("no_process_of_a_vm_reaches_another_and_its_supervisor_has_no_right", walls::apart),
        trial("a_supervisor_whose_starter_is_killed_is_replaced", walls::starter_is_killed),
        trial("a_job_that_has_a_key_has_no_right", walls::jobs),
        trial("an_image_is_converted_by_a_process_without_keys", walls::images),
        trial("a_captured_supervisor_has_started_what_its_vm_needs", walls::starter_is_asked_for_more),
        trial("a_vm_that_has_left_a_host_is_started_on_another_one_only", moves::moved),
        trial("a_vm_moves_whichever_hostd_is_killed", moves::killed),
        trial("a_running_vm_moves_there_and_back_with_its_memory_and_disk", live_moves::there_and_back),
        trial("a_running_vm_moves_with_disks_by_nbd_and_what_it_has_swapped_out", live_moves::by_nbd),
        trial("a_running_vm_goes_on_in_one_place_whoever_is_killed", live_moves::few_are_killed),
        long_trial("a_running_vm_goes_on_in_one_place_whoever_is_killed_when", live_moves::all_are_killed),
        trial("a_running_vm_moves_with_its_volumes_to_a_host_that_reaches_none", live_moves::with_volumes),
        trial(
            "a_running_vm_that_moves_with_its_volumes_goes_on_in_one_place_whoever_is_killed",
            live_moves::few_are_killed_with_volumes,
        ),
        long_trial(
            "a_running_vm_that_moves_with_its_volumes_goes_on_in_one_place_whoever_is_killed_when",
            live_moves::all_are_killed_with_volumes,
        ),
        trial("a_tpm_moves_there_and_back_with_its_running_guest", live_moves::tpm::there_and_back),
        long_trial("a_tpm_is_kept_where_its_running_guest_came", live_moves::tpm::is_kept_where_it_came),
        long_trial(
            "a_tpm_is_taken_over_though_its_supervisor_is_killed",
            live_moves::tpm::is_killed_while_it_is_taken_over,
        ),
        trial("a_tpm_is_where_its_guest_is_whoever_is_killed", live_moves::tpm::few_are_killed),
        long_trial("a_tpm_is_where_its_guest_is_whoever_is_killed_when", live_moves::tpm::all_are_killed),
        trial("a_cancelled_move_of_a_running_vm_leaves_it_where_it_was", live_moves::cancelled),
        trial("an_image_that_a_client_has_fills_a_disk_in_each_format", client_images::formats),
        trial("a_client_that_comes_back_goes_on_with_its_image", client_images::comes_back),
        trial("a_client_that_stays_away_is_not_waited_for_after_a_cancellation", client_images::cancelled),
        trial("what_a_guest_said_is_kept_sealed", console_log::kept),
        trial("orders_of_a_former_control_plane_are_refused_also_after_a_kill", attacks::former_term),
        trial("a_configuration_that_says_clear_makes_nothing_clear", attacks::clear_configuration),
        trial("exchanged_volumes_are_refused", attacks::exchanged_volumes),
        trial("a_volume_that_is_bound_is_the_one_that_was_meant", attacks::bound_volumes),
        trial("descriptors_of_before_are_refused", attacks::older_descriptors),
        long_trial(
            "a_disk_of_a_running_vm_is_encrypted_and_decrypted_whoever_is_killed",
            reencryption::sealed_running::killed,
        ),
        long_trial(
            "a_later_supervisor_serves_a_half_clear_disk_only_as_its_state_says",
            reencryption::sealed_running::taken_over,
        ),
        trial(
            "a_cancelled_encryption_of_a_running_vm_is_taken_back",
            reencryption::sealed_running::cancelled,
        ),
        trial("no_network_is_opened_without_an_order", walls::no_network_without_an_order),
        trial("a_running_vm_accepts_no_descriptor_of_before", attacks::older_descriptors_of_a_running_vm),
        trial("a_forged_list_of_snapshots_decides_nothing", attacks::forged_snapshots),
        trial("an_edited_configuration_is_not_what_its_supervisor_attested", attacks::edited_configuration),
        long_trial("whoever_is_killed_a_suspended_vm_loses_nothing_unsaid", suspend::killed),
        trial("a_disk_moves_to_another_datastore_whoever_is_killed", reencryption::moved_disks::killed),
        trial("a_disk_moves_only_as_was_ordered", reencryption::moved_disks::refused),
        trial(
            "a_disk_of_a_running_vm_moves_there_and_back_under_its_guest",
            reencryption::moved_running::there_and_back,
        ),
        trial(
            "a_disk_of_a_running_vm_is_in_one_place_whoever_is_killed",
            reencryption::moved_running::killed,
        ),
        long_trial(
            "a_disk_of_a_running_vm_is_in_one_place_whoever_is_killed_when",
            reencryption::moved_running::all_are_killed,
        ),
        trial("a_disk_of_a_running_vm_is_where_the_record_says", reencryption::moved_running::attacked),
        trial(
            "a_cancelled_move_of_a_running_vms_disk_leaves_it_where_it_was",
            reencryption::moved_running::cancelled,
        ),
        trial("a_vm_is_re_encrypted_whoever_is_killed", reencryption::killed),
        trial("a_cancelled_re_encryption_leaves_a_vm_that_starts", reencryption::cancelled),
        long_trial("a_running_vm_is_re_encrypted_whoever_is_killed", reencryption::running::killed),
        long_trial(
            "a_cancelled_re_encryption_of_a_running_vm_leaves_it_whole",
            reencryption::running::cancelled,
        ),
        long_trial("a_disk_is_encrypted_and_decrypted_whoever_is_killed", reencryption::sealed::killed),
        trial("a_running_vm_accepts_no_layer_or_descriptor_of_before", reencryption::running::attacked),
        trial("snapshots_of_several_vms_are_made_or_void", snapshot_groups::made_or_void),
        trial("a_commit_after_its_lease_is_refused_and_the_group_void", snapshot_groups::lease_runs_out),
        long_trial(
            "snapshots_of_several_vms_are_of_one_instant_whoever_is_killed",
            snapshot_groups::whoever_is_killed,
        ),
        long_trial("on_a_cluster_a_vm_lives", clusters::lives),
        long_trial("on_a_cluster_a_vm_has_disks_elsewhere", clusters::has_disks_elsewhere),
        long_trial("on_a_cluster_a_vm_of_a_host_that_is_shut_out_runs_on_another", clusters::is_taken_over),
        long_trial("on_a_cluster_a_tpm_keeps_what_it_has_acknowledged", clusters::tpm::keeps_its_states),
        long_trial("on_a_cluster_a_tpm_goes_with_its_vm_to_another_host", clusters::tpm::is_taken_over),
        long_trial("on_a_cluster_a_tpm_moves_with_its_running_guest", live_moves::tpm::on_a_cluster),
        long_trial("on_a_cluster_that_stops_a_vm_waits_and_nothing_else", clusters::stands_still),
        trial("a_vm_whose_key_cannot_be_had_waits_and_can_be_given_up", key_unavailable),
    ])
}

/// The volume of a running VM: its boot sector was imported.
fn volumes_are_read(host: &Host, spec: &VmSpec) {
    let volume = describe(&spec.directory().join("disk0")).unwrap().descriptor.volume;
    let map = |volume| {
        VolumeQuestion::Map(MapRequest {
            volume: Some(volume),
            view: View::Present,
            kind: MapKind::Allocated,
            chunk: ChunkSize::LEAST,
            start_bytes: 0,
            length_bytes: None,
            form: MapForm::Extents,
            seeks_next: false,
        })
    };
    let disk = || "disk0".parse().unwrap();
    let of_disk = |question| ReadingRequest { vm: spec.id, disk: disk(), question };
    let read = host.read_volumes(vec![
        of_disk(VolumeQuestion::Space { volume: Some(volume) }),
        of_disk(map(volume)),
        of_disk(map(VolumeId::random())),
        ReadingRequest { vm: VmId::random(), ..of_disk(map(volume)) },
        ReadingRequest { disk: "vm.json".parse().unwrap(), ..of_disk(map(volume)) },
    ]);
    let read = read.unwrap();
    let Reading::Space(space) = &read[0] else { panic!("{:?}", read[0]) };
    let unshared: u64 = space.views.iter().map(|view| view.unshared_bytes).sum();
    let sum = space.shared_bytes + space.common_bytes + space.other_bytes + unshared;
    assert_eq!((space.committed_bytes, space.views.len()), (sum, 1));
    let Reading::Map(map) = &read[1] else { panic!("{:?}", read[1]) };
    let first = ExtentReport { start_bytes: 0, length_bytes: 4096 };
    assert_eq!(map.chunks, ChunksReport::Extents(vec![first]));
    let codes = read[2..].iter().map(|reading| match reading {
        Reading::Problem(problem) => problem.code.as_str(),
        other => panic!("{other:?}"),
    });
    assert_eq!(codes.collect::<Vec<_>>(), ["other_volume", "no_such_vm", "not_a_volume"]);
    let many = vec![of_disk(VolumeQuestion::Space { volume: None }); READINGS_MAX + 1];
    assert!(matches!(host.read_volumes(many), Err(ClientError::Refused { status: 400, .. })));
}

const FORCED: OperationKind = OperationKind::Stop { force: true, timeout_s: 0 };

fn a_vm_lives() {
    let host = Host::start();
    let spec = host.spec("web1", 1);
    let OperationOutcome::Volumes(made) = host.done(&spec, 0, host.create(&spec)).unwrap() else { panic!() };
    assert_eq!(made.len(), 1);
    // A client that did not get the answer repeats the request.
    let again = host.done(&spec, 0, host.create(&spec)).unwrap();
    assert_eq!(again, OperationOutcome::Volumes(made));
    let other = VmSpec { id: strongroom_types::VmId::random(), ..spec.clone() };
    assert_eq!(host.refused(&other, 0, host.create(&other)).code, "name_taken");
    host.import(&spec, &boot_sector());

    let start = |generation| {
        (generation, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() })
    };
    let done = |(generation, kind)| host.done(&spec, generation, kind);
    assert_eq!(done(start(1)), None);
    assert_eq!(done(start(1)), None, "it runs already");
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    assert_eq!((running.volumes.len(), running.volumes[0].state), (1, VolumeState::Serving));
    host.add_datastore();
    assert_eq!(host.vms().vms[0].power, PowerState::Running, "its datastore was looked through once more");
    volumes_are_read(&host, &spec);
    let mut console = host.console(&spec);
    console.await_line("ready");
    console.say("a");
    console.await_text("a");
    let mut late = host.console(&spec);
    late.await_line("ready");

    assert_eq!(host.refused(&spec, 1, OperationKind::Delete).code, "running");
    assert_eq!(host.refused(&spec, 7, OperationKind::Pause).code, "other_generation");
    done((1, OperationKind::Pause));
    let paused = host.await_vm(&spec, |vm| vm.power == PowerState::Paused);
    assert_eq!(paused.reason.unwrap().code, "paused_by_request");
    done((1, OperationKind::Resume));
    console.say("b");
    console.await_text("b");
    done((1, OperationKind::Reset));
    console.await_line("ready");

    // The guest switches itself off.
    console.say("q");
    let off = host.await_vm(&spec, |vm| vm.power == PowerState::Stopped);
    assert_eq!((off.reason.unwrap().code.as_str(), off.qemu_pid), ("guest_shutdown", None));
    assert_eq!(host.refused(&spec, 1, start(1).1).code, "generation_used");
    assert!(matches!(host.ticket(&spec, TicketRequest::Vnc), Err(ClientError::Refused { .. })));

    // A ticket ends with the start of the VM that it was made for, and when it is made void.
    let log = || {
        let spec = Box::new(spec.clone());
        host.ticket(&spec.clone(), TicketRequest::ConsoleLog { spec, grants: Vec::new() }).unwrap()
    };
    let is_taken = |ticket: &Ticket| !String::from_utf8_lossy(&host.bytes_of(ticket)).contains("bad_ticket");
    let (void, present, former) = (log(), log(), log());
    host.void(&void).unwrap();
    assert!(!is_taken(&void) && is_taken(&present) && !is_taken(&present));

    // The VM starts paused, and is resumed on request.
    let paused = StartOptions { paused: true, ..StartOptions::default() };
    done((2, OperationKind::Start { spec: Box::new(spec.clone()), how: paused }));
    let standing = host.await_vm(&spec, |vm| vm.power == PowerState::Paused);
    assert_eq!(standing.reason.unwrap().code, "paused_by_request");
    assert!(!is_taken(&former));
    done((2, OperationKind::Resume));
    host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    // This guest ignores the power button, so it is stopped by force in the end.
    done((2, OperationKind::Stop { force: false, timeout_s: 1 }));
    let off = host.await_vm(&spec, |vm| vm.power == PowerState::Stopped);
    assert_eq!((off.reason.unwrap().code.as_str(), off.generation.0), ("forced_off", 2));
    done((2, FORCED));
    // Another program moves the directory away, and back.
    let (place, away) = (spec.directory(), spec.datastore.with_file_name("away"));
    std::fs::rename(&place, &away).unwrap();
    host.look_through();
    assert!(host.vms().vms.is_empty());
    std::fs::rename(&away, &place).unwrap();
    host.look_through();
    assert_eq!(host.vms().vms[0].vm, spec.id);
    done((0, OperationKind::Delete));
    done((0, OperationKind::Delete));
    assert_eq!(std::fs::read_dir(&spec.datastore).unwrap().count(), 1, "the mark");
    host.assert_nobody_left();
}

fn everybody_is_killed() {
    let mut host = Host::start();
    let spec = host.spec("web1", 1);
    host.done(&spec, 0, host.create(&spec));
    host.import(&spec, &boot_sector());
    let start = |host: &Host, generation| {
        host.done(
            &spec,
            generation,
            OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() },
        )
    };
    start(&host, 1);
    let first = host.await_vm(&spec, |vm| {
        vm.power == PowerState::Running && vm.volumes.iter().all(|volume| volume.worker_pid.is_some())
    });
    host.console(&spec).await_line("ready");

    kill(first.volumes[0].worker_pid.unwrap());
    let replaced = host.await_vm(&spec, |vm| {
        vm.volumes.iter().any(|volume| volume.restarts == 1 && volume.state == VolumeState::Serving)
    });
    assert_eq!(replaced.qemu_pid, first.qemu_pid);

    host.kill_hostd();
    host.start_hostd();
    let found = host.await_vm(&spec, |vm| vm.power == PowerState::Running && vm.qemu_pid.is_some());
    assert_eq!((found.qemu_pid, found.supervisor_pid), (first.qemu_pid, first.supervisor_pid));
    // The guest reads its disk: its reset goes through the worker.
    host.done(&spec, 1, OperationKind::Reset);
    host.console(&spec).await_line("ready");

    kill(found.supervisor_pid.unwrap());
    let adopted = host.await_vm(&spec, |vm| {
        vm.power == PowerState::Running
            && vm.supervisor_pid != found.supervisor_pid
            && vm.volumes.iter().all(|volume| volume.state == VolumeState::Serving)
    });
    assert_eq!((adopted.qemu_pid, adopted.generation.0), (first.qemu_pid, 1));
    host.done(&spec, 1, OperationKind::Reset);
    host.console(&spec).await_line("ready");

    // There is no hostd that could replace the supervisor at once.
    host.kill_hostd();
    kill(adopted.supervisor_pid.unwrap());
    host.start_hostd();
    let adopted = host.await_vm(&spec, |vm| {
        vm.power == PowerState::Running && vm.supervisor_pid.is_some() && !vm.volumes.is_empty()
    });
    assert_eq!(adopted.qemu_pid, first.qemu_pid);

    kill(adopted.qemu_pid.unwrap());
    let crashed = host.await_vm(&spec, |vm| vm.power == PowerState::Crashed);
    assert_eq!(crashed.reason.unwrap().code, "qemu_died");
    start(&host, 2);
    let second = host.await_vm(&spec, |vm| vm.power == PowerState::Running && vm.qemu_pid.is_some());
    host.console(&spec).await_line("ready");

    host.kill_hostd();
    kill(second.supervisor_pid.unwrap());
    kill(second.qemu_pid.unwrap());
    host.start_hostd();
    let lost = host.await_vm(&spec, |vm| vm.power == PowerState::Crashed);
    assert_eq!(lost.reason.unwrap().code, "host_lost");
    start(&host, 3);
    host.console(&spec).await_line("ready");
    host.done(&spec, 3, FORCED);
    host.assert_nobody_left();
}

fn no_cores() {
    let host = Host::start();
    let mut spec = host.spec("web1", 1);
    spec.nics = vec![strongroom_host::protocol::Nic::new(
        "52:54:00:12:34:56".parse().unwrap(),
        strongroom_host::protocol::Network::User,
    )];
    host.done(&spec, 0, host.create(&spec));
    host.done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() });
    let running = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    let (supervisor, qemu) = (running.supervisor_pid.unwrap(), running.qemu_pid.unwrap());
    let worker = running.volumes[0].worker_pid.unwrap();
    let below = processes_below(supervisor);
    assert!(below.contains(&qemu) && below.contains(&worker), "{below:?}");
    let starter = below[0];
    for pid in below.into_iter().chain([supervisor]) {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
        let (name, limits) = (read("comm"), read("limits"));
        let core = limits.lines().find_map(|line| line.strip_prefix("Max core file size")).unwrap();
        let mut limits = core.split_whitespace().take(2).map(|limit| limit.parse::<u64>().unwrap());
        // At 1 the kernel does not start a core dump program either; at 0 it would.
        assert!(limits.all(|limit| limit <= 1), "{name}: {core}");
        // A program executed in the sandbox is dumpable again, but its filter leaves nothing to
        // dump.
        let filter = u32::from_str_radix(read("coredump_filter").trim(), 16).unwrap();
        assert!([supervisor, starter, worker].contains(&pid) || filter == 0, "{name}: {filter:x}");
    }
    host.done(&spec, 1, FORCED);
    host.assert_nobody_left();
}

/// Returns all descendants of a process.
fn processes_below(pid: u32) -> Vec<u32> {
    let parent = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse::<u32>().ok()
    };
    let names = std::fs::read_dir("/proc").unwrap().flatten();
    let all: Vec<u32> = names.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(above) = found.get(next).copied() {
        found.extend(all.iter().filter(|pid| parent(**pid) == Some(above)));
        next += 1;
    }
    found.split_off(1)
}

fn many_at_once() {
    const VMS: usize = 24;
    let mut host = Host::start();
    let specs: Vec<VmSpec> = (0..VMS).map(|number| host.spec(&format!("vm{number}"), 2)).collect();
    let asked: Vec<_> = specs.iter().map(|spec| host.request(0, host.create(spec))).collect();
    for (spec, request) in specs.iter().zip(&asked) {
        host.operate(spec, request).unwrap();
    }
    let busy = host.host();
    assert!(busy.operations_running <= 16, "{busy:?}");
    // Some VMs are made, some are half made, and some are queued.
    host.await_operation(asked[0].operation);
    host.kill_hostd();
    host.start_hostd();
    for (spec, request) in specs.iter().zip(&asked) {
        host.operate(spec, request).unwrap();
    }
    for request in &asked {
        let ended = host.await_operation(request.operation);
        assert_eq!(ended.state, OperationState::Done, "{ended:?}");
    }
    assert_eq!(host.vms().vms.len(), VMS);
    let gone: Vec<_> = specs.iter().map(|spec| (spec, host.request(0, OperationKind::Delete))).collect();
    for (spec, request) in &gone {
        host.operate(spec, request).unwrap();
    }
    for (_, request) in &gone {
        assert_eq!(host.await_operation(request.operation).state, OperationState::Done);
    }
    assert!(host.vms().vms.is_empty());
    assert_eq!(std::fs::read_dir(&specs[0].datastore).unwrap().count(), 1, "the mark");
    host.assert_nobody_left();
}

fn key_unavailable() {
    let host = Host::start();
    let spec = host.encrypted_vm("secret1");
    let outcome = host
        .done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() })
        .unwrap();
    let OperationOutcome::KeyUnavailable(key) = outcome else { panic!("{outcome:?}") };
    assert_eq!((key.provider.as_str(), key.key.as_str()), ("away", "4711"));
    let waiting = host.await_vm(&spec, |vm| vm.power == PowerState::KeyUnavailable);
    assert_eq!(waiting.reason.unwrap().code, "key_unavailable");
    assert_eq!(waiting.waiting_for[0].key, key);
    assert!(waiting.qemu_pid.is_none());
    host.done(&spec, 1, OperationKind::SupplyGrants);
    assert_eq!(host.refused(&spec, 1, OperationKind::Pause).code, "not_running");
    host.done(&spec, 1, FORCED);
    let off = host.await_vm(&spec, |vm| vm.power == PowerState::Stopped);
    assert_eq!(off.generation.0, 1);
    // An operation that never ran can be requested again.
    let again = host.done(
        &spec,
        1,
        OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() },
    );
    assert!(matches!(again, Some(OperationOutcome::KeyUnavailable(_))));
    host.done(&spec, 1, FORCED);
    host.assert_nobody_left();
}

fn encrypted_vm() {
    let mut host = Host::start();
    let mut site = KeySite::start(&host);
    let mut spec = host.spec("secret1", 2);
    for disk in &mut spec.disks {
        disk.key = DiskKey::provider(site.key.clone(), None);
    }
    let Some(OperationOutcome::Volumes(made)) = host.done(&spec, 0, host.create(&spec)) else { panic!() };
    let kek = made[0].kek.unwrap();
    assert_eq!(made[1].kek, Some(kek));
    for disk in &mut spec.disks {
        disk.key = DiskKey::provider(site.key.clone(), Some(kek));
    }
    host.import(&spec, &boot_sector());
    host.assert_sealed(&spec, b"ready\r\n");
    let start = |generation| {
        (generation, OperationKind::Start { spec: Box::new(spec.clone()), how: StartOptions::default() })
    };
    let done = |host: &Host, (generation, kind)| host.done(&spec, generation, kind);
    assert_eq!(done(&host, start(1)), None);
    let mut console = host.console(&spec);
    console.await_line("ready");
    let running = host.await_vm(&spec, |vm| vm.volumes.iter().all(|volume| volume.lease.is_some()));
    assert!(running.volumes.iter().all(|volume| volume.kek == Some(kek)), "{running:?}");

    // The guest continues while its key is unavailable, and so does everything that needs no key.
    site.server.kill();
    host.kill_hostd();
    host.start_hostd();
    done(&host, (1, OperationKind::Reset));
    // A client of the console does not notice the new hostd.
    console.await_line("ready");
    kill(running.supervisor_pid.unwrap());
    let waiting = host.await_vm(&spec, |vm| vm.power == PowerState::KeyUnavailable);
    assert_eq!(waiting.waiting_for[0].key, site.key);
    assert!(!waiting.waiting_for[0].grant_wanted, "this provider knows no grants");
    site.server.restart();
    let back = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    assert_eq!(back.qemu_pid, running.qemu_pid);
    done(&host, (1, OperationKind::Reset));
    host.console(&spec).await_line("ready");
    done(&host, (1, FORCED));

    // A VM that is off does not start without its key; it starts automatically when the key is
    // available again.
    site.server.kill();
    assert_eq!(done(&host, start(2)), Some(OperationOutcome::KeyUnavailable(site.key.clone())));
    site.server.restart();
    host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    host.console(&spec).await_line("ready");
    done(&host, (2, FORCED));

    // A key other than the recorded one is refused.
    let mut other = spec.clone();
    other.disks[1].key = DiskKey::provider(site.key.clone(), Some(strongroom_types::KekId::random()));
    let refused =
        host.refused(&spec, 3, OperationKind::Start { spec: Box::new(other), how: StartOptions::default() });
    assert!(refused.message.contains("should be under the one that was recorded"), "{refused:?}");
    let mut clear = spec.clone();
    clear.disks[1].key = DiskKey::Unencrypted;
    let refused =
        host.refused(&spec, 3, OperationKind::Start { spec: Box::new(clear), how: StartOptions::default() });
    assert!(refused.message.contains("should be not encrypted"), "{refused:?}");
    host.assert_nobody_left();
}
