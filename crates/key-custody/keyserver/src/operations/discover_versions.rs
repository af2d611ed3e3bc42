//! Discover Versions (KMIP 1.4, 4.26).

use strongroom_kmip::message::{DiscoverVersionsRequest, DiscoverVersionsResponse};
use strongroom_kmip::protocol::ProtocolVersion;

/// The versions that server and client speak, newest first.
pub fn discover_versions(request: &DiscoverVersionsRequest) -> DiscoverVersionsResponse {
    let asked = &request.protocol_versions;
    let spoken = ProtocolVersion::SPOKEN.into_iter();
    DiscoverVersionsResponse {
        protocol_versions: spoken.filter(|version| asked.is_empty() || asked.contains(version)).collect(),
    }
}
