//! Presets: names for common patterns. A preset expands to clauses of the language, which
//! depend only on the tensor's rank.

use super::error::SpecError;
use super::parse;
use super::pattern::{Arg, Atom, Body, Call, Clauses, Expr, Keep, Name, One, Pattern};
use crate::suggest::distance;

/// A row of [`PRESETS`].
#[derive(Debug)]
pub struct Preset {
    /// Its syntax, with placeholders.
    pub name: &'static str,
    /// One line of help.
    pub summary: &'static str,
    /// An example that can be bound to `shape`.
    pub example: &'static str,
    /// A small tensor that shows the pattern well.
    pub shape: &'static [usize],
    /// Expands `call` for a tensor with these dim names.
    expand: fn(&Arguments<'_>, &Dims<'_>) -> Result<String, String>,
}

/// Every preset. To add one, list it here; the gallery, `openwork presets` and the law
/// tests read this table.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "N:M",
        summary: "keep N of every M consecutive columns",
        example: "2:4",
        shape: &[8, 16],
        expand: ratio,
    },
    Preset {
        name: "N:MxB",
        summary: "keep N of every M blocks of B columns (2:4x2 is the paper's 4:8)",
        example: "2:4x2",
        shape: &[8, 16],
        expand: ratio,
    },
    Preset {
        name: "N:M@D",
        summary: "N:M over pairs of columns D apart, which share one mask (coupled N:M)",
        example: "2:4@8",
        shape: &[8, 32],
        expand: ratio,
    },
    Preset {
        name: "unstructured(P%)",
        summary: "keep P% of all weights, anywhere in the tensor",
        example: "unstructured(50%)",
        shape: &[8, 16],
        expand: |args, _| Ok(format!("keep {}", args.share()?)),
    },
    Preset {
        name: "rowwise(P%)",
        summary: "keep P% of the weights of every row",
        example: "rowwise(50%)",
        shape: &[8, 16],
        expand: |args, dims| {
            dims.at_least(2)?;
            Ok(format!("scope (1) keep {}", args.share()?))
        },
    },
    Preset {
        name: "block(B,C)",
        summary: "keep half of the B x C blocks of every row of blocks; block(B,C,P%) keeps P%",
        example: "block(4,4)",
        shape: &[8, 32],
        expand: |args, dims| {
            let (b, c) =
                (args.number(0, "the rows of a block")?, args.number(1, "the columns of a block")?);
            Ok(format!("{}block ({b},{c}) scope (1,_) keep {}", dims.matrix()?, args.keep(2)?))
        },
    },
    Preset {
        name: "rows16",
        summary: "in every 16 columns, keep one of each two rows 8 apart (the paper's 16-column pattern)",
        example: "rows16",
        shape: &[16, 32],
        expand: |args, dims| {
            args.none()?;
            let view = match dims.names.len() {
                2 => "view (t r p) k -> t p r k, r=2 p=8".to_string(),
                _ => {
                    dims.at_least(2)?;
                    let (rows, cols) = (dims.rows(), dims.cols());
                    format!("view ({rows}/16,8,2,{cols}):(16*{cols},{cols},8*{cols},1)")
                }
            };
            Ok(format!("{view} block (1,1,1,16) scope (1,1,2,1) keep 1"))
        },
    },
    Preset {
        name: "columns",
        summary: "keep half of the input columns, whole; columns(P%) keeps P%",
        example: "columns(50%)",
        shape: &[8, 16],
        expand: |args, dims| {
            Ok(format!("{}block (_,1) scope (1,_) keep {}", dims.matrix()?, args.share()?))
        },
    },
    Preset {
        name: "channel",
        summary: "keep half of the output channels, whole; channel(P%) keeps P%",
        example: "channel(50%)",
        shape: &[8, 16],
        expand: channel,
    },
    Preset {
        name: "filter",
        summary: "keep half of the filters of a convolution (O,I,H,W), whole; filter(P%) keeps P%",
        example: "filter(50%)",
        shape: &[8, 4, 3, 3],
        expand: |args, dims| match dims.names.len() {
            4 => channel(args, dims),
            rank => Err(format!(
                "filter is for convolutions with 4 dims; this tensor has {rank}; use channel"
            )),
        },
    },
    Preset {
        name: "head(h=H)",
        summary: "keep half of H heads, each a run of rows; head(h=H,P%) keeps P%",
        example: "head(h=4)",
        shape: &[16, 16],
        expand: |args, dims| {
            let h = args.named("h", "the number of heads")?;
            match dims.names.len() {
                2 => Ok(format!(
                    "view (h d) k -> h d k, h={h} block (1,_,_) scope (_,1,1) keep {}",
                    args.keep_anywhere()?
                )),
                rank => Err(format!("head is for matrices; this tensor has {rank} dims")),
            }
        },
    },
];

