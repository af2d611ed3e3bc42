//! The kernel that runs everywhere: aws-lc through its EVP calls.
//!
//! aws-lc selects the instructions (VAES with AVX-512, AES-NI, NEON, plain C) and has no call for
//! many units, so each unit takes one `EVP_CipherInit_ex` with only a new IV and one
//! `EVP_CipherUpdate`. The key is set up once. `docs/decisions/0002-xts-binding.md` has the reasons
//! and the measurements.

use std::ffi::c_int;
use std::ptr::{self, NonNull};

use strongroom_memory::secret::SecretBytes;

use super::KEY_BYTES;
use super::kernel::{DataUnits, KeyedXts, XtsKernel};
use crate::error::{Algorithm, CryptoError, check_key};
use crate::module::{check, lc, library_error};

const ALGORITHM: Algorithm = Algorithm::Aes256Xts;

/// Space for aws-lc's XTS state: two AES key schedules of 244 bytes, four pointers and a flag, well
/// under 1 KiB.
///
/// aws-lc does not export the size. The state gets a whole page, which ends at the secret memory's
/// guard page, so a version of aws-lc that needs more faults at key setup, in the first self-test,
/// and cannot write past it.
const STATE_BYTES: usize = strongroom_memory::secret::SECRET_MAX_BYTES;

/// aws-lc's AES-256-XTS.
pub(super) struct AwsLc;

impl XtsKernel for AwsLc {
    fn name(&self) -> &'static str {
        "aws-lc"
    }

    fn is_supported(&self) -> bool {
        true
    }

    fn set_key(&self, key: &SecretBytes) -> Result<Box<dyn KeyedXts>, CryptoError> {
        Ok(Box::new(ContextPair {
            encrypt: Context::new(key, Direction::Encrypt)?,
            decrypt: Context::new(key, Direction::Decrypt)?,
        }))
    }
}

/// One key set up for both directions: AES round keys differ between encryption and decryption.
struct ContextPair {
    encrypt: Context,
    decrypt: Context,
}

impl KeyedXts for ContextPair {
    unsafe fn encrypt(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.encrypt.process(units, source, destination) }
    }

    unsafe fn decrypt(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError> {
        // SAFETY: guaranteed by the caller.
        unsafe { self.decrypt.process(units, source, destination) }
    }
}

#[derive(Clone, Copy)]
enum Direction {
    Encrypt,
    Decrypt,
}

/// An `EVP_CIPHER_CTX` with a key, for one direction.
///
/// aws-lc keeps the round keys in `cipher_data`, on the ordinary heap. Round keys are equivalent to
/// the key (the first two of AES-256 *are* the key), so `cipher_data` is pointed at secret memory
/// before the key is set, and back at aws-lc's own allocation before the context is freed.
/// `cipher_data` is a public field of the struct, and the XTS cipher holds no pointer to it until a
/// key is set.
struct Context {
    evp: NonNull<lc::EVP_CIPHER_CTX>,
    /// The target of `cipher_data` while the context is in use; wiped when it drops, after `Drop`
    /// of `Context`.
    state: SecretBytes,
    /// aws-lc's own allocation for `cipher_data`, which never contains a key.
    own_cipher_data: *mut std::ffi::c_void,
}

// SAFETY: an EVP_CIPHER_CTX is not bound to a thread; only concurrent use is forbidden, and
// `process` takes `&mut self`.
unsafe impl Send for Context {}

impl Context {
    fn new(key: &SecretBytes, direction: Direction) -> Result<Self, CryptoError> {
        check_key(ALGORITHM, key, KEY_BYTES)?;
        let state = SecretBytes::zeroed(STATE_BYTES)?;
        // SAFETY: takes no argument, returns null or a context that is ours.
        let evp = NonNull::new(unsafe { lc::EVP_CIPHER_CTX_new() })
            .ok_or_else(|| library_error(ALGORITHM, "EVP_CIPHER_CTX_new"))?;
        // From here on drop frees the context, even if a step below fails.
        let mut context = Self { evp, state, own_cipher_data: ptr::null_mut() };
        context.select_cipher(direction)?;
        context.move_state_to_secret_memory()?;
        context.set_key(key)?;
        Ok(context)
    }

