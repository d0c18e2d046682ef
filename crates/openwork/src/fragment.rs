//! Tensor core fragments: how a spec maps onto `mma.m16n8k16`, which lane owns
//! which weight, and how many kept weights each lane and thread group holds.
//!
//! With lane `t`, thread group `g = t / 4` and `s = t % 4`:
//!
//! ```text
//! A  16 x 16   rows g, g + 8                       columns 2 s, 2 s + 1, 2 s + 8, 2 s + 9
//! B  16 x 8    rows 2 s, 2 s + 1, 2 s + 8, 2 s + 9   column g
//! C  16 x 8    rows g, g + 8                       columns 2 s, 2 s + 1
//! ```
//!
//! The weights are operand A, divided into fragments of 16 x 16.
//! [`crate::viz::fragment_svg`] draws the result.

use crate::example::ExampleMask;
use crate::spec::{Element, Spec};
use std::collections::BTreeMap;

/// The instruction's name.
pub const NAME: &str = "m16n8k16";
/// Rows and columns of an A fragment.
pub const SIDE: usize = 16;
/// Columns of a B or C fragment.
pub const NARROW: usize = 8;
/// Lanes in a warp.
pub const LANES: usize = 32;
/// Lanes in a thread group.
pub const GROUP: usize = 4;
/// Most fragments that are counted: the first ones of the matrix.
const MAX_COUNTED: usize = 256;

/// The lane that owns an element of A.
pub fn lane_of_a(row: usize, col: usize) -> usize {
    row % 8 * GROUP + col % 8 / 2
}

/// The lane that owns an element of B.
pub fn lane_of_b(row: usize, col: usize) -> usize {
    col * GROUP + row % 8 / 2
}

/// The lane that owns an element of C.
pub fn lane_of_c(row: usize, col: usize) -> usize {
    row % 8 * GROUP + col / 2
}

/// Numbers of kept weights per lane, thread group or fragment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptRange {
    /// Minimum and maximum over all masks of the spec.
    pub structure: (usize, usize),
    /// Minimum and maximum in the example mask.
    pub example: (usize, usize),
    /// Weights owned, kept or not.
    pub owned: usize,
}

impl KeptRange {
    /// Whether every mask gives each of them the same number.
    pub fn is_balanced(&self) -> bool {
        self.structure.0 == self.structure.1
    }
}

/// The smallest unit of the hardware that contains every block, or scope, whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unit {
    /// One lane.
    Lane,
    /// One thread group of four lanes.
    Group,
    /// One fragment.
    Fragment,
    /// More than one fragment.
    Several,
}

impl Unit {
    /// `lane`, `group`, `fragment` or `several`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lane => "lane",
            Self::Group => "group",
            Self::Fragment => "fragment",
            Self::Several => "several",
        }
    }

    /// A sentence for a person.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Lane => "stays within one lane",
            Self::Group => "stays within one thread group of 4 lanes",
            Self::Fragment => "stays within one fragment",
            Self::Several => "spans several fragments",
        }
    }
}

/// A spec mapped onto `mma.m16n8k16`.
#[derive(Clone, Debug)]
pub struct Fragment {
    /// Fragments down and across.
    pub grid: (usize, usize),
    /// Fragments that were counted, the first ones of the matrix.
    pub counted: usize,
    /// Kept weights per lane and fragment, at most 8.
    pub lanes: KeptRange,
    /// Kept weights per thread group and fragment, at most 32.
    pub groups: KeptRange,
    /// Kept weights per fragment, at most 256.
    pub fragments: KeptRange,
    /// Kept weights of each lane in the first fragment of the example.
    pub first: [usize; LANES],
    /// The unit that contains every block.
    pub block: Unit,
    /// The unit that contains every scope.
    pub scope: Unit,
    /// Index bits per fragment.
    pub index_bits: f64,
    /// The same in words of 32 bits.
    pub index_words: f64,
    /// Adjacent column pairs of a lane that the example keeps whole, prunes
    /// whole, or splits.
    pub pairs: [usize; 3],
    /// The example mask of the first fragment.
    kept: Vec<bool>,
}

