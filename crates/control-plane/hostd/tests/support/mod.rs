//! A host in a directory, with its hostd in a process of its own.

mod port;

use std::io::{BufRead, BufReader, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Trial};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use strongroom_datastore::file::storage::CLUSTERS;
use strongroom_datastore::file::{CreateOptions, Protection, Provisioning, create};
use strongroom_host::client::{Client, ClientError};
use strongroom_host::process::ProcessIdentity;
use strongroom_host::protocol::{
    Board, Datastore, DatastoreRequest, Disk, DiskFrontend, DiskKey, DiskName, FORMAT, FencingRequest,
    Firmware, GuestHello, GuestWelcome, ImageFormat, JudgeRequest, Judgement, MachineType, ObservedVm,
    ObservedVms, Operation, OperationId, OperationKind, OperationOutcome, OperationRequest, OperationState,
    Problem, Reading, ReadingRequest, ReadingsRequest, Term, Ticket, TicketId, TicketRequest, VmGeneration,
    VmSpec,
};
use strongroom_host::vm_directory::{StagedVm, VmRecord};
use strongroom_host::wire::Wire;
use strongroom_hostd::daemon::{self, DatastoreNotes, RelayProgram, SupervisorProgram};
use strongroom_keys::{Kek, KeyRequestId, ProviderKey, ProviderName};
use strongroom_memory::secret::SecretBytes;
use strongroom_providers::{KmipConfig, ProviderConfig, Registry, SourceConfig};
use strongroom_rbd::process::StorageProgram;
use strongroom_test_peers::{Pki, Server, ServerKind, on_another_boot};
use strongroom_types::{CephMount, DatastoreId, VmId, VolumeSize};
use strongroom_vm_supervisor::{self as supervisor, Programs};
use tokio::runtime::Runtime;

/// Longer than any step takes on a busy machine.
pub const SOON: Duration = Duration::from_secs(60);

/// Notes are not needed in these tests.
#[derive(Debug)]
struct Unnoted;

impl DatastoreNotes for Unnoted {
    fn note(&self, _: &Path) -> std::io::Result<()> {
        Ok(())
    }

    fn note_on_cluster(&self, _: DatastoreId, _: &CephMount) -> std::io::Result<()> {
        Ok(())
    }
}

/// The entry point of this program: a test, or one of the processes of a host.
pub fn run(trials: Vec<Trial>) -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let called = arguments.next().unwrap_or_default();
    let this = std::env::current_exe().unwrap();
    let ended = match called.as_str() {
        "vm-supervisor" => {
            let programs = Programs {
                this,
                worker: vec!["worker".into()],
                launcher: vec!["launcher".into()],
                storage: vec!["storage".into()],
            };
            supervisor::main(&programs).map_err(|error| error.to_string())
        }
        "worker" => strongroom_worker::process_main::process_main().map_err(|error| error.to_string()),
        "launcher" => Err(strongroom_hypervisor::process_main().to_string()),
        "relay" => {
            let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
            crate::live_moves::relay(Wire::adopt(socket).unwrap())
        }
        "storage" => {
            let socket = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
            strongroom_rbd::process::process_main(socket).map_err(|error| error.to_string())
        }
        "hostd" => {
            let [home, run] = [arguments.next().unwrap(), arguments.next().unwrap()].map(PathBuf::from);
            let supervisor =
                SupervisorProgram { path: this.clone(), arguments: vec!["vm-supervisor".into()] };
            let launcher = strongroom_hypervisor::Launcher::this_program(["launcher"]);
            let notes = Arc::new(Unnoted);
            let storage = StorageProgram { path: this.clone(), arguments: vec!["storage".into()] };
            let relay = RelayProgram { path: this, arguments: vec!["relay".into()] };
            let port = port::of(&home);
            let options = daemon::Options { home, notes, run, supervisor, storage, relay, launcher, port };
            let runtime = Runtime::new().unwrap();
            runtime.block_on(daemon::run(options, std::future::pending())).map_err(|error| error.to_string())
        }
        _ => return libtest_mimic::run(&Arguments::from_args(), trials).exit_code(),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if std::env::var_os("HOST_TEST_LOG").is_some() || called == "hostd" {
                eprintln!("{called}: {error}");
            }
            ExitCode::FAILURE
        }
    }
}

