//! A VM moves between two hosts while it runs, over a relay that passes bytes on as they are. Each
//! process is killed between any two steps: the guest goes on in one place, with every write that
//! was acknowledged.

pub mod tpm;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use strongroom_datastore::file::describe;
use strongroom_datastore::file::storage::is_gone;
use strongroom_host::migration::{Decision, Heard};
use strongroom_host::orders::{RelayBirth, RelayEnd, RelayReport};
use strongroom_host::protocol::{
    Disk, DiskFrontend, DiskKey, DiskKind, FetchingLive, HandoverId, MigrationPermit, MigrationSettings,
    Network, Nic, ObservedVm, Offer, Operation, OperationKind, OperationOutcome, OperationState, PowerState,
    Problem, Receiving, Sending, StartOptions, Ticket, TicketRequest, VmSpec, VolumesElsewhere,
};
use strongroom_host::wire::Wire;

use crate::support::{Console, Host, KeySite, booting, kill, until};
use crate::tpm::tpm_guest;

/// A disk whose guest prints `ready`. For each input byte but an `r` it counts, writes the count to
/// the disk, and then prints it: so what is printed was acknowledged. For an `r` it prints what the
/// disk has.
fn writing_guest() -> Vec<u8> {
    let code: &[u8] = &[
        0x31, 0xc0, 0x8e, 0xd8, 0x8e, 0xc0, // ds = es = 0
        0xc6, 0x06, 0x00, 0x80, b'0', // count = 0
        0xba, 0xf8, 0x03, 0xbe, 98, 0x7c, // dx = COM1, si = text
        0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // say it to its zero byte
        0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, // wait for a byte
        0xba, 0xf8, 0x03, 0xec, 0x3c, b'r', 0x74, 0x19, // is it an r?
        0xfe, 0x06, 0x00, 0x80, // count
        0xb8, 0x01, 0x03, 0xbb, 0x00, 0x80, 0xb9, 0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13, // write
        0x72, 0x1a, 0xa0, 0x00, 0x80, 0xeb, 0x17, // al = count
        0xb8, 0x01, 0x02, 0xbb, 0x00, 0x82, 0xb9, 0x02, 0x00, 0xba, 0x80, 0x00, 0xcd, 0x13, // read
        0x72, 0x05, 0xa0, 0x00, 0x82, 0xeb, 0x02, // al = what the disk has
        0xb0, b'!', // al = an error
        0xba, 0xf8, 0x03, 0xee, 0xb0, 0x0a, 0xee, 0xeb, 0xb7, // say it
    ];
    assert_eq!(code.len(), 98);
    booting(code)
}

/// The relay of a test: a process that passes bytes on. Its wire to hostd is its standard input.
pub fn relay(wire: Wire) -> Result<(), String> {
    let (birth, files) = wire.receive::<RelayBirth>().map_err(|error| error.to_string())?;
    let socket = files.into_iter().next().unwrap();
    assert_eq!(birth.permit.grant, b"a grant");
    let wire = Arc::new(wire);
    let ended = Arc::new(AtomicUsize::new(0));
    let (theirs, count) = (Arc::clone(&wire), Arc::clone(&ended));
    std::thread::spawn(move || match birth.end {
        RelayEnd::Source { to } => {
            let listener = UnixListener::from(socket);
            for qemu in listener.incoming() {
                let Ok(there) = TcpStream::connect(to) else { return };
                let qemu = qemu.unwrap();
                pass_on(qemu, there, &count, &theirs);
            }
        }
        RelayEnd::Target { qemu } => {
            let listener = TcpListener::from(socket);
            for there in listener.incoming() {
                let (there, qemu) = (there.unwrap(), UnixStream::connect(&qemu).unwrap());
                pass_on(there, qemu, &count, &theirs);
            }
        }
    });
    wire.send(&RelayReport::Ready, &[]).map_err(|error| error.to_string())?;
    // Until hostd is gone.
    let _ = wire.receive::<RelayReport>();
    Ok(())
}

trait Stream: Read + Write + Send + 'static {
    fn end(&self);
}

impl Stream for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl Stream for UnixStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

