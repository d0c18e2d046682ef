//! Structures of a model by name (`mlp`, `heads`, ..): specs that depend on its shapes.
//!
//! ```text
//! mlp [weight W] keep K          channels: rows of gate and up with columns of down
//! heads [weight W] keep K        key heads and their query heads: rows of q, k, v, columns of o
//! query-heads [weight W] keep K  query heads, equally many per group: rows of q, columns of o
//! layers keep K                  whole decoder layers; a pass of its own
//! experts [by SCORE] keep K      whole experts of every layer; a pass of its own
//! ```
//!
//! `K` is a count or a percentage of all channels, key heads, query heads or
//! layers. The first three become a pattern of the spec language once the shapes
//! are known; methods see only that pattern.

use super::expert_choice::ExpertScore;
use super::recipe::RecipeError;
use crate::model::Config;
use openwork::Pattern;
use std::fmt;

/// A row of [`STRUCTURES`].
#[derive(Debug)]
pub struct Structure {
    /// The word that a spec begins with.
    pub name: &'static str,
    /// Its description, on one line.
    pub summary: &'static str,
    /// What is counted, for messages.
    unit: &'static str,
    /// How many a model has.
    count: fn(&Config) -> usize,
    /// What it becomes.
    kind: Kind,
    /// Number of scopes in which they compete.
    scopes: fn(&Config) -> usize,
    /// Default weight of the loss in the tensors that compute it (gate, up; q, k, v),
    /// relative to the loss in the tensor that reads it (down; o): the value with the
    /// lower perplexity in bench/record/2026-11-16-structures.md.
    weight: &'static str,
}

/// What a structure becomes.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Text of the spec language, up to its keep: of the config and the weight.
    Pattern(fn(&Config, &str) -> String),
    /// Layers that are dropped.
    Layers,
    /// Experts that are dropped.
    Experts,
}

/// Units that a pass drops as a whole, instead of pruning tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// Layers.
    Layers {
        /// How many are kept.
        kept: usize,
    },
    /// Experts.
    Experts {
        /// How many of a layer are kept.
        kept: usize,
        /// How they are scored.
        score: ExpertScore,
    },
}

/// Every structure. To add one, list it here.
pub const STRUCTURES: &[Structure] = &[
    Structure {
        name: "mlp",
        summary: "channels of the MLP: rows of gate and up with columns of down",
        unit: "channels",
        count: |c| c.ff,
        kind: Kind::Pattern(|c, weight| {
            if c.is_ungated() {
                return format!(
                    "blocks up weight {weight}: block (1,_) & down perm (1,0): block (_,1)"
                );
            }
            format!(
                "blocks gate weight {weight}: block (1,_) & up weight {weight}: block (1,_) & down perm (1,0): block (_,1)"
            )
        }),
        scopes: |_| 1,
        weight: "1",
    },
    Structure {
        name: "heads",
        summary: "key heads with their query heads: rows of q, k and v with columns of o",
        unit: "key heads",
        count: |c| c.kv_heads,
        kind: Kind::Pattern(|c, weight| {
            let rows = format!("view (h r) k -> h r k, h={} block (1,_,_)", c.kv_heads);
            let columns = format!("view m (h r) -> h m r, h={} block (1,_,_)", c.kv_heads);
            format!(
                "blocks q weight {weight}: {rows} & k weight {weight}: {rows} & v weight {weight}: {rows} & o: {columns}"
            )
        }),
        scopes: |_| 1,
        weight: "0",
    },
    Structure {
        name: "query-heads",
        summary: "query heads, equally many from each group: rows of q with columns of o",
        unit: "query heads",
        count: |c| c.heads,
        kind: Kind::Pattern(|c, weight| {
            let (g, n) = (c.kv_heads, c.group_size());
            format!(
                "blocks q weight {weight}: view (g n r) k -> g n r k, g={g} n={n} block (1,1,_,_) & o: view m (g n r) -> g n m r, g={g} n={n} block (1,1,_,_) scope (1,_,1,1)"
            )
        }),
        scopes: |c| c.kv_heads,
        weight: "0",
    },
    Structure {
        name: "layers",
        summary: "whole decoder layers; drops those that change their input least",
        unit: "layers",
        count: |c| c.layers,
        kind: Kind::Layers,
        scopes: |_| 1,
        weight: "0",
    },
    Structure {
        name: "experts",
        summary: "whole experts of every layer; drops those that contribute least to its output",
        unit: "experts",
        count: |c| c.experts.as_ref().map_or(0, |experts| experts.count),
        kind: Kind::Experts,
        scopes: |_| 1,
        weight: "0",
    },
];

