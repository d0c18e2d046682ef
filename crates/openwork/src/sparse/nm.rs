//! N:4 with N = 1 or 2, also over pairs of columns: `2:4`, `1:4`, `2:4@8`, `2:4@4`.
//!
//! A *strip* is `4 / N` rows, a *unit* 16 columns of a strip: 16 kept weights in
//! slots, arranged so that a kernel needs one load of values and no shuffle across
//! registers. Slot `2 l + h` (`l < 8`, `h < 2`) holds
//!
//! ```text
//! row     l % 4 / N         of the strip
//! group   2 h + l / 4       of the unit's four groups of four columns
//! kept    l % 4 % N         of the group's kept weights, leftmost first
//! ```
//!
//! so the even slots are eight lanes over columns 0 to 7, the odd ones over columns 8
//! to 15, and every four lanes share a group of four columns of `x`. The index has
//! two bits per slot, the position in its group: bits `2 (8 h + l)` of a 32-bit word
//! per unit. Column pairs share a position, so a unit needs 16 bits: `2 l` for `@8`,
//! `2 (4 h + l % 4)` for `@4`. Slots beyond the last row or column have no value and
//! are zero in the index.

use super::axpy::{self, List};
use super::kept::Kept;
use super::kernel::{Kernel, Value};
use super::{
    Format, IndexStorage, InputColumns, Layout, PackedView, PartsError, Scratch, Shape, Strips,
};
#[cfg(target_arch = "x86_64")]
use super::{
    planes::Planes,
    source::{CodesView, Numbers, Source},
};
use crate::spec::Spec;
use std::ops::Range;

/// N:M with M = 4.
pub(super) const FORMAT: Format = Format {
    name: "nm",
    summary: "N:4 with N = 1 or 2: values, and the position of each in its four columns (2 bits)",
    example: "2:4",
    kernels: "AVX-512, AVX2; AVX-512 VNNI for codes",
    storage: IndexStorage::Memory,
    fits: |spec, rows, cols| plan(spec, rows, cols, &[Share::None]),
};

/// N:M over pairs of columns.
pub(super) const COUPLED: Format = Format {
    name: "coupled",
    summary: "N:4@8 and N:4@4: as nm, with one position per column pair",
    example: "2:4@8",
    kernels: "AVX-512, AVX2; AVX-512 VNNI for codes",
    storage: IndexStorage::Memory,
    fits: |spec, rows, cols| plan(spec, rows, cols, &[Share::Eight, Share::Four]),
};

fn plan(spec: &Spec, rows: usize, cols: usize, shares: &[Share]) -> Option<Shape> {
    for &share in shares {
        for keep in [1, 2] {
            let text = match share {
                Share::None => format!("{keep}:4"),
                Share::Eight => format!("{keep}:4@8"),
                Share::Four => format!("{keep}:4@4"),
            };
            if super::is_like(spec, &text) {
                return Some(Shape::Nm(Nm { rows, cols, keep, share }));
            }
        }
    }
    None
}

/// Which slots share a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    None,
    Eight,
    Four,
}

/// Columns of a unit.
const UNIT: usize = 16;

/// Holds: `cols` is a multiple of 4, and of a pair's distance times two.
#[derive(Clone, Debug)]
pub(super) struct Nm {
    rows: usize,
    cols: usize,
    keep: usize,
    share: Share,
}

impl Nm {
    fn units(&self) -> usize {
        self.cols.div_ceil(UNIT)
    }

    fn word_bytes(&self) -> usize {
        if self.share == Share::None { 4 } else { 2 }
    }

    fn word(&self, index: &[u8], strip: usize, unit: usize) -> u32 {
        let at = (strip * self.units() + unit) * self.word_bytes();
        match self.share {
            Share::None => {
                u32::from_le_bytes([index[at], index[at + 1], index[at + 2], index[at + 3]])
            }
            _ => u32::from(u16::from_le_bytes([index[at], index[at + 1]])),
        }
    }

    /// The bits of a slot in its word.
    fn shift(&self, l: usize, h: usize) -> usize {
        match self.share {
            Share::None => 2 * (8 * h + l),
            Share::Eight => 2 * l,
            Share::Four => 2 * (4 * h + l % 4),
        }
    }

    /// Row and first column of a slot's group, if they exist.
    fn group(&self, strip: usize, unit: usize, l: usize, h: usize) -> Option<(usize, usize)> {
        let row = strip * self.strip() + l % 4 / self.keep;
        let col = unit * UNIT + 8 * h + l / 4 * 4;
        (row < self.rows && col < self.cols).then_some((row, col))
    }

