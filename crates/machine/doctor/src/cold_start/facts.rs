//! Who needs what, as far as that can be seen from this machine, with VMs and key server running or
//! not.
//!
//! | is seen | by |
//! |---|---|
//! | under which providers' keys a VM is | its `vm.json`, in the datastores of `host.json`; of keys that the key server only passes on, by the key server |
//! | that the home lies on a volume of ours | the layers under it: a network block device whose other end is a `volume expose` |
//! | that the home lies on storage of a VM of ours, or a provider is one | an address (NFS, iSCSI, SMB; the provider's servers) that this machine's neighbours (ARP) have under the hardware address of a VM's network card |
//! | the same, where nothing shows it | a person says `provides-keys` |

use std::collections::BTreeMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use strongroom_datastore::file::describe;
use strongroom_host::protocol::VmSpec;
use strongroom_host::vm_directory::VmRecord;
use strongroom_hostd::checks::Root;
use strongroom_hostd::checks::storage::{Support, support};
use strongroom_keys::{KekSource, ProviderKey};
use strongroom_providers::{EMBEDDED, Registry, SourceConfig};

use super::served::server_of;
use super::{Need, Part};
use crate::provides_keys::ProvidesKeys;

/// What an installation is made of, as far as it matters here.
pub struct Site<'site> {
    /// Where the kernel's files are.
    pub root: &'site Root,
    /// The home.
    pub home: &'site Path,
    /// The VMs of its datastores.
    pub vms: &'site [VmSpec],
    /// What a person says.
    pub provides: &'site [ProvidesKeys],
    /// Of keys that the key server only passes on, by their ids there: where they are. Nothing if
    /// it cannot be asked.
    pub brokered: Option<&'site BTreeMap<String, ProviderKey>>,
    /// Whether it passes keys on.
    pub is_broker: bool,
    /// The addresses that a server's name has.
    pub resolve: &'site dyn Fn(&str) -> Vec<IpAddr>,
}

/// The VMs in datastores.
pub fn vms_of(datastores: &[PathBuf]) -> Vec<VmSpec> {
    let entries = datastores.iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten());
    entries.filter_map(|entry| Some(VmRecord::read(&entry.path()).ok()??.spec)).collect()
}

/// The addresses that the system's resolver knows for `HOST:PORT`.
pub fn resolve(server: &str) -> Vec<IpAddr> {
    server.to_socket_addrs().map_or_else(|_| Vec::new(), |found| found.map(|address| address.ip()).collect())
}

/// What needs what; and what cannot be told.
pub fn gather(site: &Site<'_>) -> (Vec<Need>, Vec<String>) {
    let (mut needs, mut unknown) = (Vec::new(), Vec::new());
    let neighbours = neighbours(site.root);
    let vm_at = |address: &IpAddr| {
        let mac = neighbours.get(address)?;
        let vm = site.vms.iter().find(|vm| vm.nics.iter().any(|nic| mac.parse() == Ok(nic.mac)))?;
        Some((vm.name.to_string(), mac.clone()))
    };
    needs_of_vms(site, &mut needs, &mut unknown);
    needs_of_providers(site, &vm_at, &mut needs, &mut unknown);
    needs_of_home(site, &vm_at, &mut needs, &mut unknown);
    (needs, unknown)
}

