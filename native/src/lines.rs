//! Lines of a block to columns; None for the whole block where any line needs the parser in Python.

use crate::columns::{Column, Kind};
use crate::json;
use crate::times;

/// The keys of a format, each with the kind of its column.
pub struct Format {
    keys: Vec<(Box<[u8]>, Kind)>,
}

/// What the lines of one object must keep to; a block that does not is not scanned.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Rules {
    /// Most bytes of a line.
    pub most_bytes: u64,
    /// Place of the column of times that every line has a value of.
    pub time: u64,
    /// The first such time.
    pub first: i64,
    /// The first time after all of them.
    pub end: i64,
    /// Place of the column of longs with one value in all lines, or null.
    pub project: u64,
    /// That value.
    pub value: i64,
}

impl Format {
    /// None for keys that are delivered with an escape, or twice.
    pub fn new(keys: Vec<(Box<[u8]>, Kind)>) -> Option<Self> {
        let is_plain =
            |key: &[u8]| std::str::from_utf8(key).is_ok() && !key.iter().any(|&byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
        let are_plain = keys.iter().all(|(key, _)| is_plain(key));
        let are_distinct = keys.iter().enumerate().all(|(place, (key, _))| keys[..place].iter().all(|(other, _)| other != key));
        (are_plain && are_distinct && !keys.is_empty()).then_some(Self { keys })
    }

    /// Number of columns.
    pub fn width(&self) -> usize {
        self.keys.len()
    }

    /// The columns of `rows` lines, each of which ends with a line feed.
    pub fn columns(&self, text: &[u8], rows: usize, rules: &Rules) -> Option<Vec<Column>> {
        // Offsets are 32 bits wide, and no value is longer than its text.
        i32::try_from(text.len()).ok()?;
        // Every line has at least the two braces of an object.
        if rows == 0 || rows > text.len() {
            return None;
        }
        let (time, project) = (usize::try_from(rules.time).ok()?, usize::try_from(rules.project).ok()?);
        if self.keys.get(time)?.1 != Kind::Time || self.keys.get(project)?.1 != Kind::Long {
            return None;
        }
        // Values begin and end at quotes and other characters of one byte, so each is valid as well.
        std::str::from_utf8(text).ok()?;
        let mut block = Block {
            format: self,
            columns: self.keys.iter().map(|_| Column::default()).collect(),
            following: (1..=self.width()).map(|next| next % self.width()).collect(),
            rows,
        };
        let mut lines = text.strip_suffix(b"\n")?.split(|&byte| byte == b'\n');
        for row in 0..rows {
            let line = lines.next()?;
            if u64::try_from(line.len()).ok()? > rules.most_bytes {
                return None;
            }
            block.read(line, row)?;
            let times = &block.columns[time];
            if !times.holds(row) || times.longs[row] < rules.first || times.longs[row] >= rules.end {
                return None;
            }
            let projects = &block.columns[project];
            if projects.holds(row) && projects.longs[row] != rules.value {
                return None;
            }
        }
        if lines.next().is_some() {
            return None;
        }
        block.columns.iter_mut().try_for_each(Column::end)?;
        Some(block.columns)
    }
}

struct Block<'a> {
    format: &'a Format,
    columns: Vec<Column>,
    /// For each column the one whose key came after it last: lines of one export have one order of keys.
    following: Vec<usize>,
    rows: usize,
}

