//! References to objects, in answers and in requests.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::limits::REFERENCE_CHARACTERS_MAX;

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ObjectKind {
    /// A virtual machine.
    Vm,
    /// A volume of a VM.
    Volume,
    /// A directory that holds volumes.
    Datastore,
    /// The rules for VMs.
    Policy,
    /// A source of keys.
    KeyProvider,
    /// A machine that runs VMs.
    Host,
    /// A task.
    Task,
    /// The control plane itself.
    Control,
    /// Someone outside who is sent alarms.
    Recipient,
    /// VMs that are kept on different hosts, or near each other.
    PlacementGroup,
    /// What network cards are connected to.
    Network,
}

impl ObjectKind {
    /// Its name in the JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Vm => "vm",
            Self::Volume => "volume",
            Self::Datastore => "datastore",
            Self::Policy => "policy",
            Self::KeyProvider => "key_provider",
            Self::Host => "host",
            Self::Task => "task",
            Self::Control => "control",
            Self::Recipient => "recipient",
            Self::PlacementGroup => "placement_group",
            Self::Network => "network",
        }
    }
}

impl ObjectKind {
    /// Its noun in a sentence.
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Vm => "VM",
            Self::Volume => "volume",
            Self::Datastore => "datastore",
            Self::Policy => "policy",
            Self::KeyProvider => "key provider",
            Self::Host => "host",
            Self::Task => "task",
            Self::Control => "control plane",
            Self::Recipient => "recipient",
            Self::PlacementGroup => "placement group",
            Self::Network => "network",
        }
    }
}

impl fmt::Display for ObjectKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

/// An object with its kind, id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: ObjectKind,
    /// Its id; absent for a key provider, which has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// Its name when this was written.
    pub name: String,
}

/// Names an object by its name or id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "String")]
#[schema(value_type = String, max_length = 128)]
pub struct Reference(String);

impl Reference {
    /// The name or id.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A name is shorter than the longest reference.
impl From<crate::Name> for Reference {
    fn from(name: crate::Name) -> Self {
        Self(name.into())
    }
}

impl TryFrom<String> for Reference {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.chars().count() {
            0..=REFERENCE_CHARACTERS_MAX => Ok(Self(text)),
            count => {
                Err(format!("{count} characters are more than the {REFERENCE_CHARACTERS_MAX} of any name"))
            }
        }
    }
}
