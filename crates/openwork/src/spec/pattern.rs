//! The syntax tree of patterns: specs not yet bound to tensors.

use super::error::SpecError;
use super::parse;
use std::str::FromStr;

/// A sparsity pattern with symbols for the tensor's dims. [`Pattern::bind`] checks it
/// against shapes and returns a [`Spec`](super::Spec).
///
/// `FromStr` reads what `Display` prints:
///
/// ```
/// use openwork::Pattern;
/// let pattern: Pattern = "scope (1,4)  keep 2 # two of four".parse().unwrap();
/// assert_eq!(pattern.to_string(), "scope (1,4) keep 2");
/// assert_eq!(pattern.to_string().parse::<Pattern>().unwrap(), pattern);
/// ```
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The text as it was written, which errors point into.
    pub(crate) source: String,
    pub(crate) body: Body,
}

impl Pattern {
    /// The text as it was written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The names of the coupled tensors; empty if the pattern is for one tensor.
    pub fn members(&self) -> Vec<&str> {
        match &self.body {
            Body::Levels(_) => Vec::new(),
            Body::Couple(couple) => couple.members.iter().map(|m| m.name.as_str()).collect(),
        }
    }

    /// Whether the pattern has a `then` or an `else`.
    ///
    /// ```
    /// use openwork::Pattern;
    /// assert!("columns(25%) else 2:4".parse::<Pattern>().unwrap().has_levels());
    /// assert!(!"2:4".parse::<Pattern>().unwrap().has_levels());
    /// ```
    pub fn has_levels(&self) -> bool {
        matches!(&self.body, Body::Levels(level) if level.has_inner())
    }

    /// The same pattern with `count` blocks kept in each scope, of the first level if it has
    /// several.
    ///
    /// ```
    /// use openwork::Pattern;
    /// let half: Pattern = "rowwise(50%)".parse().unwrap();
    /// assert_eq!(half.keeping(3).to_string(), "rowwise(50%) keep 3");
    /// assert_eq!(half.keeping(3).bind(&[4, 8]).unwrap().keep(), 3);
    /// ```
    pub fn keeping(&self, count: usize) -> Self {
        let keep =
            Keep::Count(Expr { first: Atom::Int(count as u64), rest: Vec::new(), at: At(0) });
        let mut body = self.body.clone();
        match &mut body {
            Body::Levels(level) => level.one.clauses.keep = Some(keep),
            Body::Couple(couple) => couple.keep = Some(keep),
        }
        let mut pattern = Self { source: String::new(), body };
        pattern.source = pattern.to_string();
        pattern
    }
}

impl PartialEq for Pattern {
    /// Patterns are equal if their syntax trees are; the source text does not count.
    fn eq(&self, other: &Self) -> bool {
        self.body == other.body
    }
}

impl Eq for Pattern {}

impl FromStr for Pattern {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        Ok(Self { source: text.to_string(), body: parse::body(text)? })
    }
}

/// A byte position in the source. All positions are equal, so that patterns compare by
/// meaning.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct At(pub usize);

impl PartialEq for At {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for At {}

// Rarely more than one exists, so boxing would gain nothing.
#[allow(clippy::large_enum_variant)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Body {
    Levels(Level),
    Couple(Couple),
}

/// A spec over one tensor, and the specs of what it keeps and of what it drops.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Level {
    pub one: One,
    /// The end of `one` in the source.
    pub end: At,
    pub then: Option<Box<Inner>>,
    pub otherwise: Option<Box<Inner>>,
}

/// A level inside another, and the position of its `then` or `else`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Inner {
    pub level: Level,
    pub at: At,
}

impl Level {
    pub fn has_inner(&self) -> bool {
        self.then.is_some() || self.otherwise.is_some()
    }

    /// Whether it or a level inside its chain of `then` has an `else`.
    pub fn has_else(&self) -> bool {
        self.otherwise.is_some() || self.then.as_ref().is_some_and(|inner| inner.level.has_else())
    }

