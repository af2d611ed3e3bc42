//! QEMU's connection to a card's network.

/// QEMU's connection to a card's network: an open file, by its descriptor number or by the name
/// that it was given over QMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// A stream of frames.
    Stream(String),
    /// A tap device.
    Tap(String),
    /// QEMU's own user network, restricted to itself.
    RestrictedUser,
}
