use super::*;
use crate::file::known::Loaded;
use crate::file::log::format::{LOG_BYTES_MIN, LogEntry, content_check};
use strongroom_types::LayerId;

/// A log whose segments hold three blocks of content.
fn state() -> State {
    let mut state = State::new(LOG_BYTES_MIN, 1 << 20, 1);
    state.known.insert(&Loaded::alone(0, [0; 4]), 0);
    state
}

fn waker() -> Arc<Waker> {
    Arc::new(Waker::new().unwrap())
}

fn data(block: u64) -> LogEntry {
    LogEntry::Data { block, check: content_check(&[0; 4096], 1, block) }
}

/// Appends one record.
fn append(state: &mut State, entries: &[LogEntry]) -> Reservation {
    let contents = entries.iter().filter(|entry| matches!(entry, LogEntry::Data { .. })).count() as u32;
    for entry in entries {
        if let LogEntry::Data { block, .. } = entry {
            assert_eq!(state.route(extent_of(*block, block + 1), false), Ok(Route::Log));
        }
    }
    let reservation = state.reserve(contents, &waker()).unwrap();
    assert_eq!(reservation.blocks, contents + 1);
    state.commit(&reservation, entries);
    reservation
}

fn live(state: &State, block: u64) -> Option<Live> {
    state.index.get(&block).and_then(|entry| entry.live)
}

fn index_of(state: &State) -> Option<Index> {
    state.index(&Superblock {
        layer: LayerId::from_bytes([1; 16]),
        log: [2; 16],
        generation: 1,
        tail: 1,
        next: None,
    })
}

/// One cycle over everything.
fn destage(state: &mut State) {
    let (segments, planned) = state.plan(u32::MAX, true).unwrap();
    state.trim(&segments, &planned);
}

#[test]
fn a_block_goes_through_the_log_until_it_is_trimmed() {
    let mut state = state();
    append(&mut state, &[data(7)]);
    assert!(live(&state, 7).is_some());
    // An overwrite goes through the log too, and a cycle planned before it does not end its entry.
    let (segments, planned) = state.plan(u32::MAX, true).unwrap();
    append(&mut state, &[data(7)]);
    state.trim(&segments, &planned);
    assert_eq!(state.route(extent_of(7, 8), false), Ok(Route::Log));
    state.give_up(extent_of(7, 8));
    destage(&mut state);
    assert!(state.is_empty() && state.entries() == 0);
    assert_eq!(state.route(extent_of(7, 8), false), Ok(Route::InPlace));
    assert_eq!(state.route(extent_of(6, 8), false), Ok(Route::Log), "its neighbour was never written");
}

#[test]
fn the_later_record_wins_whichever_arrives_first() {
    let mut state = state();
    let blocks = extent_of(3, 4);
    assert_eq!((state.route(blocks, false), state.route(blocks, false)), (Ok(Route::Log), Ok(Route::Log)));
    let (first, second) = (state.reserve(1, &waker()).unwrap(), state.reserve(1, &waker()).unwrap());
    state.commit(&second, &[data(3)]);
    state.commit(&first, &[data(3)]);
    assert_eq!(live(&state, 3).map(|live| live.version), Some(Version::new(second.sequence, 0)));
}

#[test]
fn a_block_that_became_nothing_is_so_also_where_an_older_content_may_still_land() {
    let mut state = state();
    append(&mut state, &[data(5)]);
    let (segments, planned) = state.plan(u32::MAX, true).unwrap();
    append(&mut state, &[LogEntry::Nothing { first: 5, count: 1 }]);
    state.trim(&segments, &planned);
    assert_eq!(live(&state, 5).map(|live| live.at), Some(None), "its punch is still to come");
    let (_, planned) = state.plan(u32::MAX, true).unwrap();
    assert_eq!(planned.len(), 1);
    // Recovery after a crash gives the same result, though the content's record is behind the tail.
    let mut found = State::new(LOG_BYTES_MIN, 1 << 20, 1);
    found.recover(0, 9, &[(0, LogEntry::Nothing { first: 5, count: 1 }, 0)]);
    assert_eq!(live(&found, 5).map(|live| live.at), Some(None));
}

