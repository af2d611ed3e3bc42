//! A client's credentials in addition to its certificate (KMIP 1.4, section 2.1.2).

use super::{AttestationType, CredentialType, Nonce, ProtocolVersion};
use crate::codec::{Codec, DecodeError, Fields, Member, Rules, structure};
use crate::ttlv::{ByteString, Field, SecretText, Tag, Value, Writer};

/// The credential type of a signed grant of this program, from the range that KMIP leaves to
/// vendors.
pub const STRONGROOM_GRANT: CredentialType = CredentialType::Other(0x8000_0001);

/// The tag of the byte string in such a credential that is the signed grant.
pub const STRONGROOM_GRANT_TAG: Tag = Tag::of(0x54_0001);

structure! {
    /// A name and a password.
    pub struct UsernameAndPassword {
        /// The name.
        username: String = USERNAME,
        /// The password.
        password: Option<SecretText> = PASSWORD,
    }
}

structure! {
    /// The identity of a device (KMIP 1.1).
    #[derive(Default)]
    pub struct DeviceCredential {
        /// Its serial number.
        device_serial_number: Option<String> = DEVICE_SERIAL_NUMBER,
        /// Its password.
        password: Option<SecretText> = PASSWORD,
        /// Its name.
        device_identifier: Option<String> = DEVICE_IDENTIFIER,
        /// Its network.
        network_identifier: Option<String> = NETWORK_IDENTIFIER,
        /// The machine it is in.
        machine_identifier: Option<String> = MACHINE_IDENTIFIER,
        /// The medium in it.
        media_identifier: Option<String> = MEDIA_IDENTIFIER,
    }
}

structure! {
    /// A client's measurement of itself (KMIP 1.2).
    pub struct AttestationCredential {
        /// The server's nonce that the measurement answers.
        nonce: Nonce = NONCE,
        /// How it was measured.
        attestation_type: AttestationType = ATTESTATION_TYPE,
        /// The measurement.
        measurement: Option<ByteString> = ATTESTATION_MEASUREMENT,
        /// A third party's assertion about it.
        assertion: Option<ByteString> = ATTESTATION_ASSERTION,
    }
}

/// One credential.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// A name and a password.
    UsernameAndPassword(UsernameAndPassword),
    /// A device.
    Device(DeviceCredential),
    /// A measurement.
    Attestation(AttestationCredential),
    /// A signed grant of this program: a structure with one byte string, [`STRONGROOM_GRANT_TAG`].
    StrongroomGrant(ByteString),
    /// Any other.
    Other {
        /// Its type.
        credential_type: CredentialType,
        /// Its value.
        value: Value,
    },
}

impl Credential {
    /// The credential's type.
    pub fn credential_type(&self) -> CredentialType {
        match self {
            Self::UsernameAndPassword(_) => CredentialType::UsernameAndPassword,
            Self::Device(_) => CredentialType::Device,
            Self::Attestation(_) => CredentialType::Attestation,
            Self::StrongroomGrant(_) => STRONGROOM_GRANT,
            Self::Other { credential_type, .. } => *credential_type,
        }
    }
}

impl Codec for Credential {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let tag = Tag::CREDENTIAL_VALUE;
        let credential = match Member::take(Tag::CREDENTIAL_TYPE, &mut fields)? {
            CredentialType::UsernameAndPassword => Self::UsernameAndPassword(Member::take(tag, &mut fields)?),
            CredentialType::Device => Self::Device(Member::take(tag, &mut fields)?),
            CredentialType::Attestation => Self::Attestation(Member::take(tag, &mut fields)?),
            STRONGROOM_GRANT => {
                let value = fields.take_one(tag)?.ok_or_else(|| fields.missing(tag))?;
                let mut value = Fields::of(value, rules)?;
                let grant = Member::take(STRONGROOM_GRANT_TAG, &mut value)?;
                value.finish()?;
                Self::StrongroomGrant(grant)
            }
            credential_type => Self::Other { credential_type, value: Member::take(tag, &mut fields)? },
        };
        fields.finish()?;
        Ok(credential)
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            writer.enumeration(Tag::CREDENTIAL_TYPE, self.credential_type().number());
            let tag = Tag::CREDENTIAL_VALUE;
            match self {
                Self::UsernameAndPassword(value) => value.encode(tag, version, writer),
                Self::Device(value) => value.encode(tag, version, writer),
                Self::Attestation(value) => value.encode(tag, version, writer),
                Self::StrongroomGrant(grant) => {
                    writer.structure(tag, |writer| writer.bytes(STRONGROOM_GRANT_TAG, grant.expose()));
                }
                Self::Other { value, .. } => value.write(tag, writer),
            }
        });
    }
}

structure! {
    /// The credentials of a request. Versions before 1.2 have one.
    pub struct Authentication {
        /// The credentials. A request with this structure must have at least one; the service
        /// checks that.
        credentials: Vec<Credential> = CREDENTIAL,
    }
}
