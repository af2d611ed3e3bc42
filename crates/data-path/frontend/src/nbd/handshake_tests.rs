use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

use super::*;

const LIMITS: Limits = Limits {
    size_bytes: 1 << 30,
    block_bytes: 512,
    preferred_bytes: 4096,
    transfer_bytes_max: 1 << 20,
    read_only: false,
    discards: true,
};

const FLAGS: &[u8] = &[0, 0, 0, 3];

fn handshake(security: Security) -> (Handshake, Vec<u8>) {
    let mut output = Vec::new();
    let export = Export { name: "disk".to_owned(), description: "secret".to_owned() };
    (Handshake::new(export, security, &mut output), output)
}

fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u32).to_be_bytes();
    [&OPTION_MAGIC.to_be_bytes()[..], &number.to_be_bytes(), &length, data].concat()
}

fn go(name: &str) -> Vec<u8> {
    let length = (name.len() as u32).to_be_bytes();
    option_bytes(option::GO, &[&length, name.as_bytes(), &[0, 0]].concat())
}

fn contexts(number: u32, queries: &[&str]) -> Vec<u8> {
    let mut data = [0, 0, 0, 0].to_vec();
    data.extend((queries.len() as u32).to_be_bytes());
    for query in queries {
        data.extend((query.len() as u32).to_be_bytes());
        data.extend(query.as_bytes());
    }
    option_bytes(number, &data)
}

