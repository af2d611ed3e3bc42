//! One connection: a lane that moves bytes between a client's socket and a [`Session`].

use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ServerConfig;
use strongroom_io::{Disk, IoError, Plain, Reactor, Thread};
use strongroom_memory::BufferPool;
use strongroom_ring::{Interest, Ring, WatchToken};
use strongroom_statistics::Recorders;
use thiserror::Error;

use super::connections::{Membership, Order, Phase};
use super::export::Export;
use super::handshake::{CloseReason, Handshake, Security, Step};
use super::inbox::Inbox;
use super::outbox::{Outbox, PARTS_PER_SEND};
use super::protocol::{IOS_IN_FLIGHT_MAX, PAYLOAD_MEMORY_BYTES, STAGE_MEMORY_BYTES};
use super::session::{NotARequest, Session};
use super::transfers::Transfers;
use super::transport::Transport;

/// The parameters that all connections of a server share.
pub struct Shared {
    /// The export that is served.
    pub export: Export,
    /// The disk.
    pub disk: Arc<dyn Disk<Plain>>,
    /// If given, TLS is required of every client.
    pub tls: Option<Arc<ServerConfig>>,
    /// How long negotiation may take.
    pub handshake_timeout: Duration,
    /// The recorders of connections' requests.
    pub recorders: Recorders,
}

