//! Making a key, once.

use super::Client;
use super::error::ClientError;
use crate::message::{CreateRequest, RequestPayload, ResponsePayload};
use crate::protocol::{
    Attribute, AttributeValue, CryptographicAlgorithm, CryptographicUsageMask, Name, NameType, ObjectType,
    TemplateAttribute,
};

/// What key to make.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Its length in bits.
    pub bits: u16,
    /// What it may be used for.
    pub mask: CryptographicUsageMask,
    /// A name that no other object has: by it the key is found when the answer is lost. None for
    /// servers that take no names; a lost answer leaves a key there that nobody knows.
    pub unique_name: Option<String>,
    /// Further attributes.
    pub attributes: Vec<AttributeValue>,
}

impl NewKey {
    /// An AES-256 key to encrypt and decrypt with.
    pub fn aes_256() -> Self {
        Self {
            bits: 256,
            mask: CryptographicUsageMask::ENCRYPT | CryptographicUsageMask::DECRYPT,
            unique_name: None,
            attributes: Vec::new(),
        }
    }

    fn request(&self) -> CreateRequest {
        let own = [
            AttributeValue::CryptographicAlgorithm(CryptographicAlgorithm::Aes),
            AttributeValue::CryptographicLength(i32::from(self.bits)),
            AttributeValue::CryptographicUsageMask(self.mask),
        ];
        let name = self.unique_name.as_deref().map(name_attribute);
        let all = own.into_iter().chain(name).chain(self.attributes.iter().cloned());
        let attributes = all.map(Attribute::from).collect();
        CreateRequest {
            object_type: ObjectType::SymmetricKey,
            template_attribute: TemplateAttribute { templates: Vec::new(), attributes },
        }
    }
}

fn name_attribute(name: &str) -> AttributeValue {
    AttributeValue::Name(Name { value: name.to_owned(), kind: NameType::UninterpretedTextString })
}

impl Client {
    /// Makes an AES key and returns what the server calls it. One with a unique name is looked for
    /// first, and again if the answer to its making is lost or the server says that the name is
    /// taken: it is made only if it is not there. So the same call may be made again after any
    /// error. Up to four requests, each with its own time.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn create(&self, key: &NewKey) -> Result<String, ClientError> {
        let Some(name) = &key.unique_name else { return self.create_once(key) };
        if let Some(made_before) = self.locate_by_name(name)? {
            return Ok(made_before);
        }
        match self.create_once(key) {
            Err(error) if error.is_uncertain() => match self.locate_by_name(name) {
                Ok(Some(id)) => Ok(id),
                Ok(None) => self.create_once(key),
                Err(_) => Err(error),
            },
            Err(error) if error.refusal().is_some() => match self.locate_by_name(name) {
                Ok(Some(id)) => Ok(id),
                _ => Err(error),
            },
            outcome => outcome,
        }
    }

    /// The object of that name.
    ///
    /// # Errors
    /// [`ClientError`].
    pub fn locate_by_name(&self, name: &str) -> Result<Option<String>, ClientError> {
        // The least, if a server made several: everybody who asks gets the same.
        Ok(self.locate(vec![name_attribute(name)], NAMESAKES_MAX)?.into_iter().min())
    }

    fn create_once(&self, key: &NewKey) -> Result<String, ClientError> {
        match self.call(RequestPayload::Create(key.request()))? {
            ResponsePayload::Create(answer) => Ok(answer.unique_identifier),
            other => Err(self.nonsense(format!("it answers Create with {}", other.operation()))),
        }
    }
}

/// How many objects of one name are looked at. More than one takes two answers lost, or servers out
/// of step.
const NAMESAKES_MAX: u16 = 16;