/// Why a spec cannot be mapped onto a fragment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FragmentError {
    /// An unknown instruction.
    #[error("unknown fragment `{0}`; the supported one is {NAME}")]
    Unknown(String),
    /// Not a single matrix.
    #[error("a fragment maps one matrix; this spec has {0}")]
    NotAMatrix(String),
    /// A spec with `then` or `else`.
    #[error("a fragment maps specs without `then` and `else`; map each level by itself")]
    Levels,
    /// Dims that are not multiples of 16.
    #[error("{rows} x {cols} does not divide into fragments of 16 x 16; give multiples of 16")]
    Ragged {
        /// Its rows.
        rows: usize,
        /// Its columns.
        cols: usize,
    },
}

impl Fragment {
    /// Maps a spec onto the instruction `name`; `seed` chooses the example mask.
    pub fn new(spec: &Spec, name: &str, seed: u64) -> Result<Self, FragmentError> {
        if name != NAME {
            return Err(FragmentError::Unknown(name.to_string()));
        }
        if spec.has_levels() {
            return Err(FragmentError::Levels);
        }
        let [tensor] = spec.tensors() else {
            return Err(FragmentError::NotAMatrix(format!("{} tensors", spec.tensors().len())));
        };
        let &[rows, cols] = tensor.dims() else {
            let rank = format!("a tensor of rank {}", tensor.dims().len());
            return Err(FragmentError::NotAMatrix(rank));
        };
        if rows % SIDE != 0 || cols % SIDE != 0 {
            return Err(FragmentError::Ragged { rows, cols });
        }
        let grid = (rows / SIDE, cols / SIDE);
        let counted = (grid.0 * grid.1).min(MAX_COUNTED);
        let mut mask = ExampleMask::new(spec, seed);
        let mut this = Self {
            grid,
            counted,
            lanes: uncounted(8),
            groups: uncounted(GROUP * 8),
            fragments: uncounted(SIDE * SIDE),
            first: [0; LANES],
            block: Unit::Lane,
            scope: Unit::Lane,
            index_bits: index_bits(spec),
            index_words: index_bits(spec) / 32.0,
            pairs: [0; 3],
            kept: Vec::new(),
        };
        for fragment in 0..counted {
            this.count(spec, cols, fragment, &mut mask);
        }
        (this.block, this.scope) = units(spec, cols);
        Ok(this)
    }

    /// Counts one fragment.
    fn count(&mut self, spec: &Spec, cols: usize, number: usize, mask: &mut ExampleMask<'_>) {
        let corner = number / self.grid.1 * SIDE * cols + number % self.grid.1 * SIDE;
        let mut owned = [const { BTreeMap::new() }; LANES];
        let mut outside = [0; LANES];
        let mut example = [0; LANES];
        let mut kept = vec![false; SIDE * SIDE];
        for row in 0..SIDE {
            for col in 0..SIDE {
                let offset = corner + row * cols + col;
                let lane = lane_of_a(row, col);
                let place = spec.locate(Element { tensor: 0, offset });
                match place {
                    Some(place) => *owned[lane].entry(place).or_insert(0usize) += 1,
                    None => outside[lane] += 1,
                }
                kept[row * SIDE + col] = place.is_none_or(|place| mask.keeps(place));
                example[lane] += usize::from(kept[row * SIDE + col]);
            }
        }
        for pair in kept.chunks_exact(2) {
            let stays = usize::from(pair[0]) + usize::from(pair[1]);
            self.pairs[[1, 2, 0][stays]] += 1;
        }
        let all: Vec<usize> = (0..LANES).collect();
        for lane in 0..LANES {
            add(&mut self.lanes, spec, &owned, &outside, &example, &[lane]);
        }
        for lanes in all.chunks(GROUP) {
            add(&mut self.groups, spec, &owned, &outside, &example, lanes);
        }
        add(&mut self.fragments, spec, &owned, &outside, &example, &all);
        if number == 0 {
            self.first = example;
            self.kept = kept;
        }
    }

    /// Whether the example keeps an element of the first fragment.
    pub fn keeps(&self, row: usize, col: usize) -> bool {
        self.kept[row * SIDE + col]
    }
}

