//! The interface in C. `pipeline_assets/native/__init__.py` declares the same functions and structures; whoever changes
//! one of them counts ABI up in both.
//!
//! No panic crosses it: a function that panics answers as if it was not sure.

#![allow(unsafe_code)]

use std::mem::size_of_val;
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::{ptr, slice};

use crate::columns::{Column, Kind};
use crate::lines::{Format, Rules};
use crate::rows;

/// Version of the interface and of what the functions mean.
pub const ABI: u32 = 2;

/// A column of a table, in Arrow's layout; pointers live as long as the table. Without any value all are null.
#[repr(C)]
pub struct Buffers {
    validity: *const u8,
    /// Of a column of texts.
    offsets: *const i32,
    /// Texts, numbers or bits.
    values: *const u8,
    /// Bytes of `values`.
    length: u64,
    /// Number of rows that have a value.
    present: u64,
}

/// The columns of a block, in the order of the format's keys.
pub struct Table {
    /// Owns what `buffers` points into.
    _columns: Vec<Column>,
    buffers: Vec<Buffers>,
}

impl Buffers {
    #[cfg(test)]
    pub(crate) fn parts(&self) -> (*const u8, *const i32, *const u8, u64, u64) {
        (self.validity, self.offsets, self.values, self.length, self.present)
    }

    fn of(column: &Column) -> Self {
        let values: (*const u8, usize) = if !column.offsets.is_empty() {
            (or_null(&column.texts), column.texts.len())
        } else if !column.doubles.is_empty() {
            (column.doubles.as_ptr().cast(), size_of_val(column.doubles.as_slice()))
        } else if !column.booleans.is_empty() {
            (column.booleans.as_ptr(), column.booleans.len())
        } else {
            (column.longs.as_ptr().cast(), size_of_val(column.longs.as_slice()))
        };
        let (values, length) = if column.present == 0 { (ptr::null(), 0) } else { values };
        Self {
            validity: or_null(&column.validity),
            offsets: or_null(&column.offsets),
            values,
            length: length as u64,
            present: column.present as u64,
        }
    }
}

fn or_null<T>(values: &[T]) -> *const T {
    if values.is_empty() {
        ptr::null()
    } else {
        values.as_ptr()
    }
}

/// The answer of a function, None where it panics.
fn guarded<T>(answer: impl FnOnce() -> Option<T>) -> Option<T> {
    // What a panic leaves behind is dropped with the closure, so nobody sees it half done.
    catch_unwind(AssertUnwindSafe(answer)).ok().flatten()
}

fn boxed<T>(value: Option<T>) -> *mut T {
    value.map_or(ptr::null_mut(), |value| Box::into_raw(Box::new(value)))
}

/// # Safety
/// `values` points to `count` values that nobody changes during `'a`; it may be null if there are none.
unsafe fn sliced<'a, T>(values: *const T, count: u64) -> Option<&'a [T]> {
    match count {
        0 => Some(&[]),
        _ if values.is_null() => None,
        // SAFETY: as the caller promises.
        _ => Some(unsafe { slice::from_raw_parts(values, usize::try_from(count).ok()?) }),
    }
}

/// # Safety
/// `values` points to `count` values that nobody else uses during `'a`; it may be null if there are none.
unsafe fn sliced_mut<'a, T>(values: *mut T, count: u64) -> Option<&'a mut [T]> {
    match count {
        0 => Some(&mut []),
        _ if values.is_null() => None,
        // SAFETY: as the caller promises.
        _ => Some(unsafe { slice::from_raw_parts_mut(values, usize::try_from(count).ok()?) }),
    }
}

/// The version of this interface.
#[no_mangle]
pub extern "C" fn tidemark_abi() -> u32 {
    ABI
}

/// A format of `count` keys: their bytes one after the other, where each ends, the code of each one's kind. Null if refused.
///
/// # Safety
/// `ends` and `kinds` point to `count` values each, `keys` to as many bytes as the last of `ends` says.
#[no_mangle]
pub unsafe extern "C" fn tidemark_format_new(keys: *const u8, ends: *const u64, kinds: *const u8, count: u64) -> *mut Format {
    boxed(guarded(|| {
        // SAFETY: as the caller promises.
        let ends = unsafe { sliced(ends, count) }?;
        // SAFETY: as the caller promises.
        let kinds = unsafe { sliced(kinds, count) }?;
        // SAFETY: as the caller promises.
        let keys = unsafe { sliced(keys, *ends.last()?) }?;
        let mut start = 0;
        let columns = ends.iter().zip(kinds).map(|(&end, &kind)| {
            let key = keys.get(start..usize::try_from(end).ok()?)?;
            start += key.len();
            Some((key.into(), Kind::of(kind)?))
        });
        Format::new(columns.collect::<Option<_>>()?)
    }))
}

