//! Operations that make, find and return objects.

use crate::codec::{Codec, DecodeError, Fields, Member, Rules, structure};
use crate::protocol::{
    Attribute, CryptographicUsageMask, KeyCompressionType, KeyFormatType, KeyWrapType,
    KeyWrappingSpecification, ManagedObject, ObjectGroupMember, ObjectType, ProtocolVersion,
    StorageStatusMask, TemplateAttribute,
};
use crate::ttlv::{Field, Interval, Tag, Writer};

structure! {
    /// Make a key (section 4.1).
    pub struct CreateRequest {
        /// A symmetric key; servers make nothing else by this operation.
        object_type: ObjectType = OBJECT_TYPE,
        /// Its attributes, algorithm and length among them.
        template_attribute: TemplateAttribute = TEMPLATE_ATTRIBUTE,
    }
}

structure! {
    /// The key that was made.
    pub struct CreateResponse {
        /// The object's type.
        object_type: ObjectType = OBJECT_TYPE,
        /// Its unique identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// Attributes that the server set beyond those asked for.
        template_attribute: Option<TemplateAttribute> = TEMPLATE_ATTRIBUTE,
    }
}

/// Register an object (section 4.3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisterRequest {
    /// Its attributes.
    pub template_attribute: TemplateAttribute,
    /// The object, which says its type.
    pub object: ManagedObject,
}

structure! {
    /// The registered object.
    pub struct RegisterResponse {
        /// Its unique identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// Attributes that the server set beyond those asked for.
        template_attribute: Option<TemplateAttribute> = TEMPLATE_ATTRIBUTE,
    }
}

structure! {
    /// Make a key that replaces another (section 4.4).
    #[derive(Default)]
    pub struct ReKeyRequest {
        /// Which key to replace.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The time until the new key is active; its other dates shift with it.
        offset: Option<Interval> = OFFSET,
        /// Attributes of the new one.
        template_attribute: Option<TemplateAttribute> = TEMPLATE_ATTRIBUTE,
    }
}

structure! {
    /// The new key.
    pub struct ReKeyResponse {
        /// Its unique identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// Attributes that the server set beyond those asked for.
        template_attribute: Option<TemplateAttribute> = TEMPLATE_ATTRIBUTE,
    }
}

structure! {
    /// Find objects by their attributes (section 4.9).
    #[derive(Default)]
    pub struct LocateRequest {
        /// How many to return at most.
        maximum_items: Option<i32> = MAXIMUM_ITEMS,
        /// How many to pass over first.
        offset_items: Option<i32> = OFFSET_ITEMS since V1_3,
        /// Whether to look among those on line, those archived, or both.
        storage_status_mask: Option<StorageStatusMask> = STORAGE_STATUS_MASK,
        /// Whether to select the group's next fresh member or its default.
        object_group_member: Option<ObjectGroupMember> = OBJECT_GROUP_MEMBER since V1_1,
        /// The required attributes. Two dates of one name are a range.
        attributes: Vec<Attribute> = ATTRIBUTE,
    }
}

structure! {
    /// The objects that were found.
    #[derive(Default)]
    pub struct LocateResponse {
        /// How many more objects match than are returned.
        located_items: Option<i32> = LOCATED_ITEMS since V1_3,
        /// Their identifiers.
        unique_identifiers: Vec<String> = UNIQUE_IDENTIFIER,
    }
}

structure! {
    /// Check whether a key may be used in a given way (section 4.10).
    #[derive(Default)]
    pub struct CheckRequest {
        /// The key's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The amount of usage.
        usage_limits_count: Option<i64> = USAGE_LIMITS_COUNT,
        /// The intended uses.
        cryptographic_usage_mask: Option<CryptographicUsageMask> = CRYPTOGRAPHIC_USAGE_MASK,
        /// The duration of the lease.
        lease_time: Option<Interval> = LEASE_TIME,
    }
}

structure! {
    /// The key and, if the use is not allowed, the limits that it exceeds.
    pub struct CheckResponse {
        /// The key's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The allowed amount.
        usage_limits_count: Option<i64> = USAGE_LIMITS_COUNT,
        /// The allowed uses.
        cryptographic_usage_mask: Option<CryptographicUsageMask> = CRYPTOGRAPHIC_USAGE_MASK,
        /// The allowed duration.
        lease_time: Option<Interval> = LEASE_TIME,
    }
}

structure! {
    /// Return an object (section 4.11).
    #[derive(Default)]
    pub struct GetRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The encoding.
        key_format_type: Option<KeyFormatType> = KEY_FORMAT_TYPE,
        /// Whether a key that was registered wrapped is returned wrapped.
        key_wrap_type: Option<KeyWrapType> = KEY_WRAP_TYPE since V1_4,
        /// How a point of a curve is encoded.
        key_compression_type: Option<KeyCompressionType> = KEY_COMPRESSION_TYPE,
        /// How to wrap the key.
        key_wrapping_specification: Option<KeyWrappingSpecification> = KEY_WRAPPING_SPECIFICATION,
    }
}

/// The object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GetResponse {
    /// The object's identifier.
    pub unique_identifier: String,
    /// The object, which says its type.
    pub object: ManagedObject,
}

impl Codec for RegisterRequest {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let object_type = Member::take(Tag::OBJECT_TYPE, &mut fields)?;
        let request = Self {
            template_attribute: Member::take(Tag::TEMPLATE_ATTRIBUTE, &mut fields)?,
            object: ManagedObject::take(object_type, &mut fields)?,
        };
        fields.finish()?;
        Ok(request)
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            self.object.object_type().encode(Tag::OBJECT_TYPE, version, writer);
            self.template_attribute.encode(Tag::TEMPLATE_ATTRIBUTE, version, writer);
            self.object.put(version, writer);
        });
    }
}

impl Codec for GetResponse {
    fn decode(field: Field<'_>, rules: Rules) -> Result<Self, DecodeError> {
        let mut fields = Fields::of(field, rules)?;
        let object_type = Member::take(Tag::OBJECT_TYPE, &mut fields)?;
        let response = Self {
            unique_identifier: Member::take(Tag::UNIQUE_IDENTIFIER, &mut fields)?,
            object: ManagedObject::take(object_type, &mut fields)?,
        };
        fields.finish()?;
        Ok(response)
    }

    fn encode(&self, tag: Tag, version: ProtocolVersion, writer: &mut Writer) {
        writer.structure(tag, |writer| {
            self.object.object_type().encode(Tag::OBJECT_TYPE, version, writer);
            writer.text(Tag::UNIQUE_IDENTIFIER, &self.unique_identifier);
            self.object.put(version, writer);
        });
    }
}