pub fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        test();
        Ok(())
    })
}

/// A trial of minutes, which `make test-guests` runs.
pub fn long_trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    trial(name, test).with_ignored_flag(true)
}

/// A disk whose guest prints `ready` on the serial port, echoes its input, and powers off at a `q`.
pub fn boot_sector() -> Vec<u8> {
    let code: &[u8] = &[
        0x31, 0xc0, 0x8e, 0xd8, // ds = 0
        0xba, 0xf8, 0x03, 0xbe, 0x2f, 0x7c, // dx = COM1, si = message
        0xac, 0x84, 0xc0, 0x74, 0x03, 0xee, 0xeb, 0xf8, // say it to its zero byte
        0xba, 0xfd, 0x03, 0xec, 0xa8, 0x01, 0x74, 0xfb, // wait for a byte
        0xba, 0xf8, 0x03, 0xec, 0x3c, 0x71, 0x74, 0x03, 0xee, 0xeb,
        0xed, // say it again, unless it is a q
        0xba, 0x04, 0x06, 0xb8, 0x00, 0x20, 0xef, 0xf4, 0xeb, 0xfd, // ACPI's S5 of q35
    ];
    booting(code)
}

/// A disk that boots with this code, which finds its message behind itself.
pub fn booting(code: &[u8]) -> Vec<u8> {
    let mut sector = code.to_vec();
    sector.extend(b"ready\r\n\0");
    sector.resize(510, 0);
    sector.extend([0x55, 0xaa]);
    sector.resize(4096, 0);
    sector
}

/// Kills a process, and waits until it is gone.
pub fn kill(pid: u32) {
    let identity = ProcessIdentity::of(pid).unwrap();
    identity.kill().unwrap();
    until("it is gone", || (!identity.is_alive()).then_some(()));
}

