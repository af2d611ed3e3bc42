//! One request, one answer.

use std::fmt;

use super::Client;
use super::connection::{Connection, ExchangeCause};
use super::deadline::Deadline;
use super::error::{ClientError, Phase};
use crate::message::{
    RequestHeader, RequestItem, RequestMessage, RequestPayload, ResponseItem, ResponseMessage,
    ResponsePayload,
};
use crate::protocol::{Authentication, Operation, ProtocolVersion, ResultReason, ResultStatus};
use crate::ttlv::{ByteString, Limits, Tag};

/// The longest message of a server that is quoted, in characters.
const MESSAGE_CHARACTERS_MAX: usize = 300;

/// A server's refusal and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The refused operation.
    pub operation: Operation,
    /// The reason.
    pub reason: ResultReason,
    /// The reason in the server's words, shortened. The text is untrusted: a caller that displays
    /// it escapes control characters.
    pub message: String,
}

/// A server's answer to one request.
pub type Answer = Result<ResponsePayload, Refusal>;

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} was refused: {}", self.operation, self.reason)?;
        if !self.message.is_empty() {
            write!(f, " ('{}')", self.message)?;
        }
        match self.reason {
            ResultReason::PermissionDenied | ResultReason::AuthenticationNotSuccessful => {
                f.write_str("; allow it to this client at the server")
            }
            ResultReason::OperationNotSupported => f.write_str("; this server does not offer it"),
            _ => Ok(()),
        }
    }
}

impl Client {
    /// Sends several requests in one message, in order. The server stops after the first that it
    /// refuses. The answers are in the order of the requests; requests after a refusal have none.
    ///
    /// # Errors
    /// If the message gets no answer. The refusal of one item is in its place among the answers.
    pub fn batch(&self, payloads: Vec<RequestPayload>) -> Result<Vec<Answer>, ClientError> {
        self.batch_as(None, payloads)
    }

    /// The same, with credentials or a grant in addition to the certificate. Such a message is
    /// never sent twice: a grant may be good for one request only.
    ///
    /// # Errors
    /// As [`batch`](Self::batch).
    pub fn batch_as(
        &self,
        authentication: Option<Authentication>,
        payloads: Vec<RequestPayload>,
    ) -> Result<Vec<Answer>, ClientError> {
        let deadline = Deadline::after(self.options.request_timeout);
        let version = self.agreed_version(deadline)?;
        for payload in &payloads {
            let operation = payload.operation();
            if operation.since() > version {
                let server = self.server().clone();
                return Err(ClientError::OperationTooNew { server, operation, version });
            }
        }
        self.send_as(authentication, payloads, version, deadline)
    }

