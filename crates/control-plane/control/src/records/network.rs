//! Networks.

use serde::{Deserialize, Serialize};
use strongroom_api::vm::BridgePort;
use strongroom_api::{Name, ObjectKind, ObjectRef};
use strongroom_vm::{InterfaceName, VlanId};
use uuid::Uuid;

/// A network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkRecord {
    /// Its id.
    pub id: Uuid,
    /// Its name.
    pub name: Name,
    /// Its VLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vlan: Option<VlanId>,
    /// The hosts that have it, each once.
    #[serde(default)]
    pub hosts: Vec<OnBridge>,
}

/// The bridge on which a host has a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnBridge {
    /// The host.
    pub host: Uuid,
    /// The bridge.
    pub bridge: InterfaceName,
}

impl NetworkRecord {
    /// Its reference in answers.
    pub fn object(&self) -> ObjectRef {
        ObjectRef { kind: ObjectKind::Network, id: Some(self.id), name: self.name.to_string() }
    }

    /// Where a host has it.
    pub fn on(&self, host: Uuid) -> Option<BridgePort> {
        let on = self.hosts.iter().find(|on| on.host == host)?;
        Some(BridgePort { bridge: on.bridge.clone(), vlan: self.vlan })
    }
}
