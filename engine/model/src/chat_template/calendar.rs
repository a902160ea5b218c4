//! `strftime_now` for chat templates: Llama 3 prompts begin with today's date.

use std::time::{Duration, UNIX_EPOCH};

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The current time in UTC, formatted as Python's `strftime` would.
pub(super) fn strftime_now(format: &str) -> Result<String, Error> {
    let since_epoch = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    strftime(since_epoch.as_secs(), format)
}

/// Knows the fields that templates use; another one is an error rather than a wrong date.
fn strftime(seconds: u64, format: &str) -> Result<String, Error> {
    let days = seconds / 86_400;
    let (year, month, day) = civil(days);
    let weekday = DAYS[(days % 7) as usize];
    let month_name = MONTHS[month as usize - 1];
    let (hour, minute, second) = (seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('Y') => text += &format!("{year:04}"),
            Some('y') => text += &format!("{:02}", year % 100),
            Some('m') => text += &format!("{month:02}"),
            Some('d') => text += &format!("{day:02}"),
            Some('B') => text += month_name,
            Some('b') => text += &month_name[..3],
            Some('A') => text += weekday,
            Some('a') => text += &weekday[..3],
            Some('H') => text += &format!("{hour:02}"),
            Some('M') => text += &format!("{minute:02}"),
            Some('S') => text += &format!("{second:02}"),
            Some('%') => text.push('%'),
            _ => return Err(Error::new(ErrorKind::InvalidOperation, "strftime_now: unknown field")),
        }
    }
    Ok(text)
}

/// Year, month and day of a day counted from 1970-01-01 in the Gregorian calendar.
/// Source: H. Hinnant, "chrono-compatible low-level date algorithms", `civil_from_days`.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, wanted) in [
            (0, "Thu 01 Jan 1970 00:00:00"),
            (951_782_399, "Mon 28 Feb 2000 23:59:59"),
            (951_782_400, "Tue 29 Feb 2000 00:00:00"),
            (1_735_689_599, "Tue 31 Dec 2024 23:59:59"),
            (4_107_542_400, "Mon 01 Mar 2100 00:00:00"),
        ] {
            assert_eq!(strftime(seconds, "%a %d %b %Y %H:%M:%S").unwrap(), wanted);
        }
        assert_eq!(strftime(0, "%A, %B %y%%").unwrap(), "Thursday, January 70%");
    }

    #[test]
    fn unknown_and_unfinished_fields_are_errors() {
        for format in ["%Q", "100%", "%é"] {
            assert!(strftime(0, format).is_err(), "{format}");
        }
    }
}
