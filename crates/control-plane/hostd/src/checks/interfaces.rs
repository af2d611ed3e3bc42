//! Bridges and tap devices: whether they exist, and whether the configuration lets VMs use them.

use std::path::Path;

use strongroom_host::protocol::{Network, Problem};

use super::Root;

/// Checks whether a network card can use this network of the host. `allowed` is the list in the
/// host's configuration, if it has one.
///
/// # Errors
/// `no_such_interface` if the bridge or tap device does not exist; `interface_not_allowed` if VMs
/// may not use it; `bridge_without_vlans` if the bridge would pass frames between VLANs.
pub fn check(root: &Root, allowed: Option<&[String]>, network: &Network) -> Result<(), Problem> {
    // `mark` is the sysfs entry that only interfaces of this kind have.
    let (device, kind, mark, command) = match network {
        Network::User => return Ok(()),
        Network::Tap { device } => (device, "tap device", "tun_flags", "ip tuntap add dev NAME mode tap"),
        Network::Bridge { bridge, .. } => (bridge, "bridge", "bridge", "ip link add NAME type bridge"),
    };
    if let Some(allowed) = allowed.filter(|allowed| !allowed.iter().any(|name| name == device.as_str())) {
        let message = format!("this host gives VMs no {kind} {device}");
        let next = match allowed {
            [] => "use the network user, or name it under `interfaces` in the host's host.json".to_owned(),
            named => format!("name one of {} (`interfaces` in the host's host.json)", named.join(", ")),
        };
        return Err(Problem::new("interface_not_allowed", message).with_next_step(next));
    }
    let place = Path::new("/sys/class/net").join(device.as_str());
    let message = match (root.has(&place), root.has(place.join(mark))) {
        (_, true) => return separates(root, network),
        (true, false) => format!("network interface {device} of this host is not a {kind}"),
        (false, false) => format!("this host has no {kind} {device}"),
    };
    let next = format!("make one (`{}`), or name another", command.replace("NAME", device.as_str()));
    Err(Problem::new("no_such_interface", message).with_next_step(next))
}

/// Checks that a bridge separates VLANs, if the card is in one. The kernel takes VLANs for ports of
/// a bridge that does not, and passes all frames to all of them.
fn separates(root: &Root, network: &Network) -> Result<(), Problem> {
    let Network::Bridge { bridge, vlan: Some(vlan) } = network else { return Ok(()) };
    let file = Path::new("/sys/class/net").join(bridge.as_str()).join("bridge/vlan_filtering");
    let (state, next) = match root.read(&file).as_deref().map(str::trim) {
        Some("1") => return Ok(()),
        Some(_) => (
            "its vlan_filtering is off",
            format!(
                "`ip link set {bridge} type bridge vlan_filtering 1`, with the VLANs of its other ports set"
            ),
        ),
        None => (
            "the kernel's bridges know no VLANs",
            "use a kernel with CONFIG_BRIDGE_VLAN_FILTERING, or a bridge for each network".to_owned(),
        ),
    };
    let message =
        format!("bridge {bridge} of this host does not separate VLAN {} from others: {state}", vlan.number());
    Err(Problem::new("bridge_without_vlans", message).with_next_step(next))
}

#[cfg(test)]
mod tests {
    use super::super::tests::tree;
    use super::*;

    #[test]
    fn bridges_and_taps_are_there_and_are_such_and_are_given_to_vms() {
        let (_directory, root) = tree(&[
            ("/sys/class/net/br0/bridge/bridge_id", "8000"),
            ("/sys/class/net/br1/bridge/vlan_filtering", "1\n"),
            ("/sys/class/net/br2/bridge/vlan_filtering", "0\n"),
            ("/sys/class/net/eth0/mtu", "1500"),
            ("/sys/class/net/tap0/tun_flags", "0x1002"),
        ]);
        let refused = |allowed: Option<&[&str]>, network: &str| {
            let allowed: Option<Vec<String>> =
                allowed.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            let network: Network = serde_json::from_str(network).unwrap();
            check(&root, allowed.as_deref(), &network).err().inspect(|problem| {
                assert!(problem.next_step.is_some(), "{problem}");
            })
        };
        let (bridge, tap) = (r#"{"bridge":{"bridge":"br0"}}"#, r#"{"tap":{"device":"tap0"}}"#);
        for (allowed, network) in [
            (None, bridge),
            (None, tap),
            (Some(&["tap0", "br0"][..]), bridge),
            (Some(&["tap0"][..]), tap),
            (Some(&[][..]), r#""user""#),
            (None, r#"{"bridge":{"bridge":"br1","vlan":20}}"#),
            (None, r#"{"bridge":{"bridge":"br2"}}"#),
        ] {
            assert_eq!(refused(allowed, network), None, "{allowed:?} {network}");
        }
        for (network, says) in [
            (r#"{"bridge":{"bridge":"br7"}}"#, "no bridge br7"),
            (r#"{"bridge":{"bridge":"eth0"}}"#, "eth0 of this host is not a bridge"),
            (r#"{"tap":{"device":"tap7"}}"#, "no tap device tap7"),
        ] {
            let problem = refused(None, network).unwrap();
            assert_eq!(problem.code, "no_such_interface");
            assert!(problem.message.contains(says), "{problem}");
        }
        // A bridge that would pass frames between VLANs.
        for (bridge, says) in [("br0", "bridges know no VLANs"), ("br2", "vlan_filtering is off")] {
            let problem =
                refused(None, &format!(r#"{{"bridge":{{"bridge":"{bridge}","vlan":20}}}}"#)).unwrap();
            assert_eq!(problem.code, "bridge_without_vlans");
            assert!(problem.message.contains(says) && problem.message.contains("VLAN 20"), "{problem}");
        }
        // Permission is checked before existence, so that an error does not reveal which devices
        // exist.
        for (allowed, network) in
            [(&["tap0"][..], bridge), (&["br0"][..], tap), (&[][..], r#"{"tap":{"device":"tap7"}}"#)]
        {
            assert_eq!(refused(Some(allowed), network).unwrap().code, "interface_not_allowed", "{network}");
        }
    }
}
