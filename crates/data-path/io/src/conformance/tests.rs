//! The suite passes a correct disk, and catches each disk with one flaw.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use strongroom_types::{BLOCK_BYTES, Extent, KeyEpoch};

use super::reorder::ReorderDisk;
use super::*;
use crate::disk::{Allocation, Channel, Limits};
use crate::reactor::Thread;
use crate::request::{Done, Io, Plain, Request, Sealed};

/// The flaw of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    DropsARequest,
    ReturnsTwice,
    MakesUpTags,
    ForgetsMemory,
    ExchangesMemory,
    SwapsBlocks,
    LosesAWrite,
    WritesBeside,
    ForgetsToZero,
    ZeroesTooMuch,
    DiscardsTooMuch,
    ReadsNothing,
    SucceedsOutOfRange,
    TakesTooLong,
    TakesMisaligned,
    FailsAFlush,
    WakesNobody,
    PutsBackOldNeighbours,
    ForgetsSeals,
    SealsZeroes,
    CallsDataAHole,
    ReportsTooLittle,
    ReportsOn,
    WritesThoughReadOnly,
}

/// The simplest disk: bytes under one lock, each request done completely when it is polled.
struct VecDisk<P> {
    shared: Arc<Shared>,
    payload: PhantomData<fn(P)>,
}

struct Shared {
    bytes: Mutex<Vec<u8>>,
    block_bytes: u32,
    flaw: Flaw,
    writes: AtomicUsize,
}

impl<P> VecDisk<P> {
    fn new(size_bytes: usize, block_bytes: u32, flaw: Flaw) -> Self {
        let bytes = Mutex::new(vec![0; size_bytes]);
        Self {
            shared: Arc::new(Shared { bytes, block_bytes, flaw, writes: AtomicUsize::new(0) }),
            payload: PhantomData,
        }
    }
}

impl Shared {
    fn limits(&self) -> Limits {
        Limits {
            size_bytes: self.bytes.lock().len() as u64,
            block_bytes: self.block_bytes,
            preferred_bytes: 4096,
            transfer_bytes_max: 256 << 10,
            read_only: self.flaw == Flaw::WritesThoughReadOnly,
            discards: true,
        }
    }

    /// The limits that it keeps, which may differ from those that it reports.
    fn kept(&self) -> Limits {
        let limits = self.limits();
        match self.flaw {
            Flaw::TakesTooLong => Limits { transfer_bytes_max: u32::MAX, ..limits },
            Flaw::TakesMisaligned => Limits { block_bytes: 1, ..limits },
            Flaw::WritesThoughReadOnly => Limits { read_only: false, ..limits },
            _ => limits,
        }
    }

    fn range(extent: Extent) -> std::ops::Range<usize> {
        extent.offset() as usize..extent.end() as usize
    }

    fn perform<P: TestPayload + Seals>(
        &self,
        request: &mut Request<P>,
        early: Option<&[u8]>,
    ) -> Result<(), IoError> {
        if let Err(error) = self.kept().check(request) {
            let forgiven =
                self.flaw == Flaw::SucceedsOutOfRange && matches!(error, IoError::OutOfRange { .. });
            return if forgiven { Ok(()) } else { Err(error) };
        }
        let mut bytes = self.bytes.lock();
        match request {
            Request::Read { .. } if self.flaw == Flaw::ReadsNothing => {}
            Request::Read { extent, into } => {
                P::fill(into, &bytes[Self::range(*extent)]);
                P::seal(into, self.flaw);
            }
            Request::Write { extent, from, .. } => {
                let mut content = P::content(from);
                let number = self.writes.fetch_add(1, Ordering::Relaxed);
                let block = BLOCK_BYTES as usize;
                match self.flaw {
                    Flaw::LosesAWrite if number == 20 => return Ok(()),
                    Flaw::SwapsBlocks if content.len() >= 2 * block => {
                        content[..2 * block].rotate_left(block)
                    }
                    Flaw::WritesBeside if number == 20 && extent.end() < bytes.len() as u64 => {
                        bytes[extent.end() as usize] ^= 0x80;
                    }
                    _ => {}
                }
                if let Some(early) = early {
                    bytes[Self::range(extent.widened_to(BLOCK_BYTES))].copy_from_slice(early);
                }
                bytes[Self::range(*extent)].copy_from_slice(&content);
            }
            Request::WriteZeroes { .. } if self.flaw == Flaw::ForgetsToZero => {}
            Request::WriteZeroes { extent, .. } => {
                let extra = u64::from(self.flaw == Flaw::ZeroesTooMuch && !extent.is_empty());
                let end = (extent.end() + extra).min(bytes.len() as u64);
                bytes[Self::range(Extent::between(extent.offset(), end))].fill(0);
            }
            Request::Discard { extent } => {
                let narrowed = match self.flaw {
                    Flaw::DiscardsTooMuch => *extent,
                    _ => extent.narrowed_to(BLOCK_BYTES),
                };
                if !narrowed.is_empty() {
                    let wrong = if self.flaw == Flaw::DiscardsTooMuch { 0xDD } else { 0 };
                    bytes[Self::range(narrowed)].fill(wrong);
                }
            }
            Request::Flush if self.flaw == Flaw::FailsAFlush => return Err(IoError::FlushFailed),
            Request::Flush => {}
        }
        Ok(())
    }
}

