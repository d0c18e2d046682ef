//! Packed weights in the layouts of other programs: values in row-major order with a
//! bit mask, and the metadata of NVIDIA's sparse tensor cores.

use super::{Layout, Packed, Values, layout};

impl Packed {
    /// The kept values in row-major order, and a mask with a bit per weight, lowest bit
    /// first; rows begin with a byte.
    pub fn row_major(&self) -> (Values, Vec<u8>) {
        let width = self.cols().div_ceil(8);
        let mut mask = vec![0u8; self.rows() * width];
        let cols = self.cols().max(1);
        layout!(self.shape(), l => l.each(self.memory_index(), |offset| {
            let (row, col) = (offset / cols, offset % cols);
            mask[row * width + col / 8] |= 1 << (col % 8);
        }));
        let values = match self.unpack() {
            Values::F32(v) => Values::F32(self.masked(&mask, &v)),
            Values::F16(v) => Values::F16(self.masked(&mask, &v)),
            Values::Bf16(v) => Values::Bf16(self.masked(&mask, &v)),
        };
        (values, mask)
    }

    fn masked<T: Copy>(&self, mask: &[u8], dense: &[T]) -> Vec<T> {
        let (cols, width) = (self.cols(), self.cols().div_ceil(8));
        let stays = |i: usize| {
            let (row, col) = (i / cols, i % cols);
            mask[row * width + col / 8] >> (col % 8) & 1 == 1
        };
        (0..dense.len()).filter(|&i| stays(i)).map(|i| dense[i]).collect()
    }

    /// The metadata of 2:4 weights for `mma.sp` with 16-bit values, in the order in which
    /// CUTLASS loads it: `rows` lines of `cols / 16` words. `None` for other specs or
    /// types, or if rows are not a multiple of 32 or columns of 16.
    ///
    /// A word has four bits for each of four groups, the lowest first: the positions of
    /// the two kept weights, the first in the lower two bits. Word `(r, c)` moves to line
    /// `r'` and column `c'`: the four rows 8 apart within 32 become adjacent, the words
    /// off the diagonal of each 2 x 2 square are swapped, and columns are interleaved in
    /// pairs.
    ///
    /// ```text
    /// r'  = r / 32 * 32 + (r % 8) * 4 + r % 32 / 8
    /// (r', c) -> (r' + 1, c - 1)  if r' is even and c odd,  (r' - 1, c + 1)  if r' is odd and c even
    /// at  = c / 2 * 2 rows + 2 r' + c % 2
    /// ```
    pub fn cutlass_metadata(&self) -> Option<Vec<i16>> {
        let (rows, cols) = (self.rows(), self.cols());
        let half = self.values().encoding().kind().bits == 16;
        let fits = rows.is_multiple_of(32) && cols.is_multiple_of(16) && half;
        if self.format().name != "nm" || self.spec().keep() != 2 || !fits {
            return None;
        }
        let (_, mask) = self.row_major();
        let words = cols / 16;
        let mut meta = vec![0i16; rows * words];
        for r in 0..rows {
            for c in 0..words {
                let mut word = 0u16;
                for group in 0..4 {
                    let byte = mask[r * cols / 8 + 2 * c + group / 2];
                    let kept = byte >> (4 * (group % 2)) & 15;
                    // Exactly two bits are set.
                    let (first, second) = (kept.trailing_zeros(), 7 - kept.leading_zeros());
                    word |= ((first | second << 2) as u16) << (4 * group);
                }
                let mut to = r / 32 * 32 + r % 8 * 4 + r % 32 / 8;
                let mut column = c;
                match (to % 2, column % 2) {
                    (0, 1) => (to, column) = (to + 1, column - 1),
                    (1, 0) => (to, column) = (to - 1, column + 1),
                    _ => {}
                }
                meta[column / 2 * 2 * rows + 2 * to + column % 2] = word as i16;
            }
        }
        Some(meta)
    }
}
