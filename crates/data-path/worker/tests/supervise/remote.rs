//! A volume whose files are another process's: a real worker in its sandbox serves it to a real
//! client, and processes are killed beneath it.

use std::io::{self, BufRead, BufReader, PipeWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use parking_lot::Mutex;
use rustix::fs::{CWD, Mode, OFlags, openat};
use strongroom_datastore::file::*;
use strongroom_frontend::listen::{Address, Listener};
use strongroom_rbd::process::StorageProcess;
use strongroom_remote::RemoteStorage;
use strongroom_test_peers::CephCluster;
use strongroom_types::{CephClient, CephMount, CephPools, SnapshotId, VolumeSize};
use strongroom_wire::PacketSocket;
use strongroom_worker::birth::Frontend;
use strongroom_worker::control::{Answer, Client, Request, Status};
use strongroom_worker::supervise::{
    Birthright, Exposure, Program, Quarters, SuperviseError, Supervisor, VolumeKek, WorkerStarter, Workers,
};

use crate::providers::{OneKey, ScriptedLeases, key_file_kek};
use crate::stage::{DEADLINE, LOCK_WAIT, kill};

/// Bytes of the volume.
const SIZE_BYTES: u64 = 64 << 20;

/// Whether a volume is encrypted.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seal {
    Encrypted,
    /// As a person chose; it shows that the search for plain text finds some.
    Clear,
}

/// What every block that the client writes contains.
const PATTERN: u8 = 0xA7;

/// The program of the processes.
fn program() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().with_file_name("examples").join("processes")
}

fn command(process: &str) -> Command {
    let mut command = Command::new(program());
    command.arg(process).env_clear();
    command
}

/// The processes that have had the files, one after the other; the last one may run.
type Had = Arc<Mutex<Vec<u32>>>;

/// Ends a child with the test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn host_files() -> (RemoteStorage, Had) {
    let had = Had::default();
    let (told, children) = (Arc::clone(&had), Mutex::new(Vec::new()));
    let storage = RemoteStorage::new(move || {
        let (ours, theirs) = PacketSocket::pair()?;
        let child = command("host-files").stdin(theirs).stdout(Stdio::null()).spawn().unwrap();
        told.lock().push(child.id());
        children.lock().push(Ends(child));
        Ok(ours.into_socket())
    });
    (storage, had)
}

fn cluster_files(cluster: &CephCluster) -> (RemoteStorage, Had) {
    files_in_pools(cluster, None)
}

fn files_in_pools(cluster: &CephCluster, data_pool: Option<&str>) -> (RemoteStorage, Had) {
    let mount = CephMount {
        pools: CephPools {
            pool: "rep2".parse().unwrap(),
            data_pool: data_pool.map(|pool| pool.parse().unwrap()),
            namespace: "volumes".parse().unwrap(),
        },
        client: CephClient {
            user: "client.admin".parse().unwrap(),
            conf: cluster.conf.clone(),
            keyring: cluster.conf.with_file_name("keyring"),
        },
    };
    let had = Had::default();
    let (told, processes) = (Arc::clone(&had), Mutex::new(Vec::new()));
    let storage = RemoteStorage::new(move || {
        let (process, socket) = StorageProcess::start(&mut command("cluster-files"), &mount, None).unwrap();
        told.lock().push(process.id());
        processes.lock().push(process);
        Ok(socket)
    });
    (storage, had)
}

/// A volume that is served over NBD.
struct Served {
    /// The directory of its sockets.
    directory: tempfile::TempDir,
    stop: PipeWriter,
    thread: JoinHandle<Result<(), SuperviseError>>,
    had: Had,
}

