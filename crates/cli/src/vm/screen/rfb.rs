//! A minimal VNC client (RFB 3.8, RFC 6143) for screenshots. The server is QEMU, which a guest may
//! have compromised: its messages are limited before memory is allocated.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// A server's first message: its version.
pub type Greeting = [u8; 12];

/// The version of this client.
const VERSION: &Greeting = b"RFB 003.008\n";
/// Security type 1: none. The client has already sent a ticket.
const SECURITY_NONE: u8 = 1;
/// The most pixels: 8192 x 4320, more than any screen of QEMU.
const PIXELS_MAX: usize = 8192 * 4320;
/// The longest text of a server that is skipped, in bytes: a name, a reason, or a guest's
/// clipboard.
const TEXT_BYTES_MAX: u32 = 1 << 20;
/// Bytes of a pixel: blue, green, red, and an unused byte.
const PIXEL_BYTES: usize = 4;
/// SetPixelFormat to that: 32 bits, 24 of them used, little-endian, true colour, a maximum of 255
/// each, red from bit 16 on.
const SET_PIXEL_FORMAT: [u8; 20] = [0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0];
/// SetEncodings to one: raw, 0.
const SET_ENCODINGS: [u8; 8] = [2, 0, 0, 1, 0, 0, 0, 0];

/// The content of a screen.
pub struct Picture {
    /// In pixels.
    pub width: u16,
    /// In pixels.
    pub height: u16,
    /// Three bytes per pixel, red first, line by line.
    pub rgb: Vec<u8>,
}

/// Requests the whole screen from a server that has sent its greeting.
pub fn picture(stream: &UnixStream, greeting: Greeting) -> io::Result<Picture> {
    if !greeting.starts_with(b"RFB 003.") {
        return Err(wrong("what is there is no VNC server"));
    }
    let mut server = Server(stream);
    server.0.write_all(VERSION)?;
    server.pass_security()?;
    // Shared: other viewers stay connected.
    server.0.write_all(&[1])?;
    let [width, height] = [server.u16()?, server.u16()?];
    let _its_format = server.bytes::<16>()?;
    server.skip_text()?;
    let pixels = usize::from(width) * usize::from(height);
    if pixels == 0 || pixels > PIXELS_MAX {
        return Err(wrong("its screen has an impossible size"));
    }
    server.0.write_all(&SET_PIXEL_FORMAT)?;
    server.0.write_all(&SET_ENCODINGS)?;
    let mut canvas = Canvas { width, height, rgb: vec![0; pixels * 3], shown: vec![false; pixels] };
    server.ask(&canvas, false)?;
    while !canvas.is_full() {
        if server.update(&mut canvas)? && !canvas.is_full() {
            server.ask(&canvas, true)?;
        }
    }
    let Canvas { width, height, rgb, .. } = canvas;
    Ok(Picture { width, height, rgb })
}

fn wrong(reason: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// A picture that is being painted.
struct Canvas {
    width: u16,
    height: u16,
    rgb: Vec<u8>,
    shown: Vec<bool>,
}

impl Canvas {
    fn is_full(&self) -> bool {
        self.shown.iter().all(|shown| *shown)
    }

    /// Paints one line of a rectangle, which must be within the canvas.
    fn paint(&mut self, first: usize, line: &[u8]) {
        let (pixels, _) = line.as_chunks::<PIXEL_BYTES>();
        for (index, [blue, green, red, _]) in (first..).zip(pixels) {
            self.rgb[index * 3..][..3].copy_from_slice(&[*red, *green, *blue]);
            self.shown[index] = true;
        }
    }
}

struct Server<'stream>(&'stream UnixStream);

