//! Moments as people write and read them: UTC, from microseconds since 1970.

pub(crate) use audit_verify::rfc3339 as utc;
use toml::value::{Datetime, Offset};

/// Reads `2026-12-01`, `2026-12-01T01:02:03Z` with or without an offset, or seconds since 1970. Without an offset it is UTC.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is no moment such as 2026-12-01, 2026-12-01T01:02:03Z or 1796086923");
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(1_000_000)).ok_or_else(wrong);
    }
    let moment: Datetime = text.parse().map_err(|_| wrong())?;
    let date = moment.date.ok_or_else(wrong)?;
    let (year, month, day) = (i64::from(date.year), i64::from(date.month), i64::from(date.day));
    // Days of the civil date: years begin on 1 March, eras of 400 years (after Hinnant).
    let (year, month) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let year_of_era = year.rem_euclid(400);
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + (153 * month + 2) / 5 + day - 1;
    let days = year.div_euclid(400) * 146_097 + day_of_era - 719_468;
    let (seconds, nanoseconds) = moment.time.map_or((0, 0), |time| {
        let seconds = i64::from(time.hour) * 3_600 + i64::from(time.minute) * 60 + i64::from(time.second.unwrap_or(0));
        (seconds, time.nanosecond.unwrap_or(0))
    });
    let offset = match moment.offset {
        Some(Offset::Custom { minutes }) => i64::from(minutes) * 60,
        _ => 0,
    };
    let seconds = u64::try_from(days * 86_400 + seconds - offset).map_err(|_| wrong())?;
    Ok(seconds * 1_000_000 + u64::from(nanoseconds) / 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_they_are_written() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("2000-02-29T00:00:00Z", 951_782_400),
            ("2026-11-30T01:02:03", 1_796_000_523),
            ("2026-11-30T03:02:03+02:00", 1_796_000_523),
            ("2099-12-31T23:59:59Z", 4_102_444_799),
            ("1796000523", 1_796_000_523),
        ] {
            assert_eq!(parse(text), Ok(seconds * 1_000_000), "{text}");
        }
        for wall_us in [0, 951_782_400_000_000, 1_796_000_523_123_000, 4_102_444_799_999_000] {
            assert_eq!(parse(&utc(wall_us)), Ok(wall_us));
        }
        for text in ["", "yesterday", "01:02:03", "1960-01-01", "2026-13-01", "99999999999999999999", "-1"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
