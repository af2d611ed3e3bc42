//! Runs `qemu-img` in its sandbox: describes images, and copies their content into a volume or out
//! of one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;
use strongroom_io::{Disk, Plain};

use super::place::{FILE, Reached, RemoteImage, served_in, with_real_name};
use super::sandbox::{Finished, Sandbox};
use super::socket::{PrivateSocket, ServedDisk};
use super::{Format, ImageError, Stop};

const QEMU_IMG: &str = "/usr/bin/qemu-img";
/// Where the socket's directory is in the sandbox.
const SOCKET_DIRECTORY: &str = "/socket";
/// Where the output image is in the sandbox.
const OUTPUT_DIRECTORY: &str = "/out";

/// Processor time for examining an image, which takes milliseconds.
const INFO_CPU_SECONDS: u64 = 60;
/// Processor time for converting: ten times that of decompression on a slow machine.
const CONVERT_CPU_SECONDS: u64 = 600;
const CONVERT_CPU_SECONDS_PER_GIB: u64 = 60;

/// Exit statuses of `qemu-img check`: nothing found; space that nothing refers to, which is
/// harmless; a format without such a check.
const CHECK_CLEAN: i32 = 0;
const CHECK_LEAKS: i32 = 3;
const CHECK_UNSUPPORTED: i32 = 63;

/// The longest answer of `qemu-img info`: a thousand times an ordinary one.
const INFO_BYTES_MAX: usize = 1 << 20;
/// The longest message of `qemu-img` that is shown.
const MESSAGE_CHARACTERS_MAX: usize = 300;

/// The size of the disk that an image holds, in bytes. Refuses an image that is encrypted or not
/// self-contained.
pub(crate) fn virtual_size_bytes(format: Format, image: Reached<'_>, path: &Path) -> Result<u64, ImageError> {
    require_qemu_img()?;
    let mut answer = Vec::new();
    let mut heard =
        |bytes: &[u8]| answer.extend_from_slice(&bytes[..bytes.len().min(INFO_BYTES_MAX - answer.len())]);
    let name = image.name();
    let program = [QEMU_IMG, "info", "-f", format.name(), "--output=json", &name].map(OsStr::new);
    let sandbox = image.within(Sandbox::new(INFO_CPU_SECONDS))?;
    let finished = sandbox.run(&program, None, &mut heard)?;
    succeeded(finished, "read", path)?;
    let unclear = |message: String| ImageError::QemuImg { action: "read", path: path.to_owned(), message };
    let answer: Value = serde_json::from_slice(&answer).map_err(|error| unclear(error.to_string()))?;
    judge(&answer, format, &name, path)?;
    answer["virtual-size"].as_u64().ok_or_else(|| unclear("it does not tell the disk's size".to_owned()))
}

/// Refuses an image whose tables contradict each other or point beyond its end. Converting one
/// would not fail: data beyond the end of a truncated image reads as zeroes.
pub(crate) fn refuse_damaged(
    format: Format,
    image: Reached<'_>,
    path: &Path,
    size_bytes: u64,
) -> Result<(), ImageError> {
    let name = image.name();
    let program = [QEMU_IMG, "check", "-q", "-f", format.name(), &name].map(OsStr::new);
    let sandbox = image.within(Sandbox::new(convert_cpu_seconds(size_bytes)))?;
    let finished = sandbox.run(&program, None, &mut |_| {})?;
    match finished.status.code() {
        Some(CHECK_CLEAN | CHECK_LEAKS | CHECK_UNSUPPORTED) => Ok(()),
        _ => Err(ImageError::Damaged { path: path.to_owned(), message: shortened(&finished.stderr, path) }),
    }
}

/// Refuses an image that refers to other files according to `qemu-img`, whatever our own check has
/// found. `name` is what the image is called in the sandbox.
fn judge(answer: &Value, format: Format, name: &str, path: &Path) -> Result<(), ImageError> {
    let refers = |name: &Value, role| {
        let name = name.as_str().unwrap_or("a name of another form").to_owned();
        Err(ImageError::Refers { path: path.to_owned(), name, role })
    };
    if answer["format"] != format.name() {
        let reason = format!("qemu-img takes it for {}", answer["format"]);
        return Err(ImageError::OtherFormat { path: path.to_owned(), format, reason });
    }
    if answer["encrypted"] == true {
        return Err(ImageError::Encrypted { path: path.to_owned() });
    }
    if let Some(name) = answer.get("full-backing-filename").or_else(|| answer.get("backing-filename")) {
        return refers(name, "its backing file");
    }
    let details = &answer["format-specific"]["data"];
    if let Some(name) = details.get("data-file") {
        return refers(name, "its data file");
    }
    let extents = details["extents"].as_array().map(Vec::as_slice).unwrap_or_default();
    match extents.iter().find(|extent| extent["filename"] != name) {
        Some(extent) => refers(&extent["filename"], "its extent"),
        None => Ok(()),
    }
}

