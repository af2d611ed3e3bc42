//! The limit of the processor's AES units: independent streams of AES rounds in registers, without
//! loads, stores or tweaks. AES-256 has 14 rounds per block, so no XTS can be faster.

/// The AES rounds for an amount of data.
#[derive(Clone, Copy)]
pub struct Bound {
    /// The bytes that the rounds would encrypt with AES-256.
    pub bytes: usize,
    /// Executes the rounds. It exists only if the processor supports them.
    pub run: fn(),
}

/// The rounds in the widest registers of this processor.
pub fn widest() -> Option<Bound> {
    #[cfg(target_arch = "x86_64")]
    return x86_64::widest();
    #[cfg(not(target_arch = "x86_64"))]
    None
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::Bound;

    /// Enough to keep two units with a latency of four or five cycles busy.
    const STREAMS: usize = 12;
    /// The count of registers that each stream encrypts.
    const BLOCKS: usize = 100;

    pub fn widest() -> Option<Bound> {
        let vaes = is_x86_feature_detected!("vaes");
        let bound = |register_bytes, run| Some(Bound { bytes: register_bytes * STREAMS * BLOCKS, run });
        if vaes && is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has both features.
            bound(64, || unsafe { rounds_512() })
        } else if vaes && is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has both features.
            bound(32, || unsafe { rounds_256() })
        } else if is_x86_feature_detected!("aes") {
            // SAFETY: the processor has the feature.
            bound(16, || unsafe { rounds_128() })
        } else {
            None
        }
    }

    macro_rules! rounds {
        ($name:ident, $features:literal, $zero:ident, $round:ident) => {
            #[target_feature(enable = $features)]
            fn $name() {
                let key = black_box($zero());
                let mut streams = black_box([$zero(); STREAMS]);
                for _ in 0..BLOCKS * 14 {
                    for stream in &mut streams {
                        *stream = $round(*stream, key);
                    }
                }
                black_box(streams);
            }
        };
    }
    rounds!(rounds_512, "vaes,avx512f", _mm512_setzero_si512, _mm512_aesenc_epi128);
    rounds!(rounds_256, "vaes,avx2", _mm256_setzero_si256, _mm256_aesenc_epi128);
    rounds!(rounds_128, "aes", _mm_setzero_si128, _mm_aesenc_si128);
}