    /// This level and all levels inside it.
    pub fn any(&self, test: &impl Fn(&One) -> bool) -> bool {
        let inner = [&self.then, &self.otherwise].into_iter().flatten();
        test(&self.one) || inner.into_iter().any(|inner| inner.level.any(test))
    }
}

/// A spec over one tensor: a preset, clauses, or a preset amended by clauses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct One {
    pub preset: Option<Call>,
    pub clauses: Clauses,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clauses {
    pub on: Option<(Vec<String>, At)>,
    pub domain: Option<Domain>,
    pub pad: Option<Tuple>,
    pub view: Option<View>,
    pub block: Option<Tuple>,
    pub scope: Option<Tuple>,
    pub keep: Option<Keep>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Blocks,
    Scopes,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Couple {
    pub kind: Kind,
    pub members: Vec<Member>,
    pub scope: Option<Tuple>,
    pub keep: Option<Keep>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub name: String,
    pub perm: Option<(Vec<usize>, At)>,
    pub weight: Option<Decimal>,
    pub one: One,
    pub at: At,
}

/// `digits / 10^scale`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub digits: u64,
    pub scale: u32,
}

impl Decimal {
    pub fn value(self) -> f64 {
        self.digits as f64 / 10f64.powi(self.scale as i32)
    }
}

/// A preset by name, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub name: Name,
    pub at: At,
}

impl Call {
    pub fn has_args(&self) -> bool {
        matches!(&self.name, Name::Word { args, .. } if !args.is_empty())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Name {
    /// `N:M`, `N:MxB`, `N:M@D`: keep N of M blocks of B columns, paired at distance D.
    Ratio { n: u64, m: u64, b: Option<u64>, d: Option<u64> },
    /// `name(args)`.
    Word { word: String, args: Vec<Arg> },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Arg {
    Keep(Keep),
    Named(String, Expr),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Domain {
    Box { offset: Vec<Expr>, extent: Tuple, at: At },
    Layout { layout: Layout, start: Option<Expr>, at: At },
    Union(Vec<Domain>),
    Complement(Box<Domain>),
}

impl Domain {
    pub fn at(&self) -> usize {
        match self {
            Self::Box { at, .. } | Self::Layout { at, .. } => at.0,
            Self::Union(parts) => parts.first().map_or(0, Self::at),
            Self::Complement(inner) => inner.at(),
        }
    }
}

/// A composition `A o B o ..`; of one operand if there is no `o`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct View {
    pub first: Operand,
    /// The other operands, with the position of each.
    pub rest: Vec<(Operand, At)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Operand {
    Layout(Layout),
    Axes(Axes),
}

impl Operand {
    pub fn at(&self) -> usize {
        match self {
            Self::Layout(layout) => layout.at.0,
            Self::Axes(axes) => axes.at.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub shape: Tuple,
    pub stride: Option<Tuple>,
    pub at: At,
}

/// `m (g j i) -> m g i j, j=2 i=8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    /// One group for each axis of the tensor.
    pub left: Vec<Vec<(String, At)>>,
    pub right: Vec<(String, At)>,
    pub sizes: Vec<(String, Expr, At)>,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Count(Expr),
    /// `digits / 10^scale` percent.
    Percent {
        digits: u64,
        scale: u32,
        at: At,
    },
    /// An expression in percent.
    Share(Expr),
    /// `all`.
    All,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Tuple {
    Leaf(Expr),
    List(Vec<Tuple>, At),
}

impl Tuple {
    pub fn at(&self) -> usize {
        match self {
            Self::Leaf(expr) => expr.at.0,
            Self::List(_, at) => at.0,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Expr {
    pub first: Atom,
    /// Factors and exact divisors, left to right; `true` multiplies.
    pub rest: Vec<(bool, Atom)>,
    pub at: At,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Atom {
    Int(u64),
    Name(String),
    Whole,
}
