//! The end that has the volumes of a VM that runs: a thread of its supervisor, beside the guest.
//!
//! ```text
//! asked for a volume   a new top takes the writes, and what is below does not change any more
//! asked for a layer    it is given, and stays locked against a merge
//! asked for the rest   clients have written much: the same again; or the volumes are closed: the last tops
//! ```

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::RecvFlags;
use strongroom_datastore::file::{DepartingVolume, begin_departure};
use strongroom_host::protocol::{Disk, OwnVolume, Problem, VmSpec};
use strongroom_host::served::served;
use strongroom_keys::Kek;
use strongroom_streams::{Asked, Rest, VolumesError};
use strongroom_types::display_bytes;
use strongroom_worker::control::Peer;
use strongroom_worker::supervise::LimitPage;
use strongroom_worker::{MergeError, ServedDeparture, ServedError, ServedVolume, Throttle, bytes_per_second};

use super::give::{Giver, Giving, Trouble, answer, give_layer, given, pass_layer, read_closed};
use super::{MovingVolume, check_moves};
use crate::keys::VmKeys;
use crate::rekey::reencryption::merge_new_top;
use crate::slowdown::Slowdown;

/// How often it is looked whether the guest has written much.
const LOOKS_EVERY: Duration = Duration::from_secs(1);
/// The most that is left for the time in which the guest stands still: a second or two on a fast
/// network.
const REST_BYTES_MAX: u64 = 128 << 20;

/// The thread that gives the volumes of a VM that runs.
#[derive(Debug)]
pub struct GivenBeside {
    client: UnixStream,
    closed: SyncSender<()>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The volumes are being closed: no top is put on them any more.
    is_closing: AtomicBool,
    is_given_up: AtomicBool,
    is_over: AtomicBool,
    /// What was not given yet.
    left_bytes: AtomicU64,
}

impl GivenBeside {
    /// Begins to answer the questions of the host that the VM moves to.
    ///
    /// # Errors
    /// If the VM does not move like this.
    pub fn start(
        spec: VmSpec,
        keys: Arc<VmKeys>,
        limits: Arc<LimitPage>,
        client: UnixStream,
    ) -> Result<Self, Problem> {
        check_moves(&spec)?;
        let (closed, is_closed) = sync_channel(1);
        let (state, ours) = (Arc::<State>::default(), client.try_clone().map_err(Problem::system)?);
        let theirs = Arc::clone(&state);
        let work = move || {
            let slowdown = Slowdown::new(limits, spec.limits);
            let beside = Beside { giving: Giving { spec: &spec, keys: &keys }, state: &theirs, slowdown };
            if let Err(problem) = beside.run(client, &is_closed) {
                tracing::warn!("VM {}: its volumes are not given: {problem}", spec.name);
            }
            theirs.is_over.store(true, Ordering::Relaxed);
        };
        thread::Builder::new().name("volumes".to_owned()).spawn(work).map_err(Problem::system)?;
        Ok(Self { client: ours, closed, state })
    }

    /// Checks that the other host is still there.
    ///
    /// # Errors
    /// If it is not.
    pub fn must_go_on(&self) -> Result<(), Problem> {
        match self.state.is_over.load(Ordering::Relaxed) {
            false => Ok(()),
            true => Err(Problem::new("broke_off", "the other host does not ask for the volumes any more")),
        }
    }

    /// The guest stands still, and the volumes are about to be closed: no top is put on them any
    /// more.
    ///
    /// # Errors
    /// If the other host would not get the rest soon.
    pub fn begin_closing(&self) -> Result<(), Problem> {
        self.must_go_on()?;
        let left_bytes = self.state.left_bytes.load(Ordering::Relaxed);
        if left_bytes > REST_BYTES_MAX {
            let (left, most) = (display_bytes(left_bytes), display_bytes(REST_BYTES_MAX));
            let message =
                format!("{left} of its disks have not passed when its memory has, and {most} may be left");
            let next = "move it when it writes less, over a faster network, or give its disks a limit";
            return Err(Problem::new("not_converging", message).with_next_step(next));
        }
        self.state.is_closing.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// The volumes are closed, durably.
    pub fn closed(&self) {
        let _ = self.closed.try_send(());
    }
}

impl Drop for GivenBeside {
    /// Ends the thread, which unlocks the volumes.
    fn drop(&mut self) {
        self.state.is_given_up.store(true, Ordering::Relaxed);
        let _ = self.client.shutdown(std::net::Shutdown::Both);
    }
}

/// A volume that a worker serves.
struct Source {
    disk: Disk,
    path: PathBuf,
    kek: Option<Arc<Kek>>,
    /// Whether it is a disk, of which most passes while the guest runs.
    has_rounds: bool,
}

struct Beside<'a> {
    giving: Giving<'a>,
    state: &'a State,
    slowdown: Slowdown,
}

