//! Times as seconds since 1970, and times and durations for people.

use std::time::SystemTime;

/// Seconds since 1970; zero for a time before.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The time now, in seconds since 1970.
pub fn unix_seconds_now() -> u64 {
    unix_seconds(SystemTime::now())
}

/// The time now, in milliseconds since 1970; zero if the clock is set before 1970.
pub fn unix_milliseconds_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// Seconds since 1970 as `2025-11-21 21:54 UTC`.
pub fn utc(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400, unix_seconds % 86_400);
    // Howard Hinnant's civil_from_days: eras of 400 years from 1 March of year 0, so that leap days
    // come last.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60)
}

/// A duration in its largest whole unit: `90s`, `30m`, `12h`, `7d`.
pub fn display_seconds(seconds: u64) -> String {
    let units = [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let unit = units.into_iter().find(|(length, _)| seconds >= *length && seconds.is_multiple_of(*length));
    let (length, unit) = unit.unwrap_or((1, "s"));
    format!("{}{unit}", seconds / length)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_those_of_date() {
        for (seconds, text) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_782_399, "2000-02-28 23:59 UTC"),
            (951_868_799, "2000-02-29 23:59 UTC"),
            (1_763_762_040, "2025-11-21 21:54 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }

    #[test]
    fn a_duration_has_its_largest_whole_unit() {
        for (seconds, text) in [(0, "0s"), (90, "90s"), (3600, "1h"), (604_800, "7d"), (5400, "90m")] {
            assert_eq!(display_seconds(seconds), text);
        }
    }

    #[test]
    fn a_time_before_1970_is_zero() {
        let (early, late) = (Duration::from_secs(1), Duration::from_millis(1999));
        assert_eq!(unix_seconds(SystemTime::UNIX_EPOCH - early), 0);
        assert_eq!(unix_seconds(SystemTime::UNIX_EPOCH + late), 1);
    }
}
