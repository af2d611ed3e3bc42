//! Poll and Cancel (KMIP 1.4, 4.27 and 4.28): every operation is complete when it is answered, so
//! there is nothing to poll or cancel.

use strongroom_kmip::message::{CancelRequest, CancelResponse};
use strongroom_kmip::protocol::{CancellationResult, ResultReason};

use crate::failure::Failure;

/// The server never issues correlation values.
pub fn poll() -> Failure {
    Failure::new(ResultReason::ItemNotFound, "no operation is under way: all are done when they are answered")
}

/// There is nothing to cancel.
pub fn cancel(request: &CancelRequest) -> CancelResponse {
    CancelResponse {
        asynchronous_correlation_value: request.asynchronous_correlation_value.clone(),
        cancellation_result: CancellationResult::Unavailable,
    }
}
