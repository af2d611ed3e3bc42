//! Operations on an object's life cycle that take parameters.

use crate::codec::structure;
use crate::protocol::RevocationReason;
use crate::ttlv::{DateTime, Interval};

structure! {
    /// End the use of an object (section 4.20).
    pub struct RevokeRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The reason; a compromise leads to a state of its own.
        revocation_reason: RevocationReason = REVOCATION_REASON,
        /// The earliest time at which it may have been compromised.
        compromise_occurrence_date: Option<DateTime> = COMPROMISE_OCCURRENCE_DATE,
    }
}

structure! {
    /// A lease (section 4.17).
    pub struct ObtainLeaseResponse {
        /// The object's identifier.
        unique_identifier: String = UNIQUE_IDENTIFIER,
        /// The duration of the lease.
        lease_time: Interval = LEASE_TIME,
        /// When its attributes last changed.
        last_change_date: DateTime = LAST_CHANGE_DATE,
    }
}

structure! {
    /// Take some of an object's allowed usage (section 4.18).
    pub struct GetUsageAllocationRequest {
        /// The object's identifier.
        unique_identifier: Option<String> = UNIQUE_IDENTIFIER,
        /// The amount, in the unit of the object's usage limits.
        usage_limits_count: i64 = USAGE_LIMITS_COUNT,
    }
}
