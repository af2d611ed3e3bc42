use super::cases;
use crate::module::IS_FIPS_BUILD;
use crate::{kdf, mac};

#[test]
fn rfc_5869_hkdf_sha256() {
    let cases = cases("rfc-5869-HKDF-SHA256.txt", "COUNT");
    for case in &cases {
        let (salt, info) = (case.bytes("salt"), case.bytes("info"));
        let derived = kdf::hkdf_sha256(&case.secret("IKM"), &salt, &info, case.number("L")).unwrap();
        assert_eq!(derived, case.secret("OKM"));
    }
    assert_eq!(cases.len(), 3);
}

/// Case 2 has a key that is too short for this crate, and case 5, with a truncated tag, is not in
/// the file.
#[test]
fn rfc_4231_hmac_sha256() {
    let cases = cases("rfc-4231-sha256.txt", "Len");
    let mut refused = 0;
    for case in &cases {
        let (key, message, known) = (case.secret("Key"), case.bytes("Msg"), case.bytes("MD"));
        if key.len() < mac::MIN_MAC_KEY_BYTES {
            assert!(mac::hmac_sha256(&key, &message).is_err());
            refused += 1;
            continue;
        }
        assert_eq!(mac::hmac_sha256(&key, &message).unwrap()[..], known);
        mac::verify_hmac_sha256(&key, &message, &known).unwrap();
    }
    assert_eq!((cases.len(), refused), (6, 1));
}

#[test]
fn nist_cavp_sha256() {
    let cases = cases("SHA256ShortMsg.rsp", "Len");
    for case in &cases {
        let message = &case.bytes("Msg")[..case.number("Len") / 8];
        assert_eq!(mac::sha256(message)[..], case.bytes("MD"));
    }
    assert_eq!(cases.len(), 65);
}

/// RFC 9106, 5.3 and others. They have secrets, associated data and short salts, which Strongroom
/// does not use: they run without its limits, and those within the limits also run with them.
#[test]
fn argon2id() {
    let cases = cases("argon2id.txt", "COUNT");
    let mut within_limits = 0;
    for case in &cases {
        let optional = |name| if case.has(name) { case.bytes(name) } else { Vec::new() };
        let (pepper, associated_data, salt) = (optional("secret"), optional("ad"), case.bytes("salt"));
        let params = kdf::Argon2idParams {
            memory_kib: case.number("memcost") as u32,
            passes: case.number("iter") as u32,
            lanes: case.number("lanes") as u32,
        };
        let (passphrase, known) = (case.secret("pass"), case.secret("output"));
        let derived =
            kdf::argon2id_unlimited(&passphrase, &salt, params, known.len(), &pepper, &associated_data);
        assert_eq!(derived.unwrap(), known);

        // A FIPS build provides Argon2id only to this test.
        if IS_FIPS_BUILD {
            continue;
        }
        if pepper.is_empty() && associated_data.is_empty() && salt.len() >= kdf::ARGON2ID_MIN_SALT_BYTES {
            assert_eq!(kdf::argon2id(&passphrase, &salt, params, known.len()).unwrap(), known);
            within_limits += 1;
        }
    }
    assert_eq!((cases.len(), within_limits), (6, if IS_FIPS_BUILD { 0 } else { 2 }));
}