/// How many are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Keep {
    Count(usize),
    /// In percent.
    Share(f64),
}

/// A spec that names a structure, such as `mlp keep 75%`.
#[derive(Clone, Debug)]
pub struct StructureSpec {
    /// The structure.
    pub structure: &'static Structure,
    weight: String,
    score: ExpertScore,
    keep: Keep,
    /// The original text.
    source: String,
}

/// Parses a spec that begins with the name of a structure; `None` if it begins
/// with anything else.
fn parse(spec: &str) -> Result<Option<StructureSpec>, RecipeError> {
    let spec = spec.split('#').next().unwrap_or_default().trim();
    let mut words = spec.split_whitespace();
    let name = words.next().unwrap_or_default();
    let Some(structure) = STRUCTURES.iter().find(|structure| structure.name == name) else {
        return Ok(None);
    };
    let wrong = |why: String| RecipeError(format!("`{spec}`: {why}"));
    let form = match structure.kind {
        Kind::Pattern(_) => format!("write `{name} keep 75%`, or `{name} weight 1 keep 75%`"),
        Kind::Layers => format!("write `{name} keep 75%`"),
        Kind::Experts => format!("write `{name} keep 75%`, or `{name} by load keep 75%`"),
    };
    let (mut weight, mut keep, mut score) = (None, None, None);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| wrong(format!("`{word}` needs a value; {form}")))?;
        match word {
            "weight" if matches!(structure.kind, Kind::Pattern(_)) && weight.is_none() => {
                let number: Option<f64> = value.parse().ok();
                number.filter(|w| w.is_finite() && *w >= 0.0).ok_or_else(|| {
                    wrong(format!("weight {value} is not a number of at least 0"))
                })?;
                weight = Some(value.to_string());
            }
            "by" if matches!(structure.kind, Kind::Experts) && score.is_none() => {
                let known = ExpertScore::ALL.into_iter().find(|score| score.name() == value);
                score = Some(known.ok_or_else(|| {
                    let all = ExpertScore::ALL.map(ExpertScore::name).join(", ");
                    wrong(format!("there is no score {value}; the scores are {all}"))
                })?);
            }
            "keep" if keep.is_none() => {
                keep = Some(read_keep(value).ok_or_else(|| {
                    wrong(format!("keep {value} is neither a count nor a percentage; {form}"))
                })?);
            }
            _ => return Err(wrong(format!("`{word}` is not expected here; {form}"))),
        }
    }
    let keep = keep.ok_or_else(|| wrong(format!("it lacks a `keep`; {form}")))?;
    let weight = weight.unwrap_or_else(|| structure.weight.to_string());
    let score = score.unwrap_or(ExpertScore::Reap);
    Ok(Some(StructureSpec { structure, weight, score, keep, source: spec.to_string() }))
}

fn read_keep(text: &str) -> Option<Keep> {
    match text.strip_suffix('%') {
        None => text.parse().ok().map(Keep::Count),
        Some(share) => {
            let share: f64 = share.parse().ok()?;
            (share.is_finite() && (0.0..=100.0).contains(&share)).then_some(Keep::Share(share))
        }
    }
}