fn needs_of_vms(site: &Site<'_>, needs: &mut Vec<Need>, unknown: &mut Vec<String>) {
    let mut add = |vm: &VmSpec, provider: &str, because: String| {
        let (of, on) = (Part::Vm(vm.name.to_string()), Part::Provider(provider.to_owned()));
        if !needs.iter().any(|need| need.of == of && need.on == on) {
            let instead = format!(
                "move VM {} to a key that does not depend on it (`strongroom volume rekey --kek` of its disks)",
                vm.name
            );
            needs.push(Need { of, on, because, instead });
        }
    };
    for vm in site.vms {
        for (disk, key) in vm.disks.iter().filter_map(|disk| Some((disk, disk.key.provider_key()?))) {
            let because = format!("its disk {} is under key {} of it", disk.name, key.key);
            add(vm, key.provider.as_str(), because);
            let elsewhere = site.brokered.and_then(|brokered| brokered.get(&key.key.to_string()));
            if let Some(there) = elsewhere.filter(|_| key.provider.as_str() == EMBEDDED) {
                let because = format!("key {} of its disk {} is passed on from there", key.key, disk.name);
                add(vm, there.provider.as_str(), because);
            }
        }
    }
    if site.is_broker && site.brokered.is_none() && !site.vms.is_empty() {
        unknown.push("which VMs are under keys of external providers cannot be told while the key server does not answer".to_owned());
    }
}

fn needs_of_providers(
    site: &Site<'_>,
    vm_at: &dyn Fn(&IpAddr) -> Option<(String, String)>,
    needs: &mut Vec<Need>,
    unknown: &mut Vec<String>,
) {
    let instead = |provider: &str, vm: &str| {
        format!(
            "serve key provider {provider} from a machine that is no VM here, beside VM {vm} or in its place"
        )
    };
    for said in site.provides {
        let provider = said.provider.as_str();
        if !site.vms.iter().any(|vm| vm.name.as_str() == said.vm) {
            unknown.push(format!("`provides-keys` names VM {}, and no datastore here has it", said.vm));
            continue;
        }
        needs.push(Need {
            of: Part::Provider(provider.to_owned()),
            on: Part::Vm(said.vm.clone()),
            because: "the configuration says `provides-keys`".to_owned(),
            instead: instead(provider, &said.vm),
        });
    }
    for registered in Registry::of_home(site.home).list().unwrap_or_default() {
        let name = registered.name.as_str();
        let Ok(config) = &registered.config else { continue };
        if let SourceConfig::Embedded(_) = config.source {
            needs.push(home_need(name, site.home));
            continue;
        }
        let servers = config.source.servers();
        let found: Vec<_> = servers.iter().map(|server| (site.resolve)(&address_of(server))).collect();
        for (server, addresses) in servers.iter().zip(&found) {
            if let Some((vm, mac)) = addresses.iter().find_map(vm_at) {
                // Another server of the cluster, elsewhere, is enough.
                let others = found
                    .iter()
                    .any(|others| !others.is_empty() && others.iter().all(|one| vm_at(one).is_none()));
                let because =
                    format!("its server {server} has the hardware address {mac} of that VM's network card");
                if others {
                    continue;
                }
                needs.push(Need {
                    of: Part::Provider(name.to_owned()),
                    on: Part::Vm(vm.clone()),
                    because,
                    instead: instead(name, &vm),
                });
            }
        }
    }
    if !needs.iter().any(|need| need.of == Part::Provider(EMBEDDED.to_owned())) {
        needs.push(home_need(EMBEDDED, site.home));
    }
}

fn home_need(provider: &str, home: &Path) -> Need {
    Need {
        of: Part::Provider(provider.to_owned()),
        on: Part::Home(home.display().to_string()),
        because: "its store, its root key's seal and its settings lie there".to_owned(),
        instead: format!("move {} to a disk of this machine itself", home.display()),
    }
}

