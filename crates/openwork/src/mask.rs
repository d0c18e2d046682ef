//! Masks: one bit per weight over the tensors of a spec.

pub use crate::choice::Choice;

use crate::conform;
use crate::spec::{Coupling, Element, Side, Spec, level_name};
use std::fmt;
use std::sync::Arc;

/// One bit for every element of one or more tensors; set where the weight is kept.
///
/// ```
/// use openwork::{Mask, Pattern};
/// let spec = "1:2".parse::<Pattern>().unwrap().bind(&[1, 4]).unwrap();
/// let mut w = [3.0, -1.0, 0.5, 2.0];
/// let mask = Mask::select(&spec, |scope, block| spec.elements(scope, block).map(|e| f64::from(w[e.offset]).abs()).sum());
/// mask.apply(0, &mut w);
/// assert_eq!(w, [3.0, 0.0, 0.0, 2.0]);
/// assert_eq!(mask.conforms(&spec), Ok(()));
/// ```
#[derive(Clone, Debug)]
pub struct Mask {
    tensors: Vec<Bits>,
    /// The blocks that the levels of a spec keep, if it has several and they are known.
    choice: Option<Arc<Choice>>,
}

impl PartialEq for Mask {
    /// Masks are equal if they keep the same weights.
    fn eq(&self, other: &Self) -> bool {
        self.tensors == other.tensors
    }
}

impl Eq for Mask {}

/// The bits of one tensor. Holds: bits beyond `len` are zero.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bits {
    words: Vec<u64>,
    len: usize,
}

impl Bits {
    /// All set.
    pub fn ones(len: usize) -> Self {
        let mut bits = Self { words: vec![u64::MAX; len.div_ceil(64)], len };
        if !len.is_multiple_of(64)
            && let Some(last) = bits.words.last_mut()
        {
            *last = (1 << (len % 64)) - 1;
        }
        bits
    }

    /// None set.
    pub fn zeros(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)], len }
    }

    /// Set where a value is not zero.
    pub fn nonzero(values: &[f32]) -> Self {
        let words = values
            .chunks(64)
            .map(|chunk| {
                chunk.iter().enumerate().fold(0, |word, (i, &v)| word | u64::from(v != 0.0) << i)
            })
            .collect();
        Self { words, len: values.len() }
    }

    /// The bits in order.
    ///
    /// ```
    /// use openwork::mask::Bits;
    /// let mut values = [0.0; 70];
    /// values[66] = 2.0;
    /// let bools = Bits::nonzero(&values).to_bools();
    /// assert!(bools.len() == 70 && bools[66] && bools.iter().filter(|bit| **bit).count() == 1);
    /// ```
    pub fn to_bools(&self) -> Vec<bool> {
        let mut all = vec![false; self.len];
        for (all, word) in all.chunks_mut(64).zip(&self.words) {
            all.iter_mut().enumerate().for_each(|(i, bit)| *bit = word >> i & 1 == 1);
        }
        all
    }

    /// The number of bits.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bit `i`.
    pub fn get(&self, i: usize) -> bool {
        self.words[i / 64] >> (i % 64) & 1 == 1
    }

    /// Sets bit `i` to `value`.
    ///
    /// # Panics
    ///
    /// If `i` is out of bounds.
    pub fn set(&mut self, i: usize, value: bool) {
        assert!(i < self.len, "bit {i} of {}", self.len);
        let bit = 1 << (i % 64);
        if value {
            self.words[i / 64] |= bit;
        } else {
            self.words[i / 64] &= !bit;
        }
    }

    /// Appends bits.
    ///
    /// ```
    /// use openwork::mask::Bits;
    /// let mut bits = Bits::nonzero(&[1.0, 0.0, 2.0]);
    /// bits.append(&Bits::nonzero(&[0.0, 4.0]));
    /// assert_eq!(bits, Bits::nonzero(&[1.0, 0.0, 2.0, 0.0, 4.0]));
    /// ```
    pub fn append(&mut self, more: &Self) {
        let shift = self.len % 64;
        for &word in &more.words {
            match self.words.last_mut() {
                Some(last) if shift > 0 => {
                    *last |= word << shift;
                    self.words.push(word >> (64 - shift));
                }
                _ => self.words.push(word),
            }
        }
        self.len += more.len;
        self.words.truncate(self.len.div_ceil(64));
    }

    /// The number of set bits.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }
}

impl Mask {
    /// Keeps every element of the spec's tensors.
    pub fn full(spec: &Spec) -> Self {
        Self::from_bits(spec.tensors().iter().map(|tensor| Bits::ones(tensor.size())).collect())
    }

    /// A mask over tensors with these bits.
    pub fn from_bits(tensors: Vec<Bits>) -> Self {
        Self { tensors, choice: None }
    }

