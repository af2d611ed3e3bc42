//! One connection to a collector, from its handshake to the close that confirms its lines.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustls::ClientConnection;
use rustls::pki_types::ServerName;

use super::Collector;

/// How long to wait for a reset after the collector's close. A collector that closed before it had
/// read everything answers our last bytes with a reset, a round trip later.
const RESET_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

pub(super) struct Connection {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl Connection {
    pub(super) fn open(collector: &Collector, timeout: Duration) -> Result<Self, String> {
        let Collector { host, port, .. } = collector;
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what} {host}:{port}: {error}");
        let name =
            ServerName::try_from(host.clone()).map_err(|error| failed("no name of a server is", &error))?;
        let tls = ClientConnection::new(Arc::clone(&collector.tls), name)
            .map_err(|error| failed("no TLS to", &error))?;
        let tcp = connect(host, *port, timeout).map_err(|error| failed("no connection to", &error))?;
        let mut this = Self { tcp, tls };
        while this.tls.is_handshaking() {
            this.tls.complete_io(&mut this.tcp).map_err(|error| failed("no TLS to", &error))?;
        }
        Ok(this)
    }

    /// Sends some bytes. A successful write does not show that the collector has read them.
    pub(super) fn send(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        self.must_be_open()?;
        while !bytes.is_empty() {
            let taken = self.tls.writer().write(bytes).map_err(|error| broken(&error))?;
            bytes = &bytes[taken..];
            self.drain().map_err(|error| broken(&error))?;
        }
        Ok(())
    }

    /// Closes the connection in order, and waits for the collector's close: by then it has read
    /// everything.
    pub(super) fn confirm(mut self) -> Result<(), String> {
        self.must_be_open()?;
        self.tls.send_close_notify();
        self.drain().and_then(|()| self.tcp.shutdown(Shutdown::Write)).map_err(|error| broken(&error))?;
        while self.tls.read_tls(&mut self.tcp).map_err(|error| unconfirmed(&error))? > 0 {
            self.tls.process_new_packets().map_err(|error| unconfirmed(&error))?;
        }
        self.must_not_be_reset()
    }

    fn drain(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.tcp)?;
        }
        Ok(())
    }

    /// A collector that closes the connection by itself has not read the bytes in flight.
    fn must_be_open(&mut self) -> Result<(), String> {
        let ended = || "the collector ended the connection".to_owned();
        self.tcp.set_nonblocking(true).map_err(|error| broken(&error))?;
        let read = loop {
            match self.tls.read_tls(&mut self.tcp) {
                Ok(0) => break Err(ended()),
                Ok(_) => match self.tls.process_new_packets() {
                    Ok(state) if state.peer_has_closed() => break Err(ended()),
                    Ok(_) => {}
                    Err(error) => break Err(broken(&error)),
                },
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(broken(&error)),
            }
        };
        self.tcp.set_nonblocking(false).map_err(|error| broken(&error))?;
        read
    }

    fn must_not_be_reset(&self) -> Result<(), String> {
        let mut watched = [PollFd::from_borrowed_fd(self.tcp.as_fd(), PollFlags::empty())];
        match rustix::event::poll(&mut watched, Some(&RESET_WAIT)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(unconfirmed(&error)),
        }
        match self.tcp.take_error() {
            Ok(None) => Ok(()),
            Ok(Some(error)) | Err(error) => Err(unconfirmed(&error)),
        }
    }
}

/// Tries each of a host's addresses.
fn connect(host: &str, port: u16, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "it has no address");
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(tcp) => {
                tcp.set_nodelay(true)?;
                tcp.set_read_timeout(Some(timeout))?;
                tcp.set_write_timeout(Some(timeout))?;
                return Ok(tcp);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn broken(error: &dyn std::fmt::Display) -> String {
    format!("the connection broke: {error}")
}

fn unconfirmed(error: &dyn std::fmt::Display) -> String {
    format!("the collector did not confirm what it was sent: {error}")
}
