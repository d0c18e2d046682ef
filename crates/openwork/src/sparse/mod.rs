//! Packed weights: what stays of a pruned matrix, and products with it.
//!
//! A [`Packed`] holds the kept values of a matrix bit for bit and an index that
//! says where they belong, in the [format](FORMATS) that its spec has. It
//! multiplies without being unpacked: decoding reads fewer bytes than the dense
//! matrix has, so it is faster by nearly as much.
//!
//! ```
//! use openwork::Pattern;
//! use openwork::sparse::{Packed, ValuesRef};
//! let spec = "2:4".parse::<Pattern>().unwrap().bind(&[1, 8]).unwrap();
//! let w = [0.0, 3.0, 0.0, -1.0, 0.5, 2.0, 0.0, 0.0];
//! let packed = Packed::pack(&spec.into(), ValuesRef::F32(&w)).unwrap();
//! assert_eq!((packed.format().name, packed.values().len()), ("nm", 4));
//! let mut y = [0.0];
//! packed.matvec(&[1.0; 8], &mut y);
//! assert_eq!(y, [4.5]);
//! ```

mod axpy;
mod block;
mod cutlass;
mod error;
mod general;
mod kept;
mod matmul;
mod matvec;
mod nm;
mod packed;
mod panel;
mod rank;
mod rows16;
mod simd;

#[cfg(test)]
mod tests;

pub use crate::values::{ValueType, Values, ValuesRef};
pub use error::{PackError, PartsError};
pub use packed::Packed;

use crate::mask::Bits;
use crate::spec::{Pattern, Spec};
use matmul::Room;
use simd::Value;
use std::ops::Range;

/// A row of [`FORMATS`].
#[derive(Debug)]
pub struct Format {
    /// Its name, in files too.
    pub name: &'static str,
    /// What it holds, in one line.
    pub summary: &'static str,
    /// A spec that it is for.
    pub example: &'static str,
    /// The format's shape for a spec over one matrix of these rows and columns,
    /// if it is for such specs.
    fits: fn(&Spec, usize, usize) -> Option<Shape>,
}

/// Every packed format, the first that fits a spec being the one it has. To add
/// one, write its file and list it here.
pub const FORMATS: &[Format] =
    &[nm::FORMAT, nm::COUPLED, rows16::FORMAT, block::FORMAT, general::FORMAT];

/// A format with its sizes.
#[derive(Clone, Debug)]
enum Shape {
    Nm(nm::Nm),
    Rows16(rows16::Rows16),
    Block(block::Block),
    General(general::General),
}

/// Runs `$body` with the layout of whichever shape there is.
macro_rules! layout {
    ($shape:expr, $layout:ident => $body:expr) => {
        match $shape {
            $crate::sparse::Shape::Nm($layout) => $body,
            $crate::sparse::Shape::Rows16($layout) => $body,
            $crate::sparse::Shape::Block($layout) => $body,
            $crate::sparse::Shape::General($layout) => $body,
        }
    };
}
use layout;

/// What every format does. `index` and `values` are those of the whole matrix
/// and have passed `check`; `simd` asks for the AVX2 kernel, which the machine
/// then has.
trait Layout {
    /// Rows that are stored together: work is cut between strips.
    fn strip(&self) -> usize;

    /// Bytes of the index in memory.
    fn index_len(&self) -> usize;

    /// How many values there are.
    fn values_len(&self) -> usize;

    /// The index of a mask that conforms to the spec.
    fn encode(&self, mask: &Bits) -> Vec<u8>;

    /// Whether an index of the right length is one that `encode` could give.
    fn check(&self, index: &[u8]) -> Result<(), PartsError>;

    /// Visits the offsets of all kept weights, in the order of the values.
    fn each(&self, index: &[u8], visit: impl FnMut(usize));

    /// Strips that a kernel reads side by side, 3 or 4: memory is faster in several
    /// streams than in one.
    fn streams(&self) -> usize {
        4
    }

    /// `y = W x` for the rows of one strip, on any machine.
    fn slow<T: Value>(&self, index: &[u8], values: &[T], strip: usize, x: &[f32], y: &mut [f32]);

    /// The same for the strips `from + first + s * part` with `s < S`, all of
    /// whose rows are there; `y` begins with strip `from`.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn fast<T: Value, const S: usize>(
        &self,
        index: &[u8],
        values: &[T],
        from: usize,
        first: usize,
        part: usize,
        x: &[f32],
        y: &mut [f32],
    );

    /// Adds what some columns of a strip give to `acc`, a line for each row of
    /// the strip; `xt` has a line of the same length for each of the columns.
    /// For one strip calls go from left to right, and `cursor` is the layout's
    /// own note of how far it is, at first 0.
    fn accumulate<T: Value>(
        &self,
        index: &[u8],
        values: &[T],
        strip: usize,
        cols: Range<usize>,
        cursor: &mut usize,
        xt: &[f32],
        acc: &mut [f32],
        room: &mut Room,
        simd: bool,
    );
}

/// Whether `spec` is, over one whole matrix, what `text` would be.
fn is(spec: &Spec, text: &str) -> bool {
    let [tensor] = spec.tensors() else { return false };
    let other = text.parse::<Pattern>().ok().and_then(|p| p.bind(tensor.dims()).ok());
    other.is_some_and(|other| spec.is_like(&other))
}
