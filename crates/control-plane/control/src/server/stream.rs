//! Live events: server-sent events (WHATWG HTML, 9.2).

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use strongroom_api::event::Event;
use tokio::sync::mpsc;

use super::Api;
use super::token::Asker;
use crate::records::event_id;

/// The size of a batch of events. A slow reader has at most one batch queued.
const EVENTS_AT_A_TIME: usize = 64;
/// How often something is sent on an idle stream, so that both ends notice a lost connection.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A stream of the events after `after`, or of future events.
pub(super) fn events(api: &Api, asker: Asker, after: Option<u64>) -> Response {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(tell(api.clone(), asker, after, sender));
    let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")];
    (headers, Body::new(Chunks(receiver))).into_response()
}

/// Sends the events that the caller may see, until the reader disconnects, its token ends, or the
/// server ends.
async fn tell(mut api: Api, asker: Asker, after: Option<u64>, sender: mpsc::Sender<Bytes>) {
    let mut changes = api.control.inventory.changes();
    let last = api.control.inventory.read().events().last().map_or(0, |event| event.id);
    let mut told = after.unwrap_or(last).min(last);
    let mut text = reset(&api, told).unwrap_or_else(|| ": events of Strongroom\n\n".to_owned());
    loop {
        let chunk = std::mem::take(&mut text);
        if !chunk.is_empty() && sender.send(Bytes::from(chunk)).await.is_err() {
            return;
        }
        if !asker.still_counts(&api.control) {
            return;
        }
        changes.mark_unchanged();
        let later = after_number(&api, told);
        if let Some(last) = later.last() {
            told = last.id;
            let rights = asker.rights(&api.control);
            let index = api.control.inventory.read();
            text = later.iter().filter(|event| rights.sees_event(&index, event)).map(shown).collect();
            continue;
        }
        tokio::select! {
            changed = tokio::time::timeout(SIGN_OF_LIFE, changes.changed()) => {
                if changed.is_err() {
                    text = ": still here\n\n".to_owned();
                }
            }
            () = sender.closed() => return,
            _ = api.ending.wait_for(|ending| *ending) => return,
        }
    }
}

/// The first message if events after the reader's last one are no longer kept.
fn reset(api: &Api, told: u64) -> Option<String> {
    let index = api.control.inventory.read();
    let oldest = index.events().iter().next()?.id;
    let kept_all = index.events().len() < crate::inventory::EVENTS_KEPT || told + 1 >= oldest;
    (!kept_all).then(|| format!("event: reset\ndata: {{\"oldest\":{oldest}}}\n\n"))
}

fn after_number(api: &Api, told: u64) -> Vec<Event> {
    let index = api.control.inventory.read();
    let told = event_id(told);
    let later = index.events().after(&told);
    later.take(EVENTS_AT_A_TIME).map(|event| Event::clone(&event.record)).collect()
}

/// JSON contains no line ends, so one line of data is enough.
fn shown(event: &Event) -> String {
    let data = serde_json::to_string(event).unwrap_or_default();
    format!("id: {}\nevent: {}\ndata: {data}\n\n", event.id, event.kind)
}

/// A body that is fed through a channel.
struct Chunks(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}
