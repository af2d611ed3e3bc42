//! All states that an attempt can reach: two hosts, an inventory, messages that are lost, late or
//! repeated, and every process killed between any two steps.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use super::*;

/// The attempt of the model. An earlier start of the VM was 1.
const ATTEMPT: VmGeneration = VmGeneration(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    /// Move the guest out.
    Send,
    /// Make room for the guest.
    Receive,
    /// Open the volumes.
    Open,
    /// The guest goes on at the target.
    GoOn,
    /// What is left at the source ends.
    Leave,
    /// The attempt ends at the target.
    End,
    /// The guest goes on at the source.
    Resume,
    // What the hosts say.
    Released,
    Ready,
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Guest {
    /// There is no process of it.
    None,
    /// Its memory is not complete.
    Loading,
    /// Its memory is complete, and it stands still.
    Stopped,
    Runs,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Host {
    place: Option<Place>,
    guest: Guest,
    /// Its volumes are open.
    open: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    decision: Decision,
    source: Host,
    target: Host,
    /// Writes of the target cannot land any more.
    fenced: bool,
    /// All that were ever sent: each may be delivered at any time, any number of times, or never.
    sent: BTreeSet<Message>,
    /// A guest's process was killed, so that its memory may be lost.
    killed: bool,
    /// The guest has run at the source since the target has its memory.
    stale: bool,
}

/// A rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The source says that it has released the volumes before that is recorded.
    ReleasesUnrecorded,
    /// The target opens the volumes as soon as it has the memory.
    OpensEarly,
    /// The source goes on without an answer of a target that may have opened the volumes.
    AbortsUnheard,
    /// The target goes on when it is ready.
    RunsUndecided,
    /// The target forgets that an attempt is over.
    ForgetsEnd,
    /// The next supervisor of the source goes on, whatever is recorded.
    ResumesUnasked,
}

impl World {
    fn new() -> Self {
        Self {
            decision: Decision::Prepared,
            source: Host { place: None, guest: Guest::Runs, open: true },
            target: Host { place: None, guest: Guest::None, open: false },
            fenced: false,
            sent: BTreeSet::new(),
            killed: false,
            stale: false,
        }
    }

    fn decide(&self, heard: Heard, broken: Broken) -> Self {
        let decision = match (self.decision, heard, broken) {
            (Decision::HandedOver, Heard::Abandon, Broken::AbortsUnheard) => Decision::Aborted,
            _ => self.decision.after(heard),
        };
        Self { decision, ..self.clone() }
    }

    fn says(mut self, message: Message) -> Self {
        self.sent.insert(message);
        self
    }

    /// What the control plane orders: its orders follow from the decision alone, so a control plane
    /// that is killed orders the same.
    fn orders(&self) -> &'static [Message] {
        match self.decision {
            Decision::Prepared => &[Message::Receive, Message::Send],
            Decision::HandedOver => &[Message::Open],
            Decision::Committed => &[Message::GoOn, Message::Leave],
            Decision::Aborting => &[Message::End],
            Decision::Aborted => &[Message::Resume, Message::End],
        }
    }

    fn deliver(&self, message: Message, broken: Broken) -> Option<Self> {
        let mut next = self.clone();
        match message {
            Message::Send => {
                // The memory goes to a target that has made room. Its end is a step of its own.
                let may = record(&mut Some(Place::Leaving), self.source.place).is_ok();
                if !may || self.source.guest != Guest::Runs || self.target.guest != Guest::Loading {
                    return None;
                }
                next.source.guest = Guest::Stopped;
            }
            Message::Receive => {
                if self.target.guest != Guest::None {
                    return None;
                }
                next.target.place = recorded(Place::Coming, self.target.place)?;
                next.target.guest = Guest::Loading;
            }
            Message::Open => {
                let may = self.target.place == Some(Place::Coming);
                if !may || self.target.guest != Guest::Stopped || self.fenced {
                    return None;
                }
                next.target.open = true;
                return Some(next.says(Message::Ready));
            }
            Message::GoOn => {
                next.target.place = recorded(Place::Here, self.target.place)?;
                if self.target.guest == Guest::Stopped && self.target.open {
                    next.target.guest = Guest::Runs;
                }
            }
            Message::Leave => {
                next.source.place = recorded(Place::Left, self.source.place)?;
                (next.source.guest, next.source.open) = (Guest::None, false);
            }
            Message::End => {
                // Recorded first, so that no order that is late opens the volumes after they were
                // closed.
                if broken != Broken::ForgetsEnd {
                    next.target.place = recorded(Place::Left, self.target.place)?;
                }
                (next.target.guest, next.target.open) = (Guest::None, false);
                return Some(next.says(Message::Over));
            }
            Message::Resume => {
                next.source.place = recorded(Place::Here, self.source.place)?;
                next.source.open = self.source.guest != Guest::None;
                if self.source.guest == Guest::Stopped {
                    next.source.guest = Guest::Runs;
                }
            }
            Message::Released => return Some(self.decide(Heard::Released, broken)),
            Message::Ready => return Some(self.decide(Heard::Ready, broken)),
            Message::Over => return Some(self.decide(Heard::TargetOver, broken)),
        }
        Some(next)
    }

    /// What a host does by itself.
    fn own_steps(&self, broken: Broken) -> Vec<Self> {
        let mut steps = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            steps.push(next);
        };
        let is_leaving = self.source.place == Some(Place::Leaving);
        let has_stopped = self.source.guest == Guest::Stopped;
        if has_stopped && !is_leaving && self.source.place.is_none() && self.source.open {
            // The way is broken, or takes too long.
            step(&|next| next.source.guest = Guest::Runs);
            step(&|next| {
                next.source.place = recorded(Place::Leaving, self.source.place).unwrap();
            });
            if broken == Broken::ReleasesUnrecorded {
                step(&|next| {
                    next.sent.insert(Message::Released);
                });
            }
        }
        if has_stopped && is_leaving && self.source.open {
            step(&|next| next.source.open = false);
        }
        if has_stopped && is_leaving && !self.source.open {
            step(&|next| {
                next.sent.insert(Message::Released);
            });
        }
        if has_stopped && self.target.guest == Guest::Loading {
            step(&|next| (next.target.guest, next.stale) = (Guest::Stopped, false));
        }
        if self.target.guest == Guest::Stopped && broken == Broken::OpensEarly && !self.target.open {
            step(&|next| next.target.open = true);
        }
        if self.target.guest == Guest::Stopped && self.target.open && broken == Broken::RunsUndecided {
            step(&|next| next.target.guest = Guest::Runs);
        }
        // A next supervisor of the source: it serves the volumes, unless the VM is leaving.
        let may_serve =
            broken == Broken::ResumesUnasked || !(is_leaving || self.source.place == Some(Place::Left));
        if self.source.guest != Guest::None && !self.source.open && may_serve {
            step(&|next| (next.source.open, next.source.guest) = (true, Guest::Runs));
        }
        if self.target.place == Some(Place::Here) && self.target.guest == Guest::Stopped && !self.fenced {
            step(&|next| (next.target.open, next.target.guest) = (true, Guest::Runs));
        }
        steps
    }

    /// Somebody cancels, fences the target, or kills a process.
    fn harm(&self, broken: Broken) -> Vec<Self> {
        let mut harmed = vec![self.decide(Heard::Abandon, broken)];
        if self.decision == Decision::Aborting {
            let fenced = Self { fenced: true, ..self.clone() };
            harmed.push(fenced.decide(Heard::TargetOver, broken));
        }
        for at_source in [true, false] {
            let host = |world: &mut Self, change: &dyn Fn(&mut Host)| {
                change(if at_source { &mut world.source } else { &mut world.target });
            };
            // QEMU.
            let mut next = self.clone();
            host(&mut next, &|host| host.guest = Guest::None);
            next.killed = true;
            harmed.push(next);
            // The supervisor, with the workers. QEMU waits for its disks.
            let mut next = self.clone();
            host(&mut next, &|host| host.open = false);
            harmed.push(next);
        }
        harmed
    }

    fn next(&self, broken: Broken) -> Vec<Self> {
        let ordered = self.orders().iter().map(|message| self.clone().says(*message));
        let delivered = self.sent.iter().filter_map(|message| self.deliver(*message, broken));
        let next = ordered.chain(delivered).chain(self.own_steps(broken)).chain(self.harm(broken));
        next.map(World::noting_staleness).collect()
    }

    fn noting_staleness(mut self) -> Self {
        self.stale |= self.source.guest == Guest::Runs && self.target.guest == Guest::Stopped;
        self
    }

    /// What must not be in any state.
    fn is_wrong(&self) -> Option<&'static str> {
        let target_writes = self.target.open && !self.fenced;
        if self.source.open && target_writes {
            return Some("both have the volumes");
        }
        let source_runs = self.source.guest == Guest::Runs && self.source.open;
        let target_runs = self.target.guest == Guest::Runs && target_writes;
        if source_runs && matches!(self.decision, Decision::Committed) {
            return Some("the source runs what is the target's");
        }
        if target_runs && self.decision != Decision::Committed {
            return Some("the target runs undecided");
        }
        if target_runs && self.stale {
            return Some("the target runs with a memory that the source has gone on from");
        }
        if self.target.open && !self.decision.lets_target_open() && !self.fenced {
            return Some("the target has the volumes, and nobody knows");
        }
        None
    }

    /// Whether it is over: one host runs the VM, or would start it and the other would not.
    fn is_over(&self) -> bool {
        match self.decision {
            Decision::Committed => {
                let runs = self.target.guest == Guest::Runs && self.target.open;
                self.target.place == Some(Place::Here)
                    && self.source.place == Some(Place::Left)
                    && (runs || self.killed)
            }
            Decision::Aborted => {
                let runs = self.source.guest == Guest::Runs && self.source.open;
                self.source.place == Some(Place::Here) && !self.target.open && (runs || self.killed)
            }
            Decision::Prepared | Decision::HandedOver | Decision::Aborting => false,
        }
    }
}

