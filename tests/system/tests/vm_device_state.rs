//! Persistent state of a VM's devices: it is there after a stop and a start, and in no file in the
//! clear.

use rustix::process::{Signal, kill_process};
use strongroom_system_tests::{Console, Scratch, Serving, datastore};

/// The text that the guest stores in its firmware, and only the guest may read.
const MARKER: &str = "strongroom-nvram-marker-93b7";
/// The variable.
const VARIABLE: &str = "/sys/firmware/efi/efivars/Strongroom-3c8b1d52-7a0e-4f0c-9a3e-6f6d3c1f0b55";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn uefi_keeps_its_variables_in_a_sealed_volume() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest_for_uefi();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --uefi {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let shown = serving.runs("vm show web1");
    assert!(shown.contains("q35") && shown.contains("UEFI"), "{shown}");

    let _place = serving.take_place();
    let mut console = boot(&serving);
    // Non-volatile, for boot and run time (UEFI 2.10, 8.2).
    let write = |to: &str, text: &str| format!("printf '\\007\\000\\000\\000{text}' > {to}");
    console.session.run(&write(&VARIABLE.replace("Strongroom", "Before"), "before"));
    // Every worker of the VM, including that of the variables.
    let workers = serving.workers_of(&id);
    assert_eq!(workers.len(), 2, "{workers:?}");
    for worker in workers {
        kill_process(worker, Signal::KILL).unwrap();
    }
    console.session.run(&write(VARIABLE, MARKER));
    assert!(console.session.run(&format!("cat {VARIABLE}")).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");

    let mut console = boot(&serving);
    assert!(console.session.run(&format!("cat {VARIABLE}")).contains(MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), MARKER.as_bytes()), 0, "{place}");
    }
    assert!(scratch.path("ds/web1/nvram/descriptor").is_file());
    serving.runs("vm delete web1 --yes");
    let left = datastore::files_under(&scratch.path("ds"));
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("web1")), "{left:?}");
}

