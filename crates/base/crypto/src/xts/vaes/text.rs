//! The assembly for a batch of units: macros that write a line for each register of a row, so that
//! one text serves both widths.
//!
//! A *row* describes a register of a stride: the number of the register with data, of that with its
//! tweaks, of that with its tweaks and the last round key, and the offset of the data. Besides the
//! rows, register 12 has a round key, 13 and 14 are temporaries, and 15 has a unit's tweak. rdi is
//! the destination, rsi the source, rdx the round keys, rcx the encrypted numbers, r8 the
//! constants, r9 the count of remaining units, r10 the strides of a unit, r11 those remaining.
//!
//! A *dialect* contains the differences between the widths: the registers' prefix; how to XOR two,
//! and three; how to repeat a block from memory, and from a register; by how many bytes tweaks are
//! shifted from one stride to the next, and 16 less that.

/// `$to` XOR `$one` XOR `$two` to `$to`, for AVX-512.
macro_rules! xor3_by_ternary {
    ($r:literal, $to:literal, $one:literal, $two:literal) => {
        concat!("vpternlogq ", $r, $to, ", ", $r, $one, ", ", $r, $two, ", 0x96\n")
    };
}

/// The same for AVX2.
macro_rules! xor3_by_two {
    ($r:literal, $to:literal, $one:literal, $two:literal) => {
        concat!(
            "vpxor ", $r, $to, ", ", $r, $to, ", ", $r, $one, "\n",
            "vpxor ", $r, $to, ", ", $r, $to, ", ", $r, $two, "\n",
        )
    };
}

/// The data, its tweaks and the first round key.
macro_rules! first_key {
    ({$r:literal $xor:literal $xor3:ident $($_:literal)*}, [$(($data:literal $tweaks:literal $last:literal $at:literal))*]) => {
        concat!(
            "vmovaps ", $r, "12, [rdx]\n",
            $("vmovups ", $r, $data, ", [rsi + ", $at, "]\n",)*
            $($xor3!($r, $data, $tweaks, "12"),)*
        )
    };
}

/// Round `$number` of all rows; `$round` is `vaesenc` or `vaesdec`.
macro_rules! round {
    ($round:literal, $number:literal, {$r:literal $($_:tt)*}, [$(($data:literal $($row:literal)*))*]) => {
        concat!(
            "vmovaps ", $r, "12, [rdx + 64 * ", $number, "]\n",
            $($round, " ", $r, $data, ", ", $r, $data, ", ", $r, "12\n",)*
        )
    };
}

/// The last round, which removes the tweaks with its round key.
macro_rules! last_round {
    ($round:literal, {$r:literal $($_:tt)*}, [$(($data:literal $tweaks:literal $last:literal $at:literal))*]) => {
        concat!($(
            $round, "last ", $r, $data, ", ", $r, $data, ", ", $r, $last, "\n",
            "vmovups [rdi + ", $at, "], ", $r, $data, "\n",
        )*)
    };
}

/// A row's tweaks with the last round key.
macro_rules! last_key {
    ({$r:literal $xor:literal $($_:tt)*}, ($data:literal $tweaks:literal $last:literal $at:literal)) => {
        concat!($xor, " ", $r, $last, ", ", $r, $tweaks, ", [rdx + 64 * 14]\n")
    };
}

/// A row's tweaks in the next stride of the unit: times x once for each block of a stride, which is
/// a shift by whole bytes. The carry is reduced and added.
macro_rules! next_stride {
    ({$r:literal $xor:literal $xor3:ident $repeat:literal $spread:literal $up:literal $down:literal},
        ($data:literal $tweaks:literal $last:literal $at:literal)) => {
        concat!(
            "vpsrldq ", $r, "13, ", $r, $tweaks, ", ", $down, "\n",
            "vpslldq ", $r, $tweaks, ", ", $r, $tweaks, ", ", $up, "\n",
            "vpclmulqdq ", $r, "13, ", $r, "13, [r8 + {reduction}], 0x00\n",
            $xor, " ", $r, $tweaks, ", ", $r, $tweaks, ", ", $r, "13\n",
        )
    };
}