    /// The same mask with the choice of blocks that it comes from.
    pub(crate) fn with_choice(self, choice: Choice) -> Self {
        Self { choice: Some(Arc::new(choice)), ..self }
    }

    /// The blocks that each level of its spec keeps, if the spec has several and the mask
    /// was made by a method.
    pub fn choice(&self) -> Option<&Choice> {
        self.choice.as_deref()
    }

    /// The blocks that each level of `spec` keeps: those that are known, or some with which
    /// the mask is [allowed](Mask::allows).
    pub fn find_choice(&self, spec: &Spec) -> Result<Choice, Breach> {
        match &self.choice {
            Some(choice) => Ok(Choice::clone(choice)),
            None => conform::search(self, spec, false),
        }
    }

    /// A pseudo-random mask of a spec.
    pub fn example(spec: &Spec, seed: u64) -> Self {
        if spec.has_levels() {
            return Choice::example(spec, seed).mask(spec);
        }
        Self::select(spec, |scope, block| crate::example::score(seed, scope, block))
    }

    /// Keeps the elements that are not zero.
    pub fn nonzero(tensors: &[&[f32]]) -> Self {
        Self::from_bits(tensors.iter().map(|values| Bits::nonzero(values)).collect())
    }

    /// The bits of each tensor.
    pub fn tensors(&self) -> &[Bits] {
        &self.tensors
    }

    /// Whether an element is kept.
    pub fn keeps(&self, element: Element) -> bool {
        self.tensors[element.tensor].get(element.offset)
    }

    /// Keeps or drops an element.
    pub fn set(&mut self, element: Element, stays: bool) {
        self.choice = None;
        self.tensors[element.tensor].set(element.offset, stays);
    }

    /// Drops a block of a scope.
    pub fn drop_block(&mut self, spec: &Spec, scope: usize, block: usize) {
        for element in spec.elements(scope, block) {
            self.set(element, false);
        }
    }

    /// Keeps exactly the `keep` blocks of highest score in every scope; of equal scores the
    /// lower index, and padding last.
    ///
    /// # Panics
    ///
    /// If the spec has levels, whose blocks have scores of their own.
    pub fn select(spec: &Spec, mut score: impl FnMut(usize, usize) -> f64) -> Self {
        assert!(!spec.has_levels(), "`{}` has levels", spec.text());
        let mut mask = Self::full(spec);
        let mut scores = Vec::with_capacity(spec.blocks_per_scope());
        for scope in spec.order() {
            scores.clear();
            scores.extend((0..spec.blocks_per_scope()).map(|block| score(scope, block)));
            let padding = |block: usize| spec.is_padding(scope, block);
            for block in crate::select::dropped(&scores, padding, spec.keep()) {
                mask.drop_block(spec, scope, block);
            }
        }
        mask
    }

    /// Writes an exact zero to every dropped weight of tensor `tensor`.
    ///
    /// # Panics
    ///
    /// If `weights` does not have the tensor's size.
    pub fn apply(&self, tensor: usize, weights: &mut [f32]) {
        let bits = &self.tensors[tensor];
        assert_eq!(weights.len(), bits.len(), "the mask is for {} weights", bits.len());
        for (chunk, &word) in weights.chunks_mut(64).zip(&bits.words) {
            let mut dropped = !word;
            if chunk.len() < 64 {
                dropped &= (1 << chunk.len()) - 1;
            }
            while dropped != 0 {
                chunk[dropped.trailing_zeros() as usize] = 0.0;
                dropped &= dropped - 1;
            }
        }
    }

    /// The share of kept elements over all tensors, including those outside domains.
    pub fn density(&self) -> f64 {
        let total: usize = self.tensors.iter().map(Bits::len).sum();
        self.tensors.iter().map(Bits::count).sum::<usize>() as f64 / total as f64
    }

    /// Checks that every block is kept or dropped whole, that exactly `keep` blocks of
    /// every scope are kept (not counting padding), and that nothing outside the domain is
    /// dropped. The error is the first breach. Of a spec with levels, all of this holds at
    /// every level for the choice of blocks that the mask comes from; if that is unknown,
    /// for some choice.
    pub fn conforms(&self, spec: &Spec) -> Result<(), Breach> {
        self.check(spec, true)
    }

    /// Checks that the zeros could have been made by the spec: at most `keep` blocks of
    /// every scope have an element set. A kept block may contain zeros, so this is all that
    /// can be said of weights whose mask is unknown. Of a spec with levels, it must hold at
    /// every level for some choice of blocks, which is searched for;
    /// [`Breach::Undecided`] if the search was abandoned.
    pub fn allows(&self, spec: &Spec) -> Result<(), Breach> {
        self.check(spec, false)
    }