fn pass_on(mut from: impl Stream, mut to: impl Stream, ended: &Arc<AtomicUsize>, wire: &Arc<Wire>) {
    let (ended, wire) = (Arc::clone(ended), Arc::clone(wire));
    std::thread::spawn(move || {
        let passed = std::io::copy(&mut from, &mut to);
        from.end();
        to.end();
        if ended.fetch_add(1, Ordering::SeqCst) == 0 {
            let problem = passed.err().map(|error| Problem::new("relay", error.to_string()));
            let _ = wire.send(&RelayReport::Ended(problem), &[]);
        }
    });
}

const SETTINGS: MigrationSettings =
    MigrationSettings { more_channels: 0, pause_ms: 20_000, bytes_per_second: 1 << 30 };

fn permit() -> MigrationPermit {
    MigrationPermit { grant: b"a grant".to_vec(), signer: b"a certificate".to_vec() }
}

/// Two hosts of one datastore, and a VM that runs on the first one.
struct Site {
    hosts: [Host; 2],
    spec: VmSpec,
    /// The key server of an encrypted VM.
    keys: Option<KeySite>,
    /// The host where it runs, and in which generation.
    at: usize,
    generation: u64,
    /// The number of the last attempt.
    attempts: u64,
    /// What the guest has counted to.
    count: u8,
    /// Whether each has a datastore of its own.
    is_separate: bool,
    /// What the register of a guest has that counts in its TPM.
    register: Option<Vec<u8>>,
}

/// How far an attempt comes before somebody harms it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
enum Step {
    /// Of a VM that moves with its volumes.
    Fetched,
    Received,
    Sent,
    TakenUp,
    Decided,
}

/// The two parts that are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    Hostd(usize),
    Supervisor(usize),
    Qemu(usize),
    Swtpm(usize),
}

const SOURCE: usize = 0;
const TARGET: usize = 1;

impl Site {
    /// With a VM that is not encrypted.
    fn start() -> Self {
        Self::of([Host::start(), Host::start()], None, |_| {})
    }

    /// With a VM whose disks QEMU reaches by NBD, and which has one for swap.
    fn by_nbd() -> Self {
        Self::of([Host::start(), Host::start()], None, |spec| {
            let disk = Disk { frontend: DiskFrontend::Nbd, ..spec.disks[0].clone() };
            let swap = Disk { name: "swap0".parse().unwrap(), kind: DiskKind::Swap, ..disk.clone() };
            spec.disks = vec![disk, swap];
            spec.seed = true;
        })
    }

    /// With a VM that is encrypted, and has a network card.
    fn encrypted() -> Self {
        let hosts = [Host::start(), Host::start()];
        let keys = KeySite::start(&hosts[0]);
        keys.serve(&hosts[1]);
        Self::of(hosts, Some(keys), |_| {})
    }

    /// With hosts that share nothing, and an encrypted VM that has a disk for swap.
    fn separate() -> Self {
        let hosts = [Host::start_with_port(), Host::start_with_port()];
        let keys = KeySite::start(&hosts[0]);
        keys.serve(&hosts[1]);
        Self::on(hosts, Some(keys), |spec| {
            let swap = Disk { name: "swap0".parse().unwrap(), kind: DiskKind::Swap, ..spec.disks[0].clone() };
            spec.disks.push(swap);
            spec.seed = true;
        })
    }

    fn of(hosts: [Host; 2], keys: Option<KeySite>, change: impl FnOnce(&mut VmSpec)) -> Self {
        let datastore = hosts[0].host().datastores[0].id;
        hosts[1].try_use(&hosts[0].path("ds"), datastore).unwrap();
        Self { is_separate: false, ..Self::on(hosts, keys, change) }
    }