/// The range before anything was counted.
fn uncounted(owned: usize) -> KeptRange {
    KeptRange { structure: (usize::MAX, 0), example: (usize::MAX, 0), owned }
}

/// Weights of each block, by scope and block, that one lane owns.
type OwnedBlocks = BTreeMap<(usize, usize), usize>;

/// Widens `range` by what some lanes hold together. Scopes choose independently,
/// so the maximum is the sum over scopes of the `keep` blocks with most weights
/// in these lanes, and the minimum that of the `keep` blocks with fewest; blocks
/// of the scope that lie elsewhere count as 0.
fn add(
    range: &mut KeptRange,
    spec: &Spec,
    owned: &[OwnedBlocks; LANES],
    outside: &[usize; LANES],
    example: &[usize; LANES],
    lanes: &[usize],
) {
    let mut scopes: BTreeMap<usize, BTreeMap<usize, usize>> = BTreeMap::new();
    for &lane in lanes {
        for (&(scope, block), count) in &owned[lane] {
            *scopes.entry(scope).or_default().entry(block).or_default() += count;
        }
    }
    let always: usize = lanes.iter().map(|&lane| outside[lane]).sum();
    let (mut least, mut most) = (always, always);
    for blocks in scopes.values() {
        let mut sizes: Vec<usize> = blocks.values().copied().collect();
        sizes.sort_unstable();
        most += sizes.iter().rev().take(spec.keep()).sum::<usize>();
        // As many of the kept blocks as possible lie elsewhere.
        let here = spec.keep().saturating_sub(spec.blocks_per_scope() - sizes.len());
        least += sizes.iter().take(here).sum::<usize>();
    }
    range.structure = (range.structure.0.min(least), range.structure.1.max(most));
    let found = lanes.iter().map(|&lane| example[lane]).sum();
    range.example = (range.example.0.min(found), range.example.1.max(found));
}

/// Index bits per fragment: those of a scope, scaled to 256 weights.
fn index_bits(spec: &Spec) -> f64 {
    let scope = spec.tensors()[0].positions() as f64 / spec.scopes() as f64;
    spec.facts().index_bits as f64 * (SIDE * SIDE) as f64 / scope
}

/// The units that contain every block and every scope, over the first scopes.
fn units(spec: &Spec, cols: usize) -> (Unit, Unit) {
    const SCOPES: usize = 4096;
    const WEIGHTS: usize = 1 << 20;
    let (mut block_span, mut scope_span) = (Unit::Lane, Unit::Lane);
    let mut left = WEIGHTS;
    for scope in 0..spec.scopes().min(SCOPES) {
        let mut whole = Span::default();
        for block in 0..spec.blocks_per_scope() {
            let mut span = Span::default();
            for element in spec.elements(scope, block) {
                let (row, col) = (element.offset / cols, element.offset % cols);
                span.add(row, col);
                whole.add(row, col);
                left = left.saturating_sub(1);
            }
            block_span = block_span.max(span.unit());
            if left == 0 {
                return (block_span, scope_span.max(whole.unit()));
            }
        }
        scope_span = scope_span.max(whole.unit());
    }
    (block_span, scope_span)
}

/// The unit that contains some weights.
#[derive(Default)]
struct Span {
    first: Option<((usize, usize), usize)>,
    unit: Option<Unit>,
}

impl Span {
    fn add(&mut self, row: usize, col: usize) {
        let (fragment, lane) = ((row / SIDE, col / SIDE), lane_of_a(row, col));
        let (first, first_lane) = *self.first.get_or_insert((fragment, lane));
        let unit = match (first == fragment, first_lane == lane, first_lane / GROUP == lane / GROUP)
        {
            (false, ..) => Unit::Several,
            (true, true, _) => Unit::Lane,
            (true, false, true) => Unit::Group,
            (true, false, false) => Unit::Fragment,
        };
        self.unit = self.unit.max(Some(unit));
    }

