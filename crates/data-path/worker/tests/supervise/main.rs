//! A supervisor and misbehaving workers: they refuse, die or hang at the worst moment of an
//! upgrade. And keys that come and go while their volume is served.
//!
//! The test runs itself as the worker: it speaks the protocol, and serves no clients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

mod keys;
mod log;
mod new_tops;
mod providers;
mod remote;
mod stage;
mod statistics;
mod upgrades;

use std::fs;
use std::io;
use std::os::fd::AsFd;

use stage::{BEHAVIOUR, LAYERS, waiting};
use strongroom_datastore::file::OpenLayer;
use strongroom_datastore::file::storage::adopt_host_file;
use strongroom_worker::birth::{BirthSocket, Keys, Order, Report};
use strongroom_worker::condition::Condition;

/// The process that plays the worker. If it is run by hand or by the harness, it has no supervisor
/// and does nothing.
#[test]
fn a_worker() {
    let Ok(mut socket) = BirthSocket::adopt(io::stdin()) else { return };
    let program = std::env::current_exe().unwrap();
    // A program that was replaced by another one keeps its behaviour.
    let behaviour = match program.to_str().unwrap().ends_with(" (deleted)") {
        true => "serves".to_owned(),
        false => fs::read_to_string(program.with_file_name(BEHAVIOUR)).unwrap(),
    };
    if behaviour == log::FORGES {
        log::forge();
    }
    let (mut held, mut page) = (None, None);
    while let Ok((order, files)) = socket.receive() {
        let report = match order {
            Order::Start(start) => {
                page = start.statistics.and_then(|_| files.into_iter().next_back());
                let changes_top = behaviour.starts_with(new_tops::CHANGES);
                Report::Ready { program: behaviour.clone(), changes_top, keeps_limits: true }
            }
            Order::Keys(Keys::Epochs(epochs)) => {
                assert!(epochs.iter().all(|_| socket.receive_secret().unwrap().len() == 64));
                Report::Keyed
            }
            Order::Serve { .. } if behaviour == "refuses" => {
                Report::Failed { reason: "not these".to_owned() }
            }
            Order::Serve { .. } if behaviour == "dies" => std::process::exit(9),
            Order::Serve { layer, lower, .. } => {
                let mut files = files.into_iter();
                let layer = OpenLayer::from_files(layer, &lower, &mut files, adopt_host_file).unwrap();
                assert_eq!(files.len(), 0);
                // A top that was prepared for a worker that died is served by the next one.
                assert!(
                    layer.lower.len() + 1 == LAYERS || behaviour.starts_with(new_tops::CHANGES),
                    "{}",
                    layer.lower.len()
                );
                held = Some(layer);
                let page = page.as_ref().unwrap();
                if behaviour == "lies" {
                    statistics::lie(page)
                } else {
                    statistics::count(page)
                }
                if behaviour == "waits" {
                    // It may be received before or after the answer.
                    socket.send(&Report::Condition(waiting(1)), &[]).unwrap();
                    socket.send(&Report::Serving, &[]).unwrap();
                    socket.send(&Report::Condition(waiting(2)), &[]).unwrap();
                    continue;
                }
                Report::Serving
            }
            order @ (Order::PrepareTop { .. }
            | Order::Freeze { .. }
            | Order::ChangeTop { .. }
            | Order::WithdrawTop) => {
                new_tops::follow(&behaviour, &socket, &order);
                continue;
            }
            Order::Suspend if behaviour == "keeps" => Report::Failed { reason: "a flush failed".to_owned() },
            Order::Suspend => {
                let held: OpenLayer = held.take().unwrap();
                let (layer, lower) = (held.facts, held.lower_facts());
                let sessions = Some(serde_json::json!({ "version": 1 }));
                let files = held.files().unwrap();
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                socket.send(&Report::Suspended { layer, lower, sessions, merged_bytes: 0 }, &files).unwrap();
                continue;
            }
            Order::Grow { .. } => {
                socket.send(&Report::Condition(Condition::default()), &[]).unwrap();
                Report::Grown
            }
            Order::Merge(_) => Report::Merging,
            Order::End => return socket.send(&Report::Ended { failure: None }, &[]).unwrap(),
            Order::HandOver | Order::HoldDestaging(_) => unreachable!("a worker of this program"),
            Order::Keys(Keys::Unencrypted | Keys::Encrypting(_) | Keys::Decrypting(_))
            | Order::ServeMemory { .. }
            | Order::AwaitVolume { .. }
            | Order::Release => {
                unreachable!("a volume that is encrypted")
            }
        };
        socket.send(&report, &[]).unwrap();
    }
}
