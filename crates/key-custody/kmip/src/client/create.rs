//! Making a key, once.

use super::Client;
use super::error::ClientError;
use crate::message::{CreateRequest, RequestPayload, ResponsePayload};
use crate::protocol::{
    Attribute, AttributeValue, CryptographicAlgorithm, CryptographicUsageMask, Name, NameType, ObjectType,
    TemplateAttribute,
};

/// The key to create.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// Its length in bits.
    pub bits: u16,
    /// Its permitted uses.
    pub mask: CryptographicUsageMask,
    /// A name that no other object has, by which the key is found if the answer is lost. `None` for
    /// servers without names, where a lost answer leaves an unknown key behind.
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
    /// Creates an AES key and returns its identifier. A key with a unique name is created only if
    /// it does not exist: it is located first, and again if the answer to Create is lost or the
    /// server refuses. So the call may be repeated after any error. It makes up to four requests,
    /// each with its own time-out.
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
        // The least identifier, if a server made several: every caller gets the same one.
        Ok(self.locate(vec![name_attribute(name)], NAMESAKES_MAX)?.into_iter().min())
    }

    fn create_once(&self, key: &NewKey) -> Result<String, ClientError> {
        match self.call(RequestPayload::Create(key.request()))? {
            ResponsePayload::Create(answer) => Ok(answer.unique_identifier),
            other => Err(self.nonsense(format!("it answers Create with {}", other.operation()))),
        }
    }
}

/// How many objects of one name are considered. More than one exists only after two lost answers,
/// or if servers are out of step.
const NAMESAKES_MAX: u16 = 16;
