use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::*;

fn file() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}

fn files(count: usize) -> Vec<OwnedFd> {
    (0..count).map(|_| file()).collect()
}

#[test]
fn a_header_is_a_request_of_version_one_within_the_limit() {
    let header = |flags: u32, bytes: u32| {
        let words = [request::GET_FEATURES, flags, bytes].map(u32::to_le_bytes);
        Header::parse(words.as_flattened().try_into().unwrap())
    };
    let good = header(flag::VERSION | flag::NEED_REPLY, 8).unwrap();
    assert_eq!(good, Header { request: 1, needs_reply: true, body_bytes: 8 });
    assert_eq!(good.reply(&[7]), [1, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 7]);
    assert_eq!(header(2, 0), Err(MessageError::Flags(2)));
    assert_eq!(header(flag::VERSION | flag::REPLY, 0), Err(MessageError::Flags(5)));
    assert_eq!(header(1, BODY_BYTES_MAX + 1), Err(MessageError::TooLong { request: 1, bytes: 4097 }));
}

#[test]
fn bodies_become_types() {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let region = RegionDescription { guest: GuestAddress(1), bytes: 2, user: 3, file_offset: 4 };
    let table = words(&[2, 1, 2, 3, 4, 1, 2, 3, 4]);
    let Ok(Message::SetMemoryTable(regions)) = Message::parse(request::SET_MEM_TABLE, &table, files(2))
    else {
        panic!();
    };
    assert_eq!(regions.iter().map(|region| region.0).collect::<Vec<_>>(), [region, region]);
    let one = Message::parse(request::ADD_MEM_REG, &words(&[0, 1, 2, 3, 4]), files(1));
    assert!(matches!(one, Ok(Message::AddRegion(found, _)) if found == region));
    let state = Message::parse(request::SET_VRING_NUM, &words(&[(128 << 32) | 1]), files(0));
    assert!(matches!(state, Ok(Message::SetRingSize(RingState { index: 1, number: 128 }))));
    let addresses = Message::parse(request::SET_VRING_ADDR, &words(&[1, 10, 20, 30, 0]), files(0));
    let expected = RingAddresses { descriptors: 10, used: 20, available: 30 };
    assert!(matches!(addresses, Ok(Message::SetRingAddresses(1, found)) if found == expected));
    let kick = Message::parse(request::SET_VRING_KICK, &words(&[3]), files(1));
    assert!(matches!(kick, Ok(Message::SetRingKick(3, Some(_)))));
    let poll = Message::parse(request::SET_VRING_CALL, &words(&[0x103]), files(0));
    assert!(matches!(poll, Ok(Message::SetRingCall(3, None))));
    let config = Message::parse(request::SET_CONFIG, &[32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 9], files(0));
    let range = ConfigRange { offset: 32, bytes: 1 };
    assert!(matches!(config, Ok(Message::SetConfig(found, bytes)) if found == range && bytes == [9]));
    let log = Message::parse(request::SET_LOG_BASE, &words(&[4096, 8192]), files(1));
    let expected = LogDescription { bytes: 4096, offset: 8192 };
    assert!(matches!(log, Ok(Message::SetLog(found, _)) if found == expected));
    // With the padding of a C structure, and without.
    let area = words(&[4096, 0, 2 | 128 << 16]);
    let expected = InFlightDescription { bytes: 4096, offset: 0, queues: 2, queue_size: 128 };
    for length in [20, 24] {
        let wanted = Message::parse(request::GET_INFLIGHT_FD, &area[..length], files(0));
        assert!(matches!(wanted, Ok(Message::GetInFlight(found)) if found == expected));
        let given = Message::parse(request::SET_INFLIGHT_FD, &area[..length], files(1));
        assert!(matches!(given, Ok(Message::SetInFlight(found, _)) if found == expected));
    }
}

#[test]
fn wrong_lengths_and_counts_of_files_are_refused() {
    let error = |request, body: &[u8], count| Message::parse(request, body, files(count)).unwrap_err();
    assert_eq!(error(request::SET_FEATURES, &[0; 7], 0), MessageError::Body(2));
    assert_eq!(error(request::SET_FEATURES, &[0; 9], 0), MessageError::Body(2));
    assert_eq!(error(request::GET_FEATURES, &[], 1), MessageError::Files { request: 1, files: 1 });
    assert_eq!(error(request::SET_VRING_KICK, &[0; 8], 0), MessageError::Files { request: 12, files: 0 });
    assert_eq!(error(request::SET_VRING_KICK, &[0; 8], 2), MessageError::Files { request: 12, files: 2 });
    assert_eq!(error(request::SET_MEM_TABLE, &[255; 8], 8), MessageError::Body(5));
    assert_eq!(error(request::GET_CONFIG, &[255; 12], 0), MessageError::Body(24));
    for served_by_others in [0, 19, 22, 33, 41, 99, u32::MAX] {
        assert_eq!(error(served_by_others, &[], 0), MessageError::Unknown(served_by_others));
    }
}

#[test]
fn noise_is_never_more_than_an_error() {
    let mut random = StdRng::seed_from_u64(3);
    for _ in 0..20_000 {
        let mut body = vec![0; random.random_range(0..300)];
        random.fill_bytes(&mut body);
        if random.random() && !body.is_empty() {
            body[0] = random.random_range(0..9);
            let small = body.len().min(8);
            body[1..small].fill(0);
        }
        let count = random.random_range(0..3);
        let _ = Message::parse(random.random_range(0..45), &body, files(count));
    }
}
