//! The attributes that clients set, and the rules for changing them.

use std::sync::Arc;

use strongroom_kmip::protocol::{Attribute, AttributeIndex, AttributeName, AttributeValue};

/// Most values of attributes that one object may have. A tape library uses about ten; an object's
/// attributes must stay far below the store's largest value.
pub const ATTRIBUTES_MAX: usize = 256;

/// Who sets an attribute (KMIP 1.4, section 3, "initially set by", "modifiable by client",
/// "deletable by client").
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeper {
    /// The server alone.
    Server,
    /// The client, once: with the object, or later if it has none.
    ClientOnce,
    /// The client, as often as it likes.
    Client,
    /// A date of the life cycle: the client, until it is reached.
    LifeCycle,
    /// Usage Limits: the client, until some were allocated.
    UsageLimits,
}

/// The rule for attributes of one name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttributeRule {
    /// Who sets it.
    pub keeper: Keeper,
    /// Whether it may have several values.
    pub many: bool,
}

/// The rule for a name, or `None` if this server has no such attribute: those of certificates, and
/// `y-` ones, which servers define and this one does not.
pub fn rule(name: &AttributeName) -> Option<AttributeRule> {
    use AttributeName as Name;
    let (keeper, many) = match name {
        Name::UniqueIdentifier
        | Name::ObjectType
        | Name::Digest
        | Name::LeaseTime
        | Name::State
        | Name::InitialDate
        | Name::DestroyDate
        | Name::CompromiseOccurrenceDate
        | Name::CompromiseDate
        | Name::RevocationReason
        | Name::ArchiveDate
        | Name::LastChangeDate
        | Name::KeyValuePresent
        | Name::AlwaysSensitive
        | Name::NeverExtractable => (Keeper::Server, false),

        Name::CryptographicAlgorithm
        | Name::CryptographicLength
        | Name::CryptographicDomainParameters
        | Name::CryptographicUsageMask
        | Name::OperationPolicyName
        | Name::Fresh
        | Name::OriginalCreationDate
        | Name::RandomNumberGenerator => (Keeper::ClientOnce, false),

        Name::ActivationDate | Name::ProcessStartDate | Name::ProtectStopDate | Name::DeactivationDate => {
            (Keeper::LifeCycle, false)
        }
        Name::UsageLimits => (Keeper::UsageLimits, false),

        Name::ContactInformation
        | Name::Pkcs12FriendlyName
        | Name::Description
        | Name::Comment
        | Name::Sensitive
        | Name::Extractable => (Keeper::Client, false),

        Name::Name
        | Name::CryptographicParameters
        | Name::ObjectGroup
        | Name::Link
        | Name::ApplicationSpecificInformation
        | Name::AlternativeName
        | Name::KeyValueLocation => (Keeper::Client, true),
        Name::Other(custom) if custom.starts_with("x-") => (Keeper::Client, true),

        Name::CertificateType
        | Name::CertificateLength
        | Name::X509CertificateIdentifier
        | Name::X509CertificateSubject
        | Name::X509CertificateIssuer
        | Name::CertificateIdentifier
        | Name::CertificateSubject
        | Name::CertificateIssuer
        | Name::DigitalSignatureAlgorithm
        | Name::Other(_) => return None,
    };
    Some(AttributeRule { keeper, many })
}

/// Why an attribute cannot be added or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    /// It has a value, and may have only one.
    #[error("the object has {name} already, and may have it once")]
    Single {
        /// The attribute.
        name: AttributeName,
    },
    /// The object has no such value.
    #[error("the object has no {name} with index {index}")]
    NoSuchInstance {
        /// The attribute.
        name: AttributeName,
        /// The index.
        index: u32,
    },
    /// The limit of values is reached.
    #[error("an object may have {ATTRIBUTES_MAX} attributes at most")]
    TooMany,
}

/// Attributes of one object in the order of their addition. An instance keeps its index for life,
/// and an index is not reused while a later one exists.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AttributeSet {
    /// Shared by copies of an object until one of them changes: each release of a key copies it.
    instances: Arc<Vec<Instance>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Instance {
    index: u32,
    value: AttributeValue,
}

impl AttributeSet {
    /// The inverse of [`Self::to_attributes`].
    pub fn from_attributes(attributes: Vec<Attribute>) -> Self {
        let instances = attributes
            .into_iter()
            .map(|attribute| Instance {
                index: attribute.index.unwrap_or_default().0,
                value: attribute.value,
            })
            .collect();
        Self { instances: Arc::new(instances) }
    }

    /// Every attribute in KMIP's form: the first of its name without an index.
    pub fn to_attributes(&self) -> Vec<Attribute> {
        self.instances.iter().map(Instance::to_attribute).collect()
    }

    /// The first value of that name.
    pub fn get(&self, name: &AttributeName) -> Option<&AttributeValue> {
        self.instances.iter().map(|instance| &instance.value).find(|value| value.name() == *name)
    }

    /// All values of that name.
    pub fn all(&self, name: &AttributeName) -> impl Iterator<Item = &AttributeValue> {
        self.instances.iter().map(|instance| &instance.value).filter(move |value| value.name() == *name)
    }

