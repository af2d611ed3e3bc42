//! The root key under a PKCS#11 token: SoftHSM 2. It reads its configuration from the environment
//! of the process that loads it, so each test runs its body in a separate process.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use cryptoki::context::{CInitializeArgs, CInitializeFlags, Pkcs11};
use cryptoki::object::{Attribute, AttributeType, ObjectClass};
use cryptoki::session::{Session, UserType};
use cryptoki::types::AuthPin;
use strongroom_keyserver::root::credential::CredentialName;
use strongroom_keyserver::root::token::{TokenError, TokenWay};
use strongroom_keyserver::root::{
    self, Access, Attempt, Protection, RootError, RootKey, SecretSource, Warning, Way,
};
use strongroom_memory::secret::SecretBytes;
use tempfile::TempDir;

const MODULE: &str = "/usr/lib/softhsm/libsofthsm2.so";
const INSIDE: &str = "STRONGROOM_TEST_TOKEN_DIRECTORY";
const PIN: &str = "2718281828";

/// Runs `body` in a process whose SoftHSM has one token, `key server`.
fn with_token(test: &str, body: impl FnOnce(&Path)) {
    if let Some(directory) = std::env::var_os(INSIDE) {
        return body(Path::new(&directory));
    }
    let directory = TempDir::new().unwrap();
    let tokens = directory.path().join("tokens");
    fs::create_dir(&tokens).unwrap();
    let configuration = directory.path().join("softhsm2.conf");
    fs::write(&configuration, format!("directories.tokendir = {}\nlog.level = ERROR\n", tokens.display()))
        .unwrap();
    let util = Command::new("softhsm2-util")
        .env("SOFTHSM2_CONF", &configuration)
        .args(["--init-token", "--free", "--label", "key server", "--so-pin", "3141592653", "--pin", PIN])
        .output()
        .expect("SoftHSM is installed by scripts/install-packages test");
    assert!(util.status.success(), "{util:?}");
    let inside = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env("SOFTHSM2_CONF", &configuration)
        .env(INSIDE, directory.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&inside.stdout);
    assert!(
        inside.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&inside.stderr)
    );
}

fn state(directory: &Path) -> PathBuf {
    let state = directory.join("state");
    fs::create_dir_all(&state).unwrap();
    state
}

fn way(pin: SecretSource) -> Way {
    Way::Token(TokenWay { module: MODULE.into(), label: "key server".to_owned(), pin })
}

fn secret(text: &str) -> SecretBytes {
    SecretBytes::from_slice_and_wipe(&mut text.as_bytes().to_vec()).unwrap()
}

fn given(pin: &SecretBytes, attempt: Attempt) -> Access<'_> {
    Access { given: Some(pin), attempt, ..Access::default() }
}

