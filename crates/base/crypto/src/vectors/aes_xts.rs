use super::{Case, cases};
use crate::xts::kernel::{self, DataUnits, KeyedXts};

/// Runs a file's cases with every kernel of this machine. Returns the count of cases that ran, and
/// of those whose data unit is not a whole number of bytes, which XTS in Strongroom does not
/// support.
fn run(file: &str, tweak: impl Fn(&Case) -> u128) -> (usize, usize) {
    let (mut served, mut not_whole_bytes) = (0, 0);
    for case in cases(file, "COUNT") {
        let length_bits = case.number("DataUnitLen");
        if !length_bits.is_multiple_of(8) {
            not_whole_bytes += 1;
            continue;
        }
        let units = DataUnits::new(tweak(&case), 1, length_bits / 8).unwrap();
        for kernel in kernel::available() {
            let mut keyed = kernel.set_key(&case.secret("Key")).unwrap();
            check(&case, units, keyed.as_mut());
        }
        served += 1;
    }
    (served, not_whole_bytes)
}

/// Checks both directions, whatever the section is, because the pair is the same.
fn check(case: &Case, units: DataUnits, keyed: &mut dyn KeyedXts) {
    assert!(["ENCRYPT", "DECRYPT"].contains(&case.text("section")));
    let (plain, cipher) = (case.bytes("PT"), case.bytes("CT"));
    assert_eq!((plain.len(), cipher.len()), (units.length_bytes(), units.length_bytes()));
    let mut output = vec![0; units.length_bytes()];
    // SAFETY: the three buffers are apart and have the length of the unit.
    unsafe { keyed.encrypt(units, plain.as_ptr(), output.as_mut_ptr()) }.unwrap();
    assert_eq!(output, cipher, "encryption, COUNT {}", case.text("COUNT"));
    // SAFETY: as above.
    unsafe { keyed.decrypt(units, cipher.as_ptr(), output.as_mut_ptr()) }.unwrap();
    assert_eq!(output, plain, "decryption, COUNT {}", case.text("COUNT"));
}

fn sequence_number(case: &Case) -> u128 {
    case.text("DataUnitSeqNumber").parse().unwrap()
}

#[test]
fn ieee_1619_annex_b() {
    assert_eq!(run("IEEE1619-2007-XTS-AES-256.txt", sequence_number), (5, 0));
}

#[test]
fn nist_cavp_with_sequence_numbers() {
    assert_eq!(run("XTSGenAES256-tweak-dataunitseqno.rsp.gz", sequence_number), (600, 400));
}

#[test]
fn nist_cavp_with_128_bit_tweaks() {
    let tweak = |case: &Case| u128::from_le_bytes(case.bytes("i").try_into().unwrap());
    assert_eq!(run("XTSGenAES256-tweak-128hexstr.rsp.gz", tweak), (600, 400));
}
