//! From a pattern and shapes to a checked spec.

use super::couple::{self, Part};
use super::domain::{Region, Runs, RunsError, Space};
use super::error::SpecError;
use super::grid::{Grid, GridError};
use super::pattern::{
    At, Atom, Axes, Body, Clauses, Couple, Domain, Expr, Keep, Kind, Layout, Member, One, Pattern,
    Tuple, View,
};
use super::steps::{Steps, row_major};
use super::view::{Fault, covers_interval, covers_region};
use super::{Spec, preset};

/// The most elements a tensor may have: offsets and their sums stay far from
/// overflow.
const MAX_ELEMENTS: usize = 1 << 48;
/// The largest number, written or computed.
const MAX_NUMBER: usize = i64::MAX as usize;
/// The most runs of neighbours that the parts of a domain may have together (a
/// fraction of a second).
const MAX_RUNS: usize = 1 << 22;
/// The most axes of a view.
const MAX_RANK: usize = 32;

type Bound<T> = Result<T, SpecError>;

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
        let expanded = self.written_out(&shapes)?;
        let text = &expanded.source;
        let spec = match &expanded.body {
            Body::One(one) => {
                let (name, dims) = &shapes[0];
                let (part, env) = part(text, name, dims, &one.clauses)?;
                couple::one(part, one.clauses.scope.as_ref(), one.clauses.keep.as_ref(), &env)
            }
            Body::Couple(couple) => bind_couple(text, couple, &shapes),
        }?;
        Ok(spec.with_text(self.to_string(), expanded.to_string()))
    }

    /// The same pattern with every preset written out for these tensors; equal to
    /// the pattern itself if it has none.
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
            let what = format!("tensor `{extra}` is no member of the coupling");
            return Err(SpecError::whole(what, format!("its members are {}", list(&names))));
        }
        Ok(shapes)
    }

    fn written_out(&self, shapes: &[(String, &[usize])]) -> Bound<Pattern> {
        if !self.has_preset() {
            return Ok(self.clone());
        }
        let out = |one: &One, dims: &[usize]| {
            let names = dim_names(&self.source, one.clauses.on.as_ref(), dims)?;
            preset::written_out(one, &names, &self.source)
        };
        let body = match &self.body {
            Body::One(one) => Body::One(out(one, shapes[0].1)?),
            Body::Couple(couple) => {
                let mut couple = couple.clone();
                for (member, (_, dims)) in couple.members.iter_mut().zip(shapes) {
                    let lends_scope = couple.kind == Kind::Scopes;
                    if member.one.preset.is_some() {
                        member.one = out(&member.one, dims)?;
                        // A preset lends a coupling its view and block, and its scope to `scopes`.
                        member.one.clauses.keep = None;
                        member.one.clauses.scope =
                            member.one.clauses.scope.take().filter(|_| lends_scope);
                    }
                }
                Body::Couple(couple)
            }
        };
        // Read back from print, so that errors point into what was written out.
        Pattern { source: String::new(), body }.to_string().parse()
    }
}

fn bind_couple(text: &str, couple: &Couple, shapes: &[(String, &[usize])]) -> Bound<Spec> {
    let mut parts = Vec::with_capacity(couple.members.len());
    let mut envs = Vec::with_capacity(couple.members.len());
    for (member, (name, dims)) in couple.members.iter().zip(shapes) {
        let (part, env) = part(text, name, dims, &member.one.clauses)?;
        parts.push(part);
        envs.push(env);
    }
    let members: Vec<&Member> = couple.members.iter().collect();
    match couple.kind {
        Kind::Blocks => {
            couple::blocks(parts, &members, couple.scope.as_ref(), couple.keep.as_ref(), &envs[0])
        }
        Kind::Scopes => couple::scopes(parts, &members, couple.keep.as_ref(), &envs),
    }
}

/// What symbols mean, and where errors point.
pub(crate) struct Env<'a> {
    pub text: &'a str,
    /// The tensor's dims.
    pub names: Vec<(String, usize)>,
}

