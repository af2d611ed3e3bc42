//! The addresses of the host itself, kept up to date.
//!
//! In the kernel, "this machine" is a route of type local (or anycast, on a router), and every
//! address of an interface has one. So this module reads and follows routes. The socket is opened
//! in the host's network, and read in the filter's process, which has a network of its own.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};

use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use parking_lot::{RwLock, RwLockReadGuard};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{RecvFlags, SendFlags, recvfrom, send};

/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`
const GROUPS: [u32; 2] = [7, 11];
/// The kernel sends no larger part of an answer unless an earlier read had a larger buffer.
const BUFFER_BYTES: usize = 32 << 10;
/// The route types that lead to this machine.
const ASKED: [(AddressFamily, RouteType); 3] = [
    (AddressFamily::Inet, RouteType::Local),
    (AddressFamily::Inet6, RouteType::Local),
    (AddressFamily::Inet6, RouteType::Anycast),
];

/// Opens a socket that receives route changes of the caller's network.
pub(crate) fn open() -> io::Result<OwnedFd> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    // A host may have all routes of the Internet. Strict checking filters them; kernels before 4.20
    // send all.
    let _ = socket.set_netlink_get_strict_chk(true);
    GROUPS.iter().try_for_each(|group| socket.add_membership(*group))?;
    socket.as_fd().try_clone_to_owned()
}

/// The host's addresses.
pub(crate) struct OwnAddresses {
    socket: OwnedFd,
    now: RwLock<Prefixes>,
}

impl OwnAddresses {
    /// Reads the addresses.
    pub fn read(socket: OwnedFd) -> io::Result<Self> {
        let now = RwLock::new(read_all(&socket)?);
        Ok(Self { socket, now })
    }

    /// Follows changes until that fails. Returns the error.
    pub fn follow(&self) -> io::Error {
        loop {
            let again = match receive(&self.socket) {
                Ok(received) => received.iter().any(changes),
                Err(error) if is_overrun(&error) => true,
                Err(error) => return error,
            };
            if again {
                match read_all(&self.socket) {
                    Ok(read) => *self.now.write() = read,
                    Err(error) => return error,
                }
            }
        }
    }

    /// The present addresses.
    pub fn now(&self) -> RwLockReadGuard<'_, Prefixes> {
        self.now.read()
    }
}

/// Whether the socket's buffer overflowed.
fn is_overrun(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::NOBUFS)
}

/// A set of addresses, most of them single.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefixes {
    whole: HashSet<IpAddr>,
    networks: Vec<(IpAddr, u8)>,
}

impl Prefixes {
    /// Adds all addresses that have the first `bits` in common with this one.
    pub fn add(&mut self, address: IpAddr, bits: u8) {
        let whole = if address.is_ipv4() { 32 } else { 128 };
        if bits >= whole {
            self.whole.insert(address);
        } else if !self.networks.contains(&(address, bits)) {
            self.networks.push((address, bits));
        }
    }

    /// Whether the set contains an address.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.whole.contains(&address)
            || self.networks.iter().any(|(network, bits)| match (network, address) {
                (IpAddr::V4(network), IpAddr::V4(address)) => {
                    let differ = network.to_bits() ^ address.to_bits();
                    differ.leading_zeros() >= u32::from(*bits)
                }
                (IpAddr::V6(network), IpAddr::V6(address)) => {
                    let differ = network.to_bits() ^ address.to_bits();
                    differ.leading_zeros() >= u32::from(*bits)
                }
                _ => false,
            })
    }
}

type Message = NetlinkMessage<RouteNetlinkMessage>;

fn read_all(socket: &OwnedFd) -> io::Result<Prefixes> {
    'again: loop {
        let mut prefixes = Prefixes::default();
        for (number, (family, kind)) in (1..).zip(ASKED) {
            ask(socket, number, family, kind)?;
            'answer: loop {
                let received = match receive(socket) {
                    // The lost messages may have been part of the answer.
                    Err(error) if is_overrun(&error) => continue 'again,
                    received => received?,
                };
                for message in received {
                    if message.header.sequence_number != number {
                        // A change may affect an earlier answer, so everything is read again.
                        if changes(&message) {
                            continue 'again;
                        }
                        continue;
                    }
                    if message.header.flags & NLM_F_DUMP_INTR != 0 {
                        continue 'again;
                    }
                    match message.payload {
                        NetlinkPayload::Done(_) => break 'answer,
                        NetlinkPayload::Error(error) => return Err(error.to_io()),
                        NetlinkPayload::InnerMessage(RouteNetlinkMessage::NewRoute(route)) => {
                            if let Some((address, bits)) = own(&route) {
                                prefixes.add(address, bits);
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        return Ok(prefixes);
    }
}

fn ask(socket: &OwnedFd, number: u32, family: AddressFamily, kind: RouteType) -> io::Result<()> {
    let mut route = RouteMessage::default();
    route.header.address_family = family;
    route.header.kind = kind;
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    header.sequence_number = number;
    let mut message = Message::new(header, RouteNetlinkMessage::GetRoute(route).into());
    message.finalize();
    let mut bytes = vec![0; message.buffer_len()];
    message.serialize(&mut bytes);
    send(socket, &bytes, SendFlags::empty())?;
    Ok(())
}

/// Receives the next messages of the kernel.
fn receive(socket: &OwnedFd) -> io::Result<Vec<Message>> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let (filled, from) = loop {
        match recvfrom(socket, &mut buffer[..], RecvFlags::TRUNC) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok((_, length, from)) => break (length, from),
        }
    };
    let from = from.and_then(|address| SocketAddrNetlink::try_from(address).ok());
    if from.is_none_or(|from| from.pid() != 0) {
        return Ok(Vec::new());
    }
    let mut rest = buffer.get(..filled).ok_or(ErrorKind::InvalidData)?;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let invalid = |error| io::Error::new(ErrorKind::InvalidData, error);
        let message = Message::deserialize(rest).map_err(invalid)?;
        // Each message begins at a multiple of four.
        let length = (message.header.length as usize).next_multiple_of(4);
        rest = rest.get(length..).unwrap_or_default();
        messages.push(message);
    }
    Ok(messages)
}

fn changes(message: &Message) -> bool {
    match &message.payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route),
        ) => own(route).is_some(),
        _ => false,
    }
}

/// Returns the destination of a route that leads to this machine.
fn own(route: &RouteMessage) -> Option<(IpAddr, u8)> {
    if !matches!(route.header.kind, RouteType::Local | RouteType::Anycast) {
        return None;
    }
    let named = route.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Destination(RouteAddress::Inet(address)) => Some(IpAddr::from(*address)),
        RouteAttribute::Destination(RouteAddress::Inet6(address)) => Some(IpAddr::from(*address)),
        _ => None,
    });
    // A default route has no bits, and names no address.
    let address = named.unwrap_or(match route.header.address_family {
        AddressFamily::Inet6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    });
    Some((address, route.header.destination_prefix_length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_has_its_loopback_among_its_addresses() {
        let own = OwnAddresses::read(open().unwrap()).unwrap();
        assert!(own.now().contain("127.0.0.1".parse().unwrap()), "{:?}", own.now());
        assert!(own.now().contain("127.9.9.9".parse().unwrap()), "{:?}", own.now());
        assert!(!own.now().contain("192.0.2.1".parse().unwrap()), "{:?}", own.now());
    }

    #[test]
    fn addresses_are_contained_by_their_first_bits() {
        let mut prefixes = Prefixes::default();
        prefixes.add("192.0.2.7".parse().unwrap(), 32);
        prefixes.add("198.51.100.0".parse().unwrap(), 24);
        prefixes.add("2001:db8::".parse().unwrap(), 32);
        prefixes.add("2001:db9::1".parse().unwrap(), 128);
        for own in ["192.0.2.7", "198.51.100.0", "198.51.100.255", "2001:db8:ffff::1", "2001:db9::1"] {
            assert!(prefixes.contain(own.parse().unwrap()), "{own}");
        }
        for other in ["192.0.2.6", "198.51.101.0", "2001:db9::2", "::"] {
            assert!(!prefixes.contain(other.parse().unwrap()), "{other}");
        }
        prefixes.add("::".parse().unwrap(), 0);
        assert!(prefixes.contain("2001:db9::2".parse().unwrap()));
        assert!(!prefixes.contain("192.0.2.6".parse().unwrap()));
    }
}
