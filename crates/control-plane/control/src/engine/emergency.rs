//! Emergency credentials: a way in when nobody can sign in as usual.
//!
//! Each works once, gives a short session with the role `administrator`, and raises an alarm that
//! stays until somebody else acknowledges it. The session makes neither emergency credentials nor
//! tokens, so it leaves no other way in that is not seen. What it does is on record under its name.

use strongroom_api::access::{AccessKind, NewSession};
use strongroom_api::alarm::{Alarm, AlarmKind, Severity};
use strongroom_api::emergency::{
    CreateEmergency, EmergencyCredential, EmergencySignIn, EmergencyUse, NewEmergency,
};
use strongroom_api::limits::EMERGENCY_CREDENTIALS_MAX;
use strongroom_api::{ErrorCode, ObjectKind, ObjectRef, PrivilegeSet, Problem};
use uuid::Uuid;

use super::access::{AccessObject, no_such};
use super::accounts::{covers, no_random, taken, within};
use super::alarms::Wanted;
use super::credentials::SigningIn;
use super::identity_providers::EMERGENCY;
use super::outside::outside_session_view;
use super::recipients::RAISED;
use super::wishes::Caller;
use super::{Control, Stop};
use crate::bearer;
use crate::inventory::{Index, Row, by_name_or_id};
use crate::passwords::base32;
use crate::problems;
use crate::records::{EmergencyRecord, Entrance, OutsideSessionRecord, Place, Principal, address_text};

/// The random bytes of a secret: 160 bits, so that nobody guesses it, and 32 letters for a person
/// to type.
const SECRET_BYTES: usize = 20;
/// The letters of a group, for paper.
const GROUP_LETTERS: usize = 4;
/// The length of an emergency session, in seconds.
const SESSION_S: u64 = 3600;
/// The key under which refused sign-ins are counted for the access log.
const REFUSED_SIGN_INS: &str = "emergency-sign-in";

impl Control {
    /// Makes an emergency credential.
    ///
    /// # Errors
    /// [`Problem`], as for all methods here.
    pub fn create_emergency(&self, caller: &Caller, wish: &CreateEmergency) -> Result<NewEmergency, Problem> {
        let (secret, id) = (fresh()?, Uuid::new_v4());
        let message = format!("emergency credential {} was made", wish.name);
        let info = self.change(caller, message, |index, rights| {
            not_in_emergency(index, caller)?;
            covers(index, rights, Place::Site, &PrivilegeSet::all())?;
            if by_name_or_id(&index.emergencies, wish.name.as_str()).is_some() {
                return Err(taken("emergency credential", &wish.name));
            }
            within(index.emergencies.len(), EMERGENCY_CREDENTIALS_MAX, "emergency credentials")?;
            let record = EmergencyRecord {
                id,
                name: wish.name.clone(),
                sha256: Some(stored_form(&secret)),
                created_unix_seconds: self.now_unix_ms() / 1000,
                last_use: None,
            };
            Ok((emergency_view(&record), self.draft().create_named(&record)))
        })?;
        Ok(NewEmergency { info, secret: secret.into() })
    }

    /// Gives an emergency credential another secret, also after its use. The old one counts no
    /// more.
    pub fn rotate_emergency(&self, caller: &Caller, named: &str) -> Result<NewEmergency, Problem> {
        let secret = fresh()?;
        let message = format!("emergency credential {named} was rotated");
        let info = self.change(caller, message, |index, rights| {
            not_in_emergency(index, caller)?;
            covers(index, rights, Place::Site, &PrivilegeSet::all())?;
            let known = find_emergency(index, named)?;
            let changed = EmergencyRecord {
                sha256: Some(stored_form(&secret)),
                created_unix_seconds: self.now_unix_ms() / 1000,
                ..EmergencyRecord::clone(&known.record)
            };
            Ok((emergency_view(&changed), self.draft().replace(known, &changed)))
        })?;
        Ok(NewEmergency { info, secret: secret.into() })
    }