    fn check(&self, spec: &Spec, exact: bool) -> Result<(), Breach> {
        if spec.has_levels() {
            let known = self.choice.as_ref().is_some_and(|choice| choice.mask(spec) == *self);
            return if known { Ok(()) } else { conform::search(self, spec, exact).map(drop) };
        }
        let mut inside: Vec<usize> = vec![0; self.tensors.len()];
        let mut kept_inside: Vec<usize> = vec![0; self.tensors.len()];
        for scope in 0..spec.scopes() {
            let mut kept_blocks = 0;
            let mut real_blocks = 0;
            for block in 0..spec.blocks_per_scope() {
                let (mut kept, mut size) = (0, 0);
                for element in spec.elements(scope, block) {
                    size += 1;
                    let keeps = usize::from(self.keeps(element));
                    kept += keeps;
                    inside[element.tensor] += 1;
                    kept_inside[element.tensor] += keeps;
                }
                if exact && kept != 0 && kept != size {
                    let (tensor, block) = spec.block_index(scope, block);
                    return Err(Breach::Split { scope, tensor, block, kept, size });
                }
                kept_blocks += usize::from(kept > 0);
                real_blocks += usize::from(size > 0);
            }
            let expected = spec.keep().min(real_blocks);
            if kept_blocks > expected || (exact && kept_blocks < expected) {
                return Err(Breach::Count { scope, expected, found: kept_blocks });
            }
        }
        if exact {
            for (tensor, bits) in self.tensors.iter().enumerate() {
                if bits.count() - kept_inside[tensor] != bits.len() - inside[tensor] {
                    return Err(Breach::Outside {
                        tensor: spec.tensors()[tensor].name().to_string(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// The first violation of a spec by a mask. Scopes and blocks are numbered row-major over
/// their grids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// A scope keeps another number of blocks.
    Count {
        /// The scope.
        scope: usize,
        /// Blocks that should be kept.
        expected: usize,
        /// Blocks that are.
        found: usize,
    },
    /// A block is kept in part.
    Split {
        /// The scope.
        scope: usize,
        /// The tensor, if scopes are coupled.
        tensor: Option<usize>,
        /// The block.
        block: usize,
        /// Kept elements.
        kept: usize,
        /// Elements of the block.
        size: usize,
    },
    /// An element outside the domain is dropped.
    Outside {
        /// The tensor's name.
        tensor: String,
    },
    /// A breach of the outermost level of a spec with several.
    Outermost(Box<Breach>),
    /// A breach inside a block of a spec with levels, for the choice of blocks that got
    /// furthest.
    Inside {
        /// Whether the block is kept or dropped.
        side: Side,
        /// The scope of the block.
        scope: usize,
        /// The block, as an index in its grid.
        block: usize,
        /// Whether other choices of blocks were tried.
        chosen: bool,
        /// The breach of the level inside.
        breach: Box<Breach>,
    },
    /// The search for a choice of blocks was given up.
    Undecided {
        /// The first scope of the part that was searched.
        scope: usize,
    },
}

impl Breach {
    /// The levels from the outermost to that of the breach, and the breach there.
    fn innermost(&self) -> (Vec<Side>, &Self) {
        let (mut path, mut breach) = (Vec::new(), self);
        while let Self::Inside { side, breach: inner, .. } = breach {
            path.push(*side);
            breach = inner;
        }
        (path, breach)
    }
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { scope, expected, found } => {
                write!(f, "scope {scope} keeps {found} blocks, expected {expected}")
            }
            Self::Split { scope, tensor, block, kept, size } => {
                write!(f, "block {block}")?;
                if let Some(tensor) = tensor {
                    write!(f, " of tensor {tensor}")?;
                }
                write!(
                    f,
                    " of scope {scope} keeps {kept} of its {size} elements, expected all or none"
                )
            }
            Self::Outside { tensor } => {
                write!(f, "tensor `{tensor}` has dropped elements outside the domain")
            }
            Self::Outermost(breach) => write!(f, "{}: {breach}", level_name(&[])),
            Self::Inside { scope, block, chosen, .. } => {
                let (path, breach) = self.innermost();
                if *chosen {
                    f.write_str("no choice of blocks fits; with the closest, ")?;
                }
                let level = level_name(&path);
                write!(f, "{level}, in block {block} of scope {scope}: {breach}")
            }
            Self::Undecided { scope } => write!(
                f,
                "undecided: too many choices of blocks for scope {scope}; the search was abandoned"
            ),
        }
    }
}

impl std::error::Error for Breach {}

impl fmt::Display for Coupling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blocks => "blocks",
            Self::Scopes => "scopes",
        })
    }
}
