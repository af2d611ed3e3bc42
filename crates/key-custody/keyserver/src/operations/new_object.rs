//! The attributes of a new object: templates first, then the request's own.

use strongroom_kmip::protocol::{
    AttributeName, AttributeValue, CryptographicAlgorithm, ObjectType, ResultReason, TemplateAttribute,
};

use super::Context;
use crate::failure::Failure;
use crate::objects::attributes::{AttributeSet, Keeper, rule};
use crate::objects::id::ObjectId;
use crate::objects::lifecycle::{LifeCycle, RequestedDates};
use crate::objects::object::{Content, Object, Usage};

/// Longest key that is generated, in bits: an HMAC key of the longest block.
const KEY_MAX_BITS: i32 = 1024;

/// The requested properties of a new object, except its value.
#[derive(Debug, Default)]
pub struct Wanted {
    /// Attributes that the object keeps unchanged.
    pub attributes: AttributeSet,
    /// Its dates.
    pub dates: RequestedDates,
    /// Its usage limits.
    pub usage: Option<Usage>,
    /// Whether its value has never left a server, if the client states it.
    pub fresh: Option<bool>,
}

impl Wanted {
    /// Reads the request's attributes.
    ///
    /// # Errors
    ///
    /// `ItemNotFound` for a missing template, `InvalidField` for attributes that clients do not
    /// set.
    pub fn of(context: &mut Context<'_, '_>, asked: &TemplateAttribute) -> Result<Self, Failure> {
        let mut wanted = Self::default();
        let says = |name: &AttributeName| asked.attributes.iter().any(|attribute| attribute.name() == *name);
        for name in &asked.templates {
            for attribute in template_named(context, &name.value)?.to_attributes() {
                let name = attribute.name();
                // For a single-valued attribute, the request takes precedence over the template.
                if rule(&name).is_some_and(|rule| rule.many) || !says(&name) {
                    wanted.take(&attribute.value, context)?;
                }
            }
        }
        for attribute in &asked.attributes {
            wanted.take(&attribute.value, context)?;
        }
        Ok(wanted)
    }

    /// Adds one attribute.
    ///
    /// # Errors
    ///
    /// `InvalidField`.
    pub fn take(&mut self, value: &AttributeValue, context: &Context<'_, '_>) -> Result<(), Failure> {
        let name = value.name();
        if name.since() > context.version {
            return Err(Failure::invalid(format!("{name} is not an attribute of KMIP {}", context.version)));
        }
        let Some(rule) = rule(&name) else {
            return Err(Failure::invalid(format!("{name} is not an attribute of objects here")));
        };
        match value {
            AttributeValue::ActivationDate(date) => self.dates.activation = Some((*date).into()),
            AttributeValue::ProcessStartDate(date) => self.dates.process_start = Some((*date).into()),
            AttributeValue::ProtectStopDate(date) => self.dates.protect_stop = Some((*date).into()),
            AttributeValue::DeactivationDate(date) => self.dates.deactivation = Some((*date).into()),
            AttributeValue::OriginalCreationDate(date) => self.dates.original_creation = Some((*date).into()),
            AttributeValue::Fresh(fresh) => self.fresh = Some(*fresh),
            AttributeValue::UsageLimits(limits) => self.usage = Some(Usage::new(limits.total, limits.unit)),
            _ if rule.keeper == Keeper::Server => {
                return Err(Failure::invalid(format!("{name} is set by the server")));
            }
            _ if rule.many && self.attributes.has(value) => {}
            _ => {
                check_value(value)?;
                self.attributes.add(value.clone(), rule.many)?;
            }
        }
        Ok(())
    }

    /// The algorithm.
    pub fn algorithm(&self) -> Option<CryptographicAlgorithm> {
        match self.attributes.get(&AttributeName::CryptographicAlgorithm) {
            Some(AttributeValue::CryptographicAlgorithm(algorithm)) => Some(*algorithm),
            _ => None,
        }
    }