impl Env<'_> {
    /// An error at byte `at`.
    pub fn error(
        &self,
        at: usize,
        what: impl Into<String>,
        detail: impl Into<String>,
    ) -> SpecError {
        SpecError::at(self.text, at, what, detail)
    }

    fn atom(&self, atom: &Atom, whole: Option<usize>, at: usize) -> Bound<usize> {
        match atom {
            Atom::Int(n) => Ok(usize::try_from(*n).unwrap_or(usize::MAX)),
            Atom::Whole => whole.ok_or_else(|| {
                self.error(
                    at,
                    "`_` has no dimension to stand for here",
                    "write a number or a symbol",
                )
            }),
            Atom::Name(name) => self
                .names
                .iter()
                .find(|(known, _)| known == name)
                .map(|&(_, value)| value)
                .ok_or_else(|| {
                    let known: Vec<_> = self.names.iter().map(|(name, _)| name.as_str()).collect();
                    let detail = match known.as_slice() {
                        [] => {
                            "this tensor's dims have no names; give them with `on (..)`".to_string()
                        }
                        known => format!(
                            "this tensor has {}; name its dims with `on (..)`",
                            known.join(", ")
                        ),
                    };
                    self.error(at, format!("unknown symbol `{name}`"), detail)
                }),
        }
    }

    /// The value of an expression; `whole` is what `_` stands for.
    pub fn eval(&self, expr: &Expr, whole: Option<usize>) -> Bound<usize> {
        let at = expr.at.0;
        let mut value = self.atom(&expr.first, whole, at)?;
        for (multiplies, atom) in &expr.rest {
            let factor = self.atom(atom, whole, at)?;
            value = if *multiplies {
                value.checked_mul(factor).filter(|&v| v <= MAX_NUMBER).ok_or_else(|| {
                    self.error(at, format!("{expr} is too large"), format!("at most {MAX_NUMBER}"))
                })?
            } else if factor == 0 || value % factor != 0 {
                let detail = format!("{value} is not a multiple of {factor}");
                return Err(self.error(at, format!("{expr} is not a whole number"), detail));
            } else {
                value / factor
            };
        }
        Ok(value)
    }
}

/// The names of a tensor's dims: those given with `on`, or the usual ones.
fn dim_names(text: &str, on: Option<&(Vec<String>, At)>, dims: &[usize]) -> Bound<Vec<String>> {
    match on {
        Some((names, at)) if names.len() != dims.len() => {
            let what = format!("`on` names {} dims, the tensor has {}", names.len(), dims.len());
            Err(SpecError::at(text, at.0, what, format!("the tensor is {}", shape_text(dims))))
        }
        Some((names, _)) => Ok(names.clone()),
        None => Ok(match dims.len() {
            1 => vec!["K"],
            2 => vec!["M", "K"],
            3 => vec!["O", "I", "W"],
            4 => vec!["O", "I", "H", "W"],
            5 => vec!["O", "I", "D", "H", "W"],
            _ => return Ok((0..dims.len()).map(|axis| format!("D{axis}")).collect()),
        }
        .into_iter()
        .map(String::from)
        .collect()),
    }
}

/// `(2,3)`.
pub(crate) fn shape_text(dims: &[usize]) -> String {
    let dims: Vec<_> = dims.iter().map(ToString::to_string).collect();
    format!("({})", dims.join(","))
}

