//! Formats of disk images on the command line, and signals that stop their copies.

use std::os::fd::AsFd;

use clap::ValueEnum;
use strongroom_images::{Format, FormatChoice, Stop};
use strongroom_processes::Signals;

/// The signals in the form that copies of images check.
pub fn stop_of(signals: &Signals) -> Stop<'_> {
    Stop { flag: signals.stop_flag(), wake: signals.as_fd() }
}

/// A format, or the request to detect it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArgument {
    /// Detect it from the image's name and first bytes, if both agree
    Auto,
    /// Plain bytes of the disk
    Raw,
    /// QEMU
    Qcow2,
    /// VMware, in one self-contained file
    Vmdk,
    /// Hyper-V
    Vhdx,
}

impl From<FormatArgument> for FormatChoice {
    fn from(argument: FormatArgument) -> Self {
        match argument {
            FormatArgument::Auto => Self::Auto,
            FormatArgument::Raw => Self::Said(Format::Raw),
            FormatArgument::Qcow2 => Self::Said(Format::Qcow2),
            FormatArgument::Vmdk => Self::Said(Format::Vmdk),
            FormatArgument::Vhdx => Self::Said(Format::Vhdx),
        }
    }
}

/// The format of an output image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NewFormatArgument {
    /// Plain bytes of the disk
    Raw,
    /// QEMU
    Qcow2,
    /// VMware
    Vmdk,
    /// Hyper-V
    Vhdx,
}

impl From<NewFormatArgument> for Format {
    fn from(argument: NewFormatArgument) -> Self {
        match argument {
            NewFormatArgument::Raw => Self::Raw,
            NewFormatArgument::Qcow2 => Self::Qcow2,
            NewFormatArgument::Vmdk => Self::Vmdk,
            NewFormatArgument::Vhdx => Self::Vhdx,
        }
    }
}
