//! Media that report over the serial line and on the screen that they were started: the smallest
//! that firmware accepts as installation media.

use std::io::{Cursor, Write};
use std::iter::repeat_n;

use fatfs::{FileSystem, FormatVolumeOptions, FsOptions, format_volume};

/// The sector size of a CD-ROM.
const SECTOR: usize = 2048;
/// The sector size of a disk, which is also the unit of boot images' sizes.
const DISK_SECTOR: usize = 512;
/// The sectors of a CD-ROM with ISO 9660's volume descriptors, and those that El Torito names.
const DESCRIPTORS: usize = 16;
const CATALOG: usize = 19;
const BIOS_IMAGE: usize = 20;
const UEFI_IMAGE: usize = 21;
/// The size of the file system with UEFI's program.
const UEFI_IMAGE_BYTES: usize = 1 << 20;

/// A disk whose boot sector prints this.
pub fn disk(says: &str) -> Vec<u8> {
    let mut disk = program(says);
    disk.truncate(DISK_SECTOR - 2);
    disk.resize(DISK_SECTOR - 2, 0);
    disk.extend([0x55, 0xaa]);
    disk.resize(1 << 20, 0);
    disk
}

/// A CD-ROM that prints one text when a BIOS starts it, and another when UEFI does (El Torito 1.0;
/// UEFI 2.10, 13.3.2).
pub fn iso(bios_says: &str, uefi_says: &str) -> Vec<u8> {
    let uefi = uefi_file_system(uefi_says);
    let mut iso = vec![0; UEFI_IMAGE * SECTOR];
    iso.extend(&uefi);
    let sectors = u32::try_from(iso.len() / SECTOR).unwrap();

    let primary = &mut iso[DESCRIPTORS * SECTOR..][..SECTOR];
    primary[..7].copy_from_slice(b"\x01CD001\x01");
    primary[80..84].copy_from_slice(&sectors.to_le_bytes());
    primary[84..88].copy_from_slice(&sectors.to_be_bytes());
    for (at, value) in [(120, 1), (124, 1), (128, 2048_u16)] {
        primary[at..at + 2].copy_from_slice(&value.to_le_bytes());
        primary[at + 2..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    let boot = &mut iso[(DESCRIPTORS + 1) * SECTOR..][..SECTOR];
    boot[..7].copy_from_slice(b"\x00CD001\x01");
    boot[7..30].copy_from_slice(b"EL TORITO SPECIFICATION");
    boot[0x47..0x4b].copy_from_slice(&u32::try_from(CATALOG).unwrap().to_le_bytes());
    iso[(DESCRIPTORS + 2) * SECTOR..][..7].copy_from_slice(b"\xffCD001\x01");

    let catalog = &mut iso[CATALOG * SECTOR..][..SECTOR];
    // The validation entry, whose words add up to zero.
    catalog[0] = 1;
    catalog[0x1c..0x20].copy_from_slice(&[0xaa, 0x55, 0x55, 0xaa]);
    image_entry(&mut catalog[0x20..0x40], BIOS_IMAGE, 4);
    // The last section: one entry, for UEFI.
    catalog[0x40..0x44].copy_from_slice(&[0x91, 0xef, 1, 0]);
    image_entry(&mut catalog[0x60..0x80], UEFI_IMAGE, uefi.len() / DISK_SECTOR);

    let program = program(bios_says);
    iso[BIOS_IMAGE * SECTOR..][..program.len()].copy_from_slice(&program);
    iso
}

/// An image that is started as it is, without floppy emulation.
fn image_entry(entry: &mut [u8], sector: usize, disk_sectors: usize) {
    entry[0] = 0x88;
    entry[6..8].copy_from_slice(&u16::try_from(disk_sectors).unwrap().to_le_bytes());
    entry[8..12].copy_from_slice(&u32::try_from(sector).unwrap().to_le_bytes());
}

/// The code that a BIOS loads at 0x7c00 and enters: prints a text on the first serial line and on
/// the screen, and halts.
fn program(says: &str) -> Vec<u8> {
    let mut program = vec![
        0xfa, // cli
        0x31, 0xc0, 0x8e, 0xd8, // xor ax, ax; mov ds, ax
        0xbe, 0x28, 0x7c, // mov si, 0x7c28: the text
        0xfc, // cld
        0xac, 0x84, 0xc0, 0x74, 0x17, // next: lodsb; test al, al; jz halt
        0x50, 0xba, 0xfd, 0x03, // push ax; mov dx, 0x3fd
        0xec, 0xa8, 0x20, 0x74, 0xfb, // wait: in al, dx; test al, 0x20; jz wait
        0x58, 0xba, 0xf8, 0x03, 0xee, // pop ax; mov dx, 0x3f8; out dx, al
        0xb4, 0x0e, 0xbb, 0x07, 0x00, 0xcd, 0x10, // mov ah, 0x0e; mov bx, 7; int 0x10
        0xeb, 0xe4, // jmp next
        0xf4, 0xeb, 0xfd, // halt: hlt; jmp halt
    ];
    program.extend(says.bytes().chain([b'\r', b'\n', 0]));
    program
}

/// A FAT file system with UEFI's program for removable media.
fn uefi_file_system(says: &str) -> Vec<u8> {
    let mut disk = Cursor::new(vec![0; UEFI_IMAGE_BYTES]);
    format_volume(&mut disk, FormatVolumeOptions::new()).unwrap();
    disk.set_position(0);
    {
        let file_system = FileSystem::new(&mut disk, FsOptions::new()).unwrap();
        let directory = file_system.root_dir().create_dir("EFI").unwrap().create_dir("BOOT").unwrap();
        let mut file = directory.create_file("BOOTX64.EFI").unwrap();
        file.write_all(&uefi_program(says)).unwrap();
        file.flush().unwrap();
    }
    disk.into_inner()
}

/// A PE32+ image with one section that prints a text on UEFI's console, and halts.
fn uefi_program(says: &str) -> Vec<u8> {
    let mut image = b"MZ".to_vec();
    image.resize(0x3c, 0);
    image.extend(0x40_u32.to_le_bytes());
    image.extend(b"PE\0\0");
    // x86-64, one section, no symbols, an optional header of 240 bytes; executable, large
    // addresses.
    image.extend([0x8664_u16, 1, 0, 0, 0, 0, 0, 0, 240, 0x22].iter().flat_map(|word| word.to_le_bytes()));
    // PE32+; sizes of code and data, entry, base of the code.
    image.extend([0x0b, 0x02, 0, 0]);
    image.extend([0x200_u32, 0, 0, 0x1000, 0x1000].iter().flat_map(|word| word.to_le_bytes()));
    // Base of the image; alignment in memory and in the file; versions.
    image.extend(0x40_0000_u64.to_le_bytes());
    image.extend([0x1000_u32, 0x200, 0, 0, 0, 0].iter().flat_map(|word| word.to_le_bytes()));
    // Size in memory, of the headers; checksum; an application of UEFI.
    image.extend([0x2000_u32, 0x200, 0, 10].iter().flat_map(|word| word.to_le_bytes()));
    // Stack and heap, flags of the loader, 16 directories with nothing in them.
    image.extend(repeat_n(0, 32 + 4));
    image.extend(16_u32.to_le_bytes());
    image.extend(repeat_n(0, 128));
    image.extend(b".text\0\0\0");
    image.extend(
        [0x200_u32, 0x1000, 0x200, 0x200, 0, 0, 0, 0xe000_0020].iter().flat_map(|word| word.to_le_bytes()),
    );
    image.resize(0x200, 0);
    image.extend([
        0x48, 0x83, 0xec, 0x28, // sub rsp, 0x28
        0x48, 0x8b, 0x4a, 0x40, // mov rcx, [rdx + 0x40]: ConOut of the system table
        0x48, 0x8d, 0x15, 7, 0, 0, 0, // lea rdx, [rip + 7]: the text
        0xff, 0x51, 0x08, // call [rcx + 8]: OutputString
        0xf4, 0xeb, 0xfd, // halt: hlt; jmp halt
        0x90,
    ]);
    image.extend(says.encode_utf16().chain([13, 10, 0]).flat_map(u16::to_le_bytes));
    image.resize(0x400, 0);
    image
}