/// Texts in cloud-init's data and in the guest's swapped-out memory.
const SEED_MARKER: &str = "strongroom-seed-marker-5b0e";
const SWAP_MARKER: &str = "strongroom-swap-marker-c4d9";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_seed_is_read_and_what_was_swapped_out_is_gone_after_power_off() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    std::fs::write(scratch.path("user-data"), format!("#cloud-config\npassword: {SEED_MARKER}\n")).unwrap();
    let create =
        "vm create web1 --memory 256M --net none --disk 64M --swap 32M --machine pc --user-data user-data";
    serving.runs(&format!("{create} {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let swap = scratch.path("ds/web1/swap0");
    assert!(!swap.exists(), "a VM that is off has none");

    let _place = serving.take_place();
    let start = || {
        serving.runs("vm start web1");
        let mut console = serving.console("web1");
        console.wait_until_ready();
        console
            .session
            .run("for module in fat vfat nls_cp437 nls_ascii; do insmod /lib/modules/$module.ko; done");
        console.session.run("mount -r -t vfat /dev/vdc /mnt");
        console
    };
    let mut console = start();
    // The labels of a swap area and of a FAT file system.
    let label =
        |disk: &str, at: u32, bytes: usize| format!("dd if={disk} bs=1 skip={at} count={bytes} 2>/dev/null");
    assert_eq!(console.session.run(&label("/dev/vdb", 1052, 5)), "swap0");
    assert_eq!(console.session.run(&label("/dev/vdc", 43, 6)), "cidata");
    assert!(console.session.run("cat /mnt/user-data").contains(SEED_MARKER));
    let told = console.session.run("cat /mnt/meta-data");
    assert!(told.contains("local-hostname: web1") && told.contains(&id), "{told}");
    assert_eq!(console.session.run("cat /sys/block/vdc/ro"), "1\n");
    console.session.run("swapon /dev/vdb && grep -q vdb /proc/swaps && swapoff /dev/vdb");
    let write =
        format!("echo {SWAP_MARKER} > text; dd if=text of=/dev/vdb bs=4096 seek=100 conv=sync,fsync 2>&1");
    console.session.run(&write);
    drop(console);
    // A supervisor that takes over does not change it.
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    let read = "dd if=/dev/vdb bs=4096 skip=100 count=1 2>/dev/null | tr -d '\\000'";
    assert!(console.session.run(read).contains(SWAP_MARKER));
    drop(console);
    // A suspended guest still refers to its swapped-out data.
    serving.runs("vm suspend web1");
    assert!(swap.exists());
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(console.session.run(read).contains(SWAP_MARKER));
    drop(console);
    serving.runs("vm stop web1 --force");
    assert!(!swap.exists());

    std::fs::write(scratch.path("other"), "#cloud-config\n# another one\n").unwrap();
    serving.runs("vm seed web1 --user-data other");
    let mut console = start();
    assert!(console.session.run("cat /mnt/user-data").contains("another one"));
    assert_eq!(console.session.run(read), "");
    console.session.run("swapon /dev/vdb");
    drop(console);
    serving.runs("vm stop web1 --force");
    for marker in [SEED_MARKER, SWAP_MARKER] {
        for place in ["ds", "home", "run"] {
            assert_eq!(
                datastore::occurrences(&scratch.path(place), marker.as_bytes()),
                0,
                "{marker}: {place}"
            );
        }
    }
}

/// A text with the length of the TPM index that it is written to.
const TPM_MARKER: &str = "strongroom-tpm-marker-0123456789";
/// An index in the TPM that its owner, who has no password, may define, write and read (TPM 2.0
/// part 2, 13).
const NV_INDEX: &str = "01800001";
/// The owner, and a session with an empty password.
const OWNER: &str = "40000001";
const SESSION: &str = "00000009 40000009 0000 00 0000";

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_tpm_keeps_its_state_and_one_that_was_put_back_is_refused() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest_for_uefi();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let create = "vm create web1 --memory 256M --net none --disk 64M --restart never --tpm";
    let bios = serving.is_refused(&format!("{create} {guest}"));
    assert!(bios.contains("UEFI"), "{bios}");
    serving.runs(&format!("{create} --uefi {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let state = scratch.path("ds/web1/vtpm.state/tpm2-00.permall");
    assert!(!state.exists(), "nobody has started it");

    let _place = serving.take_place();
    let mut console = boot(&serving);
    define_tpm_index(&mut console);
    write_tpm_marker(&mut console, TPM_MARKER);
    drop(console);
    serving.runs("vm stop web1 --force");
    let former = std::fs::read(&state).unwrap();

    let mut console = boot(&serving);
    assert_eq!(tpm_marker(&mut console), TPM_MARKER);
    // A supervisor that takes over continues the record.
    drop(console);
    kill_process(serving.processes_of(&id)[0], Signal::KILL).unwrap();
    let mut console = serving.console_when_taken_over("web1", &id);
    write_tpm_marker(&mut console, &TPM_MARKER.replace("0123456789", "9876543210"));
    drop(console);
    serving.runs("vm stop web1 --force");
    let last = std::fs::read(&state).unwrap();
    assert_ne!(former, last);

    std::fs::write(&state, &former).unwrap();
    let refused = serving.is_refused("vm start web1");
    assert!(refused.contains("an older state was put back") && refused.contains("vtpm.state"), "{refused}");
    std::fs::remove_file(&state).unwrap();
    let refused = serving.is_refused("vm start web1");
    assert!(refused.contains("the TPM's state is missing"), "{refused}");
    std::fs::write(&state, &last).unwrap();

    let console = boot(&serving);
    // Suspended and resumed, with the same result as a start.
    drop(console);
    serving.runs("vm suspend web1");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(tpm_marker(&mut console).ends_with("9876543210"));
    // The guest continues without it, and the failure is reported.
    kill_process(serving.processes_of(&id)[2], Signal::KILL).unwrap();
    let lost = |vm: &serde_json::Value| vm["reason"].as_str().is_some_and(|reason| reason.contains("TPM"));
    let vm = serving.wait_until("web1", "is known to have lost its TPM", lost);
    assert_eq!(vm["power"], "running");
    assert_eq!(console.session.run("echo the guest goes on"), "the guest goes on\n");
    drop(console);
    serving.runs("vm stop web1 --force");
    for place in ["ds", "home", "run"] {
        assert_eq!(datastore::occurrences(&scratch.path(place), &TPM_MARKER.as_bytes()[..22]), 0, "{place}");
    }
    serving.runs("vm delete web1 --yes");
    let left = datastore::files_under(&scratch.path("ds"));
    assert!(left.iter().all(|path| !path.to_string_lossy().contains("web1")), "{left:?}");
}

/// Whoever writes the datastore puts a memory back that has an old state of the TPM.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_tpm_goes_back_with_a_snapshots_memory_when_it_is_said_and_with_no_other_memory() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest_for_uefi();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let create = "vm create web1 --memory 256M --net none --disk 64M --restart never --tpm --uefi";
    serving.runs(&format!("{create} {guest}"));
    let _place = serving.take_place();
    let mut console = boot(&serving);
    define_tpm_index(&mut console);
    let write = |console: &mut Console, last: &str| {
        write_tpm_marker(console, &TPM_MARKER.replace("0123456789", last));
    };
    write(&mut console, "1111111111");
    serving.runs("vm snapshot create web1 first --memory");
    write(&mut console, "2222222222");
    drop(console);
    serving.runs("vm stop web1 --force");

    let refused = serving.is_refused("vm snapshot revert web1 first --discard --yes");
    assert!(refused.contains("counters and lock-outs go back") && refused.contains("--tpm"), "{refused}");
    serving.runs("vm snapshot revert web1 first --disks-only --discard --yes");
    let mut console = boot(&serving);
    assert!(tpm_marker(&mut console).ends_with("2222222222"), "the disks alone");
    drop(console);
    serving.runs("vm suspend web1");
    copy(&scratch, "ds/web1", "suspended");
    serving.runs("vm start web1");
    serving.runs("vm stop web1 --force");

    serving.runs("vm snapshot revert web1 first --tpm --discard --yes");
    copy(&scratch, "ds/web1", "put-back");
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    assert!(tpm_marker(&mut console).ends_with("1111111111"));
    write(&mut console, "3333333333");
    drop(console);
    serving.runs("vm stop web1 --force");
    let events = serving.runs("event list");
    assert!(events.contains("with its counters and lock-outs, by "), "{events}");

    // The memory that was put back, and the one of a suspension, each with `vm.json` of its time.
    for of in ["put-back", "suspended"] {
        for name in ["memory", "vm.json"] {
            copy(&scratch, &format!("{of}/{name}"), &format!("ds/web1/{name}"));
        }
        let refused = serving.is_refused("vm start web1");
        assert!(refused.contains("would put an old state of the TPM back"), "{of}: {refused}");
        assert!(refused.contains("--discard-memory"), "{of}: {refused}");
    }
    serving.runs("vm start web1 --discard-memory");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    assert!(tpm_marker(&mut console).ends_with("3333333333"));
    drop(console);
    serving.runs("vm stop web1 --force");
    // Its own state of that time is recognised, too.
    let state = "vtpm.state/tpm2-00.permall";
    copy(&scratch, &format!("put-back/{state}"), &format!("ds/web1/{state}"));
    let refused = serving.is_refused("vm start web1");
    assert!(refused.contains("an older state was put back"), "{refused}");
}

/// The TPM's record names a memory before `vm.json` does, and no more before its guest goes on.
#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_tpm_goes_on_whoever_is_killed_during_a_suspension_or_a_revert() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    let guest = serving.test_guest_for_uefi();
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M --tpm --uefi {guest}"));
    let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
    let _place = serving.take_place();
    let mut console = boot(&serving);
    define_tpm_index(&mut console);
    write_tpm_marker(&mut console, TPM_MARKER);
    serving.runs("vm snapshot create web1 first --memory");
    console.session.run("only=in-memory");
    drop(console);
    let is_let_be = || serving.wait_until("web1", "is let be", |vm| vm["task"].is_null());
    // Each is killed a little later than the one before.
    for round in 0..5 {
        serving.runs("vm suspend web1 --no-wait");
        (0..round).for_each(|_| drop(serving.vm("web1")));
        if let Some(supervisor) = serving.processes_of(&id).first() {
            // It may have ended by itself.
            let _ = kill_process(*supervisor, Signal::KILL);
        }
        is_let_be();
        let settled = |vm: &serde_json::Value| matches!(vm["power"].as_str(), Some("running" | "suspended"));
        if serving.wait_until("web1", "runs or is suspended", settled)["power"] == "suspended" {
            serving.runs("vm start web1");
        }
        let mut console = serving.console_when_taken_over("web1", &id);
        assert_eq!(console.session.run("echo $only").trim(), "in-memory", "round {round}");
        assert_eq!(tpm_marker(&mut console), TPM_MARKER, "round {round}");
    }
    serving.runs("vm stop web1 --force");
    for round in 0..3 {
        serving.runs("vm snapshot revert web1 first --tpm --discard --yes --no-wait");
        (0..round).for_each(|_| drop(serving.vm("web1")));
        kill_process(serving.process(&["serve", "--role host"]), Signal::KILL).unwrap();
        is_let_be();
        if serving.vm("web1")["power"] != "suspended" {
            serving.wait_until_told("vm snapshot revert web1 first --tpm --discard --yes", "reverted web1");
        }
        serving.runs("vm start web1");
        let mut console = serving.console("web1");
        assert_eq!(tpm_marker(&mut console), TPM_MARKER, "round {round}");
        drop(console);
        serving.runs("vm stop web1 --force");
    }
}