fn needs_of_home(
    site: &Site<'_>,
    vm_at: &dyn Fn(&IpAddr) -> Option<(String, String)>,
    needs: &mut Vec<Need>,
    unknown: &mut Vec<String>,
) {
    let home = std::fs::canonicalize(site.home).unwrap_or_else(|_| site.home.to_owned());
    let of = Part::Home(site.home.display().to_string());
    let instead = format!("move {} to a disk of this machine itself", site.home.display());
    for layer in support(site.root, &home).layers(site.root) {
        match &layer {
            Support::Network { kind, address } => {
                let addresses = (site.resolve)(&format!("{address}:0"));
                match addresses.iter().find_map(vm_at) {
                    Some((vm, mac)) => needs.push(Need {
                        of: of.clone(),
                        on: Part::Vm(vm),
                        because: format!("it lies on {address} ({kind}), which has the hardware address {mac} of that VM's network card"),
                        instead: instead.clone(),
                    }),
                    None => unknown.push(format!(
                        "the home lies on {address} ({kind}); if that is, or is stored on, a VM of this machine, nothing starts after a loss of power"
                    )),
                }
            }
            Support::Device(device) if device.name.starts_with("nbd") => match server_of(site.root, device) {
                Some(volume) => {
                    let path = volume.display().to_string();
                    let because = format!("it lies on {}, which that volume is exposed as", device.name);
                    needs.push(Need {
                        of: of.clone(),
                        on: Part::Volume(path.clone()),
                        because,
                        instead: instead.clone(),
                    });
                    needs.extend(need_of_volume(&volume, path));
                }
                None => unknown.push(format!(
                    "the home lies on the network block device {}, whose other end cannot be seen",
                    device.name
                )),
            },
            _ => {}
        }
    }
}

/// A volume needs the provider of its key.
fn need_of_volume(volume: &Path, path: String) -> Option<Need> {
    let described = describe(volume).ok()?;
    match &described.descriptor.encryption.as_ref()?.kek.source {
        KekSource::Provider(key) => Some(Need {
            of: Part::Volume(path.clone()),
            on: Part::Provider(key.provider.to_string()),
            because: format!("it is under key {} of it", key.key),
            instead: format!(
                "move it to a key file or a passphrase (`strongroom volume rekey {path} --kek`)"
            ),
        }),
        KekSource::Passphrase(_) | KekSource::KeyFile {} => None,
    }
}

/// `HOST:PORT` of what a provider's configuration names.
fn address_of(server: &str) -> String {
    let server = server.strip_prefix("https://").unwrap_or(server);
    let server = server.split('/').next().unwrap_or(server);
    let has_port = server.rsplit_once(':').is_some_and(|(host, port)| {
        port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'))
    });
    if has_port { server.to_owned() } else { format!("{server}:443") }
}

