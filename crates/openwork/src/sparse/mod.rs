//! Packed weights: the kept values of a pruned matrix with an index, and products
//! that read them without unpacking.
//!
//! A [`Packed`] holds the kept values of a matrix bit for bit and an index of their
//! positions, in the [format](FORMATS) of its spec. A product reads fewer bytes than
//! one with the dense matrix, and is faster by nearly the same factor. Values are numbers
//! or codes of 8 or 4 bits ([`VALUE_KINDS`]); [`Packed::with_values`] converts them.
//!
//! ```
//! use openwork::Pattern;
//! use openwork::sparse::{Packed, ValuesRef};
//! let spec = "2:4".parse::<Pattern>().unwrap().bind(&[1, 8]).unwrap();
//! let w = [0.0, 3.0, 0.0, -1.0, 0.5, 2.0, 0.0, 0.0];
//! let packed = Packed::pack(&spec.into(), ValuesRef::F32(&w)).unwrap();
//! assert_eq!((packed.format().name, packed.kept()), ("nm", 4));
//! let mut y = [0.0];
//! packed.matvec(&[1.0; 8], &mut y);
//! assert_eq!(y, [4.5]);
//! ```

mod activations;
mod axpy;
mod bitmask;
mod block;
mod code_groups;
mod cutlass;
mod dense;
mod dense_codes;
mod encoding;
mod error;
mod gather;
mod gathered;
mod general;
mod kept;
mod kernel;
mod matmul;
mod matvec;
mod nm;
mod order;
mod packed;
mod panel;
#[cfg(target_arch = "x86_64")]
mod planes;
mod quant;
mod rank;
mod rounded;
mod rows16;
mod scale;
#[cfg(target_arch = "x86_64")]
mod source;
#[cfg(target_arch = "x86_64")]
mod vnni;

#[cfg(test)]
mod tests;

pub use crate::values::{ValueType, Values, ValuesRef};
pub use activations::{ACTIVATIONS_VARIABLE, activations};
pub use code_groups::CodeGroups;
pub use encoding::{Encoding, PackedValues, VALUE_KINDS, ValueKind};
pub use error::{PackError, PartsError};
pub use kernel::{KERNEL_VARIABLE, kernel};
pub use order::PackedOrder;
pub use packed::{Packed, ValuesPart};
pub use quant::{CodeBits, CodesRef, GROUPS, Quantized};
pub(crate) use scale::{EXACT_DIGITS, Quantizer};

use crate::spec::{Pattern, Spec};
use kept::Kept;
use kernel::Value;
use matmul::{InputColumns, Scratch};
use std::ops::Range;

/// A row of [`FORMATS`].
#[derive(Debug)]
pub struct Format {
    /// Its name, also in files.
    pub name: &'static str,
    /// What it stores, in one line.
    pub summary: &'static str,
    /// A spec that is stored in it.
    pub example: &'static str,
    /// The instructions of its vector kernels.
    pub kernels: &'static str,
    storage: IndexStorage,
    /// The layout of a matrix with these rows and columns, if the format is for
    /// the spec.
    fits: fn(&Spec, usize, usize) -> Option<Shape>,
}

/// All packed formats; a spec is stored in the first that fits it. To add one, write
/// its file and list it here.
pub const FORMATS: &[Format] = &[
    dense::FORMAT,
    nm::FORMAT,
    nm::COUPLED,
    rows16::FORMAT,
    block::FORMAT,
    gathered::FORMAT,
    bitmask::FORMAT,
    general::FORMAT,
];

/// What a file holds of the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IndexStorage {
    /// The index as it is in memory.
    Memory,
    /// A code per scope, as short as it gets.
    ScopeCodes,
}

/// Defines [`Shape`], a layout with its sizes, and `layout!(shape, l => body)`, which
/// evaluates `body` with the layout of a shape, whatever its type.
macro_rules! shapes {
    ($dollar:tt $($variant:ident($layout:ty),)+) => {
        #[derive(Clone, Debug)]
        enum Shape {
            $($variant($layout),)+
        }

        $(impl From<$layout> for Shape {
            fn from(layout: $layout) -> Self {
                Self::$variant(layout)
            }
        })+

        macro_rules! layout {
            ($dollar shape:expr, $dollar layout:ident => $dollar body:expr) => {
                match $dollar shape {
                    $($crate::sparse::Shape::$variant($dollar layout) => $dollar body,)+
                }
            };
        }
    };
}
shapes! { $
    Dense(dense::Dense),
    Nm(nm::Nm),
    Rows16(rows16::Rows16),
    Block(block::Block),
    BitMask(bitmask::BitMask),
    Gathered(gathered::Gathered),
}
use layout;

/// Index and values of a whole packed matrix; the index has passed `check`.
#[derive(Clone, Copy, Debug)]
struct PackedView<'a, T> {
    index: &'a [u8],
    values: &'a [T],
}