impl Block<'_> {
    fn read(&mut self, line: &[u8], row: usize) -> Option<()> {
        let mut at = json::skip_space(line, 0);
        if line.get(at)? != &b'{' {
            return None;
        }
        let mut before = self.format.width() - 1;
        loop {
            at = json::skip_space(line, at + 1);
            let place = self.key(line, at, before)?;
            at = json::skip_space(line, at + self.format.keys[place].0.len() + 2);
            if line.get(at)? != &b':' {
                return None;
            }
            at = json::skip_space(line, at + 1);
            self.columns[place].see(row)?;
            at = match json::word_end(line, at, b"null") {
                Some(end) => end,
                None => self.value(line, at, place, row)?,
            };
            at = json::skip_space(line, at);
            match line.get(at)? {
                b',' => before = place,
                b'}' => break,
                _ => return None,
            }
        }
        (json::skip_space(line, at + 1) == line.len()).then_some(())
    }

    /// The column of the key whose opening quote lies at `at`.
    #[inline]
    fn key(&mut self, line: &[u8], at: usize, before: usize) -> Option<usize> {
        let (quote, rest) = line.get(at..)?.split_first()?;
        if quote != &b'"' {
            return None;
        }
        let is_it = |(key, _): &(Box<[u8]>, Kind)| rest.get(key.len()) == Some(&b'"') && rest[..key.len()] == key[..];
        let expected = self.following[before];
        if is_it(&self.format.keys[expected]) {
            return Some(expected);
        }
        let found = self.format.keys.iter().position(is_it)?;
        self.following[before] = found;
        Some(found)
    }

    /// Add the value at `at`; the place behind it.
    #[inline]
    fn value(&mut self, line: &[u8], at: usize, place: usize, row: usize) -> Option<usize> {
        let (column, rows, kind) = (&mut self.columns[place], self.rows, self.format.keys[place].1);
        match kind {
            Kind::Text => {
                let start = column.texts.len();
                let end = json::read_string(line, at, column.room(line.len() - at)?)?;
                column.end_text(row, rows, start)?;
                Some(end)
            }
            Kind::Json | Kind::Bag => {
                if kind == Kind::Bag && line.get(at)? == &b'"' {
                    return None;
                }
                let end = json::value_end(line, at)?;
                let start = column.texts.len();
                column.room(end - at)?.extend_from_slice(&line[at..end]);
                column.end_text(row, rows, start)?;
                Some(end)
            }
            Kind::Long => {
                let (value, end) = json::read_long(line, at)?;
                column.add_long(row, rows, value)?;
                Some(end)
            }
            Kind::Time => {
                // An empty text is no time.
                if let Some(end) = json::word_end(line, at, b"\"\"") {
                    return Some(end);
                }
                let quoted: &[u8; times::LENGTH + 2] = line.get(at..at + times::LENGTH + 2)?.try_into().ok()?;
                let [b'"', text @ .., b'"'] = quoted else { return None };
                column.add_long(row, rows, times::microseconds(text)?)?;
                Some(at + quoted.len())
            }
            Kind::Double => {
                let (value, end) = json::read_double(line, at)?;
                column.add_double(row, rows, value)?;
                Some(end)
            }
            Kind::Boolean => {
                let is_true = json::word_end(line, at, b"true");
                column.add_boolean(row, rows, is_true.is_some())?;
                is_true.or_else(|| json::word_end(line, at, b"false"))
            }
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A format with a column of each kind.
    pub fn a_format() -> Format {
        let keys = [
            ("time", Kind::Time),
            ("app", Kind::Long),
            ("$name", Kind::Text),
            ("lat", Kind::Double),
            ("paying", Kind::Boolean),
            ("bag", Kind::Bag),
            ("any", Kind::Json),
            ("app2", Kind::Text),
        ];
        Format::new(keys.iter().map(|(key, kind)| (key.as_bytes().into(), *kind)).collect()).unwrap()
    }

    /// Rules that lines of 2026 of project 5 keep.
    pub const RULES: Rules =
        Rules { most_bytes: 300, time: 0, first: -2_208_988_800_000_000, end: 1_800_000_000_000_000, project: 1, value: 5 };

    const TIME: &str = "\"time\":\"2026-02-02 10:00:00.000000\"";

    fn scan(members: &[&str]) -> Option<Vec<Column>> {
        let lines: Vec<String> = members.iter().map(|members| format!("{{{TIME}{members}}}")).collect();
        a_format().columns((lines.join("\n") + "\n").as_bytes(), lines.len(), &RULES)
    }

    #[test]
    fn values_come_in_their_columns() {
        let columns = scan(&[
            ",\"app\":5,\"$name\":\"a\\u00e9\",\"lat\":1.5,\"paying\":true,\"bag\":{\"a\": [1]},\"any\":\"x\",\"app2\":\"\"",
            "",
            ", \"app2\" : \"b\" ,\"paying\":false,\"any\":null,\"$name\":\"c\" ",
        ])
        .unwrap();
        assert_eq!(columns[0].longs, [1_770_026_400_000_000; 3]);
        assert_eq!((columns[1].longs[0], columns[1].present), (5, 1));
        assert_eq!((columns[2].offsets.as_slice(), columns[2].texts.as_slice()), (&[0, 3, 3, 4][..], "aéc".as_bytes()));
        assert_eq!(columns[3].doubles, [1.5, 0.0, 0.0]);
        assert_eq!((columns[4].validity.as_slice(), columns[4].booleans.as_slice()), (&[0b101][..], &[0b001][..]));
        assert_eq!(columns[5].texts, b"{\"a\": [1]}");
        assert_eq!((columns[6].texts.as_slice(), columns[6].present), (&b"\"x\""[..], 1));
        assert_eq!((columns[7].offsets.as_slice(), columns[7].validity.as_slice()), (&[0, 0, 0, 1][..], &[0b101][..]));
    }

    #[test]
    fn a_block_with_one_doubtful_line_is_left() {
        assert!(scan(&["", ""]).is_some());
        for members in [
            ",\"app\":6",
            ",\"new\":1",
            ",\"app\":5,\"app\":5",
            ",\"app\":null,\"app\":null",
            ",\"\\u0061pp\":5",
            ",\"app\":5.0",
            ",\"app\":\"5\"",
            ",\"app\":05",
            ",\"$name\":5",
            ",\"$name\":\"\\ud83d\"",
            ",\"lat\":\"1\"",
            ",\"lat\":1e3",
            ",\"paying\":1",
            ",\"paying\":\"true\"",
            ",\"bag\":\"{}\"",
            ",\"bag\":{",
            ",\"any\":",
            ",",
            ",\"app\"",
            ",\"app\":5}",
            ",\"app\":5 x",
            ",\"time\":null",
            ",\"app2",
            "\n",
            ",\"any\":truefalse",
            ",\"$name\":nulll",
        ] {
            assert!(scan(&["", members]).is_none(), "{members}");
        }
        assert!(scan(&[&format!(",\"$name\":\"{}\"", "x".repeat(300))]).is_none());
    }

    #[test]
    fn every_line_needs_a_time_within_its_bounds() {
        let take = |line: &str| a_format().columns(format!("{line}\n").as_bytes(), 1, &RULES).is_some();
        assert!(take("{\"time\":\"1900-01-01 00:00:00.000000\"}"));
        for line in [
            "{}",
            "{\"time\":\"\"}",
            "{\"app\":5}",
            "{\"time\":\"1899-12-31 23:59:59.999999\"}",
            "{\"time\":\"2027-01-15 08:00:00.000000\"}",
            "{\"time\":\"2026-02-02 10:00:00\"}",
            "",
            " ",
            "[]",
            "null",
            "{\"time\":\"2026-02-02 10:00:00.000000\"",
        ] {
            assert!(!take(line), "{line}");
        }
    }

    #[test]
    fn the_number_of_lines_and_their_bytes_are_looked_at() {
        let line = format!("{{{TIME}}}\n");
        let both = format!("{line}{line}");
        assert!(a_format().columns(both.as_bytes(), 2, &RULES).is_some());
        for rows in [0, 1, 3, usize::MAX] {
            assert!(a_format().columns(both.as_bytes(), rows, &RULES).is_none());
        }
        assert!(a_format().columns(line.trim_end().as_bytes(), 1, &RULES).is_none());
        assert!(a_format().columns(&[b"\xff", line.as_bytes()].concat(), 1, &RULES).is_none());
        assert!(a_format().columns(line.as_bytes(), 1, &Rules { time: 1, ..RULES }).is_none());
        assert!(a_format().columns(line.as_bytes(), 1, &Rules { project: 99, ..RULES }).is_none());
    }

    #[test]
    fn keys_with_escapes_or_twice_make_no_format() {
        let keys = |keys: &[&[u8]]| Format::new(keys.iter().map(|&key| (key.into(), Kind::Text)).collect()).is_some();
        assert!(keys(&[b"a", b"b"]) && !keys(&[b"a\"", b"b"]) && !keys(&[b"a", b"a"]) && !keys(&[b"\xff"]) && !keys(&[]));
    }
}