    /// Sends one request, in the agreed version.
    pub(super) fn call(&self, payload: RequestPayload) -> Result<ResponsePayload, ClientError> {
        let operation = payload.operation();
        let mut answers = self.batch(vec![payload])?;
        match answers.pop() {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(refusal)) => Err(ClientError::Refused { server: self.server().clone(), refusal }),
            None => Err(self.nonsense(format!("nothing is said about {operation}"))),
        }
    }

    pub(super) fn nonsense(&self, reason: impl Into<String>) -> ClientError {
        ClientError::Protocol { server: self.server().clone(), reason: reason.into() }
    }

    /// Sends one message in the given version.
    pub(super) fn send(
        &self,
        payloads: Vec<RequestPayload>,
        version: ProtocolVersion,
        deadline: Deadline,
    ) -> Result<Vec<Answer>, ClientError> {
        self.send_as(None, payloads, version, deadline)
    }

    fn send_as(
        &self,
        authentication: Option<Authentication>,
        payloads: Vec<RequestPayload>,
        version: ProtocolVersion,
        deadline: Deadline,
    ) -> Result<Vec<Answer>, ClientError> {
        let repeatable =
            authentication.is_none() && payloads.iter().all(|payload| is_repeatable(payload.operation()));
        let operations: Vec<_> = payloads.iter().map(RequestPayload::operation).collect();
        let limits = Limits::with_message_bytes(self.options.response_max_bytes);
        let mut header = RequestHeader::new(version);
        header.maximum_response_size = i32::try_from(limits.message_bytes).ok();
        header.authentication = authentication;
        let mut items: Vec<_> = payloads.into_iter().map(RequestItem::from).collect();
        if items.len() > 1 {
            header.batch_order_option = Some(true);
            for (number, item) in items.iter_mut().enumerate() {
                item.unique_batch_item_id = Some(batch_item_id(number));
            }
        }
        let request = RequestMessage { header, items }.encode();
        let answer = self.exchange(&request, &limits, repeatable, deadline)?;
        let message =
            ResponseMessage::decode(&answer, &limits).map_err(|error| self.nonsense(error.to_string()))?;
        drop(answer);
        let outcome = self.sort(message.items, &operations);
        if let Err(ClientError::Refused { refusal, .. }) = &outcome
            && refusal.reason == ResultReason::InvalidMessage
        {
            // The server's versions may have changed since they were negotiated.
            *self.version.lock() = None;
        }
        outcome
    }

    /// Brings the answers into the order of the requests.
    fn sort(&self, items: Vec<ResponseItem>, operations: &[Operation]) -> Result<Vec<Answer>, ClientError> {
        // A server that cannot read a message answers with one item that belongs to no request.
        if let [only] = items.as_slice()
            && only.operation.is_none()
            && only.result_status != ResultStatus::Success
            && let Some(operation) = operations.first()
        {
            let refusal = refusal(*operation, only);
            return Err(ClientError::Refused { server: self.server().clone(), refusal });
        }
        let mut left: Vec<_> = items.into_iter().map(Some).collect();
        let mut sorted = Vec::with_capacity(operations.len());
        for (number, operation) in operations.iter().enumerate() {
            let wanted = batch_item_id(number);
            let is_it = |item: &Option<ResponseItem>| match item {
                Some(item) if operations.len() > 1 => item.unique_batch_item_id.as_ref() == Some(&wanted),
                Some(_) => true,
                None => false,
            };
            let Some(item) = left.iter_mut().find(|item| is_it(item)).and_then(Option::take) else { break };
            if item.operation.is_some_and(|answered| answered != *operation) {
                return Err(self.nonsense(format!("it answers {operation} with another operation")));
            }
            sorted.push(self.outcome(*operation, item)?);
        }
        Ok(sorted)
    }

    fn outcome(&self, operation: Operation, item: ResponseItem) -> Result<Answer, ClientError> {
        match item.result_status {
            ResultStatus::Success => match item.payload {
                Some(ResponsePayload::Undecodable { error, .. }) => {
                    Err(self.nonsense(format!("in the answer to {operation}: {error}")))
                }
                Some(payload) => Ok(Ok(payload)),
                None => Err(self.nonsense(format!("the answer to {operation} has no payload"))),
            },
            ResultStatus::OperationPending => {
                Err(self.nonsense(format!("{operation} is to be polled for, which was not offered")))
            }
            _ => Ok(Err(refusal(operation, &item))),
        }
    }

    /// Sends bytes and gets bytes back.
    fn exchange(
        &self,
        request: &[u8],
        limits: &Limits,
        repeatable: bool,
        deadline: Deadline,
    ) -> Result<zeroize::Zeroizing<Vec<u8>>, ClientError> {
        let server = self.server();
        let config = self.identity.current();
        let fits = |connection: &mut Connection| connection.is_of(&config) && connection.check_quiet();
        let (turn, pooled) = self.pool.take_turn(deadline, fits).map_err(|_| ClientError::TimedOut {
            server: server.clone(),
            phase: Phase::Queue,
            waited: deadline.waited(),
        })?;
        let mut was_open = pooled.is_some();
        let mut connection = match pooled {
            Some(connection) => connection,
            None => self.connect(deadline)?,
        };
        loop {
            match connection.exchange(request, Tag::RESPONSE_MESSAGE, limits, deadline) {
                Ok(answer) => {
                    turn.keep(connection);
                    return Ok(answer);
                }
                Err(failure) => {
                    // The idle connections have likely failed as well.
                    self.pool.forget();
                    let lost = matches!(failure.cause, ExchangeCause::Lost(_));
                    if !(was_open && lost && !failure.answered && repeatable) {
                        return Err(ClientError::of_exchange(server, failure.cause, deadline.waited()));
                    }
                    was_open = false;
                    connection = self.connect(deadline)?;
                }
            }
        }
    }

    pub(super) fn connect(&self, deadline: Deadline) -> Result<Connection, ClientError> {
        let connecting = deadline.at_most(self.options.connect_timeout);
        Connection::open(self.server(), self.name.clone(), self.identity.current(), connecting)
            .map_err(|failure| ClientError::of_connect(self.server(), failure, connecting.waited()))
    }
}

/// Whether sending an operation twice has the effect of sending it once.
fn is_repeatable(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::DiscoverVersions
            | Operation::Query
            | Operation::Get
            | Operation::GetAttributes
            | Operation::GetAttributeList
            | Operation::Locate
    )
}

fn batch_item_id(number: usize) -> ByteString {
    ByteString::from(u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes().as_slice())
}

fn refusal(operation: Operation, item: &ResponseItem) -> Refusal {
    let message = item.result_message.as_deref().unwrap_or_default();
    Refusal {
        operation,
        reason: item.result_reason.unwrap_or(ResultReason::GeneralFailure),
        message: message.chars().take(MESSAGE_CHARACTERS_MAX).collect(),
    }
}