/// Hardware addresses of the machines that this one has spoken to (proc_net(5): `arp`).
fn neighbours(root: &Root) -> BTreeMap<IpAddr, String> {
    let table = root.read("/proc/net/arp").unwrap_or_default();
    let entry = |line: &str| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?.parse().ok()?, fields.nth(2)?.to_ascii_lowercase()))
    };
    table.lines().skip(1).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use strongroom_providers::{KmipConfig, ProviderConfig};

    use super::*;

    fn vm(name: &str, provider: &str) -> VmSpec {
        let text = format!(
            r#"{{"id":"6f1c5bde-8d09-4b4c-9f5f-3f0f8f0f0001","name":"{name}","datastore":"/srv/ds","memory_bytes":268435456,
            "disks":[{{"name":"disk0","size_bytes":1048576,"key":{{"provider":{{"key":{{"provider":"{provider}","key":"4711","wrapped":null}}}}}}}}],
            "nics":[{{"mac":"52:54:00:12:34:56","network":{{"tap":{{"device":"tap0"}}}}}}]}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    const ARP: &str =
        "IP address HW type Flags HW address Mask Device\n192.0.2.7 0x1 0x2 52:54:00:12:34:56 * br0\n";

    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, Root) {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::at(directory.path());
        for (path, content) in files {
            std::fs::create_dir_all(root.path(path).parent().unwrap()).unwrap();
            std::fs::write(root.path(path), content).unwrap();
        }
        (directory, root)
    }

    fn register(home: &Path, name: &str, servers: &[&str]) {
        let kmip = KmipConfig {
            servers: servers.iter().map(|server| (*server).to_owned()).collect(),
            ca: "/ca".into(),
            certificate: "/cert".into(),
            key: "/key".into(),
            server_name: None,
            request_timeout_ms: 1000,
            named_keys: true,
        };
        let config = ProviderConfig::new(SourceConfig::Kmip(kmip));
        Registry::of_home(home).add(&name.parse().unwrap(), &config).unwrap();
    }

    fn circles(
        root: &Root,
        home: &Path,
        vms: &[VmSpec],
        provides: &[ProvidesKeys],
        brokered: Option<&BTreeMap<String, ProviderKey>>,
    ) -> (usize, usize) {
        let named = |server: &str| match server {
            "kms1.example:5696" => vec!["192.0.2.7".parse().unwrap()],
            "kms2.example:5696" => vec!["192.0.2.8".parse().unwrap()],
            other => other.rsplit_once(':').and_then(|(host, _)| host.parse().ok()).into_iter().collect(),
        };
        let site =
            Site { root, home, vms, provides, brokered, is_broker: brokered.is_some(), resolve: &named };
        let (needs, unknown) = gather(&site);
        (super::super::cycles(&needs).len(), unknown.len())
    }

    #[test]
    fn a_provider_that_is_a_vm_by_its_hardware_address_is_found_unless_the_cluster_has_another_server() {
        let (_kept, root) = machine(&[("/proc/net/arp", ARP)]);
        let vms = [vm("vault1", "corp")];
        let home = tempfile::tempdir().unwrap();
        register(home.path(), "corp", &["kms1.example:5696"]);
        assert_eq!(circles(&root, home.path(), &vms, &[], None), (1, 0));
        assert_eq!(circles(&root, home.path(), &[vm("vault1", "other")], &[], None), (0, 0));
        let home = tempfile::tempdir().unwrap();
        register(home.path(), "corp", &["kms1.example:5696", "kms2.example:5696"]);
        assert_eq!(circles(&root, home.path(), &vms, &[], None), (0, 0));
    }

    #[test]
    fn a_persons_word_and_the_broker_make_a_circle() {
        let (_kept, root) = machine(&[]);
        let home = tempfile::tempdir().unwrap();
        let says: ProvidesKeys = "vault1=corp".parse().unwrap();
        let vms = [vm("vault1", EMBEDDED)];
        // Under the key server's own key it can be the first to start.
        assert_eq!(circles(&root, home.path(), &vms, std::slice::from_ref(&says), None), (0, 0));
        let there = vm("x", "corp").disks[0].key.provider_key().unwrap().clone();
        let brokered = BTreeMap::from([("4711".to_owned(), there)]);
        assert_eq!(circles(&root, home.path(), &vms, std::slice::from_ref(&says), Some(&brokered)), (1, 0));
        // A missing VM is reported.
        assert_eq!(circles(&root, home.path(), &[], &[says], None), (0, 1));
    }

    #[test]
    fn a_home_on_a_vms_file_server_is_found() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().canonicalize().unwrap();
        let mounts = |server: &str| format!("27 1 0:44 / {} rw - nfs4 {server}:/home rw\n", path.display());
        let (_kept, root) =
            machine(&[("/proc/net/arp", ARP), ("/proc/self/mountinfo", &mounts("192.0.2.7"))]);
        assert_eq!(circles(&root, &path, &[vm("files", EMBEDDED)], &[], None), (1, 0));
        let (_kept, root) =
            machine(&[("/proc/net/arp", ARP), ("/proc/self/mountinfo", &mounts("192.0.2.8"))]);
        assert_eq!(circles(&root, &path, &[vm("files", EMBEDDED)], &[], None), (0, 1));
    }

    #[test]
    fn addresses_are_taken_out_of_what_configurations_name() {
        assert_eq!(address_of("https://vault.example/x"), "vault.example:443");
        assert_eq!(address_of("https://[fd00::5]:8200"), "[fd00::5]:8200");
        assert_eq!(address_of("kms1:5696"), "kms1:5696");
    }
}
