//! The seed of cloud-init in a guest (NoCloud): a small disk that is made here in memory, and sent
//! to the VM's host as an image. User data may contain passwords, so it is never copied to a file,
//! an argument or a message to the control plane.

use std::fmt;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use fatfs::{FileSystem, FormatVolumeOptions, FsOptions, format_volume};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::Serialize;
use strongroom_api::vm::VmView;
use strongroom_files::FileError;
use zeroize::Zeroizing;

use super::disk::{Upload, disk_name, import};
use crate::api::{ApiArguments, segment};
use crate::error::CliError;
use crate::output::Output;

/// The longest file, in bytes: several times the limit of clouds.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The size of the disk: that of the volume `seed`.
const DISK_BYTES: u64 = 4 << 20;
/// The name of the disk.
pub const SEED_DISK: &str = "seed";
/// The label by which cloud-init finds the disk.
const LABEL: [u8; 11] = *b"cidata     ";

/// The seed of cloud-init.
#[derive(Debug, Args)]
pub struct SeedArguments {
    /// User data for cloud-init, on a sealed disk that is read-only for the guest
    #[arg(long, value_name = "FILE")]
    user_data: Option<PathBuf>,

    /// Meta-data for cloud-init [default: the VM's id and name]
    #[arg(long, value_name = "FILE", requires = "user_data")]
    meta_data: Option<PathBuf>,

    /// Network configuration for cloud-init
    #[arg(long, value_name = "FILE", requires = "user_data")]
    network_config: Option<PathBuf>,
}

/// The arguments of `seed`.
#[derive(Debug, Args)]
#[command(
    after_help = "The VM must be off, and must have been created with --user-data. cloud-init runs its \
per-instance actions again only if the VM's instance id changes: give a --meta-data with a new one.

Example:
  strongroom vm seed web1 --user-data user-data.yaml"
)]
pub struct SetSeedArguments {
    /// Name or id of the VM
    vm: String,

    #[command(flatten)]
    seed: SeedArguments,

    #[command(flatten)]
    api: ApiArguments,
}

#[derive(Serialize)]
struct Replaced {
    vm: String,
}

impl fmt::Display for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has another seed, from its next start on", self.vm)
    }
}

impl SetSeedArguments {
    /// Runs the command.
    pub fn run(&self, output: &Output) -> Result<(), CliError> {
        let seed = self.seed.read()?;
        let seed = seed.ok_or_else(|| CliError::Usage("say what it is, with --user-data FILE".to_owned()))?;
        let api = self.api.connect()?;
        let vm: VmView = api.get(&format!("/v1/vms/{}", segment(&self.vm)))?;
        import(&api, output, vm.summary.name.as_str(), &disk_name(SEED_DISK)?, &seed.image(&vm)?)?;
        output.answer(&Replaced { vm: vm.summary.name.to_string() })
    }
}

/// The content of a seed.
pub struct Seed {
    user_data: Zeroizing<Vec<u8>>,
    meta_data: Option<Zeroizing<Vec<u8>>>,
    network_config: Option<Zeroizing<Vec<u8>>>,
}

impl SeedArguments {
    /// Whether a seed was requested.
    pub fn is_wanted(&self) -> bool {
        self.user_data.is_some()
    }

    /// Reads the files; called before any change.
    pub fn read(&self) -> Result<Option<Seed>, CliError> {
        let Some(user_data) = &self.user_data else { return Ok(None) };
        let optional = |path: &Option<PathBuf>| path.as_deref().map(read_file).transpose();
        Ok(Some(Seed {
            user_data: read_file(user_data)?,
            meta_data: optional(&self.meta_data)?,
            network_config: optional(&self.network_config)?,
        }))
    }
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, CliError> {
    let failed = |error| CliError::File(FileError { action: "read", path: path.to_owned(), error });
    let mut content = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX as usize + 1));
    let file = File::open(path).map_err(failed)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        return Err(CliError::Usage(format!("{} is longer than {FILE_BYTES_MAX} bytes", path.display())));
    }
    Ok(content)
}

impl Seed {
    /// The disk with the seed, as an image.
    pub fn image(&self, vm: &VmView) -> Result<Upload, CliError> {
        let (name, id) = (vm.summary.name.as_str(), vm.summary.id);
        let meta_data = format!("instance-id: {id}\nlocal-hostname: {name}\n");
        let made = |error| CliError::File(FileError { action: "make in memory", path: "seed".into(), error });
        let disk = self.disk(meta_data.as_bytes()).map_err(made)?;
        Upload::raw(disk)
    }

    /// A disk with a FAT file system in memory, in a file without a name.
    fn disk(&self, meta_data: &[u8]) -> std::io::Result<File> {
        let disk = File::from(memfd_create("seed", MemfdFlags::CLOEXEC)?);
        disk.set_len(DISK_BYTES)?;
        format_volume(&disk, FormatVolumeOptions::new().volume_label(LABEL))?;
        // It reads from the file's current position.
        (&disk).rewind()?;
        let file_system = FileSystem::new(&disk, FsOptions::new())?;
        let files = [
            ("user-data", Some(self.user_data.as_slice())),
            ("meta-data", Some(self.meta_data.as_ref().map_or(meta_data, |given| given.as_slice()))),
            ("network-config", self.network_config.as_ref().map(|given| given.as_slice())),
        ];
        for (name, content) in files {
            if let Some(content) = content {
                let mut file = file_system.root_dir().create_file(name)?;
                file.write_all(content)?;
                file.flush()?;
            }
        }
        file_system.unmount()?;
        (&disk).rewind()?;
        Ok(disk)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_seed_is_a_file_system_with_its_label_and_long_names() {
        let seed = Seed {
            user_data: Zeroizing::new(vec![b'u'; FILE_BYTES_MAX as usize]),
            meta_data: Some(Zeroizing::new(vec![b'm'; FILE_BYTES_MAX as usize])),
            network_config: Some(Zeroizing::new(vec![b'n'; FILE_BYTES_MAX as usize])),
        };
        let disk = seed.disk(b"").unwrap();
        let file_system = FileSystem::new(&disk, FsOptions::new()).unwrap();
        assert_eq!(file_system.volume_label(), "cidata");
        let mut content = Vec::new();
        file_system.root_dir().open_file("network-config").unwrap().read_to_end(&mut content).unwrap();
        assert!(content.len() as u64 == FILE_BYTES_MAX && content.iter().all(|byte| *byte == b'n'));
        drop(file_system);
        // Where programs look for a label first: BS_VolLab of FAT12 and FAT16.
        let mut label = [0; 6];
        disk.read_exact_at(&mut label, 43).unwrap();
        assert_eq!(&label, b"cidata");
    }

    #[test]
    fn a_file_that_is_too_long_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(FILE_BYTES_MAX).unwrap();
        read_file(file.path()).unwrap();
        file.as_file().set_len(FILE_BYTES_MAX + 1).unwrap();
        assert!(read_file(file.path()).is_err());
    }
}
