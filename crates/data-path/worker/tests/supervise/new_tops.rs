//! Workers that misbehave while a snapshot is made in them.

use std::fs;
use std::io::Stdin;
use std::time::{Duration, Instant};

use strongroom_types::SnapshotId;
use strongroom_worker::birth::{BirthSocket, Keys, Order, Report};
use strongroom_worker::control::{Answer, Request};

use crate::stage::{DEADLINE, LAYERS, Supervised, install, wait_until};

/// The beginning of the name of a program that can put a new top on a volume.
pub const CHANGES: &str = "changes";

/// The steps at which one misbehaves.
const STEPS: [&str; 3] = ["prepare", "freeze", "change"];

/// The file in which a worker notes the orders that it got, one in a line.
const ORDERS: &str = "orders";

/// Plays the worker of `changes: HOW STEP`.
pub fn follow(behaviour: &str, socket: &BirthSocket<Stdin>, order: &Order) {
    let (step, answer) = match order {
        Order::PrepareTop { keys: Keys::Epochs(epochs), .. } => {
            assert_eq!(epochs.len(), 1, "the keys of other layers are not needed");
            assert_eq!(socket.receive_secret().unwrap().len(), 64);
            ("prepare", Report::TopPrepared)
        }
        Order::Freeze { .. } => ("freeze", Report::Frozen),
        Order::ChangeTop { .. } => ("change", Report::Failed { reason: "not played".to_owned() }),
        Order::WithdrawTop => ("withdraw", Report::TopWithdrawn),
        other => unreachable!("{other:?}"),
    };
    note(step);
    let how = behaviour.strip_suffix(step).and_then(|how| how.trim_end().strip_prefix("changes: "));
    match how {
        Some("dies at") => std::process::exit(9),
        Some("refuses") => socket.send(&Report::Failed { reason: "not now".to_owned() }, &[]).unwrap(),
        Some("hangs at") => std::thread::sleep(DEADLINE),
        _ => socket.send(&answer, &[]).unwrap(),
    }
}

fn note(step: &str) {
    use std::io::Write;
    let path = std::env::current_exe().unwrap().with_file_name(ORDERS);
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{step}").unwrap();
}

/// A volume whose worker behaves in this way.
fn served_by(behaviour: &str) -> Supervised {
    let supervised = Supervised::start();
    install(supervised.directory.path(), behaviour);
    assert!(matches!(supervised.ask(Request::Upgrade), Answer::Upgraded { .. }));
    supervised
}

fn orders(supervised: &Supervised) -> Vec<String> {
    let orders = fs::read_to_string(supervised.directory.path().join(ORDERS)).unwrap_or_default();
    orders.lines().map(str::to_owned).collect()
}

fn layers(supervised: &Supervised) -> usize {
    let names = fs::read_dir(supervised.volume()).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().starts_with("layer-")).count()
}

fn snapshot() -> Request {
    Request::Snapshot { id: id(), name: "one".parse().unwrap(), least_generation: 0 }
}

fn id() -> SnapshotId {
    "11111111-2222-4333-8444-555555555555".parse().unwrap()
}

#[test]
fn a_worker_of_an_earlier_release_is_to_be_exchanged_first() {
    let supervised = Supervised::start();
    let refused = supervised.refused(snapshot());
    assert!(refused.contains("is too old") && refused.contains("strongroom volume upgrade"), "{refused}");
    assert_eq!(layers(&supervised), LAYERS);
    supervised.end();
}

#[test]
fn a_worker_that_refuses_a_step_serves_on_without_the_new_top() {
    for step in STEPS {
        let supervised = served_by(&format!("changes: refuses {step}"));
        let worker = supervised.worker();
        let refused = supervised.refused(snapshot());
        assert!(refused.ends_with(": not now"), "{refused}");
        assert_eq!((supervised.worker(), layers(&supervised)), (worker, LAYERS));
        let told = STEPS.iter().take_while(|earlier| **earlier != step).chain([&step, &"withdraw"]);
        assert_eq!(orders(&supervised), told.copied().collect::<Vec<_>>());
        supervised.end();
    }
}

#[test]
fn a_worker_that_dies_in_a_step_is_replaced_below_the_new_top() {
    for step in STEPS {
        let supervised = served_by(&format!("changes: dies at {step}"));
        let refused = supervised.refused(snapshot());
        assert!(refused.contains("and is replaced: ") && refused.ends_with("status 9"), "{refused}");
        supervised.worker();
        assert_eq!((supervised.status().restarts, layers(&supervised)), (1, LAYERS + 1));
        supervised.end();
    }
}

#[test]
fn a_worker_that_does_not_answer_a_freeze_is_replaced() {
    let supervised = served_by("changes: hangs at freeze");
    let worker = supervised.worker();
    let prepare = Request::PrepareSnapshot { id: id(), name: "one".parse().unwrap(), least_generation: 0 };
    assert!(matches!(supervised.ask(prepare), Answer::SnapshotPrepared));
    let begun = Instant::now();
    let refused = supervised.refused(Request::FreezeForSnapshot { id: id(), lease_ms: 100 });
    assert!(refused.contains("and is replaced"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    wait_until("another worker serves", || supervised.status().worker_pid.is_some_and(|pid| pid != worker));
    supervised.end();
}

/// The supervisor refuses a commit after the lease by itself, and tells the worker to go on.
#[test]
fn no_change_is_ordered_after_the_lease() {
    let supervised = served_by("changes: nothing");
    let prepare = Request::PrepareSnapshot { id: id(), name: "one".parse().unwrap(), least_generation: 0 };
    assert!(matches!(supervised.ask(prepare), Answer::SnapshotPrepared));
    assert!(matches!(supervised.ask(Request::FreezeForSnapshot { id: id(), lease_ms: 50 }), Answer::Frozen));
    wait_until("the worker goes on", || orders(&supervised).last().is_some_and(|last| last == "withdraw"));
    let Answer::Refused { code, .. } = supervised.ask(Request::CommitSnapshot { id: id() }) else {
        panic!("it was committed");
    };
    assert_eq!(code, "not_frozen");
    assert_eq!(orders(&supervised), ["prepare", "freeze", "withdraw"]);
    assert_eq!(layers(&supervised), LAYERS);
    supervised.end();
}
