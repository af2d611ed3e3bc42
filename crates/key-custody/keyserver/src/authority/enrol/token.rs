//! Enrolment tokens.
//!
//! A token is written as `strongroom-token-1.` and 168 hexadecimal digits: id (16 bytes), secret
//! (32), SHA-256 of the authority's certificate (32), and the first 4 bytes of the SHA-256 of all
//! these, which distinguish a mistyped token from an unknown one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_crypto::mac::sha256;
use strongroom_memory::secret::SecretBytes;
use strongroom_store::{Is, KeyRange, Operation, Outcome, Store, Transaction};
use time::{Duration, OffsetDateTime};
use zeroize::Zeroizing;

use super::super::Authority;
use super::super::clients::check_client_validity;
use super::super::error::AuthorityError;
use super::super::limits::{TOKEN_VALIDITY, TOKEN_VALIDITY_MAX, TOKENS_MAX};
use super::super::records::{TOKEN, decode, encode, find, rest_of};
use crate::access::{CertificateSha256, ClientId, ClientName, PublicKeySha256, Role};

const PREFIX: &str = "strongroom-token-1.";
const ID_BYTES: usize = 16;
const SECRET_BYTES: usize = 32;
const CHECK_BYTES: usize = 4;
const TOKEN_BYTES: usize = ID_BYTES + SECRET_BYTES + 32 + CHECK_BYTES;
/// Shortest life of a token: time to carry it somewhere.
const TOKEN_VALIDITY_MIN: Duration = Duration::MINUTE;
/// Tokens forgotten in one transaction, within the store's limit.
const FORGET_PER_TRANSACTION: usize = 100;

/// A token's id; not secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenId(u128);

impl fmt::Display for TokenId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

/// A text that is not a token, or not a token's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenTextError {
    /// Not in the form of a token's id.
    #[error("a token's id has 32 hexadecimal digits")]
    Id,
    /// Not in the form of a token.
    #[error("this is no enrolment token; a token begins with '{PREFIX}' and has {} digits after it", TOKEN_BYTES * 2)]
    Form,
    /// Well formed, but mistyped.
    #[error("the enrolment token has a mistake in it; copy it again, whole")]
    Check,
}

impl FromStr for TokenId {
    type Err = TokenTextError;

    fn from_str(text: &str) -> Result<Self, TokenTextError> {
        let digits = text.len() == 2 * ID_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(text, 16).ok().filter(|_| digits).map(Self).ok_or(TokenTextError::Id)
    }
}

/// A token, with its secret.
#[derive(Debug)]
pub struct EnrolmentToken {
    id: TokenId,
    secret: SecretBytes,
    authority: CertificateSha256,
}

impl EnrolmentToken {
    /// Its id.
    pub fn id(&self) -> TokenId {
        self.id
    }

    /// The authority to which the server must prove that it belongs.
    pub fn authority(&self) -> CertificateSha256 {
        self.authority
    }

    /// The token's text with its secret, for its carrier and for the server.
    pub fn reveal(&self) -> Zeroizing<String> {
        let bytes = self.bytes();
        // Allocated at its final capacity, so that growing leaves no copy behind.
        let mut text = Zeroizing::new(String::with_capacity(PREFIX.len() + 2 * TOKEN_BYTES));
        text.push_str(PREFIX);
        for byte in bytes.iter().chain(&sha256(&bytes)[..CHECK_BYTES]) {
            for digit in [byte >> 4, byte & 15] {
                text.push(char::from(b"0123456789abcdef"[usize::from(digit)]));
            }
        }
        text
    }

