//! Binds a pattern to shapes and checks the resulting spec.

use super::axes::not_covered;
use super::compose::{Composed, composed};
use super::couple::{self, BlockedTensor};
use super::domain::{Region, Space};
use super::env::{Bound, Env, default_names, dim_names, shape_text};
use super::error::SpecError;
use super::grid::Grid;
use super::level;
use super::pattern::{
    Body, Clauses, Couple, Decimal, Domain, Kind, Level, Member, One, Operand, Pattern, Tuple, View,
};
use super::profile::{extents, grid_error, whole};
use super::region::region;
use super::view::{covers_interval, covers_region, row_major, strided};
use super::{Spec, preset};
use crate::layout::{Layout, StridedLayout};

/// The maximum number of elements of a tensor: offsets and their sums stay far from
/// overflow.
pub(crate) const MAX_ELEMENTS: usize = 1 << 48;
/// The maximum number of axes of a view.
const MAX_RANK: usize = 32;

impl Pattern {
    /// Checks the pattern against the dims of one tensor.
    ///
    /// ```
    /// let spec = "2:4".parse::<openwork::Pattern>().unwrap().bind(&[16, 32]).unwrap();
    /// assert_eq!((spec.scopes(), spec.blocks_per_scope(), spec.keep()), (128, 4, 2));
    /// ```
    pub fn bind(&self, dims: &[usize]) -> Result<Spec, SpecError> {
        let name = self.members().first().map_or("tensor", |name| *name).to_string();
        self.bind_all(&[(&name, dims)])
    }

    /// Checks the pattern against named tensors. A pattern for one tensor takes
    /// one, under any name; a coupling takes exactly its members, in any order.
    pub fn bind_all(&self, tensors: &[(&str, &[usize])]) -> Result<Spec, SpecError> {
        let shapes = self.shapes(tensors)?;
        let (spec, expanded) = match &self.body {
            Body::Levels(level) => {
                let (name, dims) = &shapes[0];
                let (spec, level) = bind_level(level, &self.source, name, dims, None)?;
                (spec, level.to_string())
            }
            Body::Couple(_) => {
                let expanded = self.written_out(&shapes)?;
                let Body::Couple(couple) = &expanded.body else {
                    unreachable!("a coupling expands to a coupling")
                };
                let spec = bind_couple(&expanded.source, couple, &shapes)?;
                (spec, expanded.to_string())
            }
        };
        Ok(spec.with_text(self.to_string(), expanded))
    }

    /// The same pattern with every preset expanded for these tensors.
    pub fn expand(&self, tensors: &[(&str, &[usize])]) -> Result<Pattern, SpecError> {
        self.written_out(&self.shapes(tensors)?)
    }

    /// The members' shapes, in the pattern's order.
    fn shapes<'a>(&self, tensors: &[(&'a str, &'a [usize])]) -> Bound<Vec<(String, &'a [usize])>> {
        let names = self.members();
        if names.is_empty() {
            let [(name, dims)] = tensors else {
                let what = format!("this pattern is for one tensor; {} were given", tensors.len());
                return Err(SpecError::whole(what, "couple several with `blocks a: .. & b: ..`"));
            };
            return Ok(vec![(name.to_string(), dims)]);
        }
        let given: Vec<_> = tensors.iter().map(|(name, _)| *name).collect();
        let list = |names: &[&str]| names.join(", ");
        let mut shapes = Vec::with_capacity(names.len());
        for name in &names {
            let found: Vec<_> = tensors.iter().filter(|(given, _)| given == name).collect();
            match found.as_slice() {
                [(_, dims)] => shapes.push((name.to_string(), *dims)),
                [] => {
                    let what = format!(
                        "the pattern couples {}; tensor `{name}` was not given",
                        list(&names)
                    );
                    return Err(SpecError::whole(what, format!("found {}", list(&given))));
                }
                _ => {
                    return Err(SpecError::whole(
                        format!("tensor `{name}` was given twice"),
                        "give each once",
                    ));
                }
            }
        }
        if let Some(extra) = given.iter().find(|name| !names.contains(name)) {
            let what = format!("tensor `{extra}` is not a member of the coupling");
            return Err(SpecError::whole(what, format!("its members are {}", list(&names))));
        }
        Ok(shapes)
    }

    fn written_out(&self, shapes: &[(String, &[usize])]) -> Bound<Pattern> {
        if !self.has_preset() {
            return Ok(self.clone());
        }
        let out = |one: &One, dims: &[usize]| {
            let names = dim_names(&self.source, one.clauses.on.as_ref(), None, dims)?;
            preset::written_out(one, &names, &self.source)
        };
        let body = match &self.body {
            Body::Levels(level) if level.has_inner() => {
                // The dims of an inner level are those that the level around it leaves.
                let (name, dims) = &shapes[0];
                Body::Levels(bind_level(level, &self.source, name, dims, None)?.1)
            }
            Body::Levels(level) => {
                Body::Levels(Level { one: out(&level.one, shapes[0].1)?, ..level.clone() })
            }
            Body::Couple(couple) => {
                let mut couple = couple.clone();
                for (member, (_, dims)) in couple.members.iter_mut().zip(shapes) {
                    let gives_scope = couple.kind == Kind::Scopes;
                    if member.one.preset.is_some() {
                        member.one = out(&member.one, dims)?;
                        // A preset gives a coupling its view and block, and `scopes` its scope.
                        member.one.clauses.keep = None;
                        member.one.clauses.scope =
                            member.one.clauses.scope.take().filter(|_| gives_scope);
                    }
                }
                Body::Couple(couple)
            }
        };
        // Parsed again, so that errors point into the expanded text.
        Pattern { source: String::new(), body }.to_string().parse()
    }
}

