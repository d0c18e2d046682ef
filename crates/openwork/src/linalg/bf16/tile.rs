//! The product of one panel of rows and one panel of columns: two tiles by two tiles.

use super::pack::Line;
use super::sums::Sums;
use super::{PANEL, PARTS};
use std::arch::asm;

/// Instructions for one step: `tmm0` to `tmm3` are the sums, `tmm4` and `tmm5`
/// two tiles of rows, `tmm6` and `tmm7` two tiles of columns.
macro_rules! rows {
    ($part:literal) => {
        concat!(
            "tileloadd tmm4, [{a} + {line}*1 + ",
            $part,
            "*2048]\n",
            "tileloadd tmm5, [{a} + {line}*1 + ",
            $part,
            "*2048 + 1024]\n",
        )
    };
}
macro_rules! columns {
    ($part:literal) => {
        concat!(
            "tileloadd tmm6, [{b} + {line}*1 + ",
            $part,
            "*2048]\n",
            "tileloadd tmm7, [{b} + {line}*1 + ",
            $part,
            "*2048 + 1024]\n",
        )
    };
}
macro_rules! times {
    () => {
        "tdpbf16ps tmm0, tmm4, tmm6\n\
         tdpbf16ps tmm1, tmm4, tmm7\n\
         tdpbf16ps tmm2, tmm5, tmm6\n\
         tdpbf16ps tmm3, tmm5, tmm7\n"
    };
}

/// Defines the product for a number of terms on the right; the remaining arguments are the
/// instructions of a step.
macro_rules! product {
    ($name:ident, $parts:literal, $($step:expr),*) => {
        /// `sums <- A B`, both packed with the same number of steps.
        ///
        /// # Safety
        ///
        /// The unit is configured; `a` and `b` point at the lines of `steps > 0`
        /// steps with 3 terms and the number of terms of this function.
        unsafe fn $name(a: *const Line, b: *const Line, steps: usize, sums: &mut Sums) {
            // SAFETY: the loads stay within the lines guaranteed above; the stores fill
            // the 32 rows of 128 bytes of `sums`.
            unsafe {
                asm!(
                    "tilezero tmm0",
                    "tilezero tmm1",
                    "tilezero tmm2",
                    "tilezero tmm3",
                    "2:",
                    concat!($($step),*),
                    "add {a}, 3*2048",
                    concat!("add {b}, ", $parts, "*2048"),
                    "dec {steps}",
                    "jnz 2b",
                    "tilestored [{sums} + {line}*2], tmm0",
                    "tilestored [{sums} + {line}*2 + 64], tmm1",
                    "tilestored [{sums} + {line}*2 + 2048], tmm2",
                    "tilestored [{sums} + {line}*2 + 2048 + 64], tmm3",
                    a = inout(reg) a => _,
                    b = inout(reg) b => _,
                    steps = inout(reg) steps => _,
                    sums = in(reg) sums,
                    line = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack),
                );
            }
        }
    };
}

// Small products first; each change of term loads two tiles.
#[rustfmt::skip]
product!(three, 3,
    rows!(0), columns!(2), times!(), // A_0 B_2
    columns!(1), times!(),           // A_0 B_1
    rows!(1), times!(),              // A_1 B_1
    columns!(0), times!(),           // A_1 B_0
    rows!(2), times!(),              // A_2 B_0
    rows!(0), times!()               // A_0 B_0
);
#[rustfmt::skip]
product!(two, 2,
    rows!(0), columns!(1), times!(), // A_0 B_1
    rows!(1), times!(),              // A_1 B_1
    columns!(0), times!(),           // A_1 B_0
    rows!(2), times!(),              // A_2 B_0
    rows!(0), times!()               // A_0 B_0
);
#[rustfmt::skip]
product!(one, 1,
    columns!(0), rows!(2), times!(), // A_2 B_0
    rows!(1), times!(),              // A_1 B_0
    rows!(0), times!()               // A_0 B_0
);

/// `sums <- A B` of two packed panels. The unit is configured on this thread.
///
/// # Panics
///
/// If the two have different numbers of steps, or none.
pub fn multiply(a: &[Line], b: &[Line], parts: usize, sums: &mut Sums) {
    let steps = a.len() / (PARTS * PANEL);
    assert!(steps > 0 && b.len() == steps * parts * PANEL, "panels of different depth");
    let product = match parts {
        1 => one,
        2 => two,
        _ => three,
    };
    // SAFETY: as asserted.
    unsafe { product(a.as_ptr(), b.as_ptr(), steps, sums) }
}