    fn on(hosts: [Host; 2], keys: Option<KeySite>, change: impl FnOnce(&mut VmSpec)) -> Self {
        let mut spec = hosts[0].spec("web1", 1);
        change(&mut spec);
        if let Some(keys) = &keys {
            spec.nics = vec![Nic::new("52:54:00:12:34:56".parse().unwrap(), Network::User)];
            spec.disks.iter_mut().for_each(|disk| disk.key = DiskKey::provider(keys.key.clone(), None));
        }
        let made = hosts[0].done(&spec, 0, hosts[0].create(&spec));
        let Some(OperationOutcome::Volumes(made)) = made else { panic!("{made:?}") };
        if let Some(keys) = &keys {
            spec.disks[0].key = DiskKey::provider(keys.key.clone(), made[0].kek);
        }
        if spec.tpm {
            spec = spec.with_facts(&made);
            let imported = hosts[0].import_into(&spec, "disk0", &tpm_guest());
            let Some(OperationOutcome::Volumes(made)) = imported else { panic!("{imported:?}") };
            spec = spec.with_facts(&made);
        } else {
            hosts[0].import(&spec, &writing_guest());
        }
        let how = StartOptions::default();
        hosts[0].done(&spec, 1, OperationKind::Start { spec: Box::new(spec.clone()), how });
        let (at, generation, attempts, count, register) = (0, 1, 1, b'0', None);
        let is_separate = true;
        let mut site = Self { hosts, spec, keys, at, generation, attempts, count, is_separate, register };
        site.begins();
        site
    }

    fn console(&self) -> Console {
        self.hosts[self.at].console(&self.spec)
    }

    /// The index of a source or target.
    fn index(&self, end: usize) -> usize {
        if end == SOURCE { self.at } else { 1 - self.at }
    }

    /// The VM, with its place on a host.
    fn spec_on(&self, host: usize) -> VmSpec {
        let of = if self.is_separate { host } else { 0 };
        VmSpec { datastore: self.hosts[of].path("ds"), ..self.spec.clone() }
    }

    fn vm(&self, host: usize) -> Option<ObservedVm> {
        self.hosts[host].vms().vms.into_iter().find(|vm| vm.vm == self.spec.id)
    }

    fn said(count: u8) -> String {
        char::from(count).to_string()
    }

    /// The guest that has booted writes its first count.
    fn begins(&mut self) {
        self.count = b'1';
        if self.spec.tpm {
            return self.begins_with_tpm();
        }
        let mut console = self.console();
        console.await_line("ready");
        console.say("w");
        console.await_line(&Self::said(self.count));
    }

    /// The guest counts on, with its memory, and its disk has what it wrote last.
    fn works(&mut self) {
        if self.spec.tpm {
            return self.works_with_tpm();
        }
        // After a supervisor's death input can be lost, and the console with it.
        let mut console = until("the guest answers", || {
            let mut console = self.console();
            console.is_answered("r", &Self::said(self.count)).then_some(console)
        });
        self.count += 1;
        console.say("w");
        console.await_line(&Self::said(self.count));
        console.say("r");
        console.await_line(&Self::said(self.count));
    }

    fn offer(&self) -> Offer {
        let outcome = self.hosts[self.at].done(&self.spec, self.generation, OperationKind::Offer);
        let Some(OperationOutcome::Offer(offer)) = outcome else { panic!("{outcome:?}") };
        Offer { spec: Box::new(self.spec_on(self.index(TARGET))), ..*offer }
    }

    /// The target fetches the volumes.
    fn fetch(&self, offer: Offer) -> Operation {
        let spec = Box::new(self.spec_on(self.at));
        let request = TicketRequest::Volumes { spec, grants: Vec::new() };
        let Ticket { ticket, port, .. } = self.hosts[self.at].ticket(&self.spec, request).unwrap();
        let port = port.unwrap();
        let from =
            VolumesElsewhere { address: port.listen, certificate_sha256: port.certificate_sha256, ticket };
        let handover = HandoverId::random();
        let fetching = FetchingLive { offer, settings: SETTINGS, handover, from };
        self.ended(TARGET, OperationKind::FetchLive(Box::new(fetching)))
    }

    fn ended(&self, end: usize, kind: OperationKind) -> Operation {
        let host = &self.hosts[self.index(end)];
        let request = host.request(self.attempts, kind);
        host.operate(&self.spec, &request).unwrap();
        host.await_operation(request.operation)
    }

    fn receive(&self, offer: Offer) -> Result<u16, Problem> {
        let receiving = Receiving { offer, settings: SETTINGS, permit: permit() };
        let ended = self.ended(TARGET, OperationKind::Receive(Box::new(receiving)));
        match ended.outcome {
            Some(OperationOutcome::Listening(at)) => Ok(at.port()),
            _ => Err(ended.error.unwrap()),
        }
    }

