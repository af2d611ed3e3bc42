//! The OASIS test cases of KMIP 1.0 to 1.4 against the key server, through the bytes of its
//! messages.
//!
//! The cases come from a Go module, which `scripts/fetch-kmip-cases` fetches. One server, with
//! everything enabled, plays all cases of one version in the order of their names. [`cases`]
//! defines those within its scope, [`compare`] compares responses, and [`table`] lists those that
//! fail, each with the reason. The result is the table in `docs/KMIP.md`, and the test fails if the
//! table does not match. `STRONGROOM_WRITE_TABLES=1` writes it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod cases;
mod compare;
mod names;
mod replay;
mod table;
mod variables;
mod xml;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use strongroom_keyserver::Caller;
use strongroom_keyserver::Settings;
use strongroom_keyserver::access::{
    CertificateSerial, CertificateSha256, ClientId, Identity, PublicKeySha256, Role,
};
use strongroom_keyserver::grant::{Refusal, VerifiedGrant};
use strongroom_keyserver::objects::clock::{Clock, UnixSeconds};
use strongroom_keyserver::objects::dependents::NoDependents;
use strongroom_keyserver::{Event, Observer, Recording};
use strongroom_keyserver::{Foundations, GrantFailure, Grants, KeyServer, Redeeming};
use strongroom_kmip::ttlv::Limits;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::Engine;

use crate::replay::{Server, ServerMade, replay};

/// A clock that the test advances.
struct TestClock(AtomicI64);

impl Clock for TestClock {
    fn now(&self) -> UnixSeconds {
        UnixSeconds(self.0.load(Ordering::SeqCst))
    }
}

/// No grants: the cases do not use them.
struct NoGrants;

impl Grants for NoGrants {
    fn verify(&self, _: &[u8], _: &Identity) -> Result<VerifiedGrant, GrantFailure> {
        Err(GrantFailure::Refused(Refusal::Malformed))
    }

    fn redeem<'a>(&'a self, _: &'a VerifiedGrant) -> Redeeming<'a> {
        Box::pin(async { Err(GrantFailure::Refused(Refusal::Malformed)) })
    }
}

/// No record: the cases do not need one.
struct Unrecorded;

impl Observer for Unrecorded {
    fn record<'a>(&'a self, _: &'a [Event]) -> Recording<'a> {
        Box::pin(async { Ok(()) })
    }
}

/// A key server in memory, and the clients that call it.
struct TestServer {
    runtime: tokio::runtime::Runtime,
    clock: Arc<TestClock>,
    server: KeyServer,
    clients: HashMap<String, Identity>,
}

impl TestServer {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let clock = Arc::new(TestClock(AtomicI64::new(now.try_into().unwrap())));
        let foundations = Foundations {
            store: Arc::new(Engine::with_backend(redb::backends::InMemoryBackend::new(), "cases").unwrap()),
            clock: clock.clone(),
            grants: Arc::new(NoGrants),
            observer: Arc::new(Unrecorded),
            dependents: Arc::new(NoDependents),
        };
        let server = KeyServer::new(foundations, &SecretBytes::random(32).unwrap(), Settings::all()).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        Self { runtime, clock, server, clients: HashMap::new() }
    }
}

impl Server for TestServer {
    fn answer(&mut self, client: &str, request: &[u8]) -> Vec<u8> {
        let identity = self.clients.entry(client.to_owned()).or_insert_with(|| identity(client));
        let caller = Caller::new(identity.clone(), None);
        self.runtime.block_on(self.server.answer(caller, request, &Limits::default())).to_vec()
    }

    fn now_seconds(&self) -> i64 {
        self.clock.now().0
    }

    fn advance(&mut self, seconds: i64) {
        self.clock.0.fetch_add(seconds, Ordering::SeqCst);
    }
}

fn identity(client: &str) -> Identity {
    Identity {
        client: ClientId::random(),
        role: Role::Client,
        name: "client".parse().unwrap(),
        public_key: PublicKeySha256::of(client.as_bytes()),
        certificate: CertificateSha256::of(client.as_bytes()),
        serial: CertificateSerial::from_bytes(&[1]),
        not_after: time::OffsetDateTime::now_utc() + time::Duration::days(1),
    }
}

#[test]
fn the_cases_of_the_standard_end_as_the_table_says() {
    let mut results = Vec::new();
    for version in cases::VERSIONS {
        let mut server = TestServer::new();
        let mut server_made = ServerMade::new();
        for case in cases::of_version(version) {
            let outcome = match case.out_of_scope() {
                Some(why) => table::Outcome::OutOfScope(why),
                None => match replay(&case, &mut server, &mut server_made) {
                    Ok(()) => table::Outcome::Passed,
                    Err(difference) => table::Outcome::Failed(difference),
                },
            };
            results.push(table::Result { name: case.name, version: case.version, outcome });
        }
    }
    table::check(&results);
}
