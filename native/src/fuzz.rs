//! Mutated lines through the interface, best under an address sanitizer (`make fuzz`): whatever the bytes, no panic, no
//! byte outside of the input, and columns that Arrow may trust.

use std::time::{Duration, Instant};
use std::{env, fs, slice, str};

use crate::ffi::*;
use crate::lines::tests::{a_format, RULES};
use crate::lines::{Format, Rules};

/// xorshift64*: the same bytes for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end.max(1)
    }
}

const PIECES: [&[u8]; 28] = [
    b"\"",
    b"\\",
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80",
    b"\\u",
    b"\\ud83d",
    b"\\ude00",
    b"\\ud83d\\ude00",
    b"null",
    b"true",
    b"-0",
    b"1e5",
    b"9223372036854775808",
    b"\"\"",
    b"{\"a\":",
    b"[[[[[[[[",
    b"2026-02-29 00:00:00.000000",
    b"    ",
];

fn mutated(line: &[u8], others: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut line = line.to_vec();
    for _ in 0..random.below(4) {
        let (one, two) = (random.below(line.len() + 1), random.below(line.len() + 1));
        let (start, end) = (one.min(two), one.max(two));
        match random.below(7) {
            0 if start < line.len() => line[start] ^= 1 << random.below(8),
            1 => line.truncate(start),
            2 => drop(line.drain(start..end.min(start + 8))),
            3 => drop(line.splice(start..start, PIECES[random.below(PIECES.len())].iter().copied())),
            4 => drop(line.splice(start..end.min(start + 4), PIECES[random.below(PIECES.len())].iter().copied())),
            5 => line.extend_from_within(start..end),
            _ => {
                let other = &others[random.below(others.len())];
                let from = random.below(other.len() + 1);
                line.splice(start.., other[from..].iter().copied());
            }
        }
    }
    line
}

/// Scan through the interface; whether it was sure.
#[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
fn scanned(format: &Format, text: &[u8], rows: usize, rules: &Rules) -> bool {
    // Bytes of its own, so that a sanitizer sees what is read beyond them.
    let text = text.to_vec().into_boxed_slice();
    unsafe {
        let table = tidemark_scan(format, text.as_ptr(), text.len() as u64, rows as u64, rules);
        drop(text);
        if table.is_null() {
            return false;
        }
        for column in slice::from_raw_parts(tidemark_table_columns(table), format.width()) {
            column.require_valid(rows);
        }
        tidemark_table_free(table);
    }
    true
}

/// Hash two rows of a text whose second end may lie beyond it: 1 if that was noticed, or if there was nothing to notice.
#[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
fn hashed(text: &[u8], random: &mut Random) -> u32 {
    let text = text.to_vec().into_boxed_slice();
    let ends = [0, random.below(text.len() + 1) as i32, text.len() as i32 + random.below(9) as i32 / 8];
    let offsets = ends.map(i32::to_ne_bytes).concat();
    let validity = [0b11u8];
    let bytes = |of: &[u8]| Bytes { start: of.as_ptr(), length: of.len() as u64 };
    let column =
        HashedColumn { kind: 1, validity: bytes(&validity), offsets: bytes(&offsets), values: bytes(&text), first_bit: 0 };
    let (mut first, mut second) = ([0i64; 2], [0i64; 2]);
    let version = b"3";
    let done = unsafe { tidemark_row_hashes(&column, 1, version.as_ptr(), 1, 2, first.as_mut_ptr(), second.as_mut_ptr()) };
    u32::from((done == 1) == (ends[2] as usize <= text.len()))
}

#[test]
#[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
fn mutated_lines_do_no_harm() {
    let mut corpus: Vec<Vec<u8>> = Vec::new();
    if let Ok(path) = env::var("FUZZ_LINES") {
        corpus.extend(fs::read(path).unwrap().split(|&byte| byte == b'\n').map(<[u8]>::to_vec));
    }
    corpus.push(
        b"{\"time\":\"2026-02-02 10:00:00.000000\",\"app\":5,\"$name\":\"a\\u00e9\\n\",\"lat\":1.5,\"paying\":true,\"bag\":{\"a\":[1,{\"b\":null}]},\"any\":\"x\"}"
            .to_vec(),
    );
    let (format, rules) = match env::var("FUZZ_KEYS") {
        Ok(keys) => of_variables(&keys),
        Err(_) => (a_format(), RULES),
    };
    let variable = |name: &str, usual: u64| env::var(name).map_or(usual, |value| value.parse().unwrap());
    let end = Instant::now() + Duration::from_secs(variable("FUZZ_SECONDS", 1));
    let mut random = Random(variable("FUZZ_SEED", 1).max(1));
    let (mut blocks, mut sure) = (0u64, 0u64);
    while Instant::now() < end {
        for _ in 0..1000 {
            let rows = 1 + random.below(3);
            let lines: Vec<Vec<u8>> = (0..rows)
                .map(|_| {
                    let line = &corpus[random.below(corpus.len())];
                    mutated(line, &corpus, &mut random)
                })
                .collect();
            let mut text = lines.join(&b'\n');
            if random.below(50) > 0 {
                text.push(b'\n');
            }
            sure += u64::from(scanned(&format, &text, rows, &rules));
            blocks += 1;
            assert_eq!(hashed(&text, &mut random), 1);
        }
    }
    println!("{blocks} blocks, {sure} of them scanned");
    assert!(sure > blocks / 100);
}

/// `key kind` of each column, separated by commas; the rules of project and time with wide bounds.
fn of_variables(keys: &str) -> (Format, Rules) {
    let columns: Vec<(Box<[u8]>, crate::columns::Kind)> = keys
        .split(',')
        .map(|pair| {
            let (key, code) = pair.split_once(' ').unwrap();
            (key.as_bytes().into(), crate::columns::Kind::of(code.parse().unwrap()).unwrap())
        })
        .collect();
    let place = |name: &[u8]| columns.iter().position(|(key, _)| **key == *name).unwrap() as u64;
    let value = env::var("FUZZ_PROJECT").unwrap().parse().unwrap();
    let rules = Rules { most_bytes: 1 << 20, time: place(b"event_time"), end: i64::MAX, project: place(b"app"), value, ..RULES };
    (Format::new(columns).unwrap(), rules)
}

impl Buffers {
    /// # Safety
    /// The table of the column lives.
    #[allow(unsafe_code, clippy::undocumented_unsafe_blocks)]
    unsafe fn require_valid(&self, rows: usize) {
        let (validity, offsets, values, length, present) = self.parts();
        if present == 0 {
            assert!(values.is_null());
            return;
        }
        unsafe {
            let bits = slice::from_raw_parts(validity, rows.div_ceil(8));
            assert_eq!(bits.iter().map(|byte| byte.count_ones() as u64).sum::<u64>(), present);
            let values = if length == 0 { &[] } else { slice::from_raw_parts(values, length as usize) };
            if offsets.is_null() {
                assert!([rows * 8, rows.div_ceil(8)].contains(&values.len()));
                return;
            }
            let offsets = slice::from_raw_parts(offsets, rows + 1);
            assert_eq!((offsets[0], offsets[rows] as usize), (0, values.len()));
            for (row, ends) in offsets.windows(2).enumerate() {
                assert!(ends[0] <= ends[1]);
                assert!(str::from_utf8(&values[ends[0] as usize..ends[1] as usize]).is_ok());
                assert!(bits[row / 8] >> (row % 8) & 1 == 1 || ends[0] == ends[1]);
            }
        }
    }
}
