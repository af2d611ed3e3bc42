//! A filter between a guest and passt that drops frames from the guest to the host itself.
//!
//! passt connects from the host's network to any address that a frame names: also to the host's own
//! addresses, and in Debian 12's version (2023-03-09) to 127.0.0.1, even with `--no-map-gw`. A
//! guest that makes its own frames could reach services of the host. So frames are checked here
//! first, in a separate process that has three sockets and nothing else.
//!
//! Frames have the form of QEMU's stream network (`net/stream.c`): a length of four bytes, most
//! significant first, and the Ethernet frame. Each frame has its own destination, so the filter
//! keeps no state.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown};
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::own_addresses::{OwnAddresses, Prefixes};

/// The length before each frame.
const LENGTH_BYTES: usize = 4;
/// The longest frame of QEMU (`NET_BUFSIZE`); passt's are shorter.
const FRAME_BYTES_MAX: usize = 4096 + 65536;
/// The size of a read: several of the longest frames.
const BUFFER_BYTES: usize = 256 << 10;

const ETHERNET_BYTES: usize = 14;
const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const TYPE_IPV6: [u8; 2] = [0x86, 0xdd];
const UDP: u8 = 17;
const ICMPV6: u8 = 58;
/// The ICMPv6 types from router solicitation to neighbour advertisement.
const DISCOVERY: RangeInclusive<u8> = 133..=136;
const DHCP_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// The address at which a cloud with IPv6 hands out the host's credentials.
const METADATA_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254);

/// Forwards frames between a guest and its network until one side closes, or the host's addresses
/// cannot be followed.
pub(crate) fn run(guest: UnixStream, network: UnixStream, addresses: OwnedFd) -> io::Result<()> {
    let host = Arc::new(OwnAddresses::read(addresses)?);
    let (followed, ends) = (Arc::clone(&host), (network.try_clone()?, guest.try_clone()?));
    std::thread::Builder::new().name("addresses".to_owned()).spawn(move || {
        let error = followed.follow();
        eprintln!("the host's addresses cannot be followed any more: {error}");
        end(&ends.0, &ends.1);
    })?;
    let (from_network, to_guest) = (network.try_clone()?, guest.try_clone()?);
    let back = std::thread::Builder::new().name("to-guest".to_owned());
    let back = back.spawn(move || {
        // Frames from the network are not filtered.
        let _ = io::copy(&mut &from_network, &mut &to_guest);
        end(&from_network, &to_guest);
    })?;
    let carried = carry(&guest, &network, |frame| passes(frame, &host.now()));
    end(&guest, &network);
    let _ = back.join();
    carried
}

fn end(one: &UnixStream, other: &UnixStream) {
    // Shutting down a closed socket is harmless.
    let _ = one.shutdown(Shutdown::Both);
    let _ = other.shutdown(Shutdown::Both);
}

/// Forwards the frames that satisfy `passes`, until the end of the stream.
fn carry(mut from: impl Read, mut to: impl Write, passes: impl Fn(&[u8]) -> bool) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut filled = 0;
    loop {
        filled += match from.read(&mut buffer[filled..]) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        // Passing frames are moved to the front, and sent in one write.
        let (mut taken, mut kept) = (0, 0);
        while let Some(length) = buffer[taken..filled].first_chunk::<LENGTH_BYTES>() {
            let length = u32::from_be_bytes(*length) as usize;
            if length > FRAME_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
            let end = taken + LENGTH_BYTES + length;
            if end > filled {
                break;
            }
            if passes(&buffer[taken + LENGTH_BYTES..end]) {
                buffer.copy_within(taken..end, kept);
                kept += end - taken;
            }
            taken = end;
        }
        to.write_all(&buffer[..kept])?;
        buffer.copy_within(taken..filled, 0);
        filled -= taken;
    }
}

