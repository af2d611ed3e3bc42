//! Long durations as text: `90s`, `30m`, `12h`, `7d`; and times of the day.

/// The longest duration: ten years, far from overflows in time arithmetic.
const SECONDS_MAX: u64 = 10 * 366 * 86_400;

/// Parses a duration, in seconds.
pub fn parse_seconds(text: &str) -> Result<u64, String> {
    let unusable = || format!("'{text}' is not a time; write 90s, 30m, 12h or 7d");
    let number_end = text.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(number_end);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err(unusable()),
    };
    let number: u64 = number.parse().map_err(|_| unusable())?;
    let seconds = number.saturating_mul(seconds);
    if seconds > SECONDS_MAX { Err(format!("'{text}' is too long")) } else { Ok(seconds) }
}

/// Parses `02:00`, in minutes after midnight.
pub fn parse_time_of_day(text: &str) -> Result<u32, String> {
    let unusable = || format!("'{text}' is not a time of the day; write 02:00 or 14:30");
    let (hours, minutes) = text.split_once(':').ok_or_else(unusable)?;
    let number = |text: &str, end: u32| {
        let number = text.parse::<u32>().ok().filter(|number| text.len() == 2 && *number < end);
        number.filter(|_| text.bytes().all(|byte| byte.is_ascii_digit())).ok_or_else(unusable)
    };
    Ok(number(hours, 24)? * 60 + number(minutes, 60)?)
}

/// The text that [`parse_time_of_day`] parses.
pub fn display_time_of_day(minutes: u32) -> String {
    format!("{:02}:{:02}", minutes / 60, minutes % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_a_unit_and_an_end() {
        for (text, seconds) in [("0s", 0), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)] {
            assert_eq!(parse_seconds(text), Ok(seconds));
        }
        for text in ["", "7", "d", "-1d", "1.5h", "3 s", "1w", "99999d", "99999999999999999999s"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_time_of_day_has_two_digits_each() {
        assert_eq!(parse_time_of_day("02:05"), Ok(125));
        assert_eq!(display_time_of_day(1439), "23:59");
        for text in ["", "2:00", "24:00", "02:60", "02", "+2:00", "02:00:00", "aa:bb"] {
            assert!(parse_time_of_day(text).is_err(), "{text}");
        }
    }
}
