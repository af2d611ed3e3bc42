//! Messages of bytes with file descriptors.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// The most descriptors of one message: the kernel's own limit (`SCM_MAX_FD`).
pub const FILES_MAX: usize = 253;

/// The result of one call of [`receive`].
#[derive(Debug)]
pub struct Received {
    /// The count of bytes; zero at the end of the connection.
    pub bytes: usize,
    /// The descriptors, in order.
    pub files: Vec<OwnedFd>,
}

/// Sends bytes with descriptors, in one call; returns the count of bytes sent. The descriptors are
/// sent with the first byte. Never raises SIGPIPE.
///
/// # Errors
/// The kernel's error; [`Errno::MSGSIZE`] for more than [`FILES_MAX`] descriptors.
pub fn send(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    if files.len() > FILES_MAX {
        return Err(Errno::MSGSIZE);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    // An empty list would be an ancillary message without descriptors.
    if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::MSGSIZE);
    }
    retried(|| {
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut beside, flags | SendFlags::NOSIGNAL)
    })
}

/// Receives bytes with at most `files_max` descriptors, in one call. Descriptors are closed on
/// exec.
///
/// # Errors
/// The kernel's error; [`Errno::MSGSIZE`] if a packet is longer than `into`, or has more
/// descriptors. Descriptors that arrived are then closed.
pub fn receive(socket: impl AsFd, into: &mut [u8], files_max: usize) -> Result<Received, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let room = rustix::cmsg_space!(ScmRights(files_max.min(FILES_MAX)));
    let mut beside = RecvAncillaryBuffer::new(space.get_mut(..room).unwrap_or_default());
    let received = retried(|| {
        let into = &mut [IoSliceMut::new(into)];
        rustix::net::recvmsg(&socket, into, &mut beside, RecvFlags::CMSG_CLOEXEC)
    })?;
    let rights = beside.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files: Vec<OwnedFd> = rights.flatten().collect();
    // The space is rounded up to whole words, so that one more may fit.
    let is_cut = received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC);
    if is_cut || files.len() > files_max {
        return Err(Errno::MSGSIZE);
    }
    Ok(Received { bytes: received.bytes, files })
}

pub(crate) fn retried<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            answer => return answer,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn files(count: usize) -> Vec<File> {
        (0..count).map(|_| tempfile::tempfile().unwrap()).collect()
    }

    fn lent(files: &[File]) -> Vec<BorrowedFd<'_>> {
        files.iter().map(AsFd::as_fd).collect()
    }

    #[test]
    fn as_many_files_as_are_expected_pass_and_one_more_is_refused() {
        let sent = files(FILES_MAX);
        for expected in [0, 1, 2, 3, 16, FILES_MAX] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            assert_eq!(send(&ours, b"x", &lent(&sent[..expected]), SendFlags::empty()), Ok(1));
            let received = receive(&theirs, &mut [0; 8], expected).unwrap();
            assert_eq!((received.bytes, received.files.len()), (1, expected));
            if expected < FILES_MAX {
                send(&ours, b"x", &lent(&sent[..=expected]), SendFlags::empty()).unwrap();
                assert_eq!(receive(&theirs, &mut [0; 8], expected).unwrap_err(), Errno::MSGSIZE);
            }
        }
        let too_many = files(FILES_MAX + 1);
        let (ours, _theirs) = UnixStream::pair().unwrap();
        assert_eq!(send(&ours, b"x", &lent(&too_many), SendFlags::empty()), Err(Errno::MSGSIZE));
    }

    #[test]
    fn files_without_room_are_refused_and_closed() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (kept, given) = UnixStream::pair().unwrap();
        send(&ours, b"x", &[given.as_fd(), given.as_fd()], SendFlags::empty()).unwrap();
        drop(given);
        assert_eq!(receive(&theirs, &mut [0; 8], 1).unwrap_err(), Errno::MSGSIZE);
        // The other end is closed.
        assert_eq!(receive(&kept, &mut [0; 8], 0).unwrap().bytes, 0);
    }
}
