//! JSON (RFC 8259) in UTF-8 that was checked before. Each function answers None for what is not valid, or not plain.

/// Most nested arrays and objects within a value. Deeper ones are left to the parser in Python.
pub const MAX_DEPTH: u32 = 63;

const LOW: u64 = 0x0101_0101_0101_0101;
const HIGH: u64 = 0x8080_8080_8080_8080;

/// The place of the first byte from `at` on that is not white space.
#[inline]
pub fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
        at += 1;
    }
    at
}

/// The place of the first quote, backslash or control character from `at` on, or the text's end.
#[inline]
fn plain_end(text: &[u8], mut at: usize) -> usize {
    while let Some(Ok(eight)) = text.get(at..at + 8).map(<[u8; 8]>::try_from) {
        let word = u64::from_le_bytes(eight);
        let quote = word ^ (LOW * u64::from(b'"'));
        let backslash = word ^ (LOW * u64::from(b'\\'));
        // The lowest bit found is exact: a borrow reaches higher bytes only.
        let found = ((quote.wrapping_sub(LOW) & !quote)
            | (backslash.wrapping_sub(LOW) & !backslash)
            | (word.wrapping_sub(LOW * 0x20) & !word))
            & HIGH;
        if found != 0 {
            return at + (found.trailing_zeros() / 8) as usize;
        }
        at += 8;
    }
    while matches!(text.get(at), Some(&byte) if byte != b'"' && byte != b'\\' && byte >= 0x20) {
        at += 1;
    }
    at
}

/// The character of the escape whose backslash lies at `at`, and the place behind it; None for half a surrogate pair.
fn escape(text: &[u8], at: usize) -> Option<(char, usize)> {
    let plain = match text.get(at + 1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{c}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return code_point(text, at),
        _ => return None,
    };
    Some((plain, at + 2))
}

fn code_point(text: &[u8], at: usize) -> Option<(char, usize)> {
    let first = four_digits(text, at + 2)?;
    if !(0xd800..0xdc00).contains(&first) {
        return Some((char::from_u32(first)?, at + 6));
    }
    if text.get(at + 6..at + 8)? != b"\\u" {
        return None;
    }
    let second = four_digits(text, at + 8)?;
    if !(0xdc00..0xe000).contains(&second) {
        return None;
    }
    let both = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    Some((char::from_u32(both)?, at + 12))
}

fn four_digits(text: &[u8], at: usize) -> Option<u32> {
    text.get(at..at + 4)?.iter().try_fold(0, |sum, &digit| Some(sum * 16 + char::from(digit).to_digit(16)?))
}

/// The place behind the string whose opening quote lies at `at`.
fn string_end(text: &[u8], at: usize) -> Option<usize> {
    let mut at = at + 1;
    loop {
        at = plain_end(text, at);
        match text.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at = escape(text, at)?.1,
            _ => return None,
        }
    }
}

/// Append what the string means whose opening quote lies at `at`; the place behind it. `into` has room for the rest of `text`.
#[inline]
pub fn read_string(text: &[u8], at: usize, into: &mut Vec<u8>) -> Option<usize> {
    if text.get(at)? != &b'"' {
        return None;
    }
    let mut start = at + 1;
    loop {
        let end = plain_end(text, start);
        into.extend_from_slice(&text[start..end]);
        match text.get(end)? {
            b'"' => return Some(end + 1),
            b'\\' => {
                let (character, after) = escape(text, end)?;
                into.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                start = after;
            }
            _ => return None,
        }
    }
}

fn digits_end(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b'0'..=b'9')) {
        at += 1;
    }
    at
}

/// The place behind at least one digit.
fn some_digits(text: &[u8], at: usize) -> Option<usize> {
    let end = digits_end(text, at);
    (end > at).then_some(end)
}

/// The place behind the whole part of a number, which begins with no needless zero.
fn integer_end(text: &[u8], at: usize) -> Option<usize> {
    let start = at + usize::from(text.get(at)? == &b'-');
    match text.get(start)? {
        b'0' => Some(start + 1),
        _ => some_digits(text, start),
    }
}

