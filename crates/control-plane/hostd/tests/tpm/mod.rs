//! A guest's TPM: what it has acknowledged is kept, whoever is killed at that moment.

use std::sync::atomic::{AtomicU8, Ordering};

use strongroom_host::protocol::{DiskKey, OperationKind, OperationOutcome, PowerState, StartOptions, VmSpec};

use super::FORCED;
use crate::support::{Console, Host, KeySite, booting, kill, until};

/// An index in the TPM that its owner, who has no password, may define, write and read (TPM 2.0
/// part 2, 13).
const NV_INDEX: &str = "01800001";
/// The owner, and a session with an empty password.
const OWNER: &str = "40000001";
const SESSION: &str = "00000009 40000009 0000 00 0000";
/// The register that anybody may extend (16).
const REGISTER: &str = "00000010";
/// The length of the index, and of the texts that are written to it.
const TEXT_BYTES: usize = 32;
/// What all of these texts begin with.
pub const MARKER: &[u8] = b"strongroom-tpm-marker-";

/// A disk whose guest sends its TPM what it reads on the serial line: a command in hexadecimal
/// digits, and the end of the line. It prints the answer in the same way, or `!` if the firmware
/// takes the command for none.
pub fn tpm_guest() -> Vec<u8> {
    #[rustfmt::skip]
    let code: &[u8] = &[
        0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, 0x8e, 0xd0, // ds = es = ss = 0
        0xbc, 0x00, 0x7c, 0xbe, 0xc6, 0x7c, // sp = 0x7c00, si = message
        0xac, 0x84, 0xc0, 0x74, 0x05, 0xe8, 0x94, 0x00, 0xeb, 0xf6, // print it to its zero byte
        0xbf, 0x08, 0x80, 0x30, 0xdb, // a command: di = 0x8008, no digit yet
        0xe8, 0x99, 0x00, 0x3c, 0x0d, 0x74, 0x1d, 0x3c, 0x0a, 0x74, 0x19, // read, to the end of the line
        0x2c, 0x30, 0x3c, 0x09, 0x76, 0x02, 0x2c, 0x27, // the digit's value
        0x80, 0xf3, 0x01, 0x74, 0x07, 0xc0, 0xe0, 0x04, 0x88, 0xc7, 0xeb, 0xe1, // keep the first of two
        0x08, 0xf8, 0xaa, 0xeb, 0xdc, // store both
        0x81, 0xef, 0x00, 0x80, 0x89, 0x3e, 0x00, 0x80, // the length of the input at 0x8000
        0xc7, 0x06, 0x04, 0x80, 0x00, 0x10, // and the most that the output may have
        0xbf, 0x00, 0x80, 0xbe, 0x00, 0x90, // di = input, si = output
        0x66, 0xb8, 0x02, 0xbb, 0x00, 0x00, // TCG_PassThroughToTPM
        0x66, 0xbb, 0x54, 0x43, 0x50, 0x41, 0x66, 0x31, 0xc9, 0x66, 0x31, 0xd2, // "TCPA"
        0x1e, 0x06, 0xcd, 0x1a, 0x07, 0x1f, 0x66, 0x85, 0xc0, 0x75, 0x29, // int 1ah
        0x8b, 0x0e, 0x00, 0x90, 0x83, 0xe9, 0x04, 0xbe, 0x04, 0x90, // the output's length and place
        0xac, 0x88, 0xc4, 0xc0, 0xe8, 0x04, 0xe8, 0x1d, 0x00, // print the first digit of a byte
        0x88, 0xe0, 0x24, 0x0f, 0xe8, 0x16, 0x00, 0xe2, 0xee, // and the second, for all bytes
        0xb0, 0x0d, 0xe8, 0x17, 0x00, 0xb0, 0x0a, 0xe8, 0x12, 0x00, 0xe9, 0x7d, 0xff, // end the line
        0xb0, 0x21, 0xe8, 0x0a, 0x00, 0xeb, 0xec, // print `!`
        0x04, 0x30, 0x3c, 0x39, 0x76, 0x02, 0x04, 0x27, // print a digit
        0x50, 0xba, 0xfd, 0x03, 0xec, 0xa8, 0x20, 0x74, 0xfb, 0x58, 0xba, 0xf8, 0x03, 0xee, 0xc3, // a byte
        0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, 0xba, 0xf8, 0x03, 0xec, 0xc3, // read a byte
    ];
    booting(code)
}

