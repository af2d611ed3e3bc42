use super::{Case, cases};
use crate::CryptoError;
use crate::aead::{self, NONCE_BYTES, Sealed, TAG_BYTES};

/// The cases with a 96-bit nonce and a 128-bit tag, which are all that Strongroom uses, and the
/// count of the others: nonces of 8 and 1024 bits, tags of 32 to 120 bits.
fn served_cases(file: &str) -> (Vec<Case>, usize) {
    let (served, others): (Vec<_>, Vec<_>) = cases(file, "Count")
        .into_iter()
        .partition(|case| case.number("IVlen") == 8 * NONCE_BYTES && case.number("Taglen") == 8 * TAG_BYTES);
    (served, others.len())
}

fn sealed(case: &Case) -> Sealed {
    Sealed {
        nonce: case.bytes("IV").try_into().unwrap(),
        ciphertext_and_tag: [case.bytes("CT"), case.bytes("Tag")].concat(),
    }
}

#[test]
fn nist_cavp_encrypt() {
    let (cases, not_served) = served_cases("gcmEncryptExtIV256.rsp.gz");
    for case in &cases {
        let (key, associated_data, plain) = (case.secret("Key"), case.bytes("AAD"), case.secret("PT"));
        let expected = sealed(case);
        let answer = aead::seal_with_nonce(&key, expected.nonce, &associated_data, &plain).unwrap();
        assert_eq!(answer, expected);
        assert_eq!(aead::open(&key, &associated_data, &answer).unwrap(), plain);
    }
    assert_eq!((cases.len(), not_served), (375, 7500));
}

#[test]
fn nist_cavp_decrypt() {
    let (cases, not_served) = served_cases("gcmDecrypt256.rsp.gz");
    let mut refused = 0;
    for case in &cases {
        let outcome = aead::open(&case.secret("Key"), &case.bytes("AAD"), &sealed(case));
        if case.has("FAIL") {
            assert!(matches!(outcome, Err(CryptoError::Authentication { .. })), "{outcome:?}");
            refused += 1;
        } else {
            assert_eq!(outcome.unwrap(), case.secret("PT"));
        }
    }
    assert_eq!((cases.len(), refused, not_served), (375, 191, 7500));
}
