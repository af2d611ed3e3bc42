//! Snapshots of several VMs at one instant.
//!
//! ```text
//! VMs that are off    their parts are made, and nothing starts them while this operation runs
//! VMs that run        all begin -> all prepare -> all freeze -> (are the others still off?) -> all commit
//! ```
//!
//! The first order to commit goes out after the last answer to a freeze, and a VM whose lease is
//! over refuses it ([`GroupOrder`]). After any failure all VMs are told to abandon; what one of
//! them has made by then is removed by its next change, because nobody has it keep its part.

use std::sync::Arc;
use std::time::Duration;

use strongroom_host::orders::{GroupOrder, RequestKind, Task};
use strongroom_host::protocol::{
    GroupAttempt, GroupMember, KnownVolume, MemberVolumes, NewVmSnapshot, OperationKind, OperationOutcome,
    OperationRequest, Problem, SnapshotChange, VmSpec, VolumeFacts,
};
use strongroom_vm::limits::{GROUP_VMS_MAX, GROUP_VOLUMES_MAX};
use tokio::task::JoinSet;

use super::Hostd;
use super::operations::{Outcome, ask_running, do_job, facts_after, is_off, learn, meant_for};
use super::queue::{Failure, Job};
use super::vms::no_such_vm;

/// The longest that guests wait for a snapshot of several VMs, whatever happens to this process.
const LEASE: Duration = Duration::from_secs(5);
/// How long a VM may take to begin: its supervisor may be replaced, and its guest's file systems
/// frozen.
const BEGUN_WITHIN: Duration = Duration::from_secs(600);
/// How long a VM may take for each later order but the last.
const DONE_WITHIN: Duration = Duration::from_secs(120);

/// A VM of the group.
struct Member {
    /// Its part of the operation.
    job: Arc<Job>,
    spec: VmSpec,
    is_off: bool,
}

/// Makes a snapshot of the VMs.
pub async fn snapshot(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    snapshot: &NewVmSnapshot,
    members: Vec<GroupMember>,
) -> Outcome {
    let members = check(hostd, job, snapshot, members)?;
    let made = make(hostd, job, snapshot, &members).await;
    // What was made or left is recorded in the VMs' directories.
    for member in members.iter() {
        learn(hostd, &member.spec).await?;
    }
    let volumes =
        members.iter().zip(made?).map(|(member, volumes)| MemberVolumes { vm: member.spec.id, volumes });
    Ok(Some(OperationOutcome::Group(volumes.collect())))
}

fn check(
    hostd: &Hostd,
    job: &Job,
    snapshot: &NewVmSnapshot,
    members: Vec<GroupMember>,
) -> Result<Arc<Vec<Member>>, Problem> {
    let bad = |message: String| Problem::new("bad_request", message);
    if members.len() > GROUP_VMS_MAX {
        return Err(bad(format!("a snapshot is of at most {GROUP_VMS_MAX} VMs, not of {}", members.len())));
    }
    if members.iter().map(|member| member.spec.disks.len()).sum::<usize>() > GROUP_VOLUMES_MAX {
        return Err(bad(format!("a snapshot is of at most {GROUP_VOLUMES_MAX} volumes")));
    }
    let is_twice = |(at, member): (usize, &GroupMember)| {
        members[..at].iter().any(|other| other.spec.id == member.spec.id)
    };
    if members.iter().enumerate().any(is_twice) || !members.iter().any(|member| member.spec.id == job.vm) {
        return Err(bad("each VM is named once, and the operation's own is among them".to_owned()));
    }
    let member = |member: GroupMember| {
        let GroupMember { spec, generation, grants } = member;
        hostd.check_spec(spec.id, &spec)?;
        spec.check_whole()?;
        let now = hostd.vms.get(spec.id).ok_or_else(|| no_such_vm(spec.id))?;
        let change = SnapshotChange::Prepare { snapshot: snapshot.clone() };
        let kind = OperationKind::ChangeSnapshots { spec: Box::new(spec.clone()), change };
        let request = OperationRequest { operation: job.request.operation, generation, kind, grants };
        let job = Arc::new(job.part(spec.id, request));
        meant_for(&job, &now)?;
        Ok(Member { job, spec, is_off: is_off(&now) })
    };
    members.into_iter().map(member).collect::<Result<Vec<_>, Problem>>().map(Arc::new)
}

