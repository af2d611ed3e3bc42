//! Kernels by the processor's multiplication without carries (PCLMULQDQ), with one or four blocks
//! per register.
//!
//! They are assembly, as those of XTS are and for the same first reason: the compiler may spill
//! registers, which here hold powers of the key and sums that reveal it, to the stack. All
//! registers that were used are cleared.

use std::arch::{asm, is_x86_feature_detected};
use std::mem::offset_of;

use super::{BLOCK_BYTES, POWERS, PolyvalKernel, Powers};

/// Four blocks per register: Intel since Ice Lake, AMD since Zen 4.
pub(super) static CLMUL_512: Clmul = Clmul {
    name: "clmul-512",
    is_supported: || {
        is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && has_clmul()
    },
    absorb: absorb_512,
};

/// One block per register: every x86-64 processor with AVX.
pub(super) static CLMUL_128: Clmul =
    Clmul { name: "clmul-128", is_supported: has_clmul, absorb: absorb_128 };

fn has_clmul() -> bool {
    is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("avx")
}

/// A kernel: one of the two widths.
#[derive(Debug)]
pub(super) struct Clmul {
    name: &'static str,
    is_supported: fn() -> bool,
    /// Needs a processor that supports the kernel.
    absorb: unsafe fn(&Powers, &mut [u8; BLOCK_BYTES], &[[u8; BLOCK_BYTES]]),
}

impl PolyvalKernel for Clmul {
    fn name(&self) -> &'static str {
        self.name
    }

    fn is_supported(&self) -> bool {
        (self.is_supported)()
    }

    unsafe fn absorb(&self, powers: &Powers, sum: &mut [u8; BLOCK_BYTES], blocks: &[u8]) {
        // SAFETY: as the trait requires, the processor supports the kernel.
        unsafe { (self.absorb)(powers, sum, blocks.as_chunks().0) };
    }
}

/// The terms of the polynomial: its constant, and x^127 + x^126 + x^121 in the high half.
static POLYNOMIAL: Polynomial = Polynomial([1, 0xc200_0000_0000_0000]);

