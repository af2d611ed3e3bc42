//! Bytes that wait to be sent.

use std::collections::VecDeque;
use std::io::IoSlice;

use strongroom_memory::Buffer;

use super::reply::ReplyHeader;

/// The most parts passed to one system call: a full queue of 4 KiB reads, each with header and
/// content, takes two calls.
pub const PARTS_PER_SEND: usize = 128;

/// Replies in the order in which they are sent. Content is sent from the buffer that the disk
/// filled, without a copy.
#[derive(Debug, Default)]
pub struct Outbox {
    parts: VecDeque<Part>,
    /// Bytes of the first part that were sent.
    sent_bytes: usize,
    replies: usize,
}

#[derive(Debug)]
struct Part {
    content: Content,
    ends_reply: bool,
}

#[derive(Debug)]
enum Content {
    Header(ReplyHeader),
    Memory(Buffer),
    Text(Vec<u8>),
}

impl Content {
    fn bytes(&self) -> &[u8] {
        match self {
            Content::Header(header) => header.bytes(),
            Content::Memory(buffer) => buffer.bytes(),
            Content::Text(text) => text,
        }
    }
}

impl Outbox {
    /// Whether everything was sent.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Count of replies that are not sent completely.
    pub fn replies(&self) -> usize {
        self.replies
    }

    /// Adds bytes of the negotiation.
    pub fn push_negotiation(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.parts.push_back(Part { content: Content::Text(bytes), ends_reply: false });
        }
    }

    /// Adds a reply that consists of a header only.
    pub fn push_header(&mut self, header: ReplyHeader) {
        self.push_reply(Content::Header(header));
    }

    /// Adds a reply with generated content.
    pub fn push_text(&mut self, text: Vec<u8>) {
        self.push_reply(Content::Text(text));
    }

    /// Adds a header and the content that belongs to it, at least one buffer.
    pub fn push_content(&mut self, header: ReplyHeader, content: impl Iterator<Item = Buffer>) {
        self.push_reply(Content::Header(header));
        for buffer in content {
            if let Some(before) = self.parts.back_mut() {
                before.ends_reply = false;
            }
            self.parts.push_back(Part { content: Content::Memory(buffer), ends_reply: true });
        }
    }

    fn push_reply(&mut self, content: Content) {
        self.replies += 1;
        self.parts.push_back(Part { content, ends_reply: true });
    }

    /// Puts the next bytes to send into `slices`. Returns how many slices.
    pub fn unsent<'a>(&'a self, slices: &mut [IoSlice<'a>; PARTS_PER_SEND]) -> usize {
        let mut skip = self.sent_bytes;
        let filled = slices.iter_mut().zip(&self.parts).map(|(slice, part)| {
            *slice = IoSlice::new(&part.content.bytes()[skip..]);
            skip = 0;
        });
        filled.count()
    }

    /// Notes that the first `count` bytes were sent.
    pub fn sent(&mut self, count: usize) {
        self.sent_bytes += count;
        while let Some(first) = self.parts.front() {
            let length = first.content.bytes().len();
            if self.sent_bytes < length {
                return;
            }
            self.sent_bytes -= length;
            self.replies -= usize::from(first.ends_reply);
            self.parts.pop_front();
        }
    }

    /// Drops the replies that wait.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use strongroom_memory::BufferPool;

    use super::*;

    #[test]
    fn parts_are_sent_in_any_steps_and_counted_as_replies() {
        let pool = BufferPool::new(2 << 20).unwrap();
        for step in 1..70 {
            let mut outbox = Outbox::default();
            outbox.push_negotiation(b"hello".to_vec());
            outbox.push_header(ReplyHeader::simple(1));
            let content = [10, 20].map(|length| {
                let mut buffer = pool.take(length).unwrap();
                buffer.bytes_mut().fill(length as u8);
                buffer
            });
            outbox.push_content(ReplyHeader::simple(2), content.into_iter());
            assert_eq!(outbox.replies(), 2);
            let mut received = Vec::new();
            while !outbox.is_empty() {
                let mut slices = [IoSlice::new(&[]); PARTS_PER_SEND];
                let count = outbox.unsent(&mut slices);
                let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                let sent = step.min(bytes.len());
                received.extend(&bytes[..sent]);
                outbox.sent(sent);
            }
            let expected = [
                b"hello",
                ReplyHeader::simple(1).bytes(),
                ReplyHeader::simple(2).bytes(),
                &[10; 10],
                &[20; 20],
            ]
            .concat();
            assert_eq!((received, outbox.replies()), (expected, 0));
        }
        assert_eq!(pool.used_bytes(), 0);
    }
}
