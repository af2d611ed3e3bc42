//! Shipping.
