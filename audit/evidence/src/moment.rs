//! Moments as everybody reads them.

/// Microseconds since 1970 as RFC 3339 writes them, in UTC, as far as the year 9999.
#[must_use]
pub fn rfc3339(wall_us: u64) -> String {
    let seconds = wall_us / 1_000_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Civil date from a count of days: eras of 400 years that begin on 1 March (after Hinnant).
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    let millisecond = wall_us / 1_000 % 1_000;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z")
}