/// Copies the content of an image into a disk that reads as zeroes and has the image's size, and
/// makes it durable.
pub fn import(
    format: Format,
    file: &File,
    path: &Path,
    disk: Arc<dyn Disk<Plain>>,
    stop: Stop<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    Conversion::of_image(format, file, path, disk.limits().size_bytes)?.with(disk, stop, report)
}

/// As [`import`], of an image that is no file here.
pub(crate) fn import_remote(
    format: Format,
    image: Arc<dyn RemoteImage>,
    path: &Path,
    disk: Arc<dyn Disk<Plain>>,
    stop: Stop<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    let conversion = Conversion::of_remote_image(format, path, disk.limits().size_bytes)?;
    let served = conversion.image_listener().map(|listener| ServedDisk::on(listener, image)).transpose()?;
    let converted = conversion.with(disk, stop, report);
    // It was only read.
    drop(served.map(ServedDisk::stop));
    converted
}

/// Writes a disk to the new, empty file at `path`.
pub fn export(
    disk: Arc<dyn Disk<Plain>>,
    format: Format,
    path: &Path,
    stop: Stop<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    let size_bytes = disk.limits().size_bytes;
    // Use its real name: a VMDK stores its own name.
    let inside = Path::new(OUTPUT_DIRECTORY).join(path.file_name().unwrap_or_default());
    let sandbox = Sandbox::new(convert_cpu_seconds(size_bytes)).with_output(path, &inside);
    let image = Output { name: path, inside: &inside };
    Conversion::of_disk(format, image, sandbox, size_bytes)?.with(disk, stop, report)
}

/// What a raw file becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// An image of this format.
    Format(Format),
    /// A vmdk of VMware's compressed kind, as archives of VMs have them.
    StreamOptimizedVmdk,
}

/// Writes a raw file to the new, empty file at `path`, which this process may open.
///
/// # Errors
/// [`ImageError::NoSpace`], [`ImageError::Interrupted`], and the errors of `qemu-img`.
pub fn convert(
    raw: &File,
    written: Written,
    path: &Path,
    stop: Stop<'_>,
    report: &mut dyn FnMut(u64),
) -> Result<(), ImageError> {
    require_qemu_img()?;
    let failed = |error| ImageError::File { action: "read", path: path.to_owned(), error };
    let size_bytes = raw.metadata().map_err(failed)?.len();
    let inside = Path::new(OUTPUT_DIRECTORY).join(path.file_name().unwrap_or_default());
    let sandbox = Sandbox::new(convert_cpu_seconds(size_bytes)).with_input(raw)?.with_output(path, &inside);
    let format = match written {
        Written::Format(format) => vec!["-O", format.name()],
        Written::StreamOptimizedVmdk => vec!["-O", Format::Vmdk.name(), "-o", "subformat=streamOptimized"],
    };
    let verb = [QEMU_IMG, "convert", "-p", "-f", "raw"].into_iter().chain(format).chain([FILE]);
    let program: Vec<&OsStr> = verb.map(OsStr::new).chain([inside.as_os_str()]).collect();
    let mut heard = Percentage::new(size_bytes, report).listener();
    succeeded(sandbox.run(&program, Some(stop), &mut heard)?, "write", path)
}

/// The output image.
struct Output<'path> {
    /// Its name in errors.
    name: &'path Path,
    /// Where it is in the sandbox.
    inside: &'path Path,
}

/// A `qemu-img` that copies between an image and a disk. A process with the disk's keys serves the
/// disk to it; this process needs no keys.
pub struct Conversion {
    sandbox: Sandbox,
    program: Vec<OsString>,
    socket: PrivateSocket,
    /// Where its image is served, if it is no file.
    image: Option<PrivateSocket>,
    size_bytes: u64,
    action: &'static str,
    path: PathBuf,
}

impl Conversion {
    /// Prepares a copy from the image `file`, which is called `path` in errors, into a disk of this
    /// size that reads as zeroes.
    ///
    /// # Errors
    /// If the sandbox cannot be set up.
    pub fn of_image(format: Format, file: &File, path: &Path, size_bytes: u64) -> Result<Self, ImageError> {
        Self::of(format, Reached::File(file), path, size_bytes)
    }

    /// As [`of_image`](Self::of_image), from an image that is served at
    /// [`image_listener`](Self::image_listener).
    ///
    /// # Errors
    /// Also if there is no socket for it.
    pub fn of_remote_image(format: Format, path: &Path, size_bytes: u64) -> Result<Self, ImageError> {
        let image = PrivateSocket::make(None)?;
        let conversion = Self::of(format, Reached::Socket(&image), path, size_bytes)?;
        Ok(Self { image: Some(image), ..conversion })
    }