fn number_end(text: &[u8], at: usize) -> Option<usize> {
    let mut end = integer_end(text, at)?;
    if text.get(end) == Some(&b'.') {
        end = some_digits(text, end + 1)?;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let sign = matches!(text.get(end + 1), Some(b'+' | b'-'));
        end = some_digits(text, end + 1 + usize::from(sign))?;
    }
    Some(end)
}

/// An integer of 64 bits, and the place behind it. What follows it, such as a fraction, is the caller's to refuse.
#[inline]
pub fn read_long(text: &[u8], at: usize) -> Option<(i64, usize)> {
    let is_negative = text.get(at)? == &b'-';
    let start = at + usize::from(is_negative);
    let end = integer_end(text, at)?;
    // Nineteen digits fit 64 bits without a sign.
    if end - start > 19 || (is_negative && text[start] == b'0') {
        return None;
    }
    let size = text[start..end].iter().fold(0u64, |sum, &digit| sum * 10 + u64::from(digit - b'0'));
    let value = match is_negative {
        true => 0i64.checked_sub_unsigned(size)?,
        false => i64::try_from(size).ok()?,
    };
    Some((value, end))
}

/// A number without an exponent and with few digits, correctly rounded, and the place behind it; negative zero is not plain.
#[inline]
pub fn read_double(text: &[u8], at: usize) -> Option<(f64, usize)> {
    const MOST_BYTES: usize = 20;
    let end = number_end(text, at)?;
    let number = std::str::from_utf8(&text[at..end]).ok()?;
    if number.len() > MOST_BYTES || number.contains(['e', 'E']) {
        return None;
    }
    let value: f64 = number.parse().ok()?;
    (value != 0.0 || !number.starts_with('-')).then_some((value, end))
}

/// The place behind `word`, if the text continues with it.
#[inline]
pub fn word_end(text: &[u8], at: usize, word: &[u8]) -> Option<usize> {
    text.get(at..)?.starts_with(word).then_some(at + word.len())
}

/// The place behind any valid value.
pub fn value_end(text: &[u8], at: usize) -> Option<usize> {
    // One bit for each array or object that is open, the innermost lowest: 1 for an object.
    let (mut open, mut depth) = (0u64, 0u32);
    let mut at = at;
    loop {
        at = skip_space(text, at);
        let kind = *text.get(at)?;
        at = match kind {
            b'{' | b'[' => {
                if depth == MAX_DEPTH {
                    return None;
                }
                let inside = skip_space(text, at + 1);
                if text.get(inside)? == &(kind + 2) {
                    inside + 1
                } else {
                    depth += 1;
                    open = open << 1 | u64::from(kind == b'{');
                    at = if kind == b'{' { key_end(text, inside)? } else { inside };
                    continue;
                }
            }
            b'"' => string_end(text, at)?,
            b't' => word_end(text, at, b"true")?,
            b'f' => word_end(text, at, b"false")?,
            b'n' => word_end(text, at, b"null")?,
            _ => number_end(text, at)?,
        };
        loop {
            if depth == 0 {
                return Some(at);
            }
            at = skip_space(text, at);
            let is_object = open & 1 == 1;
            match (text.get(at)?, is_object) {
                (b',', true) => {
                    at = key_end(text, skip_space(text, at + 1))?;
                    break;
                }
                (b',', false) => {
                    at += 1;
                    break;
                }
                (b'}', true) | (b']', false) => {
                    at += 1;
                    depth -= 1;
                    open >>= 1;
                }
                _ => return None,
            }
        }
    }
}

