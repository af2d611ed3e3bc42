//! Which network cards QEMU has, and under which names.
//!
//! A card is in the layout before QEMU has it, and stays there until QEMU no longer has it, so that
//! a supervisor that takes over knows every card that there may be.

use serde::{Deserialize, Serialize};
use strongroom_hypervisor::qemu::DeviceId;

use crate::protocol::{MacAddress, Network, VmSpec};

/// The network cards of a running machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicLayout {
    /// How many the machine was started with. Each has a place of its own on the bus, also after
    /// the card is gone.
    started: usize,
    cards: Vec<NicPlace>,
}

/// A network card of a running machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicPlace {
    /// Its address, which no other card of the machine has.
    pub mac: MacAddress,
    /// The network that it is connected to.
    pub network: Network,
    /// How it came.
    pub came: Came,
}

/// How a network card came into the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Came {
    /// With the start, as the card with this number.
    Started(usize),
    /// It was plugged in later.
    Plugged,
}

impl NicLayout {
    /// The layout at a start.
    pub fn of(spec: &VmSpec) -> Self {
        let place = |(number, nic): (usize, &crate::protocol::Nic)| NicPlace {
            mac: nic.mac,
            network: nic.network.clone(),
            came: Came::Started(number),
        };
        Self { started: spec.nics.len(), cards: spec.nics.iter().enumerate().map(place).collect() }
    }

    /// Its cards.
    pub fn iter(&self) -> impl Iterator<Item = &NicPlace> {
        self.cards.iter()
    }

    /// The place of the card with this address.
    pub fn place(&self, mac: MacAddress) -> Option<&NicPlace> {
        self.cards.iter().find(|place| place.mac == mac)
    }

    /// Adds a card.
    pub fn add(&mut self, place: NicPlace) {
        self.remove(place.mac);
        self.cards.push(place);
    }

    /// Removes a card.
    pub fn remove(&mut self, mac: MacAddress) {
        self.cards.retain(|place| place.mac != mac);
    }
}

impl NicPlace {
    /// QEMU's device.
    pub fn device(&self) -> DeviceId {
        match self.came {
            Came::Started(number) => DeviceId::of_first_nic(number),
            Came::Plugged => DeviceId::of_nic(self.mac),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Nic;

    #[test]
    fn cards_keep_their_names_when_others_come_and_go() {
        let mut spec = VmSpec::for_tests("web1", true);
        let mac = |last: u8| MacAddress::of_qemu([0, 0, last]);
        spec.nics = [1, 2].map(|last| Nic::new(mac(last), Network::User)).to_vec();
        let mut layout = NicLayout::of(&spec);
        layout.add(NicPlace { mac: mac(3), network: Network::User, came: Came::Plugged });
        layout.remove(mac(1));
        let devices: Vec<_> = layout.iter().map(|place| place.device().in_machine()).collect();
        assert_eq!(devices, ["nic1", "nic-525400000003"]);
        let text = serde_json::to_string(&layout).unwrap();
        assert_eq!(serde_json::from_str::<NicLayout>(&text).unwrap(), layout);
        layout.remove(mac(3));
        spec.nics.remove(0);
        assert_ne!(layout, NicLayout::of(&spec), "the next start has another place for it");
    }

    #[test]
    fn a_machine_that_has_lost_its_last_card_is_not_as_a_start_makes_it() {
        let mut spec = VmSpec::for_tests("web1", true);
        let mac = MacAddress::of_qemu([0, 0, 1]);
        spec.nics = vec![Nic::new(mac, Network::User)];
        let mut layout = NicLayout::of(&spec);
        layout.remove(mac);
        spec.nics.clear();
        assert_ne!(layout, NicLayout::of(&spec));
    }
}
