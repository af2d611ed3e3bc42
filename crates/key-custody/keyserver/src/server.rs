//! Handles a request from its bytes to the bytes of its answer: grant, batch, record.
//!
//! The promises depend on this order:
//! 1. the request's grant, if it has one, is verified, found unused, and checked against the owners
//!    of its objects; external providers are asked for all that its items need. If one is away, the
//!    request is refused as a whole, and the grant is as it was. Otherwise it is redeemed, durably,
//!    before anything is done or released under it;
//! 2. each item of the batch is one piece of work and one transaction, durable before the next
//!    begins; in a batch with the undo option, all items are one transaction;
//! 3. operations and refusals are recorded, durably;
//! 4. the answer leaves. If step 3 failed, a refusal leaves in its place.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_kmip::message::{
    RequestHeader, RequestItem, RequestMessage, ResponseHeader, ResponseItem, ResponseMessage,
};
use strongroom_kmip::protocol::{Credential, Operation, ProtocolVersion, ResultReason};
use strongroom_kmip::ttlv::Limits;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::Store;
use zeroize::Zeroizing;

use crate::access::Identity;
use crate::batch::{Batch, Worked, failed, refusal};
use crate::broker::{Broker, not_brokered};
use crate::caller::{Caller, refused};
use crate::failure::Failure;
use crate::grant::{Grant, Refusal, VerifiedGrant};
use crate::objects::clock::Clock;
use crate::objects::dependents::{Dependents, Inquiry};
use crate::objects::id::ObjectId;
use crate::objects::keeping::{KeepingError, Objects};
use crate::objects::sealing::SealingError;
use crate::observer::{Event, EventOutcome, Observer, ShownGrant};
use crate::operations::GroupTurns;
use crate::operations::asking::{Answers, Ask};
use crate::presented::PresentedGrants;
use crate::settings::Settings;

/// Most items of one batch: bounds the client's wait, and the transaction of a batch with the undo
/// option.
pub const BATCH_MAX_ITEMS: usize = 64;

/// The future of [`Grants::redeem`].
pub type Redeeming<'a> = Pin<Box<dyn Future<Output = Result<(), GrantFailure>> + Send + 'a>>;

/// Verifies grants and uses them up.
pub trait Grants: Send + Sync {
    /// Verifies that `bytes` are a grant that `host` may use now, and that was not used before.
    ///
    /// # Errors
    /// Why it is not accepted.
    fn verify(&self, bytes: &[u8], host: &Identity) -> Result<VerifiedGrant, GrantFailure>;

    /// Uses a grant up, durably once the future completes. Of several calls one succeeds.
    fn redeem<'a>(&'a self, grant: &'a VerifiedGrant) -> Redeeming<'a>;
}

/// The grant of a request, which is not used up yet.
struct Granted {
    grant: VerifiedGrant,
    /// Whether it names a key of an external provider.
    is_brokered: bool,
}

/// Why a grant was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum GrantFailure {
    /// It may not be used.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its use cannot be recorded.
    #[error("the use of the grant cannot be written down: {0}")]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
}

/// The embedded key server, without its transport.
pub struct KeyServer {
    pub(crate) objects: Arc<Objects>,
    pub(crate) settings: Settings,
    clock: Arc<dyn Clock>,
    grants: Arc<dyn Grants>,
    observer: Arc<dyn Observer>,
    broker: Option<Arc<Broker>>,
    presented: PresentedGrants,
    inquiry: Arc<Inquiry>,
    pub(crate) turns: GroupTurns,
    answered: AtomicU64,
}

/// The dependencies of a [`KeyServer`].
pub struct Foundations {
    /// The store of objects and used grants.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// The verifier of grants.
    pub grants: Arc<dyn Grants>,
    /// The record.
    pub observer: Arc<dyn Observer>,
    /// The dependents of keys.
    pub dependents: Arc<dyn Dependents>,
}

impl KeyServer {
    /// A server for the objects in the store, sealed under keys derived from `root`.
    ///
    /// # Errors
    ///
    /// [`SealingError`] if no keys can be derived from the root.
    pub fn new(
        foundations: Foundations,
        root: &SecretBytes,
        settings: Settings,
    ) -> Result<Self, SealingError> {
        let Foundations { store, clock, grants, observer, dependents } = foundations;
        let objects = Arc::new(Objects::new(store, root, Arc::clone(&clock))?);
        Ok(Self {
            objects,
            settings,
            clock,
            grants,
            observer,
            broker: None,
            presented: PresentedGrants::default(),
            inquiry: Arc::new(Inquiry::new(dependents)),
            turns: GroupTurns::default(),
            answered: AtomicU64::new(0),
        })
    }