    /// The values of a strip.
    fn values<'a, T>(&self, values: &'a [T], strip: usize) -> &'a [T] {
        let rows = self.strip().min(self.rows - strip * self.strip());
        &values[strip * self.cols..][..rows * self.cols / 4 * self.keep]
    }

    /// Visits the slots of part of a strip: row, column, and number among the
    /// strip's values.
    fn slots(
        &self,
        index: &[u8],
        strip: usize,
        units: Range<usize>,
        mut visit: impl FnMut(usize, usize, usize),
    ) {
        let rows = self.strip().min(self.rows - strip * self.strip());
        let mut at = units.start * UNIT / 4 * self.keep * rows;
        for unit in units {
            let word = self.word(index, strip, unit);
            for l in 0..8 {
                for h in 0..2 {
                    if let Some((row, col)) = self.group(strip, unit, l, h) {
                        let position = (word >> self.shift(l, h) & 3) as usize;
                        visit(row, col + position, at);
                        at += 1;
                    }
                }
            }
        }
    }

    /// Adds the lanes of each row of a strip.
    fn sum_lanes(&self, lanes: [f32; 8], y: &mut [f32]) {
        for (r, y) in y.iter_mut().enumerate() {
            // Lanes of both halves, then of the kept weights of a group.
            let both = |lane: usize| lanes[lane] + lanes[lane + 4];
            *y = match self.keep {
                1 => both(r),
                _ => both(2 * r) + both(2 * r + 1),
            };
        }
    }

    /// The lanes' sums of a strip from unit `from` on.
    fn lanes<T: Value>(
        &self,
        PackedView { index, values }: PackedView<'_, T>,
        strip: usize,
        from: usize,
        x: &[f32],
        lanes: &mut [f32; 8],
    ) {
        let values = self.values(values, strip);
        let rows = self.strip().min(self.rows - strip * self.strip());
        let mut at = from * UNIT / 4 * self.keep * rows;
        for unit in from..self.units() {
            let word = self.word(index, strip, unit);
            for l in 0..8 {
                for h in 0..2 {
                    if let Some((_, col)) = self.group(strip, unit, l, h) {
                        let position = (word >> self.shift(l, h) & 3) as usize;
                        lanes[l] += values[at].wide() * x[col + position];
                        at += 1;
                    }
                }
            }
        }
    }
}

impl Layout for Nm {
    fn strip(&self) -> usize {
        4 / self.keep
    }

    /// Words of 32 bits take two shifts per unit: four strips run out of registers,
    /// and three were up to 11 % faster.
    fn streams(&self) -> usize {
        if self.share == Share::None { 3 } else { 4 }
    }

    fn work(&self) -> f64 {
        7.0 * self.values_len() as f64
    }

    fn index_len(&self) -> usize {
        self.rows.div_ceil(self.strip()) * self.units() * self.word_bytes()
    }

    fn values_len(&self) -> usize {
        self.rows * (self.cols / 4 * self.keep)
    }

    fn part(&self, strips: Range<usize>) -> Self {
        let rows = (strips.end * self.strip()).min(self.rows) - strips.start * self.strip();
        Self { rows, ..*self }
    }

    fn index_of(&self, strips: Range<usize>) -> Range<usize> {
        let bytes = self.units() * self.word_bytes();
        strips.start * bytes..strips.end * bytes
    }

    fn values_of(&self, strips: Range<usize>) -> Range<usize> {
        strips.start * self.cols..(strips.end * self.cols).min(self.values_len())
    }

    fn encode(&self, kept: &Kept<'_>) -> Vec<u8> {
        let mask = kept.mask();
        let mut index = Vec::with_capacity(self.index_len());
        for strip in 0..self.rows.div_ceil(self.strip()) {
            for unit in 0..self.units() {
                let mut word = 0u32;
                for l in 0..8 {
                    for h in 0..2 {
                        let Some((row, col)) = self.group(strip, unit, l, h) else { continue };
                        let mut kept =
                            (0..4u32).filter(|&i| mask.get(row * self.cols + col + i as usize));
                        // The mask keeps exactly `keep` of every group.
                        let position = kept.nth(l % 4 % self.keep).unwrap_or(0);
                        word |= position << self.shift(l, h);
                    }
                }
                index.extend_from_slice(&word.to_le_bytes()[..self.word_bytes()]);
            }
        }
        index
    }

