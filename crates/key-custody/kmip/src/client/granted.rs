//! A key under a signed grant.

use super::call::Refusal;
use super::error::ClientError;
use super::{Client, GotKey};
use crate::message::{GetAttributesRequest, GetRequest, RequestPayload, ResponsePayload};
use crate::protocol::{Attribute, AttributeName, AttributeValue, Authentication, Credential, Operation};
use crate::ttlv::ByteString;

/// The result of a fetch under a grant.
#[derive(Debug)]
pub struct GrantedKey {
    /// The key's attributes.
    pub attributes: Vec<AttributeValue>,
    /// The key, or the refusal. For a destroyed key the server may return the attributes and refuse
    /// the key.
    pub key: Result<GotKey, Refusal>,
}

impl Client {
    /// Fetches a symmetric key and its attributes in one message with a grant. It is sent once:
    /// without an answer, the grant may be used up ([`ClientError::is_uncertain`]).
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Refused`] if the grant is refused.
    pub fn get_granted(
        &self,
        id: &str,
        names: &[AttributeName],
        grant: &[u8],
    ) -> Result<GrantedKey, ClientError> {
        let credentials = vec![Credential::StrongroomGrant(ByteString::from(grant))];
        let payloads = vec![
            RequestPayload::GetAttributes(GetAttributesRequest {
                unique_identifier: Some(id.to_owned()),
                attribute_names: names.to_vec(),
            }),
            RequestPayload::Get(GetRequest {
                unique_identifier: Some(id.to_owned()),
                ..GetRequest::default()
            }),
        ];
        let answers = self.batch_as(Some(Authentication { credentials }), payloads)?;
        let refused = |refusal| ClientError::Refused { server: self.server().clone(), refusal };
        let mut answers = answers.into_iter();
        let attributes = match answers.next() {
            Some(Ok(ResponsePayload::GetAttributes(answer))) => answer.attributes,
            Some(Ok(other)) => return Err(self.answered_with(other.operation())),
            Some(Err(refusal)) => return Err(refused(refusal)),
            None => return Err(self.nonsense("nothing is said about the key")),
        };
        let attributes = attributes.into_iter().map(|Attribute { value, .. }| value).collect();
        let key = match answers.next() {
            Some(Ok(ResponsePayload::Get(answer))) if answer.unique_identifier == id => {
                Ok(self.plain_key(answer.object)?)
            }
            Some(Ok(ResponsePayload::Get(_))) => {
                return Err(self.nonsense("it gives another object than was asked for"));
            }
            Some(Ok(other)) => return Err(self.answered_with(other.operation())),
            Some(Err(refusal)) => Err(refusal),
            None => return Err(self.nonsense("it does not say whether it gives the key")),
        };
        Ok(GrantedKey { attributes, key })
    }

    fn answered_with(&self, operation: Operation) -> ClientError {
        self.nonsense(format!("it answers with {operation}"))
    }
}