/// The seals that a read sets.
trait Seals: TestPayload {
    fn seal(memory: &mut Self::Memory, flaw: Flaw);
}

impl Seals for Plain {
    fn seal(_: &mut Self::Memory, _: Flaw) {}
}

impl Seals for Sealed {
    fn seal(memory: &mut Self::Memory, flaw: Flaw) {
        let (bytes, seals) = memory.parts_mut();
        for (block, seal) in bytes.chunks(BLOCK_BYTES as usize).zip(seals) {
            *seal = match flaw {
                Flaw::ForgetsSeals => None,
                Flaw::SealsZeroes => Some(KeyEpoch::FIRST),
                _ => block.iter().any(|byte| *byte != 0).then_some(KeyEpoch::FIRST),
            };
        }
    }
}

impl<P: Seals> Disk<P> for VecDisk<P> {
    fn limits(&self) -> Limits {
        self.shared.limits()
    }

    fn open(&self, _: &Thread, _: usize) -> Result<Box<dyn Channel<P>>, IoError> {
        Ok(Box::new(VecChannel { shared: Arc::clone(&self.shared), submitted: VecDeque::new(), ended: 0 }))
    }

    fn allocation(
        &self,
        extent: Extent,
        report: &mut dyn FnMut(Extent, Allocation) -> bool,
    ) -> Result<(), IoError> {
        let bytes = self.shared.bytes.lock();
        let extent = extent.intersection(Extent::between(0, bytes.len() as u64));
        let mut at = extent.offset();
        while at < extent.end() {
            let block = Extent::between(at, at + 1).widened_to(BLOCK_BYTES).intersection(extent);
            at = block.end();
            let is_data = bytes[Shared::range(block)].iter().any(|byte| *byte != 0);
            let of = if is_data && self.shared.flaw != Flaw::CallsDataAHole {
                Allocation::Data
            } else {
                Allocation::Hole
            };
            let skips = self.shared.flaw == Flaw::ReportsTooLittle && at == extent.end();
            if !skips && !report(block, of) && self.shared.flaw != Flaw::ReportsOn {
                break;
            }
        }
        Ok(())
    }
}

struct VecChannel<P: TestPayload> {
    shared: Arc<Shared>,
    /// Requests, with the widened old content that a disk without range locks would have read too
    /// early.
    submitted: VecDeque<(Io<P>, Option<Vec<u8>>)>,
    ended: usize,
}

impl<P: Seals> Channel<P> for VecChannel<P> {
    fn submit(&mut self, io: Io<P>) {
        let early = match &io.request {
            Request::Write { extent, .. } if self.shared.flaw == Flaw::PutsBackOldNeighbours => {
                let bytes = self.shared.bytes.lock();
                bytes.get(Shared::range(extent.widened_to(BLOCK_BYTES))).map(<[u8]>::to_vec)
            }
            _ => None,
        };
        self.submitted.push_back((io, early));
    }

    fn kick(&mut self) {}

    fn poll(&mut self, done: &mut Vec<Done<P>>) {
        let flaw = self.shared.flaw;
        if flaw == Flaw::WakesNobody && self.submitted.len() == 2 && self.ended.is_multiple_of(2) {
            self.ended += 1;
            return;
        }
        let start = done.len();
        for (mut io, early) in self.submitted.drain(..) {
            let result = self.shared.perform(&mut io.request, early.as_deref());
            self.ended += 1;
            let tag = io.tag;
            let mut ended = io.end(result);
            match flaw {
                Flaw::DropsARequest if self.ended == 30 => continue,
                Flaw::ReturnsTwice if self.ended == 30 => done.push(Done { tag, result, memory: None }),
                Flaw::MakesUpTags if self.ended == 30 => ended.tag ^= 1 << 20,
                Flaw::ForgetsMemory if self.ended == 30 => ended.memory = None,
                _ => {}
            }
            done.push(ended);
        }
        if let (Flaw::ExchangesMemory, [first, .., last]) = (flaw, &mut done[start..]) {
            std::mem::swap(&mut first.memory, &mut last.memory);
        }
    }
}

