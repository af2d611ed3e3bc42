//! Writes an archive: the description first, then the manifest, then the disks, as OVF 1.1 wants
//! it.

use std::fmt::Write as _;

use strongroom_crypto::mac::{DIGEST_BYTES, sha256};
use strongroom_types::hex;

use crate::OvaError;
use crate::archive::{BLOCK_BYTES, sum};

/// The zeroes at the end of an archive, in bytes.
pub const END_BYTES: usize = 2 * BLOCK_BYTES as usize;
/// The longest content that a header states in octal digits, in bytes.
const OCTAL_MAX: u64 = (8 << 30) - 1;

/// A VM that is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Whether its firmware is UEFI.
    pub is_uefi: bool,
    /// Its network cards.
    pub nics: usize,
    /// Its disks.
    pub disks: Vec<WrittenDisk>,
}

/// A disk in the archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenDisk {
    /// Its file.
    pub file: String,
    /// The length of the file, in bytes.
    pub file_bytes: u64,
    /// SHA-256 of the file.
    pub sha256: [u8; DIGEST_BYTES],
    /// The size of the disk, in bytes.
    pub size_bytes: u64,
}

/// The header of a file in an archive.
///
/// # Errors
/// [`OvaError::Archive`] if the name is too long.
pub fn header(name: &str, length: u64) -> Result<[u8; BLOCK_BYTES as usize], OvaError> {
    let mut header = [0; BLOCK_BYTES as usize];
    let long = || OvaError::Archive(format!("the name {name} is too long for an archive"));
    header
        .get_mut(..name.len())
        .filter(|room| room.len() <= 100)
        .ok_or_else(long)?
        .copy_from_slice(name.as_bytes());
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    if length <= OCTAL_MAX {
        put(124, &format!("{length:011o}\0"));
    }
    put(136, "00000000000\0");
    put(156, "0");
    put(257, "ustar\u{0}00");
    if length > OCTAL_MAX {
        // As GNU tar and ovftool do.
        header[124] = 0x80;
        header[128..136].copy_from_slice(&length.to_be_bytes());
    }
    let sum = format!("{:06o}\0 ", sum(&header));
    header[148..156].copy_from_slice(sum.as_bytes());
    Ok(header)
}

/// The manifest of these files.
pub fn manifest(description: &str, text: &str, disks: &[WrittenDisk]) -> String {
    let of_description = (description, sha256(text.as_bytes()));
    let files =
        std::iter::once(of_description).chain(disks.iter().map(|disk| (disk.file.as_str(), disk.sha256)));
    files.fold(String::new(), |mut all, (name, digest)| {
        let _ = writeln!(all, "SHA256({name})= {}", hex::encode(&digest));
        all
    })
}

