//! Structures from one list of their fields.

/// Makes a structure and both directions of its encoding.
///
/// ```text
/// structure! {
///     /// What it is.
///     pub struct Name {
///         /// What it is for.
///         name_value: String = NAME_VALUE,
///         /// A field that came with KMIP 1.2.
///         newer: Option<bool> = RANDOM_IV since V1_2,
///     }
/// }
/// ```
macro_rules! structure {
    (
        $(#[$attribute:meta])*
        pub struct $name:ident {
            $(
                $(#[$field_attribute:meta])*
                $field:ident: $type:ty = $tag:ident $(since $since:ident)?,
            )*
        }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct $name {
            $(
                $(#[$field_attribute])*
                pub $field: $type,
            )*
        }

        impl $name {
            /// Takes this structure's fields out of a structure that may have more.
            pub(crate) fn take_from(
                fields: &mut $crate::codec::Fields<'_>,
            ) -> Result<Self, $crate::codec::DecodeError> {
                Ok(Self {
                    $($field: $crate::codec::structure!(@take fields, $tag $(, $since)?),)*
                })
            }

            /// Writes the fields without a structure around them.
            pub(crate) fn put_into(
                &self,
                version: $crate::codec::ProtocolVersion,
                writer: &mut $crate::ttlv::Writer,
            ) {
                $($crate::codec::structure!(@put self.$field, version, writer, $tag $(, $since)?);)*
            }
        }

        impl $crate::codec::Codec for $name {
            fn decode(
                field: $crate::ttlv::Field<'_>,
                rules: $crate::codec::Rules,
            ) -> Result<Self, $crate::codec::DecodeError> {
                let mut fields = $crate::codec::Fields::of(field, rules)?;
                let decoded = Self::take_from(&mut fields)?;
                fields.finish()?;
                Ok(decoded)
            }

            fn encode(
                &self,
                tag: $crate::ttlv::Tag,
                version: $crate::codec::ProtocolVersion,
                writer: &mut $crate::ttlv::Writer,
            ) {
                writer.structure(tag, |writer| self.put_into(version, writer));
            }
        }
    };
    (@take $fields:ident, $tag:ident) => {
        $crate::codec::Member::take($crate::ttlv::Tag::$tag, $fields)?
    };
    (@take $fields:ident, $tag:ident, $since:ident) => {
        // Clients of 1.0 send fields of later versions with their meaning there (Percona's keyring
        // pages with Offset Items). Our own messages keep to the version.
        if $fields.version() >= $crate::codec::ProtocolVersion::$since
            || $fields.has($crate::ttlv::Tag::$tag)
        {
            $crate::codec::Member::take($crate::ttlv::Tag::$tag, $fields)?
        } else {
            $crate::codec::Member::absent($crate::ttlv::Tag::$tag, $fields)?
        }
    };
    (@put $value:expr, $version:ident, $writer:ident, $tag:ident) => {
        $crate::codec::Member::put(&$value, $crate::ttlv::Tag::$tag, $version, $writer)
    };
    (@put $value:expr, $version:ident, $writer:ident, $tag:ident, $since:ident) => {
        if $version >= $crate::codec::ProtocolVersion::$since {
            $crate::codec::Member::put(&$value, $crate::ttlv::Tag::$tag, $version, $writer)
        }
    };
}
pub(crate) use structure;
