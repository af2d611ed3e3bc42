//! A machine that joins, in memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_api::Name;
use strongroom_control::host::Host;
use strongroom_control::joining::{Admission, Joining};
use strongroom_control::keys::KeyProblem;
use strongroom_types::ClientId;

use super::fuse::Fuse;
use super::site::FakeHost;

/// Lets one machine join, under any name and address.
pub struct OneMachine {
    pub host: Arc<FakeHost>,
    pub client: ClientId,
    /// The clients whose certificates have ended.
    pub expelled: Mutex<Vec<ClientId>>,
}

impl OneMachine {
    pub fn of(fuse: &Arc<Fuse>) -> Arc<Self> {
        let (host, client) = (FakeHost::new(fuse), ClientId::from_bytes([7; 16]));
        Arc::new(Self { host, client, expelled: Mutex::default() })
    }
}

impl Joining for OneMachine {
    fn admit(&self, _: &Name, valid: Duration) -> Result<Admission, KeyProblem> {
        Ok(Admission {
            token: "secret".to_owned(),
            token_id: "1".to_owned(),
            expires_unix_seconds: 1_700_000_000 + valid.as_secs(),
            client: self.client,
            enrolment: "10.0.0.5:5697".parse().unwrap(),
            kmip: "10.0.0.5:5696".parse().unwrap(),
            server_name: None,
            authority: "ab".repeat(32),
            control: ClientId::from_bytes([1; 16]),
        })
    }

    fn expel(&self, _: &str, client: ClientId) -> Result<(), KeyProblem> {
        self.expelled.lock().push(client);
        Ok(())
    }

    fn connect(&self, _: SocketAddr, client: ClientId) -> Arc<dyn Host> {
        assert_eq!(client, self.client);
        Arc::clone(&self.host) as _
    }
}
