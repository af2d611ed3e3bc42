//! RNG Retrieve and RNG Seed (KMIP 1.4, 4.35 and 4.36), where they are switched on.

use strongroom_kmip::message::{RngRetrieveRequest, RngRetrieveResponse, RngSeedRequest, RngSeedResponse};
use strongroom_memory::secret::{SECRET_MAX_BYTES, SecretBytes};

use super::failure::Failure;

/// Random bytes: at most as many as a secret may have.
pub fn retrieve(request: &RngRetrieveRequest) -> Result<RngRetrieveResponse, Failure> {
    let length_bytes = usize::try_from(request.data_length)
        .ok()
        .filter(|length_bytes| *length_bytes <= SECRET_MAX_BYTES)
        .ok_or_else(|| Failure::invalid(format!("a request gets 0 to {SECRET_MAX_BYTES} random bytes")))?;
    Ok(RngRetrieveResponse { data: (&SecretBytes::random(length_bytes)?).into() })
}

/// Takes a client's seed and uses nothing of it: the source is seeded by the kernel, and what a
/// client brings is known to the client.
pub fn seed(_: &RngSeedRequest) -> Result<RngSeedResponse, Failure> {
    Ok(RngSeedResponse { data_length: 0 })
}