    fn of(format: Format, image: Reached<'_>, path: &Path, size_bytes: u64) -> Result<Self, ImageError> {
        let sandbox = image.within(Sandbox::new(convert_cpu_seconds(size_bytes)))?;
        let from = [QEMU_IMG, "convert", "-p", "-f", format.name(), "-O", "raw"];
        // Send many requests at once and in any order: the server is not a spinning disk.
        let how = ["-n", "--target-is-zero", "-W", "-m", "16", &image.name(), &served_in(SOCKET_DIRECTORY)];
        let program = from.into_iter().chain(how).map(OsString::from).collect();
        Self::new(sandbox, program, size_bytes, "read", path)
    }

    /// Prepares a copy from a disk of this size into a new, empty file that is open for reading and
    /// writing. No path to the file is needed.
    ///
    /// # Errors
    /// As [`of_image`](Self::of_image).
    pub fn into_image(format: Format, file: &File, size_bytes: u64) -> Result<Self, ImageError> {
        let inside = Path::new(OUTPUT_DIRECTORY).join(format!("disk.{}", format.name()));
        let sandbox = Sandbox::new(convert_cpu_seconds(size_bytes));
        let sandbox = sandbox.with_input(file)?.with_input_as_output(FILE, &inside);
        let image = Output { name: Path::new("the image"), inside: &inside };
        Self::of_disk(format, image, sandbox, size_bytes)
    }

    fn of_disk(
        format: Format,
        image: Output<'_>,
        sandbox: Sandbox,
        size_bytes: u64,
    ) -> Result<Self, ImageError> {
        require_qemu_img()?;
        // In order, each request would wait until the one before it has been allocated.
        let verb = [QEMU_IMG, "convert", "-p", "-f", "raw", "-O", format.name(), "-W", "-m", "16"];
        let places = [served_in(SOCKET_DIRECTORY).into(), image.inside.as_os_str().to_owned()];
        let program = verb.into_iter().map(OsString::from).chain(places).collect();
        Self::new(sandbox, program, size_bytes, "write", image.name)
    }

    fn new(
        sandbox: Sandbox,
        program: Vec<OsString>,
        size_bytes: u64,
        action: &'static str,
        path: &Path,
    ) -> Result<Self, ImageError> {
        let socket = PrivateSocket::make(sandbox.user())?;
        let sandbox = sandbox.with_directory(socket.directory(), Path::new(SOCKET_DIRECTORY));
        Ok(Self { sandbox, program, socket, image: None, size_bytes, action, path: path.to_owned() })
    }

    /// The listener at which the disk must be served ([`ServedDisk::start`]).
    pub fn listener(&self) -> BorrowedFd<'_> {
        self.socket.listener()
    }

    /// The listener at which the image must be served, if it is no file.
    pub fn image_listener(&self) -> Option<BorrowedFd<'_>> {
        self.image.as_ref().map(PrivateSocket::listener)
    }

    /// Copies, as soon as the disk is served. The disk's content is durable once its server has
    /// stopped.
    ///
    /// # Errors
    /// [`ImageError::NoSpace`], [`ImageError::Interrupted`], and the errors of `qemu-img`.
    pub fn run(self, stop: Stop<'_>, report: &mut dyn FnMut(u64)) -> Result<(), ImageError> {
        let program: Vec<&OsStr> = self.program.iter().map(OsString::as_os_str).collect();
        let mut heard = Percentage::new(self.size_bytes, report).listener();
        succeeded(self.sandbox.run(&program, Some(stop), &mut heard)?, self.action, &self.path)
    }

    /// Copies from or into this disk.
    fn with(
        self,
        disk: Arc<dyn Disk<Plain>>,
        stop: Stop<'_>,
        report: &mut dyn FnMut(u64),
    ) -> Result<(), ImageError> {
        let served = ServedDisk::on(self.listener(), disk)?;
        let converted = self.run(stop, report);
        // Stop it even after a failure: the disk must be released before the volume can be deleted.
        let stopped = served.stop();
        converted?;
        stopped
    }
}

fn convert_cpu_seconds(size_bytes: u64) -> u64 {
    CONVERT_CPU_SECONDS + (size_bytes >> 30) * CONVERT_CPU_SECONDS_PER_GIB
}

/// Inside and outside the sandbox `/usr` is the same.
fn require_qemu_img() -> Result<(), ImageError> {
    match Path::new(QEMU_IMG).exists() {
        true => Ok(()),
        false => Err(ImageError::Missing { program: "qemu-img", package: "qemu-utils" }),
    }
}