impl StructureSpec {
    /// The number kept in a model with this config: at least one, and the same
    /// number in every scope.
    pub fn kept(&self, config: &Config) -> Result<usize, RecipeError> {
        let Structure { unit, count, scopes, .. } = self.structure;
        let (all, scopes) = (count(config), scopes(config));
        let wrong = |why: String| Err(RecipeError(format!("`{}`: {why}", self.source)));
        if all == 0 {
            return wrong(format!("a {} model has no {unit}", config.family.name));
        }
        if let ("mlp", Keep::Count(_), widths) =
            (self.structure.name, self.keep, config.mlp_widths())
            && widths.len() > 1
        {
            let widths: Vec<String> = widths.iter().map(ToString::to_string).collect();
            return wrong(format!(
                "the MLPs of this model have different numbers of channels ({}); give a percentage",
                widths.join(", ")
            ));
        }
        let width = config.mlp_width(0).unwrap_or(0);
        if let ("mlp", Keep::Share(share), true) =
            (self.structure.name, self.keep, config.double_wide && config.shares_keys())
            && (share * width as f64 / 100.0).fract() != 0.0
        {
            return wrong(format!(
                "some MLPs of this model are twice as wide as the others; give a percentage that is a whole number of {width} channels"
            ));
        }
        if matches!(self.structure.kind, Kind::Layers)
            && (config.per_layer.is_some() || config.shares_keys())
        {
            return wrong(
                "the layers of this model have per-layer embeddings, or share keys and values; none can be dropped".to_string(),
            );
        }
        if ["heads", "query-heads"].contains(&self.structure.name)
            && (!config.has_equal_heads() || config.family.gated_attention)
        {
            return wrong(format!(
                "the layers of this {} model differ in their heads, share keys and values, or have gates; heads cannot be removed",
                config.family.name
            ));
        }
        if all / scopes == 1 && self.structure.name == "query-heads" {
            let why = "every key head of this model has one query head; use `heads` to remove both";
            return wrong(why.to_string());
        }
        let kept = match self.keep {
            Keep::Count(kept) if kept % scopes != 0 => {
                return wrong(format!(
                    "the {all} {unit} form {scopes} groups that keep the same number each; give a multiple of {scopes}"
                ));
            }
            Keep::Count(kept) => kept,
            // Shares are rounded up, as everywhere.
            Keep::Share(share) => {
                let each = share / 100.0 * (all / scopes) as f64;
                scopes * (each - 1e-9).ceil() as usize
            }
        };
        match kept {
            0 => wrong(format!("that removes all {all} {unit}; keep at least {scopes}")),
            kept if matches!(self.structure.kind, Kind::Experts)
                && config.experts.as_ref().is_some_and(|experts| kept < experts.active) =>
            {
                let active = config.experts.as_ref().map_or(0, |experts| experts.active);
                wrong(format!(
                    "every token is routed to {active} experts of a layer; keep at least {active}"
                ))
            }
            kept if kept > all => wrong(format!("the model has {all} {unit}, fewer than {kept}")),
            kept => Ok(kept),
        }
    }

    /// The spec as text of the spec language; an error for `layers`.
    pub fn expand(&self, config: &Config) -> Result<String, RecipeError> {
        let kept = self.kept(config)?;
        match self.structure.kind {
            // Each MLP keeps the share of its own channels.
            Kind::Pattern(text)
                if self.structure.name == "mlp" && config.mlp_widths().len() > 1 =>
            {
                let Keep::Share(share) = self.keep else { unreachable!("counts are refused") };
                Ok(format!("{} keep {share}%", text(config, &self.weight)))
            }
            Kind::Pattern(text) => {
                let each = kept / (self.structure.scopes)(config);
                Ok(format!("{} keep {each}", text(config, &self.weight)))
            }
            Kind::Layers | Kind::Experts => Err(RecipeError(format!(
                "`{}`: {} are dropped by a recipe or a [[pass]] of its own, not by a rule",
                self.source, self.structure.name
            ))),
        }
    }
}

/// The spec of a recipe or rule, parsed.
#[derive(Clone, Debug)]
pub enum RecipeSpec {
    /// A structure, which becomes a pattern once the model's shapes are known.
    Structure(StructureSpec),
    /// A pattern of the spec language.
    Pattern(Box<Pattern>),
}

impl RecipeSpec {
    /// Parses the text of a spec.
    pub fn parse(text: &str) -> Result<Self, RecipeError> {
        match parse(text)? {
            Some(structure) => Ok(Self::Structure(structure)),
            None => text.parse().map(|pattern| Self::Pattern(Box::new(pattern))).map_err(invalid),
        }
    }

    /// The pattern for a model with this config.
    pub fn pattern(&self, config: &Config) -> Result<Pattern, RecipeError> {
        match self {
            Self::Structure(structure) => structure.expand(config)?.parse().map_err(invalid),
            Self::Pattern(pattern) => Ok(pattern.as_ref().clone()),
        }
    }

    /// The layers or experts that it drops as a whole, if any.
    pub fn dropped(&self, config: &Config) -> Result<Option<Dropped>, RecipeError> {
        let Self::Structure(spec) = self else { return Ok(None) };
        Ok(match spec.structure.kind {
            Kind::Pattern(_) => None,
            Kind::Layers => Some(Dropped::Layers { kept: spec.kept(config)? }),
            Kind::Experts => Some(Dropped::Experts { kept: spec.kept(config)?, score: spec.score }),
        })
    }
}

/// The original text; structures are not expanded.
impl fmt::Display for RecipeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Structure(structure) => f.write_str(&structure.source),
            Self::Pattern(pattern) => write!(f, "{pattern}"),
        }
    }
}

/// A spec of a recipe as a pattern for a model with this config.
pub fn pattern(spec: &str, config: &Config) -> Result<Pattern, RecipeError> {
    RecipeSpec::parse(spec)?.pattern(config)
}

fn invalid(error: openwork::SpecError) -> RecipeError {
    RecipeError(error.to_string())
}
