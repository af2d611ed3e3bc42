//! The network between two hosts, in the hands of somebody else: it records everything, and does
//! something to the records of a channel.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use parking_lot::Mutex;
use strongroom_migrate::record::{HEAD_BYTES, Head};

/// Bytes before the records of a channel: its preamble.
const PREAMBLE_BYTES: usize = 22;

/// What is done to a record: how the records of a channel on their way to the target leave here.
pub type Deed = dyn Fn(&mut Hold, Vec<u8>) -> Verdict + Send + Sync;

/// What happens next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    GoOn,
    /// The connection is closed, as if the sender had closed it.
    Close,
}

/// The records of a channel on their way.
pub struct Hold {
    pub channel: u16,
    /// The number of the record that comes; 0 is the open record.
    pub number: usize,
    /// Records that are held back.
    pub held: Vec<Vec<u8>>,
    to: TcpStream,
    back: TcpStream,
}

impl Hold {
    /// Sends a record back to where it comes from.
    pub fn reflect(&mut self, record: &[u8]) {
        let _ = self.back.write_all(record);
    }

    pub fn forward(&mut self, record: &[u8]) {
        let _ = self.to.write_all(record);
    }
}

/// The network.
pub struct Wire {
    pub address: SocketAddr,
    recorded: Arc<Mutex<Vec<u8>>>,
    connections: Arc<Mutex<Vec<TcpStream>>>,
    is_over: Arc<AtomicBool>,
    listener: TcpListener,
    accepting: Option<thread::JoinHandle<()>>,
    /// The beginning of each channel's connection, as it was sent.
    pub beginnings: Receiver<Vec<u8>>,
}

impl Wire {
    pub fn recording(to: SocketAddr) -> Self {
        Self::with(to, |hold, record| {
            hold.forward(&record);
            Verdict::GoOn
        })
    }

    pub fn with(
        to: SocketAddr,
        deed: impl Fn(&mut Hold, Vec<u8>) -> Verdict + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let (address, deed): (_, Arc<Deed>) = (listener.local_addr().unwrap(), Arc::new(deed));
        let (recorded, connections) = (Arc::default(), Arc::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let (begun, beginnings) = channel();
        let accepting = thread::spawn({
            let (listener, is_over) = (listener.try_clone().unwrap(), Arc::clone(&is_over));
            let (recorded, connections) = (Arc::clone(&recorded), Arc::clone(&connections));
            move || {
                while let Ok((from, _)) = listener.accept() {
                    if is_over.load(Ordering::SeqCst) {
                        break;
                    }
                    pass(from, to, &deed, &recorded, &connections, &begun);
                }
            }
        });
        Self { address, recorded, connections, is_over, listener, accepting: Some(accepting), beginnings }
    }

    /// Everything that has gone over the wire.
    pub fn recorded(&self) -> Vec<u8> {
        self.recorded.lock().clone()
    }

    /// The network is gone.
    pub fn cut(&self) {
        for connection in self.connections.lock().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.cut();
        let _ = TcpStream::connect(self.listener.local_addr().unwrap());
        self.accepting.take().unwrap().join().unwrap();
    }
}

fn pass(
    from: TcpStream,
    to: SocketAddr,
    deed: &Arc<Deed>,
    recorded: &Arc<Mutex<Vec<u8>>>,
    connections: &Mutex<Vec<TcpStream>>,
    begun: &Sender<Vec<u8>>,
) {
    // A target that is gone takes no connection any more.
    let Ok(to) = TcpStream::connect(to) else { return };
    for stream in [&from, &to] {
        stream.set_nodelay(true).unwrap();
        connections.lock().push(stream.try_clone().unwrap());
    }
    let (back_from, back_to) = (to.try_clone().unwrap(), from.try_clone().unwrap());
    let back_recorded = Arc::clone(recorded);
    thread::spawn(move || pass_bytes(back_from, back_to, &back_recorded));
    let (deed, recorded, begun) = (Arc::clone(deed), Arc::clone(recorded), begun.clone());
    thread::spawn(move || {
        let mut first = [0];
        if from.peek(&mut first).unwrap_or(0) == 0 || first == [22] {
            return pass_bytes(from, to, &recorded);
        }
        // A cut connection ends this, too.
        let _ = pass_records(from, to, &*deed, &recorded, &begun);
    });
}

fn pass_bytes(mut from: TcpStream, mut to: TcpStream, recorded: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        recorded.lock().extend_from_slice(&buffer[..count]);
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn pass_records(
    mut from: TcpStream,
    mut to: TcpStream,
    deed: &Deed,
    recorded: &Mutex<Vec<u8>>,
    begun: &Sender<Vec<u8>>,
) -> std::io::Result<()> {
    let mut preamble = [0; PREAMBLE_BYTES];
    from.read_exact(&mut preamble)?;
    recorded.lock().extend_from_slice(&preamble);
    to.write_all(&preamble)?;
    let channel = u16::from_be_bytes([preamble[20], preamble[21]]);
    let (to, back) = (to.try_clone()?, from.try_clone()?);
    let mut hold = Hold { channel, number: 0, held: Vec::new(), to, back };
    loop {
        let mut head = [0; HEAD_BYTES];
        if from.read_exact(&mut head).is_err() {
            break;
        }
        let mut record = vec![0; Head::read(head).unwrap().record_bytes()];
        record[..HEAD_BYTES].copy_from_slice(&head);
        from.read_exact(&mut record[HEAD_BYTES..])?;
        recorded.lock().extend_from_slice(&record);
        if hold.number == 0 {
            let _ = begun.send([&preamble[..], &record].concat());
        }
        if deed(&mut hold, record) == Verdict::Close {
            break;
        }
        hold.number += 1;
    }
    hold.to.shutdown(Shutdown::Write)
}
