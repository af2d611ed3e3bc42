//! How QEMU reaches what a network card is connected to.

/// How QEMU reaches what a card is connected to: by what it has open under a number, or under a
/// name that it was given over QMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Connection {
    /// A stream of frames.
    Stream(String),
    /// A tap device.
    Tap(String),
    /// QEMU's own user network, restricted to itself.
    RestrictedUser,
}