/// The place behind a key, whose opening quote lies at `at`, and its colon.
fn key_end(text: &[u8], at: usize) -> Option<usize> {
    if text.get(at)? != &b'"' {
        return None;
    }
    let colon = skip_space(text, string_end(text, at)?);
    (text.get(colon)? == &b':').then_some(colon + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_value(text: &str) -> bool {
        value_end(text.as_bytes(), 0) == Some(text.len())
    }

    fn string(text: &str) -> Option<String> {
        let mut into = Vec::new();
        let end = read_string(text.as_bytes(), 0, &mut into)?;
        (end == text.len()).then(|| String::from_utf8(into).unwrap())
    }

    #[test]
    fn values_are_taken_as_json_has_them() {
        for text in [
            "{}",
            "[]",
            "0",
            "-0",
            "1.5e-3",
            "1E+9",
            "\"\"",
            "null",
            "[1 , {\"a\":[ ]}]",
            "{\"a\" : 1, \"b\":\"\\u00e9\"}",
            "\"\\ud83d\\ude00\"",
            "{\"a\":{\"b\":[[],{}]}}",
            "\"0123456789 longer than a word\u{7f}é\"",
        ] {
            assert!(is_value(text), "{text}");
        }
        for text in [
            "",
            "{",
            "[1,]",
            "{\"a\"}",
            "{\"a\":1,}",
            "{,}",
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "-",
            "nul",
            "nulls",
            "\"",
            "\"\\x\"",
            "\"\\ud83d\"",
            "\"\\ude00\"",
            "\"\\ud83d\\u0041\"",
            "\"\\u12\"",
            "\"a\nb\"",
            "\"0123456\u{1f}\"",
            "[}",
            "{]",
            "[1 2]",
            "{\"a\":1 \"b\":2}",
            "{1:2}",
            "NaN",
            "'a'",
            "\"\\u+123\"",
        ] {
            assert!(!is_value(text), "{text}");
        }
    }

    #[test]
    fn values_within_the_depth_are_taken() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        let objects = |depth: usize| "{\"a\":".repeat(depth) + "1" + &"}".repeat(depth);
        let most = MAX_DEPTH as usize;
        assert!(is_value(&nested(most)) && is_value(&objects(most)));
        assert!(!is_value(&nested(most + 2)) && !is_value(&objects(most + 1)));
    }

    #[test]
    fn strings_are_decoded() {
        let cases = [
            ("\"\"", Some("")),
            ("\"abcdefgh\\n\"", Some("abcdefgh\n")),
            ("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", Some("\"\\/\u{8}\u{c}\n\r\t")),
            ("\"\\u0000\\u00E9\\u20ac\"", Some("\0é€")),
            ("\"x\\uD83D\\uDE00y\"", Some("x😀y")),
            ("\"\\uD83Dy\"", None),
            ("\"\\uDE00\"", None),
            ("\"\t\"", None),
            ("\"open", None),
            ("5", None),
        ];
        for (text, expected) in cases {
            assert_eq!(string(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn every_place_of_a_quote_is_found() {
        for before in 0..40 {
            let text = format!("\"{}\"", "\u{80}".repeat(before / 2) + &"z".repeat(before));
            assert_eq!(string_end(text.as_bytes(), 0), Some(text.len()));
            assert_eq!(string_end(&text.as_bytes()[..text.len() - 1], 0), None);
        }
    }

    #[test]
    fn longs_keep_every_digit() {
        for value in [0, 1, -1, 42, i64::MAX, i64::MIN, i64::MAX - 1, 999_999_999_999_999_999] {
            let text = value.to_string();
            assert_eq!(read_long(text.as_bytes(), 0), Some((value, text.len())));
        }
        for text in ["", "-", "-0", "9223372036854775808", "-9223372036854775809", "10000000000000000000000", "\"1\""] {
            assert_eq!(read_long(text.as_bytes(), 0), None, "{text}");
        }
    }

    #[test]
    fn doubles_are_correctly_rounded_or_left() {
        for text in ["0", "1", "-1", "37.7749", "-122.4194", "0.30000000000000004", "9007199254740993", "0.1"] {
            assert_eq!(read_double(text.as_bytes(), 0), Some((text.parse().unwrap(), text.len())));
        }
        for text in ["-0", "-0.0", "1e5", "1E5", "0.1234567890123456789012", "123456789012345678901", ".5", "5.", ""] {
            assert_eq!(read_double(text.as_bytes(), 0), None, "{text}");
        }
    }
}
