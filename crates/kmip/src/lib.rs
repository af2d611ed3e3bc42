//! KMIP 1.0 to 1.4: TTLV, messages, client and server.
#![forbid(unsafe_code)]
