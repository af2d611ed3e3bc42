//! What an evidence says, and what it does not say.

use std::error::Error;
use std::sync::Arc;

use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use parking_lot::Mutex;
use serde_json::Value;
use strongroom_audit::HeadSigner;
use strongroom_types::VolumeId;

use super::*;
use crate::access::ClientId;
use crate::authority::enrol::server::{Management as _, Origin};
use crate::evidence::{DataKeys, LeftDataKeys};
use crate::management::protocol::DestructionAnswer;
use crate::management::questions::{Ask, Question, RecordMove, ScheduleDestruction};
use crate::objects::dependents::Dependents;
use crate::objects::destruction::DELAY_MIN_SECONDS;
use crate::recovery::tests::{Machine, Server, identity};

/// The volumes that need a key, or why nobody knows.
struct Volumes(Mutex<Result<Vec<String>, &'static str>>);

impl Dependents for Volumes {
    fn of(&self, _: ObjectId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        Ok(self.0.lock().clone()?)
    }

    fn clones_of(&self, _: VmId) -> Result<Vec<String>, Box<dyn Error + Send + Sync>> {
        Ok(Vec::new())
    }
}

/// A server with a VM that has left one key for another.
struct Scene {
    runtime: tokio::runtime::Runtime,
    server: Server,
    management: Arc<Management>,
    volumes: Arc<Volumes>,
    control: Identity,
    vm: VmId,
    old: ObjectId,
    new: ObjectId,
    _machine: Machine,
}

impl Scene {
    fn new() -> Self {
        let machine = Machine::new();
        let server = machine.start();
        let volumes = Arc::new(Volumes(Mutex::new(Ok(Vec::new()))));
        let management = Arc::new(server.management_over(Arc::clone(&volumes) as _));
        let (control, vm) = (identity(Role::Control), VmId::random());
        let (old, new) = (server.create(&control, "old"), server.create(&control, "new"));
        for key in [old, new] {
            ledger::bind(&*server.state.store, &key.to_string(), vm, None).unwrap();
        }
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, server, management, volumes, control, vm, old, new, _machine: machine }
    }

    fn ask<Q: Ask>(&self, asker: &Identity, question: Q) -> Result<Q::Answer, Unanswered> {
        let question: Question = question.into();
        let text = serde_json::to_vec(&question).unwrap();
        let (management, asker) = (Arc::clone(&self.management), asker.clone());
        let asked =
            self.runtime.spawn_blocking(move || management.answer(&asker, Origin::Socket { uid: 0 }, &text));
        let answer = self.runtime.block_on(asked).unwrap()?;
        Ok(serde_json::from_slice(&answer).unwrap())
    }

    fn moved(&self, data_keys: DataKeys) {
        let moved = Move {
            vm: Some(self.vm),
            volumes: vec![VolumeId::from_bytes([1; 16])],
            from: vec![self.old],
            to: Some(self.new),
            data_keys,
            is_shared: false,
            rewritten: None,
        };
        self.ask(&self.control, RecordMove { moved }).unwrap();
    }

    fn file(&self, about: Subject) -> String {
        let challenge = Some("of the auditor".to_owned());
        self.ask(&identity(Role::Auditor), MakeEvidence { about, challenge }).unwrap().file
    }

    /// The evidence of the VM, and what it says of the old key.
    fn old_key(&self) -> KeyFacts {
        let file = self.file(Subject { vm: Some(self.vm), keys: Vec::new() });
        let evidence = Evidence::unverified(&file).unwrap();
        assert_eq!(evidence.keys.len(), 2);
        evidence.keys.into_iter().find(|facts| facts.key == self.old).unwrap()
    }

    fn conclusion(&self) -> Conclusion {
        self.old_key().conclusion
    }
}

#[test]
fn a_key_is_unneeded_only_if_nothing_has_an_envelope_and_its_data_was_rewritten() {
    let scene = Scene::new();
    assert_eq!(scene.conclusion(), Conclusion::UnneededWithoutRecord);
    // A move that kept the data keys leaves them in use, until a later one renews them.
    scene.moved(DataKeys::Kept);
    assert_eq!(scene.conclusion(), Conclusion::DataKeysInUse);
    scene.moved(DataKeys::Renewed);
    let facts = scene.old_key();
    assert_eq!(facts.conclusion, Conclusion::Unneeded);
    let LeftDataKeys { fate, sequences } = facts.data_keys;
    assert_eq!((fate, sequences.len()), (DataKeyFate::Renewed, 2));
    assert_eq!((facts.vm, facts.owner), (Some(scene.vm), scene.control.client));

    // One envelope that was left somewhere, or a datastore that cannot be read, is an objection.
    *scene.volumes.0.lock() = Ok(vec!["/mnt/copy/vm1".to_owned()]);
    let facts = scene.old_key();
    assert_eq!(facts.conclusion, Conclusion::Needed);
    assert_eq!(facts.needed_by, NeededBy::Found(vec!["/mnt/copy/vm1".to_owned()]));
    *scene.volumes.0.lock() = Err("the datastore is not mounted");
    let facts = scene.old_key();
    assert_eq!(facts.conclusion, Conclusion::Unknown);
    assert_eq!(facts.needed_by, NeededBy::Unknown("the datastore is not mounted".to_owned()));
}

