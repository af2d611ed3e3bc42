//! References to objects in answers.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

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