/// Waits until `look` returns a value.
pub fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {SOON:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

pub struct Host {
    scratch: tempfile::TempDir,
    hostd: Option<Child>,
    /// The boot id that its processes see, if it is not this machine's.
    boot: Option<PathBuf>,
    client: Client,
    runtime: Runtime,
}

impl Host {
    pub fn start() -> Self {
        Self::start_as(None)
    }

    /// A host whose processes take it for another machine: they see another boot.
    pub fn start_elsewhere() -> Self {
        Self::start_as(Some(VmId::random().to_string()))
    }

    /// A host with a port, at which others get what it has.
    pub fn start_with_port() -> Self {
        Self::start_prepared(None, port::make)
    }

    fn start_as(boot: Option<String>) -> Self {
        Self::start_prepared(boot, |_| {})
    }

    fn start_prepared(boot: Option<String>, prepare: impl FnOnce(&Path)) -> Self {
        let scratch = tempfile::Builder::new().prefix("sr-host-").tempdir_in("/tmp").unwrap();
        let client = Client::new(scratch.path().join("run/hostd/control.sock"));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let boot = boot.map(|boot| {
            let file = scratch.path().join("boot_id");
            std::fs::write(&file, format!("{boot}\n")).unwrap();
            file
        });
        let mut host = Self { scratch, hostd: None, boot, client, runtime };
        std::fs::create_dir(host.path("home")).unwrap();
        std::fs::create_dir(host.path("ds")).unwrap();
        // The machine that runs the tests may well have swap.
        let boot = host.path("home/boot");
        let config =
            format!(r#"{{"format":1,"name":"host1","boot_directories":[{boot:?}],"crypto_safe":"advised"}}"#);
        std::fs::write(host.path("home/host.json"), config).unwrap();
        prepare(&host.path("home"));
        host.start_hostd();
        host.add_datastore();
        host
    }

    /// Makes hostd use its datastore, and scan it.
    pub fn add_datastore(&self) {
        self.try_add_datastore().unwrap();
    }

    /// Makes hostd rescan the datastore.
    pub fn look_through(&self) {
        self.try_look_through().unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub fn start_hostd(&mut self) {
        let this = std::env::current_exe().unwrap();
        let mut command = match &self.boot {
            None => Command::new(this),
            Some(boot) => on_another_boot(boot, &this),
        };
        let hostd = command
            .arg("hostd")
            .args([self.path("home"), self.path("run")])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        self.hostd = Some(hostd);
        until("hostd answers", || self.runtime.block_on(self.client.host()).ok());
    }

    /// Sends later requests as the control plane of this term.
    pub fn direct(&self, term: u64) {
        self.client.set_term(Term(term));
    }

    pub fn try_cancel(&self, operation: OperationId) -> Result<Operation, ClientError> {
        self.runtime.block_on(self.client.cancel(operation))
    }

    pub fn try_add_datastore(&self) -> Result<Datastore, ClientError> {
        let request = DatastoreRequest { path: self.path("ds"), expected: None, ceph: None };
        self.runtime.block_on(self.client.add_datastore(&request))
    }

    /// Makes hostd use a directory, which may have to be a certain datastore.
    pub fn try_use(&self, path: &Path, expected: Option<DatastoreId>) -> Result<Datastore, ClientError> {
        let request = DatastoreRequest { path: path.to_owned(), expected, ceph: None };
        self.runtime.block_on(self.client.add_datastore(&request))
    }

    /// Makes hostd use a datastore on a cluster, which may have to be a certain one.
    pub fn try_use_cluster(
        &self,
        mount: CephMount,
        expected: Option<DatastoreId>,
    ) -> Result<Datastore, ClientError> {
        let request = DatastoreRequest { path: CLUSTERS.into(), expected, ceph: Some(mount) };
        self.runtime.block_on(self.client.add_datastore(&request))
    }

    /// Makes hostd shut another host out from a datastore.
    pub fn fence(&self, request: &FencingRequest) {
        self.runtime.block_on(self.client.fence(request)).unwrap();
    }

    pub fn try_look_through(&self) -> Result<Datastore, ClientError> {
        self.try_look_at(&self.path("ds"))
    }

    /// Makes hostd rescan another datastore. Returns what it finds.
    pub fn try_look_at(&self, path: &Path) -> Result<Datastore, ClientError> {
        let request = DatastoreRequest { path: path.to_owned(), expected: None, ceph: None };
        self.runtime.block_on(self.client.look_through(&request))
    }

    pub fn try_judge(&self, spec: &VmSpec) -> Result<Judgement, ClientError> {
        let request = JudgeRequest { spec: Box::new(spec.clone()), grants: Vec::new() };
        self.runtime.block_on(self.client.judge(&request))
    }

    pub fn kill_hostd(&mut self) {
        let mut hostd = self.hostd.take().unwrap();
        hostd.kill().unwrap();
        hostd.wait().unwrap();
    }

    /// A small VM, which boots from its first disk.
    pub fn spec(&self, name: &str, disks: usize) -> VmSpec {
        let disk = |number| Disk {
            name: format!("disk{number}").parse().unwrap(),
            size_bytes: VolumeSize::new(1 << 20).unwrap(),
            key: DiskKey::Unencrypted,
            kind: Default::default(),
            frontend: DiskFrontend::VhostUser,
            thick: false,
            integrity: false,
            least_generation: 0,
            volume: None,
            limits: Default::default(),
            place: None,
        };
        VmSpec {
            id: VmId::random(),
            name: name.parse().unwrap(),
            datastore: self.path("ds"),
            board: Board::bare(MachineType::default()),
            cpus: Default::default(),
            memory_bytes: (64 << 20).try_into().unwrap(),
            growth: Default::default(),
            firmware: Firmware::Bios,
            disks: (0..disks).map(disk).collect(),
            limits: Default::default(),
            nics: Vec::new(),
            tpm: false,
            seed: false,
            directory: None,
            kernel: None,
            boot_order: Vec::new(),
            cdrom: None,
            policy: None,
            own_volumes: Vec::new(),
            holds_volume: false,
            lineage: Default::default(),
        }
    }

    /// A VM under a key of an unreachable provider.
    pub fn encrypted_vm(&self, name: &str) -> VmSpec {
        let mut spec = self.spec(name, 1);
        let key =
            ProviderKey { provider: "away".parse().unwrap(), key: "4711".parse().unwrap(), wrapped: None };
        let secret = SecretBytes::from_slice_and_wipe(&mut [7; 32]).unwrap();
        let kek = Kek::from_provider(secret, key.clone()).unwrap();
        spec.disks[0].key = DiskKey::provider(key, Some(kek.id()));
        let staged = StagedVm::begin(&spec).unwrap().unwrap();
        let options = CreateOptions {
            size: spec.disks[0].size_bytes,
            provisioning: Provisioning::Thin,
            protection: Protection::Encrypted(&kek),
            log_bytes: None,
            integrity: None,
        };
        create(&staged.path().join("disk0"), &options).unwrap();
        VmRecord::new(spec.clone(), None).write(staged.path()).unwrap();
        staged.take_name().unwrap();
        // The next scan of the datastore finds it.
        self.add_datastore();
        spec
    }

    pub fn create(&self, spec: &VmSpec) -> OperationKind {
        OperationKind::Create { spec: Box::new(spec.clone()), from: None }
    }

    pub fn request(&self, generation: u64, kind: OperationKind) -> OperationRequest {
        let generation = VmGeneration(generation);
        OperationRequest { operation: OperationId::random(), generation, kind, grants: Vec::new() }
    }

    pub fn operate(&self, spec: &VmSpec, request: &OperationRequest) -> Result<Operation, ClientError> {
        self.runtime.block_on(self.client.operate(spec.id, request))
    }

    pub fn await_operation(&self, operation: OperationId) -> Operation {
        until("the operation ends", || {
            let now = self.runtime.block_on(self.client.operation(operation)).unwrap();
            now.state.is_final().then_some(now)
        })
    }

    fn ended(&self, spec: &VmSpec, generation: u64, kind: OperationKind) -> Operation {
        let request = self.request(generation, kind);
        self.operate(spec, &request).unwrap();
        self.await_operation(request.operation)
    }

    pub fn done(&self, spec: &VmSpec, generation: u64, kind: OperationKind) -> Option<OperationOutcome> {
        let ended = self.ended(spec, generation, kind);
        assert_eq!(ended.state, OperationState::Done, "{ended:?}");
        ended.outcome
    }

    pub fn refused(&self, spec: &VmSpec, generation: u64, kind: OperationKind) -> Problem {
        self.ended(spec, generation, kind).error.unwrap()
    }

    /// The objections to a configuration.
    pub fn judged(&self, spec: &VmSpec) -> Vec<String> {
        self.try_judge(spec).unwrap().doubts
    }

    /// The configuration in a VM's directory.
    pub fn read(&self, spec: &VmSpec) -> VmSpec {
        VmRecord::read_of(&spec.directory(), spec.id).unwrap().spec
    }

    pub fn read_volumes(&self, readings: Vec<ReadingRequest>) -> Result<Vec<Reading>, ClientError> {
        let request = ReadingsRequest { readings };
        self.runtime.block_on(self.client.read_volumes(&request)).map(|read| read.readings)
    }

    pub fn vms(&self) -> ObservedVms {
        self.runtime.block_on(self.client.vms()).unwrap()
    }

    pub fn host(&self) -> strongroom_host::protocol::Host {
        self.runtime.block_on(self.client.host()).unwrap()
    }

    /// Waits until the VM's state satisfies `so`, through hostd's changes.
    pub fn await_vm(&self, spec: &VmSpec, so: impl Fn(&ObservedVm) -> bool) -> ObservedVm {
        let deadline = Instant::now() + SOON;
        loop {
            let number = self.vms().number;
            let vm = self.runtime.block_on(self.client.vm(spec.id)).unwrap();
            if so(&vm) {
                return vm;
            }
            assert!(Instant::now() < deadline, "not so within {SOON:?}: {vm:#?}");
            self.runtime.block_on(self.client.changes(number, Duration::from_secs(5))).unwrap();
        }
    }

    pub fn ticket(&self, spec: &VmSpec, request: TicketRequest) -> Result<Ticket, ClientError> {
        self.runtime.block_on(self.client.ticket(spec.id, &request))
    }

    fn show(&self, ticket: &Ticket, image: Option<&std::fs::File>) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(&ticket.socket).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        let hello = GuestHello { format: FORMAT, ticket: ticket.ticket.clone() };
        let mut line = serde_json::to_vec(&hello).unwrap();
        line.push(b'\n');
        let files: Vec<_> = image.iter().map(|image| image.as_fd()).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(beside.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let pieces = [std::io::IoSlice::new(&line)];
        let sent = rustix::net::sendmsg(&stream, &pieces, &mut beside, SendFlags::empty()).unwrap();
        assert_eq!(sent, line.len());
        BufReader::new(stream)
    }

    /// Fills the VM's first disk.
    pub fn import(&self, spec: &VmSpec, image: &[u8]) {
        self.import_into(spec, spec.disks[0].name.as_str(), image);
    }

    /// Fills a volume of the VM. Returns the facts about it.
    pub fn import_into(&self, spec: &VmSpec, disk: &str, image: &[u8]) -> Option<OperationOutcome> {
        let (operation, _client) = self.begin_import(spec, disk, image, ImageFormat::Raw);
        let ended = self.await_operation(operation);
        assert_eq!(ended.state, OperationState::Done, "{ended:?}");
        ended.outcome
    }

    /// Begins an import. The client that is returned has sent the image.
    pub fn begin_import(
        &self,
        spec: &VmSpec,
        disk: &str,
        image: &[u8],
        format: ImageFormat,
    ) -> (OperationId, BufReader<UnixStream>) {
        let disk: DiskName = disk.parse().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(image).unwrap();
        let ticket = self.ticket(spec, TicketRequest::Upload { disk: disk.clone() }).unwrap();
        let operation = self.begin_import_with(spec, disk, &ticket, format);
        (operation, self.upload(&ticket, Some(&file)))
    }

    /// Begins an import of the image that comes with a ticket.
    pub fn begin_import_with(
        &self,
        spec: &VmSpec,
        disk: DiskName,
        ticket: &Ticket,
        format: ImageFormat,
    ) -> OperationId {
        let spec_told = Box::new(spec.clone());
        let kind = OperationKind::ImportDisk { spec: spec_told, disk, ticket: ticket.ticket.clone(), format };
        let request = self.request(0, kind);
        self.operate(spec, &request).unwrap();
        request.operation
    }

    /// A client with an image, which is let in.
    pub fn upload(&self, ticket: &Ticket, file: Option<&std::fs::File>) -> BufReader<UnixStream> {
        let mut stream = self.show(ticket, file);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<GuestWelcome>(&line).unwrap(), GuestWelcome::Upload);
        stream
    }

    /// All that a client receives that presents a ticket for this request.
    pub fn told_for(&self, spec: &VmSpec, request: TicketRequest) -> String {
        String::from_utf8(self.bytes_for(spec, request)).unwrap()
    }

    /// As [`told_for`](Self::told_for), where it is no text.
    pub fn bytes_for(&self, spec: &VmSpec, request: TicketRequest) -> Vec<u8> {
        self.bytes_of(&self.ticket(spec, request).unwrap())
    }

    /// All that a client receives that presents this ticket.
    pub fn bytes_of(&self, ticket: &Ticket) -> Vec<u8> {
        let mut told = Vec::new();
        self.show(ticket, None).read_to_end(&mut told).unwrap();
        told
    }

    /// A ticket that no host has made.
    pub fn no_ticket(&self) -> Ticket {
        let socket = self.path("run/hostd/guest.sock");
        Ticket { ticket: TicketId::from_bytes([0; 16]), expires_unix_seconds: 0, socket, port: None }
    }

    pub fn void(&self, ticket: &Ticket) -> Result<(), ClientError> {
        self.runtime.block_on(self.client.void_ticket(&ticket.ticket))
    }

    /// All that a client receives from an export of a disk.
    pub fn export(&self, spec: &VmSpec, disk: &str) -> String {
        self.export_as(spec, disk, ImageFormat::Raw).0
    }

    /// As [`export`](Self::export), with the exported file.
    pub fn export_as(&self, spec: &VmSpec, disk: &str, format: ImageFormat) -> (String, std::fs::File) {
        let disk = disk.parse().unwrap();
        let request =
            TicketRequest::Export { spec: Box::new(spec.clone()), disk, format, grants: Vec::new() };
        let ticket = self.ticket(spec, request).unwrap();
        let mut told = String::new();
        let file = tempfile::tempfile().unwrap();
        self.show(&ticket, Some(&file)).read_to_string(&mut told).unwrap();
        (told, file)
    }

    /// The process id of its hostd.
    pub fn hostd_pid(&self) -> u32 {
        self.hostd.as_ref().unwrap().id()
    }

    pub fn cancel(&self, operation: OperationId) {
        self.runtime.block_on(self.client.cancel(operation)).unwrap();
    }

    /// The state of an operation; `None` if this run of hostd does not know it.
    pub fn known_operation(&self, operation: OperationId) -> Option<Operation> {
        match self.runtime.block_on(self.client.operation(operation)) {
            Ok(now) => Some(now),
            Err(ClientError::Refused { status: 404, .. }) => None,
            Err(error) => panic!("{error}"),
        }
    }

    pub fn operation(&self, operation: OperationId) -> Operation {
        self.runtime.block_on(self.client.operation(operation)).unwrap()
    }

    pub fn console(&self, spec: &VmSpec) -> Console {
        let stream = until("there is a console", || {
            let ticket =
                self.ticket(spec, TicketRequest::Console { read_only: false, taken_by: None }).ok()?;
            let mut stream = self.show(&ticket, None);
            let mut line = String::new();
            stream.read_line(&mut line).unwrap();
            serde_json::from_str::<GuestWelcome>(&line).ok().map(|_| stream)
        });
        Console { stream }
    }

    /// The recorded console output of the guest.
    pub fn console_log(&self, spec: &VmSpec) -> String {
        let ticket = self
            .ticket(spec, TicketRequest::ConsoleLog { spec: Box::new(spec.clone()), grants: Vec::new() })
            .unwrap();
        let mut stream = self.show(&ticket, None);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert_eq!(serde_json::from_str::<GuestWelcome>(&line).unwrap(), GuestWelcome::ConsoleLog, "{line}");
        let mut said = String::new();
        stream.read_to_string(&mut said).unwrap();
        said
    }

    /// Checks that no file of the VM has the guest's text.
    pub fn assert_sealed(&self, spec: &VmSpec, marker: &[u8]) {
        for volume in std::fs::read_dir(spec.directory()).unwrap().flatten() {
            for file in std::fs::read_dir(volume.path()).into_iter().flatten().flatten() {
                let bytes = std::fs::read(file.path()).unwrap_or_default();
                let found = bytes.windows(marker.len()).any(|window| window == marker);
                assert!(!found, "{} holds what the guest reads", file.path().display());
            }
        }
    }

    /// Checks that no file of this host has the text.
    pub fn assert_nowhere(&self, marker: &[u8]) {
        let mut places = vec![self.scratch.path().to_owned()];
        while let Some(place) = places.pop() {
            for entry in std::fs::read_dir(place).unwrap().flatten() {
                let kind = entry.file_type().unwrap();
                if kind.is_dir() {
                    places.push(entry.path());
                } else if kind.is_file() {
                    let bytes = std::fs::read(entry.path()).unwrap();
                    let found = bytes.windows(marker.len()).any(|window| window == marker);
                    assert!(!found, "{} holds what the guest has", entry.path().display());
                }
            }
        }
    }

    /// Kills the processes of all VMs, of which their supervisors' and QEMUs' are recorded. The
    /// others end with them.
    pub fn end_vms(&self) {
        for entry in std::fs::read_dir(self.path("run/vms")).into_iter().flatten().flatten() {
            let state = std::fs::read_to_string(entry.path().join("state.json")).unwrap_or_default();
            let state: serde_json::Value = serde_json::from_str(&state).unwrap_or_default();
            for part in ["supervisor", "qemu"] {
                if let Some(pid) = state[part]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok())
                    && let Some(identity) = ProcessIdentity::of(pid)
                {
                    let _ = identity.kill();
                }
            }
        }
    }

    /// Checks that this host has no process but hostd, and no run directory of a VM.
    pub fn assert_nobody_left(&self) {
        until("run directories are gone", || {
            (std::fs::read_dir(self.path("run/vms")).unwrap().count() == 0).then_some(())
        });
        let place = self.scratch.path().to_str().unwrap().to_owned();
        let hostd = self.hostd.as_ref().map(Child::id);
        until("processes are gone", || {
            let mut left = processes().into_iter().filter(|(_, line)| line.contains(&place));
            left.all(|(pid, _)| Some(pid) == hostd).then_some(())
        });
    }
}

fn processes() -> Vec<(u32, String)> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let line = std::fs::read(Path::new("/proc").join(pid.to_string()).join("cmdline")).ok()?;
        Some((pid, String::from_utf8_lossy(&line).replace('\0', " ")))
    })
    .collect()
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(hostd) = &mut self.hostd {
            let _ = hostd.kill();
            let _ = hostd.wait();
        }
        self.end_vms();
    }
}