    /// Deletes an emergency credential whose use, if there was one, was acknowledged, and ends its
    /// sessions.
    pub fn revoke_emergency(&self, caller: &Caller, named: &str) -> Result<(), Problem> {
        self.change(caller, format!("emergency credential {named} was revoked"), |index, rights| {
            not_in_emergency(index, caller)?;
            covers(index, rights, Place::Site, &PrivilegeSet::all())?;
            let known = find_emergency(index, named)?;
            if known.unacknowledged().is_some() {
                let message =
                    format!("emergency credential {named} was used, and nobody has acknowledged it");
                let next = format!("`strongroom access emergency acknowledge {named}` first");
                return Err(problems::conflict(message).next(next));
            }
            let mut draft = self.draft().remove_named(known);
            for session in sessions_of(index, known.id) {
                draft = draft.remove(session);
            }
            Ok(((), draft))
        })
    }

    /// Acknowledges the use of an emergency credential, which ends the alarm. An emergency session
    /// does not acknowledge.
    pub fn acknowledge_emergency(
        &self,
        caller: &Caller,
        named: &str,
    ) -> Result<EmergencyCredential, Problem> {
        let message = format!("the use of emergency credential {named} was acknowledged");
        self.change(caller, message, |index, _| {
            not_in_emergency(index, caller)?;
            let known = find_emergency(index, named)?;
            let Some(used) = known.unacknowledged() else {
                let problem = problems::conflict(format!("no use of emergency credential {named} is open"));
                return Err(problem.next("there is nothing to acknowledge"));
            };
            let used = EmergencyUse { acknowledged_by: Some(caller.name.clone()), ..used.clone() };
            let changed = EmergencyRecord { last_use: Some(used), ..EmergencyRecord::clone(&known.record) };
            Ok((emergency_view(&changed), self.draft().replace(known, &changed)))
        })
    }

    /// The emergency credentials.
    pub fn list_emergencies(&self) -> Vec<EmergencyCredential> {
        self.inventory.read().emergencies.iter().map(|record| emergency_view(record)).collect()
    }

    /// Uses an emergency credential: the session, the alarm and the entry in the access log are one
    /// transaction, in which the secret is spent.
    ///
    /// # Errors
    /// `unauthorized`.
    pub fn sign_in_emergency(
        &self,
        signing_in: &SigningIn,
        wish: &EmergencySignIn,
    ) -> Result<NewSession, Problem> {
        let EmergencySignIn { secret, reason } = wish;
        let caller = |name: &str| signing_in.caller(&format!("{EMERGENCY}:{name}"));
        let sha256 = stored_form(secret.as_str());
        let token = bearer::fresh().map_err(no_random)?;
        let id = Uuid::new_v4();
        let begun = self.race(|| {
            let (session, caller, draft) = {
                let index = self.inventory.read();
                let mut all = index.emergencies.iter();
                let Some(known) = all.find(|known| known.sha256.as_deref() == Some(sha256.as_str())) else {
                    return Ok::<_, Stop>(None);
                };
                let (now, caller) = (self.now_unix_ms() / 1000, caller(known.name.as_str()));
                let used = EmergencyUse {
                    at_unix_seconds: now,
                    from: address_text(signing_in.from),
                    reason: reason.as_str().to_owned(),
                    acknowledged_by: None,
                };
                let spent = EmergencyRecord {
                    sha256: None,
                    last_use: Some(used.clone()),
                    ..EmergencyRecord::clone(&known.record)
                };
                let record = OutsideSessionRecord {
                    sha256: signing_in.shown_as.stored_form(&token),
                    id,
                    name: caller.name.clone(),
                    entrance: Entrance::Emergency { credential: known.id },
                    created_unix_seconds: now,
                    expires_unix_seconds: now + SESSION_S,
                };
                let alarm = Alarm { since_unix_ms: self.now_unix_ms(), ..alarm_of(&spent, &used) };
                let draft = self.draft().replace(known, &spent).create(&record).put(&alarm);
                let draft = draft.alarm_event(RAISED, &alarm, &alarm.message);
                (outside_session_view(&record), caller, draft)
            };
            let message = format!("{} signed in: {}", caller.name, reason.as_str());
            self.commit_for(&caller, draft, caller.entry_of(AccessKind::SignedIn, message))?;
            Ok(Some(session))
        })?;
        match begun {
            Some(session) => Ok(NewSession { session, token: token.into() }),
            None => Err(self.refused_emergency(&caller("?"))),
        }
    }

