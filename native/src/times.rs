//! Times in the vendor's own form, `YYYY-MM-DD HH:MM:SS.ffffff`.

/// Bytes of the form.
pub const LENGTH: usize = 26;

const FORM: &[u8; LENGTH] = b"0000-00-00 00:00:00.000000";
const DAYS: [i64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];

/// Microseconds since 1970 of a time in UTC from the year 1 on; None for every other form and for days that there are not.
pub fn microseconds(text: &[u8; LENGTH]) -> Option<i64> {
    let fits = |(&byte, &form): (&u8, &u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    if !text.iter().zip(FORM).all(fits) {
        return None;
    }
    let number = |from: usize, to: usize| text[from..to].iter().fold(0, |sum, &digit| sum * 10 + i64::from(digit - b'0'));
    let (year, month, day) = (number(0, 4), number(5, 7), number(8, 10));
    let (hour, minute, second) = (number(11, 13), number(14, 16), number(17, 19));
    if year < 1 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
    let last = DAYS[(month - 1) as usize] + i64::from(month == 2 && is_leap);
    if day < 1 || day > last {
        return None;
    }
    Some(((days(year, month, day) * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + number(20, 26))
}

/// Days since 1970 of a day of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March have the leap day at their end; 400 of them are 146,097 days.
    let year = year - i64::from(month <= 2);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<i64> {
        microseconds(text.as_bytes().try_into().unwrap())
    }

    #[test]
    fn known_times() {
        assert_eq!(read("1970-01-01 00:00:00.000000"), Some(0));
        assert_eq!(read("1969-12-31 23:59:59.999999"), Some(-1));
        assert_eq!(read("2026-02-02 10:00:00.000001"), Some(1_770_026_400_000_001));
        assert_eq!(read("0001-01-01 00:00:00.000000"), Some(-62_135_596_800_000_000));
        assert_eq!(read("9999-12-31 23:59:59.999999"), Some(253_402_300_799_999_999));
    }

    #[test]
    fn days_follow_one_another() {
        let mut next = days(1, 1, 1);
        for year in 1..=9999 {
            for month in 1..=12 {
                let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
                for day in 1..=DAYS[month as usize - 1] + i64::from(month == 2 && is_leap) {
                    assert_eq!(days(year, month, day), next);
                    next += 1;
                }
            }
        }
    }

    #[test]
    fn what_is_no_time_of_the_form_is_left() {
        for text in [
            "0000-01-01 00:00:00.000000",
            "2026-13-01 00:00:00.000000",
            "2026-00-01 00:00:00.000000",
            "2026-02-29 00:00:00.000000",
            "1900-02-29 00:00:00.000000",
            "2026-01-00 00:00:00.000000",
            "2026-01-01 24:00:00.000000",
            "2026-01-01 00:60:00.000000",
            "2026-01-01 00:00:60.000000",
            "2026-01-01T00:00:00.000000",
            "2026-01-01 00:00:00,000000",
            "2026-01-01 00:00:00.00000Z",
            "-026-01-01 00:00:00.000000",
            "2026-01-01 00:00:0 .000000",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(read("2000-02-29 00:00:00.000000").is_some());
    }
}
