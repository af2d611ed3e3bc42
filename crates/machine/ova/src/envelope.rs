//! The description of a VM (OVF envelope), as far as it can be taken over.

use strongroom_types::{SECTOR_BYTES, VolumeSize};
use strongroom_vm::limits::DISKS_MAX;
use strongroom_xml::Element;

use crate::OvaError;

/// The longest description, in bytes.
pub const BYTES_MAX: u64 = 4 << 20;

// Types of hardware (CIM_ResourceAllocationSettingData, DSP0243 table 2).
const PROCESSOR: u32 = 3;
const MEMORY: u32 = 4;
const NETWORK_CARD: u32 = 10;
const CD_DRIVE: u32 = 15;
const DVD_DRIVE: u32 = 16;
const DISK: u32 = 17;

/// A VM that is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// Its name.
    pub name: Option<String>,
    /// Its processors.
    pub cpus: u32,
    /// Its memory, in bytes.
    pub memory_bytes: u64,
    /// Whether its firmware is UEFI.
    pub is_uefi: bool,
    /// Its network cards.
    pub nics: usize,
    /// Its disks, in the order in which its controllers have them.
    pub disks: Vec<Disk>,
    /// What is not taken over, for people.
    pub notes: Vec<String>,
}

/// A disk that is described.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The file in the archive with its content; an empty disk has none.
    pub file: Option<String>,
    /// Its size.
    pub size: VolumeSize,
}

/// Reads a description.
///
/// # Errors [`OvaError::Envelope`] if it cannot be read, and [`OvaError::Unsupported`] if no VM
/// here can be what it describes.
pub fn read(text: &str) -> Result<Envelope, OvaError> {
    let document = Element::read(text).map_err(OvaError::Envelope)?;
    let wrong = |what: &str| OvaError::Envelope(what.to_owned());
    let root = document.first_local("Envelope").ok_or_else(|| wrong("it has no Envelope"))?;
    if root.first_local("VirtualSystemCollection").is_some() || root.all_local("VirtualSystem").count() > 1 {
        return Err(OvaError::Unsupported("it describes several VMs; export one at a time".to_owned()));
    }
    let system = root.first_local("VirtualSystem").ok_or_else(|| wrong("it has no VirtualSystem"))?;
    let hardware = system.first_local("VirtualHardwareSection");
    let hardware = hardware.ok_or_else(|| wrong("it has no VirtualHardwareSection"))?;
    let items = items_of(hardware)?;
    let mut notes = notes_of(root, system, hardware, &items);
    let is_uefi = is_uefi(system, hardware);
    let disks = disks_of(root, &items, &mut notes)?;
    let cpus = quantity(&items, PROCESSOR).unwrap_or(1);
    let memory = items.iter().find(|item| item.kind == MEMORY);
    let memory = memory.ok_or_else(|| wrong("it does not say how much memory the VM has"))?;
    let unit = allocation_unit(memory.text("AllocationUnits").unwrap_or("byte * 2^20"))?;
    let memory_bytes = memory.quantity().and_then(|quantity| quantity.checked_mul(unit));
    Ok(Envelope {
        name: system.first_local("Name").map(|name| name.text().to_owned()).filter(|name| !name.is_empty()),
        cpus: u32::try_from(cpus).map_err(|_| wrong("it has too many processors"))?,
        memory_bytes: memory_bytes.ok_or_else(|| wrong("its memory is no number"))?,
        is_uefi,
        nics: items.iter().filter(|item| item.kind == NETWORK_CARD).count(),
        disks,
        notes,
    })
}

/// A part of the hardware.
struct Item<'a> {
    kind: u32,
    element: &'a Element,
}

impl Item<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        self.element.first_local(name).map(Element::text).filter(|text| !text.is_empty())
    }

    fn quantity(&self) -> Option<u64> {
        self.text("VirtualQuantity")?.parse().ok()
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// The items of the default configuration: others name theirs.
fn items_of(hardware: &Element) -> Result<Vec<Item<'_>>, OvaError> {
    let is_item =
        |element: &&Element| matches!(element.local_name(), "Item" | "StorageItem" | "EthernetPortItem");
    hardware
        .children()
        .iter()
        .filter(is_item)
        .filter(|element| element.attribute_local("configuration").is_none())
        .map(|element| {
            let kind = element.first_local("ResourceType").and_then(|kind| kind.text().parse().ok());
            let kind =
                kind.ok_or_else(|| OvaError::Envelope("a part of its hardware has no type".to_owned()))?;
            Ok(Item { kind, element })
        })
        .collect()
}

