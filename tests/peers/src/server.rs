//! Foreign servers.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Pki, programs};

/// Timeout of a server's start: Python takes a second to load, and more on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);

/// Timeout for all threads of a stopped server to stop.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// The kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// PyKMIP's.
    PyKmip,
    /// A server built from kmip-go's parts.
    KmipGo,
}

/// A foreign server. It is killed on drop.
pub struct Server {
    kind: ServerKind,
    command_line: Vec<PathBuf>,
    address: SocketAddr,
    child: Option<Child>,
}

impl Server {
    /// Starts a server with its objects in `store`, where they survive a kill. Two kmip-go servers
    /// over one store are a cluster. `options` are the server program's own.
    ///
    /// # Panics
    /// If it does not serve within a minute.
    pub fn start(kind: ServerKind, pki: &Pki, store: &Path, options: &[&str]) -> Self {
        let identity = pki.server();
        let store_option = match kind {
            ServerKind::PyKmip => "--directory",
            ServerKind::KmipGo => "--store",
        };
        let mut command_line: Vec<PathBuf> = vec!["--with-parent".into()];
        let files = [
            (store_option, store.to_owned()),
            ("--ca", pki.authority()),
            ("--cert", identity.certificate),
            ("--key", identity.key),
        ];
        for (option, path) in files {
            command_line.extend([PathBuf::from(option), path]);
        }
        command_line.extend(options.iter().map(PathBuf::from));
        let mut server =
            Self { kind, command_line, address: SocketAddr::from(([127, 0, 0, 1], 0)), child: None };
        server.restart();
        server
    }

    /// Its address, as HOST:PORT. It keeps its port across restarts.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Kills it with SIGKILL, so that it cannot clean up.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts it at its port and over its objects.
    ///
    /// # Panics
    /// If it does not serve within a minute.
    pub fn restart(&mut self) {
        self.kill();
        let program = match self.kind {
            ServerKind::PyKmip => "pykmip-server",
            ServerKind::KmipGo => "kmip-go-server",
        };
        let mut command = Command::new(programs().join(program));
        match self.kind {
            ServerKind::PyKmip => command.args(["--port", &self.address.port().to_string()]),
            ServerKind::KmipGo => command.args(["--listen", &self.address.to_string()]),
        };
        let mut child = command
            .args(&self.command_line)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the server's program starts");
        let stdout = child.stdout.take().expect("its stdout is a pipe");
        self.child = Some(child);
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(address) = line.strip_prefix("listening on ") {
                    let _ = sender.send(address.parse());
                }
            }
        });
        let said = receiver.recv_timeout(START_LIMIT).expect("the server serves within a minute");
        self.address = said.expect("the server says its address");
    }

    /// Stops it: the kernel still accepts connections, but nothing answers.
    ///
    /// # Panics
    /// If a thread still runs after a minute.
    pub fn silence(&self) {
        self.signal(Signal::STOP);
        let begun = Instant::now();
        while !self.is_stopped() {
            assert!(begun.elapsed() < STOP_LIMIT, "the server does not stop");
            std::thread::yield_now();
        }
    }

    /// Whether all of its threads are stopped.
    fn is_stopped(&self) -> bool {
        let Some(child) = &self.child else { return true };
        let Ok(threads) = fs::read_dir(format!("/proc/{}/task", child.id())) else { return true };
        threads.filter_map(Result::ok).all(|thread| {
            let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with('T'))
        })
    }

    /// Resumes it.
    pub fn wake(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        if let Some(child) = &self.child {
            let process = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let _ = process.map(|process| kill_process(process, signal));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}
