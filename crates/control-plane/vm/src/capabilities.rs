//! What a host can give to guests.

use serde::{Deserialize, Serialize};

use crate::board::{Board, MachineType};
use crate::machine_version::MachineVersion;
use crate::processor_model::{ProcessorModel, QemuName};

/// What the QEMU of a host can give to guests, with the accelerator that they run with there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct Capabilities {
    /// The machine types, the newest ones first.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub machine_types: Vec<MachineVersion>,
    /// What the machines `q35` and `pc` are without a machine type.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub default_machine_types: Vec<MachineVersion>,
    /// The processors that guests can have without anything missing, besides `host`.
    #[cfg_attr(feature = "schema", schema(value_type = Vec<String>))]
    pub processors: Vec<ProcessorModel>,
    /// What the processor `host` has, in QEMU's words, in alphabetical order.
    pub features: Vec<String>,
    /// The maker of the host's processor, as guests with KVM see it: `GenuineIntel`,
    /// `AuthenticAMD`. Absent if the host does not say.
    #[cfg_attr(feature = "schema", schema(value_type = Option<String>))]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor: Option<QemuName>,
}

/// Why a host cannot give a guest what it is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Its QEMU has no such machine type.
    MachineType(MachineVersion),
    /// Its processor or QEMU lacks something of this processor.
    Processor(ProcessorModel),
}

impl Capabilities {
    /// Whether guests can have this processor.
    pub fn has_processor(&self, model: &ProcessorModel) -> bool {
        model.is_host() || self.processors.contains(model)
    }

    /// What of this board the host cannot give.
    pub fn lacks(&self, board: &Board) -> Option<Lack> {
        if let Some(version) = board.machine_type.as_ref()
            && !self.machine_types.contains(version)
        {
            return Some(Lack::MachineType(version.clone()));
        }
        let model = board.processor.as_ref()?;
        (!self.has_processor(model)).then(|| Lack::Processor(model.clone()))
    }

    /// What a board without a machine type is.
    pub fn default_machine_type(&self, machine: MachineType) -> Option<&MachineVersion> {
        self.default_machine_types.iter().find(|version| version.machine() == machine)
    }

    /// The features of this host's processor that another one's lacks.
    pub fn features_beyond<'a>(&'a self, other: &Self) -> Vec<&'a str> {
        let more = self.features.iter().filter(|feature| !other.features.contains(feature));
        more.map(String::as_str).collect()
    }

    /// The machine types that all of these hosts have.
    pub fn machine_types_of_all<'a>(all: &[&'a Self]) -> Vec<&'a MachineVersion> {
        let Some((first, others)) = all.split_first() else { return Vec::new() };
        let is_theirs =
            |version: &&MachineVersion| others.iter().all(|other| other.machine_types.contains(version));
        first.machine_types.iter().filter(is_theirs).collect()
    }

    /// The processors that all of these hosts can give.
    pub fn processors_of_all<'a>(all: &[&'a Self]) -> Vec<&'a ProcessorModel> {
        let Some((first, others)) = all.split_first() else { return Vec::new() };
        let is_theirs = |model: &&ProcessorModel| others.iter().all(|other| other.processors.contains(model));
        first.processors.iter().filter(is_theirs).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(machine_types: &[&str], default: &str, processors: &[&str]) -> Capabilities {
        Capabilities {
            machine_types: machine_types.iter().map(|name| name.parse().unwrap()).collect(),
            default_machine_types: vec![default.parse().unwrap()],
            processors: processors.iter().map(|name| name.parse().unwrap()).collect(),
            features: processors.iter().map(|name| (*name).to_owned()).collect(),
            vendor: None,
        }
    }

    #[test]
    fn what_all_hosts_have_is_what_the_oldest_has() {
        let old = host(&["pc-q35-7.2", "pc-q35-7.1"], "pc-q35-7.2", &["x86-64-v2"]);
        let new = host(
            &["pc-q35-10.0", "pc-q35-9.2", "pc-q35-7.2", "pc-q35-7.1"],
            "pc-q35-10.0",
            &["x86-64-v3", "x86-64-v2"],
        );
        let shared = |all: &[&Capabilities]| {
            let names = Capabilities::machine_types_of_all(all);
            names.into_iter().map(MachineVersion::as_str).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shared(&[&new, &old]), "pc-q35-7.2 pc-q35-7.1");
        assert_eq!(shared(&[&old, &new]), "pc-q35-7.2 pc-q35-7.1");
        assert_eq!(shared(&[]), "");
        let default = new.default_machine_type(MachineType::Q35);
        assert_eq!(default.map(MachineVersion::as_str), Some("pc-q35-10.0"));
        assert_eq!(new.default_machine_type(MachineType::Pc), None);
        assert_eq!(Capabilities::processors_of_all(&[&old, &new]).len(), 1);
        assert_eq!(new.features_beyond(&old), ["x86-64-v3"]);
    }

    #[test]
    fn what_a_host_lacks_is_named() {
        let host = host(&["pc-q35-7.2"], "pc-q35-7.2", &["x86-64-v2"]);
        let board = |machine_type: Option<&str>, processor: Option<&str>| Board {
            machine_type: machine_type.map(|name| name.parse().unwrap()),
            processor: processor.map(|name| name.parse().unwrap()),
            ..Board::default()
        };
        for had in
            [board(None, None), board(Some("pc-q35-7.2"), Some("x86-64-v2")), board(None, Some("host"))]
        {
            assert_eq!(host.lacks(&had), None);
        }
        let lacks = Lack::MachineType("pc-q35-8.0".parse().unwrap());
        assert_eq!(host.lacks(&board(Some("pc-q35-8.0"), None)), Some(lacks));
        let lacks = Lack::Processor("EPYC".parse().unwrap());
        assert_eq!(host.lacks(&board(None, Some("EPYC"))), Some(lacks));
    }
}
