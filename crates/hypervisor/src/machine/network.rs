//! Network cards, and what they are connected to.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A virtio network card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nic {
    /// Its address.
    pub mac: MacAddress,
    /// What it is connected to.
    pub backend: NicBackend,
}

/// What a network card is connected to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NicBackend {
    /// The host's network through a process without rights (passt), and never the host's own loopback. Where passt is
    /// not installed, QEMU's own user network, with nothing beyond it.
    User,
    /// A tap device of this name: one that exists, or one made for this card that goes with it. It takes the right to.
    Tap {
        /// The device.
        device: InterfaceName,
    },
    /// A tap device made for this card and put into a bridge. It takes the right to.
    Bridge {
        /// The bridge.
        bridge: InterfaceName,
        /// The one VLAN of the bridge that the guest is in, without seeing its tags.
        vlan: Option<VlanId>,
    },
}

/// How QEMU reaches what a card is connected to: by what it has open under a number, or under a name that it was given
/// over QMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// A stream of frames.
    Stream(String),
    /// A tap device.
    Tap(String),
    /// QEMU's own user network, restricted to itself.
    RestrictedUser,
}

/// Why a text is no part of a network.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NicError {
    /// Not an address.
    #[error("'{0}' is not a network card's address; write six pairs of digits, such as 52:54:00:12:34:56")]
    Mac(String),
    /// An address of many.
    #[error("{0} is the address of a group, and a network card has one of its own")]
    Group(MacAddress),
    /// Not a name.
    #[error("'{0}' is not the name of a network interface")]
    Interface(String),
    /// Not a VLAN.
    #[error("{0} is not a VLAN; there are 1 to 4094")]
    Vlan(u16),
}

/// The address of a network card (IEEE 802): one card's, not a group's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MacAddress([u8; 6]);

impl MacAddress {
    /// The address of these bytes.
    pub fn new(bytes: [u8; 6]) -> Result<Self, NicError> {
        let address = Self(bytes);
        if bytes[0] & 1 == 0 { Ok(address) } else { Err(NicError::Group(address)) }
    }

    /// An address for a VM's card, the same each time it is asked for: of QEMU's own prefix (52:54:00), and three
    /// bytes of the VM's random id.
    pub fn of(vm: strongroom_types::VmId, card: u8) -> Self {
        let id = vm.as_bytes();
        Self([0x52, 0x54, 0x00, id[13], id[14], id[15].wrapping_add(card)])
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
    type Err = NicError;

    fn from_str(text: &str) -> Result<Self, NicError> {
        let malformed = || NicError::Mac(text.to_owned());
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
    type Error = NicError;

    fn try_from(text: String) -> Result<Self, NicError> {
        text.parse()
    }
}

impl From<MacAddress> for String {
    fn from(address: MacAddress) -> Self {
        address.to_string()
    }
}

/// The name of a network interface of the host: 1 to 15 bytes as Linux allows them (`dev_valid_name`), here of letters,
/// digits, `.`, `_` and `-`, and not with `-` or `.` at the beginning, so that no program takes it for anything else.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct InterfaceName(String);

/// IFNAMSIZ without the zero byte.
const INTERFACE_NAME_BYTES_MAX: usize = 15;

impl InterfaceName {
    /// The name.
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
    type Error = NicError;

    fn try_from(text: String) -> Result<Self, NicError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let good = (1..=INTERFACE_NAME_BYTES_MAX).contains(&text.len())
            && text.bytes().all(allowed)
            && !text.starts_with(['-', '.']);
        if good { Ok(Self(text)) } else { Err(NicError::Interface(text)) }
    }
}

impl FromStr for InterfaceName {
    type Err = NicError;

    fn from_str(text: &str) -> Result<Self, NicError> {
        text.to_owned().try_into()
    }
}

impl From<InterfaceName> for String {
    fn from(name: InterfaceName) -> Self {
        name.0
    }
}

/// A VLAN's number (IEEE 802.1Q), from 1 to 4094.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct VlanId(u16);

impl VlanId {
    /// The VLAN with this number.
    pub const fn new(number: u16) -> Result<Self, NicError> {
        if number >= 1 && number <= 4094 { Ok(Self(number)) } else { Err(NicError::Vlan(number)) }
    }

    /// Its number.
    pub const fn number(self) -> u16 {
        self.0
    }
}

impl TryFrom<u16> for VlanId {
    type Error = NicError;

    fn try_from(number: u16) -> Result<Self, NicError> {
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
            assert!(matches!(wrong.parse::<MacAddress>(), Err(NicError::Mac(_))), "{wrong}");
        }
        assert!(matches!("01:00:5e:00:00:01".parse::<MacAddress>(), Err(NicError::Group(_))));
    }

    #[test]
    fn names_that_programs_could_mistake_are_refused() {
        for good in ["eth0", "br-lan", "a", "enp0s31f6.4094", "fifteen-letters"] {
            assert!(good.parse::<InterfaceName>().is_ok(), "{good}");
        }
        for wrong in ["", "-eth0", "..", "a,b", "a b", "a/b", "sixteen-letters-", "é", "a\n"] {
            assert!(wrong.parse::<InterfaceName>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn vlans_are_those_of_the_standard() {
        assert!(VlanId::new(0).is_err() && VlanId::new(4095).is_err());
        assert_eq!(VlanId::new(4094).unwrap().number(), 4094);
    }
}
