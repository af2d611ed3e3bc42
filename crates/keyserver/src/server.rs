//! A request from its bytes to the bytes of its answer: grant, batch, record.
//!
//! The order is what the promises rest on:
//! 1. the grant that came with the request, if one did, is verified and redeemed, durably;
//! 2. each item of the batch is one piece of work and one transaction, durable before the next begins; of a batch that is to be
//!    undone as a whole, all items are one;
//! 3. what was done and refused is put on record, durably;
//! 4. the answer leaves. If 3 failed, a refusal leaves in its place.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use strongroom_kmip::message::{
    RequestHeader, RequestItem, RequestMessage, ResponseHeader, ResponseItem, ResponseMessage,
};
use strongroom_kmip::protocol::{
    BatchErrorContinuationOption, Credential, Operation, ProtocolVersion, ResultReason, ResultStatus,
};
use strongroom_kmip::ttlv::Limits;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Store, Transaction};
use zeroize::Zeroizing;

use crate::access::{Identity, OperationClass};
use crate::caller::{Caller, refused};
use crate::grant::{Refusal, VerifiedGrant};
use crate::objects::clock::Clock;
use crate::objects::id::ObjectId;
use crate::objects::keeping::{KeepingError, Objects};
use crate::objects::sealing::SealingError;
use crate::observer::{Event, EventOutcome, Observer};
use crate::operations::failure::Failure;
use crate::operations::{Context, GroupTurns, Released, class_of, perform};
use crate::settings::Settings;

/// Most items of one batch: a transaction of the store has room for as many as are undone together.
pub const BATCH_MAX_ITEMS: usize = 64;
/// How often a piece of work is done again because another client changed the same objects meanwhile. Each time, another one got
/// through; this many losses in a row are a storm.
const COMMIT_ATTEMPTS: usize = 32;

/// What [`Grants::redeem`] gives back.
pub type Redeeming<'a> = Pin<Box<dyn Future<Output = Result<VerifiedGrant, GrantFailure>> + Send + 'a>>;

/// Takes grants: verifies them and uses them up.
pub trait Grants: Send + Sync {
    /// The grant that `bytes` are, if `host` may use it now. When the future is done, its use is durable.
    fn redeem<'a>(&'a self, bytes: &'a [u8], host: &'a Identity) -> Redeeming<'a>;
}

/// Why a grant was not taken.
#[derive(Debug, thiserror::Error)]
pub enum GrantFailure {
    /// It may not be used.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its use cannot be written down.
    #[error("the use of the grant cannot be written down: {0}")]
    Unavailable(Box<dyn std::error::Error + Send + Sync>),
}

/// The embedded key server, without its transport.
pub struct KeyServer {
    objects: Arc<Objects>,
    settings: Settings,
    clock: Arc<dyn Clock>,
    grants: Arc<dyn Grants>,
    observer: Arc<dyn Observer>,
    turns: GroupTurns,
    answered: AtomicU64,
}

/// What a [`KeyServer`] stands on.
pub struct Foundations {
    /// Where objects and used grants are kept.
    pub store: Arc<dyn Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Who takes grants.
    pub grants: Arc<dyn Grants>,
    /// The record.
    pub observer: Arc<dyn Observer>,
}

impl KeyServer {
    /// A server for the objects that are in the store, sealed under keys derived from `root`.
    ///
    /// # Errors
    ///
    /// [`SealingError`] if no keys can be derived from the root.
    pub fn new(
        foundations: Foundations,
        root: &SecretBytes,
        settings: Settings,
    ) -> Result<Self, SealingError> {
        let Foundations { store, clock, grants, observer } = foundations;
        let objects = Arc::new(Objects::new(store, root, Arc::clone(&clock))?);
        Ok(Self {
            objects,
            settings,
            clock,
            grants,
            observer,
            turns: GroupTurns::default(),
            answered: AtomicU64::new(0),
        })
    }

    /// The objects of the server, for what is done to them beside KMIP.
    pub fn objects(&self) -> Arc<Objects> {
        Arc::clone(&self.objects)
    }

