//! kill -9 in every step of a restore into a real store, each in a process of its own.

use strongroom_memory::secret::SecretBytes;

use super::*;
use crate::killed::{self, Countdown};

const TEST: &str = "recovery::tests::kill::a_restore_killed_in_any_step_leaves_the_old_server_or_the_new_one";

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &to.join(entry.file_name()));
        } else {
            fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

fn restore_here(place: &Path) {
    let mut session = RestoreSession::open(&place.join("backup"), Content::KeyServer).unwrap();
    for name in ["share-1", "share-2"] {
        let mut share = fs::read(place.join(name)).unwrap();
        session.add_share(&SecretBytes::from_slice_and_wipe(&mut share).unwrap()).unwrap();
    }
    let mut countdown = Countdown::of_this_process();
    let mut target = Machine::at(&place.join("server")).target();
    target.observe(move || countdown.step());
    session.restore(&mut target, true).unwrap();
}

#[test]
fn a_restore_killed_in_any_step_leaves_the_old_server_or_the_new_one() {
    if let Some(place) = killed::place() {
        return restore_here(&place);
    }
    let (machine, made) = (Machine::new(), TempDir::new().unwrap());
    let path = made.path().join("backup");
    let server = machine.start();
    let [one, shredded] = ["one", "shredded"].map(|name| server.create(&owner(), name));
    let dead = server.create(&owner(), "dead");
    server.destroy(&owner(), dead);
    server.back_up(&path);
    server.destroy(&owner(), shredded);
    let newer = server.create(&owner(), "newer");
    let key = server.key(one);
    drop(server);
    let header = backup::read_header(&path).unwrap();
    for (person, name) in people().iter().zip(["share-1", "share-2"]) {
        fs::write(made.path().join(name), person.open_share(&header).expose()).unwrap();
    }

    let (mut step, mut old, mut new) = (0, 0, 0);
    loop {
        let place = TempDir::new().unwrap();
        copy(made.path(), place.path());
        copy(&machine.directory, &place.path().join("server"));
        let restored = Machine::at(&place.path().join("server"));
        let was_killed = killed::is_killed(TEST, place.path(), Some(step));
        // In either state the server starts, has the key, and serves no destroyed one.
        let server = restored.start();
        assert!(server.key(one) == key && server.key(shredded).is_none() && server.key(dead).is_none());
        match server.key(newer) {
            Some(_) => old += 1,
            None => new += 1,
        }
        let is_new = server.key(newer).is_none();
        drop(server);
        assert_eq!(restored.restores_on_record(), usize::from(is_new), "step {step}");
        assert!(!restored.directory.join("store.redb.restoring").exists());
        if !was_killed {
            assert!(is_new);
            break;
        }
        assert!(!killed::is_killed(TEST, place.path(), None));
        assert!(restored.start().key(newer).is_none());
        step += 1;
    }
    assert!(old > 10 && new > 1, "{old} old, {new} new");
    println!(
        "killed in each of {step} steps of a restore: {old} times the old server, {new} times the new one"
    );
}
