//! A screen for somebody who only looks: of what a client of the VNC server says (RFC 6143), only
//! what changes nothing is passed on.
//!
//! | from the client | |
//! |---|---|
//! | version 3.7 or 3.8, security type `None` | passed on; others end the connection |
//! | `ClientInit` | passed on as *shared*: an exclusive client would disconnect those who write |
//! | `SetPixelFormat`, `SetEncodings`, `FramebufferUpdateRequest`, fences, continuous updates | passed on: what is drawn for this client |
//! | `KeyEvent`, `PointerEvent`, `ClientCutText`, QEMU's keys and audio, `xvp`, `SetDesktopSize` | left out |
//! | anything else | ends the connection: where the next message begins is not known |
//!
//! What of a message has not come yet is waited for, in the length of its head alone.

use std::io;

/// The versions in which a client chooses its security type itself.
const VERSIONS: [&[u8; 12]; 2] = [b"RFB 003.007\n", b"RFB 003.008\n"];
/// The security type `None`: who may look was decided by the ticket.
const SECURITY_NONE: u8 = 1;
/// `ClientInit` of a client that leaves others connected.
const SHARED: u8 = 1;
/// The longest text of a clipboard that is left out, and the most encodings, in bytes: what QEMU
/// takes.
const BODY_BYTES_MAX: u64 = 1 << 20;

/// What a client says, as far as it is passed on.
#[derive(Debug)]
pub struct LookOnly {
    expects: Expects,
    /// The part of the head that has come.
    head: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expects {
    Version,
    Security,
    Init,
    Message,
    /// The rest of a message, of this many bytes.
    Body {
        left: u64,
        passes: bool,
    },
}

/// What is known of a message by its head so far.
enum Message {
    /// Its head is longer: this many bytes.
    Head(usize),
    /// Its whole length in bytes, and whether it is passed on.
    Whole { bytes: u64, passes: bool },
}

impl LookOnly {
    /// A client that has said nothing yet.
    pub fn new() -> Self {
        Self { expects: Expects::Version, head: Vec::new() }
    }

    /// Adds what is passed on of `said` to `passed`.
    ///
    /// # Errors
    /// If the client says what nobody who only looks does: the connection ends.
    pub fn hear(&mut self, mut said: &[u8], passed: &mut Vec<u8>) -> io::Result<()> {
        while !said.is_empty() {
            if let Expects::Body { left, passes } = self.expects {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(said.len());
                let (of_body, rest) = said.split_at(count);
                if passes {
                    passed.extend_from_slice(of_body);
                }
                said = rest;
                self.expects = match left - count as u64 {
                    0 => Expects::Message,
                    left => Expects::Body { left, passes },
                };
                continue;
            }
            let (byte, rest) = (said[0], &said[1..]);
            said = rest;
            self.head.push(byte);
            self.judge(passed)?;
        }
        Ok(())
    }