/// The console of such a guest.
pub struct TpmGuest(Console);

impl TpmGuest {
    /// Waits until the guest has booted.
    pub fn booted(host: &Host, spec: &VmSpec) -> Self {
        let mut console = host.console(spec);
        console.await_line("ready");
        Self(console)
    }

    /// Finds a guest that runs already, and has it give up the command that it was reading.
    pub fn found(host: &Host, spec: &VmSpec) -> Self {
        let mut console = host.console(spec);
        until("the guest reads a command", || console.is_answered("\n", "!\r").then_some(()));
        // That may have been said before. An answer to TPM2_PCR_Read names the registers that were
        // asked for, which are others each time.
        static ASKED: AtomicU8 = AtomicU8::new(1);
        until("the guest answers", || {
            let asked = format!("{:02x}0000", ASKED.fetch_add(1, Ordering::Relaxed).max(1));
            let command = format!("8001000000140000017e00000001000b03{asked}\n");
            console.is_told(&command, &format!("00000001000b03{asked}")).then_some(())
        });
        console.read_line();
        Self(console)
    }

    /// Sends a command with sessions, without tag and size. Returns the answer after its response
    /// code.
    fn tell(&mut self, command: &str) -> Vec<u8> {
        self.tell_with("8002", command)
    }

    fn tell_with(&mut self, tag: &str, command: &str) -> Vec<u8> {
        let digits: String = command.split_whitespace().collect();
        self.0.say(&format!("{tag}{:08x}{digits}\n", 6 + digits.len() / 2));
        let line = loop {
            // Answers to a former supervisor's console may come first.
            let line = self.0.read_line();
            if line.len() > 1 {
                break line;
            }
        };
        let answer: Vec<u8> = (0..line.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(line.get(at..at + 2).unwrap(), 16).unwrap())
            .collect();
        assert_eq!(answer[6..10], [0; 4], "{command}: {line}");
        answer[10..].to_vec()
    }

    /// Makes the index (TPM2_NV_DefineSpace).
    pub fn define(&mut self) {
        let public = format!("000e {NV_INDEX} 000b 02060006 0000 {TEXT_BYTES:04x}");
        self.tell(&format!("0000012a {OWNER} {SESSION} 0000 {public}"));
    }

    /// Writes the text with this number (TPM2_NV_Write).
    pub fn write(&mut self, number: u64) {
        let text: String = text_of(number).bytes().map(|byte| format!("{byte:02x}")).collect();
        let size = format!("{TEXT_BYTES:04x}");
        self.tell(&format!("00000137 {OWNER} {NV_INDEX} {SESSION} {size} {text} 0000"));
    }

    /// Checks which text the index has (TPM2_NV_Read).
    #[track_caller]
    pub fn has(&mut self, number: u64) {
        let answer = self.tell(&format!("0000014e {OWNER} {NV_INDEX} {SESSION} {TEXT_BYTES:04x} 0000"));
        assert_eq!(String::from_utf8_lossy(&answer[6..6 + TEXT_BYTES]), text_of(number));
    }

    /// Extends a register (TPM2_PCR_Extend), which has its first value again after a boot.
    pub fn extend(&mut self, number: u64) {
        self.tell(&format!("00000182 {REGISTER} {SESSION} 00000001 000b {number:064x}"));
    }

    /// What the register has (TPM2_PCR_Read).
    pub fn register(&mut self) -> Vec<u8> {
        let answer = self.tell_with("8001", "0000017e 00000001 000b 03 000001");
        answer[answer.len() - 32..].to_vec()
    }
}