fn token_error(outcome: Result<RootKey, RootError>) -> TokenError {
    match outcome {
        Err(RootError::Token(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// A session of the token's owner, beside ours.
fn owner() -> (Pkcs11, Session) {
    let module = Pkcs11::new(MODULE).unwrap();
    let _ = module.initialize(CInitializeArgs::new(CInitializeFlags::OS_LOCKING_OK));
    let slot = module.get_slots_with_initialized_token().unwrap()[0];
    let session = module.open_rw_session(slot).unwrap();
    session.login(UserType::User, Some(&AuthPin::new(PIN.into()))).unwrap();
    (module, session)
}

#[test]
fn a_token_opens_its_root_and_keeps_its_key() {
    with_token("a_token_opens_its_root_and_keeps_its_key", |directory| {
        let (state, pin) = (state(directory), secret(PIN));
        let access = given(&pin, Attempt::Unattended);
        let sealed = root::create(&state, &way(SecretSource::Given {}), &access).unwrap();
        for _ in 0..5 {
            assert_eq!(root::open(&state, &access).unwrap().id(), sealed.id());
        }
        let described = root::describe(&state, None).unwrap();
        assert_eq!(described.protection, Protection::Token);
        assert!(described.by.starts_with("token 'key server' (serial "), "{}", described.by);
        assert!(!fs::read_to_string(state.join("root.json")).unwrap().contains(PIN));

        let (_module, session) = owner();
        let keys = session.find_objects(&[Attribute::Class(ObjectClass::SECRET_KEY)]).unwrap();
        assert_eq!(keys.len(), 1);
        let value = session.get_attributes(keys[0], &[AttributeType::Value]);
        assert!(!matches!(&value, Ok(value) if !value.is_empty()), "the wrapping key can be read: {value:?}");
    });
}

#[test]
fn a_wrong_pin_is_tried_once_and_not_again_while_nobody_watches() {
    with_token("a_wrong_pin_is_tried_once_and_not_again_while_nobody_watches", |directory| {
        let (state, right, wrong) = (state(directory), secret(PIN), secret("1234567890"));
        let sealed =
            root::create(&state, &way(SecretSource::Given {}), &given(&right, Attempt::Attended)).unwrap();
        let refused = token_error(root::open(&state, &given(&wrong, Attempt::Unattended)));
        assert!(matches!(refused, TokenError::WrongPin { .. }), "{refused}");
        // A repeatedly restarted service uses no further try, whatever its PIN.
        for pin in [&wrong, &wrong, &right] {
            let refused = token_error(root::open(&state, &given(pin, Attempt::Unattended)));
            assert!(matches!(refused, TokenError::PinWasWrong { .. }), "{refused}");
        }
        let opened = root::open(&state, &given(&right, Attempt::Attended)).unwrap();
        assert_eq!(opened.id(), sealed.id());
        root::open(&state, &given(&right, Attempt::Unattended)).unwrap();

        // Too short to be a PIN of the token, so it uses no try.
        let short = secret("12");
        let refused = token_error(root::open(&state, &given(&short, Attempt::Unattended)));
        assert!(matches!(refused, TokenError::PinLength { actual: 2, .. }), "{refused}");
        root::open(&state, &given(&right, Attempt::Unattended)).unwrap();
    });
}

#[test]
fn a_pin_comes_from_a_file_or_a_credential() {
    with_token("a_pin_comes_from_a_file_or_a_credential", |directory| {
        let state = state(directory);
        let path = directory.join("pin");
        fs::write(&path, format!("{PIN}\n")).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let from_file = way(SecretSource::File { path: path.clone() });
        let sealed = root::create(&state, &from_file, &Access::default()).unwrap();
        assert_eq!(root::open(&state, &Access::default()).unwrap().id(), sealed.id());
        let warnings = root::describe(&state, None).unwrap().warnings;
        assert_eq!(warnings, [Warning::SameFileSystem { what: "PIN", path }]);

        let access = Access { credentials_directory: Some(directory.to_owned()), ..Access::default() };
        let name = CredentialName::new("pin").unwrap();
        root::reseal(&state, &sealed, &way(SecretSource::Credential { name }), &access).unwrap();
        assert_eq!(root::open(&state, &access).unwrap().id(), sealed.id());
    });
}

#[test]
fn what_is_missing_is_named() {
    with_token("what_is_missing_is_named", |directory| {
        let (state, pin) = (state(directory), secret(PIN));
        let access = given(&pin, Attempt::Unattended);
        let create = |module: &str, label: &str| {
            let (module, label) = (module.into(), label.to_owned());
            let way = Way::Token(TokenWay { module, label, pin: SecretSource::Given {} });
            token_error(root::create(&state, &way, &access))
        };
        assert!(matches!(create("libsofthsm2.so", "key server"), TokenError::RelativeModule { .. }));
        assert!(matches!(create("/nowhere/libtoken.so", "key server"), TokenError::Module { .. }));
        let absent = create(MODULE, "other");
        assert!(matches!(absent, TokenError::NoToken { .. }), "{absent}");
        assert!(absent.to_string().contains("'key server'"), "{absent}");

        root::create(&state, &way(SecretSource::Given {}), &access).unwrap();
        let (_module, session) = owner();
        for key in session.find_objects(&[Attribute::Class(ObjectClass::SECRET_KEY)]).unwrap() {
            session.destroy_object(key).unwrap();
        }
        let refused = token_error(root::open(&state, &access));
        assert!(matches!(refused, TokenError::NoKey { .. }), "{refused}");
    });
}

#[test]
fn a_changed_seal_is_refused() {
    with_token("a_changed_seal_is_refused", |directory| {
        let (state, other, pin) = (state(directory), directory.join("other"), secret(PIN));
        let access = given(&pin, Attempt::Unattended);
        root::create(&state, &way(SecretSource::Given {}), &access).unwrap();
        fs::create_dir(&other).unwrap();
        root::create(&other, &way(SecretSource::Given {}), &access).unwrap();
        // The other root's record names its own key and seal, but not the objects' root.
        fs::copy(other.join("root.json"), state.join("root.json")).unwrap();
        let swapped = root::open(&state, &access).unwrap();
        assert_eq!(swapped.id(), root::open(&other, &access).unwrap().id());

        let path = state.join("root.json");
        let text = fs::read_to_string(&path).unwrap();
        let at = text.find("\"sealed\": \"").unwrap() + 11;
        let digit = if &text[at..=at] == "0" { "1" } else { "0" };
        let changed = format!("{}{digit}{}", &text[..at], &text[at + 1..]);
        fs::write(&path, &changed).unwrap();
        assert!(matches!(root::open(&state, &access), Err(RootError::Damaged { .. })));
        // An attacker who knows the format can fix the digest; the token still refuses.
        fs::write(&path, with_right_digest(&changed)).unwrap();
        let refused = token_error(root::open(&state, &access));
        assert!(matches!(refused, TokenError::NotAuthentic { .. }), "{refused}");
    });
}

/// The record with a matching digest.
fn with_right_digest(text: &str) -> String {
    let mut is_string = false;
    let compact: String = text
        .chars()
        .filter(|&character| {
            is_string ^= character == '"';
            is_string || !character.is_whitespace()
        })
        .collect();
    let (head, root) = compact.split_once("\"root\":").unwrap();
    let root = root.strip_suffix('}').unwrap();
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, root.as_bytes());
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let at = head.find("\"digest\":\"").unwrap() + 10;
    format!("{}{digits}{}\"root\":{root}}}", &head[..at], &head[at + 64..])
}