/// Makes all parts. Returns the volumes of each VM.
async fn make(
    hostd: &Arc<Hostd>,
    job: &Arc<Job>,
    snapshot: &NewVmSnapshot,
    members: &Arc<Vec<Member>>,
) -> Result<Vec<Vec<VolumeFacts>>, Failure> {
    let off = make_of_those_off(hostd, snapshot, members).await?;
    let supervisors = Supervisors {
        hostd: Arc::clone(hostd),
        members: Arc::clone(members),
        running: members.iter().enumerate().filter(|(_, member)| !member.is_off).map(|(at, _)| at).collect(),
        attempt: GroupAttempt::random(),
        snapshot: snapshot.clone(),
    };
    let are_still_off =
        || members.iter().filter(|member| member.is_off).try_for_each(|member| is_still_off(hostd, member));
    let known = at_one_instant(&supervisors, job.cancelled(), are_still_off).await?;
    let mut volumes = off;
    for (at, known) in supervisors.running.iter().zip(known) {
        volumes[*at] = facts_after(members[*at].spec.clone(), &known).await?;
    }
    Ok(volumes)
}

/// Makes the parts of the VMs that are off. Returns their volumes; none for the others.
async fn make_of_those_off(
    hostd: &Arc<Hostd>,
    snapshot: &NewVmSnapshot,
    members: &[Member],
) -> Result<Vec<Vec<VolumeFacts>>, Failure> {
    let mut jobs = JoinSet::new();
    for (at, member) in members.iter().enumerate().filter(|(_, member)| member.is_off) {
        let change = SnapshotChange::Prepare { snapshot: snapshot.clone() };
        let task = Task::ChangeSnapshots { spec: Box::new(member.spec.clone()), change };
        let (hostd, job) = (Arc::clone(hostd), Arc::clone(&member.job));
        jobs.spawn(async move { (at, do_job(&hostd, &job, task, Vec::new()).await) });
    }
    let mut volumes = vec![Vec::new(); members.len()];
    let mut failed = Ok(());
    while let Some(done) = jobs.join_next().await {
        match done.map_err(|error| Problem::new("internal", error.to_string()))? {
            (at, Ok(made)) => volumes[at] = made,
            (_, Err(failure)) => failed = failed.and(Err(failure)),
        }
    }
    failed.map(|()| volumes)
}

fn is_still_off(hostd: &Hostd, member: &Member) -> Result<(), Problem> {
    let now = hostd.vms.get(member.spec.id).ok_or_else(|| no_such_vm(member.spec.id))?;
    if is_off(&now) {
        return Ok(());
    }
    let message = format!("VM {} was started meanwhile, so there is no snapshot of the group", now.name);
    Err(Problem::new("group_void", message).with_next_step("make it again"))
}

/// The VMs of a group that take orders.
trait Participants: Clone + Send + Sync + 'static {
    /// Their number.
    fn count(&self) -> usize;

    /// The first order.
    fn begin(&self, at: usize) -> GroupOrder;

    /// Has one carry out an order, and returns its volumes.
    fn order(
        &self,
        at: usize,
        order: GroupOrder,
    ) -> impl Future<Output = Result<Vec<KnownVolume>, Problem>> + Send;
}

