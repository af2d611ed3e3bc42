use proptest::prelude::*;

use super::*;

const MESSAGE: Tag = Tag::COMPROMISE_DATE;

fn item(value: Value) -> Item {
    Item { tag: MESSAGE, value }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The examples of KMIP 1.4, section 9.1.2.
fn known_answers() -> Vec<(Value, Vec<u8>)> {
    let examples = [
        (Value::Integer(8), "42 00 20 | 02 | 00 00 00 04 | 00 00 00 08 00 00 00 00"),
        (
            Value::LongInteger(123_456_789_000_000_000),
            "42 00 20 | 03 | 00 00 00 08 | 01 B6 9B 4B A5 74 92 00",
        ),
        (
            Value::BigInteger(BigInteger::from_twos_complement(
                &1_234_567_890_000_000_000_000_000_000_i128.to_be_bytes(),
            )),
            "42 00 20 | 04 | 00 00 00 10 | 00 00 00 00 03 FD 35 EB 6B C2 DF 46 18 08 00 00",
        ),
        (Value::Enumeration(255), "42 00 20 | 05 | 00 00 00 04 | 00 00 00 FF 00 00 00 00"),
        (Value::Boolean(true), "42 00 20 | 06 | 00 00 00 08 | 00 00 00 00 00 00 00 01"),
        (
            Value::TextString("Hello World".into()),
            "42 00 20 | 07 | 00 00 00 0B | 48 65 6C 6C 6F 20 57 6F 72 6C 64 00 00 00 00 00",
        ),
        (
            Value::ByteString(ByteString::from(&[1, 2, 3])),
            "42 00 20 | 08 | 00 00 00 03 | 01 02 03 00 00 00 00 00",
        ),
        (Value::DateTime(DateTime(1_205_495_800)), "42 00 20 | 09 | 00 00 00 08 | 00 00 00 00 47 DA 67 F8"),
        (Value::Interval(Interval(864_000)), "42 00 20 | 0A | 00 00 00 04 | 00 0D 2F 00 00 00 00 00"),
        (
            Value::Structure(vec![
                Item { tag: Tag::APPLICATION_SPECIFIC_INFORMATION, value: Value::Enumeration(254) },
                Item { tag: Tag::ARCHIVE_DATE, value: Value::Integer(255) },
            ]),
            "42 00 20 | 01 | 00 00 00 20 | 42 00 04 | 05 | 00 00 00 04 | 00 00 00 FE 00 00 00 00 |
             42 00 05 | 02 | 00 00 00 04 | 00 00 00 FF 00 00 00 00",
        ),
    ];
    examples.into_iter().map(|(value, hex)| (value, bytes_of(hex))).collect()
}

/// A message with the given encoded fields.
fn message(fields: &[&[u8]]) -> Vec<u8> {
    let content = fields.concat();
    let mut bytes = bytes_of("42 00 20 01");
    bytes.extend_from_slice(&u32::try_from(content.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(&content);
    bytes
}

fn refusal(bytes: &[u8]) -> TtlvError {
    Item::parse(bytes, MESSAGE, &Limits::default()).unwrap_err()
}

#[test]
fn the_examples_of_the_specification() {
    for (value, encoded) in known_answers() {
        assert_eq!(*item(value.clone()).to_bytes(), encoded, "{value:?}");
        let whole = message(&[&encoded]);
        assert_eq!(
            Item::parse(&whole, MESSAGE, &Limits::default()).unwrap(),
            item(Value::Structure(vec![item(value)]))
        );
    }
}

#[test]
fn every_truncation_is_refused() {
    for (_, encoded) in known_answers() {
        let whole = message(&[&encoded]);
        for length in 0..whole.len() {
            assert!(matches!(refusal(&whole[..length]), TtlvError::Truncated { .. }), "{length}");
        }
        // A whole structure around a truncated field.
        for length in (8..encoded.len()).step_by(8) {
            let cut = message(&[&encoded[..length]]);
            assert!(matches!(refusal(&cut), TtlvError::Truncated { .. }), "{length} of {encoded:?}");
        }
    }
}

#[test]
fn bytes_behind_the_message_are_refused() {
    let mut whole = message(&[]);
    whole.push(0);
    assert_eq!(refusal(&whole), TtlvError::TrailingBytes(1));
}

#[test]
fn padding_that_is_not_zero_is_refused() {
    for (position, hex) in [
        (12, "42 00 20 02 00000004 00000008 00000000"),
        (23, "42 00 20 07 0000000B 48656C6C6F20576F726C64 0000000000"),
        (11, "42 00 20 08 00000003 010203 0000000000"),
    ] {
        let mut field = bytes_of(hex);
        field[position] = 1;
        assert_eq!(refusal(&message(&[&field])), TtlvError::Padding(MESSAGE));
    }
}

#[test]
fn lengths_that_a_type_cannot_have_are_refused() {
    for hex in [
        "42 00 20 02 00000008 0000000000000000",
        "42 00 20 02 00000000",
        "42 00 20 03 00000004 0000000000000000",
        "42 00 20 04 00000000",
        "42 00 20 04 00000007 0000000000000000",
        "42 00 20 05 00000003 0000000000000000",
        "42 00 20 06 00000004 0000000100000000",
        "42 00 20 09 00000004 0000000100000000",
        "42 00 20 0A 00000008 0000000000000000",
        "42 00 20 01 00000004 0000000000000000",
    ] {
        let refused = refusal(&message(&[&bytes_of(hex)]));
        assert!(matches!(refused, TtlvError::Length { .. }), "{hex}: {refused:?}");
    }
}

#[test]
fn unknown_types_odd_booleans_and_broken_text_are_refused() {
    let unknown = |kind| TtlvError::UnknownType { tag: MESSAGE, kind };
    assert_eq!(refusal(&message(&[&bytes_of("42 00 20 00 00000000")])), unknown(0x00));
    assert_eq!(refusal(&message(&[&bytes_of("42 00 20 0B 00000000")])), unknown(0x0B));
    for boolean in ["0000000000000002", "0100000000000001", "FFFFFFFFFFFFFFFF"] {
        let field = bytes_of(&format!("42 00 20 06 00000008 {boolean}"));
        assert_eq!(refusal(&message(&[&field])), TtlvError::Boolean(MESSAGE));
    }
    for text in ["C0 00000000000000", "80 00000000000000"] {
        let field = bytes_of(&format!("42 00 20 07 00000001 {text}"));
        assert_eq!(refusal(&message(&[&field])), TtlvError::Text(MESSAGE));
    }
}

#[test]
fn a_length_of_two_gibibytes_is_refused_from_the_header_alone() {
    let header = |kind: &str, length: &str| -> [u8; HEADER_BYTES] {
        bytes_of(&format!("42 00 20 {kind} {length}")).try_into().unwrap()
    };
    let limits = Limits::default();
    for length in ["80000000", "7FFFFFF8", "FFFFFFFF", "FFFFFFF8", "00100000"] {
        let refused = message_length_bytes(header("01", length), MESSAGE, &limits).unwrap_err();
        assert!(matches!(refused, TtlvError::MessageTooLong { .. }), "{refused:?}");
        assert!(matches!(refusal(&header("01", length)), TtlvError::MessageTooLong { .. }));
    }
    assert_eq!(message_length_bytes(header("01", "000FFFF8"), MESSAGE, &limits), Ok(1 << 20));
    assert!(matches!(
        message_length_bytes(header("08", "00000008"), MESSAGE, &limits),
        Err(TtlvError::NotTheMessage { .. })
    ));

    // Inside a message, where the message itself is short.
    for (kind, length) in [("08", "80000000"), ("07", "80000000"), ("04", "80000000"), ("01", "FFFFFFF8")] {
        let refused = refusal(&message(&[&header(kind, length)]));
        assert!(matches!(refused, TtlvError::ValueTooLong { .. }), "{refused:?}");
    }
}

#[test]
fn nesting_is_followed_to_the_limit_and_no_deeper() {
    let nested = |depth: usize| {
        (1..depth).fold(item(Value::Structure(Vec::new())), |inner, _| item(Value::Structure(vec![inner])))
    };
    let deepest = nested(DEPTH_MAX);
    assert_eq!(Item::parse(&deepest.to_bytes(), MESSAGE, &Limits::default()).unwrap(), deepest);
    assert_eq!(refusal(&nested(DEPTH_MAX + 1).to_bytes()), TtlvError::TooDeep { limit: DEPTH_MAX });
    assert_eq!(refusal(&nested(10_000).to_bytes()), TtlvError::TooDeep { limit: DEPTH_MAX });
}

#[test]
fn items_are_counted_through_all_levels() {
    let with_items =
        |items: usize| item(Value::Structure(vec![item(Value::Structure(Vec::new())); items - 1]));
    assert!(Item::parse(&with_items(ITEMS_MAX).to_bytes(), MESSAGE, &Limits::default()).is_ok());
    assert_eq!(refusal(&with_items(ITEMS_MAX + 1).to_bytes()), TtlvError::TooManyItems { limit: ITEMS_MAX });
}

#[test]
fn text_big_integers_and_messages_have_limits_of_their_own() {
    let parse = |value: Value| {
        Item::parse(&item(Value::Structure(vec![item(value)])).to_bytes(), MESSAGE, &Limits::default())
    };
    let text = |length| Value::TextString("x".repeat(length));
    let big = |length| Value::BigInteger(BigInteger::from_twos_complement(&vec![1; length]));
    let bytes = |length| Value::ByteString(ByteString::from(vec![1; length]));
    let too_long =
        |length_bytes, limit_bytes| Err(TtlvError::ValueTooLong { tag: MESSAGE, length_bytes, limit_bytes });

    assert!(parse(text(TEXT_MAX_BYTES)).is_ok());
    assert_eq!(parse(text(TEXT_MAX_BYTES + 1)), too_long(TEXT_MAX_BYTES + 1, TEXT_MAX_BYTES));
    assert!(parse(big(BIG_INTEGER_MAX_BYTES)).is_ok());
    assert_eq!(
        parse(big(BIG_INTEGER_MAX_BYTES + 8)),
        too_long(BIG_INTEGER_MAX_BYTES + 8, BIG_INTEGER_MAX_BYTES)
    );
    assert!(parse(bytes(MESSAGE_MAX_BYTES - 16)).is_ok());
    assert!(matches!(parse(bytes(MESSAGE_MAX_BYTES - 15)), Err(TtlvError::MessageTooLong { .. })));
    assert_eq!(Limits::with_message_bytes(usize::MAX).message_bytes, MESSAGE_MAX_BYTES_CEILING);
}

#[test]
fn the_buffer_of_a_message_never_grows() {
    let item = item(Value::Structure(known_answers().into_iter().map(|(value, _)| item(value)).collect()));
    let encoded = item.to_bytes();
    assert_eq!(encoded.len(), encoded.capacity());
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<i32>().prop_map(Value::Integer),
        any::<i64>().prop_map(Value::LongInteger),
        prop::collection::vec(any::<u8>(), 1..40)
            .prop_map(|bytes| Value::BigInteger(BigInteger::from_twos_complement(&bytes))),
        any::<u32>().prop_map(Value::Enumeration),
        any::<bool>().prop_map(Value::Boolean),
        "\\PC{0,20}".prop_map(Value::TextString),
        prop::collection::vec(any::<u8>(), 0..40).prop_map(|bytes| Value::ByteString(bytes.into())),
        any::<i64>().prop_map(|seconds| Value::DateTime(DateTime(seconds))),
        any::<u32>().prop_map(|seconds| Value::Interval(Interval(seconds))),
    ];
    leaf.prop_recursive(6, 64, 8, |inner| {
        let field = (0_u32..=Tag::MAX, inner)
            .prop_map(|(number, value)| Item { tag: Tag::from_number(number).unwrap(), value });
        prop::collection::vec(field, 0..8).prop_map(Value::Structure)
    })
}

proptest! {
    #[test]
    fn any_tree_survives_the_wire(values in prop::collection::vec(any_value(), 0..6)) {
        let tree = item(Value::Structure(values.into_iter().map(item).collect()));
        prop_assert_eq!(Item::parse(&tree.to_bytes(), MESSAGE, &Limits::default()).unwrap(), tree);
    }

    /// Every value has one encoding: decoded bytes are encoded exactly as received.
    #[test]
    fn what_is_read_of_damaged_bytes_is_written_back_as_it_came(
        values in prop::collection::vec(any_value(), 1..6),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = item(Value::Structure(values.into_iter().map(item).collect())).to_bytes();
        for (position, byte) in damage {
            let position = position.index(bytes.len());
            bytes[position] = byte;
        }
        if let Ok(read) = Item::parse(&bytes, MESSAGE, &Limits::default()) {
            prop_assert_eq!(read.to_bytes(), bytes);
        }
    }

    #[test]
    fn no_bytes_make_reading_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Item::parse(&bytes, MESSAGE, &Limits::default());
        let _ = Item::parse(&message(&[&bytes]), MESSAGE, &Limits::default());
    }
}
