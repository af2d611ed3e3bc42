//! Every question, asked by every role.

use strongroom_keys::{ProviderKey, ProviderName};
use strongroom_types::KeyRequestId;

use super::*;
use crate::access::{ClientName, Role};
use crate::authority::enrol::server::Management as _;
use crate::evidence::{DataKeys, Move, Subject};
use crate::grant::{VmGeneration, VmId};
use crate::objects::id::ObjectId;
use crate::recovery::tests::{Machine, identity};

/// The roles that may ask each question, stated independently of the classes. Every question is
/// listed.
fn who_may(question: &Question) -> &'static [Role] {
    match question {
        Question::Status(_)
        | Question::Tokens(_)
        | Question::Clients(_)
        | Question::KeyHistory(_)
        | Question::AuditHead(_)
        | Question::MakeEvidence(_) => &[Role::Admin, Role::Auditor],
        Question::RecordMove(_) => &[Role::Admin, Role::Control],
        Question::BrokeredKeys(_) | Question::Destructions(_) => &[Role::Admin, Role::Control, Role::Auditor],
        Question::CreateToken(_)
        | Question::CancelToken(_)
        | Question::RevokeClient(_)
        | Question::ProposeHandOver(_)
        | Question::ConfirmHandOver(_)
        | Question::CancelHandOver(_)
        | Question::HandOvers(_)
        | Question::ScheduleDestruction(_)
        | Question::CancelDestruction(_)
        | Question::ConfirmDestruction(_)
        | Question::MakeBackup(_)
        | Question::ReadBackup(_)
        | Question::KeepBackup(_)
        | Question::ProposeCustodians(_)
        | Question::ConfirmCustodians(_)
        | Question::Custodians(_) => &[Role::Admin],
        Question::Hosts(_)
        | Question::FenceVm(_)
        | Question::VoidPrepared(_)
        | Question::BindKey(_)
        | Question::BrokerAdd(_)
        | Question::BrokerCreate(_)
        | Question::RecordAccessHead(_)
        | Question::RecordUse(_) => &[Role::Control],
    }
}

/// One question of each kind. Their objects mostly do not exist, so a permitted question is
/// answered or refused for that reason.
fn every_question() -> Vec<Question> {
    let key = ObjectId::from_bytes([7; 16]);
    let vm = VmId::from_bytes([8; 16]);
    let provider: ProviderName = "kms".parse().unwrap();
    let name = "somebody".parse::<ClientName>().unwrap();
    let id = crate::backup::BackupId::from(uuid::Uuid::from_u128(1));
    vec![
        Question::from(Status {}),
        Question::from(CreateToken {
            client: None,
            name,
            role: Role::Admin,
            valid_seconds: None,
            public_key: None,
            certificate_days: None,
        }),
        Question::from(Tokens {}),
        Question::from(CancelToken { id: "0".repeat(32) }),
        Question::from(Clients {}),
        Question::from(RevokeClient { client: ClientId::random(), reason: String::new() }),
        Question::from(ProposeHandOver {
            from: ClientId::random(),
            to: ClientId::random(),
            keys: vec![key],
            reason: String::new(),
        }),
        Question::from(ConfirmHandOver { id: uuid::Uuid::from_u128(2) }),
        Question::from(CancelHandOver { id: uuid::Uuid::from_u128(2) }),
        Question::from(HandOvers {}),
        Question::from(Hosts { host: "host1".to_owned() }),
        Question::from(FenceVm { vm, generation: VmGeneration(1) }),
        Question::from(questions::VoidPrepared { vm, generation: VmGeneration(2) }),
        Question::from(BindKey { key, vm, from: None }),
        Question::from(BrokerAdd {
            key: ProviderKey { provider: provider.clone(), key: "1".parse().unwrap(), wrapped: None },
        }),
        Question::from(BrokerCreate { provider, request: KeyRequestId::random() }),
        Question::from(BrokeredKeys {}),
        Question::from(ScheduleDestruction {
            key,
            delay_seconds: 1,
            reason: String::new(),
            leave_to_clones: false,
        }),
        Question::from(CancelDestruction { key }),
        Question::from(ConfirmDestruction { key }),
        Question::from(questions::Destructions {}),
        Question::from(KeyHistory { key, most: 1 }),
        Question::from(AuditHead {}),
        Question::from(RecordUse { vm, what: "a console".to_owned(), by: "somebody".to_owned() }),
        Question::from(questions::RecordAccessHead { id: 7, hash: [7; 32] }),
        Question::from(RecordMove {
            moved: Move {
                vm: Some(vm),
                volumes: Vec::new(),
                from: vec![key],
                to: None,
                data_keys: DataKeys::Renewed,
                is_shared: false,
                rewritten: None,
            },
        }),
        Question::from(questions::MakeEvidence { about: Subject::default(), challenge: None }),
        Question::from(MakeBackup { threshold: 2, custodians: Vec::new() }),
        Question::from(ProposeCustodians { threshold: 2, custodians: Vec::new() }),
        Question::from(ConfirmCustodians { id: "0".repeat(32) }),
        Question::from(Custodians {}),
        Question::from(ReadBackup { id, offset: 0 }),
        Question::from(KeepBackup { id }),
    ]
}

#[test]
fn each_question_is_answered_to_the_roles_that_may_ask_it_and_to_no_other() {
    let machine = Machine::new();
    let server = machine.start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let management = Arc::new(server.management());
    let questions = every_question();
    let names: std::collections::BTreeSet<_> = questions.iter().map(Question::name).collect();
    assert_eq!(names.len(), questions.len());
    for question in questions {
        for role in Role::ALL {
            let before = server.state.audit.durable();
            let (asker, text) = (identity(role), serde_json::to_vec(&question).unwrap());
            let (management, origin) = (Arc::clone(&management), Origin::Socket { uid: 0 });
            let asked = runtime.spawn_blocking(move || management.answer(&asker, origin, &text));
            let answer = runtime.block_on(asked).unwrap();
            let is_denied = answer.as_ref().is_err_and(|refused| refused.code == "role");
            assert_eq!(is_denied, !who_may(&question).contains(&role), "{role} {question:?}: {answer:?}");
            // A denial is on record, and so is each change and each failure.
            let is_recorded = answer.is_err() || question.effect() == Effect::Changes;
            assert_eq!(server.state.audit.durable() > before, is_recorded, "{role} {question:?}");
        }
    }
}