/// The dim names of a tensor.
struct Dims<'a> {
    names: &'a [String],
}

impl Dims<'_> {
    fn rows(&self) -> String {
        self.names[0].clone()
    }

    /// The product of all dims but the first: the columns of a convolution as a
    /// matrix (im2col order).
    fn cols(&self) -> String {
        self.names[1..].join("*")
    }

    fn at_least(&self, rank: usize) -> Result<(), String> {
        match self.names.len() {
            n if n >= rank => Ok(()),
            n => Err(format!("it needs {rank} dims; this tensor has {n}")),
        }
    }

    /// The clause that views a tensor with more dims as a matrix.
    fn matrix(&self) -> Result<String, String> {
        self.at_least(2)?;
        Ok(match self.names.len() {
            2 => String::new(),
            _ => format!("view ({},{}) ", self.rows(), self.cols()),
        })
    }
}

/// The arguments of a call.
struct Arguments<'a> {
    name: &'a Name,
}

impl Arguments<'_> {
    fn args(&self) -> &[Arg] {
        match self.name {
            Name::Ratio { .. } => &[],
            Name::Word { args, .. } => args,
        }
    }

    fn none(&self) -> Result<(), String> {
        match self.args() {
            [] => Ok(()),
            [arg, ..] => Err(format!("it takes no argument; found {arg}")),
        }
    }

    /// The share to keep, as the last argument in place `at`; half if it is left out.
    fn keep(&self, at: usize) -> Result<String, String> {
        if let Some(extra) = self.args().get(at + 1) {
            return Err(format!("it takes at most {} arguments; found another, {extra}", at + 1));
        }
        match self.args().get(at) {
            None => Ok("50%".to_string()),
            Some(Arg::Keep(keep)) => Ok(keep.to_string()),
            Some(Arg::Named(name, value)) if name == "keep" => Ok(value.to_string()),
            Some(arg) => {
                Err(format!("{arg} is not an amount to keep; write `50%` or a count of blocks"))
            }
        }
    }

    /// The share to keep, as the only argument. A bare number is refused: `50`
    /// could be a count or a percentage.
    fn share(&self) -> Result<String, String> {
        match self.args() {
            [Arg::Keep(keep @ Keep::Count(_))] => {
                Err(format!("write `{keep}%` for a share, or `keep {keep}` for a count of blocks"))
            }
            _ => self.keep(0),
        }
    }

    fn keep_anywhere(&self) -> Result<String, String> {
        let mut keeps = self.args().iter().filter_map(|arg| match arg {
            Arg::Keep(keep) => Some(keep.to_string()),
            Arg::Named(name, value) if name == "keep" => Some(value.to_string()),
            Arg::Named(..) => None,
        });
        match (keeps.next(), keeps.next()) {
            (None, _) => Ok("50%".to_string()),
            (Some(keep), None) => Ok(keep),
            (Some(_), Some(second)) => {
                Err(format!("it takes one amount to keep; found another, {second}"))
            }
        }
    }

    fn number(&self, at: usize, what: &str) -> Result<String, String> {
        match self.args().get(at) {
            Some(Arg::Keep(Keep::Count(expr))) => Ok(expr.to_string()),
            Some(arg) => Err(format!("argument {} is {what}, a number; found {arg}", at + 1)),
            None => Err(format!("argument {} is missing: {what}", at + 1)),
        }
    }

    fn named(&self, name: &str, what: &str) -> Result<String, String> {
        let mut found = None;
        for arg in self.args() {
            match arg {
                Arg::Named(n, _) if n == name && found.is_some() => {
                    return Err(format!("it takes one `{name}=`; found another, {arg}"));
                }
                Arg::Named(n, value) if n == name => found = Some(value.to_string()),
                Arg::Named(n, _) if n != "keep" => {
                    return Err(format!("it has no argument `{n}`; give `{name}=`"));
                }
                _ => {}
            }
        }
        found.ok_or_else(|| format!("argument `{name}=` is missing: {what}"))
    }
}

fn channel(args: &Arguments<'_>, dims: &Dims<'_>) -> Result<String, String> {
    dims.at_least(2)?;
    let whole = ",_".repeat(dims.names.len() - 1);
    Ok(format!("block (1{whole}) scope (_) keep {}", args.share()?))
}

