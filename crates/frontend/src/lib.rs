//! What a guest or client connects to: NBD.