    /// Answers the bytes of a request. Whatever they are, there is an answer.
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
        let version = request.header.protocol_version;
        let (items, events) = match self.prepare(caller.clone(), request).await {
            Ok(caller) => {
                let batch = Batch { server: self, caller: &caller, request, header: self.header(version) };
                batch.work_through().await
            }
            Err(failure) => {
                let event = |item: &RequestItem| {
                    self.event(&caller, Some(item.operation()), Vec::new(), refusal(&failure))
                };
                let items = request.items.iter().take(BATCH_MAX_ITEMS);
                let answers = items.clone().map(|item| failed(item, &failure)).collect();
                (answers, items.map(event).collect())
            }
        };
        let items = self.on_record(items, &events).await;
        ResponseMessage { header: self.header(version), items }
    }

    /// What has to be right before any item is looked at; the caller comes back with its grant.
    async fn prepare(&self, caller: Caller, request: &RequestMessage) -> Result<Caller, Failure> {
        if request.items.is_empty() || request.items.len() > BATCH_MAX_ITEMS {
            return Err(Failure::new(
                ResultReason::InvalidMessage,
                format!("a batch has 1 to {BATCH_MAX_ITEMS} items"),
            ));
        }
        let Some(bytes) = grant_in(&request.header)? else { return Ok(caller) };
        match self.grants.redeem(bytes, caller.identity()).await {
            Ok(grant) => Ok(caller.with_grant(grant)),
            Err(GrantFailure::Refused(refusal)) => Err(refused(&refusal)),
            Err(error) => Err(Failure::internal(&error)),
        }
    }

    /// `items`, if the events can be put on record; refusals otherwise.
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
        let number = self.answered.fetch_add(1, Ordering::Relaxed);
        ResponseHeader {
            time_stamp: self.clock.now().into(),
            server_correlation_value: Some(format!("{:x}-{number:x}", std::process::id())),
            ..ResponseHeader::new(version)
        }
    }

    fn event(
        &self,
        caller: &Caller,
        operation: Option<Operation>,
        objects: Vec<ObjectId>,
        outcome: EventOutcome,
    ) -> Event {
        let grant = caller.grant().map(|grant| grant.grant().id().to_string());
        Event { at: self.clock.now(), who: caller.who(), operation, objects, outcome, grant }
    }
}

/// One request while it is worked through.
struct Batch<'a> {
    server: &'a KeyServer,
    caller: &'a Caller,
    request: &'a RequestMessage,
    /// A header as long as the answer's will be.
    header: ResponseHeader,
}

/// How one item ended.
struct Done {
    item: ResponseItem,
    event: Option<Event>,
    placeholder: Option<ObjectId>,
}