    fn unit(&self) -> Unit {
        self.unit.unwrap_or(Unit::Lane)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pattern;

    fn fragment(text: &str) -> Fragment {
        let spec = text.parse::<Pattern>().unwrap().bind(&[32, 64]).unwrap();
        Fragment::new(&spec, NAME, 1).unwrap()
    }

    /// The paper's list: thread t owns these rows and columns.
    #[test]
    fn lanes_own_what_the_paper_says() {
        for t in 0..LANES {
            let (g, s) = (t / 4, t % 4);
            let pairs = [2 * s, 2 * s + 1, 2 * s + 8, 2 * s + 9];
            let own = |rows: usize, cols: usize, lane: fn(usize, usize) -> usize| {
                let all = (0..rows).flat_map(|r| (0..cols).map(move |c| (r, c)));
                all.filter(|&(r, c)| lane(r, c) == t).collect::<Vec<_>>()
            };
            let both = |rows: &[usize], cols: &[usize]| {
                rows.iter().flat_map(|&r| cols.iter().map(move |&c| (r, c))).collect::<Vec<_>>()
            };
            assert_eq!(own(16, 16, lane_of_a), both(&[g, g + 8], &pairs));
            assert_eq!(own(16, 8, lane_of_b), both(&pairs, &[g]));
            assert_eq!(own(16, 8, lane_of_c), both(&[g, g + 8], &[2 * s, 2 * s + 1]));
        }
    }

    #[test]
    fn the_thread_group_pattern_is_balanced() {
        let rows16 = fragment("rows16");
        assert_eq!((rows16.lanes.structure, rows16.lanes.example), ((4, 4), (4, 4)));
        assert_eq!(rows16.groups.structure, (16, 16));
        assert_eq!((rows16.block, rows16.scope), (Unit::Group, Unit::Group));
        assert_eq!(rows16.index_bits, 8.0);
        assert!(rows16.lanes.is_balanced());
    }

    /// Two of four may leave a lane nothing of a group of four columns, or all.
    #[test]
    fn two_of_four_is_not_balanced_over_lanes() {
        let nm = fragment("2:4");
        assert_eq!((nm.lanes.structure, nm.groups.structure), ((0, 8), (16, 16)));
        assert_eq!((nm.block, nm.scope), (Unit::Lane, Unit::Group));
        assert_eq!((nm.index_bits, nm.index_words), (256.0, 8.0));
        let coupled = fragment("2:4@8");
        assert_eq!((coupled.block, coupled.index_words), (Unit::Lane, 4.0));
        let pairs = fragment("2:4x2");
        assert_eq!(pairs.pairs[2], 0, "pairs stay or go whole");
        assert_eq!((pairs.block, pairs.lanes.structure), (Unit::Lane, (0, 8)));
        let blocks = fragment("block(16,16)");
        assert_eq!(blocks.fragments.structure, (0, 256));
        assert_eq!((blocks.block, blocks.scope), (Unit::Fragment, Unit::Several));
        assert_eq!(fragment("block(32,16)").block, Unit::Several);
    }

    /// Bounds from the structure hold for every mask.
    #[test]
    fn examples_lie_within_the_bounds() {
        for text in ["2:4", "2:4@8", "rows16", "1:4", "unstructured(30%)", "block(4,4)", "columns"]
        {
            for seed in 0..5 {
                let spec = text.parse::<Pattern>().unwrap().bind(&[32, 32]).unwrap();
                let found = Fragment::new(&spec, NAME, seed).unwrap();
                for held in [found.lanes, found.groups, found.fragments] {
                    assert!(held.structure.0 <= held.example.0, "{text} {held:?}");
                    assert!(held.example.1 <= held.structure.1, "{text} {held:?}");
                    assert!(held.structure.1 <= held.owned, "{text} {held:?}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_fragment_is_refused() {
        let bind = |dims: &[usize]| "scope (4) keep 2".parse::<Pattern>().unwrap().bind(dims);
        let words = |dims: &[usize], name: &str| {
            Fragment::new(&bind(dims).unwrap(), name, 0).unwrap_err().to_string()
        };
        assert!(words(&[16, 16], "m8n8k4").contains("the supported one is m16n8k16"));
        assert!(words(&[16], NAME).contains("a tensor of rank 1"));
        assert!(words(&[16, 20], NAME).contains("16 x 20 does not divide"));
    }
}
