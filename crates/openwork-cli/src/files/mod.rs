//! Matrices in safetensors files: read without trust, written all or nothing.
//!
//! ```text
//! Place --Store::open--> Store --entry--> Entry --> f32 weights | samples | Hessian
//! FILE:tensor            mapped file      one tensor, type and shape checked
//! ```
//!
//! Nothing here knows the command line; errors name the file and the tensor.

mod dtype;
mod error;
mod hessian;
mod place;
mod store;
mod write;

pub use dtype::Dtype;
pub use hessian::{choose as choose_hessian, load, stored, stream};
pub use place::{Named, Place};
pub use store::{Entry, Store};
pub use write::{Part, check_target, write};
