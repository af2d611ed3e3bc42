//! The implementation behind this crate: aws-lc, or, with the feature `fips`, the FIPS 140-3
//! validated module of the same library. There is one exception in builds without the feature: XTS
//! by a [kernel](crate::xts::kernel) of our own, if the processor supports it.
//!
//! The feature changes no format and no key: a volume made by one build opens with the other, if
//! its keys do. Algorithms that the module lacks are refused with [`CryptoError::OutsideModule`],
//! and not computed elsewhere. `docs/COMPLIANCE.md` explains what a validated module proves and
//! what it does not.

use std::ffi::c_int;

use crate::error::{Algorithm, CryptoError};
use crate::xts::kernel;

#[cfg(feature = "fips")]
pub(crate) use aws_lc_fips_sys as lc;
#[cfg(not(feature = "fips"))]
pub(crate) use aws_lc_sys as lc;

/// Whether this is a build with the feature `fips`.
pub const IS_FIPS_BUILD: bool = cfg!(feature = "fips");

/// The name and version of the implementation, and of this machine's XTS kernel, for people.
pub fn name() -> String {
    let version = aws_lc_rs::awslc_version();
    let xts = kernel::fastest().name();
    if IS_FIPS_BUILD {
        format!("AWS-LC FIPS {version}")
    } else if xts == kernel::fall_back().name() {
        format!("AWS-LC {version}")
    } else {
        format!("AWS-LC {version}, XTS by {xts}")
    }
}

/// Refuses an algorithm that the validated module lacks, in a FIPS build.
pub(crate) fn refuse_in_fips(algorithm: Algorithm) -> Result<(), CryptoError> {
    if IS_FIPS_BUILD { Err(CryptoError::OutsideModule { algorithm }) } else { Ok(()) }
}

/// Whether the module reports that it is in its approved mode; always true in other builds, which
/// claim nothing.
pub(crate) fn is_in_its_mode() -> bool {
    !IS_FIPS_BUILD || aws_lc_rs::try_fips_mode().is_ok()
}

/// Checks the result of an EVP call of the library: 1 for success.
pub(crate) fn check(algorithm: Algorithm, call: &'static str, result: c_int) -> Result<(), CryptoError> {
    if result == 1 { Ok(()) } else { Err(library_error(algorithm, call)) }
}

/// Takes the first entry of this thread's error queue and empties the queue, so that the error is
/// not attributed to a later call.
#[cold]
#[allow(unsafe_code)]
pub(crate) fn library_error(algorithm: Algorithm, call: &'static str) -> CryptoError {
    // SAFETY: both calls work on the thread's own queue and take no pointers.
    let code = unsafe {
        let code = lc::ERR_get_error();
        lc::ERR_clear_error();
        code
    };
    CryptoError::Library { algorithm, call, code }
}