fn text_of(number: u64) -> String {
    format!("{}{number:010}", String::from_utf8_lossy(MARKER))
}

/// The process ids of a VM's QEMU and swtpm, and of the gate between them.
pub fn tpm_processes(host: &Host, spec: &VmSpec) -> [u32; 3] {
    let state = std::fs::read(host.path("run/vms").join(spec.id.to_string()).join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_slice(&state).unwrap();
    let pid = |part: &str| u32::try_from(state[part]["pid"].as_u64().unwrap()).unwrap();
    let qemu = pid("qemu");
    // The gate has a socket of this VM's and swtpm's parent, or none if that has died.
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let cgroup_of = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let is_gate = |pid: &u32| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        name.trim() == "strongroom-tpm" && cgroup_of(*pid) == cgroup_of(qemu)
    };
    let gates: Vec<u32> = pids.filter(is_gate).collect();
    assert_eq!(gates.len(), 1, "{gates:?}");
    [qemu, pid("swtpm"), gates[0]]
}

fn start(host: &Host, spec: &VmSpec, generation: u64) -> Option<OperationOutcome> {
    let (spec, how) = (Box::new(spec.clone()), StartOptions::default());
    host.done(&spec.clone(), generation, OperationKind::Start { spec, how })
}

/// Whoever is killed as soon as the TPM has acknowledged a text, the text is there.
pub fn keeps_what_it_has_acknowledged() {
    let mut host = Host::start();
    let site = KeySite::start(&host);
    let mut spec = host.spec("web1", 1);
    spec.tpm = true;
    spec.disks[0].key = DiskKey::provider(site.key.clone(), None);
    let Some(OperationOutcome::Volumes(made)) = host.done(&spec, 0, host.create(&spec)) else { panic!() };
    let spec = spec.with_facts(&made);
    let Some(OperationOutcome::Volumes(made)) = host.import_into(&spec, "disk0", &tpm_guest()) else {
        panic!()
    };
    let spec = spec.with_facts(&made);
    start(&host, &spec, 1);
    let mut guest = TpmGuest::booted(&host, &spec);
    guest.define();
    guest.write(1);

    // Its supervisor: the TPM goes on with the next one.
    let before = host.await_vm(&spec, |vm| vm.power == PowerState::Running);
    kill(before.supervisor_pid.unwrap());
    let adopted = |vm: &strongroom_host::protocol::ObservedVm| {
        vm.power == PowerState::Running && vm.supervisor_pid != before.supervisor_pid
    };
    assert!(!host.await_vm(&spec, adopted).tpm_lost);
    let mut guest = TpmGuest::found(&host, &spec);
    guest.has(1);
    guest.write(2);

    // hostd and the supervisor together.
    host.kill_hostd();
    host.end_vms();
    host.start_hostd();
    host.await_vm(&spec, |vm| vm.power == PowerState::Crashed);
    start(&host, &spec, 2);
    let mut guest = TpmGuest::booted(&host, &spec);
    guest.has(2);

    // QEMU, swtpm and the gate, one after the other.
    for (generation, victim) in (3_u64..).zip(0..3) {
        guest.write(generation);
        kill(tpm_processes(&host, &spec)[victim]);
        match victim {
            0 => drop(host.await_vm(&spec, |vm| vm.power == PowerState::Crashed)),
            _ => {
                let lost = host.await_vm(&spec, |vm| vm.tpm_lost);
                assert_eq!(lost.power, PowerState::Running);
                host.done(&spec, generation - 1, FORCED);
            }
        }
        start(&host, &spec, generation);
        guest = TpmGuest::booted(&host, &spec);
        guest.has(generation);
    }
    drop(guest);
    host.done(&spec, 5, FORCED);
    host.assert_nowhere(MARKER);
    host.done(&spec, 5, OperationKind::Delete);
    host.assert_nobody_left();
}
