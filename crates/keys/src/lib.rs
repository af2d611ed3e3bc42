//! Key hierarchy, envelopes and where KEKs come from.
