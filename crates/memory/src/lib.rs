//! Buffer pool, guest memory, GuestSlice and secret memory.
