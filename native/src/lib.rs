//! Lines of an export to Arrow columns, and hashes of rows of Arrow columns. `ffi` is the interface, called by `pipeline_assets/native/`.
//!
//! The scanner never decides what a doubtful line means: it gives exactly the columns that the parser in Python gives, or
//! says that it is not sure.

#![deny(missing_docs, unsafe_code, unsafe_op_in_unsafe_fn)]
#![deny(clippy::all, clippy::undocumented_unsafe_blocks)]

mod columns;
pub mod ffi;
mod json;
mod lines;
mod rows;
mod sha256;
mod times;

#[cfg(test)]
mod fuzz;
