//! An administrator of a folder who has no cryptography, by the command line alone: made, signed
//! in, at work, refused, signed out. Nothing that others can read shows a password or a token.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use strongroom_system_tests::{Finished, Scratch, Serving};

use crate::secret_search::Needles;

const PASSWORD: &str = "correct horse battery";
const OTHER_PASSWORD: &str = "staple battery horse";
const VERIFIER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/verify-access-log");
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// RFC 6238 by another implementation. The first argument is the file with the secret, the second
/// how many steps from now the code is of.
const CODE: &str = "
import base64, hmac, struct, sys, time
secret = open(sys.argv[1]).read().strip()
key = base64.b32decode(secret + '=' * (-len(secret) % 8))
step = int(time.time()) // 30 + int(sys.argv[2])
tag = hmac.new(key, struct.pack('>Q', step), 'sha1').digest()
at = tag[-1] & 15
print('%06d' % ((struct.unpack('>I', tag[at:at + 4])[0] & 0x7fffffff) % 1000000))
";

/// The people of a site. What they keep to themselves is in a directory of their own.
struct People<'test> {
    serving: Serving<'test>,
    own: &'test Scratch,
}

impl<'test> People<'test> {
    /// A site with two VMs, neither of which runs: `sealed1` is encrypted, `clear1` is not.
    fn new(scratch: &'test Scratch, own: &'test Scratch) -> Self {
        let serving = Serving::start_logging(scratch, "debug");
        serving.runs("datastore add ds ds");
        serving.runs("vm create sealed1 --memory 64M --disk 8M --net none");
        serving.runs("vm create clear1 --memory 64M --disk 8M --net none --unencrypted");
        let people = Self { serving, own };
        people.keeps("ada.password", PASSWORD);
        people
    }

    fn path(&self, name: &str) -> PathBuf {
        self.own.path(name)
    }

    fn keeps(&self, name: &str, content: &str) {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.path(name));
        file.as_mut().unwrap().write_all(content.as_bytes()).unwrap();
    }

    /// Makes a user with the password in `ada.password`, and keeps the secret of its second factor.
    fn makes(&self, user: &str) {
        let made = self
            .serving
            .json(&format!("user create {user} --password-fd 3 3<{}", self.path("ada.password").display()));
        let secret = made["totp_secret"].as_str().unwrap();
        let uri = made["totp_uri"].as_str().unwrap();
        assert!(uri.starts_with("otpauth://totp/Strongroom:") && uri.contains(secret), "{uri}");
        self.keeps(&format!("{user}.totp"), secret);
    }

    /// A code of a user's authenticator. Each counts once, and those of the next half minute count
    /// already.
    fn has_code(&self, user: &str, steps_ahead: u32) {
        let secret = self.path(&format!("{user}.totp")).display().to_string();
        let code = self
            .serving
            .strongroom
            .peer("/usr/bin/python3", &["-c", CODE, &secret, &steps_ahead.to_string()]);
        self.keeps("code", &code);
    }

    fn login(&self, user: &str, more: &str) -> String {
        let (password, code) = (self.path("ada.password"), self.path("code"));
        let (password, code) = (password.display(), code.display());
        format!("login {user} --password-fd 3 --code-fd 4 {more} 3<{password} 4<{code}")
    }

    /// A command with the session in this file.
    fn as_session(&self, session: &str, arguments: &str) -> String {
        format!("{arguments} --api-token-file {}", self.path(session).display())
    }
}

