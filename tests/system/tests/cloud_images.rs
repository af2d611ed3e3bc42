//! Images with a URL: fetched, verified, kept, and refused for every reason.

use std::time::Duration;

use strongroom_system_tests::{CommandLine, Process, Scratch, Serving};

use super::imports_and_exports::make_disk;

const WITHIN: Duration = Duration::from_secs(60);

/// A server with a certificate of an authority of its own.
fn serve(strongroom: &CommandLine<'_>) -> (Process, String) {
    let make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    let leaf = "-CA ca.pem -CAkey ca.key -addext basicConstraints=critical,CA:FALSE -addext subjectAltName=DNS:localhost";
    let made = format!(
        "{make} -subj /CN=authority -keyout ca.key -out ca.pem && \
         {make} -subj /CN=images {leaf} -keyout server.key -out server.pem"
    );
    strongroom.run_shell(&made).success();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cloud_images/server.py");
    let mut server =
        strongroom.start_shell("images", &format!("exec python3 {script} server.pem server.key disk.qcow2"));
    let address = server.wait_for_line("its address", WITHIN, |line| line.starts_with("https://"));
    (server, address)
}

#[test]
fn an_image_with_a_url_is_what_its_publisher_says_or_is_not_used() {
    let scratch = Scratch::new();
    let strongroom = CommandLine::new(&scratch);
    make_disk(&strongroom);
    strongroom.peer("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    let (server, address) = serve(&strongroom);
    let sum = |program: &str| {
        let said = strongroom.peer(program, &["disk.qcow2"]);
        said.split(' ').next().unwrap().to_owned()
    };
    let (sha256, sha512) = (sum("sha256sum"), sum("sha512sum"));
    let serving = Serving::start(&scratch);
    scratch.make_directory("ds");
    serving.runs("datastore add ds ds");
    let cached = || strongroom.run_shell("ls home/images").success();

    // Refused, with nothing made and nothing kept.
    let is_refused = |image: &str, says: &str| {
        let refused =
            serving.is_refused(&format!("vm create web1 --memory 256M --disk 200M --image {image}"));
        assert!(refused.contains(says) && !refused.contains("hidden"), "{image}: {refused}");
        assert!(serving.is_refused("vm show web1").contains("web1"), "{image}");
    };
    let creates = |name: &str, image: &str| {
        serving.runs(&format!("vm create {name} --memory 256M --disk 200M --image {image}"))
    };
    let wanted = format!("--sha256 {sha256} --image-ca ca.pem");
    is_refused(&format!("{address}/image --image-ca ca.pem"), "--sha256 HEX or --sha512 HEX");
    is_refused(&format!("http://localhost/image {wanted}"), "https alone");
    is_refused(&format!("{address}/image --sha256 {sha256}"), "cannot fetch");
    is_refused(&format!("{address}/nothing {wanted}"), "404");
    is_refused(&format!("{address}/downgraded {wanted}"), "cannot fetch");
    is_refused(&format!("{address}/circle {wanted}"), "cannot fetch");
    is_refused(&format!("'{address}/huge?token=hidden' {wanted}"), "has room for");
    is_refused(&format!("{address}/other {wanted}"), "is another file than that with the checksum");
    assert_eq!(cached(), "");
    let other = "ab".repeat(32);
    is_refused(&format!("disk.qcow2 --sha256 {other}"), "is another file than that with the checksum");

    // What breaks off goes on.
    is_refused(&format!("{address}/breaks {wanted}"), "cannot fetch");
    assert_eq!(cached(), format!("sha256-{sha256}.part\n"));
    creates("web1", &format!("{address}/breaks {wanted}"));
    serving.runs("vm export web1 copy.raw --format raw");
    strongroom.peer("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", "copy.raw"]);
    assert_eq!(cached(), format!("sha256-{sha256}\n"));

    // It is kept, but not believed.
    creates("web2", &format!("{address}/nothing {wanted}"));
    serving.runs("vm delete web1 --yes");
    strongroom.run_shell(&format!("printf x | dd of=home/images/sha256-{sha256} conv=notrunc")).success();
    is_refused(&format!("{address}/nothing {wanted}"), "404");
    creates("web3", &format!("{address}/moved --sha512 {sha512} --image-ca ca.pem"));
    serving.runs(&format!("vm disk import web3 disk0 disk.qcow2 --sha512 {sha512}"));
    server.kill();
}