/// The types of the replies in `output`, after the greeting.
fn reply_kinds(mut output: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while let Some((header, rest)) = output.split_first_chunk::<20>() {
        assert_eq!(header[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        kinds.push(u32::from_be_bytes(header[12..16].try_into().unwrap()));
        let length = u32::from_be_bytes(header[16..].try_into().unwrap());
        output = &rest[length as usize..];
    }
    kinds
}

/// Sends everything at once. Returns the replies and the last step.
fn negotiate(security: Security, options: &[Vec<u8>]) -> (Handshake, Vec<u32>, Step) {
    let (mut handshake, _) = handshake(security);
    let mut output = Vec::new();
    let input = [FLAGS, &options.concat()].concat();
    let (_, step) = handshake.advance(&input, &LIMITS, &mut output);
    let kinds = reply_kinds(&output);
    (handshake, kinds, step)
}

#[test]
fn the_greeting_is_that_of_fixed_newstyle() {
    let (_, greeting) = handshake(Security::Local);
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn other_clients_are_closed() {
    for (flags, reason) in [
        (0_u32, CloseReason::NotFixedNewstyle),
        (2, CloseReason::NotFixedNewstyle),
        (7, CloseReason::UnknownFlags(4)),
    ] {
        let (mut handshake, _) = handshake(Security::Local);
        let (_, step) = handshake.advance(&flags.to_be_bytes(), &LIMITS, &mut Vec::new());
        assert_eq!(step, Step::Close(reason));
    }
    let (_, _, step) = negotiate(Security::Local, &[vec![0; 16]]);
    assert_eq!(step, Step::Close(CloseReason::BadMagic));
}

#[test]
fn go_leads_into_transmission_with_what_was_negotiated() {
    let (mut handshake, kinds, step) = negotiate(
        Security::Local,
        &[
            option_bytes(option::STRUCTURED_REPLY, b""),
            contexts(option::SET_META_CONTEXT, &["qemu:dirty", "base:allocation"]),
            go("disk"),
        ],
    );
    assert_eq!(kinds, [option_reply::ACK, option_reply::META_CONTEXT, option_reply::ACK]);
    assert_eq!(step, Step::Chosen);
    let mut output = Vec::new();
    let agreement = handshake.accept(&LIMITS, &mut output);
    assert!(agreement.structured_replies && agreement.allocation_context);
    assert_eq!(reply_kinds(&output), [option_reply::INFO, option_reply::INFO, option_reply::ACK]);
    let block_size: Vec<u8> = [512_u32, 4096, 32 << 20].iter().flat_map(|size| size.to_be_bytes()).collect();
    assert!(output.windows(12).any(|window| window == block_size));
}

#[test]
fn a_refused_go_can_be_followed_by_another() {
    let (mut handshake, kinds, step) = negotiate(Security::Local, &[go("other"), go("disk")]);
    assert_eq!((kinds, step), (vec![option_reply::ERR_UNKNOWN], Step::Chosen));
    assert_eq!(handshake.refuse(&mut Vec::new()), Step::More);
    let (_, step) = handshake.advance(&go(""), &LIMITS, &mut Vec::new());
    assert_eq!(step, Step::Chosen);
}

#[test]
fn export_name_has_an_answer_of_its_own_and_no_error() {
    for (flags, length) in [(1_u32, 134), (3, 10)] {
        let (mut handshake, _) = handshake(Security::Local);
        let input = [&flags.to_be_bytes()[..], &option_bytes(option::EXPORT_NAME, b"disk")].concat();
        let mut output = Vec::new();
        let (_, step) = handshake.advance(&input, &LIMITS, &mut output);
        assert_eq!((step, output.len()), (Step::Chosen, 0));
        handshake.accept(&LIMITS, &mut output);
        assert_eq!(output.len(), length);
        assert_eq!(handshake.refuse(&mut Vec::new()), Step::Close(CloseReason::Unanswerable));
    }
    let (_, kinds, step) = negotiate(Security::Local, &[option_bytes(option::EXPORT_NAME, b"other")]);
    assert_eq!((kinds, step), (vec![], Step::Close(CloseReason::Unanswerable)));
}

#[test]
fn contexts_need_structured_replies_and_end_with_tls() {
    let set = contexts(option::SET_META_CONTEXT, &["base:allocation"]);
    let (_, kinds, _) = negotiate(Security::Local, std::slice::from_ref(&set));
    assert_eq!(kinds, [option_reply::ERR_INVALID]);
    let structured = option_bytes(option::STRUCTURED_REPLY, b"");
    for (queries, found) in
        [(&["base:"][..], true), (&[], true), (&["base:allocation"], true), (&["x:", "base:all"], false)]
    {
        let (_, kinds, _) =
            negotiate(Security::Local, &[structured.clone(), contexts(option::LIST_META_CONTEXT, queries)]);
        assert_eq!(kinds.contains(&option_reply::META_CONTEXT), found, "{queries:?}");
    }
}

#[test]
fn whatever_becomes_of_a_choice_of_contexts_the_one_before_is_gone() {
    let structured = option_bytes(option::STRUCTURED_REPLY, b"");
    let set = contexts(option::SET_META_CONTEXT, &["base:allocation"]);
    let agreed = |between: &[Vec<u8>]| {
        let options = [&[structured.clone(), set.clone()][..], between, &[go("")]].concat();
        let (mut handshake, kinds, step) = negotiate(Security::Local, &options);
        assert_eq!(step, Step::Chosen, "{between:?}");
        (kinds[3..].to_vec(), handshake.accept(&LIMITS, &mut Vec::new()).allocation_context)
    };
    let other_export = [&[0, 0, 0, 5][..], b"other", &[0; 4]].concat();
    let query_beyond_the_end = [&[0; 4][..], &[0, 0, 0, 1, 0, 0, 0, 99], b"base:allocation"].concat();
    for (data, kind) in [
        (vec![], option_reply::ERR_INVALID),
        (vec![0; 7], option_reply::ERR_INVALID),
        (query_beyond_the_end, option_reply::ERR_INVALID),
        (vec![0; OPTION_BYTES_MAX + 1], option_reply::ERR_TOO_BIG),
        (other_export, option_reply::ERR_UNKNOWN),
        (vec![0; 8], option_reply::ACK),
    ] {
        assert_eq!(agreed(&[option_bytes(option::SET_META_CONTEXT, &data)]), (vec![kind], false));
    }
    assert_eq!(agreed(&[contexts(option::SET_META_CONTEXT, &["base:"])]), (vec![option_reply::ACK], false));
    // Other options do not change it, even those that fail.
    for (number, data, kind) in [
        (option::LIST_META_CONTEXT, vec![], option_reply::ERR_INVALID),
        (option::LIST_META_CONTEXT, vec![0; OPTION_BYTES_MAX + 1], option_reply::ERR_TOO_BIG),
        (option::STRUCTURED_REPLY, vec![], option_reply::ACK),
        (option::STRUCTURED_REPLY, vec![1], option_reply::ERR_INVALID),
        (99, vec![], option_reply::ERR_UNSUP),
    ] {
        assert_eq!(agreed(&[option_bytes(number, &data)]), (vec![kind], true), "{number}");
    }
    // A new choice after a failed one counts.
    let retried = [option_bytes(option::SET_META_CONTEXT, b""), set.clone()];
    assert!(agreed(&retried).1);
}

#[test]
fn a_long_option_is_answered_as_a_short_one_is_where_its_data_is_not_read() {
    let long = vec![0; OPTION_BYTES_MAX + 1];
    for (number, kind) in [
        (option::LIST, option_reply::ERR_INVALID),
        (option::START_TLS, option_reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, option_reply::ERR_INVALID),
        (4, option_reply::ERR_UNSUP),
        (11, option_reply::ERR_UNSUP),
        (u32::MAX, option_reply::ERR_UNSUP),
    ] {
        let (_, kinds, step) = negotiate(Security::Local, &[option_bytes(number, &long), go("disk")]);
        assert_eq!((kinds, step), (vec![kind], Step::Chosen), "{number}");
    }
    // ABORT is answered at once, and the connection is closed after its data.
    let (mut handshake, _) = handshake(Security::Local);
    let abort = option_bytes(option::ABORT, &long);
    let (head, tail) = abort.split_at(100);
    let mut output = Vec::new();
    let (_, step) = handshake.advance(&[FLAGS, head].concat(), &LIMITS, &mut output);
    assert_eq!((reply_kinds(&output), step), (vec![option_reply::ACK], Step::More));
    let (_, step) = handshake.advance(tail, &LIMITS, &mut output);
    assert_eq!((reply_kinds(&output).len(), step), (1, Step::Close(CloseReason::Aborted)));
}

#[test]
fn before_tls_nothing_is_answered_but_starttls_and_abort() {
    for number in (0..20).filter(|number| ![option::START_TLS, option::ABORT].contains(number)) {
        for data in [&b""[..], b"disk", &[0; 6], &[0xff; 100]] {
            let (_, kinds, step) = negotiate(Security::TlsRequired, &[option_bytes(number, data)]);
            if number == option::EXPORT_NAME {
                assert_eq!((kinds, step), (vec![], Step::Close(CloseReason::Unanswerable)));
            } else {
                assert_eq!((kinds, step), (vec![option_reply::ERR_TLS_REQD], Step::More), "{number}");
            }
        }
    }
    let (_, kinds, step) = negotiate(Security::TlsRequired, &[option_bytes(option::ABORT, b"bye")]);
    assert_eq!((kinds, step), (vec![option_reply::ACK], Step::Close(CloseReason::Aborted)));
    let start = option_bytes(option::START_TLS, b"");
    let (mut handshake, kinds, step) = negotiate(Security::TlsRequired, std::slice::from_ref(&start));
    assert_eq!((kinds, step), (vec![option_reply::ACK], Step::StartTls));
    handshake.secured();
    let mut output = Vec::new();
    handshake.advance(&[start, go("disk")].concat(), &LIMITS, &mut output);
    assert_eq!(reply_kinds(&output), [option_reply::ERR_INVALID]);
    let (_, kinds, _) = negotiate(Security::Local, &[option_bytes(option::START_TLS, b"")]);
    assert_eq!(kinds, [option_reply::ERR_POLICY]);
}

#[test]
fn a_server_that_shuts_down_says_so() {
    let (mut handshake, _) = handshake(Security::Local);
    handshake.shut_down();
    let mut output = Vec::new();
    let input = [FLAGS, &go("disk"), &option_bytes(option::ABORT, b"")].concat();
    let (_, step) = handshake.advance(&input, &LIMITS, &mut output);
    assert_eq!(reply_kinds(&output), [option_reply::ERR_SHUTDOWN, option_reply::ACK]);
    assert_eq!(step, Step::Close(CloseReason::Aborted));
}

#[test]
fn options_are_counted_and_long_ones_skipped() {
    let many = vec![option_bytes(option::LIST, b""); OPTIONS_MAX as usize + 1];
    let (_, _, step) = negotiate(Security::Local, &many);
    assert_eq!(step, Step::Close(CloseReason::TooManyOptions));
    let long = option_bytes(option::GO, &vec![0; OPTION_BYTES_MAX + 1]);
    let (_, kinds, step) = negotiate(Security::Local, &[long, go("disk")]);
    assert_eq!((kinds, step), (vec![option_reply::ERR_TOO_BIG], Step::Chosen));
}

/// A negotiation that uses every option, as one run of bytes.
fn session() -> Vec<u8> {
    let all = [
        FLAGS.to_vec(),
        option_bytes(option::STRUCTURED_REPLY, b""),
        option_bytes(option::LIST, b""),
        contexts(option::LIST_META_CONTEXT, &["base:"]),
        contexts(option::SET_META_CONTEXT, &["base:allocation"]),
        option_bytes(option::INFO, &[0, 0, 0, 4, b'd', b'i', b's', b'k', 0, 2, 0, 1, 0, 2]),
        option_bytes(99, &[1; 40]),
        go("disk"),
    ];
    all.concat()
}

/// Feeds bytes in steps, as a connection does. Returns the output, and whether transmission was
/// reached.
fn feed(input: &[u8], random: &mut StdRng) -> (Vec<u8>, bool) {
    let (mut handshake, _) = handshake(Security::Local);
    let (mut output, mut inbox, mut rest) = (Vec::new(), Vec::new(), input);
    while !rest.is_empty() {
        let count = random.random_range(1..=rest.len().min(64));
        inbox.extend(&rest[..count]);
        rest = &rest[count..];
        let (taken, step) = handshake.advance(&inbox, &LIMITS, &mut output);
        inbox.drain(..taken);
        assert!(inbox.len() <= OPTION_BYTES_MAX + OptionHeader::BYTES, "more is kept than an inbox holds");
        match step {
            Step::More => {}
            Step::Chosen => return (output, true),
            Step::StartTls | Step::Close(_) => return (output, false),
        }
    }
    (output, false)
}

#[test]
fn the_cut_of_the_stream_does_not_matter() {
    let (mut handshake, _) = handshake(Security::Local);
    let mut whole = Vec::new();
    handshake.advance(&session(), &LIMITS, &mut whole);
    for seed in 0..200 {
        let (output, chosen) = feed(&session(), &mut StdRng::seed_from_u64(seed));
        assert!(chosen && output == whole, "seed {seed}");
    }
}

#[test]
fn mutated_and_random_negotiations_never_panic_nor_answer_without_bound() {
    for seed in 0..20_000 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut input = session();
        if seed % 10 == 0 {
            input.resize(500, 0);
            random.fill_bytes(&mut input[4..]);
        }
        for _ in 0..random.random_range(1..6) {
            let at = random.random_range(0..input.len());
            match random.random_range(0..3) {
                0 => input[at] = random.random(),
                1 => drop(input.remove(at)),
                _ => input.insert(at, random.random()),
            }
        }
        let (output, _) = feed(&input, &mut random);
        // No option is answered with more than a few hundred bytes here, and there are at most as
        // many as 16-byte headers fit.
        assert!(output.len() <= (input.len() / 16 + 1) * 400, "seed {seed}");
    }
}
