//! A serving control plane, with a host in memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use strongroom_control::engine::Control;
use strongroom_control::host::Host;
use strongroom_control::{ControlConfig, ControlProcess};
use tokio::sync::oneshot;

use super::backups::Shelf;
use super::client::Client;
use super::courier::Postbox;
use super::identity::Vouching;
use super::joining::OneMachine;
use super::passwords::Argon2id;
use super::relay::Relay;
use super::site::Site;

pub struct Server {
    pub site: Arc<Site>,
    pub directory: PathBuf,
    address: std::net::SocketAddr,
    pub fingerprint: String,
    control: Option<Arc<Control>>,
    runtime: Option<tokio::runtime::Runtime>,
    stop: Option<oneshot::Sender<()>>,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl Server {
    pub fn start(directory: &Path) -> Self {
        Self::with_hosts(directory, Site::new())
    }

    /// With hosts that carry out requests at once.
    pub fn with_hosts(directory: &Path, site: Site) -> Self {
        site.hosts().iter().for_each(|(_, host)| host.lock().by_itself = true);
        Self::with_site(directory, Arc::new(site))
    }

    pub fn with_site(directory: &Path, site: Arc<Site>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let config = ControlConfig {
            joining: Some(OneMachine::of(&site.fuse)),
            courier: Some(Postbox::of(&site.fuse)),
            identity_providers: Some(Vouching::of(&site.vouching)),
            directory: directory.to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            certificate_names: Vec::new(),
            hosts: site.hosts().into_iter().map(|(name, host)| (name, host as Arc<dyn Host>)).collect(),
            keys: Arc::clone(&site.keys) as _,
            backups: Some(Arc::new(Shelf::default())),
            passwords: Arc::new(Argon2id),
            relay: Some(Arc::new(Relay::start())),
        };
        let process = runtime.block_on(ControlProcess::bind(config)).unwrap();
        let (address, fingerprint, control) = (process.address(), process.fingerprint(), process.control());
        let (stop, stopped) = oneshot::channel();
        let running = runtime.spawn(async move {
            process.run(async { drop(stopped.await) }).await.unwrap();
        });
        Self {
            site,
            directory: directory.to_owned(),
            address,
            fingerprint,
            control: Some(control),
            runtime: Some(runtime),
            stop: Some(stop),
            running: Some(running),
        }
    }

    /// Samples disk counters and reviews alarms now, as the control plane does every few seconds.
    pub fn look(&self) {
        let control = self.control.as_ref().unwrap();
        control.sample();
        control.review().unwrap();
    }

    /// Reads what some volumes take, as the control plane does each second.
    pub fn read_spaces(&self) {
        self.control.as_ref().unwrap().read_spaces();
    }

    pub fn address(&self) -> std::net::SocketAddr {
        self.address
    }

    pub fn client(&self) -> Client {
        Client::new(self.address, &self.directory)
    }

    /// Ends it in order; its directory stays.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop((self.stop.take(), self.control.take()));
        if let (Some(runtime), Some(running)) = (self.runtime.take(), self.running.take()) {
            let _ = runtime.block_on(running);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}
