//! Processes of a VM are killed (SIGKILL) at random moments while its guest writes: no write that
//! the guest knows to be durable is lost, no process is left over, and the VM keeps running or
//! restarts automatically.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use strongroom_system_tests::family::{family_of, runs};
use strongroom_system_tests::{Console, Scratch, Serving, seed};

/// The number of kills.
const ROUNDS: usize = if cfg!(feature = "full") { 100 } else { 3 };
/// Whether the VM has a TPM, and therefore UEFI, whose emulated start is slow.
const TPM: bool = cfg!(feature = "full");
/// Blocks of 4 KiB at the beginning of the disk, which the guest writes in turn.
const SLOTS: u64 = 64;
/// Blocks that are written in a round, unless a kill ends it.
const WRITES: u64 = 40;
/// How often a VM is restarted automatically before a person must look at it.
const STARTS_BY_ITSELF: usize = 3;
/// Timeout of one write of an emulated guest whose disk waits for its next worker.
const WRITE_DEADLINE: Duration = Duration::from_secs(120);

/// In the guest: writes numbered blocks from `$1` up to `$2`, flushes each, and reports it.
const JOURNAL: &str = "journal() { i=$1; while [ $i -lt $2 ]; do printf '%-4096d' $i | dd of=/dev/vda bs=4096 \
seek=$((i%64)) conv=notrunc,fsync 2>/dev/null || { echo failed $i; return 1; }; echo ack $i; i=$((i+1)); done; }";

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Worker,
    Monitor,
    Supervisor,
    Qemu,
    Hostd,
    Control,
    KeyServer,
    /// The VM's TPM: its measurements are lost, so the VM has a TPM again only after a stop and a
    /// start.
    Swtpm,
    /// `serve` itself; its daemons end with it, and VMs keep running.
    Serve,
    /// All of them together, including the guest.
    Everything,
}

const VICTIMS: [Victim; 10] = [
    Victim::Worker,
    Victim::Monitor,
    Victim::Supervisor,
    Victim::Qemu,
    Victim::Hostd,
    Victim::Control,
    Victim::KeyServer,
    Victim::Swtpm,
    Victim::Serve,
    Victim::Everything,
];

impl Victim {
    fn ends_the_guest(self) -> bool {
        matches!(self, Self::Qemu | Self::Everything)
    }

    /// The supervisor holds the other end of a console.
    fn ends_the_console(self) -> bool {
        self == Self::Supervisor || self.ends_the_guest()
    }
}

#[test]
fn no_acknowledged_write_and_no_vm_is_lost_whoever_is_killed() {
    let seed = seed();
    println!("STRONGROOM_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let scratch = Scratch::new();
    let mut rounds = Rounds::begin(&scratch);
    let mut victims = Vec::new();
    for round in 0..ROUNDS {
        if victims.is_empty() {
            victims = VICTIMS.into_iter().filter(|victim| TPM || *victim != Victim::Swtpm).collect();
            victims.shuffle(&mut random);
        }
        let victim = victims.pop().unwrap();
        // Some writes are done before, and a part of the next one.
        let (writes, moment) = (random.random_range(1..WRITES / 2), random.random_range(0..50));
        println!("round {round}: {victim:?} after {writes} writes and {moment} ms");
        rounds.kill(victim, writes, Duration::from_millis(moment));
    }
    rounds.end();
}

/// A VM whose guest writes.
struct Rounds<'test> {
    serving: Serving<'test>,
    console: Option<Console>,
    id: String,
    generation: u64,
    /// Automatic restarts since the last start on request.
    started_by_itself: usize,
    /// The next block that the guest writes.
    next: u64,
    /// The last number in each slot that the guest knows to be durable.
    acknowledged: [Option<u64>; SLOTS as usize],
}

impl<'test> Rounds<'test> {
    fn begin(scratch: &'test Scratch) -> Self {
        let serving = Serving::start(scratch);
        let (hardware, guest) = match TPM {
            true => ("--uefi --tpm", serving.test_guest_for_uefi()),
            false => ("--machine pc", serving.test_guest()),
        };
        scratch.make_directory("ds");
        serving.runs("datastore add ds ds");
        serving.runs(&format!("vm create web1 --memory 256M --net none --disk 64M {hardware} {guest}"));
        serving.runs("vm start web1");
        let id = serving.vm("web1")["id"].as_str().unwrap().to_owned();
        let mut rounds = Self {
            serving,
            console: None,
            id,
            generation: 1,
            started_by_itself: 0,
            next: 0,
            acknowledged: [None; SLOTS as usize],
        };
        rounds.meet_a_new_guest();
        rounds
    }

    fn meet_a_new_guest(&mut self) {
        let mut console = self.serving.console("web1");
        console.wait_until_ready();
        console.session.run(JOURNAL);
        self.console = Some(console);
    }