#[test]
fn what_failed_stays_pending_until_the_tail_has_passed_it() {
    let mut state = state();
    assert_eq!(state.route(extent_of(2, 3), false), Ok(Route::Log));
    let reservation = state.reserve(1, &waker()).unwrap();
    state.fail(&reservation, &[data(2)]);
    assert!(live(&state, 2).is_none());
    assert_eq!(
        state.route(extent_of(2, 3), false),
        Ok(Route::Log),
        "a crash may find the record that failed"
    );
    state.give_up(extent_of(2, 3));
    destage(&mut state);
    assert_eq!(state.entries(), 0);
}

#[test]
fn a_full_log_gives_no_room_until_a_segment_is_free_and_unread() {
    let (mut state, waker) = (state(), waker());
    for number in 0..SEGMENTS as u64 {
        append(&mut state, &[data(3 * number), data(3 * number + 1), data(3 * number + 2)]);
    }
    assert!(state.reserve(1, &waker).is_none());
    let mut pinned = Vec::new();
    state.pin(extent_of(0, 1), &mut pinned);
    // The oldest segment alone: the next is not touched.
    let (segments, planned) = state.plan(4, false).unwrap();
    assert_eq!((segments.len(), planned.len()), (1, 3));
    assert_eq!(state.tail_after(1), 2);
    state.trim(&segments, &planned);
    assert!(state.reserve(1, &waker).is_none(), "it is being read");
    state.release(pinned[0].content.unwrap().0, 1);
    assert!(state.reserve(1, &waker).is_some());
}

#[test]
fn what_a_failed_record_would_make_nothing_goes_through_the_log_until_it_is_trimmed() {
    let mut state = state();
    append(&mut state, &[data(4)]);
    let (segments, planned) = state.plan(u32::MAX, true).unwrap();
    let failed = state.reserve(0, &waker()).unwrap();
    state.fail(&failed, &[LogEntry::Nothing { first: 4, count: 1 }]);
    // The content is in the layer by now. If it were rewritten in place, a crash that finds the
    // record would turn it into "nothing here".
    state.trim(&segments, &planned);
    assert_eq!(state.route(extent_of(4, 5), false), Ok(Route::Log));
    state.give_up(extent_of(4, 5));
    destage(&mut state);
    assert_eq!(state.route(extent_of(4, 5), false), Ok(Route::InPlace));
}

#[test]
fn a_segment_whose_record_nobody_hears_of_is_not_used_again() {
    let mut state = state();
    assert_eq!(state.route(extent_of(1, 2), false), Ok(Route::Log));
    let lost = state.reserve(1, &waker()).unwrap();
    state.lose(&lost, &[data(1)]);
    destage(&mut state);
    assert!(state.is_empty() && state.entries() == 0);
    for number in 0..SEGMENTS as u64 - 1 {
        let taken = append(&mut state, &[data(number), data(number + 100), data(number + 200)]);
        assert_ne!(taken.segment, lost.segment);
    }
    assert!(state.reserve(1, &waker()).is_none());
}

#[test]
fn a_successor_with_the_index_knows_what_its_predecessor_knew() {
    let mut state = state();
    for number in 0..5 {
        append(&mut state, &[data(number), data(number + 1), data(100 - number)]);
    }
    let (segments, planned) = state.plan(4, false).unwrap();
    state.trim(&segments, &planned);
    append(&mut state, &[LogEntry::Nothing { first: 2, count: 2 }]);
    append(&mut state, &[data(98)]);
    let index = index_of(&state).unwrap();
    assert!(index.blocks.is_sorted_by_key(|held| held.block) && index.segments.len() > 1);
    let mut successor = State::new(LOG_BYTES_MIN, 1 << 20, 1);
    successor.take_over(index.clone());
    assert_eq!(index_of(&successor), Some(index));
    for block in 0..256 {
        assert_eq!(live(&successor, block), live(&state, block), "block {block}");
    }
    // Its records are later ones, in a segment of their own.
    successor.known.insert(&Loaded::alone(0, [0; 4]), 0);
    let before = successor.segments_in_use();
    append(&mut successor, &[data(4)]);
    assert!(live(&successor, 4).unwrap().version > live(&state, 4).unwrap().version);
    assert_eq!(successor.segments_in_use(), before + 1);
    destage(&mut successor);
    assert_eq!(successor.entries(), 0);
}