/// Copies files of the datastore, as an attacker who can read and write it.
fn copy(scratch: &Scratch, from: &str, to: &str) {
    let to = scratch.path(to);
    let _ = std::fs::remove_dir_all(&to);
    let copied = std::process::Command::new("cp").arg("-aT").arg(scratch.path(from)).arg(to).status();
    assert!(copied.unwrap().success());
}

/// Sends a command to the guest's TPM, without tag and size. Returns the answer after its response
/// code.
fn tpm(console: &mut Console, command: &str) -> Vec<u8> {
    let digits: String = command.split_whitespace().collect();
    let bytes = |digits: &str| -> Vec<u8> {
        let pairs = (0..digits.len()).step_by(2);
        pairs.map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
    };
    let command = bytes(&format!("8002{:08x}{digits}", 6 + digits.len() / 2));
    let escaped: String = command.iter().map(|byte| format!("\\{byte:03o}")).collect();
    let exchange = format!(
        "(exec 3<>/dev/tpm0; printf '{escaped}' >&3; dd bs=4096 count=1 <&3 2>/dev/null | od -An -v -tx1)"
    );
    let answer = bytes(&console.session.run(&exchange).split_whitespace().collect::<String>());
    assert_eq!(answer[6..10], [0; 4], "{command:02x?}: {answer:02x?}");
    answer[10..].to_vec()
}