fn record(next: &mut Option<Place>, known: Option<Place>) -> Result<(), NotRecorded> {
    let stay = |place| Stay { generation: ATTEMPT, place };
    next.map_or(Ok(()), |next| stay(next).follows(known.map(stay)))
}

/// The place after an order; `None` if it is refused.
#[allow(clippy::option_option, reason = "a host that records nothing yet, and one that refuses")]
fn recorded(next: Place, known: Option<Place>) -> Option<Option<Place>> {
    record(&mut Some(next), known).ok().map(|()| Some(next))
}

/// All states that can be reached, with the ones that follow from each.
fn walk(broken: Broken) -> Result<HashMap<World, Vec<World>>, (&'static str, World)> {
    let mut reached = HashMap::new();
    let mut waiting = VecDeque::from([World::new()]);
    while let Some(world) = waiting.pop_front() {
        if reached.contains_key(&world) {
            continue;
        }
        if let Some(wrong) = world.is_wrong() {
            return Err((wrong, world));
        }
        let next = world.next(broken);
        waiting.extend(next.iter().filter(|next| !reached.contains_key(*next)).cloned());
        reached.insert(world, next);
    }
    Ok(reached)
}

#[test]
fn at_most_one_host_runs_a_vm_that_moves_and_from_every_state_one_can() {
    let reached = walk(Broken::Nothing).unwrap_or_else(|(wrong, world)| panic!("{wrong}: {world:#?}"));
    assert!(reached.len() > 1000, "{} states", reached.len());
    // Both ends are reached without any harm.
    let ends: HashSet<Decision> =
        reached.keys().filter(|world| world.is_over() && !world.killed).map(|world| world.decision).collect();
    assert_eq!(ends, HashSet::from([Decision::Committed, Decision::Aborted]));
    // From which states an end is reached, backwards.
    let mut before: HashMap<&World, Vec<&World>> = HashMap::new();
    for (world, next) in &reached {
        for next in next {
            before.entry(next).or_default().push(world);
        }
    }
    let mut can_end: HashSet<&World> = reached.keys().filter(|world| world.is_over()).collect();
    let mut waiting: Vec<&World> = can_end.iter().copied().collect();
    while let Some(world) = waiting.pop() {
        for earlier in before.get(world).into_iter().flatten().copied() {
            if can_end.insert(earlier) {
                waiting.push(earlier);
            }
        }
    }
    let stuck = reached.keys().find(|world| !can_end.contains(world));
    assert!(stuck.is_none(), "{stuck:#?}");
}