    /// Reads a token's text, ignoring space around it.
    ///
    /// # Errors
    /// [`TokenTextError::Form`], [`TokenTextError::Check`].
    pub fn read(text: &str) -> Result<Self, TokenTextError> {
        let digits = text.trim().strip_prefix(PREFIX).ok_or(TokenTextError::Form)?;
        let mut bytes = Zeroizing::new([0; TOKEN_BYTES]);
        let (pairs, []) = digits.as_bytes().as_chunks::<2>() else {
            return Err(TokenTextError::Form);
        };
        if pairs.len() != TOKEN_BYTES {
            return Err(TokenTextError::Form);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            let digit = |digit: u8| char::from(digit).to_digit(16).ok_or(TokenTextError::Form);
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        let (content, check) = bytes.split_at(TOKEN_BYTES - CHECK_BYTES);
        if &sha256(content)[..CHECK_BYTES] != check {
            return Err(TokenTextError::Check);
        }
        let (id, rest) = content.split_first_chunk().ok_or(TokenTextError::Form)?;
        let (secret, authority) = rest.split_at(SECRET_BYTES);
        let mut secret = Zeroizing::new(secret.to_vec());
        Ok(Self {
            id: TokenId(u128::from_be_bytes(*id)),
            secret: SecretBytes::from_slice_and_wipe(&mut secret).map_err(|_| TokenTextError::Form)?,
            authority: CertificateSha256::from_bytes(authority.try_into().map_err(|_| TokenTextError::Form)?),
        })
    }

    fn bytes(&self) -> Zeroizing<Vec<u8>> {
        let mut bytes = Zeroizing::new(Vec::with_capacity(TOKEN_BYTES));
        bytes.extend(self.id.0.to_be_bytes());
        bytes.extend(self.secret.expose());
        bytes.extend(self.authority.as_bytes());
        bytes
    }

    /// Whether it is the token of `record`; compares in constant time.
    pub(super) fn is_of(&self, record: &TokenRecord) -> bool {
        let digest = sha256(self.secret.expose());
        aws_lc_rs::constant_time::verify_slices_are_equal(&digest, &record.secret_sha256).is_ok()
    }
}

/// A token's record in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TokenRecord {
    /// The secret has 256 random bits, so SHA-256 suffices.
    pub(super) secret_sha256: [u8; 32],
    pub(super) client: ClientId,
    /// Whether the client exists already, and lost its certificates.
    #[serde(default)]
    pub(super) replaces: bool,
    pub(super) name: ClientName,
    pub(super) role: Role,
    pub(super) public_key: Option<PublicKeySha256>,
    /// Validity of the certificate in seconds, if it is not the default.
    pub(super) certificate_seconds: Option<i64>,
    #[serde(with = "time::serde::timestamp")]
    pub(super) expires: OffsetDateTime,
    pub(super) used: Option<UsedRecord>,
}

/// The use of a token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct UsedRecord {
    pub(super) public_key: PublicKeySha256,
    pub(super) certificate: CertificateSha256,
}

/// The parameters of a new token.
#[derive(Debug, Clone)]
pub struct NewToken {
    /// An existing client of that role and name that lost its certificates, which end when the
    /// token is used. `None` for a new client.
    pub client: Option<ClientId>,
    /// The role that its user will have.
    pub role: Role,
    /// The name that its user will have.
    pub name: ClientName,
    /// The only key that it may be used for, if that is known beforehand.
    pub public_key: Option<PublicKeySha256>,
    /// How long the token can be used.
    pub validity: Duration,
    /// Validity of the certificate; `None` for the default.
    pub certificate_validity: Option<Duration>,
}

impl NewToken {
    /// A token of the default validity, for any key.
    pub fn new(role: Role, name: ClientName) -> Self {
        Self {
            client: None,
            role,
            name,
            public_key: None,
            validity: TOKEN_VALIDITY,
            certificate_validity: None,
        }
    }
}

/// The state of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenState {
    /// It can be used.
    Open,
    /// It was used.
    Used,
    /// It expired.
    Expired,
}

/// A token in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenSummary {
    /// Its id.
    pub id: TokenId,
    /// The client that its user becomes.
    pub client: ClientId,
    /// That client's name.
    pub name: ClientName,
    /// That client's role.
    pub role: Role,
    /// The first moment at which it can no longer be used.
    pub expires: OffsetDateTime,
    /// Its state.
    pub state: TokenState,
}

