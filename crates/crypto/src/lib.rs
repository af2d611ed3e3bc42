//! AES-XTS kernels with library fall-back, GCM, key wrap, self-tests.