/// Scan `rows` lines, each of which ends with a line feed; null where it is not sure of one of them.
///
/// # Safety
/// `format` comes from `tidemark_format_new`, `text` points to `length` bytes, `rules` to a structure.
#[no_mangle]
pub unsafe extern "C" fn tidemark_scan(
    format: *const Format,
    text: *const u8,
    length: u64,
    rows: u64,
    rules: *const Rules,
) -> *mut Table {
    boxed(guarded(|| {
        // SAFETY: as the caller promises; a format is never changed.
        let format = unsafe { format.as_ref() }?;
        // SAFETY: as the caller promises.
        let rules = unsafe { rules.as_ref() }?;
        // SAFETY: as the caller promises.
        let text = unsafe { sliced(text, length) }?;
        let columns = format.columns(text, usize::try_from(rows).ok()?, rules)?;
        let buffers = columns.iter().map(Buffers::of).collect();
        Some(Table { _columns: columns, buffers })
    }))
}

/// The columns of a table, as many as its format has keys.
///
/// # Safety
/// `table` comes from `tidemark_scan` and was not freed.
#[no_mangle]
pub unsafe extern "C" fn tidemark_table_columns(table: *const Table) -> *const Buffers {
    // SAFETY: as the caller promises.
    unsafe { table.as_ref() }.map_or(ptr::null(), |table| table.buffers.as_ptr())
}

/// Free a table and all that its columns point to.
///
/// # Safety
/// `table` comes from `tidemark_scan`, and this is its last use.
#[no_mangle]
pub unsafe extern "C" fn tidemark_table_free(table: *mut Table) {
    if !table.is_null() {
        // SAFETY: as the caller promises, nobody else frees it.
        drop(unsafe { Box::from_raw(table) });
    }
}

/// Free a format.
///
/// # Safety
/// `format` comes from `tidemark_format_new`, and this is its last use.
#[no_mangle]
pub unsafe extern "C" fn tidemark_format_free(format: *mut Format) {
    if !format.is_null() {
        // SAFETY: as the caller promises, nobody else frees it.
        drop(unsafe { Box::from_raw(format) });
    }
}

/// Bytes of a buffer; null where there is none.
#[repr(C)]
pub struct Bytes {
    pub(crate) start: *const u8,
    pub(crate) length: u64,
}

/// A column of rows to hash, in Arrow's layout; the fields of `rows::Column`.
#[repr(C)]
pub struct HashedColumn {
    pub(crate) kind: u64,
    pub(crate) validity: Bytes,
    pub(crate) offsets: Bytes,
    pub(crate) values: Bytes,
    pub(crate) first_bit: u64,
}

/// Write both halves of the hash of `count` rows of `width` columns. 0 where a column is not what it says, else 1.
///
/// # Safety
/// `columns` points to `width` structures, each buffer to as many bytes as it says, `version` to `length` bytes; `first` and
/// `second` to room for `count` values each, which nobody else uses.
#[no_mangle]
pub unsafe extern "C" fn tidemark_row_hashes(
    columns: *const HashedColumn,
    width: u64,
    version: *const u8,
    length: u64,
    count: u64,
    first: *mut i64,
    second: *mut i64,
) -> u32 {
    let done = guarded(|| {
        // SAFETY: as the caller promises.
        let columns = unsafe { sliced(columns, width) }?;
        // SAFETY: as the caller promises.
        let version = unsafe { sliced(version, length) }?;
        // SAFETY: as the caller promises.
        let first = unsafe { sliced_mut(first, count) }?;
        // SAFETY: as the caller promises.
        let second = unsafe { sliced_mut(second, count) }?;
        // SAFETY: as the caller promises.
        let bytes = |of: &Bytes| unsafe { sliced(of.start, of.length) };
        let columns = columns.iter().map(|one| {
            let first_bit = usize::try_from(one.first_bit).ok()?;
            rows::Column::new(one.kind, bytes(&one.validity)?, bytes(&one.offsets)?, bytes(&one.values)?, first_bit)
        });
        rows::hash(&columns.collect::<Option<Vec<_>>>()?, version, first, second)
    });
    u32::from(done.is_some())
}