/// How fast a round passes.
struct Round {
    began: Instant,
    /// What had passed before.
    before_bytes: u64,
}

impl Round {
    fn bytes_per_second(&self, passed_bytes: u64) -> u64 {
        bytes_per_second(passed_bytes - self.before_bytes, self.began.elapsed())
    }
}

impl Beside<'_> {
    fn run(&self, client: UnixStream, is_closed: &Receiver<()>) -> Result<(), Problem> {
        let spec = self.giving.spec;
        let sources = served(spec).into_iter().map(|disk| self.source(disk));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let peer = client.try_clone().map_err(Problem::system)?;
        let answered = answer(spec, client, |giver| self.answer_all(giver, &sources, &peer, is_closed));
        if !self.state.is_closing.load(Ordering::Relaxed) {
            // The guest goes on here.
            for source in sources.iter().filter(|source| source.has_rounds) {
                merge_new_top(&source.path, source.disk.least_generation);
            }
        }
        answered
    }

    fn source(&self, disk: Disk) -> Result<Source, Problem> {
        let Giving { spec, keys } = self.giving;
        let path = spec.volume_path(&disk.name);
        let kek = MovingVolume::served(&disk).hold_key(keys, &path)?;
        let has_rounds = spec.disk(&disk.name).is_some();
        Ok(Source { disk, path, kek, has_rounds })
    }

    fn answer_all(
        &self,
        giver: &mut Giver,
        sources: &[Source],
        peer: &UnixStream,
        is_closed: &Receiver<()>,
    ) -> Result<(), Trouble> {
        let mut departing = Vec::with_capacity(sources.len());
        for source in sources {
            departing.push((source, self.begin(source)?));
        }
        let passed = |departing: &[(&Source, ServedDeparture<'_>)]| {
            departing.iter().map(|(_, departing)| departing.read_bytes()).sum::<u64>()
        };
        let (mut rounds, mut round) = (0, None::<Round>);
        // The volume that was asked for last, if it is one of them.
        let mut current = None;
        let mut asked = giver.next_asked()?;
        loop {
            asked = match asked {
                Asked::End => return Ok(()),
                Asked::File(name) => self.giving.answer_with_file(giver, &name)?,
                Asked::Volume(name) => {
                    let before_bytes = passed(&departing);
                    round.get_or_insert_with(|| Round { began: Instant::now(), before_bytes });
                    current = departing.iter().position(|(source, _)| source.disk.name.as_str() == name);
                    match current.and_then(|current| departing.get_mut(current)) {
                        Some((source, departing)) => self.answer_about(giver, source, departing)?,
                        None => self.giving.answer_about(giver, &name)?,
                    }
                }
                Asked::Layer { layer, left_there } => {
                    let Some((_, departing)) = current.and_then(|current| departing.get_mut(current)) else {
                        return Err(VolumesError::Malformed("a layer of no volume").into());
                    };
                    give_layer(giver, left_there, &mut |take| departing.read(layer, take))?;
                    giver.next_asked()?
                }
                Asked::Rest => match self.await_rest(&departing, peer, is_closed)? {
                    Rest::Grown => {
                        if let Some(round) = round.take().filter(|_| rounds > 0) {
                            self.slowdown.after(rounds, round.bytes_per_second(passed(&departing)));
                        }
                        rounds += 1;
                        giver.rest(Rest::Grown)?;
                        giver.next_asked()?
                    }
                    Rest::Closed => {
                        giver.rest(Rest::Closed)?;
                        return self.give_rest(giver, departing);
                    }
                },
            };
            self.count(&departing)?;
        }
    }

    fn begin<'s>(&'s self, source: &'s Source) -> Result<ServedDeparture<'s>, Trouble> {
        let options = MovingVolume::served(&source.disk).options(source.kek.as_deref());
        let served = ServedVolume { path: &source.path, supervisor: Peer::ThisProcess };
        Ok(ServedDeparture::begin(served, &options, Throttle::default(), &self.state.is_given_up)?)
    }

    /// Answers a question for a volume. Returns the next question.
    fn answer_about(
        &self,
        giver: &mut Giver,
        source: &Source,
        departing: &mut ServedDeparture<'_>,
    ) -> Result<Asked, Trouble> {
        let is_closing = || self.state.is_closing.load(Ordering::Relaxed);
        if source.has_rounds && !is_closing() {
            match departing.round() {
                Ok(()) => {}
                // Its process closes it, and the rest follows.
                Err(_) if is_closing() => {}
                Err(error) => return Err(not_given(&source.path, error).into()),
            }
        }
        giver.volume(&given(&departing.sent()?))?;
        Ok(giver.next_asked()?)
    }

    /// Waits until the volumes are closed, or clients have written much.
    fn await_rest(
        &self,
        departing: &[(&Source, ServedDeparture<'_>)],
        peer: &UnixStream,
        is_closed: &Receiver<()>,
    ) -> Result<Rest, Trouble> {
        loop {
            match is_closed.recv_timeout(LOOKS_EVERY) {
                Ok(()) => return Ok(Rest::Closed),
                Err(RecvTimeoutError::Disconnected) => return Err(given_up().into()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.state.is_given_up.load(Ordering::Relaxed) || is_gone(peer) {
                return Err(given_up().into());
            }
            self.count(departing)?;
            if self.state.is_closing.load(Ordering::Relaxed) {
                continue;
            }
            for (source, departing) in departing.iter().filter(|(source, _)| source.has_rounds) {
                if departing.has_grown()? {
                    tracing::debug!("{} has grown", source.path.display());
                    return Ok(Rest::Grown);
                }
            }
        }
    }

    /// Gives what has not passed when the volumes were closed, unasked.
    fn give_rest(
        &self,
        giver: &mut Giver,
        departing: Vec<(&Source, ServedDeparture<'_>)>,
    ) -> Result<(), Trouble> {
        let Giving { spec, keys } = self.giving;
        for (source, departing) in departing {
            let closed = departing.closed().map_err(|error| not_given(&source.path, error.into()))?;
            give_rest_of(giver, source.disk.name.as_str(), &closed)?;
        }
        let console = OwnVolume::Console.name();
        if let Some(path) = self.giving.path_of(&console)
            && let Some(moving) = MovingVolume::named(spec, &console)
        {
            let kek = moving.hold_key(keys, &path)?;
            let closed = begin_departure(&path, &moving.options(kek.as_deref()))?;
            give_rest_of(giver, &console, &closed)?;
        }
        Ok(())
    }

    fn count(&self, departing: &[(&Source, ServedDeparture<'_>)]) -> Result<(), Trouble> {
        let mut left_bytes = 0_u64;
        for (_, departing) in departing {
            left_bytes = left_bytes.saturating_add(departing.left_bytes()?);
        }
        self.state.left_bytes.store(left_bytes, Ordering::Relaxed);
        Ok(())
    }
}

/// Gives what has not passed of a volume before it was closed.
fn give_rest_of(giver: &mut Giver, name: &str, closed: &DepartingVolume<'_>) -> Result<(), Trouble> {
    giver.rest_of(name, &given(closed.sent()))?;
    for layer in closed.rest() {
        giver.rest_of_layer(layer)?;
        pass_layer(giver, &mut |take| read_closed(closed, layer, take))?;
    }
    Ok(())
}

/// Whether the other end of a connection is closed.
fn is_gone(peer: &UnixStream) -> bool {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    matches!(rustix::net::recv(peer, &mut [0; 1], flags), Ok((0, _)))
}

fn given_up() -> Problem {
    Problem::new("abandoned", "the VM does not move, or not over this connection")
}

fn not_given(path: &std::path::Path, error: ServedError) -> Problem {
    match error {
        ServedError::Rewrite(MergeError::Datastore(error)) => error.into(),
        error => Problem::new("not_given", format!("{} is not given: {error}", path.display())),
    }
}
