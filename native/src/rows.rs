//! The hash of rows of Arrow columns, as `transforms/event_hashes.py` defines it: `version;numbers;texts` by SHA-256.

use crate::sha256;

/// What a column holds; the codes are those of `HashedKind` in `pipeline_assets/native/__init__.py`.
#[derive(Clone, Copy)]
enum Kind {
    /// No value at all.
    Nothing,
    /// Text or bytes; its number is its length.
    Text,
    Long,
    Int,
    Boolean,
    /// Its number is its bits; every NaN has the same ones.
    Double,
}

/// A column in Arrow's layout, from its first row on. Buffers are bytes, so that none need be aligned.
pub struct Column<'a> {
    kind: Kind,
    /// Empty where every row has a value.
    validity: &'a [u8],
    /// Of texts.
    offsets: &'a [u8],
    values: &'a [u8],
    /// The bit of the first row in `validity`, and in `values` of booleans.
    first_bit: usize,
}

const NAN_BITS: i64 = 0x7ff8_0000_0000_0000;
/// Digits and sign of a 64-bit number.
const MOST_DIGITS: usize = 20;

impl<'a> Column<'a> {
    /// None for an unknown code.
    pub fn new(code: u64, validity: &'a [u8], offsets: &'a [u8], values: &'a [u8], first_bit: usize) -> Option<Self> {
        let kind = match code {
            0 => Kind::Nothing,
            1 => Kind::Text,
            2 => Kind::Long,
            3 => Kind::Int,
            4 => Kind::Boolean,
            5 => Kind::Double,
            _ => return None,
        };
        Some(Self { kind, validity, offsets, values, first_bit })
    }

    fn bit(&self, bits: &[u8], row: usize) -> Option<bool> {
        let place = row.checked_add(self.first_bit)?;
        Some(bits.get(place / 8)? >> (place % 8) & 1 == 1)
    }

    fn holds(&self, row: usize) -> Option<bool> {
        match self.kind {
            Kind::Nothing => Some(false),
            _ if self.validity.is_empty() => Some(true),
            _ => self.bit(self.validity, row),
        }
    }

    fn text(&self, row: usize) -> Option<&'a [u8]> {
        let end = |place| usize::try_from(i32::from_ne_bytes(element(self.offsets, place)?)).ok();
        self.values.get(end(row)?..end(row + 1)?)
    }

    fn long(&self, row: usize) -> Option<i64> {
        Some(match self.kind {
            Kind::Int => i32::from_ne_bytes(element(self.values, row)?).into(),
            Kind::Boolean => self.bit(self.values, row)?.into(),
            Kind::Double => {
                let value = f64::from_ne_bytes(element(self.values, row)?);
                if value.is_nan() {
                    NAN_BITS
                } else {
                    value.to_bits() as i64
                }
            }
            _ => i64::from_ne_bytes(element(self.values, row)?),
        })
    }
}

fn element<const WIDTH: usize>(values: &[u8], place: usize) -> Option<[u8; WIDTH]> {
    let start = place.checked_mul(WIDTH)?;
    values.get(start..start.checked_add(WIDTH)?)?.try_into().ok()
}

/// Write both halves of the hash of each row; None where a buffer is shorter than its rows need.
pub fn hash(columns: &[Column<'_>], version: &[u8], first: &mut [i64], second: &mut [i64]) -> Option<()> {
    let compress = sha256::fastest();
    let mut encoded = Vec::new();
    let mut texts: Vec<&[u8]> = Vec::new();
    for (row, (first, second)) in first.iter_mut().zip(second).enumerate() {
        encoded.clear();
        texts.clear();
        encoded.extend_from_slice(version);
        for column in columns {
            encoded.push(b',');
            if !column.holds(row)? {
                encoded.push(b'-');
            } else if let Kind::Text = column.kind {
                let text = column.text(row)?;
                write_number(&mut encoded, i64::try_from(text.len()).ok()?);
                texts.push(text);
            } else {
                write_number(&mut encoded, column.long(row)?);
            }
        }
        // The first number follows no other.
        encoded[version.len()] = b';';
        encoded.push(b';');
        for text in &texts {
            encoded.extend_from_slice(text);
        }
        (*first, *second) = sha256::halves(&encoded, compress);
    }
    Some(())
}

fn write_number(into: &mut Vec<u8>, number: i64) {
    let mut digits = [0u8; MOST_DIGITS];
    let (mut at, mut rest) = (MOST_DIGITS, number.unsigned_abs());
    loop {
        at -= 1;
        digits[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        digits[at] = b'-';
    }
    into.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(number: i64) -> String {
        let mut text = Vec::new();
        write_number(&mut text, number);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_are_written_as_rust_writes_them() {
        for number in [0, 1, -1, 9, 10, -10, 99, 100, 1_770_026_400_000_000, i64::MAX, i64::MIN] {
            assert_eq!(encoded(number), number.to_string());
        }
    }

    #[test]
    fn a_row_is_hashed_as_version_numbers_and_texts() {
        let longs = [7i64.to_ne_bytes(), (-8i64).to_ne_bytes()].concat();
        let offsets = [0i32, 2, 2].map(i32::to_ne_bytes).concat();
        let columns = [
            Column::new(2, &[0b100], &[], &longs, 2).unwrap(),
            Column::new(1, &[], &offsets, b"ab", 0).unwrap(),
            Column::new(0, &[], &[], &[], 0).unwrap(),
            Column::new(4, &[], &[], &[0b1000], 2).unwrap(),
        ];
        let (mut first, mut second) = ([0; 2], [0; 2]);
        hash(&columns, b"3", &mut first, &mut second).unwrap();
        let expected = [b"3;7,2,-,0;ab".as_slice(), b"3;-,0,-,1;"].map(|text| sha256::halves(text, sha256::fastest()));
        assert_eq!([(first[0], second[0]), (first[1], second[1])], expected);
    }

    #[test]
    fn what_lies_beyond_a_buffer_is_not_read() {
        let offsets = |ends: [i32; 2]| ends.map(i32::to_ne_bytes).concat();
        let hash = |column: Column<'_>| hash(&[column], b"3", &mut [0], &mut [0]);
        for (code, offsets, values) in [
            (1, offsets([0, 4]), &b"abc"[..]),
            (1, offsets([2, 1]), b"abc"),
            (1, offsets([-1, 1]), b"abc"),
            (1, vec![0; 7], b"abc"),
            (2, vec![], &[0; 7]),
            (3, vec![], &[0; 3]),
            (4, vec![], &[]),
            (5, vec![], &[0; 7]),
        ] {
            assert!(hash(Column::new(code, &[], &offsets, values, 0).unwrap()).is_none(), "{code}");
        }
        assert!(hash(Column::new(2, &[1], &[], &[0; 8], 8).unwrap()).is_none());
        assert!(hash(Column::new(2, &[1], &[], &[0; 8], usize::MAX).unwrap()).is_none());
        assert!(Column::new(6, &[], &[], &[], 0).is_none());
    }
}
