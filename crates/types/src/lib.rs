//! Ids, byte sizes, extents, limits and errors of the whole house; no I/O.
