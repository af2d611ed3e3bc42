//! Where a role counts, on the command line and in answers.

use clap::Args;
use strongroom_api::Reference;
use strongroom_api::access::Scope;

use crate::api::parse_reference;

/// Where a role counts.
#[derive(Debug, Args)]
#[group(multiple = false)]
pub struct ScopeArguments {
    /// In this folder, with the VMs and disks in it [default: for the whole site]
    #[arg(long, value_name = "FOLDER", value_parser = parse_reference)]
    folder: Option<Reference>,

    /// For this VM, or disk that no VM has
    #[arg(long, value_name = "VM", value_parser = parse_reference)]
    vm: Option<Reference>,

    /// For this datastore, without the VMs in it
    #[arg(long, value_name = "DATASTORE", value_parser = parse_reference)]
    datastore: Option<Reference>,

    /// For this network, without the VMs that are connected to it
    #[arg(long, value_name = "NETWORK", value_parser = parse_reference)]
    network: Option<Reference>,
}

impl ScopeArguments {
    /// The scope.
    pub fn scope(&self) -> Scope {
        let Self { folder, vm, datastore, network } = self;
        let folder = folder.clone().map(|folder| Scope::Folder { folder });
        let vm = vm.clone().map(|vm| Scope::Vm { vm });
        let datastore = datastore.clone().map(|datastore| Scope::Datastore { datastore });
        let network = network.clone().map(|network| Scope::Network { network });
        folder.or(vm).or(datastore).or(network).unwrap_or(Scope::Site {})
    }
}

/// A scope in a sentence and in a table.
pub fn display(scope: &Scope) -> String {
    match scope {
        Scope::Site {} => "the whole site".to_owned(),
        Scope::Folder { folder } => format!("folder {folder}"),
        Scope::Vm { vm } => format!("VM {vm}"),
        Scope::Datastore { datastore } => format!("datastore {datastore}"),
        Scope::Network { network } => format!("network {network}"),
    }
}
