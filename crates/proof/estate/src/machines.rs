//! Simulated hosts that have joined a site and serve at their ports.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::json;
use strongroom_api::host::HostToken;
use strongroom_hostd::daemon::{PortTls, serve_at_port};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::api::Api;
use crate::error::{EstateError, system};
use crate::host::SimulatedHost;
use crate::join::{self, HostIdentity};

/// How machines join.
#[derive(Clone, Copy, Debug)]
pub struct Joining {
    /// The address of all of them; each has a port of its own.
    pub address: IpAddr,
    /// How long an operation takes on a host.
    pub operation_takes: Duration,
}

/// The port of the first host.
const FIRST_PORT: u16 = 6000;
/// How long the control plane may take to hear from all hosts.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);
/// The interval of looks for that.
const LOOKS_EVERY: Duration = Duration::from_millis(100);

/// The name of the datastore of a host, counted from 0.
pub fn datastore(host: usize) -> String {
    format!("ds-{host}")
}

/// Lets so many machines join a site, each with a datastore of its own, and waits until the control
/// plane hears from all of them. Their files are in `home`.
///
/// # Errors
/// [`EstateError`].
pub async fn join(api: &Api, hosts: u16, home: &Path, joining: Joining) -> Result<Vec<Machine>, EstateError> {
    let mut connection = api.connect().await?;
    let mut machines = Vec::new();
    for number in 0..hosts {
        let name = format!("sim-{number}");
        let address = SocketAddr::new(joining.address, FIRST_PORT + number);
        let wish = json!({ "name": name, "address": address.to_string() });
        let token = connection.ask(Method::POST, "/v1/hosts", Some(&wish)).await?;
        let token =
            serde_json::from_value(token).map_err(|error| EstateError::Unexpected(error.to_string()))?;
        machines.push(Machine::join(token, &home.join(&name), joining.operation_takes).await?);
    }
    let until = Instant::now() + ANSWER_WITHIN;
    while !connection.knows_all(0, machines.len()).await? {
        if Instant::now() > until {
            return Err(EstateError::Late("a control plane that hears from all hosts".to_owned()));
        }
        tokio::time::sleep(LOOKS_EVERY).await;
    }
    for number in 0..usize::from(hosts) {
        let (name, host) = (datastore(number), format!("sim-{number}"));
        let wish = json!({ "name": name, "path": format!("/simulated/{number}"), "host": host });
        connection.carry_out(Method::POST, "/v1/datastores", &wish).await?;
    }
    Ok(machines)
}

/// A machine with a simulated host.
#[derive(Debug)]
pub struct Machine {
    /// The host.
    pub host: Arc<SimulatedHost>,
    identity: Arc<HostIdentity>,
    serving: Option<JoinHandle<()>>,
    working: JoinHandle<()>,
}

impl Machine {
    /// Joins with a token, and serves. `home` is made for the host's files.
    ///
    /// # Errors
    /// [`EstateError`].
    pub async fn join(token: HostToken, home: &Path, operation_takes: Duration) -> Result<Self, EstateError> {
        let joined = tokio::task::spawn_blocking(move || join::join(&token)).await;
        let identity = Arc::new(joined.map_err(|error| EstateError::Program(error.to_string()))??);
        std::fs::create_dir_all(home).map_err(system("make a host's home"))?;
        let host = SimulatedHost::new(&identity.name, home, operation_takes);
        let host = host.map_err(system("read a host's term"))?;
        let working = tokio::spawn(Arc::clone(&host).work_off());
        let mut machine = Self { host, identity, serving: None, working };
        machine.mend().await?;
        Ok(machine)
    }

    /// Cuts the machine off: its port and all connections are closed. Its operations go on.
    pub async fn cut(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            // It ends cancelled; what it held is closed then.
            let _ = serving.await;
        }
    }

    /// Serves at the port again.
    ///
    /// # Errors
    /// If the port cannot be opened.
    pub async fn mend(&mut self) -> Result<(), EstateError> {
        let listener = TcpListener::bind(self.identity.address).await;
        let listener = listener.map_err(system("open a host's port"))?;
        let (host, tls) = (Arc::clone(&self.host), Arc::clone(&self.identity) as Arc<dyn PortTls>);
        self.serving = Some(tokio::spawn(serve_at_port(host, listener, tls)));
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.working.abort();
        if let Some(serving) = &self.serving {
            serving.abort();
        }
    }
}
