use super::*;

const RING: u16 = 8;

fn area() -> Arc<InFlightArea> {
    Arc::new(InFlightArea::create(2, 16).unwrap())
}

fn recover(area: &Arc<InFlightArea>, used: u16) -> Recovered {
    InFlight::recover(area, 1, RING, used).unwrap()
}

/// The same area, as a successor maps it.
fn again(area: &InFlightArea) -> Arc<InFlightArea> {
    Arc::new(InFlightArea::map(area.description(), area.file().try_clone().unwrap()).unwrap())
}

#[test]
fn what_was_taken_and_not_answered_comes_back_in_order() {
    let area = area();
    let Recovered { mut in_flight, heads, next_available } = recover(&area, 65_534);
    assert_eq!((heads.len(), next_available), (0, None));
    for head in [5, 0, 3, 7] {
        in_flight.take(head).unwrap();
    }
    in_flight.put_used(0).unwrap();
    in_flight.put_used(7).unwrap();
    in_flight.publish(0, shown).unwrap();
    let found = recover(&again(&area), 0);
    assert_eq!((found.heads, found.next_available), (vec![5, 3], Some(2)));
    let mut in_flight = found.in_flight;
    in_flight.take(0).unwrap();
    assert_eq!(recover(&again(&area), 0).heads, [5, 3, 0]);
    assert!(matches!(in_flight.take(0), Err(InFlightError::Contradiction(_))));
}

/// Publishing succeeds.
fn shown() -> Result<(), InFlightError> {
    Ok(())
}

#[test]
fn a_request_is_in_flight_until_the_driver_sees_its_answer() {
    let area = area();
    let mut in_flight = recover(&area, 10).in_flight;
    for head in [1, 2] {
        in_flight.take(head).unwrap();
    }
    in_flight.put_used(2).unwrap();
    // Killed before the driver's index is stored, or when storing fails: the driver waits for both.
    let refused = in_flight.publish(11, || {
        assert_eq!(recover(&again(&area), 10).heads, [1, 2], "before the driver sees the answer");
        Err(InFlightError::NotSealed)
    });
    assert_eq!(refused, Err(InFlightError::NotSealed));
    assert_eq!(recover(&again(&area), 10).heads, [1, 2], "the driver did not see the answer");
    in_flight.publish(11, shown).unwrap();
    assert_eq!(recover(&again(&area), 11).heads, [1], "the driver has seen the answer");
}

#[test]
fn a_kill_between_any_two_stores_neither_loses_nor_repeats() {
    // The steps of `publish`, one by one: a predecessor was killed after each.
    for steps in 0..4 {
        let area = area();
        let mut in_flight = recover(&area, 10).in_flight;
        for head in [1, 2, 4] {
            in_flight.take(head).unwrap();
        }
        in_flight.put_used(4).unwrap();
        in_flight.publish(11, shown).unwrap();
        in_flight.put_used(2).unwrap();
        in_flight.put_used(1).unwrap();
        // Step 1 is the ring's own index, which the driver sees.
        let used = if steps >= 1 { 13 } else { 11 };
        if steps >= 2 {
            in_flight.set_taken(2, false).unwrap();
        }
        if steps >= 3 {
            in_flight.set_taken(1, false).unwrap();
        }
        let found = recover(&again(&area), used);
        let expected: &[u16] = if steps >= 1 { &[] } else { &[1, 2] };
        assert_eq!((&found.heads[..], found.next_available), (expected, Some(13)), "after {steps} steps");
        // The successor of one that is killed during recovery finds the same.
        assert_eq!(recover(&again(&area), used).heads, expected);
    }
}

#[test]
fn an_area_that_lies_is_refused_and_never_read_beyond() {
    let area = area();
    let in_flight = recover(&area, 0).in_flight;
    let lies = |used| InFlight::recover(&area, 1, RING, used).map(|_| ()).unwrap_err();
    assert!(matches!(lies(9), InFlightError::Contradiction(_)));
    in_flight.store_u16(LAST_BATCH_AT, 9).unwrap();
    assert!(matches!(lies(1), InFlightError::Contradiction(_)));
    in_flight.store_u16(VERSION_AT, 2).unwrap();
    assert_eq!(lies(0), InFlightError::Version(2));
    for (queue, size) in [(2, 8), (0, 32)] {
        assert!(InFlight::recover(&area, queue, size, 0).is_err());
    }
}

#[test]
fn areas_are_checked_before_they_are_mapped() {
    assert!(InFlightArea::create(0, 16).is_err() && InFlightArea::create(17, 16).is_err());
    assert!(InFlightArea::create(1, 0).is_err() && InFlightArea::create(1, 2048).is_err());
    let area = area();
    let map = |change: &dyn Fn(&mut InFlightDescription)| {
        let mut description = area.description();
        change(&mut description);
        InFlightArea::map(description, area.file().try_clone().unwrap()).map(|_| ())
    };
    assert!(map(&|_| {}).is_ok());
    assert!(map(&|description| description.bytes -= NOTE_BYTES).is_ok());
    assert!(map(&|description| description.bytes += 4096).is_err());
    assert!(map(&|description| description.bytes = u64::MAX).is_err());
    assert!(map(&|description| description.offset = 4096).is_err());
    assert!(map(&|description| description.queue_size = 1024).is_err());
    let unsealed = memfd_create("area", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&unsealed, 1 << 16).unwrap();
    assert_eq!(InFlightArea::map(area.description(), unsealed).map(|_| ()), Err(InFlightError::NotSealed));
}

#[test]
fn the_note_stays_with_the_area() {
    let area = area();
    assert_eq!(area.note(), Ok(None));
    let note = Note { run: 7, write_through: true };
    area.set_note(note).unwrap();
    assert_eq!(again(&area).note(), Ok(Some(note)));
}