/// Has all participants make their parts at one instant. Returns the volumes of each.
async fn at_one_instant(
    participants: &impl Participants,
    cancelled: impl Future<Output = ()>,
    check_before_commit: impl FnOnce() -> Result<(), Problem>,
) -> Result<Vec<Vec<KnownVolume>>, Failure> {
    let held = async {
        all(participants, |at| participants.begin(at)).await?;
        all(participants, |_| GroupOrder::Prepare).await?;
        let lease_ms = u64::try_from(LEASE.as_millis()).unwrap_or(u64::MAX);
        all(participants, |_| GroupOrder::Freeze { lease_ms }).await?;
        check_before_commit()
    };
    let held = tokio::select! {
        held = held => held.map_err(Failure::from),
        () = cancelled => Err(Failure::Cancelled),
    };
    let made = match held {
        Ok(()) => all(participants, |_| GroupOrder::Commit).await.map_err(Failure::from),
        Err(failure) => Err(failure),
    };
    if made.is_err()
        && let Err(problem) = all(participants, |_| GroupOrder::Abandon).await
    {
        tracing::warn!("a VM goes on without the group's snapshot when its lease is over: {problem}");
    }
    made
}

/// Sends an order to all, and waits for all answers. Returns them in order, or the first failure.
async fn all(
    participants: &impl Participants,
    order: impl Fn(usize) -> GroupOrder,
) -> Result<Vec<Vec<KnownVolume>>, Problem> {
    let mut asked = JoinSet::new();
    for at in 0..participants.count() {
        let (participants, order) = (participants.clone(), order(at));
        asked.spawn(async move { (at, participants.order(at, order).await) });
    }
    let mut answers = vec![Ok(Vec::new()); participants.count()];
    while let Some(answered) = asked.join_next().await {
        let (at, answer) = answered.map_err(|error| Problem::new("internal", error.to_string()))?;
        answers[at] = answer;
    }
    answers.into_iter().collect()
}

/// The supervisors of the VMs that run.
#[derive(Clone)]
struct Supervisors {
    hostd: Arc<Hostd>,
    members: Arc<Vec<Member>>,
    /// The places of those that run.
    running: Vec<usize>,
    attempt: GroupAttempt,
    snapshot: NewVmSnapshot,
}

impl Participants for Supervisors {
    fn count(&self) -> usize {
        self.running.len()
    }

    fn begin(&self, at: usize) -> GroupOrder {
        let known = self.members[self.running[at]].spec.known_volumes();
        GroupOrder::Begin { snapshot: self.snapshot.clone(), known }
    }