/// `N:M`, with blocks of B columns and pairs of columns D apart.
fn ratio(args: &Arguments<'_>, dims: &Dims<'_>) -> Result<String, String> {
    let Name::Ratio { n, m, b, d } = *args.name else {
        return Err("it is written N:M".to_string());
    };
    if m == 0 || n > m {
        return Err(format!("N:M keeps N of M, so N is at most M; found {n} of {m}"));
    }
    let b = b.unwrap_or(1);
    let rank = dims.names.len();
    let Some(d) = d else {
        return match (rank, b) {
            (0, _) => Err("it needs a dim; this tensor has none".to_string()),
            (1, 1) => Ok(format!("scope ({m}) keep {n}")),
            (1, _) => Ok(format!("block ({b}) scope ({m}) keep {n}")),
            (2, 1) => Ok(format!("scope (1,{m}) keep {n}")),
            _ => Ok(format!("{}block (1,{b}) scope (1,{m}) keep {n}", dims.matrix()?)),
        };
    };
    let scope = m.checked_mul(b).filter(|&width| width > 0 && d % width == 0 && d > 0);
    if scope.is_none() {
        return Err(format!(
            "a distance of {d} columns is not a multiple of the scope's {}",
            m.saturating_mul(b)
        ));
    }
    match rank {
        2 => Ok(format!(
            "view m (g j i) -> m g i j, j=2 i={d} block (1,1,{b},2) scope (1,1,{m},1) keep {n}"
        )),
        1 => {
            Ok(format!("view (g j i) -> g i j, j=2 i={d} block (1,{b},2) scope (1,{m},1) keep {n}"))
        }
        _ => {
            dims.at_least(1)?;
            let (rows, cols) = (dims.rows(), dims.cols());
            Ok(format!(
                "view ({rows},{cols}/{},{d},2):({cols},{},1,{d}) block (1,1,{b},2) scope (1,1,{m},1) keep {n}",
                2 * d,
                2 * d
            ))
        }
    }
}

/// The expansion of `call` for a tensor with these dim names.
pub(crate) fn expand(call: &Call, names: &[String], source: &str) -> Result<Clauses, SpecError> {
    let word = match &call.name {
        Name::Ratio { .. } => "N:M",
        Name::Word { word, .. } => word,
    };
    let Some(preset) = PRESETS.iter().find(|preset| preset.name.split('(').next() == Some(word))
    else {
        let known: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
        let mut near: Vec<_> = known
            .iter()
            .map(|name| (distance(word, name.split('(').next().unwrap_or(name)), *name))
            .collect();
        near.sort_by_key(|&(distance, _)| distance);
        let hint = match near.first() {
            Some(&(distance, name)) if distance <= 2 => format!("did you mean `{name}`?"),
            _ => format!("the presets are {}", known.join(", ")),
        };
        return Err(SpecError::at(
            source,
            call.at.0,
            format!("there is no preset or clause `{word}`"),
            hint,
        ));
    };
    let wrong =
        |detail: String| SpecError::at(source, call.at.0, format!("{call} does not work"), detail);
    let text = (preset.expand)(&Arguments { name: &call.name }, &Dims { names }).map_err(wrong)?;
    let clauses = parse::expansion(&text)?;
    match &clauses.keep {
        Some(Keep::Count(expr)) if expr.literal() == Some(0) => {
            Err(wrong("it would keep nothing; use the clause `keep 0` for that".to_string()))
        }
        _ => Ok(clauses),
    }
}

impl Pattern {
    /// Whether the pattern is, or contains, a preset.
    pub fn has_preset(&self) -> bool {
        match &self.body {
            Body::Levels(level) => level.any(&|one| one.preset.is_some()),
            Body::Couple(couple) => couple.members.iter().any(|member| member.one.preset.is_some()),
        }
    }
}

/// Expands the preset of `one`, if any; its own clauses override those of the preset.
pub(crate) fn written_out(one: &One, names: &[String], source: &str) -> Result<One, SpecError> {
    let Some(call) = &one.preset else { return Ok(one.clone()) };
    let preset = expand(call, names, source)?;
    let own = one.clauses.clone();
    Ok(One {
        preset: None,
        clauses: Clauses {
            on: own.on.or(preset.on),
            domain: own.domain.or(preset.domain),
            pad: own.pad.or(preset.pad),
            view: own.view.or(preset.view),
            block: own.block.or(preset.block),
            scope: own.scope.or(preset.scope),
            keep: own.keep.or(preset.keep),
        },
    })
}

impl Expr {
    /// The number, if the expression is one.
    pub(crate) fn literal(&self) -> Option<u64> {
        match (&self.first, self.rest.as_slice()) {
            (Atom::Int(n), []) => Some(*n),
            _ => None,
        }
    }
}