/// Whether a guest's frame may pass: ARP, and IP to another machine.
fn passes(frame: &[u8], host: &Prefixes) -> bool {
    let Some((header, packet)) = frame.split_at_checked(ETHERNET_BYTES) else { return false };
    match [header[12], header[13]] {
        TYPE_ARP => true,
        TYPE_IPV4 => {
            let destination = packet.get(16..20).and_then(|bytes| bytes.first_chunk::<4>());
            destination.is_some_and(|bytes| {
                let to = Ipv4Addr::from(*bytes);
                packet[0] >> 4 == 4 && is_another_v4(to) && !host.contain(to.into())
            })
        }
        TYPE_IPV6 => {
            let destination = packet.get(24..40).and_then(|bytes| bytes.first_chunk::<16>());
            destination.is_some_and(|bytes| {
                let to = Ipv6Addr::from(*bytes);
                let is_v6 = packet[0] >> 4 == 6;
                match to.is_multicast() {
                    true => is_v6 && is_about_the_link(packet, to),
                    false => is_v6 && is_another_v6(to) && !host.contain(to.into()),
                }
            })
        }
        _ => false,
    }
}

/// Connections to 0.0.0.0 and 127.0.0.0/8 stay on the host. Link-local addresses (RFC 3927) are
/// dropped too: a cloud answers at 169.254.169.254 with the host's credentials. Multicast includes
/// the host; broadcast passes, since DHCP needs it.
fn is_another_v4(address: Ipv4Addr) -> bool {
    address.octets()[0] != 0 && !address.is_loopback() && !address.is_link_local() && !address.is_multicast()
}

/// As for IPv4, with `::` and `::1`. Also drops IPv4 addresses in IPv6 form, which no guest needs.
fn is_another_v6(address: Ipv6Addr) -> bool {
    let [a, b, c, d, e, f, ..] = address.segments();
    // ::/96, ::ffff:0:0/96 and ::ffff:0:0:0/96 (RFC 4291 2.5.5, RFC 2765 2.1)
    let is_v4 = [a, b, c, d] == [0; 4] && matches!((e, f), (0, 0) | (0, 0xffff) | (0xffff, 0));
    !is_v4 && address != METADATA_V6
}

