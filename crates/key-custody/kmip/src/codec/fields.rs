//! The fields of one structure while it is decoded.

use super::{DecodeError, Problem, ProtocolVersion, Rules, UnknownFields};
use crate::ttlv::{Field, Structure, Tag, Type};

/// The fields of one structure that have not been taken yet.
///
/// They are found by tag. Peers disagree about the order of optional fields (correlation values in
/// headers, the parts of Query's answers), and no structure of KMIP changes its meaning with it;
/// only fields of one tag keep their order.
pub struct Fields<'a> {
    structure: Tag,
    rules: Rules,
    left: Vec<Option<Field<'a>>>,
}

impl<'a> Fields<'a> {
    /// The fields of a structure.
    pub fn new(structure: Structure<'a>, rules: Rules) -> Self {
        Self { structure: structure.tag(), rules, left: structure.fields().map(Some).collect() }
    }

    /// The fields of a field that must be a structure.
    ///
    /// # Errors
    /// [`Problem::WrongType`] if it is not a structure.
    pub fn of(field: Field<'a>, rules: Rules) -> Result<Self, DecodeError> {
        let wrong = || DecodeError::wrong_type(field.tag(), Type::Structure, field.kind());
        Ok(Self::new(field.structure().ok_or_else(wrong)?, rules))
    }

    /// The decoding rules.
    pub fn rules(&self) -> Rules {
        self.rules
    }

    /// The version in the message's header.
    pub fn version(&self) -> ProtocolVersion {
        self.rules.version
    }

    /// Whether a field of that tag is left.
    pub fn has(&self, tag: Tag) -> bool {
        self.count(tag) > 0
    }

    /// How many fields of that tag are left.
    pub fn count(&self, tag: Tag) -> usize {
        self.left.iter().flatten().filter(|field| field.tag() == tag).count()
    }

    /// Takes the field of that tag.
    ///
    /// # Errors
    /// [`Problem::Repeated`] if there are several.
    pub fn take_one(&mut self, tag: Tag) -> Result<Option<Field<'a>>, DecodeError> {
        let (one, repeated) = {
            let mut found = self.take_all(tag);
            (found.next(), found.next().is_some())
        };
        if repeated { Err(self.problem(Problem::Repeated(tag))) } else { Ok(one) }
    }

    /// Takes all fields of that tag, in their order.
    pub fn take_all(&mut self, tag: Tag) -> impl Iterator<Item = Field<'a>> {
        self.left
            .iter_mut()
            .filter(move |field| field.is_some_and(|field| field.tag() == tag))
            .filter_map(Option::take)
    }

    /// Takes the first field that is left, whatever it is.
    pub fn take_any(&mut self) -> Option<Field<'a>> {
        self.left.iter_mut().find_map(Option::take)
    }

    /// Checks that no unknown field is left.
    ///
    /// # Errors
    /// [`Problem::Unexpected`], where [`Rules`] refuse unknown fields.
    pub fn finish(self) -> Result<(), DecodeError> {
        match (self.rules.unknown_fields, self.left.iter().flatten().next()) {
            (UnknownFields::Refuse, Some(field)) => {
                Err(self.problem(Problem::Unexpected(field.tag(), self.rules.version)))
            }
            _ => Ok(()),
        }
    }

    /// The error that a field is missing in this structure.
    pub fn missing(&self, tag: Tag) -> DecodeError {
        self.problem(Problem::Missing(tag))
    }

    fn problem(&self, problem: Problem) -> DecodeError {
        DecodeError::Field { within: self.structure, problem }
    }
}