    fn send(&self, port: u16, settings: MigrationSettings) -> Sending {
        let running = strongroom_host::protocol::VmGeneration(self.generation);
        let to = if self.is_separate { self.target_address() } else { [127, 0, 0, 1].into() };
        let with_volumes = self.is_separate;
        Sending { running, to: (to, port).into(), settings, permit: permit(), with_volumes }
    }

    /// Where the target's relay listens.
    fn target_address(&self) -> std::net::IpAddr {
        let address = self.hosts[self.index(TARGET)].path("home/port.address");
        let address: std::net::SocketAddr = std::fs::read_to_string(address).unwrap().parse().unwrap();
        address.ip()
    }

    fn harm(&mut self, victim: Victim) {
        match victim {
            Victim::Hostd(end) => {
                let host = self.index(end);
                self.hosts[host].kill_hostd();
                self.hosts[host].start_hostd();
            }
            Victim::Supervisor(end) => {
                if let Some(pid) = self.vm(self.index(end)).and_then(|vm| vm.supervisor_pid) {
                    kill(pid);
                }
            }
            Victim::Qemu(end) => {
                if let Some(pid) = self.vm(self.index(end)).and_then(|vm| vm.qemu_pid) {
                    kill(pid);
                }
            }
            Victim::Swtpm(end) => self.kill_swtpm(self.index(end)),
        }
    }

    /// An attempt as the control plane makes it, with this harm after this step. Returns what was
    /// decided.
    fn attempt(&mut self, harm: Option<(Step, Victim)>) -> Decision {
        self.attempts += 1;
        let offer = self.offer();
        if self.is_separate {
            let fetched = self.fetch(offer.clone());
            assert_eq!(fetched.state, OperationState::Done, "{fetched:?}");
            self.after(Step::Fetched, harm);
        }
        let port = match self.receive(offer) {
            Ok(port) => port,
            Err(problem) => {
                assert!(harm.is_some_and(|(at, _)| at == Step::Fetched), "{problem}");
                return self.settle(Decision::Prepared.after(Heard::Abandon), harm);
            }
        };
        self.after(Step::Received, harm);
        let sent = self.ended(SOURCE, OperationKind::Send(Box::new(self.send(port, SETTINGS))));
        let mut decision = Decision::Prepared;
        decision = match sent.state {
            OperationState::Done => decision.after(Heard::Released),
            _ => decision.after(Heard::Abandon),
        };
        self.after(Step::Sent, harm);
        if decision == Decision::HandedOver {
            let taken = self.ended(TARGET, OperationKind::TakeUp);
            self.after(Step::TakenUp, harm);
            decision = match taken.state {
                OperationState::Done => decision.after(Heard::Ready),
                _ => decision.after(Heard::Abandon),
            };
        }
        self.settle(decision, harm)
    }

    fn after(&mut self, step: Step, harm: Option<(Step, Victim)>) {
        if let Some((_, victim)) = harm.filter(|(at, _)| *at == step) {
            self.harm(victim);
        }
    }

    fn settle(&mut self, mut decision: Decision, harm: Option<(Step, Victim)>) -> Decision {
        let settle = |site: &Self, end, here| {
            let settled = site.ended(end, OperationKind::Settle { here });
            let now = site.vm(site.index(end));
            assert_eq!(settled.state, OperationState::Done, "{harm:?} {end} {here}: {settled:?} {now:?}");
        };
        if decision == Decision::Committed {
            self.after(Step::Decided, harm);
            settle(self, TARGET, true);
            settle(self, SOURCE, false);
            settle(self, TARGET, true);
            self.removes_copy(SOURCE);
            (self.at, self.generation) = (1 - self.at, self.attempts);
            return decision;
        }
        settle(self, TARGET, false);
        self.removes_copy(TARGET);
        decision = decision.after(Heard::TargetOver);
        assert_eq!(decision, Decision::Aborted);
        self.after(Step::Decided, harm);
        settle(self, SOURCE, true);
        settle(self, SOURCE, true);
        decision
    }