    /// One round: the guest writes, a process is killed, and at the end everything is in order.
    fn kill(&mut self, victim: Victim, writes: u64, moment: Duration) {
        let (first, end) = (self.next, self.next + WRITES);
        let before = self.family();
        self.next = end;
        let mut console = self.console.take().unwrap();
        let mut journal = console.session.start(&format!("journal {first} {end}; result=$?"));
        let told = format!("ack {}", first + writes);
        journal.wait_for_line(&told, WRITE_DEADLINE, |line| line == told);
        self.acknowledge(first..=first + writes);
        std::thread::sleep(moment);
        self.strike(victim);
        if !victim.ends_the_console() {
            let output = journal.finish(WRITE_DEADLINE);
            assert!(!output.text.contains("failed"), "{victim:?}: {}", output.text);
            self.console = Some(console);
        }
        if matches!(victim, Victim::Serve | Victim::Everything) {
            self.serving.start_again();
        }
        if victim.ends_the_guest() {
            self.guest_has_ended();
        }
        let generation = self.generation;
        self.serving
            .wait_until("web1", "runs", |vm| vm["power"] == "running" && vm["generation"] == generation);
        if victim.ends_the_guest() {
            self.meet_a_new_guest();
        } else {
            if self.console.is_none() {
                self.console = Some(self.serving.console("web1"));
            }
            // The status covers writes that the guest has not reported.
            self.session().run("[ $result = 0 ]");
            self.acknowledge(first..=end - 1);
        }
        if victim == Victim::Swtpm {
            self.stop_and_start();
        }
        self.verify();
        self.nothing_is_left_of(&before);
    }

    /// A VM is restarted automatically, but not for ever: after a number of times in ten minutes a
    /// person must look at it.
    fn guest_has_ended(&mut self) {
        self.generation += 1;
        self.started_by_itself += 1;
        if self.started_by_itself > STARTS_BY_ITSELF {
            self.serving.wait_until("web1", "is left alone", |vm| vm["power"] == "crashed");
            self.serving.runs("vm start web1");
            self.started_by_itself = 0;
        }
    }

    /// The way to get a TPM back.
    fn stop_and_start(&mut self) {
        let lost = |vm: &Value| vm["reason"].as_str().is_some_and(|reason| reason.contains("TPM"));
        self.serving.wait_until("web1", "is known to have lost its TPM", lost);
        self.console = None;
        self.serving.runs("vm stop web1 --force");
        self.serving.runs("vm start web1");
        (self.generation, self.started_by_itself) = (self.generation + 1, 0);
        self.meet_a_new_guest();
    }

    fn acknowledge(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        numbers.for_each(|number| self.acknowledged[(number % SLOTS) as usize] = Some(number));
    }

    fn session(&mut self) -> &mut strongroom_system_tests::Session {
        &mut self.console.as_mut().unwrap().session
    }

    fn strike(&mut self, victim: Victim) {
        let kill = |pid| kill_process(pid, Signal::KILL).unwrap();
        let role = |words: &[&str]| self.serving.process(words);
        match victim {
            Victim::Worker => kill(self.serving.workers_of(&self.id)[0]),
            Victim::Monitor => kill(self.serving.monitors_of(&self.id)[0]),
            Victim::Supervisor => kill(self.supervisor_and_qemu().0),
            Victim::Qemu => kill(self.supervisor_and_qemu().1),
            Victim::Hostd => kill(role(&["serve", "--role host"])),
            Victim::Control => kill(role(&["serve", "--role control"])),
            Victim::KeyServer => kill(role(&["keyserver", "run"])),
            Victim::Swtpm => kill(self.serving.processes_of(&self.id)[2]),
            Victim::Serve => self.serving.kill(),
            Victim::Everything => {
                let (supervisor, qemu) = self.supervisor_and_qemu();
                self.serving.kill();
                kill(supervisor);
                kill(qemu);
            }
        }
    }

    fn supervisor_and_qemu(&self) -> (Pid, Pid) {
        match self.serving.processes_of(&self.id)[..] {
            [supervisor, qemu, ..] => (supervisor, qemu),
            ref others => panic!("its run directory tells of {others:?}"),
        }
    }

    /// The supervisor and its descendants, without QEMU, which may be the child of an earlier one.
    fn family(&self) -> Vec<u32> {
        family_of(self.supervisor_and_qemu().0.as_raw_nonzero().get().cast_unsigned())
    }

    /// The guest reads its last writes, as far as it knows them to be durable.
    fn verify(&mut self) {
        let read = "dd if=/dev/vda bs=262144 count=1 iflag=direct 2>/dev/null | tr -s '\\0 ' ' '";
        let text = self.session().run(read);
        let mut found = [None; SLOTS as usize];
        for number in text.split_whitespace().map(|word| word.parse::<u64>().unwrap()) {
            assert!(number < self.next, "{number} was never written");
            found[(number % SLOTS) as usize] = Some(number);
        }
        let lost: Vec<_> =
            self.acknowledged.iter().zip(&found).filter(|(told, found)| found < told).collect();
        assert!(lost.is_empty(), "told and found: {lost:?}");
    }

    /// One supervisor with its starter and one QEMU are running, and of the earlier processes only
    /// theirs.
    fn nothing_is_left_of(&self, before: &[u32]) {
        let all = self.serving.processes();
        let count = |word: &str| all.iter().filter(|(_, line)| line.contains(word)).count();
        let counts = (count("vm-supervisor"), count("qemu-system"), count("swtpm socket"));
        assert_eq!(counts, (2, 1, usize::from(TPM)), "{all:?}");
        let mut family = self.family();
        let known = self.serving.processes_of(&self.id);
        family.extend(known.iter().map(|pid| pid.as_raw_nonzero().get().cast_unsigned()));
        let ours = |pid: &u32| family.contains(pid);
        let left: Vec<_> = before.iter().filter(|pid| !ours(pid) && runs(**pid)).collect();
        assert!(left.is_empty(), "{left:?} of {before:?} are left over; {all:?}");
    }

    fn end(mut self) {
        drop(self.console.take());
        self.serving.runs("vm stop web1 --force");
        self.serving.runs("vm delete web1 --yes");
        self.serving.end();
        let left = self.serving.processes();
        assert!(left.is_empty(), "{left:?}");
    }
}
