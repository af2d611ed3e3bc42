//! Plays a case against the server: real bytes of TTLV in, real bytes out.

use std::collections::HashSet;

use strongroom_kmip::ttlv::{Item, Limits, Tag, Value};

use crate::cases::Case;
use crate::compare::{self, Context};
use crate::variables::Variables;
use crate::xml::Element;

/// How often a request is repeated at most until its response is right.
const REPEATS_MAX: usize = 4;
/// The time between repetitions: the awaited dates are within four hours.
const REPEAT_EVERY_SECONDS: i64 = 3600;

/// The server under test.
pub trait Server {
    /// Answers a request of the client of that name. The certificate identifies the client; the
    /// credentials in messages stand for different clients, so each has its own certificate.
    fn answer(&mut self, client: &str, request: &[u8]) -> Vec<u8>;
    /// The server's time.
    fn now_seconds(&self) -> i64;
    /// Advances the server's time.
    fn advance(&mut self, seconds: i64);
}

/// Objects whose keys the server made itself, by their identifiers.
pub type ServerMade = HashSet<String>;

/// Plays all exchanges of a case.
///
/// # Errors
///
/// The first difference, with its place.
pub fn replay(case: &Case, server: &mut impl Server, server_made: &mut ServerMade) -> Result<(), String> {
    let mut variables = Variables::default();
    let mut sent = HashSet::new();
    let mut credentials: Vec<Option<Element>> = Vec::new();
    let mut repeats = false;
    for (number, exchange) in case.assumed().iter().chain(&case.exchanges).enumerate() {
        let credential =
            exchange.request.child("RequestHeader").and_then(|header| header.child("Authentication"));
        let client = match credentials.iter().position(|known| known.as_ref() == credential) {
            Some(client) => client,
            None => {
                credentials.push(credential.cloned());
                credentials.len() - 1
            }
        };
        exchange.request.walk(&mut |element| {
            sent.insert(element.value.clone());
        });
        // In one file the remark is one exchange too early, so it also applies to the exchange
        // after it.
        repeats |= exchange.repeats;
        let mut repeats_left = if repeats { REPEATS_MAX } else { 0 };
        loop {
            let now_seconds = server.now_seconds();
            let request = variables.message(&exchange.request, now_seconds)?;
            let response = server.answer(&format!("{}-{client}", case.family()), &request.to_bytes());
            let response = Item::parse(&response, Tag::RESPONSE_MESSAGE, &Limits::default())
                .map_err(|error| format!("request {number}: {error}"))?;
            note_server_made(&exchange.request, &response, server_made);
            bind_results(&response, &mut variables);
            let mut context = Context {
                variables: &mut variables,
                now_seconds,
                server_made,
                sent: &sent,
                request: &exchange.request,
            };
            match compare::response(&exchange.response, &response, &mut context) {
                Ok(()) => break,
                Err(_) if repeats_left > 0 => {
                    repeats_left -= 1;
                    server.advance(REPEAT_EVERY_SECONDS);
                }
                Err(difference) => {
                    let said = message_of(&response);
                    return Err(format!("request {number}: {difference}{said}"));
                }
            }
        }
    }
    Ok(())
}

/// Remembers which objects have keys that the server made.
fn note_server_made(request: &Element, response: &Item, server_made: &mut HashSet<String>) {
    let Value::Structure(fields) = &response.value else { return };
    let answers = fields.iter().filter(|field| field.tag == Tag::BATCH_ITEM);
    let asked = request.children.iter().filter(|child| child.tag == "BatchItem");
    for (asked, answer) in asked.zip(answers) {
        let operation = asked.child_value("Operation").unwrap_or_default();
        let id =
            answer.field(Tag::RESPONSE_PAYLOAD).and_then(|payload| payload.field(Tag::UNIQUE_IDENTIFIER));
        if let Some(Item { value: Value::TextString(id), .. }) = id
            && matches!(operation, "Create" | "ReKey")
        {
            server_made.insert(id.clone());
        }
    }
}

/// Some cases send values from earlier responses, whose files show them literally and not as
/// variables: `$DATA_0` is the first Data of a response, `$MAC_DATA` and `$IV_COUNTER_NONCE` are
/// the last of their kind.
fn bind_results(response: &Item, variables: &mut Variables) {
    let Value::Structure(fields) = &response.value else { return };
    for payload in fields.iter().filter_map(|field| field.field(Tag::RESPONSE_PAYLOAD)) {
        if let Some(data) = payload.field(Tag::DATA)
            && variables.get("$DATA_0").is_none()
        {
            variables.bind("$DATA_0", data.value.clone());
        }
        for (tag, name) in [(Tag::MAC_DATA, "$MAC_DATA"), (Tag::IV_COUNTER_NONCE, "$IV_COUNTER_NONCE")] {
            if let Some(field) = payload.field(tag) {
                variables.bind(name, field.value.clone());
            }
        }
    }
}

/// The server's messages about its refusals, for the report of a failed case.
fn message_of(response: &Item) -> String {
    let Value::Structure(fields) = &response.value else { return String::new() };
    let messages =
        fields.iter().filter_map(|field| match field.field(Tag::RESULT_MESSAGE).map(|field| &field.value) {
            Some(Value::TextString(message)) => Some(message.as_str()),
            _ => None,
        });
    messages.map(|message| format!(" ({message})")).collect()
}
