use std::collections::VecDeque;

use strongroom_keyserver::grant::Secrecy;
use strongroom_memory::secret::SecretBytes;

use super::*;

fn both() -> (Outbound, Inbound) {
    ends(Secrecy::Encrypted, Secrecy::Encrypted)
}

/// An end that sends in this way, and one that awaits that, under the same key.
fn ends(sent: Secrecy, awaited: Secrecy) -> (Outbound, Inbound) {
    let key = SecretBytes::random(32).unwrap();
    let sealer = Sealer::new(key.duplicate().unwrap(), sent).unwrap();
    (Outbound::new(sealer).unwrap(), Inbound::new(Opener::new(key, awaited).unwrap()).unwrap())
}

/// A reader that gives so many bytes at most each time.
struct Pieces<'c>(VecDeque<&'c [u8]>);

impl<'c> Pieces<'c> {
    fn of(content: &'c [u8], length: usize) -> Self {
        Self(content.chunks(length).collect())
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let Some(piece) = self.0.front_mut() else { return Ok(0) };
        let count = piece.len().min(into.len());
        into[..count].copy_from_slice(&piece[..count]);
        *piece = &piece[count..];
        if piece.is_empty() {
            self.0.pop_front();
        }
        Ok(count)
    }
}

/// A writer that takes so many bytes at most each time.
struct Narrow(Vec<u8>, usize);

impl Write for Narrow {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        let count = from.len().min(self.1);
        self.0.extend_from_slice(&from[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn sealed(content: &[u8]) -> (Vec<u8>, Inbound) {
    let (mut outbound, inbound) = both();
    let (mut qemu, mut wire) = (content, Vec::new());
    while outbound.pass(&mut qemu, &mut wire, |_| true).unwrap() > 0 {}
    (wire, inbound)
}

#[test]
fn a_stream_is_the_same_however_it_is_cut_into_reads_and_writes() {
    let content: Vec<u8> = (0..1_500_000_usize).map(|at| (at * 7 + (at >> 9)) as u8).collect();
    let (wire, _) = sealed(&content);
    // Full records, a last one, and an end.
    let full = content.len() / TEXT_BYTES_MAX;
    assert_eq!(wire.len(), content.len() + (full + 2) * OVERHEAD_BYTES);
    for (reads, writes) in
        [(1, 7), (65_556, 100_000), (100_000, 65_536), (65_555, 1_000_000), (1 << 20, 4096)]
    {
        let content = if reads == 1 { &content[..70_000] } else { &content[..] };
        let (wire, mut inbound) = sealed(content);
        let (mut wire, mut qemu) = (Pieces::of(&wire, reads), Narrow(Vec::new(), writes));
        let mut passed = 0;
        while !inbound.has_ended() {
            passed += inbound.pass(&mut wire, &mut qemu).unwrap();
        }
        assert!(qemu.0 == content, "{reads} {writes}");
        assert_eq!(passed, content.len());
    }
}

#[test]
fn many_small_records_pass_at_once() {
    let (mut outbound, mut inbound) = both();
    let mut wire = Vec::new();
    for byte in 0..100_u8 {
        outbound.pass(&[byte][..], &mut wire, |_| true).unwrap();
    }
    outbound.pass(&[][..], &mut wire, |_| true).unwrap();
    let mut qemu = Vec::new();
    assert_eq!(inbound.pass(&wire[..], &mut qemu).unwrap(), 100);
    assert!(inbound.has_ended());
    assert_eq!(qemu, (0..100).collect::<Vec<u8>>());
}

/// The sender has the keys of the session, and does otherwise than its grant says.
#[test]
fn a_sender_that_encrypts_though_it_must_not_or_does_not_though_it_must_is_not_heard() {
    for (sent, awaited) in [(Secrecy::Plain, Secrecy::Encrypted), (Secrecy::Encrypted, Secrecy::Plain)] {
        let (mut outbound, mut inbound) = ends(sent, awaited);
        let (mut wire, mut qemu) = (Vec::new(), Vec::new());
        outbound.pass(&b"a page of the guest"[..], &mut wire, |_| true).unwrap();
        let error = inbound.pass(&wire[..], &mut qemu).unwrap_err();
        assert!(matches!(error, PumpError::Record(RecordError::NotTheNext)), "{error}");
        assert!(qemu.is_empty());
    }
}

#[test]
fn plain_text_passes_as_it_is() {
    let content: Vec<u8> = (0..200_000_usize).map(|at| (at * 7 + (at >> 9)) as u8).collect();
    let (mut outbound, mut inbound) = ends(Secrecy::Plain, Secrecy::Plain);
    let (mut from, mut wire) = (&content[..], Vec::new());
    while outbound.pass(&mut from, &mut wire, |_| true).unwrap() > 0 {}
    assert!(wire[HEAD_BYTES..].starts_with(&content[..TEXT_BYTES_MAX]));
    let (mut wire, mut qemu) = (Pieces::of(&wire, 65_557), Vec::new());
    while !inbound.has_ended() {
        inbound.pass(&mut wire, &mut qemu).unwrap();
    }
    assert!(qemu == content);
}

#[test]
fn what_is_not_admitted_does_not_pass() {
    let (mut outbound, _) = both();
    let mut wire = Vec::new();
    let refused = outbound.pass(&[1; 100][..], &mut wire, |count| {
        assert_eq!(count, 100);
        false
    });
    assert!(refused.is_err());
    assert!(wire.is_empty());
}

#[test]
fn a_buffer_is_wiped_when_it_is_given_back() {
    let pool = BufferPool::new(CHUNK_BYTES).unwrap();
    let mut buffer = WipedBuffer(pool.take(INBOUND_BYTES).unwrap());
    buffer.0.bytes_mut().fill(7);
    drop(buffer);
    let again = pool.take(INBOUND_BYTES).unwrap();
    assert!(again.bytes().iter().all(|byte| *byte == 0));
}

#[test]
fn no_message_of_a_relay_passes_as_qemus() {
    let (key, secrecy) = (SecretBytes::random(32).unwrap(), Secrecy::Encrypted);
    let mut sealer = Sealer::new(key.duplicate().unwrap(), secrecy).unwrap();
    let record = sealer.sealed(Kind::Message, b"message").unwrap();
    let mut inbound = Inbound::new(Opener::new(key, secrecy).unwrap()).unwrap();
    let mut qemu = Vec::new();
    let error = inbound.pass(&record[..], &mut qemu).unwrap_err();
    assert!(matches!(error, PumpError::Record(RecordError::OutOfPlace)), "{error}");
    assert!(qemu.is_empty());
}
