//! All KMIP attributes of an object, derived from the server's record.

use strongroom_kmip::protocol::{
    Attribute, AttributeName, AttributeValue, CryptographicAlgorithm, Digest, HashingAlgorithm,
    KeyFormatType, ObjectType, ProtocolVersion, RevocationReason, RngAlgorithm, RngParameters,
    State as KmipState, UsageLimits,
};
use strongroom_kmip::ttlv::{DateTime, Interval};

use super::clock::UnixSeconds;
use super::lifecycle::{SettableDate, State};
use super::object::Object;

/// How long a client may use a fetched key before it should fetch it again (KMIP 1.4, 3.20).
pub const LEASE_SECONDS: u32 = 3600;

impl From<State> for KmipState {
    fn from(state: State) -> Self {
        match state {
            State::PreActive => Self::PreActive,
            State::Active => Self::Active,
            State::Deactivated => Self::Deactivated,
            State::Compromised => Self::Compromised,
            State::Destroyed => Self::Destroyed,
            State::DestroyedCompromised => Self::DestroyedCompromised,
        }
    }
}

impl From<UnixSeconds> for DateTime {
    fn from(time: UnixSeconds) -> Self {
        Self(time.0)
    }
}

impl From<DateTime> for UnixSeconds {
    fn from(time: DateTime) -> Self {
        Self(time.0)
    }
}

/// The server's own random source: AWS-LC's, which is a CTR_DRBG with AES-256 (NIST SP 800-90A).
pub fn random_source() -> RngParameters {
    RngParameters {
        rng_algorithm: RngAlgorithm::Drbg,
        cryptographic_algorithm: Some(CryptographicAlgorithm::Aes),
        cryptographic_length: Some(256),
        hashing_algorithm: None,
        drbg_algorithm: Some(strongroom_kmip::protocol::DrbgAlgorithm::Ctr),
        recommended_curve: None,
        fips186_variation: None,
        prediction_resistance: None,
    }
}

impl Object {
    /// All attributes that `version` has, with their values at `now`.
    pub fn attributes_at(&self, version: ProtocolVersion, now: UnixSeconds) -> Vec<Attribute> {
        let mut all: Vec<Attribute> = self.computed(now).into_iter().map(Attribute::from).collect();
        all.extend(self.attributes.to_attributes());
        all.retain(|attribute| attribute.name().since() <= version);
        all
    }

    fn computed(&self, now: UnixSeconds) -> Vec<AttributeValue> {
        use AttributeValue as Value;
        let date = |make: fn(DateTime) -> Value, at: Option<UnixSeconds>| at.map(|at| make(at.into()));
        let life = &self.life;
        let is_cryptographic = !matches!(self.object_type, ObjectType::Template | ObjectType::OpaqueObject);
        let mut values = vec![
            Value::UniqueIdentifier(self.id.to_string()),
            Value::ObjectType(self.object_type),
            Value::InitialDate(life.initial().into()),
            Value::LastChangeDate(life.last_change_at(now).into()),
            Value::LeaseTime(Interval(LEASE_SECONDS)),
        ];
        values.extend(date(Value::DestroyDate, life.destroyed()));
        values.extend(date(Value::ArchiveDate, life.archived()));
        if is_cryptographic {
            values.push(Value::State(life.state_at(now).into()));
            values.extend(date(Value::ActivationDate, life.date(SettableDate::Activation)));
            values.extend(date(Value::ProcessStartDate, life.date(SettableDate::ProcessStart)));
            values.extend(date(Value::ProtectStopDate, life.date(SettableDate::ProtectStop)));
            values.extend(date(Value::DeactivationDate, life.date(SettableDate::Deactivation)));
            values.extend(date(Value::CompromiseDate, life.compromised()));
            values.extend(date(Value::CompromiseOccurrenceDate, life.compromise_occurred()));
            values.extend(date(Value::OriginalCreationDate, life.original_creation()));
            values.push(Value::Fresh(self.fresh));
        }
        if let Some(digest) = &self.digest {
            values.push(Value::Digest(Digest {
                hashing_algorithm: HashingAlgorithm::Sha256,
                value: Some(digest.into()),
                key_format_type: self.content.format(),
            }));
        }
        if let Some(revocation) = &self.revocation {
            values.push(Value::RevocationReason(RevocationReason {
                code: revocation.code(),
                message: revocation.message.clone(),
            }));
        }
        if let Some(usage) = &self.usage {
            values.push(Value::UsageLimits(UsageLimits {
                total: usage.total,
                count: Some(usage.left),
                unit: usage.unit(),
            }));
        }
        if self.has_key_value_elsewhere() {
            values.push(Value::KeyValuePresent(false));
        }
        if matches!(self.object_type, ObjectType::SymmetricKey | ObjectType::SecretData) {
            values.push(Value::AlwaysSensitive(self.always_sensitive));
            values.push(Value::NeverExtractable(self.never_extractable));
        }
        values
    }

    /// Whether the value is kept elsewhere (KMIP 1.2, Key Value Location) and not available through
    /// a provider.
    pub fn has_key_value_elsewhere(&self) -> bool {
        self.upstream.is_none()
            && !self.is_destroyed()
            && self.content.material().is_some_and(|material| !material.is_present())
    }

    /// Whether plain material must not be released.
    pub fn is_sensitive(&self) -> bool {
        self.attributes.get(&AttributeName::Sensitive) == Some(&AttributeValue::Sensitive(true))
    }

    /// Whether material may be released at all.
    pub fn is_extractable(&self) -> bool {
        self.attributes.get(&AttributeName::Extractable) != Some(&AttributeValue::Extractable(false))
    }

    /// The format for a client that requests none.
    pub fn default_format(&self) -> KeyFormatType {
        self.content.format().unwrap_or(KeyFormatType::Raw)
    }
}
