//! Administrators' questions to a running server: its clients, its backups, the history of keys.
//!
//! They come through the socket on the server's machine or the enrolment port (HTTP/1.1 over TLS,
//! `POST /v1/manage`), with a certificate of a role that the [table](crate::access::scope) permits.
//! [`questions`] has the questions, [`protocol`] the answers; this module answers them. No answer
//! shows a key: administrators do not read the keys they manage.
//!
//! Each question that changes something, and each refused one, is on record before its answer
//! leaves.

mod backup;
mod brokering;
mod client;
pub(crate) mod custody;
mod destruction;
mod evidence;
mod granting;
pub(crate) mod hand_over;
pub mod protocol;
pub mod questions;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use strongroom_audit::limits::FILE_BYTES;
use strongroom_audit::syslog::{ShipStatus, Shipper};
use strongroom_audit::{Actor, AuditLog, HeadKey, Outcome, Record, Retention, Size};
use strongroom_store::Store;
use strongroom_types::{display_bytes, hex};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use self::backup::{Backups, Source};
pub use self::brokering::Brokering;
use self::protocol::{
    AuditAnswer, CollectorAnswer, NewTokenAnswer, StatusAnswer, TokenAnswer, USE_TEXT_BYTES_MAX,
};
use self::questions::{
    Ask, AuditHead, BindKey, BrokerAdd, BrokerCreate, BrokeredKeys, CancelDestruction, CancelHandOver,
    CancelToken, Clients, ConfirmCustodians, ConfirmDestruction, ConfirmHandOver, CreateToken, Custodians,
    Effect, FenceVm, HandOvers, Hosts, KeepBackup, KeyHistory, MakeBackup, ProposeCustodians,
    ProposeHandOver, Question, ReadBackup, RecordAccessHead, RecordMove, RecordUse, RevokeClient,
    ScheduleDestruction, Status, Tokens, VoidPrepared,
};
use crate::access::{ClientId, Identity, KnownClient, Scope, scope};
use crate::actor::{actor_of, within_limits};
use crate::authority::enrol::server::{Origin, Unanswered};
use crate::authority::enrol::token::{NewToken, TokenState};
use crate::authority::{Authority, AuthorityError, enrol};
use crate::objects::destruction::Destructions;
use crate::root::{self, Access};
use crate::state::{RESTORED, State};

/// Answers administrators.
pub struct Management {
    authority: Arc<Authority>,
    audit: Arc<AuditLog>,
    signer: Arc<HeadKey>,
    store: Arc<dyn Store>,
    directory: PathBuf,
    shipper: Option<Arc<Shipper>>,
    retention: Retention,
    brokering: Brokering,
    destructions: Arc<Destructions>,
    backups: Backups,
}

impl Management {
    /// Management of this state's server, of which `source` makes backups, with the shipping and
    /// retention of its audit log.
    pub fn new(
        state: &State,
        source: Source,
        shipper: Option<Arc<Shipper>>,
        retention: Retention,
        brokering: Brokering,
        destructions: Arc<Destructions>,
    ) -> Self {
        Self {
            shipper,
            retention,
            brokering,
            authority: Arc::clone(&state.authority),
            audit: Arc::clone(&state.audit),
            signer: Arc::clone(&state.signer),
            store: Arc::clone(&state.store),
            directory: state.directory.clone(),
            destructions,
            backups: Backups::new(state, source),
        }
    }