/// Strips that one kernel call computes side by side: `base + first + s * step`
/// for `s = 0, 1, ..`. The output begins with strip `base`.
#[derive(Clone, Copy, Debug)]
struct Strips {
    base: usize,
    first: usize,
    step: usize,
}

impl Strips {
    /// Number `s` of them.
    #[inline]
    fn get(self, s: usize) -> usize {
        self.base + self.in_output(s)
    }

    /// Its number in the output.
    #[inline]
    fn in_output(self, s: usize) -> usize {
        self.first + s * self.step
    }
}

/// The memory layout of a format: encoding, checking and kernels.
trait Layout: Sized {
    /// Rows that are stored together. Work is divided between strips.
    fn strip(&self) -> usize;

    /// Bytes of the index in memory.
    fn index_len(&self) -> usize;

    /// Number of kept values.
    fn values_len(&self) -> usize;

    /// The layout of some strips alone.
    fn part(&self, strips: Range<usize>) -> Self;

    /// The bytes of some strips in the index.
    fn index_of(&self, strips: Range<usize>) -> Range<usize>;

    /// The values of some strips.
    fn values_of(&self, strips: Range<usize>) -> Range<usize>;

    /// The index of kept weights that conform to the spec.
    fn encode(&self, kept: &Kept<'_>) -> Vec<u8>;

    /// Checks that an index of the right length is one that `encode` can return.
    fn check(&self, index: &[u8]) -> Result<(), PartsError>;

    /// Visits the offsets of all kept weights in the order of the values.
    fn each(&self, index: &[u8], visit: impl FnMut(usize));

    /// Strips that a vector kernel reads side by side, 1, 3 or 4: memory is faster in
    /// several streams than in one.
    fn streams(&self) -> usize {
        4
    }

    /// The time that a row of `X` takes in a product with many rows, as the number of weights
    /// of a dense product that take as long. Measured with AVX-512 (`bench`, `packed`).
    fn work(&self) -> f64;

    /// Columns that [`accumulate`](Self::accumulate) takes at a time.
    fn run(&self) -> usize {
        matmul::COLUMNS
    }

    /// `y = W x` for the rows of one strip, in portable code.
    fn matvec_scalar<T: Value>(&self, w: PackedView<'_, T>, strip: usize, x: &[f32], y: &mut [f32]);

    /// The same for `S` strips, all of whose rows exist.
    ///
    /// # Safety
    ///
    /// The machine has [`Kernel::Avx2`](kernel::Kernel::Avx2).
    #[cfg(target_arch = "x86_64")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    );

    /// The same with AVX-512, for layouts that have such a kernel.
    ///
    /// # Safety
    ///
    /// The machine has [`Kernel::Avx512`](kernel::Kernel::Avx512).
    #[cfg(target_arch = "x86_64")]
    unsafe fn matvec_avx512<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        // SAFETY: a machine with AVX-512 has AVX2.
        unsafe { self.matvec_avx2::<T, S>(w, strips, x, y) }
    }

    /// `y = W x` for `S` strips with codes of `BITS` bits, all of whose rows exist.
    ///
    /// # Safety
    ///
    /// [`has_codes_avx2`](Self::has_codes_avx2), and the machine has
    /// [`Kernel::Avx2`](kernel::Kernel::Avx2).
    #[cfg(target_arch = "x86_64")]
    unsafe fn codes_avx2<const S: usize, const BITS: usize>(
        &self,
        _: source::CodesView<'_>,
        _: Strips,
        _: &[f32],
        _: &mut [f32],
    ) {
        unreachable!("a layout without a kernel for codes");
    }

    /// Whether the layout has a vector kernel for codes; otherwise they are converted to
    /// f32 first.
    fn has_codes_avx2(&self) -> bool {
        false
    }

    /// The same in integers, with a vector in `PLANES` planes.
    ///
    /// # Safety
    ///
    /// [`has_codes_vnni`](Self::has_codes_vnni), and the machine has
    /// [`Kernel::Avx512`](kernel::Kernel::Avx512), VNNI and VBMI.
    #[cfg(target_arch = "x86_64")]
    unsafe fn codes_vnni<const S: usize, const BITS: usize, const PLANES: usize>(
        &self,
        _: source::CodesView<'_>,
        _: Strips,
        _: &planes::Planes,
        _: &mut [f32],
    ) {
        unreachable!("a layout without an integer kernel for codes");
    }

    /// Whether the layout has such a kernel.
    fn has_codes_vnni(&self) -> bool {
        false
    }

    /// Adds the products of a strip with some input columns to `acc`, which has a
    /// line for each row of the strip. For one strip, calls go from left to right;
    /// `cursor` is the layout's own note of its position, initially 0.
    fn accumulate<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: InputColumns<'_>,
        cursor: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    );
}

/// Whether `spec` has the blocks and scopes of `text` on its only tensor.
fn is_like(spec: &Spec, text: &str) -> bool {
    let [tensor] = spec.tensors() else { return false };
    let other = text.parse::<Pattern>().ok().and_then(|p| p.bind(tensor.dims()).ok());
    other.is_some_and(|other| spec.is_like(&other))
}
