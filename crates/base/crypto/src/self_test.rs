//! Known-answer tests at start-up, before any key is used: a miscompiled build or a faulty
//! processor must not write ciphertext that cannot be decrypted.
//!
//! Argon2id is left out because it is slow by design; its vectors run in the tests.

use strongroom_memory::secret::SecretBytes;

use crate::aead::{self, Sealed};
use crate::error::{Algorithm, CryptoError};
use crate::xts::{UnitSize, Xts, kernel};
use crate::{block_tag, gcm, kdf, key_wrap, mac, module};

/// Computes a known answer with every algorithm of the crate, and XTS with every kernel of this
/// machine, and compares our own kernels with the library's.
///
/// It takes well under a millisecond; call it once when the program starts.
///
/// # Errors
/// [`CryptoError::SelfTest`] names the first algorithm with a wrong answer; an algorithm that fails
/// returns its own error. In both cases the program must stop.
pub fn self_test() -> Result<(), CryptoError> {
    run(&mut CompareOnly)
}

fn run(comparison: &mut dyn Comparison) -> Result<(), CryptoError> {
    if !module::is_in_its_mode() {
        let what = "the FIPS module is not in its approved mode";
        return Err(CryptoError::SelfTest { algorithm: Algorithm::Sha256, what });
    }
    // SHA-256 first: the answers of XTS are compared as digests.
    hashes(comparison)?;
    for kernel in kernel::available() {
        xts(comparison, kernel)?;
        if kernel.name() != kernel::fall_back().name() {
            agreement(comparison, kernel)?;
        }
    }
    block_tags(comparison)?;
    gcm(comparison)?;
    wrapping(comparison)
}

/// Of a key, a header and a message that count up; computed by scripts/read-layer.py.
#[cfg(not(feature = "fips"))]
fn block_tags(comparison: &mut dyn Comparison) -> Result<(), CryptoError> {
    let numbers: [u8; 255] = std::array::from_fn(|at| at as u8);
    let known: [u8; 16] = hex("6547caac656f16796abe9cf018146be2");
    for tag in block_tag::tags_by_every_kernel(&secret(&numbers[..48])?, &numbers[..64], &numbers)? {
        expect(comparison, Algorithm::PolyvalAes, "tag", &tag, &known)?;
    }
    Ok(())
}

/// The module has only HMAC, which is compared above.
#[cfg(feature = "fips")]
fn block_tags(_: &mut dyn Comparison) -> Result<(), CryptoError> {
    Ok(())
}