/// Whether a multicast packet is part of IPv6 itself, which passt answers: neighbour and router
/// discovery (RFC 4861), and DHCPv6 (RFC 8415).
fn is_about_the_link(packet: &[u8], to: Ipv6Addr) -> bool {
    let is_discovery =
        packet.get(6) == Some(&ICMPV6) && packet.get(40).is_some_and(|kind| DISCOVERY.contains(kind));
    let is_dhcp = packet.get(6) == Some(&UDP) && to == DHCP_SERVERS;
    is_discovery || is_dhcp
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn v4(destination: [u8; 4]) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + 20];
        frame[12..14].copy_from_slice(&TYPE_IPV4);
        frame[14] = 0x45;
        frame[30..34].copy_from_slice(&destination);
        frame
    }

    fn v6(destination: &str) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + 40];
        frame[12..14].copy_from_slice(&TYPE_IPV6);
        frame[14] = 0x60;
        frame[38..54].copy_from_slice(&destination.parse::<Ipv6Addr>().unwrap().octets());
        frame
    }

    /// A host with one address, and with a whole network.
    fn host() -> Prefixes {
        let mut host = Prefixes::default();
        host.add("10.0.0.5".parse().unwrap(), 32);
        host.add("198.51.100.0".parse().unwrap(), 24);
        host.add("2001:db8::5".parse().unwrap(), 128);
        host.add("fe80::5".parse().unwrap(), 128);
        host
    }

    #[test]
    fn what_is_addressed_to_the_host_itself_does_not_pass() {
        let own = [[10, 0, 0, 5], [198, 51, 100, 77]];
        let loopback = [[127, 0, 0, 1], [127, 255, 255, 255], [0, 0, 0, 0], [0, 1, 2, 3]];
        let link = [[169, 254, 169, 254], [169, 254, 0, 1], [224, 0, 0, 251], [239, 255, 255, 250]];
        for destination in own.into_iter().chain(loopback).chain(link) {
            assert!(!passes(&v4(destination), &host()), "{destination:?}");
        }
        let own = ["2001:db8::5", "fe80::5", "::", "::1", "fd00:ec2::254", "ff02::1", "ff02::fb"];
        let disguised = ["::ffff:127.0.0.1", "::127.0.0.1", "::ffff:0:127.0.0.1", "::ffff:10.0.0.5"];
        for destination in own.into_iter().chain(disguised) {
            assert!(!passes(&v6(destination), &host()), "{destination}");
        }
        for destination in [[192, 0, 2, 1], [128, 0, 0, 1], [255, 255, 255, 255], [10, 0, 0, 6]] {
            assert!(passes(&v4(destination), &host()), "{destination:?}");
        }
        for destination in ["fe80::1", "2001:db8::1", "64:ff9b::1"] {
            assert!(passes(&v6(destination), &host()), "{destination}");
        }
    }

    #[test]
    fn neighbours_routers_and_addresses_are_asked_for_by_groups() {
        let packet = |to: &str, next: u8, first: u8| {
            let mut frame = v6(to);
            frame[20] = next;
            frame.push(first);
            frame
        };
        assert!(passes(&packet("ff02::2", ICMPV6, 133), &host()));
        assert!(passes(&packet("ff02::1:ff00:1", ICMPV6, 135), &host()));
        assert!(passes(&packet("ff02::1:2", UDP, 0), &host()));
        assert!(!passes(&packet("ff02::1", ICMPV6, 128), &host()));
        assert!(!passes(&packet("ff02::fb", UDP, 0), &host()));
        assert!(!passes(&packet("ff02::2", UDP, 133), &host()));
    }

    #[test]
    fn what_is_not_understood_does_not_pass() {
        let mut tagged = v4([192, 0, 2, 1]);
        tagged[12..14].copy_from_slice(&[0x81, 0x00]);
        let mut disguised = v4([192, 0, 2, 1]);
        disguised[14] = 0x65;
        for frame in [vec![], vec![0; 13], tagged, disguised, v4([192, 0, 2, 1])[..33].to_vec()] {
            assert!(!passes(&frame, &host()), "{frame:?}");
        }
    }

    proptest! {
        #[test]
        fn frames_pass_whole_and_in_order_however_they_are_cut(
            wanted in prop::collection::vec((any::<bool>(), 0_usize..3000), 0..20),
            cuts in prop::collection::vec(1_usize..5000, 1..20),
        ) {
            let mut sent = Vec::new();
            let mut expected = Vec::new();
            for (number, (allowed, padding)) in wanted.into_iter().enumerate() {
                let mut frame = v4(if allowed { [192, 0, 2, 1] } else { [127, 0, 0, 1] });
                frame.resize(frame.len() + padding, number as u8);
                let mut framed = (frame.len() as u32).to_be_bytes().to_vec();
                framed.extend(frame);
                if allowed { expected.extend_from_slice(&framed) }
                sent.extend(framed);
            }
            let mut received = Vec::new();
            carry(Cut { bytes: &sent, cuts: cuts.iter().cycle() }, &mut received, |frame| passes(frame, &host()))
                .unwrap();
            prop_assert_eq!(received, expected);
        }

        #[test]
        fn nothing_that_a_guest_sends_harms(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
            let _ = carry(&bytes[..], io::sink(), |frame| passes(frame, &host()));
        }
    }

    #[test]
    fn a_frame_that_is_too_long_ends_it() {
        let refused = carry(&u32::MAX.to_be_bytes()[..], io::sink(), |_| true);
        assert_eq!(refused.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    /// A stream of bytes that arrives in pieces.
    struct Cut<'a, I> {
        bytes: &'a [u8],
        cuts: I,
    }

    impl<'a, I: Iterator<Item = &'a usize>> Read for Cut<'_, I> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let most = self.cuts.next().map_or(1, |cut| *cut).min(into.len());
            self.bytes.read(&mut into[..most])
        }
    }
}