/// An external key server, and a key on it.
pub struct KeySite {
    pub server: Server,
    pub key: ProviderKey,
    config: ProviderConfig,
    _pki: Pki,
    _store: tempfile::TempDir,
}

impl KeySite {
    pub fn start(host: &Host) -> Self {
        let (pki, store) = (Pki::new(), tempfile::tempdir().unwrap());
        let server = Server::start(ServerKind::KmipGo, &pki, store.path(), &[]);
        let identity = pki.client("host1");
        let kmip = KmipConfig {
            servers: vec![server.address()],
            ca: pki.authority(),
            certificate: identity.certificate,
            key: identity.key,
            server_name: None,
            request_timeout_ms: 8_000,
            named_keys: true,
        };
        let config = ProviderConfig::new(SourceConfig::Kmip(kmip));
        let name: ProviderName = "corp".parse().unwrap();
        Registry::of_home(&host.path("home")).add(&name, &config).unwrap();
        let key = made_at(&name, &config);
        Self { server, key, config, _pki: pki, _store: store }
    }

    /// Makes the key server a provider of another host, too.
    pub fn serve(&self, host: &Host) {
        Registry::of_home(&host.path("home")).add(&self.key.provider, &self.config).unwrap();
    }

    /// Makes another key.
    pub fn another_key(&self) -> ProviderKey {
        made_at(&self.key.provider, &self.config)
    }

