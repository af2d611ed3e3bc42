//! A network between a client and a server that fails on request.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

/// Forwards TCP connections, and drops answers on request. It sees only ciphertext.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    connections: AtomicUsize,
    open: Mutex<Vec<Arc<Connection>>>,
    ended: AtomicBool,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Whether the client has sent something since the server's last answer.
    asked: AtomicBool,
    answers: AtomicUsize,
    /// How many answers are still forwarded.
    answers_max: AtomicUsize,
}

impl Proxy {
    /// A proxy in front of a server.
    ///
    /// # Panics
    /// If this machine has no port left.
    pub fn before(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port to listen on");
        let address = listener.local_addr().expect("a bound socket has an address");
        let shared = Arc::new(Shared::default());
        let (accepting, server) = (Arc::clone(&shared), server.to_owned());
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if accepting.ended.load(Ordering::SeqCst) {
                    break;
                }
                accepting.connections.fetch_add(1, Ordering::SeqCst);
                // If the server is gone, the client's connection is closed.
                if let Ok(server) = TcpStream::connect(&server) {
                    let _ = accepting.join(client, server);
                }
            }
        });
        Self { address, shared }
    }

    /// Its address, as HOST:PORT.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Forwards `count` more answers on the present connections, and nothing after them. Later
    /// connections are not affected.
    pub fn lose_answers_after(&self, count: usize) {
        for connection in self.shared.open.lock().iter() {
            let answers = connection.answers.load(Ordering::SeqCst);
            connection.answers_max.store(answers + count, Ordering::SeqCst);
        }
    }

    /// Breaks every open connection.
    pub fn break_connections(&self) {
        for connection in self.shared.open.lock().drain(..) {
            let _ = connection.client.shutdown(Shutdown::Both);
            let _ = connection.server.shutdown(Shutdown::Both);
        }
    }

    /// The number of connections so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.break_connections();
        // Wakes the accepting thread, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn join(&self, client: TcpStream, server: TcpStream) -> io::Result<()> {
        let (client_in, server_in) = (client.try_clone()?, server.try_clone()?);
        let connection = Arc::new(Connection {
            client,
            server,
            asked: AtomicBool::new(false),
            answers: AtomicUsize::new(0),
            answers_max: AtomicUsize::new(usize::MAX),
        });
        self.open.lock().push(Arc::clone(&connection));
        let asking = Arc::clone(&connection);
        std::thread::spawn(move || {
            pass(client_in, &asking.server, || {
                asking.asked.store(true, Ordering::SeqCst);
                true
            });
        });
        std::thread::spawn(move || pass(server_in, &connection.client, || connection.lets_answer_through()));
        Ok(())
    }
}

impl Connection {
    /// Whether the server's present output is forwarded. Unsolicited output counts as part of the
    /// same answer.
    fn lets_answer_through(&self) -> bool {
        if self.asked.swap(false, Ordering::SeqCst) {
            self.answers.fetch_add(1, Ordering::SeqCst);
        }
        self.answers.load(Ordering::SeqCst) <= self.answers_max.load(Ordering::SeqCst)
    }
}

fn pass(mut from: TcpStream, mut to: &TcpStream, lets_through: impl Fn() -> bool) {
    let mut buffer = [0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if lets_through() && to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