fn succeeded(finished: Finished, action: &'static str, path: &Path) -> Result<(), ImageError> {
    if finished.status.success() {
        return Ok(());
    }
    // The C library's message for ENOSPC in an empty environment.
    if finished.stderr.contains("No space left on device") {
        return Err(ImageError::NoSpace);
    }
    let mut message = shortened(&finished.stderr, path);
    if message.is_empty() {
        message = format!("it ended without a word ({})", finished.status);
    }
    Err(ImageError::QemuImg { action, path: path.to_owned(), message })
}

/// The message of `qemu-img` on one line, with the image's real name, cut to
/// [`MESSAGE_CHARACTERS_MAX`].
fn shortened(stderr: &str, path: &Path) -> String {
    let text = stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    let text = with_real_name(text.trim_start_matches("qemu-img: "), &path.to_string_lossy());
    let mut characters = text.chars();
    let mut shown: String = characters.by_ref().take(MESSAGE_CHARACTERS_MAX).collect();
    if characters.next().is_some() {
        shown.push_str(" ...");
    }
    printable(&shown)
}

/// The text with control characters escaped: it may repeat names from an untrusted image.
fn printable(text: &str) -> String {
    let escape = |character: char| match character.is_control() {
        true => character.escape_default().collect::<String>(),
        false => character.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Reads the progress of `qemu-img -p`: `    (12.34/100%)` and a carriage return, repeatedly.
struct Percentage<'a> {
    size_bytes: u64,
    report: &'a mut dyn FnMut(u64),
    line: Vec<u8>,
}

impl<'a> Percentage<'a> {
    fn new(size_bytes: u64, report: &'a mut dyn FnMut(u64)) -> Self {
        Self { size_bytes, report, line: Vec::new() }
    }

    fn listener(mut self) -> impl FnMut(&[u8]) {
        move |bytes| bytes.iter().for_each(|byte| self.hear(*byte))
    }

    fn hear(&mut self, byte: u8) {
        // Longer than any line that we parse.
        if byte != b'\r' && byte != b'\n' && self.line.len() < 64 {
            return self.line.push(byte);
        }
        let line = String::from_utf8_lossy(&self.line);
        let percent = line.trim().strip_prefix('(').and_then(|rest| rest.split_once('/'));
        if let Some(Ok(percent)) = percent.map(|(percent, _)| percent.parse::<f64>()) {
            let share = (percent / 100.0).clamp(0.0, 1.0);
            (self.report)((self.size_bytes as f64 * share) as u64);
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_qemu_img_understood_is_judged() {
        let verdict = |format, answer: Value| {
            judge(&answer, format, FILE, Path::new("disk")).map_err(|error| error.code())
        };
        let plain = json!({ "format": "qcow2", "format-specific": { "data": { "compat": "1.1" } } });
        assert_eq!(verdict(Format::Qcow2, plain.clone()), Ok(()));
        assert_eq!(verdict(Format::Vhdx, plain), Err("image_format"));
        for answer in [
            json!({ "format": "qcow2", "backing-filename": "/etc/shadow" }),
            json!({ "format": "qcow2", "full-backing-filename": {} }),
            json!({ "format": "qcow2", "format-specific": { "data": { "data-file": "x" } } }),
        ] {
            assert_eq!(verdict(Format::Qcow2, answer), Err("image_refers_to_other_file"));
        }
        assert_eq!(
            verdict(Format::Qcow2, json!({ "format": "qcow2", "encrypted": true })),
            Err("image_encrypted")
        );
        let vmdk = |name| json!({ "format": "vmdk", "format-specific": { "data": { "extents": [{ "filename": name }] } } });
        assert_eq!(verdict(Format::Vmdk, vmdk(FILE)), Ok(()));
        assert_eq!(verdict(Format::Vmdk, vmdk("/etc/shadow")), Err("image_refers_to_other_file"));
    }

    #[test]
    fn progress_is_read_in_pieces_of_any_size() {
        let mut reports = Vec::new();
        let mut report = |bytes| reports.push(bytes);
        let mut listener = Percentage::new(1000, &mut report).listener();
        b"    (0.00/100%)\r    (12.50/100%)\rnonsense\r(150/100%)\n".chunks(3).for_each(&mut listener);
        drop(listener);
        assert_eq!(reports, [0, 125, 1000]);
    }

    #[test]
    fn complaints_are_one_short_line_about_the_users_file() {
        let said = "qemu-img: Could not open '/proc/self/fd/0': Image is not in\n qcow2 format\x1b[2J\n";
        assert_eq!(
            shortened(said, Path::new("a.qcow2")),
            "Could not open 'a.qcow2': Image is not in qcow2 format\\u{1b}[2J"
        );
        assert_eq!(shortened(&"x".repeat(5000), Path::new("a")).len(), MESSAGE_CHARACTERS_MAX + 4);
    }
}
