use strongroom_memory::secret::SecretBytes;

use super::cases;
use crate::{CryptoError, key_wrap};

type Wrap = fn(&SecretBytes, &SecretBytes) -> Result<Vec<u8>, CryptoError>;
type Unwrap = fn(&SecretBytes, &[u8]) -> Result<SecretBytes, CryptoError>;

/// Wraps every case of an authenticated-encryption file; returns the count.
fn run_wrap(file: &str, wrap: Wrap) -> usize {
    let cases = cases(file, "COUNT");
    for case in &cases {
        assert_eq!(wrap(&case.secret("K"), &case.secret("P")).unwrap(), case.bytes("C"));
    }
    cases.len()
}

/// Unwraps every case of an authenticated-decryption file; returns the count, and the count of
/// those that were refused as expected.
fn run_unwrap(file: &str, unwrap: Unwrap) -> (usize, usize) {
    let (cases, mut refused) = (cases(file, "COUNT"), 0);
    for case in &cases {
        let outcome = unwrap(&case.secret("K"), &case.bytes("C"));
        if case.has("FAIL") {
            assert!(matches!(outcome, Err(CryptoError::Authentication { .. })), "{outcome:?}");
            refused += 1;
        } else {
            assert_eq!(outcome.unwrap(), case.secret("P"));
        }
    }
    (cases.len(), refused)
}

#[test]
fn nist_kw() {
    assert_eq!(run_wrap("KW_AE_256.txt.gz", key_wrap::wrap), 500);
    assert_eq!(run_unwrap("KW_AD_256.txt.gz", key_wrap::unwrap), (500, 100));
}

#[test]
fn nist_kwp() {
    assert_eq!(run_wrap("KWP_AE_256.txt.gz", key_wrap::wrap_padded), 500);
    assert_eq!(run_unwrap("KWP_AD_256.txt.gz", key_wrap::unwrap_padded), (500, 100));
}

/// The vectors with a 256-bit KEK: 4.3, 4.5 and 4.6. Those of 4.1, 4.2 and 4.4, and both of RFC
/// 5649, have shorter KEKs, which this crate does not support.
#[test]
fn rfc_3394() {
    let cases = cases("rfc3394-kek256.txt", "COUNT");
    for case in &cases {
        assert_eq!(key_wrap::wrap(&case.secret("K"), &case.secret("P")).unwrap(), case.bytes("C"));
        assert_eq!(key_wrap::unwrap(&case.secret("K"), &case.bytes("C")).unwrap(), case.secret("P"));
    }
    assert_eq!(cases.len(), 3);
}