/// Makes the TPM's index, of 32 bytes (TPM2_NV_DefineSpace, part 3, 31).
pub fn define_tpm_index(console: &mut Console) {
    let public = format!("000e {NV_INDEX} 000b 02060006 0000 0020");
    tpm(console, &format!("0000012a {OWNER} {SESSION} 0000 {public}"));
}

/// Writes a text of 32 bytes to it (TPM2_NV_Write).
pub fn write_tpm_marker(console: &mut Console, text: &str) {
    let text: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
    tpm(console, &format!("00000137 {OWNER} {NV_INDEX} {SESSION} 0020 {text} 0000"));
}

/// Reads the TPM's index (TPM2_NV_Read).
pub fn tpm_marker(console: &mut Console) -> String {
    let answer = tpm(console, &format!("0000014e {OWNER} {NV_INDEX} {SESSION} 0020 0000"));
    String::from_utf8(answer[6..38].to_vec()).unwrap()
}

/// Starts the VM, and makes its guest mount the variables of its firmware.
fn boot(serving: &Serving<'_>) -> Console {
    serving.runs("vm start web1");
    let mut console = serving.console("web1");
    console.wait_until_ready();
    console
        .session
        .run("insmod /lib/modules/efivarfs.ko && mount -t efivarfs none /sys/firmware/efi/efivars");
    console
}
