use State::*;

use super::*;

const NOW: UnixSeconds = UnixSeconds(1_000_000);

fn fresh(dates: RequestedDates) -> LifeCycle {
    LifeCycle::begin(dates, NOW).unwrap()
}

/// An object in `state`, reached by the shortest way.
fn object_in(state: State) -> LifeCycle {
    let mut life = fresh(RequestedDates::default());
    match state {
        PreActive => {}
        Active => life.activate(NOW).unwrap(),
        Deactivated => {
            life.activate(NOW).unwrap();
            life.deactivate(NOW).unwrap();
        }
        Compromised => life.compromise(None, NOW).unwrap(),
        Destroyed => life.destroy(NOW).unwrap(),
        DestroyedCompromised => {
            life.compromise(None, NOW).unwrap();
            life.destroy(NOW).unwrap();
        }
    }
    assert_eq!(life.state_at(NOW), state);
    life
}

/// One transition under test, and its name for the assertion's message.
type Action = (&'static str, fn(&mut LifeCycle) -> Result<(), LifeCycleError>);

/// Every state under every transition: the standard's transitions lead to its states, and all
/// others are refused and change nothing.
#[test]
fn the_transitions_are_those_of_the_standard_and_no_others() {
    let later = NOW.plus_seconds(1);
    let actions: [Action; 4] = [
        ("activate", |life| life.activate(NOW.plus_seconds(1))),
        ("deactivate", |life| life.deactivate(NOW.plus_seconds(1))),
        ("compromise", |life| life.compromise(None, NOW.plus_seconds(1))),
        ("destroy", |life| life.destroy(NOW.plus_seconds(1))),
    ];
    let table = [
        (PreActive, [Some(Active), None, Some(Compromised), Some(Destroyed)]),
        (Active, [None, Some(Deactivated), Some(Compromised), None]),
        (Deactivated, [None, None, Some(Compromised), Some(Destroyed)]),
        (Compromised, [None, None, None, Some(DestroyedCompromised)]),
        (Destroyed, [None, None, Some(DestroyedCompromised), None]),
        (DestroyedCompromised, [None, None, None, None]),
    ];
    for (from, outcomes) in table {
        for ((name, act), outcome) in actions.iter().zip(outcomes) {
            let before = object_in(from);
            let mut after = before.clone();
            let result = act(&mut after);
            match outcome {
                Some(state) => {
                    assert_eq!(result, Ok(()), "{name} from {from:?}");
                    assert_eq!(after.state_at(later), state, "{name} from {from:?}");
                    assert_eq!(after.last_change_at(later), later);
                }
                None => {
                    assert!(
                        matches!(result, Err(LifeCycleError::NoTransition { .. })),
                        "{name} from {from:?}"
                    );
                    assert_eq!(after, before);
                }
            }
        }
    }
}

#[test]
fn dates_move_an_object_when_they_are_reached_and_not_before() {
    let life = fresh(RequestedDates {
        activation: Some(NOW.plus_seconds(10)),
        deactivation: Some(NOW.plus_seconds(20)),
        ..RequestedDates::default()
    });
    for (seconds, state, last_change_seconds) in [
        (0, PreActive, 0),
        (9, PreActive, 0),
        (10, Active, 10),
        (19, Active, 10),
        (20, Deactivated, 20),
        (99, Deactivated, 20),
    ] {
        let at = NOW.plus_seconds(seconds);
        assert_eq!(life.state_at(at), state, "after {seconds} s");
        assert_eq!(life.last_change_at(at), NOW.plus_seconds(last_change_seconds), "after {seconds} s");
    }
}

#[test]
fn an_activation_date_in_the_past_makes_a_new_object_active() {
    let life = fresh(RequestedDates { activation: Some(NOW), ..RequestedDates::default() });
    assert_eq!(life.state_at(NOW), Active);
}

#[test]
fn process_start_and_protect_stop_bound_the_use_of_an_active_object() {
    let life = fresh(RequestedDates {
        activation: Some(NOW),
        process_start: Some(NOW.plus_seconds(10)),
        protect_stop: Some(NOW.plus_seconds(20)),
        deactivation: Some(NOW.plus_seconds(30)),
        ..RequestedDates::default()
    });
    for (seconds, protect, process) in
        [(0, true, false), (10, true, true), (19, true, true), (20, false, true), (30, false, true)]
    {
        let at = NOW.plus_seconds(seconds);
        assert_eq!((life.may_protect(at), life.may_process(at)), (protect, process), "after {seconds} s");
    }
    assert!(!object_in(PreActive).may_process(NOW));
    assert!(object_in(Compromised).may_process(NOW));
    assert!(!object_in(Compromised).may_protect(NOW));
    assert!(!object_in(Destroyed).may_process(NOW));
}

#[test]
fn dates_that_contradict_each_other_are_refused() {
    let refused = LifeCycle::begin(
        RequestedDates {
            activation: Some(NOW.plus_seconds(10)),
            deactivation: Some(NOW),
            ..RequestedDates::default()
        },
        NOW,
    );
    assert_eq!(
        refused,
        Err(LifeCycleError::DatesOutOfOrder {
            earlier: SettableDate::Activation,
            later: SettableDate::Deactivation
        })
    );
    let mut life =
        fresh(RequestedDates { deactivation: Some(NOW.plus_seconds(5)), ..RequestedDates::default() });
    let before = life.clone();
    assert!(life.set_date(SettableDate::ProtectStop, NOW.plus_seconds(6), NOW).is_err());
    assert_eq!(life, before);
    assert!(life.activate(NOW.plus_seconds(6)).is_err(), "its deactivation date has passed");
    assert_eq!(life, before);
}

#[test]
fn dates_are_fixed_once_they_were_reached() {
    let mut active = object_in(Active);
    assert_eq!(
        active.set_date(SettableDate::Activation, NOW, NOW),
        Err(LifeCycleError::DateIsFixed { date: SettableDate::Activation, state: Active })
    );
    active.set_date(SettableDate::ProtectStop, NOW.plus_seconds(5), NOW).unwrap();
    active.set_date(SettableDate::ProtectStop, NOW.plus_seconds(9), NOW.plus_seconds(4)).unwrap();
    assert!(active.set_date(SettableDate::ProtectStop, NOW.plus_seconds(20), NOW.plus_seconds(9)).is_err());
    active.set_date(SettableDate::Deactivation, NOW.plus_seconds(9), NOW).unwrap();
    assert_eq!(active.state_at(NOW.plus_seconds(9)), Deactivated);
    assert!(active.set_date(SettableDate::Deactivation, NOW.plus_seconds(99), NOW.plus_seconds(9)).is_err());
    assert!(object_in(Destroyed).set_date(SettableDate::Deactivation, NOW, NOW).is_err());
}

#[test]
fn setting_the_activation_date_to_now_activates() {
    let mut life = object_in(PreActive);
    life.set_date(SettableDate::Activation, NOW, NOW).unwrap();
    assert_eq!(life.state_at(NOW), Active);
}

#[test]
fn a_compromise_is_dated_by_who_reports_it() {
    let mut life = object_in(Active);
    life.compromise(Some(UnixSeconds(6)), NOW).unwrap();
    assert_eq!((life.compromised(), life.compromise_occurred()), (Some(NOW), Some(UnixSeconds(6))));
}

#[test]
fn the_archive_gives_back_what_it_took_once() {
    let mut life = object_in(Active);
    life.archive(NOW).unwrap();
    assert_eq!(life.archived(), Some(NOW));
    assert_eq!(life.archive(NOW), Err(LifeCycleError::Archived { archived: true }));
    life.recover(NOW).unwrap();
    assert_eq!(life.recover(NOW), Err(LifeCycleError::Archived { archived: false }));
}

#[test]
fn a_life_survives_its_record() {
    let mut life = object_in(Compromised);
    life.archive(NOW).unwrap();
    let record = serde_json::to_vec(&life).unwrap();
    assert_eq!(serde_json::from_slice::<LifeCycle>(&record).unwrap(), life);
}
