//! A backup can be opened with standard tools: `openssl` opens a share, and a few lines of Python
//! read the rest.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking, in its helping functions too")]

use std::fs;
use std::path::Path;
use std::process::Command;

use strongroom_keyserver::backup::{
    BackupSource, Content, Custodian, CustodianName, Custody, Failure, Record, RecordKind, RestoreSession,
    ShareEncryption, Snapshot, back_up, read_header,
};
use strongroom_memory::secret::SecretBytes;
use tempfile::TempDir;
use zeroize::Zeroizing;

struct Server(Vec<Record>);

impl BackupSource for Server {
    fn snapshot(&self) -> Result<Snapshot<'_>, Failure> {
        Ok(Snapshot {
            content: Content::KeyServer,
            generation: 42,
            records: Box::new(self.0.iter().cloned().map(Ok)),
        })
    }
}

fn record(kind: RecordKind, key: &str, value: &[u8]) -> Record {
    Record { kind, key: key.as_bytes().to_vec(), value: Zeroizing::new(value.to_vec()) }
}

fn openssl(arguments: &[&str]) {
    let output = Command::new("openssl").args(arguments).output().unwrap();
    assert!(output.status.success(), "openssl {arguments:?}: {output:?}");
}

fn path(directory: &Path, name: &str) -> String {
    directory.join(name).into_os_string().into_string().unwrap()
}

/// The command in docs/KEYS.md for opening a share.
fn documented_command(encryption: ShareEncryption) -> String {
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/KEYS.md");
    let text = fs::read_to_string(document).unwrap();
    let (_, after) = text.split_once("With OpenSSL:\n\n```sh\n").unwrap();
    let (take, open) = after.split_once("```").unwrap().0.split_once("\n\n").unwrap();
    let (rsa, cms) = open.split_once('\n').unwrap();
    let open = match encryption {
        ShareEncryption::RsaOaepSha256 => rsa,
        ShareEncryption::Cms => cms,
    };
    assert!(open.contains("openssl"), "{open}");
    format!("{take}\n{open}").replace("sealed", "\"$SEALED\"")
}

#[test]
fn openssl_opens_shares_and_python_reads_the_backup() {
    let directory = TempDir::new().unwrap();
    let at = |name: &str| path(directory.path(), name);
    let mut custodians = Vec::new();
    let kinds = [
        ("ada", "RSA", "rsa_keygen_bits:3072"),
        ("grace", "EC", "ec_paramgen_curve:P-256"),
        ("emmy", "EC", "ec_paramgen_curve:P-384"),
    ];
    for (name, algorithm, parameter) in kinds {
        let (private, public) = (at(&format!("{name}.private")), at(&format!("{name}.public")));
        openssl(&["genpkey", "-algorithm", algorithm, "-pkeyopt", parameter, "-out", &private]);
        if name == "emmy" {
            // A certificate works as well.
            openssl(&["req", "-x509", "-new", "-key", &private, "-subj", "/CN=emmy", "-out", &public]);
        } else {
            openssl(&["pkey", "-in", &private, "-pubout", "-out", &public]);
        }
        let pem = fs::read(&public).unwrap();
        custodians.push(Custodian::new(CustodianName::new(name).unwrap(), &pem).unwrap());
    }
    let records = vec![
        record(RecordKind::Authority, "ca", &[7; 300]),
        record(RecordKind::Object, "big", &[1; 150_000]),
        record(RecordKind::Object, "empty", b""),
        record(RecordKind::Tombstone, "dead", b"2026-11-22"),
    ];
    let backup = directory.path().join("backup");
    back_up(&Server(records.clone()), &Custody::new(3, custodians).unwrap(), &backup, directory.path())
        .unwrap();

    let mut session = RestoreSession::open(&backup, Content::KeyServer).unwrap();
    let mut shares = Vec::new();
    for holder in &read_header(&backup).unwrap().custodians {
        let opened = at(&format!("{}.share", holder.name));
        let private = at(&format!("{}.private", holder.name));
        let words = [
            ("BACKUP", path(directory.path(), "backup")),
            ("NUMBER", holder.index.to_string()),
            ("PRIVATE", private),
            ("> share", format!("> {opened}")),
        ];
        let command = words.iter().fold(documented_command(holder.encryption), |command, (word, value)| {
            command.replace(word, value)
        });
        let output = Command::new("sh")
            .args(["-ec", &command])
            .env("SEALED", at(&format!("{}.sealed", holder.name)))
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
        let mut text = fs::read(&opened).unwrap();
        session.add_share(&SecretBytes::from_slice_and_wipe(&mut text).unwrap()).unwrap();
        shares.push(opened);
    }
    assert_eq!(session.verify().unwrap().objects, 2);

    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/read_backup.py");
    let output = Command::new("/usr/bin/python3").arg(script).arg(&backup).args(&shares).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read: Vec<(u8, String, String)> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let kinds = [2, 3, 3, 4];
    let expected: Vec<(u8, String, String)> = records
        .iter()
        .zip(kinds)
        .map(|(record, kind)| (kind, hex(&record.key), hex(&record.value)))
        .collect();
    assert_eq!(read, expected);
}
