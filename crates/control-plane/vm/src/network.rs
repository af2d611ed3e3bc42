//! Network interfaces of a VM, and their networks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use strongroom_types::VmId;
use thiserror::Error;

use crate::limits::{INTERFACE_NAME_BYTES_MAX, VLAN_MAX};

/// A virtio network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nic {
    /// Its address.
    pub mac: MacAddress,
    /// Its network.
    pub network: Network,
    /// What the guest sees of its cable.
    #[serde(default, skip_serializing_if = "Link::is_up")]
    pub link: Link,
}

impl Nic {
    /// An interface with this address on this network, whose cable is plugged in.
    pub fn new(mac: MacAddress, network: Network) -> Self {
        Self { mac, network, link: Link::Up }
    }
}

/// The cable of an interface, as the guest sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Link {
    /// Plugged in.
    #[default]
    Up,
    /// Pulled: no frame passes.
    Down,
}

impl Link {
    /// Whether frames pass.
    pub fn is_up(&self) -> bool {
        *self == Self::Up
    }
}

/// The network of an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Network {
    /// The networks that the host can reach, through an unprivileged process (passt). The guest
    /// cannot reach the host itself.
    User,
    /// An existing tap device.
    Tap {
        /// Its name on the host.
        device: InterfaceName,
    },
    /// An existing bridge. A tap device is made on it.
    Bridge {
        /// Its name on the host.
        bridge: InterfaceName,
        /// The guest's VLAN on the bridge; the guest sees no tags. Without it, the port is
        /// untagged.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vlan: Option<VlanId>,
    },
}

/// Why a text or number is not a network name, address or VLAN.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NetworkError {
    /// Not a MAC address.
    #[error("'{0}' is not a network card's address; write six pairs of digits, such as 52:54:00:12:34:56")]
    Mac(String),
    /// A group address.
    #[error("{0} is the address of a group, and a network card has one of its own")]
    Group(MacAddress),
    /// Not an interface name.
    #[error("'{0}' cannot be the name of a network interface")]
    Interface(String),
    /// Not a VLAN number.
    #[error("{0} is not a VLAN; there are 1 to {VLAN_MAX}")]
    Vlan(u16),
}

/// The MAC address of one network card (IEEE 802), not of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// Makes an address from its bytes.
    pub fn new(bytes: [u8; 6]) -> Result<Self, NetworkError> {
        let address = Self(bytes);
        if bytes[0] & 1 == 0 { Ok(address) } else { Err(NetworkError::Group(address)) }
    }

    /// An address with QEMU's prefix (52:54:00) and these last three bytes.
    pub const fn of_qemu([a, b, c]: [u8; 3]) -> Self {
        Self([0x52, 0x54, 0x00, a, b, c])
    }

    /// The address of a VM's card, the same at each call: QEMU's prefix (52:54:00), and three bytes
    /// of the VM's random id.
    pub fn of(vm: VmId, card: u8) -> Self {
        let id = vm.as_bytes();
        Self::of_qemu([id[13], id[14], id[15].wrapping_add(card)])
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MacAddress {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let malformed = || NetworkError::Mac(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().filter(|part| part.len() == 2).ok_or_else(malformed)?;
            if !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(malformed());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| malformed())?;
        }
        if parts.next().is_some() {
            return Err(malformed());
        }
        Self::new(bytes)
    }
}

impl TryFrom<String> for MacAddress {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(address: MacAddress) -> Self {
        address.to_string()
    }
}

/// The name of a network interface of the host, as Linux allows it (`dev_valid_name`): letters,
/// digits, `.`, `_`, `-` and `@`, not beginning with a dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

impl InterfaceName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl TryFrom<String> for InterfaceName {
    type Error = NetworkError;

    fn try_from(text: String) -> Result<Self, NetworkError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@".contains(&byte);
        let good = (1..=INTERFACE_NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with('.');
        if good { Ok(Self(text)) } else { Err(NetworkError::Interface(text)) }
    }
}

impl FromStr for InterfaceName {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        text.to_owned().try_into()
    }
}

impl From<InterfaceName> for String {
    fn from(name: InterfaceName) -> Self {
        name.0
    }
}

/// A VLAN number (IEEE 802.1Q).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct VlanId(u16);

impl VlanId {
    /// Checks a VLAN number.
    pub const fn new(number: u16) -> Result<Self, NetworkError> {
        if number >= 1 && number <= VLAN_MAX { Ok(Self(number)) } else { Err(NetworkError::Vlan(number)) }
    }

    /// The number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl fmt::Display for VlanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl TryFrom<u16> for VlanId {
    type Error = NetworkError;

    fn try_from(number: u16) -> Result<Self, NetworkError> {
        Self::new(number)
    }
}

impl From<VlanId> for u16 {
    fn from(vlan: VlanId) -> Self {
        vlan.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_one_cards() {
        let address: MacAddress = "52:54:00:aB:00:ff".parse().unwrap();
        assert_eq!(address.to_string(), "52:54:00:ab:00:ff");
        for wrong in ["", "52:54:00:ab:00", "52:54:00:ab:00:ff:00", "52:54:00:ab:00:+f", "5:254:00:ab:00:ff"]
        {
            assert!(matches!(wrong.parse::<MacAddress>(), Err(NetworkError::Mac(_))), "{wrong}");
        }
        assert!(matches!("01:00:5e:00:00:01".parse::<MacAddress>(), Err(NetworkError::Group(_))));
    }

    #[test]
    fn names_that_programs_could_mistake_are_refused() {
        for good in ["eth0", "br-lan", "a", "eth0@if2", "enp0s31f6.4094", "fifteen-letters"] {
            assert!(good.parse::<InterfaceName>().is_ok(), "{good}");
        }
        for wrong in ["", "..", "a,b", "a b", "a/b", "sixteen-letters-", "é", "a\n"] {
            assert!(wrong.parse::<InterfaceName>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn vlans_are_those_of_the_standard() {
        assert!(VlanId::new(0).is_err() && VlanId::new(4095).is_err());
        assert_eq!(VlanId::new(4094).unwrap().number(), 4094);
    }
}
