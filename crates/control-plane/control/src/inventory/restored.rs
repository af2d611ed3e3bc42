//! What becomes of an inventory that was restored from a backup before a control plane uses it.
//!
//! The backup is older than what has happened since, and nobody knows how much. So nothing that it
//! says about a VM is acted upon before the VM's host has confirmed it, and nothing that was being
//! done then is done again:
//!
//! | in the backup | after the restore |
//! |---|---|
//! | the term | a greater one than all of the former control plane, whatever the clocks say |
//! | a VM | has to be confirmed by its host |
//! | what hosts have reported | removed: they report anew |
//! | an open task | has failed |
//! | sessions, requests, emergency credentials | removed: they may have ended or been used since |
//! | the first token | removed: the next start makes another one |

use strongroom_api::access::{AccessEntry, AccessKind};
use strongroom_api::task::TaskState;
use strongroom_api::vm::Lifecycle;
use strongroom_api::{ErrorCode, ObjectKind, ObjectRef, Problem};

use super::{Draft, Failure, Inventory, PRUNED_AT_A_TIME};
use crate::records::{CredentialUse, TaskRecord, VmRecord};

/// The caller's name for a restore, in the access log.
const RESTORER: &str = "strongroom-restore";

/// The backup that an inventory is restored from, and when.
#[derive(Clone, Debug)]
pub struct RestoredFrom {
    /// What the backup is called in the access log: its id, and when it was made.
    pub backup: String,
    /// When it is restored, in milliseconds since 1970.
    pub now_unix_ms: u64,
}

/// What a restored inventory has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Revised {
    /// The number of VMs that wait for their hosts' confirmation.
    pub vms: usize,
    /// The number of hosts.
    pub hosts: usize,
    /// The number of users.
    pub users: usize,
    /// The number of tasks that were open, and have failed.
    pub tasks: usize,
}

impl Inventory {
    /// Makes the inventory of a backup one that can be used.
    ///
    /// # Errors
    /// [`Failure`].
    pub fn revise_restored(&self, from: &RestoredFrom) -> Result<Revised, Failure> {
        let revised = {
            let index = self.read();
            Revised {
                vms: index.vms.len(),
                hosts: index.hosts.len(),
                users: index.users.len(),
                tasks: index.open_tasks_count(),
            }
        };
        self.begin_era()?;
        for draft in self.revisions(from) {
            self.commit(draft)?;
        }
        let message = format!(
            "the inventory was restored from backup {}; {} tasks that were open then have failed",
            from.backup, revised.tasks
        );
        let object = ObjectRef { kind: ObjectKind::Control, id: None, name: "inventory".to_owned() };
        let entry = AccessEntry {
            id: 0,
            previous: None,
            at_unix_ms: from.now_unix_ms,
            kind: AccessKind::Changed,
            by: RESTORER.to_owned(),
            from: None,
            operation: None,
            object: Some(object.clone()),
            task: None,
            message: message.clone(),
            repeated: None,
        };
        let draft = Draft::new(from.now_unix_ms).event("inventory.restored", &object, message, None);
        self.commit(draft.access(entry).when_full(strongroom_api::WhenFull::Done))?;
        Ok(revised)
    }

    /// The changes of the records, some at a time.
    fn revisions(&self, from: &RestoredFrom) -> Vec<Draft> {
        let index = self.read();
        let new = || Draft::new(from.now_unix_ms);
        let mut drafts = vec![new()];
        let mut add = |change: &dyn Fn(Draft) -> Draft| {
            let draft = drafts.pop().unwrap_or_else(new);
            let draft = change(draft);
            let is_full = draft.len() >= PRUNED_AT_A_TIME;
            drafts.push(draft);
            if is_full {
                drafts.push(new());
            }
        };
        for vm in index.vms.iter() {
            let waiting = VmRecord {
                from_backup: true,
                task: None,
                lifecycle: Lifecycle::Present,
                restarts_unix_ms: Vec::new(),
                ..VmRecord::clone(&vm.record)
            };
            add(&|draft| draft.replace(vm, &waiting));
        }
        for seen in index.observed.iter() {
            add(&|draft| draft.remove(seen));
        }
        for task in index.open_tasks() {
            let failed = failed(task, from);
            add(&|draft| draft.replace(task, &failed));
        }
        for credential in index.credentials.iter().filter(|known| known.use_ == CredentialUse::Session) {
            add(&|draft| draft.remove(credential));
        }
        for session in index.outside_sessions.iter() {
            add(&|draft| draft.remove(session));
        }
        for session in index.token_sessions.iter() {
            add(&|draft| draft.remove(session));
        }
        for credential in index.emergencies.iter() {
            add(&|draft| draft.remove_named(credential));
        }
        for request in index.requests.iter() {
            add(&|draft| draft.remove(request));
        }
        for token in index.tokens.iter() {
            add(&|draft| draft.remove(token));
        }
        drafts
    }
}

/// A task that was open when the backup was made. What it has done since is not known.
fn failed(task: &TaskRecord, from: &RestoredFrom) -> TaskRecord {
    let message = format!(
        "the inventory was restored from a backup that was made while this was being done ({}), and nothing says how far it went",
        from.backup
    );
    let mut failed = TaskRecord { operation: None, waits_for_key: false, ..task.clone() };
    failed.task.state = TaskState::Failed;
    failed.task.ended_unix_ms = Some(from.now_unix_ms);
    (failed.task.note, failed.task.progress, failed.task.cancelling) = (None, None, false);
    failed.task.error = Some(Problem::new(ErrorCode::Cancelled, message).next("see how its object is now"));
    failed
}