impl Batch<'_> {
    async fn work_through(&self) -> (Vec<ResponseItem>, Vec<Event>) {
        match self.request.header.batch_error_continuation_option {
            Some(BatchErrorContinuationOption::Undo) => self.all_or_nothing().await,
            Some(BatchErrorContinuationOption::Continue) => self.one_by_one(false).await,
            _ => self.one_by_one(true).await,
        }
    }

    /// Each item for itself, in the order of the request whatever it says about order.
    async fn one_by_one(&self, stop_at_failure: bool) -> (Vec<ResponseItem>, Vec<Event>) {
        let (mut items, mut events) = (Vec::new(), Vec::new());
        let mut placeholder = None;
        for item in &self.request.items {
            let done = self.one(item, placeholder, &items).await;
            placeholder = done.placeholder;
            events.extend(done.event);
            let failed = done.item.result_status != ResultStatus::Success;
            items.push(done.item);
            if failed && stop_at_failure {
                break;
            }
        }
        (items, events)
    }

    async fn one(&self, item: &RequestItem, placeholder: Option<ObjectId>, before: &[ResponseItem]) -> Done {
        for _ in 0..COMMIT_ATTEMPTS {
            let mut tried = self.try_items(std::slice::from_ref(item), placeholder, before);
            match self.commit(&mut tried).await {
                Ok(true) => return tried.only(item, placeholder),
                Ok(false) => {}
                Err(error) => return self.refuse(item, &error.into(), Vec::new(), placeholder),
            }
        }
        self.refuse(item, &contended(), Vec::new(), placeholder)
    }

    /// All items in one transaction: none of it is there if one fails.
    async fn all_or_nothing(&self) -> (Vec<ResponseItem>, Vec<Event>) {
        let requested = &self.request.items;
        let mut failure = contended();
        for _ in 0..COMMIT_ATTEMPTS {
            let mut tried = self.try_items(requested, None, &[]);
            let failed = tried.items.last().is_some_and(|item| item.result_status != ResultStatus::Success);
            if failed {
                return self.undone(tried);
            }
            match self.commit(&mut tried).await {
                Ok(true) => return (tried.items, tried.events),
                Ok(false) => {}
                Err(error) => {
                    failure = error.into();
                    break;
                }
            }
        }
        requested
            .iter()
            .map(|item| self.refuse(item, &failure, Vec::new(), None))
            .map(|done| (done.item, done.event))
            .fold((Vec::new(), Vec::new()), |(mut items, mut events), (item, event)| {
                items.push(item);
                events.extend(event);
                (items, events)
            })
    }

    /// Makes durable what was tried; `false` if another client changed some of it meanwhile.
    async fn commit(&self, tried: &mut Tried) -> Result<bool, KeepingError> {
        match std::mem::replace(&mut tried.transaction, Ok(None))? {
            Some(transaction) => self.server.objects.commit(transaction).await,
            None => Ok(true),
        }
    }

    /// What came before the item that failed is undone, and says so.
    fn undone(&self, tried: Tried) -> (Vec<ResponseItem>, Vec<Event>) {
        let (mut items, mut events) = (tried.items, tried.events);
        let last = items.len().saturating_sub(1);
        for item in &mut items[..last] {
            item.result_status = ResultStatus::OperationUndone;
            item.payload = None;
        }
        for event in &mut events {
            if !matches!(event.outcome, EventOutcome::Refused { .. }) {
                event.outcome = EventOutcome::Undone;
            }
        }
        (items, events)
    }

    /// Does items in one piece of work, up to the first that fails, and makes nothing durable.
    fn try_items(
        &self,
        requested: &[RequestItem],
        placeholder: Option<ObjectId>,
        before: &[ResponseItem],
    ) -> Tried {
        let mut tried = Tried { items: Vec::new(), events: Vec::new(), placeholder, transaction: Ok(None) };
        let mut work = match self.server.objects.begin() {
            Ok(work) => work,
            Err(error) => {
                tried.transaction = Err(error);
                return tried;
            }
        };
        for item in requested {
            let mut context = Context {
                caller: self.caller,
                version: self.request.header.protocol_version,
                settings: &self.server.settings,
                turns: &self.server.turns,
                work: &mut work,
                placeholder: tried.placeholder,
                objects: Vec::new(),
                released: None,
                operation: item.operation(),
            };
            let result = check_extension(item).and_then(|()| perform(&item.payload, &mut context));
            let (objects, released, next) = (context.objects, context.released, context.placeholder);
            let answer = result.map(|payload| ResponseItem::success(item, payload)).and_then(|answer| {
                self.check_size(before, &tried.items, &answer)?;
                Ok(answer)
            });
            match answer {
                Ok(answer) => {
                    tried.items.push(answer);
                    tried.events.extend(self.note(item.operation(), objects, released));
                    tried.placeholder = next;
                }
                Err(failure) => {
                    let done = self.refuse(item, &failure, objects, None);
                    tried.items.push(done.item);
                    tried.events.extend(done.event);
                    // Whatever the item staged before it failed goes with it.
                    return tried;
                }
            }
        }
        if work.has_changes() {
            tried.transaction = work.into_transaction().map(Some);
        }
        tried
    }

    /// Refuses an answer that would make the response longer than the client takes, before anything is done for it.
    fn check_size(
        &self,
        before: &[ResponseItem],
        tried: &[ResponseItem],
        answer: &ResponseItem,
    ) -> Result<(), Failure> {
        let Some(most) = self.request.header.maximum_response_size else { return Ok(()) };
        let items = before.iter().chain(tried).chain([answer]).cloned().collect();
        let length_bytes = ResponseMessage { header: self.header.clone(), items }.encode().len();
        if i64::try_from(length_bytes).is_ok_and(|length_bytes| length_bytes <= i64::from(most)) {
            return Ok(());
        }
        Err(Failure::new(
            ResultReason::ResponseTooLarge,
            format!("the response would have {length_bytes} bytes, and the client takes {most}"),
        ))
    }

    fn refuse(
        &self,
        item: &RequestItem,
        failure: &Failure,
        objects: Vec<ObjectId>,
        placeholder: Option<ObjectId>,
    ) -> Done {
        let event = self.server.event(self.caller, Some(item.operation()), objects, refusal(failure));
        Done { item: failed(item, failure), event: Some(event), placeholder }
    }

    /// The record of a success. What only tells what the server is goes on none.
    fn note(
        &self,
        operation: Operation,
        objects: Vec<ObjectId>,
        released: Option<Released>,
    ) -> Option<Event> {
        let outcome = match released {
            Some(Released { wrapped }) => EventOutcome::Released { wrapped },
            None if class_of(operation) == Some(OperationClass::Discover) => return None,
            None => EventOutcome::Done,
        };
        Some(self.server.event(self.caller, Some(operation), objects, outcome))
    }
}

/// Items that were tried, and what would make them durable.
struct Tried {
    items: Vec<ResponseItem>,
    events: Vec<Event>,
    placeholder: Option<ObjectId>,
    transaction: Result<Option<Transaction>, KeepingError>,
}

impl Tried {
    /// The one item that was tried.
    fn only(mut self, item: &RequestItem, placeholder: Option<ObjectId>) -> Done {
        match self.items.pop() {
            Some(answer) => {
                let succeeded = answer.result_status == ResultStatus::Success;
                let placeholder = if succeeded { self.placeholder } else { placeholder };
                Done { item: answer, event: self.events.pop(), placeholder }
            }
            None => Done { item: failed(item, &contended()), event: None, placeholder },
        }
    }
}

/// The grant among the credentials. Names and passwords are left unread: the certificate alone says who asks.
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

/// An extension that must be understood is not.
fn check_extension(item: &RequestItem) -> Result<(), Failure> {
    match &item.message_extension {
        Some(extension) if extension.criticality_indicator => Err(Failure::not_offered(format!(
            "the critical message extension of {:?} is not understood here",
            extension.vendor_identification
        ))),
        _ => Ok(()),
    }
}

fn failed(item: &RequestItem, failure: &Failure) -> ResponseItem {
    ResponseItem::failure(item, failure.reason, failure.message.clone())
}

fn refusal(failure: &Failure) -> EventOutcome {
    EventOutcome::Refused { reason: failure.reason, message: failure.message.clone() }
}

fn contended() -> Failure {
    Failure::new(ResultReason::GeneralFailure, "others keep changing the same objects; try again")
}
