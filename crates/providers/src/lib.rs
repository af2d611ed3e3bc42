//! Key providers: where KEKs come from, and how a holder rides out their outages.
#![forbid(unsafe_code)]
