//! An example of each type of request or answer, by the name of its schema, from `examples.json`.

use serde_json::{Value, json};

const TEXT: &str = include_str!("examples.json");

/// Examples by the names of schemas.
pub struct Examples(Value);

impl Examples {
    /// Reads all examples.
    pub fn read() -> Self {
        // An invalid file would have no examples, which a test would notice.
        Self(serde_json::from_str(TEXT).unwrap_or(Value::Null))
    }

    /// The example of a schema; for a page, a page with that entry.
    pub fn of(&self, schema: &str) -> Option<Value> {
        match schema.strip_prefix("Page_") {
            Some(item) => self.0.get(item).map(|item| json!({ "items": [item], "total": 1 })),
            None => self.0.get(schema).cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde::de::DeserializeOwned;
    use strongroom_api::{
        ErrorBody, alarm, backup, datastore, event, host, key, network, placement, policy, task, vm, volume,
    };

    use super::*;

    /// Checks that an example has exactly the fields of its type.
    fn is_whole<T: DeserializeOwned + Serialize>(examples: &Examples, name: &str) {
        let example = examples.of(name).unwrap_or_else(|| panic!("there is no example of {name}"));
        let read: T =
            serde_json::from_value(example.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let again = serde_json::to_value(read).unwrap();
        for (field, value) in example.as_object().unwrap() {
            if !value.is_object() && !value.is_array() {
                assert_eq!(again.get(field), Some(value), "{name}: {field} is no field of it");
            }
        }
    }

    #[test]
    fn each_example_is_of_its_type() {
        let examples = Examples::read();
        macro_rules! whole {
            ($($type:ty),+ $(,)?) => {{
                let names = [$(stringify!($type).rsplit("::").next().unwrap().trim()),+];
                $(is_whole::<$type>(&examples, stringify!($type).rsplit("::").next().unwrap().trim());)+
                let there: Vec<&String> = examples.0.as_object().unwrap().keys().collect();
                let unread: Vec<_> = there.iter().filter(|name| !names.contains(&name.as_str())).collect();
                assert!(unread.is_empty(), "{unread:?} are read by no test");
            }};
        }
        whole!(
            datastore::AddDatastore,
            datastore::AddDatastoreHost,
            host::SetHost,
            backup::MakeInventoryBackup,
            backup::InventoryBackup,
            host::EvacuateHost,
            host::BalanceHosts,
            host::FenceHost,
            host::AdmitHost,
            vm::MoveToHost,
            vm::AddDisk,
            vm::AddNic,
            vm::PatchNic,
            alarm::Alarm,
            host::CreateHostToken,
            policy::ApplyPolicy,
            placement::CreatePlacementGroup,
            placement::SetPlacementGroup,
            placement::PlacementGroup,
            network::AddNetworkHost,
            network::CreateNetwork,
            network::Network,
            policy::CreatePolicy,
            vm::CloneVm,
            vm::CreateSnapshot,
            vm::CreateVm,
            vm::DeleteVm,
            datastore::Datastore,
            datastore::DatastoreCapacity,
            vm::Dump,
            vm::DumpVm,
            vm::EncryptDisk,
            ErrorBody,
            event::Event,
            datastore::Found,
            host::Host,
            host::HostToken,
            vm::ImportDisk,
            key::KeyProvider,
            key::KeyStatus,
            vm::PatchVm,
            policy::Policy,
            vm::PowerOptions,
            datastore::RebuildDatastore,
            vm::RegisterVm,
            vm::ResizeDisk,
            vm::MoveDisk,
            vm::RevertVm,
            vm::RotateKey,
            vm::SetCryptoperiod,
            vm::SetLimits,
            vm::SetSnapshotSchedule,
            vm::Snapshot,
            vm::SnapshotSchedule,
            vm::StartVm,
            vm::StopVm,
            task::Task,
            vm::TemplateVm,
            vm::Ticket,
            vm::TicketUse,
            vm::VmStats,
            vm::VmSummary,
            vm::VmView,
            volume::ChangeVolumes,
            volume::ReadVolumes,
            volume::Volume,
            volume::VolumeChanges,
            volume::VolumeLimits,
            volume::VolumeReadings,
            volume::VolumeView,
        );
    }
}
