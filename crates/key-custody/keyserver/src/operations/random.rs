//! RNG Retrieve and RNG Seed (KMIP 1.4, 4.35 and 4.36), if enabled.

use strongroom_kmip::message::{RngRetrieveRequest, RngRetrieveResponse, RngSeedRequest, RngSeedResponse};
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes};

use crate::failure::Failure;

/// Returns random bytes, up to the limit of a secret.
pub fn retrieve(request: &RngRetrieveRequest) -> Result<RngRetrieveResponse, Failure> {
    let length_bytes = usize::try_from(request.data_length)
        .ok()
        .filter(|length_bytes| *length_bytes <= SECRET_MAX_BYTES)
        .ok_or_else(|| Failure::invalid(format!("a request gets 0 to {SECRET_MAX_BYTES} random bytes")))?;
    Ok(RngRetrieveResponse { data: (&SecretBytes::random(length_bytes)?).into() })
}

/// Accepts a client's seed but uses none of it: the kernel seeds the source, and the client knows
/// its own seed.
pub fn seed(_: &RngSeedRequest) -> Result<RngSeedResponse, Failure> {
    Ok(RngSeedResponse { data_length: 0 })
}