    /// What a host has of a VM that is not its own goes.
    fn removes_copy(&self, end: usize) {
        if self.is_separate {
            let spec = Box::new(self.spec_on(self.index(end)));
            let removed = self.ended(end, OperationKind::RemoveCopy { spec });
            assert_eq!(removed.state, OperationState::Done, "{removed:?}");
            assert!(is_gone(&self.spec_on(self.index(end)).directory()));
        }
    }

    /// It is listed where it is, and nothing of it is on the other host.
    fn is_in_one_place(&self) {
        assert_eq!(self.vm(1 - self.at), None);
        let there = self.vm(self.at).unwrap();
        assert_eq!(there.generation.0, self.generation);
        let refused = self.hosts[1 - self.at].refused(
            &self.spec,
            self.attempts + 1,
            OperationKind::Start { spec: Box::new(self.spec_on(1 - self.at)), how: StartOptions::default() },
        );
        if self.attempts > 1 {
            assert_eq!(refused.code, "left_host");
        }
    }
}

pub fn there_and_back() {
    let mut site = Site::encrypted();
    assert!(site.keys.is_some());
    site.works();
    for _ in 0..3 {
        assert_eq!(site.attempt(None), Decision::Committed);
        site.is_in_one_place();
        site.works();
        let now = site.vm(site.at).unwrap();
        assert_eq!((now.power, now.supervisor_deaths), (PowerState::Running, 0));
    }
    // What comes late is refused on both.
    let offer = site.offer();
    let late = site.receive(offer).unwrap_err();
    assert_eq!(late.code, "other_generation", "{late}");
    let late = site.ended(SOURCE, OperationKind::Send(Box::new(site.send(1, SETTINGS))));
    assert!(late.error.is_some());
    site.works();
}

/// QEMU reads disks that it reaches by NBD when it starts. What the guest has swapped out moves
/// with it, and goes when it stops.
pub fn by_nbd() {
    let mut site = Site::by_nbd();
    let swap = site.spec.volume_path(&site.spec.disks[1].name);
    let volume = || describe(&swap).unwrap().descriptor.volume;
    let made = volume();
    site.works();
    for _ in 0..2 {
        assert_eq!(site.attempt(None), Decision::Committed);
        site.is_in_one_place();
        site.works();
        assert_eq!(volume(), made);
    }
    harmed(&mut site, Step::Received, Victim::Hostd(TARGET));
    harmed(&mut site, Step::TakenUp, Victim::Qemu(TARGET));
    site.hosts[site.at].done(&site.spec, site.generation, OperationKind::Stop { force: true, timeout_s: 0 });
    assert!(is_gone(&swap));
}

/// The attempt fails, or succeeds, as its harm lets it, and the guest is where it was decided.
fn harmed(site: &mut Site, step: Step, victim: Victim) {
    let from = site.at;
    let decision = site.attempt(Some((step, victim)));
    eprintln!("{step:?} {victim:?}: {decision:?}");
    let expected = if decision == Decision::Committed { 1 - from } else { from };
    assert_eq!(site.at, expected, "{step:?} {victim:?}");
    // Its guest is gone with its QEMU, or with its disks while it is between the hosts.
    let is_lost = match victim {
        Victim::Hostd(_) => None,
        Victim::Swtpm(end) => return site.goes_on_without_swtpm(end, step, from),
        Victim::Qemu(end) => Some(end),
        Victim::Supervisor(SOURCE) => (step > Step::Received).then_some(SOURCE),
        Victim::Supervisor(end) => Some(end),
    };
    if let Some(end) = is_lost
        && site.at == if end == SOURCE { from } else { 1 - from }
    {
        // The VM starts again where it is, as after any death of QEMU.
        until("it is off", || site.vm(site.at).is_some_and(|vm| vm.power.is_off()).then_some(()));
        site.attempts += 1;
        site.generation = site.attempts;
        let (spec, how) = (Box::new(site.spec_on(site.at)), StartOptions::default());
        site.hosts[site.at].done(&site.spec, site.generation, OperationKind::Start { spec, how });
        if site.spec.tpm {
            return site.boots_with_tpm();
        }
        let said = Site::said(site.count);
        let mut console = until("the guest answers", || {
            let mut console = site.console();
            console.is_answered("r", &said).then_some(console)
        });
        console.say("w");
        site.count = b'1';
        console.await_line(&Site::said(site.count));
        return;
    }
    site.is_in_one_place();
    site.works();
}