/// Compares answers with known answers. It is an interface so that a test can corrupt one answer at
/// a time and check that this is detected.
trait Comparison {
    fn compare(&mut self, algorithm: Algorithm, what: &'static str, answer: &[u8], known: &[u8]) -> bool;
}

struct CompareOnly;

impl Comparison for CompareOnly {
    fn compare(&mut self, _: Algorithm, _: &'static str, answer: &[u8], known: &[u8]) -> bool {
        answer == known
    }
}

fn expect(
    comparison: &mut dyn Comparison,
    algorithm: Algorithm,
    what: &'static str,
    answer: &[u8],
    known: &[u8],
) -> Result<(), CryptoError> {
    if comparison.compare(algorithm, what, answer, known) {
        Ok(())
    } else {
        Err(CryptoError::SelfTest { algorithm, what })
    }
}

/// Changed input must fail authentication; success and every other error fail the test.
fn expect_refusal<T>(
    comparison: &mut dyn Comparison,
    algorithm: Algorithm,
    what: &'static str,
    outcome: Result<T, CryptoError>,
) -> Result<(), CryptoError> {
    let refused = matches!(outcome, Err(CryptoError::Authentication { .. }));
    expect(comparison, algorithm, what, &[u8::from(refused)], &[1])
}

fn hashes(comparison: &mut dyn Comparison) -> Result<(), CryptoError> {
    // FIPS 180-4, example "abc".
    let known: [u8; 32] = hex("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect(comparison, Algorithm::Sha256, "digest", &mac::sha256(b"abc"), &known)?;

    // RFC 4231, test case 1.
    let key = secret(&[0x0b; 20])?;
    let known: [u8; 32] = hex("b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    let tag = mac::hmac_sha256(&key, b"Hi There")?;
    expect(comparison, Algorithm::HmacSha256, "tag", &tag, &known)?;
    mac::verify_hmac_sha256(&key, b"Hi There", &known)?;
    let outcome = mac::verify_hmac_sha256(&key, b"Hi there", &known);
    expect_refusal(comparison, Algorithm::HmacSha256, "refusal of a changed message", outcome)?;

    // RFC 5869, A.1.
    let secret = secret(&[0x0b; 22])?;
    let salt: [u8; 13] = hex("000102030405060708090a0b0c");
    let info: [u8; 10] = hex("f0f1f2f3f4f5f6f7f8f9");
    let known: [u8; 42] = hex(concat!(
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf",
        "34007208d5b887185865"
    ));
    let derived = kdf::hkdf_sha256(&secret, &salt, &info, known.len())?;
    expect(comparison, Algorithm::HkdfSha256, "derived key", derived.expose(), &known)
}

/// The key of IEEE 1619-2007, vectors 10 to 14.
const XTS_KEY: [u8; 64] = hex(concat!(
    "2718281828459045235360287471352662497757247093699959574966967627",
    "3141592653589793238462643383279502884197169399375105820974944592"
));
/// SHA-256 of [`XTS_LENGTH_BYTES`] bytes `index * 7 + index / 256`, encrypted from unit
/// [`XTS_FIRST_UNIT`] on. Computed with OpenSSL; the standards have no vectors for many units or
/// for 4096 bytes.
const XTS_DIGESTS: [(UnitSize, [u8; 32]); 2] = [
    (UnitSize::Bytes512, hex("3828c9873b78eac6e57dd477fdfbfeb5db8af917e343f38771664ab5051e1b77")),
    (UnitSize::Bytes4096, hex("dc8740a1466dc42b056e2c7e2a7d70ee7093ac04d471bd98c3b484a11e8007f0")),
];
const XTS_FIRST_UNIT: u64 = 0x0123_4567_89ab;
const XTS_LENGTH_BYTES: usize = 8192;

fn xts(comparison: &mut dyn Comparison, kernel: &'static dyn kernel::XtsKernel) -> Result<(), CryptoError> {
    let plain: Vec<u8> = (0..XTS_LENGTH_BYTES).map(|index| (index * 7 + index / 256) as u8).collect();
    let mut output = vec![0; XTS_LENGTH_BYTES];
    let mut decrypted = vec![0; XTS_LENGTH_BYTES];
    for (unit, known) in &XTS_DIGESTS {
        let mut session = Xts::with_kernel(&secret(&XTS_KEY)?, *unit, kernel)?.session()?;
        session.encrypt(XTS_FIRST_UNIT, &plain, &mut output)?;
        let (encryption, decryption) = match unit {
            UnitSize::Bytes512 => ("encryption of 512-byte units", "decryption of 512-byte units"),
            UnitSize::Bytes4096 => ("encryption of 4096-byte units", "decryption of 4096-byte units"),
        };
        expect(comparison, Algorithm::Aes256Xts, encryption, &mac::sha256(&output), known)?;
        session.decrypt(XTS_FIRST_UNIT, &output, &mut decrypted)?;
        expect(comparison, Algorithm::Aes256Xts, decryption, &decrypted, &plain)?;
    }
    Ok(())
}

/// Compares a kernel of our own with the library's, under a fresh random key: more units than its
/// batches have, and some left over.
fn agreement(
    comparison: &mut dyn Comparison,
    kernel: &'static dyn kernel::XtsKernel,
) -> Result<(), CryptoError> {
    let key = SecretBytes::random(XTS_KEY.len())?;
    for (unit, units) in [(UnitSize::Bytes512, 37), (UnitSize::Bytes4096, 19)] {
        let plain: Vec<u8> =
            (0..units * unit.bytes()).map(|index| (index * 11 + index / 256) as u8).collect();
        let (mut known, mut output) = (vec![0; plain.len()], vec![0; plain.len()]);
        let mut library = Xts::with_kernel(&key, unit, kernel::fall_back())?.session()?;
        library.encrypt(XTS_FIRST_UNIT, &plain, &mut known)?;
        let mut session = Xts::with_kernel(&key, unit, kernel)?.session()?;
        session.encrypt(XTS_FIRST_UNIT, &plain, &mut output)?;
        let what = "encryption as the library does it";
        expect(comparison, Algorithm::Aes256Xts, what, &output, &known)?;
        session.decrypt(XTS_FIRST_UNIT, &known, &mut output)?;
        let what = "decryption of what the library encrypted";
        expect(comparison, Algorithm::Aes256Xts, what, &output, &plain)?;
    }
    Ok(())
}

fn gcm(comparison: &mut dyn Comparison) -> Result<(), CryptoError> {
    // NIST CAVP gcmEncryptExtIV256, PTlen 408, AADlen 160, Taglen 128, count 0.
    let key = secret(&hex::<32>("24501ad384e473963d476edcfe08205237acfd49b5b8f33857f8114e863fec7f"))?;
    let nonce = hex("9ff18563b978ec281b3f2794");
    let associated_data: [u8; 20] = hex("adb5ec720ccf9898500028bf34afccbcaca126ef");
    let plain: [u8; 51] = hex(concat!(
        "27f348f9cdc0c5bd5e66b1ccb63ad920ff2219d14e8d631b3872265cf117ee86",
        "757accb158bd9abb3868fdc0d0b074b5f01b2c"
    ));
    let known: [u8; 67] = hex(concat!(
        "eb7cb754c824e8d96f7c6d9b76c7d26fb874ffbf1d65c6f64a698d839b0b0614",
        "5dae82057ad55994cf59ad7f67c0fa5e85fab8bc95c532fecc594c36d1550286a7a3f0"
    ));
    let algorithm = Algorithm::Aes256Gcm;
    let sealed = aead::seal_with_nonce(&key, nonce, &associated_data, &secret(&plain)?)?;
    expect(comparison, algorithm, "sealing", &sealed.ciphertext_and_tag, &known)?;
    let sealed = Sealed { nonce, ciphertext_and_tag: known.to_vec() };
    let opened = aead::open(&key, &associated_data, &sealed)?;
    expect(comparison, algorithm, "opening", opened.expose(), &plain)?;
    let outcome = aead::open(&key, &associated_data[1..], &sealed);
    expect_refusal(comparison, algorithm, "refusal of other associated data", outcome)?;

    // McGrew and Viega, The Galois/Counter Mode of Operation, appendix B, case 17.
    let algorithm = Algorithm::AesGcm;
    let key = secret(&hex::<32>("feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308"))?;
    let nonce: [u8; 8] = hex("cafebabefacedbad");
    let associated_data: [u8; 20] = hex("feedfacedeadbeeffeedfacedeadbeefabaddad2");
    let plain: [u8; 60] = hex(concat!(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72",
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    ));
    let known: [u8; 16] = hex("3a337dbf46a792c45e454913fe2ea8f2");
    let mut text = plain;
    let tag = gcm::seal(&key, &nonce, &associated_data, &mut text)?;
    expect(comparison, algorithm, "tag", &tag, &known)?;
    gcm::open(&key, &nonce, &associated_data, &mut text, &known)?;
    expect(comparison, algorithm, "opening", &text, &plain)?;
    let outcome = gcm::open(&key, &nonce, &associated_data[1..], &mut text, &known);
    expect_refusal(comparison, algorithm, "refusal of other associated data", outcome)
}

fn wrapping(comparison: &mut dyn Comparison) -> Result<(), CryptoError> {
    // RFC 3394, 4.6.
    let algorithm = Algorithm::Aes256Kw;
    let kek = secret(&hex::<32>("000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"))?;
    let key: [u8; 32] = hex("00112233445566778899aabbccddeeff000102030405060708090a0b0c0d0e0f");
    let known: [u8; 40] =
        hex(concat!("28c9f404c4b810f4cbccb35cfb87f8263f5786e2d80ed326", "cbc7f0e71a99f43bfb988b9b7a02dd21"));
    expect(comparison, algorithm, "wrapping", &key_wrap::wrap(&kek, &secret(&key)?)?, &known)?;
    expect(comparison, algorithm, "unwrapping", key_wrap::unwrap(&kek, &known)?.expose(), &key)?;
    let outcome = key_wrap::unwrap(&kek, &spoiled(known));
    expect_refusal(comparison, algorithm, "refusal of changed bytes", outcome)?;

    // NIST CAVP KWP_AE_256, length 72, count 0.
    let algorithm = Algorithm::Aes256Kwp;
    let kek = secret(&hex::<32>("70da43aac823c6dd37d1109f5b18feb4503c973288989745e2cc1cc21d9570c6"))?;
    let key: [u8; 9] = hex("edf17d966ed896aee3");
    let known: [u8; 24] = hex("d67b5b2ad15c645450e23b5e7b6d682f8ae20e716d470db7");
    expect(comparison, algorithm, "wrapping", &key_wrap::wrap_padded(&kek, &secret(&key)?)?, &known)?;
    expect(comparison, algorithm, "unwrapping", key_wrap::unwrap_padded(&kek, &known)?.expose(), &key)?;
    let outcome = key_wrap::unwrap_padded(&kek, &spoiled(known));
    expect_refusal(comparison, algorithm, "refusal of changed bytes", outcome)
}

fn secret(bytes: &[u8]) -> Result<SecretBytes, CryptoError> {
    Ok(SecretBytes::from_slice_and_wipe(&mut bytes.to_vec())?)
}

fn spoiled<const N: usize>(mut bytes: [u8; N]) -> [u8; N] {
    bytes[0] ^= 1;
    bytes
}

/// The bytes of a hexadecimal literal; the tests catch anything but exactly `N` lower-case pairs.
const fn hex<const N: usize>(digits: &str) -> [u8; N] {
    const fn value(digit: u8) -> u8 {
        match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => panic!("not a hexadecimal digit"),
        }
    }
    let digits = digits.as_bytes();
    assert!(digits.len() == 2 * N, "a literal of another length");
    let mut bytes = [0; N];
    let mut index = 0;
    while index < N {
        bytes[index] = value(digits[2 * index]) << 4 | value(digits[2 * index + 1]);
        index += 1;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_answer_is_right() {
        self_test().unwrap();
    }

    /// Lists the answers as they are compared, and flips a bit in the one with the number `spoil`.
    struct Spoiling {
        compared: Vec<(Algorithm, &'static str)>,
        spoil: usize,
    }

    impl Comparison for Spoiling {
        fn compare(&mut self, algorithm: Algorithm, what: &'static str, answer: &[u8], known: &[u8]) -> bool {
            let mut answer = answer.to_vec();
            if self.compared.len() == self.spoil {
                *answer.last_mut().unwrap() ^= 0x80;
            }
            self.compared.push((algorithm, what));
            CompareOnly.compare(algorithm, what, &answer, known)
        }
    }

    #[test]
    fn each_wrong_answer_is_reported_by_name() {
        let mut all = Spoiling { compared: Vec::new(), spoil: usize::MAX };
        run(&mut all).unwrap();
        let kernels = kernel::available().count();
        let of_polyval = if module::IS_FIPS_BUILD { 0 } else { block_tag::polyval_kernels().count() };
        assert_eq!(all.compared.len(), 16 + 4 * kernels + 4 * (kernels - 1) + of_polyval);

        for (spoil, &expected) in all.compared.iter().enumerate() {
            let error = run(&mut Spoiling { compared: Vec::new(), spoil }).unwrap_err();
            let CryptoError::SelfTest { algorithm, what } = error else { panic!("{error}") };
            assert_eq!((algorithm, what), expected);
        }
    }

    #[test]
    fn accepting_changed_data_is_reported() {
        let refusal = expect_refusal(&mut CompareOnly, Algorithm::Aes256Gcm, "refusal", Ok(()));
        let error = refusal.unwrap_err();
        assert!(matches!(error, CryptoError::SelfTest { algorithm: Algorithm::Aes256Gcm, .. }), "{error}");
    }
}
