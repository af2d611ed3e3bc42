//! Operations on attributes.

use crate::codec::structure;
use crate::protocol::{Attribute, AttributeIndex, AttributeName};

structure! {
    /// Return attributes (section 4.12).
    #[derive(Default)]
    pub struct GetAttributesRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The attributes; all if none is named.
        attribute_names: Vec<AttributeName> = ATTRIBUTE_NAME,
    }
}

structure! {
    /// The attributes, without those that the object does not have.
    pub struct GetAttributesResponse {
        /// The object's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The attributes.
        attributes: Vec<Attribute> = ATTRIBUTE,
    }
}

structure! {
    /// The names of an object's attributes (section 4.13).
    pub struct GetAttributeListResponse {
        /// The object's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The names.
        attribute_names: Vec<AttributeName> = ATTRIBUTE_NAME,
    }
}

structure! {
    /// Add one value of an attribute (section 4.14).
    pub struct AddAttributeRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The attribute, without an index.
        attribute: Attribute = ATTRIBUTE,
    }
}

structure! {
    /// Change one value of an attribute (section 4.15).
    pub struct ModifyAttributeRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The attribute; the index says which value.
        attribute: Attribute = ATTRIBUTE,
    }
}

structure! {
    /// Delete one value of an attribute (section 4.16).
    pub struct DeleteAttributeRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The attribute's name.
        attribute_name: AttributeName = ATTRIBUTE_NAME,
        /// The value; by default the first.
        attribute_index: Option<AttributeIndex> = ATTRIBUTE_INDEX,
    }
}

structure! {
    /// The attribute that was added, changed or deleted.
    pub struct AttributeResponse {
        /// The object's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The attribute, with its index.
        attribute: Attribute = ATTRIBUTE,
    }
}