    /// Judges the head, with a byte that has just come.
    fn judge(&mut self, passed: &mut Vec<u8>) -> io::Result<()> {
        match self.expects {
            Expects::Version if self.head.len() < VERSIONS[0].len() => return Ok(()),
            Expects::Version if VERSIONS.iter().any(|version| self.head == **version) => {
                self.expects = Expects::Security;
            }
            Expects::Version => return Err(refused("another version of RFB")),
            Expects::Security if self.head == [SECURITY_NONE] => self.expects = Expects::Init,
            Expects::Security => return Err(refused("another security type than None")),
            Expects::Init => {
                self.head[0] = SHARED;
                self.expects = Expects::Message;
            }
            Expects::Message => match message(&self.head)? {
                Message::Head(bytes) if self.head.len() < bytes => return Ok(()),
                Message::Head(_) => return Err(refused("a message whose length is not known")),
                Message::Whole { bytes, passes } => {
                    let left = bytes.saturating_sub(self.head.len() as u64);
                    if left > BODY_BYTES_MAX {
                        return Err(refused("a message that is too long"));
                    }
                    self.expects = if left == 0 { Expects::Message } else { Expects::Body { left, passes } };
                    if !passes {
                        self.head.clear();
                    }
                }
            },
            Expects::Body { .. } => {}
        }
        passed.append(&mut self.head);
        Ok(())
    }
}

/// What the head of a message says; it has one byte or more.
fn message(head: &[u8]) -> io::Result<Message> {
    let whole = |bytes: u64, passes| Ok(Message::Whole { bytes, passes });
    let number = |at: usize| u64::from(u16::from_be_bytes([head[at], head[at + 1]]));
    match (head[0], head.len()) {
        // SetPixelFormat, FramebufferUpdateRequest, EnableContinuousUpdates.
        (0, _) => whole(20, true),
        (3 | 150, _) => whole(10, true),
        // SetEncodings.
        (2, ..4) => Ok(Message::Head(4)),
        (2, _) => whole(4 + 4 * number(2), true),
        // ClientFence.
        (248, ..9) => Ok(Message::Head(9)),
        (248, _) => whole(9 + u64::from(head[8]), true),
        // KeyEvent, PointerEvent, xvp.
        (4, _) => whole(8, false),
        (5, _) => whole(6, false),
        (250, _) => whole(4, false),
        // ClientCutText; in its extended form the length is negative.
        (6, ..8) => Ok(Message::Head(8)),
        (6, _) => {
            let length = i32::from_be_bytes([head[4], head[5], head[6], head[7]]);
            whole(8 + u64::from(length.unsigned_abs()), false)
        }
        // SetDesktopSize.
        (251, ..8) => Ok(Message::Head(8)),
        (251, _) => whole(8 + 16 * u64::from(head[6]), false),
        // QEMU's own: a key; audio on, off, and its format.
        (255, ..2) => Ok(Message::Head(2)),
        (255, _) if head[1] == 0 => whole(12, false),
        (255, ..4) if head[1] == 1 => Ok(Message::Head(4)),
        (255, _) if head[1] == 1 => whole(if number(2) == 2 { 10 } else { 4 }, false),
        (kind, _) => Err(refused(&format!("a message of kind {kind}"))),
    }
}

fn refused(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("a client that only looks sends {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HELLO: &[u8] = b"RFB 003.008\n\x01\x01";

    /// What is passed on of what a client says in pieces of so many bytes.
    fn passed(said: &[u8], piece: usize) -> io::Result<Vec<u8>> {
        let (mut client, mut passed) = (LookOnly::new(), Vec::new());
        said.chunks(piece).try_for_each(|piece| client.hear(piece, &mut passed))?;
        Ok(passed)
    }

    fn is_refused(said: &[u8]) {
        for piece in [1, 3, said.len()] {
            let refused = passed(said, piece).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidData, "{said:?}");
        }
    }

    /// Messages that change nothing, each as a whole.
    fn looks() -> Vec<Vec<u8>> {
        let mut encodings = vec![2, 0, 0, 3];
        encodings.extend([4; 12]);
        let mut pixels = vec![0; 20];
        pixels[4] = 5;
        let mut fence = vec![248, 0, 0, 0, 128, 0, 0, 1, 4];
        fence.extend([6, 5, 4, 255]);
        vec![
            pixels,
            encodings,
            vec![3, 1, 0, 0, 0, 0, 4, 0, 3, 0],
            vec![150, 1, 0, 0, 0, 0, 4, 0, 3, 0],
            fence,
        ]
    }

    /// Messages that change something.
    fn acts() -> Vec<Vec<u8>> {
        let mut cut = vec![6, 0, 0, 0, 0, 0, 0, 5];
        cut.extend(*b"\x04\x01\x00\x00\x00");
        let mut extended = vec![6, 0, 0, 0];
        extended.extend((-6_i32).to_be_bytes());
        extended.extend([4, 1, 0, 0, 0, 5]);
        let mut size = vec![251, 0, 4, 0, 3, 0, 1, 0];
        size.extend([3; 16]);
        vec![
            vec![4, 1, 0, 0, 0, 0, 0xff, 0x0d],
            vec![5, 1, 0, 10, 0, 10],
            cut,
            extended,
            size,
            vec![250, 0, 1, 3],
            vec![255, 0, 0, 1, 0, 0, 0, 65, 0, 0, 0, 30],
            vec![255, 1, 0, 0],
            vec![255, 1, 0, 2, 3, 2, 0, 0, 0xac, 0x44],
        ]
    }

    #[test]
    fn what_changes_something_is_left_out_however_it_is_cut() {
        let (looks, acts) = (looks(), acts());
        // Every order of two, so that one of each kind is before and behind one of each other.
        let all: Vec<(&Vec<u8>, bool)> =
            looks.iter().map(|look| (look, true)).chain(acts.iter().map(|act| (act, false))).collect();
        for (first, first_passes) in &all {
            for (second, second_passes) in &all {
                let said = [HELLO, first, second, first].concat();
                let mut expected = HELLO.to_vec();
                for (message, passes) in
                    [(first, first_passes), (second, second_passes), (first, first_passes)]
                {
                    if *passes {
                        expected.extend_from_slice(message);
                    }
                }
                for piece in [1, 2, 7, said.len()] {
                    assert_eq!(passed(&said, piece).unwrap(), expected, "{first:?} {second:?}");
                }
            }
        }
    }

    #[test]
    fn nobody_who_looks_has_the_screen_alone() {
        let exclusive = b"RFB 003.008\n\x01\x00";
        assert_eq!(passed(exclusive, 1).unwrap(), HELLO);
    }

    #[test]
    fn what_is_not_understood_ends_the_connection() {
        // In version 3.3 the server chooses, and all that follows is one byte earlier.
        is_refused(b"RFB 003.003\n\x01\x04");
        is_refused(b"RFB 003.889\n");
        for security in [0, 2, 16, 18, 19] {
            is_refused(&[b"RFB 003.008\n".as_slice(), &[security]].concat());
        }
        for kind in (0..=255).filter(|kind| ![0, 2, 3, 4, 5, 6, 150, 248, 250, 251, 255].contains(kind)) {
            is_refused(&[HELLO, &[kind]].concat());
        }
        is_refused(&[HELLO, &[255, 2]].concat());
        // A clipboard without end, in either form.
        is_refused(&[HELLO, &[6, 0, 0, 0, 0x7f, 255, 255, 255]].concat());
        is_refused(&[HELLO, &[6, 0, 0, 0, 0x80, 0, 0, 0]].concat());
    }
}