    fn check(&self, index: &[u8]) -> Result<(), PartsError> {
        for strip in 0..self.rows.div_ceil(self.strip()) {
            for unit in 0..self.units() {
                let word = self.word(index, strip, unit);
                let mut used = 0u32;
                for l in 0..8 {
                    for h in 0..2 {
                        let Some((row, col)) = self.group(strip, unit, l, h) else { continue };
                        let shift = self.shift(l, h);
                        used |= 3 << shift;
                        if l % 4 % self.keep == 1 && word >> (shift - 2) & 3 >= word >> shift & 3 {
                            return Err(PartsError::Damaged(format!(
                                "the positions of row {row} in columns {col} to {} do not ascend",
                                col + 3
                            )));
                        }
                    }
                }
                if word & !used != 0 {
                    return Err(PartsError::Damaged(format!(
                        "bits outside the tensor are set at row {}, column {}",
                        strip * self.strip(),
                        unit * UNIT
                    )));
                }
            }
        }
        Ok(())
    }

    fn each(&self, index: &[u8], mut visit: impl FnMut(usize)) {
        for strip in 0..self.rows.div_ceil(self.strip()) {
            self.slots(index, strip, 0..self.units(), |row, col, _| visit(row * self.cols + col));
        }
    }

    fn matvec_scalar<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        x: &[f32],
        y: &mut [f32],
    ) {
        let mut lanes = [0.0; 8];
        self.lanes(w, strip, 0, x, &mut lanes);
        self.sum_lanes(lanes, y);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn matvec_avx2<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        assert!((strips.get(S - 1) + 1) * self.cols <= w.values.len(), "values of all strips");
        let stored =
            std::array::from_fn(|s| Numbers(w.values[strips.get(s) * self.cols..].as_ptr()));
        // SAFETY: as for this function; every strip has its values.
        let mut sums: [[f32; 8]; S] = unsafe { self.all_sums(w.index, stored, strips, x) };
        for (s, lanes) in sums.iter_mut().enumerate() {
            self.lanes(w, strips.get(s), self.cols / UNIT, x, lanes);
            self.sum_lanes(*lanes, &mut y[strips.in_output(s) * self.strip()..][..self.strip()]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx2,fma")]
    unsafe fn matvec_avx512<T: Value, const S: usize>(
        &self,
        w: PackedView<'_, T>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        // SAFETY: as for this function.
        let mut sums: [[f32; 8]; S] = unsafe { self.pair_sums(w, strips, x) };
        for (s, lanes) in sums.iter_mut().enumerate() {
            self.lanes(w, strips.get(s), self.cols / UNIT / 2 * 2, x, lanes);
            self.sum_lanes(*lanes, &mut y[strips.in_output(s) * self.strip()..][..self.strip()]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn codes_avx2<const S: usize, const BITS: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &[f32],
        y: &mut [f32],
    ) {
        let stored = std::array::from_fn(|s| w.strip::<BITS>(strips.get(s), self.cols));
        // SAFETY: as for this function; every strip has its codes.
        let sums: [[f32; 8]; S] = unsafe { self.all_sums(w.index, stored, strips, x) };
        for (s, lanes) in sums.into_iter().enumerate() {
            self.sum_lanes(lanes, &mut y[strips.in_output(s) * self.strip()..][..self.strip()]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    unsafe fn codes_vnni<const S: usize, const BITS: usize, const PLANES: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &Planes,
        y: &mut [f32],
    ) {
        // SAFETY: as for this function.
        let sums = unsafe { self.quad_sums::<S, BITS, PLANES>(w, strips, x) };
        for (s, rows) in sums.into_iter().enumerate() {
            let y = &mut y[strips.in_output(s) * self.strip()..][..self.strip()];
            match self.keep {
                1 => y.copy_from_slice(&rows),
                _ => y.copy_from_slice(&[rows[0] + rows[2], rows[1] + rows[3]]),
            }
        }
    }

    /// Whole units only.
    fn has_codes_vnni(&self) -> bool {
        self.cols.is_multiple_of(UNIT)
    }

    /// Whole units only.
    fn has_codes_avx2(&self) -> bool {
        self.cols.is_multiple_of(UNIT)
    }

    fn accumulate<T: Value>(
        &self,
        w: PackedView<'_, T>,
        strip: usize,
        InputColumns { range: cols, xt }: InputColumns<'_>,
        _cursor: &mut usize,
        acc: &mut [f32],
        scratch: &mut Scratch,
    ) {
        let height = self.strip();
        let width = acc.len() / height.min(self.rows - strip * height);
        let kernel = scratch.kernel;
        let lists = &mut scratch.lists;
        lists.resize_with(height, List::default);
        lists.iter_mut().for_each(List::clear);
        let units = cols.start / UNIT..cols.end.div_ceil(UNIT);
        #[cfg(target_arch = "x86_64")]
        if kernel >= Kernel::Avx2
            && self.keep == 2
            && (strip + 1) * height <= self.rows
            && cols.len().is_multiple_of(UNIT)
        {
            let [even, odd] = &mut lists[..] else { unreachable!("two rows") };
            // SAFETY: the machine has the kernel; all units are whole and all rows exist.
            unsafe { self.split_rows(w, strip, units, width, [even, odd]) };
            for (list, acc) in lists.iter().zip(acc.chunks_mut(width)) {
                axpy::gather(list, xt, acc, kernel);
            }
            return;
        }
        let values = self.values(w.values, strip);
        self.slots(w.index, strip, units, |row, col, at| {
            lists[row - strip * height].push(values[at].wide(), (col - cols.start) * width);
        });
        for (list, acc) in lists.iter().zip(acc.chunks_mut(width)) {
            axpy::gather(list, xt, acc, kernel);
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::*;
    use std::arch::x86_64::*;

    /// [`Share`] as a number: a kernel's constant.
    pub(super) const NONE: u8 = Share::None as u8;
    pub(super) const EIGHT: u8 = Share::Eight as u8;
    pub(super) const FOUR: u8 = Share::Four as u8;

    /// Where the lanes of even and odd slots have their positions in a word.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn shifts<const SHARE: u8>() -> [__m256i; 2] {
        let lanes = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
        let fours = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
        let add = |x, by| _mm256_add_epi32(x, _mm256_set1_epi32(by));
        match SHARE {
            NONE => [lanes, add(lanes, 16)],
            EIGHT => [lanes; 2],
            _ => [fours, add(fours, 8)],
        }
    }

    /// Adds what a unit gives with its columns of `x` to the sums of its even and
    /// odd slots.
    ///
    /// # Safety
    ///
    /// The machine has AVX2, FMA and F16C, and there are 16 values from `at` on.
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unit<P: Source>(
        values: P,
        at: usize,
        word: i32,
        shifts: [__m256i; 2],
        x: [__m256; 2],
        sums: &mut [__m256; 2],
    ) {
        // SAFETY: there are sixteen.
        let (even, odd) = unsafe { values.pairs(at) };
        let positions = _mm256_set1_epi32(word);
        // The permutation reads two bits of each lane and no more.
        let x0 = _mm256_permutevar_ps(x[0], _mm256_srlv_epi32(positions, shifts[0]));
        let x1 = _mm256_permutevar_ps(x[1], _mm256_srlv_epi32(positions, shifts[1]));
        sums[0] = _mm256_fmadd_ps(even, x0, sums[0]);
        sums[1] = _mm256_fmadd_ps(odd, x1, sums[1]);
    }

    impl Nm {
        /// The lanes' sums of the whole units of `S` whole strips.
        ///
        /// # Safety
        ///
        /// The machine has AVX2, FMA and F16C, and every source has `self.cols` values.
        #[inline]
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) unsafe fn all_sums<P: Source, const S: usize>(
            &self,
            index: &[u8],
            stored: [P; S],
            strips: Strips,
            x: &[f32],
        ) -> [[f32; 8]; S] {
            // SAFETY: as for this function. With a constant share the shifts are constants.
            unsafe {
                match self.share {
                    Share::None => self.sums::<P, S, NONE>(index, stored, strips, x),
                    Share::Eight => self.sums::<P, S, EIGHT>(index, stored, strips, x),
                    Share::Four => self.sums::<P, S, FOUR>(index, stored, strips, x),
                }
            }
        }

        /// # Safety
        ///
        /// As for [`all_sums`](Self::all_sums), and `SHARE` is the layout's own.
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn sums<P: Source, const S: usize, const SHARE: u8>(
            &self,
            index: &[u8],
            stored: [P; S],
            strips: Strips,
            x: &[f32],
        ) -> [[f32; 8]; S] {
            let whole = self.cols / UNIT;
            let bytes = if SHARE == NONE { 4 } else { 2 };
            assert!((strips.get(S - 1) + 1) * self.units() * bytes <= index.len(), "and its index");
            assert_eq!(x.len(), self.cols, "a vector as long as a row");
            let words: [*const u8; S] =
                std::array::from_fn(|s| index[strips.get(s) * self.units() * bytes..].as_ptr());
            let mut sums = [[_mm256_setzero_ps(); 2]; S];
            // Two units at a time: a line of values. 32 bits are read of every word,
            // also of one with 16, so the last of those goes alone.
            let pairs = whole.min(self.units() - usize::from(bytes == 2)) / 2 * 2;
            // SAFETY: unit u < whole has 16 columns of x, 16 values in each strip
            // and a word of its own, which has 32 bits or a next one.
            unsafe {
                for u in (0..pairs).step_by(2) {
                    for half in 0..2 {
                        let at = UNIT * (u + half);
                        let x = [
                            _mm256_loadu_ps(x.as_ptr().add(at)),
                            _mm256_loadu_ps(x.as_ptr().add(at + 8)),
                        ];
                        for s in 0..S {
                            stored[s].prefetch(at);
                            let word = words[s].add(bytes * (u + half)).cast::<i32>();
                            let word = word.read_unaligned();
                            unit(stored[s], at, word, shifts::<SHARE>(), x, &mut sums[s]);
                        }
                    }
                }
                for u in pairs..whole {
                    let at = UNIT * u;
                    let x = [
                        _mm256_loadu_ps(x.as_ptr().add(at)),
                        _mm256_loadu_ps(x.as_ptr().add(at + 8)),
                    ];
                    for s in 0..S {
                        let word = words[s].add(bytes * u);
                        let word = match SHARE {
                            NONE => word.cast::<i32>().read_unaligned(),
                            _ => i32::from(word.cast::<u16>().read_unaligned()),
                        };
                        unit(stored[s], at, word, shifts::<SHARE>(), x, &mut sums[s]);
                    }
                }
            }
            let mut lanes = [[0.0; 8]; S];
            for s in 0..S {
                let sum = _mm256_add_ps(sums[s][0], sums[s][1]);
                let sum = _mm256_mul_ps(sum, _mm256_set1_ps(P::FACTOR));
                // SAFETY: there is room for eight.
                unsafe { _mm256_storeu_ps(lanes[s].as_mut_ptr(), sum) };
            }
            lanes
        }

        /// The kept weights of two rows in some whole units as f32, a list per row,
        /// with the offsets of their columns of `X`, `width` entries each.
        ///
        /// # Safety
        ///
        /// The machine has AVX2, FMA and F16C; the units are whole, both rows exist,
        /// and N is 2.
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) unsafe fn split_rows<T: Value>(
            &self,
            w: PackedView<'_, T>,
            strip: usize,
            units: Range<usize>,
            width: usize,
            [even, odd]: [&mut List; 2],
        ) {
            let count = units.len() * 8;
            let values = &self.values(w.values, strip)[units.start * UNIT..units.end * UNIT];
            for list in [&mut *even, &mut *odd] {
                list.w.resize(count, 0.0);
                list.at.resize(count, 0);
            }
            let shifts = match self.share {
                Share::None => shifts::<NONE>(),
                Share::Eight => shifts::<EIGHT>(),
                Share::Four => shifts::<FOUR>(),
            };
            // Lanes 0 1 4 5 are the first row's, 2 3 6 7 the second's.
            let by_row = _mm256_setr_epi32(0, 1, 4, 5, 2, 3, 6, 7);
            let groups = _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4);
            let step = _mm256_set1_epi32(width as i32);
            for (i, unit) in units.enumerate() {
                let positions = _mm256_set1_epi32(self.word(w.index, strip, unit) as i32);
                // SAFETY: 16 values for each unit, and room for 8 in each list.
                unsafe {
                    let pair = T::pairs(values.as_ptr().add(UNIT * i));
                    for (h, w) in [pair.0, pair.1].into_iter().enumerate() {
                        let position = _mm256_and_si256(
                            _mm256_srlv_epi32(positions, shifts[h]),
                            _mm256_set1_epi32(3),
                        );
                        let first = _mm256_set1_epi32((UNIT * i + 8 * h) as i32);
                        let col = _mm256_add_epi32(_mm256_add_epi32(position, groups), first);
                        let at = _mm256_mullo_epi32(col, step);
                        let w = _mm256_permutevar8x32_ps(w, by_row);
                        let at = _mm256_permutevar8x32_epi32(at, by_row);
                        let to = 8 * i + 4 * h;
                        _mm_storeu_ps(even.w.as_mut_ptr().add(to), _mm256_castps256_ps128(w));
                        _mm_storeu_ps(odd.w.as_mut_ptr().add(to), _mm256_extractf128_ps::<1>(w));
                        _mm_storeu_si128(
                            even.at.as_mut_ptr().add(to).cast(),
                            _mm256_castsi256_si128(at),
                        );
                        _mm_storeu_si128(
                            odd.at.as_mut_ptr().add(to).cast(),
                            _mm256_extracti128_si256::<1>(at),
                        );
                    }
                }
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    use super::super::quant as scale;
    use super::super::{kernel, vnni};
    use super::avx2::{EIGHT, FOUR, NONE};
    use super::*;
    use std::arch::x86_64::*;

    impl Nm {
        /// The lanes' sums of all pairs of units of `S` whole strips.
        ///
        /// # Safety
        ///
        /// The machine has AVX-512F, AVX2 and FMA.
        #[inline]
        #[target_feature(enable = "avx512f,avx2,fma")]
        pub(super) unsafe fn pair_sums<T: Value, const S: usize>(
            &self,
            w: PackedView<'_, T>,
            strips: Strips,
            x: &[f32],
        ) -> [[f32; 8]; S] {
            // SAFETY: as for this function. With a constant share the shifts are constants.
            unsafe {
                match self.share {
                    Share::None => self.pair_sums_of::<T, S, NONE>(w, strips, x),
                    Share::Eight => self.pair_sums_of::<T, S, EIGHT>(w, strips, x),
                    Share::Four => self.pair_sums_of::<T, S, FOUR>(w, strips, x),
                }
            }
        }

        /// # Safety
        ///
        /// As for [`pair_sums`](Self::pair_sums), and `SHARE` is the layout's own.
        #[target_feature(enable = "avx512f,avx2,fma")]
        unsafe fn pair_sums_of<T: Value, const S: usize, const SHARE: u8>(
            &self,
            w: PackedView<'_, T>,
            strips: Strips,
            x: &[f32],
        ) -> [[f32; 8]; S] {
            const PAIR: usize = 2 * UNIT;
            let pairs = self.cols / PAIR;
            let bytes = if SHARE == NONE { 4 } else { 2 };
            let last = strips.get(S - 1) + 1;
            assert!(last * self.units() * bytes <= w.index.len(), "the index of all strips");
            assert!(last * self.cols <= w.values.len(), "values of all strips");
            assert_eq!(x.len(), self.cols, "a vector as long as a row");
            let mut words = [std::ptr::null(); S];
            let mut stored = [std::ptr::null(); S];
            for s in 0..S {
                words[s] = w.index[strips.get(s) * self.units() * bytes..].as_ptr();
                stored[s] = w.values[strips.get(s) * self.cols..].as_ptr();
            }
            // Lanes 0 to 7 belong to the first unit, the others to the second one, whose
            // word is in the upper half of 32 bits if words have 16.
            let lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
            let fours = _mm512_and_si512(lanes, _mm512_set1_epi32(7));
            let upper = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 16, 16, 16, 16, 16, 16, 16, 16);
            let add = |x, by| _mm512_add_epi32(x, _mm512_set1_epi32(by));
            let shifts = match SHARE {
                NONE => [lanes, add(lanes, 16)],
                EIGHT => [_mm512_add_epi32(lanes, upper); 2],
                _ => {
                    let fours = _mm512_add_epi32(fours, upper);
                    [fours, add(fours, 8)]
                }
            };
            let unit = _mm512_srli_epi32::<4>(upper);
            let mut sums = [[_mm512_setzero_ps(); 2]; S];
            for pair in 0..pairs {
                // SAFETY: by the assertions, there are 32 entries of x, and in each strip 32
                // values and two words; loads need no alignment.
                unsafe {
                    let at = x.as_ptr().add(PAIR * pair);
                    let (a, b) = (_mm512_loadu_ps(at), _mm512_loadu_ps(at.add(UNIT)));
                    // Columns 0 to 7 of both units, then columns 8 to 15.
                    let x = [
                        _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
                        _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b),
                    ];
                    for s in 0..S {
                        let at: *const T = stored[s].add(PAIR * pair);
                        for line in (0..PAIR * size_of::<T>()).step_by(64) {
                            kernel::prefetch(at.cast::<u8>().add(line));
                        }
                        let values = T::pairs_avx512(at);
                        let word: *const u8 = words[s].add(2 * bytes * pair);
                        let positions = match SHARE {
                            NONE => {
                                let two = _mm512_castsi128_si512(_mm_loadl_epi64(word.cast()));
                                _mm512_permutexvar_epi32(unit, two)
                            }
                            _ => _mm512_set1_epi32(word.cast::<i32>().read_unaligned()),
                        };
                        // The permutation reads two bits of each lane and no more.
                        for h in 0..2 {
                            let columns = _mm512_srlv_epi32(positions, shifts[h]);
                            let x = _mm512_permutevar_ps(x[h], columns);
                            sums[s][h] = _mm512_fmadd_ps(values[h], x, sums[s][h]);
                        }
                    }
                }
            }
            let mut lanes = [[0.0; 8]; S];
            for s in 0..S {
                let sum = vnni::fold(_mm512_add_ps(sums[s][0], sums[s][1]));
                // SAFETY: there is room for eight.
                unsafe { _mm256_storeu_ps(lanes[s].as_mut_ptr(), sum) };
            }
            lanes
        }

        /// The sums of lanes 0 to 3 of `S` whole strips with codes; if N is 2, lanes 0 and 2
        /// belong to the first row.
        ///
        /// # Safety
        ///
        /// The machine has AVX-512 F, BW, VL, VNNI and VBMI; rows consist of whole units.
        pub(super) unsafe fn quad_sums<const S: usize, const BITS: usize, const PLANES: usize>(
            &self,
            w: CodesView<'_>,
            strips: Strips,
            x: &Planes,
        ) -> [[f32; 4]; S] {
            // SAFETY: as for this function. With a constant share and N the tables are constants.
            unsafe {
                match (self.share, self.keep) {
                    (Share::None, 1) => self.quads::<S, BITS, PLANES, NONE, 1>(w, strips, x),
                    (Share::None, _) => self.quads::<S, BITS, PLANES, NONE, 2>(w, strips, x),
                    (Share::Eight, 1) => self.quads::<S, BITS, PLANES, EIGHT, 1>(w, strips, x),
                    (Share::Eight, _) => self.quads::<S, BITS, PLANES, EIGHT, 2>(w, strips, x),
                    (Share::Four, 1) => self.quads::<S, BITS, PLANES, FOUR, 1>(w, strips, x),
                    (Share::Four, _) => self.quads::<S, BITS, PLANES, FOUR, 2>(w, strips, x),
                }
            }
        }

        /// Takes eight units at a time: two for each scale.
        ///
        /// The first of two registers of codes has the slots of the even units, 128 bits each,
        /// and the second one those of the odd units. Entries of `x` are in the same order, so
        /// that a slot's entry is among the 16 bytes at the slot's own place. Four slots that
        /// follow each other are of one row if N is 2; if it is 1, they are reordered.
        ///
        /// # Safety
        ///
        /// As for [`quad_sums`](Self::quad_sums), and `SHARE` and `N` are the layout's own.
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx512vbmi,avx2,fma")]
        unsafe fn quads<
            const S: usize,
            const BITS: usize,
            const PLANES: usize,
            const SHARE: u8,
            const N: usize,
        >(
            &self,
            w: CodesView<'_>,
            strips: Strips,
            x: &Planes,
        ) -> [[f32; 4]; S] {
            /// Units of a quad of scales.
            const UNITS: usize = 2 * vnni::QUAD;
            let word = if SHARE == NONE { 4 } else { 2 };
            let (units, blocks) = (self.units(), self.cols.div_ceil(scale::UNIT));
            assert!((strips.get(S - 1) + 1) * units * word <= w.index.len(), "the index");
            assert!(x.quads() >= blocks.div_ceil(vnni::QUAD), "a vector as long as a row");
            let planes = x.split::<PLANES>();
            let mut codes = [std::ptr::null(); S];
            let mut own = [std::ptr::null(); S];
            let mut words = [std::ptr::null(); S];
            for s in 0..S {
                let strip = strips.get(s);
                let (stored, scales) = w.stored(strip, self.cols);
                assert!(stored.len() >= blocks * scale::UNIT * BITS / 8, "codes of a strip");
                (codes[s], own[s]) = (stored.as_ptr(), scales.as_ptr());
                words[s] = w.index[strip * units * word..].as_ptr();
            }
            let scales = vnni::Scales::new(w.codes.group());
            // Every 128 bits get the 64 bits that have the words of their two units.
            let spread = match SHARE {
                NONE => _mm512_setr_epi64(0, 0, 1, 1, 2, 2, 3, 3),
                _ => _mm512_setr_epi64(0, 0, 0, 0, 1, 1, 1, 1),
            };
            let three = _mm512_set1_epi8(3);
            // SAFETY: 64 bytes each.
            let (shifts, first, order) = unsafe {
                let load = |bytes: &[u8; 64]| _mm512_loadu_si512(bytes.as_ptr().cast());
                (
                    [
                        load(const { &table(SHARE, N, Table::Shift(0)) }),
                        load(const { &table(SHARE, N, Table::Shift(1)) }),
                    ],
                    load(const { &table(SHARE, N, Table::Column) }),
                    load(const { &table(SHARE, N, Table::Slot) }),
                )
            };
            let mut part = scales.part::<BITS>(vnni::QUAD);
            let mut of_part = vnni::low_bits(word * UNITS) as u32;
            let mut sums = [_mm512_setzero_ps(); S];
            for quad in 0..blocks.div_ceil(vnni::QUAD) {
                let block = vnni::QUAD * quad;
                if units - UNITS * quad < UNITS {
                    part = scales.part::<BITS>(blocks - block);
                    of_part = vnni::low_bits(word * (units - UNITS * quad)) as u32;
                }
                // SAFETY: every strip has the quad's codes, scales and words, and the vector
                // its entries; masked bytes are not read, and loads need no alignment.
                unsafe {
                    let x0 = Planes::quad(planes, quad);
                    let of_x = x.quad_scales(quad);
                    for s in 0..S {
                        let at = codes[s].add(block * scale::UNIT * BITS / 8);
                        vnni::prefetch_codes::<BITS>(at);
                        let word = words[s].add(word * UNITS * quad);
                        if quad.is_multiple_of(2) {
                            kernel::prefetch(word);
                        }
                        let word = _mm256_maskz_loadu_epi8(of_part, word.cast());
                        let word = _mm512_castsi256_si512(word);
                        let word = _mm512_permutexvar_epi64(spread, word);
                        let mut codes = vnni::codes::<BITS>(at, part);
                        let mut inputs = [[_mm512_setzero_si512(); 2]; PLANES];
                        for half in 0..2 {
                            let position = _mm512_multishift_epi64_epi8(shifts[half], word);
                            // (position & three) | first
                            let column = _mm512_ternarylogic_epi32::<0xf8>(first, position, three);
                            for p in 0..PLANES {
                                inputs[p][half] = _mm512_shuffle_epi8(x0[p][half], column);
                            }
                            if N == 1 {
                                codes[half] = _mm512_shuffle_epi8(codes[half], order);
                            }
                        }
                        let start = vnni::start::<BITS, 2, PLANES>(inputs);
                        let products = _mm512_cvtepi32_ps(vnni::sums(codes, inputs, start));
                        let scale = _mm512_mul_ps(scales.load(own[s], block, part), of_x);
                        sums[s] = _mm512_fmadd_ps(products, scale, sums[s]);
                    }
                }
            }
            let mut lanes = [[0.0; 4]; S];
            for s in 0..S {
                // SAFETY: four lanes.
                unsafe { _mm_storeu_ps(lanes[s].as_mut_ptr(), vnni::fold_twice(sums[s])) };
            }
            lanes
        }
    }

    /// What [`table`] lists.
    #[derive(Clone, Copy)]
    enum Table {
        /// Where the bits of an even (0) or odd (1) unit's slot are among the 64 bits that have
        /// the words of both.
        Shift(usize),
        /// The first of a slot's four columns in its unit.
        Column,
        /// The slot.
        Slot,
    }

    /// For the slots of four units, 16 bytes each, in the order in which they are multiplied.
    const fn table(share: u8, keep: usize, of: Table) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut i = 0;
        while i < 64 {
            let (unit, byte) = (i / UNIT, i % UNIT);
            // Slot 2 l + h. If N is 1, rows are l % 4 instead of l % 4 / 2.
            let (l, h) = match keep {
                1 => (byte / 4 + byte % 4 / 2 * 4, byte % 2),
                _ => (byte / 2, byte % 2),
            };
            let value = match of {
                Table::Column => 8 * h + 4 * (l / 4),
                Table::Slot => 2 * l + h,
                Table::Shift(odd) => match share {
                    NONE => 32 * odd + 2 * (8 * h + l),
                    EIGHT => 32 * (unit % 2) + 16 * odd + 2 * l,
                    _ => 32 * (unit % 2) + 16 * odd + 2 * (4 * h + l % 4),
                },
            };
            bytes[i] = value as u8;
            i += 1;
        }
        bytes
    }
}
