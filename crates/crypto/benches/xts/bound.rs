//! What the processor's AES units can do at all: independent streams of AES rounds in registers, with nothing loaded, stored or
//! tweaked. AES-256 has 14 rounds a block, so no XTS can be faster.

use super::table::Least;

/// The bound of each width that this processor has, in GiB/s of AES-256.
pub fn measure() -> Vec<(&'static str, f64)> {
    #[cfg(target_arch = "x86_64")]
    return x86_64::measure();
    #[cfg(not(target_arch = "x86_64"))]
    Vec::new()
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use std::arch::is_x86_feature_detected;
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::Least;

    /// Enough to keep two units of a latency of four or five busy.
    const STREAMS: usize = 12;
    /// Blocks of AES-256 that each stream does in one call.
    const BLOCKS: usize = 500;
    const REPETITIONS: u64 = 20_000;

    pub fn measure() -> Vec<(&'static str, f64)> {
        let mut bounds = Vec::new();
        let vaes = is_x86_feature_detected!("vaes");
        if vaes && is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has both.
            bounds.push(("AESENC of 512 bits", least(64, || unsafe { rounds_512() })));
        }
        if vaes && is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has both.
            bounds.push(("AESENC of 256 bits", least(32, || unsafe { rounds_256() })));
        }
        if is_x86_feature_detected!("aes") {
            // SAFETY: the processor has it.
            bounds.push(("AESENC of 128 bits", least(16, || unsafe { rounds_128() })));
        }
        bounds
    }

    fn least(register_bytes: usize, rounds: impl FnMut()) -> f64 {
        let mut least = Least::of_calls(register_bytes * STREAMS * BLOCKS);
        least.time(REPETITIONS, rounds);
        least.gib_per_second()
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