impl Served {
    fn start(storage: &RemoteStorage, had: Had, path: &Path, seal: Seal) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let kek = (seal == Seal::Encrypted).then(|| key_file_kek(7));
        let protection = kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted);
        let options = CreateOptions {
            size: VolumeSize::new(SIZE_BYTES).unwrap(),
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: None,
            integrity: kek.is_some().then_some(Integrity::NEW),
        };
        create_on(storage, path, &options).unwrap();
        let access = Access::ReadWrite;
        let options = OpenOptions { protection, access, lock_wait: LOCK_WAIT, least_generation: 0 };
        let (head, layer, deks) = open_apart_on(storage, path, &options).unwrap();
        let program = Program::at(&program(), vec!["worker".into()]).unwrap();
        let exposure = Exposure {
            head,
            kek: VolumeKek::new(kek, Arc::<ScriptedLeases>::default()).unwrap(),
            keyring: Arc::new(OneKey(8)),
            listener: Listener::bind(&Address::Unix(directory.path().join("vm1.sock"))).unwrap(),
            birthright: Birthright {
                frontend: Frontend::Nbd { export: "vm1".to_owned(), tls: None },
                tls_key: None,
                name: "vm1".to_owned(),
                placement: None,
                limits: Vec::new(),
            },
            workers: Workers::of(Arc::new(WorkerStarter::new(program, Quarters::OfItsOwn))),
        };
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let control = openat(CWD, directory.path(), flags, Mode::empty()).unwrap();
        let supervisor =
            Supervisor::start_in(exposure, layer, deks, std::os::fd::AsFd::as_fd(&control)).unwrap();
        let (stopped, stop) = io::pipe().unwrap();
        let thread = std::thread::spawn(move || supervisor.run(&stopped));
        Self { directory, stop, thread, had }
    }

    fn ask(&self, request: Request) -> Answer {
        Client::connect(self.directory.path()).unwrap().unwrap().ask(request, DEADLINE).unwrap()
    }

    fn status(&self) -> Status {
        match self.ask(Request::Status) {
            Answer::Status(status) => *status,
            other => panic!("{other:?}"),
        }
    }

    /// Waits for a worker other than this one.
    fn worker_after(&self, former: u32) -> u32 {
        let until = Instant::now() + DEADLINE;
        loop {
            match self.status().worker_pid {
                Some(pid) if pid != former => return pid,
                _ => assert!(Instant::now() < until, "no worker within {DEADLINE:?}"),
            }
        }
    }

    fn storage_process(&self) -> u32 {
        *self.had.lock().last().unwrap()
    }

    /// Runs commands of qemu-io, whose checks of patterns fail it.
    fn client(&self, commands: &[String]) {
        let mut client = self.qemu_io();
        for command in commands {
            client.args(["-c", command]);
        }
        let output = client.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && !said.contains("failed"), "{commands:?}: {said} {output:?}");
    }

    /// What the worker shares with the process of its files while a client is connected that has
    /// run these commands.
    fn shared_memory_beside(&self, worker: u32, commands: &[String]) -> Vec<u8> {
        let mut client = self.qemu_io();
        let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map(Ends).unwrap();
        let mut orders = client.0.stdin.take().unwrap();
        let mut answers = BufReader::new(client.0.stdout.take().unwrap()).lines();
        for command in commands {
            // It reads all that there is, and obeys the first line only: so the next one follows
            // its answer.
            writeln!(orders, "{command}").unwrap();
            assert!(answers.any(|line| line.unwrap().contains("wrote ")), "{command}");
        }
        shared_memory(worker)
    }

    fn uri(&self) -> String {
        format!("nbd+unix:///vm1?socket={}", self.directory.path().join("vm1.sock").display())
    }

    fn qemu_io(&self) -> Command {
        let uri = self.uri();
        // Its answers are not to wait for more in a pipe.
        let mut client = Command::new("stdbuf");
        client.args(["-oL", "qemu-io", "-f", "raw", &uri]);
        client
    }

    fn writes(&self, at: &str, length: &str) {
        let write = format!("write -P {PATTERN} {at} {length}");
        self.client(&[write, "flush".to_owned()]);
    }

    fn reads(&self, at: &str, length: &str) {
        self.client(&[format!("read -P {PATTERN} {at} {length}")]);
    }

    fn end(self) {
        drop(self.stop);
        self.thread.join().unwrap().unwrap();
    }
}

/// Memory that the worker shares with the process of its files.
fn shared_memory(worker: u32) -> Vec<u8> {
    let maps = std::fs::read_to_string(format!("/proc/{worker}/maps")).unwrap();
    let memory = std::fs::File::open(format!("/proc/{worker}/mem")).unwrap();
    let mut found = Vec::new();
    for line in maps.lines().filter(|line| line.contains("memfd:strongroom-transfers")) {
        let (start, rest) = line.split_once('-').unwrap();
        let (end, _) = rest.split_once(' ').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; (number(end) - number(start)) as usize];
        std::os::unix::fs::FileExt::read_exact_at(&memory, &mut bytes, number(start)).unwrap();
        found.extend(bytes);
    }
    found
}

/// Everything that happens to a volume, with the client's data checked after each.
fn lives(storage: &RemoteStorage, had: Had, path: &Path, seal: Seal) {
    let served = Served::start(storage, had, path, seal);
    let worker = served.worker_after(0);
    // An unaligned piece passes through a read-modify-write of whole blocks.
    let pieces = ["0 1M", "2097664 100k"];
    let shared =
        served.shared_memory_beside(worker, &pieces.map(|piece| format!("write -P {PATTERN} {piece}")));
    served.reads("0", "1M");
    served.reads("2097664", "100k");
    // A process that is not dumpable can be looked into by root alone.
    if rustix::process::geteuid().is_root() {
        assert!(shared.iter().any(|byte| *byte != 0), "nothing was transferred there");
        let plain = shared.windows(64).filter(|bytes| *bytes == [PATTERN; 64]).count();
        assert_eq!(plain > 0, seal == Seal::Clear, "{plain} pieces of plain text");
    }

    // A snapshot while it is served: the new top's files go to the worker.
    let (id, name) = (SnapshotId::random(), "one".parse().unwrap());
    let made = served.ask(Request::Snapshot { id, name, least_generation: 0 });
    assert!(matches!(made, Answer::Snapshotted { .. }), "{made:?}");
    served.writes("4M", "1M");
    served.reads("0", "1M");

    // The worker dies.
    kill(worker);
    let worker = served.worker_after(worker);
    served.reads("0", "1M");
    served.reads("4M", "1M");

    // The process of the files dies, and the worker with it.
    let former = served.storage_process();
    kill(former);
    let worker = served.worker_after(worker);
    assert_ne!(served.storage_process(), former);
    served.reads("0", "1M");
    served.reads("2097664", "100k");
    served.reads("4M", "1M");
    served.writes("8M", "1M");

    // Another worker takes over in order.
    let upgraded = served.ask(Request::Upgrade);
    assert!(matches!(upgraded, Answer::Upgraded { .. }), "{upgraded:?}");
    assert_ne!(served.worker_after(worker), worker);
    served.reads("8M", "1M");
    served.end();
}

