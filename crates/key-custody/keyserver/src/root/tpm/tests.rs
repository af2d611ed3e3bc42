//! The root key under a TPM 2.0: swtpm, the TPM of QEMU's guests, on a socket of its own for each
//! test.

use tempfile::TempDir;

use super::swtpm::{Recorder, Swtpm};
use super::*;
use crate::root::{self, Access, Protection, Warning, Way};

fn way(tpm: &Swtpm, pcrs: impl IntoIterator<Item = u8>) -> TpmWay {
    TpmWay { device: tpm.device(), pcrs: PcrSelection::new(pcrs).unwrap() }
}

fn tpm_error(outcome: Result<SecretBytes, RootError>) -> TpmError {
    match outcome {
        Err(RootError::Tpm(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_tpm_opens_its_root_again_and_again_also_after_a_restart() {
    let state = TempDir::new().unwrap();
    let mut tpm = Swtpm::start();
    let access = Access::default();
    let sealed = root::create(state.path(), &Way::Tpm(way(&tpm, [])), &access).unwrap();
    // More often than a TPM without a resource manager could hold objects that were left loaded.
    for _ in 0..10 {
        assert_eq!(root::open(state.path(), &access).unwrap().id(), sealed.id());
    }
    tpm.restart();
    assert_eq!(root::open(state.path(), &access).unwrap().id(), sealed.id());
    let described = root::describe(state.path(), None).unwrap();
    assert_eq!(described.protection, Protection::Tpm);
    assert_eq!(described.warnings, [Warning::AnyBootState]);
}

#[test]
fn another_tpm_does_not_open_it_and_says_so() {
    let mut tpm = Swtpm::start();
    let sealed = seal(&RootKey::generate().unwrap(), &way(&tpm, [])).unwrap();
    tpm.replace_by_another();
    assert!(matches!(tpm_error(unseal(&sealed)), TpmError::OtherTpm { .. }));
    drop(tpm);
    assert!(matches!(tpm_error(unseal(&sealed)), TpmError::Unreachable { .. }));
}

#[test]
fn a_root_sealed_to_pcrs_opens_in_that_boot_state_only() {
    let state = TempDir::new().unwrap();
    let mut tpm = Swtpm::start();
    let access = Access::default();
    let sealed = root::create(state.path(), &Way::Tpm(way(&tpm, [23, 7, 11])), &access).unwrap();
    let described = root::describe(state.path(), None).unwrap();
    assert_eq!(described.warnings, []);
    assert!(described.by.ends_with("PCRs 7+11+23"), "{}", described.by);

    tpm.extend_pcr(12);
    assert_eq!(root::open(state.path(), &access).unwrap().id(), sealed.id());
    tpm.extend_pcr(11);
    let refused = root::open(state.path(), &access).unwrap_err();
    assert!(matches!(&refused, RootError::Tpm(TpmError::PcrsChanged { .. })), "{refused}");
    assert!(refused.to_string().contains("7+11+23"), "{refused}");
    // The former boot state is back.
    tpm.restart();
    assert_eq!(root::open(state.path(), &access).unwrap().id(), sealed.id());

    // Sealed again for the present state, with the open root.
    tpm.extend_pcr(11);
    root::reseal(state.path(), &sealed, &Way::Tpm(way(&tpm, [11])), &access).unwrap();
    assert_eq!(root::open(state.path(), &access).unwrap().id(), sealed.id());
    assert!(PcrSelection::new([24]).is_err());
}

#[test]
fn the_root_does_not_cross_the_bus_in_clear() {
    let tpm = Swtpm::start();
    let recorder = Recorder::start(&tpm);
    let root = RootKey::generate().unwrap();
    let sealed = seal(&root, &TpmWay { device: recorder.device(), ..way(&tpm, [7]) }).unwrap();
    assert_eq!(unseal(&sealed).unwrap(), root.secret);
    let recorded = recorder.stop();
    assert!(recorded.len() > 2000, "only {} bytes were recorded", recorded.len());
    let secret = root.secret.expose();
    let shows = |part: &[u8]| recorded.windows(part.len()).any(|bytes| bytes == part);
    assert!(!secret.windows(4).any(shows));
    // The recorder does see unencrypted data.
    assert!(shows(&sealed.public) && shows(&sealed.private));
}

#[test]
fn an_answer_that_was_changed_on_the_bus_gives_no_other_root() {
    let tpm = Swtpm::start();
    let root = RootKey::generate().unwrap();
    let sealed = seal(&root, &way(&tpm, [7])).unwrap();
    // The last byte of each response in turn: coordinates, names, nonces, MACs.
    let mut noticed = Vec::new();
    for response in 0..5 {
        let tamperer = Recorder::tampering(&tpm, response);
        let outcome = unseal(&TpmSeal { device: tamperer.device(), ..sealed.clone() });
        match outcome {
            Ok(secret) => assert_eq!(secret, root.secret),
            Err(RootError::Tpm(_)) => noticed.push(response),
            Err(error) => panic!("response {response}: {error}"),
        }
        tamperer.stop();
    }
    // The last bytes of CreatePrimary and Load belong to names that we compute, so they do not
    // count; the session's nonce and Unseal's MAC do.
    assert!(noticed.contains(&2) && noticed.contains(&4), "{noticed:?}");
}

/// The standard tools, an independent implementation, make the same storage root key and open our
/// sealed object, so a root can be recovered without this program.
#[test]
fn the_standard_tools_open_the_sealed_root() {
    let (tpm, files) = (Swtpm::start(), TempDir::new().unwrap());
    let root = RootKey::generate().unwrap();
    let sealed = seal(&root, &way(&tpm, [])).unwrap();
    let file = |name: &str| files.path().join(name).into_os_string().into_string().unwrap();
    for (name, content) in [("public", &sealed.public), ("private", &sealed.private)] {
        let sized = [&(content.len() as u16).to_be_bytes()[..], content].concat();
        std::fs::write(file(name), sized).unwrap();
    }
    let attributes = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|decrypt";
    let (parent, object) = (file("parent"), file("object"));
    tpm.tool(&[
        "tpm2_createprimary",
        "-C",
        "o",
        "-G",
        "ecc256:null:aes128cfb",
        "-a",
        attributes,
        "-c",
        &parent,
    ]);
    tpm.tool(&["tpm2_load", "-C", &parent, "-u", &file("public"), "-r", &file("private"), "-c", &object]);
    tpm.tool(&["tpm2_flushcontext", "-t"]);
    tpm.tool(&["tpm2_unseal", "-c", &object, "-o", &file("root")]);
    assert_eq!(std::fs::read(file("root")).unwrap(), root.secret.expose());
}

#[test]
fn a_password_of_the_owner_is_named_and_does_not_count() {
    let tpm = Swtpm::start();
    let sealed = seal(&RootKey::generate().unwrap(), &way(&tpm, [])).unwrap();
    tpm.set_owner_password(b"owner");
    for _ in 0..40 {
        assert!(matches!(tpm_error(unseal(&sealed)), TpmError::OwnerPassword));
    }
}

#[test]
fn a_changed_blob_is_refused() {
    let tpm = Swtpm::start();
    let mut sealed = seal(&RootKey::generate().unwrap(), &way(&tpm, [])).unwrap();
    let last = sealed.private.len() - 1;
    sealed.private[last] ^= 1;
    assert!(matches!(tpm_error(unseal(&sealed)), TpmError::NotAuthentic));
}

#[test]
fn what_is_no_tpm_is_named_as_such() {
    use std::io::{Read, Write};
    for answer in
        [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0x80, 1, 0, 0, 0, 10, 0, 0, 0, 0], &[0xff; 10]]
    {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let answer = answer.to_vec();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut header = [0; 10];
            client.read_exact(&mut header).unwrap();
            client.write_all(&answer).unwrap();
        });
        let device = TpmDevice::Socket { path };
        let refused = seal(&RootKey::generate().unwrap(), &TpmWay { device, pcrs: PcrSelection::default() });
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, RootError::Tpm(TpmError::Unreachable { .. } | TpmError::Protocol { .. })),
            "{refused}"
        );
        server.join().unwrap();
    }
}

proptest::proptest! {
    /// Arbitrary responses of a device are parsed or refused.
    #[test]
    fn arbitrary_answers_are_read_or_refused(answer in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200)) {
        let mut reader = command::Reader::new(&answer, "TPM2_Test");
        while let Ok(field) = reader.sized() {
            proptest::prop_assert!(field.len() <= answer.len());
        }
        proptest::prop_assert!(sealed_object::point_of(&answer).is_err() || answer.len() >= 24);
    }
}