/// The domain, view and blocks of one tensor.
fn part<'a>(
    text: &'a str,
    name: &str,
    dims: &[usize],
    clauses: &Clauses,
) -> Bound<(Part, Env<'a>)> {
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
    let names = dim_names(text, clauses.on.as_ref(), dims)?;
    let env = Env { text, names: names.into_iter().zip(dims.iter().copied()).collect() };
    let whole = Region::Strided { first: 0, steps: Steps::new(dims.to_vec(), row_major(dims)) };
    let mut profile = None;
    let region = match &clauses.domain {
        None => whole,
        Some(domain) => {
            if let Domain::Layout { layout, .. } = domain {
                profile = Some(layout.shape.clone());
            }
            region(domain, dims, size, &mut { MAX_RUNS }, &env)?
        }
    };
    if region.len() == 0 {
        return Err(SpecError::whole(
            format!("the domain of `{name}` is empty"),
            "there is nothing to prune",
        ));
    }
    let extents = match &region {
        Region::Strided { steps, .. } => steps.shape().to_vec(),
        Region::Set(runs) => vec![runs.len()],
    };
    let padded = padded(clauses.pad.as_ref(), &extents, &env)?;
    let (space, stride, direct) = space(&region, &extents, padded.as_deref());
    let extents = padded.unwrap_or(extents);
    let view = match &clauses.view {
        None => Viewed {
            steps: Steps::new(extents, stride),
            profile: profile.map(|p| Profile::of(&p)),
            space,
        },
        Some(View::Axes(axes)) => {
            let steps = axes_view(axes, &extents, &stride, &env)?;
            Viewed { steps, profile: None, space }
        }
        Some(View::Layout(layout)) => {
            let steps = layout_steps(layout, dims, &env)?;
            let positions = if direct { region.len() } else { extents.iter().product() };
            let covered = if direct {
                covers_region(&steps, &region)
            } else {
                covers_interval(&steps, positions)
            };
            covered
                .map_err(|fault| not_covered(fault, &steps, positions, clauses, layout, &env))?;
            let space = if direct { Space::Direct { first: region.first() } } else { space };
            Viewed { steps, profile: Some(Profile::of(&layout.shape)), space }
        }
    };
    let profile = view.profile.unwrap_or_else(|| Profile::flat(view.steps.shape().len()));
    if profile.leaves > MAX_RANK {
        let what = format!("the view of `{name}` has {} axes", profile.leaves);
        return Err(SpecError::whole(what, format!("at most {MAX_RANK}")));
    }
    let tile = match &clauses.block {
        None => vec![1; profile.leaves],
        Some(block) => profile.extents(block, view.steps.shape(), false, "block", &env)?,
    };
    let blocks = Grid::new(view.steps.shape(), &tile).map_err(|error| {
        grid_error(&error, "block", "the view", clauses.block.as_ref(), &tile, &env)
    })?;
    let part = Part {
        name: name.to_string(),
        dims: dims.to_vec(),
        size,
        space: view.space,
        view: view.steps,
        profile,
        blocks,
    };
    Ok((part, env))
}

struct Viewed {
    steps: Steps,
    profile: Option<Profile>,
    space: Space,
}

/// How offsets of the view become the tensor's: the space, the strides of its
/// own axes, and whether a view's strides are storage's.
fn space(
    region: &Region,
    extents: &[usize],
    padded: Option<&[usize]>,
) -> (Space, Vec<usize>, bool) {
    match (region, padded) {
        (Region::Strided { first, steps }, None) => {
            (Space::Direct { first: *first }, steps.stride().to_vec(), true)
        }
        (Region::Strided { first, steps }, Some(padded)) => {
            let space = Space::Padded {
                first: *first,
                padded: padded.to_vec(),
                real: extents.to_vec(),
                stride: steps.stride().to_vec(),
            };
            (space, row_major(padded), false)
        }
        (Region::Set(runs), padded) => {
            (Space::Ranked { runs: runs.clone() }, vec![1], padded.is_none())
        }
    }
}