#[test]
fn the_model_finds_each_rule_that_is_broken() {
    for broken in [
        Broken::ReleasesUnrecorded,
        Broken::OpensEarly,
        Broken::AbortsUnheard,
        Broken::RunsUndecided,
        Broken::ForgetsEnd,
        Broken::ResumesUnasked,
    ] {
        assert!(walk(broken).is_err(), "{broken:?} is not found");
    }
}

#[test]
fn a_decision_never_goes_back() {
    use Decision::{Aborted, Aborting, Committed, HandedOver, Prepared};
    let all = [Heard::Released, Heard::Ready, Heard::Abandon, Heard::TargetOver];
    for decision in [Prepared, HandedOver, Committed, Aborting, Aborted] {
        for heard in all {
            assert!(decision.after(heard) >= decision, "{decision:?} {heard:?}");
            assert!(!decision.is_final() || decision.after(heard) == decision);
        }
    }
    let committed = Prepared.after(Heard::Released).after(Heard::Ready);
    assert_eq!(committed, Committed);
    // What comes in another order has no effect.
    assert_eq!(Prepared.after(Heard::Ready), Prepared);
    assert_eq!(Prepared.after(Heard::Abandon).after(Heard::Released), Aborted);
    assert_eq!(Prepared.after(Heard::Released).after(Heard::Abandon).after(Heard::Ready), Aborting);
}