    /// Makes aws-lc allocate the state for AES-256-XTS, without a key.
    fn select_cipher(&mut self, direction: Direction) -> Result<(), CryptoError> {
        let encrypting = match direction {
            Direction::Encrypt => 1,
            Direction::Decrypt => 0,
        };
        // SAFETY: `evp` is a live context; null engine, key and IV mean "none yet".
        let result = unsafe {
            lc::EVP_CipherInit_ex(
                self.evp.as_ptr(),
                lc::EVP_aes_256_xts(),
                ptr::null_mut(),
                ptr::null(),
                ptr::null(),
                encrypting,
            )
        };
        check(ALGORITHM, "EVP_CipherInit_ex(cipher)", result)
    }

    fn move_state_to_secret_memory(&mut self) -> Result<(), CryptoError> {
        let state = self.state.expose_mut().as_mut_ptr().cast();
        // SAFETY: `evp` is a live context with a cipher. `state` is page-aligned, zeroed and large
        // enough (see STATE_BYTES), lives as long as the context, and is accessed only through this
        // pointer until drop. The control call initialises it as it did aws-lc's own allocation.
        let result = unsafe {
            let evp = self.evp.as_ptr();
            self.own_cipher_data = std::mem::replace(&mut (*evp).cipher_data, state);
            lc::EVP_CIPHER_CTX_ctrl(evp, lc::EVP_CTRL_INIT, 0, ptr::null_mut())
        };
        check(ALGORITHM, "EVP_CIPHER_CTX_ctrl(init)", result)
    }

    fn set_key(&mut self, key: &SecretBytes) -> Result<(), CryptoError> {
        // SAFETY: `evp` has the cipher, whose key is the 64 bytes that `new` checked; -1 keeps the
        // direction.
        let result = unsafe {
            let (evp, key) = (self.evp.as_ptr(), key.expose().as_ptr());
            lc::EVP_CipherInit_ex(evp, ptr::null(), ptr::null_mut(), key, ptr::null(), KEEP_DIRECTION)
        };
        check(ALGORITHM, "EVP_CipherInit_ex(key)", result)
    }

    /// Encrypts or decrypts unit by unit.
    ///
    /// # Safety
    /// As [`KeyedXts::encrypt`].
    unsafe fn process(
        &mut self,
        units: DataUnits,
        source: *const u8,
        destination: *mut u8,
    ) -> Result<(), CryptoError> {
        // MAX_UNIT_BYTES is far below c_int::MAX, and `DataUnits` enforces it.
        let unit_bytes = units.unit_bytes() as c_int;
        let evp = self.evp.as_ptr();
        for (tweak, offset) in units.tweaks() {
            let iv = tweak.to_le_bytes();
            // SAFETY: `evp` has cipher and key; the IV is the 16 bytes that the cipher reads and
            // copies.
            let result = unsafe {
                lc::EVP_CipherInit_ex(
                    evp,
                    ptr::null(),
                    ptr::null_mut(),
                    ptr::null(),
                    iv.as_ptr(),
                    KEEP_DIRECTION,
                )
            };
            check(ALGORITHM, "EVP_CipherInit_ex(iv)", result)?;

            let mut written_bytes: c_int = 0;
            // SAFETY: the unit is within the memory that the caller guarantees to be readable and
            // writable. aws-lc works on it outside Rust's memory model and uses source bytes only
            // as data, so they may change meanwhile. The cipher's block size is 1: it buffers
            // nothing and writes exactly `unit_bytes`.
            let result = unsafe {
                lc::EVP_CipherUpdate(
                    evp,
                    destination.add(offset),
                    &mut written_bytes,
                    source.add(offset),
                    unit_bytes,
                )
            };
            check(ALGORITHM, "EVP_CipherUpdate", result)?;
            if written_bytes != unit_bytes {
                return Err(library_error(ALGORITHM, "EVP_CipherUpdate(length)"));
            }
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: `evp` is live and freed once, here. If `cipher_data` was redirected, it is
        // restored first, so that aws-lc frees its own allocation (after overwriting it, as it does
        // before every free).
        unsafe {
            if !self.own_cipher_data.is_null() {
                (*self.evp.as_ptr()).cipher_data = self.own_cipher_data;
            }
            lc::EVP_CIPHER_CTX_free(self.evp.as_ptr());
        }
    }
}

/// `enc` argument of `EVP_CipherInit_ex` that leaves the direction as it is.
const KEEP_DIRECTION: c_int = -1;
