//! A process is killed while it writes: every acknowledged write is there afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use strongroom_store::{Engine, KeyRange, Store, Transaction};

/// The variable that gives the child, which will be killed, the path of its store.
const PATH_VARIABLE: &str = "STRONGROOM_STORE_KILLED";
const THREADS: u64 = 4;
const LIVES: u64 = 12;

/// The child: prints a line for every write after its acknowledgement.
#[test]
fn writes_until_killed() {
    let Ok(path) = std::env::var(PATH_VARIABLE) else { return };
    let store = Engine::open(Path::new(&path)).unwrap();
    let life = store.snapshot().unwrap().revision().0;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let store = &store;
            scope.spawn(move || {
                for n in 0_u64.. {
                    let key = format!("{life}/{thread}/{n}");
                    let value = vec![thread as u8; (n * 37 % 5000) as usize];
                    let put = Transaction::new()
                        .put(key.as_bytes(), value)
                        .put(format!("last/{thread}"), key.as_bytes());
                    store.commit(put).unwrap();
                    let mut out = std::io::stdout().lock();
                    writeln!(out, "\nacknowledged {key}").unwrap();
                    out.flush().unwrap();
                }
            });
        }
    });
}

#[test]
fn whatever_was_acknowledged_before_a_kill_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    drop(Engine::create(&path).unwrap());
    let mut random = StdRng::seed_from_u64(1);
    let mut acknowledged = Vec::new();
    for _ in 0..LIVES {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_killed", "--nocapture"])
            .env(PATH_VARIABLE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let enough = random.random_range(1..400);
        let mut of_this_life = 0;
        let mut note = |line: &str| {
            let key = line.strip_prefix("acknowledged ").map(str::to_owned);
            key.map(|key| acknowledged.push(key)).is_some()
        };
        while of_this_life < enough {
            let line = lines.next().expect("the child writes until it is killed").unwrap();
            of_this_life += usize::from(note(&line));
        }
        child.kill().unwrap();
        // Lines printed before the kill count too; an unfinished line does not.
        let rest: Vec<String> = lines.map_while(Result::ok).collect();
        let (_, whole) = rest.split_last().map_or((None, [].as_slice()), |(last, whole)| (Some(last), whole));
        whole.iter().for_each(|line| {
            note(line);
        });
        child.wait().unwrap();
        let store = Engine::open(&path).unwrap();
        let snapshot = store.snapshot().unwrap();
        for key in &acknowledged {
            assert!(snapshot.get(key.as_bytes()).unwrap().is_some(), "{key} was acknowledged and is gone");
        }
        // Each transaction wrote two keys, whole.
        for last in snapshot.all(&KeyRange::prefix(*b"last/")).unwrap() {
            assert!(snapshot.get(&last.value).unwrap().is_some());
        }
    }
    println!("{} acknowledged over {LIVES} lives, all there", acknowledged.len());
}