    fn refused_emergency(&self, caller: &Caller) -> Problem {
        let message = "emergency sign-in was refused: no such credential, or it was used already";
        let entry = caller.entry_of(AccessKind::SignInRefused, message);
        match self.record_limited(caller, REFUSED_SIGN_INS, entry) {
            Ok(()) => {
                Problem::new(ErrorCode::Unauthorized, "the emergency credential is wrong or was used already")
                    .next("take another one; who has root on the control plane's machine has its first token")
            }
            Err(problem) => problem,
        }
    }

    /// Raises an alarm for each use that nobody has acknowledged.
    pub(super) fn review_emergencies(&self, index: &Index, wanted: &mut Wanted) {
        for record in index.emergencies.iter() {
            if let Some(used) = record.unacknowledged() {
                let Alarm { kind, severity, object, message, next_step, since_unix_ms: _ } =
                    alarm_of(record, used);
                wanted.raise(kind, severity, object, message, next_step);
            }
        }
    }
}

fn alarm_of(record: &EmergencyRecord, used: &EmergencyUse) -> Alarm {
    let name = &record.name;
    Alarm {
        kind: AlarmKind::EmergencyAccess,
        severity: Severity::Critical,
        object: ObjectRef { kind: ObjectKind::Control, id: Some(record.id), name: name.to_string() },
        message: format!(
            "emergency credential {name} was used from {} with the reason: {}",
            used.from, used.reason
        ),
        next_step: format!(
            "`strongroom access log --by {EMERGENCY}:{name}` says what was done; \
             `strongroom access emergency acknowledge {name}` when somebody has looked at it"
        ),
        since_unix_ms: 0,
    }
}

/// Refuses what an emergency session may not do.
pub(super) fn not_in_emergency(index: &Index, caller: &Caller) -> Result<(), Problem> {
    let id = match caller.principal {
        Principal::Token(id) => id,
        Principal::Machine | Principal::User(_) => return Ok(()),
    };
    match index.outside_session(id).map(|session| &session.entrance) {
        Some(Entrance::Emergency { .. }) => {
            let message = "an emergency session makes no tokens and no emergency credentials, and does not acknowledge its use";
            Err(Problem::new(ErrorCode::Forbidden, message)
                .next("give somebody a role who signs in as usual, and let them do it"))
        }
        Some(Entrance::Provider { .. }) | None => Ok(()),
    }
}

fn sessions_of(index: &Index, of: Uuid) -> impl Iterator<Item = &Row<OutsideSessionRecord>> {
    index.outside_sessions.iter().filter(move |session| match &session.entrance {
        Entrance::Emergency { credential } => *credential == of,
        Entrance::Provider { .. } => false,
    })
}

fn find_emergency<'index>(
    index: &'index Index,
    named: &str,
) -> Result<&'index Row<EmergencyRecord>, Problem> {
    by_name_or_id(&index.emergencies, named).ok_or_else(|| no_such(AccessObject::EmergencyCredential, named))
}

pub(super) fn emergency_view(record: &EmergencyRecord) -> EmergencyCredential {
    EmergencyCredential {
        id: record.id,
        name: record.name.clone(),
        usable: record.sha256.is_some(),
        created_unix_seconds: record.created_unix_seconds,
        last_use: record.last_use.clone(),
    }
}

/// A secret for paper: base32 in groups.
fn fresh() -> Result<String, Problem> {
    let mut bytes = [0; SECRET_BYTES];
    getrandom::fill(&mut bytes).map_err(no_random)?;
    let letters = base32(&bytes);
    let mut text = String::with_capacity(letters.len() + letters.len() / GROUP_LETTERS);
    for (at, letter) in letters.chars().enumerate() {
        if at > 0 && at % GROUP_LETTERS == 0 {
            text.push('-');
        }
        text.push(letter);
    }
    Ok(text)
}

/// SHA-256 of a secret, however it was typed. It is random, so a slow hash is not needed.
fn stored_form(secret: &str) -> String {
    let typed = secret.chars().filter(char::is_ascii_alphanumeric);
    bearer::sha256(&typed.map(|letter| letter.to_ascii_uppercase()).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_counts_however_it_is_typed() {
        let secret = fresh().unwrap();
        assert_eq!(secret.len(), 32 + 7);
        assert_eq!(stored_form(&secret), stored_form(&secret.to_lowercase().replace('-', " ")));
        assert_ne!(stored_form(&secret), stored_form(&fresh().unwrap()));
    }
}
