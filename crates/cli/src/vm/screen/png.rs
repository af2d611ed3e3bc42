//! A picture as a PNG file (ISO/IEC 15948) with uncompressed pixels: a screenshot is viewed once,
//! which does not justify compression.

use std::io::{self, Write};

use super::rfb::Picture;

/// The most bytes of a stored block of deflate (RFC 1951).
const BLOCK_BYTES_MAX: usize = 0xffff;
/// The modulus of zlib's checksum (RFC 1950).
const ADLER_MODULUS: u32 = 65521;

/// Writes a picture.
pub fn write(to: &mut impl Write, picture: &Picture) -> io::Result<()> {
    let Picture { width, height, rgb } = picture;
    to.write_all(b"\x89PNG\r\n\x1a\n")?;
    let mut header = Vec::with_capacity(13);
    header.extend(u32::from(*width).to_be_bytes());
    header.extend(u32::from(*height).to_be_bytes());
    // Eight bits per colour, true colour, the only methods of compression and filtering, and no
    // interlace.
    header.extend([8, 2, 0, 0, 0]);
    chunk(to, b"IHDR", &header)?;
    // Each line begins with its filter type: none.
    let lines = rgb.chunks(usize::from(*width) * 3).flat_map(|line| std::iter::once(&0).chain(line));
    chunk(to, b"IDAT", &zlib(&lines.copied().collect::<Vec<u8>>()))?;
    chunk(to, b"IEND", &[])
}

fn chunk(to: &mut impl Write, kind: &[u8; 4], content: &[u8]) -> io::Result<()> {
    let length = u32::try_from(content.len()).map_err(io::Error::other)?;
    to.write_all(&length.to_be_bytes())?;
    to.write_all(kind)?;
    to.write_all(content)?;
    to.write_all(&crc(&[kind, content]).to_be_bytes())
}

fn zlib(content: &[u8]) -> Vec<u8> {
    let mut stream = vec![0x78, 0x01];
    let mut blocks = content.chunks(BLOCK_BYTES_MAX).peekable();
    while let Some(block) = blocks.next() {
        let length = u16::try_from(block.len()).unwrap_or(u16::MAX);
        stream.push(u8::from(blocks.peek().is_none()));
        stream.extend(length.to_le_bytes());
        stream.extend((!length).to_le_bytes());
        stream.extend(block);
    }
    let (mut low, mut high) = (1_u32, 0_u32);
    for byte in content {
        low = (low + u32::from(*byte)) % ADLER_MODULUS;
        high = (high + low) % ADLER_MODULUS;
    }
    stream.extend((high << 16 | low).to_be_bytes());
    stream
}

/// CRC-32 of PNG (polynomial 0xedb88320, reflected).
fn crc(parts: &[&[u8]]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|index| {
        let mut value = u32::try_from(index).unwrap_or_default();
        for _ in 0..8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
        }
        value
    });
    let bytes = parts.iter().copied().flatten();
    !bytes.fold(u32::MAX, |crc, byte| {
        let [low, ..] = (crc ^ u32::from(*byte)).to_le_bytes();
        crc >> 8 ^ table[usize::from(low)]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_published_ones() {
        // The check value of CRC-32/ISO-HDLC, and the best-known example of Adler-32.
        assert_eq!(crc(&[b"1234", b"56789"]), 0xcbf4_3926);
        assert!(zlib(b"Wikipedia").ends_with(&0x11e6_0398_u32.to_be_bytes()));
    }

    #[test]
    fn a_picture_that_needs_several_blocks_says_which_is_the_last() {
        let stream = zlib(&vec![7; BLOCK_BYTES_MAX + 1]);
        assert_eq!((stream[2], stream[2 + 5 + BLOCK_BYTES_MAX]), (0, 1));
        assert_eq!(stream.len(), 2 + 5 + BLOCK_BYTES_MAX + 5 + 1 + 4);
        let mut file = Vec::new();
        write(&mut file, &Picture { width: 2, height: 1, rgb: vec![255, 0, 0, 0, 0, 255] }).unwrap();
        assert_eq!(file.len(), 8 + 25 + (12 + 2 + 5 + 7 + 4) + 12);
    }
}