#[test]
#[ignore = "its processes are an example: make test-ceph"]
fn a_volume_lives_on_files_of_another_process() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (storage, had) = host_files();
    lives(&storage, had, &datastore.path().join("vm1"), Seal::Encrypted);
}

#[test]
#[ignore = "its processes are an example: make test-ceph"]
fn a_clear_volume_lives_on_files_of_another_process() {
    let datastore = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (storage, had) = host_files();
    lives(&storage, had, &datastore.path().join("vm1"), Seal::Clear);
}

#[test]
#[ignore = "long: make test-ceph"]
fn a_volume_lives_on_a_cluster() {
    let cluster = CephCluster::start(3);
    let (storage, had) = cluster_files(&cluster);
    lives(&storage, had, Path::new("vm1"), Seal::Encrypted);
}

/// A second program writes all of it at random, and reads it back; meanwhile a device is lost.
fn fio_verifies(data_pool: Option<&str>) {
    let mut cluster = CephCluster::start(3);
    let (storage, had) = files_in_pools(&cluster, data_pool);
    let served = Served::start(&storage, had, Path::new("vm1"), Seal::Encrypted);
    let scratch = tempfile::tempdir().unwrap();
    let fio = |phase: &[&str]| {
        let mut fio = Command::new("fio");
        fio.current_dir(&scratch).args(["--name=verify", "--ioengine=nbd", "--iodepth=16", "--randseed=7"]);
        fio.arg(format!("--uri={}", served.uri())).arg(format!("--size={SIZE_BYTES}"));
        fio.args(["--rw=randwrite", "--bsrange=4k-64k", "--verify=crc32c", "--verify_fatal=1"]);
        fio.args(phase).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().map(Ends).unwrap()
    };
    let ended = |mut fio: Ends| {
        let status = fio.0.wait().unwrap();
        let said = fio.0.stdout.take().map(io::read_to_string).unwrap().unwrap();
        assert!(status.success(), "{said}");
    };
    let writes = fio(&["--do_verify=1"]);
    cluster.kill("osd.2");
    ended(writes);
    // Others have what it had, and so has it afterwards.
    cluster.start_again("osd.2");
    cluster.wait_until_clean();
    cluster.kill("osd.1");
    ended(fio(&["--verify_only=1"]));
    served.end();
}

#[test]
#[ignore = "long: make test-ceph"]
fn fio_reads_back_what_it_wrote_though_devices_die() {
    fio_verifies(None);
}

#[test]
#[ignore = "long: make test-ceph"]
fn fio_reads_back_what_it_wrote_to_an_erasure_coded_pool_though_devices_die() {
    fio_verifies(Some("ec21"));
}

/// A client whose protocol has a word for it hears that the pool is full, and the volume's
/// condition says so. There is room later, and nothing is lost.
#[test]
#[ignore = "long: make test-ceph"]
fn a_full_pool_is_reported_and_the_volume_is_served_on() {
    let mut cluster = CephCluster::start(2);
    let (storage, had) = cluster_files(&cluster);
    let served = Served::start(&storage, had, Path::new("vm1"), Seal::Encrypted);
    served.writes("0", "8M");
    let quota = |cluster: &mut CephCluster, bytes: u64| {
        cluster.tell(&format!(
            r#"{{"prefix":"osd pool set-quota","pool":"rep2","field":"max_bytes","val":"{bytes}"}}"#
        ));
    };
    quota(&mut cluster, 1 << 20);
    let until = Instant::now() + DEADLINE;
    loop {
        let output = served.qemu_io().args(["-c", "write 8M 4M", "-c", "discard 8M 4M"]).output().unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        if said.contains("No space left on device") {
            break;
        }
        assert!(said.contains("wrote ") && Instant::now() < until, "{said}");
    }
    let worker = served.worker_after(0);
    let until = Instant::now() + DEADLINE;
    while served.status().condition.refused_for_room == 0 {
        assert!(Instant::now() < until, "{:?}", served.status());
    }
    served.reads("0", "8M");
    quota(&mut cluster, 0);
    let until = Instant::now() + DEADLINE;
    let write = format!("write -P {PATTERN} 8M 4M");
    while !served.qemu_io().args(["-c", &write]).output().unwrap().status.success() {
        assert!(Instant::now() < until, "there is no room again");
    }
    served.reads("0", "12M");
    assert_eq!(served.worker_after(0), worker, "the worker has ended");
    served.end();
}