/// Binds a level and those inside it to a tensor; `names` are those of its dims if they have
/// any. Gives the level with its presets expanded, too.
fn bind_level(
    level: &Level,
    source: &str,
    name: &str,
    dims: &[usize],
    names: Option<&[String]>,
) -> Bound<(Spec, Level)> {
    let names = dim_names(source, level.one.clauses.on.as_ref(), names, dims)?;
    // The text of an expanded preset is parsed again, so that errors point into it.
    let (text, one, end) = match &level.one.preset {
        None => (source.to_string(), level.one.clone(), level.end.0),
        Some(_) => {
            let text = preset::written_out(&level.one, &names, source)?.to_string();
            let one = super::parse::single(&text)?;
            let end = text.len();
            (text, one, end)
        }
    };
    let env = Env { text: &text, end, names: Vec::new(), composed: false };
    let (part, env, axes) = part(env, name, dims, names, &one.clauses)?;
    let mut spec = couple::one(part, one.clauses.scope.as_ref(), one.clauses.keep.as_ref(), &env)?;
    spec.own = one.to_string();
    let mut expanded = Level { one, ..Level::default() };
    for side in level::Side::BOTH {
        let Some(inner) = side.pick(&level.then, &level.otherwise) else { continue };
        let closing = level::Closing::new(&spec, side, &axes)
            .map_err(|(what, detail)| SpecError::at(source, inner.at.0, what, detail))?;
        let (inside, level) =
            bind_level(&inner.level, source, name, closing.dims(), Some(&axes))
                .map_err(|error| error.inside(side.word(), &shape_text(closing.dims())))?;
        let written = super::pattern::Inner { level, at: inner.at };
        *side.pick(&mut expanded.then, &mut expanded.otherwise) = Some(Box::new(written));
        *side.pick(&mut spec.then, &mut spec.otherwise) =
            Some(Box::new(level::Level::new(inside, closing)));
    }
    Ok((spec, expanded))
}

fn bind_couple(text: &str, couple: &Couple, shapes: &[(String, &[usize])]) -> Bound<Spec> {
    let mut parts = Vec::with_capacity(couple.members.len());
    let mut envs = Vec::with_capacity(couple.members.len());
    for (member, (name, dims)) in couple.members.iter().zip(shapes) {
        let clauses = &member.one.clauses;
        let names = dim_names(text, clauses.on.as_ref(), None, dims)?;
        let env = Env { text, end: text.len(), names: Vec::new(), composed: false };
        let (part, env, _) = part(env, name, dims, names, clauses)?;
        parts.push(part);
        envs.push(env);
    }
    let members: Vec<&Member> = couple.members.iter().collect();
    let mut spec = match couple.kind {
        Kind::Blocks => {
            couple::blocks(parts, &members, couple.scope.as_ref(), couple.keep.as_ref(), &envs[0])
        }
        Kind::Scopes => couple::scopes(parts, &members, couple.keep.as_ref(), &envs),
    }?;
    for (tensor, member) in spec.tensors.iter_mut().zip(&members) {
        tensor.weight = member.weight.map_or(1.0, Decimal::value);
    }
    if spec.tensors.iter().all(|tensor| tensor.weight == 0.0) {
        let what = "every member of the coupling has weight 0";
        return Err(SpecError::whole(what, "give at least one of them a weight above 0"));
    }
    Ok(spec)
}