/// The description of a VM.
pub fn description(vm: &Described<'_>) -> String {
    let mut text = String::from(HEAD);
    // Writing into a text does not fail.
    let mut line = |what: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{what}");
    };
    let name = escaped(vm.name);
    line(format_args!("  <References>"));
    for (number, disk) in vm.disks.iter().enumerate() {
        let (file, bytes) = (escaped(&disk.file), disk.file_bytes);
        line(format_args!(r#"    <File ovf:id="file{number}" ovf:href="{file}" ovf:size="{bytes}"/>"#));
    }
    line(format_args!("  </References>\n  <DiskSection>\n    <Info>Its disks</Info>"));
    for (number, disk) in vm.disks.iter().enumerate() {
        let bytes = disk.size_bytes;
        line(format_args!(
            r#"    <Disk ovf:diskId="disk{number}" ovf:fileRef="file{number}" ovf:capacity="{bytes}" ovf:capacityAllocationUnits="byte" ovf:format="{STREAM_OPTIMIZED}"/>"#
        ));
    }
    line(format_args!("  </DiskSection>\n  <NetworkSection>\n    <Info>Its networks</Info>"));
    line(format_args!(
        r#"    <Network ovf:name="VM Network"><Description>A network</Description></Network>"#
    ));
    line(format_args!(
        "  </NetworkSection>\n  <VirtualSystem ovf:id=\"{name}\">\n    <Info>A virtual machine</Info>"
    ));
    line(format_args!("    <Name>{name}</Name>"));
    line(format_args!(
        "    <OperatingSystemSection ovf:id=\"1\"><Info>Its system</Info></OperatingSystemSection>"
    ));
    line(format_args!("    <VirtualHardwareSection>\n      <Info>Its hardware</Info>"));
    line(format_args!(
        "      <System><vssd:ElementName>Virtual Hardware Family</vssd:ElementName><vssd:InstanceID>0</vssd:InstanceID>\
         <vssd:VirtualSystemIdentifier>{name}</vssd:VirtualSystemIdentifier><vssd:VirtualSystemType>vmx-13</vssd:VirtualSystemType></System>"
    ));
    let cpus = vm.cpus;
    line(format_args!(
        "      <Item><rasd:AllocationUnits>hertz * 10^6</rasd:AllocationUnits><rasd:ElementName>{cpus} processors</rasd:ElementName>\
         <rasd:InstanceID>1</rasd:InstanceID><rasd:ResourceType>3</rasd:ResourceType><rasd:VirtualQuantity>{cpus}</rasd:VirtualQuantity></Item>"
    ));
    let mib = vm.memory_bytes >> 20;
    line(format_args!(
        "      <Item><rasd:AllocationUnits>byte * 2^20</rasd:AllocationUnits><rasd:ElementName>{mib} MB of memory</rasd:ElementName>\
         <rasd:InstanceID>2</rasd:InstanceID><rasd:ResourceType>4</rasd:ResourceType><rasd:VirtualQuantity>{mib}</rasd:VirtualQuantity></Item>"
    ));
    line(format_args!(
        "      <Item><rasd:Address>0</rasd:Address><rasd:ElementName>SATA controller</rasd:ElementName><rasd:InstanceID>3</rasd:InstanceID>\
         <rasd:ResourceSubType>AHCI</rasd:ResourceSubType><rasd:ResourceType>20</rasd:ResourceType></Item>"
    ));
    for number in 0..vm.disks.len() {
        let instance = 10 + number;
        line(format_args!(
            "      <Item><rasd:AddressOnParent>{number}</rasd:AddressOnParent><rasd:ElementName>disk{number}</rasd:ElementName>\
             <rasd:HostResource>ovf:/disk/disk{number}</rasd:HostResource><rasd:InstanceID>{instance}</rasd:InstanceID>\
             <rasd:Parent>3</rasd:Parent><rasd:ResourceType>17</rasd:ResourceType></Item>"
        ));
    }
    for number in 0..vm.nics {
        let instance = 100 + number;
        line(format_args!(
            "      <Item><rasd:AutomaticAllocation>true</rasd:AutomaticAllocation><rasd:Connection>VM Network</rasd:Connection>\
             <rasd:ElementName>network card {number}</rasd:ElementName><rasd:InstanceID>{instance}</rasd:InstanceID>\
             <rasd:ResourceSubType>E1000</rasd:ResourceSubType><rasd:ResourceType>10</rasd:ResourceType></Item>"
        ));
    }
    if vm.is_uefi {
        line(format_args!(r#"      <vmw:Config ovf:required="false" vmw:key="firmware" vmw:value="efi"/>"#));
    }
    line(format_args!("    </VirtualHardwareSection>\n  </VirtualSystem>\n</Envelope>"));
    text
}

const STREAM_OPTIMIZED: &str = "http://www.vmware.com/interfaces/specifications/vmdk.html#streamOptimized";

const HEAD: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<Envelope ovf:version="1.0" xml:lang="en-US" xmlns="http://schemas.dmtf.org/ovf/envelope/1" xmlns:ovf="http://schemas.dmtf.org/ovf/envelope/1" xmlns:rasd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_ResourceAllocationSettingData" xmlns:vssd="http://schemas.dmtf.org/wbem/wscim/1/cim-schema/2/CIM_VirtualSystemSettingData" xmlns:vmw="http://www.vmware.com/schema/ovf">
"#;

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use strongroom_types::VolumeSize;

    use super::*;
    use crate::archive::find;
    use crate::envelope;

    #[test]
    fn what_is_written_is_read_again() {
        let disk = WrittenDisk {
            file: "a&b-disk0.vmdk".to_owned(),
            file_bytes: 1000,
            sha256: [7; DIGEST_BYTES],
            size_bytes: 1 << 30,
        };
        let vm = Described {
            name: "a&b",
            cpus: 3,
            memory_bytes: 1 << 30,
            is_uefi: true,
            nics: 2,
            disks: vec![disk.clone(), WrittenDisk { file: "second".to_owned(), ..disk }],
        };
        let text = description(&vm);
        let read = envelope::read(&text).unwrap();
        assert_eq!((read.name.as_deref(), read.cpus, read.memory_bytes), (Some("a&b"), 3, 1 << 30));
        assert!(read.is_uefi && read.nics == 2);
        let size = VolumeSize::new(1 << 30).unwrap();
        let files: Vec<_> = read.disks.iter().map(|disk| (disk.file.as_deref(), disk.size)).collect();
        assert_eq!(files, [(Some("a&b-disk0.vmdk"), size), (Some("second"), size)]);
        let manifest = manifest("a.ovf", &text, &vm.disks);
        assert_eq!(manifest.lines().count(), 3);
        assert!(manifest.contains(&format!("SHA256(second)= {}", "07".repeat(32))));
    }

    #[test]
    fn lengths_of_any_size_are_in_a_header() {
        for length in [0, 511, OCTAL_MAX, OCTAL_MAX + 1, 5 << 40] {
            let header = header("a", length).unwrap();
            let found = find(length.next_multiple_of(512) + 512, |offset, into| {
                into.copy_from_slice(if offset == 0 { &header } else { &[0; 512] });
                Ok(())
            });
            assert_eq!(found.unwrap()[0].length, length);
        }
        assert!(header(&"x".repeat(101), 0).is_err());
    }
}
