//! One socket of the server's, and the requests over it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use strongroom_wire::PacketSocket;
use uuid::Uuid;

use crate::message::{Answer, Ask, PACKET_BYTES_MAX};
use crate::packet::{self, Failure, Received};

/// Room for an answer without data and names.
const SMALL_BYTES: usize = 1 << 10;

/// The socket of an object. This process alone uses it, for one request at a time.
#[derive(Debug)]
pub(super) struct Connection(Mutex<PacketSocket>);

/// An answer with what came with it.
pub(super) struct Answered {
    pub(super) answer: Answer,
    pub(super) data: Vec<u8>,
    pub(super) files: Vec<OwnedFd>,
}

impl Connection {
    /// Returns the descriptor if it is another kind of socket or file.
    pub(super) fn of(socket: OwnedFd) -> Result<Self, OwnedFd> {
        if PacketSocket::adopt(socket.as_fd()).is_none() {
            return Err(socket);
        }
        let adopted = PacketSocket::adopt(socket);
        Ok(Self(Mutex::new(adopted.expect("it was looked at just now"))))
    }

    /// Asks, and waits for the answer.
    pub(super) fn ask(&self, ask: &Ask, data: &[u8], files: &[BorrowedFd<'_>]) -> Result<Answered, Failure> {
        let mut room = match ask {
            Ask::ReadAt { .. } | Ask::Names { .. } => vec![0; PACKET_BYTES_MAX],
            _ => vec![0; SMALL_BYTES],
        };
        let socket = self.0.lock();
        packet::send(&socket, ask, data, files)?;
        let received = packet::receive::<Answer>(&socket, &mut room);
        let Received { message, data, files } = received.inspect_err(|failure| {
            if *failure != Failure::Gone {
                // A late answer must not be taken for that to the next request.
                socket.hang_up();
            }
        })?;
        Ok(Answered { answer: message, data: data.to_vec(), files })
    }

    /// Asks for something without attachments.
    pub(super) fn simply(&self, ask: &Ask) -> Result<Answer, Errno> {
        self.ask(ask, &[], &[])?.answer.into_result()
    }

    /// Ends the connection for both sides.
    pub(super) fn hang_up(&self) {
        self.0.lock().hang_up();
    }

    /// Another descriptor of the socket. Only its end may be watched there.
    pub(super) fn watched(&self) -> Result<OwnedFd, Errno> {
        rustix::io::fcntl_dupfd_cloexec(self.0.lock().as_fd(), 0)
    }
}

/// Whether the other side of a socket is gone.
pub(super) fn has_ended(socket: impl AsFd) -> bool {
    let mut watched = [PollFd::new(&socket, PollFlags::RDHUP)];
    let polled = poll(&mut watched, Some(&Timespec::default()));
    polled.is_ok() && watched[0].revents().intersects(PollFlags::HUP | PollFlags::RDHUP | PollFlags::ERR)
}

/// The token and socket of an object that was opened.
pub(super) fn opened(answered: Answered) -> Result<(Uuid, Connection), Errno> {
    let (answer, mut files) = (answered.answer.into_result()?, answered.files);
    match (answer, files.pop().map(Connection::of)) {
        (Answer::Opened { token }, Some(Ok(connection))) => Ok((token, connection)),
        _ => Err(Errno::BADMSG),
    }
}

pub(super) fn done(answer: Answer) -> Result<(), Errno> {
    match answer {
        Answer::Done => Ok(()),
        _ => Err(Errno::BADMSG),
    }
}

pub(super) fn number(answer: Answer) -> Result<u64, Errno> {
    match answer {
        Answer::Number(number) => Ok(number),
        _ => Err(Errno::BADMSG),
    }
}
