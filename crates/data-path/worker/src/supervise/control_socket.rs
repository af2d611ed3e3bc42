//! The supervisor's side of the control socket: requests from other commands, one per connection.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{AtFlags, FileType, Mode, fchmod, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use strongroom_datastore::file::CONTROL_SOCKET;

use crate::control::{Answer, LINE_BYTES_MAX, Request, address_in, read_request, write_answer};

/// The most connections at once; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 8;
/// The deadline for a request to arrive completely.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);
/// Connections that the kernel keeps until they are accepted.
const BACKLOG: i32 = 16;

/// The socket and its connections.
#[derive(Debug)]
pub struct ControlSocket {
    listener: OwnedFd,
    /// The directory where its file is.
    directory: OwnedFd,
    connections: Vec<Connection>,
    /// The client whose answer comes later; one at most.
    late: Option<UnixStream>,
}

#[derive(Debug)]
struct Connection {
    stream: UnixStream,
    line: Vec<u8>,
    /// The file that came with the line.
    file: Option<OwnedFd>,
    deadline: Instant,
}

impl ControlSocket {
    /// Listens in a directory. Only the holder of the volume does so, so a socket that is found
    /// there belongs to a dead process.
    pub fn bind(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let directory = rustix::io::fcntl_dupfd_cloexec(directory, 0)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let listener = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match statat(&directory, CONTROL_SOCKET, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Socket => {
                unlinkat(&directory, CONTROL_SOCKET, AtFlags::empty())?;
            }
            // Not ours to remove.
            Ok(_) => return Err(Errno::EXIST),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        // The file gets this mode, less the umask, from the moment that it exists.
        fchmod(&listener, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&listener, &address_in(&directory)?)?;
        rustix::net::listen(&listener, BACKLOG)?;
        Ok(Self { listener, directory, connections: Vec::new(), late: None })
    }

    /// Adds the descriptors to wait for.
    pub fn watch<'a>(&'a self, watched: &mut Vec<PollFd<'a>>) {
        if self.connections.len() < CONNECTIONS_MAX {
            watched.push(PollFd::from_borrowed_fd(self.listener.as_fd(), PollFlags::IN));
        }
        let streams = self.connections.iter();
        watched.extend(
            streams.map(|connection| PollFd::from_borrowed_fd(connection.stream.as_fd(), PollFlags::IN)),
        );
    }

    /// The earliest deadline of a connection.
    pub fn deadline(&self) -> Option<Instant> {
        self.connections.iter().map(|connection| connection.deadline).min()
    }

    /// Accepts waiting clients, and answers every complete request. If `answer` returns `None`, the
    /// request is answered [later](Self::answer_late), and there must be no other such request
    /// until then.
    pub fn serve(&mut self, answer: &mut dyn FnMut(Request, Option<OwnedFd>) -> Option<Answer>) {
        while self.connections.len() < CONNECTIONS_MAX {
            match self.accept() {
                Ok(Some(connection)) => self.connections.push(connection),
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!("a command cannot be heard: {error}");
                    break;
                }
            }
        }
        let (now, late) = (Instant::now(), &mut self.late);
        self.connections.retain_mut(|connection| match connection.read() {
            Ok(false) => now < connection.deadline,
            Ok(true) => {
                let answer = match read_request(&connection.line) {
                    Ok(request) => answer(request, connection.file.take()),
                    Err(reason) => Some(Answer::Refused { code: "request".to_owned(), message: reason }),
                };
                match answer {
                    Some(answer) => tell(&connection.stream, answer),
                    None => *late = connection.stream.try_clone().ok(),
                }
                false
            }
            Err(_) => false,
        });
    }

    /// Answers the client that waits.
    pub fn answer_late(&mut self, answer: Answer) {
        if let Some(stream) = self.late.take() {
            tell(&stream, answer);
        }
    }

    /// Accepts the next connection. Only root and our own user are accepted; the file's mode
    /// already keeps others out.
    fn accept(&self) -> Result<Option<Connection>, Errno> {
        let stream =
            match rustix::net::accept_with(&self.listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(stream) => stream,
                Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => return Ok(None),
                Err(errno) => return Err(errno),
            };
        let peer = sockopt::socket_peercred(&stream)?.uid;
        if !peer.is_root() && peer != rustix::process::geteuid() {
            return Err(Errno::PERM);
        }
        let deadline = Instant::now() + REQUEST_WITHIN;
        Ok(Some(Connection { stream: stream.into(), line: Vec::new(), file: None, deadline }))
    }
}

/// Sends an answer, and ignores a client that has gone away. An answer always fits into a new
/// socket's buffer.
fn tell(mut stream: &UnixStream, answer: Answer) {
    let _ = stream.write_all(&write_answer(answer));
}

impl Connection {
    /// Reads the available bytes. Returns whether the line is complete.
    fn read(&mut self) -> io::Result<bool> {
        let mut piece = [0; 1024];
        loop {
            match self.receive(&mut piece) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.line.extend_from_slice(&piece[..count]),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            if self.line.contains(&b'\n') {
                return Ok(true);
            }
            if self.line.len() > LINE_BYTES_MAX {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
    }
}

impl Connection {
    /// Reads a piece of the line, and keeps the file that comes with it, if there is one. A second
    /// file is refused.
    fn receive(&mut self, piece: &mut [u8]) -> Result<usize, Errno> {
        let mut received = strongroom_wire::receive(&self.stream, piece, 1)?;
        self.file = received.files.pop().or(self.file.take());
        Ok(received.bytes)
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        // If the socket's file cannot be removed, the next supervisor replaces it.
        let _ = unlinkat(&self.directory, CONTROL_SOCKET, AtFlags::empty());
    }
}