    /// The bytes of a key.
    pub fn fetch(&self, key: &ProviderKey) -> SecretBytes {
        strongroom_providers::open(&self.config).unwrap().fetch(key).unwrap()
    }
}

fn made_at(provider: &ProviderName, config: &ProviderConfig) -> ProviderKey {
    let made = strongroom_providers::open(config).unwrap().create(KeyRequestId::random()).unwrap();
    ProviderKey { provider: provider.clone(), key: made.key, wrapped: made.wrapped }
}

pub struct Console {
    stream: BufReader<UnixStream>,
}

impl Console {
    pub fn await_line(&mut self, wanted: &str) {
        let mut line = String::new();
        while line.trim() != wanted {
            line.clear();
            assert!(
                self.stream.read_line(&mut line).unwrap() > 0,
                "the console ended before it said {wanted}"
            );
        }
    }

    pub fn await_text(&mut self, wanted: &str) {
        let mut said = vec![0; wanted.len()];
        self.stream.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), wanted);
    }

    /// Says a text, and reads until the guest has said it again. Returns `false` if that takes
    /// long: after a supervisor's death input can be lost.
    pub fn is_echoed(&mut self, text: &str) -> bool {
        self.say(text);
        self.stream.get_ref().set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(text.as_bytes()) && self.stream.read_exact(&mut byte).is_ok() {
            said.extend(byte);
        }
        self.stream.get_ref().set_read_timeout(Some(SOON)).unwrap();
        said.ends_with(text.as_bytes())
    }

    /// Says a text, and reads until the guest has answered this line. Returns `false` if that takes
    /// long: after a supervisor's death input can be lost.
    pub fn is_answered(&mut self, text: &str, answer: &str) -> bool {
        self.is_told(text, &format!("{answer}\n"))
    }

    /// Says a text, and reads until the guest has said this. Returns `false` if that takes long.
    pub fn is_told(&mut self, text: &str, wanted: &str) -> bool {
        self.say(text);
        self.stream.get_ref().set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(wanted.as_bytes()) && self.stream.read_exact(&mut byte).is_ok() {
            said.extend(byte);
        }
        self.stream.get_ref().set_read_timeout(Some(SOON)).unwrap();
        said.ends_with(wanted.as_bytes())
    }

    /// Reads the next line, without its end.
    pub fn read_line(&mut self) -> String {
        let mut line = String::new();
        assert!(self.stream.read_line(&mut line).unwrap() > 0, "the console ended");
        line.trim_end().to_owned()
    }

    pub fn say(&mut self, text: &str) {
        self.stream.get_mut().write_all(text.as_bytes()).unwrap();
    }
}
