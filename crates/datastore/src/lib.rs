//! Where volumes live: file, memory.