#[test]
fn there_is_no_index_while_the_end_of_a_record_is_unknown() {
    let mut state = state();
    append(&mut state, &[data(9)]);
    let (pending, failed) = (extent_of(1, 2), extent_of(9, 10));
    assert_eq!(state.route(pending, false), Ok(Route::Log));
    assert_eq!(index_of(&state), None, "a write that is to come");
    state.give_up(pending);
    assert!(index_of(&state).is_some());
    assert_eq!(state.route(failed, false), Ok(Route::Log));
    let reservation = state.reserve(1, &waker()).unwrap();
    assert_eq!(index_of(&state), None, "one that is under way");
    state.fail(&reservation, &[data(9)]);
    assert_eq!(index_of(&state), None, "one that may be found or not");
    destage(&mut state);
    assert!(index_of(&state).is_some());
}

#[test]
fn a_held_log_is_emptied_only_for_a_write_that_waits() {
    let mut state = state();
    state.is_held = true;
    append(&mut state, &[data(1)]);
    assert!(!state.allows_a_cycle());
    while state.reserve(3, &waker()).is_some() {}
    assert!(state.allows_a_cycle(), "a write waits for room");
    state.wake_waiting();
    assert!(!state.allows_a_cycle());
    state.is_held = false;
    assert!(state.allows_a_cycle());
}

/// A log of which only the first segment was written.
fn new_state() -> State {
    let mut state = state();
    let first_hole = state.offset(1, 0);
    state.note_written_until(first_hole);
    state
}

#[test]
fn two_new_segments_are_kept_filled_ahead_of_the_records() {
    let mut state = new_state();
    assert_eq!(state.begin_filling(), None, "nothing is appended to it");
    append(&mut state, &[data(0), data(1), data(2)]);
    for number in [1, 2] {
        assert!(state.lacks_filled_segments());
        assert_eq!(state.begin_filling(), Some(number));
        state.end_filling(number, FillingEnd::Filled);
    }
    assert_eq!(state.begin_filling(), None);
    append(&mut state, &[data(3), data(4), data(5)]);
    assert_eq!(live(&state, 3).map(|live| live.segment), Some(1));
    assert_eq!(state.begin_filling(), Some(3));
}

#[test]
fn a_segment_that_is_being_filled_gets_no_record() {
    let mut state = new_state();
    append(&mut state, &[data(0), data(1), data(2)]);
    assert_eq!(state.begin_filling(), Some(1));
    assert_eq!(state.segments_in_use(), 1);
    for segment in 2..SEGMENTS {
        let block = segment as u64 * 3;
        append(&mut state, &[data(block), data(block + 1), data(block + 2)]);
        assert_eq!(live(&state, block).map(|live| live.segment), Some(segment));
    }
    let waker = waker();
    assert!(state.reserve(3, &waker).is_none());
    state.end_filling(1, FillingEnd::Filled);
    assert!(state.waiting.is_empty(), "the writer was woken");
    assert_eq!(state.reserve(3, &waker).map(|reservation| reservation.segment), Some(1));
}

#[test]
fn a_filling_that_was_halted_is_repeated_and_one_that_failed_is_not() {
    let mut state = new_state();
    append(&mut state, &[data(0)]);
    assert_eq!(state.begin_filling(), Some(1));
    state.end_filling(1, FillingEnd::Halted);
    assert_eq!(state.begin_filling(), Some(1));
    state.is_held = true;
    state.end_filling(1, FillingEnd::Halted);
    assert_eq!(state.begin_filling(), None, "its disk is left alone while a snapshot is made");
    state.is_held = false;
    assert_eq!(state.begin_filling(), Some(1));
    state.end_filling(1, FillingEnd::Failed);
    assert_eq!(state.begin_filling(), None);
}