const SIZE_BYTES: usize = (2 << 20) + 512;

fn result<P: Seals>(size_bytes: usize, block_bytes: u32, flaw: Flaw) -> Result<(), Box<Failure>> {
    Conformance::<P>::new(move || VecDisk::new(size_bytes, block_bytes, flaw))
        .deadline(Duration::from_secs(if flaw == Flaw::None { 30 } else { 1 }))
        .requests(200)
        .run()
}

#[track_caller]
fn passes<P: Seals>(size_bytes: usize, block_bytes: u32) {
    if let Err(failure) = result::<P>(size_bytes, block_bytes, Flaw::None) {
        panic!("{failure}");
    }
}

#[track_caller]
fn caught<P: Seals>(block_bytes: u32, flaw: Flaw, is_expected: fn(&Violation) -> bool) {
    let size_bytes = SIZE_BYTES & !(block_bytes as usize - 1);
    match result::<P>(size_bytes, block_bytes, flaw) {
        Ok(()) => panic!("{flaw:?} was not caught"),
        Err(failure) => assert!(is_expected(&failure.violation), "{flaw:?} was caught as: {failure}"),
    }
}

#[test]
fn a_right_disk_passes() {
    for block_bytes in [1, 512] {
        passes::<Plain>(SIZE_BYTES, block_bytes);
    }
    passes::<Plain>(4096, 4096);
    passes::<Plain>(8 << 20, 4096);
    passes::<Plain>(777, 1);
    passes::<Sealed>(4096, 4096);
    passes::<Sealed>(6 << 20, 4096);
}

#[test]
fn a_right_disk_passes_in_any_order() {
    let suite = Conformance::<Plain>::new(|| {
        ReorderDisk::new(Arc::new(VecDisk::<Plain>::new(SIZE_BYTES, 512, Flaw::None)), 5)
    });
    if let Err(failure) = suite.requests(200).run() {
        panic!("{failure}");
    }
}

#[test]
fn flaws_of_the_contract_are_caught() {
    caught::<Plain>(1, Flaw::DropsARequest, |v| matches!(v, Violation::Stalled { .. }));
    caught::<Plain>(1, Flaw::ReturnsTwice, |v| matches!(v, Violation::Memory(_) | Violation::UnknownTag(_)));
    caught::<Plain>(1, Flaw::MakesUpTags, |v| matches!(v, Violation::UnknownTag(_)));
    caught::<Sealed>(4096, Flaw::ForgetsMemory, |v| matches!(v, Violation::Memory(_)));
    caught::<Sealed>(4096, Flaw::ExchangesMemory, |v| matches!(v, Violation::Memory(_)));
    caught::<Plain>(1, Flaw::WakesNobody, |v| matches!(v, Violation::LostWakeUp { .. }));
    caught::<Plain>(512, Flaw::FailsAFlush, |v| matches!(v, Violation::Result { .. }));
}

#[test]
fn flaws_of_refusal_are_caught() {
    let is_result = |v: &Violation| matches!(v, Violation::Result { .. });
    caught::<Plain>(1, Flaw::SucceedsOutOfRange, is_result);
    caught::<Plain>(1, Flaw::TakesTooLong, is_result);
    caught::<Plain>(512, Flaw::TakesMisaligned, is_result);
    caught::<Sealed>(4096, Flaw::TakesMisaligned, is_result);
    caught::<Plain>(1, Flaw::WritesThoughReadOnly, is_result);
}

#[test]
fn flaws_of_content_are_caught() {
    let is_content = |v: &Violation| matches!(v, Violation::Content { .. });
    for flaw in [
        Flaw::SwapsBlocks,
        Flaw::LosesAWrite,
        Flaw::WritesBeside,
        Flaw::ForgetsToZero,
        Flaw::ZeroesTooMuch,
        Flaw::DiscardsTooMuch,
        Flaw::ReadsNothing,
        Flaw::PutsBackOldNeighbours,
    ] {
        caught::<Plain>(1, flaw, is_content);
    }
    caught::<Sealed>(4096, Flaw::SwapsBlocks, is_content);
    caught::<Sealed>(4096, Flaw::LosesAWrite, is_content);
}

#[test]
fn flaws_of_seals_and_allocation_are_caught() {
    caught::<Sealed>(4096, Flaw::ForgetsSeals, |v| matches!(v, Violation::Seal { .. }));
    caught::<Sealed>(4096, Flaw::SealsZeroes, |v| matches!(v, Violation::Seal { .. }));
    for flaw in [Flaw::CallsDataAHole, Flaw::ReportsTooLittle, Flaw::ReportsOn] {
        caught::<Plain>(1, flaw, |v| matches!(v, Violation::Allocation { .. }));
    }
}