    fn answer_on_record(
        &self,
        asker: &Identity,
        origin: Origin,
        question: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Unanswered> {
        let question: Question = serde_json::from_slice(question)
            .map_err(|error| refused("malformed", format!("the question cannot be read: {error}")))?;
        let actor = actor_of(asker, Some(origin.to_string()));
        if scope(asker.role, question.class()) != Scope::All {
            let record = record_of(&question, actor, Outcome::Denied).reason("the role may not do that");
            self.on_record(&about(record, key_of(&question)))?;
            return Err(refused("role", format!("the role {} may not do that", asker.role)));
        }
        let confirms = matches!(question, Question::ConfirmDestruction(_));
        let _until_on_record = confirms.then(|| self.wait(self.destructions.begin_confirming()));
        let done = match self.done(asker, &actor, question.clone()) {
            Ok(done) => done,
            Err(refused) => {
                let record = record_of(&question, actor, Outcome::Failed).reason(refused.code);
                self.on_record(&about(record, key_of(&question)))?;
                return Err(refused);
            }
        };
        if question.effect() == Effect::Changes {
            let record = about(record_of(&question, actor, Outcome::Done), done.about);
            let fields = done.fields.into_iter();
            self.on_record(&fields.fold(record, |record, (name, text)| record.field(name, text)))?;
        }
        Ok(done.answer)
    }

    fn on_record(&self, record: &Record) -> Result<(), Unanswered> {
        self.audit.append(record).wait().map(drop).map_err(|error| {
            tracing::error!(%error, "nothing is answered without a record");
            Unanswered {
                by_asker: false,
                ..refused("unrecorded", "it could not be put on record".to_owned())
            }
        })
    }

    fn done(&self, asker: &Identity, actor: &Actor, question: Question) -> Result<Done, Unanswered> {
        let now = OffsetDateTime::now_utc();
        match question {
            Question::Status(_) => done::<Status>(&self.status(now)?, []),
            Question::CreateToken(wanted) => self.create_token(wanted, now),
            Question::Tokens(_) => done::<Tokens>(&self.tokens(now)?, []),
            Question::CancelToken(CancelToken { id }) => {
                let token = id.parse().map_err(|error| refused("malformed", format!("{error}")))?;
                self.authority.cancel_token(token).map_err(failed)?;
                done::<CancelToken>(&(), [id])
            }
            Question::Clients(_) => done::<Clients>(&self.clients()?, []),
            Question::RevokeClient(RevokeClient { client, reason }) => {
                self.revoke(client, &reason, now)?;
                done::<RevokeClient>(&(), [client.to_string()])
            }
            Question::ProposeHandOver(wish) => {
                let answer = self.propose_hand_over(asker, wish)?;
                done::<ProposeHandOver>(&answer, answer.about())
            }
            Question::ConfirmHandOver(ConfirmHandOver { id }) => {
                let answer = self.confirm_hand_over(asker, actor.clone(), id)?;
                done::<ConfirmHandOver>(&answer, [id.to_string()])
            }
            Question::CancelHandOver(CancelHandOver { id }) => {
                done::<CancelHandOver>(&self.cancel_hand_over(id)?, [id.to_string()])
            }
            Question::HandOvers(_) => done::<HandOvers>(&self.waiting_hand_overs()?, []),
            Question::BrokerAdd(BrokerAdd { key }) => {
                let answer = self.broker_add(asker, key)?;
                done::<BrokerAdd>(&answer, [answer.id.clone()])
            }
            Question::BrokerCreate(BrokerCreate { provider, request }) => {
                let answer = self.broker_create(asker, &provider, request)?;
                done::<BrokerCreate>(&answer, [answer.id.clone()])
            }
            Question::BrokeredKeys(_) => done::<BrokeredKeys>(&self.brokered_keys()?, []),
            Question::Hosts(Hosts { host }) => done::<Hosts>(&self.hosts(&host, now)?, []),
            Question::FenceVm(FenceVm { vm, generation }) => {
                done::<FenceVm>(&self.fence(vm, generation)?, [vm.to_string()])
            }
            Question::VoidPrepared(VoidPrepared { vm, generation }) => {
                self.void_prepared(vm, generation)?;
                done::<VoidPrepared>(&(), [vm.to_string()])
            }
            Question::BindKey(wanted) => {
                self.bind_key(asker, &wanted)?;
                let vms = std::iter::once(wanted.vm).chain(wanted.from).map(|vm| vm.to_string());
                done::<BindKey>(&(), std::iter::once(wanted.key.to_string()).chain(vms))
            }
            Question::ScheduleDestruction(wanted) => {
                let answer = self.schedule_destruction(asker, &wanted)?;
                done::<ScheduleDestruction>(&answer, [wanted.key.to_string()])
            }
            Question::CancelDestruction(CancelDestruction { key }) => {
                done::<CancelDestruction>(&self.cancel_destruction(key)?, [key.to_string()])
            }
            Question::ConfirmDestruction(ConfirmDestruction { key }) => {
                done::<ConfirmDestruction>(&self.confirm_destruction(asker, key)?, [key.to_string()])
            }
            Question::Destructions(_) => done::<questions::Destructions>(&self.list_destructions()?, []),
            Question::KeyHistory(KeyHistory { key, most }) => {
                done::<KeyHistory>(&self.key_history(key, most)?, [])
            }
            Question::AuditHead(_) => {
                let head = self.audit.head().wait().map_err(|error| refused_by_server("audit", &error))?;
                done::<AuditHead>(&AuditAnswer { head }, [])
            }
            Question::RecordUse(RecordUse { vm, what, by }) => {
                check_use(&what)?;
                check_use(&by)?;
                done::<RecordUse>(&(), [vm.to_string()])
            }
            Question::RecordAccessHead(_) => done::<RecordAccessHead>(&(), []),
            Question::RecordMove(RecordMove { moved }) => {
                self.check_move(&moved)?;
                Ok(done::<RecordMove>(&(), moved.about())?.with_fields(moved.fields()))
            }
            Question::MakeEvidence(wanted) => self.make_evidence(asker, wanted),
            Question::MakeBackup(MakeBackup { threshold, custodians }) => {
                let answer = self.backups.make(threshold, &custodians)?;
                done::<MakeBackup>(&answer, [answer.backup.id.to_string()])
            }
            Question::ProposeCustodians(ProposeCustodians { threshold, custodians }) => {
                let answer = self.backups.propose(asker, threshold, &custodians)?;
                done::<ProposeCustodians>(&answer, [answer.id.clone()])
            }
            Question::ConfirmCustodians(ConfirmCustodians { id }) => {
                done::<ConfirmCustodians>(&self.backups.custodies().confirm(asker, &id)?, [id])
            }
            Question::Custodians(_) => done::<Custodians>(&self.backups.list_custodians()?, []),
            Question::ReadBackup(ReadBackup { id, offset }) => {
                done::<ReadBackup>(&self.backups.part(id, offset)?, [id.to_string()])
            }
            Question::KeepBackup(KeepBackup { id }) => {
                self.backups.keep(id)?;
                done::<KeepBackup>(&(), [id.to_string()])
            }
        }
    }

    fn create_token(&self, wanted: CreateToken, now: OffsetDateTime) -> Result<Done, Unanswered> {
        let CreateToken { client, name, role, valid_seconds, public_key, certificate_days } = wanted;
        let certificate_validity = certificate_days.map(|days| Duration::days(days.into()));
        let mut wanted = NewToken { client, public_key, certificate_validity, ..NewToken::new(role, name) };
        if let Some(seconds) = valid_seconds {
            wanted.validity = Duration::seconds(i64::from(seconds));
        }
        let expires = now + wanted.validity;
        let token = self.authority.create_token(wanted, now).map_err(failed)?;
        let id = token.id().to_string();
        let answer = NewTokenAnswer {
            id: id.clone(),
            token: token.reveal(),
            expires_unix_seconds: expires.unix_timestamp(),
        };
        done::<CreateToken>(&answer, [id].into_iter().chain(client.map(|client| client.to_string())))
    }

    fn tokens(&self, now: OffsetDateTime) -> Result<Vec<TokenAnswer>, Unanswered> {
        let tokens = self.authority.tokens(now).map_err(failed)?;
        let answers = tokens.into_iter().map(|token| TokenAnswer {
            id: token.id.to_string(),
            client: token.client,
            name: token.name,
            role: token.role,
            expires_unix_seconds: token.expires.unix_timestamp(),
            state: match token.state {
                TokenState::Open => "open",
                TokenState::Used => "used",
                TokenState::Expired => "expired",
            }
            .to_owned(),
        });
        Ok(answers.collect())
    }

    fn clients(&self) -> Result<Vec<KnownClient>, Unanswered> {
        let clients = self.authority.clients().map_err(failed)?;
        let answers = clients.into_iter().map(|(id, record, is_revoked)| KnownClient {
            id,
            name: record.name,
            role: record.role,
            created_unix_seconds: record.created.unix_timestamp(),
            is_revoked,
        });
        Ok(answers.collect())
    }

    fn status(&self, now: OffsetDateTime) -> Result<StatusAnswer, Unanswered> {
        let credentials = Access::of_this_service().credentials_directory;
        let root = root::describe(&self.directory, credentials.as_deref())
            .map_err(|error| refused_by_server("root", &error))?;
        let snapshot = self.store.snapshot().map_err(|error| refused_by_server("store", &error))?;
        let generation = snapshot.revision().0;
        let backup = crate::backup::status(&self.directory, generation)
            .map_err(|error| refused_by_server("backup", &error))?;
        let clients = self.authority.clients().map_err(failed)?;
        let mut warnings: Vec<_> = root.warnings.iter().map(ToString::to_string).collect();
        warnings.extend(self.destructions.delay_warning());
        let audit = self.audit.size().map_err(|error| refused_by_server("audit", &error))?;
        warnings.extend(self.retention_warning(audit));
        Ok(StatusAnswer {
            root_protection: root.protection.to_string(),
            root_by: root.by,
            warnings,
            authority: self.authority.fingerprint().to_string(),
            clients: clients.len(),
            backup,
            audit_sequence: self.audit.durable(),
            audit_first_sequence: audit.first_sequence,
            audit_bytes: audit.bytes,
            collector: self.shipper.as_ref().map(|shipper| {
                let ShipStatus { confirmed, failures, trouble, .. } = shipper.status();
                CollectorAnswer { confirmed_sequence: confirmed, failures, trouble }
            }),
            now_unix_seconds: now.unix_timestamp(),
        })
    }

    /// A warning that the log is larger than its retention allows.
    fn retention_warning(&self, log: Size) -> Option<String> {
        let most = self.retention.keep_bytes?;
        let confirmed = self.shipper.as_ref()?.status().confirmed;
        (log.bytes > most + FILE_BYTES).then(|| {
            format!(
                "the audit log has {}, and {} are to be kept: the collector has confirmed it up to line {confirmed} only, and what it has not confirmed stays",
                display_bytes(log.bytes),
                display_bytes(most)
            )
        })
    }

    fn revoke(&self, client: ClientId, reason: &str, now: OffsetDateTime) -> Result<(), Unanswered> {
        let is_restored = || self.store.get(RESTORED).map(|entry| entry.is_some());
        match self.authority.revoke_client(client, reason, now) {
            // The client may have been enrolled after the backup.
            Err(AuthorityError::Unknown { .. })
                if is_restored().map_err(|error| refused_by_server("store", &error))? =>
            {
                self.authority.revoke_any_client(client, reason, now)
            }
            outcome => outcome,
        }
        .map_err(failed)
    }
}

impl enrol::server::Management for Management {
    fn answer(
        &self,
        asker: &Identity,
        origin: Origin,
        question: &[u8],
    ) -> Result<Zeroizing<Vec<u8>>, Unanswered> {
        self.answer_on_record(asker, origin, question)
    }
}

/// The record of a question, with the parameters that matter later.
fn record_of(question: &Question, actor: Actor, outcome: Outcome) -> Record {
    let record = Record::new(actor, question.name(), outcome);
    match question {
        Question::MakeBackup(MakeBackup { threshold, custodians })
        | Question::ProposeCustodians(ProposeCustodians { threshold, custodians }) => {
            backup::custody_on_record(record, *threshold, custodians)
        }
        Question::ProposeHandOver(ProposeHandOver { from, to, reason, .. }) if outcome == Outcome::Done => {
            let reason = within_limits(reason);
            record.field("from", from.to_string()).field("to", to.to_string()).reason(reason)
        }
        // The contents of a refused question are not trusted.
        Question::RecordUse(RecordUse { what, by, .. }) if outcome == Outcome::Done => {
            record.field("use", what.clone()).field("by", by.clone())
        }
        Question::RecordAccessHead(RecordAccessHead { id, hash }) => {
            record.field("entry", id.to_string()).field("hash", hex::encode(hash))
        }
        _ => record,
    }
}

/// Adds the ids of the objects concerned to a record.
fn about(record: Record, ids: impl IntoIterator<Item = String>) -> Record {
    ids.into_iter().fold(record, Record::object)
}

fn key_of(question: &Question) -> Option<String> {
    question.key().map(|key| key.to_string())
}

/// Capacity for an answer with a token: a growing buffer would leave copies.
const TOKEN_ANSWER_BYTES: usize = 4096;

/// An answered question.
struct Done {
    /// JSON. It may hold a token.
    answer: Zeroizing<Vec<u8>>,
    /// The ids of the objects concerned, for the record.
    about: Vec<String>,
    /// Further facts for the record.
    fields: BTreeMap<&'static str, String>,
}

impl Done {
    fn with_fields(self, fields: BTreeMap<&'static str, String>) -> Self {
        Self { fields, ..self }
    }
}

fn done<Q: Ask>(answer: &Q::Answer, about: impl IntoIterator<Item = String>) -> Result<Done, Unanswered> {
    let mut bytes = Zeroizing::new(Vec::with_capacity(TOKEN_ANSWER_BYTES));
    serde_json::to_writer(&mut *bytes, answer).map_err(|error| refused_by_server("answer", &error))?;
    Ok(Done { answer: bytes, about: about.into_iter().collect(), fields: BTreeMap::new() })
}

/// Refuses a text about a use that does not fit into its record.
fn check_use(text: &str) -> Result<(), Unanswered> {
    if text.is_empty() || text.len() > USE_TEXT_BYTES_MAX || text.chars().any(char::is_control) {
        let message = format!("a use is named in 1 to {USE_TEXT_BYTES_MAX} bytes without control characters");
        return Err(refused("malformed", message));
    }
    Ok(())
}

fn refused(code: &'static str, message: String) -> Unanswered {
    Unanswered { code, message, by_asker: true }
}

fn refused_by_server(code: &'static str, error: &(impl std::fmt::Display + ?Sized)) -> Unanswered {
    tracing::error!(%error, code, "an administrator's question could not be answered");
    Unanswered { code, message: error.to_string(), by_asker: false }
}

fn failed(error: crate::authority::AuthorityError) -> Unanswered {
    refused("authority", error.to_string())
}

#[cfg(test)]
mod tests;