    /// The length in bits.
    pub fn length_bits(&self) -> Option<i32> {
        match self.attributes.get(&AttributeName::CryptographicLength) {
            Some(AttributeValue::CryptographicLength(length_bits)) => Some(*length_bits),
            _ => None,
        }
    }

    /// The requested object with that value; the caller owns it.
    ///
    /// # Errors
    ///
    /// `InvalidField` for dates that contradict each other.
    pub fn into_object(
        mut self,
        context: &Context<'_, '_>,
        object_type: ObjectType,
        content: Content,
    ) -> Result<Object, Failure> {
        let secret = matches!(object_type, ObjectType::SymmetricKey | ObjectType::SecretData);
        if secret {
            for value in [AttributeValue::Sensitive(false), AttributeValue::Extractable(true)] {
                if self.attributes.get(&value.name()).is_none() {
                    self.attributes.set(value);
                }
            }
        }
        let mut object = Object {
            id: ObjectId::random(),
            owner: context.caller.client(),
            object_type,
            life: LifeCycle::begin(self.dates, context.work.now())?,
            attributes: self.attributes,
            content,
            digest: None,
            fresh: self.fresh.unwrap_or(true),
            revocation: None,
            usage: self.usage,
            made_here: false,
            always_sensitive: false,
            never_extractable: false,
            upstream: None,
        };
        object.always_sensitive = object.is_sensitive();
        object.never_extractable = !object.is_extractable();
        Ok(object)
    }
}

/// The attributes of the caller's template of that name.
fn template_named(context: &mut Context<'_, '_>, name: &str) -> Result<AttributeSet, Failure> {
    let missing = || Failure::new(ResultReason::ItemNotFound, "there is no such template");
    let id = context.work.named(context.caller.client(), name)?.ok_or_else(missing)?;
    match context.work.load(id)?.content {
        Content::Template { attributes } => {
            context.objects.push(id);
            Ok(attributes)
        }
        _ => Err(missing()),
    }
}

/// Refuses values that this server cannot use.
pub fn check_value(value: &AttributeValue) -> Result<(), Failure> {
    match value {
        AttributeValue::ApplicationSpecificInformation(information) if information.data.is_none() => {
            Err(Failure::new(
                ResultReason::ApplicationNamespaceNotSupported,
                "the server makes no application data up; give some",
            ))
        }
        AttributeValue::Name(name) if name.value.is_empty() => Err(Failure::invalid("a name has characters")),
        _ => Ok(()),
    }
}

/// The number of bytes of a key of that algorithm and length in bits.
///
/// # Errors
///
/// `InvalidField` for an algorithm without symmetric keys, or a length that it does not have.
pub fn key_bytes(algorithm: CryptographicAlgorithm, length_bits: i32) -> Result<usize, Failure> {
    use CryptographicAlgorithm as Algorithm;
    let refused = || Failure::invalid(format!("{algorithm} has no keys of {length_bits} bits here"));
    let bytes = match (algorithm, length_bits) {
        (Algorithm::Aes, 128 | 192 | 256) => length_bits / 8,
        // Each byte has a bit of parity beside its seven bits of key (FIPS 46-3).
        (Algorithm::TripleDes, 112 | 168) => length_bits / 7,
        (Algorithm::TripleDes, 128 | 192) => length_bits / 8,
        (Algorithm::Skipjack, 80) => length_bits / 8,
        (
            Algorithm::HmacSha1
            | Algorithm::HmacSha224
            | Algorithm::HmacSha256
            | Algorithm::HmacSha384
            | Algorithm::HmacSha512,
            112..=KEY_MAX_BITS,
        ) if length_bits % 8 == 0 => length_bits / 8,
        (Algorithm::ChaCha20 | Algorithm::ChaCha20Poly1305, 256) => length_bits / 8,
        _ => return Err(refused()),
    };
    usize::try_from(bytes).map_err(|_| refused())
}