/// Extents rounded up to multiples.
fn padded(pad: Option<&Tuple>, extents: &[usize], env: &Env<'_>) -> Bound<Option<Vec<usize>>> {
    let Some(pad) = pad else { return Ok(None) };
    let multiples = Profile::flat(extents.len()).extents(pad, extents, false, "pad", env)?;
    let mut padded = Vec::with_capacity(extents.len());
    for (axis, (&extent, &by)) in extents.iter().zip(&multiples).enumerate() {
        if by == 0 {
            return Err(env.error(
                pad.at(),
                "pad rounds up to multiples of 1 or more",
                format!("axis {axis} asks for 0"),
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
    Ok((padded != extents).then_some(padded))
}

/// The offsets of a domain; `left` is how many runs it may still be made of.
fn region(
    domain: &Domain,
    dims: &[usize],
    size: usize,
    left: &mut usize,
    env: &Env<'_>,
) -> Bound<Region> {
    match domain {
        Domain::Box { offset, extent, at } => {
            let flat = Profile::flat(dims.len());
            if offset.len() != dims.len() {
                let what = format!(
                    "the box's offset has {} axes, the tensor {}",
                    offset.len(),
                    dims.len()
                );
                return Err(env.error(at.0, what, format!("the tensor is {}", shape_text(dims))));
            }
            let extents = flat.extents(extent, dims, false, "box", env)?;
            let stride = row_major(dims);
            let mut first = 0;
            for (axis, expr) in offset.iter().enumerate() {
                let start = env.eval(expr, Some(dims[axis]))?;
                if extents[axis] == 0 {
                    return Err(env.error(
                        extent.at(),
                        "the box is empty",
                        format!("axis {axis} has extent 0"),
                    ));
                }
                if start.saturating_add(extents[axis]) > dims[axis] {
                    let detail = format!(
                        "axis {axis} has {} entries, the box ends at {}",
                        dims[axis],
                        start.saturating_add(extents[axis])
                    );
                    return Err(env.error(expr.at.0, "the box leaves the tensor", detail));
                }
                first += start * stride[axis];
            }
            Ok(Region::Strided { first, steps: Steps::new(extents, stride) })
        }
        Domain::Layout { layout, start, at } => {
            let steps = layout_steps(layout, dims, env)?;
            let first = start.as_ref().map_or(Ok(0), |start| env.eval(start, None))?;
            let reach: usize =
                steps.shape().iter().zip(steps.stride()).map(|(s, d)| (s - 1) * d).sum();
            if first.saturating_add(reach) >= size {
                let detail = format!(
                    "it reaches offset {}, the tensor has {size}",
                    first.saturating_add(reach)
                );
                return Err(env.error(at.0, "the domain leaves the tensor", detail));
            }
            let region = Region::Strided { first, steps };
            if let Region::Strided { steps, .. } = &region
                && !super::domain::is_nested(&super::domain::sorted_modes(steps))
            {
                runs(&region, at.0, left, env)?;
            }
            Ok(region)
        }
        Domain::Union(parts) => {
            let mut sets = Vec::with_capacity(parts.len());
            for part in parts {
                sets.push(runs(&region(part, dims, size, left, env)?, part.at(), left, env)?);
            }
            Ok(Region::Set(Runs::union(&sets)))
        }
        Domain::Complement(inner) => {
            let inner = runs(&region(inner, dims, size, left, env)?, inner.at(), left, env)?;
            Ok(Region::Set(inner.complement(size)))
        }
    }
}

fn runs(region: &Region, at: usize, left: &mut usize, env: &Env<'_>) -> Bound<Runs> {
    let scattered = |n: usize| {
        let detail = format!("it has {n} runs of neighbours; at most {MAX_RUNS} in all");
        env.error(at, "the domain is too scattered", detail)
    };
    let runs = region.runs().map_err(|error| match error {
        RunsError::TooMany(n) => scattered(n),
        RunsError::Twice(offset) => {
            env.error(at, "the domain overlaps itself", format!("offset {offset} is met twice"))
        }
    })?;
    *left = left.checked_sub(runs.runs()).ok_or_else(|| scattered(runs.runs()))?;
    Ok(runs)
}

/// A layout's extents and strides, leaf by leaf; row-major where it has no
/// strides of its own.
fn layout_steps(layout: &Layout, dims: &[usize], env: &Env<'_>) -> Bound<Steps> {
    let mut shape = Vec::new();
    leaves(&layout.shape, &mut shape);
    let mut extents = Vec::with_capacity(shape.len());
    for (axis, expr) in shape.iter().enumerate() {
        // `_` is the tensor's dimension in the same place, if there is one.
        let whole = matches!(&layout.shape, Tuple::List(items, _) if items.len() == shape.len());
        let extent = env.eval(expr, if whole { dims.get(axis).copied() } else { None })?;
        if extent == 0 {
            return Err(env.error(
                expr.at.0,
                "a layout has no empty axis",
                "extents are 1 or more",
            ));
        }
        extents.push(extent);
    }
    let size = extents.iter().try_fold(1usize, |size, &extent| size.checked_mul(extent));
    if size.is_none_or(|size| size > MAX_ELEMENTS) {
        return Err(env.error(
            layout.at.0,
            "the layout is too large",
            format!("at most {MAX_ELEMENTS} positions"),
        ));
    }
    let Some(stride) = &layout.stride else {
        let stride = row_major(&extents);
        return Ok(Steps::new(extents, stride));
    };
    if !congruent(&layout.shape, stride) {
        let what = format!("shape {} and strides {stride} differ in form", layout.shape);
        return Err(env.error(stride.at(), what, "give one stride for each axis, nested alike"));
    }
    let mut exprs = Vec::new();
    leaves(stride, &mut exprs);
    let mut strides = Vec::with_capacity(exprs.len());
    let mut reach = 0usize;
    for (axis, (expr, &extent)) in exprs.iter().zip(&extents).enumerate() {
        let value = env.eval(expr, None)?;
        if value == 0 && extent > 1 {
            let detail =
                format!("axis {axis} has {extent} positions at one place; a stride is 1 or more");
            return Err(env.error(expr.at.0, "stride 0 meets one element again and again", detail));
        }
        reach = (extent - 1)
            .checked_mul(value)
            .and_then(|r| r.checked_add(reach))
            .filter(|&r| r <= MAX_ELEMENTS)
            .ok_or_else(|| {
                env.error(
                    expr.at.0,
                    "the layout reaches too far",
                    format!("offsets go up to {MAX_ELEMENTS}"),
                )
            })?;
        // The stride of an axis with one entry never counts.
        strides.push(if extent == 1 { 0 } else { value });
    }
    Ok(Steps::new(extents, strides))
}

fn leaves<'a>(tuple: &'a Tuple, out: &mut Vec<&'a Expr>) {
    match tuple {
        Tuple::Leaf(expr) => out.push(expr),
        Tuple::List(items, _) => items.iter().for_each(|item| leaves(item, out)),
    }
}

fn congruent(a: &Tuple, b: &Tuple) -> bool {
    match (a, b) {
        (Tuple::Leaf(_), Tuple::Leaf(_)) => true,
        (Tuple::List(a, _), Tuple::List(b, _)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| congruent(a, b))
        }
        _ => false,
    }
}

/// `m (g j i) -> m g i j, j=2 i=8` over axes of these extents and strides.
fn axes_view(axes: &Axes, extents: &[usize], stride: &[usize], env: &Env<'_>) -> Bound<Steps> {
    if axes.left.len() != extents.len() {
        let what = format!("the view names {} axes, there are {}", axes.left.len(), extents.len());
        return Err(env.error(axes.at.0, what, format!("the domain is {}", shape_text(extents))));
    }
    let mut sizes: Vec<(&str, usize)> = Vec::new();
    for (name, expr, at) in &axes.sizes {
        if !axes.left.iter().flatten().any(|(axis, _)| axis == name) {
            return Err(env.error(
                at.0,
                format!("`{name}` has a size but is no axis"),
                "name it left of the arrow",
            ));
        }
        if sizes.iter().any(|(known, _)| known == name) {
            return Err(env.error(at.0, format!("`{name}` has two sizes"), "say it once"));
        }
        let size = env.eval(expr, None)?;
        if size == 0 {
            return Err(env.error(at.0, format!("`{name}` has no entries"), "sizes are 1 or more"));
        }
        sizes.push((name, size));
    }
    let mut modes: Vec<(&str, usize, usize)> = Vec::new();
    for (axis, group) in axes.left.iter().enumerate() {
        let known = |name: &str| sizes.iter().find(|(n, _)| *n == name).map(|&(_, size)| size);
        let unknown: Vec<_> = group.iter().filter(|(name, _)| known(name).is_none()).collect();
        let product = group
            .iter()
            .filter_map(|(name, _)| known(name))
            .try_fold(1usize, |p, s| p.checked_mul(s));
        let at = group.first().map_or(axes.at.0, |(_, at)| at.0);
        let product = product.unwrap_or(usize::MAX);
        let extent = extents[axis];
        if let [_, (second, at), ..] = unknown.as_slice() {
            return Err(env.error(
                at.0,
                format!("the size of `{second}` is open"),
                format!(
                    "at most one axis of a group may be; write it after a comma: `, {second}=8`"
                ),
            ));
        }
        if unknown.is_empty() && product != extent {
            let detail = format!(
                "axis {axis} has {extent} entries, the sizes of its parts multiply to {product}"
            );
            return Err(env.error(at, "the sizes do not fit", detail));
        }
        if !extent.is_multiple_of(product) {
            let detail = format!(
                "axis {axis} has {extent} entries, not a multiple of {product}; pad it or narrow the domain"
            );
            return Err(env.error(at, "the sizes do not divide", detail));
        }
        let mut step = stride[axis];
        let mut parts = Vec::new();
        for (name, _) in group.iter().rev() {
            let size = known(name).unwrap_or(extent / product);
            parts.push((name.as_str(), size, step));
            step = step.saturating_mul(size);
        }
        modes.extend(parts.into_iter().rev());
    }
    for (i, (name, _, _)) in modes.iter().enumerate() {
        if modes[..i].iter().any(|(other, ..)| other == name) {
            return Err(env.error(
                axes.at.0,
                format!("axis `{name}` is named twice"),
                "give each axis its own name",
            ));
        }
    }
    let mut shape = Vec::new();
    let mut strides = Vec::new();
    for (i, (name, at)) in axes.right.iter().enumerate() {
        let Some(&(_, size, step)) = modes.iter().find(|(known, ..)| known == name) else {
            return Err(env.error(
                at.0,
                format!("`{name}` is not on the left of the arrow"),
                "both sides have the same axes",
            ));
        };
        if axes.right[..i].iter().any(|(other, _)| other == name) {
            return Err(env.error(
                at.0,
                format!("axis `{name}` is on the right twice"),
                "each axis stands there once",
            ));
        }
        shape.push(size);
        strides.push(if size == 1 { 0 } else { step });
    }
    if let Some((name, ..)) =
        modes.iter().find(|(name, ..)| !axes.right.iter().any(|(other, _)| other == name))
    {
        return Err(env.error(
            axes.at.0,
            format!("`{name}` is missing right of the arrow"),
            "both sides have the same axes",
        ));
    }
    Ok(Steps::new(shape, strides))
}

fn not_covered(
    fault: Fault,
    view: &Steps,
    positions: usize,
    clauses: &Clauses,
    layout: &Layout,
    env: &Env<'_>,
) -> SpecError {
    let space = if clauses.domain.is_some() { "domain" } else { "tensor" };
    let sizes = match view.len() {
        n if n == positions => String::new(),
        n => format!("; the view has {n} positions, the {space} {positions}"),
    };
    let (what, detail) = match fault {
        Fault::Twice(at) => (
            "meets an element twice",
            format!("offset {at} is met twice{sizes}; check the strides"),
        ),
        Fault::Missed(at) => {
            ("misses elements", format!("offset {at} is missed{sizes}; check extents and strides"))
        }
        Fault::Outside(at) => {
            let hint = if space == "domain" {
                "a view starts at the domain's first offset"
            } else {
                "check extents and strides"
            };
            ("leaves its storage", format!("offset {at} is outside the {space}{sizes}; {hint}"))
        }
        Fault::Differs => {
            ("differs from its domain", format!("their strides do not fit together{sizes}"))
        }
    };
    env.error(layout.at.0, format!("the view {what}"), detail)
}

/// The nesting of a view's shape: for each top axis, how many leaves it has.
#[derive(Clone, Debug)]
pub(crate) struct Profile {
    modes: Vec<Mode>,
    pub leaves: usize,
}

#[derive(Clone, Debug)]
enum Mode {
    Leaf,
    Nested(Vec<Mode>),
}

impl Mode {
    fn of(tuple: &Tuple) -> Self {
        match tuple {
            Tuple::Leaf(_) => Self::Leaf,
            Tuple::List(items, _) => Self::Nested(items.iter().map(Self::of).collect()),
        }
    }

    fn leaves(&self) -> usize {
        match self {
            Self::Leaf => 1,
            Self::Nested(modes) => modes.iter().map(Self::leaves).sum(),
        }
    }
}

impl Profile {
    pub fn of(shape: &Tuple) -> Self {
        let modes: Vec<_> = match shape {
            Tuple::Leaf(_) => vec![Mode::Leaf],
            Tuple::List(items, _) => items.iter().map(Mode::of).collect(),
        };
        let leaves = modes.iter().map(Mode::leaves).sum();
        Self { modes, leaves }
    }

    pub fn flat(rank: usize) -> Self {
        Self { modes: vec![Mode::Leaf; rank], leaves: rank }
    }

    /// The profile of a grid whose axis `k` is this one's axis `perm[k]`.
    pub fn permuted(&self, perm: &[usize]) -> Self {
        if perm.iter().enumerate().all(|(k, &p)| k == p) {
            self.clone()
        } else {
            Self::flat(self.leaves)
        }
    }

    /// The extents that `tuple` asks for, one for each leaf of a space of extents
    /// `space`; where `open`, missing trailing axes are whole.
    pub fn extents(
        &self,
        tuple: &Tuple,
        space: &[usize],
        open: bool,
        what: &str,
        env: &Env<'_>,
    ) -> Bound<Vec<usize>> {
        let one;
        let items = match tuple {
            Tuple::List(items, _) => items.as_slice(),
            Tuple::Leaf(_) => {
                one = [tuple.clone()];
                &one[..]
            }
        };
        // A nested view may also be spoken of leaf by leaf.
        if items.len() == self.leaves && items.len() > self.modes.len() {
            return Self::flat(self.leaves).extents(tuple, space, open, what, env);
        }
        if items.len() > self.modes.len() || (items.len() < self.modes.len() && !open) {
            let detail = format!("there are {}: {}", self.modes.len(), shape_text(space));
            return Err(env.error(
                tuple.at(),
                format!("{what} {tuple} has {} axes", items.len()),
                detail,
            ));
        }
        let mut extents = Vec::with_capacity(space.len());
        for (mode, item) in self.modes.iter().zip(items) {
            Self::mode(mode, item, space, &mut extents, what, env)?;
        }
        extents.extend(&space[extents.len()..]);
        Ok(extents)
    }

    fn mode(
        mode: &Mode,
        item: &Tuple,
        space: &[usize],
        out: &mut Vec<usize>,
        what: &str,
        env: &Env<'_>,
    ) -> Bound<()> {
        match (mode, item) {
            (Mode::Leaf, Tuple::Leaf(expr)) => {
                let whole = space[out.len()];
                out.push(env.eval(expr, Some(whole))?);
            }
            (Mode::Nested(modes), Tuple::List(items, _)) if modes.len() == items.len() => {
                for (mode, item) in modes.iter().zip(items) {
                    Self::mode(mode, item, space, out, what, env)?;
                }
            }
            // All of a nested axis, or single entries of it.
            (Mode::Nested(modes), Tuple::Leaf(expr))
                if expr.rest.is_empty() && expr.first == Atom::Whole =>
            {
                let leaves: usize = modes.iter().map(Mode::leaves).sum();
                out.extend(&space[out.len()..out.len() + leaves]);
            }
            (Mode::Nested(modes), Tuple::Leaf(expr)) if expr.literal() == Some(1) => {
                out.extend(std::iter::repeat_n(1, modes.iter().map(Mode::leaves).sum()));
            }
            _ => {
                let detail =
                    "write it nested as the view's shape is, or `_` or 1 for a nested axis";
                return Err(env.error(
                    item.at(),
                    format!("{what} {item} is not formed like the view"),
                    detail,
                ));
            }
        }
        Ok(())
    }
}

/// What is wrong with a grid, at the axis in `tuple` that is at fault.
pub(crate) fn grid_error(
    error: &GridError,
    what: &str,
    over: &str,
    tuple: Option<&Tuple>,
    tile: &[usize],
    env: &Env<'_>,
) -> SpecError {
    let mut exprs = Vec::new();
    if let Some(tuple) = tuple {
        leaves(tuple, &mut exprs);
    }
    let at = match (error.axis(), tuple) {
        (Some(axis), Some(tuple)) if exprs.len() == tile.len() => {
            exprs.get(axis).map_or(tuple.at(), |e| e.at.0)
        }
        (Some(axis), Some(tuple)) => exprs.get(axis).map_or(tuple.at(), |e| e.at.0),
        (_, Some(tuple)) => tuple.at(),
        _ => 0,
    };
    let shown = tuple.map_or_else(|| shape_text(tile), ToString::to_string);
    let what = match error {
        GridError::Empty { .. } => format!("{what} {shown} is empty"),
        _ => format!("{what} {shown} does not divide {over}"),
    };
    env.error(at, what, error.to_string())
}

/// How many blocks of a scope stay.
pub(crate) fn keep(keep: Option<&Keep>, blocks: usize, env: &Env<'_>) -> Bound<usize> {
    let Some(keep) = keep else {
        let detail = "add for example `keep 2` or `keep 50%`";
        return Err(env.error(env.text.len(), "the pattern does not say how much to keep", detail));
    };
    let (kept, at) = match keep {
        Keep::Count(expr) => {
            let kept = env.eval(expr, Some(blocks))?;
            if kept == 0 && expr.literal() != Some(0) {
                let detail = "write `keep 0` if every block is to go";
                return Err(env.error(expr.at.0, format!("{expr} comes to 0 blocks"), detail));
            }
            (kept, expr.at.0)
        }
        Keep::Percent { digits, scale, at } => {
            (share(u128::from(*digits), 10u128.pow(*scale), blocks, at.0, keep, env)?, at.0)
        }
        Keep::Share(expr) => {
            (share(env.eval(expr, None)? as u128, 1, blocks, expr.at.0, keep, env)?, expr.at.0)
        }
    };
    if kept > blocks {
        let detail = format!("a scope has {blocks} blocks");
        return Err(env.error(at, format!("keep {keep} is more than there are"), detail));
    }
    Ok(kept)
}

/// `digits / scale` percent of `blocks`, rounded up.
fn share(
    digits: u128,
    scale: u128,
    blocks: usize,
    at: usize,
    keep: &Keep,
    env: &Env<'_>,
) -> Bound<usize> {
    if digits == 0 {
        return Err(env.error(
            at,
            "keep 0% keeps nothing",
            "write `keep 0` if every block is to go",
        ));
    }
    if digits > 100 * scale {
        return Err(env.error(at, format!("keep {keep} is more than there are"), "at most 100%"));
    }
    Ok((blocks as u128 * digits).div_ceil(100 * scale) as usize)
}
