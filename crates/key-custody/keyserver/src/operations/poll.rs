//! Poll and Cancel (KMIP 1.4, 4.27 and 4.28): every operation is done when it is answered, so there
//! is nothing to wait for or to give up.

use strongroom_kmip::message::{CancelRequest, CancelResponse};
use strongroom_kmip::protocol::{CancellationResult, ResultReason};

use super::failure::Failure;

/// No correlation value was ever given out.
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