    /// The same, with a broker for external providers.
    #[must_use]
    pub fn with_broker(self, broker: Option<Arc<Broker>>) -> Self {
        Self { broker, ..self }
    }

    /// Makes an operation's request, and adds the answer or failure to the request's answers.
    pub(crate) async fn ask(&self, ask: Ask, answers: &mut Answers) {
        match (ask, &self.broker) {
            (Ask::Key(key), Some(broker)) => {
                let deadline = *answers.deadline.get_or_insert_with(|| broker.deadline());
                let answer = broker.key(&key, deadline).await;
                answers.keys.insert(key, answer);
            }
            (Ask::State(key), Some(broker)) => {
                let deadline = *answers.deadline.get_or_insert_with(|| broker.deadline());
                let answer = broker.state(&key, deadline).await;
                answers.states.insert(key, answer);
            }
            (Ask::Key(key), None) => {
                let refused = not_brokered(&key);
                answers.keys.insert(key, Err(refused));
            }
            (Ask::State(key), None) => {
                let refused = not_brokered(&key);
                answers.states.insert(key, Err(refused));
            }
            (Ask::Dependents(id), _) => {
                answers.dependents.insert(id, self.inquiry.of(id).await);
            }
        }
    }

    /// The objects of the server, for operations outside KMIP.
    pub fn objects(&self) -> Arc<Objects> {
        Arc::clone(&self.objects)
    }

    /// The inquiry into keys' dependents.
    pub fn inquiry(&self) -> Arc<Inquiry> {
        Arc::clone(&self.inquiry)
    }

    /// Answers the bytes of a request. Every input gets an answer.
    pub async fn answer(&self, caller: Caller, request: &[u8], limits: &Limits) -> Zeroizing<Vec<u8>> {
        match RequestMessage::decode(request, limits) {
            Ok(request) => self.handle(caller, &request).await.encode(),
            Err(malformed) => {
                let failure = Failure::from(malformed.error);
                let event = self.event(&caller, None, Vec::new(), refusal(&failure));
                let item = ResponseItem::failure_of_message(failure.reason, failure.message);
                let items = self.on_record(vec![item], &[event]).await;
                ResponseMessage { header: self.header(malformed.version), items }.encode()
            }
        }
    }

    /// Answers a request.
    pub async fn handle(&self, caller: Caller, request: &RequestMessage) -> ResponseMessage {
        let header = self.header(request.header.protocol_version);
        let (items, events) = match self.work(&caller, request, &header).await {
            Ok(worked) => worked,
            Err(failure) => {
                let shown = refused_grant(&request.header);
                let event = |item: &RequestItem| Event {
                    grant: shown.clone(),
                    ..self.event(&caller, Some(item.operation()), Vec::new(), refusal(&failure))
                };
                let items = request.items.iter().take(BATCH_MAX_ITEMS);
                let answers = items.clone().map(|item| failed(item, &failure)).collect();
                (answers, items.map(event).collect())
            }
        };
        let items = self.on_record(items, &events).await;
        ResponseMessage { header, items }
    }

    /// Works through a request, after its grant was used up if it has one.
    ///
    /// # Errors
    /// Why it is refused before any of its items.
    async fn work(
        &self,
        caller: &Caller,
        request: &RequestMessage,
        header: &ResponseHeader,
    ) -> Result<Worked, Failure> {
        let (mut answers, server) = (Answers::default(), self);
        let Some(Granted { grant, is_brokered }) = self.granted(caller, request)? else {
            return Ok(Batch { server, caller, request, header }.work_through(answers).await);
        };
        let of_grant = |refusal| refused(&refusal);
        let _presented = self.presented.present(grant.grant().id()).map_err(of_grant)?;
        let caller = &caller.clone().with_grant(grant.clone());
        let batch = Batch { server, caller, request, header };
        if is_brokered && let Some(refused) = batch.ask_ahead(&mut answers).await {
            return Ok(refused);
        }
        self.grants.redeem(&grant).await.map_err(of_failed_grant)?;
        let caller = &caller.clone().with_used_grant();
        Ok(Batch { caller, ..batch }.work_through(answers).await)
    }

