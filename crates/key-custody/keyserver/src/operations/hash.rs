//! Hash (KMIP 1.4, 4.37), if enabled.

use aws_lc_rs::digest;
use strongroom_kmip::message::{HashRequest, HashResponse};
use strongroom_kmip::protocol::HashingAlgorithm;

use super::encrypt::{check_in_one_part, missing_data};
use crate::failure::Failure;

/// Hashes a client's data.
pub fn hash(request: &HashRequest) -> Result<HashResponse, Failure> {
    check_in_one_part(&request.correlation_value, request.init_indicator, request.final_indicator)?;
    let data = request.data.as_ref().ok_or_else(missing_data)?;
    let algorithm = match request.cryptographic_parameters.hashing_algorithm {
        Some(HashingAlgorithm::Sha224) => &digest::SHA224,
        Some(HashingAlgorithm::Sha256) => &digest::SHA256,
        Some(HashingAlgorithm::Sha384) => &digest::SHA384,
        Some(HashingAlgorithm::Sha512) => &digest::SHA512,
        _ => return Err(Failure::not_offered("hashes are SHA-2 here")),
    };
    let hash = digest::digest(algorithm, data.expose());
    Ok(HashResponse { data: Some(hash.as_ref().into()), correlation_value: None })
}