fn quantity(items: &[Item<'_>], kind: u32) -> Option<u64> {
    items.iter().find(|item| item.kind == kind)?.quantity()
}

/// The bytes of a unit, as in `byte * 2^20` (DSP0004), or in words that VMware used.
fn allocation_unit(text: &str) -> Result<u64, OvaError> {
    let unclear = || OvaError::Envelope(format!("{} is no unit of bytes", text.escape_debug()));
    let plain = text.replace(' ', "").to_ascii_lowercase();
    match plain.as_str() {
        "byte" | "bytes" => return Ok(1),
        "kilobytes" => return Ok(1 << 10),
        "megabytes" => return Ok(1 << 20),
        "gigabytes" => return Ok(1 << 30),
        _ => {}
    }
    let factor = plain.strip_prefix("byte*").ok_or_else(unclear)?;
    match factor.split_once('^') {
        Some(("2", power)) => {
            let power: u32 = power.parse().map_err(|_| unclear())?;
            1_u64.checked_shl(power).filter(|unit| *unit > 0 && power < 50).ok_or_else(unclear)
        }
        Some(_) => Err(unclear()),
        None => factor.parse().map_err(|_| unclear()),
    }
}

fn disks_of(root: &Element, items: &[Item<'_>], notes: &mut Vec<String>) -> Result<Vec<Disk>, OvaError> {
    let wrong = |what: String| OvaError::Envelope(what);
    let mut described: Vec<&Item<'_>> = items.iter().filter(|item| item.kind == DISK).collect();
    // In the order of the controllers, and on each of them in its own.
    let controller = |item: &Item<'_>| {
        let parent = item.text("Parent");
        items.iter().position(|other| parent.is_some() && other.text("InstanceID") == parent)
    };
    described.sort_by_key(|item| (controller(item), item.number("AddressOnParent")));
    if described.len() > DISKS_MAX {
        return Err(OvaError::Unsupported(format!("it has more than {DISKS_MAX} disks")));
    }
    let disks = root.first_local("DiskSection").map(Element::children).unwrap_or_default();
    let files = root.first_local("References").map(Element::children).unwrap_or_default();
    let with = |elements: &'_ [Element], attribute: &str, value: &str| {
        elements.iter().position(|element| element.attribute_local(attribute) == Some(value))
    };
    let mut found = Vec::new();
    for item in described {
        let resource = item.text("HostResource").unwrap_or_default();
        let id = resource.rsplit('/').next().unwrap_or_default();
        let disk = with(disks, "diskId", id).map(|at| &disks[at]);
        let disk = disk.ok_or_else(|| wrong(format!("it has no disk {}", id.escape_debug())))?;
        if disk.attribute_local("parentRef").is_some() {
            return Err(OvaError::Unsupported("a disk depends on another one; flatten it first".to_owned()));
        }
        let capacity: Option<u64> = disk.attribute_local("capacity").and_then(|text| text.parse().ok());
        let unit = allocation_unit(disk.attribute_local("capacityAllocationUnits").unwrap_or("byte"))?;
        let bytes = capacity.and_then(|capacity| capacity.checked_mul(unit));
        let bytes =
            bytes.ok_or_else(|| wrong(format!("the size of disk {} is no number", id.escape_debug())))?;
        let size = VolumeSize::new(bytes.next_multiple_of(SECTOR_BYTES))
            .map_err(|error| OvaError::Unsupported(format!("disk {}: {error}", id.escape_debug())))?;
        let file = match disk.attribute_local("fileRef") {
            None => None,
            Some(reference) => Some(file_of(with(files, "id", reference).map(|at| &files[at]), reference)?),
        };
        found.push(Disk { file, size });
    }
    if found.is_empty() {
        notes.push("it has no disks".to_owned());
    }
    Ok(found)
}

fn file_of(file: Option<&Element>, reference: &str) -> Result<String, OvaError> {
    let reference = reference.escape_debug();
    let file = file.ok_or_else(|| OvaError::Envelope(format!("it has no file {reference}")))?;
    if file.attribute_local("compression").is_some_and(|compression| !compression.is_empty()) {
        return Err(OvaError::Unsupported(format!("file {reference} is compressed; export it without")));
    }
    if file.attribute_local("chunkSize").is_some() {
        return Err(OvaError::Unsupported(format!("file {reference} is in pieces; export it without")));
    }
    let href = file.attribute_local("href");
    let href = href.ok_or_else(|| OvaError::Envelope(format!("file {reference} has no name")))?;
    match href.contains("://") {
        true => {
            Err(OvaError::Unsupported(format!("file {reference} is on a server, and not in the archive")))
        }
        false => Ok(href.strip_prefix("./").unwrap_or(href).to_owned()),
    }
}

/// UEFI, as VMware and VirtualBox say it.
fn is_uefi(system: &Element, hardware: &Element) -> bool {
    let vmware = hardware.all_local("Config").any(|config| {
        let said = |name| config.attribute_local(name);
        said("key") == Some("firmware")
            && said("value").is_some_and(|value| value.eq_ignore_ascii_case("efi"))
    });
    let machine = system.first_local("Machine").and_then(|machine| machine.first_local("Hardware"));
    let firmware = machine.and_then(|hardware| hardware.first_local("Firmware"));
    vmware
        || firmware
            .and_then(|firmware| firmware.attribute_local("type"))
            .is_some_and(|kind| kind.to_ascii_uppercase().starts_with("EFI"))
}