    async fn order(&self, at: usize, order: GroupOrder) -> Result<Vec<KnownVolume>, Problem> {
        let Member { job, spec, .. } = &self.members[self.running[at]];
        let within = match &order {
            GroupOrder::Begin { .. } => Some(BEGUN_WITHIN),
            GroupOrder::Prepare | GroupOrder::Freeze { .. } | GroupOrder::Abandon => Some(DONE_WITHIN),
            // Each of its volumes has a deadline of its own.
            GroupOrder::Commit => None,
        };
        let begins = matches!(order, GroupOrder::Begin { .. });
        let kind = RequestKind::SnapshotGroup { attempt: self.attempt, order };
        let asked = async {
            match begins {
                true => ask_running(&self.hostd, job, kind).await,
                // Another supervisor has no part in it.
                false => self.hostd.vms.link(spec.id)?.ask_of_volumes(kind, &[]).await,
            }
        };
        let answered = match within {
            Some(within) => tokio::time::timeout(within, asked).await,
            None => Ok(asked.await),
        };
        let silent =
            || Problem::new("supervisor", "its supervisor does not answer").with_next_step("try it again");
        answered.unwrap_or_else(|_| Err(silent())).map_err(|problem| {
            let message = format!("VM {}: {}", spec.name, problem.message);
            Problem { message, ..problem }
        })
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;

    /// A participant, an order, and whether the order is done.
    type Note = (usize, &'static str, bool);

    /// Participants of which one fails an order. They note what they are told and have done.
    #[derive(Clone)]
    struct Noted {
        fails: Option<(usize, &'static str)>,
        notes: Arc<Mutex<Vec<Note>>>,
    }

    fn name(order: &GroupOrder) -> &'static str {
        match order {
            GroupOrder::Begin { .. } => "begin",
            GroupOrder::Prepare => "prepare",
            GroupOrder::Freeze { .. } => "freeze",
            GroupOrder::Commit => "commit",
            GroupOrder::Abandon => "abandon",
        }
    }

    impl Participants for Noted {
        fn count(&self) -> usize {
            3
        }

        fn begin(&self, _: usize) -> GroupOrder {
            let id = strongroom_types::SnapshotId::random();
            let snapshot = NewVmSnapshot::of_disks(id, "s".parse().unwrap());
            GroupOrder::Begin { snapshot, known: Vec::new() }
        }

        async fn order(&self, at: usize, order: GroupOrder) -> Result<Vec<KnownVolume>, Problem> {
            let order = name(&order);
            self.notes.lock().push((at, order, false));
            // The first of them is the last to be done.
            for _ in at..3 {
                tokio::task::yield_now().await;
            }
            self.notes.lock().push((at, order, true));
            match self.fails {
                Some(fails) if fails == (at, order) => Err(Problem::new("group_void", "its lease is over")),
                _ => Ok(Vec::new()),
            }
        }
    }

    async fn run(fails: Option<(usize, &'static str)>, off: bool) -> (bool, Vec<Note>) {
        let participants = Noted { fails, notes: Arc::default() };
        let check = || if off { Ok(()) } else { Err(Problem::new("group_void", "it was started")) };
        let made = at_one_instant(&participants, std::future::pending(), check).await;
        let notes = participants.notes.lock().clone();
        (made.is_ok(), notes)
    }

    fn first(notes: &[Note], order: &str) -> Option<usize> {
        notes.iter().position(|(_, noted, done)| *noted == order && !done)
    }

    fn done(notes: &[Note], order: &str) -> usize {
        notes.iter().filter(|(_, noted, done)| *noted == order && *done).count()
    }

    #[tokio::test]
    async fn no_commit_is_ordered_before_the_last_answer_to_a_freeze() {
        let (is_made, notes) = run(None, true).await;
        assert!(is_made);
        let sequence = ["begin", "prepare", "freeze", "commit"];
        for pair in sequence.windows(2) {
            let next = first(&notes, pair[1]).unwrap();
            assert_eq!(done(&notes[..next], pair[0]), 3, "{pair:?}: {notes:?}");
        }
        assert_eq!(first(&notes, "abandon"), None);
    }

    #[tokio::test]
    async fn after_any_failure_nobody_commits_and_everybody_abandons() {
        for order in ["begin", "prepare", "freeze", "commit"] {
            for at in 0..3 {
                let (is_made, notes) = run(Some((at, order)), true).await;
                assert!(!is_made, "{order} of {at}");
                assert!(order == "commit" || first(&notes, "commit").is_none(), "{order} of {at}: {notes:?}");
                assert_eq!(done(&notes, "abandon"), 3, "{order} of {at}");
            }
        }
        let (is_made, notes) = run(None, false).await;
        assert!(!is_made && first(&notes, "commit").is_none(), "a VM was started: {notes:?}");
    }

    #[tokio::test]
    async fn a_cancelled_group_is_abandoned() {
        let participants = Noted { fails: None, notes: Arc::default() };
        let cancelled = async {
            while first(&participants.notes.lock(), "prepare").is_none() {
                tokio::task::yield_now().await;
            }
        };
        let made = at_one_instant(&participants, cancelled, || Ok(())).await;
        assert!(matches!(made, Err(Failure::Cancelled)), "{made:?}");
        let notes = participants.notes.lock().clone();
        assert_eq!(first(&notes, "commit"), None);
        assert_eq!(done(&notes, "abandon"), 3);
    }
}