    /// The names of the object.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.instances.iter().filter_map(|instance| match &instance.value {
            AttributeValue::Name(name) => Some(name.value.as_str()),
            _ => None,
        })
    }

    /// Whether it has exactly this value.
    pub fn has(&self, value: &AttributeValue) -> bool {
        self.instances.iter().any(|instance| instance.value == *value)
    }

    /// Adds a value; returns the attribute with its index.
    ///
    /// # Errors
    ///
    /// [`AttributeError::Single`], [`AttributeError::TooMany`].
    pub fn add(&mut self, value: AttributeValue, many: bool) -> Result<Attribute, AttributeError> {
        let name = value.name();
        let last = self
            .instances
            .iter()
            .filter(|instance| instance.value.name() == name)
            .map(|instance| instance.index)
            .max();
        if last.is_some() && !many {
            return Err(AttributeError::Single { name });
        }
        if self.instances.len() >= ATTRIBUTES_MAX {
            return Err(AttributeError::TooMany);
        }
        let instance = Instance { index: last.map_or(0, |last| last + 1), value };
        let attribute = instance.to_attribute();
        Arc::make_mut(&mut self.instances).push(instance);
        Ok(attribute)
    }

    /// Replaces the instance of the same name with that index.
    ///
    /// # Errors
    ///
    /// [`AttributeError::NoSuchInstance`].
    pub fn modify(&mut self, value: AttributeValue, index: u32) -> Result<Attribute, AttributeError> {
        let name = value.name();
        let place = self.place(&name, index)?;
        let instance = &mut Arc::make_mut(&mut self.instances)[place];
        instance.value = value;
        Ok(instance.to_attribute())
    }

    /// Removes an instance, and returns it.
    ///
    /// # Errors
    ///
    /// [`AttributeError::NoSuchInstance`].
    pub fn remove(&mut self, name: &AttributeName, index: u32) -> Result<Attribute, AttributeError> {
        let place = self.place(name, index)?;
        Ok(Arc::make_mut(&mut self.instances).remove(place).to_attribute())
    }

    /// Removes all values of a name.
    pub fn remove_all(&mut self, name: &AttributeName) -> Vec<AttributeValue> {
        let instances = Arc::unwrap_or_clone(std::mem::take(&mut self.instances));
        let (gone, kept) =
            instances.into_iter().partition(|instance: &Instance| instance.value.name() == *name);
        self.instances = Arc::new(kept);
        gone.into_iter().map(|instance| instance.value).collect()
    }

    /// Sets the one value of a name.
    pub fn set(&mut self, value: AttributeValue) {
        let name = value.name();
        let instances = Arc::make_mut(&mut self.instances);
        match instances.iter_mut().find(|instance| instance.value.name() == name) {
            Some(instance) => instance.value = value,
            None => instances.push(Instance { index: 0, value }),
        }
    }

    fn place(&self, name: &AttributeName, index: u32) -> Result<usize, AttributeError> {
        self.instances
            .iter()
            .position(|instance| instance.index == index && instance.value.name() == *name)
            .ok_or_else(|| AttributeError::NoSuchInstance { name: name.clone(), index })
    }
}

impl Instance {
    fn to_attribute(&self) -> Attribute {
        let index = (self.index > 0).then_some(AttributeIndex(self.index));
        Attribute { index, value: self.value.clone() }
    }
}

#[cfg(test)]
mod tests {
    use strongroom_kmip::ttlv::Value;

    use super::*;

    fn custom(name: &str, value: &str) -> AttributeValue {
        AttributeValue::Other { name: name.to_owned(), value: Value::TextString(value.to_owned()) }
    }

    #[test]
    fn instances_keep_their_index() {
        let mut set = AttributeSet::default();
        for (value, index) in [("a", None), ("b", Some(1)), ("c", Some(2))] {
            let added = set.add(custom("x-tag", value), true).unwrap();
            assert_eq!(added.index, index.map(AttributeIndex));
        }
        let name = AttributeName::from("x-tag");
        assert_eq!(set.remove(&name, 1).unwrap().value, custom("x-tag", "b"));
        assert_eq!(
            set.remove(&name, 1),
            Err(AttributeError::NoSuchInstance { name: name.clone(), index: 1 })
        );
        assert_eq!(set.modify(custom("x-tag", "d"), 2).unwrap().index, Some(AttributeIndex(2)));
        assert_eq!(set.add(custom("x-tag", "e"), true).unwrap().index, Some(AttributeIndex(3)));
        assert_eq!(AttributeSet::from_attributes(set.to_attributes()), set);
    }

    #[test]
    fn an_attribute_that_stands_once_is_not_added_twice() {
        let mut set = AttributeSet::default();
        let contact = |text: &str| AttributeValue::ContactInformation(text.to_owned());
        set.add(contact("Foo"), false).unwrap();
        assert_eq!(
            set.add(contact("Bar"), false),
            Err(AttributeError::Single { name: AttributeName::ContactInformation })
        );
        set.modify(contact("Bar"), 0).unwrap();
        assert_eq!(set.get(&AttributeName::ContactInformation), Some(&contact("Bar")));
    }

    #[test]
    fn an_object_has_so_many_attributes_and_no_more() {
        let mut set = AttributeSet::default();
        for number in 0..ATTRIBUTES_MAX {
            set.add(custom("x-n", &number.to_string()), true).unwrap();
        }
        assert_eq!(set.add(custom("x-n", "more"), true), Err(AttributeError::TooMany));
    }

    #[test]
    fn every_attribute_of_keys_has_a_rule_and_no_other() {
        for name in AttributeName::NAMED {
            let text = name.as_str();
            let certificates_only = text.contains("Certificate") || text == "Digital Signature Algorithm";
            assert_eq!(rule(name).is_none(), certificates_only, "{name}");
        }
        assert!(rule(&AttributeName::from("x-Vendor")).is_some());
        assert!(rule(&AttributeName::from("y-Vendor")).is_none());
        assert!(rule(&AttributeName::from("Vendor")).is_none());
    }
}