fn notes_of(root: &Element, system: &Element, hardware: &Element, items: &[Item<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |is_so: bool, text: &str| {
        if is_so {
            notes.push(text.to_owned());
        }
    };
    let has = |kinds: &[u32]| items.iter().any(|item| kinds.contains(&item.kind));
    note(has(&[CD_DRIVE, DVD_DRIVE]), "its CD drives are left out (vm create --cdrom)");
    note(has(&[14, 23, 35]), "floppy drives, USB controllers and sound cards are left out");
    note(
        has(&[5, 6, 20]),
        "its disks become virtio disks: a guest without their drivers does not find them (docs/IMPORT.md)",
    );
    let cards = items.iter().filter(|item| item.kind == NETWORK_CARD).count();
    note(cards > 0, "its network cards get new addresses, and the networks that --net says");
    note(
        system.first_local("ProductSection").is_some_and(|product| product.first_local("Property").is_some()),
        "the properties that its guest would read at its first start are left out",
    );
    note(
        system.first_local("EulaSection").is_some(),
        "it has a licence agreement, which nobody accepted here",
    );
    note(
        hardware.all_local("Config").any(|config| {
            config.attribute_local("key").is_some_and(|key| key.to_ascii_lowercase().contains("secureboot"))
                && config.attribute_local("value") == Some("true")
        }),
        "secure boot is left out",
    );
    note(root.first_local("DeploymentOptionSection").is_some(), "only its default configuration is taken");
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    const VIRTUALBOX: &str = include_str!("recorded/virtualbox.ovf");
    const VMWARE: &str = include_str!("recorded/vmware.ovf");

    #[test]
    fn what_virtualbox_and_vmware_write_is_read() {
        let vm = read(VIRTUALBOX).unwrap();
        assert_eq!((vm.name.as_deref(), vm.cpus, vm.memory_bytes), (Some("web1"), 2, 1 << 30));
        assert!(!vm.is_uefi && vm.nics == 1);
        let size = VolumeSize::new(8 << 30).unwrap();
        assert_eq!(vm.disks, [Disk { file: Some("web1-disk001.vmdk".to_owned()), size }]);
        assert!(vm.notes.iter().any(|note| note.contains("virtio")), "{:?}", vm.notes);
        let vm = read(VMWARE).unwrap();
        assert_eq!((vm.name.as_deref(), vm.cpus, vm.memory_bytes), (Some("appliance"), 4, 4 << 30));
        assert!(vm.is_uefi && vm.nics == 2);
        // By their controllers and places, and not in the order of the text.
        let files: Vec<_> = vm.disks.iter().map(|disk| disk.file.as_deref()).collect();
        assert_eq!(files, [Some("appliance-1.vmdk"), Some("appliance-2.vmdk"), None]);
        assert_eq!(vm.disks[2].size.bytes(), 10 << 30);
        assert!(vm.notes.iter().any(|note| note.contains("CD drives")), "{:?}", vm.notes);
    }

    #[test]
    fn what_cannot_be_taken_over_is_refused() {
        for (old, new, says) in [
            ("href=\"web1-disk001.vmdk\"", "href=\"https://x/y.vmdk\"", "on a server"),
            ("href=\"web1-disk001.vmdk\"", "href=\"y\" ovf:compression=\"gzip\"", "is compressed"),
            ("href=\"web1-disk001.vmdk\"", "href=\"y\" ovf:chunkSize=\"1\"", "in pieces"),
            ("ovf:capacity=\"8589934592\"", "ovf:capacity=\"1\"", "vmdisk1"),
            ("ovf:capacity=\"8589934592\"", "ovf:capacity=\"18446744073709551616\"", "no number"),
            (
                "ovf:capacity=\"8589934592\"",
                "ovf:capacity=\"8\" ovf:capacityAllocationUnits=\"byte * 2^70\"",
                "unit",
            ),
            ("ovf:capacity=", "ovf:parentRef=\"other\" ovf:capacity=", "flatten"),
            ("/disk/vmdisk1", "/disk/vmdisk9", "no disk"),
            ("ovf:fileRef=\"file1\"", "ovf:fileRef=\"file9\"", "no file"),
            ("<Envelope", "<!DOCTYPE Envelope SYSTEM 'file:///etc/passwd'><Envelope", "DTD"),
        ] {
            assert!(VIRTUALBOX.contains(old), "{old}");
            let refused = read(&VIRTUALBOX.replacen(old, new, 1)).unwrap_err().to_string();
            assert!(refused.contains(says), "{new}: {refused}");
        }
        assert!(
            read("<Envelope><VirtualSystemCollection/></Envelope>")
                .unwrap_err()
                .to_string()
                .contains("several")
        );
        assert!(read("<Envelope/>").is_err() && read("").is_err() && read("<a").is_err());
    }

    #[test]
    fn units_are_read_as_they_are_written() {
        for (text, bytes) in [
            ("byte * 2^20", 1 << 20),
            ("byte*2^30", 1 << 30),
            ("MegaBytes", 1 << 20),
            ("byte", 1),
            ("byte * 1000", 1000),
        ] {
            assert_eq!(allocation_unit(text).unwrap(), bytes, "{text}");
        }
        for text in ["byte * 10^3", "bit", "byte * 2^64", "byte * ", "2^20"] {
            assert!(allocation_unit(text).is_err(), "{text}");
        }
    }
}
