//! Limits of a disk's requests on the command line.

use clap::Args;
use strongroom_types::{Bandwidth, BandwidthBurst, BandwidthLimit, IoLimits, Iops, IopsBurst, IopsLimit};

/// The limits that are wanted.
#[derive(Clone, Copy, Debug, Args)]
pub struct LimitArguments {
    /// Most operations a second, 16 to 10000000. A transfer counts as one for each started 256K
    #[arg(long, value_name = "N")]
    iops: Option<Iops>,

    /// Operations that may come at once after a pause; by default those of a tenth of a second
    #[arg(long, value_name = "N", requires = "iops")]
    iops_burst: Option<IopsBurst>,

    /// Most bytes a second, read and written together, such as 100M; 1M to 64G
    #[arg(long, value_name = "SIZE")]
    bandwidth: Option<Bandwidth>,

    /// Bytes that may come at once after a pause; by default those of a tenth of a second
    #[arg(long, value_name = "SIZE", requires = "bandwidth")]
    bandwidth_burst: Option<BandwidthBurst>,
}

impl LimitArguments {
    /// The limits.
    pub fn limits(&self) -> IoLimits {
        let iops = self.iops.map(|per_second| IopsLimit { per_second, burst: self.iops_burst });
        let bandwidth = self
            .bandwidth
            .map(|bytes_per_second| BandwidthLimit { bytes_per_second, burst_bytes: self.bandwidth_burst });
        IoLimits { iops, bandwidth }
    }
}
