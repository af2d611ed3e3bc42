//! `strongroom evidence`: what the key server knows of keys, signed, for an auditor.

use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use strongroom_api::vm::VmView;
use strongroom_files::FileError;
use strongroom_keyserver::evidence::{Conclusion, Evidence, KeyFacts, NeededBy, Reader, Subject};
use strongroom_keyserver::management::protocol::EvidenceAnswer;
use strongroom_keyserver::management::questions::MakeEvidence;
use strongroom_keyserver::objects::id::ObjectId;
use strongroom_keyserver::objects::lifecycle::State;
use strongroom_types::VmId;

use crate::api::segment;
use crate::error::CliError;
use crate::key::object_id;
use crate::keyserver::AdministrationArguments;
use crate::new_file::NewFile;
use crate::output::{Output, Table};

/// The arguments of `evidence`.
#[derive(Debug, Args)]
#[command(
    after_help = "The file has, of each key: its state, its owner and VM, what needs it, what became of the data keys \
that were under it, and who got it; beside it a signed head of the audit log, the records that all this is made of, the \
clients with their roles, and what cannot be known, such as copies made by other means. It is signed by the key that \
signs the audit log's heads (audit.pub in the key server's state), and the audit log has its hash. Anybody can verify it \
with verify-evidence, which needs Python and OpenSSL and nothing of Strongroom's: it is in /usr/share/strongroom, and in \
scripts of the source.

With --vm it is about all keys that were made for the VM, also those that it has left, and also after the VM was deleted \
(give its id). So it is the report of a re-encryption ('vm key rotate --data', 'volume rekey --data') and of a destroyed \
key. A text that the auditor has chosen (--challenge) shows that the file is no earlier one.

This needs an administrator's or auditor's certificate.

Examples:
  strongroom evidence --output all.evidence
  strongroom evidence --vm web1 --challenge 'audit of May' --output web1.evidence
  strongroom evidence --key 7d1c0f1e-8b1f-4a2c-9e53-0c6f2d9b8a11 --output key.evidence
  strongroom evidence --server kms1:5697 --identity ./auditor --output kms1.evidence"
)]
pub struct EvidenceArguments {
    /// Only about the keys of the VM, by name or id
    #[arg(long, value_name = "VM")]
    vm: Option<String>,

    /// Only about the key with this id at the key server; repeatable
    #[arg(long = "key", value_name = "KEY")]
    keys: Vec<String>,

    /// Text of the auditor for the file, up to 128 bytes
    #[arg(long, value_name = "TEXT")]
    challenge: Option<String>,

    /// File to write, which must not exist
    #[arg(long, value_name = "FILE")]
    output: PathBuf,

    #[command(flatten)]
    server: AdministrationArguments,
}

#[derive(Serialize)]
struct Written {
    file: PathBuf,
    /// The key that signed it.
    signed_by: String,
    /// The audit log, and the line up to which it is what the file is made of.
    log: String,
    sequence: u64,
    /// Whether all records about the keys are in the file.
    complete: bool,
    keys: Vec<Key>,
}

#[derive(Serialize)]
struct Key {
    key: ObjectId,
    state: State,
    conclusion: Conclusion,
    needed_by: NeededBy,
    readers: Vec<Reader>,
}

impl From<KeyFacts> for Key {
    fn from(facts: KeyFacts) -> Self {
        let KeyFacts { key, state, conclusion, needed_by, readers, .. } = facts;
        Self { key, state, conclusion, needed_by, readers }
    }
}

impl Key {
    fn row(&self) -> [String; 4] {
        let state = match self.state {
            State::Compromised => "COMPROMISED",
            state => state.word(),
        };
        let got_it = self.readers.iter().filter(|reader| reader.released > 0);
        let names: Vec<&str> = got_it.map(|reader| reader.name.as_str()).collect();
        [self.key.to_string(), state.to_owned(), self.conclusion(), names.join(", ")]
    }

    fn conclusion(&self) -> String {
        match (self.conclusion, &self.needed_by) {
            (Conclusion::Needed, NeededBy::Found(names)) => format!("needed by {}", names.len()),
            (Conclusion::Needed, _) => "needed".to_owned(),
            (Conclusion::Unknown, NeededBy::NotSearched) => "not searched for; name it with --key".to_owned(),
            (Conclusion::Unknown, _) => "UNKNOWN: a datastore cannot be read".to_owned(),
            (Conclusion::DataKeysInUse, _) => "unneeded, but its data keys are IN USE".to_owned(),
            (Conclusion::UnneededWithoutRecord, _) => "unneeded; no re-encryption is on record".to_owned(),
            (Conclusion::Unneeded, _) => "unneeded, and so are its data keys".to_owned(),
        }
    }
}

impl fmt::Display for Written {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, signed_by, log, sequence, complete, keys } = self;
        let head = ["KEY", "STATE", "CONCLUSION", "RELEASED TO"];
        if !keys.is_empty() {
            writeln!(f, "{}", Table { head, rows: keys.iter().map(Key::row).collect() })?;
        }
        if !complete {
            writeln!(
                f,
                "not all records are in it: there are more than 1000, or older files of the log were removed"
            )?;
        }
        writeln!(
            f,
            "{}: signed by {signed_by}, up to line {sequence} of the audit log {log}",
            file.display()
        )?;
        write!(f, "verify it with: verify-evidence {} --key audit.pub", file.display())
    }
}

impl EvidenceArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let keys = self.keys.iter().map(|key| object_id(key)).collect::<Result<_, _>>()?;
        let about = Subject { vm: self.vm.as_deref().map(|vm| self.vm_id(vm)).transpose()?, keys };
        let question = MakeEvidence { about, challenge: self.challenge.clone() };
        let EvidenceAnswer { file: text } = self.server.administrator()?.ask(question)?;
        let evidence = Evidence::unverified(&text).ok_or_else(|| {
            CliError::Usage(
                "the key server's evidence cannot be read: is it newer than this program?".to_owned(),
            )
        })?;
        let path = self.output.as_path();
        let file = NewFile::create(path)?;
        file.file()
            .write_all(text.as_bytes())
            .map_err(|error| CliError::File(FileError { action: "write", path: path.to_owned(), error }))?;
        file.finish()?;
        let Evidence { log, keys, records, .. } = evidence;
        output.answer(&Written {
            file: self.output.clone(),
            signed_by: log.head.key,
            log: log.head.log,
            sequence: log.head.sequence,
            complete: records.is_complete,
            keys: keys.into_iter().map(Key::from).collect(),
        })
    }

    /// The control plane knows names; the key server has ids, also of VMs that were deleted.
    fn vm_id(&self, vm: &str) -> Result<VmId, CliError> {
        if let Ok(id) = vm.parse() {
            return Ok(id);
        }
        let asked = self.server.control_plane().and_then(|api| api.get(&format!("/v1/vms/{}", segment(vm))));
        let view: VmView = asked.map_err(|error| {
            CliError::Usage(format!(
                "{vm} is a name, which only the control plane knows, and not an id: {error}; give the VM's id if it is \
                 elsewhere, or deleted"
            ))
        })?;
        Ok(view.summary.id)
    }
}
