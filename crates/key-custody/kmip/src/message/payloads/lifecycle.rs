//! Operations on the life of an object, beyond those that need nothing but the object.

use crate::codec::structure;
use crate::protocol::RevocationReason;
use crate::ttlv::{DateTime, Interval};

structure! {
    /// End the use of an object (section 4.20).
    pub struct RevokeRequest {
        /// Which object.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// Why; a compromise leads to another state than all else.
        revocation_reason: RevocationReason = REVOCATION_REASON,
        /// Since when it may have been compromised.
        compromise_occurrence_date: Option<DateTime> = COMPROMISE_OCCURRENCE_DATE,
    }
}

structure! {
    /// A lease (section 4.17).
    pub struct ObtainLeaseResponse {
        /// On which object.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// For how long.
        lease_time: Interval = LEASE_TIME,
        /// When its attributes last changed.
        last_change_date: DateTime = LAST_CHANGE_DATE,
    }
}

structure! {
    /// Take some of an object's allowed usage (section 4.18).
    pub struct GetUsageAllocationRequest {
        /// Of which object.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// How much, in the unit of its limits.
        usage_limits_count: i64 = USAGE_LIMITS_COUNT,
    }
}