    /// Checks a request before any of its items; returns its grant, which is not used up yet.
    fn granted(&self, caller: &Caller, request: &RequestMessage) -> Result<Option<Granted>, Failure> {
        if request.items.is_empty() || request.items.len() > BATCH_MAX_ITEMS {
            return Err(Failure::new(
                ResultReason::InvalidMessage,
                format!("a batch has 1 to {BATCH_MAX_ITEMS} items"),
            ));
        }
        let Some(bytes) = grant_in(&request.header)? else { return Ok(None) };
        let grant = self.grants.verify(bytes, caller.identity()).map_err(of_failed_grant)?;
        let is_brokered = self.check_owners(&grant)?;
        Ok(Some(Granted { grant, is_brokered }))
    }

    /// Checks that the grant's signer owns the objects: a control plane cannot grant other owners'
    /// keys. Checked before redemption, because that lets the host keep reading the objects'
    /// metadata. Returns whether a key of an external provider is among them.
    fn check_owners(&self, grant: &VerifiedGrant) -> Result<bool, Failure> {
        let work = self.objects.begin().map_err(|error| Failure::internal(&error))?;
        let mut is_brokered = false;
        for id in grant.grant().objects().iter().filter_map(|text| text.parse::<ObjectId>().ok()) {
            match work.load(id) {
                Ok(object) if object.owner != grant.signer() => return Err(refused(&Refusal::NotTheSigners)),
                Ok(object) => is_brokered |= object.upstream.is_some(),
                Err(KeepingError::NotFound { .. }) => {}
                Err(error) => return Err(Failure::internal(&error)),
            }
        }
        Ok(is_brokered)
    }

    /// Returns `items` if the events can be recorded; otherwise refusals.
    async fn on_record(&self, items: Vec<ResponseItem>, events: &[Event]) -> Vec<ResponseItem> {
        if events.is_empty() {
            return items;
        }
        match self.observer.record(events).await {
            Ok(()) => items,
            Err(error) => {
                tracing::error!(%error, "nothing leaves while the record cannot be kept");
                let withheld = |item: ResponseItem| ResponseItem {
                    operation: item.operation,
                    unique_batch_item_id: item.unique_batch_item_id,
                    ..ResponseItem::failure_of_message(
                        ResultReason::GeneralFailure,
                        "the record cannot be kept, so nothing is given out",
                    )
                };
                items.into_iter().map(withheld).collect()
            }
        }
    }

    fn header(&self, version: ProtocolVersion) -> ResponseHeader {
        // Earlier versions have no field for it.
        let server_correlation_value = (version >= ProtocolVersion::V1_4).then(|| {
            let number = self.answered.fetch_add(1, Ordering::Relaxed);
            format!("{:x}-{number:x}", std::process::id())
        });
        ResponseHeader {
            time_stamp: self.clock.now().into(),
            server_correlation_value,
            ..ResponseHeader::new(version)
        }
    }

    /// An event at the present time.
    pub(crate) fn event(
        &self,
        caller: &Caller,
        operation: Option<Operation>,
        objects: Vec<ObjectId>,
        outcome: EventOutcome,
    ) -> Event {
        let grant = caller.grant().map(|verified| ShownGrant::Accepted {
            id: verified.grant().id(),
            vm: verified.grant().vm(),
            generation: verified.grant().generation(),
            signer: verified.signer(),
            is_used: caller.grant_is_used(),
        });
        Event { at: self.clock.now(), who: caller.who(), operation, objects, outcome, grant, upstream: None }
    }
}

fn of_failed_grant(failure: GrantFailure) -> Failure {
    match failure {
        GrantFailure::Refused(refusal) => refused(&refusal),
        error => Failure::internal(&error),
    }
}

/// The facts about the grant of a refused request.
fn refused_grant(header: &RequestHeader) -> Option<ShownGrant> {
    let bytes = grant_in(header).ok()??;
    Some(ShownGrant::Refused { claimed: Grant::claimed_id(bytes) })
}

/// The grant among the credentials. Names and passwords are not read: only the certificate
/// identifies the client.
fn grant_in(header: &RequestHeader) -> Result<Option<&[u8]>, Failure> {
    let credentials = header.authentication.iter().flat_map(|authentication| &authentication.credentials);
    let mut grants = credentials.filter_map(|credential| match credential {
        Credential::StrongroomGrant(bytes) => Some(bytes.expose()),
        _ => None,
    });
    match (grants.next(), grants.next()) {
        (_, Some(_)) => {
            Err(Failure::new(ResultReason::InvalidMessage, "a request comes with one grant at most"))
        }
        (grant, None) => Ok(grant),
    }
}