impl Server<'_> {
    fn bytes<const COUNT: usize>(&mut self) -> io::Result<[u8; COUNT]> {
        let mut bytes = [0; COUNT];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u16(&mut self) -> io::Result<u16> {
        self.bytes().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> io::Result<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn skip_text(&mut self) -> io::Result<()> {
        let length = self.u32()?;
        if length > TEXT_BYTES_MAX {
            return Err(wrong("it says more than a text can be long"));
        }
        self.skip(u64::from(length))
    }

    fn skip(&mut self, length: u64) -> io::Result<()> {
        let skipped = io::copy(&mut self.0.take(length), &mut io::sink())?;
        if skipped == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn pass_security(&mut self) -> io::Result<()> {
        let [count] = self.bytes()?;
        let mut types = vec![0; count.into()];
        self.0.read_exact(&mut types)?;
        if !types.contains(&SECURITY_NONE) {
            return Err(wrong("it lets nobody in without a password"));
        }
        self.0.write_all(&[SECURITY_NONE])?;
        if self.u32()? == 0 { Ok(()) } else { Err(wrong("it lets nobody in")) }
    }

    /// FramebufferUpdateRequest for the whole screen.
    fn ask(&mut self, canvas: &Canvas, incremental: bool) -> io::Result<()> {
        let ([width_high, width_low], [height_high, height_low]) =
            (canvas.width.to_be_bytes(), canvas.height.to_be_bytes());
        let request = [3, u8::from(incremental), 0, 0, 0, 0, width_high, width_low, height_high, height_low];
        self.0.write_all(&request)
    }

    /// Handles the next message. Returns whether it was an update.
    fn update(&mut self, canvas: &mut Canvas) -> io::Result<bool> {
        match self.bytes()? {
            [0] => {
                let [_padding] = self.bytes()?;
                for _ in 0..self.u16()? {
                    self.rectangle(canvas)?;
                }
                return Ok(true);
            }
            // SetColourMapEntries
            [1] => {
                let [_padding, _first_high, _first_low] = self.bytes()?;
                let colours = self.u16()?;
                self.skip(6 * u64::from(colours))?;
            }
            // Bell
            [2] => {}
            // ServerCutText
            [3] => {
                let _padding = self.bytes::<3>()?;
                self.skip_text()?;
            }
            [_] => return Err(wrong("it says something that is not of RFB 3.8")),
        }
        Ok(false)
    }

    fn rectangle(&mut self, canvas: &mut Canvas) -> io::Result<()> {
        let [left, top, width, height] =
            [self.u16()?, self.u16()?, self.u16()?, self.u16()?].map(usize::from);
        if self.u32()? != 0 {
            return Err(wrong("it sends pixels in a way that was not asked for"));
        }
        let (across, down) = (usize::from(canvas.width), usize::from(canvas.height));
        if left + width > across || top + height > down {
            return Err(wrong("it paints beyond its screen"));
        }
        let mut line = vec![0; width * PIXEL_BYTES];
        for row in top..top + height {
            self.0.read_exact(&mut line)?;
            canvas.paint(row * across + left, &line);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// A server of 2 x 2 pixels that sends `messages` when its screen is requested.
    fn served(messages: Vec<u8>) -> io::Result<Picture> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let mut theirs = theirs;
            let mut said = vec![0; VERSION.len()];
            theirs.read_exact(&mut said).unwrap();
            theirs.write_all(&[2, 16, 1]).unwrap();
            theirs.read_exact(&mut said[..1]).unwrap();
            theirs.write_all(&[0; 4]).unwrap();
            theirs.read_exact(&mut said[..1]).unwrap();
            theirs.write_all(&[0, 2, 0, 2]).unwrap();
            theirs.write_all(&[0; 16]).unwrap();
            theirs.write_all(&[0, 0, 0, 4]).unwrap();
            theirs.write_all(b"QEMU").unwrap();
            theirs.read_exact(&mut [0; 20 + 8 + 10]).unwrap();
            theirs.write_all(&messages).unwrap();
            // Until the client has finished or failed.
            let _ = io::copy(&mut theirs, &mut io::sink());
        });
        let told = picture(&ours, *VERSION);
        drop(ours);
        server.join().unwrap();
        told
    }

    fn line(top: u8, left: u8, pixels: &[[u8; 4]]) -> Vec<u8> {
        let mut message =
            vec![0, 0, 0, 1, 0, left, 0, top, 0, u8::try_from(pixels.len()).unwrap(), 0, 1, 0, 0, 0, 0];
        message.extend(pixels.as_flattened());
        message
    }

    #[test]
    fn a_picture_comes_in_pieces_between_other_words() {
        let (red, blue) = ([0, 0, 255, 9], [255, 0, 0, 9]);
        let mut messages = vec![2, 3, 0, 0, 0, 0, 0, 0, 1, b'x', 1, 0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 6];
        messages.extend(line(0, 0, &[red, blue]));
        messages.extend(line(1, 0, &[blue, red]));
        let picture = served(messages).unwrap();
        assert_eq!((picture.width, picture.height), (2, 2));
        assert_eq!(picture.rgb, [255, 0, 0, 0, 0, 255, 0, 0, 255, 255, 0, 0]);
    }

    #[test]
    fn a_server_that_lies_is_left() {
        for messages in
            [line(1, 1, &[[0; 4]; 2]), line(2, 0, &[[0; 4]]), vec![9], vec![3, 0, 0, 0, 255, 0, 0, 0]]
        {
            assert_eq!(served(messages).err().unwrap().kind(), io::ErrorKind::InvalidData);
        }
    }
}