impl Authority {
    /// Makes a token. Only the returned value holds its secret.
    ///
    /// # Errors
    /// [`AuthorityError::Limit`] for a validity out of range or too many tokens;
    /// [`AuthorityError::Unknown`] for a client that does not exist, is revoked, or has another
    /// role or name; [`AuthorityError::Store`].
    pub fn create_token(&self, new: NewToken, now: OffsetDateTime) -> Result<EnrolmentToken, AuthorityError> {
        if !(TOKEN_VALIDITY_MIN..=TOKEN_VALIDITY_MAX).contains(&new.validity) {
            return Err(AuthorityError::Limit {
                what: "the life of a token",
                allowed: format!("from one minute to {} days", TOKEN_VALIDITY_MAX.whole_days()),
            });
        }
        if let Some(validity) = new.certificate_validity {
            check_client_validity(validity)?;
        }
        if let Some(client) = new.client {
            let known = self.clients()?.into_iter().any(|(id, known, is_revoked)| {
                id == client && !is_revoked && (known.role, &known.name) == (new.role, &new.name)
            });
            if !known {
                return Err(AuthorityError::unknown_client(
                    client,
                    " of that role and name that is not revoked",
                ));
            }
        }
        let count = || Ok::<_, AuthorityError>(self.store.snapshot()?.all(&KeyRange::prefix(TOKEN))?.len());
        if count()? >= TOKENS_MAX {
            forget_expired(self.store.as_ref(), now)?;
        }
        if count()? >= TOKENS_MAX {
            return Err(AuthorityError::Limit {
                what: "the number of tokens",
                allowed: format!("at most {TOKENS_MAX}; cancel those that are not needed"),
            });
        }
        let mut id = [0; ID_BYTES];
        aws_lc_rs::rand::fill(&mut id).map_err(|_| AuthorityError::Library("the random source"))?;
        let token = EnrolmentToken {
            id: TokenId(u128::from_be_bytes(id)),
            secret: SecretBytes::random(SECRET_BYTES)?,
            authority: self.fingerprint(),
        };
        let record = TokenRecord {
            secret_sha256: sha256(token.secret.expose()),
            client: new.client.unwrap_or_else(ClientId::random),
            replaces: new.client.is_some(),
            name: new.name,
            role: new.role,
            public_key: new.public_key,
            certificate_seconds: new.certificate_validity.map(Duration::whole_seconds),
            expires: now + new.validity,
            used: None,
        };
        let key = token_key(token.id);
        let transaction = Transaction::new().when(key.clone(), Is::Absent).put(key, encode(&record)?);
        match self.store.commit(transaction)? {
            Outcome::Committed(_) => Ok(token),
            Outcome::Conflict(_) => Err(AuthorityError::Contended),
        }
    }

    /// Every token on record, in any state.
    ///
    /// # Errors
    /// [`AuthorityError::Store`], [`AuthorityError::Damaged`].
    pub fn tokens(&self, now: OffsetDateTime) -> Result<Vec<TokenSummary>, AuthorityError> {
        let entries = self.store.snapshot()?.all(&KeyRange::prefix(TOKEN))?;
        let read = entries.into_iter().map(|entry| {
            let record: TokenRecord = decode(&entry.key, &entry.value)?;
            let state = match record.used {
                Some(_) => TokenState::Used,
                None if record.expires <= now => TokenState::Expired,
                None => TokenState::Open,
            };
            let TokenRecord { client, name, role, expires, .. } = record;
            Ok(TokenSummary { id: rest_of(&entry.key, TOKEN)?, client, name, role, expires, state })
        });
        read.collect()
    }

    /// Cancels an unused token. To undo a used one, revoke its client.
    ///
    /// # Errors
    /// [`AuthorityError::Unknown`] if there is no such unused token; [`AuthorityError::Contended`];
    /// [`AuthorityError::Store`].
    pub fn cancel_token(&self, id: TokenId) -> Result<(), AuthorityError> {
        let key = token_key(id);
        let found = find::<TokenRecord>(self.store.snapshot()?.as_ref(), &key)?
            .filter(|found| found.record.used.is_none())
            .ok_or_else(|| AuthorityError::Unknown {
                what: format!("unused token {id}"),
                next: "`strongroom keyserver token list` shows those that wait; the client of a used one is shut out by \
                       `strongroom keyserver client revoke`",
            })?;
        match self.store.commit(Transaction::new().when(key.clone(), found.is).delete(key))? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict(_) => Err(AuthorityError::Contended),
        }
    }
}

pub(super) fn token_key(id: TokenId) -> String {
    format!("{TOKEN}{id}")
}

/// Forgets the tokens that had expired at `since`, used or not.
pub(in super::super) fn forget_expired(
    store: &dyn Store,
    since: OffsetDateTime,
) -> Result<(), AuthorityError> {
    let mut expired = Vec::new();
    for entry in store.snapshot()?.all(&KeyRange::prefix(TOKEN))? {
        let record: TokenRecord = decode(&entry.key, &entry.value)?;
        if record.expires <= since {
            expired.push(Operation::Delete { key: entry.key });
        }
    }
    for chunk in expired.chunks(FORGET_PER_TRANSACTION) {
        store.commit(Transaction { conditions: Vec::new(), operations: chunk.to_vec() })?;
    }
    Ok(())
}
