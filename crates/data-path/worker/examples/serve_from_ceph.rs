//! Serves a volume on a Ceph cluster over vhost-user, until SIGTERM: what a VM's supervisor does,
//! for the lab, without a control plane. The processes are those of the product; the key lies in a
//! file.
//!
//! ```text
//! serve_from_ceph serve CEPH_CONF POOL NAMESPACE NAME BYTES clear|encrypted|tagged SOCKET KEY_FILE
//! ```

use std::error::Error;
use std::io::stdin;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::SIGTERM;
use strongroom_datastore::file::{
    Access, CreateOptions, DatastoreError, Integrity, OpenOptions, Protection, Provisioning, create_on,
    open_apart_on,
};
use strongroom_frontend::listen::{Address, Listener};
use strongroom_frontend::vhost_user_blk::QUEUES_MAX;
use strongroom_keys::{Kek, KekSource, NoProviders, read_key_file};
use strongroom_rbd::process::{StorageProgram, StorageStarter};
use strongroom_types::{CephClient, CephMount, CephPools, VolumeSize};
use strongroom_worker::birth::Frontend;
use strongroom_worker::supervise::{
    Birthright, Exposure, Program, Quarters, Supervisor, VolumeKek, WorkerStarter, Workers,
};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match words[..] {
        ["worker"] => strongroom_worker::process_main::process_main().map_err(Into::into),
        // A storage process closes what it was not born with.
        ["cluster-files"] => stdin()
            .as_fd()
            .try_clone_to_owned()
            .map_err(Into::into)
            .and_then(|socket| strongroom_rbd::process::process_main(socket).map_err(Into::into)),
        ["serve", conf, pool, namespace, name, bytes, seal, socket, key_file] => {
            Wanted::parse(conf, pool, namespace, bytes, seal, key_file)
                .and_then(|wanted| wanted.serve(Path::new(name), Path::new(socket)))
        }
        _ => Err("it serves as its first comment says".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serve_from_ceph: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A volume, and the cluster that has it.
struct Wanted {
    mount: CephMount,
    size: VolumeSize,
    kek: Option<Kek>,
    integrity: Option<Integrity>,
}

impl Wanted {
    fn parse(
        conf: &str,
        pool: &str,
        namespace: &str,
        bytes: &str,
        seal: &str,
        key_file: &str,
    ) -> Result<Self, Box<dyn Error>> {
        let conf = PathBuf::from(conf);
        let mount = CephMount {
            pools: CephPools { pool: pool.parse()?, data_pool: None, namespace: namespace.parse()? },
            client: CephClient {
                user: "client.admin".parse()?,
                keyring: conf.with_file_name("keyring"),
                conf,
            },
        };
        let key = || -> Result<Kek, Box<dyn Error>> {
            Ok(KekSource::KeyFile {}.kek(&read_key_file(Path::new(key_file))?)?)
        };
        let (kek, integrity) = match seal {
            "clear" => (None, None),
            "encrypted" => (Some(key()?), None),
            "tagged" => (Some(key()?), Some(Integrity::NEW)),
            _ => return Err(format!("'{seal}' is none of clear, encrypted and tagged").into()),
        };
        Ok(Self { mount, size: VolumeSize::new(bytes.parse()?)?, kek, integrity })
    }

    /// Makes the volume if there is none, and serves it.
    fn serve(self, name: &Path, socket: &Path) -> Result<(), Box<dyn Error>> {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        let program = std::env::current_exe()?;
        let files = StorageProgram { path: program.clone(), arguments: vec!["cluster-files".into()] };
        let starter = StorageStarter::new(files, self.mount);
        let storage = starter.storage();
        let protection = self.kek.as_ref().map_or(Protection::Unencrypted, Protection::Encrypted);
        let options = CreateOptions {
            size: self.size,
            provisioning: Provisioning::Thin,
            protection,
            log_bytes: None,
            integrity: self.integrity,
        };
        match create_on(&storage, name, &options) {
            Ok(_) | Err(DatastoreError::Exists { .. }) => {}
            Err(error) => {
                let refusal = starter.refusal();
                return Err(refusal.map_or_else(|| error.to_string(), |refusal| refusal.reason).into());
            }
        }
        let options = OpenOptions {
            protection,
            access: Access::ReadWrite,
            lock_wait: std::time::Duration::from_secs(10),
            least_generation: 0,
        };
        let (head, layer, deks) = open_apart_on(&storage, name, &options)?;
        let no_providers = Arc::new(NoProviders("a key file has the only key".to_owned()));
        let program = Program::at(&program, vec!["worker".into()])?;
        let serial = name.to_string_lossy().into_owned();
        let exposure = Exposure {
            head,
            kek: VolumeKek::new(self.kek, no_providers.clone())?,
            keyring: no_providers,
            listener: Listener::bind(&Address::Unix(socket.to_owned()))?,
            birthright: Birthright {
                frontend: Frontend::VhostUser { serial: serial.clone(), queues_max: QUEUES_MAX },
                tls_key: None,
                name: serial,
                placement: None,
                limits: Vec::new(),
            },
            workers: Workers::of(Arc::new(WorkerStarter::new(program, Quarters::OfItsOwn))),
        };
        let beside = socket.parent().unwrap_or(Path::new("."));
        let control = openat(CWD, beside, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let supervisor = Supervisor::start_in(exposure, layer, deks, control.as_fd())?;
        let (stopped, stop) = std::io::pipe()?;
        signal_hook::low_level::pipe::register(SIGTERM, stop)?;
        Ok(supervisor.run(&stopped)?)
    }
}
