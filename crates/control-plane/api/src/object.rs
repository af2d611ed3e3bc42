//! How an answer names an object.

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
    /// A volume of one.
    Volume,
    /// Where volumes live.
    Datastore,
    /// What a VM must have.
    Policy,
    /// Where keys come from.
    KeyProvider,
    /// A machine that runs VMs.
    Host,
    /// A task.
    Task,
    /// The control plane itself.
    Control,
}

impl ObjectKind {
    /// Its name as in the JSON.
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

/// An object by kind, id and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ObjectRef {
    /// What it is.
    pub kind: ObjectKind,
    /// Its id; of a key provider, which has none, nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<Uuid>,
    /// The name that it has, or had when this was written.
    pub name: String,
}