/// Its hosts share nothing: the volumes move with it, under its guest.
pub fn with_volumes() {
    let mut site = Site::separate();
    site.works();
    for _ in 0..3 {
        assert_eq!(site.attempt(None), Decision::Committed);
        site.is_in_one_place();
        site.works();
        let now = site.vm(site.at).unwrap();
        assert_eq!((now.power, now.supervisor_deaths), (PowerState::Running, 0));
    }
    // It starts from what it has there.
    let stop = OperationKind::Stop { force: true, timeout_s: 0 };
    site.hosts[site.at].done(&site.spec, site.generation, stop);
    (site.attempts, site.generation) = (site.attempts + 1, site.attempts + 1);
    let (spec, how) = (Box::new(site.spec_on(site.at)), StartOptions::default());
    site.hosts[site.at].done(&site.spec, site.generation, OperationKind::Start { spec, how });
    let said = Site::said(site.count);
    until("the guest answers", || site.console().is_answered("r", &said).then_some(()));
}

pub fn few_are_killed_with_volumes() {
    let mut site = Site::separate();
    site.works();
    harmed(&mut site, Step::Fetched, Victim::Supervisor(TARGET));
    harmed(&mut site, Step::Received, Victim::Hostd(SOURCE));
    harmed(&mut site, Step::Sent, Victim::Qemu(TARGET));
    harmed(&mut site, Step::Sent, Victim::Hostd(TARGET));
}

pub fn all_are_killed_with_volumes() {
    each_is_killed(
        Site::separate(),
        &[Step::Fetched, Step::Received, Step::Sent, Step::TakenUp, Step::Decided],
    );
}

/// Each part of each end is killed after each of these steps.
fn each_is_killed(mut site: Site, steps: &[Step]) {
    site.works();
    for step in steps {
        for end in [SOURCE, TARGET] {
            for victim in [Victim::Hostd(end), Victim::Supervisor(end), Victim::Qemu(end)] {
                harmed(&mut site, *step, victim);
                // The guest counts in one digit.
                site.count = site.count.min(b'z');
            }
        }
    }
}

pub fn few_are_killed() {
    let mut site = Site::start();
    site.works();
    harmed(&mut site, Step::Sent, Victim::Qemu(TARGET));
    harmed(&mut site, Step::Sent, Victim::Hostd(SOURCE));
    harmed(&mut site, Step::Sent, Victim::Supervisor(SOURCE));
}

pub fn all_are_killed() {
    each_is_killed(Site::start(), &[Step::Received, Step::Sent, Step::TakenUp, Step::Decided]);
}

/// Slow enough that it is in the middle for as long as it takes to cancel it.
const SLOW: MigrationSettings = MigrationSettings { bytes_per_second: 64 << 10, ..SETTINGS };

pub fn cancelled() {
    let mut site = Site::start();
    site.works();
    site.attempts += 1;
    let port = site.receive(site.offer()).unwrap();
    let request =
        site.hosts[site.at].request(site.attempts, OperationKind::Send(Box::new(site.send(port, SLOW))));
    site.hosts[site.at].operate(&site.spec, &request).unwrap();
    until("it is under way", || {
        let now = site.hosts[site.at].operation(request.operation);
        now.progress.is_some_and(|progress| progress.done > 0).then_some(())
    });
    assert_eq!(site.hosts[site.at].try_cancel(request.operation).unwrap().state, OperationState::Running);
    let ended = site.hosts[site.at].await_operation(request.operation);
    assert_eq!(ended.state, OperationState::Cancelled, "{ended:?}");
    site.works();
    assert_eq!(site.settle(Decision::Prepared.after(Heard::Abandon), None), Decision::Aborted);
    site.is_in_one_place();
    site.works();
    // It moves afterwards.
    assert_eq!(site.attempt(None), Decision::Committed);
    site.works();
}