#[test]
fn a_file_is_signed_by_the_key_of_the_heads_and_is_on_record_by_its_hash() {
    let scene = Scene::new();
    let file = scene.file(Subject::default());
    let (signed, last) = file.trim_end().rsplit_once('\n').unwrap();
    let last: Value = serde_json::from_str(last).unwrap();
    let public = scene.server.state.signer.public_key();
    assert_eq!(last["key"], public.id());
    let signature = hex::decode(last["signature"].as_str().unwrap()).unwrap();
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, public.as_der());
    key.verify(format!("{signed}\n").as_bytes(), &signature).unwrap();
    assert!(key.verify(signed.replace("auditor", "auditos").as_bytes(), &signature).is_err());

    let evidence = Evidence::unverified(&file).unwrap();
    assert!(evidence.log.head.is_signed_by(&[public]));
    assert_eq!(evidence.challenge.as_deref(), Some("of the auditor"));
    assert_eq!(evidence.asked_as, Role::Auditor);
    assert_eq!(evidence.keys.len(), 2);
    assert_eq!(evidence.not_known, NOT_KNOWN);
    let hash = hex::encode(&mac::sha256(file.as_bytes()));
    // One about a key is on record with that key.
    let of_key = scene.file(Subject { vm: None, keys: vec![scene.old] });
    let hash_of_key = hex::encode(&mac::sha256(of_key.as_bytes()));
    let records = scene.management.records_of(&BTreeSet::from([scene.old.to_string()])).unwrap();
    let noted = &records.events.last().unwrap().record;
    assert_eq!((noted.action.as_str(), &noted.fields["sha256"]), ("make evidence", &hash_of_key));
    assert_ne!(hash, hash_of_key);
}

#[test]
fn what_no_evidence_can_be_made_of_is_refused() {
    let scene = Scene::new();
    let auditor = identity(Role::Auditor);
    let code = |question: MakeEvidence| scene.ask(&auditor, question).unwrap_err().code;
    let about_nothing = Subject { vm: Some(VmId::random()), keys: Vec::new() };
    assert_eq!(code(MakeEvidence { about: about_nothing, challenge: None }), "unknown");
    let unknown_key = Subject { vm: None, keys: vec![ObjectId::random()] };
    assert_eq!(code(MakeEvidence { about: unknown_key, challenge: None }), "unknown");
    for challenge in [String::new(), "a\nb".to_owned(), "x".repeat(CHALLENGE_BYTES_MAX + 1)] {
        let question = MakeEvidence { about: Subject::default(), challenge: Some(challenge) };
        assert_eq!(code(question), "malformed");
    }
    // A move names keys of this server, and no more than fit its record.
    let moved = |from: Vec<ObjectId>, volumes: usize| RecordMove {
        moved: Move {
            vm: None,
            volumes: (0..volumes).map(|_| VolumeId::random()).collect(),
            from,
            to: Some(scene.new),
            data_keys: DataKeys::Renewed,
            is_shared: false,
            rewritten: None,
        },
    };
    let control = &scene.control;
    assert_eq!(scene.ask(control, moved(vec![ObjectId::random()], 1)).unwrap_err().code, "unknown");
    let many = vec![scene.old; LEFT_KEYS_MAX + 1];
    assert_eq!(scene.ask(control, moved(many, 1)).unwrap_err().code, "malformed");
    let volumes = MOVED_VOLUMES_MAX + 1;
    assert_eq!(scene.ask(control, moved(vec![scene.old], volumes)).unwrap_err().code, "malformed");
    scene.ask(control, moved(vec![scene.old; LEFT_KEYS_MAX], MOVED_VOLUMES_MAX)).unwrap();
}

#[test]
fn who_schedules_a_destruction_is_told_what_became_of_the_data_keys() {
    let scene = Scene::new();
    scene.moved(DataKeys::Kept);
    let schedule = |key| ScheduleDestruction {
        key,
        delay_seconds: DELAY_MIN_SECONDS,
        reason: "it is left".to_owned(),
        leave_to_clones: false,
    };
    let fate = |answer: DestructionAnswer| answer.data_keys;
    let admin = Identity { client: ClientId::random(), ..identity(Role::Admin) };
    assert_eq!(fate(scene.ask(&admin, schedule(scene.old)).unwrap()), Some(DataKeyFate::Kept));
    assert_eq!(fate(scene.ask(&admin, schedule(scene.new)).unwrap()), Some(DataKeyFate::NotOnRecord));
    let facts = scene.old_key();
    assert_eq!(facts.destruction.unwrap().reason, "it is left");
}
