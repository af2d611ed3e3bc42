//! One stage each between guest and volume: crypt, blocksize, delay, error.