fn words(finished: &Value, list: &str, field: &str) -> Vec<String> {
    let items = finished[list].as_array().unwrap_or_else(|| panic!("{finished}"));
    items.iter().map(|item| item[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn an_administrator_without_cryptography_works_in_its_folder_and_nowhere_else() {
    let (scratch, own) = (Scratch::new(), Scratch::new());
    let people = People::new(&scratch, &own);
    let serving = &people.serving;
    serving.runs("folder create tenant1");
    serving.runs("folder move clear1 tenant1");
    people.makes("ada");
    for place in ["--folder tenant1", "--datastore ds"] {
        serving.runs(&format!("role grant ada no-cryptography-administrator {place}"));
    }
    people.has_code("ada", 0);
    let file = people.path("ada.session");
    let login = people.login("ada", &format!("--token-file {}", file.display()));
    let signed_in = serving.runs(&login);
    assert!(signed_in.contains("ada is signed in at https://"), "{signed_in}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let ada = |arguments: &str| people.as_session("ada.session", arguments);

    // It sees its folder, and works there.
    assert_eq!(words(&serving.json(&ada("vm list")), "items", "name"), ["clear1"]);
    assert_eq!(words(&serving.json(&ada("folder list")), "items", "name"), ["tenant1"]);
    serving.runs(&ada("vm snapshot create clear1 monday"));
    serving.runs(&ada("vm create clear2 --memory 64M --disk 8M --net none --unencrypted --folder tenant1"));
    serving.runs(&ada("disk create data1 --size 8M --unencrypted --folder tenant1"));
    serving.runs(&ada("disk bind data1 clear2"));
    serving.runs(&ada("vm delete clear2 --yes --with-volumes"));
    let me = serving.json(&ada("user show"));
    assert_eq!((&me["name"], &me["site"]), (&json!("ada"), &json!([])));

    // What it may not do is refused, with the object and the next step.
    let refused = |arguments: &str, parts: &[&str]| {
        let told = serving.is_refused(&ada(arguments));
        assert!(parts.iter().all(|part| told.contains(part)), "{arguments}: {told}");
    };
    let ask = "`strongroom role list`";
    refused("vm show sealed1", &["there is no VM sealed1", "`strongroom vm list`"]);
    refused(
        "vm create x --memory 64M --disk 8M --net none --folder tenant1",
        &["folder tenant1", "encrypt_new", ask],
    );
    refused("vm create x --memory 64M --disk 8M --net none --unencrypted", &["the site", "create", ask]);
    let eve = format!("user create eve --password-fd 3 3<{}", people.path("ada.password").display());
    refused(&eve, &["the site", "roles", ask]);
    refused("user delete ada --yes", &["the site", "roles", ask]);
    refused("role grant ada administrator --folder tenant1", &["lacks access", ask]);
    refused("role grant ada auditor", &["the site", "roles", ask]);
    refused("role revoke ada auditor", &["ada", "auditor", "`strongroom access review`"]);
    refused("folder move sealed1 tenant1", &["there is no VM sealed1"]);
    refused("access log", &["the site", "audit", ask]);
    refused("access review", &["the site", "audit", ask]);
    refused("access token revoke backup", &["there is no token backup", "`strongroom access token list`"]);
    refused("role create all --privilege everything", &["'everything'", "guest_control"]);

    // An encrypted VM in its folder is run by it, and keeps its content.
    serving.runs("folder move sealed1 tenant1");
    serving.runs(&ada("vm set sealed1 --restart never"));
    let export = format!("vm export sealed1 {} --format raw", people.path("stolen.raw").display());
    refused(&export, &["VM sealed1", "access", ask]);
    refused("vm clone sealed1 copy1", &["VM sealed1", "clone", ask]);
    assert!(!people.path("stolen.raw").exists());

    // It is on record, and the review says who could do what.
    let entries = serving.json("access log --by ada --since 1h --most 1000");
    let kinds = words(&entries, "items", "kind");
    assert!(["signed_in", "refused"].iter().all(|kind| kinds.contains(&(*kind).to_owned())), "{kinds:?}");
    assert!(words(&entries, "items", "by").iter().all(|by| by == "ada"), "{entries}");
    assert_eq!(words(&serving.json("access log --by nobody"), "items", "by"), Vec::<String>::new());
    let review = serving.json("access review");
    let user = &review["users"][0];
    assert!(
        user["last_sign_in_unix_seconds"].as_u64().is_some() && user["grants"].as_array().unwrap().len() == 2
    );
    let table = serving.runs("access review");
    assert!(table.contains("ada   no-cryptography-administrator  folder tenant1"), "{table}");
    let told = serving.runs("access explain ada vm_clone --vm sealed1");
    assert!(told.contains("ada may not call vm_clone for VM sealed1: it lacks clone"), "{told}");

    // A role that is taken away counts no more.
    serving.runs("role revoke ada no-cryptography-administrator --folder tenant1");
    refused("vm show clear1", &["there is no VM clear1"]);
    serving.runs("user delete ada --yes");
    refused("vm list", &["the session of ada", "`strongroom login ada`"]);
}

#[test]
#[cfg_attr(not(feature = "full"), ignore = "long: make test-guests")]
fn a_session_is_found_by_other_commands_until_it_ends() {
    let (scratch, own) = (Scratch::new(), Scratch::new());
    let people = People::new(&scratch, &own);
    let serving = &people.serving;
    people.makes("ada");
    serving.runs("role grant ada auditor");
    let me = || serving.json("user show")["name"].clone();
    assert_eq!(me(), "admin");
    people.has_code("ada", 0);
    serving.runs(&people.login("ada", ""));
    assert_eq!(me(), "ada");
    let session = scratch.path("home/session.json");
    assert_eq!(fs::metadata(&session).unwrap().permissions().mode() & 0o777, 0o600);
    // The code has been used, and the session goes on.
    let again = serving.is_refused(&people.login("ada", ""));
    assert!(again.contains("ada is not signed in") && again.contains("each code counts once"), "{again}");
    assert_eq!(me(), "ada");
    // The first token is there, and is not used in its place.
    let refused = serving.is_refused("folder create tenant1");
    assert!(refused.contains("roles") && refused.contains("`strongroom role list`"), "{refused}");
    // It is sent to its own control plane alone.
    let elsewhere = serving.is_refused("vm list --api https://127.0.0.1:1");
    assert!(elsewhere.contains("does not get its token"), "{elsewhere}");
    serving.runs("logout");
    assert!(!session.exists());
    assert_eq!(me(), "admin");
    assert_eq!(words(&serving.json("access session list"), "items", "user"), Vec::<String>::new());
    let nobody = serving.is_refused("logout");
    assert!(nobody.contains("nobody is signed in here") && nobody.contains("`strongroom login"), "{nobody}");

    // Its own password, and its time.
    people.has_code("ada", 1);
    serving.runs(&people.login("ada", ""));
    people.keeps("new.password", OTHER_PASSWORD);
    let (present, new) = (people.path("ada.password"), people.path("new.password"));
    let change = |present: &PathBuf, new: &PathBuf| {
        let (present, new) = (present.display(), new.display());
        format!("user password ada --present-password-fd 3 --password-fd 4 3<{present} 4<{new}")
    };
    let wrong = serving.is_refused(&change(&new, &new));
    assert!(wrong.contains("the present password of user ada is another one"), "{wrong}");
    let mut kept: Value = serde_json::from_slice(&fs::read(&session).unwrap()).unwrap();
    serving.runs(&change(&present, &new));
    let ended = serving.is_refused("vm list");
    assert!(ended.contains("the session of ada") && ended.contains("`strongroom login ada`"), "{ended}");
    kept["expires_unix_seconds"] = json!(86_400);
    fs::write(&session, kept.to_string()).unwrap();
    let over = serving.is_refused("vm list");
    assert!(over.contains("ended on 1970-01-02") && over.contains("`strongroom login ada`"), "{over}");
    serving.runs("logout");
    assert_eq!(me(), "admin");
}

#[test]
fn a_second_factor_that_is_replaced_counts_no_more() {
    let (scratch, own) = (Scratch::new(), Scratch::new());
    let people = People::new(&scratch, &own);
    let serving = &people.serving;
    people.makes("ada");
    let made = serving.json("user totp ada");
    people.has_code("ada", 0);
    let refused = serving.is_refused(&people.login("ada", ""));
    assert!(refused.contains("ada is not signed in"), "{refused}");
    people.keeps("ada.totp", made["totp_secret"].as_str().unwrap());
    people.has_code("ada", 0);
    serving.runs(&people.login("ada", ""));
    assert_eq!(serving.json("user show")["name"], "ada");
}

/// An auditor needs pages and heads of the log, and none of our programs.
#[test]
fn an_exported_access_log_is_verified_without_the_program() {
    let (scratch, own) = (Scratch::new(), Scratch::new());
    let people = People::new(&scratch, &own);
    let serving = &people.serving;
    let export = |file: &str, arguments: &str| {
        people.keeps(file, &serving.runs(&format!("access {arguments} --json")));
    };
    let verify = |arguments: &str| {
        let mut command = format!("cd '{}' && exec '{VERIFIER}'", own.path(".").display());
        arguments.split(' ').for_each(|argument| write!(command, " {argument}").unwrap());
        serving.strongroom.run_shell(&command)
    };
    let is_refused = |arguments: &str, why: &str| {
        let told = verify(arguments);
        assert!(!told.status.success() && told.stderr.contains(why), "{arguments}: {told:?}");
    };
    (1..=4).for_each(|number| drop(serving.runs(&format!("folder create tenant{number}"))));
    export("early", "head");
    (5..=8).for_each(|number| drop(serving.runs(&format!("folder create tenant{number}"))));
    export("one", "log --after 0 --most 5");
    export("two", "log --after 5 --most 1000");
    export("late", "head");
    let whole = verify("one two --head early");
    assert!(whole.status.success(), "{whole:?}");
    let (number, hash) = whole.stdout.trim().split_once(' ').unwrap();
    assert!(number.parse::<u64>().unwrap() > 8 && hash.len() == 64, "{whole:?}");

    // The reading of the second page is an entry behind it.
    is_refused("one two --head late", "the head that was kept is of entry");
    export("three", &format!("log --after {number} --most 1000"));
    let with_the_end = verify("one two three --head early --head late");
    assert!(with_the_end.status.success(), "{with_the_end:?}");
    is_refused("two one", "give the pages in their order");
    is_refused("one three", "it does not continue entry 5");

    let two = fs::read_to_string(people.path("two")).unwrap();
    people.keeps("changed", &two.replacen("tenant6", "tenant9", 1));
    is_refused("one changed", "it does not continue entry");
    // An end that was cut is found by a head.
    export("short", "log --after 0 --most 2");
    is_refused("short --head early", "the head that was kept is of entry");
}

/// Neither what others can read of the commands' processes, nor logs, nor files beside those that
/// people keep, have a password, a session's token or that of a program.
#[test]
fn no_password_and_no_token_is_seen_by_others() {
    let (scratch, own) = (Scratch::new(), Scratch::new());
    let people = People::new(&scratch, &own);
    let serving = &people.serving;
    people.makes("ada");
    serving.runs("role grant ada operator");
    let file = people.path("ada.session");
    let mut needles = Needles::default();
    needles.add("the password", PASSWORD.as_bytes());

    // The command waits for the code, and has the password.
    let code = people.path("code.fifo");
    serving.strongroom.peer("mkfifo", &[&code.display().to_string()]);
    let mut keys = OpenOptions::new().read(true).write(true).open(&code).unwrap();
    let script = format!(
        "export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" --log trace login ada --password-fd 3 --code-fd 4 --token-file {} \
         3<{} 4<{} 2>&1",
        file.display(),
        people.path("ada.password").display(),
        code.display()
    );
    let mut login = serving.strongroom.start_shell("login", &script);
    // The shell has it open once, and the command opens it again when it is to be read.
    let reads_code = |pid: u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).filter(|target| *target == code).count() == 2
    };
    crate::worker_support::wait_until("the command waits for the code", || reads_code(login.id()));
    needles.assert_not_seen_of(&[login.id()]);
    people.has_code("ada", 0);
    keys.write_all(&fs::read(people.path("code")).unwrap()).unwrap();
    drop(keys);
    assert!(login.wait(ENDS_WITHIN).success());

    let session: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    needles.add("the session's token", session["token"].as_str().unwrap().as_bytes());
    let token = people.path("backup.token");
    let ada = |arguments: &str| people.as_session("ada.session", arguments);
    serving.runs(&ada(&format!(
        "--log trace access token create backup --role operator --valid 1h >{}",
        token.display()
    )));
    let made = fs::read_to_string(&token).unwrap();
    let made = made.strip_suffix('\n').unwrap();
    assert!(made.len() > 32 && made.bytes().all(|byte| byte.is_ascii_graphic()), "a token alone: {made}");
    needles.add("the program's token", made.as_bytes());
    let with_token = format!("--log trace vm list --api-token-file {}", token.display());
    let listed: Finished = serving
        .strongroom
        .run_shell(&format!("export STRONGROOM_HOME=\"$PWD/home\"; exec \"$STRONGROOM\" {with_token}"));
    assert!(listed.status.success(), "{listed:?}");
    for text in [&listed.stdout, &listed.stderr] {
        needles.assert_not_in("what a command said", text.as_bytes());
    }
    serving.runs(&format!("logout --token-file {}", file.display()));
    assert!(!file.exists());

    // The home with its store and logs, and what each command has said.
    let files = needles.assert_not_under(&scratch.path("."));
    println!("{files} files were searched");
    let log = fs::read_to_string(scratch.path("serve-1-1.stdout")).unwrap_or_default();
    assert!(log.contains("https://") && files > 20, "{files} files");
    // The search finds what is there.
    assert!(!needles.found_in(&fs::read(&token).unwrap()).is_empty());
}

/// The lines of `ROLES.md`, with a key that openssl has made, and curl beside our own client.
#[test]
fn a_program_shows_its_key_in_the_place_of_a_token() {
    let scratch = Scratch::new();
    let serving = Serving::start(&scratch);
    serving.runs("datastore add ds ds");
    let made = serving.strongroom.run_shell(
        "umask 077; openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=backup -days 365 \
         -keyout backup.key -out backup.crt && cat backup.crt backup.key >backup.pem && \
         openssl pkey -in backup.key -pubout -outform der | sha256sum",
    );
    assert!(made.status.success(), "{made:?}");
    let hash = made.stdout.split_whitespace().next().unwrap();
    let told = serving.runs("access token create backup --role operator --certificate backup.pem");
    assert_eq!(told.trim(), format!("the token is the key with SHA-256 {hash}"));
    serving.runs("vm list --api-token-file backup.pem");
    let curl = |options: &str| {
        let url = serving.api_url();
        let asked = format!("curl -s --cacert home/control/api.crt {options} {url}/v1/me");
        serving.strongroom.run_shell(&asked).stdout
    };
    let me = curl("--cert backup.crt --key backup.key");
    assert!(me.contains("\"name\":\"backup\""), "{me}");
    assert!(curl("").contains("unauthorized"));
    let alone = serving.is_refused("vm list --api-token-file backup.key");
    assert!(alone.contains("there is no certificate in it"), "{alone}");
    serving.runs("access token revoke backup");
    let over = serving.is_refused("vm list --api-token-file backup.pem");
    assert!(over.contains("knows no token of the key"), "{over}");
}
