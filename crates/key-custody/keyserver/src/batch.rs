//! One batch of a request: its transactions, its behaviour after an error, and its audit records.

use strongroom_kmip::message::{RequestItem, RequestMessage, ResponseHeader, ResponseItem, ResponseMessage};
use strongroom_kmip::protocol::{BatchErrorContinuationOption, Operation, ResultReason, ResultStatus};
use strongroom_store::Transaction;

use crate::access::OperationClass;
use crate::caller::Caller;
use crate::failure::Failure;
use crate::objects::id::ObjectId;
use crate::objects::keeping::KeepingError;
use crate::observer::{Event, EventOutcome};
use crate::operations::asking::{Answers, Ask};
use crate::operations::{Context, Released, class_of, perform};
use crate::server::KeyServer;

/// How often a transaction is retried because another client changed the same objects meanwhile.
/// Each time another client succeeded; this many losses in a row mean extreme contention.
const COMMIT_ATTEMPTS: usize = 32;

/// One request during its execution.
pub(crate) struct Batch<'a> {
    pub server: &'a KeyServer,
    pub caller: &'a Caller,
    pub request: &'a RequestMessage,
    /// The answer's header.
    pub header: &'a ResponseHeader,
}

/// The answers to a batch, and its audit events.
pub(crate) type Worked = (Vec<ResponseItem>, Vec<Event>);

/// The result of one item.
struct Done {
    item: ResponseItem,
    event: Option<Event>,
    placeholder: Option<ObjectId>,
}

