//! The space of pools.

use rustix::io::Errno;
use serde::Deserialize;

use super::cluster::Cluster;
use super::image::OBJECT_BYTES;

/// The space that pools have for data, in bytes. Copies and parity are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    /// Used and not used.
    pub total_bytes: u64,
    /// Not used.
    pub available_bytes: u64,
}

/// The answer to `df detail`.
#[derive(Deserialize)]
struct Usage {
    pools: Vec<PoolUsage>,
}

#[derive(Deserialize)]
struct PoolUsage {
    name: String,
    stats: PoolStats,
}

#[derive(Deserialize)]
struct PoolStats {
    /// Data in the pool.
    stored: u64,
    objects: u64,
    /// What can be written until the first device of the pool is full.
    max_avail: u64,
    /// Quotas; 0 for none.
    quota_bytes: u64,
    quota_objects: u64,
}

impl PoolStats {
    fn space(&self) -> Space {
        let left = |quota: u64, used: u64| match quota {
            0 => u64::MAX,
            quota => quota.saturating_sub(used),
        };
        // The largest content of as many objects as may still be made.
        let objects_left = left(self.quota_objects, self.objects).saturating_mul(OBJECT_BYTES);
        let bytes_left = left(self.quota_bytes, self.stored);
        let available_bytes = self.max_avail.min(bytes_left).min(objects_left);
        Space { total_bytes: self.stored.saturating_add(available_bytes), available_bytes }
    }
}

impl Cluster {
    /// The space for data in the last of these pools, where nothing is available if another one is
    /// full. Quotas and the devices' full ratio are taken into account.
    ///
    /// # Errors
    /// `NOENT` if there is no such pool; the errors of the cluster.
    pub fn space(&self, pools: &[String]) -> Result<Space, Errno> {
        let answer = self.ask_monitors(cr#"{"prefix":"df","detail":"detail","format":"json"}"#)?;
        space_in(&answer, pools)
    }
}

fn space_in(answer: &[u8], pools: &[String]) -> Result<Space, Errno> {
    let usage: Usage = serde_json::from_slice(answer).map_err(|_| Errno::BADMSG)?;
    let of = |name: &String| {
        let pool = usage.pools.iter().find(|pool| pool.name == *name);
        pool.map(|pool| pool.stats.space()).ok_or(Errno::NOENT)
    };
    let (last, others) = pools.split_last().ok_or(Errno::NOENT)?;
    let mut space = of(last)?;
    for other in others {
        space.available_bytes = space.available_bytes.min(of(other)?.available_bytes);
    }
    Ok(space)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space(stored: u64, max_avail: u64, quotas: (u64, u64)) -> Space {
        let (quota_bytes, quota_objects) = quotas;
        PoolStats { stored, objects: 10, max_avail, quota_bytes, quota_objects }.space()
    }

    #[test]
    fn the_nearest_limit_counts() {
        let found = |total_bytes, available_bytes| Space { total_bytes, available_bytes };
        assert_eq!(space(100, 1000, (0, 0)), found(1100, 1000));
        assert_eq!(space(100, 1000, (600, 0)), found(600, 500));
        assert_eq!(space(100, 1000, (50, 0)), found(100, 0), "a quota that was made smaller");
        assert_eq!(space(100, 1 << 40, (0, 12)), found(100 + 2 * OBJECT_BYTES, 2 * OBJECT_BYTES));
        assert_eq!(space(100, 1000, (0, 10)), found(100, 0));
        assert_eq!(space(u64::MAX, u64::MAX, (0, 0)).total_bytes, u64::MAX);
    }

    #[test]
    fn nothing_is_available_beside_a_pool_that_is_full() {
        let pool = |name: &str, max_avail: u64| {
            let stats = r#""stored":1,"objects":1,"quota_bytes":0,"quota_objects":0"#;
            format!(r#"{{"name":"{name}","id":1,"stats":{{{stats},"max_avail":{max_avail}}}}}"#)
        };
        let answer = format!(r#"{{"stats":{{}},"pools":[{},{}]}}"#, pool("names", 0), pool("data", 9));
        let space = |pools: &[&str]| {
            let pools: Vec<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
            space_in(answer.as_bytes(), &pools)
        };
        let found = |total_bytes, available_bytes| Ok(Space { total_bytes, available_bytes });
        assert_eq!(space(&["data"]), found(10, 9));
        assert_eq!(space(&["names", "data"]), found(10, 0));
        assert_eq!(space(&["other"]), Err(Errno::NOENT));
        assert_eq!(space_in(b"no", &["data".to_owned()]), Err(Errno::BADMSG));
    }
}
