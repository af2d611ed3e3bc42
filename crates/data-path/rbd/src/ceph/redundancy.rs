//! How many losses the data of pools outlives.

use std::collections::BTreeMap;

use rustix::io::Errno;
use serde::Deserialize;
use strongroom_types::Redundancy;

use super::c_string;
use super::cluster::Cluster;

/// A pool in the answer to `osd pool ls detail`.
#[derive(Deserialize)]
struct Pool {
    pool_name: String,
    /// Copies, or data and parity chunks.
    size: u8,
    /// The copies or chunks without which nothing is read or written.
    min_size: u8,
    /// Empty for a replicated pool.
    #[serde(default)]
    erasure_code_profile: String,
}

impl Cluster {
    /// How many losses all of these pools outlive.
    ///
    /// # Errors
    /// `NOENT` if there is no such pool; the errors of the cluster.
    pub fn redundancy(&self, pools: &[String]) -> Result<Redundancy, Errno> {
        let answer = self.ask_monitors(cr#"{"prefix":"osd pool ls","detail":"detail","format":"json"}"#)?;
        redundancy_in(&answer, pools, |profile| {
            let command = serde_json::json!({
                "prefix": "osd erasure-code-profile get", "name": profile, "format": "json",
            });
            self.ask_monitors(&c_string(&command.to_string())?)
        })
    }
}

/// `profile` answers with an erasure code's profile.
fn redundancy_in(
    answer: &[u8],
    pools: &[String],
    mut profile: impl FnMut(&str) -> Result<Vec<u8>, Errno>,
) -> Result<Redundancy, Errno> {
    let known: Vec<Pool> = serde_json::from_slice(answer).map_err(|_| Errno::BADMSG)?;
    let mut of = |name: &String| -> Result<Redundancy, Errno> {
        let pool = known.iter().find(|pool| pool.pool_name == *name).ok_or(Errno::NOENT)?;
        let needed = match pool.erasure_code_profile.as_str() {
            "" => 1,
            named => {
                let profile: BTreeMap<String, String> =
                    serde_json::from_slice(&profile(named)?).map_err(|_| Errno::BADMSG)?;
                profile.get("k").and_then(|chunks| chunks.parse().ok()).ok_or(Errno::BADMSG)?
            }
        };
        Ok(Redundancy {
            losses_survived: pool.size.saturating_sub(needed),
            losses_served: pool.size.saturating_sub(pool.min_size.max(needed)),
        })
    };
    let (first, others) = pools.split_first().ok_or(Errno::NOENT)?;
    others.iter().try_fold(of(first)?, |least, other| Ok(least.least(of(other)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &str = r#"[
        {"pool_name":"rep2","size":2,"min_size":1,"erasure_code_profile":""},
        {"pool_name":"rep3","size":3,"min_size":2},
        {"pool_name":"ec42","size":6,"min_size":5,"erasure_code_profile":"ec42"}]"#;

    fn of(pools: &[&str]) -> Result<(u8, u8), Errno> {
        let pools: Vec<String> = pools.iter().map(|pool| (*pool).to_owned()).collect();
        let found = redundancy_in(ANSWER.as_bytes(), &pools, |profile| {
            assert_eq!(profile, "ec42");
            Ok(br#"{"k":"4","m":"2","plugin":"jerasure"}"#.to_vec())
        })?;
        Ok((found.losses_survived, found.losses_served))
    }

    #[test]
    fn the_pool_that_outlives_least_counts() {
        assert_eq!(of(&["rep3"]), Ok((2, 1)));
        assert_eq!(of(&["rep3", "ec42"]), Ok((2, 1)));
        assert_eq!(of(&["rep2", "ec42"]), Ok((1, 1)));
        assert_eq!(of(&["rep3", "gone"]), Err(Errno::NOENT));
        assert_eq!(redundancy_in(b"{}", &["rep3".to_owned()], |_| Ok(Vec::new())), Err(Errno::BADMSG));
    }
}