#[test]
fn a_host_records_the_end_of_an_attempt_once_and_nothing_that_is_late() {
    let stay = |generation, place| Stay { generation: VmGeneration(generation), place };
    let (left, here) = (stay(3, Place::Left), stay(3, Place::Here));
    let (leaving, coming) = (stay(3, Place::Leaving), stay(3, Place::Coming));
    for first in [left, here, leaving, coming] {
        first.follows(None).unwrap();
        first.follows(Some(first)).unwrap();
        first.follows(Some(stay(2, Place::Left))).unwrap();
        first.follows(Some(stay(2, Place::Here))).unwrap();
        assert!(matches!(first.follows(Some(stay(4, Place::Here))), Err(NotRecorded::Late { .. })));
    }
    for open in [leaving, coming] {
        left.follows(Some(open)).unwrap();
        here.follows(Some(open)).unwrap();
        // The attempt is over.
        open.follows(Some(left)).unwrap_err();
        open.follows(Some(here)).unwrap_err();
        for next in [Place::Leaving, Place::Coming] {
            let refused = stay(4, next).follows(Some(open)).unwrap_err();
            assert_eq!(refused, NotRecorded::Unsettled { known: VmGeneration(3) });
        }
        stay(4, Place::Here).follows(Some(open)).unwrap();
        stay(4, Place::Left).follows(Some(open)).unwrap();
    }
    left.follows(Some(here)).unwrap_err();
    here.follows(Some(left)).unwrap_err();
}
