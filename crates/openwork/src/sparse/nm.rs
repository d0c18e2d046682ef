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
    rounded::Rounded,
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
/// Columns that the integer kernel takes at a time.
const STEP: usize = 4 * UNIT;

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
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
    unsafe fn codes_vnni<const S: usize, const BITS: usize>(
        &self,
        w: CodesView<'_>,
        strips: Strips,
        x: &Rounded,
        y: &mut [f32],
    ) {
        // SAFETY: as for this function.
        let sums: [[f32; 8]; S] = unsafe { self.integer_sums::<S, BITS>(w, strips, x) };
        for (s, lanes) in sums.into_iter().enumerate() {
            self.sum_lanes(lanes, &mut y[strips.in_output(s) * self.strip()..][..self.strip()]);
        }
    }

    /// Whole steps only.
    fn has_codes_vnni(&self) -> bool {
        self.cols.is_multiple_of(STEP)
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
    use super::super::rounded::scale_products;
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

        /// The lanes' sums of `S` whole strips, four units at a time.
        ///
        /// A lane of 32 bits holds an even and an odd slot of a unit, which belong to one
        /// row; their positions are at the same place in the lower and the upper half of the
        /// unit's word, so one shift serves both. The first of two registers has units 0
        /// and 2, the second one units 1 and 3.
        ///
        /// # Safety
        ///
        /// The machine has AVX-512 F, BW, VL and VNNI; rows consist of whole steps.
        #[inline]
        #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma")]
        pub(super) unsafe fn integer_sums<const S: usize, const BITS: usize>(
            &self,
            w: CodesView<'_>,
            strips: Strips,
            x: &Rounded,
        ) -> [[f32; 8]; S] {
            /// Columns of a block of the rounded vector, and kept values with a scale.
            const BLOCK: usize = 2 * UNIT;
            let (steps, blocks) = (self.cols / STEP, self.cols / BLOCK);
            let bytes = self.word_bytes() * STEP / UNIT;
            assert!((strips.get(S - 1) + 1) * steps * bytes <= w.index.len(), "the index");
            assert!(x.codes.len() >= steps * STEP, "the vector");
            let mut scales = vec![0.0f32; S * blocks];
            let mut codes = [std::ptr::null(); S];
            let mut words = [std::ptr::null(); S];
            for s in 0..S {
                let strip = strips.get(s);
                let (stored, own) = w.stored(strip, self.cols);
                assert!(stored.len() >= self.cols * BITS / 8, "codes of a strip");
                codes[s] = stored.as_ptr();
                words[s] = w.index[strip * steps * bytes..].as_ptr();
                let out = &mut scales[s * blocks..][..blocks];
                let per_group = w.codes.group() / BLOCK;
                scale_products(own, per_group, &x.scales, 1, out, kernel::Kernel::Avx512);
            }
            // For lane l of two units: twice 16 bits.
            let each = |of: fn(Share, i32) -> [i32; 2]| {
                let mut lanes = [0i32; 16];
                for (i, lane) in lanes.iter_mut().enumerate() {
                    let [low, high] = of(self.share, i as i32);
                    *lane = low | high << 16;
                }
                // SAFETY: 64 bytes.
                unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) }
            };
            let shifts = each(|share, i| match share {
                Share::None | Share::Eight => [2 * (i % 8); 2],
                Share::Four => [2 * (i % 4), 8 + 2 * (i % 4)],
            });
            let first = each(|_, i| {
                let column = 16 * (i / 8) + 4 * (i % 8 / 4);
                [column, column + 8]
            });
            let three = _mm512_set1_epi16(3);
            // Words of 16 bits are in the lower half of a lane, and again in the upper.
            let shared = [each(|_, i| [i / 8 * 2; 2]), each(|_, i| [i / 8 * 2 + 1; 2])];
            let mut sums = [_mm512_setzero_ps(); S];
            for step in 0..steps {
                // SAFETY: by the assertions, everything has `steps` steps; loads need no
                // alignment.
                unsafe {
                    let x = vnni::two_blocks(x.codes.as_ptr().add(STEP * step));
                    for s in 0..S {
                        let at = codes[s].add(step * STEP * BITS / 8);
                        if BITS == 8 || step % 2 == 0 {
                            kernel::prefetch(at);
                        }
                        let word = words[s].add(step * bytes);
                        let word = match self.share {
                            Share::None => vnni::four_in_lanes(word),
                            _ => {
                                let four = _mm512_castsi128_si512(_mm_loadl_epi64(word.cast()));
                                let half = |i: usize| _mm512_permutexvar_epi16(shared[i], four);
                                [half(0), half(1)]
                            }
                        };
                        let mut entries = [_mm512_setzero_si512(); 2];
                        for half in 0..2 {
                            let position = _mm512_srlv_epi16(word[half], shifts);
                            // (position & three) | first
                            let column = _mm512_ternarylogic_epi32::<0xf8>(first, position, three);
                            entries[half] = _mm512_permutexvar_epi16(column, x[half]);
                        }
                        let start = vnni::start::<BITS>(entries);
                        let products = vnni::products::<BITS>(at, entries, start);
                        let scale = vnni::two_scales(scales.as_ptr().add(s * blocks + 2 * step));
                        sums[s] = _mm512_fmadd_ps(products, scale, sums[s]);
                    }
                }
            }
            let mut lanes = [[0.0; 8]; S];
            for s in 0..S {
                // SAFETY: eight lanes.
                unsafe { _mm256_storeu_ps(lanes[s].as_mut_ptr(), vnni::fold(sums[s])) };
            }
            lanes
        }
    }
}