/// The reasons why a connection ended.
#[derive(Debug, Error)]
pub enum End {
    /// The client said good-bye, or the server did.
    #[error("closed")]
    Closed,
    /// The client disconnected without a request to do so.
    #[error("the client is gone")]
    Gone,
    /// Cut off by the server, or by the client's next connection.
    #[error("cut off")]
    Abandoned,
    /// The negotiation failed.
    #[error("{0}")]
    Negotiation(#[from] CloseReason),
    /// Negotiation took too long.
    #[error("the client did not finish its negotiation in time")]
    TooSlow,
    /// The client violated the protocol.
    #[error("{0}")]
    Protocol(#[from] NotARequest),
    /// The socket or TLS failed.
    #[error("{0}")]
    Socket(#[from] io::Error),
    /// TLS cannot be started.
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    /// The thread's own memory or event loop failed.
    #[error("the connection cannot be served: {0}")]
    Resources(String),
}

impl From<IoError> for End {
    fn from(error: IoError) -> Self {
        End::Resources(error.to_string())
    }
}

/// A connection, on its own lane.
pub struct Connection {
    shared: Arc<Shared>,
    ring: Ring,
    token: WatchToken,
    transport: Transport,
    /// Memory for what the client reads and writes.
    pool: BufferPool,
    inbox: Inbox,
    outbox: Outbox,
    handshake: Handshake,
    stage: Stage,
    /// The socket may have something to read, or room to write; if not set, the ring reports when
    /// it has.
    readable: bool,
    writable: bool,
    /// Whether the client has ended its sending side.
    ended: bool,
    draining: bool,
    deadline: Instant,
    /// The last field, so that it is dropped last: the place becomes free after everything else.
    membership: Membership,
}

enum Stage {
    Negotiating,
    /// TLS is being set up.
    Securing,
    /// The client has chosen the export; its predecessors must end first.
    Waiting,
    Transmitting(Box<Session>),
}

impl Connection {
    /// Serves a client on the calling thread until one of the two ends the connection, and then
    /// until the disk has finished all of the client's requests.
    pub fn serve(shared: Arc<Shared>, membership: Membership, ring: &Ring) -> End {
        match Self::new(shared, membership, ring.clone()) {
            Ok(mut connection) => {
                let end = connection.run();
                connection.wind_down(&end);
                end
            }
            Err(end) => end,
        }
    }

    fn new(shared: Arc<Shared>, membership: Membership, ring: Ring) -> Result<Self, End> {
        membership.member().wake_by(ring.waker());
        let pool =
            BufferPool::new(PAYLOAD_MEMORY_BYTES).map_err(|error| End::Resources(error.to_string()))?;
        let inbox = Inbox::new(&pool).ok_or_else(|| End::Resources("no memory".to_owned()))?;
        let socket = Arc::clone(&membership.member().socket);
        let token = ring.watch(&socket, Interest::default())?;
        let security = if shared.tls.is_some() { Security::TlsRequired } else { Security::Local };
        let mut greeting = Vec::new();
        let handshake = Handshake::new(shared.export.clone(), security, &mut greeting);
        let mut outbox = Outbox::default();
        outbox.push_negotiation(greeting);
        Ok(Self {
            deadline: Instant::now() + shared.handshake_timeout,
            shared,
            ring,
            token,
            transport: Transport::Clear(socket),
            pool,
            inbox,
            outbox,
            handshake,
            stage: Stage::Negotiating,
            readable: true,
            writable: true,
            ended: false,
            draining: false,
            membership,
        })
    }

    fn run(&mut self) -> End {
        let mut ready = Vec::new();
        loop {
            if let Err(end) = self.turn().and_then(|()| self.sleep()) {
                return end;
            }
            self.ring.take_ready(&mut ready);
            for ready in ready.drain(..) {
                self.readable |= ready.readable;
                self.writable |= ready.writable;
            }
        }
    }

    /// Does all work that needs no wait.
    fn turn(&mut self) -> Result<(), End> {
        loop {
            self.obey()?;
            let received = self.receive()?;
            let moved = self.advance()?;
            let sent = self.send()?;
            // Sent replies make room for more requests, and parsed requests make room for more
            // bytes.
            if !received && !moved && !sent && !self.can_receive() {
                return self.check_end();
            }
        }
    }

    /// Sleeps until there is work.
    fn sleep(&mut self) -> Result<(), End> {
        let interest = Interest { readable: !self.ended && !self.inbox.is_full(), writable: !self.writable };
        self.ring.rearm(self.token, interest);
        let at_most = match self.stage {
            Stage::Negotiating | Stage::Securing => {
                let left = self.deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(End::TooSlow);
                }
                Some(left)
            }
            Stage::Waiting | Stage::Transmitting(_) => None,
        };
        Ok(self.ring.wait(at_most)?)
    }

    fn can_receive(&self) -> bool {
        self.readable && !self.ended && !self.inbox.is_full()
    }

    /// Carries out the member's order.
    fn obey(&mut self) -> Result<(), End> {
        match self.membership.member().order() {
            Order::Serve => {}
            Order::Drain if !self.draining => {
                self.draining = true;
                self.handshake.shut_down();
                if let Stage::Transmitting(session) = &mut self.stage {
                    session.shut_down();
                }
                // Requests that have already arrived are answered before the end.
                self.readable = true;
            }
            Order::Drain => {}
            Order::Abandon => return Err(End::Abandoned),
        }
        Ok(())
    }

    /// Receives once, if there may be something and there is room for it.
    fn receive(&mut self) -> Result<bool, End> {
        if !self.can_receive() {
            return Ok(false);
        }
        let mut space = match &mut self.stage {
            Stage::Transmitting(session) => session.space(&mut self.inbox),
            // TLS only exchanges handshake messages now; decrypted bytes come later.
            _ => [IoSliceMut::new(self.inbox.space()), IoSliceMut::new(&mut [])],
        };
        let room = space[0].len() + space[1].len();
        match self.transport.receive(&mut space) {
            Ok(0) => self.ended = true,
            Ok(count) => {
                match &mut self.stage {
                    Stage::Transmitting(session) => session.received(count, &mut self.inbox),
                    _ => self.inbox.filled(count),
                }
                self.readable = count == room || !self.transport.short_means_empty();
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                self.readable = false;
                return Ok(self.secured());
            }
            Err(error) => return Err(error.into()),
        }
        self.secured();
        Ok(true)
    }

    /// Resumes the negotiation once TLS is established. Returns whether it just was.
    fn secured(&mut self) -> bool {
        if self.transport.is_handshaking() || !matches!(self.stage, Stage::Securing) {
            return false;
        }
        self.handshake.secured();
        self.stage = Stage::Negotiating;
        true
    }

    /// Advances the protocol. Returns whether there may be more work at once.
    fn advance(&mut self) -> Result<bool, End> {
        loop {
            let mut output = Vec::new();
            let step = match &mut self.stage {
                Stage::Transmitting(session) => {
                    return Ok(session.advance(&mut self.inbox, &mut self.outbox)?);
                }
                Stage::Securing => return Ok(false),
                Stage::Waiting => Step::Chosen,
                Stage::Negotiating => {
                    let limits = self.shared.disk.limits();
                    let unread = self.inbox.unread();
                    let (taken, step) = self.handshake.advance(unread, &limits, &mut output);
                    self.inbox.consume(taken);
                    step
                }
            };
            self.outbox.push_negotiation(output);
            match step {
                Step::More => return Ok(false),
                Step::StartTls => return self.start_tls().map(|()| false),
                Step::Chosen if !self.enter_transmission()? => return Ok(false),
                Step::Chosen => {}
                Step::Close(reason) => {
                    self.send()?;
                    return Err(reason.into());
                }
            }
        }
    }

    fn start_tls(&mut self) -> Result<(), End> {
        // Bytes that arrived before TLS was agreed on would be treated as if they had come under
        // it.
        if !self.inbox.is_empty() {
            return Err(CloseReason::BadMagic.into());
        }
        // The answer goes out in the clear, before anything else.
        self.send()?;
        let Some(config) = self.shared.tls.as_ref().filter(|_| self.outbox.is_empty()) else {
            return Err(End::Gone);
        };
        self.transport = Transport::start_tls(&self.membership.member().socket, config)?;
        self.stage = Stage::Securing;
        self.readable = true;
        Ok(())
    }

    /// Lets the client enter transmission. Returns `false` if it must wait, or negotiates further.
    fn enter_transmission(&mut self) -> Result<bool, End> {
        let member = self.membership.member();
        if self.ended || member.socket.is_hung_up() {
            return Err(End::Gone);
        }
        // The order matters: a predecessor that ends after it was counted must find this one
        // waiting.
        member.enter(Phase::Waiting);
        let predecessors = self.membership.count_predecessors();
        if predecessors > 0 {
            if matches!(self.stage, Stage::Negotiating) {
                tracing::info!(peer = %member.peer, predecessors, "client waits for the end of broken connections");
                self.stage = Stage::Waiting;
            }
            return Ok(false);
        }
        let thread = Thread {
            pool: BufferPool::new(STAGE_MEMORY_BYTES).map_err(|error| End::Resources(error.to_string()))?,
            reactor: Rc::new(self.ring.clone()),
        };
        let mut output = Vec::new();
        match self.shared.disk.open(&thread, IOS_IN_FLIGHT_MAX) {
            Ok(channel) => {
                let agreement = self.handshake.accept(&self.shared.disk.limits(), &mut output);
                let disk = Arc::clone(&self.shared.disk);
                let recorder = self.shared.recorders.claim();
                let transfers = Transfers::new(agreement, disk, channel, self.pool.clone(), recorder);
                member.enter(Phase::Transmitting);
                tracing::info!(peer = %member.peer, ?agreement, "client entered transmission");
                self.stage = Stage::Transmitting(Box::new(Session::new(agreement, transfers)));
            }
            Err(error) => {
                tracing::warn!(peer = %member.peer, %error, "the disk cannot be opened for a client");
                let step = self.handshake.refuse(&mut output);
                member.enter(Phase::Negotiating);
                self.stage = Stage::Negotiating;
                if let Step::Close(reason) = step {
                    return Err(reason.into());
                }
            }
        }
        self.outbox.push_negotiation(output);
        // Bytes that the client has sent meanwhile can be read now.
        self.readable = true;
        Ok(true)
    }

    /// Sends as much as there is room for. Returns whether it sent anything.
    fn send(&mut self) -> Result<bool, End> {
        let mut sent = false;
        while self.writable {
            let result = if self.outbox.is_empty() {
                self.transport.flush().map(|()| 0)
            } else {
                let mut slices = [IoSlice::new(&[]); PARTS_PER_SEND];
                let count = self.outbox.unsent(&mut slices);
                self.transport.send(&slices[..count])
            };
            match result {
                Ok(0) => break,
                Ok(count) => {
                    self.outbox.sent(count);
                    sent = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(sent)
    }

    /// Ends the connection if there is nothing left to do for this client.
    fn check_end(&mut self) -> Result<(), End> {
        let Stage::Transmitting(session) = &self.stage else {
            return if self.ended {
                Err(End::Gone)
            } else if self.draining && self.outbox.is_empty() {
                Err(End::Closed)
            } else {
                Ok(())
            };
        };
        if !session.is_quiet() || !self.outbox.is_empty() {
            return Ok(());
        }
        if (session.is_disconnecting() || self.draining) && session.is_answered() {
            return Err(End::Closed);
        }
        if self.ended {
            return Err(End::Gone);
        }
        Ok(())
    }

    /// Ends the connection: cuts the client off and waits until the disk is done, so that no
    /// request of this client can still run after its place is free.
    fn wind_down(&mut self, end: &End) {
        let member = self.membership.member();
        member.enter(Phase::Ending);
        if !matches!(end, End::Gone | End::Abandoned) {
            self.transport.close();
        }
        member.socket.shut_down();
        self.ring.unwatch(self.token);
        self.outbox.clear();
        let Stage::Transmitting(session) = &mut self.stage else {
            return;
        };
        loop {
            session.wind_down();
            // If the event loop fails, the ring itself waits for the kernel when it is dropped.
            if session.is_quiet() || self.ring.wait(None).is_err() {
                return;
            }
        }
    }
}