impl Batch<'_> {
    /// Asks external providers for all that the items need, and does nothing else. If one is away,
    /// all items are refused for that: then the request does nothing, and its grant is not used up.
    pub async fn ask_ahead(&self, answers: &mut Answers) -> Option<Worked> {
        // Each item may need one call for a state and one for a key.
        for _ in 0..=2 * self.request.items.len() {
            let mut tried = self.try_items(&self.request.items, None, &[], answers);
            if let Some(ask) = tried.asks.take() {
                self.server.ask(ask, answers).await;
                continue;
            }
            let failure = tried.provider_is_away?;
            let items = self.request.items.iter().map(|item| failed(item, &failure)).collect();
            let refused = |event| Event { outcome: refusal(&failure), ..event };
            return Some((items, tried.events.into_iter().map(refused).collect()));
        }
        None
    }

    /// Executes all items; returns their answers and their audit events.
    pub async fn work_through(&self, answers: Answers) -> Worked {
        match self.request.header.batch_error_continuation_option {
            Some(BatchErrorContinuationOption::Undo) => self.all_or_nothing(answers).await,
            Some(BatchErrorContinuationOption::Continue) => self.one_by_one(false, answers).await,
            _ => self.one_by_one(true, answers).await,
        }
    }

    /// Executes each item by itself, always in the order of the request.
    async fn one_by_one(&self, stop_at_failure: bool, mut answers: Answers) -> Worked {
        // Their exact size: answers are large, and room for more would be wiped with them.
        let count = self.request.items.len();
        let (mut items, mut events) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut placeholder = None;
        for item in &self.request.items {
            let done = self.one(item, placeholder, &items, &mut answers).await;
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

    async fn one(
        &self,
        item: &RequestItem,
        placeholder: Option<ObjectId>,
        before: &[ResponseItem],
        answers: &mut Answers,
    ) -> Done {
        for _ in 0..COMMIT_ATTEMPTS {
            let mut tried = self.try_items(std::slice::from_ref(item), placeholder, before, answers);
            if let Some(ask) = tried.asks.take() {
                self.server.ask(ask, answers).await;
                continue;
            }
            match self.commit(&mut tried).await {
                Ok(true) => return tried.only(item, placeholder),
                Ok(false) => {}
                Err(error) => return self.refuse(item, &error.into(), Vec::new(), placeholder),
            }
        }
        self.refuse(item, &contended(), Vec::new(), placeholder)
    }

    /// Executes all items in one transaction, which is dropped if one fails.
    async fn all_or_nothing(&self, mut answers: Answers) -> Worked {
        let requested = &self.request.items;
        let mut failure = contended();
        // Each item may need one call to an external provider, and a retry afterwards.
        for _ in 0..COMMIT_ATTEMPTS + 2 * requested.len() {
            let mut tried = self.try_items(requested, None, &[], &answers);
            if let Some(ask) = tried.asks.take() {
                self.server.ask(ask, &mut answers).await;
                continue;
            }
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

    /// Commits the tried items; returns `false` if another client changed the same objects
    /// meanwhile.
    async fn commit(&self, tried: &mut Tried) -> Result<bool, KeepingError> {
        match std::mem::replace(&mut tried.transaction, Ok(None))? {
            Some(transaction) => self.server.objects.commit(transaction).await,
            None => Ok(true),
        }
    }

    /// Marks the items before the failed one as undone.
    fn undone(&self, tried: Tried) -> Worked {
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

    /// Tries items in one transaction, up to the first failure, without committing.
    fn try_items(
        &self,
        requested: &[RequestItem],
        placeholder: Option<ObjectId>,
        before: &[ResponseItem],
        answers: &Answers,
    ) -> Tried {
        let mut tried = Tried {
            items: Vec::with_capacity(requested.len()),
            events: Vec::with_capacity(requested.len()),
            placeholder,
            transaction: Ok(None),
            asks: None,
            provider_is_away: None,
        };
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
                answers,
                asks: None,
                upstream: None,
                placeholder: tried.placeholder,
                objects: Vec::new(),
                released: None,
                operation: item.operation(),
            };
            let result = check_extension(item).and_then(|()| perform(&item.payload, &mut context));
            let Context { objects, released, placeholder: next, upstream, asks, .. } = context;
            if asks.is_some() {
                tried.asks = asks;
                return tried;
            }
            let noted = |event| Event { upstream: upstream.clone(), ..event };
            let answer = result.map(|payload| ResponseItem::success(item, payload)).and_then(|answer| {
                self.check_size(before, &tried.items, &answer)?;
                Ok(answer)
            });
            match answer {
                Ok(answer) => {
                    tried.items.push(answer);
                    tried.events.extend(self.note(item.operation(), objects, released).map(noted));
                    tried.placeholder = next;
                }
                Err(failure) => {
                    let done = self.refuse(item, &failure, objects, None);
                    tried.items.push(done.item);
                    tried.events.extend(done.event.map(noted));
                    tried.provider_is_away = Some(failure).filter(|failure| failure.provider_is_away);
                    // The failed item's staged changes are dropped with the transaction.
                    return tried;
                }
            }
        }
        if work.has_changes() {
            tried.transaction = work.into_transaction().map(Some);
        }
        tried
    }

    /// Refuses an answer that would make the response longer than the client accepts, before
    /// anything is committed.
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

    /// Records a success. Operations that only describe the server are not recorded.
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

/// Tried items, and the transaction that would commit them.
struct Tried {
    items: Vec<ResponseItem>,
    events: Vec<Event>,
    placeholder: Option<ObjectId>,
    transaction: Result<Option<Transaction>, KeepingError>,
    /// The attempt is void: this request to a provider must come first.
    asks: Option<Ask>,
    /// The last item failed because its provider does not answer.
    provider_is_away: Option<Failure>,
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

/// Refuses an unknown critical extension.
fn check_extension(item: &RequestItem) -> Result<(), Failure> {
    match &item.message_extension {
        Some(extension) if extension.criticality_indicator => Err(Failure::not_offered(format!(
            "the critical message extension of {:?} is not understood here",
            extension.vendor_identification
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn failed(item: &RequestItem, failure: &Failure) -> ResponseItem {
    ResponseItem::failure(item, failure.reason, failure.message.clone())
}

pub(crate) fn refusal(failure: &Failure) -> EventOutcome {
    EventOutcome::Refused { reason: failure.reason, message: failure.message.clone() }
}

fn contended() -> Failure {
    Failure::new(ResultReason::GeneralFailure, "others keep changing the same objects; try again")
}