#[repr(align(16))]
struct Polynomial(#[allow(dead_code, reason = "only the assembly reads it")] [u64; 2]);

/// The offset of the power that the first block of a stride of `blocks` is multiplied by.
const fn power(blocks: usize) -> usize {
    offset_of!(Powers, 0) + (POWERS - blocks) * BLOCK_BYTES
}

/// The product of a register with powers in memory, added to the low, high and middle sums. The
/// registers 9 to 12 are used meanwhile.
macro_rules! multiply {
    ($width:literal, $data:literal, $powers:literal) => {
        concat!(
            "vpclmulqdq ", $width, "9, ", $width, $data, ", ", $powers, ", 0x00\n",
            "vpclmulqdq ", $width, "10, ", $width, $data, ", ", $powers, ", 0x11\n",
            "vpclmulqdq ", $width, "11, ", $width, $data, ", ", $powers, ", 0x01\n",
            "vpclmulqdq ", $width, "12, ", $width, $data, ", ", $powers, ", 0x10\n",
        )
    };
}

/// Begins the sums: low in register 4, high in 5, middle in 6.
macro_rules! first {
    ($width:literal, $xor:literal) => {
        concat!(
            $xor, " ", $width, "4, ", $width, "9, ", $width, "15\n",
            $xor, " ", $width, "5, ", $width, "10, ", $width, "15\n",
            $xor, " ", $width, "6, ", $width, "11, ", $width, "12\n",
        )
    };
}

/// Adds to the sums.
macro_rules! further {
    ($width:literal, $xor:literal) => {
        concat!(
            $xor, " ", $width, "4, ", $width, "4, ", $width, "9\n",
            $xor, " ", $width, "5, ", $width, "5, ", $width, "10\n",
            $xor, " ", $width, "6, ", $width, "6, ", $width, "11\n",
            $xor, " ", $width, "6, ", $width, "6, ", $width, "12\n",
        )
    };
}

/// Joins the sums to a product in registers 4 and 5.
macro_rules! join {
    ($width:literal, $xor:literal) => {
        concat!(
            "vpslldq ", $width, "7, ", $width, "6, 8\n",
            "vpsrldq ", $width, "6, ", $width, "6, 8\n",
            $xor, " ", $width, "4, ", $width, "4, ", $width, "7\n",
            $xor, " ", $width, "5, ", $width, "5, ", $width, "6\n",
        )
    };
}

/// Adds the four lanes of register 4, and of 5.
macro_rules! add_lanes {
    () => {
        concat!(
            "vextracti64x4 ymm7, zmm4, 1\n",
            "vextracti64x4 ymm6, zmm5, 1\n",
            "vpxor ymm4, ymm4, ymm7\n",
            "vpxor ymm5, ymm5, ymm6\n",
            "vextracti128 xmm7, ymm4, 1\n",
            "vextracti128 xmm6, ymm5, 1\n",
            "vpxor xmm4, xmm4, xmm7\n",
            "vpxor xmm5, xmm5, xmm6\n",
        )
    };
}

/// Reduces the product to the sum, in register 8.
macro_rules! reduce {
    () => {
        concat!(
            "vpclmulqdq xmm7, xmm4, xmm13, 0x10\n",
            "vpshufd xmm4, xmm4, 78\n",
            "vpxor xmm4, xmm4, xmm7\n",
            "vpclmulqdq xmm7, xmm4, xmm13, 0x10\n",
            "vpshufd xmm4, xmm4, 78\n",
            "vpxor xmm4, xmm4, xmm7\n",
            "vpxor xmm8, xmm5, xmm4\n",
        )
    };
}

/// Block by block, for what is left.
macro_rules! singly {
    () => {
        concat!(
            "6:\n",
            "test rcx, rcx\n",
            "jz 7f\n",
            "vpxor xmm0, xmm8, [rsi]\n",
            multiply!("xmm", "0", "[rdx + {of_1}]"),
            first!("xmm", "vpxor"),
            join!("xmm", "vpxor"),
            reduce!(),
            "add rsi, 16\n",
            "dec rcx\n",
            "jmp 6b\n",
            "7:\n",
            "vmovdqu [rdi], xmm8\n",
        )
    };
}

/// A row of a stride: so many blocks further.
macro_rules! row {
    ($width:literal, $load:literal, $xor:literal, $at:literal, $of:literal) => {
        concat!(
            $load, " ", $width, "0, [rsi + ", $at, "]\n",
            multiply!($width, "0", $of),
            further!($width, $xor),
        )
    };
}

/// A kernel's code: its strides with the powers that they need, then block by block, then nothing
/// secret left in a register.
macro_rules! absorb {
    ($name:ident, $features:literal, [$($of:ident: $blocks:literal),*], $($stride:expr),* $(,)?) => {
        #[target_feature(enable = $features)]
        fn $name(powers: &Powers, sum: &mut [u8; BLOCK_BYTES], blocks: &[[u8; BLOCK_BYTES]]) {
            // SAFETY: reads as many blocks as there are, the powers of the strides, and the
            // polynomial; reads and writes the sum.
            unsafe {
                asm!(
                    "vmovdqu xmm8, [rdi]",
                    "vmovdqa xmm13, [r8]",
                    "vpxor xmm15, xmm15, xmm15",
                    $($stride,)*
                    singly!(),
                    "vpxor xmm0, xmm0, xmm0",
                    "vpxor xmm4, xmm4, xmm4",
                    "vpxor xmm5, xmm5, xmm5",
                    "vpxor xmm6, xmm6, xmm6",
                    "vpxor xmm7, xmm7, xmm7",
                    "vpxor xmm8, xmm8, xmm8",
                    "vpxor xmm9, xmm9, xmm9",
                    "vpxor xmm10, xmm10, xmm10",
                    "vpxor xmm11, xmm11, xmm11",
                    "vpxor xmm12, xmm12, xmm12",
                    "vzeroupper",
                    in("rdi") sum,
                    inout("rsi") blocks.as_ptr() => _,
                    in("rdx") powers,
                    inout("rcx") blocks.len() => _,
                    in("r8") &POLYNOMIAL,
                    $($of = const power($blocks),)*
                    of_1 = const power(1),
                    clobber_abi("sysv64"),
                    options(nostack),
                );
            }
        }
    };
}

absorb!(
    absorb_512, "avx512f,avx512bw,vpclmulqdq,avx,pclmulqdq", [of_32: 32, of_4: 4],
    "2:",
    "cmp rcx, 32",
    "jb 3f",
    "vpxorq zmm0, zmm8, [rsi]",
    multiply!("zmm", "0", "[rdx + {of_32}]"),
    first!("zmm", "vpxorq"),
    row!("zmm", "vmovdqu64", "vpxorq", "64", "[rdx + {of_32} + 64]"),
    row!("zmm", "vmovdqu64", "vpxorq", "128", "[rdx + {of_32} + 128]"),
    row!("zmm", "vmovdqu64", "vpxorq", "192", "[rdx + {of_32} + 192]"),
    row!("zmm", "vmovdqu64", "vpxorq", "256", "[rdx + {of_32} + 256]"),
    row!("zmm", "vmovdqu64", "vpxorq", "320", "[rdx + {of_32} + 320]"),
    row!("zmm", "vmovdqu64", "vpxorq", "384", "[rdx + {of_32} + 384]"),
    row!("zmm", "vmovdqu64", "vpxorq", "448", "[rdx + {of_32} + 448]"),
    join!("zmm", "vpxorq"),
    add_lanes!(),
    reduce!(),
    "add rsi, 512",
    "sub rcx, 32",
    "jmp 2b",
    "3:",
    "cmp rcx, 4",
    "jb 6f",
    "vpxorq zmm0, zmm8, [rsi]",
    multiply!("zmm", "0", "[rdx + {of_4}]"),
    first!("zmm", "vpxorq"),
    join!("zmm", "vpxorq"),
    add_lanes!(),
    reduce!(),
    "add rsi, 64",
    "sub rcx, 4",
    "jmp 3b",
);

absorb!(
    absorb_128, "avx,pclmulqdq", [of_8: 8],
    "2:",
    "cmp rcx, 8",
    "jb 6f",
    "vpxor xmm0, xmm8, [rsi]",
    multiply!("xmm", "0", "[rdx + {of_8}]"),
    first!("xmm", "vpxor"),
    row!("xmm", "vmovdqu", "vpxor", "16", "[rdx + {of_8} + 16]"),
    row!("xmm", "vmovdqu", "vpxor", "32", "[rdx + {of_8} + 32]"),
    row!("xmm", "vmovdqu", "vpxor", "48", "[rdx + {of_8} + 48]"),
    row!("xmm", "vmovdqu", "vpxor", "64", "[rdx + {of_8} + 64]"),
    row!("xmm", "vmovdqu", "vpxor", "80", "[rdx + {of_8} + 80]"),
    row!("xmm", "vmovdqu", "vpxor", "96", "[rdx + {of_8} + 96]"),
    row!("xmm", "vmovdqu", "vpxor", "112", "[rdx + {of_8} + 112]"),
    join!("xmm", "vpxor"),
    reduce!(),
    "add rsi, 128",
    "sub rcx, 8",
    "jmp 2b",
);
