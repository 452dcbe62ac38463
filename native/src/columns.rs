//! Columns in Arrow's layout: a bit for each value that is there, offsets and bytes of texts, numbers.

/// What a column holds, and how it is delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// An integer of 64 bits.
    Long,
    /// A time, in microseconds.
    Time,
    /// A double.
    Double,
    /// A boolean.
    Boolean,
    /// Any JSON, byte for byte.
    Json,
    /// The same; if it is a string, the parser in Python looks into it.
    Bag,
}

impl Kind {
    /// The kind of a code of the interface.
    pub fn of(code: u8) -> Option<Self> {
        const ALL: [Kind; 7] = [Kind::Text, Kind::Long, Kind::Time, Kind::Double, Kind::Boolean, Kind::Json, Kind::Bag];
        ALL.get(usize::from(code)).copied()
    }
}

/// One column of a block while its lines are read, row after row. Nothing is allocated before its first value.
#[derive(Default)]
pub struct Column {
    /// One bit a row.
    pub validity: Vec<u8>,
    /// Rows + 1 of a column of texts: where the text of a row begins in `texts`.
    pub offsets: Vec<i32>,
    /// Bytes of all texts.
    pub texts: Vec<u8>,
    /// Longs and times.
    pub longs: Vec<i64>,
    /// Doubles.
    pub doubles: Vec<f64>,
    /// Booleans, one bit a row.
    pub booleans: Vec<u8>,
    /// Number of values that are there.
    pub present: usize,
    /// Offsets up to this one are set.
    reached: usize,
    /// The last row with the column's key, from 1.
    seen: usize,
}

impl Column {
    /// Note that a row has the column's key; None where it has it twice.
    #[inline]
    pub fn see(&mut self, row: usize) -> Option<()> {
        let is_first = self.seen != row + 1;
        self.seen = row + 1;
        is_first.then_some(())
    }

    /// Whether the row has a value.
    pub fn holds(&self, row: usize) -> bool {
        self.validity.get(row / 8).is_some_and(|bits| bits >> (row % 8) & 1 == 1)
    }

    #[inline]
    fn set(&mut self, row: usize, rows: usize) -> Option<()> {
        if self.validity.is_empty() {
            grow(&mut self.validity, rows.div_ceil(8))?;
        }
        self.validity[row / 8] |= 1 << (row % 8);
        self.present += 1;
        Some(())
    }

    /// Add the long of a row.
    #[inline]
    pub fn add_long(&mut self, row: usize, rows: usize, value: i64) -> Option<()> {
        if self.longs.is_empty() {
            grow(&mut self.longs, rows)?;
        }
        self.longs[row] = value;
        self.set(row, rows)
    }

    /// Add the double of a row.
    pub fn add_double(&mut self, row: usize, rows: usize, value: f64) -> Option<()> {
        if self.doubles.is_empty() {
            grow(&mut self.doubles, rows)?;
        }
        self.doubles[row] = value;
        self.set(row, rows)
    }

    /// Add the boolean of a row.
    pub fn add_boolean(&mut self, row: usize, rows: usize, value: bool) -> Option<()> {
        if self.booleans.is_empty() {
            grow(&mut self.booleans, rows.div_ceil(8))?;
        }
        self.booleans[row / 8] |= u8::from(value) << (row % 8);
        self.set(row, rows)
    }

    /// Where the text of the next row goes, with room for `most` more bytes.
    #[inline]
    pub fn room(&mut self, most: usize) -> Option<&mut Vec<u8>> {
        self.texts.try_reserve(most).ok()?;
        Some(&mut self.texts)
    }

    /// End the text of a row, whose bytes were appended.
    #[inline]
    pub fn end_text(&mut self, row: usize, rows: usize, start: usize) -> Option<()> {
        if self.offsets.is_empty() {
            grow(&mut self.offsets, rows + 1)?;
        }
        // Rows without a value begin and end where this one begins.
        self.offsets[self.reached..=row].fill(i32::try_from(start).ok()?);
        self.offsets[row + 1] = i32::try_from(self.texts.len()).ok()?;
        self.reached = row + 1;
        self.set(row, rows)
    }

    /// End the column after its last row.
    pub fn end(&mut self) -> Option<()> {
        if let Some(rest) = self.offsets.get_mut(self.reached..) {
            rest.fill(i32::try_from(self.texts.len()).ok()?);
        }
        Some(())
    }
}

/// Fill an empty vector with zeros; None where there is no memory.
fn grow<T: Clone + Default>(values: &mut Vec<T>, count: usize) -> Option<()> {
    values.try_reserve_exact(count).ok()?;
    values.resize(count, T::default());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add_text(column: &mut Column, row: usize, rows: usize, text: &[u8]) {
        let start = column.texts.len();
        column.room(text.len()).unwrap().extend_from_slice(text);
        column.end_text(row, rows, start).unwrap();
    }

    #[test]
    fn texts_have_offsets_around_rows_without_one() {
        let mut column = Column::default();
        add_text(&mut column, 2, 6, b"ab");
        add_text(&mut column, 4, 6, b"c");
        column.end().unwrap();
        assert_eq!(column.offsets, [0, 0, 0, 2, 2, 3, 3]);
        assert_eq!((column.validity, column.present), (vec![0b10100], 2));
    }

    #[test]
    fn a_key_is_seen_once_a_row() {
        let mut column = Column::default();
        assert!(column.see(0).is_some() && column.see(1).is_some() && column.see(1).is_none());
    }
}
