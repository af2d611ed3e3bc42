//! Tasks, events, alarms.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use strongroom_api::alarm::Alarm;
use strongroom_api::event::{Event, EventListQuery, EventStreamQuery};
use strongroom_api::limits::EVENT_NUMBER_MAX;
use strongroom_api::task::{Task, TaskListQuery, TaskQuery};
use strongroom_api::vm::PowerOptions;
use strongroom_api::{ErrorBody, ListQuery, Page};
use tokio::time::Instant;
use uuid::Uuid;

use super::super::Api;
use super::super::ask::{Asked, Named, Wish};
use super::super::stream;
use super::super::token::Asker;
use super::{Answer, blocking};
use crate::engine::views::{limit, page_of};
use crate::problems;
use crate::records::{alarm_id, event_id};

/// The longest wait for the end of a task, in seconds: below the timeouts of proxies and clients.
const WAIT_MAX_S: u32 = 60;

/// Tasks, newest first.
#[utoipa::path(get, path = "/v1/tasks", operation_id = "task_list", tag = "task", params(TaskListQuery),
    responses((status = 200, body = Page<Task>), (status = "4XX", body = ErrorBody)))]
pub async fn task_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<TaskListQuery>,
) -> Answer<Json<Page<Task>>> {
    Ok(Json(api.control.list_tasks_for(asker.admitted.caller.principal, &query)?))
}

/// A task. With `wait_s` the answer waits until the task has ended, waits for an image, or the time
/// is over.
#[utoipa::path(get, path = "/v1/tasks/{task}", operation_id = "task_show", tag = "task",
    params(("task" = Uuid, Path, description = "Its id."), TaskQuery),
    responses((status = 200, body = Task), (status = "4XX", body = ErrorBody)))]
pub async fn task_show(
    State(mut api): State<Api>,
    asker: Asker,
    Named(task): Named<Uuid>,
    Asked(query): Asked<TaskQuery>,
) -> Answer<Json<Task>> {
    let wait_s = query.wait_s.unwrap_or(0);
    if wait_s > WAIT_MAX_S {
        return Err(problems::invalid(format!("a wait is {WAIT_MAX_S} seconds at most")).into());
    }
    let deadline = Instant::now() + Duration::from_secs(wait_s.into());
    let show = |api: &Api| api.control.show_task_for(asker.admitted.caller.principal, task);
    show(&api)?;
    let mut changes = api.control.inventory.changes_of_task(task);
    loop {
        changes.mark_unchanged();
        let shown = show(&api)?;
        if shown.state.is_over() || shown.awaits_image.is_some() || Instant::now() >= deadline {
            return Ok(Json(shown));
        }
        tokio::select! {
            _ = tokio::time::timeout_at(deadline, changes.changed()) => {}
            _ = api.ending.wait_for(|ending| *ending) => return Ok(Json(shown)),
        }
    }
}

/// Requests the cancellation of a task. It ends as soon as its work can be stopped.
#[utoipa::path(delete, path = "/v1/tasks/{task}", operation_id = "task_cancel", tag = "task",
    params(("task" = Uuid, Path, description = "Its id.")),
    responses((status = 202, body = Task), (status = "4XX", body = ErrorBody), (status = 503, body = ErrorBody)))]
pub async fn task_cancel(
    State(api): State<Api>,
    Named(task): Named<Uuid>,
    wish: Wish<PowerOptions>,
) -> Answer<(axum::http::StatusCode, Json<Task>)> {
    let task = blocking(api, move |control| control.cancel_task_for(&wish.caller, task)).await?;
    Ok((axum::http::StatusCode::ACCEPTED, Json(task)))
}

/// Events, oldest first: the newest, or those after a number.
#[utoipa::path(get, path = "/v1/events", operation_id = "event_list", tag = "event", params(EventListQuery),
    responses((status = 200, body = Page<Event>), (status = "4XX", body = ErrorBody)))]
pub async fn event_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<EventListQuery>,
) -> Answer<Json<Page<Event>>> {
    let limit = limit(query.limit)?;
    let rights = asker.rights(&api.control);
    let index = api.control.inventory.read();
    let of_object = |event: &&crate::inventory::Row<Event>| {
        rights.sees_event(&index, event) && query.object.is_none_or(|object| event.object.id == Some(object))
    };
    let show = |event: &crate::inventory::Row<Event>| Event::clone(&event.record);
    let (items, total): (Vec<Event>, usize) = match query.after {
        Some(after) => {
            let after = event_id(after);
            let later = index.events().after(&after).filter(of_object);
            (later.take(limit).map(show).collect(), index.events().after(&after).filter(of_object).count())
        }
        None => {
            let mut newest: Vec<_> =
                index.events().iter().rev().filter(of_object).take(limit).map(show).collect();
            newest.reverse();
            (newest, index.events().iter().filter(of_object).count())
        }
    };
    let more = query.after.is_some() && total > items.len();
    let next = items.last().filter(|_| more).map(|event| event.id.to_string());
    Ok(Json(Page { items, total: total as u64, next }))
}

/// Live events (server-sent events). `Last-Event-ID` continues an interrupted stream; an event
/// `reset` means that some events in between are no longer kept.
#[utoipa::path(get, path = "/v1/events/stream", operation_id = "event_stream", tag = "event", params(EventStreamQuery),
    responses((status = 200, description = "The `data` of each is an Event.", content_type = "text/event-stream", body = String),
        (status = "4XX", body = ErrorBody)))]
pub async fn event_stream(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<EventStreamQuery>,
    headers: HeaderMap,
) -> Answer<Response> {
    let resumed = match headers.get("last-event-id") {
        None => None,
        Some(value) => Some(
            value
                .to_str()
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .filter(|number| *number <= EVENT_NUMBER_MAX)
                .ok_or_else(|| problems::invalid("Last-Event-ID is not the number of an event"))?,
        ),
    };
    Ok(stream::events(&api, asker, resumed.or(query.after)))
}

/// Raised alarms.
#[utoipa::path(get, path = "/v1/alarms", operation_id = "alarm_list", tag = "alarm", params(ListQuery),
    responses((status = 200, body = Page<Alarm>), (status = "4XX", body = ErrorBody)))]
pub async fn alarm_list(
    State(api): State<Api>,
    asker: Asker,
    Asked(query): Asked<ListQuery>,
) -> Answer<Json<Page<Alarm>>> {
    let rights = asker.rights(&api.control);
    let alarms = {
        let index = api.control.inventory.read();
        let seen = index.alarms.iter().filter(|alarm| rights.sees_object(&index, &alarm.object));
        seen.map(|alarm| Alarm::clone(&alarm.record)).collect()
    };
    Ok(Json(page_of("alarms", alarms, &query, alarm_id)?))
}