/// The domain, view and blocks of one tensor whose dims have these names, and the names of
/// the view's axes.
fn part<'a>(
    mut env: Env<'a>,
    name: &str,
    dims: &[usize],
    names: Vec<String>,
    clauses: &Clauses,
) -> Bound<(BlockedTensor, Env<'a>, Vec<String>)> {
    let size = dims.iter().try_fold(1usize, |size, &dim| size.checked_mul(dim));
    if dims.is_empty() || dims.len() > MAX_RANK {
        let what = format!("tensor `{name}` has {} dims", dims.len());
        return Err(SpecError::whole(what, format!("a spec needs 1 to {MAX_RANK}")));
    }
    let size = match size {
        Some(0) => {
            let what = format!("tensor `{name}` of shape {} has no elements", shape_text(dims));
            return Err(SpecError::whole(what, "there is nothing to prune"));
        }
        Some(size) if size <= MAX_ELEMENTS => size,
        _ => {
            let what = format!("tensor `{name}` of shape {} is too large", shape_text(dims));
            return Err(SpecError::whole(what, format!("at most {MAX_ELEMENTS} elements")));
        }
    };
    env.names = names.iter().cloned().zip(dims.iter().copied()).collect();
    let region = match &clauses.domain {
        None => Region::Strided { first: 0, layout: row_major(dims) },
        Some(domain) => region(domain, dims, size, &env)?,
    };
    if region.len() == 0 {
        return Err(SpecError::whole(
            format!("the domain of `{name}` is empty"),
            "there is nothing to prune",
        ));
    }
    let (space, own, direct) = space(&region, clauses.pad.as_ref(), &env)?;
    let (view, space, axes) = match &clauses.view {
        None => {
            // A box has the tensor's axes, other domains have axes of their own.
            let same = matches!(clauses.domain, None | Some(Domain::Box { .. }));
            let axes = if same { names } else { default_names(own.flat().len()) };
            (own, space, axes)
        }
        Some(view @ View { first, rest }) => {
            let by_strides = matches!(first, Operand::Layout(_));
            let space =
                if direct && by_strides { Space::Direct { first: region.first() } } else { space };
            let Composed { view, names } = composed(view, &own, dims, &mut env)?;
            // A pattern alone is a bijection as it is written.
            if by_strides || !rest.is_empty() {
                let stored = direct && matches!(space, Space::Direct { .. });
                let positions = if stored { region.len() } else { own.size() as usize };
                let covered = if stored {
                    covers_region(&view, &region)
                } else {
                    covers_interval(&view, positions)
                };
                let space = if clauses.domain.is_some() { "domain" } else { "tensor" };
                covered.map_err(|fault| {
                    not_covered(fault, &view, positions, space, first.at(), &env)
                })?;
            }
            (view, space, names)
        }
    };
    let rank = view.flat().len();
    if rank > MAX_RANK {
        let what = format!("the view of `{name}` has {rank} axes");
        return Err(SpecError::whole(what, format!("at most {MAX_RANK}")));
    }
    let tile = match &clauses.block {
        None => vec![1; rank],
        Some(block) => extents(block, view.shape(), false, "block", &env)?,
    };
    let blocks = Grid::new(&view, &tile).map_err(|error| {
        grid_error(&error, "block", "the view", clauses.block.as_ref(), &tile, &env)
    })?;
    let (name, dims) = (name.to_string(), dims.to_vec());
    let composition = clauses.view.as_ref().filter(|view| !view.rest.is_empty());
    let composition = composition.map(ToString::to_string);
    let named = axes.clone();
    let part = BlockedTensor { name, dims, size, space, view, blocks, composition, axes: named };
    Ok((part, env, axes))
}

/// How offsets of the view map to the tensor's: the space, the layout of the domain's own
/// axes in it, and whether a view's strides are those of storage.
fn space(region: &Region, pad: Option<&Tuple>, env: &Env<'_>) -> Bound<(Space, Layout, bool)> {
    Ok(match region {
        Region::Strided { first, layout } => match padded(pad, layout, env)? {
            None => (Space::Direct { first: *first }, layout.clone(), true),
            Some(own) => {
                let real = StridedLayout::from(layout);
                (Space::Padded { first: *first, padded: whole(own.shape()), real }, own, false)
            }
        },
        Region::Set(runs) => {
            let all = row_major(&[runs.len()]);
            let padded = padded(pad, &all, env)?;
            let direct = padded.is_none();
            (Space::Ranked { runs: runs.clone() }, padded.unwrap_or(all), direct)
        }
    })
}

/// The row-major layout of the extents of `own` rounded up to multiples; `None` if they
/// are multiples already.
fn padded(pad: Option<&Tuple>, own: &Layout, env: &Env<'_>) -> Bound<Option<Layout>> {
    let Some(pad) = pad else { return Ok(None) };
    let real = whole(own.shape());
    let multiples = extents(pad, &own.shape().flatten(), false, "pad", env)?;
    let mut padded = Vec::with_capacity(real.len());
    for (axis, (&extent, &by)) in real.iter().zip(&multiples).enumerate() {
        if by == 0 {
            return Err(env.error(
                pad.at(),
                "pad rounds up to multiples of 1 or more",
                format!("axis {axis} is 0"),
            ));
        }
        padded.push(extent.div_ceil(by).saturating_mul(by));
    }
    let size = padded.iter().try_fold(1usize, |size, &extent| size.checked_mul(extent));
    if size.is_none_or(|size| size > MAX_ELEMENTS) {
        return Err(env.error(
            pad.at(),
            "the padded domain is too large",
            format!("at most {MAX_ELEMENTS} positions"),
        ));
    }
    let shape = own.shape().with_leaves(&mut padded.iter().map(|&extent| extent as i64));
    Ok((padded != real).then(|| strided(shape, None)))
}
