//! The seam of the data path: Disk, Channel, Io, Done, Payload; range locks; conformance suite.