/// A row's tweaks in the first stride of the unit whose tweak is in register 15: times x once for
/// each preceding block. The carry out of the lower half goes to the upper; the carry out of the
/// upper half is reduced and added.
macro_rules! first_stride {
    ({$r:literal $xor:literal $xor3:ident $($_:literal)*}, ($data:literal $tweaks:literal $last:literal $at:literal)) => {
        concat!(
            "vpsrlvq ", $r, "13, ", $r, "15, [r8 + {right} + ", $at, "]\n",
            "vpsllvq ", $r, $tweaks, ", ", $r, "15, [r8 + {left} + ", $at, "]\n",
            "vpclmulqdq ", $r, "14, ", $r, "13, [r8 + {reduction}], 0x01\n",
            "vpslldq ", $r, "13, ", $r, "13, 8\n",
            $xor3!($r, $tweaks, "13", "14"),
        )
    };
}

/// One stride, and in parallel with its rounds, by `$next`, the tweaks of the next one. Prefetching
/// is not an access: the memory ahead may be beyond the source, or unmapped.
macro_rules! stride {
    ($round:literal, $next:ident, $stride_bytes:literal, $dialect:tt, $rows:tt, [$($row:tt)*],
        [$($beside_tweaks:literal)*], [$($alone:literal)*], [$($line:literal)*]) => {
        concat!(
            first_key!($dialect, $rows),
            $("prefetcht0 [rsi + {ahead} + ", $line, "]\n",)*
            $(
                round!($round, $beside_tweaks, $dialect, $rows),
                last_key!($dialect, $row),
                $next!($dialect, $row),
            )*
            $(round!($round, $alone, $dialect, $rows),)*
            last_round!($round, $dialect, $rows),
            "add rsi, ", $stride_bytes, "\n",
            "add rdi, ", $stride_bytes, "\n",
        )
    };
}

/// Encrypts the numbers of the units from that in register 15 on, one register of them per row.
macro_rules! numbers {
    ({$r:literal $xor:literal $($_:tt)*}, $rows:tt, [$(($data:literal $tweaks:literal $last:literal $at:literal))*],
        [$($number:literal)*]) => {
        concat!(
            $("vpaddq ", $r, $data, ", ", $r, "15, [r8 + {count} + ", $at, "]\n",)*
            $($xor, " ", $r, $data, ", ", $r, $data, ", [rdx]\n",)*
            $(round!("vaesenc", $number, {$r}, $rows),)*
            "vmovaps ", $r, "12, [rdx + 64 * 14]\n",
            $("vaesenclast ", $r, $data, ", ", $r, $data, ", ", $r, "12\n",)*
            $("vmovaps [rcx + ", $at, "], ", $r, $data, "\n",)*
        )
    };
}

/// A batch of units. The number of the first one is in rax (lower half) and r11; rdx has the round
/// keys for tweaks at first.
macro_rules! batch {
    ($round:literal, $stride_bytes:literal,
        {$r:literal $xor:literal $xor3:ident $repeat:literal $spread:literal $up:literal $down:literal}, $dialect:tt,
        $rows:tt, [$($row:tt)*], $beside_tweaks:tt, $alone:tt, $lines:tt, $one_row:tt, $four_rows:tt) => {
        concat!(
            "vmovq xmm15, rax\n",
            "vpinsrq xmm15, xmm15, r11, 1\n",
            $spread, " ", $r, "15, ", $r, "15, ", $r, "15, 0\n",
            // Few numbers, and often just one, fit into one register.
            "cmp r9, {blocks}\n",
            "ja 2f\n",
            numbers!($dialect, $one_row, $one_row, [1 2 3 4 5 6 7 8 9 10 11 12 13]),
            "jmp 3f\n",
            "2:\n",
            numbers!($dialect, $four_rows, $four_rows, [1 2 3 4 5 6 7 8 9 10 11 12 13]),
            "3:\n",
            $spread, " ", $r, "15, ", $r, "0, ", $r, "0, 0\n",
            "mov rdx, {keys}\n",
            $(first_stride!($dialect, $row),)*
            // A unit: all strides except the last.
            "4:\n",
            "mov r11, r10\n",
            "dec r11\n",
            "jz 6f\n",
            ".p2align 6\n",
            "5:\n",
            stride!($round, next_stride, $stride_bytes, $dialect, $rows, [$($row)*], $beside_tweaks, $alone, $lines),
            "dec r11\n",
            "jnz 5b\n",
            // The last stride, in parallel with the first tweaks of the next unit; after the
            // batch's last unit their result is unused.
            "6:\n",
            "add rcx, 16\n",
            $repeat, " ", $r, "15, [rcx]\n",
            stride!($round, first_stride, $stride_bytes, $dialect, $rows, [$($row)*], $beside_tweaks, $alone, $lines),
            "dec r9\n",
            "jnz 4b\n",
        )
    };
}
