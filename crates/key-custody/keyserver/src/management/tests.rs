//! Every question, as every role asks it.

use strongroom_keys::{ProviderKey, ProviderName};
use strongroom_types::KeyRequestId;

use super::*;
use crate::access::{ClientName, Role};
use crate::authority::enrol::server::Management as _;
use crate::grant::{VmGeneration, VmId};
use crate::objects::id::ObjectId;
use crate::recovery::tests::{Machine, identity};

/// Which roles may ask, said once more in words that do not come from the classes; every question is there.
fn who_may(question: &Question) -> &'static [Role] {
    match question {
        Question::Status
        | Question::Tokens
        | Question::Clients
        | Question::KeyHistory { .. }
        | Question::AuditHead => &[Role::Admin, Role::Auditor],
        Question::BrokeredKeys | Question::Destructions => &[Role::Admin, Role::Control, Role::Auditor],
        Question::CreateToken { .. }
        | Question::CancelToken { .. }
        | Question::RevokeClient { .. }
        | Question::ProposeHandOver { .. }
        | Question::ConfirmHandOver { .. }
        | Question::CancelHandOver { .. }
        | Question::HandOvers
        | Question::ScheduleDestruction { .. }
        | Question::CancelDestruction { .. }
        | Question::ConfirmDestruction { .. }
        | Question::MakeBackup { .. }
        | Question::ReadBackup { .. }
        | Question::KeepBackup { .. }
        | Question::ProposeCustodians { .. }
        | Question::ConfirmCustodians { .. }
        | Question::Custodians => &[Role::Admin],
        Question::Hosts { .. }
        | Question::FenceVm { .. }
        | Question::BindKey { .. }
        | Question::BrokerAdd { .. }
        | Question::BrokerCreate { .. }
        | Question::RecordUse { .. } => &[Role::Control],
    }
}

/// One of each. What they are about is mostly not there: a question that may be asked is answered or refused for that.
fn every_question() -> Vec<Question> {
    let key = ObjectId::from_bytes([7; 16]);
    let vm = VmId::from_bytes([8; 16]);
    let provider: ProviderName = "kms".parse().unwrap();
    let name = "somebody".parse::<ClientName>().unwrap();
    let id = crate::backup::BackupId::from(uuid::Uuid::from_u128(1));
    vec![
        Question::Status,
        Question::CreateToken {
            client: None,
            name,
            role: Role::Admin,
            valid_seconds: None,
            public_key: None,
            certificate_days: None,
        },
        Question::Tokens,
        Question::CancelToken { id: "0".repeat(32) },
        Question::Clients,
        Question::RevokeClient { client: ClientId::random(), reason: String::new() },
        Question::ProposeHandOver {
            from: ClientId::random(),
            to: ClientId::random(),
            keys: vec![key],
            reason: String::new(),
        },
        Question::ConfirmHandOver { id: uuid::Uuid::from_u128(2) },
        Question::CancelHandOver { id: uuid::Uuid::from_u128(2) },
        Question::HandOvers,
        Question::Hosts { host: "host1".to_owned() },
        Question::FenceVm { vm, generation: VmGeneration(1) },
        Question::BindKey { key, vm },
        Question::BrokerAdd {
            key: ProviderKey { provider: provider.clone(), key: "1".parse().unwrap(), wrapped: None },
        },
        Question::BrokerCreate { provider, request: KeyRequestId::random() },
        Question::BrokeredKeys,
        Question::ScheduleDestruction { key, delay_seconds: 1, reason: String::new() },
        Question::CancelDestruction { key },
        Question::ConfirmDestruction { key },
        Question::Destructions,
        Question::KeyHistory { key, most: 1 },
        Question::AuditHead,
        Question::RecordUse { vm, what: "a console".to_owned(), by: "somebody".to_owned() },
        Question::MakeBackup { threshold: 2, custodians: Vec::new() },
        Question::ProposeCustodians { threshold: 2, custodians: Vec::new() },
        Question::ConfirmCustodians { id: "0".repeat(32) },
        Question::Custodians,
        Question::ReadBackup { id, offset: 0 },
        Question::KeepBackup { id },
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
            let is_recorded = answer.is_err() || question.changes_something();
            assert_eq!(server.state.audit.durable() > before, is_recorded, "{role} {question:?}");
        }
    }
}
